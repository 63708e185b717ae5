// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>

#include "capacity.hpp"
#include "on_all_cores.hpp"
#include "replayed.hpp"
#include "tune_composition.hpp"
#include "tune_search.hpp"

namespace replay::tune {
namespace {

/// The processor time of this thread, in nanoseconds. On Windows, the time that has passed, because processor time is counted in
/// steps of 15 ms there.
double processor_ns() {
#if defined(_WIN32)
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
#else
  ::timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
#endif
}

std::size_t operations(const trace::program& program) {
  return std::max<std::size_t>(1, program.events().size());
}

/// Thrown to end a replay early.
struct given_up {};

template <typename Recipe>
outcome run(const trace::program& program, const recipe::policies<Recipe>& chosen, std::size_t capacity,
            const limits& until) {
  replayed<Recipe> pool{device_of(capacity), chosen};
  const double begin = processor_ns();
  const double end = begin + until.processor_ns * static_cast<double>(operations(program));
  const auto before = [&](std::size_t i) {
    if (i % 128 != 0) return;
    const bool is_late = until.processor_ns > 0 && i % 4096 == 0 && processor_ns() > end;
    if (is_late || pool.provider().used() > until.reserved || pool.provider().now_ns() > until.device_ns)
      throw given_up{};
  };
  const auto after = [&](std::size_t i, const void* p) {
    if (p == nullptr && until.failures && program.events()[i].what == trace::event::kind::allocate)
      throw given_up{};
  };
  outcome found;
  try {
    found.failures = trace::replay(program, pool, before, after);
  } catch (const given_up&) {
    found.given_up = true;
  }
  found.processor_ns = (processor_ns() - begin) / static_cast<double>(operations(program));
  found.peak_reserved = pool.provider().peak_used();
  found.device_ns = pool.provider().now_ns();
  found.calls = memory_calls(pool.provider().calls());
  found.given_up =
      found.given_up || found.device_ns > until.device_ns || found.peak_reserved > until.reserved;
  return found;
}

/// Processor time per operation in nanoseconds, over enough replays to be measurable.
template <typename Recipe>
double host_ns(const trace::program& program, const recipe::policies<Recipe>& chosen, std::size_t capacity) {
  const std::size_t replays = std::min<std::size_t>(1000, 20'000 / operations(program) + 1);
  double spent = 0;
  for (std::size_t i = 0; i < replays; ++i) {
    replayed<Recipe> pool{device_of(capacity), chosen};
    const double begin = processor_ns();
    (void)trace::replay(program, pool);
    spent += processor_ns() - begin;
  }
  return spent / static_cast<double>(replays * operations(program));
}

double host_ns(const trace::program& program, const composition& c, std::size_t capacity) {
  return with_recipe(c, [&]<typename Recipe>(const recipe::policies<Recipe>& chosen) {
    return host_ns<Recipe>(program, chosen, capacity);
  });
}

double quantile(std::vector<double> values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * percent / 100];
}

}  // namespace

outcome replay_once(const trace::program& program, const composition& c, std::size_t capacity,
                    const limits& until) {
  return with_recipe(c, [&]<typename Recipe>(const recipe::policies<Recipe>& chosen) {
    return run<Recipe>(program, chosen, capacity, until);
  });
}

std::size_t min_capacity(const trace::program& program, const composition& c) {
  const auto completes = [&](std::size_t capacity) {
    return !replay_once(program, c, capacity, {.failures = true}).given_up;
  };
  return replay::min_capacity(std::max<std::size_t>(1, program.min_reserved()), 2 * max_request, completes)
      .value_or(unlimited);
}

std::size_t min_capacity_up_to(const trace::program& program, const composition& c, std::size_t max,
                               std::size_t step, limits until) {
  until.failures = true;
  const auto completes = [&](std::size_t capacity) {
    return !replay_once(program, c, capacity, until).given_up;
  };
  if (!completes(max)) return unlimited;
  return bisect(std::min(max, program.min_reserved()) - 1, max, step, completes);
}

host_times measure(const trace::program& program, const std::vector<composition>& some, std::size_t capacity,
                   std::size_t repetitions) {
  std::vector<std::vector<double>> each(some.size());
  std::vector<double> yardstick;
  std::vector<double> compiled;
  for (std::size_t r = 0; r < repetitions; ++r) {
    yardstick.push_back(host_ns(program, composition{}, capacity));
    compiled.push_back(host_ns<recipe::pytorch<>>(program, {}, capacity));
    for (std::size_t i = 0; i < some.size(); ++i) each[i].push_back(host_ns(program, some[i], capacity));
    yardstick.push_back(host_ns(program, composition{}, capacity));
  }
  // Disturbances only slow down, so the lower quartile is closer to the truth than the median.
  host_times found{.pytorch = quantile(yardstick, 25), .pytorch_compiled = quantile(compiled, 25)};
  found.noise = (quantile(yardstick, 75) - found.pytorch) / found.pytorch;
  for (const auto& times : each) found.each.push_back(quantile(times, 25));
  return found;
}

namespace {

std::string key_of(const composition& c) {
  std::string key;
  for (const std::string& policy : policy_texts(c)) key += policy + ' ';
  return key;
}

}  // namespace

search::search(const trace::program& program, search_options chosen,
               const std::vector<std::pair<std::string, composition>>& shipped)
    : program_(program), options_(std::move(chosen)) {
  note_host_time();
  std::vector<candidate> found(shipped.size());
  on_all_cores(shipped.size(), [&](std::size_t i) { found[i] = tried_out(shipped[i].second, true); });
  for (std::size_t i = 0; i < shipped.size(); ++i) {
    if (!place_.try_emplace(key_of(shipped[i].second), tried_.size()).second) continue;
    tried_.push_back(found[i]);
    tried_.back().name = shipped[i].first;
  }
}

candidate search::tried_out(const composition& c, bool to_the_end) const {
  const program_traits& known = options_.known;
  limits until{.failures = known.has_capacity};
  const std::size_t max = to_the_end ? unlimited : std::min(pytorch().memory, max_request) / 4 * 5;
  if (!to_the_end) {
    if (!known.has_capacity) until.reserved = max;
    until.device_ns = 2 * device_reach_ns_;
    until.processor_ns = 2 * options_.max_host * pytorch_ns_;
  }
  const outcome found = replay_once(program_, c, options_.capacity, until);
  candidate result{.made = c,
                   .memory = found.given_up ? unlimited : found.peak_reserved,
                   .device_ns = found.device_ns,
                   .calls = found.calls,
                   .host_share = found.processor_ns / pytorch_ns_,
                   .completes = !found.given_up && found.failures == 0,
                   .is_exact = to_the_end,
                   .needs_program_changes = needs_program_changes(c, known)};
  if (!known.has_capacity) return result;
  if (to_the_end) {
    result.memory = min_capacity(program_, c);
  } else if (result.completes || memory_reach_ > 0 || !any_is_cheap_) {
    const std::size_t enough = any_is_cheap_ && !result.completes ? std::min(max, memory_reach_) : max;
    result.memory = min_capacity_up_to(program_, c, enough, program_.peak_live() / 500 + 1, until);
  }
  if (!result.completes && result.memory != unlimited) {
    const outcome with_enough = replay_once(program_, c, result.memory);
    result.device_ns = with_enough.device_ns;
    result.calls = with_enough.calls;
    result.host_share = with_enough.processor_ns / pytorch_ns_;
  }
  return result;
}

void search::try_all(const std::vector<composition>& some) {
  std::vector<composition> fresh;
  for (const composition& c : some) {
    if (place_.try_emplace(key_of(c), tried_.size() + fresh.size()).second) fresh.push_back(c);
  }
  note_host_time();
  std::vector<candidate> found(fresh.size());
  on_all_cores(fresh.size(), [&](std::size_t i) { found[i] = tried_out(fresh[i], false); });
  tried_.insert(tried_.end(), found.begin(), found.end());
}

/// Measures pytorch on all cores at once, as candidates run.
void search::note_host_time() {
  std::vector<double> times(number_of_cores());
  on_all_cores(times.size(), [&](std::size_t i) {
    times[i] = replay_once(program_, composition{}, options_.capacity).processor_ns;
  });
  std::sort(times.begin(), times.end());
  pytorch_ns_ = std::max(1.0, times[times.size() / 2]);
}

candidate search::evaluate(const composition& c) {
  const auto [at, is_new] = place_.try_emplace(key_of(c), tried_.size());
  if (is_new) tried_.emplace_back();
  candidate& place = tried_[at->second];
  if (!place.is_exact) place = tried_out(c, true);
  return place;
}

const candidate* search::best_shipped() const noexcept {
  const candidate* best = nullptr;
  for (const candidate& c : tried_) {
    if (c.name.empty() || c.name == "passthrough" || c.needs_program_changes) continue;
    if (best == nullptr || std::pair(!c.completes, c.memory) < std::pair(!best->completes, best->memory))
      best = &c;
  }
  return best;
}

std::uint64_t search::asking_ns() const noexcept {
  const auto asks = [](const candidate& c) { return c.name == "passthrough"; };
  const auto found = std::find_if(tried_.begin(), tried_.end(), asks);
  return found != tried_.end() ? found->device_ns : 0;
}

std::uint64_t search::device_limit_ns() const noexcept {
  return std::max(asking_ns() / 200, pytorch().completes ? 2 * pytorch().device_ns : 0);
}

bool search::is_cheap(const candidate& c) const noexcept {
  return !c.needs_program_changes && (c.completes || c.memory <= memory_reach_) &&
         c.device_ns <= device_reach_ns_ && c.host_share <= options_.max_host;
}

/// The best candidates not yet expanded, overall and without virtual memory. These have the least device time
/// for their memory, or about the least memory.
std::vector<std::size_t> search::worth_expanding() const {
  using costs = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;
  const auto costs_of = [](const candidate& c) { return costs(c.memory, c.device_ns, c.calls); };
  std::set<costs> left;  // equal decisions need only one expansion
  for (const candidate& c : tried_)
    if (c.was_expanded) left.insert(costs_of(c));
  const auto may_be_left = [&](const candidate& c) {
    if (any_is_cheap_) return is_cheap(c) || (!any_completes_cheaply_ && c.is_eligible() && !c.name.empty());
    return !c.needs_program_changes && c.memory != unlimited;
  };

  std::vector<std::size_t> chosen;
  const auto choose = [&](bool only_segments, std::size_t count) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tried_.size(); ++i) {
      const bool in_class = !only_segments || !tried_[i].made.growth.has_ranges();
      if (in_class && may_be_left(tried_[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return costs_of(tried_[a]) < costs_of(tried_[b]); });
    std::vector<std::size_t> front;
    std::set<costs> seen = left;
    std::uint64_t min_device_ns = ~std::uint64_t{0};
    for (std::size_t i : order) {
      const candidate& c = tried_[i];
      const bool is_near = c.memory - tried_[order[0]].memory <= tried_[order[0]].memory / 100;
      if ((c.device_ns < min_device_ns || is_near) && seen.insert(costs_of(c)).second) front.push_back(i);
      min_device_ns = std::min(min_device_ns, c.device_ns);
    }
    // The first, then others at growing distances.
    for (std::size_t i = 0; i < std::min(count, front.size()); ++i) {
      const std::size_t last = count - 1;
      chosen.push_back(front[front.size() <= count ? i : i * i * (front.size() - 1) / (last * last)]);
    }
  };
  choose(false, any_is_cheap_ && !options_.known.has_capacity ? 4 : 2);
  choose(true, 2);
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

void search::run() {
  while (tried_.size() < options_.max_candidates) {
    const candidate* const shipped = best_shipped();
    device_reach_ns_ = std::max(device_limit_ns(), shipped != nullptr ? shipped->device_ns : 0);
    if (options_.known.has_capacity && shipped != nullptr && !shipped->completes)
      memory_reach_ = std::min(shipped->memory, max_request) / 100 * 105;
    const auto any_is_cheap = [&](bool completing) {
      return std::any_of(tried_.begin(), tried_.end(),
                         [&](const candidate& c) { return (c.completes || !completing) && is_cheap(c); });
    };
    // If nothing completes in reach, half the device time of one device call per block is better, too.
    if (memory_reach_ > 0 && !any_is_cheap(true))
      device_reach_ns_ = std::max(device_reach_ns_, asking_ns() / 2);
    any_completes_cheaply_ = any_is_cheap(true);
    any_is_cheap_ = any_is_cheap(false);
    const std::vector<std::size_t> places = worth_expanding();
    if (places.empty()) return;
    std::vector<composition> around;
    for (std::size_t i : places) {
      tried_[i].was_expanded = true;
      for (const composition& c : neighbours(tried_[i].made, options_.known)) around.push_back(c);
    }
    try_all(around);
    const auto less = [](const candidate& a, const candidate& b) {
      return std::pair(!a.is_eligible(), a.memory) < std::pair(!b.is_eligible(), b.memory);
    };
    if (options_.progress)
      options_.progress(tried_.size(), std::min_element(tried_.begin(), tried_.end(), less)->memory);
  }
}

}  // namespace replay::tune

// With one stream, reuse across streams makes no difference.
tessera::law::growth_witness tessera::tool::detail::growth_of(const composition& c) noexcept {
  return std::visit(
      [&]<typename Growth>(const Growth& growth) {
        using recipe = replay::tune::chosen_when_run<Growth, false>;
        return law::growth_is_bounded<recipe>(
            {c.rounding, c.pools, {c.streams}, c.split, c.pages, growth, c.eviction, c.recovery});
      },
      c.growth.chosen);
}
