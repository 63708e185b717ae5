// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/facade.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/interop/torch_statistics.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/provider/indexed.hpp>
#include <tessera/provider/provider.hpp>

/// Allocators for the devices of a program, behind functions that C can call.
namespace tessera {

/// Says what serves a device.
///
///   D::make_device(number)       a provider of the device of that number; it may throw what says why there is none
///   D::make_allocator(device)    what serves it, safe for several threads, over a provider that moves
///
/// One device is made at a time: who makes one may use those that are there, and no other.
/// Where D::throws_out_of_memory is true, alloc throws what an allocator throws instead of returning null. Only a host in
/// C++ can take that: PyTorch makes it a RuntimeError with the same text, while null becomes the address of a tensor.
template <typename D>
concept pluggable_definition = requires(int number) {
  { D::make_device(number) } -> device_provider;
};

template <typename D>
inline constexpr bool throws_out_of_memory = false;
template <typename D>
  requires std::convertible_to<decltype(D::throws_out_of_memory), bool>
inline constexpr bool throws_out_of_memory<D> = D::throws_out_of_memory;

/// Allocators for the devices of a program, each made when it is first asked for, behind functions whose arguments are C's:
/// device numbers, and streams as pointers, of which null is the default one.
///
/// What a caller can be told, it is told, and last_error() says it, with what a thread-safe provider says in its own;
/// standard error has it too, the first time, the second,
/// the fourth and so on. Who frees what is not there to be freed ends the program, as with every allocator here.
template <pluggable_definition Definition>
class pluggable {
 public:
  using provider = decltype(Definition::make_device(0));
  static constexpr int most_devices = 128;
  static constexpr bool throws = throws_out_of_memory<Definition>;

  pluggable() = default;
  pluggable(const pluggable&) = delete;
  pluggable& operator=(const pluggable&) = delete;
  ~pluggable() {
    for (auto& at : places_) delete at.load();
  }

  /// Null for 0 bytes and for a number that no device has; and where there is no such device or its memory is full,
  /// unless it throws.
  [[nodiscard]] void* alloc(std::size_t bytes, int device, void* stream) noexcept(!throws) {
    if (bytes == 0) return nullptr;
    void* served = nullptr;
    place* at = nullptr;
    guarded<throws>(at, [&] {
      at = place_of(device);
      if (at == nullptr) return;
#if defined(__cpp_exceptions)
      served = at->serves.allocate(bytes, name(stream));
#else
      served = at->serves.try_allocate(bytes, name(stream));
      if (served == nullptr) say("tessera: out of memory: %zu bytes requested on device %d", bytes, device);
#endif
    });
    return served;
  }
  ///   Requires:  what alloc gave for as many bytes on that device and was not freed since, or null; else the program ends
  void free(void* p, std::size_t bytes, int device, void*) noexcept {
    if (p == nullptr) return;
    const pagemap::owner_number owner = directory_.owner_of(p);
    if (owner == pagemap::no_owner) detail::refuse_stranger("free", p);
    if (static_cast<int>(owner) != device) fatal("free: the block is on another device", p);
    made(device)->serves.deallocate(p, bytes);
  }

  /// Does nothing: PyTorch calls it with 0, and torch_npu with the number of the current device.
  static void init(int) noexcept {}
  /// Gives what is cached back to the devices, as torch.cuda.empty_cache().
  void reset() noexcept {
    for_each_place([](place& at) { at.serves.trim(); });
  }
  void memory_fraction(double share, int device) noexcept {
    place* at = nullptr;
    guarded<false>(at, [&] {
      at = place_of(device);
      if (at != nullptr && !set_memory_fraction(at->serves, share))
        say("memory_fraction: not from 0 to 1: %g", share);
    });
  }

  /// Where the segment begins that an address in a live block lies in, and its bytes; of a range, what is mapped side by
  /// side. Null of any other address, and 0 bytes.
  ///   Cost:  linear in the blocks of the device
  [[nodiscard]] void* base_alloc(void* p, std::size_t* bytes) noexcept {
    segment_view found{};
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (place* const at = owner_of(p)) {
      at->serves.for_each_allocator([&](auto& inner) {
        for_each_block(inner, [&](const segment_view& segment, const block_view& b) {
          if (b.is == block_view::state::live && address - b.address < b.bytes) found = segment;
        });
      });
    }
    if (bytes != nullptr) *bytes = found.bytes;
    return reinterpret_cast<void*>(found.address);
  }
  /// Says that the host's memory pools, as graphs have, are not kept apart, and throws it if alloc throws: what belongs to
  /// a graph would be handed out again.
  void begin_allocate_to_pool() noexcept(!throws) {
    constexpr const char* text = "tessera: memory pools are not kept apart, so that no graph may be captured";
    say("%s", text);
#if defined(__cpp_exceptions)
    if constexpr (throws) throw std::runtime_error(text);
#endif
  }
  /// Notes that a stream uses a block. Nothing happens to what is not from here, as with PyTorch's own.
  ///   Requires:  of an address that is from here, that it is a live block's; else the program ends
  void record_stream(void* p, void* stream) noexcept {
    place* const at = owner_of(p);
    if (at != nullptr && !at->serves.record_stream(p, name(stream)))
      say("record_stream: cannot be noted of %p", p);
  }

