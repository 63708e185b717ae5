// SPDX-License-Identifier: Apache-2.0
#include "tune_advice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tune_composition.hpp"
#include "tune_search.hpp"

namespace replay::tune {
namespace {

program_traits traits_of(const trace::program& program, bool has_capacity) {
  std::set<stream_id> streams;
  for (const trace::event& e : program.events()) {
    using kind = trace::event::kind;
    if (e.what == kind::allocate || e.what == kind::record_stream) streams.insert(e.stream);
  }
  return {program.peak_live(), streams.size() > 1, has_capacity};
}

/// The number of compositions to try, for about half a minute on one core.
std::size_t max_candidates(const trace::program& program, bool has_capacity) {
  const std::size_t replays = 600'000'000 / (program.events().size() + 1);
  return std::clamp<std::size_t>(has_capacity ? replays / 5 : replays, 500, 3000);
}

/// The candidates to show: those where less memory costs more device time, and the fastest.
std::vector<candidate> worth_showing(const search& tried) {
  std::vector<const candidate*> order;
  for (const candidate& c : tried.tried())
    if (c.is_eligible()) order.push_back(&c);
  std::stable_sort(order.begin(), order.end(), [](const candidate* a, const candidate* b) {
    return std::pair(a->memory, a->device_ns) < std::pair(b->memory, b->device_ns);
  });
  std::vector<candidate> shown;
  double min_device_ns = 0;
  for (const candidate* c : order) {
    if (!shown.empty() && number(c->device_ns) > min_device_ns * (1 - device_counts)) continue;
    min_device_ns = number(c->device_ns);
    shown.push_back(*c);
  }
  while (shown.size() > 12) {  // drop the candidate whose memory is closest to the previous one
    std::size_t nearest = 1;
    const auto step = [&](std::size_t i) { return number(shown[i].memory) / number(shown[i - 1].memory); };
    for (std::size_t i = 2; i + 1 < shown.size(); ++i)
      if (step(i) < step(nearest)) nearest = i;
    shown.erase(shown.begin() + static_cast<std::ptrdiff_t>(nearest));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const candidate* a, const candidate* b) { return a->host_share < b->host_share; });
  for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size()); ++i) shown.push_back(*order[i]);
  return shown;
}

/// The program with all sizes 3 % larger.
trace::recording a_little_larger(const trace::program& program) {
  trace::recording larger{"larger", program.events()};
  for (trace::event& e : larger.events)
    if (e.what == trace::event::kind::allocate) e.bytes = std::min(max_request, e.bytes + e.bytes / 100 * 3);
  return larger;
}

/// Peak reserved / peak live of a composition.
double over_live(const trace::program& program, const composition& c, std::size_t capacity) {
  return number(replay_once(program, c, capacity).peak_reserved) / number(program.peak_live());
}

}  // namespace

bool beats(const timed_candidate& a, const timed_candidate& b, double noise) {
  if (a.what.is_eligible() != b.what.is_eligible()) return a.what.is_eligible();
  if (!is_within(number(b.what.memory), number(a.what.memory), memory_counts)) return true;
  if (!is_within(number(a.what.memory), number(b.what.memory), memory_counts)) return false;
  if (!is_within(number(b.what.device_ns), number(a.what.device_ns), device_counts)) return true;
  if (!is_within(number(a.what.device_ns), number(b.what.device_ns), device_counts)) return false;
  return b.host_ns > a.host_ns * (1 + std::max(noise, device_counts));
}

std::vector<timed_candidate> front_of(std::vector<timed_candidate> rows, double noise) {
  std::stable_sort(rows.begin(), rows.end(), [](const timed_candidate& a, const timed_candidate& b) {
    return std::pair(a.what.memory, a.what.device_ns) < std::pair(b.what.memory, b.what.device_ns);
  });
  const double host_counts = std::max(noise, device_counts);
  const auto surpasses = [&](const timed_candidate& a, const timed_candidate& b) {
    const bool as_good = a.what.memory <= b.what.memory && a.what.device_ns <= b.what.device_ns &&
                         is_within(a.host_ns, b.host_ns, host_counts);
    const bool better = !is_within(number(b.what.memory), number(a.what.memory), memory_counts) ||
                        !is_within(number(b.what.device_ns), number(a.what.device_ns), device_counts) ||
                        !is_within(b.host_ns, a.host_ns, host_counts);
    return as_good && better;
  };
  std::vector<timed_candidate> front;
  for (const timed_candidate& r : rows) {
    const auto surpasses_r = [&](const timed_candidate& other) { return surpasses(other, r); };
    if (std::any_of(rows.begin(), rows.end(), surpasses_r)) continue;
    const auto costs_as_much = [&](const timed_candidate& f) {
      return f.what.memory == r.what.memory && f.what.device_ns == r.what.device_ns &&
             f.what.calls == r.what.calls;
    };
    const auto same = std::find_if(front.begin(), front.end(), costs_as_much);
    if (same == front.end()) {
      front.push_back(r);
    } else if (deviations(r.what.made) < deviations(same->what.made)) {
      *same = r;
    }
  }
  return front;
}

