// SPDX-License-Identifier: Apache-2.0
// A CUDA program that includes every header and uses every recipe, alone and in front ends, on a simulated device.
#include <cstdio>
#include <memory_resource>
#include <vector>

#include <every_header.hpp>

#include <names.hpp>

#include <conformance/shipped.hpp>

using namespace tessera;

__global__ void fill(float* at, std::size_t count) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) at[i] = 1;
}

/// Allocates on two streams, records a stream, and frees everything.
template <typename Pool>
bool serves(const char* name, Pool&& pool) {
  const stream_id one{1};
  const stream_id other{2};
  std::vector<void*> blocks;
  for (std::size_t bytes : {std::size_t{1000}, 300_KiB, 5_MiB, 30_MiB})
    blocks.push_back(pool.allocate(bytes, one));
  blocks.push_back(pool.try_allocate(2_MiB, other));
  (void)pool.record_stream(blocks.front(), other);
  for (void* block : blocks) pool.deallocate(block);
  pool.trim();
  const bool good = pool.current_usage().allocated == 0 && pool.audit() == nullptr;
  if (!good) std::printf("%s does not free all blocks\n", name);
  return good;
}

template <typename Recipe>
bool serves_alone_and_in_adaptors(const char* name) {
  static_assert(law::recipe<Recipe>());
  return serves(name, caching_allocator<Recipe, simulated_device>()) &&
         serves(name, locked<caching_allocator<Recipe, simulated_device>>()) &&
         serves(name, per_stream<caching_allocator<Recipe, simulated_device>>());
}

bool serves_shipped() {
  bool good = true;
  conformance::for_each_shipped([&good](auto named) {
    using recipe = typename decltype(named)::recipe;
    good &= serves_alone_and_in_adaptors<recipe>(named.name);
  });
  return good;
}

/// A policy whose answer is not a constant expression.
struct round_late {
  [[nodiscard]] static std::size_t block_size(std::size_t requested) noexcept {
    static const std::size_t step = 512;
    return align_up(requested, step);
  }
  bool operator==(const round_late&) const = default;
};

/// Recipes of configuration strings, and recipes with explicit policies.
bool serves_composed() {
  using settled = pytorch<"max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:4">;
  using tuned =
      with<settled, round_to_divisions<512, divisions::all(4)>, grow_by_segments<2_MiB, tunable(32_MiB)>,
           fail_fast<recover_by_releasing_oversize, true>>;
  using pages = with<torch_npu<>, split_below<tunable(64_MiB)>, evict_idle_above<percent(80)>,
                     prefer_pages<page_choice{.pages = page_preference::huge_first, .peer_to_peer = true}>>;
  return serves_alone_and_in_adaptors<settled>("pytorch of a string") &&
         serves_alone_and_in_adaptors<pytorch<"expandable_segments:True">>("expandable") &&
         serves_alone_and_in_adaptors<pytorch<"backend:cudaMallocAsync">>("the driver's pools") &&
         serves_alone_and_in_adaptors<torch_npu<"expandable_segments:True,segment_size_mb:40">>("torch_npu") &&
         serves_alone_and_in_adaptors<paddle<"FLAGS_free_idle_chunk=1">>("paddle") &&
         serves_alone_and_in_adaptors<pytorch_pinned<"pinned_max_cached_size_mb:64">>("pinned") &&
         serves_alone_and_in_adaptors<tuned>("tuned") &&
         serves("pages", caching_allocator<pages, simulated_device>()) &&
         serves("late", caching_allocator<with<pytorch<>, round_late>, simulated_device>());
}

/// Configured allocators, an allocator for two devices, and the functions for tools.
bool serves_tools() {
  configured<pytorch_family,
             locked<caching_allocator<pytorch<>, simulated_device, extension::observer<history<>>>>>
      chosen(config::pytorch::settings{});
  const bool limits = set_memory_fraction(chosen, 0.5) && memory_fraction(chosen) == 0.5;
  chosen.deallocate(chosen.allocate(5_MiB));
  std::size_t blocks = 0;
  chosen.for_each_allocator([&blocks](auto& one) {
    for_each_block(one, [&blocks](const segment_view&, const block_view&) { ++blocks; });
  });
  const snapshot taken = take_snapshot(chosen);
  per_device<per_stream<caching_allocator<stitched, simulated_device>>> all(std::vector<simulated_device>(2));
  all.deallocate(all.allocate(5_MiB, 1));
  return limits && blocks > 0 && !taken.traces.empty() && !memory_report(chosen).table().empty() &&
         all.audit() == nullptr;
}

/// The types for other libraries, over memory of this machine.
bool serves_other_libraries() {
  using pool_type = shared_allocator<locked<caching_allocator<pinned_packed, host_pinned>>>;
  const host_pinned::options options{.pin = host_pinned::pinning::never};
  pool_type pool =
      shared_allocator<locked<caching_allocator<pinned_packed, host_pinned>>>::make(host_pinned{options});
  {
    pmr_resource memory(pool);
    std::pmr::vector<int> numbers({1, 2, 3}, &memory);
    std::vector<int, typed_allocator<int, pool_type>> copy(numbers.begin(), numbers.end(), pool);
    cccl_resource resource(pool);
    unique_block block = make_block(pool, 1000);
    resource.deallocate_sync(resource.allocate_sync(1000, 4096), 1000, 4096);
    if (copy.back() != 3 || !block) return false;
  }
  return pool.current_usage().allocated == 0;
}

/// The provider over CUDA's driver, if there is a device.
bool serves_a_kernel() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return true;
  locked<caching_allocator<pytorch<>, cuda_device>> pool{cuda_device(cuda_driver())};
  float* const numbers = static_cast<float*>(pool.allocate(1_MiB));
  fill<<<1, 256>>>(numbers, 1_MiB / sizeof(float));
  float last = 0;
  const bool copied = cudaMemcpy(&last, numbers + 1_MiB / sizeof(float) - 1, sizeof last,
                                 cudaMemcpyDeviceToHost) == cudaSuccess;
  pool.deallocate(numbers);
  return copied && last == 1 && pool.audit() == nullptr;
}

int main() {
  return serves_shipped() && serves_composed() && serves_tools() && serves_other_libraries() &&
                 serves_a_kernel()
             ? 0
             : 1;
}
