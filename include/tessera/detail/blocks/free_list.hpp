// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/block.hpp>

namespace tessera::inline v0_1::detail {

/// The position of a block in an order. It stays valid when the block is gone, and its range with it.
struct list_position {
  std::size_t size = 0;
  std::uint32_t number = 0;  ///< if blocks are ordered by segment: the segment's number
  std::uintptr_t address = 0;
};

/// Orders free blocks by size, then by address. All calls of a free list use the same order, so the list
/// stores no order.
struct by_size_and_address {
  static constexpr bool is_by_size = true;
  /// Whether `a` comes before `b`; each is a block or a position. It has no branches, because the processor would
  /// mispredict them.
  template <typename A, typename B>
  [[nodiscard]] static bool precedes(const A& a, const B& b) noexcept {
    return (a.size < b.size) | ((a.size == b.size) & (a.address < b.address));
  }
  [[nodiscard]] static list_position position_of(const block& b) noexcept { return {b.size, 0, b.address}; }
};

/// Returns the number of the range that a block lies in.
///   Cost:  linear in the ranges of its free list
[[nodiscard]] inline std::uint32_t number_of_range(const block& b) noexcept;

/// Orders free blocks by size, then by segment, the oldest first, then by address.
template <bool Ranges>
struct by_size_and_segment {
  static constexpr bool is_by_size = true;
  template <typename A, typename B>
  [[nodiscard]] static bool precedes(const A& a, const B& b) noexcept {
    if (a.size != b.size) return a.size < b.size;
    const std::uint32_t one = number_of(a);
    const std::uint32_t other = number_of(b);
    return one != other ? static_cast<std::int32_t>(one - other) < 0 : a.address < b.address;
  }
  [[nodiscard]] static list_position position_of(const block& b) noexcept {
    return {b.size, number_of(b), b.address};
  }

 private:
  [[nodiscard]] static std::uint32_t number_of(const list_position& at) noexcept { return at.number; }
  [[nodiscard]] static std::uint32_t number_of(const block& b) noexcept {
    if constexpr (Ranges) {
      return number_of_range(b);
    } else {
      return b.segment_number;
    }
  }
};

/// Orders free blocks by size class, up to the next power of two. Within a class, the last inserted block
/// comes first.
struct by_recency {
  static constexpr bool is_by_size = false;
  template <typename A, typename B>
  [[nodiscard]] static bool precedes(const A&, const B&) noexcept {
    return false;
  }
  [[nodiscard]] static list_position position_of(const block& b) noexcept { return {.size = b.size}; }
};

template <free_order Order, bool Ranges>
using block_order = std::conditional_t<
    Order == free_order::lowest_address || Order == free_order::by_policy, by_size_and_address,
    std::conditional_t<Order == free_order::oldest_segment, by_size_and_segment<Ranges>, by_recency>>;

/// The free blocks of one size class, in order.
///
/// A bin starts as a circular list, which is fastest for few blocks. With more, it becomes a treap, until it is empty.
/// A list stays short, so that neither a search nor the change to a treap takes many steps.
///   Cost:  constant; in a treap, logarithmic. If blocks are not ordered by size, a search is linear
class bin {
 public:
  /// Inserts a block.
  ///   Returns:  whether it is now the only block
  template <typename Order = by_size_and_address>
  bool insert(block& b) noexcept {
    if (top_ == nullptr) {
      top_ = b.links[0] = b.links[1] = &b;
      b.status.tally = 1;
      return true;
    }
    block& first = *top_;
    if constexpr (!Order::is_by_size) {
      link(*first.links[0], b, first);
      b.status.tally = 1;
      top_ = &b;
      return false;
    }
    const unsigned char tally = first.status.tally;
    if (tally >= max_list) {
      insert_in_treap<Order>(b);
      return false;
    }
    block& last = *first.links[0];
    const auto now = static_cast<unsigned char>(tally + 1);
    if (!Order::precedes(last, b) && Order::precedes(b, first)) {
      link(last, b, first);
      b.status.tally = now;
      top_ = &b;
      return false;
    }
    first.status.tally = now;
    if (Order::precedes(last, b)) {
      link(last, b, first);
    } else {
      insert_inside<Order>(b);
    }
    return false;
  }

