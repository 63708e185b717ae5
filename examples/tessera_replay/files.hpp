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
#include <variant>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/csv.hpp>

#if defined(_WIN32)
#include <io.h>
#include <chrono>
#include <thread>
#endif

namespace replay {

using tessera::trace::input_error;

/// The value that was read, or the error.
template <typename T>
using read_result = std::variant<T, input_error>;

/// The largest file that read_file accepts, in bytes. It also limits endless pipes.
inline constexpr std::size_t max_file_bytes = tessera::operator""_GiB(2);

/// Reads a file, which must not be empty. `check(beginning)` receives the first bytes, at most 64 KiB. If it returns an error, reading
/// ends.
///   Cost:  host memory of the file's size, or three times that if the system does not report the size
template <typename Check>
[[nodiscard]] read_result<std::string> read_file(const std::string& path, Check check) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error{path, std::string("cannot be opened: ") + std::strerror(errno)};
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> closer(file, close);
  std::error_code unknown;  // pipes report no size
  const auto size = std::filesystem::file_size(path, unknown);
  std::string bytes;
  if (!unknown && size <= max_file_bytes) bytes.reserve(static_cast<std::size_t>(size));
  char chunk[65536];
  for (std::size_t count = sizeof chunk; count == sizeof chunk;) {
    count = std::fread(chunk, 1, sizeof chunk, file);
    if (bytes.empty() && count > 0) {
      if (std::optional<input_error> error = check(std::string_view(chunk, count))) return std::move(*error);
    }
    if ((!unknown && size > max_file_bytes) || count > max_file_bytes - bytes.size())
      return input_error{path, "is larger than the limit of " + std::to_string(max_file_bytes) + " bytes"};
    bytes.append(chunk, count);
  }
  if (std::ferror(file) != 0)
    return input_error{path, std::string("cannot be read: ") + std::strerror(errno)};
  if (bytes.empty()) return input_error{path, "is empty"};
  return bytes;
}
[[nodiscard]] inline read_result<std::string> read_file(const std::string& path) {
  return read_file(path, [](std::string_view) { return std::optional<input_error>(); });
}

/// Creates a file. Returns null, with errno, if it exists or cannot be created.
[[nodiscard]] inline std::FILE* create_file(const std::string& path) noexcept {
#if defined(_WIN32)
  // The older of its C libraries ignores "x".
  constexpr int new_binary_file = 0x8501;  // _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY
  constexpr int read_and_write = 0x180;    // _S_IREAD | _S_IWRITE
  const int made = ::_open(path.c_str(), new_binary_file, read_and_write);
  return made >= 0 ? ::_fdopen(made, "wb") : nullptr;
#else
  return std::fopen(path.c_str(), "wbx");
#endif
}

/// Renames a file. If another has the new name, that one is gone.
inline void replace_file(const std::string& from, const std::string& to, std::error_code& why) noexcept {
  std::filesystem::rename(from, to, why);  // unlike std::rename, it replaces a file on Windows, too
#if defined(_WIN32)  // which refuses it for a moment while another program does the same
  for (int n = 0; n < 100 && why == std::errc::permission_denied; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::filesystem::rename(from, to, why);
  }
#endif
}

/// Writes a file completely or not at all. On an error, the file stays as it was.
///
/// The text goes to a temporary file in the same folder, which then replaces the file. Pipes and devices are
/// written directly.
///   Returns:  the error, if there was one
[[nodiscard]] inline std::optional<input_error> save(const std::string& path, std::string_view text) {
  const auto error = [&path](const char* action) {
    return input_error{path, std::string("cannot be ") + action + ": " + std::strerror(errno)};
  };
  std::error_code unknown;
  const auto target = std::filesystem::canonical(path, unknown);  // follows links
  const std::string real_path = unknown ? path : target.string();
  const bool is_replaced = unknown || std::filesystem::is_regular_file(target, unknown);
  std::string part = real_path;
  std::FILE* file = is_replaced ? nullptr : std::fopen(part.c_str(), "wb");
  for (int n = 0; is_replaced && file == nullptr && n < 100; ++n) {
    part = real_path + ".part" + std::to_string(n);
    file = create_file(part);
    if (file == nullptr && errno != EEXIST) break;
  }
  if (file == nullptr) return error("created");
  std::optional<input_error> failed;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) failed = error("written");
  if (std::fclose(file) != 0 && !failed) failed = error("written");
  if (!is_replaced) return failed;
  std::error_code why;
  if (!failed) replace_file(part, real_path, why);
  if (why) failed = input_error{path, "cannot be put in place: " + why.message()};
  if (failed) std::remove(part.c_str());
  return failed;
}

}  // namespace replay
