// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "files.hpp"
#include "strict_json.hpp"
#include "text.hpp"

/// The measurements of the verb ranks for one file, and their JSON.
namespace replay {

/// A recipe under a configuration string.
struct rank_setting {
  std::string recipe;
  std::string conf;
  bool operator==(const rank_setting&) const = default;

  /// What a user writes: the string alone for pytorch.
  [[nodiscard]] std::string text() const {
    return conf.empty() ? recipe : recipe == "pytorch" ? conf : recipe + ", " + conf;
  }
};

/// A replay of a rank with a setting, from its live blocks at the start on; sizes in bytes.
struct setting_result {
  rank_setting setting;
  std::size_t peak_reserved = 0;        ///< on a device that never runs out of memory
  std::optional<std::size_t> capacity;  ///< the smallest tested one that suffices; nothing if none does
  std::optional<bool> completes;        ///< with the device's capacity; nothing if that is unknown
  bool operator==(const setting_result&) const = default;
};

/// The first request of a rank that failed; sizes in bytes.
struct rank_failure {
  std::size_t count = 0;  ///< of failed requests
  std::size_t requested = 0;
  std::size_t live = 0;  ///< when it failed, also those bytes that a stream still used
  std::size_t reserved = 0;
  std::size_t capacity = 0;
  bool operator==(const rank_failure&) const = default;
};

/// One device of a file; sizes in bytes.
struct rank_row {
  std::optional<std::size_t> device;  ///< nothing if the file is no snapshot
  std::string error{};                ///< if it is not empty, nothing else is known
  std::size_t operations = 0;
  std::size_t peak_live = 0;
  std::size_t peak_reserved = 0;
  bool recorded = false;  ///< the peaks are those of the recorded device, not of a replay
  std::string rules{};    ///< the PyTorch release whose rules the settings follow: 2.6 or 2.14
  /// Whether the replay under the recorded settings decides as the device did; nothing if unknown.
  std::optional<bool> agrees;
  std::string conf{};                   ///< the recorded settings
  std::optional<std::size_t> capacity;  ///< the device's, if it is known
  std::optional<rank_failure> failure;
  std::vector<setting_result> settings{};
  bool operator==(const rank_row&) const = default;
};

/// All that is known of a file. Equal files, arguments and versions give equal results, byte for byte.
struct rank_result {
  std::string version;  ///< of the tool
  std::string asked;    ///< the arguments that affect the result
  std::string file;     ///< its absolute path
  std::uint64_t size = 0;
  std::uint64_t modified_ns = 0;
  std::string error{};  ///< if it is not empty, there are no rows
  std::vector<rank_row> rows{};
  bool operator==(const rank_result&) const = default;
};

inline constexpr std::uint64_t rank_format = 1;

/// Formats a result as one line of JSON.
[[nodiscard]] inline std::string to_json(const rank_result& r) {
  const auto quoted = [](std::string_view text) { return '"' + json_text(text) + '"'; };
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  const auto truth = [](bool is) { return std::string(is ? "true" : "false"); };
  std::string text = "{\"tessera_ranks\": " + number(rank_format) + ", \"version\": " + quoted(r.version) +
                     ", \"asked\": " + quoted(r.asked) + ", \"file\": " + quoted(r.file) +
                     ", \"size\": " + number(r.size) + ", \"modified_ns\": " + number(r.modified_ns);
  if (!r.error.empty()) return text + ", \"error\": " + quoted(r.error) + "}\n";
  text += ", \"rows\": [";
  for (const rank_row& row : r.rows) {
    text += &row == r.rows.data() ? "{" : ", {";
    if (row.device) text += "\"device\": " + number(*row.device) + ", ";
    if (!row.error.empty()) {
      text += "\"error\": " + quoted(row.error) + "}";
      continue;
    }
    text += "\"operations\": " + number(row.operations) + ", \"peak_live\": " + number(row.peak_live) +
            ", \"peak_reserved\": " + number(row.peak_reserved) + ", \"recorded\": " + truth(row.recorded) +
            ", \"rules\": " + quoted(row.rules) + ", \"conf\": " + quoted(row.conf);
    if (row.agrees) text += ", \"agrees\": " + truth(*row.agrees);
    if (row.capacity) text += ", \"capacity\": " + number(*row.capacity);
    if (row.failure) {
      const rank_failure& f = *row.failure;
      text += ", \"failure\": {\"count\": " + number(f.count) + ", \"requested\": " + number(f.requested) +
              ", \"live\": " + number(f.live) + ", \"reserved\": " + number(f.reserved) +
              ", \"capacity\": " + number(f.capacity) + "}";
    }
    text += ", \"settings\": [";
    for (const setting_result& s : row.settings) {
      text += &s == row.settings.data() ? "{" : ", {";
      text += "\"recipe\": " + quoted(s.setting.recipe) + ", \"conf\": " + quoted(s.setting.conf) +
              ", \"peak_reserved\": " + number(s.peak_reserved);
      if (s.capacity) text += ", \"capacity\": " + number(*s.capacity);
      if (s.completes) text += ", \"completes\": " + truth(*s.completes);
      text += "}";
    }
    text += "]}";
  }
  return text + "]}\n";
}

/// Reads what to_json wrote, as strictly as it wrote it.
class rank_result_reader {
 public:
  static constexpr std::size_t max_line_bytes = std::size_t{4} << 20;  // about 10,000 settings of devices
  static constexpr std::size_t max_rows = 65536;                       // as a snapshot may have devices
  static constexpr std::size_t max_settings = 256;
  static constexpr std::size_t max_text_bytes = 16384;