  /// Erases a block.
  ///   Returns:  whether the bin is now empty
  template <typename Order = by_size_and_address>
  bool erase(block& b) noexcept {
    if (top_->status.tally == in_treap) {
      erase_from_treap<Order>(b);
      return top_ == nullptr;
    }
    block* const following = b.links[1];
    if (following == &b) {
      top_ = nullptr;
      return true;
    }
    b.links[0]->links[1] = following;
    following->links[0] = b.links[0];
    const unsigned char tally = top_->status.tally;
    if (top_ == &b) top_ = following;
    if constexpr (Order::is_by_size) top_->status.tally = static_cast<unsigned char>(tally - 1);
    return false;
  }

  /// Returns the first block, or null.
  [[nodiscard]] block* first() const noexcept { return top_ == nullptr || is_list() ? top_ : end(0); }
  [[nodiscard]] block* last() const noexcept {
    return top_ == nullptr ? nullptr : is_list() ? top_->links[0] : end(1);
  }
  /// Finds the first block of at least `size` bytes, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard]] block* best_fit(std::size_t size) noexcept {
    if (top_ == nullptr) return nullptr;
    return is_list() && top_->size >= size ? top_ : search<Order>(size);
  }
  /// Returns the next block in order, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard]] block* after(const block& b) const noexcept {
    if (is_list()) return b.links[1] != top_ ? b.links[1] : nullptr;
    return outermost(0, [&b](const block& at) { return Order::precedes(b, at); });
  }
  /// Finds the last block that precedes a position, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard]] block* last_before(const list_position& wanted) const noexcept {
    if (top_ == nullptr || !is_list())
      return outermost(1, [&wanted](const block& at) { return Order::precedes(at, wanted); });
    block* found = top_->links[0];
    for (; !Order::precedes(*found, wanted); found = found->links[0]) {
      if (found == top_) return nullptr;
    }
    return found;
  }

 private:
  // The most blocks of a list.
  static constexpr unsigned char max_list = 40;
  static constexpr unsigned char in_treap = 255;
  [[nodiscard]] bool is_list() const noexcept { return top_->status.tally != in_treap; }

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
    while (true) {
      if (Order::precedes(b, *low)) return link(*low->links[0], b, *low);
      if (Order::precedes(*high, b)) return link(*high, b, *high->links[1]);
      low = low->links[1];
      high = high->links[0];
    }
  }
  template <typename Order>
  [[gnu::noinline]] block* search(std::size_t size) noexcept {
    if (!Order::is_by_size || is_list()) {
      if (Order::is_by_size && top_->links[0]->size < size) return nullptr;
      for (block* b = top_->links[1]; b != top_; b = b->links[1]) {
        if (b->size >= size) return b;
      }
      return nullptr;
    }
    return outermost(0, [size](const block& at) { return at.size >= size; });
  }

  /// Finds the first (side 0) or last (side 1) qualifying block of a treap.
  template <typename Qualifies>
  [[nodiscard]] block* outermost(int side, Qualifies qualifies) const noexcept {
    return treap<block, by_size_and_address>::outermost(top_, side, qualifies);
  }
  [[nodiscard]] block* end(int side) const noexcept {
    return outermost(side, [](const block&) { return true; });
  }
  template <typename Order>
  [[gnu::noinline]] void become_treap() noexcept {
    block* const head = top_;
    block* b = head;
    top_ = nullptr;
    do {
      block* const following = b->links[1];
      insert_in_treap<Order>(*b);
      b = following;
    } while (b != head);
  }
  template <typename Order>
  [[gnu::noinline]] void insert_in_treap(block& b) noexcept {
    if (top_ != nullptr && is_list()) become_treap<Order>();
    treap<block, Order>::insert(top_, b);
    b.status.tally = in_treap;
  }
  template <typename Order>
  [[gnu::noinline]] void erase_from_treap(block& b) noexcept {
    treap<block, Order>::erase(top_, b);
  }

  block* top_ = nullptr;  // first block of the circular list, or root of the treap
};

struct pool_group;

