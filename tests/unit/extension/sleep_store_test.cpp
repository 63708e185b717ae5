// SPDX-License-Identifier: Apache-2.0
// Where the contents of memory that sleeps are kept: host memory of the program's choice, files, and stores of its own. Each
// call of a store and of the device fails once, and nothing is lost.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_file.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>
#include "../../by_day.hpp"
#include "extensions.hpp"
#include "unit/provider/host_process.hpp"

namespace {

using namespace tessera;
using extension::sleep_store, provider::host_file;

/// The number of the call that fails; 0 if none does.
struct failing {
  std::size_t made = 0, fails = 0;
  [[nodiscard]] bool is_next() { return ++made == fails; }
};
struct fail_once {
  failing* of;
  template <typename F>
  auto operator()(provider_call call, F f) {
    return call.may_fail() && of->is_next() ? decltype(f()){} : f();
  }
};
template <bool Buffered>
struct failing_host : provider_adaptor<host_pinned, fail_once> {
  using provider_adaptor<host_pinned, fail_once>::provider_adaptor;
  static constexpr bool copies_page_locked = Buffered;
};

/// A file whose calls fail as told.
struct failing_file {
  failing* of;
  host_file file{::memfd_create("tessera", MFD_CLOEXEC)};
  outcome reserve(std::size_t bytes, std::uint64_t& piece) noexcept {
    return of->is_next() ? outcome{"no room"} : file.reserve(bytes, piece);
  }
  outcome write(std::uint64_t piece, std::size_t at, const std::byte* from, std::size_t bytes) noexcept {
    return of->is_next() ? outcome{"not written"} : file.write(piece, at, from, bytes);
  }
  outcome read(std::uint64_t piece, std::size_t at, std::byte* to, std::size_t bytes) noexcept {
    return of->is_next() ? outcome{"not read"} : file.read(piece, at, to, bytes);
  }
  void release(std::uint64_t piece, std::size_t bytes) noexcept { file.release(piece, bytes); }
  [[nodiscard]] std::size_t used() const { return file.used(); }
};
[[nodiscard]] host_pinned host(std::size_t capacity) {
  return host_pinned({.capacity = capacity, .pin = host_pinned::pinning::where_allowed});
}
/// Host memory that runs out as told.
struct failing_memory {
  static constexpr bool is_host_visible = true;
  failing* of;
  host_pinned memory = host(100_MiB);
  void* acquire(std::size_t bytes) noexcept { return of->is_next() ? nullptr : memory.acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return memory.release(p, bytes); }
  [[nodiscard]] std::size_t used() const { return memory.used(); }
};

[[nodiscard]] int descriptor() { return ::memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING); }
[[nodiscard]] off_t size_of(int file) {
  struct stat status{};
  return ::fstat(file, &status) == 0 ? status.st_size : -1;
}

template <typename Allocator>
struct filled {
  Allocator& in;
  std::vector<std::pair<unsigned char*, std::size_t>> blocks{};

  explicit filled(Allocator& allocator) : in(allocator) {
    for (const std::size_t bytes : {5_MiB, 100_KiB}) {
      auto* const p = static_cast<unsigned char*>(in.allocate(bytes));
      for (std::size_t i = 0; i < bytes; i += apart) p[i] = expected(bytes, i);
      blocks.emplace_back(p, bytes);
    }
  }
  ~filled() {
    for (const auto& [p, bytes] : blocks) in.deallocate(p);
  }
  static constexpr std::size_t apart = 251;  // bytes between two that are written
  static unsigned char expected(std::size_t bytes, std::size_t i) {
    return static_cast<unsigned char>((i * 0x9e3779b97f4a7c15 + bytes) >> 40);
  }
  [[nodiscard]] bool is_intact() const {
    for (const auto& [p, bytes] : blocks) {
      for (std::size_t i = 0; i < bytes; i += apart) {
        if (p[i] != expected(bytes, i)) return false;
      }
    }
    return true;
  }
};

template <typename Case>
struct kept_contents : testing::Test {};
template <typename Recipe, bool Buffered, typename Store>
struct kept {
  using recipe = Recipe;
  using device = failing_host<Buffered>;
  using store = Store;
};
using expandable = recipe::pytorch<"expandable_segments:True">;
using cases = types_by_day<2, kept<expandable, false, failing_file>, kept<stitched, true, failing_memory>,
                           kept<expandable, true, failing_file>, kept<stitched, true, failing_file>,
                           kept<expandable, false, failing_memory>>;
