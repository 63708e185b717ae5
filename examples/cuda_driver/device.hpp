// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

#include "context.hpp"
#include "driver.hpp"
#include "marks.hpp"

namespace cuda_driver {

/// A GPU as a provider of tessera. It works in the device's primary context, as CUDA's runtime and so PyTorch do, and
/// leaves the calling thread in the context that it was in. Streams are named by their CUstream.
///
/// Memory comes from cuMemAlloc, and what is mapped from cuMemCreate, of normal and huge pages, which are the same here.
/// Release waits for work, as cuMemFree does.
class gpu {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool may_see_late = true;  // where the driver fails to say
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;
  struct event {
    event_handle handle = nullptr;
  };
  struct physical {
    memory_handle handle = 0;  ///< 0 for none
    bool operator==(const physical&) const = default;
  };

  ///   Throws:  driver_error where there is no such device, or it cannot be used
  gpu(std::shared_ptr<const driver> through, int number)
      : state_(std::make_unique<state>(std::move(through), number)) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  /// cuMemAlloc promises 256 bytes for whatever is put there.
  [[nodiscard]] std::size_t granularity() const noexcept { return 256; }
  /// What the driver could give now, whoever has the rest; 0 where it does not say.
  [[nodiscard]] std::size_t available() const noexcept {
    std::size_t free = 0, total = 0;
    return call("cuMemGetInfo", [&](auto& cu) { return cu.memory_get_info(&free, &total); }) ? free : 0;
  }

  [[nodiscard]] void* acquire(std::size_t bytes, tessera::page_kind kind = tessera::normal_pages) noexcept {
    device_address given = 0;
    const auto ask = [&](auto& cu) { return cu.memory_allocate(&given, bytes); };
    return has(kind) && call("cuMemAlloc", ask) ? pointer(given) : nullptr;
  }
  bool release(void* p, std::size_t) noexcept {
    return call("cuMemFree", [&](auto& cu) { return cu.memory_free(number(p)); });
  }

  bool record(tessera::stream_id stream, event& mark) noexcept {
    return state_->marks.record(stream, mark.handle);
  }
  [[nodiscard]] bool query(event& mark) noexcept { return state_->marks.is_past(mark.handle); }
  bool wait(event& mark) noexcept {
    return call("cuEventSynchronize", [&](auto& cu) { return cu.event_synchronize(mark.handle); });
  }
  void discard(event& mark) noexcept { state_->marks.destroy(mark.handle); }

  /// Marks the stream, as CUDA does not count its work.
  [[nodiscard]] std::uint64_t position(tessera::stream_id stream) noexcept {
    return state_->marks.position(stream);
  }
  [[nodiscard]] bool is_done(tessera::stream_id stream, std::uint64_t at) noexcept {
    return state_->marks.is_done(stream, at);
  }
  /// Knows only of waits that were put in by let_wait.
  [[nodiscard]] bool is_behind(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    return state_->marks.is_behind(stream, of, at);
  }
  bool let_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    return state_->marks.let_wait(stream, of, at);
  }

  [[nodiscard]] std::size_t page_size(tessera::page_kind kind) const noexcept {
    return kind.granularity() > state_->step ? kind.granularity() : state_->step;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    device_address given = 0;
    const auto ask = [&](auto& cu) { return cu.address_reserve(&given, bytes, to, 0, 0); };
    if (!call("cuMemAddressReserve", ask)) return nullptr;
    if (given % to == 0) return pointer(given);
    (void)unreserve(pointer(given), bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return call("cuMemAddressFree", [&](auto& cu) { return cu.address_free(number(p), bytes); });
  }
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    const memory_properties wanted = properties_on(state_->in.device());
    const auto ask = [&](auto& cu) { return cu.memory_create(&made.handle, bytes, &wanted, 0); };
    return has(kind) && call("cuMemCreate", ask);
  }
  bool destroy(const physical& leaving) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_release(leaving.handle); };
    return leaving.handle != 0 && call("cuMemRelease", ask);
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_map(number(p), bytes, 0, made.handle, 0); };
    return made.handle != 0 && call("cuMemMap", ask);
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const memory_access wanted{{location_is_device, state_->in.device()}, read_and_write};
    return call("cuMemSetAccess",
                [&](auto& cu) { return cu.memory_set_access(number(p), bytes, &wanted, 1); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return call("cuMemUnmap", [&](auto& cu) { return cu.memory_unmap(number(p), bytes); });
  }
  /// A stream that is not there any more may have left work behind, so that all of the device's is waited for.
  bool synchronize(tessera::stream_id stream) noexcept {
    return call("cuStreamSynchronize", [&](auto& cu) {
      const result r = cu.stream_synchronize(stream_marks::handle_of(stream));
      return r == invalid_handle ? cu.context_synchronize() : r;
    });
  }

  /// Why the latest call failed that did; empty if none has.
  [[nodiscard]] std::string last_error() const { return state_->in.last_error(); }

 private:
  struct state {
    state(std::shared_ptr<const driver> through, int number) : in(std::move(through), number) {
      const driver& calls = in.calls();
      calls.check(calls.device_total_memory(&capacity, in.device()), "cuDeviceTotalMem");
      int has = 0;
      calls.check(calls.device_get_attribute(&has, has_virtual_memory, in.device()), "cuDeviceGetAttribute");
      if (has == 0) return;
      const memory_properties wanted = properties_on(in.device());
      calls.check(calls.get_granularity(&step, &wanted, least_granularity), "cuMemGetAllocationGranularity");
    }
    primary_context in;
    stream_marks marks{in};
    std::size_t capacity = 0;
    std::size_t step = tessera::operator""_MiB(2);
  };

  [[nodiscard]] static memory_properties properties_on(device_number device) noexcept {
    memory_properties wanted{};
    wanted.type = pinned_memory;
    wanted.location = {location_is_device, device};
    return wanted;
  }
  /// Whether f(the driver's functions), made in the device's context, worked.
  template <typename F>
  bool call(const char* name, F f) const noexcept {
    const in_context here(state_->in);
    return here && state_->in.worked(name, f(state_->in.calls()));
  }
  [[nodiscard]] static bool has(tessera::page_kind kind) noexcept {
    return kind == tessera::normal_pages || kind == tessera::huge_pages;
  }
  [[nodiscard]] static void* pointer(device_address at) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at));
  }
  [[nodiscard]] static device_address number(const void* p) noexcept {
    return static_cast<device_address>(reinterpret_cast<std::uintptr_t>(p));
  }

  std::unique_ptr<state> state_;
};
static_assert(tessera::ordering_provider<gpu> && tessera::virtual_memory_provider<gpu> &&
              tessera::paged_provider<gpu> && tessera::measured_provider<gpu>);

}  // namespace cuda_driver
