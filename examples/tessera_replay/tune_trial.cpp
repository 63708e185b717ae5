// SPDX-License-Identifier: Apache-2.0
#include "tune_trial.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>

#include "capacity.hpp"

namespace replay::tune {
namespace {

/// Nanoseconds for which this thread has had a processor.
double processor_ns() {
  std::timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

std::size_t operations(const trace::program& program) {
  return std::max<std::size_t>(1, program.events().size());
}

/// Ends a replay early.
struct given_up {};

template <typename Recipe>
outcome run(const trace::program& program, const policies<Recipe>& chosen, std::size_t capacity,
            const limits& until) {
  caching_allocator<Recipe, simulated_device> pool{device_of(capacity), chosen};
  const double begin = processor_ns();
  const double end = begin + until.processor_ns * static_cast<double>(operations(program));
  const auto before = [&](std::size_t i) {
    if (i % 128 != 0) return;
    const bool is_late = until.processor_ns > 0 && i % 4096 == 0 && processor_ns() > end;
    if (is_late || pool.device().used() > until.reserved || pool.device().now_ns() > until.device_ns)
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
  found.peak_reserved = pool.device().peak_used();
  found.device_ns = pool.device().now_ns();
  const auto& made = pool.device().calls();
  found.calls = made.acquire + made.release + made.create + made.destroy + made.map + made.unmap;
  found.given_up =
      found.given_up || found.device_ns > until.device_ns || found.peak_reserved > until.reserved;
  return found;
}

/// Processor time of one operation in nanoseconds, over as many replays as make it measurable.
template <typename Recipe>
double host_ns(const trace::program& program, const policies<Recipe>& chosen, std::size_t capacity) {
  const std::size_t replays = std::min<std::size_t>(1000, 20'000 / operations(program) + 1);
  double spent = 0;
  for (std::size_t i = 0; i < replays; ++i) {
    caching_allocator<Recipe, simulated_device> pool{device_of(capacity), chosen};
    const double begin = processor_ns();
    (void)trace::replay(program, pool);
    spent += processor_ns() - begin;
  }
  return spent / static_cast<double>(replays * operations(program));
}

double host_ns(const trace::program& program, const composition& c, std::size_t capacity) {
  return with_recipe(c, [&]<typename Recipe>(const policies<Recipe>& chosen) {
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
  return with_recipe(c, [&]<typename Recipe>(const policies<Recipe>& chosen) {
    return run<Recipe>(program, chosen, capacity, until);
  });
}

std::size_t least_capacity(const trace::program& program, const composition& c) {
  const auto completes = [&](std::size_t capacity) {
    return !replay_once(program, c, capacity, {.failures = true}).given_up;
  };
  return replay::least_capacity(std::max<std::size_t>(1, program.peak_live()), 2 * max_request, completes)
      .value_or(unlimited);
}

std::size_t least_capacity_up_to(const trace::program& program, const composition& c, std::size_t most,
                                 std::size_t step, limits until) {
  until.failures = true;
  const auto completes = [&](std::size_t capacity) {
    return !replay_once(program, c, capacity, until).given_up;
  };
  if (!completes(most)) return unlimited;
  return bisected(std::min(most, program.peak_live()) - 1, most, step, completes);
}

host_times measure(const trace::program& program, const std::vector<composition>& some, std::size_t capacity,
                   std::size_t repetitions) {
  std::vector<std::vector<double>> each(some.size());
  std::vector<double> yardstick;
  std::vector<double> compiled;
  for (std::size_t r = 0; r < repetitions; ++r) {
    yardstick.push_back(host_ns(program, composition{}, capacity));
    compiled.push_back(host_ns<pytorch<>>(program, {}, capacity));
    for (std::size_t i = 0; i < some.size(); ++i) each[i].push_back(host_ns(program, some[i], capacity));
    yardstick.push_back(host_ns(program, composition{}, capacity));
  }
  // What disturbs makes slower, so the lower quartile is nearer to the truth than the median.
  host_times found{.pytorch = quantile(yardstick, 25), .pytorch_compiled = quantile(compiled, 25)};
  found.noise = (quantile(yardstick, 75) - found.pytorch) / found.pytorch;
  for (const auto& times : each) found.each.push_back(quantile(times, 25));
  return found;
}

}  // namespace replay::tune
