// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

/// Moves a live block to another free list, which it joins when freed.
template <typename Manager>
void move_to(Manager& manager, block& live, free_list& list) noexcept {
  manager.count_in(*live.list, -1);
  live.list = &list;
  manager.count_in(list, 1);
}
/// Coalesces neighbouring free blocks of several lists into one free block of `list`. The blocks are `whole` and its
/// upper neighbours below `end`.
template <typename Manager>
void coalesce_run(Manager& manager, block& whole, const block* end, free_list& list) noexcept {
  using order = typename Manager::order;
  const std::size_t pool = list.where.pool;
  const bool was_split = whole.is_split();
  int count = 0;
  std::size_t bytes = 0;
  for (block *b = &whole, *following = nullptr; b != end; b = following, ++count) {
    following = b->next;
    bytes += b->size;
    b->list->template erase<order>(*b);
    manager.count_in(*b->list, -1);
    if (b == &whole) continue;
    b->unlink();
    manager.erase_block(*b);
  }
  whole.size = bytes;
  whole.list = &list;
  manager.count_in(list, 1);
  list.template insert<order>(whole);
  if (!was_split) return;
  if (manager.mark_idle(whole)) {
    manager.counters().inactive_split_shrank(pool, count, bytes);
  } else {
    manager.counters().inactive_split_grew(pool, 1 - count, 0);
  }
}

/// Lets the free blocks of one stream serve other streams of the same pool. A free block is ordered after the
/// work submitted to its list's stream up to a position. Its own stream reuses it at once, other streams by
/// rules. The device gets a segment back only after the work before each of its frees is done.
///
/// Frees coalesce only blocks of one list. A merged block would have to wait for both streams before either
/// could use it. Neighbouring free blocks of several lists are a run. If memory is wanted or released, a
/// run counts as one block and is coalesced.
template <typename Manager>
class stream_sharing {
 public:
  explicit stream_sharing(Manager& manager) noexcept : manager_(manager) {}

  /// Frees the block at an address after the work of a stream, which may reuse it at once. If any stream is
  /// recorded for the block, that stream waits for the others recorded and for the block's own stream.
  /// Otherwise it waits for nothing: the caller has ordered the free. If it cannot wait, the block is pending
  /// until those streams have reached the free. During a capture, where it must not wait, the block stays live if host
  /// memory for that ran out.
  [[nodiscard]] free_result deallocate_on(const void* p, stream_id after) noexcept {
    block* const live = p != nullptr ? manager_.find_live(p) : nullptr;
    if (live == nullptr) return free_result::unknown;
    const stream_id own = live->list->key;
    free_list* const list = manager_.find_or_create_list(live->list->where, after);
    const stream_id to = list != nullptr ? after : own;  // `own` if host memory ran out
    const stream_id other = list != nullptr ? own : after;
    const bool needs_order = other != to && (list == nullptr || live->flags().has_recorded_streams);
    const bool waits = needs_order && !make_wait_for_submitted(to, other) && !delay_until(*live, other);
    if (waits && !manager_.may_wait()) return free_result::unknown;
    (void)manager_.remove_live(p);
    if (list != nullptr) move_to(manager_, *live, *list);
    manager_.pending().drop_uses_if(*live, [&](stream_id user) { return make_wait_for_submitted(to, user); });
    if (waits) (void)wait_for(other);
    return manager_.finish_deallocate(*live);
  }

  /// Moves free blocks of any list to `list`, by the first rule that yields enough contiguous bytes. Takes
  /// the low end of the smallest run. Returns null if there is no such run, or the device failed.
  ///   Requires:  a preceding reserve_blocks()
  template <typename Policies>
  [[nodiscard]] block* take_from_other_streams(free_list& list, std::size_t size,
                                               const Policies& p) noexcept {
    if (!has_several_lists(list.where)) return nullptr;
    const cross_stream_reuse all = p.streams.reuse_rules();
    const cross_stream_reuse steps[] = {
        {all.follow_dependencies, false, false}, {all.follow_dependencies, all.opportunistic, false}, all};
    cross_stream_reuse tried{};
    for (const cross_stream_reuse& rules : steps) {
      if (rules == tried) continue;
      tried = rules;
      run found = smallest_run(list.where, size, [&](const block& b) {
        return rules.insert_dependencies || b.list == &list || may_serve_now(b, list.key, rules);
      });
      if (found.first == nullptr) continue;
      block* last = found.first;
      for (found.bytes = last->size; found.bytes < size; found.bytes += last->size) last = last->next;
      if (last->next->is_free() && last->next->list == &list) {  // it would coalesce with the rest
        last = last->next;
        found.bytes += last->size;
      }
      if (!p.split.may_serve(size, found.bytes)) continue;
      found.end = last->next;
      const bool leaves_rest = last->list != &list && should_split(p, size, found.bytes);
      return take_over(found, *last, leaves_rest ? found.bytes - size : 0, list, rules);
    }
    return nullptr;
  }

  /// Coalesces each segment in which all blocks are free and all work is done. The block stays with the list
  /// of its first part, because no stream has a prior claim to it.
  void coalesce_idle() noexcept {
    manager_.for_each_segment([this](block& first) {
      if (!first.is_split()) return;
      const block* const end = first.prev;
      for (block* b = &first; b != end; b = b->next) {
        if (!b->is_free() || !manager_.is_stream_work_done(*b)) return;
      }
      coalesce_run(manager_, first, end, *first.list);
    });
  }

