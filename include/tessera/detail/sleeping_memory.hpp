// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/host_copies.hpp>
#include <tessera/detail/mapped_ranges.hpp>
#include <tessera/detail/private_pools.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// Replaces host_copies for a provider without copies.
struct no_copies {
  static constexpr bool is_finished() noexcept { return true; }
};

/// Puts the memory of groups to sleep: unmaps it under live blocks and gives it back. Blocks and addresses
/// stay as they are. Later maps memory there again.
///
/// A part of memory that sleeps was a physical chunk. No chunk is registered at its address, so that eviction
/// and stitching leave it alone. No call here lets other threads into a locked allocator.
template <typename Manager>
class sleeping_memory {
  using provider_type = typename Manager::provider_type;
  using ranges_type = mapped_ranges<Manager>;
  using chunk = typename ranges_type::chunk;
  static constexpr bool can_copy = copying_provider<provider_type>;

 public:
  sleeping_memory(Manager& manager, auto& backend) noexcept : manager_(manager), ranges_(backend.ranges()) {}
  sleeping_memory(const sleeping_memory&) = delete;
  sleeping_memory& operator=(const sleeping_memory&) = delete;
  ~sleeping_memory() {
    (void)settle();
    erase_all(parts_);
  }

  /// Gives back the memory of the selected groups.
  ///   Requires:  no work uses the memory, and no request adds memory to these groups
  ///   Returns:   a failure if saving failed; then nothing has changed. Memory that the device fails to unmap
  ///              stays mapped
  [[nodiscard]] sleep_result sleep(changed_groups selects, sleep_contents contents,
                                   stream_id stream) noexcept {
    if (!can_copy && contents == sleep_contents::save)
      return {.why = "the provider is no copying_provider, so it cannot save contents"};
    if (!settle()) return {.why = device_fails};
    part* planned = nullptr;
    const char* why = plan(selects, contents, planned);
    if constexpr (can_copy) {
      if (why == nullptr && contents == sleep_contents::save) {
        copies_.begin(stream);
        for (const part* p = planned; p != nullptr && why == nullptr; p = p->next) {
          if (!copies_.to_host(manager_.provider(), p->saved, p->address, p->bytes)) why = copy_fails;
        }
        if (!copies_.finish(manager_.provider())) why = copy_fails;
      }
    }
    if (why != nullptr) {
      copying_parts_ = planned;
      (void)settle();
      return {.why = why};
    }
    sleep_result result;
    part** end = &parts_;
    while (*end != nullptr) end = &(*end)->next;
    for (part* following = nullptr; planned != nullptr; planned = following) {
      following = std::exchange(planned->next, nullptr);
      if (!give_back(*planned)) {
        erase(planned);
        continue;
      }
      result.bytes += planned->bytes;
      *end = planned;
      end = &planned->next;
    }
    return result;
  }

