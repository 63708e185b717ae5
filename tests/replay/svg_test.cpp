// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include "tessera_replay/memory_map.hpp"
#include "tessera_replay/svg.hpp"

namespace {

using namespace tessera::literals;
using namespace tessera::trace;
using namespace replay;

TEST(markup, escapes_special_characters) {
  EXPECT_EQ(markup_text("a <b> & \"c\" 'd'\n\x7f"), "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;  ");
  EXPECT_EQ(markup_text("\u00d7"), "\u00d7");
}

TEST(markup, fixed_numbers_are_rounded) {
  EXPECT_EQ(decimal_text(1814, 1000, 2), "1.81");
  EXPECT_EQ(decimal_text(1815, 1000, 2), "1.82");
  EXPECT_EQ(decimal_text(1999, 1000, 1), "2.0");
  EXPECT_EQ(decimal_text(1005, 1000, 3), "1.005");
  EXPECT_EQ(decimal_text(15, 10, 0), "2");
  EXPECT_EQ(decimal_text(0, 7, 1), "0.0");
  EXPECT_EQ(decimal_text(SIZE_MAX, SIZE_MAX - 1, 2), "1.00");
  EXPECT_EQ(decimal_text(SIZE_MAX - 1, SIZE_MAX, 4), "1.0000");
  EXPECT_EQ(decimal_text(SIZE_MAX / 2, SIZE_MAX, 4), "0.5000");
}

TEST(markup, counts_have_commas) {
  EXPECT_EQ(count_text(7), "7");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(1234567), "1,234,567");
}

TEST(svg, ticks_are_short) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(512_MiB), "512 MiB");
  EXPECT_EQ(tick_text(1_GiB), "1 GiB");
  EXPECT_EQ(tick_text(1536_MiB), "1.5 GiB");
  EXPECT_EQ(tick_text(100_GiB), "100 GiB");
  EXPECT_EQ(tick_text(64), "64 B");
}

timeline steps(const std::vector<std::size_t>& reserved) {
  timeline over(64);
  for (const std::size_t bytes : reserved) over.note({.requested = bytes / 2, .reserved = bytes});
  return over;
}
std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}
/// The content of the element whose opening tag begins with this text.
std::string element(const std::string& text, const std::string& tag) {
  const std::size_t from = text.find(tag);
  return from == text.npos ? "none" : text.substr(from, text.find("/>", from) - from);
}

