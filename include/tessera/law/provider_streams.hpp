// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/provider/capabilities.hpp>

/// The laws of events, of the order between streams, and of streams that ended.

namespace tessera::inline v0_1::law::detail {

/// Records and waits; the destructor discards the event.
template <provider::event_provider D>
class trial_event {
 public:
  explicit trial_event(D& device) noexcept : device_(device) {}
  trial_event& operator=(trial_event&&) = delete;
  ~trial_event() { discard(); }

  [[nodiscard]] bool record(stream_id stream) noexcept { return held_ = device_.record(stream, mark); }
  [[nodiscard]] bool query() noexcept { return device_.query(mark); }
  [[nodiscard]] bool wait() noexcept { return device_.wait(mark); }
  void discard() noexcept {
    if (held_) device_.discard(mark);
    held_ = false;
  }

  typename D::event mark{};

 private:
  D& device_;
  bool held_ = false;
};

/// Checks an event_provider on its default stream.
template <provider::event_provider D>
void events(provider_check_result& found, D& device, stream_id stream = {}) {
  const auto must_hold = [&](bool holds, rule law) { found.must_hold(holds, law, stream); };
  trial_event<D> first(device);
  if (!first.record(stream)) return found.fail(rules::record_succeeds, stream, "recorded", false);
  typename D::event copy = first.mark;
  const bool waited = first.wait();
  found.must_hold(waited, rules::wait_waits, stream, "returned", waited);
  must_hold(first.query(), rules::event_is_ready_after_wait);
  must_hold(device.query(copy), rules::copies_of_event_agree);
  trial_event<D> second(device);
  const bool again = second.record(stream);
  must_hold(again, rules::record_succeeds_again);
  must_hold(first.query(), rules::ready_event_stays_ready);
  first.discard();
  if (again) must_hold(second.wait() && second.query(), rules::discard_changes_one_event);
}

/// Records 1,024 events, while an earlier one is ready, and discards them after all are done.
template <provider::event_provider D>
void live_events(provider_check_result& found, D& device) {
  constexpr std::size_t enough = 1'024, queries = 200;
  trial_event<D> earlier(device);
  if (!earlier.record({}) || !earlier.wait()) return found.fail(rules::record_and_wait_succeed, stream_id{});
  std::size_t asked = 0;
  const auto stays_ready = [&](const char* when) {
    const bool is_ready = tessera::detail::completion_may_lag<D> || earlier.query();
    found.must_hold(is_ready, rules::ready_event_stays_ready, stream_id{}, "queries", ++asked, "asked", when);
  };
  for (std::size_t i = 0; i < queries && found; ++i) stays_ready("at once");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  stays_ready("after 2 ms");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::vector<typename D::event> live;
  live.reserve(enough);
  const auto must_hold = [&](bool holds, std::size_t i, const char* call) {
    found.must_hold(holds, rules::many_events_can_be_live, "event", i, "live events", live.size(), "call",
                    call);
  };
  while (live.size() < enough && found && std::chrono::steady_clock::now() < end) {
    typename D::event mark{};
    const bool recorded = device.record({}, mark);
    must_hold(recorded, live.size(), "record");
    if (recorded) live.push_back(mark);
  }
  if (live.size() < enough && found) found.skip("many live events", "1024 events took more than a second");
  stays_ready("after further records");
  if (!live.empty()) must_hold(device.wait(live.back()), live.size() - 1, "wait");
  for (std::size_t i = 0; i < live.size() && found; ++i) {
    if (!tessera::detail::completion_may_lag<D>) must_hold(device.query(live[i]), i, "query");
    must_hold(device.wait(live[i]), i, "wait");
  }
  for (typename D::event& mark : live) device.discard(mark);
}

/// Records and discards many events, for at most about a second.
template <provider::event_provider D>
void many_events(provider_check_result& found, D& device) {
  constexpr std::uint64_t enough = 70'000;  // more than the events that a driver may have at a time
  const auto live = [&device]() -> std::uint64_t {
    auto& on = innermost(device);
    if constexpr (tessera::detail::event_counting_provider<D>)
      return device.live_events();
    else if constexpr (requires {
                         { on.live_events() } -> std::convertible_to<std::uint64_t>;
                       })
      return on.live_events();
    else
      return 0;
  };
  const std::uint64_t before = live();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::uint64_t count = 0;
  for (; count < enough && found; ++count) {
    if (count % 64 == 0 && std::chrono::steady_clock::now() > end) {
      found.skip("many discarded events", "70000 events took more than a second");
      break;
    }
    typename D::event mark{};
    const bool recorded = device.record({}, mark);
    found.must_hold(recorded, rules::record_succeeds_after_many, "discarded", count);
    if (recorded) device.discard(mark);
  }
  found.must_hold(live() <= before, rules::discard_ends_event, "recorded and discarded", count,
                  "live events before", before, "now", live());
  if (!tessera::detail::finish_work(device, {})) found.fail(rules::wait_waits, "events", count);
}

/// Checks an ordering_provider on two of its streams, which may be equal. After the check, the first stream
/// waits for the second.
template <provider::ordering_provider D>
void ordering(provider_check_result& found, D& device, stream_id first, stream_id second) {
  std::uint64_t before = 0, with_wait = 0;
  const auto must_hold = [&](bool holds, rule law) {
    found.must_hold(holds, law, first, "position", before, "other stream", second, "its position", with_wait);
  };
  const auto finish = [&](stream_id s) {
    trial_event<D> mark(device);
    must_hold(mark.record(s) && mark.wait(), rules::record_and_wait_succeed);
  };
  before = device.position(first);
  must_hold(device.is_done(first, 0) && device.is_ordered_after(second, first, 0), rules::position_0_is_done);
  must_hold(device.is_ordered_after(first, first, before), rules::stream_is_after_own_work);
  finish(first);
  must_hold(device.is_done(first, before), rules::position_is_done_after_wait);

  const std::uint64_t without_wait = device.position(second);
  must_hold(device.make_wait(second, first, before), rules::make_wait_succeeds);
  must_hold(device.is_ordered_after(second, first, before), rules::stream_is_after_awaited_work);
  with_wait = device.position(second);
  must_hold(first == second || with_wait > without_wait, rules::wait_counts_as_work);
  must_hold(device.make_wait(first, second, with_wait), rules::streams_may_wait_for_each_other);
  must_hold(device.is_ordered_after(first, second, with_wait), rules::stream_is_after_awaited_work);
  if (first != second && tessera::detail::has_stream(device, second)) {
    const std::uint64_t later = device.position(second) + 1'000'000;
    found.must_hold(!device.is_ordered_after(first, second, later), rules::no_order_after_later_work, first,
                    "other stream", second, "position", later);
  }
  finish(first);
  must_hold(device.is_done(second, with_wait), rules::awaited_work_is_done);
  must_hold(device.position(first) >= before && device.position(second) >= with_wait,
            rules::positions_never_fall);
}

/// Work that the law submits: begin(stream) submits some, ended() returns whether the latest has ended.
///
/// `can_ask` is false if ended() may be called only after the provider said that the work is done.
template <typename Begin, typename Ended>
struct trial_work {
  trial_work(Begin submits, Ended asks, bool may_ask) : begin(submits), ended(asks), can_ask(may_ask) {}
  Begin begin;
  Ended ended;
  bool can_ask;
};

/// Work of 5 ms on a device that simulates time, or that runs functions of the host.
template <typename D>
concept simulates_work = requires(D& d, stream_id s) {
  d.submit(s, std::uint64_t{});
  { d.now_ns() } -> std::same_as<std::uint64_t>;
};
struct short_work {
  std::shared_ptr<std::atomic<bool>> ended;
  void operator()() const noexcept {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < end) {
    }
    ended->store(true);
  }
};
template <typename D>
concept runs_functions = !simulates_work<D> && requires(D& d, stream_id s, const short_work& work) {
  { d.submit(s, work) } -> std::same_as<bool>;
};

