// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#if __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>
#endif

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/object_addresses.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/stream_order.hpp>

/// Memory of Vulkan 1.2 and later: vulkan_memory. Without Vulkan's headers, this header declares only names.

namespace tessera::inline v0_1::provider {

/// The stream of the host, which accesses mapped memory. All its work is done when it is submitted. A block of this stream is
/// never used by running work when the host gets it.
inline constexpr stream_id vulkan_host{~std::uint64_t{0}};

}  // namespace tessera::inline v0_1::provider

#if defined(VK_VERSION_1_2)

namespace tessera::inline v0_1::detail {

/// The name of a result of a call for memory.
[[nodiscard]] inline const char* name_of_result(VkResult result) noexcept {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    default: return "an error without a name here";
  }
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// The constructor of an object failed.
class vulkan_error : public std::runtime_error {
 public:
  /// Names the call of Vulkan and the VkResult that it returned, as a number.
  vulkan_error(const char* call, VkResult result)
      : std::runtime_error(std::string(call) + " returned " + std::to_string(result)) {}
};

/// The functions of Vulkan 1.2 that allocate memory, and make buffers and images in it. They are in a table, so that a program
/// may load Vulkan as it likes, and a test can make each call fail.
class vulkan_functions {
  PFN_vkGetInstanceProcAddr find_;
  VkInstance instance_;
  VkDevice device_;
  PFN_vkGetDeviceProcAddr find_in_device_ = of_instance("vkGetDeviceProcAddr");

 public:
  ///   Throws:  vulkan_error if a function is missing
  vulkan_functions(PFN_vkGetInstanceProcAddr find, VkInstance instance, VkDevice device)
      : find_(find), instance_(instance), device_(device) {}

  ///@{
  /// The function of Vulkan that the type names. None is null after the constructor.
  PFN_vkGetPhysicalDeviceProperties2 get_properties = of_instance("vkGetPhysicalDeviceProperties2");
  PFN_vkGetPhysicalDeviceMemoryProperties2 get_memory_properties =
      of_instance("vkGetPhysicalDeviceMemoryProperties2");
  PFN_vkAllocateMemory allocate_memory = of_device("vkAllocateMemory");
  PFN_vkFreeMemory free_memory = of_device("vkFreeMemory");
  PFN_vkMapMemory map_memory = of_device("vkMapMemory");
  PFN_vkFlushMappedMemoryRanges flush = of_device("vkFlushMappedMemoryRanges");
  PFN_vkInvalidateMappedMemoryRanges invalidate = of_device("vkInvalidateMappedMemoryRanges");
  PFN_vkCreateSemaphore create_semaphore = of_device("vkCreateSemaphore");
  PFN_vkDestroySemaphore destroy_semaphore = of_device("vkDestroySemaphore");
  PFN_vkGetSemaphoreCounterValue get_semaphore_value = of_device("vkGetSemaphoreCounterValue");
  PFN_vkWaitSemaphores wait_semaphores = of_device("vkWaitSemaphores");
  PFN_vkQueueSubmit queue_submit = of_device("vkQueueSubmit");
  PFN_vkCreateBuffer create_buffer = of_device("vkCreateBuffer");
  PFN_vkDestroyBuffer destroy_buffer = of_device("vkDestroyBuffer");
  PFN_vkGetBufferMemoryRequirements2 get_buffer_requirements = of_device("vkGetBufferMemoryRequirements2");
  PFN_vkBindBufferMemory bind_buffer = of_device("vkBindBufferMemory");
  PFN_vkCreateImage create_image = of_device("vkCreateImage");
  PFN_vkDestroyImage destroy_image = of_device("vkDestroyImage");
  PFN_vkGetImageMemoryRequirements2 get_image_requirements = of_device("vkGetImageMemoryRequirements2");
  PFN_vkBindImageMemory bind_image = of_device("vkBindImageMemory");
  ///@}

