// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include "tessera_replay/pickle.hpp"

namespace {

using namespace std::string_literals;
using replay::pickle;
using replay::pickled;
using replay::read_pickle;
using tessera::trace::input_error;
using kind = replay::pickled::kind;

const std::string protocol_4 = "\x80\x04"s;

pickle good(const std::string& body) {
  static std::string kept;  // texts are views
  kept = protocol_4 + body;
  auto read = read_pickle(kept, "file");
  if (const auto* error = std::get_if<input_error>(&read)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<pickle>(std::move(read));
}
std::string refused(const std::string& bytes) {
  const auto read = read_pickle(bytes, "file");
  const auto* error = std::get_if<input_error>(&read);
  return error != nullptr ? error->text() : "accepted";
}

TEST(pickle, reads_numbers) {
  EXPECT_EQ(good("K\xff."s).root().integer, 255);
  EXPECT_EQ(good("M\x01\x02."s).root().integer, 0x201);
  EXPECT_EQ(good("J\xff\xff\xff\xff."s).root().integer, -1);
  EXPECT_EQ(good("\x8a\x00."s).root().integer, 0);
  EXPECT_EQ(good("\x8a\x02\x00\x80."s).root().integer, -32768);
  EXPECT_EQ(good("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."s).root().integer, INT64_MAX);
  EXPECT_EQ(good("\x8b\x01\x00\x00\x00\x05."s).root().integer, 5);
  EXPECT_EQ(good("G\x3f\xe0\x00\x00\x00\x00\x00\x00."s).root().real, 0.5);
  EXPECT_EQ(good("\x88."s).root().integer, 1);
  EXPECT_EQ(good("\x89."s).root().is, kind::boolean);
  EXPECT_EQ(good("N."s).root().is, kind::none);
}

TEST(pickle, reads_texts) {
  for (const std::string& body :
       {"\x8c\x02hi."s, "X\x02\x00\x00\x00hi."s, "\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi."s, "C\x02hi."s,
        "U\x02hi."s, "\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi."s}) {
    EXPECT_EQ(good(body).root().text, "hi");
  }
}

TEST(pickle, reads_containers_and_memos) {
  const pickle list = good("](K\x01K\x02"s + "eK\x03"s + "a."s);
  ASSERT_EQ(list.root().items.size(), 3u);
  EXPECT_EQ(list[list.root().items[2]].integer, 3);
  EXPECT_EQ(good("(K\x01K\x02t."s).root().items.size(), 2u);
  EXPECT_EQ(good("K\x01\x85."s).root().items.size(), 1u);
  EXPECT_EQ(good("K\x01K\x02K\x03\x87."s).root().items.size(), 3u);
  const pickle dict = good("}\x94(\x8c\x01"s + "a\x94K\x01\x8c\x01"s + "bK\x02h\x01K\x03u."s);
  ASSERT_NE(dict.find(dict.root(), "a"), nullptr);
  EXPECT_EQ(dict.find(dict.root(), "a")->integer, 3) << "the last of equal keys counts";
  EXPECT_EQ(dict.find(dict.root(), "b")->integer, 2);
  EXPECT_EQ(dict.find(dict.root(), "c"), nullptr);
  EXPECT_EQ(good("]q\x00r\x01\x00\x00\x00j\x01\x00\x00\x00\x86."s).root().items.size(), 2u);
}

TEST(pickle, executes_nothing) {
  EXPECT_EQ(
      refused(protocol_4 + "cos\nsystem\n."),
      "file: byte 2: the Python object os.system (opcode 99) is not plain data and is not executed; a memory "
      "snapshot has none");
  EXPECT_EQ(refused(protocol_4 + "\x8c\x05torch\x8c\x04Size\x93."s),
            "file: byte 15: the Python object torch.Size (opcode 147) is not plain data and is not executed; "
            "a memory "
            "snapshot has none");
  EXPECT_EQ(refused(protocol_4 + "N\x93."),
            "file: byte 3: the Python object . (opcode 147) is not plain data "
            "and is not executed; a memory snapshot has none");
  EXPECT_EQ(refused(protocol_4 + "Q").substr(0, 78),
            "file: byte 2: a reference to data elsewhere, as torch.save writes it, (opcode ");
  EXPECT_EQ(refused(protocol_4 + "\x8f").substr(0, 32), "file: byte 2: a set (opcode 143)");
  EXPECT_EQ(refused(protocol_4 + "I01\n").substr(0, 50),
            "file: byte 2: a value in the text form of protocol");
  const std::string wild = refused(protocol_4 + "c" + std::string(1'000'000, '\x1b') + "\nx\n");
  EXPECT_LT(wild.size(), 300u);
  EXPECT_EQ(wild.find('\x1b'), std::string::npos) << "no terminal is told what to do";
  EXPECT_LT(refused(protocol_4 + "c" + std::string(50, 'm') + "\n" + std::string(1'000'000, 'o')).size(),
            300u);
  for (char op : {'R', 'b', 'i', 'o', 'P', 'Q'}) {
    EXPECT_NE(refused(protocol_4 + "N" + op).find("is not executed"), std::string::npos) << op;
  }
  for (int op : {0x81, 0x82, 0x83, 0x84, 0x92, 0x93, 0x97, 0x98}) {
    EXPECT_NE(refused(protocol_4 + "N" + static_cast<char>(op)).find("byte 3"), std::string::npos) << op;
  }
}

TEST(pickle, rejects_truncated_and_inconsistent_input) {
  const std::string whole =
      protocol_4 + "}(\x8c\x01"s + "aK\x01\x8c\x04long](K\x01\x8a\x03"s + "abceX\x02\x00\x00\x00hiN\x85u."s;
  ASSERT_TRUE(std::holds_alternative<pickle>(read_pickle(whole, "file")));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refused(whole.substr(0, length)), "accepted") << length;
  }
  EXPECT_EQ(refused(""), "file: byte 0: the pickle is cut short");
  EXPECT_EQ(refused("\x80\x06."s), "file: byte 0: protocol 6; 2 to 5 are read");
  EXPECT_EQ(refused(protocol_4 + "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"s + "a"),
            "file: byte 2: the pickle is cut short: 9223372036854775807 bytes are announced, 1 are left");
  EXPECT_EQ(refused(protocol_4 + "\x8a\x09\x01\x01."s),
            "file: byte 2: the pickle is cut short: 9 bytes are announced, 3 are left");
  EXPECT_EQ(refused(protocol_4 + "Nr\xff\xff\xff\x7f."s), "file: byte 3: memo 2147483647 leaves a gap");
  EXPECT_EQ(refused(protocol_4 + "h\x00."s), "file: byte 2: memo 0 was never set");
  EXPECT_EQ(refused(protocol_4 + "e."), "file: byte 2: a mark is missing on the stack");
  EXPECT_EQ(refused(protocol_4 + "a."), "file: byte 2: a value is missing on the stack");
  EXPECT_EQ(refused(protocol_4 + "}(Nu."), "file: byte 5: a key without a value");
  EXPECT_EQ(refused(protocol_4 + "}Na."), "file: byte 4: items for a value that is no list");
  EXPECT_EQ(refused(protocol_4 + "NN."), "file: byte 4: the pickle ends with other than one value");
}

