// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <tessera/core/types.hpp>
#include <tessera/provider/rules.hpp>

namespace tessera::inline v0_1::law::detail {

namespace rules = tessera::detail::rules;
using rules::rule;

/// Memory at addresses; nothing if `begin` is 0.
struct trial_segment {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;

  [[nodiscard]] void* at() const noexcept { return reinterpret_cast<void*>(begin); }
  [[nodiscard]] bool overlaps(const trial_segment& other) const noexcept {
    if (begin == 0 || other.begin == 0) return false;
    return begin >= other.begin ? begin - other.begin < other.bytes : other.begin - begin < bytes;
  }
};
[[nodiscard]] inline trial_segment segment_at(const void* p, std::size_t bytes) noexcept {
  return {reinterpret_cast<std::uintptr_t>(p), bytes};
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Laws that were not checked, and the reason.
struct unchecked_law {
  const char* law;  ///< the name of the law
  const char* why;  ///< for example a capability that the provider lacks
};

/// The first rule that a provider breaks, the values that show it, and the laws that were not checked.
///
///     #include <tessera/law/provider_laws.hpp>
///     tessera::provider::simulated_device device;
///     const tessera::law::provider_check_result found = tessera::law::provider(device);
///     if (!found) std::puts(found.message());
///     for (const auto& [law, why] : found.not_checked()) std::printf("%s: not checked, %s\n", law, why);
struct provider_check_result {
  const char* broken = nullptr;  ///< the text of the first broken rule; null if all hold

  /// Whether no rule is broken. Laws may not have been checked.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == nullptr; }
  /// The broken rule and the values that show it; empty if no rule is broken.
  [[nodiscard]] const char* message() const noexcept { return text_.c_str(); }
  /// The laws that could not be checked, with the reasons.
  [[nodiscard]] std::span<const unchecked_law> not_checked() const noexcept {
    return {unchecked_.data(), count_};
  }
  /// Whether every law of the provider's capabilities was checked and holds.
  [[nodiscard]] bool is_complete() const noexcept { return broken == nullptr && count_ == 0; }
  /// The message, and a line for each law that was not checked.
  ///   Throws:  std::bad_alloc
  [[nodiscard]] std::string report() const {
    std::string lines = broken != nullptr ? message() : "no rule is broken";
    for (const unchecked_law& each : not_checked()) {
      lines += "\nnot checked: ";
      lines += each.law;
      lines += ": ";
      lines += each.why;
    }
    return lines;
  }

  /// Keeps the first rule that does not hold. The values are pairs of a name and a value; a segment, a stream
  /// and a kind of pages need no name.
  template <typename... Values>
  void must_hold(bool holds, detail::rule law, const Values&... values) noexcept {
    if (!holds) fail(law, values...);
  }
  /// The same for a rule that does not hold.
  template <typename... Values>
  void fail(detail::rule law, const Values&... values) noexcept {
    if (broken != nullptr) return;
    broken = law.text;
    text_.add(law.text);
    text_.add_values(": ", values...);
  }
  /// Keeps that laws were not checked.
  void skip(const char* law, const char* why) noexcept {
    for (const unchecked_law& each : not_checked())
      if (each.law == law) return;
    if (count_ < unchecked_.size()) unchecked_[count_++] = {law, why};
  }
  /// Adds the result of further laws.
  void add(const provider_check_result& next) noexcept {
    if (broken == nullptr) {
      broken = next.broken;
      text_ = next.text_;
    }
    for (const unchecked_law& each : next.not_checked()) skip(each.law, each.why);
  }

 private:
  tessera::detail::rules::values_text text_;
  std::array<unchecked_law, 24> unchecked_{};
  std::size_t count_ = 0;
};

/// The limits of the laws of a provider. A type derived from it adds the means that the law of providers
/// lists [law/provider_laws.hpp].
struct provider_trial {
  std::size_t at_once = 16_MiB;    ///< bytes held at once in most checks
  stream_id other_stream{};        ///< a second stream; none if it is the default stream
  bool fills_host_memory = false;  ///< whether three quarters of memory that the host can access may be taken
  /// Whether to acquire 0 bytes and to release what is no segment. No allocator does that, and a provider
  /// over a function such as free() may crash.
  bool tries_wrong_releases = false;
};

}  // namespace tessera::inline v0_1::law

namespace tessera::inline v0_1::law::detail {

/// Returns the result of a law that is checked alone.
template <typename F>
[[nodiscard]] provider_check_result result_of(F run_law) {
  provider_check_result found;
  run_law(found);
  return found;
}

/// The provider that does the work behind adaptors.
template <typename D>
[[nodiscard]] auto& innermost(D& device) noexcept {
  if constexpr (requires { device.inner().capacity(); })
    return innermost(device.inner());
  else
    return device;
}

}  // namespace tessera::inline v0_1::law::detail
