// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/own_process.hpp>

namespace tessera::inline v0_1::detail {

/// A thread that works in rounds while there is work, and otherwise waits. The first wake() starts it. If
/// `period` is above 0, it waits no longer than that. A forked process does not have the thread, and may destroy the object.
class round_worker {
 public:
  /// Does one round of work. Returns whether more work is left.
  using round = bool (*)(void* context) noexcept;

  round_worker(round work, void* context, std::chrono::microseconds pause,
               std::chrono::milliseconds period = {}) noexcept
      : work_(work), context_(context), pause_(pause), period_(period) {}
  round_worker& operator=(round_worker&&) = delete;
  ~round_worker() { stop(); }

  /// Wakes the thread because there is work. Never waits for a round.
  void wake() noexcept {
    if (is_forked()) return;  // the lost thread may have locked the mutex
    const std::lock_guard lock(mutex_);
    if (stopped_ || std::exchange(has_work_, true)) return;
    if (is_running()) {
      (*of_thread_).changed.notify_one();
    } else {
      start();
    }
  }
  /// Ends the thread for good: wake() does not start it again.
  void stop() noexcept {
    if (is_forked()) return;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    (*of_thread_).changed.notify_one();
    if (std::thread& thread = (*of_thread_).thread; thread.joinable()) thread.join();
    running_ = false;
  }
  /// The rounds that have ended, modulo 2^32.
  [[nodiscard]] unsigned ended_rounds() const noexcept { return ended_; }
  /// Waits for the end of the round that the thread does now, if any. The thread must not call it.
  ///   Returns:  whether a round has ended since ended_rounds() was `before`
  [[nodiscard]] bool finish_round(unsigned before) noexcept {
    if (!is_running() || is_forked()) return false;
    std::unique_lock lock(mutex_);
    (*of_thread_).changed.wait(lock, [this, now = ended_rounds()] { return !in_round_ || ended_ != now; });
    return ended_ != before;
  }
  [[nodiscard]] bool is_running() const noexcept { return running_; }

 private:
  struct parts {
    std::condition_variable changed;
    std::thread thread;
  };
  /// Whether another process started the thread.
  [[nodiscard]] bool is_forked() const noexcept { return is_running() && !of_thread_.is_here(); }

  void start() noexcept {
    of_thread_.adopt();
    if (!try_run([this] { (*of_thread_).thread = std::thread([this] { run(); }); })) {
      has_work_ = false;
      return;
    }
    running_ = true;
  }
  void run() {
    const auto is_woken = [this] { return stopped_ || has_work_; };
    std::unique_lock lock(mutex_);
    while (true) {
      if (period_.count() > 0) {
        (*of_thread_).changed.wait_for(lock, period_, is_woken);
      } else {
        (*of_thread_).changed.wait(lock, is_woken);
      }
      if (stopped_) return;
      has_work_ = false;
      in_round_ = true;
      lock.unlock();
      const bool more = work_(context_);
      lock.lock();
      in_round_ = false;
      ++ended_;
      (*of_thread_).changed.notify_all();
      has_work_ = has_work_ || more;
      if (has_work_) (*of_thread_).changed.wait_for(lock, pause_, [this] { return stopped_; });
    }
  }

  round work_;
  void* context_;
  std::chrono::microseconds pause_;
  std::chrono::milliseconds period_;
  std::mutex mutex_;
  bool has_work_ = false;
  bool stopped_ = false;
  bool in_round_ = false;  // whether a round is going on
  std::atomic<unsigned> ended_{0};
  std::atomic<bool> running_{false};
  own_process<parts> of_thread_;
};

/// State that a background_reclaiming allocator shares with its provider.
struct background_state {
  round_worker worker;
  int reclaiming = 0;  ///< calls that reclaim; guarded by the allocator's mutex, which they release to wait
};

/// The hook of background_events. Without a state, it changes nothing.
class leave_queries_to_worker {
 public:
  static constexpr bool is_thread_safe = true;
  leave_queries_to_worker(background_state* state) noexcept : state_(state) {}  // implicit

  template <typename F>
  auto operator()(provider::provider_call call, F f) noexcept {
    using result_type = decltype(f());
    if (state_ == nullptr) return f();
    if (call == provider::provider_call::query && state_->reclaiming == 0 && state_->worker.is_running())
      return result_type();
    const result_type result = f();
    if (call == provider::provider_call::record) state_->worker.wake();
    return result;
  }

