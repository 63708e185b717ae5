// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <tessera/provider/host_pinned.hpp>

#include "host_process.hpp"

namespace {

using namespace tessera;
using options = host_pinned::options;
using pinning = host_pinned::pinning;
using physical = host_pinned::physical;
using holdings = host_pinned::holdings;

constexpr options loose{.capacity = 64_MiB, .pin = pinning::never};
constexpr page_kind read_only_pages{.read_only = true};

#if defined(__linux__)
constexpr const char* why_no_addresses = "max_map_count";
#else
constexpr const char* why_no_addresses = "too many mappings";
#endif

std::byte* reserved(host_pinned& device, std::size_t bytes) {
  return static_cast<std::byte*>(device.reserve(bytes, 2_MiB));
}

TEST(host_pinned_virtual_memory, keeps_addresses_and_memory_apart) {
  const std::size_t files = host_process::open_files();
  {
    host_pinned device{loose};
    const std::size_t page = device.page_size(page_kind::normal);
    std::byte* const p = reserved(device, 64 * page);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 2_MiB, 0u);
    physical one, two;
    ASSERT_TRUE(device.create(16 * page, page_kind::normal, one) &&
                device.create(8 * page, page_kind::normal, two));
    EXPECT_NE(one, two);
    EXPECT_EQ(device.held(), (holdings{.created = 24 * page, .reserved = 64 * page}));
    EXPECT_EQ(host_process::open_files(), files + 2);

    ASSERT_TRUE(device.map(p, 16 * page, one) && device.map(p + 16 * page, 8 * page, two));
    ASSERT_TRUE(device.grant(p, 16 * page) && device.grant(p + 16 * page, 8 * page));
    std::memset(p, 1, 16 * page);
    std::memset(p + 16 * page, 2, 8 * page);
    EXPECT_EQ(device.held(), (holdings{.created = 24 * page, .reserved = 64 * page, .mapped = 24 * page}));

    ASSERT_TRUE(device.unmap(p, 16 * page) && device.unmap(p + 16 * page, 8 * page));
    ASSERT_TRUE(device.map(p, 8 * page, two) && device.map(p + 48 * page, 16 * page, one));
    EXPECT_EQ(p[0], std::byte{2});
    EXPECT_EQ(p[64 * page - 1], std::byte{1});

    ASSERT_TRUE(device.unmap(p, 8 * page) && device.unmap(p + 48 * page, 16 * page));
    ASSERT_TRUE(device.destroy(one) && device.destroy(two) && device.unreserve(p, 64 * page));
    EXPECT_EQ(device.held(), holdings{});
    EXPECT_EQ(device.last_error(), "");
  }
  EXPECT_EQ(host_process::open_files(), files);
}

TEST(host_pinned_virtual_memory, is_resident_and_locked_as_counted) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  host_pinned device{options{.capacity = 64_MiB}};
  std::byte* const p = reserved(device, 8_MiB);
  physical memory;
  ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory));
  EXPECT_EQ(host_process::smaps(p, 8_MiB).rights, "---p ");
  ASSERT_TRUE(device.map(p, 4_MiB, memory)) << device.last_error();

  const host_process::extent mapped = host_process::smaps(p, 4_MiB);
  EXPECT_EQ(mapped.size, 4_MiB);
  EXPECT_EQ(mapped.resident, device.held().mapped);
  EXPECT_EQ(mapped.locked, device.held().locked);
  EXPECT_EQ(mapped.rights, "rw-s ");
  EXPECT_EQ(host_process::in_core(p, 4_MiB), 4_MiB);
  EXPECT_EQ(device.held().locked, 4_MiB);

  ASSERT_TRUE(device.unmap(p, 4_MiB));
  const host_process::extent unmapped = host_process::smaps(p, 8_MiB);
  EXPECT_EQ(unmapped.size, 8_MiB);
  EXPECT_EQ(unmapped.resident + unmapped.locked, 0u);
  EXPECT_EQ(unmapped.rights.find_first_not_of("-p "), std::string::npos);
  EXPECT_EQ(host_process::memory_files_mapped(), 0u);
  ASSERT_TRUE(device.destroy(memory) && device.unreserve(p, 8_MiB));
  EXPECT_EQ(device.held(), holdings{});
}

TEST(host_pinned_virtual_memory, is_in_memory_though_nothing_locks_it) {
  if (!host_process::populates()) GTEST_SKIP() << "an emulator leaves mappings without memory";
  host_pinned device{loose};
  std::byte* const p = reserved(device, 4_MiB);
  physical memory;
  ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory) && device.map(p, 4_MiB, memory));
  EXPECT_EQ(host_process::smaps(p, 4_MiB).resident, 4_MiB);
  EXPECT_EQ(host_process::smaps(p, 4_MiB).locked, 0u);
  EXPECT_EQ(device.held().locked, 0u);
}

