// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include <tessera/provider/host_system.hpp>

namespace tessera {

/// Stretches of addresses that do not overlap.
class host_extents {
 public:
  struct extent {
    std::size_t bytes;
    std::uint64_t note;  ///< what its owner wants to know of it
    bool locked = false;
  };

  /// False where host memory ran out.
  ///   Requires:  overlaps none that is there
  [[nodiscard]] bool add(const void* p, const extent& made) noexcept {
    if (!host_remembers([&] { extents_.emplace(host_address(p), made); })) return false;
    bytes_ += made.bytes;
    if (made.locked) locked_ += made.bytes;
    return true;
  }
  /// The one that begins there, or null.
  [[nodiscard]] const extent* find(const void* p) const noexcept {
    const auto found = extents_.find(host_address(p));
    return found != extents_.end() ? &found->second : nullptr;
  }
  ///   Requires:  one begins there
  extent remove(const void* p) noexcept {
    const auto found = extents_.find(host_address(p));
    const extent leaving = found->second;
    bytes_ -= leaving.bytes;
    if (leaving.locked) locked_ -= leaving.bytes;
    extents_.erase(found);
    return leaving;
  }

  /// Whether one lies in part there, of those whose note is at most `upto`.
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes,
                              std::uint64_t upto = ~std::uint64_t{0}) const noexcept {
    const std::uintptr_t begin = host_address(p);
    auto next = extents_.lower_bound(begin);
    if (next != extents_.begin()) {
      const auto& [at, before] = *std::prev(next);
      if (begin - at < before.bytes && before.note <= upto) return true;
    }
    for (; next != extents_.end() && next->first - begin < bytes; ++next)
      if (next->second.note <= upto) return true;
    return false;
  }
  /// The one in which all of these addresses lie, or null.
  [[nodiscard]] extent* around(const void* p, std::size_t bytes) noexcept {
    const auto next = extents_.upper_bound(host_address(p));
    if (next == extents_.begin()) return nullptr;
    extent& before = std::prev(next)->second;
    const std::size_t offset = host_address(p) - std::prev(next)->first;
    return offset < before.bytes && bytes <= before.bytes - offset ? &before : nullptr;
  }

  /// Calls do_with(address, extent) for each.
  template <typename F>
  void each(F do_with) const noexcept {
    for (const auto& [at, e] : extents_) do_with(host_pointer(at), e);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t locked() const noexcept { return locked_; }

 private:
  std::map<std::uintptr_t, extent> extents_;
  std::size_t bytes_ = 0, locked_ = 0;
};

}  // namespace tessera
