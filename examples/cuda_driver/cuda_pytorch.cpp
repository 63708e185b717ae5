// SPDX-License-Identifier: Apache-2.0
// Builds a shared library that PyTorch loads with CUDAPluggableAllocator to allocate GPU memory. PYTORCH_CUDA_ALLOC_CONF selects
// the recipe. The first allocation loads CUDA's driver. README.md explains how to use it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/tessera.hpp>

#include "torch_error.hpp"

namespace cuda_pytorch {

/// The history that the program wants of each device. Changed before history_changes.
static std::atomic<std::size_t> history_entries{0};  // 0: no history
static std::atomic<std::uint64_t> history_changes{0};

/// A history that the program turns on and off. An allocator calls it with its lock held.
class switched_history {
 public:
  void on(const tessera::allocator_event& e) noexcept {
    if (const std::uint64_t changes = history_changes; changes != changes_) [[unlikely]]
      begin(changes);
    if (seen_) seen_->on(e);
  }
  template <typename F>
  void for_each(F f) const {
    if (seen_) seen_->for_each(f);
  }

 private:
  /// Keeps no history if host memory runs out.
  void begin(std::uint64_t changes) noexcept {
    changes_ = changes;
    seen_.reset();
    try {
      if (const std::size_t entries = history_entries; entries > 0) seen_.emplace(entries);
    } catch (const std::exception&) {
    }
  }

  std::uint64_t changes_ = 0;
  std::optional<tessera::observe::history<>> seen_;
};

}  // namespace cuda_pytorch

namespace {

/// The first line has PyTorch's words, because programs search for them.
std::string in_words_of_pytorch(int device, const tessera::out_of_memory& error, const char* explanation) {
  const auto& n = error.numbers();
  const auto bytes = [](std::size_t count) { return std::string(tessera::format_bytes(count).text()); };
  std::string text = "CUDA out of memory. Tried to allocate " + bytes(n.requested) + ". GPU " +
                     std::to_string(device) + " has a total capacity of " + bytes(n.capacity) + " of which " +
                     bytes(n.available) + " is free. ";
  if (n.now.limit < n.capacity) text += bytes(n.now.limit) + " allowed; ";
  text += "Of the allocated memory " + bytes(n.now.allocated) + " is allocated by PyTorch, and " +
          bytes(n.now.reserved - n.now.allocated) + " is reserved by PyTorch but unallocated.\n";
  return text + explanation;
}

/// `limit` is what the allocator may reserve, `available` what the device reports free.
using out_of_memory_observer = void(int device, std::uint64_t requested, std::uint64_t limit,
                                    std::uint64_t available);
std::atomic<out_of_memory_observer*> on_out_of_memory{nullptr};

/// Throws if memory is exhausted: PyTorch reports an exception to its user, but takes null for the address of a tensor.
struct on_gpus {
  static constexpr bool throws_out_of_memory = true;

  static tessera::provider::cuda_device make_device(int number) {
    static const auto* const library = new tessera::provider::cuda_driver;
    (void)error_of_pytorch();
    return tessera::provider::cuda_device(*library, number);
  }
  static auto make_allocator(auto device) {
    using allocator = tessera::configured<
        tessera::recipe::pytorch_family,
        tessera::concurrent::locked<tessera::caching_allocator<
            tessera::recipe::pytorch<>, decltype(device), tessera::extension::private_pools,
            tessera::extension::sleep_mode, tessera::extension::observer<cuda_pytorch::switched_history>>>>;
    return allocator::from_environment(std::move(device));
  }
  /// PyTorch's own allocator reads this variable, too.
  static bool bypasses_cache() {
    static const bool is_set = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return is_set;
  }
  /// PyTorch catches some of these errors and goes on, for example to try an algorithm that needs less memory.
  static bool prints_out_of_memory() {
    static const bool is_set = std::getenv("TESSERA_PRINT_OUT_OF_MEMORY") != nullptr;
    return is_set;
  }
  static void raise_out_of_memory(int device, const tessera::out_of_memory& error, const char* explanation) {
    const auto& n = error.numbers();
    if (out_of_memory_observer* const observer = on_out_of_memory)
      observer(device, n.requested, std::min(n.now.limit, n.capacity), n.available);
    if (error_of_pytorch()) error_of_pytorch().raise(in_words_of_pytorch(device, error, explanation).c_str());
  }

 private:
  /// Found when the first device is made: PyTorch, which calls, is loaded then.
  static const cuda_pytorch::torch_error& error_of_pytorch() {
    static const auto* const found = new cuda_pytorch::torch_error;
    return *found;
  }
};

}  // namespace

TESSERA_TORCH_FUNCTIONS(tessera, on_gpus);

/// Lets each device keep a new history of its latest `entries` events, for tessera_snapshot. 0 ends it. A device follows at its
/// next event.
extern "C" [[gnu::visibility("default")]] void tessera_record_history(std::size_t entries) {
  cuda_pytorch::history_entries = entries;
  ++cuda_pytorch::history_changes;
}
/// Calls a function before each out_of_memory error, in the thread that gets the error. Null ends it.
extern "C" [[gnu::visibility("default")]] void tessera_observe_out_of_memory(
    out_of_memory_observer* observer) {
  on_out_of_memory = observer;
}
