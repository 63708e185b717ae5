// SPDX-License-Identifier: Apache-2.0
#include "tune_advice.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tune_composition.hpp"
#include "tune_search.hpp"

namespace replay::tune {
namespace {

using list = std::vector<const candidate*>;

/// Sorts by a key, the smallest first.
template <typename Key>
void order_by(list& some, Key key) {
  std::stable_sort(some.begin(), some.end(),
                   [&](const candidate* a, const candidate* b) { return key(*a) < key(*b); });
}
/// The eligible candidates for which keep() is true.
template <typename Keep>
list those_of(const std::vector<candidate>& tried, Keep keep) {
  list found;
  for (const candidate& c : tried)
    if (c.is_eligible() && keep(c)) found.push_back(&c);
  return found;
}

constexpr auto memory_of = [](const candidate& c) { return c.memory; };
constexpr auto device_ns_of = [](const candidate& c) { return c.device_ns; };
constexpr auto host_share_of = [](const candidate& c) { return c.host_share; };

}  // namespace

std::size_t deviations(const composition& c) {
  const auto here = policy_texts(c);
  const auto there = policy_texts(composition{});
  std::size_t count = 0;
  for (std::size_t i = 0; i < axes; ++i) count += here[i] != there[i];
  return count;
}

std::size_t place_of_quickest(const std::vector<const candidate*>& some, const std::vector<double>& host_ns,
                              double noise) {
  const double min_ns = *std::min_element(host_ns.begin(), host_ns.end());
  const auto costs = [&](std::size_t i) {
    const bool is_slow = !is_within(host_ns[i], min_ns, std::max(noise, device_counts));
    return std::tuple(is_slow, some[i]->memory, some[i]->device_ns);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < some.size(); ++i)
    if (costs(i) < costs(best)) best = i;
  return best;
}

void winner_selector::correct(const composition& c, double host_ns) {
  corrected_ns_[as_variation(c)] = host_ns;
}

/// Host times from few repetitions, or their corrections.
std::vector<double> winner_selector::compiled_ns(const list& some) {
  std::vector<composition> made;
  for (const candidate* c : some) made.push_back(c->made);
  const host_times found = measure(program_, made, capacity_, 3);
  std::vector<double> compiled;
  for (std::size_t i = 0; i < some.size(); ++i) {
    const auto corrected = corrected_ns_.find(as_variation(some[i]->made));
    compiled.push_back(corrected != corrected_ns_.end() ? corrected->second
                                                        : found.as_compiled(found.each[i]));
  }
  noise_ = found.noise;
  return compiled;
}

const candidate* winner_selector::first_in_time(const list& order, double limit_ns) {
  constexpr std::size_t at_once = 8;
  for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 16 * at_once); i += at_once) {
    const list some(order.begin() + static_cast<std::ptrdiff_t>(i),
                    order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), i + at_once)));
    const std::vector<double> times = compiled_ns(some);
    for (std::size_t k = 0; k < some.size(); ++k)
      if (times[k] <= limit_ns) return some[k];
  }
  return nullptr;
}

void winner_selector::find_best_shipped() {
  list shipped =
      those_of(tried_.tried(), [](const candidate& c) { return !c.name.empty() && c.name != "passthrough"; });
  order_by(shipped, memory_of);
  const candidate* best = shipped.empty() ? nullptr : shipped.front();
  if (must_keep_host_limit_) best = first_in_time(shipped, host_limit_ns_);
  has_shipped_ = best != nullptr;
  if (!has_shipped_) best = tried_.best_shipped();
  shipped_ = best != nullptr ? *best : tried_.pytorch();
}

const candidate* winner_selector::least_within_limits() {
  const std::uint64_t device_limit_ns = tried_.device_limit_ns();
  list left = those_of(tried_.tried(), [&](const candidate& c) { return c.device_ns <= device_limit_ns; });
  order_by(left, memory_of);
  for (int round = 0; round < 16 && !left.empty(); ++round) {
    const std::size_t min_memory = left.front()->memory;
    max_memory_ = static_cast<std::size_t>(number(min_memory) * (1 + memory_counts));
    if (has_shipped_ && shipped_.memory >= min_memory) max_memory_ = std::min(max_memory_, shipped_.memory);
    const auto end = std::find_if(left.begin(), left.end(), [&](auto* c) { return c->memory > max_memory_; });
    list near(left.begin(), end);
    order_by(near, [](const candidate& c) { return std::pair(c.device_ns, deviations(c.made)); });
    if (near.size() > 8) near.resize(8);
    if (const candidate* const found = first_in_time(near, host_limit_ns_)) return found;
    left.erase(left.begin(), end);
  }
  return nullptr;
}

