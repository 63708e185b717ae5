// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/core/error.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/blocks/pending_frees.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/detail/policies/stream_sharing.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

/// A device without memory, for a copy of an allocator: it knows only how many bytes the device of the original can
/// still give. Work that is not done counts as unfinished until the copy waits for it.
template <typename Original>
class imagined_device {
 public:
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = false;
  static constexpr bool release_waits = detail::release_waits<Original>;
  struct event {
    std::size_t number = 0;
    stream_id stream{};
  };
  struct physical {
    std::size_t bytes = 0;
  };

  imagined_device(Original& original, std::size_t left) noexcept : original_(&original), left_(left) {}

  /// Makes the next events of a stream done, because those of the original are. forget_done() ends that.
  void note_done(stream_id stream) { done_.push_back(stream); }
  void forget_done() noexcept { done_.clear(); }
  /// Makes the next acquire() return an address of the original, whose memory was taken already.
  void place(std::uintptr_t address) noexcept { placed_ = address; }
  /// Ends the copying. From now on, memory is taken from what is left; its addresses lie above `end`.
  void begin(std::uintptr_t end) noexcept {
    is_copying_ = false;
    copied_ = is_finished_.size();
    done_.clear();
    next_ = end > 0 ? end : 1;  // 0 is no address
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return original_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return original_->granularity(); }
  [[nodiscard]] std::size_t available() const noexcept { return left_; }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept
    requires limited_provider<Original>
  {
    const std::size_t more = saturating_add(taken_, bytes);
    return more > given_back_ && original_->would_exceed_limit(more - given_back_);
  }
  [[nodiscard]] bool has_stream(stream_id stream) noexcept {
    return is_copying_ || detail::has_stream(*original_, stream);
  }

  [[nodiscard]] void* acquire(std::size_t bytes, page_kind /*kind*/ = {}) noexcept {
    if (is_copying_) return reinterpret_cast<void*>(placed_);
    return take(bytes) ? new_addresses(bytes, original_->granularity()) : nullptr;
  }
  bool release(void* /*p*/, std::size_t bytes) noexcept { return give_back(bytes); }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires provider::virtual_memory_provider<Original>
  {
    return original_->page_size(kind);
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    return new_addresses(bytes, alignment);
  }
  [[nodiscard]] static bool unreserve(void* /*p*/, std::size_t /*bytes*/) noexcept { return true; }
  bool create(std::size_t bytes, page_kind /*kind*/, physical& made) noexcept {
    if (!is_copying_ && !take(bytes)) return false;
    made.bytes = bytes;
    return true;
  }
  bool destroy(const physical& leaving) noexcept { return give_back(leaving.bytes); }
  [[nodiscard]] static bool map(void* /*p*/, std::size_t /*bytes*/, const physical& /*made*/) noexcept {
    return true;
  }
  [[nodiscard]] static bool grant(void* /*p*/, std::size_t /*bytes*/) noexcept { return true; }
  [[nodiscard]] static bool unmap(void* /*p*/, std::size_t /*bytes*/) noexcept { return true; }
  bool synchronize(stream_id stream) noexcept {
    return try_run([&] { finished_.push_back(stream); });
  }

