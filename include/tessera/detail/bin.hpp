// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/detail/block.hpp>
#include <tessera/detail/block_order.hpp>

namespace tessera::detail {

/// Free blocks in an order, which is that of every call.
///
/// They are a ring as long as what is inserted lies near one of its ends and what is looked for near the first, as they
/// nearly always do; from the first time that they do not until all blocks are gone, they are a treap.
///   Cost:  constant; in a treap, the logarithm of their number
class bin {
 public:
  [[nodiscard]] bool empty() const noexcept { return top_ == nullptr; }

  /// Files a block; whether it is the only one.
  template <typename Order = by_address>
  [[gnu::always_inline]] bool insert(block& b) noexcept {
    if (top_ == nullptr) {
      top_ = b.links[0] = b.links[1] = &b;
      return true;
    }
    block& first = *top_;
    if (first.mark.in_treap) return plant<Order>(b), false;
    block& last = *first.links[0];
    if constexpr (!Order::is_by_size) {
      link(last, b, first);
      top_ = &b;
      return false;
    }
    if (Order::precedes(last, b)) {
      link(last, b, first);
    } else if (Order::precedes(b, first)) {
      link(last, b, first);
      top_ = &b;
    } else {
      insert_inside<Order>(b);
    }
    return false;
  }

  /// Takes a block out; whether none is left.
  template <typename Order = by_address>
  [[gnu::always_inline]] bool remove(block& b) noexcept {
    if (b.mark.in_treap) return uproot<Order>(b), top_ == nullptr;
    block* const following = b.links[1];
    if (following == &b) return top_ = nullptr, true;
    b.links[0]->links[1] = following;
    following->links[0] = b.links[0];
    if (top_ == &b) top_ = following;
    return false;
  }

  /// The first block, or null.
  [[nodiscard]] block* lowest() const noexcept {
    return top_ == nullptr || !top_->mark.in_treap ? top_ : end(0);
  }
  [[nodiscard]] block* highest() const noexcept {
    return top_ == nullptr ? nullptr : !top_->mark.in_treap ? top_->links[0] : end(1);
  }
  /// The first block of at least `size` bytes, or null.
  template <typename Order = by_address>
  [[nodiscard]] block* best_fit(std::size_t size) noexcept {
    if (top_ == nullptr) return nullptr;
    return !top_->mark.in_treap && top_->size >= size ? top_ : search<Order>(size);
  }
  /// The first block behind `b`, or null.
  template <typename Order = by_address>
  [[nodiscard]] block* after(const block& b) const noexcept {
    if (!b.mark.in_treap) return b.links[1] != top_ ? b.links[1] : nullptr;
    return outermost(0, [&b](const block& at) { return Order::precedes(b, at); });
  }
  [[nodiscard]] block* last_before(std::size_t size, std::uintptr_t address) const noexcept {
    block wanted;
    wanted.size = size;
    wanted.address = address;
    return last_before(wanted);
  }
  /// The last block that comes before another one, which need not be here, or null.
  template <typename Order = by_address>
  [[nodiscard]] block* last_before(const block& wanted) const noexcept {
    if (top_ == nullptr || top_->mark.in_treap)
      return outermost(1, [&wanted](const block& at) { return Order::precedes(at, wanted); });
    block* found = top_->links[0];
    for (; !Order::precedes(*found, wanted); found = found->links[0]) {
      if (found == top_) return nullptr;
    }
    return found;
  }

 private:
  static constexpr int most_steps = 16;  // from either end of a ring

