// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/memory_view.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/usage.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/with.hpp>
#include "recorded_device.hpp"

namespace tessera::trace {

/// An allocator that follows a recorded one: it decides as its recipe does, while memory comes and goes as it did there.
/// So nothing is recovered here, as what recovery did there is in the history.
template <typename Recipe>
class recorded_pool {
 public:
  using recipe = with<Recipe, recover_never>;
  using allocator = caching_allocator<recipe, recorded_device>;
  using segment = recorded_device::segment;

  explicit recorded_pool(const policies<Recipe>& like)
      : allocator_(recorded_device{}, without_recovery(like)) {}

  /// Takes over a segment, or what is mapped without a gap in a range that begins at `range`; false where its blocks or
  /// pages are none of the recipe's, or host memory ran out.
  [[nodiscard]] bool adopt(const snapshot::segment& s, std::uint64_t range) {
    std::vector<block_view> blocks;
    for (const snapshot::block& b : s.blocks) {
      const std::size_t requested = b.requested == 0 || b.requested > b.size ? b.size : b.requested;
      blocks.push_back({.bytes = b.size, .requested = b.active() ? requested : 0});
    }
    const segment whole{s.address, s.size};
    if constexpr (maps) {
      device().expect_range(range);
      device().mapped_there(whole);
      device().give_at_most(device().missing());
    } else {
      device().expect(whole);
    }
    return allocator_.restore(place_of(whole, s.large, s.stream), s.large ? s.size : 1, blocks);
  }

  /// Notes that memory came there, for the request that comes next.
  void give(const segment& part) {
    if constexpr (maps) {
      if (device().missing() == 0) device().expect_range(part.address);
      device().mapped_there(part);
    } else {
      device().expect(part);
    }
  }
  /// Gives memory of a stream back that went back there; false where it is in use here.
  [[nodiscard]] bool take_away(const segment& part, bool large, stream_id stream) {
    if constexpr (maps) {
      device().unmapped_there(part);
    }
    return allocator_.release_idle_at(place_of(part, large, stream)) != 0 || maps;
  }
  /// Whether memory came there that has not been asked for here.
  [[nodiscard]] bool has_unused() noexcept { return maps && device().missing() != 0; }

  /// Serves a request as the recipe decides; null where it takes more memory than came there.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream) {
    if constexpr (maps) {
      if (bytes > operator""_GiB(512)) return nullptr;  // pages are planned before the device refuses them
      device().give_at_most(device().missing());
    }
    return allocator_.try_allocate(bytes != 0 ? bytes : 1, stream);
  }
  /// Asks for what was refused there, although some pages came for it, which stay.
  void fail(std::size_t bytes, stream_id stream) {
    if (void* const p = allocate(bytes, stream)) allocator_.deallocate(p);
  }
  void deallocate(void* p) { allocator_.deallocate(p); }

  /// The size that a range has at most, if that is why a block was served `there`, at the start of what is free at its end,
  /// and not `here`, in front of a hole that is smaller than that end is thought to be; 0 if it is not.
  [[nodiscard]] std::size_t range_limit(std::uint64_t there, const void* here, bool large, stream_id stream) {
    const detail::block* const chosen_here = allocator_.introspect().find_live(here);
    const detail::segment* range = nullptr;
    allocator_.introspect().for_each_segment([&](const detail::block& first, std::size_t) {
      const detail::segment& whole = detail::segment_of(first);
      const bool is_asked = first.home->pool() == (large ? 1 : 0) && first.home->key() == stream;
      if (is_asked && there >= whole.address && there - whole.address < whole.size) range = &whole;
    });
    if (range == nullptr || chosen_here == nullptr || chosen_here->home != range->first().home) return 0;
    const detail::block* const last = range->below;
    const detail::block* const end = last->is_unmapped() ? last->below : nullptr;
    if (end == nullptr || end->address != there || !end->is_free()) return 0;
    const detail::block* hole = chosen_here->above;
    while (!hole->is_unmapped() && hole != range) hole = hole->above;
    if (hole == range || hole == last) return 0;
    const std::size_t page = chosen().growth.page_size(unlimited);
    return (there - range->address + hole->end() - chosen_here->address) / page * page;
  }

  /// How the memory that came differs from what was asked for here since the last time; empty where it does not.
  [[nodiscard]] std::string difference() {
    if constexpr (maps) {
      const std::uint64_t at = device().differs_from();
      return at == 0 ? "" : "other pages are mapped from " + std::to_string(at) + " on";
    } else {
      const auto unused = device().take_unused();
      const bool strayed = device().strays() != strays_;
      strays_ = device().strays();
      if (unused.empty() && !strayed) return {};
      return "there " + (unused.empty() ? "none" : std::to_string(unused.front().bytes)) + ", here " +
             (strayed ? std::to_string(device().asked().bytes) : "none");
    }
  }

  [[nodiscard]] recorded_device& device() noexcept { return allocator_.device(); }
  [[nodiscard]] usage now() const noexcept { return allocator_.now(); }

 private:
  static constexpr bool maps = Recipe::growth::way != growth_way::segments;

  [[nodiscard]] static policies<recipe> without_recovery(const policies<Recipe>& like) {
    policies<recipe> made;
    made.rounding = like.rounding;
    made.pools = like.pools;
    made.streams = like.streams;
    made.split = like.split;
    made.pages = like.pages;
    made.growth = like.growth;
    made.eviction = like.eviction;
    return made;
  }
  [[nodiscard]] static segment_view place_of(const segment& part, bool large, stream_id stream) noexcept {
    return {part.address, part.bytes, stream, large ? std::size_t{1} : 0, maps};
  }
  [[nodiscard]] policies<recipe>& chosen() noexcept { return allocator_.settings(); }

  allocator allocator_;
  std::size_t strays_ = 0;
};

}  // namespace tessera::trace
