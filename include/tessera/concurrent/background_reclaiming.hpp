// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/facade.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

namespace detail {

/// A thread that works in rounds while there is work, and otherwise sleeps. The first wake() starts it.
class round_worker {
 public:
  /// Does one round of work. Returns whether more work is left.
  using round = bool (*)(void* context) noexcept;

  round_worker(round work, void* context, std::chrono::microseconds pause) noexcept
      : work_(work), context_(context), pause_(pause) {}
  round_worker(const round_worker&) = delete;
  round_worker& operator=(const round_worker&) = delete;
  ~round_worker() { stop(); }

  /// Wakes the thread because there is work. Never waits for a round.
  void wake() noexcept {
    const std::lock_guard lock(mutex_);
    if (stopped_ || std::exchange(has_work_, true)) return;
    is_running() ? changed_.notify_one() : start();
  }
  /// Ends the thread for good: wake() does not start it again.
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    running_ = false;
  }
  [[nodiscard]] bool is_running() const noexcept { return running_; }

 private:
  void start() noexcept {
#if defined(__cpp_exceptions)
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      has_work_ = false;
      return;
    }
#else
    thread_ = std::thread([this] { run(); });
#endif
    running_ = true;
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopped_ || has_work_; });
      if (stopped_) return;
      has_work_ = false;
      lock.unlock();
      const bool more = work_(context_);
      lock.lock();
      has_work_ = has_work_ || more;
      if (has_work_) changed_.wait_for(lock, pause_, [this] { return stopped_; });
    }
  }

  round work_;
  void* context_;
  std::chrono::microseconds pause_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false;
  bool stopped_ = false;
  std::atomic<bool> running_{false};
  std::thread thread_;
};

/// A provider adaptor. Once the worker runs, only calls that reclaim query events. Each record() wakes the
/// worker.
template <typename Device>
class background_events : public provider_adaptor<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::detail::is_thread_safe<Device>;
  using typename provider_adaptor<Device>::event;

  /// State that the allocator shares with its provider.
  struct shared {
    round_worker worker;
    bool is_reclaiming = false;  ///< guarded by the allocator's mutex
  };

  /// If `with` is null, all calls query events.
  background_events(Device& to, shared* with) noexcept : provider_adaptor<Device>(to), with_(with) {}

  bool record(stream_id stream, event& mark) noexcept
    requires requires(Device& d) { d.record(stream, mark); }
  {
    const bool recorded = this->inner().record(stream, mark);
    if (with_ != nullptr) with_->worker.wake();
    return recorded;
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires requires(Device& d) { d.query(mark); }
  {
    const bool is_left_to_worker = with_ != nullptr && !with_->is_reclaiming && with_->worker.is_running();
    return !is_left_to_worker && this->inner().query(mark);
  }

 private:
  shared* with_;
};

}  // namespace detail

/// Whether a thread reclaims blocks in the background, and its pause between rounds.
struct background_options {
  bool enabled = true;
  std::chrono::microseconds pause{100};
};

/// A locked allocator with a thread that frees blocks whose events have completed, so that a cache hit
/// queries no events.
///
/// Choose it if event queries are slow and many blocks have recorded streams, for example pinned memory for
/// copies. On a cache miss, the caller also reclaims before it asks the device for memory.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::background_reclaiming<tessera::pytorch_pinned<>, tessera::host_pinned> pinned;
///     void* batch = pinned.allocate(4_MiB);
///     if (!pinned.record_stream(batch, tessera::stream_id{})) return;  // a copy on this stream reads it
///     pinned.deallocate(batch);  // the thread frees it when the copy is done
///
/// The first pending block starts the thread. It sleeps while no block is pending, and ends with the
/// allocator. If the thread cannot be started, callers do its work, as without `enabled`.
///   Source:  PyTorch's pinned_use_background_threads, whose thread starts with the first miss and never
///            sleeps
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class background_reclaiming
    : public facade<background_reclaiming<Recipe, Provider, Observer, Counting>,
                    locked<Recipe, detail::background_events<Provider>, Observer, Counting>> {
  using events = detail::background_events<Provider>;
  using pool_type = locked<Recipe, events, Observer, Counting>;
  using facade_type = facade<background_reclaiming, pool_type>;

 public:
  background_reclaiming() : background_reclaiming(Provider{}) {}
  explicit background_reclaiming(Provider device, policies<Recipe> settings = {}, Observer observer = {},
                                 background_options options = {})
      : device_(std::move(device)),
        shared_{{&run_round, this, options.pause}},
        pool_(events(device_, options.enabled ? &shared_ : nullptr), std::move(settings),
              std::move(observer)) {
    const auto reclaim = [](void* self) noexcept {
      return static_cast<background_reclaiming*>(self)->process_events();
    };
    if (options.enabled) (void)this->on_pressure(reclaim, this);
  }
  ~background_reclaiming() { shared_.worker.stop(); }

  bool process_events() noexcept {
    return reclaim([](auto& pool) { return pool.process_events(); });
  }
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    reclaim([keep](auto& pool) { pool.trim_without_waiting(keep); });
  }
  /// Whether the thread has started.
  [[nodiscard]] bool has_worker() const noexcept { return shared_.worker.is_running(); }

  template <typename F>
  decltype(auto) with_device(F f) {
    return pool_.with_device([&f](auto& device) -> decltype(auto) { return f(device.inner()); });
  }

 private:
  friend facade_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return std::forward<F>(f)(me.pool_);
  }

  template <typename F>
  decltype(auto) reclaim(F f) {
    struct marked {
      explicit marked(bool& to) noexcept : flag(to) { flag = true; }
      ~marked() { flag = false; }
      marked(const marked&) = delete;
      marked& operator=(const marked&) = delete;
      bool& flag;
    };
    return pool_type::enter(pool_, [&](auto& pool) {
      const marked while_reclaiming(shared_.is_reclaiming);
      return f(pool);
    });
  }
  static bool run_round(void* self) noexcept {
    auto& pool = *static_cast<background_reclaiming*>(self);
    (void)pool.process_events();
    return pool.current_usage().pending > 0;
  }

  Provider device_;
  typename events::shared shared_;
  pool_type pool_;
};

}  // namespace tessera