TEST(host_pinned_virtual_memory, exists_until_its_last_unmap) {
  host_pinned device{loose};
  std::byte* const p = reserved(device, 4_MiB);
  physical memory;
  ASSERT_TRUE(device.create(1_MiB, page_kind::normal, memory) && device.map(p, 1_MiB, memory));
  p[0] = std::byte{7};
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_EQ(p[0], std::byte{7});
  EXPECT_EQ(device.used(), 1_MiB);
  EXPECT_FALSE(device.destroy(memory));
  EXPECT_FALSE(device.map(p + 1_MiB, 1_MiB, memory));
  EXPECT_TRUE(device.unmap(p, 1_MiB));
  EXPECT_EQ(device.held(), (holdings{.reserved = 4_MiB}));
}

TEST(host_pinned_virtual_memory, refuses_misuse_and_changes_nothing) {
  host_pinned device{loose}, other{loose};
  const std::size_t page = device.page_size(page_kind::normal);
  std::byte* const p = reserved(device, 16 * page);
  std::byte* const apart = reserved(device, 4 * page);
  physical mapped, free, foreign, untouched;
  ASSERT_TRUE(device.create(4 * page, page_kind::normal, mapped) &&
              device.create(2 * page, page_kind::normal, free));
  ASSERT_TRUE(other.create(2 * page, page_kind::normal, foreign) && device.map(p, 4 * page, mapped));
  const holdings before = device.held();
  const auto refused = [&](bool worked, const std::string& call, const std::string& rule) {
    EXPECT_FALSE(worked) << call;
    const std::string error = device.last_error();
    EXPECT_EQ(error.rfind(call, 0), 0u) << error;
    EXPECT_NE(error.find(rule), std::string::npos) << error;
    EXPECT_EQ(device.held(), before) << error;
    EXPECT_EQ(untouched, physical{}) << error;
  };
  refused(device.reserve(0, page) != nullptr, "reserve", "multiple of the page");
  refused(device.reserve(page + 1, page) != nullptr, "reserve", "multiple of the page");
  refused(device.reserve(page, 3 * page) != nullptr, "reserve", "power of two");
  refused(device.reserve(page, 0) != nullptr, "reserve", "power of two");
  refused(device.reserve(unlimited / page * page, page) != nullptr, "reserve", "multiple of the page");
  refused(device.reserve(std::size_t{1} << 59, page) != nullptr, "reserve", why_no_addresses);
  refused(device.unreserve(p, 16 * page), "unreserve", "memory is mapped");
  refused(device.unreserve(apart, 2 * page), "unreserve", "the range has another size");
  refused(device.unreserve(apart + page, 3 * page), "unreserve", "no range begins here");
  refused(device.unreserve(nullptr, page), "unreserve", "no range begins here");
  refused(device.create(0, page_kind::normal, untouched), "create", "0 or too large");
  refused(device.create(unlimited, page_kind::normal, untouched), "create", "0 or too large");
  refused(device.create(page / 2, page_kind::normal, untouched), "create", "page_size(kind)");
  refused(device.create(1_MiB, page_kind::huge, untouched), "create", "page_size(kind)");
  refused(device.create(128_MiB, page_kind::normal, untouched), "create", "capacity");
  refused(device.destroy(untouched), "destroy", "unknown or destroyed");
  refused(device.destroy(foreign), "destroy", "unknown or destroyed");
  refused(device.map(p + 4 * page, 2 * page, foreign), "map", "unknown or destroyed");
  refused(device.map(p + 8 * page, 4 * page, mapped), "map", "mapped already");
  refused(device.map(p + 8 * page, page, free), "map", "another size");
  refused(device.map(p + 8 * page, 4 * page, free), "map", "another size");
  refused(device.map(p + 8 * page + 1, 2 * page, free), "map", "page_size(kind)");
  refused(device.map(p + 3 * page, 2 * page, free), "map", "here already");
  refused(device.map(p + 15 * page, 2 * page, free), "map", "the range ends before the memory does");
  refused(device.map(p - page, 2 * page, free), "map", "the addresses are not reserved");
  refused(device.map(nullptr, 2 * page, free), "map", "the addresses are not reserved");
  refused(device.grant(p, 2 * page), "grant", "the mapping has another size");
  refused(device.grant(p + 8 * page, 2 * page), "grant", "no mapping begins here");
  refused(device.unmap(p, 2 * page), "unmap", "the mapping has another size");
  refused(device.unmap(p + page, 3 * page), "unmap", "no mapping begins here");
  refused(device.unmap(p + 8 * page, 2 * page), "unmap", "no mapping begins here");
  refused(device.release(p, 4 * page), "release", "not a segment");
  if (host_process::populates()) {
    EXPECT_EQ(host_process::smaps(p, 16 * page).resident, 4 * page);
  }
}

