// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/vulkan.hpp>

#include "few_objects.hpp"

namespace vulkan {

using tessera::provider::vulkan_device;
using tessera::provider::vulkan_functions;
using tessera::provider::vulkan_host;
using tessera::provider::vulkan_memory;
using tessera::provider::vulkan_timelines;

/// A part of a VkDeviceMemory. It is false if it has no memory.
struct allocation {
  VkDeviceMemory memory = VK_NULL_HANDLE;
  VkDeviceSize offset = 0;
  VkDeviceSize size = 0;
  std::byte* mapped = nullptr;  ///< the host's address of the first byte; null if the host must not access it
  std::uint32_t type = 0;       ///< the memory type
  bool is_dedicated = false;    ///< whether it is the whole VkDeviceMemory
  [[nodiscard]] explicit operator bool() const noexcept { return memory != VK_NULL_HANDLE; }

  // For the suballocator.
  void* block = nullptr;
  std::uint32_t pool = 0;
};

/// The use of memory, which selects the memory type. A type must have all required properties. Among these types, those with most preferred and fewest
/// avoided properties come first.
struct memory_use {
  VkMemoryPropertyFlags required = 0;
  VkMemoryPropertyFlags preferred = 0;
  VkMemoryPropertyFlags avoided = 0;
  /// Whether the host accesses it.
  [[nodiscard]] constexpr bool is_for_host() const noexcept {
    return ((required | preferred) & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0;
  }
};
/// Only the device uses it.
inline constexpr memory_use for_device{0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                       VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT};
/// The host writes it in order, and the device reads it.
inline constexpr memory_use for_upload{VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                       VK_MEMORY_PROPERTY_HOST_CACHED_BIT};
/// The device writes it, and the host reads it.
inline constexpr memory_use for_readback{VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
                                         VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0};

/// Buffers and images with linear tiling are linear; images with optimal tiling are not.
enum class tiling : unsigned char { linear, optimal };

struct request {
  VkMemoryRequirements needs{};
  memory_use use = for_device;
  tiling is = tiling::linear;
  tessera::stream_id stream{};                              ///< whose work uses it first; it must exist
  const VkMemoryDedicatedAllocateInfo* only_for = nullptr;  ///< the buffer or image of a dedicated allocation
  bool must_be_dedicated = false;
};

struct buffer {
  VkBuffer handle = VK_NULL_HANDLE;
  allocation memory;
  [[nodiscard]] explicit operator bool() const noexcept { return handle != VK_NULL_HANDLE; }
};
struct image {
  VkImage handle = VK_NULL_HANDLE;
  allocation memory;
  [[nodiscard]] explicit operator bool() const noexcept { return handle != VK_NULL_HANDLE; }
};

struct suballocator_settings {
  std::size_t dedicated_from = std::size_t{256} << 20;  ///< buffers and images of at least so many bytes
};

/// Allocates memory for buffers and images from all memory types of a device. Each type has a caching allocator with the recipe.
/// Thread-safe.
///
/// Memory is freed in the order of streams. deallocate() and destroy() may be called while submitted work still uses the memory.
/// Its own stream may then use it again at once, because the work of a stream runs in order. Call record_stream() if another
/// stream uses it, too. Memory for the host belongs to the stream vulkan_host, so it is reused only after the work that uses it.
template <typename Recipe = few_objects>
class suballocator {
 public:
  /// The memory of a heap, in bytes. `heap` counts all suballocators of the device, the rest only this one.
  struct budget {
    vulkan_device::heap_usage heap;
    std::size_t live = 0;    ///< in blocks and dedicated memory that the program has not freed
    std::size_t cached = 0;  ///< in freed blocks and freed dedicated memory, also if work still uses them
  };

  explicit suballocator(vulkan_device& of, suballocator_settings settings = {})
      : on_(of), settings_(settings) {
    for (std::uint32_t type = 0; type < of.memory().memoryTypeCount; ++type) {
      for (int both = 0; both < 2; ++both) {
        pools_.push_back(std::make_unique<pool>(vulkan_memory(of, type)));
        pools_.back()->visit_policies([&, this](auto& chosen) {
          if constexpr (requires { chosen.growth = grow_by_few_objects{}; })
            chosen.growth = {.of = &of, .heap = heap_of(type)};
        });
      }
    }
  }
  suballocator(const suballocator&) = delete;
  suballocator& operator=(const suballocator&) = delete;
  ///   Requires:  all memory is freed; no work is running that uses it
  ~suballocator() {
    for (retired& each : retired_) end(each);
  }

