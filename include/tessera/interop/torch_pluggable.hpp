// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/erase_stream.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/interop/torch_captures.hpp>
#include <tessera/interop/torch_devices.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/range_map.hpp>
#include <tessera/provider/timed.hpp>

/// Builds a shared library that PyTorch's CUDAPluggableAllocator or torch_npu's NPUPluggableAllocator loads.
/// Its source is one file:
///
///     #include <tessera/concurrent/per_stream.hpp>
///     #include <tessera/provider/host_pinned.hpp>
///     namespace {
///     struct on_host {
///       static tessera::provider::host_pinned make_device(int) { return tessera::provider::host_pinned{}; }
///       static auto make_allocator(auto device) {
///         using pools = tessera::extension::private_pools;
///         using allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, decltype(device), pools>;
///         return tessera::concurrent::per_stream<allocator>(std::move(device));
///       }
///     };
///     }  // namespace
///     TESSERA_TORCH_FUNCTIONS(demo, on_host);
///
/// Build it with -shared -fPIC -fvisibility=hidden -Wl,-Bsymbolic,-z,nodelete, so that two such libraries in
/// one program share no state and stay loaded. CUDAPluggableAllocator("libdemo.so", "demo_alloc",
/// "demo_free") loads it; set the other functions on its allocator().
///
/// Graph capture needs private pools. So set PREFIX_begin_allocate_to_pool, _end_allocate_to_pool and
/// _release_pool, and let make_allocator return an allocator with the extension private_pools. Without private pools,
/// PyTorch reports an error if alloc throws. Sleep needs the extension sleep_mode, and locked instead of per_stream.

namespace tessera::inline v0_1::detail {

/// The live blocks of a device without a cache. Each request goes to the device, with the size that was asked for.
class uncached_blocks {
 public:
  /// Returns null if the device refuses.
  ///   Throws:  std::bad_alloc
  template <typename Device>
  [[nodiscard]] void* allocate(Device& device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* const p = device.acquire(bytes);
    if (p == nullptr || blocks_.insert(address_of(p), bytes)) return p;
    (void)device.release(p, bytes);
    raise(std::bad_alloc());
  }
  /// Aborts if there is no such block. Returns whether the device took it back.
  template <typename Device>
  [[nodiscard]] bool deallocate(Device& device, void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const std::size_t* const found = blocks_.find(address_of(p));
    if (found == nullptr) refuse_stranger("free", p);
    if (*found != bytes) fatal("free: not the requested size", p);
    if (!device.release(p, bytes)) return false;
    (void)blocks_.extract(address_of(p));
    return true;
  }
  /// Returns the address and the bytes of the block that contains an address, or null.
  [[nodiscard]] segment_view find(const void* p) {
    const std::lock_guard lock(mutex_);
    segment_view found{};
    const auto* const block = blocks_.up_to(address_of(p));
    if (block == nullptr || address_of(p) - block->key >= block->value) return found;
    found.address = block->key;
    found.bytes = block->value;
    return found;
  }

