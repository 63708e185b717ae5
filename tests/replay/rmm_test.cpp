// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
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

#include <tessera/extension/observer.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/lifetimes.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/to_rmm.hpp"

#include "recording_lines.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using namespace replay;
using recording_lines::error_of;
using recording_lines::line;
using recording_lines::lines;
using tessera::trace::detail::csv_header;
using kind = event::kind;

std::string rmm(const std::string& body) { return std::string(rmm_header) + "\n" + body; }

TEST(read_rmm, reads_a_log_of_the_adaptor) {
  const std::string text =
      rmm("4242,10:11:12.123456,allocate,0x7f0000000000,1000,0x0\n"
          "4242,10:11:12.123457,allocate,0x7f0000000400,2000,0x7f8a38001020\n"
          "4243,10:11:12.123458,free,0x7f0000000000,1000,0x2\n"
          "4242,10:11:12.123459,allocate,0x7f0000000000,500,0x0\n"
          "4242,10:11:12.123460,free,0x7f0000000400,2000,0x7f8a38001020\n"
          "4242,10:11:12.123461,free,0x7f0000000000,500,0x0\n");
  const std::vector<line> expected{{'a', 0, 1000, 0}, {'a', 1, 2000, 0x7f8a38001020}, {'f', 0, 1000, 2},
                                   {'a', 2, 500, 0},  {'f', 1, 2000, 0x7f8a38001020}, {'f', 2, 500, 0}};
  EXPECT_EQ(lines(read_rmm(text, "T")), expected);
  EXPECT_EQ(lines(read_text_trace(text, "T")), expected) << "told by its header";
}

TEST(read_rmm, reads_the_formats_of_all_versions) {
  // Hexadecimal without 0x, decimal streams, other times, carriage returns, blank lines at the end.
  const std::string text = std::string(rmm_header) +
                           "\r\n1,10:11:12:123456,allocate,7F0000000000,1000,17\r\n"
                           "1,1634567890.1,free,0X7f0000000000,1000,0X11\r\n\r\n";
  EXPECT_EQ(lines(read_rmm(text, "T")), (std::vector<line>{{'a', 0, 1000, 17}, {'f', 0, 1000, 17}}));
}

TEST(read_rmm, a_failed_allocation_never_is_live) {
  EXPECT_EQ(lines(read_rmm(rmm("1,t,allocate,0x10,8,0x0\n"
                               "1,t,allocate failure,(nil),999,0x5\n"
                               "1,t,allocate failure,,998,0\n"
                               "1,t,allocate failure,0x0,997,0\n"
                               "1,t,free,0x10,8,0x0\n"),
                           "T")),
            (std::vector<line>{
                {'a', 0, 8, 0}, {'o', 1, 999, 5}, {'o', 2, 998, 0}, {'o', 3, 997, 0}, {'f', 0, 8, 0}}));
}

TEST(read_rmm, sizes_of_0_are_left_out) {
  EXPECT_TRUE(lines(read_rmm(rmm("1,t,allocate,(nil),0,0x0\n1,t,allocate,(nil),0,0x0\n1,t,free,(nil),0,0x0\n"
                                 "1,t,allocate,0x10,0,0x0\n1,t,free,0x10,0,0x0\n1,t,allocate failure,,0,0\n"),
                             "T"))
                  .empty());
}

struct refused {
  std::string body;
  std::string why;
};
std::ostream& operator<<(std::ostream& out, const refused& r) { return out << r.why; }
class rmm_errors : public testing::TestWithParam<refused> {};

TEST_P(rmm_errors, say_line_and_rule) {
  EXPECT_EQ(error_of(read_rmm(rmm(GetParam().body), "dir/T.csv")), "dir/T.csv:" + GetParam().why);
}