  /// Serves a request from the first suitable memory type that has memory. If a heap is full, releases the caches of this
  /// suballocator there; those of other suballocators stay. If all types fail, waits for freed dedicated memory.
  /// Destroys at most 16 handles of destroyed resources whose work is done; trim() destroys all of them.
  ///   Returns:  an empty allocation if no type has memory or the stream does not exist
  [[nodiscard]] allocation allocate(const request& asked) noexcept {
    if (!has_stream(asked.stream)) return {};
    collect(collected_at_once);
    std::array<std::uint32_t, VK_MAX_MEMORY_TYPES> types{};
    const std::size_t count = find_types(asked, types);
    for (std::size_t i = 0; i < count; ++i) {
      if (const allocation made = allocate_from(types[i], asked)) return made;
      trim_heap(heap_of(types[i]));
      if (const allocation made = allocate_from(types[i], asked)) return made;
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (bool is_waiting = true; is_waiting;) {
        is_waiting = wait_for_retired(heap_of(types[i]));
        // Another thread may have freed memory, so this also retries if nothing was left to wait for.
        if (const allocation made = allocate_from(types[i], asked)) return made;
      }
    }
    return {};
  }
  /// Frees memory. An empty allocation is ignored.
  void deallocate(const allocation& freed) noexcept {
    if (!freed) return;
    if (freed.is_dedicated) return retire({.memory = freed});
    pools_[freed.pool]->deallocate(freed.block);
  }
  /// Records that a stream uses memory. After deallocate, the memory waits for the work that was submitted to it. Returns
  /// false if the stream does not exist or memory of the host ran out.
  [[nodiscard]] bool record_stream(const allocation& used, tessera::stream_id stream) noexcept {
    // Freed dedicated memory waits for all streams.
    if (used.is_dedicated) return has_stream(stream);
    return pools_[used.pool]->record_stream(used.block, stream);
  }

  /// Makes a buffer with memory. Returns an empty buffer if that fails.
  [[nodiscard]] buffer create_buffer(const VkBufferCreateInfo& info, const memory_use& use = for_device,
                                     tessera::stream_id stream = {}) noexcept {
    buffer made;
    if (!succeeded(calls().create_buffer(on_.handle(), &info, nullptr, &made.handle))) return {};
    VkMemoryDedicatedRequirements dedicated{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS, nullptr, 0, 0};
    VkMemoryRequirements2 needs{VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2, &dedicated, {}};
    const VkBufferMemoryRequirementsInfo2 of{VK_STRUCTURE_TYPE_BUFFER_MEMORY_REQUIREMENTS_INFO_2, nullptr,
                                             made.handle};
    calls().get_buffer_requirements(on_.handle(), &of, &needs);
    const VkMemoryDedicatedAllocateInfo only_for{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, nullptr,
                                                 VK_NULL_HANDLE, made.handle};
    made.memory = allocate_for(needs.memoryRequirements, dedicated, only_for, use, tiling::linear, stream);
    if (made.memory &&
        succeeded(calls().bind_buffer(on_.handle(), made.handle, made.memory.memory, made.memory.offset)))
      return made;
    calls().destroy_buffer(on_.handle(), made.handle, nullptr);
    deallocate(made.memory);
    return {};
  }
  /// Makes an image with memory. Returns an empty image if that fails.
  [[nodiscard]] image create_image(const VkImageCreateInfo& info, const memory_use& use = for_device,
                                   tessera::stream_id stream = {}) noexcept {
    image made;
    if (!succeeded(calls().create_image(on_.handle(), &info, nullptr, &made.handle))) return {};
    VkMemoryDedicatedRequirements dedicated{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS, nullptr, 0, 0};
    VkMemoryRequirements2 needs{VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2, &dedicated, {}};
    const VkImageMemoryRequirementsInfo2 of{VK_STRUCTURE_TYPE_IMAGE_MEMORY_REQUIREMENTS_INFO_2, nullptr,
                                            made.handle};
    calls().get_image_requirements(on_.handle(), &of, &needs);
    const VkMemoryDedicatedAllocateInfo only_for{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, nullptr,
                                                 made.handle, VK_NULL_HANDLE};
    const tiling is = info.tiling == VK_IMAGE_TILING_LINEAR ? tiling::linear : tiling::optimal;
    made.memory = allocate_for(needs.memoryRequirements, dedicated, only_for, use, is, stream);
    if (made.memory &&
        succeeded(calls().bind_image(on_.handle(), made.handle, made.memory.memory, made.memory.offset)))
      return made;
    calls().destroy_image(on_.handle(), made.handle, nullptr);
    deallocate(made.memory);
    return {};
  }
  /// Frees the memory of a buffer, and destroys its handle once the work submitted so far to all streams is done.
  void destroy(const buffer& left) noexcept {
    if (!left) return;
    retire({.memory = left.memory.is_dedicated ? left.memory : allocation{}, .buffer = left.handle});
    if (!left.memory.is_dedicated) deallocate(left.memory);
  }
  /// Frees the memory of an image, and destroys its handle once the work submitted so far to all streams is done.
  void destroy(const image& left) noexcept {
    if (!left) return;
    retire({.memory = left.memory.is_dedicated ? left.memory : allocation{}, .image = left.handle});
    if (!left.memory.is_dedicated) deallocate(left.memory);
  }