 private:
  std::mutex mutex_;
  ordered_map<std::size_t> blocks_;  // bytes by address
};

template <typename D>
inline constexpr bool throws_out_of_memory = false;
template <typename D>
  requires std::convertible_to<decltype(D::throws_out_of_memory), bool>
inline constexpr bool throws_out_of_memory<D> = D::throws_out_of_memory;

template <typename D>
[[nodiscard]] bool bypasses_cache() {
  if constexpr (requires { D::bypasses_cache(); }) return D::bypasses_cache();
  return false;
}

template <typename D>
[[nodiscard]] bool prints_out_of_memory() {
  if constexpr (requires { D::prints_out_of_memory(); }) return D::prints_out_of_memory();
  return false;
}

/// A stand-in for c10_npu::NPUCachingAllocator::DeviceStats of torch_npu 2.8, if its header is not available.
/// A group has three counters: for all pools, for the small pool and for the large pool.
struct npu_device_stats {
  using group = std::array<counter, 3>;
  group allocation, segment, active, inactive_split;
  group allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  counter oversize_allocations, oversize_segments;
  std::int64_t max_split_size = 0;
};
static_assert(sizeof(npu_device_stats) == 952 && offsetof(npu_device_stats, num_alloc_retries) == 864);

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// The allocators of a program's devices, behind functions that C can call. The first use of a device makes
/// its allocator. A device is a number; a stream is a pointer, and null is the default stream.
///
/// `Definition` has two static functions:
///
///   make_device(number)     returns a provider for the device, or throws a reason why there is none
///   make_allocator(device)  returns a thread-safe allocator over a movable provider
///
/// Devices are made one at a time. These functions may use only devices that were made before.
///
/// If Definition::throws_out_of_memory is true, alloc throws instead of returning null. Set it for a host in
/// C++: PyTorch converts the exception to a RuntimeError, but takes null for the address of a tensor.
///
/// It may have three more static functions:
///
///   raise_out_of_memory(device, error, text)  throws the host's own type instead of `error`, an out_of_memory;
///                                             if it returns, alloc throws `error`. `text` explains the failure
///   prints_out_of_memory()                    returns whether standard error shows the text of an out_of_memory
///                                             that alloc throws
///   bypasses_cache()                          returns whether each request goes to the device, with its size as it
///                                             is, and each free back; called once for each device. It obeys the rule of
///                                             make_device. Then no graph
///                                             can be captured, recorded streams are ignored, and the allocator
///                                             counts nothing
///
/// Errors that a caller can handle are kept for last_error(), with the provider's own error if the provider
/// is thread-safe. Standard error also shows the 1st, 2nd, 4th, 8th error and so on. It does not show an
/// out_of_memory that alloc throws, because the host may catch it and go on. An invalid free aborts, as in
/// every tessera allocator.
template <detail::pluggable_definition Definition>
class torch_pluggable {
 public:
  /// The provider, as the definition makes it.
  using device_type = decltype(Definition::make_device(0));
  /// The argument of device_stats for torch_npu 2.8, if its header is not available.
  using npu_device_stats = detail::npu_device_stats;
  /// Whether alloc throws out_of_memory when memory is full; otherwise it returns null.
  static constexpr bool throws = detail::throws_out_of_memory<Definition>;

  torch_pluggable& operator=(torch_pluggable&&) = delete;

  /// Allocates `bytes` on a device and stream.
  ///   Returns:  null for 0 bytes and for an invalid device number; also null, unless it throws, if there is
  ///             no such device or its memory is full
  [[nodiscard]] void* alloc(std::size_t bytes, int device, void* stream) noexcept(!throws) {
    if (bytes == 0) return nullptr;
    void* result = nullptr;
    device_state* state = nullptr;
    catch_errors<throws>(device, state, [&] {
      if (const auto refused = refused_.find(device, stream); refused.why != nullptr)
        return refuse_pool("alloc: the graph cannot be captured", device, refused.name, refused.why);
      state = find_or_make(device);
      if (state == nullptr) return;
      state->pools.end_by_themselves(state->allocator);
#if defined(__cpp_exceptions)
      result = state->bypasses_cache ? state->allocate_uncached(bytes, to_stream(stream))
                                     : state->allocator.allocate(bytes, to_stream(stream));
#else
      result = state->bypasses_cache ? state->uncached.allocate(state->measured, bytes)
                                     : state->allocator.try_allocate(bytes, to_stream(stream));
      if (result == nullptr)
        record_error("tessera: out of memory: %zu bytes requested on device %d", bytes, device);
#endif
    });
    return result;
  }
  /// Frees a block. Null is ignored.
  ///   Requires:  the address, bytes and device of a live block; aborts otherwise
  void free(void* p, std::size_t bytes, int device, void*) noexcept {
    if (p == nullptr) return;
    device_state* const state = find(device);
    if (state != nullptr && state->bypasses_cache) return free_uncached(*state, p, bytes, device);
    device_state* const owner = devices_.owner_of(p);
    if (owner == nullptr) detail::refuse_stranger("free", p);
    if (owner->number != device) refuse_device(owner->number, device, p);
    owner->pools.end_by_themselves(owner->allocator);
    owner->allocator.deallocate(p, bytes);
  }

