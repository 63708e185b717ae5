// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_mapping.hpp>
#include <tessera/law/provider_memory.hpp>
#include <tessera/provider/range_map.hpp>

/// The law of providers that several threads may call at once.

namespace tessera::law::detail {

/// The segments that threads hold, and the first rule that one of them saw broken.
template <std::size_t Threads>
class trial_table {
 public:
  /// Adds a segment. Another thread may hold a segment that overlaps it.
  void add(std::size_t thread, const trial_segment& made, std::size_t step) noexcept {
    const std::lock_guard lock(mutex_);
    held_[thread] = made;
    require_place(found_, held_[thread], step, held_);
  }
  void remove(std::size_t thread) noexcept {
    const std::lock_guard lock(mutex_);
    held_[thread] = {};
  }
  template <typename... Values>
  void must_hold(bool holds, rule law, const Values&... values) noexcept {
    if (holds) return;
    const std::lock_guard lock(mutex_);
    found_.fail(law, values...);
  }
  [[nodiscard]] provider_check_result result() noexcept {
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  std::mutex mutex_;
  std::array<trial_segment, Threads> held_{};
  provider_check_result found_;
};

/// Calls a provider from four threads at once, for at most about a second. Races are found by chance.
template <provider::device_provider D>
void threads(provider_check_result& found, D& device, const provider_trial& limits = {}) {
  constexpr std::size_t count = 4, rounds = 500;
  const std::size_t step = device.granularity();
  const std::size_t before = said_to_be_left(device);
  // A count that loses large segments soon differs.
  const bool fills = why_not_filled(device, limits) == nullptr;
  const std::size_t unit = whole_steps(fills ? before / 64 : step, step);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  trial_table<count> table;
  std::barrier<> together(static_cast<std::ptrdiff_t>(count));
  const auto call = [&](std::size_t self) noexcept {
    constexpr auto gives = rules::threads_may_call_at_once;
    for (std::size_t i = 0; i < rounds; ++i) {
      if (i % 16 == 0 && (!table.result() || std::chrono::steady_clock::now() > end)) break;
      const std::size_t bytes = (i % 2 + 1) * unit;
      together.arrive_and_wait();
      const trial_segment made = acquire(device, bytes);
      table.must_hold(made.begin != 0, gives, "thread", self, "acquired bytes", bytes, "round", i);
      if (made.begin != 0) table.add(self, made, step);
      together.arrive_and_wait();
      if (made.begin != 0) {
        table.remove(self);
        table.must_hold(device.release(made.at(), bytes), gives, "thread", self, "released", made.at(),
                        "bytes", bytes);
      }
      if constexpr (provider::event_provider<D>) {
        typename D::event mark{};
        if (i % 8 == 0) {
          const bool recorded = device.record({}, mark);
          table.must_hold(recorded && device.wait(mark) && device.query(mark), gives, "thread", self,
                          "round of an event", i);
          if (recorded) device.discard(mark);
        }
      }
      if constexpr (provider::virtual_memory_provider<D>) {
        if (i % 32 != 0) continue;
        trial_memory<D> memory(device);
        const std::size_t page = device.page_size(page_kind::normal);
        trial_range<D> range(device, page, page);
        const bool works = range.place().begin != 0 && memory.create(page, page_kind::normal) &&
                           memory.map(range.at(0), page) && memory.grant() && memory.unmap() &&
                           memory.destroy() && range.unreserve();
        table.must_hold(works, gives, "thread", self, "round of a mapping", i, "page", page);
      }
    }
    together.arrive_and_drop();
  };
  std::array<std::thread, count> running;
  std::size_t started = 0;
  while (started < count) {
    const std::size_t self = started;
    if (!tessera::detail::try_run([&] { running[self] = std::thread(call, self); })) break;
    ++started;
  }
  for (std::size_t i = started; i < count; ++i) together.arrive_and_drop();
  for (std::size_t i = 0; i < started; ++i) running[i].join();
  found.add(table.result());
  if (started < 2) found.skip("several threads", "the system starts no threads");
  if constexpr (tessera::detail::measured_provider<D>) {
    const std::size_t now = said_to_be_left(device);
    found.must_hold(now + (fills ? unit / 2 : limits.at_once) >= before, rules::threads_may_call_at_once,
                    "available before", before, "now", now);
  }
}

}  // namespace tessera::law::detail
