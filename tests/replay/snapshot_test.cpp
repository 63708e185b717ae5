// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/recorded_pool.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/start_state.hpp"
#include "tessera_replay/verify.hpp"

namespace {

using namespace std::string_literals;
using namespace tessera;
using namespace tessera::trace;
using namespace replay;

/// Writes the pickles that the tests read.
struct writer {
  std::string bytes = std::string("\x80\x04", 2);
  writer& op(char c) { return bytes += c, *this; }
  writer& text(const std::string& s) {
    return bytes += '\x8c', bytes += static_cast<char>(s.size()), bytes += s, *this;
  }
  writer& number(std::int64_t n) {
    bytes += "\x8a\x08";
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(n) >> (8 * i));
    return *this;
  }
  writer& key(const std::string& name, std::int64_t n) { return text(name).number(n); }
};

struct block {
  std::size_t size;
  const char* state;
  std::size_t requested = 0;
};
struct entry {
  const char* action;
  std::int64_t address;
  std::int64_t size;
};

std::string snapshot_of(std::int64_t address, std::int64_t total, const char* type,
                        const std::vector<block>& blocks, const std::vector<entry>& entries) {
  writer w;
  w.op('}').op('(').text("segments").op(']').op('(').op('}').op('(');
  w.key("device", 0).key("address", address).key("total_size", total).key("stream", 0);
  w.text("segment_type").text(type).text("blocks").op(']').op('(');
  for (const block& b : blocks) {
    w.op('}').op('(').key("size", static_cast<std::int64_t>(b.size));
    w.key("requested_size", static_cast<std::int64_t>(b.requested)).text("state").text(b.state).op('u');
  }
  w.op('e').op('u').op('e').text("device_traces").op(']').op('(').op(']').op('(');
  for (const entry& e : entries) {
    w.op('}')
        .op('(')
        .text("action")
        .text(e.action)
        .key("addr", e.address)
        .key("size", e.size)
        .key("stream", 0)
        .op('u');
  }
  w.op('e').op('e').op('u').op('.');
  return w.bytes;
}

constexpr std::int64_t base = 1 << 30;
constexpr auto mib = static_cast<std::int64_t>(1_MiB);

std::string refused(const std::string& bytes) {
  const auto read = read_snapshot(bytes, "file");
  const auto* error = std::get_if<input_error>(&read);
  return error != nullptr ? error->rule : "accepted";
}
snapshot accepted(const std::string& bytes) {
  auto read = read_snapshot(bytes, "file");
  if (const auto* error = std::get_if<input_error>(&read)) ADD_FAILURE() << error->text();
  return std::get<snapshot>(std::move(read));
}

TEST(snapshot, reads_segments_and_traces) {
  const snapshot s = accepted(snapshot_of(base, 20 * mib, "large",
                                          {{5_MiB, "active_allocated", 5_MiB}, {15_MiB, "inactive"}},
                                          {{"segment_alloc", base, 20 * mib}, {"alloc", base, 5 * mib}}));
  ASSERT_EQ(s.segments.size(), 1u);
  EXPECT_TRUE(s.segments[0].large);
  EXPECT_EQ(s.segments[0].blocks[1].address, static_cast<std::uint64_t>(base + 5 * mib));
  EXPECT_FALSE(s.segments[0].blocks[1].active());
  ASSERT_EQ(s.traces[0].size(), 2u);
  EXPECT_EQ(s.traces[0][1].what, snapshot::action::alloc);
  EXPECT_EQ(s.configured.max_split_size, unlimited);
}