  /// Does nothing. PyTorch calls it with 0, torch_npu with the number of the current device.
  static void init(int) noexcept {}
  /// Releases all cached memory to the devices, as torch.cuda.empty_cache().
  void reset() noexcept {
    devices_.for_each([](device_state& state) {
      state.pools.end_by_themselves(state.allocator);
      state.allocator.trim();
    });
  }
  /// Limits the memory of a device to a fraction of its capacity, as
  /// torch.cuda.set_per_process_memory_fraction. A fraction that is not from 0 to 1 changes nothing and is
  /// recorded as the last error.
  void memory_fraction(double fraction, int device) noexcept {
    device_state* state = nullptr;
    catch_errors<false>(device, state, [&] {
      state = find_or_make(device);
      if (state != nullptr && !set_memory_fraction(state->allocator, fraction))
        record_error("memory_fraction: device %d: not from 0 to 1: %g", device, fraction);
    });
  }

  /// The address and the bytes of the segment that contains an address in a live block; null and 0 for any
  /// other address. For an expandable segment, it returns the contiguous mapped part.
  ///   Cost:  linear in the blocks of the device
  [[nodiscard]] void* base_alloc(void* p, std::size_t* bytes) noexcept {
    segment_view found = find_uncached(p);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (device_state* const state = devices_.owner_of(p)) {
      observe::for_each_block(state->allocator, [&](const segment_view& segment, const block_view& b) {
        if (b.is == block_view::state::live && address - b.address < b.bytes) found = segment;
      });
    }
    if (bytes != nullptr) *bytes = found.bytes;
    return reinterpret_cast<void*>(found.address);
  }
  /// Selects streams by their handle, for a pool.
  using stream_condition = std::function<bool(void* stream)>;
  /// Directs the requests of the streams that satisfy a condition to a private pool. Makes the pool, or adds a
  /// use, as PyTorch's allocator does. A host may not pass end_allocate_to_pool. So the scope also ends when
  /// this thread finds that the condition became false for a stream of the scope.
  ///   Errors:  the pool's scope is open; the pool was released, but owns memory; the allocator has no private
  ///            pools, or no cache; or there is no such device. Then alloc fails on these streams, until
  ///            end_allocate_to_pool: PyTorch recovers from that, and no memory of a graph is reused.
  void begin_allocate_to_pool(int device, detail::torch_pool_id pool,
                              stream_condition streams) noexcept(!throws) {
    device_state* state = nullptr;
    const char* wrong = "there is no such device";
    catch_errors<false>(device, state, [&] {
      state = find_or_make(device);
      if (state == nullptr) return;
      wrong = state->bypasses_cache ? "memory is not cached, so no graph can be captured"
                                    : state->pools.begin(state->allocator, pool, streams);
    });
    if (wrong == nullptr) return;
    record_error("%s", refusal_of("begin_allocate_to_pool", device, pool, wrong).data());
    catch_errors<throws>(device, state, [&] { refused_.add(device, pool, std::move(streams), wrong); });
  }
  /// Ends what begin_allocate_to_pool began. The pool keeps its use.
  void end_allocate_to_pool(int device, detail::torch_pool_id pool) noexcept(!throws) {
    device_state* state = find(device);
    catch_errors<throws>(device, state, [&] {
      if (refused_.end(device, pool)) return;
      if (state == nullptr || !state->pools.end(state->allocator, pool))
        refuse_pool("end_allocate_to_pool", device, pool, "no scope of the pool is open");
    });
  }
  /// Removes a use of a private pool. Without uses, its memory can be released.
  void release_pool(int device, detail::torch_pool_id pool) noexcept(!throws) {
    device_state* state = find(device);
    catch_errors<throws>(device, state, [&] {
      if (refused_.release(device, pool)) return;
      if (state == nullptr || !state->pools.release(state->allocator, pool))
        refuse_pool("release_pool", device, pool, "the pool has no use, or its scope is open");
    });
  }
  /// Puts all memory of a device to sleep: gives it back, even under live blocks. Saves the contents, or discards
  /// them.
  ///   Returns:  whether it worked; last_error() says why not
  bool sleep(int device, bool saves) noexcept {
    return change_sleep("sleep", device,
                        [saves](auto memory, auto&) { return memory.sleep(contents(saves)); });
  }
  /// Gives memory to all blocks of a device again, to all of them or none.
  ///   Returns:  whether it worked; last_error() says why not, and how many bytes are missing
  bool wake(int device) noexcept {
    return change_sleep("wake", device, [](auto memory, auto&) { return memory.wake(); });
  }
  /// Puts a private pool to sleep.
  bool sleep_pool(int device, detail::torch_pool_id pool, bool saves) noexcept {
    return change_sleep("sleep_pool", device, [=](auto memory, auto& pools) -> sleep_result {
      const pool_id id = pools.find(pool);
      return id != pool_id{} ? memory.sleep(id, contents(saves)) : sleep_result{{"no such pool exists"}};
    });
  }
  /// Wakes a pool that sleep_pool put to sleep: its blocks have memory at the same addresses again.
  ///   Returns:  false if the pool does not exist or does not sleep, or if memory is missing; the reason is
  ///             recorded as the last error
  bool wake_pool(int device, detail::torch_pool_id pool) noexcept {
    return change_sleep("wake_pool", device, [=](auto memory, auto& pools) -> sleep_result {
      const pool_id id = pools.find(pool);
      return id != pool_id{} ? memory.wake(id) : sleep_result{{"no such pool exists"}};
    });
  }
  /// Records that a stream uses a block. Ignores memory of other allocators, as PyTorch's allocator does.
  ///   Requires:  an address that belongs to this library is a live block; aborts otherwise
  void record_stream(void* p, void* stream) noexcept {
    device_state* const state = devices_.owner_of(p);
    if (state != nullptr && !state->allocator.record_stream(p, to_stream(stream)))
      record_error("record_stream: device %d: the use of %p cannot be recorded", state->number, p);
  }

