// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/replay/recording.hpp>
#include "pickle.hpp"

namespace tessera::trace {

/// Looks up the fields of dicts in a pickle, and remembers the first one that breaks a rule. It also books the memory that
/// is made of them, as a short pickle can refer to the same things again and again.
class pickled_fields {
 public:
  using kind = pickled::kind;

  explicit pickled_fields(const pickle& source) : source_(source) {}

  [[nodiscard]] bool good() const noexcept { return rule_.empty(); }
  /// What is wrong with the pickle of a file; nothing while all is well.
  [[nodiscard]] std::optional<input_error> error(const std::string& file) const {
    if (good()) return {};
    return input_error{file + ": byte " + std::to_string(at_), rule_};
  }
  void fail(const pickled& at, std::string rule) { fail(at.at, std::move(rule)); }
  void fail(std::size_t byte, std::string rule) {
    if (good()) at_ = byte, rule_ = std::move(rule);
  }
  /// Forgets what was wrong: for a part that may be left out.
  void pardon() { rule_.clear(); }

  /// Books the memory that `count` of something take, so that a file which refers to the same things again and again
  /// is refused before they fill it.
  bool afford(const pickled& at, std::size_t count, std::size_t each) {
    if (count <= left_ / each) return left_ -= count * each, true;
    fail(at, "it refers to the same things so often that they would take more than " +
                 std::to_string(most_per_byte) + " bytes for each of the file's");
    return false;
  }
  /// The same for a dict that is looked through.
  bool afford(const pickled& dict) { return afford(dict, dict.items.size() + 1, 1); }

  [[nodiscard]] const pickled* optional(const pickled& dict, std::string_view key, kind wanted) {
    if (dict.is != kind::dict) fail(dict, "a dict is expected");
    const pickled* const found = source_.find(dict, key);
    if (found != nullptr && found->is != wanted)
      fail(*found, "'" + std::string(key) + "' has the wrong type");
    return good() ? found : nullptr;
  }
  [[nodiscard]] const pickled* required(const pickled& dict, std::string_view key, kind wanted) {
    const pickled* const found = optional(dict, key, wanted);
    if (found == nullptr) fail(dict, "'" + std::string(key) + "' is missing");
    return found;
  }
  [[nodiscard]] std::uint64_t natural(const pickled* value, std::string_view key) {
    if (value == nullptr) return 0;
    if (value->integer < 0 && !value->is_wide) fail(*value, "'" + std::string(key) + "' is negative");
    return static_cast<std::uint64_t>(value->integer);
  }
  [[nodiscard]] std::uint64_t number(const pickled& dict, std::string_view key) {
    return natural(required(dict, key, kind::integer), key);
  }
  /// Where something lies in memory, as no device has more than 63 bits of addresses.
  [[nodiscard]] std::uint64_t address(const pickled& dict, std::string_view key) {
    const std::uint64_t n = number(dict, key);
    if (n >> 63 != 0)
      fail(dict, "'" + std::string(key) + "' is " + std::to_string(n) + "; addresses are below 2^63");
    return n;
  }
  [[nodiscard]] std::size_t bytes(const pickled& dict, std::string_view key) {
    const std::uint64_t n = number(dict, key);
    if (n > max_request) fail(dict, "'" + std::string(key) + "' is " + above_max_request(n));
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] std::string_view text(const pickled& dict, std::string_view key) {
    const pickled* const found = required(dict, key, kind::text);
    return found != nullptr ? found->text : std::string_view{};
  }
  /// A number that no decision depends on; 0 where it is missing or something else.
  [[nodiscard]] std::uint64_t aside(const pickled& dict, std::string_view key) const noexcept {
    const pickled* const found = source_.find(dict, key);
    const bool is_natural =
        found != nullptr && found->is == kind::integer && (found->integer >= 0 || found->is_wide);
    return is_natural ? static_cast<std::uint64_t>(found->integer) : 0;
  }

 private:
  static constexpr std::size_t most_per_byte =
      28;  // an empty trace takes 24, and the number of what was read 4

  const pickle& source_;
  std::size_t left_ = saturating_add(operator""_KiB(64), source_.bytes() * most_per_byte);
  std::size_t at_ = 0;
  std::string rule_;
};

}  // namespace tessera::trace
