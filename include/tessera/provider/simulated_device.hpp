// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A device of addresses without memory, for replays, tests and measurements on any machine.
///
/// Deterministic: addresses only grow and are never given twice, and time passes only where a call or the user makes it.
class simulated_device {
 public:
  /// What calls cost, in nanoseconds of virtual time.
  ///   Source:  orders of magnitude of the CUDA runtime's cudaMalloc, cudaFree and events
  struct costs {
    std::uint64_t acquire = 50'000;
    std::uint64_t acquire_per_mib = 500;
    std::uint64_t release = 50'000;
    std::uint64_t release_per_mib = 100;
    std::uint64_t record = 1'000;
    std::uint64_t query = 500;
    std::uint64_t wait = 5'000;
  };
  struct options {
    std::size_t capacity = operator""_GiB(80);  ///< bytes
    std::size_t granularity = 512;              ///< bytes; a power of two
    std::size_t huge_budget = unlimited;        ///< bytes to be had in huge pages
    std::size_t log_calls = 0;                  ///< how many of the latest calls the log keeps
    std::uint64_t fail_every = 0;               ///< every k-th call that can fail does; 0 for none
    unsigned device = 0;                        ///< devices with different numbers share no address
    costs cost{};
  };
  enum class call : unsigned char { acquire, release, record, query, wait, discard };
  struct counts {
    std::uint64_t acquire = 0, release = 0, record = 0, query = 0, wait = 0, discard = 0;
    std::uint64_t refused = 0;  ///< acquires for want of memory
    std::uint64_t failed = 0;   ///< calls made to fail
  };
  struct logged {
    call what;
    bool worked;
    std::uintptr_t address;
    std::size_t bytes;
    stream_id stream;
    std::uint64_t time_ns;  ///< when the call returned
  };
  /// A mark in a stream: the time at which the work before it ends.
  struct event {
    std::uint64_t ready_ns = 0;
    bool operator==(const event&) const = default;
  };

  simulated_device() : simulated_device(options{}) {}
  explicit simulated_device(const options& chosen)
      : options_(chosen), next_((std::uintptr_t{chosen.device} + 1) * device_span) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Null also where `bytes` is 0 or no multiple of the granularity.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    ++counts_.acquire;
    const std::size_t huge_left = options_.huge_budget - huge_used_;
    const bool legal = bytes != 0 && bytes % options_.granularity == 0 && bytes <= device_span - alignment;
    const bool fits = legal && bytes <= options_.capacity - used_ &&
                      (kind == page_kind::normal || bytes <= huge_left) &&
                      next_ % device_span <= device_span - alignment - bytes;
    const bool injected = fails();
    std::uintptr_t given = 0;
    if (fits && !injected) {
      given = next_;
      next_ += align_up(bytes, alignment);
      segments_.emplace(given, segment{bytes, kind});
      used_ += bytes;
      if (used_ > peak_) peak_ = used_;
      if (kind == page_kind::huge) huge_used_ += bytes;
    } else if (!injected) {
      ++counts_.refused;
    }
    note(call::acquire, given != 0, given, bytes, {},
         options_.cost.acquire + per_mib(options_.cost.acquire_per_mib, bytes));
    return reinterpret_cast<void*>(given);
  }

  /// False where it was not given, or not with this size.
  bool release(void* p, std::size_t bytes) noexcept {
    ++counts_.release;
    const auto found = segments_.find(reinterpret_cast<std::uintptr_t>(p));
    const bool known = found != segments_.end() && found->second.bytes == bytes;
    const bool works = known && !fails();
    if (works) {
      used_ -= bytes;
      if (found->second.kind == page_kind::huge) huge_used_ -= bytes;
      segments_.erase(found);
    }
    note(call::release, works, reinterpret_cast<std::uintptr_t>(p), bytes, {},
         options_.cost.release + per_mib(options_.cost.release_per_mib, bytes));
    return works;
  }

  bool record(stream_id stream, event& mark) noexcept {
    ++counts_.record;
    const bool works = !fails();
    if (works) mark.ready_ns = busy_until(stream);
    note(call::record, works, 0, 0, stream, options_.cost.record);
    return works;
  }
  [[nodiscard]] bool query(event& mark) noexcept {
    ++counts_.query;
    const bool ready = !held_ && mark.ready_ns <= now_ns_;
    note(call::query, ready, 0, 0, {}, options_.cost.query);
    return ready;
  }
  bool wait(event& mark) noexcept {
    ++counts_.wait;
    const bool works = !fails();
    if (works && mark.ready_ns > now_ns_) now_ns_ = mark.ready_ns;
    note(call::wait, works, 0, 0, {}, options_.cost.wait);
    return works;
  }
  void discard(event&) noexcept {
    ++counts_.discard;
    note(call::discard, true, 0, 0, {}, 0);
  }

  /// Queues work of `duration` nanoseconds behind what the stream has to do already.
  void submit(stream_id stream, std::uint64_t duration) { busy_[stream] = busy_until(stream) + duration; }
  void advance(std::uint64_t nanoseconds) noexcept { now_ns_ += nanoseconds; }
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }

  /// While held, no query answers ready, whatever the time; waits still end.
  void hold_events(bool held) noexcept { held_ = held; }
  void fail_every(std::uint64_t k) noexcept { options_.fail_every = k, since_failure_ = 0; }
  /// Lets the n-th call from now that can fail do so, once.
  void fail_call(std::uint64_t n) noexcept { fail_in_ = n; }

  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  [[nodiscard]] const std::deque<logged>& log() const noexcept { return log_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t peak_used() const noexcept { return peak_; }

 private:
  struct segment {
    std::size_t bytes;
    page_kind kind;
  };
  static constexpr std::size_t alignment = operator""_MiB(2);
  static constexpr std::uintptr_t device_span = std::uintptr_t{1} << 56;

  static std::uint64_t per_mib(std::uint64_t cost, std::size_t bytes) noexcept {
    return cost * (bytes >> 20);
  }
  [[nodiscard]] std::uint64_t busy_until(stream_id stream) const noexcept {
    const auto found = busy_.find(stream);
    return found != busy_.end() && found->second > now_ns_ ? found->second : now_ns_;
  }
  bool fails() noexcept {
    const bool every = options_.fail_every != 0 && ++since_failure_ >= options_.fail_every;
    const bool once = fail_in_ != 0 && --fail_in_ == 0;
    if (every) since_failure_ = 0;
    if (every || once) ++counts_.failed;
    return every || once;
  }
  void note(call what, bool worked, std::uintptr_t address, std::size_t bytes, stream_id stream,
            std::uint64_t cost) {
    now_ns_ += cost;
    if (options_.log_calls == 0) return;
    if (log_.size() == options_.log_calls) log_.pop_front();
    log_.push_back({what, worked, address, bytes, stream, now_ns_});
  }

  options options_;
  std::uintptr_t next_;
  std::map<std::uintptr_t, segment> segments_;
  std::map<stream_id, std::uint64_t> busy_;
  std::deque<logged> log_;
  counts counts_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  std::size_t huge_used_ = 0;
  std::uint64_t now_ns_ = 0;
  std::uint64_t since_failure_ = 0;
  std::uint64_t fail_in_ = 0;
  bool held_ = false;
};
static_assert(event_provider<simulated_device> && paged_provider<simulated_device>);

}  // namespace tessera
