// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
constexpr stream_id a{1}, b{2};

/// A device that obeys the law. Each test breaks one rule by overriding a function.
template <typename D>
const char* broken_by(D device) {
  device.submit(a, 1000);
  device.submit(b, 1000);
  law::provider_check_result found;
  law::detail::ordering(found, device, a, b);
  return found.broken;
}

TEST(ordering_law, holds_for_the_devices) {
  EXPECT_STREQ(broken_by(provider::simulated_device{}), nullptr);
  provider::simulated_device device;
  provider::provider_ref<provider::simulated_device> reference(device);
  law::provider_check_result found;
  law::detail::ordering(found, reference, a, b);
  law::detail::ordering(found, reference, a, a);
  provider::host_pinned pinned{
      provider::host_pinned::options{.capacity = 1_MiB, .pin = provider::host_pinned::pinning::never}};
  const stream_id side = pinned.create_stream();
  law::detail::ordering(found, pinned, {}, side);
  law::detail::ordering(found, pinned, side, {});
  EXPECT_STREQ(found.broken, nullptr);
}

TEST(ordering_law, is_among_those_of_a_provider) {
  struct never_done : provider::simulated_device {
    static bool is_done(stream_id, std::uint64_t) noexcept { return false; }
  } device;
  EXPECT_STREQ(law::provider(device).broken, "position 0 is before all work");
}

struct without_events : provider::simulated_device {
  bool wait(event&) noexcept { return false; }
};
struct never_done : provider::simulated_device {
  static bool is_done(stream_id, std::uint64_t at) noexcept { return at == 0; }
};
struct never_behind : provider::simulated_device {
  static bool is_ordered_after(stream_id, stream_id, std::uint64_t at) noexcept { return at == 0; }
};
struct behind_itself_only : provider::simulated_device {
  static bool is_ordered_after(stream_id s, stream_id of, std::uint64_t at) noexcept {
    return s == of || at == 0;
  }
};
struct waits_for_nobody : provider::simulated_device {
  static bool make_wait(stream_id, stream_id, std::uint64_t) noexcept { return false; }
};
struct counts_no_waits : provider::simulated_device {
  bool make_wait(stream_id s, stream_id of, std::uint64_t at) noexcept {
    const std::uint64_t before = position(s);
    return provider::simulated_device::make_wait(s, of, at) && (s != b || (kept = before, true));
  }
  std::uint64_t position(stream_id s) noexcept {
    return s == b && kept != 0 ? kept : provider::simulated_device::position(s);
  }
  std::uint64_t kept = 0;
};
struct waits_one_way : provider::simulated_device {
  bool make_wait(stream_id s, stream_id of, std::uint64_t at) noexcept {
    return s == b && provider::simulated_device::make_wait(s, of, at);
  }
};
struct falls_back : provider::simulated_device {
  bool wait(event& mark) noexcept { return ++waits, provider::simulated_device::wait(mark); }
  std::uint64_t position(stream_id s) noexcept {
    return waits < 2 ? provider::simulated_device::position(s) : 0;
  }
  int waits = 0;
};

TEST(ordering_law, names_the_broken_rule) {
  EXPECT_STREQ(broken_by(without_events{}), "record and wait succeed on a stream");
  EXPECT_STREQ(broken_by(never_done{}), "work is done after a wait for it");
  EXPECT_STREQ(broken_by(never_behind{}), "a stream is ordered after its own work");
  EXPECT_STREQ(broken_by(behind_itself_only{}), "a stream is ordered after the work that it waits for");
  EXPECT_STREQ(broken_by(waits_for_nobody{}), "make_wait succeeds");
  EXPECT_STREQ(broken_by(counts_no_waits{}), "a wait counts as work");
  EXPECT_STREQ(broken_by(waits_one_way{}), "streams may wait for each other's earlier work");
  EXPECT_STREQ(broken_by(falls_back{}), "positions never fall");
}

}  // namespace
