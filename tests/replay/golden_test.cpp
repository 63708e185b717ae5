// SPDX-License-Identifier: Apache-2.0
// The decisions of PyTorch 2.6 on recorded programs. Logs of short programs lie in golden/. Each thousand lines of a longer
// log have a digest here; if the logs are in a folder next to the checkout, they are compared line by line, too.
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

#include "by_day.hpp"
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

/// Compares each log of a folder with what is decided here.
///   Returns:  the number of logs
int compare_logs_in(const fs::path& folder) {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".log") continue;
    const std::string log = whole(entry.path());
    const std::string header = log.substr(0, log.find('\n'));
    const std::string name = said(header, "trace") + ".csv";
    fs::path trace = folder / name;
    for (const char* elsewhere : {TESSERA_SHARED_DIR "/traces", TESSERA_EXAMPLES_DIR "/traces"})
      if (!fs::exists(trace)) trace = fs::path(elsewhere) / name;
    std::istringstream expected(log.substr(header.size() + 1));
    std::istringstream found(
        golden::decisions(trace.string(), said(header, "conf"), std::stoull(said(header, "capacity"))));
    std::string there, here;
    bool is_equal = true;
    for (int number = 2; is_equal && std::getline(expected, there); ++number) {
      here.clear();
      std::getline(found, here);
      is_equal = here == there;
      EXPECT_EQ(here, there) << entry.path().filename() << ", line " << number;
    }
    if (is_equal) {
      EXPECT_FALSE(std::getline(found, here)) << entry.path().filename() << ": more is decided than there";
    }
    ++compared;
  }
  return compared;
}

TEST(golden, short_programs_are_decided_line_by_line) {
  EXPECT_EQ(compare_logs_in(TESSERA_TESTS_DIR "/replay/golden"), 13);
}

TEST(golden, each_thousand_lines_of_a_log_has_its_digest) {
  std::ifstream list(TESSERA_TESTS_DIR "/replay/golden_digests.csv");
  std::string line;
  ASSERT_TRUE(std::getline(list, line));
  ASSERT_EQ(line, "trace;case;conf;capacity;lines;fnv1a64 of each 1000 lines");
  int logs = 0;
  for (; std::getline(list, line); ++logs) {
    std::vector<std::string> field(1);
    for (char c : line) {
      if (c == ';') {
        field.emplace_back();
      } else {
        field.back() += c;
      }
    }
    ASSERT_EQ(field.size(), 6u) << line;
    const std::string name = field[0] + "__" + field[1];
    std::istringstream found(golden::decisions(TESSERA_EXAMPLES_DIR "/traces/" + field[0] + ".csv", field[2],
                                               std::stoull(field[3])));
    std::istringstream digests(field[5]);
    std::string digest, decided, part;
    std::size_t lines = 0;
    while (digests >> digest) {
      const std::size_t first = lines;
      for (part.clear(); lines < first + 1000 && std::getline(found, decided); ++lines)
        part += decided + '\n';
      if (golden::digest(part) == std::stoull(digest, nullptr, 16)) continue;
      ADD_FAILURE() << name << ": PyTorch decides otherwise in lines " << first + 2 << " to " << lines + 1
                    << " of its log; the first of them here are\n"
                    << part.substr(0, 300);
      break;
    }
    if (!digests) {
      EXPECT_EQ(lines, std::stoull(field[4])) << name;
    }
  }
  EXPECT_EQ(logs, 48);
}

TEST(golden, logs_beside_the_checkout_are_met_line_by_line) {
  const fs::path folder = TESSERA_SHARED_DIR "/golden";
  if (!fs::exists(folder)) GTEST_SKIP() << "the logs do not lie beside the checkout";
  int compared = 0;
  for (const fs::path& part : {folder / "random", folder / "pools"}) compared += compare_logs_in(part);
  if (tessera::is_night) compared += compare_logs_in(folder);  // those that have digests
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
    const auto read = replay::read_snapshot(bytes, entry.path().filename().string());
    ASSERT_TRUE(std::holds_alternative<tessera::observe::snapshot>(read))
        << std::get<tessera::trace::input_error>(read).text();
    const auto outcome = replay::verifier(std::get<tessera::observe::snapshot>(read), 0).run();
    ASSERT_TRUE(std::holds_alternative<replay::verification>(outcome))
        << std::get<tessera::trace::input_error>(outcome).text();
    const auto& v = std::get<replay::verification>(outcome);
    EXPECT_EQ(v.first_other_segment, "") << entry.path();
    EXPECT_EQ(v.peak_here, v.peak_recorded) << entry.path();
    if (v.same_address != v.allocations) elsewhere.push_back(entry.path().stem().string());
    ++compared;
  }
  EXPECT_GT(compared, 0);
  EXPECT_TRUE(elsewhere.empty()) << testing::PrintToString(elsewhere);
}

}  // namespace
