// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "tessera_replay/rank_number.hpp"
#include "tessera_replay/rank_picture.hpp"
#include "tessera_replay/rank_result.hpp"
#include "tessera_replay/rank_summary.hpp"
#include "tessera_replay/strict_json.hpp"

namespace {

using namespace replay;
using std::optional;
using tessera::operator""_GiB;
using tessera::operator""_MiB;

TEST(rank_number, follows_the_word_or_is_the_only_number) {
  const std::pair<const char*, optional<std::size_t>> cases[] = {
      {"rank3.pickle", 3},
      {"mem_Rank_007_step100.pickle", 7},
      {"host12_rank-3.pickle", 3},
      {"job/rank=11/snapshot.pickle", 11},
      {"rank_1/rank_2.pickle", 2},
      {"rank.3", 3},
      {"rank5/step7.pickle", 5},
      {"snapshot_3.pickle", 3},
      {"12.pickle", 12},
      {"007", 7},
      {"gpt2_adamw.csv", {}},
      {"resnet50_sgd.csv", {}},
      {"llama_1.3b.csv", {}},
      {"llama_1.3b.7", {}},
      {"batch_64_training.csv", {}},
      {"64_training.csv", 64},
      {"host_10_30.pickle", {}},
      {"franking.pickle", {}},
      {"rank.pickle", {}},
      {"", {}},
      {"rank1234567890.pickle", {}},
  };
  for (const auto& [path, number] : cases) EXPECT_EQ(rank_number(path), number) << path;
}

TEST(compare_names, orders_numbers_by_value) {
  const std::vector<std::string> order = {"", "a", "a2", "a02b", "a10", "a10b", "b1"};
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j)
      EXPECT_EQ(compare_names(order[i], order[j]) < 0, i < j) << order[i] << ' ' << order[j];
  EXPECT_TRUE(compare_names("a02", "a2") != 0) << "different names are never equal";
  EXPECT_TRUE(compare_names("9999999999999999999998", "9999999999999999999999") < 0)
      << "longer than any number";
}

std::string wrong_with(std::string_view text) {
  const auto read = strict_json::read(text, "it");
  const auto* const error = std::get_if<input_error>(&read);
  return error == nullptr ? "fine" : error->text();
}