TEST(pickle, takes_integers_of_any_length) {
  const auto root = [](const std::string& digits) {
    const std::string bytes = protocol_4 + '\x8a' + static_cast<char>(digits.size()) + digits + '.';
    const auto read = read_pickle(bytes, "file");
    return std::holds_alternative<pickle>(read) ? std::get<pickle>(read).root() : pickled{};
  };
  const pickled largest =
      root("\xff\xff\xff\xff\xff\xff\xff\xff\x00"s);  // 2^64 - 1, as PyTorch writes a frame without a line
  EXPECT_EQ(largest.is, pickled::kind::integer);
  EXPECT_TRUE(largest.is_wide);
  EXPECT_EQ(static_cast<std::uint64_t>(largest.integer), ~std::uint64_t{0});
  EXPECT_FALSE(root("\xff\xff\xff\xff\xff\xff\xff\x7f"s).is_wide);
  const pickled larger = root("\x00\x00\x00\x00\x00\x00\x00\x00\x01"s);
  EXPECT_EQ(larger.is, pickled::kind::real);
  EXPECT_EQ(larger.real, 18446744073709551616.0);
  EXPECT_EQ(root("\xff\xff\xff\xff\xff\xff\xff\xff\xfe"s).real, -18446744073709551617.0);
}

TEST(pickle, nests_without_using_the_stack) {
  std::string deep = protocol_4;
  for (int i = 0; i < 1'000'000; ++i) deep += ']';
  for (int i = 0; i < 999'999; ++i) deep += 'a';
  EXPECT_TRUE(std::holds_alternative<pickle>(read_pickle(deep + ".", "file")));
  EXPECT_TRUE(std::holds_alternative<pickle>(read_pickle(protocol_4 + "]\x94h\x00"s + "a.", "file")))
      << "a list in itself";
}

TEST(pickle, returns_for_any_input) {
  const std::string seed =
      protocol_4 + "}(\x8c\x01"s + "aK\x01\x8c\x04long](K\x01\x8a\x03"s + "abceX\x02\x00\x00\x00hiN\x85u."s;
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string bytes = seed;
    for (std::uint64_t n = 1 + random() % 4; n > 0; --n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    accepted += std::holds_alternative<pickle>(read_pickle(bytes, "file"));
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 50000);
}

}  // namespace
