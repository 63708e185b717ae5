// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/crossing_heap.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/machine.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// The machine of an allocator whose free blocks cross from stream to stream. Each free block is free behind the work
/// that its home's stream was given up to a position; its own stream gets it at once, others by rules. The device gets a
/// segment back only where the work before each free in it is seen to be done.
template <ordering_provider Provider, event_observer Observer, typename Counting, std::size_t Pools,
          bool UsesEvents>
class crossing_machine : public machine<Provider, Observer, Counting, crossing_heap<Pools>, UsesEvents> {
  using base = machine<Provider, Observer, Counting, crossing_heap<Pools>, UsesEvents>;

 public:
  using base::base;
  using base::take_back;

  /// Ends the life of the block at an address, behind the work of a stream, which gets it at once from now on. Where streams
  /// are noted for the block, that one is made to wait for them and for the block's own; where that fails, the block is
  /// held until those noted have come past.
  [[nodiscard]] taken take_back(const void* p, stream_id behind) noexcept {
    block* const live = p != nullptr ? this->heap_.end_life(p) : nullptr;
    if (live == nullptr) return taken::unknown;
    const stream_id own = live->home->key();
    const bool has_uses = live->what_is_noted().has_uses;
    if (free_list* const home = this->heap_.home(live->home->pool(), behind))
      this->heap_.change_home(*live, *home);
    const stream_id to = live->home->key();  // `behind`, where host memory did not run out
    this->pending_.settle(*live, [&](stream_id user) { return comes_behind(to, user); });
    if (to != behind && !comes_behind(to, behind)) (void)wait_for(behind);
    if (has_uses && to != own && !comes_behind(to, own)) (void)wait_for(own);
    return this->end(*live, live->address);
  }

  /// Takes free blocks of any home over into `home` by the first rule that lets enough of them, side by side, cross, and
  /// of those the smallest row, from its low end; null where there is none, or the device failed. Of `bytes` side by side,
  /// serves(bytes) says whether they may serve, and cuts(bytes) whether what is too much stays where it is.
  ///   Requires:  a make_room() that covers it
  template <typename Serves, typename Cuts>
  [[nodiscard]] block* borrow(free_list& home, std::size_t size, cross_stream_reuse by, Serves serves,
                              Cuts cuts) noexcept {
    if (!this->heap_.has_several_homes(home.pool())) return nullptr;
    const cross_stream_reuse steps[] = {
        {by.follow_dependencies, false, false}, {by.follow_dependencies, by.opportunistic, false}, by};
    cross_stream_reuse before{};
    for (const cross_stream_reuse& rules : steps) {
      if (rules == before) continue;
      before = rules;
      row found = this->heap_.smallest_row(home.pool(), size, [&](const block& b) {
        return rules.insert_dependencies || b.home == &home || crosses_now(b, home.key(), rules);
      });
      if (found.first == nullptr) continue;
      block* last = found.first;
      for (found.bytes = last->size; found.bytes < size; found.bytes += last->size) last = last->above;
      if (last->above->is_free() && last->above->home == &home) {  // what is taken over merges with it
        last = last->above;
        found.bytes += last->size;
      }
      if (!serves(found.bytes)) continue;
      found.end = last->above;
      const bool leaves_rest = last->home != &home && cuts(found.bytes);
      return take_over(found, *last, leaves_rest ? found.bytes - size : 0, home, rules);
    }
    return nullptr;
  }

  /// Of segments of which all is free and done, but in several homes, makes one block each. No stream has a claim to it
  /// before others then, so it waits where its first part did.
  void gather_idle() noexcept {
    this->heap_.for_each_segment([this](block& head, std::size_t bytes) {
      if (!head.is_split()) return;
      const block* const end = head.below;
      for (block* b = &head; b != end; b = b->above) {
        if (!b->is_free() || !is_done(*b)) return;
      }
      this->heap_.gather({&head, end, bytes}, *head.home, split_counter(*head.home));
    });
  }
  [[nodiscard]] std::size_t releasable(const block& idle) noexcept { return is_done(idle) ? idle.size : 0; }
  std::size_t release(block& idle) noexcept { return is_done(idle) ? base::release(idle) : 0; }

  /// Also waits for the streams behind whose work a block is free.
  void wait_for_pending() noexcept {
    base::wait_for_pending();
    bool any = false;
    stream_id last;
    while (free_list* const next = home_after(any, last)) {  // homes may come and go during a wait
      last = next->key();
      if (has_undone(*next)) (void)wait_for(last);
      any = true;
    }
  }
  /// Returns once all work given to the stream so far is done; false where the device failed.
  bool wait_for(stream_id stream) noexcept {
    typename Provider::event mark{};
    if (!this->device_.record(stream, mark)) return false;
    const bool is_over = this->device_.wait(mark);
    this->device_.discard(mark);
    return is_over;
  }

 private:
  using split_observer = typename base::split_observer;
  [[nodiscard]] split_observer split_counter(const free_list& home) noexcept {
    return {this->ledger_, home.pool()};
  }

  [[nodiscard]] bool comes_behind(stream_id stream, stream_id of) noexcept {
    return this->device_.let_wait(stream, of, this->device_.position(of));
  }
  /// The position behind which a block is free, or a later one.
  [[nodiscard]] std::uint64_t position_of(const block& free) noexcept {
    const std::uint64_t now = this->device_.position(free.home->key());
    const std::uint32_t since = static_cast<std::uint32_t>(now) - free.free_behind;
    return since <= now ? now - since : now;
  }
  [[nodiscard]] bool is_done(const block& free) noexcept {
    return this->device_.is_done(free.home->key(), position_of(free));
  }
  [[nodiscard]] bool crosses_now(const block& free, stream_id to, const cross_stream_reuse& rules) noexcept {
    return (rules.follow_dependencies && this->device_.is_behind(to, free.home->key(), position_of(free))) ||
           (rules.opportunistic && is_done(free));
  }
  /// Takes a row over, but for the `surplus` bytes at its high end.
  block* take_over(row of, block& last, std::size_t surplus, free_list& home,
                   const cross_stream_reuse& rules) noexcept {
    for (block* b = of.first; b != of.end; b = b->above) {
      if (b->home != &home && !crosses_now(*b, home.key(), rules) &&
          !this->device_.let_wait(home.key(), b->home->key(), position_of(*b)))
        return nullptr;
    }
    if (surplus > 0) {
      block& part = this->heap_.split_free(last, last.size - surplus, split_counter(home));
      if (of.first == &last) of.first = &part;
      of.end = &last;
    }
    this->heap_.gather(of, home, split_counter(home));
    this->stamp(*of.first);
    return of.first;
  }

  /// The first home whose key is above `last`, or if there is no `last`, the first one; null where there is none.
  [[nodiscard]] free_list* home_after(bool any, stream_id last) noexcept {
    free_list* found = nullptr;
    this->heap_.for_each_home([&](free_list& home) {
      if ((!any || last < home.key()) && (found == nullptr || home.key() < found->key())) found = &home;
    });
    return found;
  }
  [[nodiscard]] bool has_undone(free_list& of) noexcept {
    bool any = false;
    this->heap_.for_each_home([&](free_list& home) {
      if (home.key() != of.key()) return;
      home.put_down();
      for (const block* b = home.lowest(); b != nullptr && !any; b = home.after(*b)) any = !is_done(*b);
    });
    return any;
  }
};

}  // namespace tessera::detail
