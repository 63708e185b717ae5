// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/text.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/timed.hpp>

namespace tessera {

/// All that is counted of one allocator, at one time, whatever its recipe; counters and counts bear PyTorch's names.
struct memory_report {
  struct count {
    const char* name;
    std::uint64_t value;
  };
  usage now{};
  std::size_t pinned =
      0;  ///< bytes of the cache that trim() cannot give back, as live blocks share their segments
  std::size_t footprint = 0;  ///< bytes of host memory that describe the blocks
  pool_statistics all{};
  std::vector<pool_statistics> pools;
  counter oversize_allocations{};
  counter oversize_segments{};
  counter device_bytes{};
  std::array<count, std::size(event_counts<1>)> counts{};
  std::size_t max_split_size = unlimited;            ///< bytes
  std::array<call_time, call_times::count> calls{};  ///< in microseconds; of a `timed` provider, else none

  [[nodiscard]] std::string pool_name(std::size_t number) const {
    if (pools.size() == 2) return number == 0 ? "small_pool" : "large_pool";
    return "pool_" + std::to_string(number);
  }
};

/// The report of an allocator; of a per_device, ask the front of each device.
///
///     std::puts(tessera::table_of(tessera::report_of(pool)).c_str());
///
///   Cost:  linear in the blocks
template <typename Allocator>
[[nodiscard]] memory_report report_of(Allocator& pool, const call_times* times = nullptr) {
  static_assert(!requires { pool.devices(); }, "report_of: of a per_device, ask the front of each device");
  memory_report made;
  pool.for_each_device([&made, times](auto& front, std::size_t) {
    made.now = front.now();
    made.footprint = front.footprint();
    front.for_each_allocator([&made](auto& one) { made.pinned += pinned_bytes(one); });
    const auto books = front.statistics();
    constexpr std::size_t count = std::tuple_size_v<decltype(books.pool)>;
    made.all = books.all;
    made.pools.assign(books.pool.begin(), books.pool.end());
    made.oversize_allocations = books.oversize_allocations;
    made.oversize_segments = books.oversize_segments;
    made.device_bytes = books.device_bytes;
    for (std::size_t i = 0; i < made.counts.size(); ++i)
      made.counts[i] = {event_counts<count>[i].name, books.*event_counts<count>[i].of};
    made.max_split_size = books.max_split_size;
    for (std::size_t i = 0; times != nullptr && i < made.calls.size(); ++i)
      made.calls[i] = times->of(static_cast<provider_call>(i));
  });
  return made;
}

/// Builds the texts of a report, line by line.
class report_text {
 public:
  explicit report_text(const memory_report& of) noexcept : of_(of) {}

  [[nodiscard]] std::string table() && {
    const usage& now = of_.now;
    add("reserved %s of %s: live %s (requested %s), pending %s, cached %s, of it pinned %s\n",
        format_bytes(now.reserved).text(), format_bytes(now.limit).text(), format_bytes(now.live).text(),
        format_bytes(now.requested).text(), format_bytes(now.pending).text(), format_bytes(now.cached).text(),
        format_bytes(of_.pinned).text());
    add("described in %s of host memory\n\n%-26s%14s%14s%14s%14s\n", format_bytes(of_.footprint).text(), "",
        "current", "peak", "allocated", "freed");
    for (const pool_counter& c : pool_counters) {
      row(c.name, of_.all.*c.of);
      for (std::size_t in = 0; in < of_.pools.size() && of_.pools.size() > 1; ++in)
        row("  " + of_.pool_name(in), of_.pools[in].*c.of, is_bytes(c.name));
    }
    row("oversize_allocations", of_.oversize_allocations);
    row("oversize_segments", of_.oversize_segments);
    row("device_bytes", of_.device_bytes);
    for (const memory_report::count& c : of_.counts) add("%-26s%14" PRIu64 "\n", c.name, c.value);
    if (of_.max_split_size != unlimited)
      add("%-26s%14s\n", "max_split_size", format_bytes(of_.max_split_size).text());
    calls_as_rows();
    return std::move(text_);
  }

