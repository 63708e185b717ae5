// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/slab.hpp>
#include <tessera/facade.hpp>
#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/plan/plan_follower.hpp>
#include <tessera/plan/plan_memory.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// The statistics of `planned`: those of the allocator inside, and what the plan served.
template <typename Statistics>
struct planned_statistics : Statistics {
  plan_usage by_plan;
};

namespace detail {

/// Locks nothing, for an allocator that one thread at a time uses.
struct no_mutex {
  void lock() noexcept {}
  void unlock() noexcept {}
};
/// The mutex of a front end around an allocator. Only allocators without a lock give access to their provider.
template <typename Allocator>
using mutex_like_in = std::conditional_t<requires(Allocator& a) { a.provider(); }, no_mutex, std::mutex>;

}  // namespace detail

/// Serves the requests of a recorded program at places computed before. Serves all other requests by
/// `Allocator`.
///
/// Choose it for a program that repeats its steps, such as training. It needs almost no memory above peak live,
/// and no device call once each place has been used. A plan comes from `tessera-replay plan`, or from plan::make.
///
///     #include <tessera/plan/make_plan.hpp>
///     using tessera::trace::event;
///     const tessera::trace::recording recorded{
///         "two blocks", {{event::kind::allocate, 0, 5_MiB}, {event::kind::free, 0},
///                        {event::kind::allocate, 1, 3_MiB}, {event::kind::free, 1}}};
///     const tessera::plan::made_plan made = tessera::plan::make(recorded);
///     tessera::planned<tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device>> memory(made.view());
///     memory.deallocate(memory.allocate(5_MiB));
///     std::printf("%ju by plan\n", std::uintmax_t{memory.statistics().by_plan.requests});
///
/// A request gets its place if it is the next one of its stream's plan. It then has the same bytes, and no live
/// block is in that place. After other requests, the plan goes on where four requests in a row match it. Any plan is
/// safe with any program; a wrong one costs memory and time.
///
/// * Streams share no bytes of the plan. Stream 0 follows the recorded stream 0. Each other stream follows the
///   first recorded stream that is free and begins with its request.
/// * With virtual memory, the plan's places are a range, and pages are mapped when a place is first used. Without,
///   they are one segment. Memory that no planned block uses goes back to the device if a request would fail,
///   and in trim(0).
/// * The plan's bytes do not count in a limit of the allocator inside, such as a memory fraction. A limit of the
///   provider counts them.
/// * Requests by handle, and those with an alignment above min_alignment, are neither planned nor counted. The same
///   holds while the scope of a private pool is open.
/// * Observers, snapshots and out-of-memory reports see the allocator inside only.
/// * It cannot sleep.
///
/// It is as thread-safe as `Allocator`.
///   Cost:  constant for a planned request and its free; logarithmic after the program left its plan. The plan takes about
///          60 bytes of host memory an entry.
template <typename Allocator>
class planned : public facade<planned<Allocator>, Allocator> {
  using facade_type = facade<planned, Allocator>;
  using provider_type = detail::device_of<Allocator>;
  using mutex = detail::mutex_like_in<Allocator>;
  using follower = detail::plan_follower;
  using node = follower::node;
  static constexpr bool has_events = event_provider<provider_type>;

 public:
  /// Makes an allocator that follows a plan; `args` construct the allocator inside. A plan with a fault serves
  /// nothing, and statistics() names the fault.
  ///   Requires:  the arrays of the plan outlive the allocator
  ///   Throws:    std::bad_alloc
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit planned(const memory_plan& plan, Args&&... args)
      : allocator_(std::forward<Args>(args)...),
        fault_(plan::find_fault(plan)),
        follower_(fault_ == nullptr ? plan : memory_plan{}) {
    if (follower_.plan().empty()) return;
    streams_.reserve(follower_.plan().tracks.size());
    if constexpr (has_events) uses_of_.resize(follower_.size());
    const std::size_t bytes = follower_.plan().bytes, alignment = follower_.plan().alignment;
    if (bytes == 0) return;  // no device reserves nothing
    const bool is_prepared = allocator_.with_provider([this, bytes, alignment](provider_type& device) {
      return memory_.prepare(device, bytes, alignment);
    });
    if (!is_prepared) fault_ = "the device reserves no addresses for the plan";
  }
  planned(const planned&) = delete;
  planned& operator=(const planned&) = delete;
  ~planned() {
    finish_uses(true);
    for (use*& first : uses_of_) {
      while (first != nullptr) drop(first);
    }
    list_streams();
    allocator_.with_provider([this](provider_type& device) { memory_.finish(device, streams_); });
  }

