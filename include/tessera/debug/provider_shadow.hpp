// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/host_system.hpp>

namespace tessera::detail {

/// The shadow state of checked_provider: the memory and addresses that a provider has given and not taken
/// back. It aborts if an answer contradicts this state. Thread-safe.
///
///   Cost:  logarithmic in the number of entries; about 100 bytes of host memory for each entry
class provider_shadow {
 public:
  using extent = host_extents::extent;
  struct piece {
    std::size_t bytes = 0;  ///< 0 if unknown, for example for imported memory
    std::size_t step = 1;
  };

  provider_shadow(std::size_t capacity, std::size_t granularity) : capacity_(capacity), step_(granularity) {
    if (!std::has_single_bit(step_) || step_ < min_alignment)
      fatal("checked_provider: the granularity is no power of two, or below min_alignment");
  }
  void require_constant(std::size_t capacity, std::size_t granularity) const noexcept {
    if (capacity != capacity_) fatal("checked_provider: the capacity has changed");
    if (granularity != step_) fatal("checked_provider: the granularity has changed");
  }
  void require_plausible(std::size_t bytes) const noexcept {
    if (bytes > capacity_) fatal("checked_provider: more is available than the capacity");
  }

  void gave_segment(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    add(p, bytes, step_, {bytes, segment},
        "checked_provider: acquire gave a segment that begins at no multiple of the granularity");
    count(bytes);
  }
  void gave_range(const void* p, std::size_t bytes, std::size_t to) noexcept {
    const std::lock_guard lock(mutex_);
    add(p, bytes, to, {bytes, range},
        "checked_provider: reserve gave a range that begins at no multiple of what was asked for");
  }
  /// The entry of memory that is about to be given back. It is taken before the provider's call, because
  /// another thread may get the same addresses before that call returns.
  struct leaving {
    extent what;
    std::uint64_t maps = 0;  ///< the number of maps at that time
  };
  [[nodiscard]] std::optional<leaving> goes(const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    const auto going = take_out(given_, p);
    if (going && going->what.note == segment) counted_ -= going->what.bytes;
    return going;
  }
  /// Restores the entry, because the provider did not take the memory back.
  void stays(const void* p, const std::optional<leaving>& going) noexcept {
    const std::lock_guard lock(mutex_);
    put_back(given_, p, going);
    if (going && going->what.note == segment) counted_ += going->what.bytes;
  }
  void took_range(const void* p, const std::optional<leaving>& gone) const noexcept {
    const std::lock_guard lock(mutex_);
    if (!gone || gone->what.note != range)
      fatal("checked_provider: unreserve took back a range that was not given", p);
    if (mapped_.overlaps(p, gone->what.bytes, gone->maps))  // later maps belong to the next owner
      fatal("checked_provider: unreserve took back a range in which something is mapped", p);
  }

  /// Records physical memory that was created. 0 bytes means imported memory.
  void named(const std::string& name, const std::string& empty, std::size_t bytes,
             std::size_t step) noexcept {
    const std::lock_guard lock(mutex_);
    if (name == empty) fatal("checked_provider: memory is said to be there, and has no name");
    if (bytes % step != 0)
      fatal("checked_provider: create made memory that is no multiple of the page size long");
    bool is_new = false;
    remember(host_remembers([&] { is_new = pieces_.emplace(name, piece{bytes, step}).second; }));
    if (!is_new) fatal("checked_provider: memory was given the name of other memory");
    count(bytes);
  }
  /// Takes the entry of a handle that is about to be destroyed.
  [[nodiscard]] std::optional<piece> goes(const std::string& name) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(name);
    if (found == pieces_.end()) return {};
    const piece going = found->second;
    pieces_.erase(found);
    counted_ -= going.bytes;
    return going;
  }
  void stays(const std::string& name, const std::optional<piece>& going) noexcept {
    if (!going) return;
    const std::lock_guard lock(mutex_);
    bool is_new = false;
    remember(host_remembers([&] { is_new = pieces_.emplace(name, *going).second; }));
    if (!is_new) fatal("checked_provider: memory was given the name of other memory");
    counted_ += going->bytes;
  }
  static void destroyed(const std::optional<piece>& gone) noexcept {
    if (!gone) fatal("checked_provider: destroy let go of memory that was not created");
  }

