// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::detail {

/// Finds the owner of the segment that contains an address. It is written when segments are added or removed.
/// Any thread reads it at every free, without a lock and without writing.
///
/// The reference data is a map of ranges under a mutex. Readers use a table with one word for each frame of 2
/// MiB. The word is the owner, or a mark that the frame's ranges have several owners. Only then is the map
/// read.
///
/// The table is open-addressed and never more than half full. A removed frame keeps its slot until the table
/// is rebuilt in other memory. The old table is kept, because a thread may still read it. The next
/// table of its size reuses it. A version number tells a late reader to start again.
///   Cost:  a few loads; adding and removing is linear in the frames
class pagemap {
 public:
  using owner_number = std::uint32_t;
  static constexpr owner_number no_owner = ~owner_number{0};
  static constexpr owner_number max_owners = 1u << 20;

 private:
  struct range {
    std::uintptr_t last;  // address of the last byte
    owner_number owner;
  };
  using map = std::map<std::uintptr_t, range>;

 public:
  /// A range taken out of the map.
  using taken = map::node_type;

  pagemap& operator=(pagemap&&) = delete;

  /// Adds an owner, below max_owners, for `bytes` from `begin`. Returns false and changes nothing if host
  /// memory ran out or an added range begins at `begin`. So it does if the frames would exceed 128 TiB at a
  /// time.
  ///   Requires:  bytes > 0
  ///   Requires:  no added range overlaps, unless it is taken out next
  [[nodiscard]] bool add(const void* begin, std::size_t bytes, owner_number owner) noexcept {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    const range added{first + (bytes - 1), owner};
    if (!reserve(frames_of(first, added.last)) || !add_to(ranges_, first, added)) return false;
    update_table(first, added.last, owner);
    return true;
  }
  /// Takes a range out until put_back() or forget(). Another range may then use its addresses.
  ///   Requires:  a range was added with this `begin`
  [[nodiscard]] taken take_out(const void* begin) noexcept {
    const std::lock_guard lock(mutex_);
    taken out = ranges_.extract(reinterpret_cast<std::uintptr_t>(begin));
    taken_frames_ += frames_of(out.key(), out.mapped().last);
    update_table(out.key(), out.mapped().last, no_owner);
    return out;
  }
  /// Adds a range again that was taken out. It needs no host memory.
  void put_back(taken&& out) noexcept {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t first = out.key();
    const range again = out.mapped();
    ranges_.insert(std::move(out));
    taken_frames_ -= frames_of(first, again.last);
    update_table(first, again.last, again.owner);
  }
  void forget(taken&& out) noexcept {
    const std::lock_guard lock(mutex_);
    taken_frames_ -= frames_of(out.key(), out.mapped().last);
    out = {};
  }

  /// Adds an owner of reserved addresses. It is found for addresses there that are in no range, such as those
  /// of memory that is not mapped. Returns false and changes nothing if host memory ran out.
  ///   Requires:  bytes > 0; no reserved addresses overlap
  [[nodiscard]] bool add_reserved(const void* begin, std::size_t bytes, owner_number owner) noexcept {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    const range added{first + (bytes - 1), owner};
    if (!add_to(reserved_, first, added)) return false;
    // Ranges of other owners may be in these frames already.
    for (const std::uint64_t frame : {frame_of(first), frame_of(added.last)}) {
      const owner_number code = code_in_map(frame);
      if (code != removed) current_.load(std::memory_order_relaxed)->set(frame, code);
    }
    has_reserved_.store(true, std::memory_order_release);
    return true;
  }
  void remove_reserved(const void* begin) noexcept {
    const std::lock_guard lock(mutex_);
    reserved_.erase(reinterpret_cast<std::uintptr_t>(begin));
  }

