// SPDX-License-Identifier: Apache-2.0
// The chunks behind a block of an allocator, mapped in another process. Each process makes its provider after the fork.
#include <tessera/provider/shared_chunks.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "host_process.hpp"

namespace {

using namespace tessera;
using host_process::channel;
using name = exported_chunk<host_pinned>;
using chunk = mapped_chunk<host_pinned>;

constexpr host_pinned::options loose{.capacity = 256_MiB, .pin = host_pinned::pinning::never};
constexpr std::size_t block = 30_MiB;

bool send(const channel& way, std::uint64_t offset, const std::vector<name>& names) {
  bool works = way.send(offset) && way.send(names.size());
  for (const name& n : names) works = works && way.send(n);
  return works;
}
bool receive(const channel& way, std::uint64_t& offset, std::vector<name>& names) {
  std::size_t count = 0;
  bool works = way.receive(offset) && way.receive(count) && count < 1000;
  names.resize(works ? count : 0);
  for (name& n : names) works = works && way.receive(n);
  return works;
}
/// The byte that the exporter writes at a place of its block.
std::byte pattern(std::size_t at) { return static_cast<std::byte>(at ^ at >> 8 ^ at >> 16); }

/// Maps the block twice, one after the other, checks its bytes and changes the last one.
int import_block(const channel& way) {
  host_pinned device{loose};
  for (int time = 0; time < 2; ++time) {
    std::uint64_t offset = 0;
    std::vector<name> names;
    if (!way.send(device.process()) || !receive(way, offset, names)) return 1;
    const imported_range<host_pinned> range(device, names);
    if (!range) return std::fputs(range.why(), stderr), 2;
    if (device.held().mapped != range.bytes() || range.bytes() < offset + block) return 3;
    auto* const p = static_cast<std::byte*>(range.begin()) + offset;
    for (std::size_t i = 0; i < block - 1; ++i)
      if (p[i] != pattern(i)) return 4;
    p[block - 1] = std::byte{static_cast<unsigned char>(91 + time)};
    if (!way.pass()) return 5;
  }
  return device.held() == host_pinned::holdings{} ? 0 : 6;
}

template <typename Recipe>
class shared_chunks : public testing::Test {};
using recipes = testing::Types<pytorch_family::expandable, stitched>;
TYPED_TEST_SUITE(shared_chunks, recipes);

TYPED_TEST(shared_chunks, of_a_block_are_mapped_in_another_process) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] { return import_block(way); });
  locked<caching_allocator<TypeParam, host_pinned>> memory(host_pinned{loose});
  void* const before = memory.allocate(15_MiB);
  auto* const p = static_cast<std::byte*>(memory.allocate(block));
  for (std::size_t i = 0; i < block; ++i) p[i] = pattern(i);
  const std::vector<chunk> chunks = list_chunks(memory, p).chunks;
  ASSERT_FALSE(chunks.empty());
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  EXPECT_LE(chunks.front().address, begin);
  EXPECT_GT(chunks.front().address + chunks.front().bytes, begin);
  EXPECT_LT(chunks.back().address, begin + block);
  EXPECT_GE(chunks.back().address + chunks.back().bytes, begin + block);
  for (int time = 0; time < 2; ++time) {
    std::int32_t process = 0;
    ASSERT_TRUE(way.receive(process));
    std::vector<name> names;
    memory.visit_provider([&](host_pinned& device) {
      auto exported = export_chunks<host_pinned>(device, chunks, process);
      EXPECT_TRUE(exported) << exported.why.text();
      names = std::move(exported.chunks);
      EXPECT_EQ(names.size(), chunks.size());
    });
    ASSERT_TRUE(send(way, begin - chunks.front().address, names) && way.wait());
    EXPECT_EQ(p[block - 1], std::byte{static_cast<unsigned char>(91 + time)});
  }
  EXPECT_EQ(host_process::end_of(importer), 0);
  EXPECT_EQ(list_chunks(memory, p).chunks.size(), chunks.size()) << "a query changes nothing";
  EXPECT_EQ(memory.audit(), nullptr);
  memory.deallocate(before);
  memory.deallocate(p);
  EXPECT_FALSE(list_chunks(memory, p));
}

TEST(shared_chunks, are_none_without_ranges) {
  caching_allocator<pytorch<>, host_pinned> memory(host_pinned{loose});
  void* const p = memory.allocate(5_MiB);
  EXPECT_STREQ(list_chunks(memory, p).why, "list_chunks: the recipe maps no ranges, so there are no chunks");
  memory.deallocate(p);
}

