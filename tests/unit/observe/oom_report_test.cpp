// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <tessera/core/error.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/oom_report.hpp>

namespace {

using namespace tessera;

std::string text_of(const oom_report& report) { return report.text().c_str(); }

/// A report in which every number has as many characters as possible.
oom_report of_wide_numbers() {
  constexpr std::uint64_t handle = std::numeric_limits<std::uint64_t>::max();
  constexpr std::size_t wide = 1_GiB - 1;  // 1024.00 MiB
  oom_report report;
  report.requested = max_request;
  report.stream = stream_id{handle};
  report.block = 3 * wide;
  report.pools = report.pool = handle;
  report.segment = report.wanted = report.exact_segment = handle;
  report.now = {wide, wide, wide, wide, wide, wide};
  report.capacity = handle;
  report.available = 0;
  report.elsewhere = wide;
  report.waited_ms = std::numeric_limits<std::int64_t>::max();
  report.largest = {handle, wide, handle, stream_id{handle}};
  report.largest_neighbours = handle;
  report.split_limit = wide;
  report.non_releasable = wide;
  report.non_releasable_units = handle;
  for (oom_report::non_releasable_unit& p : report.units) p = {wide, handle, wide, handle, handle, wide};
  report.reuses_across_streams = true;
  report.refused = refusal(std::string(1000, 'x').c_str());
  return report;
}

TEST(oom_report, fits_the_widest_numbers_in_any_case) {
  constexpr auto kinds = static_cast<std::size_t>(oom_report::hint::free_memory);
  for (std::size_t is = 0; is <= static_cast<std::size_t>(oom_report::reason::size_class); ++is) {
    for (std::size_t what = 0; what <= static_cast<std::size_t>(oom_report::hint::free_memory); ++what) {
      for (const bool has_segments : {true, false}) {
        oom_report report = of_wide_numbers();
        report.largest_is = static_cast<oom_report::reason>(is);
        report.has_segments = has_segments;
        report.hint_count = oom_report::max_hints;
        const bool is_last = what == static_cast<std::size_t>(oom_report::hint::free_memory);
        for (std::size_t i = 0; i < report.hints.size(); ++i)  // these never repeat
          report.hints[i] = {static_cast<oom_report::hint>(is_last ? what : (what + i) % kinds), 1_GiB - 1};
        if (is_last) report.hint_count = 1;
        const std::string text = text_of(report);
        ASSERT_LT(text.size() + 1, tessera::detail::oom_text::capacity) << text;
        std::size_t lines = 1, at = 0;
        for (std::size_t next; (next = text.find('\n', at)) != std::string::npos; at = next + 1, ++lines)
          ASSERT_LT(next - at, 230u) << text.substr(at, next - at);
        ASSERT_EQ(lines, is_last ? 10u : 13u) << text;
        ASSERT_NE(text.find("1024.00 MiB"), std::string::npos);
        const bool is_whole = is_last ? text.ends_with(", 1024.00 MiB") : text.ends_with(".hpp]");
        ASSERT_TRUE(is_whole) << text;
      }
    }
  }
}

TEST(oom_report, is_complete_for_small_numbers) {
  oom_report report;
  report.requested = 1000;
  report.block = 1_KiB;
  report.segment = report.wanted = report.exact_segment = report.unpaged_segment = 2_MiB;
  report.now = {.limit = 1_MiB};
  report.capacity = 1_MiB;
  report.available = 1_MiB;
  tessera::detail::add_hints(report);
  EXPECT_EQ(text_of(report),
            "tessera: out of memory: 1000 B (1000 bytes) requested on stream 0; needs a block of 1.00 KiB, "
            "and a segment of 2.00 MiB for it\n"
            "  reserved 0 B of at most 1.00 MiB: live 0 B, pending (freed, but in use) 0 B, cached 0 B; "
            "requested 0 B\n"
            "  could still be reserved: 1.00 MiB, which is 1.00 MiB too little\n"
            "  largest free block: none\n"
            "  no policy is known to help: nothing is free; add 1.00 MiB of memory");
}

/// The last line about a request that no hint helps, without the common beginning of such lines.
std::string last_line(oom_report report) {
  tessera::detail::add_hints(report);
  EXPECT_EQ(report.hint_count, 1u);
  EXPECT_EQ(report.hints[0].what, oom_report::hint::free_memory);
  const std::string text = text_of(report);
  return text.substr(text.rfind('\n') + 3);
}
/// A device of 100 MiB, with `live` bytes live and `free` non-releasable bytes, in parts of 1 MiB.
oom_report of_device(std::size_t requested, std::size_t live, std::size_t free = 0) {
  oom_report report;
  report.requested = report.block = report.segment = report.wanted = report.exact_segment =
      report.unpaged_segment = requested;
  report.now = {.requested = live,
                .allocated = live,
                .active = live,
                .cached = free,
                .reserved = live + free,
                .limit = 100_MiB};
  report.non_releasable = free;
  report.largest.bytes = free > 0 ? 1_MiB : 0;
  report.capacity = 100_MiB;
  report.accepts_exact_size = report.empties_cache = true;
  return report;
}

TEST(oom_report, names_no_policy_only_if_the_request_exceeds_the_device) {
  EXPECT_EQ(last_line(of_device(50_MiB, 60_MiB)),
            "no policy would help: live blocks and this request need 110.00 MiB: free 10.00 MiB, or enlarge "
            "the device");
  EXPECT_EQ(last_line(of_device(30_MiB, 60_MiB, 20_MiB)),
            "no policy is known to help: all free blocks are too small; free some of the blocks above, or "
            "add 10.00 MiB of memory");
  oom_report rounded = of_device(50_MiB, 60_MiB);  // which requested less
  rounded.now.requested = 50_MiB;
  EXPECT_EQ(last_line(rounded),
            "no policy is known to help: live blocks and this request need 110.00 MiB: free 10.00 MiB, or "
            "enlarge the device");
  oom_report pending = of_device(50_MiB, 40_MiB);  // the freed block is not requested any more
  pending.now.active += 15_MiB;
  pending.now.requested = 55_MiB;
  pending.now.reserved = 55_MiB;
  EXPECT_EQ(last_line(pending),
            "no policy is known to help: nothing is free; free some blocks, or add 5.00 MiB of memory");
  oom_report whole = of_device(30_MiB, 60_MiB, 20_MiB);
  whole.largest.bytes = 35_MiB;
  whole.largest_is = oom_report::reason::stream;
  EXPECT_EQ(last_line(whole),
            "no policy is known to help: no free block may serve this request; free some of the blocks "
            "above, or add 10.00 MiB of memory");
}

TEST(oom_report, never_suggests_to_free_more_than_is_live) {
  EXPECT_EQ(last_line(of_device(200_MiB, 0)),
            "no policy would help: the request alone exceeds the device, 100.00 MiB");
  EXPECT_EQ(last_line(of_device(200_MiB, 60_MiB)),
            "no policy would help: the request alone exceeds the device, 100.00 MiB");
  oom_report shared = of_device(50_MiB, 0);
  shared.available = 30_MiB;
  EXPECT_EQ(last_line(shared),
            "no policy would help: the request alone exceeds what others leave of the device, 30.00 MiB");
  oom_report provider = of_device(200_MiB, 0);
  provider.device_is_limited = true;
  EXPECT_EQ(last_line(provider),
            "no policy would help: the request alone exceeds the provider's limit, 100.00 MiB");
  oom_report by_limit = of_device(75_MiB, 20_MiB, 10_MiB);  // the cache would have to be released, too
  by_limit.now.limit = 30_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy is known to help: the request alone exceeds the limit, 30.00 MiB");
  by_limit = of_device(55_MiB, 20_MiB, 40_MiB);
  by_limit.now.limit = 60_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy is known to help: live blocks and this request need 75.00 MiB: free 15.00 MiB, or "
            "enlarge the limit");
  by_limit = of_device(55_MiB, 50_MiB);
  by_limit.now.limit = 60_MiB;
  EXPECT_EQ(last_line(by_limit),
            "no policy would help: live blocks and this request need 105.00 MiB: free 45.00 MiB, or enlarge "
            "the limit and the device");
}

