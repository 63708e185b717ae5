// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;

/// Obeys every law: eight or more granules of addresses, first fit. Each test breaks one rule by overriding a
/// function.
struct honest {
  static constexpr std::size_t granules = 16, step = 4096;
  static constexpr std::uintptr_t base = 1u << 20;

  void* acquire(std::size_t bytes) noexcept {
    for (std::size_t i = 0, run = 0; i < granules; ++i) {
      run = used[i] ? 0 : run + 1;
      if (run == 0 || run * step != bytes) continue;
      mark(i + 1 - run, run, true);
      return reinterpret_cast<void*>(base + (i + 1 - run) * step);
    }
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const std::size_t first = (reinterpret_cast<std::uintptr_t>(p) - base) / step;
    // Some wrong providers below hand out addresses that are not of this memory.
    if (first >= granules || bytes / step > granules - first) return false;
    mark(first, bytes / step, false);
    return true;
  }
  std::size_t capacity() const noexcept { return granules * step; }
  std::size_t granularity() const noexcept { return step; }

  void mark(std::size_t first, std::size_t count, bool value) {
    for (std::size_t i = first; i < first + count; ++i) used[i] = value;
  }
  std::size_t in_use() const {
    std::size_t count = 0;
    for (const bool u : used) count += u ? 1 : 0;
    return count;
  }
  std::array<bool, granules> used{};
};

template <typename D>
const char* broken_by(D device) {
  return law::provider(device).broken;
}

TEST(provider_law, holds_and_leaves_the_device_unchanged) {
  honest device;
  EXPECT_TRUE(law::provider(device));
  EXPECT_EQ(device.in_use(), 0u);
  provider::provider_ref<honest> reference(device);
  EXPECT_STREQ(law::provider(reference).broken, nullptr);
  EXPECT_EQ(device.in_use(), 0u);
}

