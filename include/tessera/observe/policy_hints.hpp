// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/grow_by_stitching.hpp>
#include <tessera/policy/pages.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/prefer_pages.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>

/// The changes that explain() may suggest. Each policy supplies its own name.

namespace tessera::detail {

/// A change that would have helped a failed request.
enum class oom_hint : unsigned char {
  raise_limit,
  raise_device_limit,
  empty_cache,
  release_later,
  wait_for_streams,
  try_again,
  try_later,
  grow_exactly,
  use_other_pages,
  use_normal_pages,
  reuse_across_streams,
  insert_dependencies,
  share_pool,
  raise_split_limit,
  split_blocks,
  enlarge_range,
  map_pages,
  stitch,
  use_smaller_chunks,
  share_arenas,
  round_less,
  split_off_remainders,
  free_memory  ///< nothing else is known to help: free blocks, or add memory
};

struct hint_text {
  const char* sentence;  ///< %s stands for a number of bytes
  const char* change;    ///< the change in code
  const char* header;    ///< without ".hpp"
};

/// Returns the text of a hint; empty for free_memory.
[[nodiscard]] constexpr hint_text text_of(oom_hint what) noexcept {
  constexpr const char *growth = "policy/growth", *ranges = "policy/grow_by_mapping",
                       *stitching = "policy/grow_by_stitching", *recovery = "policy/recovery",
                       *pages = "policy/pages", *streams = "policy/reuse_across_streams",
                       *split = "policy/split", *waiting = "concurrent/waiting";
  switch (what) {
    case oom_hint::raise_limit:
      return {"raise the limit above %s, as the device has more", "growth.limit", growth};
    case oom_hint::raise_device_limit:
      return {"the provider's own limit refused %s", "a higher limit", "provider/limiting"};
    case oom_hint::empty_cache:
      return {"release %s of idle cache first", policy::recover_by_emptying_cache<>::hint, recovery};
    case oom_hint::release_later:
      return {"try again once streams are done; %s is idle but was not released, or the device failed",
              "waiting", waiting};
    case oom_hint::wait_for_streams:
      return {"wait for the streams that use %s of freed blocks", policy::recover_by_emptying_cache<>::hint,
              recovery};
    case oom_hint::try_again:
      return {"try again; a block of %s became free after the search", "waiting", waiting};
    case oom_hint::try_later: return {"try later; streams still use %s of freed blocks", "waiting", waiting};
    case oom_hint::grow_exactly:
      return {"accept a segment of only %s", policy::recover_by_emptying_cache<true>::hint, recovery};
    case oom_hint::use_other_pages:
      return {"use other pages if those of one kind run out",
              policy::prefer_pages<page_preference::huge_first>::hint, "policy/prefer_pages"};
    case oom_hint::use_normal_pages:
      return {"a segment of %s fits in smaller pages", policy::normal_pages::hint, pages};
    case oom_hint::reuse_across_streams:
      return {"a free block of another stream has %s", policy::reuse_across_streams<>::hint, streams};
    case oom_hint::insert_dependencies:
      return {"a stream could wait for a free block of %s", "streams.insert_dependencies", streams};
    case oom_hint::share_pool:
      return {"a free block of another pool has %s", policy::pool_together::hint, "policy/pools"};
    case oom_hint::raise_split_limit:
      return {"raise the split limit above %s, the size of a free block", policy::split_below<>::hint, split};
    case oom_hint::split_blocks:
      return {"split larger free blocks, of up to %s", policy::split_if_remainder_at_least<1>::hint, split};
    case oom_hint::enlarge_range:
      return {"no more than %s of addresses are reserved at once", "a larger growth.range", ranges};
    case oom_hint::map_pages:
      return {"map pages, of which %s between live blocks could be released", policy::grow_by_mapping<>::hint,
              ranges};
    case oom_hint::stitch:
      return {"map pages, of which %s could move to this request", policy::grow_by_stitching<>::hint,
              stitching};
    case oom_hint::use_smaller_chunks:
      return {"move smaller physical chunks, as %s are whole free pages", "a larger growth.peak_parts",
              stitching};
    case oom_hint::share_arenas:
      return {"share one cache among all threads, as other arenas have %s", "locked instead of per_stream",
              "concurrent/locked"};
    case oom_hint::round_less:
      return {"round less; rounding adds %s to live blocks", policy::round_to_multiple<512>::hint,
              "policy/rounding"};
    case oom_hint::split_off_remainders:
      return {"split off unused ends, %s of live blocks", policy::split_if_remainder_at_least<1>::hint,
              split};
    case oom_hint::free_memory: break;
  }
  return {};
}

/// Returns the size of a page that the suggestion map_pages would map for a block.
[[nodiscard]] constexpr std::size_t mapped_page_size(std::size_t block) noexcept {
  return policy::grow_by_mapping<>{}.mapping_unit(block);
}
/// Returns the size of a page that the suggestion stitch would map for a block.
[[nodiscard]] constexpr std::size_t stitched_page_size(std::size_t block) noexcept {
  return policy::grow_by_stitching<>{}.mapping_unit(block);
}
/// The streams policy that goes with mapped pages.
inline constexpr const char* streams_with_mapped_pages = policy::reuse_on_same_stream::hint;

}  // namespace tessera::detail
