// SPDX-License-Identifier: Apache-2.0
#include "tune_advice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tune_text.hpp"
#include "tune_trial.hpp"

namespace replay::tune {
namespace {

scene look_around(const trace::program& program, bool has_capacity) {
  std::set<stream_id> streams;
  for (const trace::event& e : program.events()) {
    using kind = trace::event::kind;
    if (e.what == kind::allocate || e.what == kind::record_stream) streams.insert(e.stream);
  }
  return {program.peak_live(), streams.size() > 1, has_capacity};
}

/// How many compositions are tried: so many that it takes a processor some half a minute.
std::size_t most_to_try(const trace::program& program, bool has_capacity) {
  const std::size_t replays = 600'000'000 / (program.events().size() + 1);
  return std::clamp<std::size_t>(has_capacity ? replays / 6 : replays, 500, 3000);
}

bool is_within(double more, double less, double share) { return more <= less * (1 + share); }
double number(std::uint64_t n) { return static_cast<double>(n); }

std::size_t deviations(const composition& c) {
  const auto here = policy_texts(c);
  const auto there = policy_texts(composition{});
  std::size_t count = 0;
  for (std::size_t i = 0; i < axes; ++i) count += here[i] != there[i];
  return count;
}

/// Finds the winner among what was tried.
class judge {
 public:
  judge(const trace::program& program, const question& asked, search& tried)
      : program_(program), asked_(asked), tried_(tried) {}

  [[nodiscard]] bool is_in_time(double compiled_ns) const { return compiled_ns <= host_limit_ns; }
  double host_limit_ns = 0;

  /// Host times as compiled, from few repetitions.
  [[nodiscard]] std::vector<double> quick_look(const std::vector<const candidate*>& some) const {
    std::vector<composition> made;
    for (const candidate* c : some) made.push_back(c->made);
    const host_times found = measure(program_, made, asked_.capacity, 3);
    std::vector<double> compiled;
    for (double ns : found.each) compiled.push_back(found.as_compiled(ns));
    return compiled;
  }

  /// The shipped recipe that needs least memory within the limits, passthrough aside, or null.
  [[nodiscard]] const candidate* best_shipped() const {
    std::vector<const candidate*> shipped;
    for (const candidate& c : tried_.tried())
      if (!c.name.empty() && c.name != "passthrough" && c.may_win()) shipped.push_back(&c);
    const std::vector<double> times = quick_look(shipped);
    const candidate* best = nullptr;
    for (std::size_t i = 0; i < shipped.size(); ++i) {
      if (is_in_time(times[i]) && (best == nullptr || shipped[i]->memory < best->memory)) best = shipped[i];
    }
    return best;
  }

  /// The candidate that needs least memory within the limits; of about as little, that which takes least of the device's
  /// time. Where none keeps the limit of host time, the quickest, and where none completes, what is nearest to that.
  [[nodiscard]] const candidate& best(const candidate* shipped) const {
    std::vector<const candidate*> left = in_limits();
    const auto by_memory = [](const candidate* a, const candidate* b) { return a->memory < b->memory; };
    std::stable_sort(left.begin(), left.end(), by_memory);
    for (int round = 0; round < 16 && !left.empty(); ++round) {
      const std::size_t most = most_memory(left[0]->memory, shipped);
      const auto end = std::find_if(left.begin() + 1, left.end(), [&](auto* c) { return c->memory > most; });
      std::vector<const candidate*> near(left.begin(), end);
      std::stable_sort(near.begin(), near.end(), [](const candidate* a, const candidate* b) {
        return std::pair(a->device_ns, deviations(a->made)) < std::pair(b->device_ns, deviations(b->made));
      });
      if (near.size() > 8) near.resize(8);
      const std::vector<double> times = quick_look(near);
      for (std::size_t i = 0; i < near.size(); ++i)
        if (is_in_time(times[i])) return *near[i];
      left.erase(left.begin(), end);
    }
    if (shipped != nullptr) return *shipped;
    const auto& all = tried_.tried();
    return *std::min_element(all.begin(), all.end(), [](const candidate& a, const candidate& b) {
      if (a.may_win() != b.may_win()) return a.may_win();
      if (a.may_win()) return a.host_share < b.host_share;
      return std::pair(a.asks_more, a.memory) < std::pair(b.asks_more, b.memory);
    });
  }

