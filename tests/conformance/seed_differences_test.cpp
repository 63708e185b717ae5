// SPDX-License-Identifier: Apache-2.0
// Where a document and the code of the system differ: what the recipe does, as the code does, and how a program gets the
// document's rule. The table "Documents and code" of include/tessera/config/README.md has the same rows.
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/acl_malloc_policy.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/tessera.hpp>

#include "seed_settings.hpp"

namespace {

using namespace tessera;
using recipe::with;
template <typename Recipe>
using simulated = caching_allocator<Recipe, provider::simulated_device>;

provider::simulated_device of(std::size_t capacity) {
  return provider::simulated_device({.capacity = capacity});
}
template <typename Allocator>
std::size_t reserved_by(Allocator& allocator) {
  return allocator.current_usage().reserved;
}
/// The block's size for a request.
template <typename Recipe>
std::size_t block_for(std::size_t bytes) {
  return recipe::policies<Recipe>().rounding.block_size(bytes);
}

TEST(seed_differences, a_list_of_divisions_counts_from_a_size_in_the_code_and_up_to_it_in_the_document) {
  using as_code = recipe::torch_npu<"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]">;
  EXPECT_EQ(block_for<as_code>(300_MiB), 300_MiB + 512);
  EXPECT_EQ(block_for<as_code>(600_MiB), 768_MiB);
  EXPECT_EQ(block_for<as_code>(1100_MiB), 1280_MiB);
  EXPECT_EQ(block_for<as_code>(2100_MiB), 2304_MiB);
  using as_documented = recipe::torch_npu<"roundup_power2_divisions:[128:1,256:2,512:4,>:8]">;
  EXPECT_EQ(block_for<as_documented>(200_MiB), 200_MiB + 512);
  EXPECT_EQ(block_for<as_documented>(300_MiB), 384_MiB);
  EXPECT_EQ(block_for<as_documented>(600_MiB), 640_MiB);
  EXPECT_EQ(block_for<as_documented>(1100_MiB), 1152_MiB);
  EXPECT_EQ(block_for<as_documented>(2100_MiB), 2304_MiB);
}

inline constexpr policy::chunk_schedule all_of_the_device{.leaves_twentieth = false};
inline constexpr policy::chunk_schedule two_fifths{.share = percent(40), .leaves_twentieth = false};
template <policy::chunk_schedule Chunks>
using paddle_as_documented = with<recipe::paddle_naive_best_fit, policy::grow_by_schedule<Chunks>,
                                  policy::evict_at_free_above_schedule<Chunks>>;

TEST(seed_differences, a_chunk_is_a_share_of_the_available_memory_without_a_twentieth_in_the_code) {
  const auto chunk_of = [](auto allocator) {
    allocator.deallocate(allocator.allocate(1_MiB));
    return reserved_by(allocator);
  };
  const auto close_to = [](std::size_t share) { return percent(share).of(80_GiB); };
  using as_code = recipe::paddle<"FLAGS_allocator_strategy=naive_best_fit">;
  const std::size_t capacity = 80_GiB;
  EXPECT_EQ(chunk_of(simulated<as_code>(of(capacity))) >> 20, percent(92).of(76_GiB) >> 20);
  EXPECT_EQ(chunk_of(simulated<paddle_as_documented<all_of_the_device>>(of(capacity))) >> 20,
            close_to(92) >> 20);
  EXPECT_EQ(chunk_of(simulated<paddle_as_documented<two_fifths>>(of(capacity))) >> 20, close_to(40) >> 20);
  EXPECT_EQ(chunk_of(simulated<conformance::paddle_ahead_by_0_4>(of(capacity))) >> 20,
            percent(40).of(76_GiB) >> 20);
}

TEST(seed_differences, a_request_of_a_whole_chunk_is_larger_than_the_chunk_in_the_code) {
  using as_code = recipe::paddle<
      "FLAGS_allocator_strategy=naive_best_fit,FLAGS_initial_gpu_memory_in_mb=64,"
      "FLAGS_reallocate_gpu_memory_in_mb=64">;
  using as_documented = with<as_code, policy::round_to_multiple<256>>;
  simulated<as_code> code;
  code.deallocate(code.allocate(64_MiB));
  EXPECT_EQ(reserved_by(code), 0u) << "64 bytes are added, so the block has its own segment";
  simulated<as_documented> document;
  document.deallocate(document.allocate(64_MiB));
  EXPECT_EQ(reserved_by(document), 64_MiB) << "it came from the chunk, and went back to it";
}

TEST(seed_differences, an_oversize_block_serves_within_20_MiB_in_the_code_and_1_MiB_in_the_document) {
  using as_code = recipe::torch_npu<"max_split_size_mb:100">;
  using as_documented = with<as_code, policy::split_below<100_MiB, 1_MiB>>;
  const auto reserved_for = [](auto allocator, std::size_t bytes) {
    allocator.deallocate(allocator.allocate(200_MiB - 32));
    allocator.deallocate(allocator.allocate(bytes));
    return reserved_by(allocator);
  };
  EXPECT_EQ(reserved_for(simulated<as_code>(), 190_MiB - 32), 200_MiB);
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 190_MiB - 32), 390_MiB);
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 199_MiB), 200_MiB);
}

