// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = provider::simulated_device::options;
using physical = provider::simulated_device::physical;

template <typename D>
bool is_empty(const D& d) {
  const auto [handles, named, reserved, mapped, not_granted, entries] = d.held();
  return handles + named + reserved + mapped + not_granted + entries + d.used() == 0;
}

template <typename D>
law::provider_check_result check(D& device, std::size_t at_once = 16_MiB) {
  law::provider_check_result found;
  law::detail::virtual_memory(found, device, at_once);
  return found;
}
/// The rule that a simulated device breaks. Each test changes one thing in it.
template <typename D>
const char* broken_by(D device = D{}) {
  return check(device).broken;
}

template <typename D>
class virtual_memory_law : public testing::Test {};
using both = testing::Types<provider::simulated_device, provider::simulated_npu>;
TYPED_TEST_SUITE(virtual_memory_law, both);

TYPED_TEST(virtual_memory_law, holds_and_leaves_the_device_unchanged) {
  for (const std::size_t capacity : {4_GiB, 80_GiB, 1'000'000_GiB, unlimited}) {
    for (const std::size_t page : {4_KiB, 64_KiB, 2_MiB, 1_GiB}) {
      TypeParam device{options{.capacity = capacity, .page_granularity = page}};
      EXPECT_STREQ(check(device).broken, nullptr) << device.last_error();
      EXPECT_STREQ(check(device, 3_GiB).broken, nullptr) << device.last_error();
      EXPECT_TRUE(is_empty(device));
      EXPECT_EQ(device.calls().failed, 0u);
    }
  }
}