  /// Withdraws the record that a stream uses a block, because the use is over or the block's own stream waits for it. Ignores
  /// memory of other allocators, and uses that are not recorded.
  void erase_stream(void* p, void* stream) noexcept {
    if (device_state* const state = devices_.owner_of(p))
      (void)interop::erase_stream(state->allocator, p, to_stream(stream));
  }

  /// Writes the report of a device as JSON; an empty object for a device that is unused or keeps no
  /// statistics. `device_calls` has the successful calls of the provider, and their times in microseconds.
  ///   Returns:  the length without the final 0; if it exceeds `size`, the text was truncated, as by snprintf
  ///   Cost:     linear in the blocks of the device
  std::size_t statistics(int device, char* out, std::size_t size) noexcept {
    std::size_t length = copy_text("{}", out, size);
    with_report(device, [&](const observe::memory_report& report) {
      length = copy_text(report.json().c_str(), out, size);
    });
    return length;
  }
  /// The statistics of a device in the host's type. All are zero before its first use.
  template <typename DeviceStats>
  [[nodiscard]] DeviceStats device_stats(int device) noexcept {
    DeviceStats result{};
    if constexpr (requires(device_state& state) { state.allocator.statistics(); }) {
      if (device_state* const state = find(device))
        add_torch_statistics(result, state->allocator.statistics());
    }
    return result;
  }
  void reset_peak_statistics(int device) noexcept {
    if (device_state* const state = find(device)) state->allocator.reset_peak_statistics();
  }
  void reset_accumulated_statistics(int device) noexcept {
    if (device_state* const state = find(device)) state->allocator.reset_accumulated_statistics();
  }

