// SPDX-License-Identifier: Apache-2.0
// Host memory while a file is read. The readers promise a maximum for each byte of the file, and 64 KiB in
// addition, whatever the file contains. A file that needs too many steps per byte would exceed the test's
// time limit.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/lifetimes.hpp"
#include "tessera_replay/pickle.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/snapshot_recording.hpp"

namespace {

// For one thread, because these tests have only one.
std::size_t in_use = 0;
std::size_t most_in_use = 0;

void* counted(std::size_t bytes) noexcept {
  void* const p = std::malloc(bytes);
  if (p != nullptr) in_use += malloc_usable_size(p);
  most_in_use = std::max(most_in_use, in_use);
  return p;
}
void uncounted(void* p) noexcept {
  if (p != nullptr) in_use -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* const p = counted(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* p) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t) noexcept { uncounted(p); }
void operator delete[](void* p) noexcept { uncounted(p); }
void operator delete[](void* p, std::size_t) noexcept { uncounted(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { uncounted(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { uncounted(p); }

namespace {

using namespace std::string_literals;
using namespace tessera;

template <typename F>
std::size_t peak_of(F f) {
  const std::size_t before = in_use;
  most_in_use = in_use;
  f();
  return most_in_use - before;
}

/// Expects that a reader uses at most `each` bytes for each byte of the file. Returns whether it accepted the
/// file.
template <typename Read>
bool keeps_to(std::size_t each, const std::string& file, Read read) {
  bool accepted = false;
  const std::size_t peak = peak_of([&] { accepted = read(std::string_view(file)).index() == 0; });
  EXPECT_LE(peak, each * file.size() + 64_KiB)
      << static_cast<double>(peak) / static_cast<double>(file.size()) << " bytes for each";
  return accepted;
}
bool as_csv(const std::string& file) {
  return keeps_to(12, file, [](std::string_view text) { return trace::read_csv(text, "file"); });
}
bool as_lifetimes(const std::string& file) {
  return keeps_to(24, file, [](std::string_view text) { return replay::read_lifetimes(text, "file"); });
}
bool as_rmm(const std::string& file) {
  return keeps_to(12, file, [](std::string_view text) { return replay::read_rmm(text, "file"); });
}
bool as_pickle(const std::string& file) {
  return keeps_to(100, file, [](std::string_view bytes) { return replay::read_pickle(bytes, "file"); });
}
bool as_snapshot(const std::string& file) {
  return keeps_to(110, file, [](std::string_view bytes) { return replay::read_snapshot(bytes, "file"); });
}
bool as_recording(const std::string& file) {
  return keeps_to(100, file,
                  [](std::string_view bytes) { return replay::read_snapshot_recording(bytes, "file"); });
}

std::string repeated(std::string_view piece, std::size_t times) {
  std::string all;
  all.reserve(piece.size() * times);
  while (times-- > 0) all += piece;
  return all;
}
/// `times` lines, each made from its number.
template <typename Line>
std::string lines(std::string_view header, std::size_t times, Line line) {
  std::string all(header);
  for (std::size_t i = 0; i < times; ++i) (all += '\n') += line(i);
  return all + '\n';
}
std::string number(std::size_t n) { return std::to_string(n); }

constexpr std::size_t many = 50'000;

TEST(memory, of_recorded_programs) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_EXAMPLES_DIR "/traces")) {
    if (entry.path().extension() != ".csv") continue;
    const auto text = replay::read_file(entry.path().string());
    EXPECT_TRUE(as_csv(std::get<std::string>(text))) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4u);
}

TEST(memory, of_csv) {
  const std::string header(trace::detail::csv_header);
  EXPECT_TRUE(as_csv(lines(header, many, [](std::size_t i) { return "a," + number(i) + ",1,0,0"; })));
  EXPECT_TRUE(as_csv(lines(header, many, [](std::size_t i) { return "a," + number(~i) + ",1,0,0"; })));
  EXPECT_TRUE(as_csv(lines(header, many, [](std::size_t i) { return "a," + number(i << 20) + ",1,0,0"; })));
  EXPECT_TRUE(as_csv(lines(header, 2 * many, [](std::size_t) { return "c,0,0,0,0"s; })));
  EXPECT_TRUE(as_csv(lines(
      header, many, [](std::size_t i) { return (i % 2 == 0 ? "a," : "f,") + number(i / 2) + ",1,0,0"; })));
  // The last id that is stored in an array.
  const std::string one = header + "\na," + number(100'000) + ",1,0,0" + std::string(800'000, '\n');
  EXPECT_TRUE(as_csv(one));
  EXPECT_TRUE(as_csv(header + std::string(1'000'000, '\n')));
}
TEST(memory, of_invalid_csv) {
  const std::string header = std::string(trace::detail::csv_header) + "\n";
  EXPECT_FALSE(as_csv(header + std::string(1'000'000, '\n') + "x"));
  EXPECT_FALSE(as_csv(header + std::string(10'000'000, '9')));
  EXPECT_FALSE(as_csv(header + std::string(10'000'000, ',')));
  EXPECT_FALSE(as_csv(header + std::string(10'000'000, '\0')));
  EXPECT_FALSE(as_csv(std::string(10'000'000, 'o')));
  EXPECT_FALSE(
      as_csv(header + "a,1,1,0,0\n" + repeated("a,18446744073709551615,1152921504606846975,0,0\n", 10)));
  EXPECT_FALSE(as_csv(lines(trace::detail::csv_header, many,
                            [](std::size_t i) { return "a," + number(i) + ",1152921504606846975,0,0"; })));
}
TEST(memory, of_lifetimes) {
  const std::string header(replay::lifetimes_header);
  EXPECT_TRUE(as_lifetimes(lines(header, many, [](std::size_t i) { return number(i) + ",0,1,1"; })));
  EXPECT_TRUE(as_lifetimes(
      lines(header, many, [](std::size_t i) { return number(~i) + ",0," + number(~i) + ",1"; })));
  EXPECT_FALSE(as_lifetimes(header + "\n" + repeated("0,0,1,0\n", many)));
  EXPECT_FALSE(as_lifetimes(header + std::string(1'000'000, '\n') + "x"));
}
TEST(memory, of_rmm) {
  const std::string header(replay::rmm_header);
  const auto hex = [](std::size_t n) {
    char text[20];
    std::snprintf(text, sizeof text, "%zx", n);
    return std::string(text);
  };
  EXPECT_TRUE(
      as_rmm(lines(header, many, [&](std::size_t i) { return ",,allocate," + hex(i + 1) + ",1,0"; })));
  EXPECT_TRUE(as_rmm(lines(header, many, [](std::size_t) { return ",,allocate failure,,1,0"s; })));
  EXPECT_TRUE(as_rmm(lines(header, many, [](std::size_t i) {
    return std::string(",,") + (i % 2 == 0 ? "allocate" : "free") + ",1,1,0";
  })));
  EXPECT_FALSE(as_rmm(header + std::string(1'000'000, '\n') + "x"));
  EXPECT_FALSE(as_rmm(header + "\n" + std::string(10'000'000, '0')));
}

const std::string protocol = "\x80\x04";

TEST(memory, of_pickles) {
  for (const std::string& op :
       {"N"s, "\x88"s, "]"s, ")"s, "}"s, "("s, "K\x01"s, "U\0"s, "\x8c\0"s, "\x8a\0"s})
    EXPECT_FALSE(as_pickle(protocol + repeated(op, many))) << op;
  for (const std::string& op : {"2"s, "\x94"s, "\x85"s, "22\x87"s, "a"s, "]a"s, "(e"s, "]\x94"s, "Na"s})
    EXPECT_FALSE(as_pickle(protocol + "]]]" + repeated(op, many))) << op;
  EXPECT_TRUE(as_pickle(protocol + "(" + repeated("N", many) + "t."));
  EXPECT_TRUE(as_pickle(protocol + "]" + repeated("Na", many) + "."));
  EXPECT_TRUE(as_pickle(protocol + repeated("]", many) + repeated("a", many - 1) + "."));
  EXPECT_TRUE(as_pickle(protocol + "]\x94(" + repeated("h\0"s, many) + "e."));
  EXPECT_TRUE(as_pickle(protocol + "}(" + repeated("K\x01K\x02", many) + "u."));
}
TEST(memory, of_pickles_that_refer_to_themselves) {
  // Each list contains the one before it twice. Expanded, they would be 2^200000 values.
  EXPECT_TRUE(as_pickle(protocol + "]" + repeated("2\x86", many) + "."));
  EXPECT_TRUE(as_pickle(protocol + "]\x94" + repeated("h\0a"s, many) + "."));
}
TEST(memory, of_pickles_with_too_large_counts) {
  for (const std::string& op : {"\x8d\0\0\0\0\0\1\0\0"s, "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s,
                                "\x95\0\0\0\0\0\1\0\0\x8d\0\0\0\0\0\1\0\0"s, "X\xff\xff\xff\xff"s,
                                "\x8b\xff\xff\xff\x7f"s, "Nr\xff\xff\xff\xff"s, "j\xff\xff\xff\xff"s})
    EXPECT_FALSE(as_pickle(protocol + op + "....."));
}

/// A pickle of a snapshot with these lists.
std::string snapshot_in(const std::string& segments, const std::string& traces,
                        const std::string& marks = "]") {
  return protocol + "}(\x8c\x08segments" + segments + "\x8c\x0d" + "device_traces" + traces + "\x8c\x14" +
         "external_annotations" + marks + "u.";
}
std::string word(std::string_view text) {
  return "\x8c" + std::string(1, static_cast<char>(text.size())) + std::string(text);
}
/// A dict of these keys and values in turn.
std::string dict(const std::string& entries) { return "}(" + entries + "u"; }
std::string integer(std::uint32_t n) {
  std::string bytes = "J";
  for (int i = 0; i < 4; ++i, n >>= 8) bytes += static_cast<char>(n & 0xff);
  return bytes;
}
std::string block(std::uint32_t bytes) {
  return dict(word("size") + integer(bytes) + word("state") + word("inactive"));
}
std::string segment(std::uint32_t address, std::uint32_t bytes, const std::string& blocks) {
  return dict(word("address") + integer(address) + word("total_size") + integer(bytes) + word("stream") +
              "K\0"s + word("segment_type") + word("small") + word("blocks") + blocks);
}
std::string entry(const std::string& label) {
  return dict(word("action") + word("alloc") + word("addr") + "K\1" + word("size") + "K\1" + word("stream") +
              "K\1" + word("user_metadata") + label);
}
/// A list of `times` references to one value, which is its first element and memo 0.
std::string list_of(const std::string& thing, std::size_t times) {
  return "](" + thing + "\x94" + repeated("h\0"s, times - 1) + "e";
}

TEST(memory, of_snapshots) {
  std::string segments = "](", entries = "](";
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    segments += segment(i * 64, 64, "](" + block(64) + "e");
    entries += entry(word("forward"));
  }
  EXPECT_TRUE(as_snapshot(snapshot_in(segments + "e", "](" + entries + "ee")));
  EXPECT_TRUE(as_snapshot(snapshot_in("]", list_of("]", 100'000)))) << "an empty history costs little";
}
TEST(memory, of_snapshots_that_refer_to_the_same_things_again_and_again) {
  constexpr std::size_t times = 50'000;
  const std::string few = list_of(block(1), times);
  // As many segments as blocks. All refer to one segment and one list of blocks.
  EXPECT_FALSE(
      as_snapshot(snapshot_in("](" + segment(0, times, few) + "\x94" + repeated("h\1"s, times) + "e", "]")));
  // As many devices as entries. All refer to the same entries.
  const std::string history = list_of(entry(word("")), times);
  EXPECT_FALSE(as_snapshot(snapshot_in("]", "](" + history + "\x94" + repeated("h\1"s, times) + "e")));
  EXPECT_FALSE(as_recording(snapshot_in("]", "](" + history + "\x94" + repeated("h\1"s, times) + "e")));
  // A label of 1 MiB in every entry.
  const std::string label = "X" + integer(1u << 20).substr(1) + std::string(1 << 20, 'x');
  EXPECT_FALSE(as_snapshot(snapshot_in("]", "](" + list_of(entry(label), times) + "e")));
  // The same with an annotation, and with a dict of so many keys that repeated searches would never end.
  const std::string mark = dict(word("name") + label + word("stage") + word("START"));
  EXPECT_FALSE(as_snapshot(snapshot_in("]", "]", list_of(mark, times))));
  const std::string wide = dict(repeated("K\0K\0"s, times) + word("action") + word("other"));
  EXPECT_FALSE(as_snapshot(snapshot_in("]", "](" + list_of(wide, 20 * times) + "e")));
}

std::string frame(std::string_view file, std::uint32_t line) {
  return dict(word("filename") + word(file) + word("line") + integer(line) + word("name") + word("f"));
}
std::string entry_at(const std::string& frames) {
  return dict(word("action") + word("snapshot") + word("frames") + frames);
}
TEST(memory, of_stacks_of_calls) {
  constexpr std::uint32_t times = 20'000;
  // Each entry has a stack of its own, first with frames of its own, then with shared frames.
  std::string apart = "](", frames = "](";
  for (std::uint32_t i = 0; i < times; ++i) {
    apart += entry_at("](" + frame("a.py", i) + frame(number(i), 1) + "e");
    frames += frame("", i);
  }
  EXPECT_TRUE(as_snapshot(snapshot_in("]", "](" + apart + "ee")));
  // One entry has a deep stack, and many entries refer to it.
  const std::string deep = entry_at(frames + "e");
  EXPECT_TRUE(as_snapshot(snapshot_in("]", "](" + list_of(deep, times) + "e")));
  // Many short stacks of the same two frames in other orders.
  std::string orders = "](" + entry_at("](" + frame("a", 1) + "\x94" + frame("b", 2) + "\x94" + "e");
  for (std::uint32_t i = 0; i < times; ++i) {
    std::string order;
    for (std::uint32_t bit = 0; bit < 15; ++bit) order += (i >> bit & 1) != 0 ? "h\1"s : "h\0"s;
    orders += entry_at("](" + order + "e");
  }
  EXPECT_TRUE(as_snapshot(snapshot_in("]", "](" + orders + "ee")));
  EXPECT_TRUE(as_recording(snapshot_in("]", "](" + orders + "ee")));
  // Stacks that differ in their last call only, and texts that differ at their end only.
  std::string tails = "](" + entry_at("](" + frame("a", 1) + "\x94" + frame("b", 2) + "\x94" + "e");
  for (std::uint32_t i = 0; i < 1000; ++i)
    tails += entry_at("](" + repeated("h\0"s, 1000) + repeated("h\1"s, 1 + i) + "e");
  EXPECT_TRUE(as_snapshot(snapshot_in("]", "](" + tails + "ee")));
  // A text of 1 MiB, in as many frames as possible.
  const std::string text = "X" + integer(1u << 20).substr(1) + std::string(1 << 20, 'x');
  std::string long_texts = "](" + dict(word("filename") + text + "\x94") + "\x94";
  for (std::uint32_t i = 0; i < times; ++i)
    long_texts += dict(word("filename") + "h\0"s + word("line") + integer(i));
  EXPECT_TRUE(as_snapshot(snapshot_in("]", "](](" + entry_at(long_texts + "e") + "ee")));
}

TEST(memory, of_written_snapshots) {
  const auto text = replay::read_file(TESSERA_EXAMPLES_DIR "/traces/gnn_sage_streams.csv");
  const auto read = trace::read_csv(std::get<std::string>(text), "file");
  const trace::program program(std::get<trace::recording>(read));
  caching_allocator<recipe::pytorch<>, provider::simulated_device> pool;
  std::size_t at = 0;
  std::string bytes;
  trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t, void*) {
        if (++at == program.events().size() / 2) bytes = observe::to_pickle(observe::take_snapshot(pool));
      });
  ASSERT_FALSE(bytes.empty());
  EXPECT_TRUE(keeps_to(30, bytes, [](std::string_view file) { return replay::read_snapshot(file, "file"); }));
  EXPECT_TRUE(as_recording(bytes));
}

TEST(memory, of_a_file) {
  const std::string path = TESSERA_EXAMPLES_DIR "/traces/gnn_sage.csv";
  const std::size_t size = std::filesystem::file_size(path);
  EXPECT_LE(peak_of([&] { (void)replay::read_file(path); }), size + 80_KiB);
  // An endless input is rejected after its beginning, or after max_file_bytes.
  const std::size_t peak = peak_of([] {
    const auto read = replay::read_file(
        "/dev/zero", [](std::string_view begins) { return replay::check_text_trace(begins, "zero"); });
    EXPECT_TRUE(std::get<trace::input_error>(read).text().starts_with("zero:1: the header must be "));
  });
  EXPECT_LE(peak, 64_KiB);
}

}  // namespace