TYPED_TEST(virtual_memory_law, is_tried_with_every_kind_of_page) {
  TypeParam device{options{.log_calls = 100'000}};
  EXPECT_STREQ(check(device).broken, nullptr);
  for (const page_kind kind : law::detail::trial_kinds) {
    std::size_t mapped = 0;
    for (const auto& c : device.log())
      mapped +=
          c.kind == provider::simulated_device::call::map && c.ok && c.bytes == 2 * device.page_size(kind)
              ? 1
              : 0;
    EXPECT_GT(mapped, 0u);
  }
}

TYPED_TEST(virtual_memory_law, allows_that_a_kind_of_page_is_refused) {
  for (const options& without : {options{.huge_budget = 0}, options{.giant_budget = 0},
                                 options{.peer_to_peer_budget = 0}, options{.low_bandwidth_budget = 0},
                                 options{.high_bandwidth_budget = 0}, options{.capacity = 64_MiB}}) {
    TypeParam device{without};
    EXPECT_STREQ(check(device).broken, nullptr) << device.last_error();
  }
}

TYPED_TEST(virtual_memory_law, is_one_of_the_laws_of_providers) {
  TypeParam device;
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  EXPECT_GT(device.calls().map, 0u);
  provider::provider_ref<TypeParam> reference(device);
  EXPECT_STREQ(law::provider(reference).broken, nullptr);
  EXPECT_TRUE(is_empty(device));
}

/// A call fails once, at any place. The law then returns what it can, and does not retry a failed call that
/// returns memory.
TYPED_TEST(virtual_memory_law, frees_everything_after_it_is_broken) {
  using call = provider::simulated_device::call;
  TypeParam lawful{options{.capacity = 64_MiB, .log_calls = 10'000}};
  EXPECT_STREQ(check(lawful).broken, nullptr);
  std::size_t broken = 0;
  for (std::size_t n = 0; n < lawful.log().size(); ++n) {
    TypeParam device{options{.capacity = 64_MiB}};
    device.fail_call(n + 1);
    broken += check(device) ? 0 : 1;
    const call failing = lawful.log()[n].kind;
    const bool gives_back = failing == call::release || failing == call::unmap || failing == call::destroy ||
                            failing == call::unreserve;
    EXPECT_TRUE(gives_back || is_empty(device)) << n;
  }
  EXPECT_GT(broken, lawful.log().size() / 2);
}

struct coarse : provider::simulated_device {
  std::size_t page_size(page_kind) const noexcept { return 3_MiB; }
};
struct fine : provider::simulated_device {
  std::size_t page_size(page_kind) const noexcept { return 2_MiB; }  // of giant pages, too
};
struct wavering : provider::simulated_device {
  std::size_t page_size(page_kind kind) const noexcept {
    return calls().synchronize == 0 ? provider::simulated_device::page_size(kind)
                                    : 2 * provider::simulated_device::page_size(kind);
  }
};
struct poor : provider::simulated_device {
  bool create(std::size_t, page_kind, physical&) noexcept { return false; }
};
TEST(virtual_memory_laws, steps_and_normal_pages) {
  EXPECT_STREQ(broken_by<coarse>(),
               "the page size is a power of two and a multiple of the kind's granularity");
  EXPECT_STREQ(broken_by<fine>(), "the page size is a power of two and a multiple of the kind's granularity");
  EXPECT_STREQ(broken_by<wavering>(), "the page size is constant");
  EXPECT_STREQ(broken_by<poor>(), "create succeeds for normal pages below the capacity");
}

struct without_addresses : provider::simulated_device {
  void* reserve(std::size_t, std::size_t) noexcept { return nullptr; }
};
struct one_range_at_a_time : provider::simulated_device {
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    return held().reserved == 0 ? provider::simulated_device::reserve(bytes, to) : nullptr;
  }
};
struct reserves_anywhere : provider::simulated_device {
  void* reserve(std::size_t bytes, std::size_t) noexcept {
    return static_cast<char*>(provider::simulated_device::reserve(bytes + 4_KiB, 2_MiB)) + 4_KiB;
  }
};
struct aligns_to_2_mib : provider::simulated_device {
  void* reserve(std::size_t bytes, std::size_t) noexcept {
    (void)provider::simulated_device::reserve(4_KiB, 2_MiB);
    return provider::simulated_device::reserve(bytes, 2_MiB);
  }
};
/// Gives every range the same addresses.
struct repeating : provider::simulated_device {
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    return first != nullptr ? first : first = provider::simulated_device::reserve(bytes, 4 * to);
  }
  void* first = nullptr;
};
/// Lets the second range begin in the middle of the first.
struct creeping : provider::simulated_device {
  void* reserve(std::size_t, std::size_t) noexcept {
    if (first != nullptr) return static_cast<char*>(first) + 2_MiB;
    first = static_cast<char*>(provider::simulated_device::reserve(1_GiB, 1_GiB)) + 6_MiB;
    return first;
  }
  void* first = nullptr;
};
/// Gives segments that begin or end inside a reserved range.
template <int Range, std::size_t Below>
struct segments_in_ranges : provider::simulated_device {
  segments_in_ranges() : provider::simulated_device(options{.granularity = 4_MiB}) {}
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    void* const given = provider::simulated_device::reserve(bytes, to);
    if (++ranges == Range) chosen = given;
    return given;
  }
  void* acquire(std::size_t) noexcept { return static_cast<char*>(chosen) - Below; }
  int ranges = 0;
  void* chosen = nullptr;
};
struct keeps_ranges : provider::simulated_device {
  bool unreserve(void*, std::size_t) noexcept { return false; }
};
TEST(virtual_memory_laws, addresses) {
  EXPECT_STREQ(broken_by<without_addresses>(), "reserve succeeds");
  EXPECT_STREQ(broken_by<one_range_at_a_time>(), "reserve succeeds");
  EXPECT_STREQ(broken_by<reserves_anywhere>(), "a range begins at a multiple of the alignment");
  EXPECT_STREQ(broken_by<aligns_to_2_mib>(), "a range begins at a multiple of the alignment");
  EXPECT_STREQ(broken_by<repeating>(), "ranges overlap no other range and no segment");
  EXPECT_STREQ(broken_by<creeping>(), "ranges overlap no other range and no segment");
  EXPECT_STREQ((broken_by<segments_in_ranges<1, 0>>()), "ranges overlap no other range and no segment");
  EXPECT_STREQ((broken_by<segments_in_ranges<2, 0>>()), "ranges overlap no other range and no segment");
  EXPECT_STREQ((broken_by<segments_in_ranges<1, 2_MiB>>()), "ranges overlap no other range and no segment");
  EXPECT_STREQ((broken_by<segments_in_ranges<2, 2_MiB>>()), "ranges overlap no other range and no segment");
  EXPECT_STREQ(broken_by<keeps_ranges>(), "unreserve accepts a reserved range");
}

struct rounds_up : provider::simulated_device {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    const std::size_t s = page_size(kind);
    return provider::simulated_device::create(bytes > unlimited - s ? bytes : align_up(bytes, s), kind, m);
  }
};
struct creates_nothing : provider::simulated_device {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    return bytes == 0 || provider::simulated_device::create(bytes, kind, m);
  }
};
struct generous : provider::simulated_device {
  generous() : provider::simulated_device(options{.capacity = unlimited}) {}
  std::size_t capacity() const noexcept { return 80_GiB; }
};
/// Adds before it compares, so that the sum overflows.
struct wrapping : provider::simulated_device {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    return provider::simulated_device::create(used() + bytes + 4_MiB < bytes ? page_size(kind) : bytes, kind,
                                              m);
  }
};
struct destroys_nothing : provider::simulated_device {
  bool destroy(const physical& m) noexcept { return m.number == 0 || provider::simulated_device::destroy(m); }
};
struct maps_nothing : provider::simulated_device {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    return m.number == 0 || provider::simulated_device::map(p, bytes, m);
  }
};
TEST(virtual_memory_laws, impossible_memory) {
  EXPECT_STREQ(broken_by<rounds_up>(), "create refuses 0 bytes and parts of pages");
  EXPECT_STREQ(broken_by<creates_nothing>(), "create refuses 0 bytes and parts of pages");
  EXPECT_STREQ(broken_by<generous>(), "create refuses more than the capacity");
  EXPECT_STREQ(broken_by<wrapping>(), "create refuses more than the capacity");
  EXPECT_STREQ(broken_by<destroys_nothing>(), "destroy and map refuse an empty handle");
  EXPECT_STREQ(broken_by<maps_nothing>(), "destroy and map refuse an empty handle");
}