  /// Writes a snapshot of a device as a pickle, with the history if the allocator has one. The device has the number 0
  /// there. Writes nothing if the snapshot is longer than `size`.
  ///   Returns:  the length of the snapshot; 0 if the device is unused, or host memory ran out
  ///   Cost:     linear in the blocks of the device and in the history
  std::size_t snapshot(int device, char* out, std::size_t size) noexcept {
    std::size_t length = 0;
    device_state* const state = find(device);
    catch_errors<false>(device, state, [&] {
      if (state == nullptr) return;
      const std::string bytes = observe::to_pickle(observe::take_snapshot(state->allocator));
      length = bytes.size();
      if (length <= size) std::memcpy(out, bytes.data(), length);
    });
    return length;
  }

  /// Writes the reason of the latest failure.
  ///   Returns:  the length as snprintf does; 0 if nothing failed
  std::size_t last_error(char* out, std::size_t size) noexcept {
    const std::lock_guard lock(error_mutex_);
    return copy_text(error_.data(), out, size);
  }

 private:
  using registered_provider = detail::indexed<provider::timed<device_type>>;
  struct device_state {
    device_state(detail::pagemap& map, int its_number)
        : number(its_number),
          bypasses_cache(detail::bypasses_cache<Definition>()),
          device(Definition::make_device(number)),
          allocator(Definition::make_allocator(
              registered_provider(measured, map, static_cast<detail::pagemap::owner_number>(number)))) {}
#if defined(__cpp_exceptions)
    [[nodiscard]] void* allocate_uncached(std::size_t bytes, stream_id stream) {
      if (void* const p = uncached.allocate(measured, bytes)) return p;
      throw out_of_memory(allocator.make_out_of_memory(bytes, stream).numbers());
    }
#endif

    int number;
    bool bypasses_cache;
    device_type device;
    provider::call_times times;
    provider::timed<device_type> measured{device, times};
    decltype(Definition::make_allocator(std::declval<registered_provider>())) allocator;
    detail::torch_pools pools;
    detail::uncached_blocks uncached;
  };

  using sleep_result = extension::sleep_result;
  [[nodiscard]] static constexpr extension::sleep_contents contents(bool saves) noexcept {
    return saves ? extension::sleep_contents::save : extension::sleep_contents::discard;
  }
  /// Calls f(door of sleep_mode, pools), if the memory of the device can sleep.
  template <typename F>
  bool change_sleep(const char* call, int device, F f) noexcept {
    using allocator_type = decltype(device_state::allocator);
    device_state* const state = find(device);
    sleep_result result{{"the device has no allocator yet"}};
    if (state != nullptr) {
      if constexpr (!detail::offers<allocator_type, extension::sleep_mode>) {
        result.why = "the allocator lacks the extension sleep_mode";
      } else if constexpr (!allocator_type::has_ranges) {
        result.why = "the allocator's recipe maps no memory into ranges";
      } else {
        result = f(state->allocator.template get<extension::sleep_mode>(), state->pools);
      }
    }
    if (result.missing > 0) {
      record_error("%s: device %d: %s; %zu bytes are missing", call, device, result.why, result.missing);
    } else if (!result) {
      record_error("%s: device %d: %s", call, device, result.why);
    }
    return static_cast<bool>(result);
  }