TEST(snapshot, accepts_any_number_that_no_decision_depends_on) {
  // A frame without a line has line 2^64 - 1. Future versions may add such keys.
  std::string bytes =
      snapshot_of(base, 2 * mib, "small", {{2_MiB, "inactive"}}, {{"segment_alloc", base, 2 * mib}});
  const std::string before =
      "\x8c\x06"
      "action";
  bytes.insert(bytes.find(before), "\x8c\x07time_us\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"s);
  EXPECT_EQ(accepted(bytes).traces[0][0].time_us, ~std::uint64_t{0});
  std::string high = snapshot_of(base, 2 * mib, "small", {{2_MiB, "inactive"}}, {});
  const std::size_t at = high.find(
                             "\x8c\x07"
                             "address\x8a\x08") +
                         10;
  high.replace(at, 9, "\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s);
  EXPECT_EQ(refused(high), "'address' is 9223372036854775808; addresses are below 2^63");
}

TEST(snapshot, rejects_sizes_that_do_not_add_up) {
  EXPECT_EQ(refused(snapshot_of(base, 20 * mib, "large", {{5_MiB, "inactive"}}, {})),
            "the blocks do not add up to 'total_size'");
  EXPECT_EQ(refused(snapshot_of(base, 20 * mib, "large", {{25_MiB, "inactive"}}, {})),
            "the blocks do not add up to 'total_size'");
  EXPECT_EQ(refused(snapshot_of(-5, 20 * mib, "large", {}, {})), "'address' is negative");
  EXPECT_EQ(refused(snapshot_of(base, INT64_MAX, "large", {}, {})),
            "'total_size' is 9223372036854775807 bytes; less than 2^60 are allowed");
}

TEST(snapshot, rejects_other_data) {
  const std::string rule =
      "the pickle is no memory snapshot of PyTorch, which is a dict with 'segments' and 'device_traces', or "
      "a list "
      "of segments";
  for (const char* const other :
       {"}.", "N.", "K\x01.", "]N\x61.", "](K\x01K\x02\x65.", "}\x8c\x08segments]s.",
        "}\x8c\x0d"
        "device_traces]s."}) {
    const auto read = read_snapshot(std::string("\x80\x04") + other, "file");
    ASSERT_TRUE(std::holds_alternative<input_error>(read)) << other;
    EXPECT_EQ(std::get<input_error>(read).text(), "file: byte 2: " + rule) << other;
  }
  EXPECT_TRUE(std::holds_alternative<snapshot>(read_snapshot("\x80\x04].", "file"))) << "no segments";
}

TEST(snapshot, knows_the_capacity_of_its_device) {
  using action = snapshot::action;
  snapshot s;
  s.segments = {{.address = 0, .size = 20_MiB}, {.device = 1, .address = 0, .size = 7_MiB}};
  EXPECT_EQ(recorded_capacity(s, 0), 0u) << "nothing ran out";
  // At the start 30 MiB are reserved, of which 10 are released. Then memory runs out twice.
  s.traces = {{{.what = action::segment_free, .size = 10_MiB},
               {.what = action::segment_map, .size = 2_MiB},
               {.what = action::oom, .size = 50_MiB, .device_free = 3_MiB},
               {.what = action::segment_unmap, .size = 2_MiB},
               {.what = action::oom, .size = 50_MiB, .device_free = 1_MiB}}};
  EXPECT_EQ(recorded_capacity(s, 0), 25_MiB) << "20 and 2 reserved, 3 free";
  EXPECT_EQ(recorded_capacity(s, 1), 0u);
  const auto made = recording_of(s);
  ASSERT_TRUE(std::holds_alternative<recording>(made));
  EXPECT_EQ(std::get<recording>(made).capacity, 25_MiB);
  s.traces[0][0].what = action::segment_alloc;
  s.traces[0][0].size = 1_GiB;
  EXPECT_EQ(recorded_capacity(s, 0), 25_MiB) << "numbers wrap around and come back";
  s.traces[0].push_back({.what = action::segment_alloc, .size = 1_GiB});
  EXPECT_EQ(recorded_capacity(s, 0), 0u) << "less than nothing was reserved";
  s.traces[0] = {{.what = action::oom, .device_free = ~std::size_t{0}}};
  EXPECT_EQ(recorded_capacity(s, 0), 0u);
}

TEST(snapshot, may_be_truncated_anywhere) {
  const std::string whole = snapshot_of(base, 2 * mib, "small", {{2_MiB, "inactive"}}, {{"alloc", base, 5}});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(refused(whole.substr(0, length)), "accepted");
}

std::vector<snapshot::segment> start_of(const snapshot& s) {
  auto found = start_finder(s, 0).find(policies<pytorch_family::native>{});
  if (const auto* error = std::get_if<input_error>(&found)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<start_state>(std::move(found)).segments;
}
std::string start_refused(const snapshot& s) {
  const auto found = start_finder(s, 0).find(policies<pytorch_family::native>{});
  const auto* error = std::get_if<input_error>(&found);
  return error != nullptr ? error->rule : "accepted";
}

TEST(start_state, undoes_the_history) {
  // At the end, the first 5 MiB are live, allocated in the history. Before it, 6 MiB at offset 5 MiB were
  // live; they are freed in it.
  const auto found = start_of(accepted(snapshot_of(base, 20 * mib, "large",
                                                   {{5_MiB, "active_allocated", 5_MiB}, {15_MiB, "inactive"}},
                                                   {{"free_requested", base + 5 * mib, 6 * mib},
                                                    {"free_completed", base + 5 * mib, 6 * mib},
                                                    {"alloc", base, 5 * mib}})));
  ASSERT_EQ(found.size(), 1u);
  const auto& blocks = found[0].blocks;
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_FALSE(blocks[0].active());
  EXPECT_EQ(blocks[0].size, 5_MiB);
  EXPECT_TRUE(blocks[1].active());
  EXPECT_EQ(blocks[1].size, 6_MiB);
  EXPECT_EQ(blocks[2].size, 9_MiB);
}

TEST(start_state, a_block_keeps_a_rest_too_small_to_split_off) {
  const auto found = start_of(accepted(snapshot_of(base, 20 * mib, "large", {{20_MiB, "inactive"}},
                                                   {{"free_completed", base, 19 * mib + 7}})));
  ASSERT_EQ(found[0].blocks.size(), 1u);
  EXPECT_EQ(found[0].blocks[0].size, 20_MiB);
  const auto small = start_of(
      accepted(snapshot_of(base, 2 * mib, "small", {{2_MiB, "inactive"}}, {{"free_completed", base, 1000}})));
  ASSERT_EQ(small[0].blocks.size(), 2u);
  EXPECT_EQ(small[0].blocks[0].size, 1024u);
}

TEST(start_state, knows_segments_that_came_and_went) {
  const auto found = start_of(
      accepted(snapshot_of(base, 20 * mib, "large", {{20_MiB, "inactive"}},
                           {{"segment_free", base + 64 * mib, 2 * mib}, {"segment_alloc", base, 20 * mib}})));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].address, static_cast<std::uint64_t>(base + 64 * mib));
  EXPECT_FALSE(found[0].large);
}

