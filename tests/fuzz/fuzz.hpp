// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <variant>

#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"

/// The function that a fuzzing engine calls with each input. replay_files.cpp calls it with files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

/// Ends the program unless the condition holds, so that the engine keeps the input.
inline void expect(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

/// An error names its position and the rule, in characters that any terminal can show.
inline void expect_sound(const tessera::trace::input_error& error, std::string_view file) {
  expect(error.where.starts_with(file) && error.where.size() > file.size(), "an error says where");
  expect(!error.rule.empty() && error.rule.size() < 400, "an error says which rule, shortly");
  for (const char c : error.text()) expect(c >= ' ' && c <= '~', "an error has no control characters");
}

/// The value that was read, or null after a valid error.
template <typename T>
const T* accepted(const replay::read_result<T>& read, std::string_view file) {
  if (const auto* const error = std::get_if<tessera::trace::input_error>(&read)) expect_sound(*error, file);
  return std::get_if<T>(&read);
}

/// An input as numbers; all are 0 after its end.
class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (; bytes > 0 && !rest_.empty(); --bytes) {
      value = value << 8 | static_cast<std::uint8_t>(rest_.front());
      rest_.remove_prefix(1);
    }
    return value;
  }
  [[nodiscard]] std::size_t below(std::size_t bound) { return static_cast<std::size_t>(number(1)) % bound; }
  [[nodiscard]] std::string_view text(std::size_t most) {
    const std::string_view taken = rest_.substr(0, most);
    rest_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view rest_;
};

}  // namespace fuzz