TEST(host_pinned_virtual_memory, counts_what_is_acquired_and_created_against_the_capacity) {
  host_pinned device{options{.capacity = 4_MiB, .pin = pinning::never}};
  physical memory, more;
  void* const segment = device.acquire(1_MiB);
  ASSERT_TRUE(segment != nullptr && device.create(3_MiB, page_kind::normal, memory));
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_EQ(device.acquire(1), nullptr);
  EXPECT_FALSE(device.create(device.page_size(page_kind::normal), page_kind::normal, more));
  ASSERT_TRUE(device.release(segment, 1_MiB));
  EXPECT_TRUE(device.create(1_MiB, page_kind::normal, more));
}

/// In a process that the system kills if a file takes too much memory.
int create_more_than_there_is() {
  const rlimit little{64_MiB, 64_MiB};
  if (::setrlimit(RLIMIT_FSIZE, &little) != 0) return 1;
  host_pinned device{options{.capacity = max_request, .pin = pinning::never}};
  const std::size_t files = host_process::open_files();
  physical memory;
  if (device.create(std::size_t{1} << 50, page_kind::normal, memory)) return 2;
  if (device.last_error().find("too little memory") == std::string::npos) return 3;
  return device.held() == holdings{} && host_process::open_files() == files ? 0 : 4;
}
TEST(host_pinned_virtual_memory, is_refused_if_the_system_has_too_little) {
  EXPECT_EQ(host_process::end_of(host_process::start(create_more_than_there_is)), 0);
}

TEST(host_pinned_virtual_memory, is_refused_if_too_many_files_are_open) {
  EXPECT_EQ(host_process::end_of(host_process::start([] {
              host_pinned device{loose};
              const rlimit few{16, 16};
              if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
              physical memory;
              const std::size_t bytes = device.page_size(page_kind::normal);
              for (int i = 0; i < 16 && device.create(bytes, page_kind::normal, memory); ++i) {
              }
              return device.last_error().find("ulimit -n") != std::string::npos ? 0 : 2;
            })),
            0);
}

/// In a process that may lock at most 64 KiB.
int map_beyond_the_lock_limit() {
  const rlimit little{64_KiB, 64_KiB};
  if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0) return 1;
  if (::getuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 2;  // this removes the right to lock
  for (const pinning pin : {pinning::required, pinning::where_allowed}) {
    host_pinned device{options{.capacity = 64_MiB, .pin = pin}};
    std::byte* const p = reserved(device, 2_MiB);
    physical memory;
    if (!device.create(1_MiB, page_kind::normal, memory)) return 3;
    const bool worked = device.map(p, 1_MiB, memory);
    if (worked != (pin == pinning::where_allowed)) return 4;
    const bool told = device.last_error().find("ulimit -l") != std::string::npos;
    if (worked == told) return 5;
    const holdings now = device.held();
    if (now.locked != 0 || now.mapped != (worked ? 1_MiB : 0)) return 6;
    // A failed call leaves the range unchanged.
    if (!worked && host_process::smaps(p, 2_MiB).resident != 0) return 7;
    if (!worked && host_process::memory_files_mapped() != 0) return 8;
    if (!worked && device.unmap(p, 1_MiB)) return 9;
    if (worked) p[1_MiB - 1] = std::byte{1};
  }
  return 0;
}
TEST(host_pinned_virtual_memory, names_the_limit_and_unmaps_memory_that_it_cannot_lock) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  EXPECT_EQ(host_process::end_of(host_process::start(map_beyond_the_lock_limit)), 0);
}

/// Reads the memory, then writes to it although that is forbidden.
void write_to_read_only_memory(bool mapped) {
  host_pinned device{loose};
  std::byte* p = nullptr;
  physical memory;
  if (mapped) {
    p = reserved(device, 2_MiB);
    if (!device.create(64_KiB, read_only_pages, memory) || !device.map(p, 64_KiB, memory)) std::exit(0);
  } else {
    p = static_cast<std::byte*>(device.acquire(64_KiB, read_only_pages));
  }
  if (p == nullptr || p[0] != std::byte{0} || p[64_KiB - 1] != std::byte{0}) std::exit(0);
  std::fputs("read\n", stderr);
  *static_cast<volatile std::byte*>(p) = std::byte{1};
  std::fputs("written\n", stderr);
  std::exit(0);
}
TEST(host_pinned_virtual_memory, cannot_be_written_if_it_is_read_only) {
  EXPECT_DEATH(write_to_read_only_memory(true), "read");
  EXPECT_DEATH(write_to_read_only_memory(false), "read");
}

