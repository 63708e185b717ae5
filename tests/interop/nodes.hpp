// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <memory_resource>

#include <tessera/interop/std_allocators.hpp>

#include "beside.hpp"

/// Allocators that functions return, and a comparison of the memory that small nodes take with them.
namespace interop_tests {

/// An allocator with a block for each request.
inline pool_type& blocks() {
  static auto* const pool = new pool_type(host_memory());
  return *pool;
}
struct node_pool {
  tessera::interop::pmr_resource<pool_type> of_blocks{blocks()};
  std::pmr::synchronized_pool_resource nodes{&of_blocks};
};
inline node_pool& own_nodes() {
  static auto* const pool = new node_pool;
  return *pool;
}
/// A pool of the standard library, which takes blocks from the same allocator.
inline std::pmr::memory_resource& nodes() { return own_nodes().nodes; }

// The C++ allocators of the three.
template <typename T>
using from_malloc = std::allocator<T>;
template <typename T>
using from_nodes = tessera::interop::typed_allocator<T, tessera::interop::allocator_from<nodes>>;
template <typename T>
using from_blocks = tessera::interop::typed_allocator<T, tessera::interop::allocator_from<blocks>>;

/// Runs the work of a library three times: in memory of malloc, of nodes(), and of blocks(). Prints the memory of each, and
/// checks that the pool of nodes needs at most 1.3 times as much as malloc. The checks run after the work.
template <typename Check, typename InMalloc, typename InNodes, typename InBlocks>
int compare_nodes(const char* name, Check works_in_nodes, Check works_in_blocks, InMalloc in_malloc,
                  InNodes in_nodes, InBlocks in_blocks) {
  const auto of_malloc = run_alone([&](sample& in) { return in_malloc(in), true; });
  const auto in_pool = [](bool is_right) {
    own_nodes().nodes.release();
    return is_empty_after_use(blocks()) && is_right;
  };
  const auto of_nodes = run_alone([&](sample& in) {
    in_nodes(in);
    return in_pool(works_in_nodes());
  });
  const auto of_blocks = run_alone([&](sample& in) {
    in_blocks(in);
    return in_pool(works_in_blocks());
  });
  if (!check(of_malloc && of_nodes && of_blocks, "the library works with each allocator")) return 1;
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf("%s: malloc: %.1f MiB resident, %.0f ms\n", name, mib(of_malloc->peak), of_malloc->ms);
  std::printf("%s: nodes from a pool: %.1f MiB resident of %.1f reserved, %.0f ms\n", name,
              mib(of_nodes->peak), mib(of_nodes->reserved), of_nodes->ms);
  std::printf("%s: a block for each node: %.1f MiB resident of %.1f reserved, %.0f ms\n", name,
              mib(of_blocks->peak), mib(of_blocks->reserved), of_blocks->ms);
  const bool are_equal = of_malloc->hash == of_nodes->hash && of_malloc->hash == of_blocks->hash;
  return check(are_equal, "the results are equal") &&
                 check(std::max(of_nodes->peak, of_nodes->reserved) < of_malloc->peak * 13 / 10,
                       "a pool of nodes needs at most 1.3 times as much as malloc")
             ? 0
             : 1;
}

}  // namespace interop_tests
