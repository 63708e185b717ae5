// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif

#include <tessera/allocator_adaptor.hpp>
#include <tessera/caching_allocator.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/latest_refusals.hpp>

namespace tessera::inline v0_1::detail {

/// A provider, the mutex that serializes its calls, and the refusals of the threads that called it.
template <typename Provider>
struct serialized_calls {
  explicit serialized_calls(Provider own) : device(std::move(own)) { note_available(); }
  Provider device;
  std::mutex mutex;
  std::atomic<std::size_t> latest_available{0};  ///< after the last call, if the provider needs the mutex
  struct no_refusals {};
  static constexpr bool keeps_refusals = explaining_provider<Provider> && !detail::is_thread_safe<Provider>;
  [[TESSERA_NO_UNIQUE_ADDRESS]] std::conditional_t<keeps_refusals, provider::latest_refusals, no_refusals>
      refusals;

  void note_available() noexcept {
    if constexpr (measured_provider<Provider> && !detail::is_thread_safe<Provider>)
      latest_available.store(device.available(), std::memory_order_relaxed);
  }
  template <typename F>
  decltype(auto) run(F&& f) {
    if constexpr (detail::is_thread_safe<Provider>) {
      return std::forward<F>(f)();
    } else {
      const std::lock_guard lock(mutex);
      return std::forward<F>(f)();
    }
  }
};

/// The hook of serialized_provider. It allows one call at a time, unless the provider is thread-safe. It takes the
/// reason of a refusal before another thread calls the provider.
template <typename Provider>
class one_at_a_time {
 public:
  static constexpr bool is_thread_safe = true;

  explicit one_at_a_time(serialized_calls<Provider>& calls) noexcept : calls_(&calls) {}

  template <typename F>
  auto operator()([[maybe_unused]] provider::provider_call call, F f) noexcept {
    return calls_->run([&] {
      const auto result = f();
      using enum provider::provider_call::kind;
      if (call == acquire || call == release || call == create || call == destroy) calls_->note_available();
      if constexpr (serialized_calls<Provider>::keeps_refusals) {
        if (!result && call.may_fail()) {
          if (const refusal why = calls_->device.take_refusal()) calls_->refusals.note(why);
        }
      }
      return result;
    });
  }

 private:
  serialized_calls<Provider>* calls_;
};

/// Owns a provider and lets several threads call it.
///
/// If the provider is not thread-safe, it receives one call at a time, and other calls wait. Only query never
/// waits, because a cache hit may need it. It answers "not ready" during another call, so blocks stay pending
/// longer. If streams are recorded, make a provider with slow calls thread-safe.
///
/// An event that is found ready is discarded at once, so that the discard() of a cache hit does not wait, either.
template <provider::device_provider Provider>
class serialized_provider : public provider::provider_adaptor<Provider, one_at_a_time<Provider>> {
  using base = provider::provider_adaptor<Provider, one_at_a_time<Provider>>;
  static constexpr bool locks = !detail::is_thread_safe<Provider>;

 public:
  /// An event of the provider, and whether it was found ready and discarded.
  struct event {
    typename base::event mark{};
    bool is_discarded = false;
  };
  static constexpr bool is_thread_safe = true;
  static constexpr bool completion_may_lag = locks || detail::completion_may_lag<Provider>;

  explicit serialized_provider(Provider device)
      : serialized_provider(std::make_unique<serialized_calls<Provider>>(std::move(device))) {}

  /// While another thread calls the provider, returns what it said after the call before: a caller that waited here would
  /// keep other threads from cached blocks.
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Provider>
  {
    if constexpr (!locks) {
      return this->inner().available();
    } else {
      const std::unique_lock lock(own_->mutex, std::try_to_lock);
      if (lock.owns_lock())
        own_->latest_available.store(this->inner().available(), std::memory_order_relaxed);
      return own_->latest_available.load(std::memory_order_relaxed);
    }
  }
  /// Exists only if no lock is needed: two providers that reclaim from each other would deadlock.
  bool reclaim() noexcept
    requires(detail::reclaiming_provider<Provider> && !locks)
  {
    return this->inner().reclaim();
  }

