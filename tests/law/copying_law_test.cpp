// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>

#include <gtest/gtest.h>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;

class honest : public provider::host_pinned {
 public:
  honest() : provider::host_pinned({.capacity = 64_MiB, .pin = pinning::never}) {}
};

template <typename D>
const char* broken_by() {
  D device;
  return law::provider(device).broken;
}

struct refuses : honest {
  bool copy_to_host(void*, const void*, std::size_t, stream_id) noexcept { return false; }
};
/// Loses the last byte.
struct copies_less : honest {
  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    std::memset(to, 1, bytes);
    return honest::copy_to_host(to, from, bytes - 1, s);
  }
};
/// Uses the default stream instead of a stream that does not exist.
struct copies_on_any_stream : honest {
  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id) noexcept {
    return honest::copy_to_host(to, from, bytes, {});
  }
};
struct copies_anywhere : honest {
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    return to == nullptr || honest::copy_to_device(to, from, bytes, s);
  }
};

TEST(copying_law, accepts_the_providers) {
  EXPECT_STREQ(broken_by<honest>(), nullptr);
  EXPECT_STREQ(broken_by<provider::simulated_device>(), nullptr);
}

TEST(copying_law, names_what_a_provider_breaks) {
  EXPECT_STREQ(broken_by<refuses>(), "copy_to_host accepts memory of the device");
  EXPECT_STREQ(broken_by<copies_less>(), "a copy to the device and back keeps the bytes");
  EXPECT_STREQ(broken_by<copies_on_any_stream>(), "copies refuse a stream that does not exist");
  EXPECT_STREQ(broken_by<copies_anywhere>(), "copies refuse device addresses without memory");
}

}  // namespace
