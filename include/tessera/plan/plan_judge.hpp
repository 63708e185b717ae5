// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tessera/core/statistics.hpp>
#include <tessera/plan/memory_plan.hpp>

namespace tessera::detail {

/// Judges by the last requests whether a program still follows its plan. If not, the plan serves nothing: it
/// steps aside. Requests that the plan serves at once are not seen here. Their counters say enough.
class plan_judge {
 public:
  /// A window is judged at the first unplanned request after so many requests. It must be short: until then,
  /// blocks of a plan that does not fit keep its pages from the device.
  static constexpr std::uint64_t window = 100;

  [[nodiscard]] bool is_aside() const noexcept { return is_aside_; }
  /// Notes a request for which the plan has a place, but does not give it.
  void note_match(std::uint64_t bytes) noexcept {
    ++matched_.requests;
    matched_.bytes += bytes;
  }
  /// Notes an unplanned request of a stream that follows no recorded stream. The plan is not judged by it.
  void note_other_stream(std::uint64_t bytes) noexcept {
    ++others_.requests;
    others_.bytes += bytes;
  }
  /// Lets the plan serve again.
  void come_back() noexcept { is_aside_ = false; }
  /// Judges the window, if it has enough requests. The next requests form another one.
  ///   Returns:  whether there was a verdict
  bool judge(const plan::plan_usage& all) noexcept {
    const plan::plan_usage used = judged(all);
    if (used.requests + used.unplanned_requests - recent_.served - recent_.others >=
        plan::plan_usage::recent_window)
      close_recent(used);
    const std::uint64_t served = used.requests - begin_.requests, bytes = used.bytes - begin_.bytes;
    const std::uint64_t others = used.unplanned_requests - begin_.unplanned_requests;
    if (served + others < window) return false;
    const std::uint64_t all_bytes = bytes + used.unplanned_bytes - begin_.unplanned_bytes;
    const bool fits =
        2 * (served + matched_.requests) >= served + others && (bytes + matched_.bytes) / 9 >= all_bytes / 10;
    is_aside_ = is_aside_ || !fits;
    begin_ = used;
    matched_ = {};
    return true;
  }
  /// Writes the requests of the last long window.
  void report(plan::plan_usage& all) const noexcept {
    const plan::plan_usage used = judged(all);
    const std::uint64_t served = used.requests - recent_.served,
                        others = used.unplanned_requests - recent_.others;
    const bool is_current = recent_.is_first || served + others >= plan::plan_usage::recent_window;
    all.recent_requests = is_current ? served : recent_.last_served;
    all.recent_unplanned_requests = is_current ? others : recent_.last_others;
    all.is_aside = is_aside_;
  }
  /// Forgets the windows, because the counters were set to 0.
  void restart() noexcept {
    begin_ = {};
    matched_ = {};
    others_ = {};
    recent_ = {};
  }

 private:
  struct sum {
    std::uint64_t requests = 0, bytes = 0;
  };
  /// The counters without the requests of streams that follow no recorded one.
  [[nodiscard]] plan::plan_usage judged(plan::plan_usage used) const noexcept {
    used.unplanned_requests -= others_.requests;
    used.unplanned_bytes -= others_.bytes;
    return used;
  }
  void close_recent(const plan::plan_usage& used) noexcept {
    recent_ = {used.requests, used.unplanned_requests, used.requests - recent_.served,
               used.unplanned_requests - recent_.others, false};
  }

  sum matched_, others_;
  /// The window by which is_stale() judges.
  struct long_window {
    std::uint64_t served = 0, others = 0;            // when it began
    std::uint64_t last_served = 0, last_others = 0;  // of the window before
    bool is_first = true;
  };
  long_window recent_;
  plan::plan_usage begin_{};  // the counters when the window began
  bool is_aside_ = false;
};

}  // namespace tessera::detail
