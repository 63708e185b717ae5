// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <tessera/observe/call_stacks.hpp>
#include <tessera/replay/text.hpp>

namespace tessera::trace {

/// Whether a frame's file is of Python: a source, or what an interpreter names "<stdin>". Frames of C++ have names such as
/// "??" and "TensorImpl.cpp".
[[nodiscard]] inline bool is_python_file(std::string_view file) noexcept {
  return file.ends_with(".py") || (file.starts_with('<') && file.size() > 2);
}

/// Whether a Python file belongs to PyTorch or was written by it, so that its line tells a user little.
[[nodiscard]] inline bool is_file_of_torch(std::string_view file) {
  if (file.starts_with("<eval_with_key>") || file.starts_with("<frozen ")) return true;
  std::string_view parent;
  while (!file.empty()) {
    const std::size_t end = (std::min)(file.find_first_of("/\\"), file.size());
    const std::string_view folder = file.substr(0, end);
    file.remove_prefix((std::min)(file.size(), end + 1));
    const bool holds_packages = parent == "site-packages" || parent == "dist-packages" || parent == "pytorch";
    if (holds_packages && (folder == "torch" || folder == "torch_npu")) return !file.empty();
    if (folder.starts_with("torchinductor_")) return !file.empty();
    parent = folder;
  }
  return false;
}

/// The frame of a stack that tells a user most, as a place in the table: the innermost one of Python that is not PyTorch's;
/// else the innermost one of Python; else the innermost one that has a file or a function.
///   Requires:  the stack is not empty
[[nodiscard]] inline std::uint32_t telling_frame(const call_stacks& table, std::uint32_t stack) {
  const std::span<const std::uint32_t> calls = table.stack(stack);
  const auto file_of = [&](std::uint32_t place) { return table.text(table.frame_at(place).file); };
  const auto first = [&](auto is_wanted) { return std::find_if(calls.begin(), calls.end(), is_wanted); };
  auto found = first([&](auto f) { return is_python_file(file_of(f)) && !is_file_of_torch(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return is_python_file(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return !file_of(f).empty() && file_of(f) != "??"; });
  return found == calls.end() ? calls.front() : *found;
}

/// `text` as it may stand on a terminal, whatever it holds.
[[nodiscard]] inline std::string terminal_text(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return utf8_text(shown);
}

/// The line of a program where a stack comes from, "train.py:12 in forward"; empty for no stack. Long names are cut short.
[[nodiscard]] inline std::string program_line(const call_stacks& table, std::uint32_t stack) {
  if (table.stack(stack).empty()) return {};
  constexpr std::size_t most_of_file = 160, most_of_function = 80;  // bytes
  constexpr std::uint64_t most_lines = std::uint64_t{1} << 31;  // more stands for a line that is not known
  const call_stacks::frame& f = table.frame_at(telling_frame(table, stack));
  std::string_view file = table.text(f.file), function = table.text(f.function);
  std::string line = file.size() > most_of_file ? "..." : "";
  line += file.substr(file.size() - (std::min)(file.size(), most_of_file));
  if (f.line != 0 && f.line < most_lines) (line += ':') += std::to_string(f.line);
  if (!function.empty()) (line += line.empty() ? "" : " in ") += function.substr(0, most_of_function);
  if (function.size() > most_of_function) line += "...";
  return terminal_text(line);
}

}  // namespace tessera::trace