  /// Makes what the host wrote visible to the device. Does nothing if the memory is coherent.
  bool flush(const allocation& a, VkDeviceSize offset = 0, VkDeviceSize size = VK_WHOLE_SIZE) noexcept {
    return is_coherent(a.type) || for_range(calls().flush, a, offset, size);
  }
  /// Makes what the device wrote visible to the host. Does nothing if the memory is coherent.
  bool invalidate(const allocation& a, VkDeviceSize offset = 0, VkDeviceSize size = VK_WHOLE_SIZE) noexcept {
    return is_coherent(a.type) || for_range(calls().invalidate, a, offset, size);
  }

  [[nodiscard]] budget budget_of(std::uint32_t heap) const noexcept {
    budget sum{on_.usage(heap), dedicated_[heap].live.load(), dedicated_[heap].retired.load()};
    for (std::uint32_t i = 0; i < pools_.size(); ++i) {
      if (heap_of(i / 2) != heap) continue;
      const tessera::usage now = pools_[i]->current_usage();
      sum.live += now.allocated;
      sum.cached += now.cached + now.pending();
    }
    return sum;
  }
  /// Releases all cached memory that no work uses.
  void trim() noexcept {
    collect(tessera::unlimited);
    for (const auto& each : pools_) each->trim();
  }
  /// Calls f(memory type, allocator) for each allocator, for example to read its statistics or to explain why memory ran out.
  template <typename F>
  void for_each_pool(F f) {
    for (std::uint32_t i = 0; i < pools_.size(); ++i) f(i / 2, *pools_[i]);
  }
  /// The memory types that suit a request, the best first. Returns their number.
  [[nodiscard]] std::size_t find_types(const request& asked,
                                       std::array<std::uint32_t, VK_MAX_MEMORY_TYPES>& types) const noexcept {
    const VkPhysicalDeviceMemoryProperties& all = on_.memory();
    // Memory with these properties has rules of its own, so a request must require them.
    constexpr VkMemoryPropertyFlags special =
        VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
        VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;
    const auto cost = [&](std::uint32_t type) {
      const VkMemoryPropertyFlags has = all.memoryTypes[type].propertyFlags;
      return std::popcount(asked.use.preferred & ~has) + std::popcount(asked.use.avoided & has);
    };
    std::size_t count = 0;
    for (std::uint32_t type = 0; type < all.memoryTypeCount; ++type) {
      const VkMemoryPropertyFlags has = all.memoryTypes[type].propertyFlags;
      const bool suits = (asked.needs.memoryTypeBits >> type & 1) != 0 && (asked.use.required & ~has) == 0 &&
                         (has & special & ~asked.use.required) == 0;
      if (!suits) continue;
      // Equal costs keep the order of the driver, which lists faster types first.
      std::size_t at = count++;
      for (; at > 0 && cost(types[at - 1]) > cost(type); --at) types[at] = types[at - 1];
      types[at] = type;
    }
    return count;
  }

 private:
  using pool = tessera::concurrent::locked<tessera::caching_allocator<Recipe, vulkan_memory>>;
  /// The handles that one request destroys. With a limit, no request is slow after many were left. With more than one, they do
  /// not pile up.
  static constexpr std::size_t collected_at_once = 16;
  /// A handle or dedicated memory that waits for work before it is destroyed.
  struct retired {
    allocation memory{};
    VkBuffer buffer = VK_NULL_HANDLE;
    VkImage image = VK_NULL_HANDLE;
    std::vector<std::uint64_t> after{};  // a position of each stream
  };
  /// The bytes of dedicated memory from a heap.
  struct dedicated_bytes {
    std::atomic<std::size_t> live = 0;
    std::atomic<std::size_t> retired = 0;
  };