TEST(seed_differences, a_block_of_max_split_size_is_whole_in_the_code_and_splits_in_the_document) {
  using as_code = recipe::torch_npu<"max_split_size_mb:32">;
  using as_documented = with<as_code, policy::split_below<32_MiB + 512>>;
  const auto reserved_for = [](auto allocator, std::size_t first) {
    allocator.deallocate(allocator.allocate(first - 32));
    allocator.deallocate(allocator.allocate(12_MiB - 32));
    return reserved_by(allocator);
  };
  EXPECT_EQ(reserved_for(simulated<as_code>(), 32_MiB), 44_MiB);
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 32_MiB), 32_MiB) << "no larger than the value";
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 34_MiB), 46_MiB) << "larger than the value";
}

TEST(seed_differences, one_segment_goes_back_first_only_if_oversize_in_the_code) {
  using as_documented = with<recipe::pytorch<>, policy::recover_by_releasing_one>;
  const std::size_t capacity = 100_MiB;
  const auto reserved_after = [](auto allocator) {
    void* const blocks[] = {allocator.allocate(30_MiB), allocator.allocate(40_MiB),
                            allocator.allocate(24_MiB)};
    for (void* const p : blocks) allocator.deallocate(p);
    void* const other = allocator.allocate(36_MiB, stream_id{1});
    const std::size_t reserved = reserved_by(allocator);
    allocator.deallocate(other);
    return reserved;
  };
  EXPECT_EQ(reserved_after(simulated<recipe::pytorch<>>(of(capacity))), 36_MiB)
      << "the whole cache went back";
  EXPECT_EQ(reserved_after(simulated<as_documented>(of(capacity))), 90_MiB)
      << "only the segment of 40 MiB did";
}
// A request of 8 MiB needs a segment of 20, so that of 12 would not help.
TEST(seed_differences, the_segment_that_goes_back_is_large_enough_to_grow) {
  simulated<with<recipe::pytorch<>, policy::recover_by_releasing_one>> allocator(of(100_MiB));
  void* const blocks[] = {allocator.allocate(12_MiB), allocator.allocate(40_MiB), allocator.allocate(46_MiB)};
  for (void* const p : blocks) allocator.deallocate(p);
  void* const other = allocator.allocate(8_MiB, stream_id{1});
  EXPECT_EQ(reserved_by(allocator), 78_MiB);
  allocator.deallocate(other);
}
TEST(seed_differences, no_segment_goes_back_while_a_graph_is_captured) {
  using recipe_type = with<recipe::pytorch<>, policy::recover_by_releasing_one>;
  caching_allocator<recipe_type, provider::simulated_device, extension::private_pools> allocator(of(100_MiB));
  allocator.deallocate(allocator.allocate(90_MiB));
  const extension::private_pool graph(allocator);
  const extension::pool_scope capture(graph, stream_id{2}, extension::scope_kind::capture);
  EXPECT_EQ(allocator.try_allocate(30_MiB, stream_id{1}), nullptr);
  EXPECT_EQ(reserved_by(allocator), 90_MiB);
}
TEST(seed_differences, if_one_segment_is_not_enough_the_whole_cache_goes_back) {
  simulated<with<recipe::pytorch<>, policy::recover_by_releasing_one>> allocator(of(100_MiB));
  void* const blocks[] = {allocator.allocate(30_MiB), allocator.allocate(40_MiB), allocator.allocate(24_MiB)};
  for (void* const p : blocks) allocator.deallocate(p);
  void* const larger = allocator.allocate(50_MiB);
  EXPECT_EQ(reserved_by(allocator), 50_MiB) << "no segment is large enough";
  EXPECT_THROW((void)allocator.allocate(60_MiB), out_of_memory);
  allocator.deallocate(larger);
}