  [[nodiscard]] std::string json() && {
    const usage& now = of_.now;
    add("{\"now\": {\"requested\": %zu, \"live\": %zu, \"pending\": %zu, \"cached\": %zu, \"pinned\": %zu, "
        "\"reserved\": %zu, \"limit\": %zu}, \"footprint\": %zu",
        now.requested, now.live, now.pending, now.cached, of_.pinned, now.reserved, now.limit, of_.footprint);
    for (const pool_counter& c : pool_counters) {
      add(",\n \"%s\": {\"all\": ", c.name);
      object(of_.all.*c.of);
      for (std::size_t in = 0; in < of_.pools.size(); ++in) {
        add(", \"%s\": ", of_.pool_name(in).c_str());
        object(of_.pools[in].*c.of);
      }
      add("}");
    }
    add(",\n \"oversize_allocations\": ");
    object(of_.oversize_allocations);
    add(", \"oversize_segments\": ");
    object(of_.oversize_segments);
    add(", \"device_bytes\": ");
    object(of_.device_bytes);
    for (const memory_report::count& c : of_.counts) add(",\n \"%s\": %" PRIu64, c.name, c.value);
    const bool is_limited = of_.max_split_size != unlimited;
    add(",\n \"max_split_size\": %" PRId64, is_limited ? static_cast<std::int64_t>(of_.max_split_size) : -1);
    add(",\n \"device_calls\": {");
    for (std::size_t i = 0; i < of_.calls.size(); ++i) {
      const call_time& t = of_.calls[i];
      add("%s\"%s\": {\"count\": %" PRIu64 ", \"total_us\": %" PRIu64 ", \"max_us\": %" PRIu64 "}",
          i > 0 ? ", " : "", name_of(static_cast<provider_call>(i)), t.count, t.total, t.max);
    }
    add("}}");
    return std::move(text_);
  }

 private:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    char line[512];
    std::va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (length > 0) text_.append(line, (std::min)(static_cast<std::size_t>(length), sizeof line - 1));
  }
  [[nodiscard]] static bool is_bytes(std::string_view name) noexcept { return name.ends_with("_bytes"); }
  void row(const std::string& name, const counter& c) { row(name, c, is_bytes(name)); }
  void row(const std::string& name, const counter& c, bool bytes) {
    add("%-26s", name.c_str());
    for (const std::int64_t value : {c.current, c.peak, c.allocated, c.freed}) {
      if (bytes && value >= 0) {
        add("%14s", format_bytes(static_cast<std::size_t>(value)).text());
      } else {
        add("%14" PRId64, value);
      }
    }
    add("\n");
  }
  void object(const counter& c) {
    add("{\"current\": %" PRId64 ", \"peak\": %" PRId64 ", \"allocated\": %" PRId64 ", \"freed\": %" PRId64
        "}",
        c.current, c.peak, c.allocated, c.freed);
  }
  void calls_as_rows() {
    bool any = false;
    for (std::size_t i = 0; i < of_.calls.size(); ++i) {
      const call_time& t = of_.calls[i];
      if (t.count == 0) continue;
      if (!any)
        add("\n%-26s%14s%14s%14s%14s\n", "device calls", "calls", "total us", "mean us", "longest us");
      any = true;
      add("  %-24s%14" PRIu64 "%14" PRIu64 "%14.1f%14" PRIu64 "\n", name_of(static_cast<provider_call>(i)),
          t.count, t.total, t.average(), t.max);
    }
  }

  const memory_report& of_;
  std::string text_;
};

/// A report for people; sizes are rounded.
[[nodiscard]] inline std::string table_of(const memory_report& report) { return report_text(report).table(); }
/// The same for programs, exact and in bytes. What PyTorch counts stands where its memory_stats_as_nested_dict() has it.
[[nodiscard]] inline std::string json_of(const memory_report& report) { return report_text(report).json(); }

}  // namespace tessera
