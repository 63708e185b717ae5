// SPDX-License-Identifier: Apache-2.0
#include "tune_search.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tune_text.hpp"
#include "tune_trial.hpp"

namespace replay::tune {
namespace {

std::string key_of(const composition& c) {
  std::string key;
  for (const std::string& policy : policy_texts(c)) key += policy + ' ';
  return key;
}

std::size_t number_of_cores() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Calls f(0) to f(count - 1) on all cores.
template <typename F>
void on_all_cores(std::size_t count, F f) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) f(i);
  };
  const std::size_t threads = std::min(number_of_cores(), count);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

search::search(const trace::program& program, search_options chosen,
               const std::vector<std::pair<std::string, composition>>& shipped)
    : program_(program), chosen_(std::move(chosen)) {
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
  const scene& known = chosen_.known;
  limits until{.failures = known.has_capacity};
  const std::size_t most = to_the_end ? unlimited : std::min(pytorch().memory, max_request) / 4 * 5;
  if (!to_the_end) {
    if (!known.has_capacity) until.reserved = most;
    until.device_ns = 2 * device_reach_ns_;
    until.processor_ns = 2 * chosen_.most_host * pytorch_ns_;
  }
  const outcome found = replay_once(program_, c, chosen_.capacity, until);
  candidate result{.made = c,
                   .memory = found.given_up ? unlimited : found.peak_reserved,
                   .device_ns = found.device_ns,
                   .calls = found.calls,
                   .host_share = found.processor_ns / pytorch_ns_,
                   .completes = !found.given_up && found.failures == 0,
                   .is_exact = to_the_end,
                   .asks_more = asks_more_of_the_program(c, known)};
  if (!known.has_capacity) return result;
  if (to_the_end) {
    result.memory = least_capacity(program_, c);
  } else if (result.completes || memory_reach_ > 0 || !any_is_cheap_) {
    const std::size_t enough = any_is_cheap_ && !result.completes ? std::min(most, memory_reach_) : most;
    result.memory = least_capacity_up_to(program_, c, enough, program_.peak_live() / 500 + 1, until);
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

/// Lets pytorch run on all cores, as what is tried does then, for its time.
void search::note_host_time() {
  std::vector<double> times(number_of_cores());
  on_all_cores(times.size(), [&](std::size_t i) {
    times[i] = replay_once(program_, composition{}, chosen_.capacity).processor_ns;
  });
  std::sort(times.begin(), times.end());
  pytorch_ns_ = std::max(1.0, times[times.size() / 2]);
}

candidate search::look_at(const composition& c) {
  const auto [at, is_new] = place_.try_emplace(key_of(c), tried_.size());
  if (is_new) tried_.emplace_back();
  candidate& place = tried_[at->second];
  if (!place.is_exact) place = tried_out(c, true);
  return place;
}

const candidate* search::best_shipped() const noexcept {
  const candidate* best = nullptr;
  for (const candidate& c : tried_) {
    if (c.name.empty() || c.name == "passthrough" || c.asks_more) continue;
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
  return !c.asks_more && (c.completes || c.memory <= memory_reach_) && c.device_ns <= device_reach_ns_ &&
         c.host_share <= chosen_.most_host;
}

/// The places of what seems best, and was not left yet: of all, and of what needs no virtual memory, those that take
/// least of the device's time with so much memory, and those that need about as little memory as any.
std::vector<std::size_t> search::worth_leaving() const {
  using costs = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;
  const auto costs_of = [](const candidate& c) { return costs(c.memory, c.device_ns, c.calls); };
  std::set<costs> left;  // what decides the same need not be left again
  for (const candidate& c : tried_)
    if (c.was_left) left.insert(costs_of(c));
  const auto may_be_left = [&](const candidate& c) {
    if (any_is_cheap_) return is_cheap(c) || (!any_completes_cheaply_ && c.may_win() && !c.name.empty());
    return !c.asks_more && c.memory != unlimited;
  };

  std::vector<std::size_t> chosen;
  const auto choose = [&](bool only_segments, std::size_t count) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tried_.size(); ++i) {
      const bool in_class = !only_segments || tried_[i].made.growth.way() == growth_way::segments;
      if (in_class && may_be_left(tried_[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return costs_of(tried_[a]) < costs_of(tried_[b]); });
    std::vector<std::size_t> front;
    std::set<costs> seen = left;
    std::uint64_t least = ~std::uint64_t{0};
    for (std::size_t i : order) {
      const candidate& c = tried_[i];
      const bool is_near = c.memory - tried_[order[0]].memory <= tried_[order[0]].memory / 100;
      if ((c.device_ns < least || is_near) && seen.insert(costs_of(c)).second) front.push_back(i);
      least = std::min(least, c.device_ns);
    }
    // The first, and others in growing distance.
    for (std::size_t i = 0; i < std::min(count, front.size()); ++i) {
      const std::size_t last = count - 1;
      chosen.push_back(front[front.size() <= count ? i : i * i * (front.size() - 1) / (last * last)]);
    }
  };
  choose(false, any_is_cheap_ && !chosen_.known.has_capacity ? 4 : 2);
  choose(true, 2);
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

void search::run() {
  while (tried_.size() < chosen_.most) {
    const candidate* const shipped = best_shipped();
    device_reach_ns_ = std::max(device_limit_ns(), shipped != nullptr ? shipped->device_ns : 0);
    if (chosen_.known.has_capacity && shipped != nullptr && !shipped->completes)
      memory_reach_ = std::min(shipped->memory, max_request) / 100 * 105;
    const auto any_is_cheap = [&](bool completing) {
      return std::any_of(tried_.begin(), tried_.end(),
                         [&](const candidate& c) { return (c.completes || !completing) && is_cheap(c); });
    };
    // Where nothing completes in reach, what takes half as long as asking for each block is better, too.
    if (memory_reach_ > 0 && !any_is_cheap(true))
      device_reach_ns_ = std::max(device_reach_ns_, asking_ns() / 2);
    any_completes_cheaply_ = any_is_cheap(true);
    any_is_cheap_ = any_is_cheap(false);
    const std::vector<std::size_t> places = worth_leaving();
    if (places.empty()) return;
    std::vector<composition> around;
    for (std::size_t i : places) {
      tried_[i].was_left = true;
      for (const composition& c : neighbours(tried_[i].made, chosen_.known)) around.push_back(c);
    }
    try_all(around);
    const auto less = [](const candidate& a, const candidate& b) {
      return std::pair(!a.may_win(), a.memory) < std::pair(!b.may_win(), b.memory);
    };
    if (chosen_.progress)
      chosen_.progress(tried_.size(), std::min_element(tried_.begin(), tried_.end(), less)->memory);
  }
}

}  // namespace replay::tune
