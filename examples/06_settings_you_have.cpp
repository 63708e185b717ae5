// SPDX-License-Identifier: Apache-2.0
// Configuration strings of PyTorch, torch_npu and Paddle: as a template argument, and read at run time.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <variant>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

void print_refused(const char* name, const tessera::config::setting_error& refused) {
  std::printf("%-23s %.*s %.*s\n", name, static_cast<int>(refused.key.size()), refused.key.data(),
              static_cast<int>(refused.rule.size()), refused.rule.data());
}

/// Bytes that an allocator has reserved after it freed 40 MiB and then served 60 MiB.
template <typename Recipe>
std::size_t reserved_after_growth(const char* name) {
  tessera::caching_allocator<Recipe, tessera::provider::simulated_device> allocator;
  allocator.deallocate(allocator.allocate(40_MiB));
  allocator.deallocate(allocator.allocate(60_MiB));
  std::printf("%-23s %3zu MiB reserved\n", name, allocator.current_usage().reserved >> 20);
  return allocator.current_usage().reserved;
}

int main() try {
  // A string that breaks a rule does not compile. The first line of the error names the rule and the key.
  using npu = tessera::recipe::torch_npu<"max_split_size_mb:32,garbage_collection_threshold:0.6">;
  tessera::caching_allocator<npu, tessera::provider::simulated_device> tuned;
  tuned.deallocate(tuned.allocate(40_MiB));
  tuned.deallocate(tuned.allocate(5_MiB));  // a block of at least 32 MiB is never split
  std::printf("torch_npu, tuned:       %3zu MiB reserved\n", tuned.current_usage().reserved >> 20);

  // Reads the user's environment at run time. A string that breaks a rule is an exception.
  using configured_type = tessera::configured<
      tessera::recipe::torch_npu_family,
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
  auto configured = configured_type::from_environment("PYTORCH_NPU_ALLOC_CONF");
  configured.deallocate(configured.allocate(40_MiB));
  if (const auto refused = configured.change("expandable_segments:True,segment_size_mb:40"))
    print_refused("torch_npu, later:", *refused);

  // Paddle reserves a fraction of the device in advance, frees memory in batches, and lets outputs overwrite inputs.
  using paddle = tessera::recipe::paddle<
      "FLAGS_allocator_strategy=naive_best_fit,FLAGS_fraction_of_gpu_memory_to_use=0.4">;
  tessera::caching_allocator<paddle, tessera::provider::simulated_device> allocator;
  tessera::concurrent::deferred_free_queue garbage(allocator, {.threshold = 64_MiB});
  void* input = allocator.allocate(30_MiB);
  void* const output = tessera::interop::allocate_in_place(allocator, input, 30_MiB);
  garbage.push(output, 30_MiB);  // stays live until the queue holds 64 MiB
  std::printf("paddle, naive_best_fit: %3zu MiB reserved, of it live %zu\n",
              allocator.current_usage().reserved >> 20, allocator.current_usage().allocated >> 20);

  // With virtual memory, the free memory at the end of the range serves, and only the bytes that it lacks are mapped.
  const std::size_t chunks = reserved_after_growth<tessera::recipe::paddle<"">>("paddle, auto_growth:");
  const std::size_t range =
      reserved_after_growth<tessera::recipe::paddle<"FLAGS_use_virtual_memory_auto_growth=True">>(
          "paddle, virtual memory:");
  const std::size_t version_2 =
      reserved_after_growth<tessera::recipe::paddle<"FLAGS_use_vmm_auto_growth_best_fit_allocator_v2=True,"
                                                    "FLAGS_vmm_v2_large_pool_handle_size_in_mb=32">>(
          "paddle, version 2:");

  const auto parsed = tessera::config::parse<tessera::config::paddle>(
      "FLAGS_allocator_strategy=naive_best_fit,FLAGS_use_virtual_memory_auto_growth=True");
  const auto* const refused = std::get_if<tessera::config::setting_error>(&parsed);
  if (refused == nullptr) return 1;
  print_refused("paddle, both:", *refused);
  return range < chunks && version_2 < chunks ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
