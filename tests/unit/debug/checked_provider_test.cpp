// SPDX-License-Identifier: Apache-2.0
// Every contract violation of a provider, with the rule of the law that detects it and the message of the
// checked provider. If one of the two cannot detect it, the reason is stated.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_contents.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

enum class violation : unsigned char {
  none,
  // about sizes
  granularity_is_zero,
  granularity_is_no_power_of_two,
  granularity_changes,
  capacity_changes,
  more_is_available_than_there_is,
  step_is_zero,
  step_is_no_power_of_two,
  step_changes,
  // about segments
  segment_is_misaligned,
  segment_overlaps_another,
  same_segment_twice,
  segment_is_a_sentinel,
  segment_lies_in_a_range,
  more_than_the_capacity,
  takes_back_what_it_says_it_kept,
  takes_back_what_it_never_gave,
  // about ranges
  range_is_misaligned,
  range_overlaps_another,
  range_goes_with_what_is_mapped,
  range_that_was_not_there_goes,
  // about physical memory
  memory_has_no_name,
  memory_has_the_name_of_other_memory,
  memory_is_no_multiple_of_the_step,
  memory_beyond_the_capacity,
  refused_memory_has_a_name,
  unknown_memory_goes,
  unknown_memory_is_mapped,
  maps_outside_of_ranges,
  maps_over_other_memory,
  maps_more_than_there_is,
  maps_at_no_multiple_of_the_step,
  maps_elsewhere,
  grants_where_nothing_is_mapped,
  unmaps_where_nothing_is_mapped,
  // about events and streams
  event_is_ready_early,
  event_is_ready_no_more,
  event_is_ready_after_a_later_one,
  wait_returns_early,
  synchronize_returns_early,
  position_0_is_not_done,
  stream_is_not_behind_itself,
  make_wait_does_nothing,
};

/// A simulated device that violates one rule from some call on.
struct violating_device : simulated_device {
  explicit violating_device(violation plant = violation::none)
      : simulated_device(options{.capacity = 256_MiB, .granularity = 2_MiB, .page_granularity = 2_MiB}),
        planted(plant) {}

