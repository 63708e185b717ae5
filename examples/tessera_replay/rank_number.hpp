// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace replay {

namespace rank_names {

[[nodiscard]] constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
[[nodiscard]] constexpr char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
}
[[nodiscard]] constexpr bool is_letter(char c) noexcept { return lower(c) >= 'a' && lower(c) <= 'z'; }

/// The number at the beginning of a text; none if it has more than nine digits.
[[nodiscard]] inline std::optional<std::size_t> leading_number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number > 999'999'999) return {};
  return number;
}

/// The number after the last "rank" in a name, as in rank3, Rank_03 and rank-3.
[[nodiscard]] inline std::optional<std::size_t> number_after_rank(std::string_view name) {
  std::string low(name);
  std::transform(low.begin(), low.end(), low.begin(), lower);
  for (std::size_t at = low.rfind("rank"); at != low.npos;
       at = at == 0 ? low.npos : low.rfind("rank", at - 1)) {
    const std::string_view rest = name.substr(at + 4);
    const std::size_t digits = std::min(rest.find_first_not_of("_-.= "), rest.size());
    if (const auto number = leading_number(rest.substr(digits))) return number;
  }
  return {};
}

/// The number at the beginning or end of a name, as in snapshot_3, if it is the only one that touches no letter or point.
[[nodiscard]] inline std::optional<std::size_t> only_number(std::string_view name) {
  std::optional<std::size_t> found;
  bool is_at_end = false;
  for (std::size_t i = 0; i < name.size();) {
    if (!is_digit(name[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    const bool is_after_name = i > 0 && (is_letter(name[i - 1]) || name[i - 1] == '.');
    const bool is_before_name =
        end < name.size() && (is_letter(name[end]) || (name[end] == '.' && end + 1 < name.size()));
    const bool is_alone = !is_after_name && !is_before_name;
    if (is_alone && found) return {};
    if (is_alone) found = leading_number(name.substr(i, end - i));
    is_at_end = is_at_end || (is_alone && (i == 0 || end == name.size()));
    i = end;
  }
  return is_at_end ? found : std::nullopt;
}

}  // namespace rank_names

/// Finds the number of a rank in the path of its file.
///
/// It follows "rank" in the name of the file or else of a folder, the innermost first. Without that word, it is
/// the number that begins or ends the name of the file, if no other touches no letter or point: gpt2.csv, llama_1.3b.csv
/// and batch_64_training.csv have none.
[[nodiscard]] inline std::optional<std::size_t> rank_number(std::string_view path) {
  std::string_view rest = path;
  std::string_view title;
  for (bool is_file = true; !rest.empty(); is_file = false) {
    const std::size_t slash = rest.find_last_of('/');
    std::string_view name = slash == rest.npos ? rest : rest.substr(slash + 1);
    rest = slash == rest.npos ? std::string_view{} : rest.substr(0, slash);
    // A point before digits is part of a name such as rank.3.
    const std::size_t point = name.find_last_of('.');
    const bool has_extension =
        point != name.npos && point + 1 < name.size() && !rank_names::is_digit(name[point + 1]);
    if (is_file) title = has_extension ? name.substr(0, point) : name;
    if (const auto found = rank_names::number_after_rank(is_file ? title : name)) return found;
  }
  return rank_names::only_number(title);
}

/// Compares names as people sort them: runs of digits by their value, and then by their text.
[[nodiscard]] inline std::strong_ordering compare_names(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!rank_names::is_digit(a[i]) || !rank_names::is_digit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) <=> static_cast<unsigned char>(b[j]);
      ++i;
      ++j;
      continue;
    }
    const auto run = [](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && rank_names::is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = run(a, i), y = run(b, j);
    if (x.size() != y.size()) return x.size() <=> y.size();
    if (const auto order = x.compare(y) <=> 0; order != 0) return order;
  }
  if (const auto order = a.size() - i <=> b.size() - j; order != 0) return order;
  return a.compare(b) <=> 0;
}

}  // namespace replay
