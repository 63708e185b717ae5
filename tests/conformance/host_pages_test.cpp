// SPDX-License-Identifier: Apache-2.0
// The system agrees with an allocator over host_pinned about its memory, and blocks keep their contents.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <tessera/extension/observer.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "../unit/provider/host_process.hpp"
#include "event_memory.hpp"

namespace {

using namespace tessera;
using conformance::event_memory;
using conformance::event_memory_observer;
using pinning = host_pinned::pinning;

constexpr std::size_t capacity = 64_MiB;

/// One mapping of this process.
struct mapping {
  std::uintptr_t begin = 0, end = 0;
  std::string rights;
  std::size_t resident = 0, locked = 0;
};
std::vector<mapping> mappings() {
  std::vector<mapping> all;
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = "";
    std::size_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) == 3)
      all.push_back({begin, end, rights});
    else if (std::sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1)
      all.back().resident = kib * 1_KiB;
    else if (std::sscanf(line.c_str(), "Locked: %zu kB", &kib) == 1)
      all.back().locked = kib * 1_KiB;
  }
  return all;
}
std::size_t overlap(const mapping& m, std::uintptr_t at, std::size_t bytes) {
  const std::uintptr_t begin = std::max(m.begin, at), end = std::min(m.end, at + bytes);
  return begin < end ? end - begin : 0;
}

/// The memory files that this process has open: their number, and the bytes that the system stores for them.
struct memory_files {
  std::size_t count = 0;
  std::size_t bytes = 0;
};
memory_files open_memory_files() {
  memory_files sum;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = folder != nullptr ? ::readdir(folder) : nullptr) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    char name[64] = "";
    struct stat is{};
    if (::readlink(path.c_str(), name, sizeof name - 1) < 0 ||
        !std::string(name).starts_with("/memfd:tessera") || ::stat(path.c_str(), &is) != 0)
      continue;
    ++sum.count;
    sum.bytes += static_cast<std::size_t>(is.st_blocks) * 512;
  }
  if (folder != nullptr) ::closedir(folder);
  return sum;
}
/// A number of KiB from a file of the system, in bytes.
std::size_t number_in(const char* file, const std::string& name) {
  std::ifstream from(file);
  for (std::string line; std::getline(from, line);) {
    if (line.starts_with(name + ":")) return std::stoul(line.substr(name.size() + 1)) * 1_KiB;
  }
  return 0;
}

/// The first difference between the system and the allocator's events and current_usage(), or nothing. All
/// memory was touched or was resident before.
///
/// Exact: It compares the mapped addresses and their rights, the resident pages (mincore), and for ranges the
///        bytes of the memory files. A segment is anonymous memory. The system may merge it with other memory
///        next to it into one mapping, so its resident bytes may be too large by that memory.
std::string discrepancy(const event_memory& recorded, const usage& now, bool has_ranges) {
  if (!recorded.broken.empty()) return recorded.broken;
  const std::size_t reserved = event_memory::bytes(recorded.memory);
  if (reserved != now.reserved) return "the events do not tell what is reserved";
  std::size_t writable = 0, resident = 0, foreign = 0, locked_away = 0;
  for (const mapping& m : mappings()) {
    std::size_t ours = 0, in_ranges = 0;
    for (const auto& [at, bytes] : recorded.memory) ours += overlap(m, at, bytes);
    for (const auto& [at, bytes] : recorded.ranges) in_ranges += overlap(m, at, bytes);
    if (ours == 0) {
      if (in_ranges > 0 && m.rights != "---p") return "what is not mapped in a range can be used";
      if (in_ranges > 0 && m.resident > 0) return "what is not mapped in a range is resident";
      locked_away += in_ranges;
      continue;
    }
    if (m.rights != (has_ranges ? "rw-s" : "rw-p")) return "memory has the rights " + m.rights;
    writable += ours;
    resident += m.resident;
    foreign += m.end - m.begin - ours;
  }
  if (writable != reserved) return "reserved memory is not mapped";
  if (resident < reserved || resident > reserved + foreign) return "reserved memory is not resident";
  for (const auto& [at, bytes] : recorded.memory) {
    if (host_process::in_core(reinterpret_cast<void*>(at), bytes) != bytes) return "pages are missing";
  }
  const memory_files files = open_memory_files();
  if (files.count != (has_ranges ? recorded.memory.size() : 0))
    return "there are other memory files than pieces";
  if (files.bytes != (has_ranges ? reserved : 0)) return "the memory files hold other than what is reserved";
  if (host_process::memory_files_mapped() != files.bytes) return "memory files are mapped by half, or twice";
  if (has_ranges && foreign != 0) return "memory is mapped outside its range";
  if (has_ranges && locked_away != event_memory::bytes(recorded.ranges) - reserved)
    return "a range is not kept reserved";
  return {};
}