TEST(seed_differences, 32_bytes_make_a_request_of_1_MiB_large_in_the_code) {
  using as_code = recipe::torch_npu<"">;
  using as_documented = with<as_code, policy::round_to_divisions<512>>;
  const auto reserved_for = [](auto allocator, std::size_t bytes) {
    allocator.deallocate(allocator.allocate(bytes));
    return reserved_by(allocator);
  };
  EXPECT_EQ(reserved_for(simulated<as_code>(), 1_MiB - 1), 20_MiB);
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 1_MiB - 1), 2_MiB);
  EXPECT_EQ(reserved_for(simulated<as_code>(), 10_MiB - 512), 10_MiB);
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 10_MiB - 512), 20_MiB);
  using up_to_10 = with<as_documented, policy::grow_by_segments<2_MiB, 20_MiB, 10_MiB + 512>>;
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 10_MiB), 10_MiB) << "1 to 10 MiB, as the code reads it";
  EXPECT_EQ(reserved_for(simulated<up_to_10>(), 10_MiB), 20_MiB);
  using below_1 = with<as_documented, policy::pool_small_and_large<1_MiB - 512>>;
  EXPECT_EQ(reserved_for(simulated<as_documented>(), 1_MiB), 2_MiB) << "up to 1 MiB, as page_size has it";
  EXPECT_EQ(reserved_for(simulated<below_1>(), 1_MiB), 20_MiB) << "below 1 MiB, as the pools have it";
  EXPECT_EQ(reserved_for(simulated<below_1>(), 1_MiB - 512), 2_MiB);

  using giant = recipe::torch_npu<"page_size:1g">;
  using giant_as_documented = with<giant, policy::round_to_divisions<512>>;
  const std::size_t capacity = 4_GiB;
  EXPECT_EQ(reserved_for(simulated<giant>(of(capacity)), 1_MiB), 1_GiB);
  EXPECT_EQ(reserved_for(simulated<giant_as_documented>(of(capacity)), 1_MiB), 2_MiB);
  EXPECT_EQ(reserved_for(simulated<giant_as_documented>(of(capacity)), 1_MiB + 1), 1_GiB);
}

TEST(seed_differences, huge_first_for_peers_has_normal_pages_up_to_1_MiB_in_the_code) {
  constexpr page_choice as_code = interop::acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST_P2P");
  constexpr page_choice as_documented = [] {
    page_choice huge = interop::acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST_P2P");
    huge.max_normal = 0;
    return huge;
  }();
  const auto reserved_for = [](auto allocator, std::size_t bytes) {
    void* const p = allocator.allocate(bytes);
    const std::size_t reserved = reserved_by(allocator);
    allocator.deallocate(p);
    return reserved;
  };
  using code = with<recipe::passthrough, policy::prefer_pages<as_code>>;
  using document = with<recipe::passthrough, policy::prefer_pages<as_documented>>;
  EXPECT_EQ(reserved_for(simulated<code>(), 1_MiB), 1_MiB);
  EXPECT_EQ(reserved_for(simulated<document>(), 1_MiB), 2_MiB);
  EXPECT_EQ(reserved_for(simulated<document>(), 3_MiB), 4_MiB);
  EXPECT_EQ(interop::acl_malloc_policy::number(as_documented), interop::acl_malloc_policy::number(as_code));
}

TEST(seed_differences, in_place_is_on_by_default_and_has_a_switch) {
  using passes = interop::paddle_passes;
  simulated<recipe::paddle<"">> allocator;
  void* input = allocator.allocate(30_MiB);
  void* const address = input;
  void* output = interop::allocate_output(allocator, input, passes::input{}, 30_MiB, passes::output{});
  EXPECT_EQ(output, address);
  EXPECT_EQ(input, nullptr);

  input = std::exchange(output, nullptr);
  output = interop::allocate_output(allocator, input, passes::input{}, 30_MiB, passes::output{}, {},
                                    {.enable_inplace = false});
  EXPECT_NE(output, address);
  EXPECT_EQ(input, address);
  allocator.deallocate(output);
  output =
      interop::allocate_output(allocator, input, passes::input{.is_fetched = true}, 30_MiB, passes::output{});
  EXPECT_NE(output, address) << "the pass does not permit it";
  EXPECT_EQ(input, address);
  allocator.deallocate(output);
  allocator.deallocate(input);
}

}  // namespace
