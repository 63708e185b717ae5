// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/object_addresses.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/vulkan_functions.hpp>
#include <tessera/provider/vulkan_timelines.hpp>

/// Memory of Vulkan 1.2 and later: vulkan_memory. Without Vulkan's headers, this header declares only names.

#if defined(VK_VERSION_1_2)

namespace tessera::inline v0_1::provider {

/// A VkDevice that a program made with the feature timelineSemaphore of Vulkan 1.2.
struct vulkan_device_settings {
  VkPhysicalDevice physical = VK_NULL_HANDLE;  ///< the device that the memory is of
  VkDevice handle = VK_NULL_HANDLE;            ///< the program destroys it, after all objects over it
  std::span<const VkQueue> queues;             ///< of the streams
  bool has_memory_budget = false;              ///< whether VK_EXT_memory_budget is enabled
  VkMemoryAllocateFlags allocate_flags = 0;    ///< for example VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
};

/// A device: its limits, its streams, and the memory taken from its heaps. All vulkan_memory objects of a device share it,
/// and it must outlive them. It is thread-safe.
class vulkan_device {
 public:
  ///   Throws:  vulkan_error if a semaphore cannot be created
  vulkan_device(const vulkan_functions& table, const vulkan_device_settings& settings)
      : calls_(table), settings_(settings), streams_(calls_, settings.handle, settings.queues) {
    VkPhysicalDeviceMaintenance3Properties sizes{};
    sizes.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES;
    VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &sizes, {}};
    calls_.get_properties(settings.physical, &properties);
    limits_ = properties.properties.limits;
    max_allocation_ = static_cast<std::size_t>(sizes.maxMemoryAllocationSize);
    memory_ = ask_for_memory(nullptr);
  }
  vulkan_device(const vulkan_device&) = delete;
  vulkan_device& operator=(const vulkan_device&) = delete;

  /// The functions that it calls.
  [[nodiscard]] const vulkan_functions& calls() const noexcept { return calls_; }
  /// The VkDevice of the settings.
  [[nodiscard]] VkDevice handle() const noexcept { return settings_.handle; }
  /// The limits that the driver states.
  [[nodiscard]] const VkPhysicalDeviceLimits& limits() const noexcept { return limits_; }
  /// The heaps and the memory types that the driver states.
  [[nodiscard]] const VkPhysicalDeviceMemoryProperties& memory() const noexcept { return memory_; }
  /// The streams that all memory of the device shares.
  [[nodiscard]] vulkan_timelines& streams() noexcept { return streams_; }

  /// Counts an allocation from a heap. Returns why not, if it would exceed the heap or a limit of the device.
  [[nodiscard]] refusal take(std::uint32_t heap, std::size_t bytes) noexcept {
    const std::lock_guard guard(mutex_);
    if (bytes == 0) return refusal("0 bytes were requested");
    if (bytes > max_allocation_)
      return refusal::format("%zu bytes exceed maxMemoryAllocationSize, %zu", bytes, max_allocation_);
    if (bytes > size_of(heap) - taken_[heap])
      return refusal::format("%zu bytes exceed the heap of %zu, of which %zu are taken", bytes, size_of(heap),
                             taken_[heap]);
    if (allocations_ >= limits_.maxMemoryAllocationCount)
      return refusal::format("all %zu objects of maxMemoryAllocationCount exist", allocations_);
    ++allocations_;
    taken_[heap] += bytes;
    return {};
  }
  /// Counts back what take() counted.
  void give_back(std::uint32_t heap, std::size_t bytes) noexcept {
    const std::lock_guard guard(mutex_);
    --allocations_;
    taken_[heap] -= bytes;
  }
  /// The bytes of a heap.
  struct heap_usage {
    std::size_t taken = 0;   ///< by the providers of this device
    std::size_t used = 0;    ///< by the process if VK_EXT_memory_budget is enabled; otherwise `taken`
    std::size_t budget = 0;  ///< what the process may use at about full speed; otherwise the size of the heap
  };
  /// Asks how much of a heap is used.
  ///   Cost:  a call of the driver, if VK_EXT_memory_budget is enabled
  [[nodiscard]] heap_usage usage(std::uint32_t heap) const noexcept {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    if (settings_.has_memory_budget) (void)ask_for_memory(&budget);
    const std::lock_guard guard(mutex_);
    const std::size_t taken = taken_[heap];
    if (!settings_.has_memory_budget) return {taken, taken, size_of(heap)};
    return {taken, static_cast<std::size_t>(budget.heapUsage[heap]),
            static_cast<std::size_t>(budget.heapBudget[heap])};
  }
  /// Bytes of a heap, as the driver states them.
  [[nodiscard]] std::size_t size_of(std::uint32_t heap) const noexcept {
    return static_cast<std::size_t>(memory_.memoryHeaps[heap].size);
  }
  /// The bytes of a heap that its next object may have: what is left of it, and at most maxMemoryAllocationSize.
  [[nodiscard]] std::size_t room_in(std::uint32_t heap) const noexcept {
    const std::lock_guard guard(mutex_);
    return (std::min)(max_allocation_, size_of(heap) - taken_[heap]);
  }
  /// The number of VkDeviceMemory objects.
  [[nodiscard]] std::size_t allocations() const noexcept {
    const std::lock_guard guard(mutex_);
    return allocations_;
  }

