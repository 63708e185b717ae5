// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/timed.hpp>

namespace tessera::inline v0_1::observe {

/// All statistics of one allocator at one time. Counters have PyTorch's names. Every recipe has the same
/// counters.
///
///     std::puts(tessera::observe::memory_report(allocator).table().c_str());
struct memory_report : allocator_counters {
  usage now{};  ///< the use of the memory; of a planned, with the plan
  std::size_t non_releasable =
      0;  ///< cached bytes that trim() cannot release, as live blocks share their segments
  std::size_t metadata_bytes = 0;          ///< bytes of host memory that describe the blocks
  pool_statistics all{};                   ///< sums over all pools
  std::vector<pool_statistics> pools;      ///< by the number that the pools policy gives
  std::size_t max_split_size = unlimited;  ///< bytes
  std::array<provider::call_times::summary, provider::call_times::count>
      calls{};  ///< in microseconds; only with a `timed` provider
  std::optional<plan::plan_usage>
      by_plan;  ///< only of a `planned`; `now` and `non_releasable` have its memory, the counters do not

  /// Collects the statistics of an allocator. For a per_device, call it for each device's allocator.
  ///   Cost:  linear in the blocks
  template <typename Allocator>
  explicit memory_report(Allocator& allocator, const provider::call_times* times = nullptr) {
    static_assert(
        !requires { allocator.devices(); },
        "memory_report: make one for each device's allocator of a per_device");
    allocator.for_each_device([this](auto& front, std::size_t) { this->add(front); });
    if constexpr (requires { allocator.statistics().by_plan; }) {
      now = allocator.current_usage();  // with the plan's bytes
      metadata_bytes = allocator.metadata_bytes();
      by_plan = allocator.statistics().by_plan;
    }
    for (std::size_t i = 0; times != nullptr && i < calls.size(); ++i)
      calls[i] = times->of(static_cast<provider::provider_call::kind>(i));
  }

  /// The name of a pool in the table: small_pool and large_pool if there are two, otherwise pool_0 and so on.
  [[nodiscard]] std::string pool_name(std::size_t number) const {
    if (pools.size() == 2) return number == 0 ? "small_pool" : "large_pool";
    return "pool_" + std::to_string(number);
  }
  /// Returns a table for people; sizes are rounded.
  [[nodiscard]] std::string table() const;
  /// Returns JSON, in bytes. PyTorch's counters have the keys of memory_stats_as_nested_dict().
  [[nodiscard]] std::string json() const;

 private:
  template <typename Front>
  void add(Front& front) {
    now = front.current_usage();
    metadata_bytes = front.metadata_bytes();
    front.for_each_allocator([this](auto& one) { non_releasable += detail::non_releasable_bytes(one); });
    detail::visit_plan_of(front, [this](const auto& plan) { non_releasable += plan.non_releasable(); });
    const auto statistics = front.statistics();
    all = statistics.all;
    pools.assign(statistics.pool.begin(), statistics.pool.end());
    static_cast<allocator_counters&>(*this) = statistics;
    max_split_size = statistics.max_split_size;
  }
};

}  // namespace tessera::inline v0_1::observe

namespace tessera::inline v0_1::detail {

/// Formats a report as a table or as JSON.
class report_formatter {
 public:
  explicit report_formatter(const observe::memory_report& report) noexcept : report_(report) {}

  [[nodiscard]] std::string table() && {
    const usage& now = report_.now;
    add("reserved %s of %s: live %s (requested %s), pending %s, cached %s (non-releasable %s)\n",
        format_bytes(now.reserved).text(), format_bytes(now.limit).text(), format_bytes(now.allocated).text(),
        format_bytes(now.requested).text(), format_bytes(now.pending()).text(),
        format_bytes(now.cached).text(), format_bytes(report_.non_releasable).text());
    add("host memory for metadata: %s\n\n%-26s%14s%14s%14s%14s\n",
        format_bytes(report_.metadata_bytes).text(), "", "current", "peak", "allocated", "freed");
    for (const pool_counter& c : pool_counters) {
      row(c.name, report_.all.*c.of);
      for (std::size_t i = 0; i < report_.pools.size() && report_.pools.size() > 1; ++i)
        row("  " + report_.pool_name(i), report_.pools[i].*c.of, is_bytes(c.name));
    }
    for (const whole_counter& c : whole_counters) {
      const bool is_shown = c.of != &allocator_counters::unbacked_bytes || report_.unbacked_bytes.peak > 0;
      if (is_shown) row(c.name, report_.*c.of);
    }
    for (const event_count& c : event_counts) add("%-26s%14" PRIu64 "\n", c.name, report_.*c.of);
    if (report_.max_split_size != unlimited)
      add("%-26s%14s\n", "max_split_size", format_bytes(report_.max_split_size).text());
    plan_rows();
    call_rows();
    return std::move(text_);
  }

