// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

struct use_queue;

/// One stream's use of one block.
struct stream_use {
  block* used;
  use_queue* queue;
  stream_use* next;  ///< before the free: the next use of the block; after it: the next entry of the queue
  stream_use* next_aside;  ///< while its block is set aside: the first use of the next such block
  bool recorded;           ///< whether its event is recorded on the stream
  bool unasked;            ///< whether it was recorded while the device must not be asked for events
};

/// The uses of one stream that wait for their events, oldest first.
struct use_queue {
  stream_id stream;
  stream_use* oldest;
  stream_use* newest;
  use_queue* next;      ///< the next queue in which a use waits
  std::size_t uses;     ///< uses of this stream, pending or not; without uses, the queue is erased
  std::size_t waiters;  ///< calls of wait() that process it; they keep it in the list of queues
  [[nodiscard]] std::uint64_t map_key() const noexcept { return stream.handle; }
};

/// Keeps freed blocks pending until the streams recorded for them have reached the free.
///
/// Recording a use takes all its host memory, so that a free needs none. If the device fails to record an
/// event, recording is tried again later, and the block stays pending; wait() needs no event. A stream that has
/// ended has no work and needs no event.
///
/// While an extension forbids it, the device must not be asked for events. A block that is freed meanwhile is set
/// aside. Later, the uses recorded in between are dropped, and the others get events.
///   Source:  PyTorch's rules while a graph is recorded
template <typename Provider, bool UsesEvents>
class pending_frees {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Number of uses whose completion has not been observed.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether streams are recorded for any block, live or pending.
  [[nodiscard]] bool has_recorded_streams() const noexcept { return queues_.size() > 0; }

  /// Records that `stream` uses a live block. Returns false if host memory ran out. A second record changes
  /// only `unasked`.
  [[nodiscard]] bool record(block& used, stream_id stream, bool unasked) noexcept {
    block::flag_set flags = used.flags();
    stream_use* const earlier = flags.has_recorded_streams ? used.request.uses : nullptr;
    for (stream_use* u = earlier; u != nullptr; u = u->next) {
      if (u->queue->stream != stream) continue;
      u->unasked = u->unasked || unasked;
      return true;
    }
    use_queue* queue = queues_.find(stream.handle);
    if (!uses_.reserve(1)) return false;
    if (queue == nullptr) {
      if (!queue_slab_.reserve(1) || !queues_.reserve_one()) return false;
      queue = queue_slab_.take();
      *queue = {stream, nullptr, nullptr, nullptr, 0, 0};
      queues_.insert(stream.handle, *queue);
    }
    use* const fresh = uses_.take();
    fresh->used = &used;
    fresh->queue = queue;
    fresh->next = earlier;
    fresh->recorded = false;
    fresh->unasked = unasked;
    used.request.uses = fresh;
    flags.has_recorded_streams = true;
    used.set_flags(flags);
    ++queue->uses;
    return true;
  }

  /// Calls f(stream) for each stream recorded for a live block. Drops the record if f returns true.
  template <typename F>
  void drop_uses_if(block& used, F f) noexcept {
    block::flag_set flags = used.flags();
    if (!flags.has_recorded_streams) return;
    drop_if(used.request.uses, [&f](const stream_use& u) { return f(u.queue->stream); });
    flags.has_recorded_streams = used.request.uses != nullptr;
    used.set_flags(flags);
  }

  /// Calls f(stream) for each stream recorded for a block, if it is live. Stops if f returns false.
  ///   Returns:  whether f never returned false
  template <typename F>
  bool for_each_use(const block& b, F f) const noexcept {
    if (b.status.state != block::state::live_flagged || !b.status.flags.has_recorded_streams) return true;
    const stream_use* u = b.request.uses;
    while (u != nullptr && f(u->queue->stream)) u = u->next;
    return u == nullptr;
  }

  /// Calls f(block, stream, is_done) for each use that a pending block waits for. Asks the device whether it is done, if
  /// `asks`, but never waits. Blocks that were set aside are not visited.
  template <typename F>
  void for_each_wait(Provider& device, bool asks, F f) {
    for (const use_queue* queue = waiting_; queue != nullptr; queue = queue->next) {
      bool is_done = asks;
      for (stream_use* u = queue->oldest; u != nullptr; u = u->next) {
        is_done = is_done && u->recorded && device.query(static_cast<use*>(u)->event);
        f(*u->used, queue->stream, is_done);
      }
    }
  }