/// Requires that queries and waits know when the work of a stream ends. Returns whether work ran while the
/// provider was asked.
template <provider::event_provider D, typename Begin, typename Ended>
[[nodiscard]] bool one_work(D& device, stream_id stream, const trial_work<Begin, Ended>& work,
                            provider_check_result& found, unsigned& waited) {
  const auto must_hold = [&](bool holds, rule law, const char* call) {
    found.must_hold(holds, law, stream, "call", call, "work ended", false);
  };
  trial_event<D> earlier(device), first(device), second(device);
  const bool has_earlier = earlier.record(stream) && earlier.wait() && earlier.query();
  std::uint64_t before = 0;
  if constexpr (provider::ordering_provider<D>) before = device.position(stream);
  work.begin(stream);
  if (!first.record(stream) || !second.record(stream)) {
    found.fail(rules::record_succeeds_on_busy_stream, stream, "recorded", false);
    return true;
  }
  bool ran = false;
  for (trial_event<D>* const mark : {&second, &first}) {
    const bool was_over = !work.can_ask || work.ended();
    const bool ready = mark->query();
    ran = ran || !ready;
    must_hold(!ready || work.ended(), rules::no_event_is_early, "query");
    if (!was_over && ready) ++waited;
  }
  if constexpr (!tessera::detail::completion_may_lag<D>) {
    if (has_earlier)
      found.must_hold(earlier.query(), rules::ready_event_stays_ready, stream, "call", "query");
  }
  if constexpr (provider::ordering_provider<D>) {
    const std::uint64_t at = device.position(stream);
    found.must_hold(at > before, rules::position_grows, stream, "before", before, "now", at);
    const bool was_over = !work.can_ask || work.ended();
    const bool done = device.is_done(stream, at);
    must_hold(!done || work.ended(), rules::no_position_is_early, "is_done");
    if (!was_over && done) ++waited;
  }
  const bool waited_for = second.wait(), is_over = waited_for && work.ended();
  found.must_hold(is_over, rules::wait_waits, stream, "returned", waited_for, "work ended", is_over);
  found.must_hold(second.query() && first.query(), rules::earlier_event_is_ready, stream, "call", "query");
  if constexpr (requires { device.synchronize(stream); }) {
    if (found) {
      work.begin(stream);
      const bool done = device.synchronize(stream), ended = done && work.ended();
      found.must_hold(ended, rules::synchronize_waits, stream, "returned", done, "work ended", ended);
    }
  }
  return ran;
}

