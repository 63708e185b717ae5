// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tessera/provider/cuda_calls.hpp>
#include <tessera/provider/cuda_sharing.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/marked_positions.hpp>

namespace tessera::inline v0_1::provider {

/// Provides the memory of a GPU by calls of CUDA's driver. Linux. It uses the device's primary context, as CUDA's runtime and
/// PyTorch do, and restores the context of the calling thread. The handle of a stream_id is its CUstream.
///
/// Segments come from cuMemAlloc, physical chunks from cuMemCreate. Normal and huge pages are the same. release waits for work
/// on the device, as cuMemFree does. It is thread-safe.
///
///     using gpu_allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::cuda_device>;
///     const tessera::provider::cuda_driver driver;  // throws if there is no GPU
///     gpu_allocator memory{tessera::provider::cuda_device(driver, 0)};
class cuda_device {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool completion_may_lag = true;  // if the driver fails to answer
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;
  static constexpr bool copies_page_locked = true;
  static constexpr bool trusts_handles = true;  // so does the driver
  struct event {
    detail::cuda::event_handle handle = nullptr;  ///< a CUevent; null if none was recorded
  };
  struct physical {
    detail::cuda::memory_handle handle = 0;  ///< the driver may give it to other memory later
    std::uint64_t number = 0;                ///< 0 for none
    std::size_t bytes = 0;                   ///< of the memory
    bool operator==(const physical&) const = default;
  };

  using shareable = detail::cuda::shareable;

  /// Uses the GPU with this number.
  ///   Throws:  cuda_driver_error if there is no such device or it cannot be used
  explicit cuda_device(const cuda_driver& driver, int device = 0)
      : state_(std::make_unique<state>(driver, device)) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  /// cuMemAlloc guarantees an alignment of 256 bytes.
  [[nodiscard]] std::size_t granularity() const noexcept { return 256; }
  /// The bytes that are free on the device; 0 if the driver does not answer.
  [[nodiscard]] std::size_t available() const noexcept {
    std::size_t free = 0, total = 0;
    return call("cuMemGetInfo", [&](auto& cu) { return cu.memory_get_info(&free, &total); }) ? free : 0;
  }

  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    detail::cuda::device_address address = 0;
    const auto ask = [&](auto& cu) {
      const detail::cuda::relaxed_capture_guard guard(cu);
      return cu.memory_allocate(&address, bytes);
    };
    return has(kind) && ask_for("cuMemAlloc", ask) ? detail::pointer_to(address) : nullptr;
  }
  bool release(void* p, std::size_t) noexcept {
    return call("cuMemFree", [&](auto& cu) { return cu.memory_free(detail::address_of(p)); });
  }

  bool record(stream_id stream, event& mark) noexcept { return state_->events.mark(stream, mark.handle); }
  [[nodiscard]] bool query(event& mark) noexcept { return state_->events.is_complete(mark.handle); }
  bool wait(event& mark) noexcept {
    return call("cuEventSynchronize", [&](auto& cu) { return cu.event_synchronize(mark.handle); });
  }
  void discard(event& mark) noexcept { state_->events.destroy(mark.handle); }

  /// False for a stream that ended. It may have left work, so this then waits for the device. True if the driver cannot tell.
  [[nodiscard]] bool has_stream(stream_id stream) noexcept { return state_->events.exists(stream); }

