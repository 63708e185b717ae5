// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/decisions.hpp"
#include "tessera_replay/lifetimes.hpp"

#include "printed.hpp"
#include "recording_lines.hpp"
#include "tool_recipe.hpp"

namespace {

using recording_lines::error_of;
using recording_lines::line;
using recording_lines::lines;
using replay::read_lifetimes;
using replay::read_result;
using replay::read_text_trace;
using replay_tests::tool_recipe;
using tessera::trace::event;
using tessera::trace::input_error;
using tessera::trace::read_csv;
using tessera::trace::recording;
using tessera::trace::to_csv;
using kind = event::kind;

std::string csv(std::string_view body) { return "op,id,bytes,stream,t_us\n" + std::string(body); }
std::string lifetimes(std::string_view body) { return "id,lower,upper,size\n" + std::string(body); }

TEST(read_csv, every_op) {
  const auto read = tessera::trace::read_csv(
      csv("a,0,512,0,1\nr,0,0,3,2\ne,0,0,0,3\nf,0,512,0,4\ne,0,1,0,5\nc,0,0,0,6\n"), "T");
  const std::vector<line> expected{{'a', 0, 512, 0}, {'r', 0, 0, 3}, {'e', 0, 0, 0},
                                   {'f', 0, 512, 0}, {'e', 0, 1, 0}, {'c', 0, 0, 0}};
  EXPECT_EQ(lines(read), expected);
  EXPECT_EQ(std::get<recording>(read).name, "T");
}

TEST(read_csv, times_are_kept_and_written) {
  const std::string text =
      csv("a,0,1000,0,5\na,1,0,0,6\nm,0,0,0,6\nf,1,0,0,7\nf,0,0,0,18446744073709551615\n");
  const auto read = tessera::trace::read_csv(text, "T");
  const auto& made = std::get<recording>(read);
  EXPECT_EQ(made.times_us, (std::vector<std::uint64_t>{5, 6, 18446744073709551615u}))
      << "without those of requests of 0 bytes";
  EXPECT_EQ(to_csv(made), csv("a,0,1000,0,5\nm,0,0,0,6\nf,0,0,0,18446744073709551615\n"));
  EXPECT_EQ(to_csv({"", {{kind::begin_step}, {kind::begin_step, 1}}}), csv("m,0,0,0,0\nm,1,0,0,1\n"))
      << "without times, an event's time is its index";
}

TEST(read_csv, every_op_on_private_pools) {
  const std::string text =
      csv("p,1,0,0,0\nb,1,0,3,1\nj,1,0,4,2\nn,1,0,0,3\nb,2,1,0,4\nn,2,0,0,5\nx,1,0,0,6\nc,1,0,0,7\n");
  const auto read = tessera::trace::read_csv(text, "T");
  const std::vector<line> expected{{'p', 1, 0, 0}, {'b', 1, 0, 3}, {'j', 1, 0, 4}, {'n', 1, 0, 0},
                                   {'b', 2, 1, 0}, {'n', 2, 0, 0}, {'x', 1, 0, 0}, {'c', 1, 0, 0}};
  EXPECT_EQ(lines(read), expected);
  EXPECT_EQ(tessera::trace::to_csv(std::get<recording>(read)), text);
}

TEST(read_csv, every_op_of_sleep) {
  const std::string text = csv("p,1,0,0,0\ns,1,0,0,1\nw,1,0,3,2\ns,1,1,4,3\ns,0,0,0,4\nw,0,0,0,5\n");
  const auto read = tessera::trace::read_csv(text, "T");
  const std::vector<line> expected{{'p', 1, 0, 0}, {'s', 1, 0, 0}, {'w', 1, 0, 3},
                                   {'s', 1, 1, 4}, {'s', 0, 0, 0}, {'w', 0, 0, 0}};
  EXPECT_EQ(lines(read), expected);
  EXPECT_EQ(tessera::trace::to_csv(std::get<recording>(read)), text);
}

TEST(read_csv, marks_of_steps) {
  const std::string text = csv("m,0,0,0,0\na,5,8,0,1\nm,5,0,0,2\nm,18446744073709551615,0,0,3\nf,5,0,0,4\n");
  const auto read = tessera::trace::read_csv(text, "T");
  const std::vector<line> expected{
      {'m', 0, 0, 0}, {'a', 5, 8, 0}, {'m', 5, 0, 0}, {'m', ~std::uint64_t{0}, 0, 0}, {'f', 5, 0, 0}};
  EXPECT_EQ(lines(read), expected);
  EXPECT_EQ(tessera::trace::to_csv(std::get<recording>(read)), text);
}

TEST(read_csv, at_most_256_scopes_are_open) {
  std::string begins;
  for (int pool = 1; pool <= 256; ++pool) begins += "b," + std::to_string(pool) + ",0,0,0\n";
  EXPECT_EQ(
      lines(tessera::trace::read_csv(csv(begins + "n,7,0,0,0\nb,300,0,0,0\nb,300,0,0,0\n"), "T")).size(),
      259u);
  EXPECT_EQ(error_of(tessera::trace::read_csv(csv(begins + "b,257,0,0,0\n"), "T")),
            "T:258: the scopes of more than 256 private pools are open");
}

std::string decisions_of(const char* recipe, const read_result<recording>& read) {
  return replay_tests::printed([&](std::FILE* out) {
    replay::write_decisions(out, tessera::trace::program(std::get<recording>(read)),
                            tessera::provider::simulated_device{}, tool_recipe(recipe));
  });
}

// A scope of a pool that exists is opened twice, a pool is released too often, and a cache is emptied in a scope.
TEST(write_decisions, say_which_operations_on_private_pools_change_nothing) {
  const auto read = tessera::trace::read_csv(
      csv("b,1,0,0,0\na,0,1048577,0,1\nb,1,0,0,2\nc,0,0,0,3\na,1,1048577,9,4\nj,1,0,9,5\n"
          "a,2,1048577,9,6\nx,1,0,0,7\nn,1,0,0,8\nx,1,0,0,9\nx,1,0,0,10\nf,0,0,0,11\n"
          "f,2,0,0,12\nc,1,0,0,13\nn,1,0,0,14\n"),
      "T");
  EXPECT_EQ(
      decisions_of("pytorch", read),
      "0 b 1 uses=1\nS+ 1 20971520\n1 a 0 1048577 0 -> 1+0 blk=1049088\n2 b 1 -> error\n3 c 0 -> error\n"
      "S+ 2 20971520\n4 a 1 1048577 9 -> 2+0 blk=1049088\n5 j 1 9\n"
      "S+ 3 20971520\n6 a 2 1048577 9 -> 3+0 blk=1049088\n7 x 1 -> error\n8 n 1\n9 x 1 uses=0\n"
      "10 x 1 -> error\n11 f 0 1+0 blk=1049088\n12 f 2 3+0 blk=1049088\n"
      "S- 1 20971520\nS- 3 20971520\n13 c 1\n14 n 1 -> error\n"
      "# end in_use=20971520 peak=62914560\n");
}

/// Two pools sleep and wake in turn. The default pools serve no request while all pools sleep.
const std::string sleeps =
    csv("b,1,1,0,0\na,0,4194304,0,1\ns,1,0,0,2\nn,1,0,0,3\na,1,4194304,0,4\ns,1,1,5,5\nr,0,0,7,6\ns,1,0,0,7\n"
        "b,1,1,0,8\nw,2,0,0,9\ns,0,0,0,10\na,2,4194304,0,11\nw,1,0,5,12\nw,1,0,0,13\nw,0,0,0,14\na,3,4194304,"
        "0,15\n"
        "f,0,0,0,16\nf,2,0,0,17\n");

TEST(write_decisions, say_what_sleeps_and_wakes) {
  EXPECT_EQ(decisions_of("pytorch_expandable", tessera::trace::read_csv(sleeps, "T")),
            "0 b 1 uses=1\nV+ 1 96636764160\nM+ 1 0 20971520\n1 a 0 4194304 0 -> 1+0 blk=4194304\n"
            "2 s 1 -> error: an extension forbids waiting for the device, for example while a graph is "
            "recorded\n3 n 1\n"
            "V+ 2 96636764160\nM+ 2 0 20971520\n4 a 1 4194304 0 -> 2+0 blk=4194304\n"
            "5 s 1 bytes=20971520\n6 r 0\n7 s 1 -> error: the pool sleeps\n8 b 1 -> error\n"
            "9 w 2 -> error: no such pool exists\n10 s 0 bytes=20971520\n"
            "X 4194304\n11 a 2 4194304 0 -> OOM\n12 w 1 bytes=20971520\n"
            "13 w 1 -> error: the pool does not sleep\n14 w 0 bytes=20971520\n"
            "15 a 3 4194304 0 -> 2+4194304 blk=4194304\n16 f 0 1+0 blk=4194304\n17 f 2 none\n"
            "# end in_use=41943040 peak=41943040\n");
}

TEST(write_decisions, repeat_the_marks_of_steps) {
  EXPECT_EQ(decisions_of("passthrough",
                         tessera::trace::read_csv(csv("m,7,0,0,0\na,0,64,0,1\nm,0,0,0,2\ne,0,1,0,3\n"), "T")),
            "0 m 7\nS+ 1 512\n1 a 0 64 0 -> 1+0 blk=512\n2 m 0\n3 e 0\n# end in_use=512 peak=512\n");
}

TEST(write_decisions, name_a_segment_that_goes_back_with_its_block) {
  EXPECT_EQ(decisions_of("passthrough", tessera::trace::read_csv(csv("a,0,64,0,0\nf,0,64,0,1\n"), "T")),
            "S+ 1 512\n0 a 0 64 0 -> 1+0 blk=512\nS- 1 512\n1 f 0 1+0 blk=512\n# end in_use=0 peak=512\n");
}

TEST(write_decisions, say_that_segments_cannot_sleep) {
  const std::string text = decisions_of("pytorch", tessera::trace::read_csv(sleeps, "T"));
  for (const std::string done : {"2 s 1", "5 s 1", "7 s 1", "9 w 2", "10 s 0", "12 w 1", "13 w 1", "14 w 0"})
    EXPECT_NE(text.find("\n" + done + " -> error: the allocator cannot sleep\n"), text.npos) << done;
  EXPECT_NE(text.find("\n11 a 2 4194304 0 -> 1+4194304 blk=4194304\n"), text.npos) << "the request is served";
}

TEST(replay, copies_contents_on_the_stream_of_the_operation) {
  const auto read =
      tessera::trace::read_csv(csv("a,0,4194304,0,0\ns,0,1,5,1\nw,0,0,6,2\ns,0,0,0,3\nw,0,0,7,4\n"), "T");
  auto on = tool_recipe("pytorch_expandable").make({});
  EXPECT_EQ(tessera::trace::replay(tessera::trace::program(std::get<recording>(read)), on), 0u);
  EXPECT_EQ(on.provider().calls().copy_to_host, 1u);
  EXPECT_EQ(on.provider().calls().copy_to_device, 1u);
  EXPECT_GT(on.provider().position(tessera::stream_id{5}), 0u);
  EXPECT_GT(on.provider().position(tessera::stream_id{6}), 0u);
  EXPECT_EQ(on.provider().position(tessera::stream_id{7}), 0u);
}

/// An allocator to which a program says that a step begins.
struct with_steps
    : tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> {
  void begin_step(std::uint64_t key) { steps.emplace_back(key, current_usage().allocated); }
  std::vector<std::pair<std::uint64_t, std::size_t>> steps;  // keys, and the live bytes at the time
};

TEST(replay, says_when_a_step_begins) {
  const auto read =
      tessera::trace::read_csv(csv("m,3,0,0,0\na,0,512,0,1\nm,0,0,0,2\nf,0,0,0,3\nm,3,0,0,4\n"), "T");
  const tessera::trace::program made(std::get<recording>(read));
  EXPECT_EQ(made.slot_count(), 1u);
  EXPECT_EQ(made.peak_live(), 512u);
  with_steps on;
  std::size_t events = 0;
  EXPECT_EQ(tessera::trace::replay(made, on, [](std::size_t) {}, [&](std::size_t, void*) { ++events; }), 0u);
  EXPECT_EQ(events, 5u);
  const std::vector<std::pair<std::uint64_t, std::size_t>> expected{{3, 0}, {0, 512}, {3, 0}};
  EXPECT_EQ(on.steps, expected);
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> without;
  EXPECT_EQ(tessera::trace::replay(made, without), 0u);
  EXPECT_EQ(without.current_usage(), on.current_usage());
}

TEST(program, with_sleeps_needs_only_its_largest_request) {
  using sizes = std::pair<std::size_t, std::size_t>;
  const auto peak = [](const std::string& text) {
    const auto read = tessera::trace::read_csv(csv(text), "T");
    const tessera::trace::program made(std::get<recording>(read));
    return sizes(made.peak_live(), made.min_reserved());
  };
  EXPECT_EQ(peak("a,0,10,0,0\na,1,30,0,1\nc,0,0,0,2\na,2,20,0,3\n"), sizes(60, 60));
  EXPECT_EQ(peak("a,0,10,0,0\na,1,30,0,1\ns,0,0,0,2\na,2,20,0,3\n"), sizes(60, 30));
  EXPECT_EQ(peak("a,0,10,0,0\na,1,30,0,1\nw,1,0,0,2\n"), sizes(40, 30));
}

TEST(read_csv, the_header_alone_is_an_empty_program) {
  EXPECT_TRUE(lines(tessera::trace::read_csv(csv(""), "T")).empty());
  EXPECT_TRUE(lines(tessera::trace::read_csv("op,id,bytes,stream,t_us", "T")).empty());
}

TEST(read_csv, line_ends_do_not_matter) {
  const std::vector<line> expected{{'a', 7, 1, 0}, {'f', 7, 1, 0}};
  EXPECT_EQ(lines(tessera::trace::read_csv(csv("a,7,1,0,1\nf,7,1,0,2\n"), "T")), expected);
  EXPECT_EQ(lines(tessera::trace::read_csv(csv("a,7,1,0,1\nf,7,1,0,2"), "T")), expected);
  EXPECT_EQ(lines(tessera::trace::read_csv(csv("a,7,1,0,1\nf,7,1,0,2\n\n\r\n\n"), "T")), expected);
  EXPECT_EQ(lines(tessera::trace::read_csv("op,id,bytes,stream,t_us\r\na,7,1,0,1\r\nf,7,1,0,2\r\n", "T")),
            expected);
}

TEST(read_csv, requests_of_0_bytes_leave_no_trace) {
  const std::vector<line> expected{{'a', 1, 8, 0}};
  EXPECT_EQ(lines(tessera::trace::read_csv(csv("a,0,0,0,1\na,1,8,0,1\nr,0,0,2,1\nf,0,0,0,1\n"), "T")),
            expected);
}

TEST(read_csv, a_free_or_a_record_need_not_repeat_the_size) {
  const std::vector<line> expected{{'a', 1, 8, 0}, {'r', 1, 8, 2}, {'r', 1, 0, 2}, {'f', 1, 0, 0}};
  EXPECT_EQ(lines(tessera::trace::read_csv(csv("a,1,8,0,1\nr,1,8,2,1\nr,1,0,2,1\nf,1,0,0,1\n"), "T")),
            expected);
}

TEST(read_csv, the_largest_numbers) {
  const std::uint64_t most = ~std::uint64_t{0};
  const std::vector<line> expected{{'a', most, tessera::max_request, most}};
  EXPECT_EQ(lines(tessera::trace::read_csv(
                csv("a,18446744073709551615,1152921504606846975,18446744073709551615,0\n"), "T")),
            expected);
}

struct refused {
  std::string text;
  std::string why;
};
std::ostream& operator<<(std::ostream& out, const refused& r) { return out << r.why; }
class csv_errors : public testing::TestWithParam<refused> {};

TEST_P(csv_errors, say_line_and_rule) {
  EXPECT_EQ(error_of(tessera::trace::read_csv(GetParam().text, "dir/T.csv")), "dir/T.csv:" + GetParam().why);
}

INSTANTIATE_TEST_SUITE_P(
    headers, csv_errors,
    testing::Values(refused{"", "1: the header must be 'op,id,bytes,stream,t_us', not ''"},
                    refused{"\n\n", "1: the header must be 'op,id,bytes,stream,t_us', not ''"},
                    refused{"\n" + csv(""), "1: the header must be 'op,id,bytes,stream,t_us', not ''"},
                    refused{"op,id,bytes,stream\n",
                            "1: the header must be 'op,id,bytes,stream,t_us', not 'op,id,bytes,stream'"},
                    refused{
                        "op, id,bytes,stream,t_us\n",
                        "1: the header must be 'op,id,bytes,stream,t_us', not 'op, id,bytes,stream,t_us'"},
                    refused{std::string(100, 'x'), "1: the header must be 'op,id,bytes,stream,t_us', not '" +
                                                       std::string(40, 'x') + "...'"}));

INSTANTIATE_TEST_SUITE_P(
    fields, csv_errors,
    testing::Values(
        refused{csv("a,0,1,0\n"), "2: a line has 5 fields, this one 4"},
        refused{csv("a,0,1,0,1,9\n"), "2: a line has 5 fields, this one 6"},
        refused{csv(std::string(1000, ',')), "2: a line has 5 fields, this one 1001"},
        refused{csv("a,0,1,0,1\n\nf,0,1,0,1\n"), "3: a line has 5 fields, this one 1"},
        refused{csv("a,0,1,0,1\nf,0,1"), "3: a line has 5 fields, this one 3"},
        refused{csv("y,0,1,0,1\n"), "2: no such op: 'y'; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv("A,0,1,0,1\n"), "2: no such op: 'A'; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv("af,0,1,0,1\n"), "2: no such op: 'af'; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv(",0,1,0,1\n"), "2: no such op: ''; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv(std::string("a\0,0,1,0,1\n", 11)),
                "2: no such op: 'a?'; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv(std::string("\0,0,1,0,1\n", 10)),
                "2: no such op: '?'; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o"},
        refused{csv(std::string("a,0,1\0,0,1\n", 11)), "2: '1?' is not a whole number below 2^64"},
        refused{csv(std::string("a,0,1,0,1\n\0", 11)), "3: a line has 5 fields, this one 1"},
        refused{csv("a,,1,0,1\n"), "2: '' is not a whole number below 2^64"},
        refused{csv("a,-1,1,0,1\n"), "2: '-1' is not a whole number below 2^64"},
        refused{csv("a,+1,1,0,1\n"), "2: '+1' is not a whole number below 2^64"},
        refused{csv("a,0, 1,0,1\n"), "2: ' 1' is not a whole number below 2^64"},
        refused{csv("a,0,1.5,0,1\n"), "2: '1.5' is not a whole number below 2^64"},
        refused{csv("a,0,0x10,0,1\n"), "2: '0x10' is not a whole number below 2^64"},
        refused{csv("a,0,1,18446744073709551616,1\n"),
                "2: '18446744073709551616' is not a whole number below 2^64"},
        refused{csv("a,0,1,0,1e3\n"), "2: '1e3' is not a whole number below 2^64"},
        refused{csv("a,0,1,0,1\r\r\n"), "2: '1?' is not a whole number below 2^64"}));

INSTANTIATE_TEST_SUITE_P(
    orders, csv_errors,
    testing::Values(
        refused{csv("a,0,1152921504606846976,0,1\n"),
                "2: a request of 1152921504606846976 bytes; less than 2^60 are allowed"},
        refused{csv("a,5,1,0,1\na,5,1,0,1\n"), "3: id 5 is allocated twice"},
        refused{csv("a,5,1,0,1\nf,5,1,0,1\na,5,1,0,1\n"), "4: id 5 is allocated twice"},
        refused{csv("a,5,0,0,1\na,5,1,0,1\n"), "3: id 5 is allocated twice"},
        refused{csv("f,5,1,0,1\n"), "2: id 5 is freed but was never allocated"},
        refused{csv("f,9223372036854775808,1,0,1\n"),
                "2: id 9223372036854775808 is freed but was never allocated"},
        refused{csv("a,5,1,0,1\nf,5,1,0,1\nf,5,1,0,1\n"), "4: id 5 is freed twice"},
        refused{csv("a,5,0,0,1\nf,5,0,0,1\nf,5,0,0,1\n"), "4: id 5 is freed twice"},
        refused{csv("r,5,0,1,1\n"), "2: id 5 is recorded but was never allocated"},
        refused{csv("a,5,1,0,1\nf,5,1,0,1\nr,5,0,1,1\n"), "4: id 5 is recorded after it was freed"},
        refused{csv("a,5,8,0,1\nf,5,9,0,1\n"), "3: id 5 is freed with 9 bytes but was allocated with 8"},
        refused{csv("a,5,0,0,1\nf,5,9,0,1\n"), "3: id 5 is freed with 9 bytes but was allocated with 0"},
        refused{csv("a,5,8,0,1\nr,5,9,0,1\n"), "3: id 5 is recorded with 9 bytes but was allocated with 8"},
        refused{csv("s,0,2,0,1\n"), "2: s takes 0 or 1 as bytes, not 2"},
        refused{csv("s,1,0,4,1\n"), "2: s takes 0 as stream, not 4"},
        refused{csv("w,1,1,0,1\n"), "2: w takes 0 as bytes, not 1"},
        refused{csv("w,x,0,0,1\n"), "2: 'x' is not a whole number below 2^64"},
        refused{csv("e,0,2,0,1\n"), "2: e takes 0 or 1 as bytes, not 2"},
        refused{csv("e,1,0,0,1\n"), "2: e takes 0 as id, not 1"},
        refused{csv("e,0,1,4,1\n"), "2: e takes 0 as stream, not 4"},
        refused{csv("c,0,1,0,1\n"), "2: c takes 0 as bytes, not 1"},
        refused{csv("m,7,1,0,1\n"), "2: m takes 0 as bytes, not 1"},
        refused{csv("m,7,0,4,1\n"), "2: m takes 0 as stream, not 4"},
        refused{csv("m,x,0,0,1\n"), "2: 'x' is not a whole number below 2^64"},
        refused{csv("c,0,0,4,1\n"), "2: c takes 0 as stream, not 4"},
        refused{csv("c,3,0,4,1\n"), "2: c takes 0 as stream, not 4"},
        refused{csv("b,0,0,4,1\n"), "2: b takes the number of a private pool as id, from 1"},
        refused{csv("b,1,2,0,1\n"), "2: b takes 0 or 1 as bytes, not 2"},
        refused{csv("b,1,1,4,1\n"), "2: b takes 0 as stream, not 4"},
        refused{csv("j,1,1,4,1\n"), "2: j takes 0 as bytes, not 1"},
        refused{csv("n,1,0,4,1\n"), "2: n takes 0 as stream, not 4"},
        refused{csv("p,1,1,0,1\n"), "2: p takes 0 as bytes, not 1"},
        refused{csv("x,0,0,0,1\n"), "2: x takes the number of a private pool as id, from 1"}));

TEST(read_csv, no_choice_of_ids_is_slow) {
  // Multiples of the usual bucket counts of hash tables; and far apart, so that no array may span them.
  for (const std::uint64_t step : {172933u, 65536u, 1u << 31}) {
    std::string body;
    for (std::uint64_t i = 1; i <= 100'000; ++i) body += "a," + std::to_string(i * step) + ",1,0,1\n";
    EXPECT_EQ(lines(tessera::trace::read_csv(csv(body), "T")).size(), 100'000u);
  }
}

TEST(field_reader, blank_lines_cost_no_more_than_others) {
  const std::string text = std::string(2'000'000, '\n') + "x\r\n" + std::string(1'000'000, '\r') + "\n\r\n";
  tessera::trace::detail::field_reader reader(text, "file");
  std::size_t lines = 0;
  while (reader.next_line()) ++lines;  // looking ahead at each would take 10^12 steps
  EXPECT_EQ(lines, 2'000'001u);
  EXPECT_EQ(reader.text(), "x");
  EXPECT_EQ(reader.error("wrong").where, "file:2000001");
}

TEST(read_lifetimes, events_come_in_time_frees_first) {
  const auto read = read_lifetimes(lifetimes("0,5,9,100\n1,0,5,200\n2,0,9,300\n3,9,10,400\n"), "T");
  const std::vector<line> expected{{'a', 1, 200, 0}, {'a', 2, 300, 0}, {'f', 1, 200, 0}, {'a', 0, 100, 0},
                                   {'f', 0, 100, 0}, {'f', 2, 300, 0}, {'a', 3, 400, 0}, {'f', 3, 400, 0}};
  EXPECT_EQ(lines(read), expected);
}

TEST(read_lifetimes, an_offset_is_checked_but_not_used) {
  const std::string text = "id,lower,upper,size,offset\r\n4,0,1,16,64\r\n";
  const std::vector<line> expected{{'a', 4, 16, 0}, {'f', 4, 16, 0}};
  EXPECT_EQ(lines(read_lifetimes(text, "T")), expected);
  EXPECT_EQ(error_of(read_lifetimes("id,lower,upper,size,offset\n4,0,1,16,x\n", "T")),
            "T:2: 'x' is not a whole number below 2^64");
}

TEST(read_lifetimes, sizes_of_0_are_left_out) {
  EXPECT_TRUE(lines(read_lifetimes(lifetimes("4,0,1,0\n"), "T")).empty());
}

TEST(read_lifetimes, the_end_of_time) {
  const std::vector<line> expected{{'a', 4, 16, 0}, {'f', 4, 16, 0}};
  EXPECT_EQ(lines(read_lifetimes(lifetimes("4,0,18446744073709551615,16"), "T")), expected);
}

class lifetimes_errors : public testing::TestWithParam<refused> {};

TEST_P(lifetimes_errors, say_line_and_rule) {
  EXPECT_EQ(error_of(read_lifetimes(GetParam().text, "T")), "T:" + GetParam().why);
}

INSTANTIATE_TEST_SUITE_P(
    all, lifetimes_errors,
    testing::Values(
        refused{"", "1: the header must be 'id,lower,upper,size' or 'id,lower,upper,size,offset', not ''"},
        refused{"id,upper,lower,size\n",
                "1: the header must be 'id,lower,upper,size' or 'id,lower,upper,size,offset', not "
                "'id,upper,lower,size'"},
        refused{lifetimes("0,1,2\n"), "2: a line has 4 fields, this one 3"},
        refused{lifetimes("0,1,2,3,4\n"), "2: a line has 4 fields, this one 5"},
        refused{"id,lower,upper,size,offset\n0,1,2,3\n", "2: a line has 5 fields, this one 4"},
        refused{lifetimes("0,1,2,3\n1,1,-2,3\n"), "3: '-2' is not a whole number below 2^64"},
        refused{lifetimes("0,2,2,3\n"), "2: upper must be greater than lower, not 2 after 2"},
        refused{lifetimes("0,3,2,3\n"), "2: upper must be greater than lower, not 2 after 3"},
        refused{lifetimes("6,0,1,3\n6,2,3,3\n"), "3: id 6 is allocated twice"},
        refused{lifetimes("6,0,1,0\n6,2,3,3\n"), "3: id 6 is allocated twice"},
        refused{lifetimes("6,0,1,1152921504606846976\n"),
                "2: a request of 1152921504606846976 bytes; less than 2^60 are allowed"}));

TEST(read_text_trace, selects_the_format_by_the_header) {
  const std::vector<line> expected{{'a', 4, 16, 0}, {'f', 4, 16, 0}};
  EXPECT_EQ(lines(read_text_trace(csv("a,4,16,0,1\nf,4,16,0,1"), "T")), expected);
  EXPECT_EQ(lines(read_text_trace("op,id,bytes,stream,t_us\r\na,4,16,0,1\r\nf,4,16,0,1\r\n", "T")), expected);
  EXPECT_EQ(lines(read_text_trace(lifetimes("4,0,1,16"), "T")), expected);
  EXPECT_EQ(lines(read_text_trace("id,lower,upper,size,offset\r\n4,0,1,16,0", "T")), expected);
}

TEST(read_text_trace, an_unknown_header_names_all) {
  const std::string rule =
      "T:1: the header must be 'op,id,bytes,stream,t_us', 'id,lower,upper,size' or "
      "'Thread,Time,Action,Pointer,Size,Stream', not ";
  EXPECT_EQ(error_of(read_text_trace("", "T")), rule + "''");
  EXPECT_EQ(error_of(read_text_trace("id,lower,upper,sizes\n", "T")), rule + "'id,lower,upper,sizes'");
  EXPECT_EQ(error_of(read_text_trace("\n" + csv(""), "T")), rule + "''");
  EXPECT_EQ(error_of(read_text_trace("\x80\x02}q\x01", "T")), rule + "'??}q?'");
}

/// Checks the result against a model: every reference is to a live allocation of that size.
void expect_sound(const read_result<recording>& read) {
  if (const auto* error = std::get_if<input_error>(&read)) {
    ASSERT_TRUE(error->where.starts_with("T:")) << error->text();
    ASSERT_FALSE(error->rule.empty());
    return;
  }
  std::map<std::uint64_t, bool> live;
  for (const event& e : std::get<recording>(read).events) {
    ASSERT_LE(e.bytes, tessera::max_request);
    if (e.what == kind::allocate) {
      ASSERT_NE(e.bytes, 0u);
      ASSERT_TRUE(live.emplace(e.id, true).second);
    } else if (e.what == kind::free || e.what == kind::record_stream) {
      ASSERT_TRUE(live[e.id]);
      if (e.what == kind::free) live[e.id] = false;
    }
  }
}

const std::string small_csv =
    csv("a,0,512,0,10\na,1,0,0,11\na,2,99,1,12\nr,2,0,0,13\ne,0,0,0,13\nf,2,99,1,14\nf,1,0,0,15\ne,0,1,0,"
        "16\nc,0,0,0,17\n"
        "f,0,512,0,18\n");
const std::string small_lifetimes = "id,lower,upper,size,offset\n0,5,9,100,0\n1,0,5,200,100\n2,0,9,300,300\n";

TEST(text_traces, any_beginning_is_answered) {
  for (const std::string& whole : {small_csv, small_lifetimes}) {
    for (std::size_t n = 0; n <= whole.size(); ++n) {
      // A copy of exactly n characters, so that a sanitizer detects any read after them.
      const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      const std::string_view text(part.data(), n);
      expect_sound(read_text_trace(text, "T"));
      expect_sound(tessera::trace::read_csv(text, "T"));
      expect_sound(read_lifetimes(text, "T"));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(text_traces, a_line_cut_short_is_an_error) {
  const std::size_t last = small_csv.rfind("f,0");
  for (std::size_t n = last + 1; n < small_csv.rfind(',') + 1; ++n)
    EXPECT_TRUE(error_of(tessera::trace::read_csv(small_csv.substr(0, n), "T"))
                    .starts_with("T:11: a line has 5 fields, this one "))
        << n;
  EXPECT_EQ(error_of(tessera::trace::read_csv(small_csv.substr(0, small_csv.rfind(',') + 1), "T")),
            "T:11: '' is not a whole number below 2^64");
}

TEST(text_traces, any_mutation_is_answered) {
  constexpr std::string_view letters = std::string_view("afrec,0129\n\r-\0\xff", 15);
  std::mt19937 random(11);
  int accepted = 0;
  for (int i = 0; i < 40'000; ++i) {
    std::string text = i % 2 == 0 ? small_csv : small_lifetimes;
    for (auto changes = random() % 3 + 1; changes > 0; --changes) {
      // Mostly after the header, where most decisions are.
      const std::size_t from = random() % 8 == 0 ? 0 : text.find('\n') + 1;
      const std::size_t at = from + random() % (text.size() - from);
      const char c = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        default: text.erase(at, random() % 8 + 1);
      }
      if (text.find('\n') + 1 >= text.size()) text += "\n\n";
    }
    const auto read = read_text_trace(text, "T");
    accepted += std::holds_alternative<recording>(read);
    expect_sound(read);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 1000);  // otherwise the mutations test only the header
}

TEST(text_traces, recorded_programs_are_read_completely) {
  for (const std::string name : {"gnn_sage", "gnn_sage_streams", "gpt2_adamw", "resnet50_sgd"}) {
    const auto text = replay::read_file(TESSERA_EXAMPLES_DIR "/traces/" + name + ".csv");
    ASSERT_TRUE(std::holds_alternative<std::string>(text)) << name;
    const std::string& bytes = std::get<std::string>(text);
    const auto read = tessera::trace::read_csv(bytes, "T");
    ASSERT_TRUE(std::holds_alternative<recording>(read)) << error_of(read);
    // No request in the files has 0 bytes. So written again they are the file, except for times.
    std::size_t at = bytes.find('\n') + 1;
    for (const auto& [op, id, size, stream] : lines(read)) {
      const std::string again = std::string(1, op) + "," + std::to_string(id) + "," + std::to_string(size) +
                                "," + std::to_string(stream) + ",";
      ASSERT_EQ(std::string_view(bytes).substr(at, again.size()), again) << name;
      at = bytes.find('\n', at) + 1;
    }
    EXPECT_EQ(at, bytes.size()) << name;
  }
}

TEST(refused_request, is_tried_and_is_not_live) {
  const auto read = read_csv(csv("a,0,5242880,0,0\no,1,1073741824,0,1\no,2,1048577,0,2\nf,0,0,0,3\n"), "T");
  ASSERT_TRUE(std::holds_alternative<recording>(read));
  const auto& made = std::get<recording>(read);
  const tessera::trace::program source(made);
  EXPECT_EQ(source.peak_live(), 5242880u);
  EXPECT_EQ(source.min_reserved(), 5242880u);
  EXPECT_EQ(source.refusals(), 2u);
  using tessera::provider::simulated_device;
  tessera::caching_allocator<tessera::recipe::pytorch<>, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 60u << 20}}};
  std::vector<bool> served;
  const auto note = [&](std::size_t, const void* p) { served.push_back(p != nullptr); };
  EXPECT_EQ(tessera::trace::replay(
                source, pool, [](std::size_t) {}, note),
            0u)
      << "what failed when recorded may fail again";
  EXPECT_EQ(served, (std::vector{true, false, true, true}));
  EXPECT_EQ(pool.current_usage().allocated, 0u) << "what is served is freed at once";
  EXPECT_EQ(to_csv(made).substr(csv("").size()),
            "a,0,5242880,0,0\no,1,1073741824,0,1\no,2,1048577,0,2\nf,0,0,0,3\n");
}

TEST(refused_request, has_an_id_of_its_own) {
  EXPECT_EQ(std::get<input_error>(read_csv(csv("a,0,512,0,0\no,0,512,0,1\n"), "T")).text(),
            "T:3: id 0 is refused and was allocated");
  EXPECT_EQ(std::get<input_error>(read_csv(csv("o,0,512,0,0\nf,0,512,0,1\n"), "T")).text(),
            "T:3: id 0 is freed twice");
  EXPECT_EQ(std::get<input_error>(read_csv(csv("o,0,1152921504606846976,0,0\n"), "T")).where, "T:2");
}

}  // namespace
