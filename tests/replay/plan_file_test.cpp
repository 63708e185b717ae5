// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/trace/recording.hpp>

#include "tessera_replay/planner/make_plan.hpp"
#include "tessera_replay/planner/plan_file.hpp"

namespace {

using namespace tessera::literals;
using tessera::plan::made_plan;
using tessera::plan::memory_plan;
using tessera::trace::event;
using tessera::trace::input_error;

/// A program with marked steps of two kinds. Its second stream needs little memory, or it would not be planned.
tessera::trace::recording steps(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> bytes(20);
  for (std::size_t& b : bytes) b = 1 + random() % 8_MiB;
  tessera::trace::recording run{"steps", {{event::kind::allocate, 0, 3_MiB}}};
  std::uint64_t id = 1;
  for (std::uint64_t step = 0; step < 6; ++step) {
    run.events.push_back({event::kind::begin_step, 1 + step % 2});
    std::vector<std::uint64_t> live;
    for (std::size_t i = step % 2; i < bytes.size(); ++i) {
      const bool is_second = i % 3 == 0;
      run.events.push_back({event::kind::allocate, id, is_second ? bytes[i] / 1000 + 1 : bytes[i],
                            tessera::stream_id{is_second ? 7u : 0u}});
      live.push_back(id++);
      if (i % 4 == 0) continue;
      run.events.push_back({event::kind::free, live[live.size() / 2]});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
    }
    for (const std::uint64_t each : live) run.events.push_back({event::kind::free, each});
  }
  return run;
}

std::string error_of(const std::string& text) {
  const auto read = tessera::plan::read_csv(text, "plan.csv");
  const auto* const error = std::get_if<input_error>(&read);
  return error != nullptr ? error->text() : "";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

TEST(plan_file, reads_what_it_wrote) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const made_plan made = tessera::plan::make(steps(seed), {.effort = 0.1});
    const memory_plan plan = made.view();
    ASSERT_GT(plan.entries.size(), 10u);
    ASSERT_EQ(plan.tracks.size(), 2u);
    ASSERT_FALSE(plan.steps.empty());
    const std::string text = tessera::plan::to_csv(plan);
    const auto read = tessera::plan::read_csv(text, "plan.csv");
    ASSERT_TRUE(std::holds_alternative<made_plan>(read)) << error_of(text);
    const memory_plan again = std::get<made_plan>(read).view();
    EXPECT_EQ(tessera::plan::to_csv(again), text);
    EXPECT_EQ(tessera::plan::to_header(again, "name", ""), tessera::plan::to_header(plan, "name", ""));
    EXPECT_EQ(again.end_event, plan.end_event);
    EXPECT_EQ(tessera::plan::find_fault(again), nullptr);
  }
}

TEST(plan_file, has_large_numbers) {
  const std::string text =
      "record,1,2,3,4,5,6,7\nplan,18446744073709551615,0,18446744073709551615,576460752303423488,1,"
      "18446744073709551615,1073741824\ntrack,18446744073709551615\nkind,576460752303423488,0,0\n"
      "step,18446744073709551615,0\nentry,0,0,0\nend\n";
  const auto read = tessera::plan::read_csv(text, "plan.csv");
  ASSERT_TRUE(std::holds_alternative<made_plan>(read)) << error_of(text);
  EXPECT_EQ(tessera::plan::to_csv(std::get<made_plan>(read).view()), text);
}

TEST(plan_file, refuses_each_broken_line_with_its_number) {
  const std::string text = tessera::plan::to_csv(tessera::plan::make(steps(1), {.effort = 0.1}).view());
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string at = "plan.csv:" + std::to_string(i + 1) + ": ";
    const std::string name = lines[i].substr(0, lines[i].find(','));
    for (const std::string& broken :
         {std::string("x"), name, name + ",x", name + ",-1", name + ",1e3", name + ",", name + ",0x10",
          name + ",99999999999999999999", lines[i] + ",1", lines[i] + "x"}) {
      if (broken == lines[i]) continue;  // the last line is a name alone
      std::vector<std::string> changed = lines;
      changed[i] = broken;
      const std::string error = error_of(join(changed));
      EXPECT_EQ(error.substr(0, at.size()), at) << broken << ": " << error;
    }
  }
}