  bool record(stream_id stream, event& made) noexcept
    requires provider::event_provider<Provider>
  {
    made.is_discarded = false;
    return base::record(stream, made.mark);
  }
  [[nodiscard]] bool query(event& of) noexcept
    requires provider::event_provider<Provider>
  {
    std::unique_lock<std::mutex> lock;
    if constexpr (locks) {
      lock = std::unique_lock(own_->mutex, std::try_to_lock);
      if (!lock.owns_lock()) return of.is_discarded;
    }
    return of.is_discarded || discard_if(this->inner().query(of.mark), of);
  }
  bool wait(event& of) noexcept
    requires provider::event_provider<Provider>
  {
    return this->hook()(provider::provider_call::wait,
                        [&] { return of.is_discarded || discard_if(this->inner().wait(of.mark), of); });
  }
  void discard(event& of) noexcept
    requires provider::event_provider<Provider>
  {
    if (!of.is_discarded) base::discard(of.mark);
  }

  /// Calls f(provider), and prevents concurrent calls unless the provider is thread-safe.
  template <typename F>
  decltype(auto) visit_provider(F&& f) {
    return own_->run([&]() -> decltype(auto) { return std::forward<F>(f)(this->inner()); });
  }

  refusal take_refusal() noexcept
    requires explaining_provider<Provider>
  {
    if constexpr (locks) {
      return own_->refusals.take();
    } else {
      return this->inner().take_refusal();
    }
  }

 private:
  [[nodiscard]] bool discard_if(bool ready, event& of) noexcept {
    if (ready) this->inner().discard(of.mark);
    return of.is_discarded = ready;
  }

  explicit serialized_provider(std::unique_ptr<serialized_calls<Provider>> own)
      : base(own->device, one_at_a_time<Provider>(*own)), own_(std::move(own)) {}

  std::unique_ptr<serialized_calls<Provider>> own_;
};

}  // namespace tessera::inline v0_1::detail

// A caching_allocator with a mutex that is unlocked during slow device calls. Also checks that user
// functions do not re-enter the allocator while a lock is held.

namespace tessera::inline v0_1::detail {

/// Knows which threads run a user function while they hold a lock of an allocator. Such a function would deadlock if it used
/// the allocator. The program aborts with a message instead.
class reentrancy_guard {
 public:
  /// The locks of an allocator in locking order. A thread that holds a lock may take only later locks.
  enum class lock : unsigned char { settings, blocks, device };

  /// A user function that the calling thread runs during its lifetime.
  class call {
   public:
    call(reentrancy_guard& guard, lock held, const char* rule) noexcept
        : guard_(guard), held_(held), rule_(rule), outer_(std::exchange(innermost(), this)) {
      guard_.calls_.fetch_add(1, std::memory_order_relaxed);
    }
    call& operator=(call&&) = delete;
    ~call() {
      guard_.calls_.fetch_sub(1, std::memory_order_relaxed);
      // The innermost, unless fibers of one thread end in another order.
      const call** at = &innermost();
      while (*at != this && *at != nullptr) at = &(*at)->outer_;
      if (*at != nullptr) *at = outer_;
    }

   private:
    friend reentrancy_guard;
    /// The latest call of the thread, of any allocator. Shared objects of one program share it if the loader can see it.
    [[gnu::visibility("default")]] static const call*& innermost() noexcept {
      static thread_local const call* of_thread = nullptr;
      return of_thread;
    }

    reentrancy_guard& guard_;
    lock held_;
    const char* rule_;
    mutable const call* outer_;
  };

  reentrancy_guard& operator=(reentrancy_guard&&) = delete;