/// Checks an event_provider while work runs on a stream.
template <provider::event_provider D, typename Begin, typename Ended>
void work_on(provider_check_result& found, D& device, stream_id stream,
             const trial_work<Begin, Ended>& work) {
  constexpr unsigned tries = 5;
  unsigned ran = 0, waited = 0;
  for (unsigned i = 0; i < tries && found && (i == 0 || ran == 0 || waited != 0); ++i)
    ran += one_work(device, stream, work, found, waited) ? 1u : 0u;
  // The work may end by chance during a query, but not each time.
  found.must_hold(waited < tries, rules::query_does_not_wait, stream, "work ended in", waited, "calls of",
                  2 * tries);
  if (found && ran == 0)
    found.skip("events while work runs", "the work ended before the first query; submit longer work");
}

/// Checks an ordering_provider while work runs on the first of two streams.
template <provider::ordering_provider D, typename Begin, typename Ended>
void ordered_work(provider_check_result& found, D& device, stream_id busy, stream_id waiting,
                  const trial_work<Begin, Ended>& work) {
  const auto must_hold = [&](bool holds, rule law, std::uint64_t at) {
    found.must_hold(holds, law, waiting, "waits for stream", busy, "position", at, "work ended", false);
  };
  // A stream that does not wait is caught only if its thread runs before the work ends, so it is tried several times.
  for (const bool makes_wait : {false, true, true, true, true}) {
    if (!found) return;
    work.begin(busy);
    const std::uint64_t at = device.position(busy);
    if (makes_wait)
      found.must_hold(device.make_wait(waiting, busy, at), rules::make_wait_succeeds, waiting,
                      "waits for stream", busy, "position", at);
    const bool claimed = device.is_ordered_after(waiting, busy, at);
    trial_event<D> after(device);
    if (found && (makes_wait || claimed) && after.record(waiting)) {
      must_hold(!after.query() || work.ended(), rules::no_stream_runs_ahead, at);
      must_hold(after.wait() && work.ended(), rules::no_stream_runs_ahead, at);
    }
    (void)tessera::detail::finish_work(device, busy);
    (void)tessera::detail::finish_work(device, waiting);
  }
}

/// Checks what a provider says about a stream that does not exist, if it knows its streams.
template <tessera::detail::stream_listing_provider D>
void missing_stream(provider_check_result& found, D& device, stream_id missing) {
  found.must_hold(device.has_stream({}), rules::default_stream_exists, stream_id{}, "exists", false);
  if (device.has_stream(missing)) return;
  const auto must_hold = [&](bool holds, rule law) { found.must_hold(holds, law, missing); };
  if constexpr (provider::event_provider<D>) {
    trial_event<D> mark(device);
    must_hold(!mark.record(missing), rules::record_refuses_missing_stream);
  }
  if constexpr (requires { device.synchronize(missing); })
    must_hold(device.synchronize(missing), rules::missing_stream_is_synchronized);
  if constexpr (provider::ordering_provider<D>) {
    must_hold(device.is_done(missing, 1), rules::missing_stream_is_done);
    must_hold(!device.make_wait(missing, {}, 0), rules::make_wait_refuses_missing_stream);
  }
}

/// Ends a stream with work on it. end(stream) destroys it after its work.
template <provider::event_provider D, typename Start, typename End>
void ended_stream(provider_check_result& found, D& device, stream_id stream, Start start, End end) {
  trial_event<D> mark(device);
  start(stream);
  if (!mark.record(stream)) found.fail(rules::record_succeeds_on_busy_stream, stream, "recorded", false);
  end(stream);
  if (!found) return;
  found.must_hold(mark.wait() && mark.query(), rules::ended_stream_is_done, stream);
  if constexpr (tessera::detail::stream_listing_provider<D>) {
    found.must_hold(!device.has_stream(stream), rules::ended_stream_is_missing, stream);
    if (found) missing_stream(found, device, stream);
  }
}

}  // namespace tessera::inline v0_1::law::detail