  /// The first use of each block that is set aside; stream_use::next leads to its others.
  [[nodiscard]] const stream_use* first_aside() const noexcept { return first_aside_; }

  /// Makes a freed block with recorded streams pending. Returns false if all these streams have ended; the
  /// block then has no records.
  [[nodiscard]] bool defer(block& freed, Provider& device) noexcept {
    stream_use* u = freed.request.uses;
    freed.request.pending_events = 0;
    while (u != nullptr) {
      stream_use* const following = u->next;
      u->next = nullptr;
      use_queue& queue = *u->queue;
      u->recorded = device.record(queue.stream, static_cast<use*>(u)->event);
      if (!u->recorded && !has_stream(device, queue.stream)) {
        drop(*std::exchange(u, following));
        continue;
      }
      if (queue.oldest == nullptr && queue.waiters == 0) {
        queue.next = waiting_;
        waiting_ = &queue;
      }
      (queue.oldest == nullptr ? queue.oldest : queue.newest->next) = u;
      queue.newest = u;
      ++freed.request.pending_events;
      ++count_;
      u = following;
    }
    if (freed.request.pending_events > 0) freed.status.state = block::state::pending;
    return freed.request.pending_events > 0;
  }

  /// Makes a freed block with recorded streams pending, without asking the device.
  void set_aside(block& freed) noexcept {
    stream_use* const first = freed.request.uses;
    for (const stream_use* u = first; u != nullptr; u = u->next) ++count_;
    (first_aside_ == nullptr ? first_aside_ : last_aside_->next_aside) = first;
    last_aside_ = first;
    first->next_aside = nullptr;
    freed.status.state = block::state::pending;
  }
  /// Defers the blocks that were set aside, in the order of their frees. Drops the uses recorded while the device
  /// must not be asked; calls completed(block&) for each block without other uses.
  template <typename F>
  void defer_set_aside(Provider& device, F completed) noexcept {
    while (first_aside_ != nullptr) {
      block& freed = *first_aside_->used;
      first_aside_ = first_aside_->next_aside;
      drop_if(freed.request.uses, [this](const stream_use& u) {
        --count_;
        return u.unasked;
      });
      if (!defer(freed, device)) completed(freed);
    }
  }

  /// Calls completed(block&) for each block whose last event has completed.
  template <typename F>
  void process(Provider& device, F completed) noexcept {
    for (use_queue** at = &waiting_; *at != nullptr;) {
      use_queue& queue = **at;
      while (use* const front = static_cast<use*>(queue.oldest)) {
        if (!has_event(*front, device) || (front->recorded && !device.query(front->event))) break;
        queue.oldest = front->next;
        complete(*front, device, completed);
      }
      if (!erase_if_idle(at)) at = &queue.next;
    }
  }

  /// Waits for every event so far of the blocks for which which(block) is true. Where the device failed to record one, waits
  /// for all work of the stream. Then calls completed(block&) for each block whose last event has completed. If the device
  /// fails, blocks stay pending.
  ///
  /// A use that is waited for is in no queue, so that no concurrent call completes it. Other uses may come
  /// and go.
  ///   Cost:  linear in the uses if `which` is true for all blocks; else quadratic
  template <typename Which, typename F>
  [[gnu::cold]] void wait(Provider& device, Which which, F completed) noexcept {
    for (use_queue* queue = waiting_; queue != nullptr;) {
      ++queue->waiters;
      for (std::size_t left = queue->uses; left > 0; --left) {
        use* const first = take_first(*queue, which);
        if (first == nullptr) break;
        if (!(first->recorded ? device.wait(first->event) : finish_work(device, queue->stream))) {
          first->next = queue->oldest;
          if (queue->oldest == nullptr) queue->newest = first;
          queue->oldest = first;
          break;
        }
        complete(*first, device, completed);
      }
      --queue->waiters;
      use_queue** at = &waiting_;
      while (*at != queue) at = &(*at)->next;
      queue = queue->next;
      (void)erase_if_idle(at);
    }
    uses_.purge();
    queue_slab_.purge();
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return uses_.metadata_bytes() + queue_slab_.metadata_bytes() + queues_.metadata_bytes();
  }

