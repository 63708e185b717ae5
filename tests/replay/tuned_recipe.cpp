// SPDX-License-Identifier: Apache-2.0
// Runs the recipe that tune printed, in tuned.hpp, on a trace with a capacity. Prints its peak of reserved
// bytes, the device's time in nanoseconds, and the number of failed allocations.
#include "tuned.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/lifetimes.hpp"

int main(int count, char** words) {
  if (count != 3) return 2;
  const auto text = replay::read_file(words[1]);
  const auto read = replay::read_text_trace(std::get<std::string>(text), words[1]);
  const tessera::trace::program program(std::get<tessera::trace::recording>(read));
  tessera::caching_allocator<tuned, tessera::provider::simulated_device> pool{
      tessera::provider::simulated_device{
          tessera::provider::simulated_device::options{.capacity = std::strtoull(words[2], nullptr, 10)}}};
  const std::size_t failures = tessera::trace::replay(program, pool);
  std::printf("%zu %ju %zu\n", pool.provider().peak_used(),
              static_cast<std::uintmax_t>(pool.provider().now_ns()), failures);
}