  violation planted;
  void* first = nullptr;  // segment or range
  physical last{};
  std::uint64_t asked = 0;
  bool is(violation which) const { return planted == which; }
  bool refused_for(std::string_view why) const {
    return std::string_view(last_error()).find(why) != why.npos;
  }
  static void* at(void* p, std::size_t offset) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(p) + offset);
  }

  std::size_t granularity() const noexcept {
    if (is(violation::granularity_is_zero)) return 0;
    if (is(violation::granularity_is_no_power_of_two)) return 3_MiB;
    return is(violation::granularity_changes) && calls().acquire > 0 ? 4_MiB
                                                                     : simulated_device::granularity();
  }
  std::size_t capacity() const noexcept {
    return is(violation::capacity_changes) && calls().acquire > 0 ? 128_MiB : simulated_device::capacity();
  }
  std::size_t available() const noexcept {
    return is(violation::more_is_available_than_there_is) ? 512_MiB : simulated_device::available();
  }
  std::size_t page_size(page_kind kind) const noexcept {
    if (is(violation::step_is_zero)) return 0;
    if (is(violation::step_changes) && calls().create > 0) return 2 * simulated_device::page_size(kind);
    return is(violation::step_is_no_power_of_two) ? 3_MiB : simulated_device::page_size(kind);
  }

  void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    if (is(violation::more_than_the_capacity) && bytes <= 512_MiB)
      return reinterpret_cast<void*>(std::uintptr_t{1} << 40 | ((asked += 512_MiB) - 512_MiB));
    if (is(violation::takes_back_what_it_says_it_kept) && first != nullptr) return first;
    void* const given = simulated_device::acquire(bytes, kind);
    if (given == nullptr) return nullptr;
    if (is(violation::segment_is_misaligned)) return at(given, 4_KiB);
    if (is(violation::segment_is_a_sentinel)) return reinterpret_cast<void*>(~std::uintptr_t{2_MiB - 1});
    if (is(violation::same_segment_twice)) return first == nullptr ? first = given : first;
    if (is(violation::segment_overlaps_another) && bytes >= 4_MiB)
      return first == nullptr ? first = given : at(first, 2_MiB);
    return is(violation::segment_lies_in_a_range) && first != nullptr ? first : given;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    if (is(violation::takes_back_what_it_says_it_kept)) return first = p, false;
    return simulated_device::release(p, bytes) || is(violation::takes_back_what_it_never_gave);
  }

  /// Lets a map elsewhere succeed.
  std::size_t slack() const { return is(violation::maps_elsewhere) ? 8_MiB : 0; }
  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    void* const given = simulated_device::reserve(bytes + slack(), (std::max)(to, 16_MiB));
    if (is(violation::range_is_misaligned)) return at(given, 4_KiB);
    if (is(violation::range_overlaps_another)) return first == nullptr ? first = given : first;
    if (is(violation::segment_lies_in_a_range)) first = given;
    return given;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return simulated_device::unreserve(p, bytes + slack()) ||
           (is(violation::range_goes_with_what_is_mapped) && held().mapped != 0) ||
           is(violation::range_that_was_not_there_goes);
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept {
    if (is(violation::memory_beyond_the_capacity) && bytes != 0 && bytes % page_size(kind) == 0 &&
        bytes <= 512_MiB)
      return memory = {++asked}, true;
    if (is(violation::memory_is_no_multiple_of_the_step) && bytes % page_size(kind) != 0)
      return memory = {++asked}, true;
    if (!simulated_device::create(bytes, kind, memory))
      return is(violation::refused_memory_has_a_name) && (memory = {77}, true), false;
    if (is(violation::memory_has_no_name)) memory = {};
    if (is(violation::memory_has_the_name_of_other_memory)) last.number == 0 ? last = memory : memory = last;
    return true;
  }
  bool destroy(const physical& memory) noexcept {
    return simulated_device::destroy(memory) || is(violation::unknown_memory_goes);
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    if (is(violation::maps_elsewhere)) return simulated_device::map(at(p, 2_MiB), bytes, memory);
    return simulated_device::map(p, bytes, memory) ||
           (is(violation::unknown_memory_is_mapped) && refused_for("handle")) ||
           (is(violation::maps_outside_of_ranges) && refused_for("reserved")) ||
           (is(violation::maps_over_other_memory) && refused_for("is mapped here")) ||
           (is(violation::maps_more_than_there_is) && refused_for("another size")) ||
           (is(violation::maps_at_no_multiple_of_the_step) && refused_for("multiple"));
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return simulated_device::grant(p, bytes) || is(violation::grants_where_nothing_is_mapped);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return simulated_device::unmap(p, bytes) || is(violation::unmaps_where_nothing_is_mapped);
  }

  bool query(event& mark) noexcept {
    const bool ready = simulated_device::query(mark);
    if (is(violation::event_is_ready_no_more) && ready)
      return asked != mark.serial && (asked = mark.serial, true);
    if (is(violation::event_is_ready_after_a_later_one) && ready) return later(mark) == mark.serial;
    return ready || is(violation::event_is_ready_early);
  }
  bool wait(event& mark) noexcept {
    return (void)later(mark), is(violation::wait_returns_early) || simulated_device::wait(mark);
  }
  std::uint64_t later(const event& mark) { return asked = (std::max)(asked, mark.serial); }
  bool synchronize(stream_id stream) noexcept {
    return is(violation::synchronize_returns_early) || simulated_device::synchronize(stream);
  }
  bool is_done(stream_id stream, std::uint64_t upto) const noexcept {
    return !(is(violation::position_0_is_not_done) && upto == 0) && simulated_device::is_done(stream, upto);
  }
  bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t upto) const noexcept {
    return !(is(violation::stream_is_not_behind_itself) && stream == of) &&
           simulated_device::is_ordered_after(stream, of, upto);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t upto) noexcept {
    return is(violation::make_wait_does_nothing) || simulated_device::make_wait(stream, of, upto);
  }
};
static_assert(ordering_provider<violating_device> && paged_provider<violating_device> &&
              virtual_memory_provider<violating_device> && detail::measured_provider<violating_device>);

const char* broken_law(violation planted) {
  violating_device device(planted);
  return law::provider(device).broken;
}

