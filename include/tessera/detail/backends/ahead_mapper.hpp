// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/introspection.hpp>

namespace tessera::inline v0_1::detail {

/// The largest free block of a list, in bytes; 0 if there is none.
template <typename Order>
[[nodiscard]] std::size_t largest_free(free_list& list) noexcept {
  list.flush<Order>();
  std::size_t largest = 0;
  if constexpr (Order::is_by_size) {
    const block* const last = list.last_before<Order>({.size = max_request});
    if (last != nullptr) largest = last->size;
  } else {
    for (const block* b = list.first(); b != nullptr; b = list.after<Order>(*b))
      largest = larger(largest, b->size);
  }
  return largest;
}

/// Maps memory for the default pools of one caching_allocator, in steps of what growth maps at once.
template <typename Allocator>
class ahead_mapper {
  using access = core_access;
  using manager_type = std::remove_reference_t<decltype(access::manager(std::declval<Allocator&>()))>;

 public:
  /// It maps until a free block serves a request of `high` bytes.
  ahead_mapper(Allocator& in, std::size_t high, stream_id stream) noexcept
      : in_(in),
        want_(access::make_request(in, high, stream, manager().own())),
        list_(manager().prepare_list(*want_.group, want_.pool, want_.key)) {}

  /// The bytes of a block of the high watermark.
  [[nodiscard]] std::size_t goal() const noexcept { return want_.size; }
  /// The largest free block that serves requests of that size.
  [[nodiscard]] std::size_t free_bytes() const noexcept {
    return list_ != nullptr ? largest_free<typename manager_type::order>(*list_) : 0;
  }
  /// Maps one unit of growth where the most is mapped already of a place with room for the goal.
  ///   Returns:  false if a limit, an extension or the device refuses
  [[nodiscard]] bool map_unit() noexcept {
    auto& ranges = access::backend(in_).ranges();
    const auto& p = access::policies(in_);
    const range_growth growth = ranges.growth_for(goal(), p);
    if (list_ == nullptr || !may_grow(growth.mapping)) return false;
    ranges.retry_orphaned();
    ranges.note_alignment(growth.mapping);
    block* hole = next_hole(ranges.granularity(growth.kinds));
    if (hole == nullptr) hole = ranges.reserve_range(*list_, goal(), growth, false);
    if (hole == nullptr) return false;
    const std::size_t bytes = growth.mapping < hole->size ? growth.mapping : hole->size;
    return ranges.map_new(*hole, hole->address, bytes, growth) != nullptr;
  }

 private:
  [[nodiscard]] manager_type& manager() const noexcept { return access::manager(in_); }
  /// Asks all that may forbid growth, without any attempt to make room.
  [[nodiscard]] bool may_grow(std::size_t bytes) noexcept {
    auto& extensions = access::extensions(in_);
    const usage now = in_.current_usage();
    const auto is_possible = [](auto why) { return why == decltype(why)::none; };
    return manager().may_wait() && extensions.may_serve(*want_.group) &&
           extensions.may_start_growth(*want_.group, bytes) &&
           left_on(manager().provider(), now.reserved) >= bytes &&
           is_possible(predict_failure(manager(), access::policies(in_), bytes, now));
  }
  /// The lowest unmapped block of the place that is best to go on with; null if no place has room.
  ///   Cost:  linear in the unmapped blocks
  [[nodiscard]] block* next_hole(std::size_t granularity) const noexcept {
    block* best = nullptr;
    std::size_t most = 0;
    for_each_unmapped(*list_, [&](block& unmapped) {
      if (unmapped.address % granularity != 0) return;  // kept for smaller pages
      block& first = unmapped.prev->is_free() ? *unmapped.prev : unmapped;
      std::size_t room = 0;
      std::size_t mapped = 0;
      for (const block* b = &first; room < goal(); b = b->next) {
        const std::size_t usable = mapped_ranges<manager_type>::usable(*b, granularity);
        room += usable;
        mapped += b->is_free() ? b->size : 0;
        if (usable < b->size) break;
      }
      if (room < goal() || (best != nullptr && mapped <= most)) return;
      best = &unmapped;
      most = mapped;
    });
    return best;
  }

  Allocator& in_;
  decltype(access::make_request(std::declval<Allocator&>(), 0, stream_id{},
                                std::declval<manager_type&>().own())) want_;
  free_list* list_;
};

}  // namespace tessera::inline v0_1::detail
