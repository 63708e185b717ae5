// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// What is counted for pinned host memory; `_bytes` in bytes, the others in pieces.
///   Source:  the names are those of PyTorch's host_memory_stats(), without its times: those are with a timed provider
struct host_statistics {
  counter allocations{};  ///< segments that were taken and not given back
  counter allocated_bytes{};
  counter active_requests{};  ///< blocks handed out, until no stream uses them any more
  counter active_bytes{};
  std::uint64_t num_host_alloc = 0;
  std::uint64_t num_host_free = 0;
  bool operator==(const host_statistics&) const = default;
};

/// An allocator's statistics as those of host memory. Where its recipe maps pages, allocated is what is mapped, and what
/// counts pieces stays 0, as in torch_npu.
///
///     tessera::caching_allocator<tessera::pytorch_pinned<>, tessera::simulated_device> pinned;
///     pinned.deallocate(pinned.allocate(4_MiB));
///     const auto told = tessera::host_statistics_of<tessera::pytorch_pinned<>>(pinned.statistics());
///     std::printf("pinned at most: %lld bytes\n", static_cast<long long>(told.allocated_bytes.peak));
template <recipe Recipe, std::size_t Pools>
[[nodiscard]] constexpr host_statistics host_statistics_of(const statistics<Pools>& books) noexcept {
  host_statistics told;
  told.allocated_bytes = books.all.reserved_bytes;
  told.active_bytes = books.all.active_bytes;
  if (Recipe::growth::way == growth_way::segments) {
    told.allocations = books.all.segment;
    told.active_requests = books.all.active;
    told.num_host_alloc = books.num_device_alloc;
    told.num_host_free = books.num_device_free;
  }
  return told;
}

}  // namespace tessera