using checked = checked_provider<violating_device>;

/// Allocators of one kind, one after the other, over the same device.
void allocate(checked& device) {
  const auto use = [&device]<typename Recipe>(Recipe) {
    caching_allocator<Recipe, provider_ref<checked>> pool{provider_ref(device)};
    const stream_id one{1}, two{2};
    std::vector<void*> held;
    for (int i = 0; i < 6; ++i) {
      device.inner().submit(one, 1'000'000), device.inner().submit(two, 50'000'000);
      for (const std::size_t bytes : {std::size_t{512}, 3_MiB, 12_MiB}) {
        held.push_back(pool.try_allocate(bytes, i % 2 == 0 ? one : two));
        if (held.back() != nullptr) (void)pool.record_stream(held.back(), i % 3 == 0 ? two : one);
      }
      pool.deallocate(held[held.size() - 2]);
      held.erase(held.end() - 2);
      (void)pool.make_out_of_memory(1_MiB);
      if (i == 3) pool.trim();
    }
    for (void* const p : held) pool.deallocate(p);
    pool.trim();
  };
  use(pytorch<>{});
  use(cuda_async{});
  use(pytorch_family::expandable{});
  use(stitched{});
}

/// Calls in an order that no allocator of the library uses.
void call_carelessly(checked& device) {
  const std::size_t step = 2_MiB;
  const auto behind = [](void* p, std::size_t offset) { return violating_device::at(p, offset); };
  checked::physical one{}, two{};
  void* const range = device.reserve(8 * step, step);
  if (device.inner().is(violation::takes_back_what_it_never_gave))
    (void)device.release(behind(device.acquire(2 * step), step), step);
  if (void* const segment = device.acquire(step)) (void)device.release(segment, step);
  (void)device.create(2 * step, page_kind::normal, one);
  (void)device.create(step, page_kind::normal, two);
  switch (device.inner().planted) {
    case violation::range_that_was_not_there_goes: (void)device.unreserve(behind(range, step), step); break;
    case violation::unknown_memory_goes: (void)device.destroy(checked::physical{77}); break;
    case violation::unknown_memory_is_mapped: (void)device.map(range, step, checked::physical{77}); break;
    case violation::maps_outside_of_ranges: (void)device.map(behind(range, 1_GiB), 2 * step, one); break;
    case violation::maps_more_than_there_is: (void)device.map(range, 4 * step, one); break;
    case violation::maps_at_no_multiple_of_the_step:
      (void)device.map(behind(range, 4_KiB), 2 * step, one);
      break;
    case violation::more_than_the_capacity: (void)device.acquire(512_MiB); break;
    case violation::memory_is_no_multiple_of_the_step:
      (void)device.create(step + 4_KiB, page_kind::normal, two);
      break;
    case violation::refused_memory_has_a_name: (void)device.create(1_GiB, page_kind::normal, two); break;
    default: break;
  }
  (void)device.map(range, 2 * step, one);
  (void)device.grant(range, 2 * step);
  (void)device.grant(behind(range, 4 * step), step);
  (void)device.map(behind(range, 4 * step), 2 * step, one);
  (void)device.map(behind(range, step), step, two);
  (void)device.unmap(behind(range, 6 * step), step);
  (void)device.unreserve(range, 8 * step);
  // Returns the remaining memory, if possible.
  (void)device.unmap(range, 2 * step);
  (void)device.destroy(one), (void)device.destroy(two);
  (void)device.unreserve(range, 8 * step);

  checked::event early{}, late{};
  device.inner().submit({}, 1'000'000);
  (void)device.record({}, early), (void)device.record({}, late);
  (void)device.query(late), (void)device.query(early);
  (void)device.wait(late), (void)device.query(late), (void)device.query(early), (void)device.query(late);
  (void)device.is_done({}, 0), (void)device.is_ordered_after({}, {}, 1);
  device.inner().submit({}, 1'000'000);
  (void)device.make_wait(stream_id{1}, {}, device.position({}));
  (void)device.synchronize({});
  (void)device.capacity(), (void)device.granularity(), (void)device.available();
}