TYPED_TEST_SUITE(kept_contents, cases);

TYPED_TEST(kept_contents, survive_a_failure_of_each_call) {
  failing calls;
  host_pinned memory = host(100_MiB);
  caching_allocator<typename TypeParam::recipe, typename TypeParam::device, extension::sleep_mode> on{
      typename TypeParam::device(memory, {&calls})};
  typename TypeParam::store store{&calls};
  const filled held(on);
  auto mode = sleep_mode_of(on);
  const std::size_t before = memory.used();
  std::size_t refused = 0;
  bool reached = true;
  for (std::size_t n = 1; reached; n += by_day(1 + n / 8, 1)) {
    calls = {.fails = n};
    const extension::sleep_result slept = mode.sleep(store);
    reached = calls.made >= n;
    calls = {};
    ASSERT_EQ(on.audit(), nullptr) << n;
    if (!slept) {
      ++refused;
      ASSERT_FALSE(mode.is_asleep());
      ASSERT_EQ(memory.used(), before) << n;
      ASSERT_EQ(store.used(), 0u) << slept.why;
      ASSERT_TRUE(held.is_intact()) << slept.why;
      ASSERT_TRUE(mode.sleep(store)) << n;
    }
    ASSERT_TRUE(mode.wake()) << n;
    ASSERT_TRUE(held.is_intact()) << n;
    ASSERT_EQ(store.used(), 0u);
  }
  EXPECT_GE(refused, 5u);
  refused = 0;
  reached = true;
  for (std::size_t n = 1; reached; n += by_day(1 + n / 8, 1)) {
    ASSERT_TRUE(mode.sleep(store)) << n;
    EXPECT_GE(store.used(), 5_MiB);
    const std::size_t asleep = memory.used();
    calls = {.fails = n};
    const extension::sleep_result woke = mode.wake();
    reached = calls.made >= n;
    calls = {};
    ASSERT_EQ(on.audit(), nullptr) << n;
    if (!woke) {
      ++refused;
      ASSERT_TRUE(mode.is_asleep());
      ASSERT_EQ(memory.used(), asleep) << woke.why;
      ASSERT_TRUE(mode.wake()) << n;
    }
    ASSERT_TRUE(held.is_intact()) << n;
    ASSERT_EQ(store.used(), 0u);
  }
  EXPECT_GE(refused, 3u);
}

TEST(sleep_stores, are_forgotten_with_the_blocks_and_with_the_allocator) {
  failing calls;
  failing_file file{&calls};
  {
    caching_allocator<stitched, host_pinned, extension::private_pools, extension::sleep_mode> on(
        host(100_MiB));
    void* const a = on.allocate(10_MiB);
    ASSERT_TRUE(sleep_mode_of(on).sleep(file));
    EXPECT_GE(file.used(), 10_MiB);
    on.deallocate(a);
    on.trim();
    EXPECT_EQ(file.used(), 0u) << "the block was freed";
    ASSERT_TRUE(sleep_mode_of(on).wake());
    void* const b = on.allocate(10_MiB);
    ASSERT_TRUE(sleep_mode_of(on).sleep(file));
    EXPECT_GE(file.used(), 10_MiB);
    on.deallocate(b);
  }
  EXPECT_EQ(file.used(), 0u);
}

