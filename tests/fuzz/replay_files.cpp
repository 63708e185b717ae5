// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files and folders of files. The corpus is a test if no fuzzing engine is there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include <tessera/trace/csv.hpp>

#include "fuzz.hpp"

int main(int count, char** paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (int i = 1; i < count; ++i) {
    if (!fs::is_directory(paths[i])) {
      files.emplace_back(paths[i]);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(paths[i]))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const auto read = replay::read_file(file);
    const auto* const bytes = std::get_if<std::string>(&read);
    if (bytes == nullptr) return std::fprintf(stderr, "%s: cannot be read\n", file.c_str()), 2;
    // A copy of exactly this size, so that a sanitizer detects reads past its end.
    const std::vector<std::uint8_t> exact(bytes->begin(), bytes->end());
    std::fprintf(stderr, "%s\n", file.c_str());  // the last printed name is the file that fails
    (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 2 : 0;
}
