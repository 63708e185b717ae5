// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/bin.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/block_order.hpp>

namespace tessera::detail {

/// The free blocks of one pool on one stream, by size, then by address, or in another order, which is that of every call.
///
/// Sizes fall into bins, 32 for each power of two, so that up to 32 KiB each multiple of 512 bytes has its own; a bitmap
/// leads to the next bin that holds any. The block changed last is in hand instead: requests are mostly cut from the
/// same block again or come back to it, so that it need not be filed each time.
///   Cost:  constant, and what a bin costs
class free_list {
 public:
  free_list(std::size_t pool, stream_id key) noexcept : pool_(pool), key_(key) {
    set_bit(first_bin + bin_count);
  }

  [[nodiscard]] std::size_t pool() const noexcept { return pool_; }
  [[nodiscard]] stream_id key() const noexcept { return key_; }
  [[nodiscard]] std::uint64_t map_key() const noexcept { return key_.handle; }

  /// The smallest block of at least `size` bytes, the lowest address among equals; null if there is none.
  template <typename Order = by_address>
  [[nodiscard, gnu::always_inline]] block* best_fit(std::size_t size) noexcept {
    const std::size_t in = bin_of<Order>(size);
    block* found = at(in).template best_fit<Order>(size);
    if (found == nullptr) found = at(next_bin(in)).lowest();
    if (hand_ == nullptr || hand_->size < size) return found;
    return found == nullptr || Order::precedes(*hand_, *found) ? hand_ : found;
  }

  template <typename Order = by_address>
  [[gnu::always_inline]] void insert(block& b) noexcept {
    b.mark.is = block::state::free;
    b.mark.in_treap = false;
    file<Order>(b);
  }
  template <typename Order = by_address>
  [[gnu::always_inline]] void remove(block& b) noexcept {
    if (&b == hand_) {
      hand_ = nullptr;
    } else {
      unfile<Order>(b);
    }
  }
  /// Changes where a free block begins and how large it is, and takes it in hand.
  template <typename Order = by_address>
  [[gnu::always_inline]] void change(block& b, std::uintptr_t address, std::size_t size) noexcept {
    if (&b != hand_) {
      put_down<Order>();
      unfile<Order>(b);
      hand_ = &b;
    }
    b.address = address;
    b.size = size;
  }

  /// The block in hand, or null.
  [[nodiscard]] const block* in_hand() const noexcept { return hand_; }
  /// Files it, so that a walk meets every block.
  template <typename Order = by_address>
  void put_down() noexcept {
    if (hand_ != nullptr) file<Order>(*hand_);
    hand_ = nullptr;
  }
  /// The first filed block of all, or null.
  [[nodiscard]] block* lowest() const noexcept { return at(next_bin(first_bin)).lowest(); }
  /// The one that follows, or null.
  template <typename Order = by_address>
  [[nodiscard, gnu::always_inline]] block* after(const block& b) const noexcept {
    block* const found = at(b.mark.bin).template after<Order>(b);
    return found != nullptr ? found : at(next_bin(b.mark.bin)).lowest();
  }
  /// The last filed block that comes before another one, which need not be here, or null.
  template <typename Order = by_address>
  [[nodiscard]] block* last_before(const block& wanted) const noexcept {
    const std::size_t in = bin_of<Order>(wanted.size);
    if (block* const found = at(in).template last_before<Order>(wanted); found != nullptr) return found;
    std::size_t word = word_of(in);
    std::uint64_t below = words_[word] & ((std::uint64_t{1} << (in % 64)) - 1);
    while (below == 0 && word > 0) below = words_[--word];
    return below != 0 ? at(first_bin + word * 64 + std::bit_width(below) - 1).highest() : nullptr;
  }
  [[nodiscard]] block* last_before(std::size_t size, std::uintptr_t address) const noexcept {
    block wanted;
    wanted.size = size;
    wanted.address = address;
    return last_before(wanted);
  }

