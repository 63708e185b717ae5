// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <tessera/core/oom_report.hpp>
#include <tessera/core/oom_text.hpp>
#include <tessera/core/statistics.hpp>

namespace tessera {

/// The device is full after everything the recipe tries; carries what explains it, as numbers and in words.
///
///     try {
///       pool.deallocate(pool.allocate(100_GiB));
///     } catch (const tessera::out_of_memory& error) {
///       std::puts(error.what());
///     }
class out_of_memory final : public std::bad_alloc {
 public:
  explicit out_of_memory(const oom_report& told) noexcept : report_(told) { oom_writer(told, text_); }

  /// The report in at most 12 lines.
  [[nodiscard]] const char* what() const noexcept override { return text_; }
  [[nodiscard]] const oom_report& report() const noexcept { return report_; }
  [[nodiscard]] std::size_t requested() const noexcept { return report_.requested; }
  [[nodiscard]] std::size_t segment() const noexcept { return report_.segment; }
  [[nodiscard]] const usage& at_failure() const noexcept { return report_.now; }

 private:
  oom_report report_;
  char text_[oom_text_bytes];
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
