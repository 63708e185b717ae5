// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/engine/block.hpp>
#include <tessera/engine/key_map.hpp>
#include <tessera/engine/slab.hpp>

namespace tessera::engine {

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
  use_queue* next;   ///< another queue in which something waits
  std::size_t uses;  ///< of this stream, waiting or not; the queue lives as long as there are any
  [[nodiscard]] std::uint64_t map_key() const noexcept { return stream.handle; }
};

/// Holds freed blocks back until the streams recorded for them have come past the free.
///
/// A use takes all its host memory when it is recorded, so that a free needs none. An event that the device fails to
/// record is tried again later; until then its block stays held.
template <typename Provider, bool UsesEvents>
class pending_frees {
 public:
  /// Whether nothing waits.
  [[nodiscard]] bool empty() const noexcept { return waiting_ == nullptr; }

  /// Notes that `stream` uses a live block; noting it again changes nothing. False where host memory ran out.
  [[nodiscard]] bool note(block& used, stream_id stream) noexcept {
    stream_use* const earlier = used.mark.has_uses ? used.facts.uses : nullptr;
    for (const stream_use* u = earlier; u != nullptr; u = u->next) {
      if (u->queue->stream == stream) return true;
    }
    use_queue* queue = queues_.find(stream.handle);
    if (!uses_.reserve(1)) return false;
    if (queue == nullptr) {
      if (!queue_slab_.reserve(1) || !queues_.reserve_one()) return false;
      queue = queue_slab_.take();
      *queue = {stream, nullptr, nullptr, nullptr, 0};
      queues_.insert(stream.handle, *queue);
    }
    use* const fresh = uses_.take();
    fresh->used = &used;
    fresh->queue = queue;
    fresh->next = earlier;
    fresh->recorded = false;
    used.facts.uses = fresh;
    used.mark.has_uses = true;
    ++queue->uses;
    return true;
  }

  /// Holds a block back whose uses were noted.
  void hold(block& freed, Provider& device) noexcept {
    stream_use* u = freed.facts.uses;
    freed.mark.is = block::state::pending;
    freed.facts.awaited = 0;
    while (u != nullptr) {
      stream_use* const following = u->next;
      u->next = nullptr;
      use_queue& queue = *u->queue;
      if (queue.oldest == nullptr) {
        queue.oldest = u;
        queue.next = waiting_;
        waiting_ = &queue;
      } else {
        queue.newest->next = u;
      }
      queue.newest = u;
      u->recorded = device.record(queue.stream, static_cast<use*>(u)->event);
      ++freed.facts.awaited;
      u = following;
    }
  }

  /// Calls completed(block&) for each block whose last event has completed.
  template <typename F>
  void retire(Provider& device, F completed) noexcept {
    settle(device, completed, [&device](auto& event) { return device.query(event); });
  }

  /// The same, after waiting for every event; blocks stay held where the device fails.
  template <typename F>
  void wait(Provider& device, F completed) noexcept {
    settle(device, completed, [&device](auto& event) { return device.wait(event); });
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

  template <typename F, typename IsDone>
  void settle(Provider& device, F completed, IsDone is_done) noexcept {
    for (use_queue** at = &waiting_; *at != nullptr;) {
      use_queue& queue = **at;
      while (queue.oldest != nullptr) {
        use& front = *static_cast<use*>(queue.oldest);
        if (!front.recorded) front.recorded = device.record(queue.stream, front.event);
        if (!front.recorded || !is_done(front.event)) break;
        device.discard(front.event);
        queue.oldest = front.next;
        block& held = *front.used;
        uses_.give_back(&front);
        --queue.uses;
        if (--held.facts.awaited == 0) completed(held);
      }
      if (queue.oldest != nullptr) {
        at = &queue.next;
        continue;
      }
      *at = queue.next;
      if (queue.uses == 0) {
        queues_.remove(queue.stream.handle);
        queue_slab_.give_back(&queue);
      }
    }
  }

  slab<use> uses_;
  slab<use_queue> queue_slab_;
  key_map<use_queue> queues_;
  use_queue* waiting_ = nullptr;
};

/// For recipes without events: nothing is noted, so nothing is ever held.
template <typename Provider>
class pending_frees<Provider, false> {
 public:
  [[nodiscard]] static constexpr bool empty() noexcept { return true; }
  [[nodiscard]] static constexpr bool note(block&, stream_id) noexcept { return true; }
  static constexpr void hold(block&, Provider&) noexcept {}
  template <typename F>
  static constexpr void retire(Provider&, F) noexcept {}
  template <typename F>
  static constexpr void wait(Provider&, F) noexcept {}
  [[nodiscard]] static constexpr std::size_t footprint() noexcept { return 0; }
};

}  // namespace tessera::engine
