// SPDX-License-Identifier: Apache-2.0
// Four policies of a program's own: growth by a share, an order of free blocks, a split that learns, and an eviction by cost.
// It replays recorded programs with each, and compares the memory with that of shipped recipes.
// Usage: example_20_own_policies trace.csv...
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>

#include <tessera/law/policy_laws.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

using namespace tessera::literals;

/// Takes segments of a sixteenth of what is reserved, but at least 20 MiB. For small blocks, a 64th, but at least 2 MiB.
///
/// Few large segments are better than many small ones, because free neighbours coalesce only within a segment. A share keeps
/// both costs low: the number of device calls grows with the logarithm of the memory, and a segment that stays nearly empty
/// adds only a sixteenth. What is left on the device bounds it, so that the last memory is not asked for in one piece.
struct grow_by_share {
  using backend = tessera::policy::segment_backend;  // acquires whole segments
  tessera::memory_limit limit{};                     // settable, for --memory-fraction

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const tessera::usage& now,
                                                          tessera::pool_traits in = {}) noexcept {
    const bool is_small = block <= in.small_limit_or(1_MiB);
    const std::size_t share =
        is_small ? std::max(now.reserved / 64, 2_MiB) : std::max(now.reserved / 16, 20_MiB);
    const std::size_t left = now.limit > now.reserved ? now.limit - now.reserved : 0;
    return tessera::align_up(std::max(block, std::min(share, left)), 2_MiB);
  }
  bool operator==(const grow_by_share&) const = default;
};
static_assert(tessera::policy::growth_policy<grow_by_share>);
static_assert(tessera::law::policy(grow_by_share{}));

/// Serves from the first free block behind the place where the last request of its pool ended, and goes on at the lowest
/// address.
struct next_fit : tessera::policy::split_below<> {
  std::array<std::uintptr_t, 2> last_end{};  // of each pool; the recipes below have two

  // The subtraction wraps around, so blocks below the place come last.
  [[nodiscard]] constexpr bool precedes(const tessera::free_block& a, const tessera::free_block& b,
                                        const tessera::wanted_block& wanted) const noexcept {
    const std::uintptr_t from = last_end[wanted.pool];
    return a.address - from < b.address - from;
  }
  constexpr void note_served(const tessera::served_request& now) noexcept {
    last_end[now.wanted.pool] = now.address + now.size;
  }
  bool operator==(const next_fit&) const = default;
};
static_assert(tessera::law::policy(next_fit{}));

/// Splits a block for a large request only if the remainder could have served one of the last few hundred large requests.
struct split_if_recently_wanted : tessera::policy::split_below<> {
  static constexpr std::size_t window = 256;
  std::size_t smallest = 1_MiB;  // the smallest block of a large request in the last full window
  std::size_t smallest_now = tessera::unlimited;  // that of the window that is being filled
  std::size_t requests = 0;                       // in that window

  [[nodiscard]] constexpr bool should_split(std::size_t wanted, std::size_t block,
                                            tessera::pool_traits in = {}) const noexcept {
    if (wanted <= in.small_limit_or(1_MiB)) return block > wanted;
    return block - wanted >= smallest;
  }
  constexpr void note_served(const tessera::served_request& now) noexcept {
    if (now.wanted.size <= 1_MiB) return;
    if (now.wanted.size < smallest_now) smallest_now = now.wanted.size;
    if (++requests < window) return;
    smallest = smallest_now;
    smallest_now = tessera::unlimited;
    requests = 0;
  }
  bool operator==(const split_if_recently_wanted&) const = default;
};
static_assert(tessera::law::policy(split_if_recently_wanted{}));

/// Tells the virtual time of a simulated device. For a real device, return the time of a steady clock.
struct device_time {
  [[nodiscard]] static std::uint64_t now(const tessera::provider::simulated_device& device) noexcept {
    return device.now_ns();
  }
};

/// If more than 80 % of the limit is reserved, releases idle segments before growth, and only as many as needed. First those
/// that cost the least time for each byte: they were cheap to get, served seldom, and were idle for long.
struct evict_by_cost {
  static constexpr bool counts_reuses = true;
  using call_clock = device_time;