/// Gives no reasons.
class silent_device : public simulated_device {
 public:
  void take_refusal() = delete;
};
template <typename Device>
std::string why_not_exported(std::optional<std::int32_t> process) {
  Device device;
  std::vector<mapped_chunk<Device>> chunks(2);
  for (mapped_chunk<Device>& c : chunks) c.bytes = 2_MiB;
  EXPECT_TRUE(device.create(2_MiB, page_kind::normal, chunks[0].memory));
  return export_chunks<Device>(device, chunks, process).why.text();
}
TEST(shared_chunks, that_cannot_be_exported_say_why) {
  EXPECT_EQ(why_not_exported<simulated_device>(std::nullopt),
            "export_memory: the handle is unknown or destroyed");
  EXPECT_EQ(why_not_exported<silent_device>(std::nullopt), "export_memory failed for chunk 1");
}

// Else the names would be useless for all but the listed processes.
template <typename Device>
void export_listed_then_any(Device device) {
  std::vector<mapped_chunk<Device>> chunks(2);
  for (mapped_chunk<Device>& c : chunks) {
    c.bytes = 2_MiB;
    ASSERT_TRUE(device.create(2_MiB, page_kind::normal, c.memory));
  }
  const std::span<const mapped_chunk<Device>> all(chunks);
  ASSERT_TRUE(export_chunks<Device>(device, all.last(1), device.process() + 1));
  const auto refused = export_chunks<Device>(device, all);
  EXPECT_STREQ(refused.why.text(), "chunk 1 was exported to listed processes");
  EXPECT_TRUE(export_chunks<Device>(device, all.last(1), device.process() + 1)) << "it stays as it was";
  EXPECT_TRUE(export_chunks<Device>(device, all.first(1))) << "and so does the other one";
  EXPECT_FALSE(export_chunks<Device>(device, all.first(1), device.process() + 1));
  for (const mapped_chunk<Device>& c : chunks) EXPECT_TRUE(device.destroy(c.memory));
}
TEST(shared_chunks, are_not_exported_to_any_process_after_listed_ones) {
  export_listed_then_any(simulated_device());
  export_listed_then_any(host_pinned(loose));
}

TEST(shared_chunks, leave_nothing_if_one_cannot_be_imported) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    std::uint64_t offset = 0;
    std::vector<name> names;
    if (!receive(way, offset, names) || names.size() != 3) return 1;
    const auto refused_because = [&](std::vector<name> wrong, const char* words) {
      const imported_range<host_pinned> range(device, wrong);
      return !range && std::string(range.why()).find(words) != std::string::npos &&
             range.begin() == nullptr && device.held() == host_pinned::holdings{};
    };
    if (!refused_because({}, "no chunks")) return 2;
    if (!refused_because({names[0], names[2]}, "not consecutive")) return 3;
    if (!refused_because(names, "the exporter has destroyed the memory")) return 4;
    names[1].bytes += 4096;
    if (!refused_because({names[0], names[1]}, "another size")) return 5;
    names[1].bytes -= 4096;
    const imported_range<host_pinned> both(device, std::vector<name>{names[0], names[1]});
    return both && both.bytes() == 2_MiB ? 0 : 6;
  });
  host_pinned device{loose};
  std::vector<chunk> chunks(3);
  std::uintptr_t at = 1_GiB;
  for (chunk& c : chunks) {
    c = {at, 1_MiB, {}};
    ASSERT_TRUE(device.create(1_MiB, page_kind::normal, c.memory));
    at += 1_MiB;
  }
  const auto [names, why] = export_chunks<host_pinned>(device, chunks);
  ASSERT_EQ(names.size(), 3u) << why.text();
  const auto expect_refused = [&](const std::vector<chunk>& given, std::optional<std::int32_t> to,
                                  const char* words) {
    const auto refused = export_chunks<host_pinned>(device, given, to);
    EXPECT_FALSE(refused);
    EXPECT_TRUE(refused.chunks.empty());
    EXPECT_STREQ(refused.why.text(), words);
  };
  expect_refused(chunks, 1, "allow: any process may import the memory");
  expect_refused({}, 1, "there are no chunks");
  ASSERT_TRUE(device.destroy(chunks[2].memory));
  expect_refused(chunks, std::nullopt, "export_memory: the handle is unknown or destroyed");
  ASSERT_TRUE(send(way, 0, names));
  EXPECT_EQ(host_process::end_of(importer), 0);
}

}  // namespace
