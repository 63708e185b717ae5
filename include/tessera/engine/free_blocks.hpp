// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/engine/bin.hpp>
#include <tessera/engine/block.hpp>

namespace tessera::engine {

/// The free blocks of one pool on one stream, ordered by size, then by address.
///
/// Sizes fall into bins, one for each multiple of 512 bytes up to 32 KiB and 32 for each power of two above, and a
/// bitmap leads to the next bin that holds any. The block changed last is in hand instead: requests are mostly cut from
/// the same block again or come back to it, so that it need not be filed each time.
///   Cost:  constant, and what a bin costs
class free_blocks {
 public:
  free_blocks(std::size_t pool, stream_id key) noexcept : pool_(pool), key_(key) { set_bit(bin_count); }

  [[nodiscard]] std::size_t pool() const noexcept { return pool_; }
  [[nodiscard]] stream_id key() const noexcept { return key_; }
  [[nodiscard]] std::uint64_t map_key() const noexcept { return key_.handle; }

  /// The smallest block of at least `size` bytes, the lowest address among equals; null if there is none.
  [[nodiscard, gnu::always_inline]] block* best_fit(std::size_t size) noexcept {
    const std::size_t in = bin_of(size);
    block* found = bins_[in].best_fit(size);
    if (found == nullptr) found = bins_[next_bin(in)].lowest();
    const bool hand_fits = hand_ != nullptr && hand_->size >= size;
    return hand_fits && (found == nullptr || bin::precedes(*hand_, *found)) ? hand_ : found;
  }

  void insert(block& b) noexcept {
    b.mark = {0, block::state::free};
    file(b);
  }
  void remove(block& b) noexcept {
    if (&b == hand_) {
      hand_ = nullptr;
    } else {
      unfile(b);
    }
  }
  /// Changes where a free block begins and how large it is, and takes it in hand.
  [[gnu::always_inline]] void change(block& b, std::uintptr_t address, std::size_t size) noexcept {
    if (&b != hand_) {
      put_down();
      unfile(b);
      hand_ = &b;
    }
    b.address = address;
    b.size = size;
  }

  /// The block in hand, or null.
  [[nodiscard]] const block* in_hand() const noexcept { return hand_; }
  /// Files it, so that a walk meets every block.
  void put_down() noexcept {
    if (hand_ != nullptr) file(*hand_);
    hand_ = nullptr;
  }
  /// The first filed block of all, or null.
  [[nodiscard]] block* lowest() const noexcept {
    return bins_[0].empty() ? bins_[next_bin(0)].lowest() : bins_[0].lowest();
  }
  /// The one that follows, or null.
  [[nodiscard]] block* after(const block& b) const noexcept {
    block* const found = bins_[b.mark.bin].after(b);
    return found != nullptr ? found : bins_[next_bin(b.mark.bin)].lowest();
  }
  /// The last filed block that comes before (size, address), or null; linear in the bins.
  [[nodiscard]] block* last_before(std::size_t size, std::uintptr_t address) const noexcept {
    std::size_t in = bin_of(size);
    block* found = bins_[in].last_before(size, address);
    while (found == nullptr && in-- > 0) found = bins_[in].highest();
    return found;
  }

  std::size_t segments = 0;     ///< segments whose blocks come home here
  free_blocks* next = nullptr;  ///< the next stream of the pool, in the order of keys

 private:
  static constexpr int unit_bits = 9;
  static constexpr int step_bits = 5;
  static constexpr std::size_t bin_count = (64 - unit_bits - step_bits + 1) << step_bits;
  static constexpr std::size_t word_count = bin_count / 64 + 1;

  /// The upper `step_bits` + 1 bits of the size in units, and how far they were shifted.
  [[nodiscard]] static std::size_t bin_of(std::size_t size) noexcept {
    const std::size_t units = size >> unit_bits;
    constexpr std::size_t linear = std::size_t{2} << step_bits;
    const unsigned shift = highest_bit(units | (linear - 1)) - step_bits;
    return (std::size_t{shift} << step_bits) + (units >> shift);
  }
  ///   Requires:  bits != 0
  [[nodiscard]] static unsigned highest_bit(std::uint64_t bits) noexcept {
    if (bits == 0) __builtin_unreachable();
    return 63u ^ static_cast<unsigned>(std::countl_zero(bits));
  }
  [[nodiscard]] static unsigned lowest_bit(std::uint64_t bits) noexcept {
    if (bits == 0) __builtin_unreachable();
    return static_cast<unsigned>(std::countr_zero(bits));
  }

  void file(block& b) noexcept {
    const std::size_t in = bin_of(b.size);
    b.mark.bin = static_cast<std::uint16_t>(in);
    if (bins_[in].empty()) set_bit(in);
    bins_[in].insert(b);
  }
  [[gnu::always_inline]] void unfile(block& b) noexcept {
    const std::size_t in = b.mark.bin;
    bins_[in].remove(b);
    if (bins_[in].empty()) clear_bit(in);
  }
  void set_bit(std::size_t in) noexcept {
    words_[in / 64] ^= std::uint64_t{1} << (in % 64);
    summary_ |= std::uint64_t{1} << (in / 64);
  }
  void clear_bit(std::size_t in) noexcept {
    const std::uint64_t left = words_[in / 64] ^= std::uint64_t{1} << (in % 64);
    summary_ ^= std::uint64_t{left == 0} << (in / 64);
  }
  /// The first non-empty bin above `in`, or bin_count, which is always marked, so that looking ends.
  [[nodiscard]] std::size_t next_bin(std::size_t in) const noexcept {
    const std::size_t word = in / 64;
    const std::uint64_t here = words_[word] & (~std::uint64_t{1} << (in % 64));
    if (here != 0) return word * 64 + lowest_bit(here);
    const std::size_t later = lowest_bit(summary_ & (~std::uint64_t{1} << word));
    return later * 64 + lowest_bit(words_[later]);
  }

  std::size_t pool_;
  stream_id key_;
  block* hand_ = nullptr;
  std::uint64_t summary_ = 0;
  std::array<std::uint64_t, word_count> words_{};
  std::array<bin, bin_count + 1> bins_{};
};

}  // namespace tessera::engine
