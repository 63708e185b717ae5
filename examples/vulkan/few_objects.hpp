// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/vulkan.hpp>
#include <tessera/tessera.hpp>

namespace vulkan {

/// Takes few memory objects. Vulkan allows a device maxMemoryAllocationCount of them, often 4,096, and making one is slow.
///
/// The largest object has an eighth of a heap of up to 1 GiB, and 256 MiB of a larger heap. It has more if the device allows few
/// objects, so that a quarter of them covers the heap. The first object has an eighth of the largest. A further object has about
/// as many bytes as all objects before it, up to the largest. If the heap has too little room, the object is halved, but never
/// below the block.
///   Source:  VulkanMemoryAllocator for 256 MiB, the eighths and the halving
struct grow_by_few_objects {
  using backend = tessera::policy::segment_backend;
  tessera::memory_limit limit{};
  /// Without a device, the heap has the bytes that may be reserved, and 4,096 objects are allowed, as Vulkan requires at least.
  const tessera::provider::vulkan_device* of = nullptr;
  std::uint32_t heap = 0;

  [[nodiscard]] std::size_t segment_size(std::size_t block, const tessera::usage& now) const noexcept {
    const std::size_t all = of != nullptr ? of->size_of(heap) : now.limit;
    const std::size_t largest =
        largest_object(all, of != nullptr ? of->limits().maxMemoryAllocationCount : 4096);
    const std::size_t room =
        of != nullptr ? of->room_in(heap) : now.limit - (std::min)(now.limit, now.reserved);
    std::size_t size =
        (std::min)((std::max)(largest / 8, std::bit_ceil((std::min)(now.reserved, largest) + 1)), largest);
    while (size > room && size > block) size /= 2;
    return (std::max)(tessera::align_up(size, unit), tessera::align_up(block, unit));
  }
  [[nodiscard]] static constexpr std::size_t largest_object(std::size_t heap_bytes,
                                                            std::size_t objects) noexcept {
    using namespace tessera::literals;
    const std::size_t usual = heap_bytes <= 1_GiB ? heap_bytes / 8 : 256_MiB;
    return (std::max)(usual, heap_bytes / (std::max)(objects / 4, std::size_t{1}));
  }
  bool operator==(const grow_by_few_objects&) const = default;

 private:
  // Sizes are multiples of it, because drivers round sizes up to pages of 4 or 64 KiB.
  static constexpr std::size_t unit = 64 * 1024;
};

/// Serves all sizes from few memory objects. It splits and coalesces blocks as PyTorch does, without its limits of sizes.
struct few_objects final {
  using rounding = tessera::policy::round_to_multiple<256>;
  using pools = tessera::policy::pool_together;
  using streams = tessera::policy::reuse_on_same_stream;
  using split = tessera::policy::split_if_remainder_at_least<256>;
  using pages = tessera::policy::normal_pages;
  using growth = grow_by_few_objects;
  using eviction = tessera::policy::evict_never;
  using recovery = tessera::policy::recover_by_emptying_cache<true>;
};
static_assert(tessera::recipe::well_formed<few_objects>);

}  // namespace vulkan
