// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/provider/indexed.hpp>
#include <tessera/provider/limiting.hpp>

/// The arena of per_stream: an allocator for few streams, and the objects that all arenas share.
namespace tessera::detail {

// Sums over arenas. The peak of a sum is the sum of the peaks. It is an upper bound, because the arenas may
// reach their peaks at different times.

inline void add_to(usage& sum, const usage& part) noexcept {
  sum.requested += part.requested;
  sum.live += part.live;
  sum.pending += part.pending;
  sum.cached += part.cached;
  sum.reserved += part.reserved;
}

inline void add_to(counter& sum, const counter& part) noexcept {
  sum.current += part.current;
  sum.peak += part.peak;
  sum.allocated += part.allocated;
  sum.freed += part.freed;
}

inline void add_to(pool_statistics& sum, const pool_statistics& part) noexcept {
  for (const pool_counter& c : pool_counters) add_to(sum.*c.of, part.*c.of);
}

template <std::size_t Pools>
void add_to(statistics<Pools>& sum, const statistics<Pools>& part) noexcept {
  add_to(sum.all, part.all);
  for (std::size_t in = 0; in < Pools; ++in) add_to(sum.pool[in], part.pool[in]);
  add_to(sum.oversize_allocations, part.oversize_allocations);
  add_to(sum.oversize_segments, part.oversize_segments);
  add_to(sum.device_bytes, part.device_bytes);
  for (const event_count<Pools>& c : event_counts<Pools>) sum.*c.of += part.*c.of;
  sum.max_split_size = part.max_split_size;
}

/// A bounded lock-free FIFO queue of frees. Any thread may push; one thread at a time may take.
class remote_free_queue {
 public:
  struct item {
    void* address = nullptr;  ///< null if there is no item
    std::size_t bytes = 0;
  };
  static constexpr std::size_t capacity = 1024;

  /// Appends an item. Returns false if the queue is full.
  [[nodiscard]] bool push(item freed) noexcept {
    std::size_t at = end_.load(std::memory_order_relaxed);
    do {
      // The slot at `at` is empty if at - taken < capacity.
      const std::size_t taken = begin_.load(std::memory_order_acquire);
      if (static_cast<std::ptrdiff_t>(at - taken) >= static_cast<std::ptrdiff_t>(capacity)) return false;
    } while (!end_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel, std::memory_order_relaxed));
    slot& mine = slots_[at % capacity];
    mine.bytes = freed.bytes;
    mine.address.store(freed.address, std::memory_order_release);
    return true;
  }

  /// Removes the oldest item. Returns an empty item if the queue is empty, or if the oldest push() has not
  /// finished.
  ///   Requires:  one call at a time
  [[nodiscard]] item take() noexcept {
    const std::size_t at = begin_.load(std::memory_order_relaxed);
    slot& oldest = slots_[at % capacity];
    void* const address = oldest.address.load(std::memory_order_acquire);
    if (address == nullptr) return {};
    const item taken{address, oldest.bytes};
    oldest.address.store(nullptr, std::memory_order_relaxed);
    begin_.store(at + 1, std::memory_order_release);
    return taken;
  }
  /// Takes the items that were pushed before this call, and calls f(item) for each. Waits for each push()
  /// that has begun but not finished.
  ///   Requires:  one call at a time; f may release the lock, so that another call runs meanwhile
  template <typename F>
  void take_all(F f) noexcept {
    const std::size_t end = end_.load(std::memory_order_acquire);
    while (static_cast<std::ptrdiff_t>(end - begin_.load(std::memory_order_relaxed)) > 0) {
      if (const item taken = take(); taken.address != nullptr) {
        f(taken);
      } else {
        std::this_thread::yield();  // another thread is between its two stores
      }
    }
  }

 private:
  struct slot {
    std::atomic<void*> address{nullptr};
    std::size_t bytes = 0;
  };

  alignas(64) std::atomic<std::size_t> end_{0};
  alignas(64) std::atomic<std::size_t> begin_{0};
  alignas(64) std::array<slot, capacity> slots_;
};

/// The provider of an arena. It wraps the shared provider, counts against the budget of all arenas, and
/// registers the arena as owner of its memory. Its reclaim() makes the other arenas empty their caches.
template <typename Device>
class arena_device : public detail::within_budget<Device, detail::indexed<Device>, true> {
 public:
  using number = pagemap::owner_number;
  /// Makes all arenas except `except` empty their caches. Returns whether any arena released memory.
  using function = bool (*)(void* arenas, number except) noexcept;

  arena_device(byte_budget& budget, Device& to, pagemap& map, number own, function empty_others,
               void* arenas) noexcept
      : detail::within_budget<Device, detail::indexed<Device>, true>(budget, to, map, own),
        own_(own),
        empty_others_(empty_others),
        arenas_(arenas) {}

  bool reclaim() noexcept {
    bool any = empty_others_(arenas_, own_);
    if constexpr (requires(Device& d) { d.reclaim(); }) any = this->inner().reclaim() || any;
    return any;
  }

 private:
  number own_;
  function empty_others_;
  void* arenas_;
};

/// The on_pressure callbacks of all arenas. They run without a lock. Only one thread runs them at a time.
class shared_callbacks {
 public:
  using function = bool (*)(void* context) noexcept;

  shared_callbacks() = default;
  shared_callbacks(const shared_callbacks&) = delete;
  shared_callbacks& operator=(const shared_callbacks&) = delete;
  ~shared_callbacks() {
    for (entry* e = first_.load(); e != nullptr;) delete std::exchange(e, e->next.load());
  }

