// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

namespace tessera::trace {

/// An error in an input: its position and the broken rule.
struct input_error {
  std::string where;  ///< "FILE:LINE" or "FILE: byte N"
  std::string rule;   ///< the broken rule, naming the offending value

  [[nodiscard]] std::string text() const { return where + ": " + rule; }
};

/// The value that was read, or the error.
template <typename T>
using read_result = std::variant<T, input_error>;

namespace detail {

/// Accepts bytes through `write(std::string_view)`.
template <typename O>
concept byte_output = requires(O& out, std::string_view bytes) { out.write(bytes); };

}  // namespace detail

/// Collects the bytes in a string.
struct text_output {
  std::string text;
  void write(std::string_view bytes) { text += bytes; }
};

namespace detail {

/// Writes a file completely or not at all. The bytes go to a temporary file in the same folder, which
/// finish() renames.
///
/// Pipes and devices are written directly.
class file_output {
 public:
  explicit file_output(std::string path) : name_(std::move(path)), path_(name_) {
    std::error_code unknown;
    const auto target = std::filesystem::canonical(name_, unknown);  // follows links
    if (!unknown) path_ = target.string();
    is_temporary_ = unknown || std::filesystem::is_regular_file(target, unknown);
    for (int n = 0; is_temporary_ && file_ == nullptr && n < 100; ++n) {
      temporary_path_ = path_ + ".part" + std::to_string(n);
      file_ = std::fopen(temporary_path_.c_str(), "wbx");
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (!is_temporary_) file_ = std::fopen(path_.c_str(), "wb");
    if (file_ == nullptr) fail("created");
  }
  file_output(const file_output&) = delete;
  file_output& operator=(const file_output&) = delete;
  ~file_output() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    if (is_temporary_) std::remove(temporary_path_.c_str());
  }

  void write(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= 65536) flush();
  }

  /// Renames the temporary file to the path. On an error, removes it and leaves the path as it was.
  ///   Returns:  the error, if there was one
  [[nodiscard]] std::optional<input_error> finish() {
    flush();
    if (file_ == nullptr) return error_;
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail("written");
    if (!error_ && is_temporary_ && std::rename(temporary_path_.c_str(), path_.c_str()) != 0)
      fail("put in place");
    if (error_ && is_temporary_) std::remove(temporary_path_.c_str());
    return error_;
  }

 private:
  void fail(const char* action) {
    if (!error_)
      error_ = input_error{name_, std::string("cannot be ") + action + ": " + std::strerror(errno)};
  }
  void flush() {
    if (file_ != nullptr && !error_) {
      const bool is_complete = std::fwrite(buffer_.data(), 1, buffer_.size(), file_) == buffer_.size();
      if (!is_complete || std::fflush(file_) != 0) fail("written");
    }
    buffer_.clear();
  }

  std::string name_;  // the path as the user gave it, for errors
  std::string path_;
  std::string temporary_path_;
  bool is_temporary_ = false;
  std::FILE* file_ = nullptr;
  std::string buffer_;
  std::optional<input_error> error_;
};

}  // namespace detail

/// Saves the output of `write(out)` to a file. An error leaves the file as it was.
///   Returns:  the error of `write` or of the file system, if there was one
template <typename Write>
[[nodiscard]] std::optional<input_error> save(const std::string& path, Write write) {
  detail::file_output out(path);
  if constexpr (std::is_void_v<decltype(write(out))>) {
    write(out);
  } else if (std::optional<input_error> error = write(out)) {
    return error;
  }
  return out.finish();
}

namespace detail {

/// The length in bytes of the first UTF-8 character of `text`; 0 if that character is invalid.
///   Requires:  text is not empty
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  // The second byte excludes overlong encodings, surrogates and code points above U+10FFFF.
  const unsigned min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < min || byte(1) > max) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

/// Converts any bytes to valid UTF-8. An invalid byte becomes U+FFFD.
[[nodiscard]] inline std::string utf8_text(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    safe += length != 0 ? text.substr(0, length) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(length != 0 ? length : 1);
  }
  return safe;
}

/// Escapes any bytes for use inside a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string safe;
  for (const char c : utf8_text(text)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') safe += '\\';
    if (code >= 0x20) {
      safe += c;
    } else {
      safe += "\\u00";
      safe += "0123456789abcdef"[code >> 4];
      safe += "0123456789abcdef"[code & 15];
    }
  }
  return safe;
}

/// Makes any bytes safe to print on a terminal: control characters become '?', and the result is valid UTF-8.
[[nodiscard]] inline std::string printable_text(std::string_view text) {
  std::string safe(text);
  for (char& c : safe) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return utf8_text(safe);
}

}  // namespace detail

}  // namespace tessera::trace
