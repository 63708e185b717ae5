// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_contents.hpp>
#include <tessera/law/provider_mapping.hpp>
#include <tessera/law/provider_memory.hpp>
#include <tessera/law/provider_streams.hpp>
#include <tessera/provider/range_map.hpp>

/// Checks providers at run time. Use these functions for your own providers, in any test framework.

// The law of providers that several threads may call at once.

namespace tessera::inline v0_1::law::detail {

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

/// A second stream for the checks; the destructor ends it if the law created it.
template <typename D>
class second_stream {
  using inner = std::remove_reference_t<decltype(innermost(std::declval<D&>()))>;

 public:
  /// Whether the device creates and destroys streams on request.
  static constexpr bool is_made = requires(inner& d, stream_id s) {
    { d.create_stream() } -> std::same_as<stream_id>;
    { d.destroy_stream(s) } -> std::same_as<bool>;
  };

  second_stream(D& device, stream_id chosen) : device_(innermost(device)), id_(chosen) {
    if (chosen != stream_id{}) return;
    if constexpr (is_made) {
      id_ = device_.create_stream();
      made_ = true;
    } else if constexpr (simulates_work<inner>) {
      id_ = stream_id{1};
    }
  }
  second_stream& operator=(second_stream&&) = delete;
  ~second_stream() {
    if constexpr (is_made) {
      if (made_) (void)device_.destroy_stream(id_);
    }
  }
  [[nodiscard]] stream_id id() const noexcept { return id_; }

