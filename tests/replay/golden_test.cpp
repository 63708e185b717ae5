// SPDX-License-Identifier: Apache-2.0
// The decisions of PyTorch 2.6 on recorded programs. Each log has a digest here. If the logs are in a folder
// next to the checkout, they are compared line by line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/verify.hpp"

#include "golden.hpp"

namespace {

namespace fs = std::filesystem;

std::string whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The contents of a file that xz packed; empty if there is no xz.
std::string unpacked(const fs::path& path) {
  std::string bytes;
  std::FILE* const pipe = popen(("xz -dc '" + path.string() + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return bytes;
  char part[4096];
  while (const std::size_t got = std::fread(part, 1, sizeof part, pipe)) bytes.append(part, got);
  return pclose(pipe) == 0 ? bytes : std::string();
}

/// The text after `key=` in a log's header, without quotes.
std::string said(const std::string& header, const std::string& key) {
  const std::size_t at = header.find(key + "=") + key.size() + 1;
  const bool quoted = header[at] == '"';
  const std::size_t begin = at + quoted;
  return header.substr(begin, header.find(quoted ? '"' : ' ', begin) - begin);
}

TEST(golden, digests_of_all_logs_are_met) {
  std::ifstream list(TESSERA_TESTS_DIR "/replay/golden_digests.csv");
  std::string line;
  ASSERT_TRUE(std::getline(list, line));
  ASSERT_EQ(line, "trace;case;conf;capacity;lines;fnv1a64");
  int logs = 0;
  while (std::getline(list, line)) {
    std::vector<std::string> field(1);
    for (char c : line) {
      if (c == ';') {
        field.emplace_back();
      } else {
        field.back() += c;
      }
    }
    ASSERT_EQ(field.size(), 6u) << line;
    const std::string found = golden::decisions(TESSERA_EXAMPLES_DIR "/traces/" + field[0] + ".csv", field[2],
                                                std::stoull(field[3]));
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), std::stoll(field[4])) << line;
    EXPECT_EQ(golden::digest(found), std::stoull(field[5], nullptr, 16)) << line;
    ++logs;
  }
  EXPECT_EQ(logs, 48);
}

TEST(golden, logs_are_met_line_by_line) {
  const fs::path folder = TESSERA_SHARED_DIR "/golden";
  if (!fs::exists(folder)) GTEST_SKIP() << "the logs do not lie beside the checkout";
  int compared = 0;
  for (const fs::path& part : {folder, folder / "random", folder / "pools"}) {
    for (const auto& entry : fs::directory_iterator(part)) {
      if (entry.path().extension() != ".log") continue;
      const std::string log = whole(entry.path());
      const std::string header = log.substr(0, log.find('\n'));
      const std::string conf = said(header, "conf");
      fs::path trace = TESSERA_SHARED_DIR "/traces/" + said(header, "trace") + ".csv";
      if (!fs::exists(trace)) trace = part / trace.filename();
      if (!fs::exists(trace)) trace = fs::path(TESSERA_EXAMPLES_DIR "/traces") / trace.filename();
      std::istringstream expected(log.substr(header.size() + 1));
      std::istringstream found(golden::decisions(trace, conf, std::stoull(said(header, "capacity"))));
      std::string there, here;
      for (int number = 2; std::getline(expected, there); ++number) {
        here.clear();
        std::getline(found, here);
        ASSERT_EQ(here, there) << entry.path().filename() << ", line " << number;
      }
      EXPECT_FALSE(std::getline(found, here)) << entry.path().filename() << ": more is decided than there";
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST(snapshots, of_real_devices_are_decided_the_same) {
  const fs::path folder = TESSERA_SHARED_DIR "/snapshots";
  if (!fs::exists(folder)) GTEST_SKIP() << "the snapshots do not lie beside the checkout";
  int compared = 0;
  std::vector<std::string> elsewhere;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool packed = entry.path().extension() == ".xz";
    if (!packed && entry.path().extension() != ".pickle") continue;
    const std::string bytes = packed ? unpacked(entry.path()) : whole(entry.path());
    if (bytes.empty()) continue;  // there is no xz
    const auto read = replay::read_snapshot(bytes, entry.path().filename());
    ASSERT_TRUE(std::holds_alternative<tessera::observe::snapshot>(read))
        << std::get<tessera::trace::input_error>(read).text();
    const auto outcome = replay::verifier(std::get<tessera::observe::snapshot>(read), 0).run();
    ASSERT_TRUE(std::holds_alternative<replay::verification>(outcome))
        << std::get<tessera::trace::input_error>(outcome).text();
    const auto& v = std::get<replay::verification>(outcome);
    EXPECT_EQ(v.first_other_segment, "") << entry.path();
    EXPECT_EQ(v.peak_here, v.peak_recorded) << entry.path();
    if (v.same_address != v.allocations) elsewhere.push_back(entry.path().stem());
    ++compared;
  }
  EXPECT_GT(compared, 0);
  EXPECT_TRUE(elsewhere.empty()) << testing::PrintToString(elsewhere);
}

}  // namespace