const std::string good = "1,t,allocate,0x10,8,0x0\n";
INSTANTIATE_TEST_SUITE_P(
    all, rmm_errors,
    testing::Values(
        refused{"1,t,allocate,0x10,8\n", "2: a line has 6 fields, this one 5"},
        refused{good + "1,t,free,0x10,8,0x0,9\n", "3: a line has 6 fields, this one 7"},
        refused{good + "\n" + good, "3: a line has 6 fields, this one 1"},
        refused{"1,t,deallocate,0x10,8,0x0\n",
                "2: no such action: 'deallocate'; there are allocate, free and allocate failure"},
        refused{"1,t,,0x10,8,0x0\n", "2: no such action: ''; there are allocate, free and allocate failure"},
        refused{"1,t,allocate,0x1g,8,0x0\n", "2: '0x1g' is not an address"},
        refused{"1,t,allocate,0x,8,0x0\n", "2: '0x' is not an address"},
        refused{"1,t,allocate,-5,8,0x0\n", "2: '-5' is not an address"},
        refused{"1,t,allocate,0x10000000000000000,8,0x0\n", "2: '0x10000000000000000' is not an address"},
        refused{"1,t,allocate,nil,8,0x0\n", "2: 'nil' is not an address"},
        refused{"1,t,allocate,0x10,0x8,0x0\n", "2: '0x8' is not a whole number below 2^64"},
        refused{"1,t,allocate,0x10,-8,0x0\n", "2: '-8' is not a whole number below 2^64"},
        refused{"1,t,allocate,0x10,8,\n", "2: '' is not a stream"},
        refused{"1,t,allocate,0x10,8,abc\n", "2: 'abc' is not a stream"},
        refused{"1,t,allocate,0x10,8,0x\n", "2: '0x' is not a stream"},
        refused{"1,t,allocate,(nil),8,0x0\n", "2: an allocation without an address"},
        refused{good + good, "3: '0x10' is allocated twice"},
        refused{"1,t,free,0x10,8,0x0\n", "2: '0x10' is freed but not allocated"},
        refused{good + "1,t,free,0x10,8,0x0\n1,t,free,0x10,8,0x0\n", "4: '0x10' is freed but not allocated"},
        refused{good + "1,t,free,0x10,9,0x0\n", "3: '0x10' is freed with 9 bytes but was allocated with 8"},
        refused{"1,t,allocate,0x10,1152921504606846976,0x0\n",
                "2: a request of 1152921504606846976 bytes; less than 2^60 are allowed"},
        refused{"1,t,allocate failure,,1152921504606846976,0x0\n",
                "2: a request of 1152921504606846976 bytes; less than 2^60 are allowed"},
        refused{"1,t,allocate,1,1152921504606846975,0\n1,t,allocate,2,1152921504606846975,0\n"
                "1,t,allocate,3,1152921504606846975,0\n1,t,allocate,4,1152921504606846975,0\n"
                "1,t,allocate,5,1152921504606846975,0\n",
                "6: more than 2^62 bytes would be live"}));

TEST(read_rmm, requires_its_header) {
  EXPECT_EQ(error_of(read_rmm("", "T")),
            "T:1: the header must be 'Thread,Time,Action,Pointer,Size,Stream', not ''");
  EXPECT_EQ(error_of(read_rmm("thread,time\n", "T")),
            "T:1: the header must be 'Thread,Time,Action,Pointer,Size,Stream', not 'thread,time'");
}

TEST(read_rmm, no_choice_of_addresses_is_slow) {
  std::string body;
  for (std::uint64_t i = 1; i <= 100'000; ++i)
    body += "1,t,allocate," + std::to_string(i * 172933) + ",1,0\n";
  EXPECT_EQ(lines(read_rmm(rmm(body), "T")).size(), 100'000u);
}

TEST(read_rmm, any_mutation_is_answered) {
  const std::string whole =
      rmm("1,t,allocate,0x10,8,0x0\n1,t,allocate failure,(nil),9,0x1\n1,t,allocate,0x20,16,2\n"
          "1,t,free,0x10,8,0x0\n1,t,free,0x20,16,2\n");
  constexpr std::string_view letters = std::string_view("aflx0129(,\n\r-\0\xff", 15);
  std::mt19937 random(11);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = whole;
    for (auto changes = random() % 3 + 1; changes > 0; --changes) {
      const std::size_t at = rmm_header.size() + 1 + random() % (text.size() - rmm_header.size() - 1);
      const char c = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        default: text.erase(at, random() % 8 + 1);
      }
      text.resize(std::max(text.size(), rmm_header.size() + 2), '\n');
    }
    const auto read = read_rmm(text, "T");
    if (const auto* error = std::get_if<input_error>(&read)) {
      ASSERT_TRUE(error->where.starts_with("T:"));
      continue;
    }
    ++accepted;
    std::map<std::uint64_t, std::size_t> live;
    for (const event& e : std::get<recording>(read).events) {
      ASSERT_NE(e.bytes, 0u);
      if (e.what == kind::allocate) {
        ASSERT_TRUE(live.emplace(e.id, e.bytes).second);
      } else if (e.what != kind::refused) {
        ASSERT_EQ(live[e.id], e.bytes);
        live.erase(e.id);
      }
    }
  }
  EXPECT_GT(accepted, 500);
}