  void free_uncached(device_state& state, void* p, std::size_t bytes, int device) noexcept {
    if (!state.uncached.deallocate(state.measured, p, bytes))
      record_error("free: device %d: it refused to take %p back", device, p);
  }
  [[nodiscard]] segment_view find_uncached(const void* p) noexcept {
    segment_view found{};
    devices_.for_each([&](device_state& state) {
      if (found.bytes == 0 && state.bypasses_cache) found = state.uncached.find(p);
    });
    return found;
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse_device(int owner, int device,
                                                                   const void* p) noexcept {
    detail::fixed_text text;
    text.add("free: the block is on another device, ").add(static_cast<std::size_t>(owner));
    detail::fatal(text.add(" instead of ").add(static_cast<std::size_t>(device)).c_str(), p);
  }

  /// Its text names the device.
  struct pool_refused : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  using short_text = std::array<char, 240>;
  [[nodiscard]] static short_text refusal_of(const char* call, int device, detail::torch_pool_id pool,
                                             const char* rule) noexcept {
    short_text text{};
    TESSERA_DETAIL_SNPRINTF(text.data(), text.size(),
                            "tessera: %s: private pool (%" PRIu64 ", %" PRIu64 ") of device %d: %s", call,
                            pool.first, pool.second, device, rule);
    return text;
  }
  static void refuse_pool(const char* call, int device, detail::torch_pool_id pool, const char* rule) {
    detail::raise(pool_refused(refusal_of(call, device, pool, rule).data()));
  }

  [[nodiscard]] static stream_id to_stream(void* stream) noexcept { return stream_id(stream); }

  /// The state of a device that was used, or null.
  [[nodiscard]] device_state* find(int device) const noexcept { return devices_.find(device); }
  /// Returns null if the number is too large.
  [[nodiscard]] device_state* find_or_make(int device) {
    if (devices_.can_exist(device)) return &devices_.find_or_make(device);
    record_error("there is no device %d", device);
    return nullptr;
  }
  /// Calls f with the report of a device, if the device was used and keeps statistics.
  template <typename F>
  void with_report([[maybe_unused]] int device, [[maybe_unused]] F f) noexcept {
    if constexpr (requires(device_state& state) { state.allocator.statistics(); }) {
      device_state* const state = find(device);
      catch_errors<false>(device, state, [&] {
        if (state != nullptr) f(observe::memory_report(state->allocator, &state->times));
      });
    }
  }
  /// Returns the length of the text, whatever the size.
  static std::size_t copy_text(const char* text, char* out, std::size_t size) noexcept {
    return static_cast<std::size_t>(TESSERA_DETAIL_SNPRINTF(out, size, "%s", text));
  }

  /// Calls f. Records the exception that f throws, with the last error of the device `state` that f found.
  template <bool Rethrow, typename F>
  void catch_errors([[maybe_unused]] int device, [[maybe_unused]] device_state* const& state,
                    F f) noexcept(!Rethrow) {
#if defined(__cpp_exceptions)
    try {
      f();
    } catch (const pool_refused& error) {
      record_error("%s", error.what());
      if constexpr (Rethrow) throw;
    } catch (const out_of_memory& error) {
      report_out_of_memory<Rethrow>(device, state, error);
    } catch (const std::exception& error) {
      record_error_of(device, state, error.what());
      if constexpr (Rethrow) throw;
    } catch (...) {
      record_error_of(device, state, "an exception without a description");
      if constexpr (Rethrow) throw;
    }
#else
    f();
#endif
  }
  template <bool Raise>
  void report_out_of_memory(int device, device_state* state, const out_of_memory& error) {
    const auto report = [&](const char* text) {
      // The program may catch the exception and go on. An exception that is not caught shows the text.
      record_error_of(device, state, text, !Raise || detail::prints_out_of_memory<Definition>());
      if constexpr (Raise) raise_out_of_memory(device, error, text);
    };
    if (state == nullptr) return report(error.what());
    report(observe::explain(state->allocator, error.requested(), error.stream()).text().c_str());
  }
  [[noreturn]] static void raise_out_of_memory(int device, const out_of_memory& error,
                                               [[maybe_unused]] const char* text) {
    if constexpr (requires { Definition::raise_out_of_memory(device, error, text); })
      Definition::raise_out_of_memory(device, error, text);
    detail::oom_numbers numbers = error.numbers();
    numbers.device = device;
    detail::raise(out_of_memory(numbers));
  }
  void record_error_of(int device, [[maybe_unused]] const device_state* state, const char* text,
                       bool prints = true) {
    if constexpr (detail::is_thread_safe<device_type> && requires { state->device.last_error(); }) {
      if (state != nullptr) {
        const auto reason = state->device.last_error();
        const char* reason_text = nullptr;
        if constexpr (requires { reason.c_str(); }) {
          reason_text = reason.c_str();
        } else {
          reason_text = reason;
        }
        const bool is_new =
            reason_text != nullptr && *reason_text != '\0' && std::strstr(text, reason_text) == nullptr;
        if (is_new) return record_if(prints, "device %d: %s; the device: %s", device, text, reason_text);
      }
    }
    record_if(prints, "device %d: %s", device, text);
  }
  [[gnu::noinline, gnu::format(printf, 2, 3)]] void record_error(const char* format, ...) noexcept {
    std::va_list values;
    va_start(values, format);
    record(true, format, values);
    va_end(values);
  }
  [[gnu::noinline, gnu::format(printf, 3, 4)]] void record_if(bool prints, const char* format, ...) noexcept {
    std::va_list values;
    va_start(values, format);
    record(prints, format, values);
    va_end(values);
  }
  /// Keeps a text for last_error(). Of the texts with `prints`, it prints the 1st, 2nd, 4th, 8th and so on.
  void record(bool prints, const char* format, std::va_list values) noexcept {
    const std::lock_guard lock(error_mutex_);
    TESSERA_DETAIL_VSNPRINTF(error_.data(), error_.size(), format, values);
    if (prints && std::has_single_bit(++printable_errors_)) std::fprintf(stderr, "%s\n", error_.data());
  }

  detail::refused_captures refused_;
  detail::devices_on_demand<device_state> devices_;
  std::mutex error_mutex_;
  std::array<char, 4096> error_{};
  std::uint64_t printable_errors_ = 0;
};

}  // namespace tessera::inline v0_1::interop

namespace tessera::inline v0_1::detail {

/// Holds a value that is never destroyed, because the host program may free tensors after static objects were
/// destroyed.
template <typename T>
union never_destroyed {
  T value;
  never_destroyed() : value() {}
  ~never_destroyed() {}
};

}  // namespace tessera::inline v0_1::detail
// Templates cannot name functions as C does, so these are macros. Both systems pass a stream as a pointer and
// a size as a size_t, whatever their documents say.

/// Defines the functions that PyTorch's CUDAPluggableAllocator takes: PREFIX_alloc, _free, _init, _reset,
/// _memory_fraction, _base_alloc, _record_stream, _begin_allocate_to_pool, _end_allocate_to_pool and
/// _release_pool. Also defines _statistics, _reset_peak_statistics, _reset_accumulated_statistics, _snapshot,
/// _last_error, _sleep, _wake, _sleep_pool and _wake_pool. They call a torch_pluggable<definition> of their own.
#define TESSERA_TORCH_FUNCTIONS(prefix, definition)                                 \
  TESSERA_DETAIL_PLUGGABLE_FUNCTIONS(prefix, definition)                            \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_reset() { prefix##_instance().reset(); } \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_record_stream(void* p, void* stream) {   \
    prefix##_instance().record_stream(p, stream);                                   \
  }                                                                                 \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_reset_peak_statistics(int device) {      \
    prefix##_instance().reset_peak_statistics(device);                              \
  }                                                                                 \
  static_assert(true)

/// Defines the same functions for torch_npu's NPUPluggableAllocator, and _erase_stream, _get_device_stats and
/// _reset_peak_status. `stream_type` is void* if _record_stream of your torch_npu takes an aclrtStream, else
/// c10_npu::NPUStream. `stats_type` is c10_npu::NPUCachingAllocator::DeviceStats, or
/// tessera::interop::torch_pluggable<definition>::npu_device_stats if its header is not available.
#define TESSERA_TORCH_NPU_FUNCTIONS(prefix, definition, stream_type, stats_type)                         \
  TESSERA_DETAIL_PLUGGABLE_FUNCTIONS(prefix, definition)                                                 \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_reset(bool) { prefix##_instance().reset(); }                  \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_record_stream(void* p, stream_type stream) {                  \
    prefix##_instance().record_stream(p, static_cast<void*>(stream));                                    \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_erase_stream(void* p, stream_type stream) {                   \
    prefix##_instance().erase_stream(p, static_cast<void*>(stream));                                     \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_reset_peak_status(int device) {                               \
    prefix##_instance().reset_peak_statistics(device);                                                   \
  }                                                                                                      \
  [[gnu::visibility("default")]] stats_type prefix##_get_device_stats(int) __asm__(#prefix               \
                                                                                   "_get_device_stats"); \
  stats_type prefix##_get_device_stats(int device) {                                                     \
    return prefix##_instance().device_stats<stats_type>(device);                                         \
  }                                                                                                      \
  static_assert(true)

