// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include <tessera/core/bytes.hpp>
#include <tessera/core/contract.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A device of addresses without memory, for replays, tests and measurements on any machine.
///
/// Deterministic: addresses only grow and are never given twice, and time passes only where a call or the user makes
/// it. It moves and does not copy, as a copy would give the same addresses again; provider_ref shares one.
class simulated_device {
 public:
  /// What calls cost, in nanoseconds of virtual time; the costs per MiB count whole MiB that were given or taken back.
  ///   Source:  cudaMalloc takes about 50 us from 4 KB to 512 KB and rises above that, by undated measurements on old
  ///            hosts (cs.virginia.edu/~mwb7w/cuda_support); the others are plausible, not measured
  struct call_costs {
    std::uint64_t acquire = 50'000;
    std::uint64_t acquire_per_mib = 500;
    std::uint64_t release = 50'000;
    std::uint64_t release_per_mib = 100;
    std::uint64_t record = 1'000;
    std::uint64_t query = 500;
    std::uint64_t wait = 5'000;
  };
  struct options {
    std::size_t capacity = 80_GiB;        ///< bytes
    std::size_t granularity = 512;        ///< bytes; a power of two from 64 B to 1 GiB
    unsigned device = 0;                  ///< below 255; devices with different numbers share no address
    std::size_t huge_budget = unlimited;  ///< bytes to be had in huge pages
    std::uint64_t fail_every = 0;         ///< every k-th call that can fail does; 0 for none
    std::size_t log_calls = 0;            ///< how many of the latest calls the log keeps
    call_costs costs{};
  };
  enum class call : unsigned char { acquire, release, record, query, wait, discard };
  struct counts {
    std::uint64_t acquire = 0, release = 0, record = 0, query = 0, wait = 0, discard = 0;
    std::uint64_t refused = 0;  ///< acquires for want of memory
    std::uint64_t failed = 0;   ///< calls made to fail
  };
  struct logged {
    call kind;
    std::uintptr_t address;
    std::size_t bytes;
    stream_id stream;
    bool ok;                ///< of a query: ready
    std::uint64_t time_ns;  ///< when the call returned
  };
  /// A mark in a stream: the time at which the work before it ends.
  struct event {
    std::uint64_t ready_ns = 0;
  };

  simulated_device() : simulated_device(options{}) {}
  explicit simulated_device(const options& chosen)
      : options_(chosen),
        next_((std::uintptr_t{chosen.device} + 1) * device_span),
        room_(device_span - alignment) {
    if (!is_power_of_two(chosen.granularity) || chosen.granularity < min_alignment ||
        chosen.granularity > 1_GiB)
      contract_broken("simulated_device: options.granularity is a power of two from 64 B to 1 GiB");
    if (chosen.device >= 255) contract_broken("simulated_device: options.device is below 255");
  }
  simulated_device(simulated_device&&) = default;
  simulated_device& operator=(simulated_device&&) = default;

