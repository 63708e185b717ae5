// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera_replay/stream_names.hpp"
#include "tessera_replay/text.hpp"

namespace {

using namespace std::string_literals;
using replay::json_text;
using tessera::detail::utf8_text;

const std::string unknown = "\xef\xbf\xbd";  // U+FFFD

TEST(utf8_text, keeps_characters) {
  for (const std::string& text :
       {""s, "plain"s, "\0\x7f"s, "\xc2\x80"s, "gr\xc3\xbc\xc3\x9f"s,
        "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"s, "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"s})
    EXPECT_EQ(utf8_text(text), text);
}

TEST(utf8_text, replaces_invalid_bytes) {
  EXPECT_EQ(utf8_text("a\x80z"), "a" + unknown + "z");
  EXPECT_EQ(utf8_text("\xc1\xbf"), unknown + unknown) << "written too long";
  EXPECT_EQ(utf8_text("\xe0\x9f\xbf"), unknown + unknown + unknown) << "written too long";
  EXPECT_EQ(utf8_text("\xf0\x8f\xbf\xbf"), unknown + unknown + unknown + unknown) << "written too long";
  EXPECT_EQ(utf8_text("\xed\xa0\x80"), unknown + unknown + unknown) << "a surrogate";
  EXPECT_EQ(utf8_text("\xf4\x90\x80\x80"), unknown + unknown + unknown + unknown) << "above U+10FFFF";
  EXPECT_EQ(utf8_text("\xf5\x80\x80\x80"), unknown + unknown + unknown + unknown);
  EXPECT_EQ(utf8_text("\xe2\x82"), unknown + unknown) << "cut short";
  EXPECT_EQ(utf8_text("\xe2\x82z"), unknown + unknown + "z");
  EXPECT_EQ(utf8_text("\xf0\x9f\x98"), unknown + unknown + unknown);
}

TEST(utf8_text, reads_no_byte_after_the_text) {
  const std::string whole = "\xf0\x9f\x98\x80";
  for (std::size_t n = 1; n < whole.size(); ++n) {
    const std::string cut(whole.data(), n);
    EXPECT_EQ(utf8_text(std::string_view(cut.data(), n)).size(), 3 * n);
  }
}

TEST(json_text, escapes_special_characters) {
  EXPECT_EQ(json_text("say \"no\" \\ go/on"), "say \\\"no\\\" \\\\ go/on");
  EXPECT_EQ(json_text("\0\n\x1f\x7f"s), "\\u0000\\u000a\\u001f\x7f");
  EXPECT_EQ(json_text("\xc3\xbc\xff"), "\xc3\xbc" + unknown);
}

TEST(counted, has_the_plural_except_of_one) {
  EXPECT_EQ(replay::counted(0, "block"), "0 blocks");
  EXPECT_EQ(replay::counted(1, "block"), "1 block");
  EXPECT_EQ(replay::counted(2, "block"), "2 blocks");
  EXPECT_EQ(replay::counted(1, "entry", "entries"), "1 entry");
  EXPECT_EQ(replay::counted(3, "entry", "entries"), "3 entries");
}

TEST(stream_names, number_addresses_in_the_order_of_the_recording) {
  using kind = tessera::trace::event::kind;
  replay::stream_names names({{kind::allocate, 0, 1, tessera::stream_id{0x7f00}},
                              {kind::allocate, 1, 1, tessera::stream_id{0xabcdef0}},
                              {kind::free, 0, 0, tessera::stream_id{0xeeeeeee0}},
                              {kind::record_stream, 1, 0, tessera::stream_id{0x1234560}},
                              {kind::allocate, 2, 1, tessera::stream_id{2}}});
  EXPECT_EQ(names.in("on stream 0x1234560 and on stream 0xabcdef0: more"),
            "on stream 3 (0x1234560) and on stream 1 (0xabcdef0): more");
  EXPECT_EQ(names.in("on stream 0x1234560; on stream 0, on stream 2"),
            "on stream 3; on the default stream, on stream 2");
  EXPECT_EQ(names.in("of a stream"), "of a stream");
  EXPECT_EQ(names.in("on stream 0x99999990"), "on stream 0x99999990") << "not in the recording";
}

}  // namespace
