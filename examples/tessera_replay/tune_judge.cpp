// SPDX-License-Identifier: Apache-2.0
#include "tune_judge.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tune_text.hpp"
#include "tune_trial.hpp"

namespace replay::tune {

std::size_t deviations(const composition& c) {
  const auto here = policy_texts(c);
  const auto there = policy_texts(composition{});
  std::size_t count = 0;
  for (std::size_t i = 0; i < axes; ++i) count += here[i] != there[i];
  return count;
}

/// Host times from few repetitions.
std::vector<double> judge::compiled_ns(const list& some) const {
  std::vector<composition> made;
  for (const candidate* c : some) made.push_back(c->made);
  const host_times found = measure(program_, made, capacity_, 3);
  std::vector<double> compiled;
  for (double ns : found.each) compiled.push_back(found.as_compiled(ns));
  return compiled;
}

const candidate* judge::first_in_time(const list& order, double limit_ns) const {
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

void judge::find_best_shipped() {
  list shipped;
  for (const candidate& c : tried_.tried())
    if (!c.name.empty() && c.name != "passthrough" && c.may_win()) shipped.push_back(&c);
  std::stable_sort(shipped.begin(), shipped.end(), [](auto* a, auto* b) { return a->memory < b->memory; });
  const candidate* best = shipped.empty() ? nullptr : shipped.front();
  if (must_keep_host_limit_) best = first_in_time(shipped, host_limit_ns_);
  has_shipped_ = best != nullptr;
  shipped_ = has_shipped_ ? *best : tried_.pytorch();
}

const candidate* judge::least_within_limits() {
  list left;
  for (const candidate& c : tried_.tried())
    if (c.may_win() && c.device_ns <= tried_.device_limit_ns()) left.push_back(&c);
  std::stable_sort(left.begin(), left.end(), [](auto* a, auto* b) { return a->memory < b->memory; });
  for (int round = 0; round < 16 && !left.empty(); ++round) {
    const std::size_t least = left.front()->memory;
    most_memory_ = static_cast<std::size_t>(number(least) * (1 + memory_counts));
    if (has_shipped_ && shipped_.memory >= least) most_memory_ = std::min(most_memory_, shipped_.memory);
    const auto end =
        std::find_if(left.begin(), left.end(), [&](auto* c) { return c->memory > most_memory_; });
    list near(left.begin(), end);
    std::stable_sort(near.begin(), near.end(), [](auto* a, auto* b) {
      return std::pair(a->device_ns, deviations(a->made)) < std::pair(b->device_ns, deviations(b->made));
    });
    if (near.size() > 8) near.resize(8);
    if (const candidate* const found = first_in_time(near, host_limit_ns_)) return found;
    left.erase(left.begin(), end);
  }
  return nullptr;
}

const candidate* judge::as_little_as_shipped() {
  most_memory_ = shipped_.memory;
  list enough;
  for (const candidate& c : tried_.tried())
    if (c.may_win() && c.memory <= shipped_.memory) enough.push_back(&c);
  std::stable_sort(enough.begin(), enough.end(),
                   [](auto* a, auto* b) { return a->device_ns < b->device_ns; });
  double limit_ns = host_limit_ns_;
  if (!must_keep_host_limit_) limit_ns = std::max(limit_ns, 1.1 * compiled_ns({&shipped_})[0]);
  const candidate* const found = first_in_time(enough, limit_ns);
  return found != nullptr ? found : &shipped_;
}

/// Where nothing keeps the limits: what takes least of the device's time, or if host time is bounded, the quickest; where
/// nothing completes, what needs least.
candidate judge::without_limits() {
  keeps_host_limit_ = !must_keep_host_limit_;
  most_memory_ = unlimited;
  const auto& all = tried_.tried();
  return *std::min_element(all.begin(), all.end(), [&](const candidate& a, const candidate& b) {
    if (a.may_win() != b.may_win()) return a.may_win();
    if (!a.may_win()) return std::pair(a.asks_more, a.memory) < std::pair(b.asks_more, b.memory);
    return must_keep_host_limit_ ? a.host_share < b.host_share : a.device_ns < b.device_ns;
  });
}

candidate judge::choose() {
  const candidate* found = least_within_limits();
  if (has_shipped_ && (found == nullptr || found->memory > shipped_.memory)) found = as_little_as_shipped();
  return found != nullptr ? *found : without_limits();
}

candidate judge::winner(const std::vector<std::pair<std::string, composition>>& shipped) {
  find_best_shipped();
  candidate best = choose();
  // What was found while searching may be a little more, to the end.
  for (int round = 0; round < 8 && !best.is_exact; ++round) (void)tried_.look_at(best.made), best = choose();
  if (!best.completes || !keeps_host_limit_) return tried_.look_at(best.made);

  candidate now = best;
  const double limit_ns = std::max(host_limit_ns_, must_keep_host_limit_ ? 0 : 1.1 * compiled_ns({&best})[0]);
  const auto try_with = [&](std::size_t axis, const composition& as_in) {
    const composition simpler = with_axis_of(now.made, axis, as_in);
    if (simpler == now.made) return;
    const candidate found = tried_.look_at(simpler);
    const bool is_cheap = is_within(number(found.device_ns), number(best.device_ns), device_counts);
    if (found.may_win() && found.memory <= most_memory_ && is_cheap &&
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
