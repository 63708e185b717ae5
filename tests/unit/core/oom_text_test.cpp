// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <tessera/core/error.hpp>
#include <tessera/core/oom_report.hpp>
#include <tessera/core/oom_text.hpp>
#include <tessera/observe/oom_advice.hpp>

namespace {

using namespace tessera;

std::string words(const oom_report& told) {
  char text[oom_text_bytes];
  oom_writer(told, text);
  return text;
}

/// A report in which every number takes as many characters as any could.
oom_report of_wide_numbers() {
  constexpr std::uint64_t handle = std::numeric_limits<std::uint64_t>::max();
  constexpr std::size_t wide = 1_GiB - 1;  // 1024.00 MiB
  oom_report told;
  told.requested = max_request;
  told.stream = stream_id{handle};
  told.block = 3 * wide;
  told.pools = told.pool = handle;
  told.segment = told.wanted = told.exact_segment = handle;
  told.now = {wide, wide, wide, wide, wide, wide};
  told.capacity = handle;
  told.available = 0;
  told.elsewhere = wide;
  told.waited_ms = std::numeric_limits<std::int64_t>::max();
  told.largest = {handle, wide, handle, stream_id{handle}};
  told.largest_neighbours = handle;
  told.split_limit = wide;
  told.pinned = wide;
  told.pinning = handle;
  for (oom_report::pin& p : told.pins) p = {wide, handle, wide, handle, handle, wide};
  told.crosses = true;
  return told;
}

TEST(oom_text, holds_the_widest_numbers_in_any_case) {
  constexpr auto kinds = static_cast<std::size_t>(remedy::free_list);
  for (std::size_t is = 0; is <= static_cast<std::size_t>(obstacle::size_class); ++is) {
    for (std::size_t what = 0; what <= static_cast<std::size_t>(remedy::free_list); ++what) {
      for (const growth_way way : {growth_way::segments, growth_way::in_place, growth_way::stitching}) {
        oom_report told = of_wide_numbers();
        told.largest_is = static_cast<obstacle>(is);
        told.way = way;
        told.remedy_count = oom_report::most_remedies;
        const bool is_last = what == static_cast<std::size_t>(remedy::free_list);
        for (std::size_t i = 0; i < told.remedies.size(); ++i)  // which are never the same twice
          told.remedies[i] = {static_cast<remedy>(is_last ? what : (what + i) % kinds), 1_GiB - 1};
        if (is_last) told.remedy_count = 1;
        const std::string text = words(told);
        ASSERT_LT(text.size() + 1, oom_text_bytes) << text;
        std::size_t lines = 1, at = 0;
        for (std::size_t next; (next = text.find('\n', at)) != std::string::npos; at = next + 1, ++lines)
          ASSERT_LT(next - at, 230u) << text.substr(at, next - at);
        ASSERT_EQ(lines, is_last ? 9u : 12u) << text;
        ASSERT_NE(text.find("1024.00 MiB"), std::string::npos);
        const bool is_whole = is_last ? text.ends_with(", 1024.00 MiB") : text.ends_with(".hpp]");
        ASSERT_TRUE(is_whole) << text;
      }
    }
  }
}

TEST(oom_text, is_whole_where_it_is_short) {
  oom_report told;
  told.requested = 1000;
  told.block = 1_KiB;
  told.segment = told.wanted = told.exact_segment = told.unpaged_segment = 2_MiB;
  told.now = {.limit = 1_MiB};
  told.capacity = 1_MiB;
  told.available = 1_MiB;
  advise(told);
  EXPECT_EQ(
      words(told),
      "tessera: out of memory: 1000 B (1000 bytes) requested on stream 0, served as a block of 1.00 KiB, "
      "which needed a segment of 2.00 MiB\n"
      "  reserved 0 B of at most 1.00 MiB: live 0 B, pending (freed, but in use) 0 B, cached 0 B; "
      "requested 0 B\n"
      "  could still be reserved: 1.00 MiB, which is 1.00 MiB too little\n"
      "  largest free block: none\n"
      "  no policy is known to help here: nothing is free; have 1.00 MiB more memory");
}

/// The last line about a request that nothing is known to help, without what all such lines begin with.
std::string last_line(oom_report told) {
  advise(told);
  EXPECT_EQ(told.remedy_count, 1u);
  EXPECT_EQ(told.remedies[0].what, remedy::free_list);
  const std::string text = words(told);
  return text.substr(text.rfind('\n') + 3);
}
/// A device of 100 MiB, of which `live` bytes live and `free` bytes are pinned, in parts of 1 MiB.
oom_report of_device(std::size_t requested, std::size_t live, std::size_t free = 0) {
  oom_report told;
  told.requested = told.block = told.segment = told.wanted = told.exact_segment = told.unpaged_segment =
      requested;
  told.now = {.requested = live, .live = live, .cached = free, .reserved = live + free, .limit = 100_MiB};
  told.pinned = free;
  told.largest.bytes = free > 0 ? 1_MiB : 0;
  told.capacity = 100_MiB;
  told.accepts_exact_size = told.empties_cache = true;
  return told;
}

TEST(oom_text, says_no_policy_only_where_more_is_asked_for_than_the_device_has) {
  EXPECT_EQ(last_line(of_device(50_MiB, 60_MiB)),
            "no policy would help: what lives, with this request, needs 110.00 MiB: 10.00 MiB must be freed, "
            "or the device must be larger");
  EXPECT_EQ(last_line(of_device(30_MiB, 60_MiB, 20_MiB)),
            "no policy is known to help here: what is free lies in parts too small; free some of the blocks "
            "above, or have 10.00 MiB more memory");
  oom_report rounded = of_device(50_MiB, 60_MiB);  // which asked for less
  rounded.now.requested = 50_MiB;
  EXPECT_EQ(last_line(rounded),
            "no policy is known to help here: what lives, with this request, needs 110.00 MiB: 10.00 MiB "
            "must be freed, or the device must be larger");
  oom_report pending = of_device(50_MiB, 40_MiB);  // what is freed is asked for no longer
  pending.now.pending = 15_MiB;
  pending.now.requested = 55_MiB;
  pending.now.reserved = 55_MiB;
  EXPECT_EQ(
      last_line(pending),
      "no policy is known to help here: nothing is free; free some blocks, or have 5.00 MiB more memory");
  oom_report whole = of_device(30_MiB, 60_MiB, 20_MiB);
  whole.largest.bytes = 35_MiB;
  whole.largest_is = obstacle::stream;
  EXPECT_EQ(last_line(whole),
            "no policy is known to help here: what is free does not serve this request; free some of the "
            "blocks above, or have 10.00 MiB more memory");
}

TEST(oom_text, never_asks_for_more_to_be_freed_than_lives) {
  EXPECT_EQ(last_line(of_device(200_MiB, 0)),
            "no policy would help: the request alone takes more than the device has, 100.00 MiB");
  EXPECT_EQ(last_line(of_device(200_MiB, 60_MiB)),
            "no policy would help: the request alone takes more than the device has, 100.00 MiB");
  oom_report shared = of_device(50_MiB, 0);
  shared.available = 30_MiB;
  EXPECT_EQ(last_line(shared),
            "no policy would help: the request alone takes more than others leave of the device, 30.00 MiB");
  oom_report provider = of_device(200_MiB, 0);
  provider.device_is_limited = true;
  EXPECT_EQ(
      last_line(provider),
      "no policy would help: the request alone takes more than the provider's limit allows, 100.00 MiB");
  oom_report by_limit = of_device(75_MiB, 20_MiB, 10_MiB);  // the cache would have to go back, too
  by_limit.now.limit = 30_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy is known to help here: the request alone takes more than the limit allows, 30.00 MiB");
  by_limit = of_device(55_MiB, 20_MiB, 40_MiB);
  by_limit.now.limit = 60_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy is known to help here: what lives, with this request, needs 75.00 MiB: 15.00 MiB must "
            "be freed, or the limit must be larger");
  by_limit = of_device(55_MiB, 50_MiB);
  by_limit.now.limit = 60_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy would help: what lives, with this request, needs 105.00 MiB: 45.00 MiB must be freed, "
            "or the limit and the device must be larger");
}