  /// Maps memory again for the selected groups, all of it or none. May be repeated after a failure.
  template <typename Policies>
  [[nodiscard]] sleep_result wake(changed_groups selects, stream_id stream, const Policies& p) noexcept {
    if (!settle()) return {.why = device_fails};
    provider_type& device = manager_.provider();
    ranges_.chunks().retry_orphaned(device);
    drop_free(selects);
    chunk* fresh = nullptr;
    sleep_result result = create(selects, fresh, p);
    if (!result) return result;
    // All memory exists, so no kind of page is asked for.
    if (!ranges_.chunks().map_all(device, fresh, {})) return {.why = "the device failed to map memory"};
    if constexpr (can_copy) {
      copies_.begin(stream);
      bool works = true;
      for_each_part(selects, [&](part& s) {
        if (works && s.saved != nullptr) works = copies_.to_device(device, s.address, s.saved, s.bytes);
      });
      if (!copies_.finish(device) || !works) {
        copying_chunks_ = fresh;
        (void)settle();
        return {.why = copy_fails};
      }
    }
    for (part** at = &parts_; *at != nullptr;) {
      part* const s = *at;
      if (!selects(group_of(*s))) {
        at = &s->next;
        continue;
      }
      manager_.counters().fell_asleep(-static_cast<std::int64_t>(s->bytes));
      manager_.count_mapped(*s->range->list, static_cast<std::int64_t>(s->bytes));
      manager_.report(action::wake, s->address, s->bytes, s->bytes, *s->range->list);
      *at = s->next;
      erase(s);
    }
    return result;
  }
  /// Bytes of a group that went back.
  [[nodiscard]] std::size_t bytes_of(const pool_group& of) const noexcept {
    std::size_t bytes = 0;
    for (const part* s = parts_; s != nullptr; s = s->next) bytes += &group_of(*s) == &of ? s->bytes : 0;
    return bytes;
  }
  /// Whether a live block of a group for which which(group) is true serves a request of the default pools.
  ///   Cost:  linear in the segments, and in the blocks of groups that lend
  template <typename Which>
  [[nodiscard]] bool has_lent(Which which) const noexcept {
    bool any = false;
    std::as_const(manager_).for_each_segment([&](const block& first) {
      const pool_group& in = *first.list->where().group;
      if (!in.options.serves_on_oom || !which(in)) return;
      for (const block *b = &first, *end = first.prev; b != end && !any; b = b->next) any = b->is_lent();
    });
    return any;
  }
  /// Erases the sleeping parts that lie wholly in free blocks of the groups for which selects(group) is true.
  /// Their addresses become unmapped.
  template <typename Selects>
  void drop_free(Selects selects) noexcept {
    const segment* range = nullptr;
    block* b = nullptr;
    for (part** at = &parts_; *at != nullptr;) {
      part& s = **at;
      if (selects(group_of(s))) {
        if (range != s.range) b = &s.range->first();
        range = s.range;
        while (b->end() <= s.address) b = b->next;
        if (b->is_free() && b->address <= s.address && s.address + s.bytes <= b->end() &&
            manager_.reserve_blocks()) {
          b = &ranges_.mark_unmapped(*b, s.address, s.bytes);
          manager_.counters().fell_asleep(-static_cast<std::int64_t>(s.bytes));
          manager_.report(action::segment_unmap, s.address, s.bytes, s.bytes, *b->list);
          *at = s.next;
          erase(&s);
          if (!b->is_split()) {
            ranges_.unreserve_range(*b);
            range = nullptr;
          }
          continue;
        }
      }
      at = &s.next;
    }
  }

 private:
  using action = typename Manager::action;
  static constexpr const char* device_fails = "the device cannot say whether earlier copies are done";
  static constexpr const char* copy_fails = "a copy between device and host memory failed";
  static constexpr const char* no_host_memory = "host memory ran out";

  /// The addresses of a chunk that went back.
  struct part {
    std::uintptr_t address;
    std::size_t bytes;
    segment* range;    ///< the range that it lies in
    std::byte* saved;  ///< its contents, or null
    part* next;
  };

  [[nodiscard]] static const pool_group& group_of(const part& s) noexcept {
    return *s.range->list->where().group;
  }
  static void erase(part* s) noexcept {
    delete[] s->saved;
    delete s;
  }
  static void erase_all(part*& first) noexcept {
    while (first != nullptr) erase(std::exchange(first, first->next));
  }
  template <typename F>
  void for_each_part(changed_groups selects, F f) noexcept {
    for (part* s = parts_; s != nullptr; s = s->next) {
      if (selects(group_of(*s))) f(*s);
    }
  }

