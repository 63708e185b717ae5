// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/output.hpp>
#include <tessera/replay/read.hpp>

namespace {

namespace fs = std::filesystem;
using tessera::trace::input_error;
using tessera::trace::read_file;
using tessera::trace::save;

/// A folder for one test.
class file_output : public testing::Test {
 protected:
  file_output() {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~file_output() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string at(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  [[nodiscard]] static std::string text_of(const std::string& path) {
    const auto read = read_file(path);
    return std::holds_alternative<std::string>(read) ? std::get<std::string>(read) : "(unreadable)";
  }
  static std::string said(const std::optional<input_error>& error) { return error ? error->text() : "fine"; }

 private:
  fs::path folder_ =
      fs::path(testing::TempDir()) /
      ("tessera_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};
const auto hello = [](auto& out) { out.write("hello\n"); };

TEST_F(file_output, is_rejected_by_its_beginning_or_size) {
  EXPECT_EQ(said(save(at("a"), [](auto& out) { out.write(std::string(100'000, 'x')); })), "fine");
  std::size_t asked = 0;
  const auto whole = read_file(at("a"), [&](std::string_view beginning) {
    asked += beginning.size();
    return std::optional<input_error>();
  });
  EXPECT_EQ(std::get<std::string>(whole), std::string(100'000, 'x'));
  EXPECT_EQ(asked, 65536u) << "once";
  const auto refused = [](std::string_view) { return std::optional(input_error{"there", "not this"}); };
  EXPECT_EQ(std::get<input_error>(read_file("/dev/zero", refused)).text(), "there: not this");
  EXPECT_EQ(std::get<input_error>(read_file(at(""), refused)).text(),
            at("") + ": cannot be read: Is a directory");

  fs::resize_file(at("a"), tessera::trace::detail::max_file_bytes + 1);  // with a hole that takes no space
  EXPECT_EQ(std::get<input_error>(read_file(at("a"))).text(),
            at("a") + ": is larger than the limit of 2147483648 bytes");
}

TEST_F(file_output, replaces_the_file_when_complete) {
  EXPECT_EQ(said(save(at("a"), hello)), "fine");
  EXPECT_EQ(text_of(at("a")), "hello\n");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(file_output, writes_more_than_its_buffer) {
  std::string expected;
  EXPECT_EQ(said(save(at("a"),
                      [&](auto& out) {
                        for (int i = 0; i < 50'000; ++i) {
                          out.write(std::to_string(i));
                          expected += std::to_string(i);
                        }
                      })),
            "fine");
  EXPECT_TRUE(text_of(at("a")) == expected);
}

TEST_F(file_output, keeps_the_old_file_until_the_new_one_is_complete) {
  ASSERT_EQ(said(save(at("a"), hello)), "fine");
  EXPECT_EQ(said(save(at("a"),
                      [&](auto& out) -> std::optional<input_error> {
                        out.write(std::string(200'000, 'x'));
                        EXPECT_EQ(text_of(at("a")), "hello\n");
                        return input_error{"there", "this went wrong"};
                      })),
            "there: this went wrong");
  EXPECT_EQ(text_of(at("a")), "hello\n");
  EXPECT_EQ(names(), std::vector<std::string>{"a"}) << "the part is taken away";
  EXPECT_EQ(said(save(at("a"), [](auto& out) { out.write("other"); })), "fine");
  EXPECT_EQ(text_of(at("a")), "other");
}

TEST_F(file_output, two_may_be_written_at_once) {
  EXPECT_EQ(said(save(at("a"),
                      [&](auto& outer) {
                        outer.write("outer");
                        EXPECT_EQ(said(save(at("a"), hello)), "fine");
                      })),
            "fine");
  EXPECT_EQ(text_of(at("a")), "outer");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(file_output, a_link_stays_one) {
  ASSERT_EQ(said(save(at("a"), hello)), "fine");
  fs::create_symlink(at("a"), at("link"));
  EXPECT_EQ(said(save(at("link"), [](auto& out) { out.write("through"); })), "fine");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(text_of(at("a")), "through");
}

TEST_F(file_output, reports_system_errors) {
  EXPECT_EQ(said(save(at("none/a"), hello)), at("none/a") + ": cannot be created: No such file or directory");
  EXPECT_EQ(said(save(at("."), hello)), at(".") + ": cannot be created: Is a directory");
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(said(save("/dev/full", hello)), "/dev/full: cannot be written: No space left on device");
  EXPECT_EQ(said(save("/dev/full",
                      [](auto& out) {
                        for (int i = 0; i < 9; ++i) out.write(std::string(50'000, 'x'));
                      })),
            "/dev/full: cannot be written: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
