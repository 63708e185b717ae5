// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// What a shared_provider has besides where its provider has virtual memory.
template <typename Shared, typename Provider>
class shared_virtual_memory {};
template <typename Shared, virtual_memory_provider Provider>
class shared_virtual_memory<Shared, Provider> {
 public:
  using physical = typename Provider::physical;
  static constexpr bool map_grants_access = Provider::map_grants_access;
  static constexpr bool unmap_wants_size = Provider::unmap_wants_size;

  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    return in_turn([=](Provider& d) { return d.reserve(bytes, to); });
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return in_turn([=](Provider& d) { return d.unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    return in_turn([&](Provider& d) { return d.create(bytes, kind, made); });
  }
  bool destroy(const physical& leaving) noexcept {
    return in_turn([&](Provider& d) { return d.destroy(leaving); });
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    return in_turn([&](Provider& d) { return d.map(p, bytes, made); });
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return in_turn([=](Provider& d) { return d.grant(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return in_turn([=](Provider& d) { return d.unmap(p, bytes); });
  }
  bool synchronize(stream_id stream) noexcept {
    return in_turn([=](Provider& d) { return d.synchronize(stream); });
  }

 private:
  template <typename F>
  auto in_turn(F f) noexcept {
    return static_cast<Shared&>(*this).with_device(f);
  }
};

/// Owns a provider and lets several threads call it. It does not move; an allocator's engine is put on what forwards to it.
///
/// Where the provider does not say that it is thread-safe, one call is let in at a time, and waits for its turn. So does
/// record, when a block comes back that other streams used, as a stream may end after that. Only query, which a hit may
/// need, does not wait: while another thread is in there, nothing has completed yet, and blocks are held longer. Who
/// records streams over a provider whose calls take long should make it thread-safe.
template <device_provider Provider>
class shared_provider : public shared_virtual_memory<shared_provider<Provider>, Provider> {
 public:
  using event = typename event_of<Provider>::type;
  static constexpr bool is_thread_safe = true;
  static constexpr bool is_host_visible = tessera::is_host_visible<Provider>;
  static constexpr bool release_waits = tessera::release_waits<Provider>;

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
  /// Not where that would have to wait for its turn, as who asks keeps others from cached blocks.
  [[nodiscard]] std::size_t available() const noexcept
    requires(measured_provider<Provider> && tessera::is_thread_safe<Provider>)
  {
    return device_.available();
  }
  /// Not where that would have to wait for its turn: others may do the same for this one, and each would wait for the other.
  bool reclaim() noexcept
    requires(reclaiming_provider<Provider> && tessera::is_thread_safe<Provider>)
  {
    return device_.reclaim();
  }
  [[nodiscard]] std::size_t granularity() const noexcept { return device_.granularity(); }
  [[nodiscard]] std::size_t step(page_kind kind) const noexcept
    requires virtual_memory_provider<Provider>
  {
    return device_.step(kind);
  }

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

  [[nodiscard]] bool has_stream(stream_id stream) noexcept
    requires stream_listing_provider<Provider>
  {
    const turn here(*this);
    return device_.has_stream(stream);
  }
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires ordering_provider<Provider>
  {
    const turn here(*this);
    return device_.position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires ordering_provider<Provider>
  {
    const turn here(*this);
    return device_.is_done(stream, at);
  }
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Provider>
  {
    const turn here(*this);
    return device_.is_behind(stream, of, at);
  }
  bool let_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Provider>
  {
    const turn here(*this);
    return device_.let_wait(stream, of, at);
  }

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