/// The clock of a pool: it counts searches. Ages of idle memory are measured in searches, unless the eviction
/// policy has a clock.
struct search_clock {
  std::uint64_t searches = 0;
  std::uint64_t restarted = 0;  ///< the searches, or the time, when all ages were restarted
  std::uint64_t stopped = 0;    ///< likewise, when all ages last stopped to grow
};

/// The free blocks of one pool and stream, in order.
///
/// Each power of two has 32 bins. Up to 32 KiB, each multiple of 512 bytes therefore has its own bin. A
/// bitmap finds the next bin that is not empty. The last resized block is kept outside the bins: most
/// requests are split from the same block again, or coalesce with it.
///   Cost:  constant, plus the cost of a bin
class free_list {
 public:
  /// The pool of a free list, and what its lists share.
  struct place {
    std::size_t pool = 0;
    pool_group* group = nullptr;  ///< the default pools, or a private pool
    search_clock* clock = nullptr;
    bool operator==(const place&) const = default;
  };

  free_list(const place& its_place, stream_id its_key) noexcept : where(its_place), key(its_key) {
    set_bit(first_bin + bin_count);
  }

  const place where;
  const stream_id key;  ///< what the streams policy gives for the streams that use the list
  [[nodiscard]] std::uint64_t map_key() const noexcept { return key.handle; }