 private:
  background_state* state_;
};

/// A provider adaptor. Each record() wakes the worker. Once the worker runs, only calls that reclaim query
/// events.
template <typename Device>
using background_events = provider::provider_adaptor<Device, leave_queries_to_worker>;

struct background_options {
  bool enabled = true;                       ///< whether a thread reclaims blocks
  std::chrono::microseconds pause{100};      ///< between its rounds
  std::chrono::milliseconds evict_every{0};  ///< between its calls of evict_idle(); 0 for no calls
  bool operator==(const background_options&) const = default;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::concurrent {

/// A locked allocator with a thread that frees blocks whose events have completed, so that a cache hit
/// queries no events. `Allocator` is a caching_allocator; other front ends go around.
///
/// Choose it if event queries are slow and many blocks have recorded streams, for example pinned memory for
/// copies. On a cache miss, the caller also reclaims before it asks the device for memory.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using pinned_allocator = tessera::caching_allocator<tessera::recipe::pytorch_pinned<>, tessera::provider::host_pinned>;
///     tessera::concurrent::background_reclaiming<pinned_allocator> pinned;
///     void* batch = pinned.allocate(4_MiB);
///     if (!pinned.record_stream(batch, tessera::stream_id{})) return;  // a copy on this stream reads it
///     pinned.deallocate(batch);  // the thread frees it when the copy is done
///
/// The first pending block starts the thread. It waits while no block is pending, and ends with the
/// allocator. If the thread cannot be started, callers do its work, as without `enabled`. With
/// `evict_every`, it starts with the allocator, and also calls evict_idle(), for policies such as evict_after.
/// A forked process does not have the thread, and may destroy the allocator.
///   Source:  PyTorch's pinned_use_background_threads, whose thread starts with the first miss and never
///            waits
template <typename Allocator>
class background_reclaiming
    : public allocator_adaptor<background_reclaiming<Allocator>,
                               locked<typename Allocator::template rebind_provider<
                                   detail::background_events<typename Allocator::provider_type>>>> {
 public:
  using recipe_type = typename Allocator::recipe_type;
  using provider_type = typename Allocator::provider_type;

 private:
  using locked_type =
      locked<typename Allocator::template rebind_provider<detail::background_events<provider_type>>>;
  using adaptor_type = allocator_adaptor<background_reclaiming, locked_type>;
  static_assert(!detail::waits_for_events<typename Allocator::recipe_type::streams>,
                "background_reclaiming frees blocks when streams complete their work; a recipe with "
                "wait_for_events, such as symmetric, frees them only where the program asks");

 public:
  /// Whether a thread reclaims (`enabled`), the microseconds between its rounds (`pause`), and the
  /// milliseconds between its calls of evict_idle() (`evict_every`; 0 for no calls).
  using options = detail::background_options;
  /// The options that the settings of PyTorch or torch_npu choose.
  [[nodiscard]] static constexpr options options_from(const auto& settings) noexcept
    requires requires { settings.pinned_use_background_threads; }
  {
    return {.enabled = settings.pinned_use_background_threads};
  }

  background_reclaiming() : background_reclaiming(provider_type{}) {}
  /// Makes the allocator over a provider. `given` are its extensions that have state of the program, such as
  /// an observer.
  template <typename... Given>
    requires(detail::are_extensions_of<Allocator, Given...>)
  explicit background_reclaiming(provider_type device, recipe::policies<recipe_type> settings = {},
                                 options worker = {}, Given&&... given)
      : device_(std::move(device)),
        enabled_(worker.enabled),
        evict_every_(worker.evict_every),
        state_{{&run_round, this, worker.pause, worker.evict_every}},
        allocator_(detail::background_events<provider_type>(device_, worker.enabled ? &state_ : nullptr),
                   std::move(settings), std::forward<Given>(given)...) {
    const auto reclaim = [](void* self) noexcept {
      return static_cast<background_reclaiming*>(self)->process_events();
    };
    if (worker.enabled) (void)this->on_pressure(reclaim, this);
    if (worker.enabled && evicts()) state_.worker.wake();
  }
  ~background_reclaiming() { state_.worker.stop(); }

  bool process_events() noexcept {
    return reclaim([](auto& in) { return in.process_events(); });
  }
  void evict_idle() noexcept {
    reclaim([](auto& in) { in.evict_idle(); });
  }
  /// Empties the cache as a caching_allocator does, also of blocks that the thread frees or releases now: it waits for the
  /// thread's round to end.
  void trim(std::size_t keep = 0) noexcept {
    const unsigned before = state_.worker.ended_rounds();
    adaptor_type::trim(keep);
    if (state_.worker.finish_round(before)) adaptor_type::trim(keep);
  }
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    reclaim([keep](auto& in) { in.trim_without_waiting(keep); });
  }
  /// Wakes the thread at the end of a scope: a block that is freed during a capture is pending without an event.
  template <typename Note>
  void note_change(const Note& note) {
    adaptor_type::note_change(note);
    if constexpr (std::is_same_v<Note, extension::pool_change>) {
      if (enabled_ && note.what == Note::kind::closed && this->current_usage().pending() > 0)
        state_.worker.wake();
    }
  }
  /// Whether the thread has started.
  [[nodiscard]] bool has_worker() const noexcept { return state_.worker.is_running(); }

  template <typename F>
  decltype(auto) visit_provider(F f) {
    return allocator_.visit_provider([&f](auto& device) -> decltype(auto) { return f(device.inner()); });
  }

 private:
  friend adaptor_type;

  template <typename F>
  decltype(auto) reclaim(F f) {
    return locked_type::enter(allocator_, [&](auto& in) {
      ++state_.reclaiming;
      const detail::at_scope_end end([this] { --state_.reclaiming; });
      return f(in);
    });
  }
  [[nodiscard]] bool evicts() const noexcept { return evict_every_.count() > 0; }
  static bool run_round(void* self) noexcept {
    auto& me = *static_cast<background_reclaiming*>(self);
    (void)me.process_events();
    if (me.evicts()) me.evict_if_due();
    return me.current_usage().pending() > 0;
  }

  /// Called by the thread only.
  void evict_if_due() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (now < evicted_ + evict_every_) return;
    evicted_ = now;
    evict_idle();
  }

  provider_type device_;
  const bool enabled_;
  const std::chrono::milliseconds evict_every_;
  std::chrono::steady_clock::time_point evicted_{};
  detail::background_state state_;
  locked_type allocator_;
};

}  // namespace tessera::inline v0_1::concurrent
