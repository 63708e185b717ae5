// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/numa_nodes.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using pinning = host_pinned::pinning;

using host_domains = memory_domains<host_pinned, prefer_bank>;
static_assert(detail::is_thread_safe<host_domains> && sharing_provider<host_domains> &&
              registering_provider<host_domains> && copying_provider<host_domains>);

/// A folder like /sys/devices/system/node.
class fake_machine {
 public:
  fake_machine() { std::filesystem::create_directories(root); }
  fake_machine& operator=(fake_machine&&) = delete;
  ~fake_machine() { std::filesystem::remove_all(root); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + "/" + file).parent_path());
    std::ofstream(root + "/" + file) << text;
  }
  void write_two_nodes() const {
    write("online", "0-2\n");
    write("has_memory", "0,2\n");
    write("node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:   512 kB\n");
    write("node0/distance", "10 12 21\n");
    write("node2/meminfo", "Node 2 MemTotal:       2048 kB\n");
    write("node2/distance", "21 12 10\n");
  }
  const std::string root = testing::TempDir() + "tessera_numa_" + std::to_string(::getpid());
};

TEST(numa_nodes, are_those_with_memory) {
  const fake_machine machine;
  machine.write_two_nodes();
  const numa_node_list all = list_numa_nodes(machine.root);
  ASSERT_EQ(all.error, "");
  ASSERT_EQ(all.nodes.size(), 2u);
  EXPECT_EQ(all.nodes[1].number, 2);
  EXPECT_EQ(all.nodes[1].bytes, 2_MiB);
  EXPECT_EQ(all.nodes[0].distances, (std::vector<unsigned>{10, 21}));
  EXPECT_EQ(all.nodes[1].distances, (std::vector<unsigned>{21, 10}));
}