  /// Records an event, because CUDA does not number the work of a stream.
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept {
    return state_->positions.position(stream);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    return state_->positions.is_done(stream, at);
  }
  /// Knows only the waits that make_wait inserted.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return state_->positions.is_ordered_after(stream, of, at);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return state_->positions.make_wait(stream, of, at);
  }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return kind.granularity() > state_->page_size ? kind.granularity() : state_->page_size;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    detail::cuda::device_address address = 0;
    const auto ask = [&](auto& cu) { return cu.address_reserve(&address, bytes, to, 0, 0); };
    if (!ask_for("cuMemAddressReserve", ask)) return nullptr;
    void* const p = detail::pointer_to(address);
    const auto lock = state_->chunks.lock();
    if (address % to == 0 && book().add_range(p, bytes)) return p;
    (void)free_addresses(p, bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    const auto lock = state_->chunks.lock();
    if (!worked("unreserve", book().why_not_unreserve(p, bytes)) || !free_addresses(p, bytes)) return false;
    book().remove_range(p);
    return true;
  }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    detail::cuda::memory_handle handle = 0;  // a driver may write into it although it fails
    const auto ask = [&](auto& cu) {
      const auto create = [&](const detail::cuda::memory_properties& wanted) {
        return cu.memory_create(&handle, bytes, &wanted, 0);
      };
      return state_->ask_for_most(create);
    };
    return has(kind) && ask_for("cuMemCreate", ask) && keep("create", {handle, 0, bytes}, 0, made);
  }
  bool destroy(const physical& leaving) noexcept {
    const auto lock = state_->chunks.lock();
    if (book().find(leaving.number) == nullptr) return worked("destroy", book().no_chunk);
    if (!release_handle(leaving.handle)) return false;
    state_->chunks.forget(leaving.number);
    return true;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_map(detail::address_of(p), bytes, 0, made.handle, 0); };
    const auto lock = state_->chunks.lock();
    if (!worked("map", book().map(p, bytes, made.number))) return false;
    if (ask_for("cuMemMap", ask)) return true;
    book().unmap(p);
    return false;
  }
  bool grant(void* p, std::size_t bytes) noexcept { return grant_to(state_->context.device(), p, bytes); }
  /// Lets another device, given by its number, access mapped memory. The devices must be peers.
  bool grant_to(int device, void* p, std::size_t bytes) noexcept {
    using namespace detail::cuda;
    const memory_access wanted{{location_is_device, device}, read_and_write};
    return ask_for("cuMemSetAccess",
                   [&](auto& cu) { return cu.memory_set_access(detail::address_of(p), bytes, &wanted, 1); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    const auto ask = [&](auto& cu) { return cu.memory_unmap(detail::address_of(p), bytes); };
    const auto lock = state_->chunks.lock();
    if (!worked("unmap", book().why_no_mapping(p, bytes)) || !call("cuMemUnmap", ask)) return false;
    book().unmap(p);
    return true;
  }
  /// Makes a handle in PyTorch's format, by which cuda_shared_range maps the chunks of mapped memory in another process. It
  /// is valid until one of them is destroyed.
  ///   Throws:  cuda_driver_error if the driver refuses, or if the bytes are not mapped
  [[nodiscard]] cuda_shared_part share(const void* p, std::size_t bytes) {
    return state_->chunks.share(state_->context.calls(), p, bytes);
  }
  /// The process id within its PID namespace.
  [[nodiscard]] std::int32_t process() const noexcept { return ::getpid(); }
  /// Exports by a file descriptor to processes of the same user or of root, and to any process by the fabric, too. The first
  /// call starts a thread that sends descriptors.
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept {
    const detail::cuda::context_guard guard(state_->context);
    if (!guard) return false;
    return asked("export_memory", state_->chunks.add_export(state_->context.calls(), memory.number, who,
                                                            chunk_abilities().exports_fabric, name));
  }
  [[nodiscard]] bool exported_name(const physical& memory, shareable& name) const noexcept {
    return state_->chunks.find_export(memory.number, name);
  }
  bool allow(const shareable& name, std::int32_t process) noexcept {
    return asked("allow", state_->chunks.allow(name, process));
  }
  /// Waits for the exporter for at most two seconds. If none answers on this machine, uses the handle of the fabric.
  bool import_memory(const shareable& name, physical& memory) noexcept {
    // The driver checks the file.
    detail::host_import request(std::chrono::seconds(2), [](int, std::size_t bytes, page_kind) noexcept {
      return bytes != 0 ? nullptr : "the exporter sent no memory";
    });
    const char* const fault = name.file.process != 0 ? request.send(name.file) : request.no_exporter;
    const bool by_fabric = fault == request.no_exporter && name.has_fabric;
    if (fault != nullptr && !by_fabric) return asked("import_memory", fault);
    if (state_->chunks.exported_here(name)) return asked("import_memory", "this process exported the memory");
    physical made{.bytes = by_fabric ? name.bytes : request.bytes};
    const auto import = [&](auto& cu) {
      std::array<unsigned char, 64> from = name.fabric;
      return by_fabric ? cu.import_fabric(made.handle, from.data())
                       : cu.import_file(made.handle, request.file.get());
    };
    return ask_for("cuMemImportFromShareableHandle", import) &&
           keep("import_memory", made, name.file.number, memory);
  }
  /// Waits for the whole device if the stream no longer exists, because it may have left work.
  bool synchronize(stream_id stream) noexcept {
    return call("cuStreamSynchronize", [&](auto& cu) {
      const detail::cuda::result r = cu.stream_synchronize(detail::cuda::handle_of(stream));
      return r == detail::cuda::invalid_handle ? cu.context_synchronize() : r;
    });
  }

  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return call("cuMemcpyDtoHAsync", [&](auto& cu) {
      return cu.copy_to_host(to, detail::address_of(from), bytes, detail::cuda::handle_of(stream));
    });
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return call("cuMemcpyHtoDAsync", [&](auto& cu) {
      return cu.copy_to_device(detail::address_of(to), from, bytes, detail::cuda::handle_of(stream));
    });
  }
  /// The driver locks whole pages, so other addresses are refused.
  bool register_memory(void* p, std::size_t bytes) noexcept {
    constexpr std::size_t page = 4096;
    return detail::address_of(p) % page == 0 &&
           ask_for("cuMemHostRegister", [&](auto& cu) { return cu.register_host(p, bytes); });
  }
  bool unregister_memory(void* p) noexcept {
    return call("cuMemHostUnregister", [&](auto& cu) { return cu.unregister_host(p); });
  }

  /// Chunks have all abilities that the device offers, except those that the system refuses.
  [[nodiscard]] chunk_traits chunk_abilities() const noexcept {
    const unsigned has = state_->abilities;
    return {
        .exports_file = (has & file) != 0, .exports_fabric = (has & fabric) != 0, .rdma = (has & rdma) != 0};
  }

  /// The latest error; empty if no call failed.
  [[nodiscard]] std::string last_error() const { return state_->context.last_error(); }
  /// For example "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  refusal take_refusal() noexcept { return state_->refused.take(); }

 private:
  /// The abilities of chunks. The one that a system refuses first has the highest bit.
  enum ability : unsigned { file = 1, rdma = 2, fabric = 4 };
  struct state {
    state(const cuda_driver& driver, int number) : context(driver.calls(), number) {
      using namespace detail::cuda;
      const detail::cuda::calls& cu = context.calls();
      context.require_success(cu.device_total_memory(&capacity, context.device()), "cuDeviceTotalMem");
      int has = 0;
      context.require_success(cu.device_get_attribute(&has, has_virtual_memory, context.device()),
                              "cuDeviceGetAttribute");
      if (has == 0) return;
      abilities = (cu.can_export() && offers(has_file_handles) ? file : 0u) | (offers(has_rdma) ? rdma : 0u) |
                  (cu.can_export() && offers(has_fabric_handles) ? fabric : 0u);
      const auto get = [&](const memory_properties& wanted) {
        return cu.get_granularity(&page_size, &wanted, min_granularity);
      };
      context.require_success(ask_for_most(get), "cuMemGetAllocationGranularity");
    }
    /// A driver that does not know an attribute does not offer it.
    [[nodiscard]] bool offers(int attribute) const noexcept {
      int value = 0;
      return context.calls().device_get_attribute(&value, attribute, context.device()) ==
                 detail::cuda::success &&
             value != 0;
    }
    [[nodiscard]] detail::cuda::memory_properties properties_with(unsigned wanted_abilities) const noexcept {
      using namespace detail::cuda;
      memory_properties wanted{};
      wanted.type = pinned_memory;
      wanted.handle_types = ((wanted_abilities & file) != 0 ? file_handle : 0) |
                            ((wanted_abilities & fabric) != 0 ? fabric_handle : 0);
      wanted.flags.direct_rdma = (wanted_abilities & rdma) != 0 ? 1 : 0;
      wanted.location = {location_is_device, context.device()};
      return wanted;
    }
    /// Calls f with the properties of chunks that have all abilities. Some systems refuse what the device has. Then it
    /// calls f again with one ability less, and keeps those with which the call worked.
    template <typename F>
    detail::cuda::result ask_for_most(F f) noexcept {
      for (unsigned wanted = abilities;; wanted &= ~std::bit_floor(wanted)) {
        const detail::cuda::result answer = f(properties_with(wanted));
        if (answer == detail::cuda::success) abilities &= wanted;
        if (wanted == 0 || (answer != detail::cuda::not_supported && answer != detail::cuda::not_permitted))
          return answer;
      }
    }
    detail::cuda::primary_context context;
    detail::cuda::stream_events events{context};
    detail::marked_positions<detail::cuda::stream_events, detail::cuda::event_handle> positions{events};
    detail::cuda::chunk_table chunks;
    std::atomic<unsigned> abilities = 0;
    latest_refusals refused;
    std::size_t capacity = 0;
    std::size_t page_size = 2_MiB;
  };

  /// Calls f with the functions of the driver, in the context of the device. Returns whether that succeeded.
  template <typename F>
  bool call(const char* name, F f) const noexcept {
    const detail::cuda::context_guard guard(state_->context);
    return guard && state_->context.succeeded(name, f(state_->context.calls()));
  }
  /// Does the same for a call for memory, and keeps why it failed.
  template <typename F>
  bool ask_for(const char* name, F f) const noexcept {
    detail::cuda::result answer = detail::cuda::success;
    const bool works = call(name, [&](auto& cu) { return answer = f(cu); });
    if (!works && answer != detail::cuda::success) {
      const std::string why = state_->context.calls().describe(answer);
      state_->refused.note(refusal::format("%s: %s", name, why.c_str()));
    }
    return works;
  }
  /// Gives a chunk of the driver a number, or destroys it.
  bool keep(const char* name, physical chunk, std::uint64_t source, physical& kept) noexcept {
    const auto lock = state_->chunks.lock();
    const char* const fault = book().add_chunk({chunk.bytes, 1, {chunk.handle}, source}, chunk.number);
    if (fault == nullptr)
      kept = chunk;
    else
      (void)release_handle(chunk.handle);
    return asked(name, fault);
  }
  bool release_handle(detail::cuda::memory_handle handle) noexcept {
    return call("cuMemRelease", [&](auto& cu) { return cu.memory_release(handle); });
  }
  [[nodiscard]] detail::address_book<detail::cuda::chunk>& book() noexcept { return state_->chunks.book(); }
  bool free_addresses(void* p, std::size_t bytes) noexcept {
    return call("cuMemAddressFree", [&](auto& cu) { return cu.address_free(detail::address_of(p), bytes); });
  }
  /// Returns whether there is no fault, and records it if there is.
  bool worked(const char* name, const char* fault) const noexcept {
    if (fault != nullptr) state_->context.refuse(name, fault);
    return fault == nullptr;
  }
  /// Does the same for a call for memory, and keeps the fault.
  bool asked(const char* name, const char* fault) const noexcept {
    if (fault != nullptr) state_->refused.note(refusal::format("%s: %s", name, fault));
    return worked(name, fault);
  }
  [[nodiscard]] static bool has(page_kind kind) noexcept {
    return kind == page_kind::normal || kind == page_kind::huge;
  }

  std::unique_ptr<state> state_;
};
static_assert(ordering_provider<cuda_device> && virtual_memory_provider<cuda_device> &&
              paged_provider<cuda_device> && copying_provider<cuda_device> &&
              registering_provider<cuda_device> && sharing_provider<cuda_device>);

}  // namespace tessera::inline v0_1::provider