  [[nodiscard]] const vulkan_functions& calls() const noexcept { return on_.calls(); }
  bool succeeded(VkResult result) noexcept { return on_.streams().succeeded(result); }
  [[nodiscard]] bool has_stream(tessera::stream_id s) const noexcept {
    return s == vulkan_host || on_.streams().has(s);
  }
  [[nodiscard]] std::uint32_t heap_of(std::uint32_t type) const noexcept {
    return on_.memory().memoryTypes[type].heapIndex;
  }
  [[nodiscard]] VkMemoryPropertyFlags flags_of(std::uint32_t type) const noexcept {
    return on_.memory().memoryTypes[type].propertyFlags;
  }
  [[nodiscard]] bool is_coherent(std::uint32_t type) const noexcept {
    return (flags_of(type) & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0;
  }
  /// The pool of a type. Linear and optimal resources have pools of their own, unless a block is as large as a page of
  /// bufferImageGranularity.
  [[nodiscard]] std::uint32_t pool_of(std::uint32_t type, tiling is) const noexcept {
    const bool shares = on_.limits().bufferImageGranularity <= tessera::min_alignment;
    return 2 * type + (is == tiling::optimal && !shares ? 1 : 0);
  }

  [[nodiscard]] allocation allocate_for(const VkMemoryRequirements& needs,
                                        const VkMemoryDedicatedRequirements& dedicated,
                                        const VkMemoryDedicatedAllocateInfo& only_for, const memory_use& use,
                                        tiling is, tessera::stream_id stream) noexcept {
    const bool must = dedicated.requiresDedicatedAllocation == VK_TRUE;
    const bool prefers =
        must || dedicated.prefersDedicatedAllocation == VK_TRUE || needs.size >= settings_.dedicated_from;
    return allocate({needs, use, is, stream, prefers ? &only_for : nullptr, must});
  }
  [[nodiscard]] allocation allocate_from(std::uint32_t type, const request& asked) noexcept {
    allocation made;
    made.type = type;
    made.pool = pool_of(type, asked.is);
    made.size = asked.needs.size;
    pool& from = *pools_[made.pool];
    const void* at = nullptr;
    if (asked.only_for != nullptr) {
      at = made.block = from.visit_provider([&](vulkan_memory& provider) {
        return provider.acquire(static_cast<std::size_t>(asked.needs.size), asked.only_for);
      });
      made.is_dedicated = at != nullptr;
      if (made.is_dedicated) dedicated_[heap_of(type)].live += static_cast<std::size_t>(made.size);
    }
    if (at == nullptr && !asked.must_be_dedicated) at = suballocate(from, type, asked, made.block);
    if (at == nullptr) return {};
    if (!made.is_dedicated && asked.use.is_for_host() && !from.record_stream(made.block, asked.stream)) {
      from.deallocate(made.block);
      return {};
    }
    const auto place = from.visit_provider([&](vulkan_memory& provider) { return provider.find(at); });
    made.memory = place.object->handle;
    made.offset = place.offset;
    if (asked.use.is_for_host() && place.object->mapped != nullptr)
      made.mapped = place.object->mapped + place.offset;
    return made;
  }
  /// Returns an aligned address, and sets `block` to the address of its block.
  [[nodiscard]] const void* suballocate(pool& from, std::uint32_t type, const request& asked,
                                        void*& block) noexcept {
    const auto bytes = static_cast<std::size_t>(asked.needs.size);
    auto alignment = (std::max)(static_cast<std::size_t>(asked.needs.alignment), std::size_t{1});
    const VkMemoryPropertyFlags mapped_only =
        flags_of(type) & (VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    if (mapped_only == VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) {
      // A flush or an invalidation covers whole atoms, so no two allocations share one.
      alignment = (std::max)(alignment, static_cast<std::size_t>(on_.limits().nonCoherentAtomSize));
    }
    // Sizes are mostly multiples of their alignment. Then most blocks are aligned without extra bytes.
    const tessera::stream_id stream = asked.use.is_for_host() ? vulkan_host : asked.stream;
    block = from.try_allocate(bytes, stream);
    if (reinterpret_cast<std::uintptr_t>(block) % alignment == 0) return block;
    from.deallocate(block);
    block = from.try_allocate(bytes + alignment - tessera::min_alignment, stream);
    return reinterpret_cast<const void*>(
        tessera::align_up(reinterpret_cast<std::uintptr_t>(block), alignment));
  }
  /// Releases the cached memory of those pools of this suballocator that share a heap.
  void trim_heap(std::uint32_t heap) noexcept {
    for (std::uint32_t i = 0; i < pools_.size(); ++i) {
      if (heap_of(i / 2) == heap) pools_[i]->trim();
    }
  }

  /// Extends a range to whole atoms, and calls vkFlushMappedMemoryRanges or vkInvalidateMappedMemoryRanges.
  template <typename Function>
  bool for_range(Function call, const allocation& a, VkDeviceSize offset, VkDeviceSize size) noexcept {
    const VkDeviceSize atom = on_.limits().nonCoherentAtomSize;
    const VkDeviceSize begin = (a.offset + offset) / atom * atom;
    const VkDeviceSize last = a.offset + (size == VK_WHOLE_SIZE ? a.size : (std::min)(a.size, offset + size));
    const VkDeviceSize end = (last + atom - 1) / atom * atom;
    const bool reaches_the_end = a.is_dedicated && end > a.size;
    const VkMappedMemoryRange range{VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE, nullptr, a.memory, begin,
                                    reaches_the_end ? VK_WHOLE_SIZE : end - begin};
    return succeeded(call(on_.handle(), 1, &range));
  }

  void retire(retired left) noexcept {
    vulkan_timelines& streams = on_.streams();
    if (left.memory) {
      dedicated_bytes& of = dedicated_[heap_of(left.memory.type)];
      of.live -= static_cast<std::size_t>(left.memory.size);
      of.retired += static_cast<std::size_t>(left.memory.size);
    }
    try {
      for (std::size_t i = 0; i < streams.size(); ++i)
        left.after.push_back(streams.position(tessera::stream_id{i}));
      const std::lock_guard guard(mutex_);
      retired_.push_back(left);
    } catch (const std::bad_alloc&) {
      for (std::size_t i = 0; i < streams.size(); ++i)
        (void)streams.wait(tessera::stream_id{i}, streams.position(tessera::stream_id{i}));
      end(left);
    }
  }
  /// Destroys handles and dedicated memory whose work is done, at most `max` of them.
  void collect(std::size_t max) noexcept {
    const std::lock_guard guard(mutex_);
    for (; max > 0 && !retired_.empty() && is_done(retired_.front()); --max) {
      end(retired_.front());
      retired_.pop_front();
    }
  }
  /// Frees the oldest dedicated memory of a heap whose work is done, or waits for one stream that uses it. Other threads may
  /// allocate and free meanwhile. Returns false if there is no such memory or the wait fails.
  bool wait_for_retired(std::uint32_t heap) noexcept {
    std::unique_lock guard(mutex_);
    const auto oldest = std::find_if(retired_.begin(), retired_.end(), [&](const retired& each) {
      return each.memory && heap_of(each.memory.type) == heap;
    });
    if (oldest == retired_.end()) return false;
    const std::size_t running = find_running(*oldest);
    if (running < oldest->after.size()) {
      const std::uint64_t position = oldest->after[running];
      guard.unlock();
      return on_.streams().wait(tessera::stream_id{running}, position);
    }
    end(*oldest);
    retired_.erase(oldest);
    return true;
  }
  /// Returns the first stream whose work is not done, or the number of streams.
  [[nodiscard]] std::size_t find_running(const retired& of) noexcept {
    std::size_t i = 0;
    while (i < of.after.size() && on_.streams().is_done(tessera::stream_id{i}, of.after[i])) ++i;
    return i;
  }
  [[nodiscard]] bool is_done(const retired& of) noexcept { return find_running(of) == of.after.size(); }
  void end(const retired& left) noexcept {
    if (left.buffer != VK_NULL_HANDLE) calls().destroy_buffer(on_.handle(), left.buffer, nullptr);
    if (left.image != VK_NULL_HANDLE) calls().destroy_image(on_.handle(), left.image, nullptr);
    if (!left.memory) return;
    pools_[left.memory.pool]->visit_provider([&](vulkan_memory& provider) {
      (void)provider.release(left.memory.block, static_cast<std::size_t>(left.memory.size));
    });
    dedicated_[heap_of(left.memory.type)].retired -= static_cast<std::size_t>(left.memory.size);
  }

  vulkan_device& on_;
  suballocator_settings settings_;
  std::vector<std::unique_ptr<pool>> pools_;  // two for each memory type
  std::array<dedicated_bytes, VK_MAX_MEMORY_HEAPS> dedicated_{};
  std::mutex mutex_;             // of `retired_`
  std::deque<retired> retired_;  // about in the order of their positions
};

}  // namespace vulkan
