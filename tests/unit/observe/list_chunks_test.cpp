// SPDX-License-Identifier: Apache-2.0
// list_chunks, compared with the mappings that the device was asked for, in random programs.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../plan/recorded_steps.hpp"

namespace {

using namespace tessera;

struct mapping {
  std::size_t bytes;
  simulated_device::physical memory;
};
/// A device and what is mapped on it, by address.
struct machine {
  simulated_device device{{.capacity = 1_GiB}};
  std::map<std::uintptr_t, mapping> mapped{};
};
class noting_device : public provider_adaptor<simulated_device> {
  using base = provider_adaptor<simulated_device>;

 public:
  explicit noting_device(machine& of) : base(of.device), of_(&of) {}
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    if (!base::map(p, bytes, memory)) return false;
    of_->mapped[reinterpret_cast<std::uintptr_t>(p)] = {bytes, memory};
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    if (!base::unmap(p, bytes)) return false;
    of_->mapped.erase(reinterpret_cast<std::uintptr_t>(p));
    return true;
  }

 private:
  machine* of_;
};

/// Says how a list differs from the mappings behind [begin, begin + bytes).
template <typename List>
std::string difference(const machine& of, const List& list, std::uintptr_t begin, std::size_t bytes) {
  if (!list) return list.why;
  std::size_t at = 0;
  for (const auto& [address, m] : of.mapped) {
    if (address >= begin + bytes || address + m.bytes <= begin) continue;
    if (at == list.chunks.size()) return "a chunk is missing";
    const auto& c = list.chunks[at++];
    if (c.address != address || c.bytes != m.bytes || c.memory != m.memory) return "a chunk is wrong";
  }
  return at == list.chunks.size() ? "" : "there are too many chunks";
}

/// Asks for parts of all live blocks, at and across their ends, and for addresses that no block has.
template <typename Pool>
void compare_parts(Pool& memory, const machine& of, const std::map<std::uintptr_t, std::size_t>& live,
                   std::mt19937_64& random) {
  constexpr const char* outside = "list_chunks: the bytes end outside the live block of the address";
  constexpr const char* in_no_block = "list_chunks: the address lies in no live block";
  const auto list = [&memory](std::uintptr_t at, std::size_t bytes) {
    return list_chunks(memory, reinterpret_cast<void*>(at), bytes);
  };
  for (const auto& [address, size] : live) {
    ASSERT_EQ(difference(of, list(address, unlimited), address, size), "");
    ASSERT_EQ(difference(of, list(address, size), address, size), "");
    ASSERT_EQ(difference(of, list(address + size - 1, 1), address + size - 1, 1), "");
    const std::size_t offset = random() % size, bytes = 1 + random() % (size - offset);
    ASSERT_EQ(difference(of, list(address + offset, bytes), address + offset, bytes), "");
    ASSERT_EQ(difference(of, list(address + offset, unlimited), address + offset, size - offset), "");
    ASSERT_STREQ(list(address + offset, size - offset + 1).why, outside);
    ASSERT_STREQ(list(address + offset, unlimited - 1).why, outside);
    ASSERT_STREQ(list(address + offset, 0).why, "list_chunks: 0 bytes have no chunks");
    for (const std::uintptr_t other : {address - 1, address + size, address - 1 - random() % 50_MiB}) {
      auto next = live.upper_bound(other);
      const bool is_live = next != live.begin() && other - std::prev(next)->first < std::prev(next)->second;
      const auto found = list(other, 1);
      ASSERT_EQ(static_cast<bool>(found), is_live);
      if (!is_live) {
        ASSERT_STREQ(found.why, in_no_block);
      }
      ASSERT_EQ(found.chunks.empty(), !is_live);
    }
  }
  ASSERT_STREQ(list_chunks(memory, nullptr).why, in_no_block);
}

template <typename Pool>
void run_random_program(Pool& memory, machine& of, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::uintptr_t, std::size_t> live;
  constexpr std::size_t sizes[] = {1000, 300_KiB, 3_MiB, 30_MiB};
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t what = random() % 10;
    if (what < 5) {
      void* const p = memory.try_allocate(1 + random() % sizes[random() % 4], stream_id{random() % 2});
      if (p != nullptr) live[reinterpret_cast<std::uintptr_t>(p)] = live_block_at(memory, p).bytes;
    } else if (what < 9 && !live.empty()) {
      const auto left = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      void* const p = reinterpret_cast<void*>(left->first);
      if (what == 5) {
        of.device.submit(stream_id{2}, 1'000'000);  // the block stays pending for some time
        (void)memory.record_stream(p, stream_id{2});
      }
      memory.deallocate(p);
      live.erase(left);
    } else if (what == 9) {
      of.device.advance(300'000);
      if (random() % 8 == 0) memory.trim();
    }
    if (i % 8 == 0) {
      ASSERT_NO_FATAL_FAILURE(compare_parts(memory, of, live, random)) << "operation " << i;
    }
  }
  for (const auto& [address, size] : live) memory.deallocate(reinterpret_cast<void*>(address));
}