void misuse(violation planted) {
  checked device{violating_device(planted)};
  // An allocator would exceed this capacity by create().
  if (planted != violation::more_than_the_capacity) allocate(device);
  call_carelessly(device);
}

struct row {
  violation planted;
  const char* law;                   // the text of law::provider
  const char* call;                  // in the message that ends the program
  const char* other_rule = nullptr;  // of that message, if it is not the text of law::provider
};
constexpr auto not_seen = "";  // not detectable by the calls alone; the memory would have to be accessed

constexpr const char* only_on_request = nullptr;

const row rows[] = {
    {violation::granularity_is_zero, "the granularity is a power of two, at least min_alignment",
     "granularity"},
    {violation::granularity_is_no_power_of_two, "the granularity is a power of two, at least min_alignment",
     "granularity"},
    {violation::granularity_changes, "capacity and granularity are constant", "granularity"},
    {violation::capacity_changes, "capacity and granularity are constant", "capacity"},
    {violation::more_is_available_than_there_is, "available is at most the capacity", "available"},
    {violation::step_is_zero, "the page size is a power of two and a multiple of the kind's granularity",
     "page_size"},
    {violation::step_is_no_power_of_two,
     "the page size is a power of two and a multiple of the kind's granularity", "page_size"},
    {violation::step_changes, "create refuses 0 bytes and parts of pages", "page_size",
     "the page size is constant"},

    {violation::segment_is_misaligned, "segments start at a multiple of the granularity", "acquire"},
    {violation::segment_overlaps_another, "segments do not overlap", "acquire"},
    {violation::same_segment_twice, "segments do not overlap", "acquire"},
    {violation::segment_is_a_sentinel, "segments end inside the address space", "acquire"},
    {violation::segment_lies_in_a_range, "ranges overlap no other range and no segment", "acquire"},
    {violation::more_than_the_capacity, "acquire refuses more than the capacity", "acquire"},
    {violation::takes_back_what_it_says_it_kept, "release accepts an acquired segment", "release",
     "a call that fails changes nothing"},
    {violation::takes_back_what_it_never_gave, only_on_request, "release",
     "release refuses an address inside a segment"},

    {violation::range_is_misaligned, "a range begins at a multiple of the alignment", "reserve"},
    {violation::range_overlaps_another, "ranges overlap no other range and no segment", "reserve"},
    {violation::range_goes_with_what_is_mapped, "unreserve refuses a range with mapped memory", "unreserve"},
    {violation::range_that_was_not_there_goes, "unreserve refuses addresses that are not reserved",
     "unreserve"},

    {violation::memory_has_no_name, "the handle of created or imported memory is not empty", "create"},
    {violation::memory_has_the_name_of_other_memory, "created or imported memory has a handle of its own",
     "create"},
    {violation::memory_is_no_multiple_of_the_step, "create refuses 0 bytes and parts of pages", "create"},
    {violation::memory_beyond_the_capacity, "create refuses more than the capacity", "create"},
    {violation::refused_memory_has_a_name, "a refused create leaves the handle as it was", "create"},
    {violation::unknown_memory_goes, "destroy and map refuse an empty handle", "destroy",
     "destroy and map refuse a handle that names no memory"},
    {violation::unknown_memory_is_mapped, "destroy and map refuse an empty handle", "map",
     "destroy and map refuse a handle that names no memory"},
    {violation::maps_outside_of_ranges, "map refuses addresses that are not reserved", "map"},
    {violation::maps_over_other_memory, "map refuses addresses with mapped memory", "map"},
    {violation::maps_more_than_there_is, "map refuses another size than the memory has", "map"},
    {violation::maps_at_no_multiple_of_the_step, "map refuses an address inside a page", "map"},
    {violation::maps_elsewhere, "map refuses addresses that are not reserved", not_seen},
    {violation::grants_where_nothing_is_mapped, "grant refuses addresses without mapped memory", "grant"},
    {violation::unmaps_where_nothing_is_mapped, "unmap refuses addresses without mapped memory", "unmap"},

    {violation::event_is_ready_early, "no event is ready before its work is done", "query"},
    {violation::event_is_ready_no_more, "an event is ready after a wait for it", "query",
     "a ready event stays ready"},
    {violation::event_is_ready_after_a_later_one, "an event is ready if a later event of its stream is ready",
     "query"},
    {violation::wait_returns_early, "wait returns after the work is done", "wait"},
    {violation::synchronize_returns_early, "synchronize returns after the work is done", "synchronize"},
    {violation::position_0_is_not_done, "position 0 is before all work", "is_done"},
    {violation::stream_is_not_behind_itself, "a stream is ordered after its own work", "is_ordered_after"},
    {violation::make_wait_does_nothing, "a wait counts as work", "make_wait",
     "a stream is ordered after the work that it waits for"},
};