/// A page size of one byte is valid.
struct of_bytes : provider::simulated_device {
  std::size_t page_size(page_kind kind) const noexcept { return kind.granularity(); }
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    return provider::simulated_device::reserve(align_up(bytes, 4_KiB), to);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return provider::simulated_device::unreserve(p, align_up(bytes, 4_KiB));
  }
};
TEST(virtual_memory_laws, normal_pages_of_any_size) {
  EXPECT_STREQ(broken_by<of_bytes>(), "create succeeds for normal pages below the capacity");
}

/// Reports success of one call that it refuses.
template <int Nth>
struct map_that_accepts : provider::simulated_device {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    return provider::simulated_device::map(p, bytes, m) || ++refused == Nth;
  }
  int refused = 0;
};
struct maps_nowhere : provider::simulated_device {
  bool map(void*, std::size_t, const physical&) noexcept { return false; }
};
struct forgets_after_refusing : provider::simulated_device {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    const bool there = !soiled && provider::simulated_device::map(p, bytes, m);
    soiled = !there && held().mapped != 0;
    return there;
  }
  bool soiled = false;
};
struct maps_once : provider::simulated_device {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    return m.number > last && provider::simulated_device::map(p, bytes, m) &&
           (last = m.number - (m.number % 2), true);
  }
  std::uint64_t last = 0;
};
TEST(virtual_memory_laws, map) {
  // The first refusal is that of a handle that names nothing.
  EXPECT_STREQ(broken_by<map_that_accepts<1>>(), "destroy and map refuse an empty handle");
  // Beside the range, and where the range was.
  EXPECT_STREQ(broken_by<map_that_accepts<2>>(), "map refuses addresses that are not reserved");
  EXPECT_STREQ(broken_by<map_that_accepts<6>>(), "map refuses addresses that are not reserved");
  EXPECT_STREQ(broken_by<map_that_accepts<7>>(), "map refuses addresses that are not reserved");
  EXPECT_STREQ(broken_by<map_that_accepts<8>>(), "map refuses an address inside a page");
  EXPECT_STREQ(broken_by<map_that_accepts<9>>(), "map refuses another size than the memory has");
  EXPECT_STREQ(broken_by<map_that_accepts<10>>(), "map refuses addresses with mapped memory");
  EXPECT_STREQ(broken_by<map_that_accepts<11>>(), "map refuses addresses with mapped memory");
  EXPECT_STREQ(broken_by<maps_nowhere>(), "map succeeds at free addresses of a range");
  EXPECT_STREQ(broken_by<forgets_after_refusing>(), "a refused map changes nothing");
  EXPECT_STREQ(broken_by<maps_once>(), "unmapped memory can be mapped elsewhere");
}

struct grants_never : provider::simulated_device {
  bool grant(void*, std::size_t) noexcept { return false; }
};
struct grants_once : provider::simulated_device {
  bool grant(void* p, std::size_t bytes) noexcept {
    return calls().grant == 0 && provider::simulated_device::grant(p, bytes);
  }
};
struct grants_always : provider::simulated_device {
  bool grant(void* p, std::size_t bytes) noexcept {
    return (void)provider::simulated_device::grant(p, bytes), true;
  }
};
TEST(virtual_memory_laws, grant) {
  EXPECT_STREQ(broken_by<grants_never>(), "grant accepts a mapping");
  EXPECT_STREQ(broken_by<grants_once>(), "grant accepts a mapping");
  EXPECT_STREQ(broken_by<grants_always>(), "grant refuses addresses without mapped memory");
}