 private:
  /// A function that was found, of whichever type.
  struct found {
    PFN_vkVoidFunction function;
    template <typename Function>
    operator Function() const noexcept {
      return reinterpret_cast<Function>(function);
    }
  };
  [[nodiscard]] found of_instance(const char* name) const { return checked(find_(instance_, name), name); }
  [[nodiscard]] found of_device(const char* name) const {
    return checked(find_in_device_(device_, name), name);
  }
  [[nodiscard]] static found checked(PFN_vkVoidFunction function, const char* name) {
    if (function == nullptr) detail::raise(vulkan_error(name, VK_ERROR_EXTENSION_NOT_PRESENT));
    return {function};
  }
};

/// The streams of a device. A stream is a queue with a timeline semaphore, whose value is the position of the stream. Stream i
/// is the i-th queue of the constructor, and a queue may serve several streams. Thread-safe.
///
/// An allocator expects that the work of a stream runs in order, but Vulkan may overlap the submissions of a queue. So each
/// submission waits for the one before it.
class vulkan_timelines {
 public:
  /// The values of a submission to a stream: it waits until the timeline has the value `before`, and then sets it to `after`.
  struct turn {
    VkQueue queue;         ///< to submit the work to
    VkSemaphore timeline;  ///< to wait for and to signal
    std::uint64_t before;
    std::uint64_t after;
  };

  ///   Throws:  vulkan_error if a semaphore cannot be created
  vulkan_timelines(const vulkan_functions& calls, VkDevice of, std::span<const VkQueue> queues)
      : calls_(calls), device_(of) {
    for (VkQueue queue : queues) {
      stream& added = streams_.emplace_back(queue, queue_mutexes_[queue]);
      if (const VkResult result = create(added.timeline); result < VK_SUCCESS) {
        destroy();
        detail::raise(vulkan_error("vkCreateSemaphore", result));
      }
    }
  }
  vulkan_timelines(const vulkan_timelines&) = delete;
  vulkan_timelines& operator=(const vulkan_timelines&) = delete;
  ///   Requires:  the submitted work is done
  ~vulkan_timelines() { destroy(); }

  /// How many streams there are; their numbers are from 0 to one less.
  [[nodiscard]] std::size_t size() const noexcept { return streams_.size(); }
  /// Whether a stream exists.
  [[nodiscard]] bool has(stream_id s) const noexcept { return s.handle < streams_.size(); }

  /// Calls f(turn), which submits work to a stream and returns the result of vkQueueSubmit. No other work is submitted to the
  /// queue meanwhile. The work must wait for turn.before and signal turn.after. A work that does not wait may use only memory
  /// that it orders by its own barriers.
  ///   Requires:  f submits nothing if it throws or returns an error
  ///   Throws:    what f throws; the stream is then as before
  template <std::invocable<const turn&> F>
  bool submit(stream_id s, F f) noexcept(std::is_nothrow_invocable_v<F&, const turn&>) {
    if (!has(s)) return false;
    stream& on = at(s);
    const std::lock_guard guard(*on.mutex);
    const std::uint64_t before = on.submitted.load();
    if (!succeeded(f(turn{on.queue, on.timeline, before, before + 1}))) return false;
    on.submitted.store(before + 1);
    return true;
  }
  /// Submits commands.
  bool submit(stream_id s, VkCommandBuffer commands) noexcept {
    return submit(s, [&](const turn& now) noexcept { return submit(now, commands, VK_NULL_HANDLE, 0); });
  }

  /// The position after the work submitted so far.
  [[nodiscard]] std::uint64_t position(stream_id s) const noexcept {
    return has(s) ? at(s).submitted.load() : 0;
  }
  /// Whether the work up to a position is done. If the device is lost, it is, because it uses no memory any more.
  [[nodiscard]] bool is_done(stream_id s, std::uint64_t position) noexcept {
    if (!has(s) || at(s).completed.load() >= position) return true;
    std::uint64_t value = 0;
    const VkResult result = calls_.get_semaphore_value(device_, at(s).timeline, &value);
    if (result == VK_ERROR_DEVICE_LOST) return true;
    if (!succeeded(result)) return false;
    at(s).completed.store(value);  // if another thread stored a larger value, a later call asks again
    return value >= position;
  }
  bool wait(stream_id s, std::uint64_t position) noexcept {
    if (is_done(s, position)) return true;
    const VkSemaphoreWaitInfo info{
        VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, nullptr, 0, 1, &at(s).timeline, &position};
    const VkResult result = calls_.wait_semaphores(device_, &info, UINT64_MAX);
    if (result != VK_ERROR_DEVICE_LOST && !succeeded(result)) return false;
    at(s).completed.store(position);  // so is_done agrees, even if its call fails
    return true;
  }