template <typename Recipe>
class list_chunks_of : public testing::Test {};
using recipes = types_by_day<2, pytorch_family::expandable, stitched, paddle_family::virtual_memory>;
TYPED_TEST_SUITE(list_chunks_of, recipes);

TYPED_TEST(list_chunks_of, any_part_of_a_block_are_those_that_were_mapped) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    machine of;
    {
      caching_allocator<TypeParam, noting_device> memory{noting_device(of)};
      ASSERT_NO_FATAL_FAILURE(run_random_program(memory, of, seed)) << "seed " << seed;
    }
    EXPECT_TRUE(of.mapped.empty());
  }
}

TYPED_TEST(list_chunks_of, any_part_of_a_block_are_found_through_front_ends) {
  machine of;
  tagged<locked<caching_allocator<TypeParam, noting_device>>> one{noting_device(of)};
  ASSERT_NO_FATAL_FAILURE(run_random_program(one, of, 5));
  per_stream<caching_allocator<TypeParam, noting_device>> several{noting_device(of)};
  ASSERT_NO_FATAL_FAILURE(run_random_program(several, of, 6));
}

// A block that only its handle frees is not found by its first address, but it is a block.
TEST(list_chunks, finds_the_parts_of_a_block_with_a_handle) {
  machine of;
  caching_allocator<stitched, noting_device> memory{noting_device(of)};
  const block_handle h = memory.allocate_by_handle(7_MiB);
  const auto begin = reinterpret_cast<std::uintptr_t>(h.data());
  EXPECT_EQ(difference(of, list_chunks(memory, h.data()), begin, 7_MiB), "");
  void* const inside = reinterpret_cast<void*>(begin + 5_MiB);
  EXPECT_EQ(difference(of, list_chunks(memory, inside, 1_MiB), begin + 5_MiB, 1_MiB), "");
  memory.deallocate(h);
}

TEST(list_chunks, says_that_a_block_sleeps) {
  caching_allocator<stitched, simulated_device, extension::sleep_mode> memory;
  void* const p = memory.allocate(3_MiB);
  ASSERT_TRUE(memory.get<extension::sleep_mode>().sleep(extension::sleep_contents::discard));
  EXPECT_STREQ(list_chunks(memory, p, 1000).why, "list_chunks: the block sleeps");
  ASSERT_TRUE(memory.get<extension::sleep_mode>().wake());
  EXPECT_TRUE(list_chunks(memory, p, 1000));
  memory.deallocate(p);
}

/// Steps of requests that live until the request after the next. The last block lies across chunks of a plan.
constexpr std::size_t sizes[] = {5_MiB, 3_MiB, 1000, 700_KiB, 9_MiB, 5_MiB + 512};
plan::made_plan steps() {
  plan_tests::recorder of;
  for (int i = 0; i < 6; ++i) {
    of.begin_step();
    of.step({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]});
  }
  return plan_tests::make(of.made);
}

// The requests of the plan, and others, which the allocator inside serves.
TEST(list_chunks, of_blocks_that_a_plan_serves_are_those_that_were_mapped) {
  machine of;
  const plan::made_plan made = steps();
  {
    planned<locked<caching_allocator<stitched, noting_device>>> memory(made.view(), noting_device(of));
    std::mt19937_64 random(7);
    for (int step = 0; step < 8; ++step) {
      memory.begin_step();
      std::map<std::uintptr_t, std::size_t> live;
      std::vector<void*> blocks;
      const auto add = [&](std::size_t bytes) {
        blocks.push_back(memory.allocate(bytes));
        live[reinterpret_cast<std::uintptr_t>(blocks.back())] = live_block_at(memory, blocks.back()).bytes;
      };
      const auto free_from = [&](std::size_t at) {
        live.erase(reinterpret_cast<std::uintptr_t>(blocks[at]));
        memory.deallocate(std::exchange(blocks[at], nullptr));
      };
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        if (i >= 2) free_from(i - 2);
        add(sizes[i]);
        ASSERT_NO_FATAL_FAILURE(compare_parts(memory, of, live, random)) << "step " << step;
      }
      add(11_MiB);
      ASSERT_NO_FATAL_FAILURE(compare_parts(memory, of, live, random)) << "step " << step;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i] != nullptr) free_from(i);
      }
      if (step == 4) memory.trim();
    }
    EXPECT_GT(memory.statistics().by_plan.requests, 30u);
    EXPECT_EQ(memory.audit(), nullptr);
  }
  EXPECT_TRUE(of.mapped.empty());
}

}  // namespace
