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

#include <tessera/replay/event.hpp>

namespace tessera::trace {

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

}  // namespace tessera::trace