TEST(numa_nodes, of_malformed_files_are_an_error) {
  const std::string long_list(70'000, '0');
  const std::pair<const char*, std::string> wrong[] = {{"online", ""},
                                                       {"online", "0-"},
                                                       {"online", "1-0"},
                                                       {"online", "0,0"},
                                                       {"online", "0 2"},
                                                       {"online", "0-99999999"},
                                                       {"has_memory", long_list},
                                                       {"has_memory", "x"},
                                                       {"has_memory", "0,5"},
                                                       {"node0/meminfo", ""},
                                                       {"node2/meminfo", "MemTotal: -1 kB"},
                                                       {"node0/distance", "10"},
                                                       {"node2/distance", "21 999 10"}};
  for (const auto& [file, text] : wrong) {
    const fake_machine machine;
    machine.write_two_nodes();
    machine.write(file, text);
    const numa_node_list all = list_numa_nodes(machine.root);
    EXPECT_TRUE(all.nodes.empty()) << file;
    EXPECT_NE(all.error.find(machine.root), std::string::npos) << file << all.error;
  }
  EXPECT_EQ(list_numa_nodes("/nowhere").error, "/nowhere/online: cannot be read");
}

TEST(numa_nodes, of_this_machine_have_memory_and_a_thread) {
  const numa_node_list all = list_numa_nodes();
  if (!all.error.empty()) GTEST_SKIP() << all.error;
  ASSERT_FALSE(all.nodes.empty());
  for (std::size_t i = 0; i < all.nodes.size(); ++i) {
    EXPECT_GT(all.nodes[i].bytes, 1_MiB);
    EXPECT_EQ(all.nodes[i].distances[i], 10u);
  }
  EXPECT_GE(numa_node_of_thread(), 0);
  EXPECT_EQ(numa_node_of(nullptr), -1);
}

TEST(numa_nodes, bind_segments_and_mapped_memory) {
  const numa_node_list all = list_numa_nodes();
  if (!all.error.empty()) GTEST_SKIP() << all.error;
  for (const numa_node& node : all.nodes) {
    host_pinned memory({.pin = pinning::never, .node = node.number});
    EXPECT_EQ(memory.capacity(), node.bytes);
    auto* const segment = static_cast<char*>(memory.acquire(1_MiB));
    if (segment == nullptr) GTEST_SKIP() << memory.last_error();
    std::memset(segment, 1, 1_MiB);
    void* const range = memory.reserve(1_MiB, 4_KiB);
    host_pinned::physical chunk;
    ASSERT_TRUE(memory.create(1_MiB, page_kind::normal, chunk)) << memory.last_error();
    ASSERT_TRUE(memory.map(range, 1_MiB, chunk)) << memory.last_error();
    for (std::size_t at = 0; at < 1_MiB; at += 64_KiB) {
      EXPECT_EQ(numa_node_of(segment + at), node.number);
      EXPECT_EQ(numa_node_of(static_cast<char*>(range) + at), node.number);
    }
    EXPECT_TRUE(memory.unmap(range, 1_MiB) && memory.destroy(chunk) && memory.unreserve(range, 1_MiB) &&
                memory.release(segment, 1_MiB));
    EXPECT_EQ(memory.used(), 0u);
  }
}

TEST(numa_nodes, that_do_not_exist_are_refused) {
  for (const int node : {1000, 9999}) {
    host_pinned memory({.capacity = 1_MiB, .node = node});
    host_pinned::physical chunk;
    EXPECT_EQ(memory.acquire(4_KiB), nullptr);
    const std::string why = memory.take_refusal().text();
    EXPECT_EQ(why.find("acquire: node " + std::to_string(node)), 0u) << why;
    EXPECT_FALSE(memory.create(4_KiB, page_kind::normal, chunk));
    EXPECT_NE(memory.last_error().find("create 4096 bytes: node"), std::string::npos) << memory.last_error();
    EXPECT_EQ(memory.used(), 0u);
  }
}

std::vector<host_domains::bank> two_banks(std::size_t bytes = 8_MiB) {
  std::vector<host_domains::bank> banks;
  banks.push_back({host_pinned({.capacity = bytes, .pin = pinning::never}), "near"});
  banks.push_back({banks[0].provider.another_bank({.capacity = 2 * bytes, .pin = pinning::never}), "far"});
  return banks;
}

TEST(memory_domains, of_host_memory_keep_the_laws) {
  for (const std::size_t first : {0u, 1u}) {
    host_domains memory(two_banks(), prefer_bank{first});
    const auto found = law::provider(memory, {.fills_host_memory = true, .tries_wrong_releases = true});
    EXPECT_TRUE(found) << found.report();
  }
  memory_domains in_turn(two_banks(), interleave_banks{});
  const auto found = law::provider(in_turn, {.fills_host_memory = true, .tries_wrong_releases = true});
  EXPECT_TRUE(found) << found.report();
  EXPECT_EQ(in_turn.provider(1).used(), 0u);
  EXPECT_EQ(in_turn.provider(0).held(), host_pinned::holdings{});
}

TEST(memory_domains, of_a_missing_node_name_it) {
  std::vector<host_domains::bank> banks = two_banks();
  banks.push_back({banks[0].provider.another_bank({.capacity = 1_MiB, .node = 9999}), "missing"});
  memory_domains memory(std::move(banks), bind_bank{2});
  EXPECT_EQ(memory.acquire(4_KiB), nullptr);
  const std::string why = memory.take_refusal().text();
  EXPECT_EQ(why.find("acquire: bank 'missing': acquire: node 9999"), 0u) << why;
}

TEST(memory_domains, of_host_memory_serve_a_locked_allocator) {
  using checked = checked_provider<memory_domains<host_pinned, interleave_banks>>;
  locked<caching_allocator<pinned_expandable, checked>> pool{
      checked(memory_domains(two_banks(64_MiB), interleave_banks{}))};
  std::vector<void*> live;
  for (std::size_t i = 1; i < 40; ++i) {
    if (void* const p = pool.try_allocate(i * 16_KiB)) {
      std::memset(p, static_cast<int>(i), i * 16_KiB);
      live.push_back(p);
    }
  }
  EXPECT_GT(live.size(), 10u);
  for (void* const p : live) pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

}  // namespace