TEST(out_of_memory, is_a_bad_alloc_of_some_kilobytes_with_words_of_its_own) {
  static_assert(sizeof(out_of_memory) <= 2700);
  oom_report told;
  told.requested = 7;
  told.segment = 9;
  told.now.live = 5;
  const out_of_memory first(told);
  const out_of_memory copy = first;
  EXPECT_STREQ(copy.what(), first.what());
  EXPECT_NE(copy.what(), first.what());
  EXPECT_EQ(copy.requested(), 7u);
  EXPECT_EQ(copy.segment(), 9u);
  EXPECT_EQ(copy.at_failure().live, 5u);
  EXPECT_EQ(copy.report().requested, 7u);
  const std::bad_alloc& base = copy;
  EXPECT_TRUE(std::string_view(base.what()).starts_with("tessera: out of memory: "));
}

// What lanes and waits add to a report, and what cannot be brought about by an allocator alone.
oom_report short_of(std::size_t reserved, std::size_t limit) {
  oom_report told;
  told.requested = told.block = told.segment = told.wanted = told.exact_segment = told.unpaged_segment =
      4_MiB;
  told.now = {.reserved = reserved, .limit = limit};
  told.capacity = told.available = limit;
  told.device_has_ranges = told.device_has_order = true;
  return told;
}
remedy first_of(oom_report told) {
  advise(told);
  EXPECT_GT(told.remedy_count, 0u);
  return told.remedies[0].what;
}

TEST(oom_advice, frees_come_later_where_streams_were_waited_for_in_vain) {
  oom_report told = short_of(10_MiB, 10_MiB);
  told.now.pending = told.after_pending = 5_MiB;
  told.empties_cache = true;
  EXPECT_EQ(first_of(told), remedy::try_later);
  told.empties_cache = false;
  EXPECT_EQ(first_of(told), remedy::wait_for_streams);
  told.empties_cache = true;
  told.waited_ms = 10;
  EXPECT_EQ(first_of(told), remedy::free_list) << "who waited already need not be told to";
}

TEST(oom_advice, lanes_could_share_where_streams_may) {
  oom_report told = short_of(10_MiB, 10_MiB);
  told.elsewhere = 6_MiB;
  EXPECT_EQ(first_of(told), remedy::free_list);
  told.shares_streams = told.crosses = true;
  EXPECT_EQ(first_of(told), remedy::share_lanes);
}

TEST(oom_advice, a_provider_with_a_limit_could_have_a_higher_one) {
  oom_report told = short_of(8_MiB, 10_MiB);
  told.device_is_limited = true;
  EXPECT_EQ(first_of(told), remedy::raise_device_limit);
  told.now.live = 8_MiB;
  advise(told);
  EXPECT_EQ(told.remedies[0].what, remedy::free_list);
  EXPECT_TRUE(
      words(told).ends_with("what lives, with this request, needs 12.00 MiB: 2.00 MiB must be freed, or "
                            "the provider's limit must be larger"))
      << words(told);
}

}  // namespace