TEST(svg, draws_each_line_and_names_it) {
  const timeline a = steps({10_MiB, 20_MiB, 20_MiB, 40_MiB}), b = steps({10_MiB, 10_MiB, 20_MiB, 20_MiB});
  const std::string text =
      svg_writer::write({"A & B", "of a trace", "at least", 20_MiB, {{"first", &a}, {"second<", &b}}});
  EXPECT_TRUE(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(text.ends_with("</svg>\n"));
  EXPECT_EQ(count(text, "<path class=\"line c0\""), 1u);
  EXPECT_EQ(count(text, "<path class=\"line c1\""), 1u);
  EXPECT_EQ(count(text, ">first<"), 1u);
  EXPECT_EQ(count(text, ">second&lt;<"), 1u);
  EXPECT_EQ(count(text, "second<"), 0u);
  EXPECT_EQ(count(text, ">40.00 MiB, 2.00 \u00d7<"), 1u);
  EXPECT_EQ(count(text, ">20.00 MiB, 1.00 \u00d7<"), 1u);
  EXPECT_EQ(count(text, ">A &amp; B<"), 2u);  // its title, and visible
  EXPECT_NE(
      text.find("of a trace. at least: 20.00 MiB; first: peak reserved 40.00 MiB, 2.00 \u00d7; second&lt;"),
      text.npos);
  EXPECT_NE(text.find("@media (prefers-color-scheme:dark)"), text.npos);
  EXPECT_EQ(count(text, "<script"), 0u);
}

// The plot is from 76 to 564 in x and from 364 up to 82 in y, where 42 MiB is. It has four events, each in
// its own bucket.
TEST(svg, lines_have_the_right_positions) {
  const timeline over = steps({0, 21_MiB, 21_MiB, 40_MiB});
  const std::string text = svg_writer::write({"", "", "", 10_MiB, {{"one", &over}}});
  EXPECT_EQ(element(text, "<path class=\"line c0\""),
            "<path class=\"line c0\" d=\"M76 364H198V223H442V95.5H564\"");
  EXPECT_EQ(element(text, "<path class=\"bound\""), "<path class=\"bound\" d=\"M76 296.9H564\"");
  EXPECT_EQ(element(text, "<path class=\"lives\""),
            "<path class=\"lives\" d=\"M76 364V364H198V293.5H320V293.5H442V229.8H564V364Z\"");
}

TEST(svg, a_bucket_shows_its_minimum_and_maximum) {
  timeline over(2);
  for (const std::size_t bytes : {0u, 0u, 0u, 20u, 5u, 5u, 5u, 5u}) over.note({.reserved = bytes});
  ASSERT_EQ(over.width(), 4u);
  const std::string text = svg_writer::write({"", "", "", 20, {{"one", &over}}});
  // The line begins at 0, goes up to 21 at the top, and down to 5.
  EXPECT_EQ(element(text, "<path class=\"line c0\""),
            "<path class=\"line c0\" d=\"M76 364V95.5H320V296.9H564\"");
}

TEST(svg, labels_keep_apart_and_inside) {
  const timeline over = steps({10_MiB, 40_MiB});
  svg_picture shown{"", "", "bound", 40_MiB, {}};
  for (int i = 0; i < 8; ++i) shown.lines.push_back({"line" + std::to_string(i), &over});
  const std::string text = svg_writer::write(shown);
  std::vector<double> at;
  for (std::size_t from = 0; (from = text.find("<text class=\"name", from)) != text.npos; ++from) {
    const std::size_t y = text.find(" y=\"", from) + 4;
    at.push_back(std::stod(text.substr(y, 8)));
  }
  ASSERT_EQ(at.size(), 9u);
  for (std::size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i], at[i - 1] + 30);
  EXPECT_GE(at.front(), 60);
  EXPECT_LE(at.back(), 380);
}

TEST(svg, is_as_wide_as_its_texts) {
  const timeline over = steps({1_MiB, 2_MiB});
  const auto width = [&](const std::string& headline, const std::string& name) {
    const std::string text = svg_writer::write({headline, "", "", 1_MiB, {{name, &over}}});
    const std::size_t at = text.find("width=\"") + 7;
    return std::stod(text.substr(at, 8));
  };
  EXPECT_EQ(width("", ""), 760);
  EXPECT_EQ(width("", std::string(40, 'x')), 760);  // the plot becomes narrower
  EXPECT_GT(width("", std::string(60, 'x')), 860);
  EXPECT_GT(width(std::string(100, 'x'), ""), 1000);
}

TEST(svg, any_number_of_bytes_can_be_drawn) {
  timeline over;
  over.note({.requested = SIZE_MAX, .reserved = SIZE_MAX});
  const std::string text = svg_writer::write({"", "", "", SIZE_MAX, {{"one", &over}}});
  EXPECT_EQ(element(text, "<path class=\"line c0\""), "<path class=\"line c0\" d=\"M76 364V95.5H564\"");
  EXPECT_EQ(count(text, "<path class=\"grid\""), 4u);
}

TEST(svg, an_empty_program_is_a_picture_too) {
  const timeline over;
  const std::string text = svg_writer::write({"", "", "", 0, {{"one", &over}}});
  EXPECT_EQ(element(text, "<path class=\"line c0\""), "<path class=\"line c0\" d=\"M76 364H564\"");
}

}  // namespace
