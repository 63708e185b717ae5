// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "compare.hpp"
#include "input.hpp"
#include "neighbours.hpp"
#include "on_all_cores.hpp"
#include "recipes.hpp"
#include "terminal.hpp"

namespace {

using namespace replay;

/// Whether a neighbour completes with a capacity. Its own seed decides the times of its streams and the addresses.
bool completes(const tessera::trace::program& program, const any_recipe& recipe, const variation& by,
               std::uint64_t seed, std::size_t capacity) {
  using kind = tessera::trace::event::kind;
  simulated_allocator pool = recipe.make(device_of(capacity, by.addresses ? seed : 0));
  random_numbers random(seed);
  const auto before = [&](std::size_t i) {
    if (!by.timing || seed == 0) return;
    pool.provider().advance(random.below(20'000));
    const tessera::trace::event& e = program.events()[i];
    if (e.what == kind::record_stream) pool.provider().submit(e.stream, random.below(2'000'000));
  };
  return tessera::trace::replay(program, pool, before, [](std::size_t, auto) {}) == 0;
}

/// The neighbours of one recorded program under one recipe.
class neighbourhood {
 public:
  neighbourhood(const tessera::trace::recording& recorded, any_recipe recipe, const variation& by,
                std::uint64_t seed)
      : recorded_(recorded), steps_(recorded), recipe_(std::move(recipe)), by_(by), seed_(seed) {}

  [[nodiscard]] std::size_t steps() const noexcept { return steps_.count(); }

  /// The numbers of a neighbour.
  struct needs {
    std::size_t peak_live = 0;
    std::size_t capacity = 0;  // 0 if no capacity suffices
  };
  /// Finds the capacity that a neighbour needs, to a two-thousandth of what it needs at least.
  [[nodiscard]] needs needs_of(std::size_t number) const {
    const tessera::trace::recording made = neighbour_of(recorded_, steps_, by_, seed_of(number));
    const tessera::trace::program program(made);
    const std::size_t step = std::max<std::size_t>(program.min_reserved() / 2'000, 1);
    const auto works = [&](std::size_t capacity) {
      return completes(program, recipe_, by_, seed_of(number), capacity);
    };
    // Most need little more than peak live.
    std::size_t too_small = program.min_reserved() - 1, enough = program.min_reserved();
    for (std::size_t more = 32 * step; !works(enough); more *= 2) {
      if (enough > tessera::max_request) return {program.peak_live(), 0};
      too_small = enough;
      enough += more;
    }
    return {program.peak_live(), bisect(too_small, enough, step, works)};
  }
  [[nodiscard]] bool completes_with(std::size_t number, std::size_t capacity) const {
    const tessera::trace::recording made = neighbour_of(recorded_, steps_, by_, seed_of(number));
    return completes(tessera::trace::program(made), recipe_, by_, seed_of(number), capacity);
  }
  /// The capacity that the recorded program itself needs.
  [[nodiscard]] std::optional<std::size_t> fitted() const {
    const tessera::trace::program program(recorded_);
    return min_capacity(program.min_reserved(), 2 * tessera::max_request,
                        [&](std::size_t capacity) { return completes(program, recipe_, {}, 0, capacity); });
  }

 private:
  /// Number 0 is the recorded program.
  [[nodiscard]] std::uint64_t seed_of(std::size_t number) const {
    return number == 0 ? 0 : (seed_ + 1) * 0x9E3779B97F4A7C15u + number * 0xD1B54A32D192ED03u;
  }

  const tessera::trace::recording& recorded_;
  recorded_steps steps_;
  any_recipe recipe_;
  variation by_;
  std::uint64_t seed_;
};

constexpr std::size_t sampled = 200;  // neighbours whose needs are found
constexpr std::size_t max_raises = 8;

/// What was found for one recorded program.
struct headroom_found {
  std::size_t capacity = 0;      // that suffices; 0 if none does
  std::size_t trials = 0;        // fresh neighbours that were replayed with it
  std::size_t failed = 0;        // of these
  std::size_t fit = 0;           // the capacity that the recorded program itself needs
  std::size_t failed_fit = 0;    // of the sampled neighbours
  std::size_t peak_live = 0;     // of the recorded program
  std::size_t largest_live = 0;  // of the sampled neighbours
  std::size_t steps = 0;         // that the recording marks
};

/// The numbers of the neighbours, of `count` from `first` on, that do not complete with a capacity.
std::vector<std::size_t> failing_neighbours(const neighbourhood& all, std::size_t first, std::size_t count,
                                            std::size_t capacity, const std::string& title) {
  std::vector<std::size_t> failing;
  std::atomic<std::size_t> begun = 0;
  std::mutex guard;
  on_all_cores(count, [&](std::size_t i) {
    const std::size_t so_far = ++begun;
    if (so_far % 64 == 0) {
      const std::lock_guard lock(guard);
      progress_line::show(title + ": replayed " + std::to_string(so_far) + " of " + std::to_string(count) +
                          " neighbours with " + std::to_string(capacity) + " bytes");
    }
    if (all.completes_with(first + i, capacity)) return;
    const std::lock_guard lock(guard);
    failing.push_back(first + i);
  });
  return failing;
}

headroom_found find_headroom(const neighbourhood& all, const arguments& args, const std::string& title) {
  headroom_found found{.steps = all.steps()};
  const auto fit = all.fitted();
  if (!fit) return found;
  found.fit = *fit;
  std::vector<neighbourhood::needs> samples(sampled);
  std::atomic<std::size_t> begun = 0, failed_fit = 0;
  std::mutex guard;
  on_all_cores(sampled, [&](std::size_t i) {
    {
      const std::lock_guard lock(guard);
      progress_line::show(title + ": neighbour " + std::to_string(++begun) + " of " +
                          std::to_string(sampled));
    }
    samples[i] = all.needs_of(i);
    if (i != 0 && !all.completes_with(i, found.fit)) ++failed_fit;
  });
  found.failed_fit = failed_fit;
  found.peak_live = samples[0].peak_live;
  double sum = 0, squares = 0;
  std::size_t largest = found.fit;
  for (const neighbourhood::needs& n : samples) {
    if (n.capacity == 0) return found;
    found.largest_live = std::max(found.largest_live, n.peak_live);
    largest = std::max(largest, n.capacity);
    sum += static_cast<double>(n.capacity);
  }
  const double mean = sum / sampled;
  for (const neighbourhood::needs& n : samples) {
    const double off = static_cast<double>(n.capacity) - mean;
    squares += off * off;
  }
  const double deviation = std::sqrt(squares / (sampled - 1));
  const auto one_deviation = static_cast<std::size_t>(deviation) + 1;
  found.trials = args.trials;
  if (args.has_capacity) {
    found.capacity = args.capacity;
    found.failed = failing_neighbours(all, sampled, args.trials, args.capacity, title).size();
    return found;
  }
  // Five deviations above the mean are far in the tail of a normal distribution. Fresh neighbours then test that, because
  // the distribution is not known to be normal.
  std::size_t capacity = std::max(largest + one_deviation, static_cast<std::size_t>(mean + 5 * deviation));
  for (std::size_t raise = 0, first = sampled; raise < max_raises; ++raise, first += args.trials) {
    const std::vector<std::size_t> failing = failing_neighbours(all, first, args.trials, capacity, title);
    found.failed = failing.size();
    found.capacity = capacity;
    if (failing.empty()) break;
    std::vector<std::size_t> needed(failing.size());
    on_all_cores(failing.size(), [&](std::size_t i) { needed[i] = all.needs_of(failing[i]).capacity; });
    capacity = std::max(capacity, *std::max_element(needed.begin(), needed.end())) + one_deviation;
  }
  return found;
}

/// The probability of at most `failed` failures in `trials`, if each fails with probability `p`.
double probability_of_at_most(std::size_t failed, std::size_t trials, double p) {
  const auto n = static_cast<double>(trials);
  double sum = 0;
  // From the largest term on, the terms fall quickly. Logarithms keep them from vanishing.
  for (std::size_t k = failed + 1; k-- > 0;) {
    const auto i = static_cast<double>(k);
    const double term = std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) +
                                 i * std::log(p) + (n - i) * std::log1p(-p));
    sum += term;
    if (i < n * p && term < sum * 1e-12) break;
  }
  return sum;
}

/// How many of 10,000 fail at most, with 95 % confidence, if `failed` of `trials` did.
///   Source:  Clopper and Pearson's upper bound
double failures_in_10000(std::size_t failed, std::size_t trials) {
  if (failed >= trials) return 10'000;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (probability_of_at_most(failed, trials, middle) > 0.05 ? low : high) = middle;
  }
  return 10'000 * high;
}

std::string varied_text(const variation& by, std::size_t steps) {
  std::vector<std::string> parts;
  if (by.steps && steps > 1) parts.push_back("the order of " + std::to_string(steps) + " steps");
  if (by.order) parts.emplace_back("the order of frees");
  if (by.timing) parts.emplace_back("the times of streams");
  if (by.addresses) parts.emplace_back("addresses");
  char sizes[40];
  std::snprintf(sizes, sizeof sizes, "sizes by up to %g %%", by.percent);
  if (by.percent > 0) parts.emplace_back(sizes);
  return parts.empty() ? "nothing" : listed(parts);
}

void print(const std::string& title, const headroom_found& f, const variation& by, const run_settings& used) {
  std::printf("%s: a capacity of %zu bytes, %.4f times peak live\n", title.c_str(), f.capacity,
              ratio(f.capacity, f.peak_live));
  std::printf(
      "  %zu of %zu neighbours did not complete with it, so at most %.1f of 10,000 fail, with 95 %% "
      "confidence\n",
      f.failed, f.trials, failures_in_10000(f.failed, f.trials));
  std::printf("  fit finds %zu for the recorded program alone, with which %zu of %zu others fail\n", f.fit,
              f.failed_fit, sampled - 1);
  std::printf("  peak live is %zu, and up to %zu in neighbours; the capacity is %.4f times the latter\n",
              f.peak_live, f.largest_live, ratio(f.capacity, f.largest_live));
  std::printf("  varied: %s\n  used: %s\n", varied_text(by, f.steps).c_str(), recipe_text(used).c_str());
}

void print_json(const std::string& name, const headroom_found& f, const run_settings& used) {
  std::printf(
      "{\"trace\": \"%s\", \"recipe\": \"%s\", \"capacity\": %zu, \"trials\": %zu, \"failed\": %zu, "
      "\"failures_in_10000\": %.3f, \"fit\": %zu, \"failed_with_fit\": %.4f, \"peak_live\": %zu, "
      "\"largest_peak_live\": %zu, \"steps\": %zu, %s}",
      json_text(name).c_str(), json_text(used.recipe).c_str(), f.capacity, f.trials, f.failed,
      failures_in_10000(f.failed, f.trials), f.fit, static_cast<double>(f.failed_fit) / (sampled - 1),
      f.peak_live, f.largest_live, f.steps, settings_json(used).c_str());
}

}  // namespace

