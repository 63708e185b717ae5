// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include <tessera/core/error.hpp>
#include <tessera/provider/capabilities.hpp>

namespace tessera::inline v0_1::detail {

/// Copies between the device and the pieces of a store on one stream. If a piece has no memory of its own, or if the device
/// copies only page-locked memory asynchronously and the memory may be pageable, the bytes pass through two buffers,
/// page-locked if possible. While the device fills or empties one, the host works on the other.
///
///   Requires:  Provider is a copying_provider and has synchronize(). Store has the functions of sleep_store, and outlives
///              the copies
///
/// After a failure, copies may still be running. is_finished() tells whether any may.
template <typename Provider, typename Store>
class host_copies {
 public:
  host_copies& operator=(host_copies&&) = delete;
  /// Leaves the buffers to copies that may still be running.
  ~host_copies() {
    for (const buffer& b : buffers_) {
      if (!b.in_use) delete_bytes(b.bytes);
    }
  }

  /// Copies are submitted to this stream from now on.
  ///   Requires:  is_finished()
  void begin(stream_id stream) noexcept {
    stream_ = stream;
    why_ = nullptr;
  }
  /// Copies `bytes` bytes to a piece. The bytes are there after finish().
  ///   Returns:  false if the device or the store failed, or host memory ran out
  [[nodiscard]] bool to_host(Provider& device, const Store& store, std::uint64_t piece, std::uintptr_t from,
                             std::size_t bytes) noexcept {
    return in_pieces(store, piece, bytes, [&](std::byte* memory, std::size_t at, std::size_t count) {
      const void* const source = reinterpret_cast<const void*>(from + at);
      if (memory != nullptr) return device.copy_to_host(memory + at, source, count, stream_);
      buffer* const through = next_buffer(device);
      if (through == nullptr || !device.copy_to_host(through->bytes, source, count, stream_)) return false;
      through->store = &store;
      through->piece = piece;
      through->offset = at;
      mark_in_use(device, *through, count);
      return true;
    });
  }
  /// Copies `bytes` bytes from a piece. They have arrived after finish().
  [[nodiscard]] bool to_device(Provider& device, std::uintptr_t to, const Store& store, std::uint64_t piece,
                               std::size_t bytes) noexcept {
    return in_pieces(store, piece, bytes, [&](std::byte* memory, std::size_t at, std::size_t count) {
      void* const target = reinterpret_cast<void*>(to + at);
      if (memory != nullptr) return device.copy_to_device(target, memory + at, count, stream_);
      buffer* const through = next_buffer(device);
      if (through == nullptr || !note(store.read(piece, at, through->bytes, count))) return false;
      if (!device.copy_to_device(target, through->bytes, count, stream_)) return false;
      through->store = nullptr;
      mark_in_use(device, *through, count);
      return true;
    });
  }
  /// Why the store failed since begin(), or null.
  [[nodiscard]] const char* why() const noexcept { return why_; }
  /// Waits for all copies, and gives the buffers back.
  ///   Returns:  false if the device or the store failed; the copies may still be running
  [[nodiscard]] bool finish(Provider& device) noexcept {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      buffer& b =
          buffers_[turn_++ % buffers_.size()];  // the oldest first, so that a store is written in order
      if (!drain(device, b)) return false;
      if constexpr (provider::registering_provider<Provider>) {
        if (b.is_registered) (void)device.unregister_memory(b.bytes);
      }
      delete_bytes(b.bytes);
      b = {};
    }
    is_finished_ = is_finished_ || synchronize(device);
    return is_finished_;
  }
  [[nodiscard]] bool is_finished() const noexcept { return is_finished_; }

 private:
  static constexpr std::size_t buffer_bytes = 4_MiB;
  static constexpr std::align_val_t page{4096};

  struct buffer {
    std::byte* bytes = nullptr;
    const Store* store = nullptr;  ///< which gets its bytes when the copy is done, or null
    std::uint64_t piece = 0;
    std::size_t offset = 0;
    std::size_t count = 0;
    typename Provider::event done{};
    bool in_use = false;
    bool has_event = false;
    bool is_registered = false;
  };

  static void delete_bytes(std::byte* p) noexcept { ::operator delete(p, page); }

  /// Calls copy(memory, offset, count) for parts of a piece. `memory` is that of the piece, or null if a part needs a buffer.
  template <typename F>
  bool in_pieces(const Store& store, std::uint64_t piece, std::size_t bytes, F copy) noexcept {
    is_finished_ = false;
    std::byte* const memory =
        copies_page_locked<Provider> && !store.is_direct() ? nullptr : store.memory(piece);
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t left = bytes - at;
      const std::size_t count = memory == nullptr && left > buffer_bytes ? buffer_bytes : left;
      if (!copy(memory, at, count)) return false;
      at += count;
    }
    return true;
  }
  [[nodiscard]] bool note(outcome of_store) noexcept {
    if (why_ == nullptr) why_ = of_store.why;
    return static_cast<bool>(of_store);
  }
  /// Returns a buffer without a running copy, or null.
  [[nodiscard]] buffer* next_buffer(Provider& device) noexcept {
    buffer& next = buffers_[turn_++ % buffers_.size()];
    if (!drain(device, next)) return nullptr;
    if (next.bytes == nullptr) {
      next.bytes = static_cast<std::byte*>(::operator new(buffer_bytes, page, std::nothrow));
      if (next.bytes == nullptr) return nullptr;
      // A copy through memory that cannot be locked works, too, but makes the caller wait.
      if constexpr (provider::registering_provider<Provider>)
        next.is_registered = device.register_memory(next.bytes, buffer_bytes);
    }
    return &next;
  }
  void mark_in_use(Provider& device, buffer& b, std::size_t count) noexcept {
    b.count = count;
    b.in_use = true;
    b.has_event = device.record(stream_, b.done);
  }
  /// Waits for the copy that uses a buffer.
  [[nodiscard]] bool drain(Provider& device, buffer& b) noexcept {
    if (!b.in_use) return true;
    // Not wait(): a locked allocator would let other threads in.
    const bool is_done = b.has_event && device.query(b.done);
    if (b.has_event) device.discard(b.done);
    b.has_event = false;
    if (!is_done && !synchronize(device)) return false;
    b.in_use = false;
    return b.store == nullptr || note(b.store->write(b.piece, b.offset, b.bytes, b.count));
  }
  /// Tries twice. If this fails, the memory cannot be freed, because a copy may still use it.
  [[nodiscard]] bool synchronize(Provider& device) noexcept {
    return device.synchronize(stream_) || device.synchronize(stream_);
  }

  std::array<buffer, 2> buffers_{};
  std::size_t turn_ = 0;
  stream_id stream_{};
  const char* why_ = nullptr;
  bool is_finished_ = true;
};

}  // namespace tessera::inline v0_1::detail