  ///   Returns:  the result, or an error with its line and column
  [[nodiscard]] static read_result<rank_result> read(std::string_view text, const std::string& name,
                                                     std::size_t line = 1) {
    if (text.size() > max_line_bytes)
      return input_error{name + ":" + std::to_string(line),
                         "a result is longer than " + std::to_string(max_line_bytes) + " bytes"};
    auto parsed = strict_json::read(text, name, line);
    if (auto* const error = std::get_if<input_error>(&parsed)) return std::move(*error);
    rank_result_reader reader(text, name, line);
    rank_result found = reader.result(std::get<json_value>(parsed));
    if (reader.in_.error()) return *reader.in_.error();
    return found;
  }
  /// Reads a file with one result a line.
  [[nodiscard]] static read_result<std::vector<rank_result>> read_lines(std::string_view text,
                                                                        const std::string& name) {
    std::vector<rank_result> found;
    std::size_t line = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      ++line;
      if (one.find_first_not_of(" \t\r") == one.npos) continue;
      auto made = read(one, name, line);
      if (auto* const error = std::get_if<input_error>(&made)) return std::move(*error);
      found.push_back(std::move(std::get<rank_result>(made)));
    }
    if (found.empty()) return input_error{name, "has no result of the verb ranks"};
    return found;
  }

 private:
  static constexpr std::uint64_t max_bytes = std::numeric_limits<std::int64_t>::max();

  rank_result_reader(std::string_view text, const std::string& name, std::size_t line)
      : in_(text, name, line) {}

  [[nodiscard]] rank_result result(const json_value& from) {
    constexpr std::string_view keys[] = {"tessera_ranks", "version",     "asked", "file",
                                         "size",          "modified_ns", "error", "rows"};
    rank_result made;
    in_.check_keys(from, keys);
    const std::uint64_t format = in_.number(from, "tessera_ranks", ~std::uint64_t{0});
    if (in_.good() && format != rank_format)
      in_.fail(from, "the format is " + std::to_string(format) + "; this version reads " +
                         std::to_string(rank_format));
    made.version = in_.text(from, "version", 64);
    made.asked = in_.text(from, "asked", max_text_bytes * 4);
    made.file = in_.text(from, "file", max_text_bytes);
    made.size = in_.number(from, "size", ~std::uint64_t{0});
    made.modified_ns = in_.number(from, "modified_ns", ~std::uint64_t{0});
    if (in_.has(from, "error")) {
      made.error = error_in(from);
      if (in_.has(from, "rows")) in_.fail(from, "has an error and rows");
      return made;
    }
    const auto& rows = in_.list(from, "rows", max_rows);
    if (in_.good() && rows.empty()) in_.fail(from, "'rows' is empty");
    for (const json_value& one : rows) {
      if (!in_.good()) break;
      made.rows.push_back(row(one));
      const std::size_t last = made.rows.size() - 1;
      if (last > 0 && !(made.rows[last - 1].device < made.rows[last].device))
        in_.fail(one, "the devices are not in order");
    }
    return made;
  }

