// SPDX-License-Identifier: Apache-2.0
// Shows what an allocator did: why it ran out of memory, its latest events under labels, its statistics, and a snapshot for
// PyTorch's viewer. Usage: example_09_what_it_did [snapshot.pickle]
#include <cstdio>
#include <fstream>
#include <string>

#include <tessera/extension/observer.hpp>
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
  tessera::provider::simulated_device device({.capacity = 1_GiB});
  tessera::provider::call_times times;
  using timed =
      tessera::provider::timed<tessera::provider::simulated_device>;  // measures the calls of the device
  using observer = tessera::extension::observer<tessera::observe::history<>>;
  tessera::caching_allocator<tessera::recipe::pytorch<>, timed, observer> allocator{timed(device, times)};
  auto watch = allocator.get<observer>();

  watch.with([](auto& events) { events.label("load"); });
  void* weights = allocator.allocate(300_MiB);
  allocator.deallocate(allocator.allocate(500_MiB));
  watch.with([](auto& events) { events.label("step 1"); });
  void* batch = allocator.allocate(20_MiB);  // splits the cached block of 500 MiB
  void* activations = nullptr;
  try {
    activations = allocator.allocate(490_MiB);
  } catch (const tessera::out_of_memory& error) {
    std::puts(tessera::observe::explain(allocator, error.requested(), error.stream()).text().c_str());
  }

  // The latest events, oldest first.
  watch.with([](const auto& events) {
    events.for_each([&events](const auto& entry) {
      using action = tessera::allocator_event::action;
      if (entry.event.what == action::alloc || entry.event.what == action::oom)
        std::printf("%-8s %s %zu bytes\n", std::string(events.label_of(entry)).c_str(),
                    entry.event.what == action::oom ? "no room for" : "got", entry.event.bytes);
    });
  });
  std::puts(tessera::observe::memory_report(allocator, &times).table().c_str());

  if (count > 1) {
    std::ofstream file(arguments[1], std::ios::binary);
    file << tessera::observe::to_pickle(tessera::observe::take_snapshot(allocator));
    if (!file.flush()) return 1;
  }
  for (void* p : {weights, batch, activations}) allocator.deallocate(p);
  return allocator.audit() == nullptr ? 0 : 1;
}