  std::size_t segments = 0;   ///< segments whose blocks come home here; where blocks cross, blocks
  segment* ranges = nullptr;  ///< those that are ranges, the first in the order of addresses
  free_list* next = nullptr;  ///< the next stream of the pool, in the order of keys

 private:
  static constexpr int step_bits = 5;
  static constexpr std::size_t first_bin = (1023 + 5) << step_bits;
  static constexpr std::size_t bin_count = (64 - 5) << step_bits;
  static constexpr std::size_t word_count = bin_count / 64 + 1;
  static_assert(first_bin % 64 == 0 && first_bin + bin_count <= 65536 && min_alignment > 32);

  /// The exponent and the upper bits of the mantissa, as a floating-point number holds them: the cheapest logarithm. Where
  /// blocks are not ordered by size, the first bin of the sizes up to the next power of two stands for all of them.
  template <typename Order>
  [[nodiscard]] static std::size_t bin_of(std::size_t size) noexcept {
    static_assert(std::numeric_limits<double>::is_iec559);
    if constexpr (!Order::is_by_size) return bin_of<by_address>(size - 1) >> step_bits << step_bits;
    return std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int64_t>(size))) >>
           (52 - step_bits);
  }
  [[nodiscard]] bin& at(std::size_t in) noexcept { return bins_[in - first_bin]; }
  [[nodiscard]] const bin& at(std::size_t in) const noexcept { return bins_[in - first_bin]; }
  ///   Requires:  bits != 0
  [[nodiscard]] static unsigned lowest_bit(std::uint64_t bits) noexcept {
    if (bits == 0) __builtin_unreachable();
    return static_cast<unsigned>(std::countr_zero(bits));
  }

  template <typename Order = by_address>
  [[gnu::always_inline]] void file(block& b) noexcept {
    const std::size_t in = bin_of<Order>(b.size);
    b.mark.bin = static_cast<std::uint16_t>(in);
    if (at(in).template insert<Order>(b)) set_bit(in);
  }
  template <typename Order = by_address>
  [[gnu::always_inline]] void unfile(block& b) noexcept {
    const std::size_t in = b.mark.bin;
    if (at(in).template remove<Order>(b)) clear_bit(in);
  }
  [[nodiscard]] static std::size_t word_of(std::size_t in) noexcept { return in / 64 - first_bin / 64; }
  void set_bit(std::size_t in) noexcept {
    words_[word_of(in)] |= std::uint64_t{1} << (in % 64);
    summary_ |= std::uint64_t{1} << word_of(in);
  }
  void clear_bit(std::size_t in) noexcept {
    const std::uint64_t left = words_[word_of(in)] &= ~(std::uint64_t{1} << (in % 64));
    if (left == 0) summary_ &= ~(std::uint64_t{1} << word_of(in));
  }
  /// The first non-empty bin above `in`, or the one above all, which is always marked, so that looking ends.
  [[nodiscard]] std::size_t next_bin(std::size_t in) const noexcept {
    const std::uint64_t here = words_[word_of(in)] & (~std::uint64_t{1} << (in % 64));
    if (here != 0) return (in & ~std::size_t{63}) + lowest_bit(here);
    const std::size_t later = lowest_bit(summary_ & (~std::uint64_t{1} << word_of(in)));
    return first_bin + later * 64 + lowest_bit(words_[later]);
  }

  std::size_t pool_;
  stream_id key_;
  block* hand_ = nullptr;
  std::uint64_t summary_ = 0;
  std::array<std::uint64_t, word_count> words_{};
  std::array<bin, bin_count + 1> bins_{};
};

std::uint32_t number_of_range(const block& b) noexcept {
  std::uint32_t number = 0;
  for (const segment* range = b.home->ranges; range != nullptr && range->address <= b.address;
       range = range->next_range)
    number = range->number;
  return number;
}

}  // namespace tessera::detail