 private:
  inner& device_;
  stream_id id_;
  bool made_ = false;
};

template <typename Means>
concept gives_work = requires(Means& m, stream_id s) {
  m.begin(s);
  { m.ended() } -> std::convertible_to<bool>;
};
template <typename Means>
concept gives_streams = requires(Means& m, stream_id s) {
  { m.create_stream() } -> std::same_as<stream_id>;
  m.end_stream(s);
};

/// Calls run_check(work) with work that the user or the device gives. Work ends by itself.
///   Returns:  whether there is work
template <provider::event_provider D, typename Means, typename F>
bool with_work(D& device, Means& means, const provider_trial& limits, F run_check) {
  auto& on = innermost(device);
  using inner = std::remove_reference_t<decltype(on)>;
  if constexpr (gives_work<Means>) {
    run_check(trial_work([&](stream_id s) { means.begin(s); }, [&] { return bool(means.ended()); }, true));
    return true;
  } else if constexpr (simulates_work<inner>) {
    std::uint64_t end = 0;
    const auto begin = [&](stream_id s) {
      constexpr std::uint64_t duration = 5'000'000;
      on.submit(s, duration);
      end = on.now_ns() + duration;
    };
    run_check(trial_work(begin, [&] { return on.now_ns() >= end; }, true));
    return true;
  } else if constexpr (runs_functions<inner>) {
    std::shared_ptr<std::atomic<bool>> latest;
    const auto begin = [&](stream_id s) {
      latest = std::make_shared<std::atomic<bool>>(false);
      if (!on.submit(s, short_work{latest})) latest->store(true);
    };
    run_check(trial_work(begin, [&] { return latest == nullptr || latest->load(); }, true));
    return true;
  } else if constexpr (provider::copying_provider<D> && tessera::detail::has_contents<D>) {
    // The last byte of a copy to the host shows whether the copy has ended.
    const std::size_t bytes = align_up((std::max)(limits.at_once, std::size_t{64_KiB}), device.granularity());
    const trial_buffer host(bytes);
    void* const p = host.data() != nullptr ? device.acquire(bytes) : nullptr;
    if (p == nullptr) return false;
    host.fill(1);
    const unsigned char last = host.data()[bytes - 1];
    const bool works =
        device.copy_to_device(p, host.data(), bytes, {}) && tessera::detail::finish_work(device, {});
    stream_id latest{};
    const auto begin = [&](stream_id s) {
      host.data()[bytes - 1] = 0;
      latest = s;
      if (!device.copy_to_host(host.data(), p, bytes, s)) host.data()[bytes - 1] = last;
    };
    if (works) run_check(trial_work(begin, [&] { return host.data()[bytes - 1] == last; }, false));
    (void)tessera::detail::finish_work(device, latest);
    (void)device.release(p, bytes);
    return works;
  } else {
    return false;
  }
}

/// Everything about events and streams.
template <provider::event_provider D, typename Means>
void streams(provider_check_result& found, D& device, Means& means, const provider_trial& limits) {
  events(found, device);
  const second_stream<D> second(device, limits.other_stream);
  const stream_id other = second.id();
  if (found) many_events(found, device);
  if constexpr (provider::ordering_provider<D>) {
    if (found) ordering(found, device, other, {});
    if (found) ordering(found, device, {}, other);
  }
  if (found && other == stream_id{}) found.skip("a second stream", "set other_stream");
  if constexpr (tessera::detail::stream_listing_provider<D> && !tessera::detail::trusts_handles<D>)
    if (found) missing_stream(found, device, stream_id{0xdead});
  if (!found) return;

  const auto check_work = [&](const auto& work) {
    work_on(found, device, {}, work);
    if (other == stream_id{}) return;
    if (found) work_on(found, device, other, work);
    if constexpr (provider::ordering_provider<D>) {
      if (found) ordered_work(found, device, other, {}, work);
      if (found) ordered_work(found, device, {}, other, work);
    }
  };
  if (!with_work(device, means, limits, check_work))
    found.skip("events while work runs", "the law cannot submit work; give it begin(stream) and ended()");

  if (found) live_events(found, device);
  auto& on = innermost(device);
  const auto start = [&](stream_id s) {
    if constexpr (gives_work<Means>)
      means.begin(s);
    else if constexpr (runs_functions<std::remove_reference_t<decltype(on)>>)
      (void)on.submit(s, short_work{std::make_shared<std::atomic<bool>>(false)});
  };
  if constexpr (gives_streams<Means>) {
    const auto end = [&](stream_id s) { means.end_stream(s); };
    if (found) ended_stream(found, device, means.create_stream(), start, end);
  } else if constexpr (second_stream<D>::is_made) {
    const auto end = [&](stream_id s) { (void)on.destroy_stream(s); };
    if (found) ended_stream(found, device, on.create_stream(), start, end);
  } else if (tessera::detail::stream_listing_provider<D>) {
    found.skip("streams that ended", "give the law create_stream() and end_stream(stream)");
  }
}

/// Everything about the contents of memory.
template <provider::device_provider D>
void contents_of(provider_check_result& found, D& device) {
  if constexpr (tessera::detail::is_host_visible<D>) contents(found, device, host_access{});
  if constexpr (provider::copying_provider<D> && tessera::detail::has_contents<D>) {
    if (found) contents(found, device, copy_access<D>{device});
  } else if constexpr (!tessera::detail::is_host_visible<D>) {
    found.skip("the contents of memory", tessera::detail::has_contents<D>
                                             ? "the provider cannot copy, and the host cannot read"
                                             : "the provider declares that its memory has none");
  }
}

/// Everything about sharing with another process.
template <provider::sharing_provider D, typename Means>
void sharing_of(provider_check_result& found, D& device, Means& means, std::size_t at_once) {
  const auto both = [&](auto&& other) {
    using name = typename std::remove_cvref_t<decltype(other)>::shareable;
    if constexpr (std::same_as<name, typename D::shareable>) {
      shared_memory(found, device, other, at_once);
      if (found) shared_memory(found, other, device, at_once);
    }
  };
  if constexpr (requires { means.another_process(); })
    both(means.another_process());
  else if constexpr (requires { innermost(device).another_process(); })
    both(innermost(device).another_process());
  else
    found.skip("sharing between processes", "give the law another_process(), or call law::sharing");
}

/// Returns what a provider holds, if it says so. An adaptor may keep some of what its provider holds.
template <typename D>
[[nodiscard]] auto holdings_of(D& device) {
  if constexpr (requires {
                  { device.held() == device.held() } -> std::convertible_to<bool>;
                })
    return device.held();
  else
    return std::true_type{};
}
/// Requires that a provider holds what it held before the laws.
template <typename D, typename Holdings>
void nothing_left(provider_check_result& found, D& device, const Holdings& before) {
  const Holdings now = holdings_of(device);
  if constexpr (requires { now.handles + now.named + now.reserved + now.mapped; })
    found.must_hold(now == before, rules::nothing_is_left, "reserved bytes before", before.reserved, "now",
                    now.reserved, "mapped bytes before", before.mapped, "now", now.mapped, "handles before",
                    before.handles, "now", now.handles, "their bytes before", before.named, "now", now.named);
  else if constexpr (requires { now.reserved + now.mapped; })
    found.must_hold(now == before, rules::nothing_is_left, "reserved bytes before", before.reserved, "now",
                    now.reserved, "mapped bytes before", before.mapped, "now", now.mapped);
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Checks all that a provider can do. It is the only call that a test of a provider needs.
///
/// The result names the first rule that the provider breaks, and the values that show it. It also lists the
/// laws that were not checked, and why. provider/provider.hpp lists all rules.
///
///     tessera::provider::simulated_device device;
///     if (const auto found = tessera::law::provider(device); !found) std::puts(found.message());
///
/// Some laws need means that a provider does not have. Derive a struct from provider_trial, and add those of
/// these members that you have:
///
/// | member              | returns    | use                                                              |
/// |---------------------|------------|------------------------------------------------------------------|
/// | m.begin(s)          |            | submits work to `s` that ends by itself, best after 5 ms or more |
/// | m.ended()           | bool       | whether the work that begin() submitted last has ended           |
/// | m.create_stream()   | stream_id  | a new stream, which the law ends                                 |
/// | m.end_stream(s)     |            | ends it after its work                                           |
/// | m.another_process() | a provider | of another process, for a sharing_provider                       |
///
/// Without them, the law uses members of the provider: submit() of simulated_device and of host_pinned,
/// create_stream() and destroy_stream(), another_process(), live_events(), held(), and copies as work. It
/// looks for these also behind adaptors.
///
///     struct simulated_work : tessera::law::provider_trial {
///       explicit simulated_work(tessera::provider::simulated_device& on) : device(on) {
///         other_stream = tessera::stream_id{1};
///       }
///       void begin(tessera::stream_id s) { device.submit(s, 5'000'000), end = device.now_ns() + 5'000'000; }
///       bool ended() { return device.now_ns() >= end; }
///       tessera::provider::simulated_device& device;
///       std::uint64_t end = 0;
///     };
///     tessera::provider::simulated_device device;
///     const auto found = tessera::law::provider(device, simulated_work(device));
///     if (!found.is_complete()) std::puts(found.report().c_str());
///
/// It briefly takes up to three quarters of the memory that the device says is free, in few pieces. So a
/// capacity that is too large is found, unless available() says that a part of it is not free; then it is
/// listed as not checked. It does not access most of that memory. Memory that the host can access is not taken
/// that way unless fills_host_memory is set; then at most `at_once` bytes, four pages of one kind, and 7 times
/// the granularity are held. It gives back all memory that the device accepts. It misuses the provider: each
/// rule that says "refuses" is tried, those of release() and of destroyed memory only on request.
///
/// Some faults end the program instead of a law: an exception from a function that is noexcept calls
/// std::terminate, a provider that wrongly declares is_thread_safe may crash, a copy from a null address may crash
/// if the provider does not refuse it, and a wait that never returns hangs.
///
///   Requires:  nothing else uses the device; its capacity is at least 8 times the granularity; no endless
///              work runs on the streams
///   Cost:      less than ten seconds, whatever the capacity, if a call takes less than a millisecond
template <provider::device_provider D, typename Means = provider_trial>
  requires std::derived_from<std::remove_cvref_t<Means>, provider_trial>
[[nodiscard]] provider_check_result provider(D& device, Means&& means) {
  const provider_trial& limits = means;
  provider_check_result found;
  detail::capabilities<D>(found);
  const auto run = [&](detail::rule law, auto run_check) {
    detail::without_leak(found, device, limits, law, run_check);
  };
  constexpr auto segments = detail::rules::available_rises;
  constexpr auto memories = detail::rules::destroyed_memory_can_be_created;
  if (found)
    detail::memory(found, device, limits.at_once);  // some providers reserve memory at the first call
  if (!found) return found;                         // sizes that are wrong say nothing about the rest
  const auto before = detail::holdings_of(device);
  if (limits.tries_wrong_releases)
    run(segments, [&] { detail::wrong_releases(found, device); });
  else
    found.skip("wrong releases",
               "a provider without a table of segments may crash; set tries_wrong_releases");
  if constexpr (tessera::detail::measured_provider<D>)
    run(segments, [&] { detail::available(found, device, limits.at_once); });
  run(segments, [&] { detail::segment_amounts(found, device, limits); });
  if constexpr (provider::event_provider<D>)
    run(segments, [&] { detail::streams(found, device, means, limits); });
  if constexpr (provider::paged_provider<D>)
    run(segments, [&] { detail::page_kinds(found, device, limits); });
  if constexpr (provider::virtual_memory_provider<D>) {
    run(memories, [&] { detail::virtual_memory(found, device, limits.at_once); });
    run(memories, [&] { detail::mapping_amounts(found, device, limits); });
    if (limits.tries_wrong_releases) run(memories, [&] { detail::wrong_destroys(found, device); });
  }
  if constexpr (provider::registering_provider<D>)
    if (found) detail::registering(found, device);
  if constexpr (provider::copying_provider<D>) {
    run(segments, [&] { detail::copying(found, device); });
    if constexpr (provider::registering_provider<D>)
      run(segments, [&] { detail::registered_copies(found, device); });
  }
  run(segments, [&] { detail::contents_of(found, device); });
  if constexpr (provider::sharing_provider<D>)
    run(detail::rules::shared_memory_is_freed,
        [&] { detail::sharing_of(found, device, means, limits.at_once); });
  run(segments, [&] { detail::limits_and_reclaim(found, device); });
  if constexpr (tessera::detail::explaining_provider<D>)
    run(segments, [&] { detail::refusals(found, device); });
  if constexpr (tessera::detail::is_thread_safe<D>)
    if (found) detail::threads(found, device, limits);
  // After all that was refused.
  run(segments, [&] { detail::memory(found, device, limits.at_once); });
  run(segments, [&] { detail::segment_amounts(found, device, limits); });
  if (found) detail::nothing_left(found, device, before);
  return found;
}
template <provider::device_provider D>
[[nodiscard]] provider_check_result provider(D& device) {
  return provider(device, provider_trial{});
}
/// The same with limits alone: bytes held at once, and a second stream.
template <provider::device_provider D>
[[nodiscard]] provider_check_result provider(D& device, std::size_t at_once, stream_id other = {}) {
  return provider(device, provider_trial{.at_once = at_once, .other_stream = other});
}

/// Checks an event_provider while work runs on one stream. law::provider does it for each stream.
/// `begin()` submits work that ends by itself to `stream`; `ended()` returns whether the latest submitted
/// work has ended. Longer work finds more faults. Positions and synchronize() are checked, too.
///
///     tessera::provider::simulated_device device;
///     std::uint64_t end = 0;
///     const auto begin = [&] {
///       device.submit({}, 5'000'000);
///       end = device.now_ns() + 5'000'000;
///     };
///     const auto found = tessera::law::work(device, {}, begin, [&] { return device.now_ns() >= end; });
///     if (!found) std::puts(found.message());
template <provider::event_provider D, typename Begin, typename Ended>
[[nodiscard]] provider_check_result work(D& device, stream_id stream, Begin begin, Ended ended) {
  const detail::trial_work all([&](stream_id) { begin(); }, ended, true);
  return detail::result_of([&](auto& found) { detail::work_on(found, device, stream, all); });
}

/// Checks a sharing_provider between two processes. law::provider does it if it gets a second process.
///
/// It holds at most a page or `at_once` bytes, whichever is larger. It finds devices that leak shared memory
/// if the capacity is at most 64 times as much.
///
///     tessera::provider::simulated_device exporter;
///     tessera::provider::simulated_device importer = exporter.another_process();
///     if (const auto found = tessera::law::sharing(exporter, importer); !found) std::puts(found.message());
///
///   Requires:  two processes that may import each other's memory; nothing else uses the devices
template <provider::sharing_provider D, provider::sharing_provider Other>
[[nodiscard]] provider_check_result sharing(D& exporter, Other& importer,
                                            std::size_t at_once = detail::trial_bytes) {
  return detail::result_of([&](auto& found) { detail::shared_memory(found, exporter, importer, at_once); });
}

}  // namespace tessera::inline v0_1::law