/// The expected byte of a block at an offset.
unsigned char pattern(std::size_t seed, std::size_t i) {
  return static_cast<unsigned char>(seed + i * 7 + (i >> 9));
}
/// Writes some bytes of each page, and reads them.
constexpr std::size_t apart = 61;
void fill(unsigned char* p, std::size_t bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes; i += apart) p[i] = pattern(seed, i);
}
bool is_intact(const unsigned char* p, std::size_t bytes, std::size_t seed) {
  unsigned wrong = 0;
  for (std::size_t i = 0; i < bytes; i += apart) wrong |= p[i] ^ unsigned { pattern(seed, i) };
  return wrong == 0;
}

/// Writes to every page without changing its contents.
void touch(const event_memory::extents& memory) {
  for (const auto& [at, bytes] : memory) {
    for (std::size_t i = 0; i < bytes; i += 4_KiB) {
      auto* const p = reinterpret_cast<volatile unsigned char*>(at + i);
      *p = *p;
    }
  }
}

template <typename Recipe>
class host_pages : public testing::Test {
 public:
  using allocator = caching_allocator<Recipe, host_pinned, extension::observer<event_memory_observer>>;
  static constexpr bool has_ranges = Recipe::growth::backend::has_ranges;
  static host_pinned device(pinning pin) {
    return host_pinned{host_pinned::options{.capacity = capacity, .pin = pin}};
  }
};
using small_pages = grow_by_mapping<2_MiB, tunable(4_MiB)>;
using recipes = testing::Types<pytorch<>, passthrough,
                               with<pytorch<>, split_below<32_MiB>, evict_idle_above<percent(50)>>,
                               with<pytorch_family::expandable, small_pages>,
                               with<pytorch_family::expandable, small_pages, evict_idle_above<percent(50)>>,
                               with<pytorch_family::expandable, small_pages, evict_at_free<>>,
                               with<pytorch_family::expandable, small_pages, pool_together>, stitched>;
TYPED_TEST_SUITE(host_pages, recipes);