  /// The wrapped allocator.
  [[nodiscard]] Allocator& inner() noexcept { return allocator_; }
  [[nodiscard]] provider_type& provider() noexcept
    requires requires(Allocator& in) { in.provider(); }
  {
    return allocator_.provider();
  }

  /// Says that a step begins: each stream goes on at the step that was recorded with this key. Without such a
  /// step, it goes on where its first requests match. If the recording has no marks, nothing changes.
  void begin_step(std::uint64_t key = 0) noexcept {
    const std::lock_guard lock(mutex_);
    follower_.begin_step(key, nullptr);
  }
  /// Says that a step of one stream begins.
  void begin_step(std::uint64_t key, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    follower_.begin_step(key, &stream);
  }

  using facade_type::allocate;
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    std::uint32_t unbacked = follower::none;
    {
      const std::lock_guard lock(mutex_);
      const std::uint32_t i = follower_.take_expected(bytes, stream);
      if (i != follower::none) [[likely]]
        return serve(i);
      if (void* const p = serve_otherwise(bytes, stream, unbacked)) return p;
    }
    return serve_unplanned(bytes, stream, unbacked);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream = {}) noexcept {
    if (is_covered(alignment)) return try_allocate(bytes, stream);
    return allocator_.try_allocate(bytes, alignment, stream);
  }
  [[nodiscard]] void* allocate(std::size_t bytes, std::align_val_t alignment, stream_id stream = {}) {
    if (is_covered(alignment)) return this->allocate(bytes, stream);
    return allocator_.allocate(bytes, alignment, stream);
  }

  void deallocate(void* p) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) return free(require(p, "deallocate"));
    allocator_.deallocate(p);
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) {
      const std::uint32_t i = require(p, "deallocate");
      if (follower_.at(i).bytes != bytes) refuse_size(i, bytes, p);
      return free(i);
    }
    allocator_.deallocate(p, bytes);
  }
  void deallocate(void* p, std::size_t bytes, std::align_val_t alignment) noexcept {
    if (is_covered(alignment)) return deallocate(p, bytes);
    allocator_.deallocate(p, bytes, alignment);
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) {
      const std::uint32_t i = find(p);
      if (i != follower::none) free(i);
      return i != follower::none;
    }
    return allocator_.try_deallocate(p);
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p))
      return record(require(p, "record_stream"), stream);
    return allocator_.record_stream(p, stream);
  }
  [[nodiscard]] bool record_stream(void* p, std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream) noexcept {
    if (is_covered(alignment)) return record_stream(p, stream);
    return allocator_.record_stream(p, bytes, alignment, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) {
      const std::uint32_t i = find(p);
      return i != follower::none && record(i, stream);
    }
    return allocator_.try_record_stream(p, stream);
  }
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) return false;
    return allocator_.reuse_in_place(p, bytes, stream);
  }
  using facade_type::deallocate;     // by handle
  using facade_type::record_stream;  // by handle

  /// Empties the cache inside. With `keep` 0, also returns the memory of places that are not in use.
  void trim(std::size_t keep = 0) noexcept {
    allocator_.trim(keep);
    const std::lock_guard lock(mutex_);
    if (keep > 0 || open_scopes_ > 0) return;
    (void)give_back_unused(true);
  }

  void trim_without_waiting(std::size_t keep = 0) noexcept
    requires requires(Allocator& in) { in.trim_without_waiting(keep); }
  {
    allocator_.trim_without_waiting(keep);
    const std::lock_guard lock(mutex_);
    if (keep == 0 && open_scopes_ == 0) (void)give_back_unused(false);
  }
  bool process_events() noexcept
    requires requires(Allocator& in) { in.process_events(); }
  {
    const bool any = allocator_.process_events();
    const std::lock_guard lock(mutex_);
    return finish_uses(false) || any;
  }

  [[nodiscard]] bool begin_allocate_to_pool(pool_id pool, stream_filter streams,
                                            scope_kind kind = scope_kind::capture) noexcept
    requires detail::has_private_pools<Allocator>
  {
    if (!allocator_.begin_allocate_to_pool(pool, streams, kind)) return false;
    const std::lock_guard lock(mutex_);
    ++open_scopes_;
    follower_.pause();
    return true;
  }
  [[nodiscard]] bool end_allocate_to_pool(pool_id pool) noexcept
    requires detail::has_private_pools<Allocator>
  {
    if (!allocator_.end_allocate_to_pool(pool)) return false;
    const std::lock_guard lock(mutex_);
    --open_scopes_;
    return true;
  }

  static constexpr bool can_sleep = false;
  sleep_result sleep(sleep_contents, stream_id = {}) = delete;
  sleep_result sleep_pool(pool_id, sleep_contents, stream_id = {}) = delete;
  sleep_result wake(stream_id = {}) = delete;
  sleep_result wake_pool(pool_id, stream_id = {}) = delete;

  [[nodiscard]] usage current_usage() const noexcept {
    usage now = allocator_.current_usage();
    const std::lock_guard lock(mutex_);
    const auto reserved = static_cast<std::size_t>(memory_.device_bytes().current);
    std::size_t in_use = 0;
    follower_.for_each_live([&](std::uint32_t, const node& n) {
      const std::size_t bytes = follower_.bytes_of(n);
      now.requested += n.bytes;
      ((n.state & follower::is_freed) != 0 ? now.pending : now.live) += bytes;
      in_use += bytes;
    });
    now.reserved += reserved;
    now.cached += reserved > in_use ? reserved - in_use : 0;
    return now;
  }
  [[nodiscard]] auto statistics() const noexcept
    requires requires(const Allocator& in) { in.statistics(); }
  {
    using inside = std::remove_cvref_t<decltype(allocator_.statistics())>;
    planned_statistics<inside> all{{allocator_.statistics()}, {}};
    const std::lock_guard lock(mutex_);
    all.by_plan = used_;
    all.by_plan.device_bytes = memory_.device_bytes();
    all.by_plan.plan_bytes = follower_.plan().bytes;
    all.by_plan.fingerprint = follower_.plan().fingerprint;
    all.by_plan.fault = fault_;
    return all;
  }
  void reset_peak_statistics() noexcept {
    allocator_.reset_peak_statistics();
    const std::lock_guard lock(mutex_);
    counter& bytes = memory_.device_bytes();
    bytes.peak = bytes.current;
  }
  void reset_accumulated_statistics() noexcept {
    allocator_.reset_accumulated_statistics();
    const std::lock_guard lock(mutex_);
    used_ = {};
    counter& bytes = memory_.device_bytes();
    bytes.allocated = bytes.freed = 0;
  }
  [[nodiscard]] std::size_t footprint() const noexcept {
    const std::size_t inside = allocator_.footprint();
    const std::lock_guard lock(mutex_);
    return inside + follower_.footprint() + memory_.footprint() + uses_.footprint() +
           uses_of_.capacity() * sizeof(use*);
  }
  [[nodiscard]] const char* audit() const noexcept {
    if (const char* const broken = allocator_.audit(); broken != nullptr) return broken;
    const std::lock_guard lock(mutex_);
    return follower_.audit();
  }

 private:
  friend facade_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return std::forward<F>(f)(me.allocator_);
  }

  /// Another stream's use of a planned block. After the free, its event says when the use ends.
  struct use {
    bool is_recorded;
    stream_id stream;
    [[no_unique_address]] typename detail::event_of<provider_type>::type event;
    use* next;
  };

  [[nodiscard]] bool is_covered(std::align_val_t alignment) const noexcept {
    return static_cast<std::size_t>(alignment) <= min_alignment;
  }

  // Requests. The mutex is held, except in serve_unplanned.

  [[nodiscard]] void* serve(std::uint32_t i) noexcept {
    const node& n = follower_.at(i);
    ++used_.requests;
    used_.bytes += n.bytes;
    return reinterpret_cast<void*>(memory_.base() + follower_.offset_of(n));
  }
  /// Serves a request that take_expected did not serve, if the plan has a place. If only memory for the place
  /// is missing, returns null and sets `unbacked` to its entry.
  [[nodiscard, gnu::noinline]] void* serve_otherwise(std::size_t bytes, stream_id stream,
                                                     std::uint32_t& unbacked) noexcept {
    if (bytes == 0 || open_scopes_ > 0 || fault_ != nullptr) return nullptr;
    const std::uint32_t i = follower_.select(bytes, stream);
    if (i == follower::none || (follower_.at(i).state & follower::is_kept) != 0)
      return serve_kept(bytes, stream);
    while (true) {
      const std::uint32_t blocker = follower_.blocker_of(i);
      if (blocker == follower::none) break;
      if (!finish_uses_of(blocker)) {
        ++used_.occupied;
        return nullptr;
      }
    }
    if (!back(i)) {
      unbacked = i;
      return nullptr;
    }
    follower_.take(i);
    return serve(i);
  }
  [[nodiscard]] void* serve_kept(std::size_t bytes, stream_id stream) noexcept {
    const std::uint32_t i = follower_.take_kept(bytes, stream);
    if (i == follower::none) return nullptr;
    if (back(i)) return serve(i);
    follower_.release(i);
    return nullptr;
  }
  [[nodiscard, gnu::noinline]] void* serve_unplanned(std::size_t bytes, stream_id stream,
                                                     std::uint32_t unbacked) noexcept {
    void* p = allocator_.try_allocate(bytes, stream);
    if (bytes == 0) return p;
    // First without waiting for the streams that use freed blocks, then after it.
    for (const bool waits : {false, true}) {
      if (p != nullptr || bytes > max_request) break;
      bool may_retry = false;
      {
        const std::lock_guard lock(mutex_);
        if (void* const place = serve_late(unbacked)) return place;
        // A device that captures a graph must not wait for streams.
        may_retry = open_scopes_ == 0 && give_back_unused(waits) > 0;
        if (void* const place = serve_late(unbacked)) return place;
      }
      if (may_retry) p = allocator_.try_allocate(bytes, stream);
    }
    const std::lock_guard lock(mutex_);
    ++used_.unplanned_requests;
    used_.unplanned_bytes += bytes;
    return p;
  }
  /// Tries again to get memory for an entry. The program may have gone on meanwhile.
  [[nodiscard]] void* serve_late(std::uint32_t i) noexcept {
    if (i == follower::none || open_scopes_ > 0) return nullptr;
    follower_.distrust(i);
    if (follower_.blocker_of(i) != follower::none || !back(i)) return nullptr;
    follower_.take(i);
    follower_.distrust(i);
    return serve(i);
  }

  // Memory of the places.

  [[nodiscard]] bool back(std::uint32_t i) noexcept {
    node& n = follower_.at(i);
    if ((n.state & follower::is_backed) != 0) return true;
    const std::size_t offset = follower_.offset_of(n), size = follower_.bytes_of(n);
    const bool works =
        allocator_.with_provider([&](provider_type& device) { return memory_.back(device, offset, size); });
    if (works) n.state |= follower::is_backed;
    return works;
  }
  /// Lists the streams that use the plan, in `streams_`.
  void list_streams() noexcept {
    streams_.clear();
    for (const follower::track& t : follower_.tracks()) {
      if (t.is_assigned) streams_.push_back(t.stream);
    }
  }
  /// Returns the memory that no block uses. Waits for the streams that use freed blocks if asked.
  [[nodiscard]] std::size_t give_back_unused(bool waits) noexcept {
    finish_uses(waits);
    list_streams();
    const auto for_each_used = [this](auto f) {
      follower_.for_each_live(
          [&](std::uint32_t, const node& n) { f(follower_.offset_of(n), follower_.bytes_of(n)); });
    };
    const std::size_t given = allocator_.with_provider(
        [&](provider_type& device) { return memory_.give_back(device, streams_, for_each_used); });
    if (given > 0) follower_.forget_backing();
    return given;
  }

  // Frees, and uses by other streams.

  /// Finds a block that the user has not freed, or `none`.
  [[nodiscard]] std::uint32_t find(const void* p) const noexcept {
    const std::uint32_t i = follower_.find(reinterpret_cast<std::uintptr_t>(p) - memory_.base());
    const bool is_live = i != follower::none && (follower_.at(i).state & follower::is_freed) == 0;
    return is_live ? i : follower::none;
  }
  [[nodiscard]] std::uint32_t require(const void* p, const char* call) const noexcept {
    const std::uint32_t i = find(p);
    if (i == follower::none) [[unlikely]]
      refuse(p, call);
    return i;
  }
  void free(std::uint32_t i) noexcept {
    node& n = follower_.at(i);
    if ((n.state & follower::has_uses) == 0) [[likely]]
      return follower_.release(i);
    n.state |= follower::is_freed;
    (void)finish_uses_of(i);
  }
  [[nodiscard]] bool record(std::uint32_t i, stream_id stream) noexcept {
    node& n = follower_.at(i);
    if (!has_events || follower_.track_of(n).stream == stream) return true;
    for (const use* u = uses_of_[i]; u != nullptr; u = u->next) {
      if (u->stream == stream) return true;
    }
    const bool exists =
        allocator_.with_provider([=](provider_type& device) { return detail::has_stream(device, stream); });
    if (!exists || !uses_.reserve(1)) return false;
    use* const fresh = uses_.take();
    *fresh = {false, stream, {}, uses_of_[i]};
    uses_of_[i] = fresh;
    n.state |= follower::has_uses;
    return true;
  }
  /// Asks whether the uses of a freed block have ended, and makes its place free if so. Waits if asked.
  ///   Returns:  whether the place is free
  bool finish_uses_of(std::uint32_t i, bool waits = false) noexcept {
    if ((follower_.at(i).state & follower::is_freed) == 0) return false;
    for (use** at = &uses_of_[i]; *at != nullptr;) {
      if (has_ended(**at, waits)) {
        drop(*at);
      } else {
        at = &(*at)->next;
      }
    }
    if (uses_of_[i] == nullptr) follower_.release(i);
    return uses_of_[i] == nullptr;
  }
  /// Does the same for all freed blocks.
  ///   Returns:  whether a place became free
  bool finish_uses(bool waits) noexcept {
    if (uses_.in_use() == 0) return false;
    bool any = false;
    follower_.for_each_live([this, waits, &any](std::uint32_t i, const node&) {
      if (finish_uses_of(i, waits)) any = true;
    });
    return any;
  }
  /// Whether a use of a freed block has ended. Records its event first, which a capture may have delayed.
  [[nodiscard]] bool has_ended(use& u, bool waits) noexcept {
    if constexpr (has_events) {
      if (open_scopes_ > 0) return false;
      return allocator_.with_provider([&u, waits](provider_type& device) {
        if (!u.is_recorded) u.is_recorded = device.record(u.stream, u.event);
        if (!u.is_recorded) return !detail::has_stream(device, u.stream);
        return waits ? device.wait(u.event) : device.query(u.event);
      });
    }
    return true;
  }
  void drop(use*& at) noexcept {
    use* const dropped = std::exchange(at, at->next);
    if constexpr (has_events) {
      if (dropped->is_recorded)
        allocator_.with_provider([dropped](provider_type& device) { device.discard(dropped->event); });
    }
    uses_.give_back(dropped);
  }

  // Mistakes of the caller.

  [[noreturn, gnu::noinline, gnu::cold]] void refuse(const void* p, const char* call) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    detail::fixed_text text;
    text.add(call).add(": not the address of a live block; it lies ").add(address - memory_.base());
    text.add(" bytes into the memory of the plan");
    const char* where = ", in no live block, perhaps freed before";
    follower_.for_each_live([&](std::uint32_t, const node& n) {
      if (address - memory_.base() - follower_.offset_of(n) >= follower_.bytes_of(n)) return;
      where =
          (n.state & follower::is_freed) != 0 ? ", in a freed, still used block" : ", inside a live block";
    });
    detail::fatal(text.add(where).c_str(), p);
  }
  [[noreturn, gnu::noinline, gnu::cold]] void refuse_size(std::uint32_t i, std::size_t passed,
                                                          const void* p) const noexcept {
    detail::fixed_text text;
    text.add("deallocate: not the requested size: ").add(passed).add(" bytes were passed, ");
    detail::fatal(text.add(follower_.at(i).bytes).add(" were requested").c_str(), p);
  }

  Allocator allocator_;
  mutable mutex mutex_;  // guards the members below; it is not held while the allocator inside is called
  const char* fault_;
  follower follower_;
  detail::plan_memory<provider_type> memory_;
  plan_usage used_{};
  detail::slab<use> uses_;
  std::vector<use*> uses_of_;       // by the numbers of the blocks; null without uses
  std::vector<stream_id> streams_;  // those of list_streams()
  std::size_t open_scopes_ = 0;
};

}  // namespace tessera
