// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/detail/backends/ahead_mapper.hpp>

namespace tessera::inline v0_1::detail {

/// What a mapping_ahead maps, and when.
struct mapping_watermarks {
  std::size_t low = 0;                      ///< bytes of the largest free block below which the thread maps
  std::size_t high = 0;                     ///< bytes of the largest free block at which it stops
  stream_id stream{};                       ///< the stream whose requests use the memory
  bool enabled = true;                      ///< whether a thread maps; otherwise only calls of map_ahead() do
  std::chrono::microseconds retry{10'000};  ///< the pause after a refusal
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::concurrent {

/// Maps pages before requests need them: a thread keeps a free block between two watermarks, so that requests of a stream hit
/// the cache. `Allocator` is an allocator for several threads, such as `locked`, whose recipe maps pages into ranges.
///
/// Choose it if memory grows in steps and a request must not wait for the device, for example for the KV cache of an
/// inference server.
///
///     #include <tessera/concurrent/locked.hpp>
///     using pool = tessera::caching_allocator<tessera::recipe::pytorch<"expandable_segments:True">, tessera::provider::simulated_device>;
///     tessera::concurrent::mapping_ahead<tessera::concurrent::locked<pool>> cache({.low = 64_MiB, .high = 256_MiB});
///     void* page = cache.allocate(16_MiB);  // a hit, once the thread has mapped 256 MiB
///     cache.deallocate(page);
///
/// Once the largest free block is smaller than `low`, the thread maps until it has `high` bytes. It takes the mutex of the
/// allocator for each step anew; a step maps what growth maps at once, 20 MiB in PyTorch. The memory is cached memory of
/// the default pools: any request may take it, and trim, eviction and recovery give it back. After that, the thread
/// maps again once requests have taken as many bytes as were above `low`.
///
/// It maps only what is free: it makes no other memory go back, and fails quietly at the limit, on a full device, and while
/// a graph is captured. It then tries again after `retry`. If the thread cannot be started, requests map, as without it.
/// A forked process does not have the thread, and may destroy the allocator.
///   Requires:  0 < low <= high <= the capacity of the provider; otherwise the program aborts
///   Cost:      an atomic subtraction for each request of the stream
///   Source:    kvcached, whose thread keeps mapped pages between min_reserved_pages and max_reserved_pages
template <typename Allocator>
class mapping_ahead : public detail::wrapping_adaptor<mapping_ahead<Allocator>, Allocator> {
  using adaptor_type = detail::wrapping_adaptor<mapping_ahead, Allocator>;
  using adaptor_type::allocator_;
  static_assert(Allocator::has_ranges && !Allocator::recipe_type::growth::backend::moves_memory,
                "mapping_ahead<A>: the recipe of A maps pages and moves none, as "
                "pytorch<\"expandable_segments:True\"> does");

 public:
  /// What the thread maps and when: it begins if the largest free block has less than `low` bytes, and stops
  /// at `high`.
  using watermarks = detail::mapping_watermarks;

  /// Makes the allocator from `args`, and starts the thread.
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit mapping_ahead(const watermarks& marks, Args&&... args)
      : adaptor_type(std::forward<Args>(args)...), marks_(marks), worker_(&run_round, this, marks.retry) {
    require_valid(marks, allocator_.visit_provider([](const auto& device) { return device.capacity(); }));
    if (marks.enabled) worker_.wake();
  }
  ~mapping_ahead() { worker_.stop(); }

  /// Does the work of the thread in the calling thread, for example between two steps of a model.
  ///   Returns:  false if mapping was refused; the largest free block may then be smaller than `low`
  bool map_ahead() noexcept {
    for (bool is_mapping = false;;) {
      bool is_refused = false;
      bool is_done = false;
      allocator_.for_each_allocator([&](auto& in) {
        detail::ahead_mapper mapper(in, marks_.high, marks_.stream);
        std::size_t free = mapper.free_bytes();
        is_mapping = is_mapping || free < marks_.low;
        if (is_mapping && free < mapper.goal()) {
          is_refused = !mapper.map_unit();
          free = mapper.free_bytes();
        }
        is_done = is_refused || !is_mapping || free >= mapper.goal();
        // Under the mutex: a request that takes memory later also subtracts later.
        margin_.store(static_cast<std::int64_t>(free) - static_cast<std::int64_t>(marks_.low),
                      std::memory_order_relaxed);
      });
      if (is_refused) refusals_.fetch_add(1, std::memory_order_relaxed);
      if (is_done) return !is_refused;
    }
  }
  /// How often a limit, an extension or the device refused to map.
  [[nodiscard]] std::uint64_t refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }
  /// Whether the thread has started.
  [[nodiscard]] bool has_worker() const noexcept { return worker_.is_running(); }

 private:
  friend allocator_adaptor<mapping_ahead, Allocator>;

  static void require_valid(const watermarks& marks, std::size_t capacity) noexcept {
    const char* const why = marks.low == 0             ? "the low watermark is 0"
                            : marks.low > marks.high   ? "the low watermark exceeds the high one"
                            : marks.high > capacity    ? "the high watermark exceeds the capacity"
                            : marks.high > max_request ? "the high watermark exceeds max_request"
                                                       : nullptr;
    if (why == nullptr) return;
    detail::fatal(detail::fixed_text()
                      .add("mapping_ahead: ")
                      .add(why)
                      .add(": low ")
                      .add(marks.low)
                      .add(", high ")
                      .add(marks.high)
                      .add(", capacity ")
                      .add(capacity)
                      .c_str());
  }
  using adaptor_type::on_call;
  /// Wakes the thread when requests have taken what was free above the low watermark.
  template <typename F>
  static auto on_call(mapping_ahead& me, const detail::request_call& call, F ask) noexcept {
    const auto got = ask();
    if (call.stream != me.marks_.stream || call.bytes > max_request) return got;
    const auto taken = static_cast<std::int64_t>(call.bytes);
    const std::int64_t before = me.margin_.fetch_sub(taken, std::memory_order_relaxed);
    if (before >= 0 && before < taken && me.marks_.enabled) me.worker_.wake();
    return got;
  }
  static bool run_round(void* self) noexcept { return !static_cast<mapping_ahead*>(self)->map_ahead(); }

  const watermarks marks_;
  std::atomic<std::int64_t> margin_{-1};  // at most the largest free block minus the low watermark
  std::atomic<std::uint64_t> refusals_{0};
  detail::round_worker worker_;
};

}  // namespace tessera::inline v0_1::concurrent