  static void link(block& low, block& b, block& high) noexcept {
    b.links[0] = &low;
    b.links[1] = &high;
    low.links[1] = &b;
    high.links[0] = &b;
  }
  template <typename Order>
  [[gnu::noinline]] void insert_inside(block& b) noexcept {
    block* low = top_->links[1];
    block* high = top_->links[0]->links[0];
    for (int step = 0; step < most_steps; ++step) {
      if (Order::precedes(b, *low)) return link(*low->links[0], b, *low);
      if (Order::precedes(*high, b)) return link(*high, b, *high->links[1]);
      low = low->links[1];
      high = high->links[0];
    }
    become_treap<Order>();
    plant<Order>(b);
  }
  template <typename Order>
  [[gnu::noinline]] block* search(std::size_t size) noexcept {
    if constexpr (!Order::is_by_size) {
      for (block* b = top_->links[1]; b != top_; b = b->links[1]) {
        if (b->size >= size) return b;
      }
      return nullptr;
    }
    if (!top_->mark.in_treap) {
      block* low = top_;
      if (low->links[0]->size < size) return nullptr;
      for (int step = 0; step < most_steps; ++step) {
        low = low->links[1];
        if (low->size >= size) return low;
      }
      become_treap<Order>();
    }
    return outermost(0, [size](const block& at) { return at.size >= size; });
  }

  // In a treap, links[0] leads to what comes before a block and links[1] to what comes after it, and no block ranks
  // above the one that leads to it.

  /// Scrambled from where the block is described, which does not change while it is free.
  [[nodiscard]] static std::uint64_t rank_of(const block& b) noexcept {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(&b) * 0xD6E8FEB86659FD93u;
    return mixed ^ (mixed >> 32);
  }
  /// The first (side 0) or last (side 1) of the blocks that qualify, or null; they are all blocks from some place on to
  /// the other end.
  template <typename Qualifies>
  [[nodiscard]] block* outermost(int side, Qualifies qualifies) const noexcept {
    block* found = nullptr;
    for (block* at = top_; at != nullptr;) {
      const bool is_one = qualifies(*at);
      found = is_one ? at : found;
      at = at->links[is_one ? side : 1 - side];
    }
    return found;
  }
  [[nodiscard]] block* end(int side) const noexcept {
    block* b = top_;
    while (b->links[side] != nullptr) b = b->links[side];
    return b;
  }
  template <typename Order>
  void become_treap() noexcept {
    block* const first = top_;
    block* b = first;
    top_ = nullptr;
    do {
      block* const following = b->links[1];
      plant<Order>(*b);
      b = following;
    } while (b != first);
  }
  template <typename Order>
  [[gnu::noinline]] void plant(block& b) noexcept {
    block** at = &top_;
    const std::uint64_t rank = rank_of(b);
    while (*at != nullptr && rank_of(**at) >= rank) at = &(*at)->links[!Order::precedes(b, **at)];
    block* const below = *at;
    *at = &b;
    b.mark.in_treap = true;
    hang_below<Order>(b, below);
  }
  template <typename Order>
  [[gnu::noinline]] void uproot(block& b) noexcept {
    block** at = &top_;
    while (*at != &b) at = &(*at)->links[!Order::precedes(b, **at)];
    *at = join(b.links[0], b.links[1]);
    b.mark.in_treap = false;
  }
  /// Parts a tree into what comes before `b` and what comes after it, and hangs both below `b`.
  template <typename Order>
  static void hang_below(block& b, block* tree) noexcept {
    block** open[2] = {&b.links[0], &b.links[1]};
    while (tree != nullptr) {
      const bool is_high = !Order::precedes(*tree, b);
      *open[is_high] = tree;
      open[is_high] = &tree->links[!is_high];
      tree = tree->links[!is_high];
    }
    *open[0] = *open[1] = nullptr;
  }
  /// Joins two trees of which all of `low` comes before all of `high`.
  [[nodiscard]] static block* join(block* low, block* high) noexcept {
    block* root = nullptr;
    block** at = &root;
    while (low != nullptr && high != nullptr) {
      const bool low_leads = rank_of(*low) >= rank_of(*high);
      block*& leader = low_leads ? low : high;
      *at = leader;
      at = &leader->links[low_leads];
      leader = *at;
    }
    *at = low != nullptr ? low : high;
    return root;
  }

  block* top_ = nullptr;  // the first of the ring, or the root of the treap
};

}  // namespace tessera::detail
