// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstdio>
#include <new>

#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::detail {

/// The numbers of a failed request; sizes are in bytes.
struct oom_numbers {
  std::size_t requested = 0;
  std::size_t block = 0;    ///< size of the block that would serve it; 0 if the request exceeds max_request
  std::size_t segment = 0;  ///< size of the segment, or of the pages, that it needs
  stream_id stream{};
  usage now{};
  std::size_t capacity = 0;           ///< capacity of the device
  std::size_t available = unlimited;  ///< free bytes of the device, if it knows them
  std::size_t largest_free = 0;       ///< size of the largest free block
  int device = -1;                    ///< number of the device; negative if the allocator does not know it
  std::int64_t waited_ms = -1;        ///< wait of a front end for other threads; negative if none
  refusal refused{};                  ///< why the provider or an extension refuses the request, if it says so
  std::size_t plan = 0;               ///< of the reserved bytes: those of a plan [tessera/plan/planned.hpp]
  bool by_extension = false;          ///< whether an extension refuses; the other numbers then matter less

  /// Notes the rule of an extension that refuses the request, unless another one refuses it, too.
  void refuse(const refusal& rule) noexcept {
    if (by_extension) return;
    refused = rule;
    by_extension = true;
  }
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// The result of a call that can fail: true if it worked, else why it did not.
struct [[nodiscard]] outcome {
  const char* why = nullptr;  ///< why nothing changed, as text; null if the call worked
  /// Whether the call worked.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return why == nullptr; }
};

/// Thrown if a request gets no memory: the device or a limit is full and recovery failed, an extension refuses, or the
/// request exceeds max_request. Carries the numbers, and a text of at most four lines.
/// explain() [tessera/observe/explain.hpp] says why the request failed, and suggests settings.
///
///     try {
///       allocator.deallocate(allocator.allocate(100_GiB));
///     } catch (const tessera::out_of_memory& error) {
///       std::puts(error.what());
///     }
class out_of_memory final : public std::bad_alloc {
 public:
  /// Made by the allocator; make_out_of_memory() makes one without a failed request.
  explicit out_of_memory(const detail::oom_numbers& numbers) noexcept : numbers_(numbers) { write(); }

  [[nodiscard]] const char* what() const noexcept override { return text_; }
  /// All numbers at once, also those without a call below.
  [[nodiscard]] const detail::oom_numbers& numbers() const noexcept { return numbers_; }
  /// Bytes that the program asked for.
  [[nodiscard]] std::size_t requested() const noexcept { return numbers_.requested; }
  /// Bytes of the segment that the request needs, after all rounding; in ranges, of whole pages that hold its block.
  [[nodiscard]] std::size_t segment() const noexcept { return numbers_.segment; }
  /// The stream of the request.
  [[nodiscard]] stream_id stream() const noexcept { return numbers_.stream; }
  /// The use of the allocator's memory when the request failed.
  [[nodiscard]] const usage& at_failure() const noexcept { return numbers_.now; }
  /// Bytes that the device could still give, perhaps not in one piece; `unlimited` if that is unknown.
  [[nodiscard]] std::size_t available() const noexcept { return numbers_.available; }
  /// Why the provider refused memory for the request, in its words, or how the request exceeds the provider's
  /// limit, or which rule of an extension refuses it. Empty if none applies, or if the provider gives no reasons.
  [[nodiscard]] const char* why() const noexcept { return numbers_.refused.text(); }

 private:
  [[gnu::cold]] void write() noexcept {
    const detail::oom_numbers& n = numbers_;
    char device[24] = "";
    if (n.device >= 0) TESSERA_DETAIL_SNPRINTF(device, sizeof device, " of device %d", n.device);
    char stream[48];
    if (n.stream.handle < 100'000) {
      TESSERA_DETAIL_SNPRINTF(stream, sizeof stream, "%" PRIu64 "%s", n.stream.handle, device);
    } else {
      TESSERA_DETAIL_SNPRINTF(stream, sizeof stream, "0x%" PRIx64 "%s", n.stream.handle, device);
    }
    if (n.requested > max_request) {
      TESSERA_DETAIL_SNPRINTF(
          text_, sizeof text_,
          "tessera: out of memory: %zu bytes requested on stream %s; no request above %zu bytes is "
          "served",
          n.requested, stream, max_request);
      return;
    }
    if (n.by_extension) {
      TESSERA_DETAIL_SNPRINTF(
          text_, sizeof text_,
          "tessera: out of memory: %s (%zu byte%s) requested on stream %s; needs a block of %s\n  %s",
          format_bytes(n.requested).text(), n.requested, n.requested == 1 ? "" : "s", stream,
          format_bytes(n.block).text(), n.refused.text());
      return;
    }
    char more[64] = "";
    int used = 0;
    if (n.plan > 0)
      used = TESSERA_DETAIL_SNPRINTF(more, sizeof more, "; a plan has %s", format_bytes(n.plan).text());
    if (n.waited_ms >= 0)
      TESSERA_DETAIL_SNPRINTF(more + used, sizeof more - static_cast<std::size_t>(used),
                              "; waited %" PRId64 " ms for other threads", n.waited_ms);
    TESSERA_DETAIL_SNPRINTF(
        text_, sizeof text_,
        "tessera: out of memory: %s (%zu byte%s) requested on stream %s; needs a block of %s%s%s%s\n"
        "  reserved %s of at most %s (device: %s): live %s, pending %s, cached %s; largest free block %s\n"
        "%s%s%s"
        "  explain(allocator, bytes, stream) says why, and what would help [tessera/observe/explain.hpp]",
        format_bytes(n.requested).text(), n.requested, n.requested == 1 ? "" : "s", stream,
        format_bytes(n.block).text(), n.segment > n.block ? " and a segment of " : "",
        n.segment > n.block ? format_bytes(n.segment).text() : "", more, format_bytes(n.now.reserved).text(),
        format_bytes(n.now.limit).text(), format_bytes(n.capacity).text(),
        format_bytes(n.now.allocated).text(), format_bytes(n.now.pending()).text(),
        format_bytes(n.now.cached).text(), format_bytes(n.largest_free).text(),
        n.refused ? "  the provider says: " : "", n.refused.text(), n.refused ? "\n" : "");
  }

  detail::oom_numbers numbers_;
  char text_[784];
};

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// Throws `error`; without exceptions, prints it and aborts the program.
template <typename Error = out_of_memory>
[[noreturn]] inline void raise(const Error& error) {
#if defined(__cpp_exceptions)
  throw error;
#else
  std::fprintf(stderr, "%s\n", error.what());
  std::abort();
#endif
}

/// Runs code that may throw std::bad_alloc; false if it threw. Without exceptions, a lack of host memory ends the program.
template <typename F>
[[nodiscard]] bool try_run(F work) noexcept {
#if defined(__cpp_exceptions)
  try {
    work();
  } catch (...) {
    return false;
  }
#else
  work();
#endif
  return true;
}

}  // namespace tessera::inline v0_1::detail