#if defined(__linux__)  // elsewhere, there are no larger pages
/// A setting of the system, restored at the end.
class system_setting {
 public:
  explicit system_setting(std::string name) : name_(std::move(name)) { std::ifstream(name_) >> before_; }
  system_setting(const system_setting&) = delete;
  system_setting& operator=(const system_setting&) = delete;
  ~system_setting() {
    if (changed_) (void)set(before_);
  }
  bool raise_by(std::size_t more) { return changed_ = set(before_ + more); }

 private:
  bool set(std::size_t value) {
    std::ofstream(name_) << value << std::flush;
    std::size_t now = 0;
    std::ifstream(name_) >> now;
    return now == value;
  }
  std::string name_;
  std::size_t before_ = 0;
  bool changed_ = false;
};

/// Creates, maps and writes one page of a kind; or reports the file that the administrator must write.
constexpr int there_are_none = 77;
int try_pages(page_kind kind, const std::string& folder) {
  host_pinned device{options{.capacity = 2_GiB, .pin = pinning::required}};
  const std::size_t bytes = device.page_size(kind);
  std::byte* const p = static_cast<std::byte*>(device.reserve(bytes, bytes));
  if (bytes != kind.granularity() || p == nullptr || reinterpret_cast<std::uintptr_t>(p) % bytes != 0)
    return 1;
  const auto told = [&] { return device.last_error().find(folder + "/nr_hugepages") != std::string::npos; };
  physical memory;
  if (!device.create(bytes, kind, memory)) {
    if (!told() || device.held() != holdings{.reserved = bytes}) return 2;
    return device.acquire(1, kind) == nullptr && told() ? there_are_none : 3;
  }
  if (!device.map(p, bytes, memory)) return 4;
  p[0] = p[bytes - 1] = std::byte{3};
  if (device.held() != holdings{.created = bytes, .reserved = bytes, .mapped = bytes}) return 5;
  if (!device.unmap(p, bytes) || !device.destroy(memory)) return 6;
  auto* const segment = static_cast<std::byte*>(device.acquire(1, kind));
  if (segment == nullptr || device.used() != bytes) return 7;
  *segment = std::byte{1};
  return device.release(segment, 1) && device.used() == 0 ? 0 : 8;
}
/// Has one page more while another process tries, whatever the result.
void try_pages_with_one_more(page_kind kind, const std::string& folder) {
  if (!host_process::populates()) GTEST_SKIP() << "an emulator leaves mappings without memory";
  system_setting pages("/sys/kernel/mm/hugepages/" + folder + "/nr_hugepages");
  (void)pages.raise_by(1);
  const int code = host_process::end_of(host_process::start([&] { return try_pages(kind, folder); }));
  if (code == there_are_none) GTEST_SKIP() << "the system has no such pages, and none can be had from it";
  EXPECT_EQ(code, 0);
}
TEST(host_pinned_virtual_memory, has_huge_pages_or_names_the_setting) {
  try_pages_with_one_more(page_kind::huge, "hugepages-2048kB");
}
TEST(host_pinned_virtual_memory, has_giant_pages_or_names_the_setting) {
  try_pages_with_one_more(page_kind::huge_1g, "hugepages-1048576kB");
}

TEST(host_pinned_virtual_memory, names_the_setting_if_there_are_no_larger_pages) {
  host_pinned device{options{.capacity = 3_GiB, .pin = pinning::never}};
  for (const auto& [kind, folder] :
       {std::pair{page_kind::huge, "2048kB"}, std::pair{page_kind::huge_1g, "1048576kB"}}) {
    std::vector<physical> all(1);
    while (device.create(kind.granularity(), kind, all.back())) all.emplace_back();
    EXPECT_NE(device.last_error().find(folder), std::string::npos) << device.last_error();
    all.pop_back();
    for (const physical& one : all) EXPECT_TRUE(device.destroy(one));
  }
}
#endif

TEST(host_pinned_virtual_memory, takes_calls_from_several_threads) {
  host_pinned device{loose};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&device, t] {
      for (int i = 0; i < 100; ++i) {
        std::byte* const p = reserved(device, 64_KiB);
        physical memory;
        EXPECT_TRUE(p != nullptr && device.create(64_KiB, page_kind::normal, memory) &&
                    device.map(p, 64_KiB, memory));
        std::memset(p, t, 64_KiB);
        EXPECT_FALSE(device.unmap(p, 4_KiB));
        EXPECT_FALSE(device.last_error().empty());
        EXPECT_EQ(p[64_KiB - 1], std::byte(t));
        EXPECT_TRUE(device.unmap(p, 64_KiB) && device.destroy(memory) && device.unreserve(p, 64_KiB));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(device.held(), holdings{});
}

}  // namespace
