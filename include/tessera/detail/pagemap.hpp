// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace tessera {

/// Whose segment an address lies in: written where segments come and go, read by any thread at every free, without a lock
/// and without writing.
///
/// Truth is a map of ranges under a mutex. What is read is a table with one word for each frame of 2 MiB: the owner, or
/// that the ranges in it have several owners, and only then the map is asked. The table is open-addressed and never more
/// than half full; what left keeps its place until the table is written anew, into another one. A table that was left is
/// kept, as somebody may still read it, and used again for the next of its size; who read on in it meanwhile notices by
/// the version, and begins again.
///   Cost:  a few loads; adding and taking out, in proportion to the frames
class pagemap {
 public:
  using owner_number = std::uint32_t;
  static constexpr owner_number no_owner = ~owner_number{0};
  static constexpr owner_number most_owners = 1u << 20;

 private:
  struct range {
    std::uintptr_t last;  // address
    owner_number owner;
  };
  using map = std::map<std::uintptr_t, range>;

 public:
  /// A range that was taken out.
  using taken = map::node_type;

  pagemap() = default;
  pagemap(const pagemap&) = delete;
  pagemap& operator=(const pagemap&) = delete;

  /// Notes an owner, below most_owners, of `bytes` from `begin`; false where that would take more than 128 TiB of frames
  /// at a time, host memory ran out or a range in here begins there too, and nothing changed.
  ///   Requires:  bytes > 0; no part of it is in here, unless it is taken out next
  [[nodiscard]] bool add(const void* begin, std::size_t bytes, owner_number owner) noexcept {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    const range added{first + (bytes - 1), owner};
    if (!reserve(frames_of(first, added.last)) || !remember(first, added)) return false;
    write(first, added.last, owner);
    return true;
  }
  /// Takes a range out, until put_back() or forget(): another one may then take its addresses.
  ///   Requires:  it was added with this begin
  [[nodiscard]] taken take_out(const void* begin) noexcept {
    const std::lock_guard lock(mutex_);
    taken out = ranges_.extract(reinterpret_cast<std::uintptr_t>(begin));
    aside_ += frames_of(out.key(), out.mapped().last);
    write(out.key(), out.mapped().last, no_owner);
    return out;
  }
  /// Adds a range that was taken out once more; needs no host memory.
  void put_back(taken&& out) noexcept {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t first = out.key();
    const range again = out.mapped();
    ranges_.insert(std::move(out));
    aside_ -= frames_of(first, again.last);
    write(first, again.last, again.owner);
  }
  void forget(taken&& out) noexcept {
    const std::lock_guard lock(mutex_);
    aside_ -= frames_of(out.key(), out.mapped().last);
    out = {};
  }