  /// Adds a callback. Returns false if host memory ran out.
  ///   Requires:  one call at a time
  [[nodiscard]] bool add(function call, void* context) noexcept {
    auto* const added = new (std::nothrow) entry{call, context, nullptr};
    std::atomic<entry*>* at = &first_;
    while (at->load() != nullptr) at = &at->load()->next;
    at->store(added);
    return added != nullptr;
  }
  /// Calls all callbacks of a shared_callbacks. Returns whether any callback freed memory.
  static bool run(void* callbacks) noexcept {
    auto& self = *static_cast<shared_callbacks*>(callbacks);
    if (self.first_.load() == nullptr || self.running_.exchange(true)) return false;
    bool any = false;
    for (const entry* e = self.first_.load(); e != nullptr; e = e->next.load())
      any = e->call(e->context) || any;
    self.running_ = false;
    return any;
  }

 private:
  struct entry {
    function call;
    void* context;
    std::atomic<entry*> next;
  };
  std::atomic<entry*> first_{nullptr};
  std::atomic<bool> running_{false};
};

/// An observer that the arenas share. Only one arena reports at a time.
template <event_observer Observer>
class shared_observer {
 public:
  shared_observer(Observer& to, std::mutex& mutex, reentrancy_guard& guard) noexcept
      : to_(&to), mutex_(&mutex), guard_(&guard) {}
  void on(const allocator_event& event) noexcept {
    guard_->check<Observer>(reentrancy_guard::lock::observer);
    const std::lock_guard lock(*mutex_);
    guard_->report(*to_, event);
  }

 private:
  Observer* to_;
  std::mutex* mutex_;
  reentrancy_guard* guard_;
};
template <>
class shared_observer<ignore_events> : public ignore_events {
 public:
  shared_observer(ignore_events&, std::mutex&, reentrancy_guard&) noexcept {}
};

/// An allocator for few streams. Other threads push their frees into its queue, so they need not wait for its
/// mutex.
template <typename Recipe, typename Device, event_observer Observer, typename Counting>
class alignas(64) arena {
  using pool_type = mutex_guarded<Recipe, arena_device<Device>, shared_observer<Observer>, Counting>;

 public:
  using allocator = typename pool_type::allocator;

  arena(stream_id key, reentrancy_guard& guard, arena_device<Device> device, policies<Recipe> settings,
        shared_observer<Observer> observer)
      : key_(key), pool_(guard, std::move(device), std::move(settings), std::move(observer)) {}
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  /// Processes the queued frees, so that the observer sees them.
  ~arena() {
    look([](allocator&) {});
  }

  /// The first stream of this arena.
  [[nodiscard]] stream_id key() const noexcept { return key_; }

  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream) noexcept {
    return pool_.try_allocate(bytes, stream, [this](allocator& in) {
      for (std::size_t n = 0; n < remote_free_queue::capacity; ++n) {
        const remote_free_queue::item next = freed_.take();
        if (next.address == nullptr) break;
        free(in, next);
      }
      if (has_uses_.load(std::memory_order_relaxed)) has_uses_.store(in.has_recorded_streams());
      const std::thread::id me = std::this_thread::get_id();
      if (user_.load(std::memory_order_relaxed) != me) user_.store(me, std::memory_order_relaxed);
    });
  }

  /// Frees a block at once if no other thread uses the arena; else queues the free. The next call that enters
  /// the arena processes it.
  ///   Requires:  the address lies in a segment of this arena
  void deallocate(remote_free_queue::item freed) noexcept {
    // A recorded stream may be destroyed after this call, so its event must be recorded now.
    const bool may_queue = user_.load(std::memory_order_relaxed) != std::this_thread::get_id() &&
                           !has_uses_.load(std::memory_order_relaxed);
    if (may_queue && freed_.push(freed)) return;
    pool_.enter([&](allocator& in) {
      if (may_queue) drain(in);
      free(in, freed);
    });
  }

  /// Processes the queued frees, then calls f(allocator) with the mutex held.
  template <typename F>
  decltype(auto) look(F&& f) noexcept {
    return pool_.enter([&](allocator& in) -> decltype(auto) {
      drain(in);
      return std::forward<F>(f)(in);
    });
  }
  /// Processes the queued frees, then calls f(allocator), which records a stream. Returns the result of f.
  template <typename F>
  [[nodiscard]] bool look_and_record(F f) noexcept {
    return look([&](allocator& in) {
      const bool recorded = f(in);
      if (in.has_recorded_streams()) has_uses_.store(true);
      return recorded;
    });
  }
  /// Processes the queued frees, then calls a user function with the mutex held.
  template <typename F>
  void look_for_user(const char* rule, F&& f) {
    look([](allocator&) {});
    pool_.enter_for_user(rule, std::forward<F>(f));
  }
  void watch(int change) noexcept { pool_.watch(change); }
  /// Calls f(allocator) with the mutex held. Queued frees stay queued.
  template <typename F>
  decltype(auto) enter(F&& f) noexcept {
    return pool_.enter(std::forward<F>(f));
  }
  /// Waits for the device calls in progress, then empties the cache for another arena. Returns whether it
  /// released memory.
  bool empty() noexcept {
    look([](allocator&) {});
    return pool_.trim_after_calls();
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    return pool_.on_pressure(callback, context);
  }

 private:
  static void free(allocator& in, remote_free_queue::item freed) noexcept {
    freed.bytes == unlimited ? in.deallocate(freed.address) : in.deallocate(freed.address, freed.bytes);
  }
  void drain(allocator& in) noexcept {
    freed_.take_all([&in](remote_free_queue::item next) { free(in, next); });
  }

  const stream_id key_;
  std::atomic<std::thread::id> user_{};  // the thread that allocated here most recently
  std::atomic<bool> has_uses_{false};    // false: no block here has a recorded stream
  alignas(64) pool_type pool_;
  remote_free_queue freed_;
};

}  // namespace tessera::detail