TEST(out_of_memory, is_a_bad_alloc_of_three_lines_with_a_text_of_its_own) {
  static_assert(sizeof(out_of_memory) <= 1152);
  detail::oom_numbers numbers;
  numbers.requested = 3_MiB;
  numbers.block = 3_MiB;
  numbers.segment = 20_MiB;
  numbers.stream = stream_id{9};
  numbers.now = {.allocated = 5_MiB, .active = 5_MiB, .cached = 15_MiB, .reserved = 20_MiB, .limit = 30_MiB};
  numbers.capacity = 30_MiB;
  numbers.largest_free = 2_MiB;
  numbers.waited_ms = 7;
  const out_of_memory first(numbers);
  const out_of_memory copy = first;
  EXPECT_STREQ(copy.what(), first.what());
  EXPECT_NE(copy.what(), first.what());
  EXPECT_EQ(copy.requested(), 3_MiB);
  EXPECT_EQ(copy.segment(), 20_MiB);
  EXPECT_EQ(copy.stream(), stream_id{9});
  EXPECT_EQ(copy.at_failure().allocated, 5_MiB);
  EXPECT_EQ(copy.numbers().largest_free, 2_MiB);
  const std::bad_alloc& base = copy;
  EXPECT_STREQ(base.what(),
               "tessera: out of memory: 3.00 MiB (3145728 bytes) requested on stream 9; needs a block of "
               "3.00 MiB and a segment of 20.00 MiB; waited 7 ms for other threads\n"
               "  reserved 20.00 MiB of at most 30.00 MiB (device: 30.00 MiB): live 5.00 MiB, pending 0 B, "
               "cached 15.00 MiB; largest free block 2.00 MiB\n"
               "  explain(allocator, bytes, stream) says why, and what would help "
               "[tessera/observe/explain.hpp]");
}

