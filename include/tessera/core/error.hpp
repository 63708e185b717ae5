// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <tessera/core/usage.hpp>

namespace tessera {

/// The device is full after everything the recipe tries; carries the numbers that explain it, in bytes.
class out_of_memory final : public std::bad_alloc {
 public:
  out_of_memory(std::size_t requested, std::size_t segment, const usage& now) noexcept
      : requested_(requested), segment_(segment), now_(now) {
    std::snprintf(
        text_, sizeof text_,
        "tessera: out of memory: %zu bytes requested, a segment of %zu needed; reserved %zu of %zu, "
        "of it live %zu, pending %zu, cached %zu",
        requested, segment, now.reserved, now.limit, now.live, now.pending, now.cached);
  }

  [[nodiscard]] const char* what() const noexcept override { return text_; }
  [[nodiscard]] std::size_t requested() const noexcept { return requested_; }
  [[nodiscard]] std::size_t segment() const noexcept { return segment_; }
  [[nodiscard]] const usage& at_failure() const noexcept { return now_; }

 private:
  std::size_t requested_;
  std::size_t segment_;
  usage now_;
  char text_[256];
};

/// Throws `error`; where exceptions are switched off, says it and ends the program.
template <typename Error = out_of_memory>
[[noreturn]] inline void raise(const Error& error) {
#if defined(__cpp_exceptions)
  throw error;
#else
  std::fprintf(stderr, "%s\n", error.what());
  std::abort();
#endif
}

}  // namespace tessera
