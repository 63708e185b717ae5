// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include <tessera/core/types.hpp>
#include <tessera/provider/opencl_calls.hpp>
#include <tessera/provider/stream_order.hpp>

#if defined(CL_VERSION_2_0)

namespace tessera::inline v0_1::detail::opencl {

/// The queues that a device knows as streams, with events and positions on them. Thread-safe.
///
/// OpenCL does not number the work of a queue, so a position is a marker. Positions of all queues come from one counter. They
/// stay unique if a new queue gets the handle of an old one.
///   Cost:  a marker for each position that is not complete, at most 64 for each queue
class command_queues {
 public:
  struct event {
    cl_event handle = nullptr;
    stream_id stream{};
    std::uint64_t position = 0;
  };

  command_queues(call_errors& errors, cl_command_queue default_queue) : errors_(errors) {
    add({}, default_queue);
  }
  command_queues(const command_queues&) = delete;
  command_queues& operator=(const command_queues&) = delete;
  ~command_queues() {
    for (auto& [stream, q] : queues_) drop_complete(q, ~std::uint64_t{0});
  }

  void add(stream_id stream, cl_command_queue handle) {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = queues_.try_emplace(stream);
    if (!is_new) return;
    at->second.handle = retain(errors_, handle);
    if (at->second.handle == nullptr) {
      queues_.erase(at);
      raise(provider::opencl_error(errors_.text()));
    }
    at->second.completed = last_;
  }
  /// Finishes the work of a queue and forgets it.
  bool remove(stream_id stream) noexcept {
    if (stream == stream_id{} || !has(stream) || !finish(stream)) return false;
    const std::lock_guard lock(mutex_);
    drop_complete(queues_.at(stream), ~std::uint64_t{0});
    return queues_.erase(stream) == 1;
  }
  [[nodiscard]] bool has(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    return queues_.contains(stream);
  }
  [[nodiscard]] bool expects(stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    return find(stream) != nullptr;
  }

  bool record(stream_id stream, event& made) noexcept {
    const std::lock_guard lock(mutex_);
    queue* const q = find(stream);
    cl_event handle = nullptr;
    if (q == nullptr || !mark(*q, handle)) return false;
    q->last = ++last_;
    made = {handle, stream, q->last};
    return true;
  }
  [[nodiscard]] bool query(const event& of) noexcept {
    if (is_complete(of.handle)) return true;
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(of.stream);
    return found == queues_.end() || found->second.completed >= of.position;
  }
  /// Waits for the whole queue if work failed, because a failed marker does not wait for the work before it.
  bool wait(const event& of) noexcept {
    return errors_.succeeded("clWaitForEvents", clWaitForEvents(1, &of.handle)) || finish(of.stream);
  }
  void release(cl_event handle) noexcept {
    if (handle != nullptr) (void)errors_.succeeded("clReleaseEvent", clReleaseEvent(handle));
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    queue* const q = find(stream);
    return q != nullptr ? add_position(*q) : 0;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(stream);
    if (found == queues_.end() || poll(found->second) >= at) return true;
    // If the marker of this position failed, a later one stands for it.
    if (marker_after(found->second, at) == nullptr) (void)add_position(found->second);
    return false;
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    const std::lock_guard lock(mutex_);
    return !queues_.contains(of) || order_.is_ordered_after(stream, of, at);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    queue* const waiting = find(stream);
    const auto other = queues_.find(of);
    if (waiting == nullptr || stream == of || other == queues_.end()) return waiting != nullptr;
    if (!order_.reserve(stream, of)) return false;
    if (poll(other->second) < at) {
      if (marker_after(other->second, at) == nullptr) (void)add_position(other->second);
      const marker* const until = marker_after(other->second, at);
      if (until == nullptr ||
          !errors_.succeeded("clEnqueueBarrierWithWaitList",
                             clEnqueueBarrierWithWaitList(waiting->handle.get(), 1, &until->at, nullptr)))
        return false;
    }
    return order_.add(stream, add_position(*waiting), of, at);
  }

  bool copy(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    const queue* const q = find(stream);
    return q != nullptr &&
           errors_.succeeded("clEnqueueSVMMemcpy", clEnqueueSVMMemcpy(q->handle.get(), CL_FALSE, to, from,
                                                                      bytes, 0, nullptr, nullptr));
  }