TEST(start_state, refuses_a_history_that_contradicts_itself) {
  const auto with = [](const std::vector<entry>& entries) {
    return start_refused(accepted(snapshot_of(base, 20 * mib, "large", {{20_MiB, "inactive"}}, entries)));
  };
  EXPECT_EQ(with({{"alloc", base, 5}}), "entry 0: allocates a block that is not live afterwards");
  EXPECT_EQ(with({{"free_completed", 5, 5}}), "entry 0: frees an address in no segment");
  EXPECT_EQ(with({{"free_completed", base, 5}, {"free_completed", base, 5}}),
            "entry 0: frees a block that is live afterwards");
  EXPECT_EQ(with({{"segment_alloc", base, 5}}), "entry 0: acquires a segment that does not exist afterwards");
  EXPECT_EQ(with({{"segment_free", base, 20 * mib}}), "entry 0: releases a segment that exists afterwards");
  EXPECT_EQ(with({{"segment_map", base, 20 * mib}}),
            "entry 0: acquires a segment that does not exist afterwards");
  EXPECT_EQ(with({{"segment_unmap", base, 20 * mib}}), "entry 0: releases a segment that exists afterwards");
  EXPECT_EQ(with({{"segment_free", base, 0}}), "entry 0: is about a segment of no possible size");
  EXPECT_EQ(with({{"free_completed", base, 30 * mib}}),
            "the blocks of the segment at 1073741824 overlap at the start");
}