TEST(checked_provider, reports_nothing_about_a_correct_device) {
  EXPECT_STREQ(broken_law(violation::none), nullptr);
  misuse(violation::none);
}

TEST(checked_provider, no_lie_is_missing_in_the_table) {
  std::vector<int> seen(static_cast<std::size_t>(violation::make_wait_does_nothing) + 1, 0);
  for (const row& r : rows) ++seen[static_cast<std::size_t>(r.planted)];
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << "lie " << i;
}

TEST(checked_provider, each_lie_is_found_by_a_law) {
  for (const row& r : rows)
    EXPECT_STREQ(broken_law(r.planted), r.law) << "lie " << static_cast<int>(r.planted);
}

/// A device that learns late which work is done contradicts itself without being wrong.
struct doubtful : violating_device {
  using violating_device::violating_device;
  static constexpr bool completion_may_lag = true;
};
static_assert(detail::completion_may_lag<provider_ref<doubtful>> &&
              !detail::completion_may_lag<provider_ref<violating_device>>);
TEST(checked_provider, accepts_late_answers) {
  for (const violation planted :
       {violation::event_is_ready_no_more, violation::event_is_ready_after_a_later_one}) {
    checked_provider device{doubtful(planted)};
    for (int i = 0; i < 3; ++i) {
      checked_provider<doubtful>::event early{}, late{};
      ASSERT_TRUE(device.record({}, early) && device.record({}, late));
      (void)device.query(late), (void)device.query(early), (void)device.query(late);
    }
    EXPECT_EQ(device.inner().calls().query, 9u);
  }
}

/// A correct device of one segment, one range and one chunk of memory, whose calls return slowly. Other
/// threads can act before a call returns. It violates one kind of rule: it reports success of a call that
/// failed.
struct slow_device {
  struct physical {
    std::uint64_t number = 0;
  };
  static constexpr bool map_grants_access = true, unmap_wants_size = true;
  std::function<void()> meanwhile{};
  bool refuses = false;

  bool works() noexcept {
    const std::function<void()> others = std::exchange(meanwhile, nullptr);
    return others ? others() : void(), !std::exchange(refuses, false);
  }
  static void* at(std::size_t offset) noexcept {
    return reinterpret_cast<void*>((std::uintptr_t{1} << 40) + offset);
  }
  std::size_t capacity() const noexcept { return 4_MiB; }
  std::size_t granularity() const noexcept { return 2_MiB; }
  std::size_t page_size(page_kind kind) const noexcept { return kind.granularity(); }
  void* acquire(std::size_t) noexcept { return works() ? at(1_GiB) : nullptr; }
  bool release(void*, std::size_t) noexcept { return works(); }
  void* reserve(std::size_t, std::size_t) noexcept { return works() ? at(0) : nullptr; }
  bool unreserve(void*, std::size_t) noexcept { return works(); }
  bool create(std::size_t, page_kind, physical& made) noexcept { return made = {1}, works(); }
  bool destroy(const physical&) noexcept { return works(); }
  bool map(void*, std::size_t, const physical&) noexcept { return works(); }
  bool grant(void*, std::size_t) noexcept { return works(); }
  bool unmap(void*, std::size_t) noexcept { return works(); }
  bool synchronize(stream_id) noexcept { return true; }
  bool register_memory(void*, std::size_t) noexcept { return works(); }
  bool unregister_memory(void*) noexcept { return works(); }
};
struct checked_slow_device : testing::Test {
  checked_provider<slow_device> device;
  slow_device::physical memory{1};
  void* const range = slow_device::at(0);
  void* const users = slow_device::at(2_GiB);