std::string rmm_text(const snapshot& source) {
  const auto made = to_rmm(source, 0);
  if (const auto* const error = std::get_if<input_error>(&made)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<std::string>(made);
}

using watch = extension::observer<history<>>;

TEST(to_rmm, logs_calls_of_users) {
  struct hours {
    std::uint64_t operator()() noexcept { return now += 3'600'000'001; }
    std::uint64_t now = 22 * 3'600'000'000ull + 59 * 60'000'000ull;
  };
  using hourly = extension::observer<history<hours>>;
  caching_allocator<pytorch_family::native, simulated_device, hourly> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, hourly{history<hours>(100)}};
  void* const p = pool.allocate(1_MiB + 1, stream_id{255});
  EXPECT_EQ(pool.try_allocate(25_MiB), nullptr);
  pool.deallocate(p);
  EXPECT_EQ(rmm_text(take_snapshot(pool)), rmm("0,00:59:00.000002,allocate,0x100000000000000,1048577,0xff\n"
                                               "0,03:59:00.000005,allocate failure,(nil),26214400,0x0\n"
                                               "0,04:59:00.000006,free,0x100000000000000,1048577,0xff\n"));
}

TEST(to_rmm, begins_with_the_blocks_live_at_the_start) {
  caching_allocator<pytorch_family::native, simulated_device, watch> pool{
      simulated_device{}, {}, watch{history<>(3)}};
  void* const kept = pool.allocate(100);
  void* const freed = pool.allocate(200);
  (void)kept;
  pool.deallocate(freed);
  (void)pool.allocate(300);
  const auto read = read_rmm(rmm_text(take_snapshot(pool)), "T");
  EXPECT_EQ(lines(read),
            (std::vector<line>{{'a', 0, 100, 0}, {'a', 1, 200, 0}, {'f', 1, 200, 0}, {'a', 2, 300, 0}}));
}

/// Numbers allocations in the order of the recording. Then recordings from several formats can be compared.
std::vector<line> in_order(const recording& source) {
  std::map<std::uint64_t, std::uint64_t> number;
  std::vector<line> all;
  for (const event& e : source.events) {
    const auto id = number.emplace(e.id, number.size()).first->second;
    all.emplace_back(e.what == kind::allocate ? 'a' : 'f', id, e.what == kind::allocate ? e.bytes : 0,
                     e.stream.handle);
  }
  return all;
}

template <typename Recipe>
void goes_round() {
  caching_allocator<Recipe, simulated_device, watch> pool{simulated_device{}, {}, watch{history<>(1000)}};
  std::mt19937 dice(4);
  std::vector<void*> live;
  for (int i = 0; i < 2000; ++i) {
    if (dice() % 9 < 5 || live.empty()) {
      live.push_back(pool.allocate(1 + dice() % 5'000'000, stream_id{dice() % 3}));
    } else {
      std::swap(live[dice() % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    }
  }
  snapshot seen = take_snapshot(pool);
  seen.name = "T";
  // A block that was freed before the history begins is over for a log, but not yet for a recording.
  if (seen.traces[0].front().what == snapshot::action::free_completed)
    seen.traces[0].erase(seen.traces[0].begin());
  ASSERT_NE(seen.traces[0].front().what, snapshot::action::free_completed);
  const auto by_rmm = read_text_trace(rmm_text(seen), "T");
  const auto by_snapshot = recording_of(seen);
  ASSERT_TRUE(std::holds_alternative<recording>(by_rmm)) << error_of(by_rmm);
  ASSERT_TRUE(std::holds_alternative<recording>(by_snapshot)) << error_of(by_snapshot);
  EXPECT_EQ(in_order(std::get<recording>(by_rmm)), in_order(std::get<recording>(by_snapshot)));
  EXPECT_EQ(program(std::get<recording>(by_rmm)).peak_live(),
            program(std::get<recording>(by_snapshot)).peak_live());
  const auto by_csv = read_text_trace(tessera::trace::to_csv(std::get<recording>(by_snapshot)), "T");
  ASSERT_TRUE(std::holds_alternative<recording>(by_csv)) << error_of(by_csv);
  EXPECT_EQ(in_order(std::get<recording>(by_csv)), in_order(std::get<recording>(by_snapshot)));
}

TEST(to_rmm, is_read_as_the_same_program) {
  goes_round<pytorch_family::native>();
  goes_round<pytorch_family::expandable>();  // the start of its history is found too
}

TEST(to_csv, writes_every_event) {
  const std::string text =
      std::string(csv_header) +
      "\na,0,512,0,0\na,7,99,1,1\nr,7,0,2,2\ne,0,0,0,3\nf,7,0,1,4\ne,0,1,0,5\nc,0,0,0,6\n"
      "f,0,512,0,7\n";
  const auto read = tessera::trace::read_csv(text, "T");
  EXPECT_EQ(tessera::trace::to_csv(std::get<recording>(read)), text);
}

}  // namespace
