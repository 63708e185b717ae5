// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/engine/block.hpp>

namespace tessera::engine {

/// The free blocks of one pool on one stream, ordered by size, then by address.
///
/// Sizes fall into bins, one for each multiple of 512 bytes up to 32 KiB and 32 for each power of two above, so that a
/// bitmap leads to the smallest bin with a block that fits. Only inside a bin order costs: there is a treap in each.
///   Cost:  constant, and the logarithm of the blocks in one bin
class free_blocks {
 public:
  /// `clock` counts the searches of the whole pool; ages are read from it.
  free_blocks(std::size_t pool, stream_id key, const std::uint64_t& clock) noexcept
      : pool_(pool), key_(key), clock_(&clock) {}

  [[nodiscard]] std::size_t pool() const noexcept { return pool_; }
  [[nodiscard]] stream_id key() const noexcept { return key_; }

  /// The smallest block of at least `size` bytes, the lowest address among equals; null if there is none.
  [[nodiscard]] block* best_fit(std::size_t size) const noexcept { return first_from(size, 0); }

  /// The first block that does not come before (size, address).
  [[nodiscard]] block* first_from(std::size_t size, std::uintptr_t address) const noexcept {
    const std::size_t bin = bin_of(size);
    block* found = nullptr;
    for (block* b = bins_[bin]; b != nullptr;) {
      const bool fits = b->size > size || (b->size == size && b->address >= address);
      if (fits) found = b;
      b = fits ? b->tree.left : b->tree.right;
    }
    if (found != nullptr) return found;
    const std::size_t above = next_bin(bin + 1);
    return above == bin_count ? nullptr : lowest(bins_[above]);
  }
  [[nodiscard]] block* after(const block& b) const noexcept { return first_from(b.size, b.address + 1); }

  /// The last block that comes before (size, address).
  [[nodiscard]] block* last_before(std::size_t size, std::uintptr_t address) const noexcept {
    const std::size_t bin = bin_of(size);
    block* found = nullptr;
    for (block* b = bins_[bin]; b != nullptr;) {
      const bool fits = b->size < size || (b->size == size && b->address < address);
      if (fits) found = b;
      b = fits ? b->tree.right : b->tree.left;
    }
    if (found != nullptr) return found;
    const std::size_t below = previous_bin(bin);
    return below == bin_count ? nullptr : highest(bins_[below]);
  }

  void insert(block& b) noexcept {
    b.is = block::state::free;
    b.set_count(*clock_);
    const std::size_t bin = bin_of(b.size);
    if (bins_[bin] != nullptr) return plant(bins_[bin], b);
    bins_[bin] = &b;
    b.tree = {nullptr, nullptr};
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    summary_ |= std::uint64_t{1} << (bin / 64);
  }

  void remove(block& b) noexcept {
    const std::size_t bin = bin_of(b.size);
    if (&b == alone_) alone_ = nullptr;
    if (!is_alone(bin, b)) return uproot(bins_[bin], b);
    bins_[bin] = nullptr;
    words_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
    if (words_[bin / 64] == 0) summary_ &= ~(std::uint64_t{1} << (bin / 64));
  }

  /// Changes where a free block begins and how large it is; it counts as newly free.
  ///   Cost:  next to none for the same block as before while it is alone in its bin and stays there, as the block that
  ///          requests are cut from mostly does
  void change(block& b, std::uintptr_t address, std::size_t size) noexcept {
    if (&b != alone_ || size < alone_from_ || size >= alone_to_) return refile(b, address, size);
    b.set_count(*clock_);
    b.address = address;
    b.size = size;
  }

  [[nodiscard]] std::uint64_t age(const block& b) const noexcept {
    return (*clock_ - b.count) & block::count_mask;
  }

  std::size_t segments = 0;     ///< segments whose blocks come home here
  free_blocks* next = nullptr;  ///< the next stream of the pool, in the order of keys

 private:
  static constexpr std::size_t unit_bits = 9;
  static constexpr std::size_t linear = 64;
  static constexpr std::size_t steps = 32;
  static constexpr std::size_t octaves = 30;  // sizes beyond share the last bin
  static constexpr std::size_t bin_count = linear + octaves * steps;
  static constexpr std::size_t word_count = (bin_count + 63) / 64;