  /// The same with fewer deviations from pytorch, and from what ships, as long as that costs nothing that counts.
  [[nodiscard]] const candidate& simplified(const candidate& best, const candidate* shipped) const {
    candidate now = best;
    const std::size_t most = most_memory(best.memory, shipped);
    const auto try_with = [&](std::size_t axis, const composition& as_in) {
      const composition simpler = with_axis_of(now.made, axis, as_in);
      if (simpler == now.made) return;
      const candidate& found = tried_.look_at(simpler);
      const bool is_cheap = is_within(number(found.device_ns), number(best.device_ns), device_counts);
      if (found.may_win() && found.memory <= most && is_cheap && is_in_time(quick_look({&found})[0]))
        now = found;
    };
    const auto plain = policy_texts(composition{});
    for (int round = 0; round < 2; ++round) {
      for (std::size_t axis = 0; axis < axes; ++axis) try_with(axis, composition{});
      for (std::size_t axis = 0; axis < axes; ++axis) {
        for (const auto& [name, made] : asked_.shipped) {
          const std::string here = policy_texts(now.made)[axis];
          if (here != plain[axis] && policy_texts(made)[axis].size() < here.size()) try_with(axis, made);
        }
      }
    }
    return tried_.look_at(now.made);
  }

 private:
  [[nodiscard]] std::size_t most_memory(std::size_t least, const candidate* shipped) const {
    const auto most = static_cast<std::size_t>(number(least) * (1 + memory_counts));
    return shipped != nullptr && shipped->memory >= least ? std::min(most, shipped->memory) : most;
  }
  [[nodiscard]] std::vector<const candidate*> in_limits() const {
    std::vector<const candidate*> found;
    const std::uint64_t device_limit_ns = tried_.device_limit_ns();
    for (bool in_time : {true, false}) {
      for (const candidate& c : tried_.tried())
        if (c.may_win() && (!in_time || c.device_ns <= device_limit_ns)) found.push_back(&c);
      if (!found.empty()) break;
    }
    return found;
  }

