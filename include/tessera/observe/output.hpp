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

/// What is wrong with an input, and where.
struct input_error {
  std::string where;  ///< "FILE:LINE" or "FILE: byte N"
  std::string rule;   ///< the broken rule, naming the offending value

  [[nodiscard]] std::string text() const { return where + ": " + rule; }
};

/// What was read, or why it could not be.
template <typename T>
using read_result = std::variant<T, input_error>;

/// Takes bytes one after the other.
template <typename O>
concept byte_output = requires(O& out, std::string_view bytes) { out.write(bytes); };

/// Keeps what is written to it.
struct text_output {
  std::string text;
  void write(std::string_view bytes) { text += bytes; }
};

/// A file that comes to be whole or not at all: it is written beside its place and put there by finish.
///
/// What is at the path and is no plain file, such as a pipe or a device, is written directly.
class file_output {
 public:
  explicit file_output(std::string path) : name_(std::move(path)), path_(name_) {
    std::error_code unknown;
    const auto place = std::filesystem::canonical(name_, unknown);  // of a link, the file that it leads to
    if (!unknown) path_ = place.string();
    beside_ = unknown || std::filesystem::is_regular_file(place, unknown);
    for (int n = 0; beside_ && file_ == nullptr && n < 100; ++n) {
      written_ = path_ + ".part" + std::to_string(n);
      file_ = std::fopen(written_.c_str(), "wbx");
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (!beside_) file_ = std::fopen(path_.c_str(), "wb");
    if (file_ == nullptr) fail("created");
  }
  file_output(const file_output&) = delete;
  file_output& operator=(const file_output&) = delete;
  ~file_output() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    if (beside_) std::remove(written_.c_str());
  }

  void write(std::string_view bytes) {
    waiting_ += bytes;
    if (waiting_.size() >= 65536) flush();
  }

  /// Puts the file in its place; or takes away what was written and says what went wrong.
  [[nodiscard]] std::optional<input_error> finish() {
    flush();
    if (file_ == nullptr) return error_;
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail("written");
    if (!error_ && beside_ && std::rename(written_.c_str(), path_.c_str()) != 0) fail("put in place");
    if (error_ && beside_) std::remove(written_.c_str());
    return error_;
  }

 private:
  void fail(const char* what) {
    if (!error_) error_ = input_error{name_, std::string("cannot be ") + what + ": " + std::strerror(errno)};
  }
  void flush() {
    if (file_ != nullptr && !error_) {
      const bool all = std::fwrite(waiting_.data(), 1, waiting_.size(), file_) == waiting_.size();
      if (!all || std::fflush(file_) != 0) fail("written");
    }
    waiting_.clear();
  }

  std::string name_;  // as the user gave it
  std::string path_;
  std::string written_;  // where the bytes go for now
  bool beside_ = false;
  std::FILE* file_ = nullptr;
  std::string waiting_;
  std::optional<input_error> error_;
};

/// Makes a file of what write(out) writes, unless that returns an error.
///   Returns:  nothing, or why not; then what was at the path before is still there
template <typename Write>
[[nodiscard]] std::optional<input_error> save(const std::string& path, Write write) {
  file_output out(path);
  if constexpr (std::is_void_v<decltype(write(out))>) {
    write(out);
  } else if (std::optional<input_error> error = write(out)) {
    return error;
  }
  return out.finish();
}

/// How many bytes at the beginning of `text` are one character in UTF-8, or 0 where they are none.
///   Requires:  text is not empty
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  // Of the second byte, what would be written too long, a surrogate, or above U+10FFFF is none.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

/// `text` in UTF-8, whatever it holds: a byte that belongs to no character becomes U+FFFD.
[[nodiscard]] inline std::string utf8_text(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    length != 0 ? safe += text.substr(0, length) : safe += "\xef\xbf\xbd";
    text.remove_prefix(length != 0 ? length : 1);
  }
  return safe;
}

/// `text`, whatever it holds, as it may stand between the quotes of a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string safe;
  for (const char c : utf8_text(text)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') safe += '\\';
    if (code >= 0x20) {
      safe += c;
    } else {
      (safe += "\\u00") += "0123456789abcdef"[code >> 4];
      safe += "0123456789abcdef"[code & 15];
    }
  }
  return safe;
}

}  // namespace tessera::trace
