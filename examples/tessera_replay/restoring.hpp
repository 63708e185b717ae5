// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/tool/simulated_allocator.hpp>

namespace replay {

/// An extension that starts an allocator from a recorded state, and repeats recorded requests. For tools.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, replay::restoring> pool;
///     const tessera::block_view blocks[] = {{.bytes = 5_MiB, .requested = 5_MiB}, {.bytes = 15_MiB}};
///     if (!pool.get<replay::restoring>().restore({.bytes = 20_MiB, .pool = 1}, 5_MiB, blocks)) return 1;
struct restoring {
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;

  /// What an allocator of any recipe offers of it. The allocator must have private pools, too.
  template <typename Allocator>
  [[nodiscard]] static tessera::tool::detail::recorded_memory recorded_memory_of(Allocator& in) noexcept;
};

/// It keeps nothing: it knows only the allocator.
template <typename Core>
class restoring::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using block = tessera::detail::block;
  using allocator = typename Core::allocator;

 public:
  state(allocator& in, const restoring&) noexcept : in_(in) {}

  template <typename Blocks>
  [[nodiscard]] std::uintptr_t restore(const tessera::segment_view& segment, std::size_t size,
                                       const Blocks& blocks) noexcept {
    auto& extensions = access::extensions(in_);
    if (!extensions.may_serve(manager().group_for(segment.stream))) return 0;
    block* const found = take(segment, size);
    const std::uintptr_t address = found != nullptr ? found->address : 0;
    const bool works = found != nullptr && (segment.address == 0 || address == segment.address) &&
                       found->size >= segment.bytes && split(*found, blocks);
    extensions.on_rearrange();
    return works ? address : 0;
  }
  [[nodiscard]] std::uintptr_t reserve(const tessera::segment_view& first, std::size_t size) noexcept {
    if constexpr (has_ranges) {
      auto* const list = manager().prepare_list(manager().group_for(first.stream), first.pool, first.stream);
      auto& ranges = backend().ranges();
      const auto growth = ranges.growth_for(size, access::policies(in_));
      block* const range = list != nullptr ? ranges.reserve_range(*list, first.bytes, growth) : nullptr;
      return range != nullptr ? range->address : 0;
    } else {
      return 0;
    }
  }
  [[nodiscard]] void* try_allocate_by_growth(std::size_t bytes, tessera::stream_id stream) noexcept {
    if (bytes == 0 || bytes > tessera::max_request) return nullptr;
    auto& group = manager().group_for(stream);
    const tessera::detail::group_visit in(group);
    auto miss = access::make_miss(in_, access::make_request(in_, bytes, stream, group));
    block* const found = access::reuse_or_grow(in_, miss);
    if (found == nullptr) return nullptr;
    return reinterpret_cast<void*>(access::allocate_from(in_, *found, miss.want).address);
  }
  std::size_t release_idle_at(const tessera::segment_view& segment) noexcept {
    std::size_t released = 0;
    const std::uintptr_t end = segment.address + segment.bytes;
    for (std::uintptr_t at = segment.address; at < end;) {
      block* const found = access::map(in_).block_at(at);
      if (found == nullptr || found->is_unmapped()) break;
      at = found->end();
      if (found->is_free() && (has_ranges || !found->is_split())) released += backend().release(*found);
    }
    return released;
  }

 private:
  static constexpr bool has_ranges = Core::traits::has_ranges;
  [[nodiscard]] auto& manager() noexcept { return access::manager(in_); }
  [[nodiscard]] auto& backend() noexcept { return access::backend(in_); }

