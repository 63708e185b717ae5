// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/key_map.hpp>
#include <tessera/detail/slab.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

struct use_queue;

/// One stream's use of one block.
struct stream_use {
  block* used;
  use_queue* queue;
  stream_use* next;  ///< before the free: the block's next use; after it: the queue's next entry
  bool recorded;     ///< whether its event marks the stream yet
};

/// The uses of one stream that wait for their events, oldest first.
struct use_queue {
  stream_id stream;
  stream_use* oldest;
  stream_use* newest;
  use_queue* next;      ///< another queue in which something waits
  std::size_t uses;     ///< of this stream, waiting or not; the queue lives as long as there are any
  std::size_t waiters;  ///< calls of wait() that are at it; until they have left, it is among those that wait
  [[nodiscard]] std::uint64_t map_key() const noexcept { return stream.handle; }
};

/// Holds freed blocks back until the streams recorded for them have come past the free.
///
/// A use takes all its host memory when it is recorded, so that a free needs none. An event that the device fails to
/// record is tried again later; until then its block stays held, unless the stream has ended, and all its work with it.
template <typename Provider, bool UsesEvents>
class pending_frees {
 public:
  /// Whether nothing waits.
  [[nodiscard]] bool empty() const noexcept { return waiting_ == nullptr; }
  /// Uses that wait for their events.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether streams are noted for any block, live or held.
  [[nodiscard]] bool has_uses() const noexcept { return queues_.size() > 0; }

  /// Notes that `stream` uses a live block; noting it again changes nothing. False where host memory ran out.
  [[nodiscard]] bool note(block& used, stream_id stream) noexcept {
    block::notes special = used.what_is_noted();
    stream_use* const earlier = special.has_uses ? used.facts.uses : nullptr;
    for (const stream_use* u = earlier; u != nullptr; u = u->next) {
      if (u->queue->stream == stream) return true;
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
    used.facts.uses = fresh;
    special.has_uses = true;
    used.note(special);
    ++queue->uses;
    return true;
  }

  /// Calls f(stream) for each stream noted for a live block, and forgets it where that is true; stops where it is false.
  template <typename F>
  void settle(block& used, F f) noexcept {
    block::notes special = used.what_is_noted();
    if (!special.has_uses) return;
    while (stream_use* const u = used.facts.uses) {
      if (!f(u->queue->stream)) return;
      used.facts.uses = u->next;
      forget(*u);
    }
    special.has_uses = false;
    used.note(special);
  }

  /// Holds a block back whose uses were noted; false where all their streams have ended, and it is not held.
  [[nodiscard]] bool hold(block& freed, Provider& device) noexcept {
    stream_use* u = freed.facts.uses;
    freed.facts.awaited = 0;
    while (u != nullptr) {
      stream_use* const following = u->next;
      u->next = nullptr;
      use_queue& queue = *u->queue;
      u->recorded = device.record(queue.stream, static_cast<use*>(u)->event);
      if (!u->recorded && !has_stream(device, queue.stream)) {
        forget(*std::exchange(u, following));
        continue;
      }
      if (queue.oldest == nullptr && queue.waiters == 0) {
        queue.next = waiting_;
        waiting_ = &queue;
      }
      (queue.oldest == nullptr ? queue.oldest : queue.newest->next) = u;
      queue.newest = u;
      ++freed.facts.awaited;
      ++count_;
      u = following;
    }
    if (freed.facts.awaited > 0) freed.mark.is = block::state::pending;
    return freed.facts.awaited > 0;
  }

  /// Calls completed(block&) for each block whose last event has completed.
  template <typename F>
  void retire(Provider& device, F completed) noexcept {
    for (use_queue** at = &waiting_; *at != nullptr;) {
      use_queue& queue = **at;
      while (use* const front = recorded_front(queue, device)) {
        if (front->recorded && !device.query(front->event)) break;
        queue.oldest = front->next;
        end(*front, device, completed);
      }
      if (!drop_if_idle(at)) at = &queue.next;
    }
  }

  /// The same, after waiting for every event of now; blocks stay held where the device fails. While the device waits,
  /// a use is in no queue, so that nobody else ends it; other uses may come and go.
  template <typename F>
  void wait(Provider& device, F completed) noexcept {
    for (use_queue* queue = waiting_; queue != nullptr;) {
      ++queue->waiters;
      for (std::size_t left = queue->uses; left > 0; --left) {
        use* const front = recorded_front(*queue, device);
        if (front == nullptr) break;
        queue->oldest = front->next;
        if (front->recorded && !device.wait(front->event)) {
          front->next = queue->oldest;
          if (queue->oldest == nullptr) queue->newest = front;
          queue->oldest = front;
          break;
        }
        end(*front, device, completed);
      }
      --queue->waiters;
      use_queue** at = &waiting_;
      while (*at != queue) at = &(*at)->next;
      queue = queue->next;
      (void)drop_if_idle(at);
    }
    uses_.sweep();
    queue_slab_.sweep();
  }

  [[nodiscard]] std::size_t footprint() const noexcept {
    return uses_.footprint() + queue_slab_.footprint() + queues_.footprint();
  }

 private:
  struct use : stream_use {
    typename Provider::event event;
  };

  /// The oldest use of a queue, or null where there is none, or none whose event can be recorded; also one whose event never
  /// was, and whose stream has ended.
  [[nodiscard]] use* recorded_front(use_queue& queue, Provider& device) noexcept {
    use* const front = static_cast<use*>(queue.oldest);
    if (front == nullptr) return nullptr;
    if (!front->recorded) front->recorded = device.record(queue.stream, front->event);
    return front->recorded || !has_stream(device, queue.stream) ? front : nullptr;
  }
  /// Ends a use that is in no queue; its event is discarded right after the call that found it completed.
  template <typename F>
  void end(use& done, Provider& device, F& completed) noexcept {
    if (done.recorded) device.discard(done.event);
    block& held = *done.used;
    --done.queue->uses;
    --count_;
    uses_.give_back(&done);
    if (--held.facts.awaited == 0) completed(held);
  }
  /// Ends a use that never was in a queue. Where a call waits for the queue, that one's use is another.
  void forget(stream_use& done) noexcept {
    use_queue& queue = *done.queue;
    uses_.give_back(static_cast<use*>(&done));
    if (--queue.uses > 0) return;
    queues_.remove(queue.stream.handle);
    queue_slab_.give_back(&queue);
  }
  /// Takes a queue in which nothing waits off those in which something does, and drops it where its stream is noted for
  /// no block any more.
  bool drop_if_idle(use_queue** at) noexcept {
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
  std::size_t count_ = 0;
};

/// For recipes without events: nothing is noted, so nothing is ever held.
template <typename Provider>
class pending_frees<Provider, false> {
 public:
  [[nodiscard]] static constexpr bool empty() noexcept { return true; }
  [[nodiscard]] static constexpr std::size_t count() noexcept { return 0; }
  [[nodiscard]] static constexpr bool has_uses() noexcept { return false; }
  [[nodiscard]] static constexpr bool note(block&, stream_id) noexcept { return true; }
  [[nodiscard]] static constexpr bool hold(block&, Provider&) noexcept { return false; }
  template <typename F>
  static constexpr void retire(Provider&, F) noexcept {}
  template <typename F>
  static constexpr void wait(Provider&, F) noexcept {}
  [[nodiscard]] static constexpr std::size_t footprint() noexcept { return 0; }
};

}  // namespace tessera::detail