  /// Aborts if the calling thread must not take a lock. Call it before taking the lock.
  ///   Cost:  one load while no user function runs
  void check_lock(lock wanted) const noexcept {
    if (calls_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      check_this_thread(wanted);
  }

 private:
  [[gnu::noinline, gnu::cold]] void check_this_thread(lock wanted) const noexcept {
    for (const call* c = call::innermost(); c != nullptr; c = c->outer_) {
      if (&c->guard_ == this && wanted <= c->held_) fatal(c->rule_);
    }
  }

  std::atomic<int> calls_{0};  // of all threads
};

/// A mutex that is held for tens of nanoseconds. A thread that finds it locked tries ever less often, then yields the
/// processor, then sleeps, ever longer, at most 640 microseconds. So the holder has the allocator in its processor's cache for
/// several calls. A thread that waits wakes by itself, so unlocking is a plain store.
///   Cost:  an exchange for lock and unlock. In a process with one thread, no exchange.
class short_mutex {
 public:
  [[nodiscard]] bool try_lock() noexcept {
    if (!is_single_threaded()) return locked_.exchange(1, std::memory_order_acquire) == 0;
    const bool was_locked = locked_.load(std::memory_order_acquire) != 0;
    locked_.store(1, std::memory_order_relaxed);
    return !was_locked;
  }
  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait_and_lock();
  }
  void unlock() noexcept { locked_.store(0, std::memory_order_release); }

 private:
  [[gnu::noinline, gnu::cold]] void wait_and_lock() noexcept {
    constexpr int first_sleep = 64;
    constexpr std::chrono::microseconds longest{640};
    std::chrono::microseconds sleep{10};
    for (int tries = 0; locked_.load(std::memory_order_relaxed) != 0 || !try_lock(); ++tries) {
      if (tries < 3) {
        pause(64 << tries);
      } else if (tries < first_sleep) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(sleep);
        if (sleep < longest) sleep *= 2;
      }
    }
  }
  /// Whether the C library says that the process has one thread now. Then locking needs no exchange either.
  [[nodiscard]] static bool is_single_threaded() noexcept {
#if __has_include(<sys/single_threaded.h>)
    return __libc_single_threaded != 0;
#else
    return false;
#endif
  }
  /// Lets the processor wait `times` times for some cycles, without a read of memory.
  static void pause(int times) noexcept {
    for (int i = 0; i < times; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  }

  std::atomic<std::uint32_t> locked_{0};  // no bool: g++ 12 exchanges a byte on RISC-V by a call of libatomic
};

/// A mutex that its holder unlocks during a call, and a list of the calls in progress.
class unlockable_mutex {
 public:
  short_mutex mutex;

  /// Unlocks the mutex during its lifetime.
  ///   Requires:  the calling thread holds the mutex
  class call {
   public:
    explicit call(unlockable_mutex& of) noexcept : of_(of), serial_(++of.latest_), older_(of.newest_) {
      if (older_ != nullptr) ++of.counts_.overlaps;
      of.newest_ = this;
      of.mutex.unlock();
    }
    call& operator=(call&&) = delete;
    ~call() {
      of_.mutex.lock();
      call** at = &of_.newest_;
      while (*at != this) at = &(*at)->older_;
      *at = older_;
      of_.ends_.fetch_add(1, std::memory_order_relaxed);
      of_.ends_.notify_all();
    }

   private:
    friend unlockable_mutex;
    unlockable_mutex& of_;
    std::uint64_t serial_;
    std::thread::id thread_ = std::this_thread::get_id();
    call* older_;
  };

  // The members below require that the calling thread holds the mutex.

  /// Unlocks the mutex while f() runs. wait_for_calls() does not wait for f(), so f() may wait for calls of
  /// other allocators.
  template <typename F>
  auto run_unlocked(F f) noexcept {
    mutex.unlock();
    const auto result = f();
    mutex.lock();
    return result;
  }
  /// Like run_unlocked, for an f() that makes other allocators release cached memory. Counts these calls.
  template <typename F>
  auto reclaim(F f) noexcept {
    ++counts_.reclaims;
    return run_unlocked(f);
  }

