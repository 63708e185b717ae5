// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <tessera/provider/host_pinned.hpp>

#include "host_process.hpp"

namespace {

using namespace tessera;
using options = host_pinned::options;
using pinning = host_pinned::pinning;
using holdings = host_pinned::holdings;

/// Pages of the user, none of which is resident yet. A page without access on each side keeps the system from joining them
/// with other memory, whose resident pages would count.
class users_memory {
 public:
  explicit users_memory(std::size_t bytes)
      : all_(::mmap(nullptr, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        bytes_(bytes) {
    EXPECT_EQ(::mprotect(data(), bytes, PROT_READ | PROT_WRITE), 0);
  }
  users_memory(const users_memory&) = delete;
  users_memory& operator=(const users_memory&) = delete;
  ~users_memory() { ::munmap(all_, bytes_ + 2 * guard); }
  std::byte* data() const { return static_cast<std::byte*>(all_) + guard; }
  host_process::extent smaps() const { return host_process::smaps(data(), bytes_); }

 private:
  static constexpr std::size_t guard = 64_KiB;  // a multiple of every system's pages
  void* all_;
  std::size_t bytes_;
};

TEST(host_pinned_registering, locks_memory_of_the_user_until_it_is_unregistered) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  host_pinned device{options{.capacity = 64_KiB}};
  const users_memory mine(1_MiB);
  ASSERT_TRUE(device.register_memory(mine.data(), 512_KiB)) << device.last_error();
  EXPECT_EQ(mine.smaps().locked, 512_KiB);
  EXPECT_EQ(mine.smaps().resident, 512_KiB);
  EXPECT_EQ(device.held(), (holdings{.registered = 512_KiB, .locked = 512_KiB}));
  EXPECT_EQ(device.used(), 0u);  // the capacity is for the provider's own memory
  EXPECT_TRUE(device.unregister_memory(mine.data()));
  EXPECT_EQ(mine.smaps().locked, 0u);
  EXPECT_EQ(device.held(), holdings{});
  EXPECT_TRUE(device.register_memory(mine.data(), 1_MiB));
  EXPECT_EQ(mine.smaps().locked, 1_MiB);
}

TEST(host_pinned_registering, ends_with_the_provider) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  const users_memory mine(1_MiB);
  {
    host_pinned device{options{.capacity = 64_KiB, .pin = pinning::where_allowed}};
    ASSERT_TRUE(device.register_memory(mine.data(), 64_KiB));
    ASSERT_TRUE(device.register_memory(mine.data() + 128_KiB, 64_KiB));
    EXPECT_EQ(mine.smaps().locked, device.held().locked);
  }
  EXPECT_EQ(mine.smaps().locked, 0u);
  mine.data()[0] = std::byte{1};  // it still belongs to the user
}

TEST(host_pinned_registering, locks_nothing_if_a_part_cannot_be_locked) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  const users_memory mine(1_MiB);
  ASSERT_EQ(::mprotect(mine.data() + 512_KiB, 64_KiB, PROT_NONE), 0);
  for (const pinning pin : {pinning::required, pinning::where_allowed}) {
    host_pinned device{options{.capacity = 64_KiB, .pin = pin}};
    EXPECT_EQ(device.register_memory(mine.data(), 1_MiB), pin == pinning::where_allowed);
    EXPECT_EQ(device.held().locked, 0u);
    EXPECT_EQ(mine.smaps().locked, 0u);
  }
}

TEST(host_pinned_registering, refuses_misuse_and_changes_nothing) {
  host_pinned device{options{.capacity = 1_MiB, .pin = pinning::where_allowed}};
  const std::size_t page = device.granularity();
  const users_memory mine(16 * page);
  ::munmap(mine.data() + 12 * page, page);
  void* const segment = device.acquire(4 * page);
  void* const range = device.reserve(4 * page, page);
  ASSERT_TRUE(segment != nullptr && range != nullptr &&
              device.register_memory(mine.data() + 4 * page, 4 * page));
  const holdings before = device.held();
  const std::size_t locked = mine.smaps().locked;
  const auto refused = [&](bool worked, const std::string& rule) {
    EXPECT_FALSE(worked) << rule;
    EXPECT_NE(device.last_error().find(rule), std::string::npos) << device.last_error();
    EXPECT_NE(device.last_error().find("register_memory"), std::string::npos) << device.last_error();
    EXPECT_EQ(device.held(), before) << rule;
    EXPECT_EQ(mine.smaps().locked, locked) << rule;
  };
  refused(device.register_memory(nullptr, page), "multiple of the page");
  refused(device.register_memory(mine.data() + 1, page), "multiple of the page");
  refused(device.register_memory(mine.data(), 0), "0 or too large");
  refused(device.register_memory(mine.data(), unlimited), "0 or too large");
  refused(device.register_memory(mine.data() + 4 * page, 4 * page), "registered already");
  refused(device.register_memory(mine.data() + 3 * page, page + 1), "registered already");
  refused(device.register_memory(mine.data() + 7 * page, 2 * page), "registered already");
  refused(device.register_memory(mine.data() + 11 * page, 2 * page), "not memory of this process");
  refused(device.register_memory(segment, page), "belongs to this provider");
  refused(device.register_memory(range, page), "belongs to this provider");
  refused(device.unregister_memory(mine.data()), "no registered memory begins here");
  refused(device.unregister_memory(mine.data() + 5 * page), "no registered memory begins here");
  refused(device.unregister_memory(nullptr), "no registered memory begins here");
  EXPECT_TRUE(device.unregister_memory(mine.data() + 4 * page));
}

/// In a process that may lock at most 64 KiB.
int register_beyond_the_lock_limit() {
  const rlimit little{64_KiB, 64_KiB};
  if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0) return 1;
  if (::getuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 2;  // this removes the right to lock
  const users_memory mine(1_MiB);
  host_pinned strict{options{.capacity = 64_KiB}};
  if (strict.register_memory(mine.data(), 1_MiB) || strict.held() != holdings{}) return 3;
  if (strict.last_error().find("ulimit -l") == std::string::npos) return 4;
  host_pinned loose{options{.capacity = 64_KiB, .pin = pinning::where_allowed}};
  if (!loose.register_memory(mine.data(), 1_MiB)) return 5;
  if (loose.held() != holdings{.registered = 1_MiB} || mine.smaps().locked != 0) return 6;
  return loose.unregister_memory(mine.data()) ? 0 : 7;
}
TEST(host_pinned_registering, names_the_limit_of_locked_memory) {
  if (!host_process::locks()) GTEST_SKIP() << "nothing can be locked here";
  EXPECT_EQ(host_process::end_of(host_process::start(register_beyond_the_lock_limit)), 0);
}

}  // namespace
