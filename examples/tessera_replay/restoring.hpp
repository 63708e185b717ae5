// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/extension_set.hpp>
#include <tessera/detail/free_list_map.hpp>

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
  [[nodiscard]] bool restore(const tessera::segment_view& segment, std::size_t size,
                             const Blocks& blocks) noexcept {
    auto& manager = access::manager(in_);
    auto& extensions = access::extensions(in_);
    if (!extensions.may_serve(manager.own())) return false;
    block* const found = access::backend(in_).restore(segment, size, access::policies(in_));
    const bool works = found != nullptr && (segment.address == 0 || found->address == segment.address) &&
                       found->size >= segment.bytes && manager.restore_blocks(*found, blocks);
    extensions.on_rearrange();
    return works;
  }
  [[nodiscard]] void* try_allocate_by_growth(std::size_t bytes, tessera::stream_id stream) noexcept {
    if (bytes == 0 || bytes > tessera::max_request) return nullptr;
    auto& group = access::manager(in_).group_for(stream);
    const tessera::detail::group_visit in(group);
    auto miss = access::make_miss(in_, access::make_request(in_, bytes, stream, group));
    block* const found = access::grow(in_, miss);
    if (found == nullptr) return nullptr;
    return reinterpret_cast<void*>(access::allocate_from(in_, *found, miss.want).address);
  }
  std::size_t release_idle_at(const tessera::segment_view& segment) noexcept {
    return access::backend(in_).release_idle_at(segment.address, segment.bytes);
  }

 private:
  allocator& in_;
};

/// What `allocator.get<restoring>()` returns.
template <typename Allocator>
class restoring::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Takes a segment from the device, or maps memory at its address, and splits it into the blocks of a
  /// snapshot. A segment address of 0 means any address.
  ///   * `size` is a block size for which growth would take such a segment.
  ///   * `blocks` are the block_views of the segment, in the order of addresses.
  ///   * Their bytes are multiples of min_alignment. A block with 0 requested bytes is free.
  ///
  ///   Requires:  arguments that obey these rules
  ///   Returns:   false if the device gave other memory, or host memory ran out
  template <typename Blocks>
  [[nodiscard]] bool restore(const tessera::segment_view& segment, std::size_t size,
                             const Blocks& blocks) noexcept {
    return in_->template with_extension<restoring>([&](auto& s) { return s.restore(segment, size, blocks); });
  }
  /// Serves a request as after a search that found no free block: by growth alone, without recovery. For a recorded
  /// request, which recovery may have followed.
  ///   Returns:  null if growth fails
  [[nodiscard]] void* try_allocate_by_growth(std::size_t bytes, tessera::stream_id stream = {}) noexcept {
    return in_->template with_extension<restoring>(
        [=](auto& s) { return s.try_allocate_by_growth(bytes, stream); });
  }
  /// Releases the idle segment that begins at an address. In a range, releases all chunks
  /// of the free blocks that overlap `segment`.
  ///   Returns:  bytes that went back to the device
  std::size_t release_idle_at(const tessera::segment_view& segment) noexcept {
    return in_->template with_extension<restoring>([&](auto& s) { return s.release_idle_at(segment); });
  }

 private:
  Allocator* in_;
};

}  // namespace replay
