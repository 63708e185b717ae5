// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/provider.hpp>

#include "context.hpp"
#include "driver.hpp"
#include "shared_range.hpp"
#include "stream_positions.hpp"

namespace cuda_driver {

/// A provider for a GPU. It uses the device's primary context, as CUDA's runtime and PyTorch do, and restores the context of
/// the calling thread. The handle of a stream_id is its CUstream.
///
/// Segments come from cuMemAlloc, physical chunks from cuMemCreate. Normal and huge pages are the same. release waits for work
/// on the device, as cuMemFree does.
class gpu {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool completion_may_lag = true;  // if the driver fails to answer
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;
  static constexpr bool copies_page_locked = true;
  struct event {
    event_handle handle = nullptr;
  };
  struct physical {
    memory_handle handle = 0;  ///< 0 for none
    bool operator==(const physical&) const = default;
  };

  ///   Throws:  driver_error if there is no such device or it cannot be used
  gpu(std::shared_ptr<const driver> library, int number) try
      : state_(std::make_unique<state>(std::move(library), number)) {
  } catch (const driver_error& error) {
    throw driver_error("GPU " + std::to_string(number) + ": " + error.what());
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  /// cuMemAlloc guarantees an alignment of 256 bytes.
  [[nodiscard]] std::size_t granularity() const noexcept { return 256; }
  /// The bytes that are free on the device; 0 if the driver does not answer.
  [[nodiscard]] std::size_t available() const noexcept {
    std::size_t free = 0, total = 0;
    return call("cuMemGetInfo", [&](auto& cu) { return cu.memory_get_info(&free, &total); }) ? free : 0;
  }

  [[nodiscard]] void* acquire(std::size_t bytes,
                              tessera::page_kind kind = tessera::page_kind::normal) noexcept {
    device_address address = 0;
    const auto ask = [&](auto& cu) {
      const relaxed_capture_guard guard(cu);
      return cu.memory_allocate(&address, bytes);
    };
    return has(kind) && ask_for("cuMemAlloc", ask) ? pointer(address) : nullptr;
  }
  bool release(void* p, std::size_t) noexcept {
    return call("cuMemFree", [&](auto& cu) { return cu.memory_free(number(p)); });
  }

  bool record(tessera::stream_id stream, event& mark) noexcept {
    return state_->positions.record(stream, mark.handle);
  }
  [[nodiscard]] bool query(event& mark) noexcept { return state_->positions.is_complete(mark.handle); }
  bool wait(event& mark) noexcept {
    return call("cuEventSynchronize", [&](auto& cu) { return cu.event_synchronize(mark.handle); });
  }
  void discard(event& mark) noexcept { state_->positions.destroy(mark.handle); }

  /// Records an event, because CUDA does not number the work of a stream.
  [[nodiscard]] std::uint64_t position(tessera::stream_id stream) noexcept {
    return state_->positions.position(stream);
  }
  [[nodiscard]] bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept {
    return state_->positions.is_done(stream, at);
  }
  /// Knows only the waits that make_wait inserted.
  [[nodiscard]] bool is_ordered_after(tessera::stream_id stream, tessera::stream_id of,
                                      std::uint64_t at) noexcept {
    return state_->positions.is_ordered_after(stream, of, at);
  }
  bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    return state_->positions.make_wait(stream, of, at);
  }