  /// Returns the owner of an address in a range, else the owner of its reserved addresses, else no_owner. For an
  /// address in neither, returns no_owner or the owner of a range in the same frame.
  [[nodiscard]] owner_number owner_of(const void* p) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    while (true) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      const table* const read = current_.load(std::memory_order_acquire);
      const word found = read != nullptr ? read->find(frame_of(address)) : word{0};
      if (version_.load(std::memory_order_relaxed) != version) continue;
      if (code_of(found) >= first_owner) return code_of(found) - first_owner;
      if (code_of(found) != several && !has_reserved_.load(std::memory_order_acquire)) return no_owner;
      return look_up_in_map(address);
    }
  }

  /// Whether an address is in a range or in reserved addresses. Unlike owner_of, it is exact for any address.
  ///   Cost:  a lock, and logarithmic in the ranges, if owner_of finds an owner; otherwise that of owner_of
  [[nodiscard]] bool contains(const void* p) const noexcept {
    return owner_of(p) != no_owner && look_up_in_map(reinterpret_cast<std::uintptr_t>(p)) != no_owner;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = (ranges_.size() + reserved_.size()) * sizeof(map::value_type);
    for (const auto& pair : tables_) {
      for (const auto& t : pair) bytes += t != nullptr ? (t->mask + 1) * sizeof(word) : 0;
    }
    return bytes;
  }

 private:
  // A word holds a frame's number and, in the lower bits, a code. 0 marks an empty slot.
  using word = std::uint64_t;
  static constexpr int code_bits = 21;
  static constexpr owner_number removed = 1, several = 2, first_owner = 3;
  static constexpr std::size_t min_capacity = 64;  // words
  static constexpr std::size_t max_frames = std::size_t{1} << 26;

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
      // A search ends at an empty slot. A table that is being rebuilt may hide all empty slots.
      for (std::size_t at = place_of(frame), steps = 0; steps <= mask; at = (at + 1) & mask, ++steps) {
        const word w = words[at].load(std::memory_order_acquire);
        if (w == 0 || frame_in(w) == frame) return w;
      }
      return 0;
    }
    /// Sets the code of a frame. Returns whether this filled an empty slot.
    bool set(std::uint64_t frame, owner_number code) noexcept {
      std::atomic<word>* place = nullptr;
      for (std::size_t at = place_of(frame);; at = (at + 1) & mask) {
        const word w = words[at].load(std::memory_order_relaxed);
        if (place == nullptr && (w == 0 || code_of(w) == removed)) place = &words[at];
        if (w != 0 && frame_in(w) == frame) place = &words[at];
        if (w == 0 || frame_in(w) == frame) break;
      }
      const bool was_empty = place->load(std::memory_order_relaxed) == 0;
      if (was_empty && code == removed) return false;
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

  [[nodiscard]] owner_number look_up_in_map(std::uintptr_t address) const noexcept {
    const std::lock_guard lock(mutex_);
    const owner_number of_range = look_up_in(ranges_, address);
    return of_range != no_owner ? of_range : look_up_in(reserved_, address);
  }
  [[nodiscard]] static owner_number look_up_in(const map& in, std::uintptr_t address) noexcept {
    const auto above = in.upper_bound(address);
    if (above == in.begin()) return no_owner;
    const range& found = std::prev(above)->second;
    return found.last >= address ? found.owner : no_owner;
  }
  [[nodiscard]] static bool add_to(map& to, std::uintptr_t first, const range& added) noexcept {
    bool is_new = false;
    return try_run([&] { is_new = to.emplace(first, added).second; }) && is_new;
  }

  /// Computes the code of a frame from the map.
  [[nodiscard]] owner_number code_in_map(std::uint64_t frame) const noexcept {
    owner_number code = removed;
    bool is_shared = false;
    const auto add = [&code, &is_shared](owner_number owner) {
      is_shared = is_shared || (code != removed && code != owner + first_owner);
      code = owner + first_owner;
    };
    for_each_in(ranges_, frame, add);
    if (code != removed) for_each_in(reserved_, frame, add);
    return is_shared ? several : code;
  }
  /// Calls f(owner) for each entry of a map that overlaps a frame.
  template <typename F>
  static void for_each_in(const map& in, std::uint64_t frame, F f) noexcept {
    const std::uintptr_t first = frame << 21;
    for (auto at = in.upper_bound(first | ((1u << 21) - 1)); at != in.begin();) {
      const range& r = (--at)->second;
      if (r.last < first) break;
      f(r.owner);
    }
  }
  /// Updates the table for a range whose owner just changed in the map. Only the first and last frame can be
  /// shared.
  void update_table(std::uintptr_t first, std::uintptr_t last, owner_number owner) noexcept {
    const owner_number inside = owner == no_owner ? removed : owner + first_owner;
    table& t = *current_.load(std::memory_order_relaxed);
    for (std::uint64_t f = frame_of(first); f <= frame_of(last); ++f) {
      const bool at_end = f == frame_of(first) || f == frame_of(last);
      used_ += t.set(f, at_end ? code_in_map(f) : inside);
    }
  }

  /// Makes room for `more` frames and for the frames of the ranges taken out. Returns false if host memory
  /// ran out.
  [[nodiscard]] bool reserve(std::size_t more) noexcept {
    const table* const old = current_.load(std::memory_order_relaxed);
    if (old != nullptr && used_ + taken_frames_ + more <= old->mask / 2) return true;
    std::size_t wanted = taken_frames_ + more;
    for_each_frame([&wanted](std::uint64_t, owner_number) { ++wanted; });
    if (wanted > max_frames) return false;
    const std::size_t capacity = std::bit_ceil(4 * wanted > min_capacity ? 4 * wanted : min_capacity);
    auto& pair = tables_[static_cast<std::size_t>(std::countr_zero(capacity))];
    std::unique_ptr<table>& next = pair[pair[0] != nullptr && pair[0].get() == old ? 1 : 0];
    if (next == nullptr) {
      next.reset(new (std::nothrow) table(capacity));
      if (next == nullptr || next->words == nullptr) {
        next.reset();
        return false;
      }
    } else {
      version_.fetch_add(1, std::memory_order_acq_rel);
      next->clear();
    }
    used_ = 0;
    for_each_frame([&](std::uint64_t frame, owner_number code) { used_ += next->set(frame, code); });
    current_.store(next.get(), std::memory_order_release);
    return true;
  }
  /// Calls f(frame, code) once for each frame that contains a range.
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

  std::atomic<std::uint64_t> version_{0};  // changes when an old table is reused
  std::atomic<table*> current_{nullptr};
  mutable std::mutex mutex_;
  map ranges_;
  map reserved_;
  std::atomic<bool> has_reserved_{false};
  std::size_t used_ = 0;                                          // words that are not empty
  std::size_t taken_frames_ = 0;                                  // frames of ranges taken out
  std::array<std::array<std::unique_ptr<table>, 2>, 64> tables_;  // by log2 of their capacity
};