  [[nodiscard]] std::string error_in(const json_value& from) {
    std::string text = in_.text(from, "error", max_text_bytes * 4);
    if (in_.good() && text.empty()) in_.fail(from, "'error' is empty");
    return text;
  }

  [[nodiscard]] rank_row row(const json_value& from) {
    constexpr std::string_view keys[] = {"device",        "error",    "operations", "peak_live",
                                         "peak_reserved", "recorded", "rules",      "agrees",
                                         "conf",          "capacity", "failure",    "settings"};
    rank_row made;
    in_.check_keys(from, keys);
    made.device = in_.optional_number(from, "device", max_rows - 1);
    if (in_.has(from, "error")) {
      made.error = error_in(from);
      if (from.keys.size() > 1u + made.device.has_value()) in_.fail(from, "has an error and measurements");
      return made;
    }
    made.operations = static_cast<std::size_t>(in_.number(from, "operations", max_bytes));
    made.peak_live = bytes(from, "peak_live");
    made.peak_reserved = bytes(from, "peak_reserved");
    made.recorded = in_.boolean(from, "recorded");
    made.rules = in_.text(from, "rules", 16);
    if (in_.good() && made.rules != "2.6" && made.rules != "2.14")
      in_.fail(from, "'rules' must be 2.6 or 2.14");
    made.conf = in_.text(from, "conf", max_text_bytes);
    if (in_.has(from, "agrees")) made.agrees = in_.boolean(from, "agrees");
    made.capacity = in_.optional_number(from, "capacity", max_bytes);
    if (const json_value* const failed = in_.find(from, "failure")) made.failure = failure(*failed);
    for (const json_value& one : in_.list(from, "settings", max_settings)) {
      if (!in_.good()) break;
      setting_result next = setting(one);
      const auto is_same = [&next](const setting_result& s) { return s.setting == next.setting; };
      if (std::any_of(made.settings.begin(), made.settings.end(), is_same))
        in_.fail(one, "the setting is there twice");
      if (next.completes.has_value() != made.capacity.has_value())
        in_.fail(one, "'completes' must be there if and only if the capacity is known");
      made.settings.push_back(std::move(next));
    }
    return made;
  }

  [[nodiscard]] rank_failure failure(const json_value& from) {
    constexpr std::string_view keys[] = {"count", "requested", "live", "reserved", "capacity"};
    rank_failure made;
    in_.check_keys(from, keys);
    made.count = static_cast<std::size_t>(in_.number(from, "count", max_bytes));
    if (in_.good() && made.count == 0) in_.fail(from, "'count' must be positive");
    made.requested = bytes(from, "requested");
    made.live = bytes(from, "live");
    made.reserved = bytes(from, "reserved");
    made.capacity = bytes(from, "capacity");
    return made;
  }

  [[nodiscard]] setting_result setting(const json_value& from) {
    constexpr std::string_view keys[] = {"recipe", "conf", "peak_reserved", "capacity", "completes"};
    setting_result made;
    in_.check_keys(from, keys);
    made.setting.recipe = in_.text(from, "recipe", max_text_bytes);
    made.setting.conf = in_.text(from, "conf", max_text_bytes);
    made.peak_reserved = bytes(from, "peak_reserved");
    made.capacity = in_.optional_number(from, "capacity", max_bytes);
    if (in_.has(from, "completes")) made.completes = in_.boolean(from, "completes");
    return made;
  }

  [[nodiscard]] std::size_t bytes(const json_value& from, std::string_view key) {
    return static_cast<std::size_t>(in_.number(from, key, max_bytes));
  }

  json_fields in_;
};

}  // namespace replay
