// SPDX-License-Identifier: Apache-2.0
// Shows what an allocator did: why it ran out of memory, its latest events under labels, its statistics, and a snapshot for
// PyTorch's viewer. Then a scheduler of batches asks what would fit, and an observer hears of each request that failed.
// Usage: example_09_what_it_did [snapshot.pickle]
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <tessera/debug/oom_observed.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/observe/would_fit.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Is called after each request that failed, and could also write a snapshot.
struct count_failures {
  std::size_t count = 0;
  void operator()(const tessera::out_of_memory& error) noexcept {
    ++count;
    std::printf("no room for %s: %s are reserved, and %s are left\n",
                tessera::format_bytes(error.requested()).text(),
                tessera::format_bytes(error.at_failure().reserved).text(),
                tessera::format_bytes(error.available()).text());
  }
};

/// A scheduler of batches starts those whose memory the allocator would get now, one after the other.
bool schedule() {
  using allocator_type = tessera::debug::oom_observed<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>,
      count_failures>;
  allocator_type allocator{tessera::provider::simulated_device({.capacity = 1_GiB})};
  allocator.deallocate(allocator.allocate(500_MiB));  // is cached
  const std::vector<tessera::observe::expected_request> queue{{300_MiB}, {400_MiB}, {200_MiB}, {200_MiB}};
  const tessera::observe::fit_answer answer = tessera::observe::would_fit(allocator, queue);
  std::printf("%zu of %zu batches fit\n", answer.served, queue.size());

  std::vector<void*> batches;
  for (std::size_t i = 0; i < answer.served; ++i) batches.push_back(allocator.allocate(queue[i].bytes));
  const bool is_right =
      allocator.observer().count == 0 && allocator.current_usage().reserved == answer.reserved;
  // A program that does not ask has its request refused.
  const bool is_refused = allocator.try_allocate(queue[answer.served].bytes) == nullptr;
  for (void* const p : batches) allocator.deallocate(p);
  return is_right && is_refused && allocator.observer().count == 1 && allocator.audit() == nullptr;
}

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
  return allocator.audit() == nullptr && schedule() ? 0 : 1;
}
