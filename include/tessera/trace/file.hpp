// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <tessera/trace/event.hpp>

namespace tessera::trace {

/// All bytes of a file, or the system's reason why not.
[[nodiscard]] inline read_result<std::string> read_file(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error{path, std::string("cannot be opened: ") + std::strerror(errno)};
  std::string bytes;
  char piece[65536];
  for (std::size_t got = sizeof piece; got == sizeof piece;) {
    got = std::fread(piece, 1, sizeof piece, file);
    bytes.append(piece, got);
  }
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) return input_error{path, std::string("cannot be read: ") + std::strerror(error)};
  return bytes;
}

}  // namespace tessera::trace