  const trace::program& program_;
  const question& asked_;
  search& tried_;
};

/// What is worth showing of what was tried: where less memory costs more of the device's time, and what is quick.
std::vector<candidate> worth_showing(const search& tried) {
  std::vector<const candidate*> order;
  for (const candidate& c : tried.tried())
    if (c.may_win()) order.push_back(&c);
  std::stable_sort(order.begin(), order.end(), [](const candidate* a, const candidate* b) {
    return std::pair(a->memory, a->device_ns) < std::pair(b->memory, b->device_ns);
  });
  std::vector<candidate> shown;
  double least = 0;
  for (const candidate* c : order) {
    if (!shown.empty() && number(c->device_ns) > least * (1 - device_counts)) continue;
    least = number(c->device_ns);
    shown.push_back(*c);
  }
  while (shown.size() > 12) {  // of the middle, leave out what is nearest to what comes before it
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

}  // namespace

bool beats(const row& a, const row& b, double noise) {
  if (a.what.may_win() != b.what.may_win()) return a.what.may_win();
  if (!is_within(number(b.what.memory), number(a.what.memory), memory_counts)) return true;
  if (!is_within(number(a.what.memory), number(b.what.memory), memory_counts)) return false;
  if (!is_within(number(b.what.device_ns), number(a.what.device_ns), device_counts)) return true;
  if (!is_within(number(a.what.device_ns), number(b.what.device_ns), device_counts)) return false;
  return b.host_ns > a.host_ns * (1 + std::max(noise, device_counts));
}

std::vector<row> front_of(std::vector<row> rows, double noise) {
  std::stable_sort(rows.begin(), rows.end(), [](const row& a, const row& b) {
    return std::pair(a.what.memory, a.what.device_ns) < std::pair(b.what.memory, b.what.device_ns);
  });
  const double host_counts = std::max(noise, device_counts);
  const auto surpasses = [&](const row& a, const row& b) {
    const bool as_good = a.what.memory <= b.what.memory && a.what.device_ns <= b.what.device_ns &&
                         is_within(a.host_ns, b.host_ns, host_counts);
    const bool better = !is_within(number(b.what.memory), number(a.what.memory), memory_counts) ||
                        !is_within(number(b.what.device_ns), number(a.what.device_ns), device_counts) ||
                        !is_within(b.host_ns, a.host_ns, host_counts);
    return as_good && better;
  };
  std::vector<row> front;
  for (const row& r : rows) {
    const auto surpasses_r = [&](const row& other) { return surpasses(other, r); };
    if (std::any_of(rows.begin(), rows.end(), surpasses_r)) continue;
    const auto costs_as_much = [&](const row& f) {
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

advice advise(const trace::program& program, const question& asked) {
  advice given;
  search_options options{.known = look_around(program, asked.has_capacity),
                         .capacity = asked.capacity,
                         .most = most_to_try(program, asked.has_capacity)};
  given.several_streams = options.known.several_streams;
  const auto say = [&](const std::string& what) {
    if (asked.progress) asked.progress(what);
  };
  options.progress = [&](std::size_t count, std::size_t least) {
    say(std::to_string(count) + " of at most " + std::to_string(options.most) +
        " compositions tried; the least is " + std::to_string(least >> 20) + " MiB");
  };
  const host_times first = measure(program, {}, asked.capacity, 5);
  given.host_limit_ns = asked.max_ns > 0 ? asked.max_ns : options.most_host * first.pytorch_compiled;
  options.most_host = given.host_limit_ns / first.pytorch_compiled * (asked.max_ns > 0 ? 1.15 : 1);

  search tried(program, options);
  for (const auto& [name, made] : asked.shipped) {
    say("trying " + name);
    tried.start_from(made, name);
    if (tried.tried().back().asks_more && tried.tried().back().name == name) given.left_out.push_back(name);
  }
  tried.run();

  say("measuring host time");
  judge jury(program, asked, tried);
  jury.host_limit_ns = given.host_limit_ns;
  const candidate* const found_shipped = jury.best_shipped();
  const bool has_shipped = found_shipped != nullptr;
  const candidate shipped = has_shipped ? *found_shipped : tried.pytorch();
  const candidate best = jury.best(has_shipped ? &shipped : nullptr);
  given.winner.what = jury.simplified(best, has_shipped ? &shipped : nullptr);
  given.shipped.what = shipped;
  given.pytorch.what = tried.pytorch();
  const auto here = policy_texts(given.winner.what.made);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (here[axis] == policy_texts(composition{})[axis]) continue;
    given.knobs.push_back({axis, {tried.look_at(with_axis_of(given.winner.what.made, axis, composition{}))}});
  }
  for (const candidate& c : worth_showing(tried)) given.front.push_back({c});

  std::vector<row*> all = {&given.pytorch, &given.shipped, &given.winner};
  for (knob& k : given.knobs) all.push_back(&k.without);
  for (row& r : given.front) all.push_back(&r);
  std::vector<composition> made;
  for (const row* r : all) made.push_back(r->what.made);
  const host_times times = measure(program, made, asked.capacity, 7);
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->host_ns = times.each[i];
  given.noise = times.noise;
  given.compiled_share = times.as_compiled(1);

  given.keeps_max_ns =
      asked.max_ns <= 0 || jury.is_in_time(given.winner.host_ns * given.compiled_share / (1 + times.noise));
  given.beats_pytorch = beats(given.winner, given.pytorch, times.noise);
  if (!given.beats_pytorch) given.winner = given.pytorch, given.knobs.clear();
  for (const row& r : {given.pytorch, given.shipped, given.winner})
    if (r.what.may_win()) given.front.push_back(r);
  given.front = front_of(given.front, times.noise);
  given.device_limit_ns = tried.device_limit_ns();
  given.tried = tried.tried().size();
  return given;
}

}  // namespace replay::tune
