// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/acl_malloc_policy.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "extensions.hpp"
#include "places.hpp"
#include "rows.hpp"

/// The settings in the examples of other systems' documents.
namespace conformance {

/// An allocator over a device that outlives it.
template <typename Recipe, typename Place>
using on = tessera::caching_allocator<Recipe, tessera::provider::provider_ref<typename Place::device_type>,
                                      tessera::extension::observer<event_list>>;

/// How often the device gave memory.
template <typename Pool>
std::size_t taken(Pool& pool) {
  return observer_of(pool).count(event_list::action::segment_alloc) +
         observer_of(pool).count(event_list::action::segment_map);
}

/// PyTorch's recipe, with pages as an aclrtMemMallocPolicy says.
template <tessera::page_choice Choice>
using backed =
    tessera::recipe::with<tessera::recipe::pytorch_family::native, tessera::policy::prefer_pages<Choice>>;

// PYTORCH_NPU_ALLOC_CONF, in the order of its document.
using npu_1 = tessera::recipe::torch_npu<"max_split_size_mb:32,garbage_collection_threshold:0.6">;
using npu_2 = tessera::recipe::torch_npu<"expandable_segments:True,base_addr_aligned_kb:16">;
using npu_3 = tessera::recipe::torch_npu<"page_size:1g">;
using npu_4 = tessera::recipe::torch_npu<"expandable_segments:True,segment_size_mb:40">;
using npu_5_number = tessera::recipe::torch_npu<"roundup_power2_divisions:4">;
using npu_5_list = tessera::recipe::torch_npu<"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]">;
// The settings of pinned memory.
using npu_6 = tessera::recipe::torch_npu_pinned<"pinned_use_background_threads:True">;
using npu_7 = tessera::recipe::torch_npu_pinned<"pin_memory_expandable_segments:True">;
using npu_8 = tessera::recipe::torch_npu_pinned<"pinned_mem_register:True">;

/// Paddle's FLAGS_*.
template <tessera::config::detail::fixed_string Flags>
inline constexpr tessera::config::paddle::settings paddle_flags =
    tessera::config::detail::settings_in<tessera::config::paddle, Flags>();
using paddle_growing = tessera::recipe::paddle<"FLAGS_allocator_strategy=auto_growth">;
using paddle_ahead = tessera::recipe::paddle<"FLAGS_allocator_strategy=naive_best_fit">;
using paddle_ahead_by_0_4 = tessera::recipe::paddle<
    "FLAGS_allocator_strategy=naive_best_fit,FLAGS_fraction_of_gpu_memory_to_use=0.4">;
using paddle_ahead_by_0 =
    tessera::recipe::paddle<"FLAGS_allocator_strategy=naive_best_fit,FLAGS_fraction_of_gpu_memory_to_use=0">;

}  // namespace conformance
