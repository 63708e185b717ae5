// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include <tessera/concurrent/indexed.hpp>
#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/limiting.hpp>

/// The arena of per_stream: an allocator for few streams, and the objects that all arenas share.

namespace tessera::inline v0_1::detail {

// Results of several arenas, combined. The peak of a sum is the sum of the peaks. It is an upper bound,
// because the arenas may reach their peaks at different times.

inline void add_to(bool& any, bool part) noexcept { any = any || part; }
template <typename T>
  requires requires(T& sum, const T& part) { sum += part; }
void add_to(T& sum, const T& part) noexcept {
  sum += part;
}
/// Keeps the first text that is not null.
inline void add_to(const char*& first, const char* text) noexcept {
  if (first == nullptr) first = text;
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
  for (const whole_counter& c : whole_counters) add_to(sum.*c.of, part.*c.of);
  for (const event_count& c : event_counts) sum.*c.of += part.*c.of;
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
    const item removed{address, oldest.bytes};
    oldest.address.store(nullptr, std::memory_order_relaxed);
    begin_.store(at + 1, std::memory_order_release);
    return removed;
  }
  /// Takes the items that were pushed before this call, and calls f(item) for each. Waits for each push()
  /// that has begun but not finished.
  ///   Requires:  one call at a time; f may release the lock, so that another call runs meanwhile
  template <typename F>
  void take_all(F f) noexcept {
    const std::size_t end = end_.load(std::memory_order_acquire);
    while (static_cast<std::ptrdiff_t>(end - begin_.load(std::memory_order_relaxed)) > 0) {
      if (const item next = take(); next.address != nullptr) {
        f(next);
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

/// An observer that all arenas share. One event at a time is reported.
template <typename Observer>
struct shared_observer {
  Observer to;
  std::mutex mutex;
  user_calls calls;

  explicit shared_observer(Observer from) : to(std::move(from)) {}
  void check_thread() const noexcept {
    calls.check_thread("an observer must not use the allocator that calls it");
  }
  [[nodiscard]] Observer& target() noexcept { return to; }
  template <typename F>
  void visit_observer(F& f) {
    check_thread();
    const std::lock_guard lock(mutex);
    f(to);
  }
};
/// The extension that reports the events of an arena to a shared_observer. It does not answer visit_observer(),
/// because the events there are those of all arenas.
template <typename Observer>
struct arena_observer {
  shared_observer<Observer>* all = nullptr;

  template <typename Core>
  class state : public extension_defaults {
   public:
    state(typename Core::allocator&, const arena_observer& from) noexcept : all_(from.all) {}
    void on_event(const allocator_event& event) noexcept {
      all_->check_thread();
      const std::lock_guard lock(all_->mutex);
      all_->calls.call([&] { all_->to.on(event); });
    }
    void check_thread() const noexcept { all_->check_thread(); }

   private:
    shared_observer<Observer>* all_;
  };
};

/// What arenas share of an extension, and what each has of it.
template <typename E>
struct in_arenas {
  using shared = E;
  using part = E;
  [[nodiscard]] static E part_of(const shared& all) { return all; }
};
template <typename Observer>
struct in_arenas<extension::observer<Observer>> {
  using part = arena_observer<Observer>;
  struct shared : shared_observer<Observer> {
    explicit shared(extension::observer<Observer> from) : shared_observer<Observer>(std::move(from.to)) {}
  };
  [[nodiscard]] static part part_of(shared& all) noexcept { return {&all}; }
};
/// The allocator of an arena, before it gets the provider of the arena.
template <typename Allocator>
struct arena_allocator : innermost_front<Allocator> {};
template <typename Recipe, typename Provider, typename... Extension>
struct arena_allocator<caching_allocator<Recipe, Provider, Extension...>> {
  using type = caching_allocator<Recipe, Provider, typename in_arenas<Extension>::part...>;
  using shared = std::tuple<typename in_arenas<Extension>::shared...>;
  using extensions = std::tuple<Extension...>;
};

/// An allocator for few streams. Other threads push their frees into its queue, so they need not wait for its
/// mutex.
template <typename Allocator, typename Device>
class alignas(64) arena {
  using inner_type = mutex_guarded<typename arena_allocator<Allocator>::type, arena_device<Device>>;
  using recipe_type = typename Allocator::recipe_type;

 public:
  using allocator = typename inner_type::allocator;

  template <typename... Given>
  arena(stream_id key, reentrancy_guard& guard, arena_device<Device> device,
        recipe::policies<recipe_type> settings, Given&&... given)
      : key_(key), inner_(guard, std::move(device), std::move(settings), std::forward<Given>(given)...) {}
  arena& operator=(arena&&) = delete;
  /// Processes the queued frees, so that the observer sees them.
  ~arena() { process_queue(); }

  /// The first stream of this arena.
  [[nodiscard]] stream_id key() const noexcept { return key_; }

  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream) noexcept {
    const auto prepare = [this](allocator& in) {
      for (std::size_t n = 0; n < remote_free_queue::capacity; ++n) {
        const remote_free_queue::item next = freed_.take();
        if (next.address == nullptr) break;
        free(in, next);
      }
      if (has_recorded_streams_.load(std::memory_order_relaxed))
        has_recorded_streams_.store(in.has_recorded_streams());
      const std::thread::id me = std::this_thread::get_id();
      if (user_.load(std::memory_order_relaxed) != me) user_.store(me, std::memory_order_relaxed);
    };
    return inner_.try_allocate(bytes, stream, prepare, [](allocator&, void*) {});
  }

  /// Frees a block at once if the calling thread allocated last from the arena, or if streams are recorded.
  /// Otherwise queues the free; the next call that enters the arena processes it.
  ///   Requires:  the address lies in a segment of this arena
  void deallocate(remote_free_queue::item freed) noexcept {
    // A recorded stream may be destroyed after this call, so its event must be recorded now.
    const bool may_queue = user_.load(std::memory_order_relaxed) != std::this_thread::get_id() &&
                           !has_recorded_streams_.load(std::memory_order_relaxed);
    if (may_queue && freed_.push(freed)) return;
    inner_type::enter(inner_, [&](allocator& in) {
      if (may_queue) process_queue(in);
      free(in, freed);
    });
  }

  /// Processes the queued frees, then calls f(allocator) with the mutex held.
  template <typename F>
  decltype(auto) enter(F&& f) {
    return inner_type::enter(inner_, [&](allocator& in) -> decltype(auto) {
      process_queue(in);
      const at_scope_end update([&] {
        if (in.has_recorded_streams()) has_recorded_streams_.store(true);
      });
      return std::forward<F>(f)(in);
    });
  }
  /// Processes the queued frees, then calls a user function with the mutex held.
  template <typename F>
  void enter_for_user(const char* rule, F&& f) {
    process_queue();
    inner_type::enter_for_user(inner_, rule, std::forward<F>(f));
  }
  /// Waits for the device calls in progress, then empties the cache for another arena. Returns whether it
  /// released memory.
  bool empty_cache() noexcept {
    process_queue();
    return inner_.trim_after_calls();
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    return inner_.on_pressure(callback, context);
  }

 private:
  static void free(allocator& in, remote_free_queue::item freed) noexcept {
    if (freed.bytes == unlimited) {
      in.deallocate(freed.address);
    } else {
      in.deallocate(freed.address, freed.bytes);
    }
  }
  void process_queue(allocator& in) noexcept {
    freed_.take_all([&in](remote_free_queue::item next) { free(in, next); });
  }
  void process_queue() noexcept {
    enter([](allocator&) {});
  }

  const stream_id key_;
  std::atomic<std::thread::id> user_{};            // the thread that allocated here most recently
  std::atomic<bool> has_recorded_streams_{false};  // false: no block here has a recorded stream
  alignas(64) inner_type inner_;
  remote_free_queue freed_;
};

}  // namespace tessera::inline v0_1::detail