  void meanwhile(std::function<void()> others) { device.inner().meanwhile = std::move(others); }
  void reserve() { ASSERT_EQ(device.reserve(4_MiB, 2_MiB), range); }
  void create() { ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory)); }
  void map() { ASSERT_TRUE(device.map(range, 4_MiB, memory)); }
  void unmap() { ASSERT_TRUE(device.unmap(range, 4_MiB)); }
};
using checked_slow_device_death_test = checked_slow_device;

TEST_F(checked_slow_device_death_test, may_reuse_a_range_before_unreserve_returns) {
  reserve(), create(), meanwhile([this] { reserve(), map(); });
  EXPECT_TRUE(device.unreserve(range, 4_MiB));
  EXPECT_DEATH((void)device.reserve(4_MiB, 2_MiB), "reserve: ranges overlap no other range and no segment");
  EXPECT_DEATH((void)device.unreserve(range, 4_MiB), "unreserve refuses a range with mapped memory");
  unmap();
  EXPECT_TRUE(device.unreserve(range, 4_MiB));
  EXPECT_DEATH((void)device.unreserve(range, 4_MiB), "unreserve refuses addresses that are not reserved");
}

TEST_F(checked_slow_device, may_take_back_a_range_once_others_have_emptied_it) {
  reserve(), create(), map(), meanwhile([this] { unmap(); });
  EXPECT_TRUE(device.unreserve(range, 4_MiB));
}

TEST_F(checked_slow_device_death_test, may_reuse_a_segment_before_release_returns) {
  void* const segment = device.acquire(4_MiB);
  meanwhile([this, segment] { EXPECT_EQ(device.acquire(4_MiB), segment); });
  EXPECT_TRUE(device.release(segment, 4_MiB));
  EXPECT_DEATH((void)device.acquire(4_MiB), "acquire: segments do not overlap");
  EXPECT_DEATH(create(), "create refuses more than the capacity");
}

TEST_F(checked_slow_device_death_test, may_reuse_a_handle_before_destroy_returns) {
  create(), meanwhile([this] { create(); });
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_DEATH(create(), "created or imported memory has a handle of its own");
}

TEST_F(checked_slow_device_death_test, may_map_again_before_unmap_returns) {
  reserve(), create(), map(), meanwhile([this] { map(); });
  EXPECT_TRUE(device.unmap(range, 4_MiB));
  EXPECT_DEATH(map(), "map refuses addresses with mapped memory");
}

TEST_F(checked_slow_device_death_test, may_remove_memory_before_map_and_grant_return) {
  reserve(), create(), meanwhile([this] { EXPECT_TRUE(device.destroy(memory)); });
  EXPECT_TRUE(device.map(range, 4_MiB, memory));
  meanwhile([this] { unmap(); });
  EXPECT_TRUE(device.grant(range, 4_MiB));
  EXPECT_DEATH((void)device.grant(range, 4_MiB), "grant refuses addresses without mapped memory");
  EXPECT_DEATH((void)device.map(range, 4_MiB, memory),
               "map: destroy and map refuse a handle that names no memory");
}

TEST_F(checked_slow_device_death_test, may_register_again_before_unregister_returns) {
  const auto again = [this] { ASSERT_TRUE(device.register_memory(users, 64_KiB)); };
  again(), meanwhile(again);
  EXPECT_TRUE(device.unregister_memory(users));
  EXPECT_DEATH(again(), "register_memory refuses registered memory");
  device.inner().refuses = true;
  EXPECT_FALSE(device.unregister_memory(users));
  EXPECT_DEATH(again(), "unregister_memory: a call that fails changes nothing");
  EXPECT_TRUE(device.unregister_memory(users));
  again();
}