TEST(sleep_stores, may_be_allocators_and_differ_for_each_pool) {
  caching_allocator<recipe::pinned_packed, host_pinned> pinned(host(48_MiB));
  concurrent::locked<
      caching_allocator<expandable, host_pinned, extension::private_pools, extension::sleep_mode>>
      device(host(100_MiB));
  any_allocator on(device);
  extension::private_pool pool(on);
  auto mode = on.get<extension::sleep_mode>();
  host_file file(descriptor());
  unsigned char *a = nullptr, *b = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    a = static_cast<unsigned char*>(on.allocate(9_MiB));
  }
  b = static_cast<unsigned char*>(on.allocate(60_MiB));
  std::memset(a, 'a', 9_MiB);
  std::memset(b, 'b', 60_MiB);
  const extension::sleep_result refused = mode.sleep(default_pools, pinned);
  EXPECT_STREQ(refused.why, "host memory ran out");
  EXPECT_EQ(pinned.current_usage().active, 0u);
  ASSERT_TRUE(mode.sleep(pool.id(), pinned));
  EXPECT_GE(pinned.current_usage().active, 9_MiB);
  ASSERT_TRUE(mode.sleep(default_pools, file));
  EXPECT_GE(file.used(), 60_MiB);
  ASSERT_TRUE(mode.wake());
  EXPECT_EQ(pinned.current_usage().active, 0u);
  EXPECT_EQ(file.used(), 0u);
  EXPECT_TRUE(a[0] == 'a' && a[9_MiB - 1] == 'a' && b[0] == 'b' && b[60_MiB - 1] == 'b');
  on.deallocate(a);
  on.deallocate(b);
}

TEST(sleep_stores, must_not_use_the_allocator_that_sleeps) {
  using allocator = concurrent::locked<caching_allocator<expandable, host_pinned, extension::sleep_mode>>;
  struct careless {
    allocator* in;
    outcome reserve(std::size_t, std::uint64_t&) noexcept {
      in->trim();
      return {};
    }
    outcome write(std::uint64_t, std::size_t, const std::byte*, std::size_t) noexcept { return {}; }
    outcome read(std::uint64_t, std::size_t, std::byte*, std::size_t) noexcept { return {}; }
    void release(std::uint64_t, std::size_t) noexcept {}
  };
  allocator on(host(100_MiB));
  void* const p = on.allocate(1_MiB);
  careless store{&on};
  EXPECT_DEATH((void)sleep_mode_of(on).sleep(store),
               "a store of contents must not use the allocator that sleeps");
  on.deallocate(p);
}

/// What a full disk or another program does to the file.
struct file_that_changes : testing::Test {
  using allocator = caching_allocator<expandable, host_pinned, extension::sleep_mode>;
  int below = descriptor();
  host_file file{below};
  allocator on{host(100_MiB)};
  filled<allocator> held{on};
  extension::sleep_mode::door<allocator> mode = sleep_mode_of(on);
  ~file_that_changes() override { ::close(below); }
};

