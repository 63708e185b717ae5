// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/behind_mutex.hpp>
#include <tessera/concurrent/reentrancy_guard.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/detail/reclaim.hpp>
#include <tessera/fwd.hpp>
#include <tessera/interop/in_place.hpp>
#include <tessera/observe/explain_failure.hpp>
#include <tessera/provider/shared_provider.hpp>

namespace tessera {

/// A caching_allocator for several threads, with one mutex: the same template arguments, calls and decisions.
///
/// The mutex is not held while the device gives or takes back segments or waits for events, so that nobody who finds a
/// cached block waits for somebody who finds none; nor while a callback of on_pressure runs. The sink is called with it
/// held, and so are the functions given to with_settings, with_observer and enter_each: who uses the allocator there ends the
/// program. A provider that is not thread-safe is called by one thread at a time; it must not use the allocator.
///
/// Where the recipe maps pages into ranges, the mutex is held meanwhile, and while a stream whose pages are to go back
/// ends its work: that work must not use the allocator.
///
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device> shared;
///     void* p = shared.allocate(5_MiB);  // by any thread
///     shared.deallocate(p);              // by any other
///     shared.with_settings([](auto& settings) { settings.split.max = 128_MiB; });
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class locked : public allocate_calls<locked<Recipe, Provider, Observer, Counting>> {
  using calls = allocate_calls<locked>;
  using one_behind_mutex =
      behind_mutex<Recipe, shared_provider<Provider>, reported_observer<Observer>, Counting>;

 public:
  locked() : locked(Provider{}) {}
  explicit locked(Provider device, policies<Recipe> chosen = {}, Observer observer = {})
      : inside_(users_, std::move(device), std::move(chosen),
                reported_observer<Observer>(std::move(observer), users_)) {}

  using calls::try_allocate, calls::deallocate, calls::record_stream;
  /// Where it fails while other threads are at the device, tries once more when they are done.
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return inside_.try_allocate(bytes, stream, [](auto&) {});
  }
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return inside_.enter([=](auto& pool) { return pool.allocate_by_handle(bytes, stream); });
  }
  void deallocate(handle h) noexcept {
    inside_.enter([h](auto& pool) { pool.deallocate(h); });
  }
  [[nodiscard]] bool record_stream(handle h, stream_id stream) noexcept {
    return inside_.enter([=](auto& pool) { return pool.record_stream(h, stream); });
  }
  void deallocate(void* p) noexcept {
    inside_.enter([p](auto& pool) { pool.deallocate(p); });
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    inside_.enter([=](auto& pool) { pool.deallocate(p, bytes); });
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    return inside_.enter([p](auto& pool) { return pool.try_deallocate(p); });
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return inside_.enter([=](auto& pool) { return pool.record_stream(p, stream); });
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return inside_.enter([=](auto& pool) { return pool.try_record_stream(p, stream); });
  }
  /// What allocate_in_place asks for.
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    return inside_.enter([=](auto& pool) { return pool.reuse_in_place(p, bytes, stream); });
  }
  /// What other threads are waiting for or giving back meanwhile, it leaves to them.
  void trim(std::size_t keep = 0) noexcept {
    inside_.enter([keep](auto& pool) { pool.trim(keep); });
  }

  /// As the functions of these names for an allocator.
  bool retire() noexcept {
    return inside_.enter([](auto& pool) { return pool.process_events(); });
  }
  void trim_without_waiting(std::size_t keep = 0) noexcept {
    inside_.enter([keep](auto& pool) { pool.trim_without_waiting(keep); });
  }

  /// The callback may use the allocator, but not end it; no lock is held. While callbacks run, a thread in need does
  /// without them.
  [[nodiscard]] bool on_pressure(bool (*call)(void* context) noexcept, void* context) noexcept {
    return inside_.on_pressure(call, context);
  }
  /// As in caching_allocator; other threads wait meanwhile.
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    return inside_.enter([=](auto& pool) { return pool.failure(bytes, stream); });
  }
  [[nodiscard]] usage now() const noexcept {
    return inside_.enter([](const auto& pool) { return pool.now(); });
  }
  [[nodiscard]] auto statistics() const noexcept
    requires Counting::keeps_statistics
  {
    return inside_.enter([](const auto& pool) { return pool.statistics(); });
  }
  void reset_peak_statistics() noexcept {
    inside_.enter([](auto& pool) { pool.reset_peak_statistics(); });
  }
  void reset_accumulated_statistics() noexcept {
    inside_.enter([](auto& pool) { pool.reset_accumulated_statistics(); });
  }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return inside_.enter([](const auto& pool) { return pool.footprint(); });
  }
  [[nodiscard]] const char* audit() const noexcept {
    return inside_.enter([](const auto& pool) { return pool.audit(); });
  }

  /// Calls f with the settings, which nobody reads meanwhile; f must not use the allocator.
  template <typename F>
  decltype(auto) with_settings(F f) {
    return inside_.lend("with_settings: the function must not use the allocator",
                        [&f](auto& pool) -> decltype(auto) { return f(pool.settings()); });
  }
  /// Calls f with the provider. Unless that is thread-safe, nobody else calls it meanwhile; then f must not use the
  /// allocator.
  template <typename F>
  decltype(auto) with_device(F f) {
    if constexpr (is_thread_safe<Provider>) {
      return inside_.device().with_device(f);
    } else {
      users_.template check<Observer>(user_calls::lock::device);
      return inside_.device().with_device([&](Provider& device) -> decltype(auto) {
        const watched<one_behind_mutex> here(inside_);
        const user_calls::call noted(users_, user_calls::lock::device,
                                     "with_device: the function must not use the allocator");
        return f(device);
      });
    }
  }
  /// Calls f with the sink, which is told nothing meanwhile; f must not use the allocator.
  template <typename F>
  decltype(auto) with_observer(F f) {
    return inside_.lend(
        "with_observer: the function must not use the allocator",
        [&f](auto& pool) -> decltype(auto) { return f(static_cast<Observer&>(pool.observer())); });
  }
  /// Calls f with the allocator behind the mutex, for tools that look at it; f must not use this one.
  template <typename F>
  void enter_each(F f) {
    inside_.lend("enter_each: the function must not use the allocator that is locked", f);
  }

 private:
  user_calls users_;

 protected:
  one_behind_mutex inside_;
};

/// Says to adaptor/configured.hpp that threads share an allocator by one mutex.
struct in_threads {
  template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
  using allocator = locked<Recipe, Provider, Observer, Counting>;
};

}  // namespace tessera
