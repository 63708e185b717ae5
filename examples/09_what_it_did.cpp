// SPDX-License-Identifier: Apache-2.0
// What an allocator did: why it ran out of memory, its latest events under labels, and all that it counts.
#include <cstdio>

#include <tessera/adaptor/history.hpp>
#include <tessera/adaptor/report.hpp>
#include <tessera/adaptor/timed.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

int main() {
  tessera::simulated_device device({.capacity = 1_GiB});
  tessera::call_times times;
  using timed = tessera::timed<tessera::simulated_device>;  // measures the device's calls
  using watched = tessera::caching_allocator<tessera::pytorch<>, timed, tessera::history<>>;
  watched pool{timed(device, times)};

  pool.sink().label("load");
  void* weights = pool.allocate(300_MiB);
  pool.sink().label("step 1");
  void* input = pool.allocate(500_MiB);
  try {
    input = pool.allocate(400_MiB);
  } catch (const tessera::out_of_memory& error) {
    std::puts(error.what());
  }
  pool.deallocate(input);

  // The latest events, the oldest first.
  pool.sink().for_each([&pool](const auto& seen) {
    using action = tessera::allocator_event::action;
    if (seen.event.what == action::alloc || seen.event.what == action::oom)
      std::printf("%-8s %s %zu bytes\n", pool.sink().text_of(seen).data(),
                  seen.event.what == action::oom ? "no room for" : "got", seen.event.bytes);
  });
  std::puts(tessera::table_of(tessera::report_of(pool, &times)).c_str());
  pool.deallocate(weights);
  return pool.audit() == nullptr ? 0 : 1;
}
