// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;

/// Obeys every law. Each test breaks one rule by overriding a function.
struct honest : provider::simulated_device {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    if (at % 4_KiB != 0) return false;
    for (const auto& [begin, size] : registered)
      if (at < begin + size && begin < at + bytes) return false;
    return registered.emplace(at, bytes).second;
  }
  bool unregister_memory(void* p) noexcept {
    return registered.erase(reinterpret_cast<std::uintptr_t>(p)) == 1;
  }

  std::map<std::uintptr_t, std::size_t> registered{};
};
static_assert(provider::registering_provider<honest>);

template <typename D>
const char* broken_by() {
  D device;
  return law::provider(device).broken;
}

struct refuses : honest {
  bool register_memory(void*, std::size_t) noexcept { return false; }
};
struct registers_once : honest {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    return !used && honest::register_memory(p, bytes) && (used = true);
  }
  bool used = false;
};
struct registers_twice : honest {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    return reinterpret_cast<std::uintptr_t>(p) % 4_KiB == 0 &&
           (registered[reinterpret_cast<std::uintptr_t>(p)] = bytes) != 0;
  }
};
/// Compares only the begins of ranges.
struct registers_parts : honest {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    return at % 4_KiB == 0 && registered.emplace(at, bytes).second;
  }
};
struct registers_anywhere : honest {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    const auto page = reinterpret_cast<std::uintptr_t>(p) / 4_KiB * 4_KiB;
    return honest::register_memory(reinterpret_cast<void*>(page), bytes);
  }
};
struct unregisters_from_within : honest {
  bool unregister_memory(void* p) noexcept {
    return registered.erase(reinterpret_cast<std::uintptr_t>(p) / 128_KiB * 128_KiB) == 1 ||
           registered.erase(reinterpret_cast<std::uintptr_t>(p)) == 1 ||
           registered.erase(reinterpret_cast<std::uintptr_t>(p) - 64_KiB) == 1;
  }
};
struct keeps : honest {
  bool unregister_memory(void*) noexcept { return false; }
};
struct unregisters_twice : honest {
  bool unregister_memory(void* p) noexcept {
    const bool gone = honest::unregister_memory(p) || p == latest;
    if (gone) latest = p;
    return gone;
  }
  void* latest = nullptr;
};

TEST(registering_laws, hold) {
  honest device;
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  EXPECT_TRUE(device.registered.empty());
}
TEST(registering_laws, register_memory) {
  EXPECT_STREQ(broken_by<refuses>(), "the user's memory can be registered");
  EXPECT_STREQ(broken_by<registers_once>(), "unregistered memory can be registered again");
  EXPECT_STREQ(broken_by<registers_twice>(), "register_memory refuses registered memory");
  EXPECT_STREQ(broken_by<registers_parts>(), "register_memory refuses registered memory");
  EXPECT_STREQ(broken_by<registers_anywhere>(), "register_memory refuses an address inside a page");
}
TEST(registering_laws, unregister_memory) {
  EXPECT_STREQ(broken_by<unregisters_from_within>(),
               "unregister_memory refuses an address inside registered memory");
  EXPECT_STREQ(broken_by<keeps>(), "unregister_memory accepts registered memory");
  EXPECT_STREQ(broken_by<unregisters_twice>(), "unregister_memory refuses memory that is not registered");
}

}  // namespace
