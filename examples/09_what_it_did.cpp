// SPDX-License-Identifier: Apache-2.0
// Shows what an allocator did: why it ran out of memory, its latest events under labels, its statistics, and a snapshot for
// PyTorch's viewer. Usage: example_09_what_it_did [snapshot.pickle]
#include <cstdio>
#include <fstream>
#include <string>

#include <tessera/observe/explain.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

int main(int count, char** arguments) {
  tessera::simulated_device device({.capacity = 1_GiB});
  tessera::call_times times;
  using timed = tessera::timed<tessera::simulated_device>;  // measures the calls of the device
  using watched = tessera::caching_allocator<tessera::pytorch<>, timed, tessera::history<>>;
  watched pool{timed(device, times)};

  pool.observer().label("load");
  void* weights = pool.allocate(300_MiB);
  pool.deallocate(pool.allocate(500_MiB));
  pool.observer().label("step 1");
  void* batch = pool.allocate(20_MiB);  // splits the cached block of 500 MiB
  void* activations = nullptr;
  try {
    activations = pool.allocate(490_MiB);
  } catch (const tessera::out_of_memory& error) {
    std::puts(tessera::explain(pool, error.requested(), error.stream()).text().c_str());
  }

  // The latest events, oldest first.
  pool.observer().for_each([&pool](const auto& entry) {
    using action = tessera::allocator_event::action;
    if (entry.event.what == action::alloc || entry.event.what == action::oom)
      std::printf("%-8s %s %zu bytes\n", std::string(pool.observer().label_of(entry)).c_str(),
                  entry.event.what == action::oom ? "no room for" : "got", entry.event.bytes);
  });
  std::puts(tessera::memory_report(pool, &times).table().c_str());

  if (count > 1) {
    std::ofstream file(arguments[1], std::ios::binary);
    file << tessera::to_pickle(tessera::take_snapshot(pool));
    if (!file.flush()) return 1;
  }
  for (void* p : {weights, batch, activations}) pool.deallocate(p);
  return pool.audit() == nullptr ? 0 : 1;
}
