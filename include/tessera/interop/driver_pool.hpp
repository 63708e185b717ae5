// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/fwd.hpp>
#include <tessera/observe/explain_failure.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// What can be asked of a driver_pool and told to it; the numbers are CUDA's CUmemPool_attribute.
enum class pool_attribute : unsigned char {
  follow_event_dependencies = 1,    ///< 0 or 1
  allow_opportunistic = 2,          ///< 0 or 1
  allow_internal_dependencies = 3,  ///< 0 or 1
  release_threshold = 4,            ///< bytes that stay reserved at a synchronization; `unlimited` for all
  reserved_current = 5,             ///< bytes
  reserved_high = 6,                ///< the most since it was set to 0
  used_current = 7,  ///< bytes that are handed out, or freed and held for streams that were recorded
  used_high = 8      ///< the most since it was set to 0
};

/// A caching_allocator with the calls of a driver's memory pool: blocks are allocated and freed in the order of streams,
/// and what is reserved above a threshold goes back when a stream was synchronized. Freeing what was not allocated ends
/// the program, as with any allocator here.
///
/// One thread at a time may use it. Waits that the program puts between streams are to be known to the provider.
///
///     constexpr tessera::stream_id stream{1};
///     tessera::driver_pool<tessera::cuda_async, tessera::simulated_device> driver;
///     (void)driver.set(tessera::pool_attribute::release_threshold, 2_GiB);
///     void* p = driver.allocate_async(5_MiB, stream);
///     driver.free_async(p, stream);
///     driver.synchronize(stream);  // what is reserved above 2 GiB goes back
template <typename Recipe, ordering_provider Provider, event_observer Observer, typename Counting>
class driver_pool {
  static_assert(Recipe::streams::reuses_across_streams,
                "driver_pool: Recipe::streams must let blocks cross [tessera/policy/streams.hpp]");

 public:
  driver_pool() : driver_pool(Provider{}) {}
  explicit driver_pool(Provider device, policies<Recipe> chosen = {}, Observer observer = {})
      : pool_(std::move(device), std::move(chosen), std::move(observer)) {}

  /// Memory for what `stream` is given from now on.
  ///   Returns:  null for 0 bytes
  ///   Throws:   out_of_memory
  [[nodiscard]] void* allocate_async(std::size_t bytes, stream_id stream) {
    void* const p = try_allocate_async(bytes, stream);
    if (p == nullptr && bytes != 0) raise_failure(pool_, bytes, stream);
    return p;
  }
  /// The same, but null where allocate_async throws.
  [[nodiscard]] void* try_allocate_async(std::size_t bytes, stream_id stream) noexcept {
    void* const p = pool_.try_allocate(bytes, stream);
    const usage now = pool_.now();
    if (now.reserved > reserved_high_) reserved_high_ = now.reserved;
    if (used(now) > used_high_) used_high_ = used(now);
    return p;
  }

  /// Frees a block behind what `stream` has been given so far, which need not be the stream it was allocated on; that this
  /// comes behind all use on other streams is the caller's part, but for those that were recorded. Null is ignored.
  ///   Requires:  an address that this pool handed out and did not get back since, and a stream that is there; else the
  ///              program ends
  void free_async(void* p, stream_id stream) noexcept {
    if (p == nullptr || try_free_async(p, stream)) return;
    if (!detail::has_stream(pool_.device(), stream))
      fatal(fixed_text().add("free_async: there is no stream ").add(stream.handle).c_str(), p);
    detail::refuse_address(pool_.introspect(), "free_async", p);
  }
  /// The same, but an address that is not a live block's, and a stream that is not there, change nothing and give false.
  [[nodiscard]] bool try_free_async(void* p, stream_id stream) noexcept {
    return detail::has_stream(pool_.device(), stream) && pool_.try_deallocate_behind(p, stream);
  }
  /// Notes that `stream`, too, uses a block, so that the stream on which it will be freed is made to wait for it and for the
  /// one on which it was allocated. Noting the latter alone changes nothing.
  ///   Source:  PyTorch's cudaMallocAsync backend joins these streams in the one on which it frees
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return pool_.record_stream(p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return pool_.try_record_stream(p, stream);
  }

  /// Returns once all that `stream` was given is done, and gives back what the release threshold lets go; false where the
  /// device failed.
  bool synchronize(stream_id stream) noexcept { return pool_.synchronize(stream); }
  /// Gives idle memory back until at most `keep` bytes are reserved. What was freed behind work that is not seen to be
  /// done yet is not idle, and is not waited for.
  void trim_to(std::size_t keep) noexcept { pool_.trim_without_waiting(keep); }

  [[nodiscard]] std::uint64_t get(pool_attribute what) noexcept {
    const policies<Recipe>& chosen = pool_.settings();
    switch (what) {
      case pool_attribute::follow_event_dependencies: return chosen.streams.follow_dependencies ? 1 : 0;
      case pool_attribute::allow_opportunistic: return chosen.streams.opportunistic ? 1 : 0;
      case pool_attribute::allow_internal_dependencies: return chosen.streams.insert_dependencies ? 1 : 0;
      case pool_attribute::release_threshold: return chosen.eviction.threshold;
      case pool_attribute::reserved_current: return pool_.now().reserved;
      case pool_attribute::reserved_high: return reserved_high_;
      case pool_attribute::used_current: return used(pool_.now());
      case pool_attribute::used_high: return used_high_;
    }
    return 0;
  }
  /// False, and nothing has changed, where a switch is told neither 0 nor 1, what is current is told anything, or what was
  /// highest is told anything but 0; it then begins again at what is current.
  [[nodiscard]] bool set(pool_attribute what, std::uint64_t value) noexcept {
    policies<Recipe>& chosen = pool_.settings();
    const auto switched = [value](auto& to) { return value <= 1 && (to = value == 1, true); };
    switch (what) {
      case pool_attribute::follow_event_dependencies: return switched(chosen.streams.follow_dependencies);
      case pool_attribute::allow_opportunistic: return switched(chosen.streams.opportunistic);
      case pool_attribute::allow_internal_dependencies: return switched(chosen.streams.insert_dependencies);
      case pool_attribute::release_threshold: return chosen.eviction.threshold = value, true;
      case pool_attribute::reserved_high: return value == 0 && (reserved_high_ = pool_.now().reserved, true);
      case pool_attribute::used_high: return value == 0 && (used_high_ = used(pool_.now()), true);
      case pool_attribute::reserved_current:
      case pool_attribute::used_current: return false;
    }
    return false;
  }

  /// What it is made of, for what has no call here.
  [[nodiscard]] caching_allocator<Recipe, Provider, Observer, Counting>& pool() noexcept { return pool_; }
  [[nodiscard]] Provider& device() noexcept { return pool_.device(); }
  [[nodiscard]] usage now() const noexcept { return pool_.now(); }
  [[nodiscard]] const char* audit() const noexcept { return pool_.audit(); }

 private:
  [[nodiscard]] static std::size_t used(const usage& now) noexcept { return now.live + now.pending; }

  caching_allocator<Recipe, Provider, Observer, Counting> pool_;
  std::size_t reserved_high_ = 0;
  std::size_t used_high_ = 0;
};

}  // namespace tessera
