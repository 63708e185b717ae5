// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// The hook of serialized_provider. It allows one call at a time, unless the provider is thread-safe.
template <typename Provider>
class one_at_a_time {
 public:
  static constexpr bool is_thread_safe = true;

  explicit one_at_a_time(std::mutex& mutex) noexcept : mutex_(&mutex) {}

  template <typename F>
  decltype(auto) operator()(provider_call, F&& f) {
    if constexpr (detail::is_thread_safe<Provider>) {
      return std::forward<F>(f)();
    } else {
      const std::lock_guard lock(*mutex_);
      return std::forward<F>(f)();
    }
  }

 private:
  std::mutex* mutex_;
};

/// Owns a provider and lets several threads call it.
///
/// If the provider is not thread-safe, it receives one call at a time, and other calls wait. Only query never
/// waits, because a cache hit may need it. It answers "not ready" during another call, so blocks stay pending
/// longer. If streams are recorded, make a provider with slow calls thread-safe.
template <device_provider Provider>
class serialized_provider : public provider_adaptor<Provider, one_at_a_time<Provider>> {
  using base = provider_adaptor<Provider, one_at_a_time<Provider>>;
  static constexpr bool locks = !detail::is_thread_safe<Provider>;

 public:
  using typename base::event;
  static constexpr bool is_thread_safe = true;
  static constexpr bool completion_may_lag = locks || detail::completion_may_lag<Provider>;

  explicit serialized_provider(Provider device)
      : serialized_provider(std::make_unique<guarded_device>(std::move(device))) {}

  /// Exists only if no lock is needed: a caller that waited here would keep other threads from cached blocks.
  [[nodiscard]] std::size_t available() const noexcept
    requires(detail::measured_provider<Provider> && !locks)
  {
    return this->inner().available();
  }
  /// Exists only if no lock is needed: two providers that reclaim from each other would deadlock.
  bool reclaim() noexcept
    requires(detail::reclaiming_provider<Provider> && !locks)
  {
    return this->inner().reclaim();
  }

  /// Also discards a ready event. The allocator calls discard next, and that call must neither wait nor
  /// get lost.
  [[nodiscard]] bool query(event& mark) noexcept
    requires event_provider<Provider>
  {
    std::unique_lock<std::mutex> lock;
    if constexpr (locks) {
      lock = std::unique_lock(own_->mutex, std::try_to_lock);
      if (!lock.owns_lock()) return false;
    }
    return discard_if(this->inner().query(mark), mark);
  }
  /// Also discards the event, like query.
  bool wait(event& mark) noexcept
    requires event_provider<Provider>
  {
    return this->hook()(provider_call::wait, [&] { return discard_if(this->inner().wait(mark), mark); });
  }
  static void discard(event&) noexcept
    requires event_provider<Provider>
  {}

  /// Calls f(provider), and prevents concurrent calls unless the provider is thread-safe.
  template <typename F>
  decltype(auto) with_provider(F&& f) {
    return this->hook()(provider_call::acquire,
                        [&]() -> decltype(auto) { return std::forward<F>(f)(this->inner()); });
  }

 private:
  [[nodiscard]] bool discard_if(bool ready, event& mark) noexcept {
    if (ready) this->inner().discard(mark);
    return ready;
  }

  struct guarded_device {
    explicit guarded_device(Provider own) : device(std::move(own)) {}
    Provider device;
    std::mutex mutex;
  };
  explicit serialized_provider(std::unique_ptr<guarded_device> own)
      : base(own->device, one_at_a_time<Provider>(own->mutex)), own_(std::move(own)) {}

  std::unique_ptr<guarded_device> own_;
};

}  // namespace tessera::detail
