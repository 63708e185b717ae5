// SPDX-License-Identifier: Apache-2.0
// Replays recorded programs with several recipes on a simulated device, and compares the memory that each recipe reserves.
// Usage: example_12_compare_recipes trace.csv...
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

/// Replays a program with one recipe, and prints a row.
///   Returns:  peak reserved bytes over peak live bytes, or 0 if an allocation failed
template <typename Recipe>
double replay_with(const char* name, const tessera::trace::program& program) {
  tessera::caching_allocator<Recipe, tessera::provider::simulated_device> allocator;
  const std::size_t failures = tessera::trace::replay(program, allocator);
  const auto peak = static_cast<double>(allocator.provider().peak_used());
  const double ratio = peak / static_cast<double>(program.peak_live());
  std::printf("  %-24s %8.0f MiB  %6.2f\n", name, peak / (1 << 20), ratio);
  return failures == 0 ? ratio : 0;
}

int main(int count, char** arguments) {
  if (count < 2) {
    std::puts("usage: example_12_compare_recipes trace.csv...");
    return 2;
  }
  double pytorch = 0, stitched = 0;  // sums of logarithms, for the geometric means
  for (int i = 1; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto read = tessera::trace::read_csv(text, arguments[i]);
    if (const auto* wrong = std::get_if<tessera::trace::input_error>(&read)) {
      std::fprintf(stderr, "%s\n", wrong->text().c_str());
      return 2;
    }
    const tessera::trace::program program(std::get<tessera::trace::recording>(read));
    std::printf("%s: %zu operations, %zu MiB live at peak\n", arguments[i], program.events().size(),
                program.peak_live() >> 20);
    std::printf("  %-24s %12s  %s\n", "recipe", "reserved", "reserved / live");
    pytorch += std::log(replay_with<tessera::recipe::pytorch<>>("pytorch", program));
    replay_with<tessera::recipe::pytorch<"expandable_segments:True">>("pytorch, expandable", program);
    replay_with<tessera::recipe::paddle<>>("paddle", program);
    stitched += std::log(replay_with<tessera::recipe::stitched>("stitched", program));
  }
  if (!std::isfinite(pytorch + stitched)) {
    std::puts("A device of 80 GiB is too small for these programs.");
    return 1;
  }
  const auto percent_above = [&](double sum) { return 100 * (std::exp(sum / (count - 1)) - 1); };
  std::printf(
      "tessera works here. With `stitched`, these programs need %.0f %% more memory than they use; with "
      "PyTorch's decisions, %.0f %% more.\n",
      percent_above(stitched), percent_above(pytorch));
}