TEST(out_of_memory, fits_the_widest_numbers) {
  constexpr auto widest = std::numeric_limits<std::uint64_t>::max();
  constexpr std::size_t wide = 1_GiB - 1;  // 1024.00 MiB
  const detail::oom_numbers numbers{.requested = max_request,
                                    .block = wide,
                                    .segment = widest,
                                    .stream = stream_id{widest},
                                    .now = {wide, wide, wide, wide, wide, wide},
                                    .capacity = wide,
                                    .available = widest,
                                    .largest_free = wide,
                                    .waited_ms = std::numeric_limits<std::int64_t>::max(),
                                    .refused = refusal(std::string(1000, 'x').c_str())};
  EXPECT_TRUE(std::string_view(out_of_memory(numbers).what()).ends_with("explain.hpp]"));
  EXPECT_TRUE(std::string_view(out_of_memory({.requested = widest}).what())
                  .ends_with("no request above 1152921504606846975 bytes is served"));
}

// The parts that arenas and waits add to a report, which one allocator alone cannot cause.
oom_report short_of(std::size_t reserved, std::size_t limit) {
  oom_report report;
  report.requested = report.block = report.segment = report.wanted = report.exact_segment =
      report.unpaged_segment = 4_MiB;
  report.now = {.reserved = reserved, .limit = limit};
  report.capacity = report.available = limit;
  report.device_has_ranges = report.device_has_order = true;
  return report;
}
oom_report::hint first_of(oom_report report) {
  tessera::detail::add_hints(report);
  EXPECT_GT(report.hint_count, 0u);
  return report.hints[0].what;
}

TEST(oom_hints, suggests_to_try_later_after_a_wait) {
  oom_report report = short_of(10_MiB, 10_MiB);
  report.after_pending = 5_MiB;
  report.now.active += 5_MiB;
  report.empties_cache = true;
  EXPECT_EQ(first_of(report), oom_report::hint::try_later);
  report.empties_cache = false;
  EXPECT_EQ(first_of(report), oom_report::hint::wait_for_streams);
  report.empties_cache = true;
  report.waited_ms = 10;
  EXPECT_EQ(first_of(report), oom_report::hint::free_memory) << "after a wait, no hint to wait";
}

TEST(oom_hints, suggests_to_share_arenas) {
  oom_report report = short_of(10_MiB, 10_MiB);
  report.elsewhere = 6_MiB;
  EXPECT_EQ(first_of(report), oom_report::hint::free_memory);
  report.shares_streams = report.reuses_across_streams = true;
  EXPECT_EQ(first_of(report), oom_report::hint::share_arenas);
}

TEST(oom_hints, suggests_to_raise_the_providers_limit) {
  oom_report report = short_of(8_MiB, 10_MiB);
  report.device_is_limited = true;
  EXPECT_EQ(first_of(report), oom_report::hint::raise_device_limit);
  report.now.allocated = 8_MiB;
  tessera::detail::add_hints(report);
  EXPECT_EQ(report.hints[0].what, oom_report::hint::free_memory);
  EXPECT_TRUE(text_of(report).ends_with(
      "live blocks and this request need 12.00 MiB: free 2.00 MiB, or enlarge the provider's limit"))
      << text_of(report);
}

}  // namespace