const candidate* winner_selector::as_little_as_shipped() {
  max_memory_ = shipped_.memory;
  list enough = those_of(tried_.tried(), [&](const candidate& c) { return c.memory <= shipped_.memory; });
  order_by(enough, device_ns_of);
  double limit_ns = host_limit_ns_;
  if (!must_keep_host_limit_) limit_ns = std::max(limit_ns, 1.1 * compiled_ns({&shipped_})[0]);
  const candidate* const found = first_in_time(enough, limit_ns);
  return found != nullptr ? found : &shipped_;
}

/// Selects the fastest among the first candidates, which are the fastest by estimate, and those with least
/// memory.
candidate winner_selector::quickest_of(list some) {
  constexpr std::size_t count = 32;
  const auto rest = some.begin() + static_cast<std::ptrdiff_t>(std::min(count, some.size()));
  std::stable_sort(rest, some.end(), [](auto* a, auto* b) { return a->memory < b->memory; });
  if (some.size() > 2 * count) some.resize(2 * count);
  const std::vector<double> times = compiled_ns(some);
  return *some[place_of_quickest(some, times, noise_)];
}

candidate winner_selector::without_limits() {
  max_memory_ = unlimited;
  list all = those_of(tried_.tried(), [](const candidate&) { return true; });
  if (all.empty()) {
    why_ = reason::nearest;
    const auto& tried = tried_.tried();
    return *std::min_element(tried.begin(), tried.end(), [](const candidate& a, const candidate& b) {
      return std::pair(a.needs_program_changes, a.memory) < std::pair(b.needs_program_changes, b.memory);
    });
  }
  why_ = reason::least_device_time;
  order_by(all, device_ns_of);
  if (const candidate* const found = first_in_time(all, host_limit_ns_)) return *found;
  if (!must_keep_host_limit_) return *all.front();
  order_by(all, host_share_of);
  if (const candidate* const found = first_in_time(all, host_limit_ns_)) return *found;
  why_ = reason::quickest;
  return quickest_of(std::move(all));
}

candidate winner_selector::choose() {
  why_ = reason::least_memory;
  const candidate* found = least_within_limits();
  if (has_shipped_ && (found == nullptr || found->memory > shipped_.memory)) {
    why_ = reason::least_as_shipped;
    found = as_little_as_shipped();
  }
  return found != nullptr ? *found : without_limits();
}

candidate winner_selector::winner(const std::vector<std::pair<std::string, composition>>& shipped) {
  find_best_shipped();
  candidate best = choose();
  // Memory found while searching may be slightly too large; evaluate it exactly.
  for (int round = 0; round < 8 && !best.is_exact; ++round) (void)tried_.evaluate(best.made), best = choose();
  if (why_ == reason::nearest || why_ == reason::quickest) return tried_.evaluate(best.made);

  candidate now = best;
  // If the winner exceeds a limit, simpler ones may, too.
  const bool keeps_both = why_ == reason::least_memory || must_keep_host_limit_;
  const double limit_ns = std::max(host_limit_ns_, keeps_both ? 0 : 1.1 * compiled_ns({&best})[0]);
  const std::uint64_t max_device_ns =
      why_ == reason::least_memory ? tried_.device_limit_ns() : ~std::uint64_t{0};
  const auto try_with = [&](std::size_t axis, const composition& as_in) {
    const composition simpler = with_axis_of(now.made, axis, as_in);
    if (simpler == now.made) return;
    const candidate found = tried_.evaluate(simpler);
    const bool is_cheap = is_within(number(found.device_ns), number(best.device_ns), device_counts);
    if (found.is_eligible() && found.memory <= max_memory_ && is_cheap && found.device_ns <= max_device_ns &&
        first_in_time({&found}, limit_ns) != nullptr)
      now = found;
  };
  const auto plain = policy_texts(composition{});
  for (int round = 0; round < 2; ++round) {
    for (std::size_t axis = 0; axis < axes; ++axis) try_with(axis, composition{});
    for (std::size_t axis = 0; axis < axes; ++axis) {
      for (const auto& [name, made] : shipped) {
        const std::string here = policy_texts(now.made)[axis];
        if (here != plain[axis] && policy_texts(made)[axis].size() < here.size()) try_with(axis, made);
      }
    }
  }
  return now;
}

}  // namespace replay::tune