  /// Ends what a failed call left, once no copy is running any more.
  [[nodiscard]] bool settle() noexcept {
    if constexpr (can_copy) {
      if (!copies_.is_finished() && !copies_.finish(manager_.provider())) return false;
    }
    erase_all(copying_parts_);
    ranges_.chunks().destroy_all(manager_.provider(), std::exchange(copying_chunks_, nullptr));
    return true;
  }
  /// Lists the chunks of the selected groups, in the order of lists, ranges and addresses. Takes host memory
  /// for the contents that are to be saved. Returns null, or why it failed.
  [[nodiscard]] const char* plan(changed_groups selects, sleep_contents contents, part*& first) noexcept {
    const char* why = nullptr;
    part** last = &first;
    ranges_.for_each_range([&](segment& range) {
      if (!selects(*range.list->where().group)) return;
      for (const block* b = &range.first(); b != &range; b = b->next) {
        std::uintptr_t at = b->address;
        while (why == nullptr && !b->is_unmapped()) {
          const chunk* const c = ranges_.chunks().first_from(at, b->end(), ranges_.alignment());
          if (c == nullptr) break;
          at = c->address + c->bytes;
          part* const fresh = new (std::nothrow) part{c->address, c->bytes, &range, nullptr, nullptr};
          if (fresh != nullptr) {
            *last = fresh;
            last = &fresh->next;
            if (contents == sleep_contents::save) fresh->saved = new (std::nothrow) std::byte[c->bytes];
          }
          if (fresh == nullptr || (contents == sleep_contents::save && fresh->saved == nullptr))
            why = no_host_memory;
        }
      }
    });
    return why;
  }
  /// Unmaps and destroys the chunk of a part. Returns false if the device failed to unmap it.
  [[nodiscard]] bool give_back(const part& s) noexcept {
    auto& chunks = ranges_.chunks();
    chunk& c = *chunks.first_from(s.address, s.address + 1, 1);
    if (!chunks.unmap(manager_.provider(), c)) return false;
    chunks.destroy(manager_.provider(), c);
    manager_.count_mapped(*s.range->list, -static_cast<std::int64_t>(s.bytes));
    manager_.counters().fell_asleep(static_cast<std::int64_t>(s.bytes));
    manager_.report(action::sleep, s.address, s.bytes, s.bytes, *s.range->list);
    return true;
  }
  /// Creates the memory of the selected parts, in their order. On failure, destroys it and counts what is
  /// missing.
  template <typename Policies>
  [[nodiscard]] sleep_result create(changed_groups selects, chunk*& first, const Policies& p) noexcept {
    provider_type& device = manager_.provider();
    sleep_result result;
    std::size_t total = 0;
    for_each_part(selects, [&total](const part& s) { total += s.bytes; });
    const std::size_t limit = p.growth.limit.on(device.capacity());
    if (total > 0 && manager_.would_exceed_limit(limit, total)) {
      const std::size_t reserved = manager_.counters().reserved();
      const std::size_t room = limit > reserved ? limit - reserved : 0;
      return {.missing = room < total ? total - room : total,
              .why = "the limit of the allocator leaves too little"};
    }
    chunk** last = &first;
    for_each_part(selects, [&](const part& s) {
      if (!result) return;
      *last = ranges_.chunks().plan(s.address, s.bytes);
      if (*last == nullptr) {
        result.why = no_host_memory;
      } else if (!ranges_.chunks().create(device, **last, kinds_for(s, p))) {
        result.why = "the device has too little free memory";
      } else {
        result.bytes += s.bytes;
      }
      if (*last != nullptr) last = &(*last)->next;
    });
    if (result) return result;
    ranges_.chunks().destroy_all(device, std::exchange(first, nullptr));
    std::size_t room = result.bytes;
    if constexpr (measured_provider<provider_type>) {
      if (device.available() < total) room = device.available();
    }
    return {.missing = total - room, .why = result.why};
  }
  /// The kinds of pages to ask for, without those that are too large for a part.
  template <typename Policies>
  [[nodiscard]] page_order kinds_for(const part& s, const Policies& p) const noexcept {
    page_order usable{};
    for (const page_kind& kind : p.pages.backing(s.bytes)) {
      if (s.bytes % manager_.provider().page_size(kind) == 0) usable.kinds[usable.count++] = kind;
    }
    return usable.count > 0 ? usable : p.pages.backing(s.bytes);
  }

  Manager& manager_;
  ranges_type& ranges_;
  part* parts_ = nullptr;
  // While copies may be running, their memory stays.
  part* copying_parts_ = nullptr;
  chunk* copying_chunks_ = nullptr;
  [[no_unique_address]] std::conditional_t<can_copy, host_copies<provider_type>, no_copies> copies_;
};

}  // namespace tessera::detail
