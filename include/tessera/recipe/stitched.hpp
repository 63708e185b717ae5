// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/policy/grow_by_stitching.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::recipe {

/// Reserves little memory: it moves idle physical chunks of any pool and stream to the range that needs
/// memory.
///
/// Choose it if the device has virtual memory and memory is scarce. A higher `growth.peak_parts` reserves
/// less memory and makes more device calls.
///
/// It does not reserve the least on every program: for a training with recomputation it reserved 892 MiB, and pytorch_expandable
/// 874 (README.md). `tessera-replay compare` shows which recipe needs less for a recording of yours.
///
/// It makes more device calls than a recipe that moves nothing, and before each move it waits for the stream that used the
/// memory. examples/guide_pytorch.md has the calls, and what drivers take for them.
///
/// If memory is registered with NCCL or RDMA, or exported to another process, name extension::registrations. Others know the
/// physical pages. Those behind a live block stay, but a later block at the same address may have others, which a cache
/// of registrations by address does not notice. The registry of the extension hears of each chunk that comes or goes, and
/// memory that is registered through it does not move. The first costs no memory. The second may, if registrations
/// outlive their blocks: up to 44 % on the worst of ten recorded programs (examples/guide_pytorch.md).
///
///     tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device> dense;
///     dense.policies().growth.peak_parts = 32;  // instead of 48: fewer device calls, slightly more memory
struct stitched final {
  using rounding = policy::round_to_multiple<512>;
  using pools = policy::newest_scope_first<policy::pool_small_and_large<512_KiB>>;
  using streams = policy::reuse_on_same_stream;
  using split = policy::split_if_remainder_at_least<512>;
  using pages = policy::normal_pages;
  using growth = policy::grow_by_stitching<>;
  using eviction = policy::evict_never;
  using recovery = policy::recover_by_emptying_cache<>;
};
static_assert(well_formed<stitched>);

}  // namespace tessera::inline v0_1::recipe
