// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>

#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::provider {

/// Collects the durations of a provider's successful calls, for each kind of call that may take long.
/// Thread-safe.
///   Source:  acquire and release are PyTorch's host_alloc_time and host_free_time
class call_times {
 public:
  /// The durations of one kind of call, in microseconds.
  struct summary {
    std::uint64_t count = 0;  ///< successful calls
    std::uint64_t total = 0;  ///< the sum of their durations
    std::uint64_t max = 0;    ///< the longest one
    std::uint64_t min = 0;    ///< 0 if there was no call

    /// The mean duration; 0 if there was no call.
    [[nodiscard]] constexpr double average() const noexcept {
      return count > 0 ? static_cast<double>(total) / static_cast<double>(count) : 0.0;
    }
    /// Counts a call.
    constexpr void add(std::uint64_t microseconds) noexcept {
      if (count == 0 || microseconds < min) min = microseconds;
      if (microseconds > max) max = microseconds;
      total += microseconds;
      ++count;
    }
    bool operator==(const summary&) const = default;
  };
  static constexpr std::size_t count = provider_call::synchronize + 1;  ///< kinds of calls that are measured

  /// The durations of a kind of call.
  [[nodiscard]] summary of(provider_call call) const noexcept {
    const std::lock_guard lock(mutex_);
    return times_[call];
  }
  [[nodiscard]] summary acquire() const noexcept { return of(provider_call::acquire); }
  [[nodiscard]] summary release() const noexcept { return of(provider_call::release); }
  /// Forgets all durations.
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    times_ = {};
  }
  ///   Requires:  call.may_take_long()
  void add(provider_call call, std::uint64_t microseconds) noexcept {
    const std::lock_guard lock(mutex_);
    times_[call].add(microseconds);
  }

 private:
  mutable std::mutex mutex_;
  std::array<summary, count> times_{};
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

/// The hook of `timed`.
template <typename Clock>
class measure_calls {
 public:
  static constexpr bool is_thread_safe = true;

  explicit measure_calls(provider::call_times& times) noexcept : times_(&times) {}

  template <typename F>
  auto operator()(provider::provider_call call, F f) noexcept {
    if (!call.may_take_long()) return f();
    const auto start = Clock::now();
    const auto result = f();
    if (result) {
      const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
      times_->add(call, static_cast<std::uint64_t>(elapsed.count()));
    }
    return result;
  }

 private:
  provider::call_times* times_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Measures how long a provider's successful calls take.
///
///     tessera::provider::simulated_device device;
///     tessera::provider::call_times times;
///     using timed = tessera::provider::timed<tessera::provider::simulated_device>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, timed> pool_over_timed{timed(device, times)};
///     pool_over_timed.deallocate(pool_over_timed.allocate(5_MiB));
///     std::printf("a segment took %.1f us\n", times.acquire().average());
///
///   Requires:  the provider and the times outlive it
template <device_provider Device, typename Clock = std::chrono::steady_clock>
class timed : public provider_adaptor<Device, detail::measure_calls<Clock>> {
 public:
  /// Measures the calls of a provider, and adds their durations to `times`.
  timed(Device& device, call_times& times) noexcept
      : provider_adaptor<Device, detail::measure_calls<Clock>>(device, detail::measure_calls<Clock>(times)) {}
};

}  // namespace tessera::inline v0_1::provider
