// SPDX-License-Identifier: Apache-2.0
// Several memories behind one allocator: fast and slow memory of a device, and the NUMA nodes of this host.
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/numa_nodes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera::literals;
using tessera::provider::host_pinned;
using tessera::provider::simulated_device;

/// A device with HBM and DDR: segments are in HBM until nine tenths of it are full.
bool use_fast_memory_first() {
  using domains = tessera::provider::memory_domains<simulated_device, tessera::provider::spill_banks>;
  std::vector<domains::bank> banks;
  banks.push_back({simulated_device({.capacity = 16_GiB}), "hbm"});
  banks.push_back({banks[0].provider.another_bank({.capacity = 128_GiB}), "ddr"});
  tessera::caching_allocator<tessera::recipe::pytorch<>, domains> allocator{
      domains(std::move(banks), {.watermark = tessera::percent(90)})};

  void* const weights = allocator.allocate(12_GiB);
  void* const optimizer = allocator.allocate(24_GiB);
  const domains& device = allocator.provider();
  for (std::size_t i = 0; i < device.count(); ++i) {
    const tessera::provider::bank_statistics now = device.statistics(i);
    std::printf("%s: %s held in %llu requests\n", device.name(i), tessera::format_bytes(now.held).text(),
                static_cast<unsigned long long>(now.requests()));
  }
  const bool is_right = device.bank_of(weights) == 0 && device.bank_of(optimizer) == 1;
  allocator.deallocate(optimizer);
  allocator.deallocate(weights);
  return is_right;
}

/// An allocator for each NUMA node. Each prefers its node, and takes memory of the nearest other nodes once that is full.
bool use_the_node_of_the_thread() {
  const tessera::provider::numa_node_list all = tessera::provider::list_numa_nodes();
  if (!all.error.empty()) {
    std::printf("the nodes are unknown: %s\n", all.error.c_str());
    return true;
  }
  std::vector<host_pinned> nodes;  // shared by all allocators
  for (const tessera::provider::numa_node& node : all.nodes) {
    const host_pinned::options settings{.pin = host_pinned::pinning::where_allowed, .node = node.number};
    nodes.push_back(nodes.empty() ? host_pinned(settings) : nodes[0].another_bank(settings));
  }

  using node_ref = tessera::provider::provider_ref<host_pinned>;
  using domains = tessera::provider::memory_domains<node_ref, tessera::provider::prefer_bank>;
  std::vector<domains> preferring;
  for (std::size_t preferred = 0; preferred < nodes.size(); ++preferred) {
    std::vector<domains::bank> banks;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      banks.push_back(
          {node_ref(nodes[i]), "node " + std::to_string(all.nodes[i].number), all.nodes[i].distances});
    preferring.emplace_back(std::move(banks), tessera::provider::prefer_bank{preferred});
  }
  tessera::concurrent::per_device<
      tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pinned_packed, domains>>>
      allocator(std::move(preferring));

  std::size_t here = 0;  // a CPU may belong to a node without memory
  for (std::size_t i = 0; i < all.nodes.size(); ++i) {
    if (all.nodes[i].number == tessera::provider::numa_node_of_thread()) here = i;
  }
  void* const batch = allocator.try_allocate(1_MiB, here);
  if (batch == nullptr) {
    std::puts("the kernel gives no memory of the node");
    return true;
  }
  std::memset(batch, 0, 1_MiB);
  std::printf("thread on node %d, memory on node %d\n", tessera::provider::numa_node_of_thread(),
              tessera::provider::numa_node_of(batch));
  allocator.deallocate(batch);
  return true;
}

}  // namespace

int main() { return use_fast_memory_first() && use_the_node_of_the_thread() ? 0 : 1; }
