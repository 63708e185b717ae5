// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <new>
#include <type_traits>

#include <tessera/core/error.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/containers/function_ref.hpp>
#include <tessera/provider/capabilities.hpp>

namespace tessera::inline v0_1::extension {

/// Chooses between saving and losing the contents of memory that sleeps.
enum class sleep_contents : unsigned char {
  discard,  ///< after waking, the contents are undefined
  save      ///< they are copied to host memory, and back when the pool wakes
};

/// Keeps the contents of memory that sleeps, as pieces with numbers, for example in a file.
///
/// | expression                   | returns | effect                                                         |
/// |------------------------------|---------|----------------------------------------------------------------|
/// | s.reserve(bytes, piece)      | outcome | sets `piece`, a std::uint64_t, to the number of a new piece that has room for so many bytes |
/// | s.write(piece, at, p, bytes) | outcome | writes bytes of a piece from host memory, beginning with byte `at` |
/// | s.read(piece, at, p, bytes)  | outcome | reads them into host memory                                    |
/// | s.release(piece, bytes)      |         | forgets a piece                                                |
///
/// A piece is written once as a whole, in the order of its bytes. Each attempt to wake reads it in that order from byte 0.
/// After a call that fails, the rest is neither written nor read. The text of a failed outcome must be static.
template <typename S>
concept piece_store = requires(S& s, std::uint64_t& made, std::uint64_t piece, std::size_t n, std::byte* to,
                               const std::byte* from) {
  { s.reserve(n, made) } noexcept -> std::same_as<outcome>;
  { s.write(piece, n, from, n) } noexcept -> std::same_as<outcome>;
  { s.read(piece, n, to, n) } noexcept -> std::same_as<outcome>;
  { s.release(piece, n) } noexcept;
};

/// A provider of host memory, such as host_pinned.
template <typename S>
concept host_memory_store = tessera::detail::is_host_visible<S> && requires(S& s, void* p, std::size_t n) {
  { s.acquire(n) } noexcept -> std::same_as<void*>;
  { s.release(p, n) } noexcept -> std::same_as<bool>;
};

/// An allocator or front end whose provider has host memory.
template <typename S>
concept host_allocator_store = requires {
  requires tessera::detail::is_host_visible<typename S::provider_type>;
} && requires(S& s, void* p, std::size_t n) {
  { s.try_allocate(n) } noexcept -> std::same_as<void*>;
  s.deallocate(p);
};

/// Says what becomes of the contents of memory that sleeps. It is made from a sleep_contents, or it refers to an object that
/// keeps them: a piece_store, a provider of host memory, or an allocator of one.
///
/// Choose page-locked memory if sleeping or waking must be fast: the device copies to it directly. Choose a file if host memory
/// is short.
///
///     #include <tessera/extension/sleep_mode.hpp>
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, tessera::extension::sleep_mode> device;
///     tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> pinned;
///     if (!device.get<tessera::extension::sleep_mode>().sleep(pinned)) std::puts("it stays awake");
///
///   Requires:  the object outlives the allocator, or all that sleeps with it has woken. It does not use the allocator that
///              sleeps. If other threads use it, too, it is thread-safe.
class sleep_store {
  template <typename Signature>
  using call = tessera::detail::function_ref<Signature>;

 public:
  /// Discards the contents, or saves them to pageable host memory.
  constexpr explicit(false) sleep_store(sleep_contents contents) noexcept {
    if (contents == sleep_contents::save) *this = sleep_store(heap);
  }
  /// Refers to a store of the program, which writes and reads the pieces.
  template <piece_store Object>
    requires(!std::is_same_v<Object, sleep_store>)
  constexpr explicit(false) sleep_store(Object& in) noexcept
      : reserve(in, [](Object& to, auto&&... given) { return to.reserve(given...); }),
        write(in, [](Object& to, auto... given) { return to.write(given...); }),
        read(in, [](Object& from, auto... given) { return from.read(given...); }),
        release(in, [](Object& from, auto... given) { from.release(given...); }) {}
  /// Refers to a provider of host memory, or to an allocator of it. Each piece is a segment or a block of it.
  template <typename Object>
    requires(host_memory_store<Object> || host_allocator_store<Object>)
  constexpr explicit(false) sleep_store(Object& in) noexcept
      : reserve(in,
                [](Object& from, std::size_t bytes, std::uint64_t& piece) {
                  if constexpr (host_memory_store<Object>) {
                    return keep(from.acquire(bytes), piece);
                  } else {
                    return keep(from.try_allocate(bytes), piece);
                  }
                }),
        write(in,
              [](Object&, std::uint64_t piece, std::size_t offset, const std::byte* from, std::size_t bytes) {
                std::memcpy(at(piece) + offset, from, bytes);
                return outcome{};
              }),
        read(in,
             [](Object&, std::uint64_t piece, std::size_t offset, std::byte* to, std::size_t bytes) {
               std::memcpy(to, at(piece) + offset, bytes);
               return outcome{};
             }),
        release(in,
                [](Object& from, std::uint64_t piece, std::size_t bytes) {
                  if constexpr (host_memory_store<Object>) {
                    (void)from.release(at(piece), bytes);
                  } else {
                    from.deallocate(at(piece));
                  }
                }),
        is_memory_(true),
        is_direct_(!std::is_same_v<Object, const heap_memory>) {}

  /// Whether it keeps contents.
  [[nodiscard]] constexpr bool keeps() const noexcept { return static_cast<bool>(reserve); }
  /// Whether the device copies to and from its pieces directly, without buffers. The object must then be page-locked memory if
  /// the device copies only such memory asynchronously.
  [[nodiscard]] constexpr bool is_direct() const noexcept { return is_direct_; }
  /// The memory of a piece, or null if only write() and read() reach it.
  [[nodiscard]] std::byte* memory(std::uint64_t piece) const noexcept {
    return is_memory_ ? at(piece) : nullptr;
  }
  /// Makes a piece for so many bytes, and sets `piece` to its number.
  call<outcome(std::size_t bytes, std::uint64_t& piece) noexcept> reserve;
  /// Writes bytes of a piece from host memory, beginning with byte `offset` of the piece.
  call<outcome(std::uint64_t piece, std::size_t offset, const std::byte* from, std::size_t bytes) noexcept>
      write;
  /// Reads bytes of a piece into host memory, beginning with byte `offset` of the piece.
  call<outcome(std::uint64_t piece, std::size_t offset, std::byte* to, std::size_t bytes) noexcept> read;
  /// Forgets a piece of so many bytes.
  call<void(std::uint64_t piece, std::size_t bytes) noexcept> release;

 private:
  /// Pageable host memory, as a provider.
  struct heap_memory {
    static constexpr bool is_host_visible = true;
    static void* acquire(std::size_t bytes) noexcept { return ::operator new(bytes, std::nothrow); }
    static bool release(void* p, std::size_t) noexcept {
      ::operator delete(p);
      return true;
    }
  };
  static constexpr heap_memory heap{};
  [[nodiscard]] static std::byte* at(std::uint64_t piece) noexcept {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(piece));
  }
  [[nodiscard]] static outcome keep(void* memory, std::uint64_t& piece) noexcept {
    piece = reinterpret_cast<std::uintptr_t>(memory);
    return {memory != nullptr ? nullptr : "host memory ran out"};
  }

  bool is_memory_ = false;  // the number of a piece is the address of its memory
  bool is_direct_ = false;
};

}  // namespace tessera::inline v0_1::extension