  /// The owner of an address in a range, or no_owner. Of an address in no range, no_owner or the owner of a range in the
  /// same frame.
  [[nodiscard]] owner_number owner_of(const void* p) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    while (true) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      const table* const read = current_.load(std::memory_order_acquire);
      const word found = read != nullptr ? read->find(frame_of(address)) : word{0};
      if (version_.load(std::memory_order_relaxed) != version) continue;
      if (code_of(found) >= first_owner) return code_of(found) - first_owner;
      return code_of(found) == several ? ask_map(address) : no_owner;
    }
  }

  [[nodiscard]] std::size_t footprint() const noexcept {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = ranges_.size() * sizeof(map::value_type);
    for (const auto& pair : tables_) {
      for (const auto& t : pair) bytes += t != nullptr ? (t->mask + 1) * sizeof(word) : 0;
    }
    return bytes;
  }

 private:
  // A word is a frame's number and, in the lower bits, a code; 0 is an empty place.
  using word = std::uint64_t;
  static constexpr int code_bits = 21;
  static constexpr owner_number gone = 1, several = 2, first_owner = 3;
  static constexpr std::size_t smallest = 64;  // words
  static constexpr std::size_t most_frames = std::size_t{1} << 26;

  struct table {
    explicit table(std::size_t capacity) noexcept
        : mask(capacity - 1),
          shift(64 - std::countr_zero(capacity)),
          words(new(std::nothrow) std::atomic<word>[capacity]()) {}
    void clear() noexcept {
      for (std::size_t i = 0; i <= mask; ++i) words[i].store(0, std::memory_order_release);
    }
    [[nodiscard]] std::size_t place_of(std::uint64_t frame) const noexcept {
      return static_cast<std::size_t>((frame * 0x9E3779B97F4A7C15u) >> shift);
    }
    [[nodiscard]] word find(std::uint64_t frame) const noexcept {
      // Its end is an empty place, unless the table is being written anew, which may hide all of them.
      for (std::size_t at = place_of(frame), steps = 0; steps <= mask; at = (at + 1) & mask, ++steps) {
        const word w = words[at].load(std::memory_order_acquire);
        if (w == 0 || frame_in(w) == frame) return w;
      }
      return 0;
    }
    /// Whether it took an empty place.
    bool set(std::uint64_t frame, owner_number code) noexcept {
      std::atomic<word>* place = nullptr;
      for (std::size_t at = place_of(frame);; at = (at + 1) & mask) {
        const word w = words[at].load(std::memory_order_relaxed);
        if (place == nullptr && (w == 0 || code_of(w) == gone)) place = &words[at];
        if (w != 0 && frame_in(w) == frame) place = &words[at];
        if (w == 0 || frame_in(w) == frame) break;
      }
      const bool was_empty = place->load(std::memory_order_relaxed) == 0;
      if (was_empty && code == gone) return false;
      place->store(frame << code_bits | code, std::memory_order_release);
      return was_empty;
    }
    std::size_t mask;
    int shift;
    std::unique_ptr<std::atomic<word>[]> words;
  };

  [[nodiscard]] static std::uint64_t frame_of(std::uintptr_t address) noexcept { return address >> 21; }
  [[nodiscard]] static std::uint64_t frame_in(word w) noexcept { return w >> code_bits; }
  [[nodiscard]] static owner_number code_of(word w) noexcept {
    return static_cast<owner_number>(w & ((word{1} << code_bits) - 1));
  }
  [[nodiscard]] static std::size_t frames_of(std::uintptr_t first, std::uintptr_t last) noexcept {
    return static_cast<std::size_t>(frame_of(last) - frame_of(first)) + 1;
  }

  [[nodiscard]] owner_number ask_map(std::uintptr_t address) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto behind = ranges_.upper_bound(address);
    if (behind == ranges_.begin()) return no_owner;
    const range& found = std::prev(behind)->second;
    return found.last >= address ? found.owner : no_owner;
  }
  [[nodiscard]] bool remember(std::uintptr_t first, const range& added) noexcept {
#if defined(__cpp_exceptions)
    try {
      return ranges_.emplace(first, added).second;
    } catch (...) {
      return false;
    }
#else
    return ranges_.emplace(first, added).second;
#endif
  }

  /// What the map says of a frame.
  [[nodiscard]] owner_number code_in_map(std::uint64_t frame) const noexcept {
    const std::uintptr_t first = frame << 21;
    owner_number code = gone;
    for (auto at = ranges_.upper_bound(first | ((1u << 21) - 1)); at != ranges_.begin();) {
      const range& r = (--at)->second;
      if (r.last < first) break;
      if (code != gone && code != r.owner + first_owner) return several;
      code = r.owner + first_owner;
    }
    return code;
  }
  /// Writes what is so now of a range whose owner the map has just been told. Only at its ends can it share frames.
  void write(std::uintptr_t first, std::uintptr_t last, owner_number owner) noexcept {
    const owner_number inside = owner == no_owner ? gone : owner + first_owner;
    table& t = *current_.load(std::memory_order_relaxed);
    for (std::uint64_t f = frame_of(first); f <= frame_of(last); ++f) {
      const bool at_end = f == frame_of(first) || f == frame_of(last);
      used_ += t.set(f, at_end ? code_in_map(f) : inside);
    }
  }

  /// Makes sure that `more` frames can be written, and those of the ranges that are out; false where host memory ran out.
  [[nodiscard]] bool reserve(std::size_t more) noexcept {
    const table* const old = current_.load(std::memory_order_relaxed);
    if (old != nullptr && used_ + aside_ + more <= old->mask / 2) return true;
    std::size_t wanted = aside_ + more;
    for_each_frame([&wanted](std::uint64_t, owner_number) { ++wanted; });
    if (wanted > most_frames) return false;
    const std::size_t capacity = std::bit_ceil(4 * wanted > smallest ? 4 * wanted : smallest);
    auto& pair = tables_[static_cast<std::size_t>(std::countr_zero(capacity))];
    std::unique_ptr<table>& next = pair[pair[0] != nullptr && pair[0].get() == old ? 1 : 0];
    if (next == nullptr) {
      next.reset(new (std::nothrow) table(capacity));
      if (next == nullptr || next->words == nullptr) return next.reset(), false;
    } else {
      version_.fetch_add(1, std::memory_order_acq_rel);
      next->clear();
    }
    used_ = 0;
    for_each_frame([&](std::uint64_t frame, owner_number code) { used_ += next->set(frame, code); });
    current_.store(next.get(), std::memory_order_release);
    return true;
  }
  /// Calls f(frame, code) once for each frame in which there is a range.
  template <typename F>
  void for_each_frame(F f) const {
    std::uint64_t next = 0;
    for (const auto& [first, r] : ranges_) {
      for (std::uint64_t at = (std::max)(next, frame_of(first)); at <= frame_of(r.last); ++at) {
        const bool at_end = at == frame_of(first) || at == frame_of(r.last);
        f(at, at_end ? code_in_map(at) : r.owner + first_owner);
      }
      next = frame_of(r.last) + 1;
    }
  }

  std::atomic<std::uint64_t> version_{0};  // a table that was left is written anew
  std::atomic<table*> current_{nullptr};
  mutable std::mutex mutex_;
  map ranges_;
  std::size_t used_ = 0;                                          // words that are not empty
  std::size_t aside_ = 0;                                         // frames of ranges that are out
  std::array<std::array<std::unique_ptr<table>, 2>, 64> tables_;  // by the logarithm of their capacity
};

}  // namespace tessera
