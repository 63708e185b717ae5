// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include <tessera/core/text.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// A provider, the mutex that serializes its calls, and the refusals of the threads that called it.
template <typename Provider>
struct serialized_calls {
  explicit serialized_calls(Provider own) : device(std::move(own)) {}
  Provider device;
  std::mutex mutex;
  struct no_refusals {};
  static constexpr bool keeps_refusals = explaining_provider<Provider> && !detail::is_thread_safe<Provider>;
  [[no_unique_address]] std::conditional_t<keeps_refusals, provider::latest_refusals, no_refusals> refusals;

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
template <provider::device_provider Provider>
class serialized_provider : public provider::provider_adaptor<Provider, one_at_a_time<Provider>> {
  using base = provider::provider_adaptor<Provider, one_at_a_time<Provider>>;
  static constexpr bool locks = !detail::is_thread_safe<Provider>;

 public:
  using typename base::event;
  static constexpr bool is_thread_safe = true;
  static constexpr bool completion_may_lag = locks || detail::completion_may_lag<Provider>;

  explicit serialized_provider(Provider device)
      : serialized_provider(std::make_unique<serialized_calls<Provider>>(std::move(device))) {}

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
    requires provider::event_provider<Provider>
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
    requires provider::event_provider<Provider>
  {
    return this->hook()(provider::provider_call::wait,
                        [&] { return discard_if(this->inner().wait(mark), mark); });
  }
  static void discard(event&) noexcept
    requires provider::event_provider<Provider>
  {}

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
  [[nodiscard]] bool discard_if(bool ready, event& mark) noexcept {
    if (ready) this->inner().discard(mark);
    return ready;
  }

  explicit serialized_provider(std::unique_ptr<serialized_calls<Provider>> own)
      : base(own->device, one_at_a_time<Provider>(*own)), own_(std::move(own)) {}

  std::unique_ptr<serialized_calls<Provider>> own_;
};

}  // namespace tessera::detail
