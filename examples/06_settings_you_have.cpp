// SPDX-License-Identifier: Apache-2.0
// Configuration strings of PyTorch, torch_npu and Paddle: as a template argument, and read at run time.
#include <cstdio>
#include <exception>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

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
    std::printf("torch_npu, later:       %.*s %.*s\n", static_cast<int>(refused->key.size()),
                refused->key.data(), static_cast<int>(refused->rule.size()), refused->rule.data());

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
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