  /// Finds the first block in order of at least `size` bytes, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard, gnu::always_inline]] block* best_fit(std::size_t size) noexcept {
    const std::size_t number = bin_of<Order>(size);
    block* found = bin_at(number).template best_fit<Order>(size);
    if (found == nullptr) found = bin_at(next_bin(number)).first();
    if (last_resized_ == nullptr || last_resized_->size < size) return found;
    return found == nullptr || Order::precedes(*last_resized_, *found) ? last_resized_ : found;
  }

  template <typename Order = by_size_and_address>
  void insert(block& b) noexcept {
    b.status.state = block::state::free;
    insert_in_bin<Order>(b);
  }
  template <typename Order = by_size_and_address>
  void erase(block& b) noexcept {
    if (&b == last_resized_) {
      last_resized_ = nullptr;
    } else {
      erase_from_bin<Order>(b);
    }
  }
  /// Takes a free block out of its bin, so that the caller may change its address and size.
  template <typename Order = by_size_and_address>
  [[gnu::always_inline]] void begin_resize(block& b) noexcept {
    if (&b == last_resized_) return;
    flush<Order>();
    erase_from_bin<Order>(b);
    last_resized_ = &b;
  }

  /// The last resized block, which is outside the bins, or null.
  [[nodiscard]] const block* last_resized() const noexcept { return last_resized_; }
  /// Inserts the last resized block into its bin, so that first() and after() reach every block.
  template <typename Order = by_size_and_address>
  [[gnu::noinline]] void flush() noexcept {
    if (last_resized_ != nullptr) insert_in_bin<Order>(*last_resized_);
    last_resized_ = nullptr;
  }
  /// The first block in the bins, or null.
  [[nodiscard]] block* first() const noexcept { return bin_at(next_bin(first_bin)).first(); }
  /// The block after `b`, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard]] block* after(const block& b) const noexcept {
    block* const found = bin_at(b.status.bin).template after<Order>(b);
    return found != nullptr ? found : bin_at(next_bin(b.status.bin)).first();
  }
  /// Finds the last block in the bins that precedes a position, or null.
  template <typename Order = by_size_and_address>
  [[nodiscard]] block* last_before(const list_position& wanted) const noexcept {
    const std::size_t number = bin_of<Order>(wanted.size);
    if (block* const found = bin_at(number).template last_before<Order>(wanted); found != nullptr)
      return found;
    std::size_t word = word_of(number);
    std::uint64_t below = words_[word] & ((std::uint64_t{1} << (number % 64)) - 1);
    while (below == 0 && word > 0) below = words_[--word];
    const auto bits = static_cast<std::size_t>(std::bit_width(below));  // libstdc++ 12 returns no int
    return below != 0 ? bin_at(first_bin + word * 64 + bits - 1).last() : nullptr;
  }

  std::size_t users = 0;  ///< segments, or blocks if streams share them, that keep the list from being erased
  segment* ranges = nullptr;  ///< its ranges, in the order of addresses
  free_list* next = nullptr;  ///< the list of the pool's next stream, in the order of streams
  free_list* links[2] = {};   ///< in the tree of the pool's lists

 private:
  static constexpr int step_bits = 5;
  static constexpr std::size_t first_bin = (1023 + 5) << step_bits;
  static constexpr std::size_t bin_count = (64 - 5) << step_bits;
  static constexpr std::size_t word_count = bin_count / 64 + 1;
  static_assert(first_bin % 64 == 0 && first_bin + bin_count <= 65536 && min_alignment > 32);

  /// Computes the bin of a size; uses the double's exponent as log2, and the upper bits of its mantissa. If
  /// blocks are not ordered by size, one bin holds all sizes of a class.
  template <typename Order>
  [[nodiscard]] static std::size_t bin_of(std::size_t size) noexcept {
    static_assert(std::numeric_limits<double>::is_iec559);
    if constexpr (!Order::is_by_size) return bin_of<by_size_and_address>(size - 1) >> step_bits << step_bits;
    return __builtin_bit_cast(std::uint64_t, static_cast<double>(static_cast<std::int64_t>(size))) >>
           (52 - step_bits);
  }
  [[nodiscard]] bin& bin_at(std::size_t number) noexcept { return bins_[number - first_bin]; }
  [[nodiscard]] const bin& bin_at(std::size_t number) const noexcept { return bins_[number - first_bin]; }
  /// Returns the index of the lowest set bit.
  ///   Requires:  bits != 0
  [[nodiscard]] static unsigned lowest_bit(std::uint64_t bits) noexcept {
#if defined(_MSC_VER) && !defined(__clang__)
    __assume(bits != 0);
#else
    if (bits == 0) __builtin_unreachable();
#endif
    return static_cast<unsigned>(std::countr_zero(bits));
  }

  template <typename Order = by_size_and_address>
  void insert_in_bin(block& b) noexcept {
    const std::size_t number = bin_of<Order>(b.size);
    b.status.bin = static_cast<std::uint16_t>(number);
    if (bin_at(number).template insert<Order>(b)) set_bit(number);
  }
  template <typename Order = by_size_and_address>
  [[gnu::always_inline]] void erase_from_bin(block& b) noexcept {
    const std::size_t number = b.status.bin;
    if (bin_at(number).template erase<Order>(b)) clear_bit(number);
  }
  [[nodiscard]] static std::size_t word_of(std::size_t number) noexcept {
    return number / 64 - first_bin / 64;
  }
  void set_bit(std::size_t number) noexcept {
    words_[word_of(number)] |= std::uint64_t{1} << (number % 64);
    summary_ |= std::uint64_t{1} << word_of(number);
  }
  void clear_bit(std::size_t number) noexcept {
    const std::uint64_t left = words_[word_of(number)] &= ~(std::uint64_t{1} << (number % 64));
    // Not a branch, because the processor would mispredict it.
    summary_ &= ~(std::uint64_t{left == 0} << word_of(number));
  }
  /// Finds the first non-empty bin above `number`. The last bin is always marked, which ends each search.
  [[nodiscard, gnu::always_inline]] std::size_t next_bin(std::size_t number) const noexcept {
    const std::uint64_t here = words_[word_of(number)] & (~std::uint64_t{1} << (number % 64));
    if (here != 0) return (number & ~std::size_t{63}) + lowest_bit(here);
    const std::size_t later = lowest_bit(summary_ & (~std::uint64_t{1} << word_of(number)));
    return first_bin + later * 64 + lowest_bit(words_[later]);
  }

  block* last_resized_ = nullptr;
  std::uint64_t summary_ = 0;
  std::array<std::uint64_t, word_count> words_{};
  std::array<bin, bin_count + 1> bins_{};
};

std::uint32_t number_of_range(const block& b) noexcept {
  std::uint32_t number = 0;
  for (const segment* range = b.list->ranges; range != nullptr && range->address <= b.address;
       range = range->next_range)
    number = range->number;
  return number;
}

}  // namespace tessera::inline v0_1::detail
