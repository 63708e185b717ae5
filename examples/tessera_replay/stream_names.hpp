// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/trace/recording.hpp>

namespace replay {

/// Names the streams of a recording for people. A handle that is an address becomes a number, in the order in which the streams
/// appear. Handles that are small numbers already keep them.
class stream_names {
 public:
  explicit stream_names(const std::vector<tessera::trace::event>& events) {
    std::set<std::uint64_t> small;
    std::vector<std::uint64_t> large;
    using kind = tessera::trace::event::kind;
    for (const tessera::trace::event& e : events) {
      if (e.what != kind::allocate && e.what != kind::refused && e.what != kind::record_stream) continue;
      if (!is_address(e.stream.handle)) {
        small.insert(e.stream.handle);
      } else if (numbers_.emplace(e.stream.handle, 0).second) {
        large.push_back(e.stream.handle);
      }
    }
    std::size_t number = 0;
    for (const std::uint64_t handle : large) {
      do ++number;
      while (small.count(number) != 0);
      numbers_[handle] = number;
    }
  }

  /// The name as the object of a sentence. The first time, the handle follows the number.
  [[nodiscard]] std::string name(std::uint64_t handle) {
    if (handle == 0) return "the default stream";
    const auto found = numbers_.find(handle);
    if (found == numbers_.end())
      return "stream " + (is_address(handle) ? hex(handle) : std::to_string(handle));
    const std::string text = "stream " + std::to_string(found->second);
    return named_.insert(handle).second ? text + " (" + hex(handle) + ")" : text;
  }

  /// Replaces the handles in a text of the library, which has them after "on stream ".
  [[nodiscard]] std::string in(std::string_view text) {
    constexpr std::string_view before = "on stream ";
    std::string made;
    for (std::size_t at = 0; (at = text.find(before)) != text.npos;) {
      at += before.size();
      const std::string_view digits = text.substr(at, text.find_first_not_of("0123456789abcdefx", at) - at);
      made += text.substr(0, at - before.size());
      made += "on " + name(std::strtoull(std::string(digits).c_str(), nullptr, 0));
      text.remove_prefix(at + digits.size());
    }
    return made += text;
  }

  /// As the library writes handles: from here on, in hexadecimal.
  [[nodiscard]] static bool is_address(std::uint64_t handle) noexcept { return handle >= 100'000; }
  [[nodiscard]] static std::string hex(std::uint64_t handle) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%" PRIx64, handle);
    return text;
  }

 private:
  std::map<std::uint64_t, std::size_t> numbers_;  // by handle
  std::set<std::uint64_t> named_;                 // handles that a text had already
};

}  // namespace replay