  [[nodiscard]] std::size_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Null also where `bytes` is 0 or no multiple of the granularity. Segments start at a multiple of 2 MiB.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    ++counts_.acquire;
    const bool injected = fails();
    const bool legal = bytes != 0 && bytes % options_.granularity == 0;
    const bool fits = bytes <= options_.capacity - used_ && bytes <= room_ &&
                      (kind != page_kind::huge || bytes <= options_.huge_budget - huge_used_);
    if (legal && !fits && !injected) ++counts_.refused;
    const bool works = legal && fits && !injected;
    const std::uintptr_t given = works ? next_ : 0;
    if (works) {
      segments_.emplace(given, segment{bytes, kind});
      next_ += align_up(bytes, alignment);
      room_ -= align_up(bytes, alignment);
      used_ += bytes;
      if (used_ > peak_) peak_ = used_;
      if (kind == page_kind::huge) huge_used_ += bytes;
    }
    pass(options_.costs.acquire + (works ? options_.costs.acquire_per_mib * (bytes >> 20) : 0));
    note({call::acquire, given, bytes, {}, works, now_ns_});
    return reinterpret_cast<void*>(given);
  }

  /// False where it was not given, or not with this size.
  bool release(void* p, std::size_t bytes) noexcept {
    ++counts_.release;
    const bool injected = fails();
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const auto found = segments_.find(address);
    const bool works = !injected && found != segments_.end() && found->second.bytes == bytes;
    if (works) {
      used_ -= bytes;
      if (found->second.kind == page_kind::huge) huge_used_ -= bytes;
      segments_.erase(found);
    }
    pass(options_.costs.release + (works ? options_.costs.release_per_mib * (bytes >> 20) : 0));
    note({call::release, address, bytes, {}, works, now_ns_});
    return works;
  }

  bool record(stream_id stream, event& mark) noexcept {
    ++counts_.record;
    const bool works = !fails();
    if (works) mark.ready_ns = end_of_work(stream);
    pass(options_.costs.record);
    note({call::record, 0, 0, stream, works, now_ns_});
    return works;
  }
  [[nodiscard]] bool query(event& mark) noexcept {
    ++counts_.query;
    const bool ready = !held_ && mark.ready_ns <= now_ns_;
    pass(options_.costs.query);
    note({call::query, 0, 0, {}, ready, now_ns_});
    return ready;
  }
  bool wait(event& mark) noexcept {
    ++counts_.wait;
    const bool works = !fails();
    if (works && mark.ready_ns > now_ns_) now_ns_ = mark.ready_ns;
    pass(options_.costs.wait);
    note({call::wait, 0, 0, {}, works, now_ns_});
    return works;
  }
  void discard(event&) noexcept {
    ++counts_.discard;
    note({call::discard, 0, 0, {}, true, now_ns_});
  }

  /// Queues work of `duration` nanoseconds behind what the stream has to do already.
  ///   Cost:  linear in the streams that are busy, which are all that is remembered
  void submit(stream_id stream, std::uint64_t duration) {
    std::erase_if(busy_, [this](const auto& entry) { return entry.second <= now_ns_; });
    busy_[stream] = saturating_add(end_of_work(stream), duration);
  }
  void advance(std::uint64_t nanoseconds) noexcept { pass(nanoseconds); }
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }

  /// While held, no query answers ready, whatever the time; waits still end.
  void hold_events(bool held) noexcept { held_ = held; }
  /// Lets every k-th call that can fail do so, counted from now: acquire, release, record and wait. 0 ends it.
  void fail_every(std::uint64_t k) noexcept { options_.fail_every = k, since_failure_ = 0; }
  /// Lets the n-th such call from now fail, once. 0 calls it off.
  void fail_call(std::uint64_t n) noexcept { fail_in_ = n; }

  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  /// The latest calls, oldest first.
  [[nodiscard]] const std::deque<logged>& log() const noexcept { return log_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t peak_used() const noexcept { return peak_; }

 private:
  struct segment {
    std::size_t bytes;
    page_kind kind;
  };
  static constexpr std::size_t alignment = 2_MiB;
  /// Far above the addresses that a process of today can have.
  static constexpr std::uintptr_t device_span = std::uintptr_t{1} << 56;

  [[nodiscard]] std::uint64_t end_of_work(stream_id stream) const noexcept {
    const auto found = busy_.find(stream);
    return found != busy_.end() ? found->second : now_ns_;
  }
  void pass(std::uint64_t nanoseconds) noexcept { now_ns_ = saturating_add(now_ns_, nanoseconds); }
  bool fails() noexcept {
    const bool every = options_.fail_every != 0 && ++since_failure_ == options_.fail_every;
    const bool once = fail_in_ != 0 && --fail_in_ == 0;
    if (every) since_failure_ = 0;
    if (every || once) ++counts_.failed;
    return every || once;
  }
  void note(const logged& latest) {
    if (options_.log_calls == 0) return;
    if (log_.size() == options_.log_calls) log_.pop_front();
    log_.push_back(latest);
  }

  options options_;
  std::uintptr_t next_;
  std::size_t room_;  // addresses left; the last `alignment` are never given, so that no end wraps
  std::map<std::uintptr_t, segment> segments_;
  std::map<stream_id, std::uint64_t> busy_;  // when each stream's work ends or ended
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
