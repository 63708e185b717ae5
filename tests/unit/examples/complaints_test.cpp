// SPDX-License-Identifier: Apache-2.0
// The complaints that examples/complaints replays: each is as bad as reported, and its cure helps.
#include "complaints/complaints.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera::literals;
using complaints::complaint;
using complaints::outcome;
using complaints::source;

[[nodiscard]] outcome run(const complaint& each) { return {each.replayed(), each.cured()}; }

[[nodiscard]] std::string text_of(double figure) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.5g", figure);
  return text.data();
}

TEST(complaints, are_as_bad_as_reported_and_cured) {
  for (const complaint& each : complaints::all()) {
    const outcome now = run(each);
    const char* const why = complaints::fault_of(each, now);
    EXPECT_EQ(why, nullptr) << each.issue << ": " << why << ": " << now.replayed << ", cured " << now.cured;
  }
}

TEST(complaints, promise_enough) {
  const auto list = complaints::all();
  EXPECT_GE(list.size(), 15u);
  std::set<std::string> issues;
  for (const complaint& each : list) {
    SCOPED_TRACE(each.issue);
    EXPECT_TRUE(issues.insert(each.issue).second) << "twice";
    EXPECT_GE(each.saves, 0.15);
    EXPECT_LE(each.within, 0.15);
    if (each.requests == source::report) {
      EXPECT_TRUE(each.reported.has_value());
      EXPECT_LE(each.within, 0.02);
    }
  }
  EXPECT_TRUE(std::is_sorted(list.begin(), list.end(),
                             [](const complaint& a, const complaint& b) { return a.requests < b.requests; }));
}

TEST(complaints, give_the_same_figures_again) {
  for (const complaint& each : complaints::all()) {
    const outcome first = run(each), second = run(each);
    EXPECT_EQ(first.replayed, second.replayed) << each.issue;
    EXPECT_EQ(first.cured, second.cured) << each.issue;
  }
}

TEST(complaints, are_found_to_be_wrong) {
  for (const complaint& each : complaints::all()) {
    SCOPED_TRACE(each.issue);
    const outcome now = run(each);
    EXPECT_STREQ(complaints::fault_of(each, {now.replayed, now.replayed}), "the cure saves too little");
    EXPECT_STREQ(complaints::fault_of(each, {0, 0}), "the replay shows nothing");
    if (!each.reported) continue;
    for (const double factor : {0.8, 1.2}) {
      complaint other = each;
      other.reported = factor * now.replayed;
      EXPECT_STREQ(complaints::fault_of(other, now), "the replay is too far from the report");
    }
  }
}

// The table of the issue: in each cycle, 91 and 45.5 MiB are freed, and 2 MiB stay.
TEST(complaints, grow_as_in_the_table_of_pytorch_193400) {
  using recipe = tessera::recipe::pytorch_2_14<"max_split_size_mb:128,expandable_segments:True">;
  tessera::caching_allocator<recipe, tessera::provider::simulated_device> memory;
  std::vector<void*> live{memory.allocate(64_MiB)};
  std::vector<std::size_t> allocated, reserved;
  for (int cycle = 0; cycle <= 100; ++cycle) {
    void* const a = memory.allocate(91_MiB);
    void* const b = memory.allocate(45_MiB + 512_KiB);
    live.push_back(memory.allocate(2_MiB));
    memory.deallocate(a);
    memory.deallocate(b);
    if (cycle % 20 != 0) continue;
    allocated.push_back(memory.current_usage().allocated >> 20);
    reserved.push_back(memory.current_usage().reserved >> 20);
  }
  for (void* const p : live) memory.deallocate(p);
  EXPECT_EQ(allocated, (std::vector<std::size_t>{66, 106, 146, 186, 226, 266}));
  EXPECT_EQ(reserved, (std::vector<std::size_t>{220, 2980, 5760, 8520, 11300, 14060}));
}

// README.md has some of the rows.
TEST(complaints, have_the_figures_of_the_readme) {
  std::ifstream file(std::string(TESSERA_EXAMPLES_DIR) + "/../README.md");
  std::string page{std::istreambuf_iterator<char>(file), {}};
  std::erase(page, ',');
  std::size_t rows = 0;
  for (const complaint& each : complaints::all()) {
    const std::size_t begin = page.find("| " + std::string(each.issue) + " |");
    if (begin == std::string::npos) continue;
    const std::string row = page.substr(begin, page.find('\n', begin) - begin);
    const outcome now = run(each);
    for (const double figure : {each.reported.value_or(0), now.replayed, now.cured})
      EXPECT_NE(row.find(" " + text_of(figure)), std::string::npos) << row << ": " << figure;
    ++rows;
  }
  EXPECT_EQ(rows, 5u);
}

}  // namespace