  [[nodiscard]] std::size_t page_size(tessera::page_kind kind) const noexcept {
    return kind.granularity() > state_->page_size ? kind.granularity() : state_->page_size;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    device_address address = 0;
    const auto ask = [&](auto& cu) { return cu.address_reserve(&address, bytes, to, 0, 0); };
    if (!ask_for("cuMemAddressReserve", ask)) return nullptr;
    if (address % to == 0) return pointer(address);
    (void)unreserve(pointer(address), bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return call("cuMemAddressFree", [&](auto& cu) { return cu.address_free(number(p), bytes); });
  }
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    // A driver may write into the handle although it fails.
    physical created;
    const auto ask = [&](auto& cu) {
      memory_properties wanted = state_->properties();
      const result answer = cu.memory_create(&created.handle, bytes, &wanted, 0);
      if (wanted.handle_types == 0 || (answer != not_supported && answer != not_permitted)) return answer;
      // Some systems refuse descriptors although the device has them. Then nothing is shared.
      wanted.handle_types = state_->handle_types = 0;
      return cu.memory_create(&created.handle, bytes, &wanted, 0);
    };
    if (!has(kind) || !ask_for("cuMemCreate", ask)) return false;
    made = created;
    return true;
  }
  bool destroy(const physical& leaving) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_release(leaving.handle); };
    if (leaving.handle == 0 || !call("cuMemRelease", ask)) return false;
    state_->chunks.close(leaving.handle);
    return true;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_map(number(p), bytes, 0, made.handle, 0); };
    if (made.handle == 0 || !ask_for("cuMemMap", ask)) return false;
    if (note_mapped(p, bytes, made)) return true;
    (void)unmap(p, bytes);
    return false;
  }
  bool grant(void* p, std::size_t bytes) noexcept { return grant_to(state_->context.device(), p, bytes); }
  /// Lets another device access mapped memory. The devices must be peers.
  bool grant_to(device_number device, void* p, std::size_t bytes) noexcept {
    const memory_access wanted{{location_is_device, device}, read_and_write};
    return ask_for("cuMemSetAccess",
                   [&](auto& cu) { return cu.memory_set_access(number(p), bytes, &wanted, 1); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    if (!call("cuMemUnmap", [&](auto& cu) { return cu.memory_unmap(number(p), bytes); })) return false;
    state_->chunks.erase(p);
    return true;
  }
  /// Makes a handle by which shared_range maps the chunks of mapped memory in another process. It is valid until one of
  /// them is destroyed.
  ///   Throws:  driver_error if the driver refuses, or if the bytes are not mapped
  [[nodiscard]] shared_part share(const void* p, std::size_t bytes) {
    return state_->chunks.share(state_->context.calls(), p, bytes);
  }
  /// Waits for the whole device if the stream no longer exists, because it may have left work.
  bool synchronize(tessera::stream_id stream) noexcept {
    return call("cuStreamSynchronize", [&](auto& cu) {
      const result r = cu.stream_synchronize(stream_positions::handle_of(stream));
      return r == invalid_handle ? cu.context_synchronize() : r;
    });
  }

  bool copy_to_host(void* to, const void* from, std::size_t bytes, tessera::stream_id stream) noexcept {
    return call("cuMemcpyDtoHAsync", [&](auto& cu) {
      return cu.copy_to_host(to, number(from), bytes, stream_positions::handle_of(stream));
    });
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, tessera::stream_id stream) noexcept {
    return call("cuMemcpyHtoDAsync", [&](auto& cu) {
      return cu.copy_to_device(number(to), from, bytes, stream_positions::handle_of(stream));
    });
  }
  /// The driver locks whole pages, so other addresses are refused.
  bool register_memory(void* p, std::size_t bytes) noexcept {
    constexpr std::size_t page = 4096;
    return reinterpret_cast<std::uintptr_t>(p) % page == 0 &&
           ask_for("cuMemHostRegister", [&](auto& cu) { return cu.register_host(p, bytes); });
  }
  bool unregister_memory(void* p) noexcept {
    return call("cuMemHostUnregister", [&](auto& cu) { return cu.unregister_host(p); });
  }

  /// The latest error; empty if no call failed.
  [[nodiscard]] std::string last_error() const { return state_->context.last_error(); }
  /// For example "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  tessera::refusal take_refusal() noexcept { return state_->refused.take(); }

 private:
  struct state {
    state(std::shared_ptr<const driver> library, int number) : context(std::move(library), number) {
      const driver& calls = context.calls();
      calls.check(calls.device_total_memory(&capacity, context.device()), "cuDeviceTotalMem");
      int has = 0;
      calls.check(calls.device_get_attribute(&has, has_virtual_memory, context.device()),
                  "cuDeviceGetAttribute");
      if (has == 0) return;
      int has_files = 0;
      calls.check(calls.device_get_attribute(&has_files, has_file_handles, context.device()),
                  "cuDeviceGetAttribute");
      if (has_files != 0 && calls.memory_export != nullptr) handle_types = file_handle;
      const memory_properties wanted = properties();
      calls.check(calls.get_granularity(&page_size, &wanted, min_granularity),
                  "cuMemGetAllocationGranularity");
    }
    /// Chunks that other processes may map, if the device has such.
    [[nodiscard]] memory_properties properties() const noexcept {
      memory_properties wanted{};
      wanted.type = pinned_memory;
      wanted.handle_types = handle_types;
      wanted.location = {location_is_device, context.device()};
      return wanted;
    }
    primary_context context;
    stream_positions positions{context};
    mapped_chunks chunks;
    std::atomic<int> handle_types = 0;
    tessera::provider::latest_refusals refused;
    std::size_t capacity = 0;
    std::size_t page_size = tessera::operator""_MiB(2);
  };

  /// Notes mapped memory for share(). Returns false if host memory ran out.
  [[nodiscard]] bool note_mapped(void* p, std::size_t bytes, const physical& made) noexcept {
    try {
      state_->chunks.insert(p, bytes, made.handle);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  /// Calls f with the functions of the driver, in the context of the device. Returns whether that succeeded.
  template <typename F>
  bool call(const char* name, F f) const noexcept {
    const context_guard guard(state_->context);
    return guard && state_->context.succeeded(name, f(state_->context.calls()));
  }
  /// Does the same for a call for memory, and keeps why it failed.
  template <typename F>
  bool ask_for(const char* name, F f) const noexcept {
    result answer = success;
    const bool works = call(name, [&](auto& cu) { return answer = f(cu); });
    if (!works && answer != success) {
      const std::string why = state_->context.calls().describe(answer);
      state_->refused.note(tessera::refusal::format("%s: %s", name, why.c_str()));
    }
    return works;
  }
  [[nodiscard]] static bool has(tessera::page_kind kind) noexcept {
    return kind == tessera::page_kind::normal || kind == tessera::page_kind::huge;
  }
  [[nodiscard]] static void* pointer(device_address at) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at));
  }
  [[nodiscard]] static device_address number(const void* p) noexcept {
    return static_cast<device_address>(reinterpret_cast<std::uintptr_t>(p));
  }

  std::unique_ptr<state> state_;
};
static_assert(tessera::provider::ordering_provider<gpu> && tessera::provider::virtual_memory_provider<gpu> &&
              tessera::provider::paged_provider<gpu> && tessera::provider::copying_provider<gpu> &&
              tessera::provider::registering_provider<gpu>);

}  // namespace cuda_driver
