// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <type_traits>

#include <tessera/core/error.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/stream_order.hpp>
#include <tessera/provider/vulkan_functions.hpp>

namespace tessera::inline v0_1::provider {

/// The stream of the host, which accesses mapped memory. All its work is done when it is submitted. A block of this stream is
/// never used by running work when the host gets it.
inline constexpr stream_id vulkan_host{~std::uint64_t{0}};

}  // namespace tessera::inline v0_1::provider

#if defined(VK_VERSION_1_2)

namespace tessera::inline v0_1::provider {

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

}  // namespace tessera::inline v0_1::provider

#else

namespace tessera::inline v0_1::provider {

/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_timelines;

}  // namespace tessera::inline v0_1::provider

#endif