TEST(provider_law, holds_while_events_are_held) {
  provider::simulated_device device, begun;
  device.hold_events(true);
  EXPECT_STREQ(law::provider(device, 2_MiB, stream_id{1}).broken, nullptr);
  debug::checked_provider<provider::simulated_device> checked(std::move(begun));
  auto mark = decltype(checked)::event{};
  for (const stream_id stream : {stream_id{1}, stream_id{2}}) {
    checked.inner().submit(stream, 5'000);
    ASSERT_TRUE(checked.record(stream, mark));
    EXPECT_FALSE(checked.query(mark));
    checked.inner().advance(10'000);
    EXPECT_TRUE(checked.query(mark) && checked.is_done(stream, 1));
    checked.inner().hold_events(true);
    EXPECT_TRUE(checked.query(mark) && checked.is_done(stream, 1)) << "what is ready stays ready";
    EXPECT_TRUE(checked.is_done(stream_id{7}, 0));
    checked.inner().submit(stream, 5'000);
    checked.inner().advance(10'000);
    ASSERT_TRUE(checked.record(stream, mark));
    EXPECT_FALSE(checked.query(mark) || checked.is_done(stream, 2));
    checked.inner().hold_events(false);
    EXPECT_TRUE(checked.query(mark) && checked.is_done(stream, 2));
  }
}

TEST(provider_law, holds_for_simulated_devices) {
  for (const std::size_t capacity : {4_MiB, 80_GiB, unlimited}) {
    for (const std::size_t granularity : {std::size_t{64}, std::size_t{512}, 512_KiB}) {
      provider::simulated_device device{
          provider::simulated_device::options{.capacity = capacity, .granularity = granularity}};
      EXPECT_STREQ(law::provider(device).broken, nullptr);
      provider::provider_ref<provider::simulated_device> reference(device);
      EXPECT_STREQ(law::provider(reference).broken, nullptr);
      EXPECT_STREQ(law::provider(device, 80_GiB).broken, nullptr);
      EXPECT_EQ(device.used(), 0u);
    }
  }
  provider::simulated_device busy;
  busy.submit({}, 1'000'000'000);
  EXPECT_STREQ(law::provider(busy).broken, nullptr);
  for (const std::uint64_t seed : {1u, 2u}) {
    provider::simulated_device scattered{provider::simulated_device::options{.address_seed = seed}};
    EXPECT_STREQ(law::provider(scattered).broken, nullptr);
  }
  provider::simulated_device without_huge{provider::simulated_device::options{.huge_budget = 0}};
  EXPECT_STREQ(law::provider(without_huge).broken, nullptr);
}

template <std::size_t Step>
struct steps : honest {
  std::size_t granularity() const noexcept { return Step; }
};
TEST(provider_law, granularity) {
  constexpr auto law = "the granularity is a power of two, at least min_alignment";
  EXPECT_STREQ(broken_by(steps<0>{}), law);
  EXPECT_STREQ(broken_by(steps<32>{}), law);
  EXPECT_STREQ(broken_by(steps<96>{}), law);
}

template <std::size_t Bytes>
struct holds : honest {
  std::size_t capacity() const noexcept { return Bytes; }
};
TEST(provider_law, capacity) {
  EXPECT_STREQ(broken_by(holds<0>{}), "the capacity is at least 8 times the granularity");
  EXPECT_STREQ(broken_by(holds<8 * honest::step - 1>{}), "the capacity is at least 8 times the granularity");
  EXPECT_STREQ(broken_by(holds<8 * honest::step>{}), "acquire refuses more than the capacity");
  EXPECT_STREQ(broken_by(steps<std::size_t{1} << 63>{}), "the capacity is at least 8 times the granularity");
}

struct shrinking : honest {
  std::size_t capacity() const noexcept { return (granules - in_use()) * step; }
};
struct coarsening : honest {
  bool release(void* p, std::size_t bytes) noexcept { return released = true, honest::release(p, bytes); }
  std::size_t granularity() const noexcept { return released ? 2 * step : step; }
  bool released = false;
};
TEST(provider_law, constancy) {
  EXPECT_STREQ(broken_by(shrinking{}), "capacity and granularity are constant");
  EXPECT_STREQ(broken_by(coarsening{}), "capacity and granularity are constant");
}

struct empty_handed : honest {
  void* acquire(std::size_t) noexcept { return nullptr; }
};
struct one_at_a_time : honest {
  void* acquire(std::size_t bytes) noexcept { return in_use() == 0 ? honest::acquire(bytes) : nullptr; }
};
TEST(provider_law, acquire_gives) {
  EXPECT_STREQ(broken_by(empty_handed{}), "acquire succeeds below the capacity");
  EXPECT_STREQ(broken_by(one_at_a_time{}), "acquire succeeds below the capacity");
}

struct misaligned : honest {
  void* acquire(std::size_t bytes) noexcept {
    void* const p = honest::acquire(bytes);
    return p == nullptr ? nullptr : static_cast<char*>(p) + 64;
  }
};
TEST(provider_law, alignment) {
  misaligned device;
  EXPECT_STREQ(law::provider(device).broken, "segments start at a multiple of the granularity");
  EXPECT_EQ(device.in_use(), 0u);
}

/// Counts bytes correctly but gives the same addresses again.
struct repeating : honest {
  void* acquire(std::size_t bytes) noexcept {
    if (bytes > (granules - taken) * step) return nullptr;
    taken += bytes / step;
    return reinterpret_cast<void*>(base);
  }
  bool release(void*, std::size_t bytes) noexcept { return taken -= bytes / step, true; }
  std::size_t taken = 0;
};
/// Puts each segment one granule after the start of the last, as if all were one granule long.
struct creeping : repeating {
  void* acquire(std::size_t bytes) noexcept {
    void* const p = repeating::acquire(bytes);
    return p == nullptr ? nullptr : static_cast<char*>(p) + step * position++;
  }
  std::size_t position = 0;
};
/// The same downwards: the end of a segment overlaps the one before.
struct creeping_down : repeating {
  void* acquire(std::size_t bytes) noexcept {
    void* const p = repeating::acquire(bytes);
    return p == nullptr ? nullptr : static_cast<char*>(p) - step * position++;
  }
  std::size_t position = 0;
};
TEST(provider_law, overlap) {
  EXPECT_STREQ(broken_by(repeating{}), "segments do not overlap");
  EXPECT_STREQ(broken_by(creeping{}), "segments do not overlap");
  EXPECT_STREQ(broken_by(creeping_down{}), "segments do not overlap");
}

/// Compares each request alone with the capacity.
struct generous : honest {
  void* acquire(std::size_t bytes) noexcept {
    if (bytes > capacity()) return nullptr;
    next += bytes;
    return reinterpret_cast<void*>(base + next - bytes);
  }
  bool release(void*, std::size_t bytes) noexcept { return released += bytes, true; }
  std::size_t next = 0, released = 0;
};
/// Adds before it compares, so that the sum overflows.
struct wrapping : generous {
  void* acquire(std::size_t bytes) noexcept {
    if (next - released + bytes > capacity()) return nullptr;
    next += bytes;
    return reinterpret_cast<void*>(base + next - bytes);
  }
};
TEST(provider_law, refuses_beyond_capacity) {
  generous device;
  EXPECT_STREQ(law::provider(device).broken, "acquire refuses more than the capacity");
  EXPECT_EQ(device.next, device.released);
  wrapping sum;
  EXPECT_STREQ(law::provider(sum).broken, "acquire refuses more than the capacity");
  EXPECT_EQ(sum.next, sum.released);
}

/// Counts a request before it checks whether it can be served.
struct hasty : honest {
  void* acquire(std::size_t bytes) noexcept {
    void* const p = exhausted ? nullptr : honest::acquire(bytes);
    if (p == nullptr) exhausted = true;
    return p;
  }
  bool exhausted = false;
};
TEST(provider_law, refusal_loses_nothing) {
  hasty device;
  EXPECT_STREQ(law::provider(device).broken, "a refused acquire changes nothing");
  EXPECT_EQ(device.in_use(), 0u);
}

struct keeping : honest {
  bool release(void*, std::size_t) noexcept { return false; }
};
/// A stack: only the latest segment can be released.
struct stacked : honest {
  bool release(void* p, std::size_t bytes) noexcept {
    const std::size_t end = (reinterpret_cast<std::uintptr_t>(p) - base + bytes) / step;
    for (std::size_t i = end; i < granules; ++i)
      if (used[i]) return false;
    return honest::release(p, bytes);
  }
};
TEST(provider_law, release) {
  EXPECT_STREQ(broken_by(keeping{}), "release accepts an acquired segment");
  EXPECT_STREQ(broken_by(stacked{}), "release accepts an acquired segment");
}

struct forgetful : honest {
  bool release(void*, std::size_t) noexcept { return true; }
};
/// Gives addresses and never reuses them, on a device far larger than a few small segments.
struct bump : honest {
  static constexpr std::size_t size = 1_GiB;
  void* acquire(std::size_t bytes) noexcept {
    if (bytes > size - next) return nullptr;
    next += bytes;
    return reinterpret_cast<void*>(base + next - bytes);
  }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return size; }
  std::size_t next = 0;
};
TEST(provider_law, reuse) {
  EXPECT_STREQ(broken_by(forgetful{}), "released memory can be acquired again");
  EXPECT_STREQ(broken_by(bump{}), "released memory can be acquired again");
  bump device;
  law::provider_check_result found;
  law::detail::memory(found, device, 1_MiB);
  EXPECT_STREQ(found.broken, nullptr);  // 65 MiB of 1 GiB do not show it
  EXPECT_STREQ(broken_by(bump{}), "released memory can be acquired again");
}

/// Releases small segments but forgets a large one.
struct forgets_large : honest {
  bool release(void* p, std::size_t bytes) noexcept {
    return bytes > 2 * step ? true : honest::release(p, bytes);
  }
};
/// Keeps a large segment although release was called.
struct keeps_large : honest {
  bool release(void* p, std::size_t bytes) noexcept {
    return bytes > 2 * step ? false : honest::release(p, bytes);
  }
};
/// Can give less than its capacity, like devices that need some memory themselves.
struct with_overhead : honest {
  void* acquire(std::size_t bytes) noexcept { return bytes > 9 * step ? nullptr : honest::acquire(bytes); }
};
TEST(provider_law, large_segments) {
  EXPECT_STREQ(broken_by(forgets_large{}), "released memory can be acquired again");
  EXPECT_STREQ(broken_by(keeps_large{}), "release accepts an acquired segment");
  EXPECT_STREQ(broken_by(with_overhead{}), nullptr);
}

/// Events over a device without work: an event completes when it is recorded.
struct eventful : honest {
  struct event {
    int number = 0;
  };
  bool record(stream_id, event& e) noexcept { return e.number = ++recorded, true; }
  bool query(event& e) noexcept { return e.number != 0; }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept { ++discarded; }
  int recorded = 0, discarded = 0;
};
static_assert(provider::event_provider<eventful>);

struct cannot_record : eventful {
  bool record(stream_id, event&) noexcept { return false; }
};
struct records_once : eventful {
  bool record(stream_id s, event& e) noexcept { return recorded == 0 && eventful::record(s, e); }
};
struct cannot_wait : eventful {
  bool wait(event&) noexcept { return false; }
};
struct never_ready : eventful {
  bool query(event&) noexcept { return false; }
};
/// Changes only the event object when it waits, so copies of the event do not change.
struct ready_by_hand : eventful {
  bool query(event& e) noexcept { return e.number < 0; }
  bool wait(event& e) noexcept { return e.number = -e.number, true; }
};
/// Knows the latest event only.
struct latest_only : eventful {
  bool query(event& e) noexcept { return e.number == recorded; }
};
/// Discards any event.
struct discards_all : eventful {
  bool query(event& e) noexcept { return discarded == 0 && e.number != 0; }
};
TEST(provider_law, events) {
  eventful device;
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  EXPECT_GT(device.recorded, 65'536);
  EXPECT_EQ(device.discarded, device.recorded);
  EXPECT_STREQ(broken_by(cannot_record{}), "record succeeds on the default stream");
  EXPECT_STREQ(broken_by(records_once{}), "record succeeds again on the same stream");
  EXPECT_STREQ(broken_by(cannot_wait{}), "wait returns after the work is done");
  EXPECT_STREQ(broken_by(never_ready{}), "an event is ready after a wait for it");
  EXPECT_STREQ(broken_by(ready_by_hand{}), "copies of an event are ready at the same time");
  EXPECT_STREQ(broken_by(latest_only{}), "a ready event stays ready");
  EXPECT_STREQ(broken_by(discards_all{}), "discard changes no other event");
}

TEST(provider_law, discards_the_events_of_a_broken_provider) {
  never_ready device;
  EXPECT_FALSE(law::provider(device));
  EXPECT_EQ(device.discarded, 2);
  records_once once;
  EXPECT_FALSE(law::provider(once));
  EXPECT_EQ(once.discarded, 1);
}

struct paged : honest {
  using honest::acquire;
  void* acquire(std::size_t bytes, page_kind) noexcept { return honest::acquire(bytes); }
};
static_assert(provider::paged_provider<paged>);

struct huge_only : honest {
  using honest::acquire;
  void* acquire(std::size_t bytes, page_kind kind) noexcept {
    return kind == page_kind::normal ? nullptr : honest::acquire(bytes);
  }
};
/// Gives huge pages that it does not release.
struct keeps_huge : honest {
  using honest::acquire;
  void* acquire(std::size_t bytes, page_kind kind) noexcept {
    return kind == page_kind::normal ? honest::acquire(bytes) : reinterpret_cast<void*>(2_MiB);
  }
  bool release(void* p, std::size_t bytes) noexcept { return bytes < 2_MiB && honest::release(p, bytes); }
};
struct misaligned_huge : keeps_huge {
  void* acquire(std::size_t bytes) noexcept { return keeps_huge::acquire(bytes); }
  void* acquire(std::size_t bytes, page_kind kind) noexcept {
    void* const p = keeps_huge::acquire(bytes, kind);
    return kind == page_kind::normal ? p : static_cast<char*>(p) + 64;
  }
  bool release(void* p, std::size_t bytes) noexcept { return bytes >= 2_MiB || honest::release(p, bytes); }
};
TEST(provider_law, pages) {
  paged device;
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  EXPECT_EQ(device.in_use(), 0u);
  EXPECT_STREQ(broken_by(huge_only{}), "normal pages can be acquired and released");
  EXPECT_STREQ(broken_by(keeps_huge{}), "other pages are unavailable, or can be acquired and released");
  EXPECT_STREQ(broken_by(misaligned_huge{}), "other pages are unavailable, or can be acquired and released");
}

}  // namespace