TEST(strict_json, reads_values) {
  const auto read =
      strict_json::read(" {\"a\": [1, true, null], \"b\": \"x\\n\\u00e9\\ud83d\\ude00\"}\n", "it");
  const auto& made = std::get<json_value>(read);
  ASSERT_EQ(made.keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(made.items[0].items[0].number, 1u);
  EXPECT_EQ(made.items[0].items[1].number, 1u);
  EXPECT_EQ(made.items[0].items[2].is, json_value::kind::null);
  EXPECT_EQ(made.items[1].text, "x\n\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(std::get<json_value>(strict_json::read("18446744073709551615", "it")).number,
            std::numeric_limits<std::uint64_t>::max());
}

TEST(strict_json, rejects_the_rest_with_its_place_and_rule) {
  EXPECT_EQ(wrong_with(""), "it:1:1: expected a value");
  EXPECT_EQ(wrong_with("{\"a\": 1,\n \"a\": 2}"), "it:2:2: the key is there twice");
  EXPECT_EQ(wrong_with("[1,]"), "it:1:4: expected a value");
  EXPECT_EQ(wrong_with("[1"), "it:1:3: expected ']'");
  EXPECT_EQ(wrong_with("{} {}"), "it:1:4: something follows the end of the value");
  EXPECT_EQ(wrong_with("1.5"), "it:1:2: the number is not whole");
  EXPECT_EQ(wrong_with("-1"), "it:1:1: expected a value");
  EXPECT_EQ(wrong_with("01"), "it:1:3: the number begins with 0");
  EXPECT_EQ(wrong_with("18446744073709551616"), "it:1:1: the number is more than 2^64 - 1");
  EXPECT_EQ(wrong_with("\"a"), "it:1:3: the text does not end");
  EXPECT_EQ(wrong_with("\"\\x\""), "it:1:2: no such escape");
  EXPECT_EQ(wrong_with("\"\\ud83d\""), "it:1:8: half of a surrogate pair");
  EXPECT_EQ(wrong_with("\"\\u12\""), "it:1:2: \\u needs four hexadecimal digits");
  EXPECT_EQ(wrong_with(std::string("\"\0\"", 3)), "it:1:2: a text has a control character");
  EXPECT_EQ(wrong_with(std::string(100'000, '[')),
            "it:1:18: lists and objects are nested more than 16 times");
  std::string many = "{";
  for (int i = 0; i < 65; ++i) many += "\"" + std::to_string(i) + "\": 1, ";
  EXPECT_NE(wrong_with(many).find("an object has more than 64 keys"), std::string::npos);
}

TEST(strict_json, survives_every_cut_and_every_changed_byte) {
  const std::string text = "{\"a\": [1, true, \"\\u00e9\"], \"b\": {\"c\": null}}";
  for (std::size_t n = 0; n < text.size(); ++n) {
    EXPECT_NE(wrong_with(std::string_view(text).substr(0, n)), "fine") << n;
    for (const char c : {'\0', '"', '{', ']', '\\', '9', '\xff'}) {
      std::string changed = text;
      changed[n] = c;
      (void)wrong_with(changed);
    }
  }
}

setting_result with(std::string recipe, std::string conf, std::size_t peak, optional<std::size_t> capacity,
                    optional<bool> completes = {}) {
  return {{std::move(recipe), std::move(conf)}, peak, capacity, completes};
}

rank_row row_of(std::size_t live, std::size_t reserved, std::vector<setting_result> settings) {
  rank_row made;
  made.operations = 10;
  made.peak_live = live;
  made.peak_reserved = reserved;
  made.recorded = true;
  made.rules = "2.6";
  made.settings = std::move(settings);
  return made;
}

rank_result result_of(std::string file, std::vector<rank_row> rows) {
  rank_result made;
  made.version = "1";
  made.asked = "all";
  made.file = std::move(file);
  made.rows = std::move(rows);
  return made;
}

rank_result whole_result() {
  rank_row full =
      row_of(5_GiB, 6_GiB, {with("pytorch", "", 7_GiB, 6_GiB, false), with("stitched", "", 5_GiB, {}, true)});
  full.device = 0;
  full.rules = "2.14";
  full.agrees = true;
  full.conf = "a \"b\"\n\xc3\xa9";
  full.capacity = 6_GiB;
  full.failure = rank_failure{2, 1_GiB, 4_GiB, 6_GiB, 6_GiB};
  rank_row wrong;
  wrong.device = 3;
  wrong.error = "device 3: nothing is allocated";
  rank_result made = result_of("/job/rank3.pickle", {full, wrong});
  made.size = 17;
  made.modified_ns = 123;
  return made;
}

TEST(rank_result, is_read_back_as_it_was_written) {
  const rank_result made = whole_result();
  const std::string text = to_json(made);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line, so that results can be joined";
  EXPECT_EQ(std::get<rank_result>(rank_result_reader::read(text, "it")), made);
  rank_result wrong = result_of("/job/rank4.pickle", {});
  wrong.error = "/job/rank4.pickle: is empty";
  EXPECT_EQ(std::get<rank_result>(rank_result_reader::read(to_json(wrong), "it")), wrong);
  const auto both = rank_result_reader::read_lines(text + "\n" + to_json(wrong), "it");
  EXPECT_EQ(std::get<std::vector<rank_result>>(both), (std::vector<rank_result>{made, wrong}));
}

/// The error for the whole result with one text replaced.
std::string wrong_after(const std::string& from, const std::string& to) {
  std::string text = to_json(whole_result());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto read = rank_result_reader::read(text, "it", 5);
  const auto* const error = std::get_if<input_error>(&read);
  return error == nullptr ? "fine" : error->text();
}

TEST(rank_result, is_rejected_with_its_place_and_rule) {
  EXPECT_EQ(wrong_after("\"tessera_ranks\": 1", "\"tessera_ranks\": 2"),
            "it:5:1: the format is 2; this version reads 1");
  EXPECT_EQ(wrong_after("\"size\": 17", "\"size\": \"17\""), "it:5:91: 'size' must be a whole number");
  EXPECT_EQ(wrong_after("\"size\"", "\"sizes\""), "it:5:92: no such key: 'sizes'");
  EXPECT_EQ(wrong_after("\"size\": 17, ", ""), "it:5:1: 'size' is missing");
  const auto expect_rule = [](const std::string& found, const std::string& rule) {
    EXPECT_TRUE(found.starts_with("it:5:")) << found;
    EXPECT_NE(found.find(rule), std::string::npos) << found;
  };
  expect_rule(wrong_after("\"operations\": 10", "\"operations\": 18446744073709551615"),
              ": 'operations' is more than 9223372036854775807");
  expect_rule(wrong_after("\"recipe\": \"stitched\"", "\"recipe\": \"pytorch\""),
              ": the setting is there twice");
  expect_rule(wrong_after(", \"completes\": true", ""), "'completes' must be there if and only if");
  expect_rule(wrong_after("\"count\": 2", "\"count\": 0"), ": 'count' must be positive");
  expect_rule(wrong_after("\"2.14\"", "\"3\""), ": 'rules' must be 2.6 or 2.14");
  expect_rule(wrong_after("\"device\": 3", "\"device\": 0"), ": the devices are not in order");
  expect_rule(wrong_after("\"device\": 3", "\"device\": 65536"), ": 'device' is more than 65535");
  expect_rule(wrong_after("\"device\": 3, ", "\"device\": 3, \"conf\": \"\", "),
              ": has an error and measurements");
  expect_rule(wrong_after("\"recorded\": true", "\"recorded\": 1"), ": 'recorded' must be true or false");
  const auto none = rank_result_reader::read_lines(" \n", "it");
  EXPECT_EQ(std::get<input_error>(none).text(), "it: has no result of the verb ranks");
  const auto huge = rank_result_reader::read(std::string(5 << 20, ' '), "it");
  EXPECT_EQ(std::get<input_error>(huge).text(), "it:1: a result is longer than 4194304 bytes");
}

TEST(rank_result, survives_every_cut) {
  const std::string text = to_json(whole_result());
  for (std::size_t n = 0; n + 1 < text.size(); ++n) {
    const auto read = rank_result_reader::read(std::string_view(text).substr(0, n), "it");
    EXPECT_TRUE(std::holds_alternative<input_error>(read)) << n;
  }
}

std::vector<rank_result> job() {
  return {
      result_of(
          "/job/rank10.pickle",
          {row_of(9_GiB, 10_GiB, {with("pytorch", "", 10_GiB, 10_GiB), with("stitched", "", 9_GiB, 9_GiB)})}),
      result_of(
          "/job/rank2.pickle",
          {row_of(8_GiB, 12_GiB, {with("pytorch", "", 12_GiB, 11_GiB), with("stitched", "", 9_GiB, 8_GiB)})}),
      result_of(
          "/job/rank1.pickle",
          {row_of(8_GiB, 9_GiB, {with("pytorch", "", 9_GiB, 9_GiB), with("stitched", "", 9_GiB, 8_GiB)})})};
}

TEST(rank_summary, finds_the_worst_rank_and_the_spread) {
  const rank_summary made = summarize(job(), {});
  ASSERT_EQ(made.lines.size(), 3u);
  EXPECT_EQ(made.lines[0].label, "rank 1");
  EXPECT_EQ(made.lines[1].label, "rank 2");
  EXPECT_EQ(made.lines[2].label, "rank 10");
  EXPECT_EQ(made.reserved.max, 12_GiB);
  EXPECT_EQ(made.reserved.median, 10_GiB);
  EXPECT_EQ(made.reserved.min, 9_GiB);
  EXPECT_EQ(made.reserved.at_max, 1u);
  EXPECT_EQ(made.worst, 1u);
  EXPECT_EQ(made.reserved.at_min, 0u);
  EXPECT_EQ(made.live.at_max, 2u);
  EXPECT_EQ(made.live.at_min, 0u) << "the first of equal ones";
  EXPECT_NEAR(made.fragmentation.max, 100.0 / 3, 1e-9);
  EXPECT_EQ(made.fragmentation.at_max, 1u);
}

TEST(rank_summary, finds_the_worst_among_ranks_that_failed) {
  std::vector<rank_result> all = job();
  all[2].rows[0].failure = rank_failure{1, 1_GiB, 8_GiB, 9_GiB, 9_GiB};
  const rank_summary made = summarize(all, {});
  EXPECT_EQ(made.failed, 1u);
  EXPECT_EQ(made.lines[made.worst].label, "rank 1");
  EXPECT_EQ(made.reserved.at_max, 1u) << "another rank reserves more";
}

TEST(rank_summary, finds_settings_that_serve_all_ranks) {
  const rank_summary any = summarize(job(), {});
  ASSERT_EQ(any.settings.size(), 2u);
  EXPECT_EQ(any.settings[0].capacity, 11_GiB);
  EXPECT_EQ(any.settings[0].peak_reserved, 12_GiB);
  EXPECT_EQ(any.settings[0].worst, 1u);
  EXPECT_EQ(any.settings[1].capacity, 9_GiB);
  EXPECT_EQ(any.settings[1].worst, 2u);
  EXPECT_TRUE(any.serves_all(any.settings[0]));
  EXPECT_EQ(any.best, 1u);

  const rank_summary tight = summarize(job(), 10_GiB);
  EXPECT_EQ(tight.settings[0].served, 2u);
  EXPECT_FALSE(tight.serves_all(tight.settings[0]));
  EXPECT_TRUE(tight.serves_all(tight.settings[1]));
  EXPECT_EQ(tight.best, 1u);
  EXPECT_FALSE(summarize(job(), 8_GiB).best);
}

TEST(rank_summary, prefers_what_was_tested_to_the_bisection) {
  std::vector<rank_result> all = job();
  all[0].rows[0].capacity = 10_GiB;
  all[0].rows[0].settings[0].completes =
      false;  // as with a device of 10 GiB, although the bisection says otherwise
  all[0].rows[0].settings[1].completes = true;
  const rank_summary made = summarize(all, {});
  EXPECT_EQ(made.capacity, 10_GiB) << "the recorded one";
  EXPECT_EQ(made.settings[0].served, 1u);
  EXPECT_EQ(made.settings[1].served, 3u);
}

TEST(rank_summary, needs_each_setting_on_each_rank) {
  std::vector<rank_result> all = job();
  all[1].rows[0].settings.pop_back();
  all[2].rows[0].settings[0].capacity.reset();
  const rank_summary made = summarize(all, {});
  EXPECT_FALSE(made.serves_all(made.settings[0])) << "one rank never completes";
  EXPECT_FALSE(made.settings[0].capacity);
  EXPECT_EQ(made.settings[0].worst, 0u);
  EXPECT_FALSE(made.serves_all(made.settings[1])) << "one rank was not measured";
  EXPECT_FALSE(made.best);
}

TEST(rank_summary, names_ranks_so_that_they_differ) {
  rank_row second = row_of(1, 1, {});
  second.device = 1;
  rank_row first = row_of(1, 1, {});
  first.device = 0;
  rank_result wrong = result_of("/job/x\n.pickle", {});
  wrong.error = "cannot be opened";
  const rank_summary made =
      summarize({wrong, result_of("/step2/rank0.pickle", {first}), result_of("/step10/rank0.pickle", {first}),
                 result_of("/rank7.pickle", {first, second}), result_of("/rank7.pickle", {first})},
                {});
  std::vector<std::string> labels;
  for (const rank_line& one : made.lines) labels.push_back(one.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"rank 0 (step2/rank0.pickle)", "rank 0 (step10/rank0.pickle)",
                                              "rank 7, device 0", "rank 7, device 1", "x?"}))
      << "a file that is there twice counts once";
  EXPECT_EQ(made.measured, 4u);
}

TEST(rank_summary, says_why_a_rank_ran_out_of_memory) {
  rank_line line;
  line.row = row_of(5_GiB, 6_GiB,
                    {with("pytorch", "", 7_GiB, 7_GiB, false), with("stitched", "", 6_GiB, 6_GiB, true),
                     with("pytorch", "expandable_segments:True", 5_GiB, 5_GiB, true)});
  line.row.capacity = 6_GiB;
  line.row.failure = rank_failure{1, 512_MiB, 5_GiB, 6_GiB - 256_MiB, 6_GiB};
  EXPECT_EQ(why_it_failed(line),
            "512.00 MiB requested with 5.00 GiB live and 5.75 GiB reserved of 6.00 GiB: fragmentation, "
            "because 768.00 MiB in "
            "free blocks and 256.00 MiB not reserved are enough in sum, but not in one piece; completes with "
            "expandable_segments:True");
  line.row.settings.resize(1);
  EXPECT_TRUE(why_it_failed(line).ends_with("; none of the settings below helps")) << why_it_failed(line);
  line.row.failure = rank_failure{1, 1_MiB, 5_GiB, 5_GiB, 6_GiB};
  EXPECT_NE(why_it_failed(line).find(": a segment for it needs more than the 1.00 GiB not reserved; "),
            std::string::npos)
      << why_it_failed(line);
  line.row.failure = rank_failure{1, 2_GiB, 5_GiB, 6_GiB, 6_GiB};
  EXPECT_TRUE(why_it_failed(line).ends_with(
      ": live tensors alone need 7.00 GiB, more than the 6.00 GiB of the device"))
      << why_it_failed(line);
  line.row.failure = rank_failure{1, 1_MiB, 5_GiB, 6_GiB, 6_GiB};
  line.row.peak_live = 8_GiB;
  EXPECT_TRUE(why_it_failed(line).ends_with(
      ": live tensors alone need 8.00 GiB, more than the 6.00 GiB of the device"))
      << why_it_failed(line);
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(rank_picture, has_a_bar_for_each_rank) {
  for (const std::size_t ranks : {1u, 8u, 512u}) {
    std::vector<rank_result> all;
    for (std::size_t i = 0; i < ranks; ++i)
      all.push_back(result_of("/rank" + std::to_string(i), {row_of(8_GiB, 10_GiB + i % 7 * 20_MiB, {})}));
    all.back().rows[0].failure = rank_failure{1, 1, 1, 1, 1};
    rank_result wrong = result_of("/rank9999", {});
    wrong.error = "cannot be opened";
    all.push_back(wrong);
    const std::string text = rank_picture::draw(summarize(all, 16_GiB), "a <job>", "b & c");
    // Reserved and live above, reserved below; a bar is a path of five steps.
    EXPECT_EQ(count(text, "Z"), 3 * ranks + 1) << "and the mark of a failure";
    EXPECT_EQ(count(text, "<path class=\"worst\""), 2u);
    EXPECT_EQ(count(text, "<path class=\"out\""), 1u);
    EXPECT_EQ(count(text, "<rect class=\"unknown\""), 2u) << "the bar and the legend";
    EXPECT_EQ(count(text, ">a &lt;job&gt;<"), 2u);
    EXPECT_EQ(count(text, "rank " + std::to_string(ranks - 1) + "<"), 1u) << "the worst ran out of memory";
    EXPECT_LT(text.size(), 8000 + 160 * ranks);
  }
}

}  // namespace
