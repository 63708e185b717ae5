// SPDX-License-Identifier: Apache-2.0
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/core/bytes.hpp>

#include "../environment.hpp"
#include "refused.hpp"

namespace {

using namespace tessera::literals;
using error_code = tessera::config::setting_error::error_code;
using tessera::config::paddle;
using tessera::config::pytorch;
using tessera::config::read_environment;
using tessera::config::torch_npu;

/// Clears the variables of all grammars before and after each test.
class environment : public testing::Test {
 protected:
  static void set(const char* variable, const char* text) { ASSERT_TRUE(set_variable(variable, text)); }
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

 private:
  static void clear() {
    for (const char* variable : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                                 "PYTORCH_NPU_ALLOC_CONF", "MINE"})
      ASSERT_TRUE(unset_variable(variable));
    for (const auto& key : paddle::keys) ASSERT_TRUE(unset_variable(key.name.data()));
  }
};

template <typename Grammar>
typename Grammar::settings settings() {
  return std::get<0>(read_environment<Grammar>());
}

TEST_F(environment, without_variables_gives_the_defaults) {
  EXPECT_EQ(settings<pytorch>(), pytorch::settings{});
  EXPECT_EQ(settings<torch_npu>(), torch_npu::settings{});
  EXPECT_EQ(settings<paddle>(), paddle::settings{});
  EXPECT_EQ(std::get<0>(read_environment<pytorch>("MINE")), pytorch::settings{});
}

TEST_F(environment, reads_a_named_variable) {
  set("MINE", "max_split_size_mb:32");
  EXPECT_EQ(std::get<0>(read_environment<pytorch>("MINE")).max_split_size, 32_MiB);
  EXPECT_EQ(std::get<0>(read_environment<torch_npu>("MINE")).max_split_size, 32_MiB);
  config_tests::expect_refusal(read_environment<paddle>("MINE"),
                               {"max_split_size_mb:32", "", "no such key", 0, error_code::unknown_key});
  EXPECT_EQ(settings<pytorch>(), pytorch::settings{});
}

TEST_F(environment, of_pytorch_is_the_first_variable_set) {
  set("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,throw_on_cudamalloc_oom:True");
  EXPECT_EQ(settings<pytorch>().max_split_size, 64_MiB);
  set("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:48");
  EXPECT_EQ(settings<pytorch>().max_split_size, 48_MiB);
  set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32");
  EXPECT_EQ(settings<pytorch>().max_split_size, 32_MiB);
  EXPECT_FALSE(settings<pytorch>().throw_on_oom);  // the other variable is ignored
  set("PYTORCH_ALLOC_CONF", "wrong");
  EXPECT_EQ(settings<pytorch>().max_split_size, 32_MiB);
#if !defined(_WIN32)                   // which has no variable without text
  set("PYTORCH_CUDA_ALLOC_CONF", "");  // is set
  EXPECT_EQ(settings<pytorch>(), pytorch::settings{});
#endif
  set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32");
  set("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:128");
  EXPECT_EQ(settings<pytorch>(), pytorch::settings{.max_split_size = 32_MiB});
}

TEST_F(environment, of_torch_npu_is_its_own_variable) {
  set("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync");
  set("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync");
  EXPECT_EQ(settings<torch_npu>(), torch_npu::settings{});
  set("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True,base_addr_aligned_kb:0");
  EXPECT_TRUE(settings<torch_npu>().expandable_segments);
  EXPECT_EQ(settings<torch_npu>().base_addr_aligned, 0u);
}

TEST_F(environment, error_has_the_position_in_the_variable) {
  set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,backend:none");
  const auto parsed = read_environment<pytorch>();
  config_tests::expect_refusal(
      parsed, {"backend", "none", "must be native or cudaMallocAsync", 29, error_code::unknown_value});
  const char* const variable = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  EXPECT_EQ(std::get<1>(parsed).value.data(), variable + 29);
  set("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:32");
  config_tests::expect_refusal(read_environment<torch_npu>(),
                               {"max_split_size_mb", "", torch_npu::expandable_rule, 25,
                                error_code::excluded_by, "expandable_segments"});
}

TEST(bad_setting, shows_no_control_characters) {
  using namespace std::string_view_literals;
  const auto read = tessera::config::parse<tessera::config::pytorch>("max\0\x1b[2J\x7f:1"sv);
  EXPECT_STREQ(tessera::config::bad_setting("conf", std::get<1>(read)).what(),
               "conf, character 0: max??: no such key");
  const auto value = tessera::config::parse<tessera::config::pytorch>("max_split_size_mb:\x1b\n2\0"sv);
  EXPECT_STREQ(tessera::config::bad_setting("conf", std::get<1>(value)).what(),
               "conf, character 18: max_split_size_mb ??2?: must be a whole number of MiB");
}