verification verified(const std::string& bytes) {
  const snapshot s = accepted(bytes);
  auto outcome = verifier(s, 0).run();
  if (const auto* error = std::get_if<input_error>(&outcome)) ADD_FAILURE() << error->text();
  return std::get<verification>(outcome);
}

TEST(verify, reports_the_first_difference) {
  const std::vector<block> end = {{5_MiB, "active_allocated", 5_MiB}, {15_MiB, "inactive"}};
  const auto same = verified(snapshot_of(base, 20 * mib, "large", end,
                                         {{"segment_alloc", base, 20 * mib}, {"alloc", base, 5 * mib}}));
  EXPECT_TRUE(same.agrees());
  EXPECT_EQ(same.allocations, 1u);
  EXPECT_EQ(same.segments, 1u);
  EXPECT_EQ(same.peak_recorded, 20_MiB);
  // A device that gave 22 MiB for the same request, and one that gave an address in the middle.
  const auto larger = verified(snapshot_of(base, 22 * mib, "large",
                                           {{5_MiB, "active_allocated", 5_MiB}, {17_MiB, "inactive"}},
                                           {{"segment_alloc", base, 22 * mib}, {"alloc", base, 5 * mib}}));
  EXPECT_FALSE(larger.agrees());
  EXPECT_EQ(larger.first_other_segment, "before allocation 0 recorded: 23068672, replayed: 20971520");
  const auto elsewhere =
      verified(snapshot_of(base, 20 * mib, "large",
                           {{5_MiB, "inactive"}, {5_MiB, "active_allocated", 5_MiB}, {10_MiB, "inactive"}},
                           {{"alloc", base + 5 * mib, 5 * mib}}));
  EXPECT_FALSE(elsewhere.agrees());
  EXPECT_EQ(elsewhere.same_address, 0u);
  EXPECT_EQ(elsewhere.first_other_segment, "");
}

TEST(verify, rejects_memory_that_no_device_returns) {
  const auto rule_of = [](const std::string& bytes) {
    const snapshot s = accepted(bytes);
    auto outcome = verifier(s, 0).run();
    return std::holds_alternative<input_error>(outcome) ? std::get<input_error>(outcome).text() : "accepted";
  };
  const std::string wanted = " are not whole steps of 64 bytes";
  const std::vector<entry> none;
  EXPECT_EQ(rule_of(snapshot_of(base, 64, "small", {{1, "active_allocated", 1}, {63, "inactive"}}, none)),
            "file: device 0: 1 byte at 1073741824 is not whole steps of 64 bytes");
  EXPECT_EQ(rule_of(snapshot_of(base + 1, 64, "small", {{64, "inactive"}}, none)),
            "file: device 0: 64 bytes at 1073741825" + wanted);
  EXPECT_EQ(rule_of(snapshot_of(0, 64, "small", {{64, "inactive"}}, none)),
            "file: device 0: 64 bytes at 0" + wanted);
  EXPECT_EQ(rule_of(snapshot_of(base, 65, "small", {{65, "inactive"}}, {{"segment_alloc", base, 65}})),
            "file: device 0: 65 bytes at 1073741824" + wanted);
}
TEST(recorded_device, never_returns_memory_twice) {
  replay::recorded_device device;
  device.hold({base, 2_MiB});
  device.expect({base + mib, 4_MiB});
  void* const elsewhere = device.acquire(4_MiB);
  EXPECT_GT(reinterpret_cast<std::uintptr_t>(elsewhere), std::uintptr_t{1} << 63) << "where no snapshot is";
  EXPECT_EQ(device.strays(), 1u);
  EXPECT_TRUE(device.release(reinterpret_cast<void*>(base), 2_MiB));
  EXPECT_EQ(device.acquire(4_MiB), reinterpret_cast<void*>(base + mib));
  // Unexpected requests are served until addresses run out.
  std::set<void*> strays;
  while (void* const p = device.acquire(max_request / 4_MiB * 4_MiB)) EXPECT_TRUE(strays.insert(p).second);
  EXPECT_GT(strays.size(), 2u);
  EXPECT_LT(strays.size(), 8u);
  EXPECT_EQ(device.acquire(unlimited), nullptr);
}