  /// A device's report as json_of() writes it; of one that was not used, or is not counted, an empty object.
  ///   Returns:  its length, without the 0 that ends it; above `room` it was cut short, as by snprintf
  ///   Cost:     linear in the blocks of the device
  std::size_t statistics(int device, char* out, std::size_t room) noexcept {
    std::size_t length = put("{}", out, room);
    with_report(device, [&](const memory_report& of) { length = put(json_of(of).c_str(), out, room); });
    return length;
  }
  template <typename DeviceStats>
  [[nodiscard]] DeviceStats device_stats(int device) noexcept {
    DeviceStats told{};
    with_report(device, [&](const memory_report& of) { told = to_device_stats<DeviceStats>(of); });
    return told;
  }
  void reset_peak_statistics(int device) noexcept {
    if (place* const at = made(device)) at->serves.reset_peak_statistics();
  }
  void reset_accumulated_statistics(int device) noexcept {
    if (place* const at = made(device)) at->serves.reset_accumulated_statistics();
  }

  /// Why the latest call failed that did; returns the length as snprintf does, 0 if none has.
  std::size_t last_error(char* out, std::size_t room) noexcept {
    const std::lock_guard lock(error_mutex_);
    return put(error_.data(), out, room);
  }

 private:
  using registered_provider = detail::indexed<provider>;
  struct place {
    place(pagemap& in, int number)
        : device(Definition::make_device(number)),
          serves(Definition::make_allocator(
              registered_provider(device, in, static_cast<pagemap::owner_number>(number)))) {}
    provider device;
    decltype(Definition::make_allocator(std::declval<registered_provider>())) serves;
  };

  [[nodiscard]] static stream_id name(void* stream) noexcept {
    return {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream))};
  }

  /// That of a device that was used, or null.
  [[nodiscard]] place* made(int device) const noexcept {
    if (device < 0 || device >= most_devices) return nullptr;
    return places_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  }
  [[nodiscard]] place* owner_of(const void* p) const noexcept {
    const pagemap::owner_number owner = directory_.owner_of(p);
    return owner != pagemap::no_owner ? made(static_cast<int>(owner)) : nullptr;
  }
  [[nodiscard]] place* place_of(int device) {
    if (place* const at = made(device)) return at;
    return make(device);
  }
  [[nodiscard, gnu::noinline]] place* make(int device) {
    if (device < 0 || device >= most_devices) {
      say("there is no device %d", device);
      return nullptr;
    }
    guard_.check<ignore_events>(detail::reentrancy_guard::lock::settings);
    const std::lock_guard lock(making_);
    const detail::reentrancy_guard::call running(
        guard_, detail::reentrancy_guard::lock::settings,
        "make_device and make_allocator must not use devices that are not made yet");
    auto& at = places_[static_cast<std::size_t>(device)];
    if (at.load() == nullptr) at.store(new place(directory_, device), std::memory_order_release);
    return at.load();
  }
  /// Calls f with a device's report, if it was used and is counted.
  template <typename F>
  void with_report([[maybe_unused]] int device, [[maybe_unused]] F f) noexcept {
    if constexpr (requires(place& at) { at.serves.statistics(); }) {
      place* const at = made(device);
      guarded<false>(at, [&] {
        if (at != nullptr) f(report_of(at->serves));
      });
    }
  }
  /// Returns the length, whatever the room.
  static std::size_t put(const char* text, char* out, std::size_t room) noexcept {
    return static_cast<std::size_t>(std::snprintf(out, room, "%s", text));
  }
  template <typename F>
  void for_each_place(F f) {
    for (int device = 0; device < most_devices; ++device) {
      if (place* const at = made(device)) f(*at);
    }
  }

  /// Calls f, and says what it throws, and what went wrong last on the device that it has found.
  template <bool Rethrow, typename F>
  void guarded([[maybe_unused]] place* const& at, F f) noexcept(!Rethrow) {
#if defined(__cpp_exceptions)
    try {
      f();
    } catch (const std::exception& error) {
      tell(error.what(), at);
      if constexpr (Rethrow) throw;
    } catch (...) {
      tell("an exception that says nothing", at);
      if constexpr (Rethrow) throw;
    }
#else
    f();
#endif
  }
  void tell(const char* text, [[maybe_unused]] const place* at) {
    if constexpr (is_thread_safe<provider> && requires { at->device.last_error(); }) {
      if (at != nullptr) {
        const auto reason = at->device.last_error();
        const char* words = nullptr;
        if constexpr (requires { reason.c_str(); }) {
          words = reason.c_str();
        } else {
          words = reason;
        }
        if (words != nullptr && *words != '\0') return say("%s; the device: %s", text, words);
      }
    }
    say("%s", text);
  }
  [[gnu::noinline, gnu::format(printf, 2, 3)]] void say(const char* format, ...) noexcept {
    const std::lock_guard lock(error_mutex_);
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(error_.data(), error_.size(), format, values);
    va_end(values);
    if (std::has_single_bit(++errors_)) std::fprintf(stderr, "%s\n", error_.data());
  }

  pagemap directory_;
  std::array<std::atomic<place*>, most_devices> places_{};
  detail::reentrancy_guard guard_;
  std::mutex making_;
  std::mutex error_mutex_;
  std::array<char, 4096> error_{};
  std::uint64_t errors_ = 0;
};

}  // namespace tessera