  /// Calls vkAllocateMemory with the flags of the settings. It counts nothing; take() does.
  [[nodiscard]] VkResult allocate(const VkMemoryAllocateInfo& what, VkDeviceMemory& made) noexcept {
    VkMemoryAllocateFlagsInfo flags{};
    flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
    flags.pNext = what.pNext;
    flags.flags = settings_.allocate_flags;
    VkMemoryAllocateInfo info = what;
    if (flags.flags != 0) info.pNext = &flags;
    return calls_.allocate_memory(handle(), &info, nullptr, &made);
  }
  /// Calls vkFreeMemory. It counts nothing; give_back() does.
  void free(VkDeviceMemory freed) noexcept { calls_.free_memory(handle(), freed, nullptr); }

 private:
  [[nodiscard]] VkPhysicalDeviceMemoryProperties ask_for_memory(void* next) const noexcept {
    VkPhysicalDeviceMemoryProperties2 got{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, next, {}};
    calls_.get_memory_properties(settings_.physical, &got);
    return got.memoryProperties;
  }

  vulkan_functions calls_;
  vulkan_device_settings settings_;
  vulkan_timelines streams_;
  VkPhysicalDeviceLimits limits_{};
  VkPhysicalDeviceMemoryProperties memory_{};
  std::size_t max_allocation_ = 0;
  mutable std::mutex mutex_;
  std::size_t allocations_ = 0;
  std::array<std::size_t, VK_MAX_MEMORY_HEAPS> taken_{};
};

/// Provides the memory of one memory type of a device. Its segments are objects of type VkDeviceMemory. Their addresses are only
/// numbers; find() returns the object and the offset of an address. Memory that the host can access is mapped until its release.
/// Its streams are those of the device, and vulkan_host. It is thread-safe.
class vulkan_memory {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool release_waits = false;      // vkFreeMemory does not wait
  static constexpr bool completion_may_lag = true;  // if vkGetSemaphoreCounterValue fails
  struct event {
    stream_id stream;            ///< the stream in which it was recorded
    std::uint64_t position = 0;  ///< of the stream when it was recorded
  };
  /// A segment.
  struct object {
    VkDeviceMemory handle = VK_NULL_HANDLE;  ///< its memory, for binding buffers and images
    std::byte* mapped = nullptr;             ///< null if the host cannot access it
  };

  /// Provides the memory of a type, by its number in memory() of the device.
  ///   Throws:  std::bad_alloc
  vulkan_memory(vulkan_device& of, std::uint32_t type) : state_(std::make_unique<state>(of, type)) {}

