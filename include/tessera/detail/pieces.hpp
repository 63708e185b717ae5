// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/key_map.hpp>
#include <tessera/detail/slab.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// The physical memory of one allocator, in pieces that are mapped whole; each is found by the address where it begins. A
/// `Counter` keeps count of the bytes that the device has given for them.
///
/// What the device fails to take back is stray: it is found no more, and tried again by retry_stray().
template <virtual_memory_provider Provider, typename Counter = counter>
class pieces {
 public:
  struct piece {
    std::uintptr_t address;  ///< where it is mapped, or is to be
    std::size_t bytes;
    typename Provider::physical memory;
    bool is_created;  ///< whether there is memory
    bool is_mapped;
    bool is_chosen;  ///< for whoever chooses some
    piece* next;     ///< for whoever holds several
    [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  };

  ///   Requires:  the counter outlives it
  explicit pieces(Counter& given) noexcept : given_(given) {}
  pieces(const pieces&) = delete;
  pieces& operator=(const pieces&) = delete;

  /// Notes where a piece is to be, for which there is no memory yet; null where host memory ran out.
  [[nodiscard]] piece* plan(std::uintptr_t address, std::size_t bytes) noexcept {
    if (!nodes_.reserve(1)) return nullptr;
    piece& made = *nodes_.take();
    made = {address, bytes, {}, false, false, false, nullptr};
    return &made;
  }
  /// Takes memory for a planned piece, of the first kind that is to be had; false where there is none.
  [[nodiscard]] bool create(Provider& device, piece& p, const page_order& kinds) noexcept {
    for (const page_kind& kind : kinds) {
      if (!device.create(p.bytes, kind, p.memory)) continue;
      given_.increase(static_cast<std::int64_t>(p.bytes));
      return p.is_created = true;
    }
    return false;
  }
  /// Lets a planned piece have the memory of another one, which is mapped nowhere and is gone then.
  ///   Requires:  the same bytes
  void hand_over(piece& from, piece& to) noexcept {
    to.memory = from.memory;
    to.is_created = true;
    nodes_.give_back(&from);
  }
  /// Puts a piece where it is to be; false where the device failed, and then it is to be destroyed.
  [[nodiscard]] bool map(Provider& device, piece& p) noexcept {
    void* const at = reinterpret_cast<void*>(p.address);
    if (!by_address_.reserve_one() || !device.map(at, p.bytes, p.memory)) return false;
    p.is_mapped = true;
    by_address_.insert(p.address, p);
    if constexpr (!Provider::map_grants_access) {
      if (!device.grant(at, p.bytes)) return false;
    }
    return true;
  }
  /// Takes a piece away from where it is mapped; false where the device failed, and it stays there.
  [[nodiscard]] bool unmap(Provider& device, piece& p) noexcept {
    if (!device.unmap(reinterpret_cast<void*>(p.address), p.bytes)) return false;
    by_address_.remove(p.address);
    p.is_mapped = false;
    return true;
  }
  /// Takes memory for all pieces of a list that have none, then maps all where they are to be; or destroys all, where there is
  /// not as much, or the device failed, and gives false.
  [[nodiscard]] bool provide_all(Provider& device, piece* first, const page_order& kinds) noexcept {
    bool works = true;
    for (piece* p = first; works && p != nullptr; p = p->next)
      works = p->is_created || create(device, *p, kinds);
    for (piece* p = first; works && p != nullptr; p = p->next) works = map(device, *p);
    if (!works) destroy_all(device, first);
    return works;
  }
  void destroy_all(Provider& device, piece* first) noexcept {
    while (first != nullptr) destroy(device, *std::exchange(first, first->next));
  }
  /// Lets go of a piece, wherever it is mapped.
  void destroy(Provider& device, piece& p) noexcept {
    if ((!p.is_mapped || unmap(device, p)) && (!p.is_created || device.destroy(p.memory))) {
      if (p.is_created) given_.decrease(static_cast<std::int64_t>(p.bytes));
      return nodes_.give_back(&p);
    }
    if (p.is_mapped) by_address_.remove(p.address);
    p.next = stray_;
    stray_ = &p;
  }
  void retry_stray(Provider& device) noexcept {
    for (piece* p = std::exchange(stray_, nullptr); p != nullptr;) {
      piece* const following = p->next;
      destroy(device, *p);
      p = following;
    }
  }

  /// The lowest piece that begins in [begin, end), or null.
  ///   Cost:  linear in (end - begin) / step
  ///   Requires:  every piece begins at a multiple of `step`
  [[nodiscard]] piece* first_from(std::uintptr_t begin, std::uintptr_t end, std::size_t step) const noexcept {
    for (std::uintptr_t at = align_up(begin, step); at < end; at += step) {
      if (piece* const found = by_address_.find(at)) return found;
    }
    return nullptr;
  }
  /// The same, where that piece lies in [begin, end) as a whole.
  [[nodiscard]] piece* first_inside(std::uintptr_t begin, std::uintptr_t end,
                                    std::size_t step) const noexcept {
    piece* const found = first_from(begin, end, step);
    return found != nullptr && found->bytes <= end - found->address ? found : nullptr;
  }

  void sweep() noexcept { nodes_.sweep(); }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return nodes_.footprint() + by_address_.footprint();
  }

 private:
  Counter& given_;
  slab<piece> nodes_;
  key_map<piece> by_address_;
  piece* stray_ = nullptr;
};

}  // namespace tessera::detail