TYPED_TEST(host_pages, are_there_as_long_as_they_are_reserved) {
  for (const pinning pin : {pinning::never, pinning::where_allowed}) {
    event_memory recorded;
    host_pinned made = this->device(pin);
    const stream_id side = made.create_stream();
    typename TestFixture::allocator pool{
        std::move(made), {}, extension::observer<event_memory_observer>{{&recorded}}};
    struct block {
      unsigned char* at = nullptr;
      std::size_t bytes = 0;
    };
    std::array<block, 12> live{};
    const auto allocate = [&](std::size_t slot, std::size_t bytes, stream_id stream = {}) {
      live[slot] = {static_cast<unsigned char*>(pool.try_allocate(bytes, stream)), bytes};
      if (live[slot].at != nullptr) fill(live[slot].at, bytes, slot);
      return live[slot].at != nullptr;
    };
    const auto deallocate = [&](std::size_t slot) { pool.deallocate(std::exchange(live[slot].at, nullptr)); };
    const auto agree = [&](const char* when) {
      EXPECT_EQ(discrepancy(recorded, pool.current_usage(), this->has_ranges), "") << when;
      EXPECT_STREQ(pool.audit(), nullptr) << when;
      for (std::size_t slot = 0; slot < live.size(); ++slot) {
        if (live[slot].at != nullptr) {
          EXPECT_TRUE(is_intact(live[slot].at, live[slot].bytes, slot)) << when << ", block " << slot;
        }
      }
    };
    const std::size_t files = open_memory_files().count;
    ASSERT_EQ(files, 0u);

    for (std::size_t slot = 0; slot < 6; ++slot) ASSERT_TRUE(allocate(slot, 900_KiB + slot * 1_MiB));
    ASSERT_TRUE(allocate(6, 5_KiB) && allocate(7, 700_KiB, side) && allocate(8, 3_MiB, side));
    touch(recorded.memory);
    agree("after growth");

    const std::size_t releases = recorded.released;
    for (const std::size_t slot : {1u, 2u, 4u, 7u}) deallocate(slot);
    agree("with some of it cached");  // not touched again
    const std::size_t cached = pool.current_usage().cached;

    const std::size_t resident = number_in("/proc/self/smaps_rollup", "Rss");
    const std::size_t reserved = pool.current_usage().reserved;
    const event_memory::extents before = recorded.memory;
    pool.trim();
    agree("after trim");
    EXPECT_GT(recorded.released, releases) << "something was idle";
    const std::size_t released = reserved - pool.current_usage().reserved;
    EXPECT_LE(released, cached);
    // The process also uses memory of its own meanwhile.
    EXPECT_NEAR(
        static_cast<double>(resident) - static_cast<double>(number_in("/proc/self/smaps_rollup", "Rss")),
        static_cast<double>(released), 1_MiB);
    for (const auto& [at, bytes] : before) {
      if (!recorded.memory.contains(at)) {
        EXPECT_EQ(host_process::smaps(reinterpret_cast<void*>(at), bytes).resident, 0u) << "after trim";
      }
    }

    ASSERT_TRUE(allocate(1, 6_MiB) && allocate(2, 1_MiB) && allocate(4, 2_MiB, side) && allocate(7, 3_MiB));
    touch(recorded.memory);
    agree("grown again");

    deallocate(1);
    deallocate(3);
    deallocate(5);
    ASSERT_TRUE(allocate(1, 9_MiB) && allocate(3, 14_MiB));
    touch(recorded.memory);
    agree("after eviction");
    EXPECT_FALSE(allocate(5, capacity - 1_MiB));
    touch(recorded.memory);
    agree("after a refusal");
    deallocate(8);
    EXPECT_TRUE(allocate(8, 11_MiB, side));
    touch(recorded.memory);
    agree("after recovery");

    for (std::size_t slot = 0; slot < live.size(); ++slot) {
      if (live[slot].at != nullptr) deallocate(slot);
    }
    pool.trim();
    agree("with nothing left");
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_TRUE(recorded.memory.empty());
    // The range reserved for the refused block stays for the next one. It holds only addresses.
    EXPECT_EQ(pool.provider().held(),
              host_pinned::holdings{.reserved = event_memory::bytes(recorded.ranges)});
    EXPECT_LE(recorded.ranges.size(), 1u);
  }
}