TEST_F(checked_slow_device_death_test, takes_back_only_what_it_gave) {
  void* const segment = device.acquire(2_MiB);
  const auto behind = [](void* p) { return static_cast<char*>(p) + 1_MiB; };
  EXPECT_DEATH((void)device.release(behind(segment), 1_MiB),
               "release: release refuses an address inside a segment: address 0x1004010*0, inside of "
               "0x1004000*0, bytes 2097152");
  EXPECT_TRUE(device.release(segment, 2_MiB));
  EXPECT_DEATH((void)device.release(segment, 2_MiB), "release: release refuses a segment that was released");
  reserve();
  EXPECT_DEATH((void)device.release(range, 4_MiB), "release: release refuses");
  EXPECT_DEATH((void)device.unregister_memory(users),
               "unregister_memory refuses memory that is not registered");
  ASSERT_TRUE(device.register_memory(users, 2_MiB));
  EXPECT_DEATH((void)device.unregister_memory(behind(users)), "refuses an address inside registered memory");
}

TEST_F(checked_slow_device_death_test, blames_the_release_that_failed_with_an_effect) {
  void* const segment = device.acquire(2_MiB);
  device.inner().refuses = true;
  EXPECT_FALSE(device.release(segment, 2_MiB));
  EXPECT_DEATH((void)device.acquire(2_MiB),
               "release: a call that fails changes nothing: address 0x1004000*0, bytes 2097152, held already "
               "0x1004000*0, its bytes 2097152");
}

/// Handles with padding bytes, whose values are arbitrary.
template <bool IsComparable>
struct padded_device : simulated_device {
  struct physical {
    char kind = 0;
    std::uint64_t number = 0;
    bool operator==(const physical&) const
      requires IsComparable
    = default;
  };
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    simulated_device::physical real{};
    if (!simulated_device::create(bytes, kind, real)) return false;
    std::memset(static_cast<void*>(&made), static_cast<int>(++calls_made), sizeof made);
    made.kind = 1;
    made.number = real.number;
    return true;
  }
  bool destroy(const physical& made) noexcept {
    return simulated_device::destroy({made.number}) || made.number == 77;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    return simulated_device::map(p, bytes, {made.number}) || made.number == 77;
  }
  int calls_made = 0;
};
TEST(checked_provider_death_test, compares_handles_with_padding_by_their_operator) {
  static_assert(checked_provider<padded_device<true>>::checks_handles);
  static_assert(!checked_provider<padded_device<false>>::checks_handles);
  checked_provider<padded_device<true>> device;
  padded_device<true>::physical made{}, copy{};
  void* const range = device.reserve(4_MiB, 2_MiB);
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, made));
  std::memset(static_cast<void*>(&copy), 99, sizeof copy);
  copy.kind = made.kind;
  copy.number = made.number;
  EXPECT_TRUE(device.map(range, 2_MiB, copy));
  EXPECT_TRUE(device.destroy(copy));
  EXPECT_DEATH((void)device.destroy({1, 77}), "destroy and map refuse a handle that names no memory");
  EXPECT_DEATH((void)device.map(range, 2_MiB, {1, 77}),
               "destroy and map refuse a handle that names no memory");
}

TEST_F(checked_slow_device_death_test, does_not_reuse_memory_that_it_failed_to_release) {
  const auto keep = [this](std::function<void()> others) {
    device.inner().refuses = true;
    meanwhile([this, others] { device.inner().refuses = false, others(), device.inner().refuses = true; });
  };
  const char* const words = ": a call that fails changes nothing";
  void* const segment = device.acquire(4_MiB);
  const auto release = [&] {
    keep([this] { (void)device.acquire(4_MiB); }), (void)device.release(segment, 4_MiB);
  };
  EXPECT_DEATH(release(), words);
  ASSERT_TRUE(device.release(segment, 4_MiB));
  reserve(), create(), map();
  const auto unmapped = [&] { keep([this] { map(); }), (void)device.unmap(range, 4_MiB); };
  EXPECT_DEATH(unmapped(), words);
}

TEST(checked_provider_death_test, each_violation_aborts) {
  for (const row& r : rows) {
    if (std::string_view(r.call).empty()) {
      misuse(r.planted);
      continue;
    }
    const std::string rule = r.other_rule != nullptr ? r.other_rule : r.law;
    // The values that show it follow.
    EXPECT_DEATH(misuse(r.planted),
                 std::string("tessera: checked_provider: ") + r.call + ": " + rule + "(: .*[0-9]|\n)")
        << "lie " << static_cast<int>(r.planted);
  }
}

}  // namespace
