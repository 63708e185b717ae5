// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/detail/block.hpp>
#include <tessera/detail/slab.hpp>

namespace tessera::detail {

/// The segments of one allocator, in no particular order; those that the device is asked to take back are aside.
class segments {
 public:
  /// Makes sure that the next add succeeds; false where host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept { return nodes_.reserve(1); }
  ///   Requires:  a reserve_one() that covers it
  [[nodiscard]] segment& add(std::uint64_t idle_since, bool oversize) noexcept {
    segment& fresh = *nodes_.take();
    fresh.mark.is = block::state::segment;
    fresh.idle_since = idle_since;
    fresh.oversize = oversize;
    link(fresh, first_);
    ++count_;
    return fresh;
  }

  void set_aside(segment& leaving, std::size_t bytes) noexcept {
    unlink(leaving, first_);
    link(leaving, aside_);
    --count_;
    bytes_aside_ += bytes;
  }
  void bring_back(segment& staying, std::size_t bytes) noexcept {
    unlink(staying, aside_);
    link(staying, first_);
    ++count_;
    bytes_aside_ -= bytes;
  }
  /// Forgets a segment that is aside.
  void forget(segment& gone, std::size_t bytes) noexcept {
    unlink(gone, aside_);
    bytes_aside_ -= bytes;
    nodes_.give_back(&gone);
  }

  /// Calls f(const segment&) for each that is not aside, or for all; f may not change them.
  template <typename F>
  void for_each(bool aside_too, F f) const {
    for (const segment* s = first_; s != nullptr; s = s->next) f(*s);
    for (const segment* s = aside_too ? aside_ : nullptr; s != nullptr; s = s->next) f(*s);
  }
  /// The one that begins at this address, or null; linear.
  [[nodiscard]] const segment* find(std::uintptr_t address) const noexcept {
    const segment* s = first_;
    while (s != nullptr && s->first().address != address) s = s->next;
    return s;
  }
  /// How many are not aside.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t bytes_aside() const noexcept { return bytes_aside_; }
  [[nodiscard]] std::size_t footprint() const noexcept { return nodes_.footprint(); }
  void sweep() noexcept { nodes_.sweep(); }

 private:
  static void link(segment& s, segment*& first) noexcept {
    s.previous = nullptr;
    s.next = first;
    if (first != nullptr) first->previous = &s;
    first = &s;
  }
  static void unlink(segment& s, segment*& first) noexcept {
    (s.previous != nullptr ? s.previous->next : first) = s.next;
    if (s.next != nullptr) s.next->previous = s.previous;
  }

  slab<segment> nodes_;
  segment* first_ = nullptr;
  segment* aside_ = nullptr;
  std::size_t count_ = 0;
  std::size_t bytes_aside_ = 0;
};

}  // namespace tessera::detail