TYPED_TEST(host_pages, are_locked_if_required) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  const std::size_t before = number_in("/proc/self/status", "VmLck");
  event_memory recorded;
  typename TestFixture::allocator pool{
      this->device(pinning::required), {}, extension::observer<event_memory_observer>{{&recorded}}};
  const auto locked = [&recorded] {
    std::size_t sum = 0;
    for (const mapping& m : mappings()) {
      for (const auto& [at, bytes] : recorded.memory)
        sum += overlap(m, at, bytes) == m.end - m.begin ? m.locked : 0;
    }
    return sum;
  };
  std::vector<void*> live;
  // of the 8 MiB that every process may lock
  for (int i = 0; i < 3; ++i) live.push_back(pool.allocate(900_KiB));
  EXPECT_GE(pool.current_usage().reserved, 2700_KiB);
  EXPECT_EQ(number_in("/proc/self/status", "VmLck") - before, pool.current_usage().reserved);
  EXPECT_EQ(pool.provider().held().locked, pool.current_usage().reserved);
  if (this->has_ranges) {
    EXPECT_EQ(locked(), pool.current_usage().reserved);
  }
  EXPECT_EQ(discrepancy(recorded, pool.current_usage(), this->has_ranges), "")
      << "what is locked needs no touch";
  pool.deallocate(live[1]);
  pool.deallocate(live[2]);
  EXPECT_EQ(number_in("/proc/self/status", "VmLck") - before, pool.current_usage().reserved);
  pool.trim();
  EXPECT_EQ(number_in("/proc/self/status", "VmLck") - before, pool.current_usage().reserved);
  pool.deallocate(live[0]);
  pool.trim();
  EXPECT_EQ(number_in("/proc/self/status", "VmLck"), before);
}

// Streams write and read while blocks are allocated and freed. If memory moves or is reused too early, a read
// finds wrong data.
TYPED_TEST(host_pages, keep_their_contents) {
  event_memory recorded;
  host_pinned made = this->device(pinning::never);
  const std::array streams{stream_id{}, made.create_stream(), made.create_stream()};
  typename TestFixture::allocator pool{
      std::move(made), {}, extension::observer<event_memory_observer>{{&recorded}}};
  struct block {
    unsigned char* at;
    std::size_t bytes, seed;
    stream_id stream;
    std::shared_ptr<std::atomic<bool>> filled;
  };
  std::vector<block> live;
  std::atomic<int> damaged = 0;
  const auto check_on = [&](const block& b, stream_id stream) {
    ASSERT_TRUE(pool.provider().submit(stream, [b, &damaged] {
      while (!*b.filled) std::this_thread::yield();
      damaged += !is_intact(b.at, b.bytes, b.seed);
    }));
  };
  std::mt19937_64 random(3);
  const auto pick = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  std::size_t refused = 0;
  for (std::size_t i = 0; i < 700; ++i) {
    if (live.size() < 22 && pick(9) < 5) {
      const std::size_t bytes = 1 + pick(std::size_t{1} << (10 + pick(13)));
      const stream_id stream = streams[pick(streams.size())];
      auto* const p = static_cast<unsigned char*>(pool.try_allocate(bytes, stream));
      if (p == nullptr) {
        ++refused;
        continue;
      }
      const block& b =
          live.emplace_back(block{p, bytes, i, stream, std::make_shared<std::atomic<bool>>(false)});
      ASSERT_TRUE(pool.provider().submit(stream, [b] {
        fill(b.at, b.bytes, b.seed);
        *b.filled = true;
      }));
    } else if (!live.empty()) {
      std::swap(live[pick(live.size())], live.back());
      const block& b = live.back();
      if (pick(3) == 0) {
        const stream_id reader = streams[pick(streams.size())];
        ASSERT_TRUE(pool.record_stream(b.at, reader));
        check_on(b, reader);
      }
      check_on(b, b.stream);
      if (pick(4) == 0) continue;
      // A segment is released without a wait for the stream that reuses it.
      if (!this->has_ranges) pool.provider().synchronize(b.stream);
      pool.deallocate(b.at);
      live.pop_back();
    }
    if (pick(25) == 0) pool.trim(pick(2) * pool.current_usage().reserved / 2);
    ASSERT_EQ(event_memory::bytes(recorded.memory), pool.current_usage().reserved);
  }
  for (const block& b : live) check_on(b, b.stream);
  for (const stream_id stream : streams) pool.provider().synchronize(stream);
  EXPECT_EQ(damaged, 0);
  EXPECT_GT(recorded.released, 3u) << "memory came and went meanwhile";
  EXPECT_LT(refused, 350u);
  EXPECT_STREQ(pool.audit(), nullptr);
  for (const block& b : live) pool.deallocate(b.at);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

}  // namespace
