// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/blocks/pending_frees.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/fwd.hpp>
#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/plan/plan_follower.hpp>
#include <tessera/plan/plan_memory.hpp>
#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::detail::missing {

struct sleep_needs_an_allocator_without_a_plan;

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1::detail {

/// The statistics of `planned`: those of the allocator inside, and what the plan served.
template <typename Statistics>
struct planned_statistics : Statistics {
  plan::plan_usage by_plan;
};
/// Locks nothing, for an allocator that one thread at a time uses.
struct no_mutex {
  void lock() noexcept {}
  void unlock() noexcept {}
};
/// Whether one thread at a time uses an allocator. That is known of a caching_allocator, and of a type that declares it; any other
/// front end may lock.
template <typename Allocator>
inline constexpr bool is_for_one_thread =
    is_caching_allocator<Allocator> || requires { requires bool(Allocator::is_for_one_thread); };
/// The mutex of a front end around an allocator.
template <typename Allocator>
using mutex_like_in = std::conditional_t<is_for_one_thread<Allocator>, no_mutex, std::mutex>;

/// The hook of a provider adaptor that unlocks a mutex while the device waits for an event. With `Unlocks` false, it
/// changes nothing: a provider that is not thread-safe has a lock of its own, which must be taken after the mutex.
template <typename Mutex, bool Unlocks>
class unlock_to_wait {
 public:
  unlock_to_wait(Mutex& mutex) noexcept : mutex_(&mutex) {}  // implicit, for provider_adaptor

  template <typename F>
  auto operator()(provider::provider_call call, F f) noexcept {
    if (!Unlocks || call != provider::provider_call::wait) return f();
    mutex_->unlock();
    const auto result = f();
    mutex_->lock();
    return result;
  }

 private:
  Mutex* mutex_;
};

/// A point of time on several streams: an event on each. Without events, there is none.
template <typename Provider, bool HasEvents>
class point_on_streams {};
template <typename Provider>
class point_on_streams<Provider, true> {
 public:
  void reserve(std::size_t streams) { events_.reserve(streams); }
  /// Adds a stream, as far as its work was submitted. Returns false if the device fails; a stream that has ended has no work.
  ///   Requires:  reserve() has left room
  [[nodiscard]] bool add(Provider& device, stream_id stream) noexcept {
    typename Provider::event event{};
    if (!device.record(stream, event)) return !has_stream(device, stream);
    events_.push_back(event);
    return true;
  }
  /// Whether the streams have completed the work that they had at this point. Never waits.
  [[nodiscard]] bool is_past(Provider& device) noexcept {
    while (!events_.empty() && device.query(events_.back())) drop(device);
    return events_.empty();
  }
  void clear(Provider& device) noexcept {
    while (!events_.empty()) drop(device);
  }

 private:
  void drop(Provider& device) noexcept {
    device.discard(events_.back());
    events_.pop_back();
  }

  std::vector<typename Provider::event> events_;
};
}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::plan {

/// Serves the requests of a recorded program at places computed before. Serves all other requests by
/// `Allocator`.
///
/// Choose it for a program that repeats its steps, such as training. It needs almost no memory above peak live,
/// and no device call once each place has been used. `tessera-replay plan` makes a plan of a recording, and writes it as
/// constants. Those of a step with one request are:
///
///     static constexpr tessera::plan::memory_plan::kind kinds[] = {{5_MiB}};
///     static constexpr tessera::plan::memory_plan::track tracks[] = {{.kinds_end = 1, .entries_end = 1}};
///     static constexpr tessera::plan::memory_plan::entry entries[] = {{}};
///     constexpr tessera::plan::memory_plan plan{
///         .bytes = 5_MiB, .peak_live = 5_MiB, .kinds = kinds, .tracks = tracks, .entries = entries};
///     tessera::plan::planned<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>> memory(plan);
///     memory.deallocate(memory.allocate(5_MiB));
///     std::printf("%ju by plan\n", std::uintmax_t{memory.statistics().by_plan.requests});
///
/// A request gets its place if it is the next one of its stream's plan. It then has the same bytes, and no live
/// block is in that place. After other requests, the plan goes on where four requests in a row match it. Any plan is
/// safe with any program.
///
/// A plan steps aside when the program leaves it. After each 100 requests or a few more, it judges: did it have
/// places for less than half of them, or for less than nine tenths of their bytes? If so, it waits for the streams that use
/// the plan, gives idle memory back, and gives out no more places. Each 100 requests later, it gives back the memory whose
/// blocks have died, once the streams have completed the work from before these frees. After trim(0), it serves again,
/// unless a capture is open.
///
/// * Streams share no bytes of the plan. Stream 0 follows the recorded stream 0. Each other stream follows the
///   first recorded stream that is free and begins with its request.
/// * With virtual memory, the plan's places are a range, and pages are mapped when a place is first used. Without,
///   they are one segment. Memory that no planned block uses goes back to the device in trim(0), and if a request
///   would fail. Both wait for the streams that use the plan.
/// * A plan over several banks takes the memory of each place from its bank. The provider is then a memory_domains with
///   virtual memory, or an adaptor of one; if the bank is full, `Allocator` serves the request. Over another provider with
///   virtual memory, all places are in its memory.
/// * Idle places are also released to keep plan and allocator inside together below a bound: 2 % above the most bytes in
///   use at one time. Unless the plan steps aside, the bound covers all of its places. If that is not enough while the
///   allocator inside grows, the cache of that allocator is emptied, too, except by a plan that steps aside before it has
///   served much. Keeping the bound never waits: while the plan's streams have work, nothing goes back.
/// * If the device refuses memory for a place, it is not asked for more until memory went back.
/// * The plan's bytes do not count in a limit of the allocator inside, such as a memory fraction. The guarantee of
///   a pool does not bind the plan. A limit of the provider counts its bytes.
/// * Requests by handle are neither planned nor counted. The same holds while the scope of a private pool is open. If they
///   would fail, the plan's memory goes back, too.
/// * A recorded use delays the reuse of a place if the streams policy of the allocator inside says so.
/// * Snapshots, reports and lists of blocks show the plan's memory, too. Observers see the allocator inside only.
/// * It cannot sleep.
/// * Front ends that wait or look for leaks go around it, as in `waiting<planned<...>>`: inside, they do not see the
///   plan.
///
/// It is as thread-safe as `Allocator`.
///   Cost:  constant for a planned request and its free; logarithmic after the program left its plan. The plan takes about
///          60 bytes of host memory an entry.
template <typename Allocator>
class planned : public detail::wrapping_adaptor<planned<Allocator>, Allocator> {
  using adaptor_type = detail::wrapping_adaptor<planned, Allocator>;
  using adaptor_type::allocator_;

 public:
  using provider_type = detail::device_of<Allocator>;

 private:
  using mutex = detail::mutex_like_in<Allocator>;
  using memory = detail::plan_memory<provider_type>;
  using unlocking_provider =
      provider::provider_adaptor<provider_type,
                                 detail::unlock_to_wait<mutex, detail::is_thread_safe<provider_type>>>;
  using follower = detail::plan_follower;
  using node = follower::node;
  static constexpr bool has_events = provider::event_provider<provider_type>;
  static constexpr bool has_points = has_events && memory::waits;

 public:
  /// Makes an allocator that follows a plan; `args` construct the allocator inside. A plan with a fault serves
  /// nothing, and statistics() names the fault.
  ///   Requires:  the arrays of the plan outlive the allocator
  ///   Throws:    std::bad_alloc
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit planned(const memory_plan& plan, Args&&... args)
      : adaptor_type(std::forward<Args>(args)...),
        fault_(plan::find_fault(plan)),
        follower_(fault_ == nullptr ? plan : memory_plan{}) {
    if (follower_.plan().empty()) return;
    if constexpr (has_events) used_blocks_of_.resize(follower_.size());
    if constexpr (has_points) {
      point_.reserve(follower_.tracks().size());
      live_at_point_.resize(follower_.live().size());
    }
    refused_totals_.assign(follower_.plan().bank_ends.size() + 1, unlimited);
    if (follower_.plan().bytes == 0) return;  // no device reserves nothing
    fault_ = allocator_.visit_provider(
        [this](provider_type& device) { return memory_.prepare(device, follower_.plan()); });
    most_in_use_ = follower_.plan().peak_live;
    set_budget();
    if (fault_ == nullptr && !allocator_.on_pressure(&planned::before_growth, this))
      fault_ = "host memory ran out";
  }
  planned& operator=(planned&&) = delete;
  ~planned() {
    {
      const std::lock_guard lock(mutex_);
      must_not_wait_ = false;  // a capture does not keep the allocator from its end
      finish_uses(true);
      forget_point();
    }
    allocator_.visit_provider([this](provider_type& device) {
      if constexpr (memory::waits)
        for_each_stream([&device](stream_id s) { return detail::wait_for_stream(device, s), true; });
      memory_.finish(device);
    });
  }

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
  [[nodiscard]] block_handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept
    requires requires(Allocator& in) { in.allocate_by_handle(bytes, stream); }
  {
    return ask_inside(bytes, [=](Allocator& in) { return in.allocate_by_handle(bytes, stream); });
  }

  void deallocate(void* p) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) return free(find_or_abort(p, "deallocate"));
    allocator_.deallocate(p);
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (const std::lock_guard lock(mutex_); memory_.contains(p)) {
      const std::uint32_t i = find_or_abort(p, "deallocate");
      if (follower_.at(i).bytes != bytes) refuse_size(i, bytes, p);
      return free(i);
    }
    allocator_.deallocate(p, bytes);
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
      return record(find_or_abort(p, "record_stream"), stream);
    return allocator_.record_stream(p, stream);
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
  using adaptor_type::deallocate;     // by handle
  using adaptor_type::record_stream;  // by handle
  /// Waits for the work of a stream, and withdraws every record that it uses a live block of the plan. For
  /// interop::end_stream.
  ///   Returns:  false if the device failed, or during a capture
  ///   Cost:     linear in the plan's places, if any stream was recorded for one
  [[nodiscard]] bool withdraw_uses(stream_id ended) noexcept {
    if constexpr (requires { allocator_.withdraw_uses(ended); }) {
      if (!allocator_.withdraw_uses(ended)) return false;
    }
    const std::lock_guard lock(mutex_);
    if constexpr (has_events) {
      if (!pending_.has_recorded_streams()) return true;
      const bool is_done = !must_not_wait_ && allocator_.visit_provider([ended](provider_type& device) {
        return detail::wait_for_stream(device, ended);
      });
      if (!is_done) return false;
      (void)finish_uses(false);
      for (used_block*& b : used_blocks_of_) {
        if (b == nullptr || (follower_.at(b->number).state & follower::is_freed) != 0) continue;
        pending_.drop_uses_if(*b, [ended](stream_id user) { return user == ended; });
        if (b->flags().has_recorded_streams) continue;
        follower_.at(b->number).state &= ~follower::has_uses;
        used_blocks_.give_back(std::exchange(b, nullptr));
      }
    }
    return true;
  }

  /// Empties the cache inside. With `keep` 0, also returns the memory of places that are not in use.
  void trim(std::size_t keep = 0) noexcept {
    allocator_.trim(keep);
    finish_trim(keep, true);
  }

  void trim_without_waiting(std::size_t keep = 0) noexcept
    requires requires(Allocator& in) { in.trim_without_waiting(keep); }
  {
    allocator_.trim_without_waiting(keep);
    finish_trim(keep, false);
  }
  bool process_events() noexcept
    requires requires(Allocator& in) { in.process_events(); }
  {
    const bool any = allocator_.process_events();
    const std::lock_guard lock(mutex_);
    return finish_uses(false) || any;
  }

  /// Counts the open scopes of private pools. While one is open, requests go to the allocator inside.
  template <typename Note>
  void note_change(const Note& note) {
    adaptor_type::note_change(note);
    if constexpr (std::is_same_v<Note, extension::pool_change>) {
      const bool is_opened = note.what == Note::kind::opened;
      if (!is_opened && note.what != Note::kind::closed) return;
      const std::lock_guard lock(mutex_);
      is_opened ? ++open_scopes_ : --open_scopes_;
      must_not_wait_ = allocator_.template get<extension::private_pools>().is_capturing();
      if (is_opened) follower_.pause();
    }
  }
  template <typename E>
  using refused = std::conditional_t<std::is_same_v<E, extension::sleep_mode>,
                                     tessera::detail::missing::sleep_needs_an_allocator_without_a_plan,
                                     typename adaptor_type::template refused<E>>;

  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    detail::oom_numbers numbers = allocator_.make_out_of_memory(bytes, stream).numbers();
    const std::lock_guard lock(mutex_);
    const usage planned_bytes = view().bytes();
    numbers.plan += planned_bytes.reserved;
    detail::add_plan_bytes(numbers.now, planned_bytes, numbers.capacity, numbers.available);
    return out_of_memory(numbers);
  }
  [[nodiscard]] usage current_usage() const noexcept {
    usage now = allocator_.current_usage();
    const std::lock_guard lock(mutex_);
    now += view().bytes();
    return now;
  }
  /// Calls f(view) with a read-only view of the plan's memory. It has the blocks and segments, for tools. They
  /// show it beside the blocks of each caching_allocator inside.
  ///   Requires:  f does not use the allocator
  template <typename F>
  void visit_plan(F f) const {
    detail::visit_plan_of(allocator_, f);
    const std::lock_guard lock(mutex_);
    f(view());
  }
  template <typename F>
  void for_each_device(F f) {
    f(*this, std::size_t{0});
  }
  [[nodiscard]] auto statistics() const noexcept
    requires requires(const Allocator& in) { in.statistics(); }
  {
    using inside = std::remove_cvref_t<decltype(allocator_.statistics())>;
    detail::planned_statistics<inside> all{{allocator_.statistics()}, {}};
    const std::lock_guard lock(mutex_);
    all.by_plan = used_;
    all.by_plan.device_bytes = memory_.device_bytes();
    all.by_plan.plan_bytes = follower_.plan().bytes;
    all.by_plan.fingerprint = follower_.plan().fingerprint;
    all.by_plan.fault = fault_;
    judge_.report(all.by_plan);
    return all;
  }
  void reset_peak_statistics() noexcept
    requires requires(Allocator& in) { in.reset_peak_statistics(); }
  {
    allocator_.reset_peak_statistics();
    const std::lock_guard lock(mutex_);
    counter& bytes = memory_.device_bytes();
    bytes.peak = bytes.current;
  }
  void reset_accumulated_statistics() noexcept
    requires requires(Allocator& in) { in.reset_accumulated_statistics(); }
  {
    allocator_.reset_accumulated_statistics();
    const std::lock_guard lock(mutex_);
    used_ = {};
    judge_.restart();
    counter& bytes = memory_.device_bytes();
    bytes.allocated = bytes.freed = 0;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const std::size_t inside = allocator_.metadata_bytes();
    const std::lock_guard lock(mutex_);
    return inside + follower_.metadata_bytes() + memory_.metadata_bytes() + pending_.metadata_bytes() +
           used_blocks_.metadata_bytes() + used_blocks_of_.capacity() * sizeof(used_block*);
  }
  [[nodiscard]] const char* audit() const noexcept {
    if (const char* const broken = allocator_.audit(); broken != nullptr) return broken;
    const std::lock_guard lock(mutex_);
    return follower_.audit();
  }

 private:
  /// A planned block for which streams are recorded. It lies in no segment.
  struct used_block : detail::block {
    std::uint32_t number;
  };

  [[nodiscard]] detail::plan_view<provider_type> view() const noexcept { return {follower_, memory_}; }

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
    if (bytes == 0 || open_scopes_ > 0 || fault_ != nullptr || judge_.is_aside()) return nullptr;
    const std::uint32_t i = follower_.select(bytes, stream);
    const bool is_kept = i != follower::none && (follower_.at(i).state & follower::is_kept) != 0;
    if (i == follower::none || is_kept) return serve_kept(bytes, stream);
    std::uint32_t blocker = follower_.blocker_of(i);
    if (blocker != follower::none && finish_uses(false)) blocker = follower_.blocker_of(i);
    if (blocker != follower::none) {
      ++used_.occupied;
      // A stream that is slower than recorded does not mean that the program leaves the plan.
      if ((follower_.at(blocker).state & follower::is_freed) != 0) judge_.note_match(bytes);
      return nullptr;
    }
    if (!back(i)) {
      judge_.note_match(bytes);
      unbacked = i;
      return nullptr;
    }
    follower_.take(i);
    return serve(i);
  }
  [[nodiscard]] void* serve_kept(std::size_t bytes, stream_id stream) noexcept {
    std::uint32_t i = follower_.take_kept(bytes, stream);
    if (i == follower::none && finish_uses(false)) i = follower_.take_kept(bytes, stream);
    if (i == follower::none) return nullptr;
    if (back(i)) return serve(i);
    judge_.note_match(bytes);
    follower_.release(i);
    return nullptr;
  }
  [[nodiscard, gnu::noinline]] void* serve_unplanned(std::size_t bytes, stream_id stream,
                                                     std::uint32_t unbacked) noexcept {
    if (bytes == 0) return allocator_.try_allocate(bytes, stream);
    {
      const std::lock_guard lock(mutex_);
      requested_ = bytes;
    }
    void* p = allocator_.try_allocate(bytes, stream);
    // First without waiting for the streams that use freed blocks, then after it.
    for (const bool waits : {false, true}) {
      if (p != nullptr || bytes > max_request) break;
      bool may_retry = false;
      {
        const std::lock_guard lock(mutex_);
        if (void* const place = serve_late(unbacked)) return place;
        may_retry = give_back_unused(waits) > 0;
        if (void* const place = serve_late(unbacked)) return place;
      }
      if (may_retry) p = allocator_.try_allocate(bytes, stream);
    }
    judge(bytes, stream);
    return p;
  }
  /// Counts a request that the plan did not serve, unless it was made in a scope. The plan may then step aside.
  void judge(std::size_t bytes, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    note_growth();
    if (open_scopes_ > 0) return;
    ++used_.unplanned_requests;
    used_.unplanned_bytes += bytes;
    if (!follower_.follows(stream)) judge_.note_other_stream(bytes);
    const bool was_aside = judge_.is_aside();
    if (!judge_.judge(used_)) return;
    set_budget();
    if (!judge_.is_aside()) return;
    follower_.pause();
    // A busy device rarely has idle streams, so waits for them once.
    if (give_back_unused(!was_aside) == 0) give_back_passed();
  }
  /// Tries again to get memory for an entry. The program may have gone on meanwhile.
  [[nodiscard]] void* serve_late(std::uint32_t i) noexcept {
    if (i == follower::none || open_scopes_ > 0) return nullptr;
    follower_.distrust(i);
    if (follower_.blocker_of(i) != follower::none || !back(i)) return nullptr;
    follower_.take(i);
    follower_.distrust(i);
    forget_point();
    return serve(i);
  }

  // Memory of the places.

  /// The bytes of the device that the place of an entry lacks.
  [[nodiscard]] std::size_t missing_bytes(std::uint32_t i) const noexcept {
    const node& n = follower_.at(i);
    if ((n.state & follower::is_backed) != 0) return 0;
    return memory_.missing_bytes(follower_.offset_of(n), follower_.bytes_of(n));
  }
  [[nodiscard]] bool back(std::uint32_t i) noexcept {
    node& n = follower_.at(i);
    if ((n.state & follower::is_backed) != 0) return true;
    const std::size_t needed = missing_bytes(i);
    if (needed > 0) make_room(needed, i);
    const std::size_t total = needed > 0 ? reserved() + needed : 0;
    const std::size_t offset = follower_.offset_of(n), size = follower_.bytes_of(n);
    std::size_t& most = refused_totals_[follower_.plan().bank_of(offset)];
    if (total >= most) return false;
    const bool works =
        allocator_.visit_provider([&](provider_type& device) { return memory_.back(device, offset, size); });
    if (!works) most = total;
    if (!works) return false;
    if (total > budget_) budget_ = total;
    n.state |= follower::is_backed;
    return true;
  }
  /// The bytes that the plan and the allocator inside have from the device.
  [[nodiscard]] std::size_t reserved() const noexcept {
    return allocator_.current_usage().reserved + static_cast<std::size_t>(memory_.device_bytes().current);
  }
  /// Sets the budget to what the program seems to need: a little more than the most bytes in use so far. Unless the
  /// plan steps aside, it covers all places.
  void set_budget() noexcept {
    budget_ = most_in_use_ + most_in_use_ / 50;
    if (!judge_.is_aside()) budget_ = detail::larger(budget_, memory_.bytes());
  }
  /// Gives back memory of unused places, except that of `kept`, so that `bytes` more stay within the budget.
  ///   Returns:  whether they do
  bool make_room(std::size_t bytes, std::uint32_t kept) noexcept {
    const std::size_t total = reserved() + bytes;
    return total <= budget_ || total - give_back_unused(false, total - budget_, kept) <= budget_;
  }
  /// Runs before the allocator inside grows. Memory that is not in use then goes back, if the budget asks for it.
  static bool before_growth(void* self) noexcept {
    planned& me = *static_cast<planned*>(self);
    {
      const std::lock_guard lock(me.mutex_);
      me.reserved_before_ = me.allocator_.current_usage().reserved;
      if (me.must_not_wait_ || me.memory_.device_bytes().current == 0) return false;
      const std::size_t growth = me.max_growth_ > me.requested_ ? me.max_growth_ : me.requested_;
      if (me.make_room(growth, follower::none)) return false;
      // The cache inside is as without the plan if the plan has hardly served.
      if (me.judge_.is_aside() && me.used_.bytes < me.most_in_use_) return false;
    }
    if constexpr (requires { me.allocator_.trim_without_waiting(); }) me.allocator_.trim_without_waiting();
    return false;
  }
  /// Raises the budget by a growth of the allocator inside that could not be avoided. That holds until the plan is
  /// judged again, so that memory goes back at most once in a window of requests.
  void note_growth() noexcept {
    const std::size_t before = std::exchange(reserved_before_, unlimited);
    if (before == unlimited) return;
    usage all = allocator_.current_usage();
    if (all.reserved <= before) return;
    if (all.reserved - before > max_growth_) max_growth_ = all.reserved - before;
    all += view().bytes();
    const std::size_t total = all.reserved;
    if (total > budget_) budget_ = total;
    if (all.active > most_in_use_) most_in_use_ = all.active;
    for (std::size_t& most : refused_totals_) {
      if (total >= most) most = unlimited;
    }
  }
  /// Calls f(stream) for each stream that uses the plan, until it returns false. Returns whether it never did.
  template <typename F>
  bool for_each_stream(F f) noexcept {
    for (const follower::track& t : follower_.tracks()) {
      if (t.is_assigned && !f(t.stream)) return false;
    }
    return true;
  }
  /// Whether the streams that use the plan have done the work that may use free places; false if the device cannot
  /// tell. Never waits.
  [[nodiscard]] bool is_work_done() noexcept {
    if constexpr (!memory::waits) return true;
    if constexpr (!has_events) return false;
    return allocator_.visit_provider([this](provider_type& device) {
      return for_each_stream([&device](stream_id s) { return detail::is_work_done(device, s); });
    });
  }
  /// Waits for that work. The mutex is unlocked meanwhile, because the work may free blocks. Without events it stays locked,
  /// because work that other threads submit meanwhile could not be seen.
  ///   Returns:  whether it is done; a thread may have submitted more or begun a capture, or the device failed
  [[nodiscard]] bool finish_work() noexcept {
    if constexpr (!memory::waits) return true;
    constexpr bool has_threads = has_events && !std::is_same_v<mutex, detail::no_mutex>;
    constexpr int tries = 8;
    for (int i = 0; i < tries; ++i) {
      const bool works = for_each_stream([this](stream_id s) {
        if constexpr (has_events) mutex_.unlock();
        const bool is_done = allocator_.visit_provider(
            [s](provider_type& device) { return detail::wait_for_stream(device, s); });
        if constexpr (has_events) mutex_.lock();
        return is_done && !must_not_wait_;
      });
      if (!works || !has_threads || is_work_done()) return works;
    }
    return false;
  }
  /// Returns the memory that no block and not the place `kept` uses, until `enough` bytes went back. If asked, waits
  /// for the streams that use freed blocks and for the plan's own. Otherwise nothing goes back while these work, nor
  /// during a capture, which another thread may begin during such a wait.
  [[nodiscard]] std::size_t give_back_unused(bool waits, std::size_t enough = unlimited,
                                             std::uint32_t kept = follower::none) noexcept {
    finish_uses(waits);
    if (must_not_wait_ || memory_.device_bytes().current == 0) return 0;
    if (!(waits ? finish_work() : is_work_done())) return 0;
    const auto for_each_used = [this, kept](auto f) {
      if (kept != follower::none)
        f(follower_.offset_of(follower_.at(kept)), follower_.bytes_of(follower_.at(kept)));
      follower_.for_each_live(
          [&](std::uint32_t, const node& n) { f(follower_.offset_of(n), follower_.bytes_of(n)); });
    };
    const std::size_t given = allocator_.visit_provider(
        [&](provider_type& device) { return memory_.give_back(device, enough, for_each_used); });
    if (given > 0) follower_.forget_backing();
    return given;
  }
  /// Gives back the memory that no block used at a point of the plan's streams, once these have completed their work from before
  /// it. Then sets the next point. So memory goes back although the streams always have work.
  void give_back_passed() noexcept {
    if constexpr (has_points) {
      // The plan may have come back while this thread waited. A plan that serves gives out places after the point, whose
      // memory must stay.
      if (!judge_.is_aside() || must_not_wait_ || memory_.device_bytes().current == 0) return;
      allocator_.visit_provider([this](provider_type& device) {
        if (has_point_ && !point_.is_past(device)) return;
        const auto for_each_used = [this](auto f) {
          follower_.for_each_in(live_at_point_, [&](std::uint32_t, const node& n) {
            f(follower_.offset_of(n), follower_.bytes_of(n));
          });
        };
        if (has_point_ && memory_.give_back(device, unlimited, for_each_used) > 0) follower_.forget_backing();
        has_point_ = for_each_stream([&](stream_id s) { return point_.add(device, s); });
        if (!has_point_) point_.clear(device);
        std::copy(follower_.live().begin(), follower_.live().end(), live_at_point_.begin());
      });
    }
  }
  /// Forgets that point, because places are given out.
  void forget_point() noexcept {
    if constexpr (has_points) {
      if (!std::exchange(has_point_, false)) return;
      allocator_.visit_provider([this](provider_type& device) { point_.clear(device); });
    }
  }
  /// Ends a trim of the allocator inside: with `keep` 0, unused memory goes back, and the plan serves again. Does nothing
  /// during a capture.
  void finish_trim(std::size_t keep, bool waits) noexcept {
    const std::lock_guard lock(mutex_);
    if (keep > 0) return;
    (void)give_back_unused(waits);
    if (must_not_wait_) return;
    forget_point();
    std::fill(refused_totals_.begin(), refused_totals_.end(), unlimited);
    judge_.come_back();
    set_budget();
  }
  /// Passes a request that is not planned to the allocator inside. While it fails, gives memory back and asks again.
  template <typename Ask>
  auto ask_inside(std::size_t bytes, Ask ask) noexcept {
    auto served = ask(allocator_);
    while (!served && bytes > 0 && bytes <= max_request && give_back_to_retry()) served = ask(allocator_);
    return served;
  }
  /// Gives memory back because the allocator inside failed. Returns whether it may succeed then.
  [[nodiscard]] bool give_back_to_retry() noexcept {
    const std::lock_guard lock(mutex_);
    return give_back_unused(false) > 0 || give_back_unused(true) > 0;
  }

  // Frees, and uses by other streams.

  /// Finds a block that the user has not freed, or `none`.
  [[nodiscard]] std::uint32_t find(const void* p) const noexcept {
    const std::uint32_t i = follower_.find(reinterpret_cast<std::uintptr_t>(p) - memory_.base());
    const bool is_live = i != follower::none && (follower_.at(i).state & follower::is_freed) == 0;
    return is_live ? i : follower::none;
  }
  [[nodiscard]] std::uint32_t find_or_abort(const void* p, const char* call) const noexcept {
    const std::uint32_t i = find(p);
    if (i == follower::none) [[unlikely]]
      view().refuse(call, p);
    return i;
  }
  void free(std::uint32_t i) noexcept {
    if ((follower_.at(i).state & follower::has_uses) == 0) [[likely]]
      return follower_.release(i);
    free_used(i);
  }
  [[gnu::noinline]] void free_used(std::uint32_t i) noexcept {
    follower_.at(i).state |= follower::is_freed;
    used_block& b = *used_blocks_of_[i];
    if (must_not_wait_) return pending_.set_aside(b);
    const bool is_pending = allocator_.visit_provider([this, &b](provider_type& device) {
      unlocking_provider unlocking(device, mutex_);
      return pending_.defer(b, unlocking);
    });
    if (!is_pending) end_uses(b);
  }
  /// Records a use if the streams policy of the allocator inside says that it delays the reuse.
  [[nodiscard]] bool record(std::uint32_t i, stream_id stream) noexcept {
    node& n = follower_.at(i);
    if (!has_events || !allocator_.delays_reuse(follower_.track_of(n).stream, stream)) return true;
    const bool exists = must_not_wait_ || allocator_.visit_provider([=](provider_type& device) {
      return detail::has_stream(device, stream);
    });
    if (!exists || !used_blocks_.reserve(1)) return false;
    used_block*& b = used_blocks_of_[i];
    if (b == nullptr) {
      b = used_blocks_.take();
      b->status.state = detail::block::state::live;
      b->number = i;
    }
    const bool works = pending_.record(*b, stream, must_not_wait_);
    if (works) {
      n.state |= follower::has_uses;
    } else if ((n.state & follower::has_uses) == 0) {
      used_blocks_.give_back(std::exchange(b, nullptr));
    }
    return works;
  }
  /// Makes the place of a freed block free, because its uses have ended.
  void end_uses(detail::block& freed) noexcept {
    auto& b = static_cast<used_block&>(freed);
    const std::uint32_t i = b.number;
    used_blocks_of_[i] = nullptr;
    used_blocks_.give_back(&b);
    follower_.release(i);
  }
  /// Makes the places free whose uses have ended. Waits for the uses of all freed blocks if asked.
  ///   Returns:  whether a place became free
  bool finish_uses(bool waits) noexcept {
    if (pending_.empty() || must_not_wait_) return false;
    bool any = false;
    const auto end = [this, &any](detail::block& b) {
      any = true;
      end_uses(b);
    };
    allocator_.visit_provider([&](provider_type& device) {
      unlocking_provider unlocking(device, mutex_);
      pending_.defer_set_aside(unlocking, end);
      pending_.process(unlocking, end);
      if (waits) pending_.wait(unlocking, [this](const detail::block&) { return !must_not_wait_; }, end);
    });
    return any;
  }

  // Mistakes of the caller.

  [[noreturn, gnu::noinline, gnu::cold]] void refuse_size(std::uint32_t i, std::size_t passed,
                                                          const void* p) const noexcept {
    detail::fixed_text text;
    text.add("deallocate: not the requested size: ").add(passed).add(" bytes were passed, ");
    detail::fatal(text.add(follower_.at(i).bytes).add(" were requested").c_str(), p);
  }

  // Guards the members below. It is not held while the allocator inside allocates, frees or trims.
  mutable mutex mutex_;
  const char* fault_;
  follower follower_;
  memory memory_;
  plan_usage used_{};
  detail::pending_frees<unlocking_provider, has_events> pending_;
  detail::slab<used_block> used_blocks_;
  std::vector<used_block*> used_blocks_of_;  // by the numbers of the blocks; null without uses
  std::size_t open_scopes_ = 0;
  detail::plan_judge judge_;
  std::size_t most_in_use_ = 0;  // live and pending bytes: recorded, or seen when the allocator inside grew
  std::size_t budget_ = 0;       // reserved bytes up to which no idle memory need go back
  std::size_t requested_ = 0;    // bytes of the last request to the allocator inside
  std::size_t max_growth_ = 0;   // of the allocator inside, by one request
  std::size_t reserved_before_ = unlimited;  // by the allocator inside, before it last tried to grow
  std::vector<std::size_t> refused_totals_;  // by bank: reserved bytes that the device refused to reach
  bool must_not_wait_ = false;               // whether one of them is a scope_kind::capture
  bool has_point_ = false;                   // whether the next two are set
  detail::point_on_streams<provider_type, has_points> point_;
  std::vector<std::uint64_t> live_at_point_;
};

}  // namespace tessera::inline v0_1::plan
