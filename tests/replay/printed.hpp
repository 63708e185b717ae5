// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace replay_tests {

/// Calls print(file), and returns what this has written to the file.
template <typename Print>
std::string printed(Print print) {
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) return "there is no temporary file";
  print(file);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace replay_tests
