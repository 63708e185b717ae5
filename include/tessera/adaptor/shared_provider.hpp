// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <type_traits>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Owns a provider and lets several threads call it, for an allocator's engine to be put on; provider_ref makes it one
/// that moves.
///
/// Where the provider does not say that it is thread-safe, one call is let in at a time, and waits for its turn. So does
/// record, when a block comes back that other streams used, as a stream may end after that. Only query, which a hit may
/// need, does not wait: while another thread is in there, nothing has completed yet, and blocks are held longer. Who
/// records streams over a provider whose calls take long should make it thread-safe.
template <device_provider Provider>
class shared_provider {
 public:
  using event = typename event_of<Provider>::type;
  static constexpr bool is_thread_safe = true;

  explicit shared_provider(Provider device) : device_(std::move(device)) {}
  shared_provider(const shared_provider&) = delete;
  shared_provider& operator=(const shared_provider&) = delete;

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    const turn here(*this);
    return device_.acquire(bytes);
  }
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept
    requires paged_provider<Provider>
  {
    const turn here(*this);
    return device_.acquire(bytes, kind);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const turn here(*this);
    return device_.release(p, bytes);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return device_.capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return device_.granularity(); }

  bool record(stream_id stream, event& mark) noexcept
    requires event_provider<Provider>
  {
    const turn here(*this);
    return device_.record(stream, mark);
  }
  /// Also discards the mark where its work is done: the engine's discard, which follows at once, must neither wait for
  /// its turn nor get lost.
  [[nodiscard]] bool query(event& mark) noexcept
    requires event_provider<Provider>
  {
    const turn here(*this, std::try_to_lock);
    return here.mine && device_.query(mark) && (device_.discard(mark), true);
  }
  bool wait(event& mark) noexcept
    requires event_provider<Provider>
  {
    const turn here(*this);
    return device_.wait(mark) && (device_.discard(mark), true);
  }
  static void discard(event&) noexcept
    requires event_provider<Provider>
  {}

  /// Calls f(provider) when it is its turn.
  template <typename F>
  decltype(auto) with_device(F&& f) {
    const turn here(*this);
    return std::forward<F>(f)(device_);
  }

 private:
  static constexpr bool one_at_a_time = !tessera::is_thread_safe<Provider>;
  struct nothing {};

  struct turn {
    explicit turn(shared_provider& in) : of(in) {
      if constexpr (one_at_a_time) of.mutex_.lock();
    }
    turn(shared_provider& in, std::try_to_lock_t) : of(in) {
      if constexpr (one_at_a_time) mine = of.mutex_.try_lock();
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if constexpr (one_at_a_time) {
        if (mine) of.mutex_.unlock();
      }
    }
    shared_provider& of;
    bool mine = true;
  };

  Provider device_;
  [[no_unique_address]] std::conditional_t<one_at_a_time, std::mutex, nothing> mutex_;
};

}  // namespace tessera