/// Registers a provider's segments, ranges and mappings in a pagemap under one owner while they exist.
///   Requires:  the provider and the pagemap outlive it
template <provider::device_provider Device>
class indexed : public provider::provider_adaptor<Device> {
 public:
  using typename provider::provider_adaptor<Device>::physical;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  indexed(Device& device, pagemap& map, pagemap::owner_number owner) noexcept
      : provider::provider_adaptor<Device>(device), map_(&map), owner_(owner) {}

  template <std::same_as<page_kind>... Kind>
    requires acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const segment = this->inner().acquire(bytes, kind...);
    if (segment == nullptr || map_->add(segment, bytes, owner_)) return segment;
    (void)this->inner().release(segment, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return erase_while(p, [&] { return this->inner().release(p, bytes); });
  }

  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    void* const range = this->inner().reserve(bytes, alignment);
    if (range == nullptr || map_->add_reserved(range, bytes, owner_)) return range;
    (void)this->inner().unreserve(range, bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    map_->remove_reserved(p);
    if (this->inner().unreserve(p, bytes)) return true;
    // Without host memory for the entry, blocks are still found while their memory is mapped.
    (void)map_->add_reserved(p, bytes, owner_);
    return false;
  }

  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    if (!map_->add(p, bytes, owner_)) return false;
    if (this->inner().map(p, bytes, memory)) return true;
    map_->forget(map_->take_out(p));
    return false;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    return erase_while(p, [&] { return this->inner().unmap(p, bytes); });
  }

 private:
  /// Erases the entry before the call: afterwards the device may give the addresses to another owner.
  template <typename F>
  [[nodiscard]] bool erase_while(void* p, F make_call) noexcept {
    pagemap::taken entry = map_->take_out(p);
    const bool released = make_call();
    if (released) {
      map_->forget(std::move(entry));
    } else {
      map_->put_back(std::move(entry));
    }
    return released;
  }

  pagemap* map_;
  pagemap::owner_number owner_;
};

}  // namespace tessera::inline v0_1::detail