  [[nodiscard]] std::size_t capacity() const noexcept {
    return static_cast<std::size_t>(on().memory().memoryHeaps[state_->heap].size) / granularity() *
           granularity();
  }
  /// A range that is flushed, and a page of buffers or images, never reach into another segment.
  [[nodiscard]] std::size_t granularity() const noexcept {
    const VkPhysicalDeviceLimits& limits = on().limits();
    return std::bit_ceil(static_cast<std::size_t>((std::max)(
        {limits.bufferImageGranularity, limits.nonCoherentAtomSize, VkDeviceSize{min_alignment}})));
  }
  [[nodiscard]] std::size_t available() const noexcept {
    const vulkan_device::heap_usage now = on().usage(state_->heap);
    const std::size_t left = now.budget > now.used ? now.budget - now.used : 0;
    return (std::min)(left, capacity() > now.taken ? capacity() - now.taken : 0);
  }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    return bytes % granularity() == 0 ? acquire(bytes, nullptr) : nullptr;
  }
  /// Acquires memory for one buffer or image.
  [[nodiscard]] void* acquire(std::size_t bytes, const VkMemoryDedicatedAllocateInfo* only_for) noexcept {
    if (const refusal why = on().take(state_->heap, bytes)) {
      state_->refused.note(why);
      return nullptr;
    }
    object made;
    void* const p = allocate(bytes, only_for, made) ? insert(made, bytes) : nullptr;
    if (p != nullptr) return p;
    if (made.handle != VK_NULL_HANDLE) on().free(made.handle);
    on().give_back(state_->heap, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    object released;
    {
      const std::lock_guard guard(state_->mutex);
      if (bytes == 0 || state_->objects.bytes_at(p) != bytes) return false;
      released = state_->objects.extract(p);
    }
    on().free(released.handle);  // which unmaps it
    on().give_back(state_->heap, bytes);
    return true;
  }
  /// The object and the offset of an address that the caller holds.
  [[nodiscard]] auto find(const void* p) const noexcept { return state_->objects.find(p); }

  refusal take_refusal() noexcept { return state_->refused.take(); }

  bool record(stream_id s, event& mark) noexcept {
    if (!has_stream(s)) return false;
    mark = {s, streams().position(s)};
    return true;
  }
  [[nodiscard]] bool query(event& mark) noexcept { return streams().is_done(mark.stream, mark.position); }
  bool wait(event& mark) noexcept { return streams().wait(mark.stream, mark.position); }
  void discard(event&) noexcept {}

  [[nodiscard]] std::uint64_t position(stream_id s) noexcept { return streams().position(s); }
  [[nodiscard]] bool is_done(stream_id s, std::uint64_t at) noexcept { return streams().is_done(s, at); }
  /// Knows only the waits that make_wait submitted.
  [[nodiscard]] bool is_ordered_after(stream_id s, stream_id of, std::uint64_t at) noexcept {
    return streams().is_ordered_after(s, of, at);
  }
  bool make_wait(stream_id s, stream_id of, std::uint64_t at) noexcept {
    return streams().make_wait(s, of, at);
  }
  [[nodiscard]] bool has_stream(stream_id s) noexcept { return streams().has(s) || s == vulkan_host; }

 private:
  struct state {
    state(vulkan_device& of, std::uint32_t number)
        : on(of),
          type(number),
          heap(of.memory().memoryTypes[number].heapIndex),
          objects(static_cast<std::size_t>(of.memory().memoryHeaps[heap].size)) {}
    vulkan_device& on;
    std::uint32_t type;
    std::uint32_t heap;
    std::mutex mutex;  // of changes to `objects`
    latest_refusals refused;
    object_addresses<object> objects;
  };
  [[nodiscard]] vulkan_device& on() const noexcept { return state_->on; }

  [[nodiscard]] vulkan_timelines& streams() const noexcept { return on().streams(); }

  [[nodiscard]] bool allocate(std::size_t bytes, const VkMemoryDedicatedAllocateInfo* only_for,
                              object& made) noexcept {
    const VkMemoryAllocateInfo info{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, only_for, bytes, state_->type};
    const VkResult allocated = on().allocate(info, made.handle);
    if (!streams().succeeded(allocated)) {
      state_->refused.note(refusal::format("vkAllocateMemory: %s", detail::name_of_result(allocated)));
      made.handle = VK_NULL_HANDLE;
      return false;
    }
    const VkMemoryPropertyFlags has = on().memory().memoryTypes[state_->type].propertyFlags;
    if ((has & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) == 0) return true;
    void* mapped = nullptr;
    const VkResult result = on().calls().map_memory(on().handle(), made.handle, 0, VK_WHOLE_SIZE, 0, &mapped);
    made.mapped = static_cast<std::byte*>(mapped);
    if (result != VK_SUCCESS)
      state_->refused.note(refusal::format("vkMapMemory: %s", detail::name_of_result(result)));
    return streams().succeeded(result);
  }
  [[nodiscard]] void* insert(const object& made, std::size_t bytes) noexcept {
    const std::lock_guard guard(state_->mutex);
    return state_->objects.insert(made, bytes);
  }

  std::unique_ptr<state> state_;
};
static_assert(ordering_provider<vulkan_memory>);

}  // namespace tessera::inline v0_1::provider

#else

namespace tessera::inline v0_1::provider {

/// Vulkan's headers, of version 1.2 or later, are not in the include path.
struct vulkan_device_settings;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_device;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_memory;

}  // namespace tessera::inline v0_1::provider

#endif
