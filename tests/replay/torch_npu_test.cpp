// SPDX-License-Identifier: Apache-2.0
// A PYTORCH_NPU_ALLOC_CONF string, and the equal recipe written by hand, decide the same on recorded
// programs.
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/tool/any_recipe.hpp>
#include <tessera/trace/csv.hpp>
#include "tessera_replay/decisions.hpp"
#include "tessera_replay/lifetimes.hpp"

#include "printed.hpp"

namespace {

using namespace tessera;

/// The decision lines of a recipe with its settings, on a trace of the examples.
template <typename Recipe>
std::string decisions(const char* trace, std::size_t capacity) {
  const std::string path = std::string(TESSERA_EXAMPLES_DIR "/traces/") + trace;
  const auto text = replay::read_file(path);
  if (const auto* error = std::get_if<trace::input_error>(&text)) return error->text();
  const auto read = replay::read_text_trace(std::get<std::string>(text), path);
  if (const auto* error = std::get_if<trace::input_error>(&read)) return error->text();
  return replay_tests::printed([&](std::FILE* out) {
    replay::write_decisions(out, trace::program(std::get<trace::recording>(read)),
                            simulated_device{simulated_device::options{.capacity = capacity}},
                            tool::detail::any_recipe::of<Recipe>({}));
  });
}

bool has(const std::string& lines, const char* word) { return lines.find(word) != std::string::npos; }

/// Compares two recipes on every trace, on devices with much and with little memory. All `words` must occur.
template <typename A, typename B>
void expect_the_same(std::initializer_list<const char*> words) {
  std::string all;
  for (const char* trace : {"gnn_sage.csv", "gnn_sage_streams.csv", "gpt2_adamw.csv", "resnet50_sgd.csv"}) {
    for (const std::size_t capacity : {1_GiB, 2_GiB, 6_GiB, 16_GiB}) {
      const std::string one = decisions<A>(trace, capacity);
      EXPECT_TRUE(one == decisions<B>(trace, capacity)) << trace << ", " << capacity;
      all += one;
    }
  }
  for (const char* word : words) EXPECT_TRUE(has(all, word)) << word;
}

struct native_by_hand {
  using rounding = round_padded<32, round_to_divisions<512, divisions::all(4)>>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream_after_own_events;
  using split = split_below<32_MiB, 20_MiB>;
  using pages = prefer_pages<page_preference::huge_first>;
  using growth = grow_by_segments<2_MiB, 20_MiB, 10_MiB, memory_limit(percent(80))>;
  using eviction = evict_idle_above<percent(60)>;
  using recovery = recover_by_releasing_oversize;
};
TEST(torch_npu_decisions, of_a_text_equal_those_of_the_recipe) {
  expect_the_same<
      torch_npu<"max_split_size_mb:32,garbage_collection_threshold:0.6,roundup_power2_divisions:4,"
                "per_process_memory_fraction:0.8">,
      native_by_hand>({"-> 1+", "S+", "S-", "OOM"});
}

struct expandable_by_hand {
  using rounding = round_padded<32, round_to_multiple<512>>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream_after_own_events;
  using split = split_if_remainder_at_least<512>;
  using pages = prefer_pages<page_preference::huge_first>;
  using growth = grow_by_mapping<2_MiB, 40_MiB, unlimited, 3_KiB>;
  using eviction = evict_never;
  using recovery = recover_by_emptying_cache<>;
};
TEST(torch_npu_decisions, of_expandable_segments_too) {
  expect_the_same<torch_npu<"expandable_segments:True,segment_size_mb:40,base_addr_aligned_kb:3">,
                  expandable_by_hand>({"-> 1+", "M+", "M-", "OOM"});
}

TEST(torch_npu_decisions, of_1_gib_pages_and_lazy_event_polls_too) {
  expect_the_same<torch_npu<"page_size:1g">, with<torch_npu<>, prefer_pages<page_preference::huge_1g_first>>>(
      {"-> 1+", "S+ 1 1073741824", "X", "OOM"});
  expect_the_same<
      torch_npu<"multi_stream_lazy_reclaim:True">,
      with<torch_npu<>, poll_events_lazily<reuse_on_same_stream_after_own_events, std::size_t{512}>>>(
      {"-> 1+", "S-", "OOM"});
}

TEST(torch_npu_decisions, differ_if_the_text_does) {
  EXPECT_FALSE(decisions<torch_npu<"roundup_power2_divisions:8">>("gpt2_adamw.csv", 6_GiB) ==
               decisions<torch_npu<"roundup_power2_divisions:4">>("gpt2_adamw.csv", 6_GiB));
}

}  // namespace
