// SPDX-License-Identifier: Apache-2.0
// What memory costs that is registered with a network and does not move: the peak reserved of `stitched`, in recorded
// programs of which a share is registered. Arguments are recordings; without any, those in examples/traces.
//
// `until_free`: the argument is the share of the blocks, in percent. They are registered when they are allocated, and
// deregistered when they are freed. `first_for_ever`, `any_for_ever`: the argument is the share of the memory. Blocks are
// registered when they are allocated, and never deregistered, as long as the chunks under them are at most that share of
// the memory that the program has reserved by then. `first_for_ever` registers each block that the share still allows, so mostly the first ones;
// `any_for_ever` tries random ones, as many of all as the argument says.
//
// Each result is of ten random choices. Counters: the geometric mean of the ratios of peak reserved to that without
// registrations, and the largest of them; the mean share of the memory that is registered when the live bytes are at their
// peak, and in the end.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tessera/extension/registrations.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "replayed.hpp"

namespace {

using registrations = tessera::extension::registrations<>;

enum class rule : unsigned char { until_free, first_for_ever, any_for_ever };

constexpr std::uint64_t choices = 10;

/// Whether a block is chosen: `percent` of all numbers are, and others in each choice.
bool is_chosen(std::uint64_t number, std::uint64_t choice, std::uint64_t percent) {
  std::uint64_t mixed = (number * choices + choice + 1) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return (mixed ^ (mixed >> 31)) % 100 < percent;
}

struct peaks {
  std::size_t reserved = 0;  ///< bytes; 0 if a registration failed
  double share_at_peak = 0;  ///< registered, of the memory when the live bytes were at their peak
  double share_at_end = 0;   ///< registered, of the memory in the end
};

peaks replay(const bench::recording& run, rule by, std::uint64_t percent, std::uint64_t choice) {
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0;
    bool is_registered = false;
  };
  const tessera::trace::program program(run);
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, registrations>
      pool;
  auto door = pool.get<registrations>();
  const auto share = [&] {
    return static_cast<double>(door.bytes()) / static_cast<double>(pool.provider().used());
  };
  std::vector<block> blocks(program.slot_count() + 1);
  std::size_t live = 0, peak = 0;
  peaks found;
  for (std::size_t i = 0; i < program.events().size(); ++i) {
    const bench::event& e = program.events()[i];
    const std::size_t slot = program.slot(i);
    block& b = blocks[slot];
    if (e.what == bench::event::kind::allocate) {
      b = {pool.allocate(e.bytes, e.stream), e.bytes,
           by == rule::first_for_ever || is_chosen(slot, choice, percent)};
      if (b.is_registered && !door.register_memory(b.p, b.bytes)) return {};
      // A registration that is too much is taken back, before anything could move.
      if (b.is_registered && by != rule::until_free && share() * 100 > static_cast<double>(percent)) {
        if (!door.deregister_memory(b.p, b.bytes)) return {};
      }
      live += b.bytes;
      if (live > peak) {
        peak = live;
        found.share_at_peak = share();
      }
    } else if (e.what == bench::event::kind::free) {
      if (b.is_registered && by == rule::until_free && !door.deregister_memory(b.p, b.bytes)) return {};
      pool.deallocate(b.p);
      live -= b.bytes;
    }
  }
  found.reserved = pool.provider().peak_used();
  found.share_at_end = share();
  return found;
}

void measure(benchmark::State& state, const bench::recording& run, rule by) {
  const auto percent = static_cast<std::uint64_t>(state.range(0));
  const auto alone = static_cast<double>(replay(run, by, 0, 0).reserved);
  double product = 1, largest = 0;
  peaks sum;
  for (auto _ : state) {
    for (std::uint64_t choice = 0; choice < choices; ++choice) {
      const peaks found = replay(run, by, percent, choice);
      if (found.reserved == 0) return state.SkipWithError("a registration failed");
      const double ratio = static_cast<double>(found.reserved) / alone;
      product *= ratio;
      largest = std::max(largest, ratio);
      sum.share_at_peak += found.share_at_peak;
      sum.share_at_end += found.share_at_end;
    }
  }
  state.counters["ratio"] = std::pow(product, 1.0 / choices);
  state.counters["largest"] = largest;
  state.counters["share_at_peak"] = sum.share_at_peak / choices;
  state.counters["share_at_end"] = sum.share_at_end / choices;
}

void add(const std::string& title, const bench::shared_recording& run) {
  constexpr std::pair<rule, const char*> rules[] = {{rule::until_free, "until_free"},
                                                    {rule::first_for_ever, "first_for_ever"},
                                                    {rule::any_for_ever, "any_for_ever"}};
  for (const auto& [by, name] : rules) {
    auto* const added =
        benchmark::RegisterBenchmark(("registered<" + std::string(name) + ">/" + title).c_str(),
                                     [run, by = by](benchmark::State& state) { measure(state, *run, by); });
    for (const int percent : {0, 10, 33, 50, 75, 100}) added->Arg(percent);
    added->Iterations(1)->Repetitions(1)->Unit(benchmark::kMillisecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (!bench::for_each_argument(argc, argv, add)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