  bool record(stream_id stream, event& mark) noexcept {
    mark = {is_finished_.size(), stream};
    const bool is_done = std::find(done_.begin(), done_.end(), stream) != done_.end();
    return try_run([&] { is_finished_.push_back(is_done); });
  }
  [[nodiscard]] bool query(event& mark) const noexcept {
    return is_finished_[mark.number] != 0 || has_finished(mark.stream);
  }
  bool wait(event& mark) noexcept {
    is_finished_[mark.number] = 1;
    // A new event is behind all work of its stream, a copied one only behind some.
    return mark.number < copied_ || synchronize(mark.stream);
  }
  static void discard(event& /*mark*/) noexcept {}

  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires provider::ordering_provider<Original>
  {
    return original_->position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires provider::ordering_provider<Original>
  {
    return has_finished(stream) || original_->is_done(stream, at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires provider::ordering_provider<Original>
  {
    return original_->is_ordered_after(stream, of, at);
  }
  [[nodiscard]] static bool make_wait(stream_id /*stream*/, stream_id /*of*/, std::uint64_t /*at*/) noexcept {
    return true;
  }

 private:
  [[nodiscard]] bool has_finished(stream_id stream) const noexcept {
    return std::find(finished_.begin(), finished_.end(), stream) != finished_.end();
  }
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    taken_ += bytes;
    return true;
  }
  [[nodiscard]] bool give_back(std::size_t bytes) noexcept {
    left_ += bytes;
    given_back_ += bytes;
    return true;
  }
  [[nodiscard]] void* new_addresses(std::size_t bytes, std::size_t alignment) noexcept {
    const std::uintptr_t begin = align_up(next_, alignment);
    if (begin < next_ || bytes > ~begin) return nullptr;
    next_ = begin + bytes;
    return reinterpret_cast<void*>(begin);
  }

  Original* original_;
  std::size_t left_;  // bytes that the device can still give
  bool is_copying_ = true;
  std::size_t taken_ = 0;
  std::size_t given_back_ = 0;
  std::uintptr_t placed_ = 0;
  std::uintptr_t next_ = 0;
  std::vector<stream_id> finished_;  // streams whose work the copy waited for
  std::vector<stream_id> done_;      // streams whose next events are done
  std::vector<char> is_finished_;    // for each event, whether the copy waited for it
  std::size_t copied_ = 0;           // events that were recorded while copying
};

/// The extension of a copy: recovery waits only if the original may wait. Beside the copy's own group of free lists, it has
/// one for the private pool that is asked, if one is, and one for all private pools without a use, whose idle memory recovery
/// releases.
struct imagined_pools {
  bool may_wait = true;

  template <typename Core>
  class state : public extension_defaults {
   public:
    using group = typename Core::group;

    state(typename Core::allocator& in, const imagined_pools& given) noexcept
        : in_(in), may_wait_(given.may_wait) {
      asked_.number = 1;
      unused_.number = 2;
    }
    [[nodiscard]] group& asked() noexcept { return asked_; }
    [[nodiscard]] group& unused() noexcept { return unused_; }
    /// Lets the private pool that is asked serve all requests. Without the note, a hit would not ask for it.
    void serve_from_asked() noexcept {
      serves_ = true;
      core_access::extensions(in_).note_special_case(1);
    }

    [[nodiscard]] group* group_for(stream_id) noexcept { return serves_ ? &asked_ : nullptr; }
    template <typename F>
    void for_each_group(F& f) noexcept {
      for (group* const g : {&asked_, &unused_}) {
        const group_visit visited(*g);
        f(*g);
      }
    }
    [[nodiscard]] bool may_wait() const noexcept { return may_wait_; }
    [[nodiscard]] bool may_release(const group& g) const noexcept { return &g == &unused_; }

   private:
    typename Core::allocator& in_;
    bool may_wait_;
    bool serves_ = false;
    group asked_;
    group unused_;
  };
  template <typename Allocator>
  class door {
   public:
    explicit door(Allocator&) noexcept {}
  };
};

/// Why the copy of a pool would serve other requests than the pool does, or null.
template <typename Group>
[[nodiscard]] const char* why_unlike_its_copy([[maybe_unused]] const Group& group) noexcept {
  if constexpr (requires { group.options.never_splits; }) {
    if (group.options.never_splits) return "would_fit: it does not know pools that never split";
    if (group.source) return "would_fit: it does not know pools with a pool_upstream";
  }
  return nullptr;
}

/// A copy of an allocator's state, without its memory. It has the blocks that serve the requests of one pool, and those of
/// other pools whose idle memory recovery releases. All other memory counts as used.
template <typename Original>
class allocator_copy {
  using recipe_type = typename Original::recipe_type;
  using provider_type = typename Original::provider_type;
  using device_type = imagined_device<provider_type>;
  using allocator_type = caching_allocator<recipe_type, device_type, imagined_pools>;
  using access = core_access;
  using group = typename std::remove_reference_t<decltype(access::manager(std::declval<Original&>()))>::group;
  static constexpr bool has_ranges = Original::has_ranges;

 public:
  /// Copies the pool that serves the requests of a stream now.
  ///   Throws:  std::bad_alloc
  allocator_copy(Original& original, stream_id stream)
      : original_(original),
        group_(&access::manager(original).group_for(stream)),
        copy_(device_type(original.provider(), left_on(original.provider(), reserved())),
              access::policies(original), imagined_pools{from().may_wait()}) {
    copy_segments();
    add_other_memory();
    to().own().clocks = from().own().clocks;
    to().provider().begin(end_);
    if (!group_->is_private()) return;
    pools().asked().clocks = group_->clocks;
    pools().serve_from_asked();
  }

  [[nodiscard]] allocator_type& allocator() noexcept { return copy_; }
  /// Whether the copied pool serves a stream.
  [[nodiscard]] bool serves(stream_id stream) const noexcept { return &from().group_for(stream) == group_; }

 private:
  [[nodiscard]] auto& from() const noexcept { return access::manager(original_); }
  [[nodiscard]] auto& to() noexcept { return access::manager(copy_); }
  /// Bytes that the device gave, or is being asked for.
  [[nodiscard]] std::size_t reserved() const noexcept {
    return from().counters().reserved() + from().requested_bytes();
  }
  static void require_memory(bool has_memory) {
    if (!has_memory) raise(std::bad_alloc());
  }
  [[nodiscard]] auto& pools() noexcept { return access::extensions(copy_).template get<imagined_pools>(); }
  /// Whether the copy has the blocks of a group. Recovery releases nothing of others, or not to the device.
  [[nodiscard]] bool has(const group& of) const noexcept {
    return &of == group_ || (from().may_release(of) && access::extensions(original_).has_memory(of) &&
                             why_unlike_its_copy(of) == nullptr);
  }
  [[nodiscard]] free_list& list_like(const free_list& list) {
    auto& own = to().own();
    const bool is_asked = list.where.group == group_;
    auto& same_group = !list.where.group->is_private() ? own : is_asked ? pools().asked() : pools().unused();
    free_list* const same = to().prepare_list(same_group, list.where.pool, list.key);
    require_memory(same != nullptr);
    return *same;
  }

  void copy_segments() {
    from().pending().for_each_wait(
        original_.provider(), from().may_wait(),
        [this](const block& b, stream_id stream, bool is_done) { waits_.push_back({&b, stream, is_done}); });
    if constexpr (requires { from().pending().first_aside(); })
      if (from().may_wait()) add_set_aside();
    std::sort(waits_.begin(), waits_.end(), [](const wait& x, const wait& y) { return x.by < y.by; });
    std::vector<const segment*> segments;
    from().for_each_segment([&](const block& first) {
      const auto& whole = static_cast<const segment&>(*first.prev);
      if (has(static_cast<const group&>(*first.list->where.group))) segments.push_back(&whole);
      const block& last = *whole.prev;
      if (last.end() > end_) end_ = last.end();
    });
    // Numbers count acquisitions, and free lists may be ordered by them.
    std::sort(segments.begin(), segments.end(), [](const segment* a, const segment* b) {
      return static_cast<std::int32_t>(a->number - b->number) < 0;
    });
    if constexpr (has_ranges) {
      auto& ranges = access::backend(copy_).ranges();
      ranges.note_alignment(access::backend(original_).ranges().alignment());
    }
    for (const segment* s : segments) {
      if constexpr (has_ranges) {
        copy_range(*s);
      } else {
        copy_segment(*s);
      }
    }
    if constexpr (requires { access::backend(copy_).copy_peaks(access::backend(original_)); })
      access::backend(copy_).copy_peaks(access::backend(original_));
  }
  /// Adds the uses of blocks that were freed during a capture. The next call drops those that were recorded in it. If it
  /// drops all, the block is as one whose work is done, on a stream that no other block waits for.
  void add_set_aside() {
    for (const stream_use* first = from().pending().first_aside(); first != nullptr;
         first = first->next_aside) {
      const std::size_t before = waits_.size();
      for (const stream_use* u = first; u != nullptr; u = u->next)
        if (!u->unasked) waits_.push_back({u->used, u->queue->stream, false});
      if (waits_.size() == before) waits_.push_back({first->used, stream_id{~std::uint64_t{0}}, true});
    }
  }
  void copy_segment(const segment& s) {
    const block& first = s.first();
    const std::size_t bytes = segment_bytes(first);
    to().provider().place(first.address);
    block* const whole = to().acquire(list_like(*first.list), bytes, s.oversize,
                                      access::policies(original_).pages.backing(bytes));
    require_memory(whole != nullptr);
    segment& same = segment_of(*whole);
    cut(same, s);
    same.idle_since = s.idle_since;
    same.history = s.history;
  }
  void copy_range(const segment& s) {
    auto& ranges = access::backend(copy_).ranges();
    block* hole = ranges.insert_range(list_like(*s.list), s.address, s.size);
    require_memory(hole != nullptr);
    const segment& same = segment_of(*hole);
    introspect(original_).for_each_unit_of(s.first(), [&](const heap_unit& c) {
      const block* const mapped = ranges.map_new(
          *hole, c.address, c.bytes, {c.bytes, 0, access::policies(original_).pages.backing(c.bytes)});
      require_memory(mapped != nullptr);
      if (mapped->next->is_unmapped()) hole = mapped->next;
    });
    cut(same, s);
  }
  /// Cuts the free blocks of a segment into blocks like those of the original.
  void cut(const segment& copied, const segment& original) {
    std::vector<block*> parts;
    block* from = copied.next;
    for (const block* b = original.next; b != &original; b = b->next) {
      if (b->is_unmapped()) continue;
      while (from->end() <= b->address) from = from->next;
      require_memory(to().reserve_blocks());
      const bool is_oversize = b->status.state == block::state::live_flagged && b->status.flags.oversize;
      const std::size_t requested = b->is_free() ? 0 : b->request.bytes;
      from = &to().template allocate<true>(*from, requested, b->size, 0, is_oversize, from->list->key);
      parts.push_back(from);
    }
    auto part = parts.begin();
    for (const block* b = original.next; b != &original; b = b->next) {
      if (b->is_unmapped()) continue;
      block& same = **part++;
      move_to(to(), same, list_like(*b->list));
      if (b->status.state == block::state::pending) make_waiting(same, *b);
      if (!b->is_free() && b->status.state != block::state::pending) continue;
      (void)to().deallocate(same);
      if constexpr (has_ranges) same.free_since = b->free_since;
      if constexpr (Original::recipe_type::streams::reuses_across_streams) same.free_after = b->free_after;
    }
  }
  /// Records the streams for which a pending block waits. During a capture, one that was set aside waits for its end.
  void make_waiting(block& live, const block& pending) {
    to().provider().forget_done();
    auto next = std::lower_bound(waits_.begin(), waits_.end(), &pending,
                                 [](const wait& w, const block* b) { return w.by < b; });
    if (next == waits_.end() || next->by != &pending)
      require_memory(to().record_stream(live, pending.list->key));
    for (; next != waits_.end() && next->by == &pending; ++next) {
      require_memory(to().record_stream(live, next->stream));
      if (next->is_done) to().provider().note_done(next->stream);
    }
  }
  /// Counts the memory of other pools, and what the device is being asked for or to take back.
  void add_other_memory() noexcept {
    auto& counters = to().counters();
    const std::size_t other = reserved() - counters.reserved();
    if (other == 0) return;
    if constexpr (has_ranges) {
      counters.mapped(0, other);
    } else {
      counters.segment_acquired(0, other);
    }
    counters.allocated(0, other, other);
  }

  /// A use for which a pending block waits.
  struct wait {
    const block* by;
    stream_id stream;
    bool is_done;
  };

  Original& original_;
  const group* group_;
  std::uintptr_t end_ = 0;   // of the highest address
  std::vector<wait> waits_;  // sorted by their blocks
  allocator_type copy_;
};

/// Whether an extension limits what the pools of an allocator hold, which a copy does not know.
template <typename Allocator>
inline constexpr bool limits_groups =
    std::remove_reference_t<decltype(core_access::extensions(std::declval<Allocator&>()))>::limits_groups;

/// Why the pool of a stream serves nothing now, or null. Memory that sleeps cannot be copied, either.
[[nodiscard]] const char* why_unserved(auto& allocator, stream_id stream) noexcept {
  auto& extensions = core_access::extensions(allocator);
  auto& group = core_access::manager(allocator).group_for(stream);
  if (extensions.may_serve(group)) return nullptr;
  const char* const why = extensions.why_unserved(group);
  return why != nullptr ? why : "an extension lets the pool serve nothing now";
}

/// Why requests of the default pools may be served from elsewhere, or null.
[[nodiscard]] const char* why_others_lend(auto& allocator) noexcept {
  const char* why = nullptr;
  core_access::extensions(allocator).for_each_group([&why](const auto& group) {
    if constexpr (requires { group.options.serves_on_oom; }) {
      if (group.options.serves_on_oom && group.uses > 0)
        why = "would_fit: it does not know what a pool lends";
    }
  });
  return why;
}

/// Why requests of a stream cannot be tried on a copy, or null.
[[nodiscard]] const char* why_not_copied(auto& allocator, stream_id stream) noexcept {
  const auto& asked = core_access::manager(allocator).group_for(stream);
  const char* why = why_unserved(allocator, stream);
  if (why == nullptr) why = why_unlike_its_copy(asked);
  return why == nullptr && !asked.is_private() ? why_others_lend(allocator) : why;
}

}  // namespace tessera::inline v0_1::detail