TEST(snapshot_recording, begins_with_the_live_blocks) {
  const auto read = read_snapshot_recording(
      snapshot_of(base, 20 * mib, "large", {{5_MiB, "active_allocated", 5_MiB}, {15_MiB, "inactive"}},
                  {{"alloc", base + 5 * mib, 2 * mib},
                   {"free_requested", base + 5 * mib, 2 * mib},
                   {"free_completed", base + 5 * mib, 2 * mib}}),
      "file");
  ASSERT_TRUE(std::holds_alternative<recording>(read)) << std::get<input_error>(read).text();
  const auto& events = std::get<recording>(read).events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].bytes, 5_MiB);
  EXPECT_EQ(events[2].what, event::kind::free);
  EXPECT_EQ(events[2].id, 1u);
}

// PyTorch completes a free at once, unless other streams use the block.
TEST(snapshot_recording, knows_blocks_whose_frees_completed_late) {
  const std::int64_t one = base, other = base + 5 * mib;
  const auto read = read_snapshot_recording(snapshot_of(base, 20 * mib, "large", {{20_MiB, "inactive"}},
                                                        {{"alloc", one, 2 * mib},
                                                         {"alloc", other, 2 * mib},
                                                         {"free_requested", one, 2 * mib},
                                                         {"free_requested", other, 2 * mib},
                                                         {"free_completed", other, 2 * mib},
                                                         {"free_completed", one, 2 * mib}}),
                                            "file");
  ASSERT_TRUE(std::holds_alternative<recording>(read)) << std::get<input_error>(read).text();
  EXPECT_EQ(std::get<recording>(read).completed_late, std::vector<std::uint64_t>{0});
}

TEST(snapshot_recording, is_of_one_device) {
  snapshot s = accepted(snapshot_of(base, 20 * mib, "large", {{20_MiB, "active_allocated", 20_MiB}}, {}));
  EXPECT_EQ(recorded_devices(s), std::vector<std::size_t>{0})
      << "where there is no history, of those with segments";
  s.traces.resize(3);
  s.traces[2] = {{.what = snapshot::action::oom, .size = 1_MiB}};
  EXPECT_EQ(recorded_devices(s), std::vector<std::size_t>{2});
  EXPECT_EQ(std::get<recording>(recording_of(s, 0)).events.size(), 1u);
  const auto events = std::get<recording>(recording_of(s)).events;
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, event::kind::refused) << "of the first that has a history";
}

TEST(snapshot_recording, empties_the_cache_when_the_program_did) {
  using kind = event::kind;
  const auto kinds = [](const std::vector<entry>& entries) {
    const auto read = read_snapshot_recording(
        snapshot_of(base, 20 * mib, "large", {{20_MiB, "inactive"}}, entries), "file");
    std::vector<kind> found;
    for (const event& e : std::get<recording>(read).events) found.push_back(e.what);
    return found;
  };
  EXPECT_EQ(kinds({{"segment_free", 2 * base, 2 * mib},
                   {"segment_free", 3 * base, 2 * mib},
                   {"alloc", base, 2 * mib},
                   {"free_completed", base, 2 * mib}}),
            (std::vector<kind>{kind::empty_cache, kind::allocate, kind::free}));
  EXPECT_EQ(kinds({{"segment_free", 2 * base, 2 * mib}}), std::vector<kind>{kind::empty_cache});
  // Here the allocator may have released idle memory to get the segment.
  EXPECT_EQ(kinds({{"segment_free", 2 * base, 2 * mib},
                   {"segment_alloc", base, 20 * mib},
                   {"alloc", base, 2 * mib},
                   {"free_completed", base, 2 * mib}}),
            (std::vector<kind>{kind::allocate, kind::free}));
}

}  // namespace