struct drops_ranges : provider::simulated_device {
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return provider::simulated_device::unreserve(p, bytes) || held().mapped != 0;
  }
};
struct unmaps_air : provider::simulated_device {
  bool unmap(void* p, std::size_t bytes) noexcept {
    return provider::simulated_device::unmap(p, bytes) || held().mapped != 0;
  }
};
/// Declares that it checks sizes, but does not.
struct unmaps_parts : provider::simulated_npu {
  static constexpr bool unmap_wants_size = true;
};
struct unmaps_twice : provider::simulated_device {
  bool unmap(void* p, std::size_t bytes) noexcept {
    const bool gone = provider::simulated_device::unmap(p, bytes) || p == latest;
    if (gone) latest = p;
    return gone;
  }
  void* latest = nullptr;
};
struct unmaps_never : provider::simulated_device {
  bool unmap(void*, std::size_t) noexcept { return false; }
};
struct never_done : provider::simulated_device {
  bool synchronize(stream_id) noexcept { return false; }
};
TEST(virtual_memory_laws, unmap_and_synchronize) {
  EXPECT_STREQ(broken_by<drops_ranges>(), "unreserve refuses a range with mapped memory");
  EXPECT_STREQ(broken_by<unmaps_air>(), "unmap refuses addresses without mapped memory");
  EXPECT_STREQ(broken_by<unmaps_parts>(), "unmap refuses a part of a mapping");
  EXPECT_STREQ(broken_by<unmaps_twice>(), "unmap removes a mapping, and refuses to remove it twice");
  EXPECT_STREQ(broken_by<unmaps_never>(), "unmap removes a mapping, and refuses to remove it twice");
  EXPECT_STREQ(broken_by<never_done>(), "synchronize returns after the work is done");
}

/// Refuses to destroy mapped memory, as early versions of ACL did.
struct clings : provider::simulated_device {
  bool destroy(const physical& m) noexcept {
    return held().mapped == 0 && provider::simulated_device::destroy(m);
  }
};
/// Unmaps destroyed memory.
struct tears_down : provider::simulated_device {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    const bool there = provider::simulated_device::map(p, bytes, m);
    if (there) at = p, mapped = bytes, name = m;
    return there;
  }
  bool destroy(const physical& m) noexcept {
    if (m == name) (void)provider::simulated_device::unmap(at, mapped);
    return provider::simulated_device::destroy(m);
  }
  void* at = nullptr;
  std::size_t mapped = 0;
  physical name{};
};
struct keeps_handles : provider::simulated_device {
  bool destroy(const physical&) noexcept { return held().mapped != 0; }
};
/// Has little memory, so that a leak is soon noticed.
struct small : provider::simulated_device {
  small() : provider::simulated_device(options{.capacity = 64_MiB}) {}
};
struct forgets_destroyed : small {
  bool destroy(const physical& m) noexcept { return m.number != 0; }
};
/// Leak large memory, in one of the two orders.
struct notes_size : small {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    return small::create(latest = bytes, kind, m);
  }
  std::size_t latest = 0;
};
struct forgets_what_is_mapped : notes_size {
  bool destroy(const physical& m) noexcept {
    return m.number != 0 && ((latest == 16_MiB && held().mapped != 0) || small::destroy(m));
  }
};
struct forgets_what_is_not_mapped : notes_size {
  bool destroy(const physical& m) noexcept {
    return m.number != 0 && ((latest == 16_MiB && held().mapped == 0) || small::destroy(m));
  }
};
struct creates_much_once : small {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    return (bytes != 16_MiB || ++large == 1) && provider::simulated_device::create(bytes, kind, m);
  }
  int large = 0;
};
TEST(virtual_memory_laws, destroy) {
  EXPECT_STREQ(broken_by<clings>(), "destroyed memory stays mapped until unmap");
  EXPECT_STREQ(broken_by<tears_down>(), "destroyed memory stays mapped until unmap");
  EXPECT_STREQ(broken_by<keeps_handles>(), "destroy accepts created memory");
  EXPECT_STREQ(broken_by<forgets_destroyed>(), "destroyed memory can be created again");
  EXPECT_STREQ(broken_by<forgets_what_is_mapped>(), "destroyed memory can be created again");
  EXPECT_STREQ(broken_by<forgets_what_is_not_mapped>(), "destroyed memory can be created again");
  EXPECT_STREQ(broken_by<creates_much_once>(), "destroyed memory can be created again");
}

}  // namespace