  struct counts {
    std::uint64_t overlaps;  ///< calls that began while another call was in progress
    std::uint64_t reclaims;
  };
  [[nodiscard]] counts counted() const noexcept { return counts_; }
  [[nodiscard]] bool any_in_progress() const noexcept { return newest_ != nullptr; }
  /// Waits until the calls that are in progress now have ended.
  ///   Requires:  the calling thread made none of these calls; aborts otherwise
  void wait_for_calls() {
    for (const call* c = newest_; c != nullptr; c = c->older_) {
      if (c->thread_ == std::this_thread::get_id())
        fatal("a provider must not use the allocator that calls it");
    }
    for (const std::uint64_t latest = latest_; is_in_progress(latest);) {
      const int seen = ends_.load(std::memory_order_relaxed);
      mutex.unlock();
      ends_.wait(seen, std::memory_order_relaxed);
      mutex.lock();
    }
  }

 private:
  /// Whether a call with this serial or a smaller one is in progress.
  [[nodiscard]] bool is_in_progress(std::uint64_t serial) const noexcept {
    const call* c = newest_;
    while (c != nullptr && c->serial_ > serial) c = c->older_;
    return c != nullptr;
  }

  std::atomic<int> ends_{0};  // of calls, modulo 2^32
  call* newest_ = nullptr;
  std::uint64_t latest_ = 0;
  counts counts_{};
};

/// The hook of unlocking_provider.
class unlock_slow_calls {
 public:
  unlock_slow_calls(unlockable_mutex& mutex) noexcept : mutex_(&mutex) {}  // implicit, for unlocking_provider

  template <typename F>
  auto operator()(provider::provider_call call, F f) noexcept {
    switch (call) {
      case provider::provider_call::acquire:
      case provider::provider_call::release:
      case provider::provider_call::wait: {
        const unlockable_mutex::call unlocked(*mutex_);
        return f();
      }
      case provider::provider_call::reclaim: return mutex_->reclaim(f);
      default: return f();
    }
  }

 private:
  unlockable_mutex* mutex_;
};

/// A provider adaptor that unlocks the allocator's mutex during calls that may take long. The mutex stays
/// locked during map, unmap and the synchronize before them, because the allocator does all of these in one
/// step.
template <typename Device>
using unlocking_provider = provider::provider_adaptor<Device, unlock_slow_calls>;

/// An allocator and its mutex. `Allocator` is rebuilt over a provider that unlocks the mutex during slow calls: while the
/// device acquires or releases segments or waits for events. A callback of on_pressure runs without the mutex, too.
/// `Device` must accept concurrent calls.
///   Requires:  `guard`, which several allocators may share, outlives it
template <typename Allocator, typename Device>
class mutex_guarded : innermost_front<Allocator> {
 public:
  using allocator = typename Allocator::template rebind_provider<unlocking_provider<Device>>;
  using recipe_type = typename Allocator::recipe_type;

  template <typename From, typename... Given>
  mutex_guarded(reentrancy_guard& guard, From&& device, recipe::policies<recipe_type> settings,
                Given&&... given)
      : device_(std::forward<From>(device)),
        allocator_(std::in_place, unlocking_provider<Device>(device_, mutex_), std::move(settings),
                   std::forward<Given>(given)...),
        guard_(&guard) {}
  mutex_guarded& operator=(mutex_guarded&&) = delete;
  ~mutex_guarded() {
    const std::lock_guard lock(mutex_.mutex);  // the allocator unlocks it when it releases its segments
    allocator_.reset();
  }