TEST(plan_file, names_the_mistake) {
  const std::string header = "record,1,2,3,4,5,6,7\n";
  const std::string begin = header + "plan,1,0,2,512,512,512,512\ntrack,0\nkind,512,0,0\n";
  ASSERT_EQ(error_of(begin + "entry,0,0,0\nend\n"), "");
  const std::pair<std::string, std::string> wrong[] = {
      {"", ":1: the header must be 'record,1,2,3,4,5,6,7', not ''"},
      {"a\n", ":1: the header must be 'record,1,2,3,4,5,6,7', not 'a'"},
      {header, ":1: a plan has a line 'plan'"},
      {header + "kind,512,0,0\n", ":2: a track comes before its lines"},
      {begin + "entry,0,0\n", ":5: 'entry,0,0' is no line of a plan"},
      {begin + "entry,kept,0,0\n", ":5: 'kept' is not a whole number below 2^64"},
      {begin + "entry,0,4294967296,0\n", ":5: 4294967296 is not below 2^32"},
      {begin + "death,0\n", ":5: a death follows its entry"},
      {begin + "entry,0,0,0\n", ":5: a plan's last line is 'end': the file is cut"},
      {begin + "entry,0,0,0\nend\nentry,0,0,0\nend\n", ":7: a plan's last line is 'end'"},
      {begin + "end\n", ": tracks follow each other, and each has entries"},
      {begin + "entry,1,0,0\nend\n", ": an entry has a kind of its track"},
      {begin + "entry,0,1,0\nend\n", ": places lie in the plan's bytes"},
      {begin + "entry,0,0,0\nentry,0,0,0\nend\n", ": blocks that are live together do not overlap"},
  };
  for (const auto& [text, error] : wrong) EXPECT_EQ(error_of(text), "plan.csv" + error) << text;
}

// A damaged file is an error, or a plan that is safe to use.
TEST(plan_file, damaged_files_are_errors_or_safe) {
  const std::string text = tessera::plan::to_csv(tessera::plan::make(steps(2), {.effort = 0.1}).view());
  std::mt19937_64 random(1);
  const std::string letters = "0123456789,\nkept-";
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = text;
    for (std::uint64_t n = random() % 4 + 1; n-- > 0;)
      damaged[random() % damaged.size()] = letters[random() % letters.size()];
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    const auto read = tessera::plan::read_csv(damaged, "plan.csv");
    const auto* const made = std::get_if<made_plan>(&read);
    ASSERT_TRUE(made == nullptr || tessera::plan::find_fault(made->view()) == nullptr) << damaged;
  }
}

TEST(plan_file, refuses_files_that_are_cut) {
  const std::string text = tessera::plan::to_csv(tessera::plan::make(steps(3), {.effort = 0.1}).view());
  ASSERT_TRUE(text.ends_with("\nend\n")) << text;
  for (std::size_t size = 0; size + 1 < text.size(); ++size)
    ASSERT_NE(error_of(text.substr(0, size)), "") << size << " of " << text.size();
}

TEST(plan_file, headers_name_the_plan_and_have_one_comment) {
  const made_plan made = tessera::plan::make(steps(1), {.effort = 0.1});
  const std::string text = tessera::plan::to_header(made.view(), "training", "A comment.");
  EXPECT_TRUE(text.starts_with("// A comment.\n#pragma once\n")) << text;
  EXPECT_NE(text.find("inline constexpr tessera::plan::memory_plan training{\n"), std::string::npos) << text;
  const std::string empty = tessera::plan::to_header({}, "nothing", "");
  EXPECT_EQ(empty.find("[]"), std::string::npos) << empty;
}

}  // namespace