  /// The reason why a map must fail even if nothing else is mapped there; null if it may succeed. It is
  /// called before the provider.
  [[nodiscard]] const char* why_no_map(const void* p, std::size_t bytes, const std::string& name) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(name);
    if (found == pieces_.end()) return "checked_provider: map put there what names no memory";
    const piece& memory = found->second;
    if (memory.bytes != 0 && bytes != memory.bytes)
      return "checked_provider: map put more or less there than there is of the memory";
    if (host_address(p) % memory.step != 0)
      return "checked_provider: map put memory at no multiple of the page size";
    const extent* const in = given_.around(p, bytes);
    if (in == nullptr || in->note != range)
      return "checked_provider: map put memory outside of the ranges that were given";
    return nullptr;
  }
  void mapped(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (mapped_.overlaps(p, bytes)) fatal("checked_provider: map put memory where something is mapped", p);
    remember(mapped_.add(p, {bytes, ++maps_}));
  }
  [[nodiscard]] bool is_mapped(const void* p) const noexcept {
    const std::lock_guard lock(mutex_);
    return mapped_.find(p) != nullptr;
  }
  [[nodiscard]] std::optional<leaving> unmaps(const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    return take_out(mapped_, p);
  }
  static void unmapped(const void* p, const std::optional<leaving>& gone) noexcept {
    if (!gone) fatal("checked_provider: unmap took away what was not mapped", p);
  }
  void still_mapped(const void* p, const std::optional<leaving>& there) noexcept {
    const std::lock_guard lock(mutex_);
    put_back(mapped_, p, there);
  }

  void registered(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (registered_.overlaps(p, bytes)) fatal("checked_provider: register_memory took what is registered", p);
    remember(registered_.add(p, {bytes, 0}));
  }
  [[nodiscard]] std::optional<leaving> unregisters(const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    return take_out(registered_, p);
  }
  void still_registered(const void* p, const std::optional<leaving>& there) noexcept {
    const std::lock_guard lock(mutex_);
    put_back(registered_, p, there);
  }

  /// Counts the starts and ends of calls about events.
  [[nodiscard]] std::uint64_t tick() noexcept {
    const std::lock_guard lock(mutex_);
    return ++ticks_;
  }
  /// Returns the latest tick before which all work submitted to a stream is done.
  [[nodiscard]] std::uint64_t done_before(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = done_.find(stream);
    return found != done_.end() ? found->second : 0;
  }
  void is_done_before(stream_id stream, std::uint64_t tick) noexcept {
    const std::lock_guard lock(mutex_);
    remember(host_remembers([&] {
      std::uint64_t& latest = done_[stream];
      latest = (std::max)(latest, tick);
    }));
  }

 private:
  static constexpr std::uint64_t segment = 0, range = 1;

  static void remember(bool there) noexcept {
    if (!there) fatal("checked_provider: host memory for bookkeeping ran out");
  }
  void add(const void* p, std::size_t bytes, std::size_t to, const extent& made,
           const char* misplaced) noexcept {
    if (bytes > unlimited - host_address(p))
      fatal("checked_provider: memory was given that goes past the end of all addresses", p);
    if (host_address(p) % to != 0) fatal(misplaced, p);
    if (given_.overlaps(p, bytes))
      fatal("checked_provider: memory was given that overlaps what was given before", p);
    remember(given_.add(p, made));
  }
  [[nodiscard]] std::optional<leaving> take_out(host_extents& of, const void* p) const noexcept {
    if (of.find(p) == nullptr) return {};
    return leaving{of.remove(p), maps_};
  }
  static void put_back(host_extents& to, const void* p, const std::optional<leaving>& going) noexcept {
    if (!going) return;
    if (to.overlaps(p, going->what.bytes))
      fatal("checked_provider: what was not taken back was given once more", p);
    remember(to.add(p, going->what));
  }
  void count(std::size_t bytes) noexcept {
    counted_ = saturating_add(counted_, bytes);
    if (counted_ > capacity_) fatal("checked_provider: more was given than the capacity");
  }

  std::size_t capacity_, step_;
  mutable std::mutex mutex_;
  host_extents given_, mapped_, registered_;  // notes: the kind, the number of the map, unused
  std::map<std::string, piece> pieces_;       // by handle
  std::map<stream_id, std::uint64_t> done_;
  std::size_t counted_ = 0;  // bytes of segments and of created memory
  std::uint64_t ticks_ = 0, maps_ = 0;
};

}  // namespace tessera::detail
