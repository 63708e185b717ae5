// SPDX-License-Identifier: Apache-2.0
// A recipe made of torch_npu's settings, and the same written by hand, decide the same on recorded programs.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/recipe/torch_npu.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/trace/decisions.hpp>
#include <tessera/trace/file.hpp>
#include <tessera/trace/lifetimes.hpp>

namespace {

using namespace tessera;
using config::torch_npu_settings;

/// The decision lines of a recipe with its own numbers, on a trace of the examples.
template <typename Recipe>
std::string decisions(const char* trace, std::size_t capacity) {
  const std::string path = std::string(TESSERA_EXAMPLES_DIR "/traces/") + trace;
  const auto text = trace::read_file(path);
  if (const auto* error = std::get_if<trace::input_error>(&text)) return error->text();
  const auto read = trace::read_text_trace(std::get<std::string>(text), path);
  if (const auto* error = std::get_if<trace::input_error>(&read)) return error->text();
  char* written = nullptr;
  std::size_t size = 0;
  std::FILE* const out = open_memstream(&written, &size);
  trace::write_decisions<Recipe>(out, trace::program(std::get<trace::recording>(read)),
                                 simulated_device{simulated_device::options{.capacity = capacity}}, {});
  std::fclose(out);
  std::string lines(written, size);
  std::free(written);
  return lines;
}

bool has(const std::string& lines, const char* word) { return lines.find(word) != std::string::npos; }

/// Compares two recipes on every trace, on devices with much and with little memory, where all `words` are to be met.
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

/// max_split_size_mb:32,garbage_collection_threshold:0.6,roundup_power2_divisions:4,per_process_memory_fraction:0.8
struct native_by_hand {
  using rounding = round_padded<32, round_to_divisions<512, divisions::all(4)>>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream_after_recorded;
  using split = split_up_to<32_MiB, 20_MiB>;
  using pages = back_with_huge_pages_first;
  using growth = grow_by_segments<2_MiB, 20_MiB, 10_MiB, memory_limit(percent(80))>;
  using eviction = evict_idle_above<percent(60)>;
  using recovery = recover_like_pytorch<false>;
};
constexpr torch_npu_settings native_settings{.max_split_size = 32_MiB,
                                             .garbage_collection_threshold = percent(60),
                                             .roundup = divisions::all(4),
                                             .memory_fraction = percent(80)};

/// expandable_segments:True,segment_size_mb:40,base_addr_aligned_kb:8
struct expandable_by_hand {
  using rounding = round_padded<32, round_to_multiple<512>>;
  using pools = pool_small_and_large<1_MiB>;
  using streams = reuse_on_same_stream_after_recorded;
  using split = split_if_rest_at_least<512>;
  using pages = back_with_huge_pages_first;
  using growth = grow_in_place<2_MiB, 40_MiB, unlimited, 8_KiB>;
  using eviction = evict_never;
  using recovery = recover_by_emptying_the_cache;
};
constexpr torch_npu_settings expandable_settings{
    .expandable_segments = true, .base_addr_aligned = 8_KiB, .segment_size = 40_MiB};

/// page_size:1g,multi_stream_lazy_reclaim:True
using giant_by_hand = with<torch_npu_native, back_with_giant_pages_first,
                           look_at_events_late<reuse_on_same_stream_after_recorded, std::size_t{512}>>;
constexpr torch_npu_settings giant_settings{.giant_pages = true, .multi_stream_lazy_reclaim = true};

TEST(torch_npu_decisions, of_settings_are_those_of_what_is_written_by_hand) {
  expect_the_same<torch_npu_with<native_settings>, native_by_hand>({"-> 1+", "S+", "S-", "OOM"});
  expect_the_same<torch_npu_with<expandable_settings>, expandable_by_hand>({"-> 1+", "M+", "M-", "OOM"});
  expect_the_same<torch_npu_with<giant_settings>, giant_by_hand>({"-> 1+", "S+ 1 1073741824", "X", "OOM"});
}

TEST(torch_npu_decisions, differ_where_a_setting_does) {
  constexpr torch_npu_settings other{.max_split_size = 32_MiB,
                                     .garbage_collection_threshold = percent(60),
                                     .roundup = divisions::all(8),
                                     .memory_fraction = percent(80)};
  EXPECT_FALSE(decisions<torch_npu_with<other>>("gpt2_adamw.csv", 6_GiB) ==
               decisions<native_by_hand>("gpt2_adamw.csv", 6_GiB));
}

}  // namespace