 private:
  struct use : stream_use {
    typename Provider::event event;
  };

  /// Records the event of a use, if that is still missing. Returns false if the device could not record it
  /// and its stream exists.
  [[nodiscard]] static bool has_event(use& u, Provider& device) noexcept {
    if (!u.recorded) u.recorded = device.record(u.queue->stream, u.event);
    return u.recorded || !has_stream(device, u.queue->stream);
  }
  /// Takes the oldest use out of a queue for whose block which(block) is true, or returns null.
  template <typename Which>
  [[nodiscard]] static use* take_first(use_queue& queue, Which which) noexcept {
    stream_use* before = nullptr;
    stream_use* found = queue.oldest;
    while (found != nullptr && !which(*found->used)) before = std::exchange(found, found->next);
    if (found == nullptr) return nullptr;
    (before == nullptr ? queue.oldest : before->next) = found->next;
    if (queue.newest == found) queue.newest = before;
    return static_cast<use*>(found);
  }
  /// Discards the event of a use that is in no queue. Completes the block if this was its last use.
  template <typename F>
  void complete(use& done, Provider& device, F& completed) noexcept {
    if (done.recorded) device.discard(done.event);
    block& used = *done.used;
    --done.queue->uses;
    --count_;
    uses_.give_back(&done);
    if (--used.request.pending_events == 0) completed(used);
  }
  /// Drops the uses of a list for which which(use) is true.
  template <typename F>
  void drop_if(stream_use*& first, F which) noexcept {
    for (stream_use** at = &first; stream_use* const u = *at;) {
      const bool drops = which(*u);
      if (drops) drop(*std::exchange(*at, u->next));
      if (!drops) at = &u->next;
    }
  }
  /// Drops a use that was never in a queue. A concurrent wait() holds only uses from a queue, so never this
  /// one.
  void drop(stream_use& done) noexcept {
    use_queue& queue = *done.queue;
    uses_.give_back(static_cast<use*>(&done));
    if (--queue.uses > 0) return;
    queues_.remove(queue.stream.handle);
    queue_slab_.give_back(&queue);
  }
  /// Removes an empty queue from the list of queues. Erases the queue if its stream is recorded for no block
  /// any more.
  bool erase_if_idle(use_queue** at) noexcept {
    use_queue& queue = **at;
    if (queue.oldest != nullptr || queue.waiters > 0) return false;
    *at = queue.next;
    if (queue.uses == 0) {
      queues_.remove(queue.stream.handle);
      queue_slab_.give_back(&queue);
    }
    return true;
  }

  slab<use> uses_;
  slab<use_queue> queue_slab_;
  key_map<use_queue> queues_;
  use_queue* waiting_ = nullptr;
  stream_use* first_aside_ = nullptr;  // the first use of each block that is set aside
  stream_use* last_aside_ = nullptr;
  std::size_t count_ = 0;
};

/// For recipes without events: no stream is recorded, and no block is ever pending.
template <typename Provider>
class pending_frees<Provider, false> {
 public:
  [[nodiscard]] static constexpr bool empty() noexcept { return true; }
  [[nodiscard]] static constexpr std::size_t count() noexcept { return 0; }
  [[nodiscard]] static constexpr bool has_recorded_streams() noexcept { return false; }
  [[nodiscard]] static constexpr bool record(block&, stream_id, bool) noexcept { return true; }
  [[nodiscard]] static constexpr bool defer(block&, Provider&) noexcept { return false; }
  static constexpr void set_aside(block&) noexcept {}
  template <typename F>
  static constexpr bool for_each_use(const block&, F) noexcept {
    return true;
  }
  template <typename F>
  static constexpr void for_each_wait(Provider&, bool, F) noexcept {}
  template <typename F>
  static constexpr void defer_set_aside(Provider&, F) noexcept {}
  template <typename F>
  static constexpr void process(Provider&, F) noexcept {}
  template <typename Which, typename F>
  static constexpr void wait(Provider&, Which, F) noexcept {}
  [[nodiscard]] static constexpr std::size_t metadata_bytes() noexcept { return 0; }
};

}  // namespace tessera::inline v0_1::detail