  /// Takes a segment from the device, or maps the pages of a recorded one at their address: in the range that contains
  /// it, or in a new range. Returns null if neither contains the address, or the device refuses.
  [[nodiscard]] block* take(const tessera::segment_view& s, std::size_t size) noexcept {
    const auto& policies = access::policies(in_);
    auto* const list = manager().prepare_list(manager().group_for(s.stream), s.pool, s.stream);
    if (list == nullptr) return nullptr;
    if constexpr (has_ranges) {
      auto& ranges = backend().ranges();
      const auto growth = ranges.growth_for(size, policies);
      ranges.note_alignment(growth.mapping);
      const auto holds = [&s](const block& b) {
        return s.address >= b.address && s.address + s.bytes <= b.end();
      };
      block* hole = tessera::detail::find_unmapped(*list, holds);
      if (hole == nullptr) hole = ranges.reserve_range(*list, s.bytes, growth);
      return hole != nullptr && holds(*hole) ? ranges.map_new(*hole, s.address, s.bytes, growth) : nullptr;
    } else {
      return manager().acquire(*list, s.bytes, s.bytes >= policies.split.oversize_from(),
                               policies.pages.backing(s.bytes));
    }
  }
  /// Splits a free block from its start into recorded blocks. Returns false if host memory ran out.
  template <typename Blocks>
  [[nodiscard]] bool split(block& whole, const Blocks& recorded) noexcept {
    std::uintptr_t address = whole.address;
    block* rest = &whole;
    for (const tessera::block_view& r : recorded) {
      if (!manager().reserve_blocks()) return false;
      block* const following = r.bytes < rest->size ? rest : nullptr;
      (void)manager().allocate(*rest, r.requested, r.bytes, 0, false, rest->list->key);
      rest = following;
    }
    for (const tessera::block_view& r : recorded) {
      if (r.requested == 0) (void)manager().deallocate(reinterpret_cast<void*>(address));
      address += r.bytes;
    }
    return true;
  }
  allocator& in_;
};

/// What `allocator.get<restoring>()` returns.
template <typename Allocator>
class restoring::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Takes a segment from the device, or maps memory at its address, and splits it into the blocks of a
  /// snapshot. A segment address of 0 means any address. The memory belongs to the private pool whose scope is open for
  /// the stream, if there is one.
  ///   * `size` is a block size for which growth would take such a segment.
  ///   * `blocks` are the block_views of the segment, in the order of addresses.
  ///   * Their bytes are multiples of min_alignment. A block with 0 requested bytes is free.
  ///
  ///   Requires:  arguments that obey these rules
  ///   Returns:   the address; 0 if the device gave other memory, or host memory ran out
  template <typename Blocks>
  [[nodiscard]] std::uintptr_t restore(const tessera::segment_view& segment, std::size_t size,
                                       const Blocks& blocks) noexcept {
    return in_->template visit_extension<restoring>(
        [&](auto& s) { return s.restore(segment, size, blocks); });
  }
  /// Reserves an address range for the pool and stream of a segment, without memory. `size` is as for restore.
  ///   Returns:  its address; 0 if the recipe maps no memory into ranges, or there is none
  [[nodiscard]] std::uintptr_t reserve(const tessera::segment_view& first, std::size_t size) noexcept {
    return in_->template visit_extension<restoring>([&](auto& s) { return s.reserve(first, size); });
  }
  /// Serves a request as after a search that found no free block: by growth alone, without recovery. For a recorded
  /// request, which recovery may have followed.
  ///   Returns:  null if growth fails
  [[nodiscard]] void* try_allocate_by_growth(std::size_t bytes, tessera::stream_id stream = {}) noexcept {
    return in_->template visit_extension<restoring>(
        [=](auto& s) { return s.try_allocate_by_growth(bytes, stream); });
  }
  /// Releases the idle segment that begins at an address. In a range, releases all chunks
  /// of the free blocks that overlap `segment`.
  ///   Returns:  bytes that went back to the device
  std::size_t release_idle_at(const tessera::segment_view& segment) noexcept {
    return in_->template visit_extension<restoring>([&](auto& s) { return s.release_idle_at(segment); });
  }

 private:
  Allocator* in_;
};

template <typename Allocator>
tessera::tool::detail::recorded_memory restoring::recorded_memory_of(Allocator& in) noexcept {
  using tessera::pool_id;
  using tessera::segment_view;
  using tessera::extension::private_pools;
  using tessera::extension::scope_kind;
  return {
      .reserve = {in, [](Allocator& a, const segment_view& first,
                         std::size_t size) { return a.template get<restoring>().reserve(first, size); }},
      .restore = {in,
                  [](Allocator& a, const segment_view& s, std::size_t size,
                     std::span<const tessera::block_view> blocks) {
                    return a.template get<restoring>().restore(s, size, blocks);
                  }},
      .create_pool = {in, [](Allocator& a) { return a.template get<private_pools>().create(); }},
      .open_pool = {in,
                    [](Allocator& a, pool_id to) {
                      return a.template get<private_pools>().open(to, scope_kind::capture);
                    }},
      .close_pool = {in, [](Allocator& a, pool_id to) { return a.template get<private_pools>().close(to); }},
      .has_ranges = Allocator::has_ranges};
}

}  // namespace replay