namespace {

/// Selects the winner and the candidates to show with it.
void choose(advice& given, search& tried, winner_selector& selector, const advice_request& asked) {
  given.winner.what = selector.winner(asked.shipped);
  given.why = selector.why();
  given.keeps_max_ns = selector.keeps_host_limit();
  given.shipped.what = selector.best_shipped();
  given.knobs.clear();
  given.front.clear();
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const composition without = with_axis_of(given.winner.what.made, axis, composition{});
    if (given.winner.what.completes && !(without == given.winner.what.made))
      given.knobs.push_back({axis, {tried.evaluate(without)}});
  }
  for (const candidate& c : worth_showing(tried)) given.front.push_back({c});
}

/// Measures the host time of each distinct composition in the report.
void measure_rows(advice& given, const trace::program& program, std::size_t capacity) {
  std::vector<timed_candidate*> all = {&given.pytorch, &given.shipped, &given.winner};
  if (given.recorded) all.push_back(&*given.recorded);
  for (knob& k : given.knobs) all.push_back(&k.without);
  for (timed_candidate& r : given.front) all.push_back(&r);
  std::vector<composition> made;
  const auto place_of = [&](const composition& c) { return std::find(made.begin(), made.end(), c); };
  for (const timed_candidate* r : all)
    if (place_of(r->what.made) == made.end()) made.push_back(r->what.made);
  const host_times times = measure(program, made, capacity, 7);
  for (timed_candidate* r : all)
    r->host_ns = times.each[static_cast<std::size_t>(place_of(r->what.made) - made.begin())];
  given.noise = times.noise;
  given.compiled_share = times.as_compiled(1);
}

}  // namespace

advice advise(const trace::program& program, const advice_request& asked) {
  advice given;
  const auto say = [&](const std::string& what) {
    if (asked.progress) asked.progress(what);
  };
  search_options options{.known = traits_of(program, asked.has_capacity),
                         .capacity = asked.capacity,
                         .max_candidates = max_candidates(program, asked.has_capacity)};
  options.known.own = asked.own;
  given.several_streams = options.known.several_streams;
  options.progress = [&](std::size_t count, std::size_t min_memory) {
    say(std::to_string(count) + " compositions tried, and no new round begins after " +
        std::to_string(options.max_candidates) + "; the least is " + std::to_string(min_memory >> 20) +
        " MiB");
  };
  const bool is_bounded = asked.max_ns > 0;
  const host_times first = measure(program, {}, asked.capacity, 5);
  given.host_limit_ns = is_bounded ? asked.max_ns : 2 * first.pytorch_compiled;
  options.max_host = 1.25 * given.host_limit_ns / first.pytorch_compiled;

  say("trying the shipped recipes");
  search tried(program, options, asked.shipped);
  for (const candidate& c : tried.tried())
    if (c.needs_program_changes) given.left_out.push_back(c.name);
  tried.run();

  say("measuring host time");
  winner_selector selector(program, asked.capacity, tried, given.host_limit_ns, is_bounded);
  given.pytorch.what = tried.pytorch();
  if (asked.recorded) given.recorded = timed_candidate{tried.evaluate(asked.recorded->second)};
  // The first selection rests on few repetitions. If a longer measurement exceeds the limit, select again.
  for (int round = 0; round < 8; ++round) {
    choose(given, tried, selector, asked);
    measure_rows(given, program, asked.capacity);
    const bool must_keep = is_bounded || given.why == reason::least_memory;
    const double host_ns = given.winner.host_ns * given.compiled_share;
    if (!must_keep || !given.winner.what.is_eligible() || !given.keeps_max_ns ||
        host_ns <= given.host_limit_ns)
      break;
    selector.correct(given.winner.what.made, host_ns);
  }

  const bool is_pytorch_slow =
      is_bounded && given.pytorch.host_ns * given.compiled_share > given.host_limit_ns;
  given.beats_pytorch = is_pytorch_slow && given.keeps_max_ns && given.winner.what.is_eligible()
                            ? true
                            : beats(given.winner, given.pytorch, given.noise);
  if (!given.beats_pytorch && given.keeps_max_ns) given.winner = given.pytorch, given.knobs.clear();
  for (const timed_candidate& r : {given.pytorch, given.shipped, given.winner})
    if (r.what.is_eligible()) given.front.push_back(r);
  given.front = front_of(given.front, given.noise);
  // A limit of host time may select a candidate that others surpass in all else.
  const auto is_winner = [&](const timed_candidate& r) { return r.what.made == given.winner.what.made; };
  if (given.winner.what.is_eligible() && std::none_of(given.front.begin(), given.front.end(), is_winner)) {
    const auto place = std::find_if(given.front.begin(), given.front.end(), [&](const timed_candidate& r) {
      return r.what.memory > given.winner.what.memory;
    });
    given.front.insert(place, given.winner);
  }
  if (!asked.has_capacity && given.beats_pytorch) {
    const trace::recording larger = a_little_larger(program);
    const trace::program elsewhere(larger);
    given.winner_elsewhere = over_live(elsewhere, given.winner.what.made, asked.capacity);
    given.pytorch_elsewhere = over_live(elsewhere, {}, asked.capacity);
  }
  given.device_limit_ns = tried.device_limit_ns();
  given.tried = tried.tried().size();
  return given;
}

}  // namespace replay::tune