  /// Waits for each stream on whose unfinished work any free block still depends.
  void wait_for_unfinished_work() noexcept {
    bool any = false;
    stream_id last;
    // During a wait, lists may come and go, and a capture may begin.
    while (free_list* const next = manager_.may_wait() ? list_after(any, last) : nullptr) {
      last = next->key;
      if (has_unfinished_work(last)) (void)wait_for(last);
      any = true;
    }
  }
  /// Waits for all work submitted to the stream so far. Returns false if the device failed.
  bool wait_for(stream_id stream) noexcept { return finish_work(manager_.provider(), stream); }

  // The search of take_from_other_streams.

  /// Neighbouring free blocks.
  struct run {
    block* first = nullptr;  ///< null for no run
    const block* end = nullptr;
    std::size_t bytes = 0;
    [[nodiscard]] bool precedes(const run& other) const noexcept {
      return bytes < other.bytes || (bytes == other.bytes && first->address < other.first->address);
    }
  };

  /// Whether the blocks of a pool belong to more than one list.
  [[nodiscard]] static bool has_several_lists(const free_list::place& of) noexcept {
    const free_list* const first = static_cast<typename Manager::group&>(*of.group).lists[of.pool].first();
    return first != nullptr && first->next != nullptr;
  }
  /// Finds the smallest run of usable blocks in a pool that holds `size` bytes. Among runs of equal size, the
  /// lowest.
  ///   Cost:  linear in the blocks
  template <typename F>
  [[nodiscard]] run smallest_run(const free_list::place& pool, std::size_t size, F usable) noexcept {
    run best;
    manager_.for_each_segment([&](block& head) {
      if (head.list->where != pool) return;
      run current;
      for (block* b = &head; current.end != head.prev; b = b->next) {
        if (b->is_free() && usable(*b)) {
          if (current.first == nullptr) current.first = b;
          current.bytes += b->size;
          continue;
        }
        current.end = b;
        if (current.bytes >= size && (best.first == nullptr || current.precedes(best))) best = current;
        current = {nullptr, b, 0};
      }
    });
    return best;
  }

 private:
  using order = typename Manager::order;

  [[nodiscard]] bool make_wait_for_submitted(stream_id stream, stream_id user) noexcept {
    auto& provider = manager_.provider();
    return provider.make_wait(stream, user, provider.position(user));
  }
  /// Keeps a live block pending after its free until a stream has reached an event, which during a capture is recorded at its
  /// end. Returns false if host memory ran out.
  [[nodiscard]] bool delay_until(block& live, stream_id user) noexcept {
    return Manager::traits::uses_events && manager_.pending().record(live, user, false);
  }
  [[nodiscard]] bool may_serve_now(const block& free, stream_id to,
                                   const cross_stream_reuse& rules) noexcept {
    return (rules.follow_dependencies &&
            manager_.provider().is_ordered_after(to, free.list->key, manager_.position_of(free))) ||
           (rules.opportunistic && manager_.is_stream_work_done(free));
  }
  /// Splits `size` bytes off the low end of a free block. Both parts stay free.
  ///   Requires:  a preceding reserve_blocks()
  ///   Requires:  size < rest.size
  block& split_free(block& rest, std::size_t size) noexcept {
    const std::size_t pool = rest.list->where.pool;
    if (rest.is_split()) {
      manager_.counters().inactive_split_grew(pool, 1, 0);
    } else {
      manager_.counters().inactive_split_grew(pool, 2, rest.size);
    }
    block& part = manager_.split(rest, size, true);
    part.free_after = rest.free_after;
    part.list->template insert<typename Manager::order>(part);
    return part;
  }
  /// Moves a run to a list, except for `surplus` bytes at its high end.
  block* take_over(run found, block& last, std::size_t surplus, free_list& list,
                   const cross_stream_reuse& rules) noexcept {
    for (block* b = found.first; b != found.end; b = b->next) {
      if (b->list != &list && !may_serve_now(*b, list.key, rules) &&
          !manager_.provider().make_wait(list.key, b->list->key, manager_.position_of(*b)))
        return nullptr;
    }
    if (surplus > 0) {
      block& part = split_free(last, last.size - surplus);
      if (found.first == &last) found.first = &part;
      found.end = &last;
    }
    coalesce_run(manager_, *found.first, found.end, list);
    manager_.mark_free_after_submitted(*found.first);
    return found.first;
  }

  /// Finds the list with the lowest stream above `last`; if `any` is false, with the lowest of all. Returns
  /// null if there is none.
  [[nodiscard]] free_list* list_after(bool any, stream_id last) noexcept {
    free_list* found = nullptr;
    manager_.for_each_list([&](free_list& list) {
      if ((!any || last < list.key) && (found == nullptr || list.key < found->key)) found = &list;
    });
    return found;
  }
  /// Whether a free block of a stream, in any pool, is ordered after work that is not done.
  [[nodiscard]] bool has_unfinished_work(stream_id stream) noexcept {
    bool any = false;
    manager_.for_each_list([&](const free_list& list) {
      if (list.key != stream) return;
      if (const block* const b = list.last_resized(); b != nullptr)
        any = any || !manager_.is_stream_work_done(*b);
      for (const block* b = list.first(); b != nullptr && !any; b = list.template after<order>(*b))
        any = !manager_.is_stream_work_done(*b);
    });
    return any;
  }

  Manager& manager_;
};

}  // namespace tessera::inline v0_1::detail
