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
#include <tessera/fwd.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A thread that works in rounds as long as there is something to do, and sleeps otherwise. It begins when there is
/// something to do for the first time.
class round_worker {
 public:
  /// One round of work; whether there is more to do.
  using round = bool (*)(void* context) noexcept;

  round_worker(round work, void* context, std::chrono::microseconds pause) noexcept
      : work_(work), context_(context), pause_(pause) {}
  round_worker(const round_worker&) = delete;
  round_worker& operator=(const round_worker&) = delete;
  ~round_worker() { stop(); }

  /// Notes that there is something to do; never waits for a round.
  void wake() noexcept {
    const std::lock_guard lock(mutex_);
    if (stopped_ || std::exchange(has_work_, true)) return;
    is_running() ? changed_.notify_one() : start();
  }
  /// Ends the thread; from then on nothing wakes it.
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

/// What a retiring allocator's provider shares with it.
struct retirement {
  round_worker worker;
  bool retires = false;  ///< with the allocator's mutex held

  /// Whether the device is to be asked now, or later by the worker.
  [[nodiscard]] bool must_ask() const noexcept { return retires || !worker.is_running(); }
};

/// A provider whose events only those who retire ask about, once there is a worker for that, which each record wakes.
template <typename Device>
class asked_in_background : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;
  using typename forwarding<Device>::event;

  /// With null, all ask.
  asked_in_background(Device& to, retirement* shared) noexcept : forwarding<Device>(to), shared_(shared) {}

  bool record(stream_id stream, event& mark) noexcept
    requires requires(Device& d) { d.record(stream, mark); }
  {
    const bool recorded = this->to().record(stream, mark);
    if (shared_ != nullptr) shared_->worker.wake();
    return recorded;
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires requires(Device& d) { d.query(mark); }
  {
    return (shared_ == nullptr || shared_->must_ask()) && this->to().query(mark);
  }

 private:
  retirement* shared_;
};

/// Whether a thread retires frees, and how long it rests between its rounds.
struct background {
  bool is_used = true;
  std::chrono::microseconds pause{100};
};

/// What a retiring allocator is built upon, and so outlives it.
template <typename Provider>
struct retiring_parts {
  Provider device_;    // NOLINT(readability-identifier-naming): of a private base
  retirement shared_;  // NOLINT(readability-identifier-naming): of a private base
};

/// A locked allocator of which a thread frees the blocks that streams have come past, so that a hit does not ask the device
/// about events. Where nothing cached fits, the caller does so too, before it asks the device for memory.
///
/// The thread begins with the first block that a free holds back, sleeps while none is held, and ends with the allocator.
/// Where none can be had, callers do its work, as with is_used false.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::retiring<tessera::pytorch_pinned<>, tessera::host_pinned> pinned;
///     void* batch = pinned.allocate(4_MiB);
///     if (!pinned.record_stream(batch, tessera::stream_id{})) return;  // a copy on this stream reads it
///     pinned.deallocate(batch);                                        // the thread frees it when the copy is done
///
///   Source:  PyTorch's pinned_use_background_threads, whose thread begins with the first miss and never sleeps
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class retiring : private retiring_parts<Provider>,
                 public locked<Recipe, asked_in_background<Provider>, Observer, Counting> {
  using parts = retiring_parts<Provider>;
  using base = locked<Recipe, asked_in_background<Provider>, Observer, Counting>;

 public:
  retiring() : retiring(Provider{}) {}
  explicit retiring(Provider device, policies<Recipe> chosen = {}, Observer observer = {},
                    background how = {})
      : parts{std::move(device), {{&one_round, this, how.pause}}},
        base(asked_in_background<Provider>(parts::device_, how.is_used ? &this->shared_ : nullptr),
             std::move(chosen), std::move(observer)) {
    if (how.is_used)
      (void)this->on_pressure([](void* self) noexcept { return static_cast<retiring*>(self)->retire(); },
                              this);
  }
  ~retiring() { this->shared_.worker.stop(); }

  bool retire() noexcept {
    return this->inside_.enter([this](auto& pool) {
      const retiring_now marked(this->shared_);
      return pool.process_events();
    });
  }
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    this->inside_.enter([this, keep](auto& pool) {
      const retiring_now marked(this->shared_);
      pool.trim_without_waiting(keep);
    });
  }
  /// Whether the thread has begun.
  [[nodiscard]] bool has_worker() const noexcept { return this->shared_.worker.is_running(); }

  template <typename F>
  decltype(auto) with_device(F f) {
    return base::with_device([&f](auto& asked) -> decltype(auto) { return f(asked.to()); });
  }

 private:
  struct retiring_now {
    explicit retiring_now(retirement& in) noexcept : of(in) { of.retires = true; }
    ~retiring_now() { of.retires = false; }
    retiring_now(const retiring_now&) = delete;
    retiring_now& operator=(const retiring_now&) = delete;
    retirement& of;
  };
  static bool one_round(void* self) noexcept {
    auto& pool = *static_cast<retiring*>(self);
    (void)pool.retire();
    return pool.now().pending > 0;
  }
};

}  // namespace tessera