  [[nodiscard]] std::string json() && {
    const usage& now = report_.now;
    add("{\"now\": {\"requested\": %zu, \"live\": %zu, \"pending\": %zu, \"cached\": %zu, "
        "\"non_releasable\": %zu, "
        "\"reserved\": %zu, \"limit\": %zu}, \"metadata_bytes\": %zu",
        now.requested, now.allocated, now.pending(), now.cached, report_.non_releasable, now.reserved,
        now.limit, report_.metadata_bytes);
    for (const pool_counter& c : pool_counters) {
      add(",\n \"%s\": {\"all\": ", c.name);
      object(report_.all.*c.of);
      for (std::size_t i = 0; i < report_.pools.size(); ++i) {
        add(", \"%s\": ", report_.pool_name(i).c_str());
        object(report_.pools[i].*c.of);
      }
      add("}");
    }
    for (const whole_counter& c : whole_counters) {
      add("%s\"%s\": ", c.of == whole_counters[0].of ? ",\n " : ", ", c.name);
      object(report_.*c.of);
    }
    for (const event_count& c : event_counts) add(",\n \"%s\": %" PRIu64, c.name, report_.*c.of);
    const bool is_limited = report_.max_split_size != unlimited;
    add(",\n \"max_split_size\": %" PRId64,
        is_limited ? static_cast<std::int64_t>(report_.max_split_size) : -1);
    if (report_.by_plan) plan_object(*report_.by_plan);
    add(",\n \"device_calls\": {");
    for (std::size_t i = 0; i < report_.calls.size(); ++i) {
      const provider::call_times::summary& t = report_.calls[i];
      add("%s\"%s\": {\"count\": %" PRIu64 ", \"total_us\": %" PRIu64 ", \"max_us\": %" PRIu64 "}",
          i > 0 ? ", " : "", provider::provider_call(static_cast<provider::provider_call::kind>(i)).name(),
          t.count, t.total, t.max);
    }
    add("}}");
    return std::move(text_);
  }

 private:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    char line[512];
    std::va_list values;
    va_start(values, format);
    const int length = TESSERA_DETAIL_VSNPRINTF(line, sizeof line, format, values);
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
  void plan_rows() {
    if (!report_.by_plan) return;
    const plan::plan_usage& plan = *report_.by_plan;
    add("\nplan %016" PRIx64 ", %s of places\n%-26s%14s%14s\n", plan.fingerprint,
        format_bytes(plan.plan_bytes).text(), "", "requests", "bytes");
    const auto served = [this](const char* name, std::uint64_t requests, std::uint64_t bytes) {
      add("  %-24s%14" PRIu64 "%14s\n", name, requests, format_bytes(static_cast<std::size_t>(bytes)).text());
    };
    served("by_plan", plan.requests, plan.bytes);
    served("unplanned", plan.unplanned_requests, plan.unplanned_bytes);
    add("  %-24s%14" PRIu64 "\n", "occupied", plan.occupied);
    add("%-26s%14s%14s%14s%14s\n", "", "current", "peak", "allocated", "freed");
    row("  device_bytes", plan.device_bytes);
    if (plan.fault != nullptr) add("the plan serves nothing: %s\n", plan.fault);
    if (plan.is_stale())
      add("the plan is stale: it served %" PRIu64 " of the last %" PRIu64
          " requests; record the program again\n",
          plan.recent_requests, plan.recent_requests + plan.recent_unplanned_requests);
    if (plan.is_aside) add("the plan serves nothing: the program makes other requests\n");
  }
  void plan_object(const plan::plan_usage& plan) {
    add(",\n \"plan\": {\"fingerprint\": \"%016" PRIx64 "\", \"plan_bytes\": %zu, \"requests\": %" PRIu64
        ", \"bytes\": %" PRIu64 ", \"unplanned_requests\": %" PRIu64 ", \"unplanned_bytes\": %" PRIu64
        ", \"occupied\": %" PRIu64 ", \"device_bytes\": ",
        plan.fingerprint, plan.plan_bytes, plan.requests, plan.bytes, plan.unplanned_requests,
        plan.unplanned_bytes, plan.occupied);
    object(plan.device_bytes);
    add(", \"recent_requests\": %" PRIu64 ", \"recent_unplanned_requests\": %" PRIu64, plan.recent_requests,
        plan.recent_unplanned_requests);
    add(", \"is_stale\": %s, \"is_aside\": %s, \"fault\": ", plan.is_stale() ? "true" : "false",
        plan.is_aside ? "true" : "false");
    plan.fault != nullptr ? add("\"%s\"}", plan.fault) : add("null}");
  }
  void call_rows() {
    bool any = false;
    for (std::size_t i = 0; i < report_.calls.size(); ++i) {
      const provider::call_times::summary& t = report_.calls[i];
      if (t.count == 0) continue;
      if (!any)
        add("\n%-26s%14s%14s%14s%14s\n", "device calls", "calls", "total us", "mean us", "longest us");
      any = true;
      add("  %-24s%14" PRIu64 "%14" PRIu64 "%14.1f%14" PRIu64 "\n",
          provider::provider_call(static_cast<provider::provider_call::kind>(i)).name(), t.count, t.total,
          t.average(), t.max);
    }
  }

  const observe::memory_report& report_;
  std::string text_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

inline std::string memory_report::table() const { return detail::report_formatter(*this).table(); }
inline std::string memory_report::json() const { return detail::report_formatter(*this).json(); }

}  // namespace tessera::inline v0_1::observe
