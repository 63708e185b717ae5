// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/trace/csv.hpp>
#include "tessera_replay/files.hpp"

namespace {

namespace fs = std::filesystem;
using replay::read_file;
using replay::save;
using tessera::trace::input_error;

/// A folder for one test.
class files : public testing::Test {
 protected:
  files() {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~files() override { fs::remove_all(folder_); }

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
  static std::string result_of(const std::optional<input_error>& error) {
    return error ? error->text() : "fine";
  }

 private:
  fs::path folder_ =
      fs::path(testing::TempDir()) /
      ("tessera_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};
const std::string hello = "hello\n";
#if defined(_WIN32)  // which opens no folder
constexpr const char* folder_cannot_be_read = ": cannot be opened: Permission denied";
constexpr const char* folder_cannot_be_created = ": cannot be created: Permission denied";
#else
constexpr const char* folder_cannot_be_read = ": cannot be read: Is a directory";
constexpr const char* folder_cannot_be_created = ": cannot be created: Is a directory";
#endif

TEST_F(files, is_rejected_by_its_beginning_or_size) {
  EXPECT_EQ(result_of(save(at("a"), std::string(100'000, 'x'))), "fine");
  std::size_t asked = 0;
  const auto whole = read_file(at("a"), [&](std::string_view beginning) {
    asked += beginning.size();
    return std::optional<input_error>();
  });
  EXPECT_EQ(std::get<std::string>(whole), std::string(100'000, 'x'));
  EXPECT_EQ(asked, 65536u) << "once";
  const auto refused = [](std::string_view) { return std::optional(input_error{"there", "not this"}); };
  EXPECT_EQ(std::get<input_error>(read_file("/dev/zero", refused)).text(), "there: not this");
  EXPECT_EQ(std::get<input_error>(read_file(at(""), refused)).text(), at("") + folder_cannot_be_read);
  fs::resize_file(at("a"), 0);
  EXPECT_EQ(std::get<input_error>(read_file(at("a"))).text(), at("a") + ": is empty");

  fs::resize_file(at("a"), replay::max_file_bytes + 1);  // with a hole that takes no space
  EXPECT_EQ(std::get<input_error>(read_file(at("a"))).text(),
            at("a") + ": is larger than the limit of 2147483648 bytes");
}

TEST_F(files, replaces_the_file_when_complete) {
  EXPECT_EQ(result_of(save(at("a"), hello)), "fine");
  EXPECT_EQ(text_of(at("a")), "hello\n");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(files, keeps_the_old_file_if_the_new_one_is_not_complete) {
  ASSERT_EQ(result_of(save(at("a"), hello)), "fine");
  for (int n = 0; n < 100; ++n) ASSERT_EQ(result_of(save(at("a.part" + std::to_string(n)), hello)), "fine");
  EXPECT_EQ(result_of(save(at("a"), "other")), at("a") + ": cannot be created: File exists");
  EXPECT_EQ(text_of(at("a")), "hello\n");
  fs::remove(at("a.part7"));
  EXPECT_EQ(result_of(save(at("a"), std::string(200'000, 'x'))), "fine");
  EXPECT_EQ(text_of(at("a")), std::string(200'000, 'x'));
  EXPECT_FALSE(fs::exists(at("a.part7"))) << "the temporary file is renamed";
}

TEST_F(files, two_may_be_written_at_once) {
  std::atomic<int> failures = 0;
  const auto write = [&](char letter) {
    for (int i = 0; i < 200; ++i) failures += save(at("a"), std::string(100'000, letter)).has_value();
  };
  std::thread other(write, 'x');
  write('y');
  other.join();
  EXPECT_EQ(failures, 0);
  const std::string text = text_of(at("a"));
  EXPECT_TRUE(text == std::string(100'000, 'x') || text == std::string(100'000, 'y')) << "one of them, whole";
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(files, a_link_stays_one) {
  ASSERT_EQ(result_of(save(at("a"), hello)), "fine");
  std::error_code refused;
  fs::create_symlink(at("a"), at("link"), refused);
  if (refused == std::errc::function_not_supported) GTEST_SKIP() << "the system has no symbolic links";
  ASSERT_FALSE(refused) << refused.message();
  EXPECT_EQ(result_of(save(at("link"), "through")), "fine");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(text_of(at("a")), "through");
}

TEST_F(files, reports_system_errors) {
  EXPECT_EQ(result_of(save(at("none/a"), hello)),
            at("none/a") + ": cannot be created: No such file or directory");
  EXPECT_EQ(result_of(save(at("."), hello)), at(".") + folder_cannot_be_created);
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(result_of(save("/dev/full", hello)), "/dev/full: cannot be written: No space left on device");
  EXPECT_EQ(result_of(save("/dev/full", std::string(500'000, 'x'))),
            "/dev/full: cannot be written: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
