// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace tessera::detail {

/// Runs code that may throw std::bad_alloc; false if it threw.
template <typename F>
[[nodiscard]] bool try_run(F work) noexcept {
#if defined(__cpp_exceptions)
  try {
    work();
  } catch (...) {
    return false;
  }
#else
  work();
#endif
  return true;
}

inline constexpr const char* no_host_memory = "host memory for bookkeeping ran out";

[[nodiscard]] inline std::uintptr_t address_of(const void* p) noexcept {
  return reinterpret_cast<std::uintptr_t>(p);
}
[[nodiscard]] inline void* pointer_to(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

/// Address ranges that do not overlap. Range has a member `bytes`, and any other data.
///   Cost:  logarithmic in the ranges
template <typename Range>
class range_map {
 public:
  /// Adds the range that begins at `p`; false if host memory ran out.
  ///   Requires:  it overlaps no other range
  [[nodiscard]] bool insert(const void* p, Range range) noexcept {
    const std::size_t bytes = range.bytes;
    if (!try_run([&] { ranges_.emplace(address_of(p), std::move(range)); })) return false;
    bytes_ += bytes;
    return true;
  }
  /// The range that begins at `p`, or null.
  [[nodiscard]] Range* find(const void* p) noexcept {
    const auto found = ranges_.find(address_of(p));
    return found != ranges_.end() ? &found->second : nullptr;
  }
  [[nodiscard]] const Range* find(const void* p) const noexcept {
    return const_cast<range_map*>(this)->find(p);
  }
  ///   Requires:  a range begins at `p`
  Range extract(const void* p) noexcept {
    Range range = std::move(ranges_.extract(address_of(p)).mapped());
    bytes_ -= range.bytes;
    return range;
  }

  /// Whether a range that satisfies `condition` overlaps these addresses.
  template <typename F>
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes, F condition) const noexcept {
    const std::uintptr_t begin = address_of(p);
    auto next = ranges_.lower_bound(begin);
    if (auto at = next; at != ranges_.begin()) {
      --at;
      if (begin - at->first < at->second.bytes && condition(at->second)) return true;
    }
    for (; next != ranges_.end() && next->first - begin < bytes; ++next)
      if (condition(next->second)) return true;
    return false;
  }
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes) const noexcept {
    return overlaps(p, bytes, [](const Range&) { return true; });
  }
  /// The range that contains all these addresses, or null. With 0 bytes, the range that contains `p`.
  [[nodiscard]] Range* around(const void* p, std::size_t bytes) noexcept {
    auto at = ranges_.upper_bound(address_of(p));
    if (at == ranges_.begin()) return nullptr;
    Range& before = (--at)->second;
    const std::size_t offset = address_of(p) - at->first;
    return offset < before.bytes && bytes <= before.bytes - offset ? &before : nullptr;
  }
  [[nodiscard]] const Range* around(const void* p, std::size_t bytes) const noexcept {
    return const_cast<range_map*>(this)->around(p, bytes);
  }

  /// Calls f(pointer, range) for each range, by ascending address.
  template <typename F>
  void for_each(F f) const noexcept {
    for (const auto& [at, range] : ranges_) f(pointer_to(at), range);
  }
  /// The sum of the bytes of all ranges.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::map<std::uintptr_t, Range> ranges_;
  std::size_t bytes_ = 0;
};

}  // namespace tessera::detail