 private:
  struct marker {
    std::uint64_t position;
    cl_event at;
  };
  struct queue {
    owned<cl_command_queue> handle;
    std::uint64_t last = 0;
    std::uint64_t completed = 0;
    std::array<marker, 64> pending{};
    std::size_t count = 0;
  };

  [[nodiscard]] queue* find(stream_id stream) noexcept {
    const auto found = queues_.find(stream);
    if (found != queues_.end()) return &found->second;
    errors_.add("a queue was not added to the device");
    return nullptr;
  }
  /// Enqueues a marker. It flushes the queue, because otherwise the work before the marker might never begin.
  bool mark(const queue& q, cl_event& made) noexcept {
    cl_event handle = nullptr;
    if (!errors_.succeeded("clEnqueueMarkerWithWaitList",
                           clEnqueueMarkerWithWaitList(q.handle.get(), 0, nullptr, &handle)))
      return false;
    if (errors_.succeeded("clFlush", clFlush(q.handle.get()))) {
      made = handle;
      return true;
    }
    release(handle);
    return false;
  }
  [[nodiscard]] bool is_complete(cl_event handle) noexcept {
    cl_int status = CL_QUEUED;
    return errors_.succeeded("clGetEventInfo", clGetEventInfo(handle, CL_EVENT_COMMAND_EXECUTION_STATUS,
                                                              sizeof status, &status, nullptr)) &&
           (status >= CL_COMPLETE || errors_.succeeded("the work before an event", status)) &&
           status == CL_COMPLETE;
  }

  /// Adds a position. If its marker fails, the position is complete together with a later one.
  std::uint64_t add_position(queue& q) noexcept {
    (void)poll(q);
    if (q.count == q.pending.size()) halve(q);
    q.last = ++last_;
    cl_event made = nullptr;
    if (mark(q, made)) q.pending[q.count++] = {q.last, made};
    return q.last;
  }
  [[nodiscard]] static const marker* marker_after(const queue& q, std::uint64_t at) noexcept {
    for (std::size_t i = 0; i < q.count; ++i) {
      if (q.pending[i].position >= at) return &q.pending[i];
    }
    return nullptr;
  }
  /// Returns the last completed position.
  std::uint64_t poll(queue& q) noexcept {
    std::uint64_t done = q.completed;
    for (std::size_t i = 0; i < q.count; ++i) {
      if (q.pending[i].position > done && !is_complete(q.pending[i].at)) break;
      done = (std::max)(done, q.pending[i].position);
    }
    drop_complete(q, done);
    return done;
  }
  /// Releases the markers up to a position, which is complete.
  void drop_complete(queue& q, std::uint64_t done) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < q.count; ++i) {
      if (q.pending[i].position <= done) {
        release(q.pending[i].at);
      } else {
        q.pending[kept++] = q.pending[i];
      }
    }
    q.count = kept;
    q.completed = (std::max)(q.completed, done);
  }
  /// Drops every other marker. The next marker, which is later, then stands for the dropped one.
  void halve(queue& q) noexcept {
    for (std::size_t i = 0; i < q.count; i += 2) release(q.pending[i].at);
    for (std::size_t i = 0; i < q.count / 2; ++i) q.pending[i] = q.pending[2 * i + 1];
    q.count /= 2;
  }

  /// Waits until all work of a queue has ended, even if it failed. A queue that was removed has no work.
  bool finish(stream_id stream) noexcept {
    owned<cl_command_queue> used;
    std::uint64_t until = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = queues_.find(stream);
      if (found == queues_.end()) return true;
      used = retain(errors_, found->second.handle.get());
      until = found->second.last;
    }
    if (used == nullptr || !errors_.succeeded("clFinish", clFinish(used.get()))) return false;
    const std::lock_guard lock(mutex_);
    if (const auto found = queues_.find(stream); found != queues_.end()) drop_complete(found->second, until);
    return true;
  }

  call_errors& errors_;
  mutable std::mutex mutex_;
  std::map<stream_id, queue> queues_;
  provider::stream_order order_;
  std::uint64_t last_ = 0;
};

}  // namespace tessera::inline v0_1::detail::opencl

#endif