TEST_F(environment, of_paddle_is_a_variable_for_each_flag) {
  set("FLAGS_allocator_strategy", "naive_best_fit");
  set("FLAGS_fraction_of_gpu_memory_to_use", " 0.4 ");
  set("FLAGS_initial_gpu_memory_in_mb", "1");
  set("FLAGS_reallocate_gpu_memory_in_mb", "2");
  set("FLAGS_gpu_memory_limit_mb", "3");
  set("FLAGS_gpu_allocator_retry_time", "4");
  set("FLAGS_auto_growth_chunk_size_in_mb", "5");
  set("FLAGS_free_idle_chunk", "1");
  set("FLAGS_free_when_no_cache_hit", "true");
  set("FLAGS_small_pool_size_in_mb", "6");
  set("FLAGS_small_pool_auto_growth_chunk_size_in_mb", "7");
  set("FLAGS_large_pool_auto_growth_chunk_size_in_mb", "8");
  set("FLAGS_eager_delete_tensor_gb", "-1.0");
  set("FLAGS_memory_fraction_of_eager_deletion", "0.6");
  set("FLAGS_fast_eager_deletion_mode", "False");
  EXPECT_EQ(settings<paddle>(), (paddle::settings{.naive_best_fit = true,
                                                  .fraction_of_gpu_memory = tessera::percent(40),
                                                  .initial_gpu_memory = 1_MiB,
                                                  .reallocate_gpu_memory = 2_MiB,
                                                  .gpu_memory_limit = 3_MiB,
                                                  .retry_milliseconds = 4,
                                                  .auto_growth_chunk_size = 5_MiB,
                                                  .free_idle_chunk = true,
                                                  .free_when_no_cache_hit = true,
                                                  .small_pool_size = 6_MiB,
                                                  .small_pool_chunk_size = 7_MiB,
                                                  .large_pool_chunk_size = 8_MiB,
                                                  .garbage_threshold = tessera::unlimited,
                                                  .memory_fraction_of_eager_deletion = tessera::percent(60),
                                                  .fast_eager_deletion = false}));
}

TEST_F(environment, of_paddle_may_change_the_default_of_another_flag) {
  set("FLAGS_use_multi_scale_virtual_memory_auto_growth", "True");
  EXPECT_EQ(settings<paddle>(), (paddle::settings{.multi_scale = true, .vmm_small_pool_size = 0}));
  set("FLAGS_vmm_small_pool_size_in_mb", "1");
  EXPECT_EQ(settings<paddle>(), (paddle::settings{.multi_scale = true, .vmm_small_pool_size = 1_MiB}));
}

TEST_F(environment, of_paddle_may_ask_for_what_is_not_supported) {
  set("FLAGS_enable_compact_mem", "False");
  EXPECT_EQ(settings<paddle>(), paddle::settings{});
  set("FLAGS_enable_compact_mem", "1");
  config_tests::expect_refusal(
      read_environment<paddle>(),
      {"FLAGS_enable_compact_mem", "1", paddle::moves_live_blocks, 0, error_code::unknown_value});
}

TEST_F(environment, error_of_paddle_has_the_flag_and_position) {
  const auto expect = [](const char* text, const tessera::config::setting_error& why) {
    set("FLAGS_gpu_memory_limit_mb", text);
    SCOPED_TRACE(text);
    config_tests::expect_refusal(read_environment<paddle>(), why);
  };
  constexpr std::string_view limit = "FLAGS_gpu_memory_limit_mb";
  constexpr std::string_view not_mib = "must be a whole number of MiB";
  expect("  12x", {limit, "12x", not_mib, 2, error_code::not_a_number});
#if !defined(_WIN32)
  expect("", {limit, "", not_mib, 0, error_code::missing_value});
#endif
  expect("12,", {limit, ",", "nothing may follow the value", 2, error_code::malformed});
  expect("1=2", {limit, "=", "nothing may follow the value", 1, error_code::malformed});
  // Of several errors, the first in the order of the table.
  set("FLAGS_fast_eager_deletion_mode", "no");
  set("FLAGS_allocator_strategy", "best");
  config_tests::expect_refusal(read_environment<paddle>(),
                               {"FLAGS_allocator_strategy", "best", "must be auto_growth or naive_best_fit",
                                0, error_code::unknown_value});
}

}  // namespace