  [[nodiscard]] static constexpr std::size_t bytes_to_evict(tessera::policy::eviction_trigger trigger,
                                                            const tessera::usage& now) noexcept {
    const std::size_t max = tessera::percent(80).of(now.limit);
    const bool evicts = trigger == tessera::policy::eviction_trigger::before_growth && now.reserved > max;
    return evicts ? now.reserved - max : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t bytes, const tessera::usage&) noexcept {
    return bytes > 2_MiB;
  }
  [[nodiscard]] static constexpr double value(const tessera::policy::idle_segment& s) noexcept {
    const auto ticks = static_cast<double>(s.acquire_ticks + s.release_ticks);
    return ticks * static_cast<double>(s.reuses + 1) / static_cast<double>(s.bytes) /
           static_cast<double>(s.age + 1);
  }
  [[nodiscard]] static constexpr bool should_evict(const tessera::policy::idle_segment& s) noexcept {
    return s.remaining > 0 && s.value <= s.min_value;
  }
  bool operator==(const evict_by_cost&) const = default;
};
static_assert(tessera::law::policy(evict_by_cost{}));

using tessera::recipe::pytorch;
using tessera::recipe::with;

/// Sums over all programs for one recipe.
struct totals {
  const char* name;
  double reserved = 0;  // logarithms of peak reserved / peak live
  double calls = 0, milliseconds = 0;
  std::size_t failures = 0, programs = 0;  // requests that were not served
  bool is_sound = true;                    // audit() found no error
};

/// Replays a program with one recipe on a device of `capacity` bytes, prints a row, and adds it to the totals.
template <typename Recipe>
void replay_with(totals& sum, const tessera::trace::program& program, std::size_t capacity) {
  tessera::caching_allocator<Recipe, tessera::provider::simulated_device> allocator(
      tessera::provider::simulated_device({.capacity = capacity}));
  sum.failures += tessera::trace::replay(program, allocator);
  if (const char* broken = allocator.audit(); broken != nullptr) {
    std::printf("%s: %s\n", sum.name, broken);
    sum.is_sound = false;
  }
  const auto& device = allocator.provider();
  const double ratio = static_cast<double>(device.peak_used()) / static_cast<double>(program.peak_live());
  const auto calls = static_cast<double>(device.calls().acquire + device.calls().release +
                                         device.calls().map + device.calls().unmap);
  const double milliseconds = static_cast<double>(device.now_ns()) / 1e6;
  std::printf("  %-26s %8.0f MiB  %6.3f %8.0f %8.1f ms\n", sum.name,
              static_cast<double>(device.peak_used()) / (1 << 20), ratio, calls, milliseconds);
  sum.reserved += std::log(ratio);
  sum.calls += calls;
  sum.milliseconds += milliseconds;
  ++sum.programs;
}

int main(int count, char** arguments) {
  if (count < 2) {
    std::puts("usage: example_20_own_policies trace.csv...");
    return 2;
  }
  std::array<totals, 7> all{{{"pytorch"},
                             {"stitched"},
                             {"growth by share"},
                             {"next fit"},
                             {"split that learns"},
                             {"small device, by age"},
                             {"small device, by cost"}}};
  for (int i = 1; i < count; ++i) {
    if (!std::filesystem::is_regular_file(arguments[i])) {
      std::fprintf(stderr, "%s: is no file\n", arguments[i]);
      return 2;
    }
    std::ifstream file(arguments[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto read = tessera::trace::read_csv(text, arguments[i]);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return 2;
    }
    const tessera::trace::program program(std::get<tessera::trace::recording>(read));
    std::printf("%s: %zu MiB live at peak\n", arguments[i], program.peak_live() >> 20);
    std::printf("  %-26s %12s  %6s %8s %11s\n", "recipe", "reserved", "/ live", "calls", "their time");
    replay_with<pytorch<>>(all[0], program, 80_GiB);
    replay_with<tessera::recipe::stitched>(all[1], program, 80_GiB);
    replay_with<with<pytorch<>, grow_by_share>>(all[2], program, 80_GiB);
    replay_with<with<pytorch<>, next_fit>>(all[3], program, 80_GiB);
    replay_with<with<pytorch<>, split_if_recently_wanted>>(all[4], program, 80_GiB);
    // Eviction matters if memory is scarce: here the device has half as much again as the program needs.
    const std::size_t small = tessera::align_up(program.peak_live() + program.peak_live() / 2, 2_MiB);
    using by_age = with<pytorch<>, tessera::policy::evict_idle_above<tessera::percent(80)>>;
    replay_with<by_age>(all[5], program, small);
    replay_with<with<pytorch<>, evict_by_cost>>(all[6], program, small);
  }
  std::puts("all programs: geometric mean of reserved / live, sums of calls and of their time");
  bool is_sound = true;
  for (const totals& sum : all) {
    std::printf("  %-26s %6.3f %8.0f %8.1f ms  %zu failures\n", sum.name,
                std::exp(sum.reserved / static_cast<double>(sum.programs)), sum.calls, sum.milliseconds,
                sum.failures);
    is_sound = is_sound && sum.is_sound;
  }
  return is_sound ? 0 : 1;
}