int replay::commands::headroom(const arguments& args) {
  int code = done;
  std::size_t of_all = 0, programs = 0;
  json_list list(args.json);
  const auto refuse = [&](const std::string& file, const std::string& wrong) {
    code = std::max(code, print_error(wrong));
    list.add_error("trace", title_of(file), wrong);
  };
  for (const std::string& file : args.files) {
    const auto read = read_traces(file, args.device);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      refuse(file, wrong->text());
      continue;
    }
    for (const auto& one : std::get<traces>(read).each) {
      if (const auto* const wrong = std::get_if<input_error>(&one)) {
        refuse(file, wrong->text());
        continue;
      }
      const auto& trace = std::get<run_trace>(one);
      run_settings used = settle(args, trace.known);
      used.limit = tessera::unlimited;  // a capacity is wanted, so the recorded one is no limit
      const recipe_or_error chosen = choose_recipe(used);
      if (const auto* const wrong = std::get_if<std::string>(&chosen)) {
        refuse(file, *wrong);
        continue;
      }
      const neighbourhood all(trace.made, std::get<any_recipe>(chosen), args.varied, args.seed);
      const headroom_found found = find_headroom(all, args, trace.made.name);
      progress_line::clear();
      list.next();
      if (found.capacity == 0) {
        code = std::max<int>(code, differs);
        args.json ? std::printf("{\"trace\": \"%s\", \"recipe\": \"%s\", \"capacity\": null, %s}",
                                json_text(trace.made.name).c_str(), json_text(used.recipe).c_str(),
                                settings_json(used).c_str())
                  : std::printf("%s: some neighbours complete with no capacity\n",
                                title_of(used, trace.made.name).c_str());
        continue;
      }
      args.json ? print_json(trace.made.name, found, used)
                : print(title_of(used, trace.made.name), found, args.varied, used);
      of_all = std::max(of_all, found.capacity);
      ++programs;
      if (found.failed != 0) code = std::max<int>(code, differs);
    }
  }
  if (programs > 1 && !args.json && !args.has_capacity)
    std::printf("all %zu programs: a capacity of %zu bytes\n", programs, of_all);
  return code;
}
