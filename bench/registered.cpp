// SPDX-License-Identifier: Apache-2.0
// What memory costs that is registered with a network and does not move: the peak reserved of `stitched`, in recorded
// programs of which a share of the bytes is registered when it is allocated. Arguments are recordings; without any, those in
// examples/traces.
//
// `until_free`: each block is deregistered when it is freed. `sizes_for_ever`: blocks of some sizes are registered, and
// never deregistered. `any_for_ever`: random blocks, likewise. The argument is the share of the blocks, in percent.
//
// Counters: peak reserved in MiB, its ratio to that without registrations, and the share of the live bytes that is
// registered when these are at their peak.

#include <benchmark/benchmark.h>

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

using namespace tessera::literals;
using registrations = tessera::extension::registrations<>;

enum class rule : unsigned char { until_free, sizes_for_ever, any_for_ever };

/// Whether a block is registered: `percent` of all numbers are.
bool is_registered(std::uint64_t number, std::uint64_t percent) {
  std::uint64_t mixed = (number * 31 + 7) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return (mixed ^ (mixed >> 31)) % 100 < percent;
}

struct peaks {
  double reserved = 0;  ///< bytes
  double share = 0;     ///< of the live bytes at their peak
};

peaks replay(const bench::recording& run, rule by, std::uint64_t percent) {
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0;
    bool is_registered = false;
  };
  const tessera::trace::program program(run);
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, registrations>
      pool;
  auto door = pool.get<registrations>();
  std::vector<block> blocks(program.slot_count() + 1);
  std::size_t live = 0, registered = 0, peak = 0;
  peaks found;
  bool works = true;
  for (std::size_t i = 0; i < program.events().size(); ++i) {
    const bench::event& e = program.events()[i];
    const std::size_t slot = program.slot(i);
    block& b = blocks[slot];
    if (e.what == bench::event::kind::allocate) {
      const std::uint64_t number = by == rule::any_for_ever ? slot : e.bytes;
      b = {pool.allocate(e.bytes, e.stream), e.bytes, is_registered(number, percent)};
      if (b.is_registered) works = works && door.register_memory(b.p, b.bytes);
      live += b.bytes;
      registered += b.is_registered ? b.bytes : 0;
      if (live > peak) {
        peak = live;
        found.share = static_cast<double>(registered) / static_cast<double>(live);
      }
    } else if (e.what == bench::event::kind::free) {
      if (b.is_registered && by == rule::until_free) works = works && door.deregister_memory(b.p, b.bytes);
      pool.deallocate(b.p);
      live -= b.bytes;
      registered -= b.is_registered ? b.bytes : 0;
    }
  }
  found.reserved = works ? static_cast<double>(pool.provider().peak_used()) : 0;
  return found;
}

void add(const std::string& title, const bench::shared_recording& run) {
  constexpr std::pair<rule, const char*> rules[] = {{rule::until_free, "until_free"},
                                                    {rule::sizes_for_ever, "sizes_for_ever"},
                                                    {rule::any_for_ever, "any_for_ever"}};
  for (const auto& [by, name] : rules) {
    benchmark::RegisterBenchmark(("registered<" + std::string(name) + ">/" + title).c_str(),
                                 [run, by = by](benchmark::State& state) {
                                   const double alone = replay(*run, by, 0).reserved;
                                   peaks found;
                                   for (auto _ : state)
                                     found = replay(*run, by, static_cast<std::uint64_t>(state.range(0)));
                                   if (found.reserved == 0) state.SkipWithError("a registration failed");
                                   state.counters["reserved_MiB"] =
                                       found.reserved / static_cast<double>(1_MiB);
                                   state.counters["ratio"] = found.reserved / alone;
                                   state.counters["share"] = found.share;
                                 })
        ->Arg(0)
        ->Arg(10)
        ->Arg(33)
        ->Arg(50)
        ->Arg(75)
        ->Arg(100)
        ->Iterations(1)
        ->Repetitions(1)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (!bench::for_each_argument(argc, argv, add)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
