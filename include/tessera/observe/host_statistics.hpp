// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/caching_allocator.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::observe {

/// Statistics of pinned host memory with PyTorch's names. PyTorch also reports times; a `timed` provider
/// measures them.
///   Source:  torch.cuda.host_memory_stats()
struct host_statistics {
  counter allocations{};             ///< segments acquired from the host
  counter allocated_bytes{};         ///< bytes of these segments
  counter active_requests{};         ///< live and pending blocks
  counter active_bytes{};            ///< bytes of these blocks
  std::uint64_t num_host_alloc = 0;  ///< segments acquired; in ranges, 0
  std::uint64_t num_host_free = 0;   ///< segments released; in ranges, 0

  /// Converts an allocator's statistics.
  ///
  /// If the recipe maps pages, `allocated_bytes` counts mapped bytes, and the counts of segments and blocks
  /// stay 0, as in torch_npu.
  ///
  ///     tessera::caching_allocator<tessera::recipe::pytorch_pinned<>, tessera::provider::simulated_device> pinned;
  ///     pinned.deallocate(pinned.allocate(4_MiB));
  ///     const auto host = tessera::observe::host_statistics::from<tessera::recipe::pytorch_pinned<>>(pinned.statistics());
  ///     std::printf("peak reserved: %lld bytes\n", static_cast<long long>(host.allocated_bytes.peak));
  template <recipe::well_formed Recipe, std::size_t Pools>
  [[nodiscard]] static constexpr host_statistics from(const statistics<Pools>& counts) noexcept {
    host_statistics result;
    result.allocated_bytes = counts.all.reserved_bytes;
    result.active_bytes = counts.all.active_bytes;
    if (!Recipe::growth::backend::has_ranges) {
      result.allocations = counts.all.segment;
      result.active_requests = counts.all.active;
      result.num_host_alloc = counts.num_device_alloc;
      result.num_host_free = counts.num_device_free;
    }
    return result;
  }
  bool operator==(const host_statistics&) const = default;
};

}  // namespace tessera::inline v0_1::observe