TEST_F(file_that_changes, is_full) {
  ASSERT_EQ(::fcntl(below, F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_STREQ(mode.sleep(file).why, "the system does not let this program change the file");
  EXPECT_TRUE(!mode.is_asleep() && held.is_intact() && file.used() == 0);
  EXPECT_EQ(size_of(below), 0);
}

TEST_F(file_that_changes, reaches_the_limit_of_the_process) {
  const std::string path = testing::TempDir() + "tessera_sleep_" + std::to_string(::getpid());
  host_file on_disk(path.c_str());
  ASSERT_EQ(on_disk.why(), nullptr);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit less = before;
  less.rlim_cur = 5_MiB;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
  const extension::sleep_result refused = mode.sleep(on_disk);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  EXPECT_STREQ(refused.why, "the file would be larger than the system allows (ulimit -f)");
  EXPECT_TRUE(!mode.is_asleep() && held.is_intact() && on_disk.used() == 0);
  ASSERT_TRUE(mode.sleep(on_disk));
  ASSERT_TRUE(mode.wake());
  EXPECT_TRUE(held.is_intact());
}

TEST_F(file_that_changes, is_truncated_while_memory_sleeps) {
  ASSERT_TRUE(mode.sleep(file));
  ASSERT_EQ(::ftruncate(below, 4096), 0);
  EXPECT_STREQ(mode.wake().why, "the file is shorter than what was written: another program has changed it");
  EXPECT_TRUE(mode.is_asleep());
  EXPECT_EQ(on.audit(), nullptr);
}

TEST_F(file_that_changes, is_overwritten_while_memory_sleeps) {
  ASSERT_TRUE(mode.sleep(file));
  char was = 0, other = 0;
  ASSERT_EQ(::pread(below, &was, 1, 5'000'001), 1);
  other = static_cast<char>(was ^ 1);
  ASSERT_EQ(::pwrite(below, &other, 1, 5'000'001), 1);
  EXPECT_STREQ(mode.wake().why, "the file does not have what was written: another program has changed it");
  EXPECT_TRUE(mode.is_asleep());
  ASSERT_EQ(::pwrite(below, &was, 1, 5'000'001), 1);
  ASSERT_TRUE(mode.wake()) << "the file is as it was";
  EXPECT_TRUE(held.is_intact());
}

TEST(host_files, say_why_there_is_none) {
  const std::string path = testing::TempDir() + "tessera_host_file_" + std::to_string(::getpid());
  std::uint64_t piece = 0;
  {
    host_file file(path.c_str());
    ASSERT_EQ(file.why(), nullptr);
    EXPECT_NE(::access(path.c_str(), F_OK), 0) << "it has no name";
  }
  const int there = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  host_file taken(path.c_str());
  EXPECT_STREQ(taken.why(), "a file of this name exists already");
  EXPECT_STREQ(taken.reserve(1, piece).why, taken.why());
  const int readable = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int appending = ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  int ends[2] = {};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  for (const int unfit : {readable, appending, ends[0]})
    EXPECT_STREQ(
        host_file(unfit).why(),
        "the descriptor is not of a regular file that is open for reading and writing, without O_APPEND");
  for (const int file : {there, readable, appending, ends[0], ends[1]}) ::close(file);
  EXPECT_STREQ(host_file(ends[0]).why(), "the descriptor is not open");
  EXPECT_STREQ(host_file((path + "/none/file").c_str()).why(), "the system cannot create the file");
  EXPECT_STREQ(host_file((path + "_none/file").c_str()).why(), "the folder of the file does not exist");
  ASSERT_EQ(::unlink(path.c_str()), 0);
}

TEST(host_files, stay_when_a_forked_process_ends_its_own) {
  host_file file(::memfd_create("tessera", MFD_CLOEXEC));
  const std::byte written[8]{std::byte{7}};
  std::byte read[8]{};
  std::uint64_t piece = 0;
  ASSERT_FALSE(file.reserve(8, piece).why || file.write(piece, 0, written, 8).why);
  const auto end = [&] {
    file.release(piece, 8);
    file.~host_file();
    return 7;
  };
  EXPECT_EQ(host_process::end_of(host_process::start(end)), 7);
  EXPECT_STREQ(file.read(piece, 0, read, 8).why, nullptr);
  EXPECT_EQ(read[0], std::byte{7});
}

TEST(host_files, keep_what_a_map_keeps) {
  const int below = descriptor();
  ASSERT_EQ(::pwrite(below, "before", 6, 0), 6);
  std::mt19937 random(5);
  {
    host_file file(below);
    std::map<std::uint64_t, std::vector<std::byte>> expected;
    std::size_t used = 0, peak = 0;
    for (int step = 0; step < 3000; ++step) {
      if (expected.size() < 12 && random() % 2 == 0) {
        std::vector<std::byte> bytes(random() % 5000);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
        std::uint64_t piece = 0;
        ASSERT_TRUE(file.reserve(bytes.size(), piece));
        const std::size_t half = bytes.size() / 2 / 8 * 8;
        ASSERT_TRUE(file.write(piece, 0, bytes.data(), half));
        ASSERT_TRUE(file.write(piece, half, bytes.data() + half, bytes.size() - half));
        used += bytes.size();
        ASSERT_TRUE(expected.emplace(piece, std::move(bytes)).second);
      } else if (!expected.empty()) {
        auto at = expected.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random() % expected.size()));
        std::vector<std::byte> read(at->second.size());
        ASSERT_TRUE(file.read(at->first, 0, read.data(), read.size()));
        ASSERT_EQ(read, at->second);
        if (random() % 2 == 0) {
          file.release(at->first, read.size());
          used -= read.size();
          expected.erase(at);
        }
      }
      ASSERT_EQ(file.used(), used);
      peak = peak < used ? used : peak;
      ASSERT_LE(static_cast<std::size_t>(size_of(below)), 6 + 3 * 12 * 5000u) << "room is used again";
    }
    EXPECT_GT(peak, 20'000u);
  }
  char text[7] = {};
  EXPECT_EQ(size_of(below), 6);
  EXPECT_EQ(::pread(below, text, 6, 0), 6);
  EXPECT_STREQ(text, "before");
  ::close(below);
}

}  // namespace