#define TESSERA_DETAIL_C_FUNCTION(type) extern "C" [[gnu::visibility("default")]] type
#define TESSERA_DETAIL_PLUGGABLE_FUNCTIONS(prefix, definition)                                           \
  namespace {                                                                                            \
  tessera::interop::torch_pluggable<definition>& prefix##_instance() noexcept {                          \
    static tessera::detail::never_destroyed<tessera::interop::torch_pluggable<definition>> instance;     \
    return instance.value;                                                                               \
  }                                                                                                      \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void*) prefix##_alloc(std::size_t bytes, int device, void* stream) {         \
    return prefix##_instance().alloc(bytes, device, stream);                                             \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_free(void* p, std::size_t bytes, int device, void* stream) {  \
    prefix##_instance().free(p, bytes, device, stream);                                                  \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_init(int device_count) {                                      \
    prefix##_instance().init(device_count);                                                              \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_memory_fraction(double fraction, int device) {                \
    prefix##_instance().memory_fraction(fraction, device);                                               \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void*) prefix##_base_alloc(void* p, std::size_t* bytes) {                    \
    return prefix##_instance().base_alloc(p, bytes);                                                     \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void)                                                                        \
  prefix##_begin_allocate_to_pool(int device, tessera::detail::torch_pool_id pool,                       \
                                  std::function<bool(void*)> streams) {                                  \
    prefix##_instance().begin_allocate_to_pool(device, pool, std::move(streams));                        \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void)                                                                        \
  prefix##_end_allocate_to_pool(int device, tessera::detail::torch_pool_id pool) {                       \
    prefix##_instance().end_allocate_to_pool(device, pool);                                              \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void)                                                                        \
  prefix##_release_pool(int device, tessera::detail::torch_pool_id pool) {                               \
    prefix##_instance().release_pool(device, pool);                                                      \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(bool) prefix##_sleep(int device, bool saves) {                               \
    return prefix##_instance().sleep(device, saves);                                                     \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(bool) prefix##_wake(int device) { return prefix##_instance().wake(device); } \
  TESSERA_DETAIL_C_FUNCTION(bool)                                                                        \
  prefix##_sleep_pool(int device, tessera::detail::torch_pool_id pool, bool saves) {                     \
    return prefix##_instance().sleep_pool(device, pool, saves);                                          \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(bool)                                                                        \
  prefix##_wake_pool(int device, tessera::detail::torch_pool_id pool) {                                  \
    return prefix##_instance().wake_pool(device, pool);                                                  \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(std::size_t) prefix##_statistics(int device, char* out, std::size_t size) {  \
    return prefix##_instance().statistics(device, out, size);                                            \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(void) prefix##_reset_accumulated_statistics(int device) {                    \
    prefix##_instance().reset_accumulated_statistics(device);                                            \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(std::size_t) prefix##_snapshot(int device, char* out, std::size_t size) {    \
    return prefix##_instance().snapshot(device, out, size);                                              \
  }                                                                                                      \
  TESSERA_DETAIL_C_FUNCTION(std::size_t) prefix##_last_error(char* out, std::size_t size) {              \
    return prefix##_instance().last_error(out, size);                                                    \
  }