  [[nodiscard]] static std::size_t bin_of(std::size_t size) noexcept {
    const std::size_t units = size >> unit_bits;
    if (units < linear) return units;
    const auto top = static_cast<std::size_t>(std::bit_width(units)) - 1;
    const std::size_t bin = linear + (top - 6) * steps + ((units >> (top - 5)) & (steps - 1));
    return bin < bin_count ? bin : bin_count - 1;
  }
  [[nodiscard]] static bool before(const block& a, const block& b) noexcept {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
  }
  /// Scrambled from where the block is described, which does not change while it is free.
  [[nodiscard]] static std::uint64_t rank_of(const block& b) noexcept {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(&b) * 0xD6E8FEB86659FD93u;
    return mixed ^ (mixed >> 32);
  }
  [[nodiscard]] bool is_alone(std::size_t bin, const block& b) const noexcept {
    return bins_[bin] == &b && b.tree.left == nullptr && b.tree.right == nullptr;
  }
  [[gnu::noinline]] void refile(block& b, std::uintptr_t address, std::size_t size) noexcept {
    const std::size_t bin = bin_of(size);
    const bool stays = bin == bin_of(b.size) && is_alone(bin, b);
    if (!stays) remove(b);
    b.address = address;
    b.size = size;
    if (!stays) {
      insert(b);
      if (!is_alone(bin, b)) return;
    }
    b.set_count(*clock_);
    if (bin + 1 == bin_count) return;
    const std::size_t step =
        size >> unit_bits < linear ? std::size_t{1} << unit_bits : std::bit_floor(size) / steps;
    alone_ = &b;
    alone_from_ = size & ~(step - 1);
    alone_to_ = alone_from_ + step;
  }
  [[gnu::noinline]] void plant(block*& root, block& b) noexcept {
    if (root == alone_) alone_ = nullptr;
    block** at = &root;
    const std::uint64_t rank = rank_of(b);
    while (*at != nullptr && rank_of(**at) >= rank)
      at = before(b, **at) ? &(*at)->tree.left : &(*at)->tree.right;
    split(*at, b, b.tree.left, b.tree.right);
    *at = &b;
  }
  [[gnu::noinline]] static void uproot(block*& root, block& b) noexcept {
    block** at = &root;
    while (*at != &b) at = before(b, **at) ? &(*at)->tree.left : &(*at)->tree.right;
    *at = join(b.tree.left, b.tree.right);
  }
  [[nodiscard]] static block* lowest(block* b) noexcept {
    while (b->tree.left != nullptr) b = b->tree.left;
    return b;
  }
  [[nodiscard]] static block* highest(block* b) noexcept {
    while (b->tree.right != nullptr) b = b->tree.right;
    return b;
  }
  /// The first non-empty bin from `bin` on, or bin_count.
  [[nodiscard]] std::size_t next_bin(std::size_t bin) const noexcept {
    if (bin >= bin_count) return bin_count;
    const std::size_t word = bin / 64;
    const std::uint64_t here = words_[word] & (~std::uint64_t{0} << (bin % 64));
    if (here != 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(here));
    const std::uint64_t later = word + 1 < 64 ? summary_ & (~std::uint64_t{0} << (word + 1)) : 0;
    if (later == 0) return bin_count;
    const auto found = static_cast<std::size_t>(std::countr_zero(later));
    return found * 64 + static_cast<std::size_t>(std::countr_zero(words_[found]));
  }
  /// The last non-empty bin below `bin`, or bin_count.
  [[nodiscard]] std::size_t previous_bin(std::size_t bin) const noexcept {
    const std::size_t word = bin / 64;
    const std::uint64_t here = words_[word] & ((std::uint64_t{1} << (bin % 64)) - 1);
    if (here != 0) return word * 64 + static_cast<std::size_t>(std::bit_width(here)) - 1;
    const std::uint64_t earlier = summary_ & ((std::uint64_t{1} << word) - 1);
    if (earlier == 0) return bin_count;
    const auto found = static_cast<std::size_t>(std::bit_width(earlier)) - 1;
    return found * 64 + static_cast<std::size_t>(std::bit_width(words_[found])) - 1;
  }
  /// Parts `tree` into what comes before `pivot` and what comes after it.
  static void split(block* tree, const block& pivot, block*& low, block*& high) noexcept {
    block** left = &low;
    block** right = &high;
    while (tree != nullptr) {
      block**& side = before(*tree, pivot) ? left : right;
      *side = tree;
      side = &side == &left ? &tree->tree.right : &tree->tree.left;
      tree = *side;
    }
    *left = nullptr;
    *right = nullptr;
  }
  /// Joins two trees of which all of `low` comes before all of `high`.
  [[nodiscard]] static block* join(block* low, block* high) noexcept {
    block* root = nullptr;
    block** at = &root;
    while (low != nullptr && high != nullptr) {
      if (rank_of(*low) >= rank_of(*high)) {
        *at = low;
        at = &low->tree.right;
        low = *at;
      } else {
        *at = high;
        at = &high->tree.left;
        high = *at;
      }
    }
    *at = low != nullptr ? low : high;
    return root;
  }

  std::size_t pool_;
  stream_id key_;
  const std::uint64_t* clock_;
  block* alone_ = nullptr;  // the block changed last if no other is in its bin, and the sizes of that bin
  std::size_t alone_from_ = 0;
  std::size_t alone_to_ = 0;
  std::uint64_t summary_ = 0;
  std::array<std::uint64_t, word_count> words_{};
  std::array<block*, bin_count> bins_{};
};

}  // namespace tessera::engine