  /// Calls f(allocator) with the mutex held. Slow device calls and callbacks unlock it, as described for the
  /// class. `Me` is mutex_guarded or const mutex_guarded.
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    me.check_reentry();
    const std::lock_guard lock(me.mutex_.mutex);
    if constexpr (std::is_const_v<Me>) {
      return std::forward<F>(f)(std::as_const(*me.allocator_));
    } else {
      return std::forward<F>(f)(*me.allocator_);
    }
  }
  /// Calls f(allocator) with the mutex held, for a user function. If f uses the allocator, the program aborts
  /// with the message `rule`.
  template <typename Me, typename F>
  static decltype(auto) enter_for_user(Me& me, const char* rule, F&& f) {
    return enter(me, [&](auto& in) -> decltype(auto) {
      const reentrancy_guard::call running(*me.guard_, reentrancy_guard::lock::blocks, rule);
      return std::forward<F>(f)(in);
    });
  }

  /// Calls prepare(allocator), then try_allocate, which may be retried:
  ///
  /// * If it failed while other threads were in device calls, waits for these calls and retries once. The
  ///   calls may have released enough memory.
  /// * If it still fails, and other allocators were asked to release cached memory, asks them again and
  ///   retries up to eight times. They may have cached the memory again meanwhile.
  ///
  /// The statistics count each try. Calls done(allocator, block) with the mutex held, unless 0 bytes are requested. The block
  /// is null if the last try fails; done may then throw.
  template <typename Prepare, typename Done>
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream, Prepare prepare, Done done) {
    return enter(*this, [&](allocator& in) {
      prepare(in);
      const unlockable_mutex::counts before = mutex_.counted();
      void* p = in.try_allocate(bytes, stream);
      if (p == nullptr) {
        if (bytes == 0) return p;
        p = try_again(bytes, stream, before);
      }
      done(in, p);
      return p;
    });
  }
  /// Waits for the device calls in progress, then empties the cache. Returns whether it released memory.
  bool trim_after_calls() noexcept {
    return enter(*this, [this](allocator& in) {
      mutex_.wait_for_calls();
      const std::size_t before = in.current_usage().reserved;
      in.trim();
      return in.current_usage().reserved < before;
    });
  }

  [[nodiscard]] bool on_pressure(callback_list::function call, void* context) noexcept {
    return enter(*this, [this, call, context](allocator& in) {
      runs_callbacks_ = runs_callbacks_ || in.on_pressure(&run_callbacks, this);
      return runs_callbacks_ && callbacks_.add(call, context);
    });
  }

  [[nodiscard]] Device& provider() noexcept { return device_; }

 private:
  static constexpr int max_tries = 8;

  [[nodiscard, gnu::noinline]] void* try_again(std::size_t bytes, stream_id stream,
                                               unlockable_mutex::counts before) noexcept {
    if (bytes > max_request) return nullptr;
    void* p = nullptr;
    if (before.overlaps != mutex_.counted().overlaps || mutex_.any_in_progress()) {
      mutex_.wait_for_calls();
      p = allocator_->try_allocate(bytes, stream);
    }
    if constexpr (detail::reclaiming_provider<unlocking_provider<Device>>) {
      const bool may_help = before.reclaims != mutex_.counted().reclaims;
      for (int i = 0; p == nullptr && may_help && i < max_tries && allocator_->provider().reclaim(); ++i)
        p = allocator_->try_allocate(bytes, stream);
    }
    return p;
  }
  /// Checks for re-entrancy before the mutex is taken, because this thread may hold it in a user function.
  void check_reentry() const noexcept {
    guard_->check_lock(reentrancy_guard::lock::blocks);
    allocator_->check_thread();
  }

  static bool run_callbacks(void* self) noexcept {
    auto& me = *static_cast<mutex_guarded*>(self);
    return me.mutex_.run_unlocked([&me] { return me.callbacks_.run(); });
  }

  mutable unlockable_mutex mutex_;
  Device device_;
  std::optional<allocator> allocator_;
  callback_list callbacks_;
  bool runs_callbacks_ = false;  // whether the allocator calls run_callbacks()
  reentrancy_guard* guard_;
};

}  // namespace tessera::inline v0_1::detail