  [[nodiscard]] bool is_ordered_after(stream_id s, stream_id other, std::uint64_t position) noexcept {
    if (s == vulkan_host || other == vulkan_host) return is_done(other, position);
    const std::lock_guard guard(order_mutex_);
    return order_.is_ordered_after(s, other, position);
  }
  /// Submits a wait of one stream for another. The stream of the host does not wait for running work.
  bool make_wait(stream_id s, stream_id other, std::uint64_t until) noexcept {
    if (s == vulkan_host) return is_done(other, until);
    if (s == other || !has(other)) return has(s);
    const std::lock_guard guard(order_mutex_);
    if (!order_.reserve(s, other)) return false;
    std::uint64_t reached = 0;
    const auto wait_for_other = [&](const turn& now) noexcept {
      reached = now.after;
      return submit(now, VK_NULL_HANDLE, at(other).timeline, until);
    };
    if (!submit(s, wait_for_other)) return false;
    order_.add(s, reached, other, until);
    return true;
  }

  /// Returns whether a call succeeded, and records its error if not.
  bool succeeded(VkResult result) noexcept {
    if (result >= VK_SUCCESS) return true;
    error_.store(result);
    return false;
  }
  /// The latest error; VK_SUCCESS if no call failed.
  [[nodiscard]] VkResult last_error() const noexcept { return error_.load(); }

 private:
  struct stream {
    stream(VkQueue of, std::mutex& its) : queue(of), mutex(&its) {}
    VkQueue queue;
    std::mutex* mutex;  // of the queue
    VkSemaphore timeline = VK_NULL_HANDLE;
    std::atomic<std::uint64_t> submitted = 0;
    std::atomic<std::uint64_t> completed = 0;
  };
  [[nodiscard]] stream& at(stream_id s) noexcept { return streams_[s.handle]; }
  [[nodiscard]] const stream& at(stream_id s) const noexcept { return streams_[s.handle]; }

  [[nodiscard]] VkResult create(VkSemaphore& timeline) noexcept {
    const VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr,
                                         VK_SEMAPHORE_TYPE_TIMELINE, 0};
    const VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
    return calls_.create_semaphore(device_, &info, nullptr, &timeline);
  }
  void destroy() noexcept {
    for (const stream& s : streams_) calls_.destroy_semaphore(device_, s.timeline, nullptr);
  }
  /// Submits commands, or none, after the work before it and after the value of another timeline, if there is one.
  [[nodiscard]] VkResult submit(const turn& now, VkCommandBuffer commands, VkSemaphore other,
                                std::uint64_t value) const noexcept {
    const std::array<VkSemaphore, 2> waits{now.timeline, other};
    const std::array<std::uint64_t, 2> values{now.before, value};
    constexpr std::array<VkPipelineStageFlags, 2> stages{VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                                         VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
    VkTimelineSemaphoreSubmitInfo timeline{};
    timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    timeline.waitSemaphoreValueCount = other != VK_NULL_HANDLE ? 2 : 1;
    timeline.pWaitSemaphoreValues = values.data();
    timeline.signalSemaphoreValueCount = 1;
    timeline.pSignalSemaphoreValues = &now.after;
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.pNext = &timeline;
    info.waitSemaphoreCount = timeline.waitSemaphoreValueCount;
    info.pWaitSemaphores = waits.data();
    info.pWaitDstStageMask = stages.data();
    info.commandBufferCount = commands != VK_NULL_HANDLE ? 1 : 0;
    info.pCommandBuffers = &commands;
    info.signalSemaphoreCount = 1;
    info.pSignalSemaphores = &now.timeline;
    return calls_.queue_submit(now.queue, 1, &info, VK_NULL_HANDLE);
  }

  const vulkan_functions& calls_;
  VkDevice device_;
  std::map<VkQueue, std::mutex> queue_mutexes_;
  std::deque<stream> streams_;
  std::mutex order_mutex_;
  stream_order order_;
  std::atomic<VkResult> error_ = VK_SUCCESS;
};

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
class vulkan_error;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_functions;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_timelines;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
struct vulkan_device_settings;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_device;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_memory;

}  // namespace tessera::inline v0_1::provider

#endif
