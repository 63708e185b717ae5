// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/replay/event.hpp>

namespace tessera::trace {

/// The largest file that is read, in bytes: what never ends is not read until memory does.
inline constexpr std::size_t max_file_bytes = operator""_GiB(2);

/// All bytes of a file, or why not. `refuse(beginning)` is asked once, about the first bytes, at most 64 KiB; what it
/// returns is an error.
///   Cost:  three times the file in host memory, the size where the system tells it
template <typename Refuse>
[[nodiscard]] read_result<std::string> read_file(const std::string& path, Refuse refuse) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error{path, std::string("cannot be opened: ") + std::strerror(errno)};
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> closes(file, close);
  std::error_code unknown;
  const auto told = std::filesystem::file_size(path, unknown);  // of what is no plain file it is not known
  std::string bytes;
  if (!unknown && told <= max_file_bytes) bytes.reserve(static_cast<std::size_t>(told));
  char piece[65536];
  for (std::size_t got = sizeof piece; got == sizeof piece;) {
    got = std::fread(piece, 1, sizeof piece, file);
    if (bytes.empty() && got > 0) {
      if (std::optional<input_error> error = refuse(std::string_view(piece, got))) return std::move(*error);
    }
    if ((!unknown && told > max_file_bytes) || got > max_file_bytes - bytes.size())
      return input_error{
          path, "is larger than " + std::to_string(max_file_bytes) + " bytes, the most that is read"};
    bytes.append(piece, got);
  }
  if (std::ferror(file) != 0)
    return input_error{path, std::string("cannot be read: ") + std::strerror(errno)};
  return bytes;
}
[[nodiscard]] inline read_result<std::string> read_file(const std::string& path) {
  return read_file(path, [](std::string_view) { return std::optional<input_error>(); });
}

}  // namespace tessera::trace
