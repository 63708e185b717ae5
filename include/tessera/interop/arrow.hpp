// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/allocator_handle.hpp>

/// A memory pool for Apache Arrow: arrow_pool.

namespace tessera::inline v0_1::interop {

/// Adapts an allocator of host memory to arrow::MemoryPool, the type for `Pool`. It includes no header of
/// Arrow, and needs version 12 or newer: `arrow_pool<arrow::MemoryPool, allocator_type> memory(allocator);`
///
/// If memory is full, calls return Status::OutOfMemory and change nothing. 0 bytes need no memory. It is as
/// thread-safe as the allocator, and Arrow needs a thread-safe one. The counters are those of Arrow's own
/// pools: requested bytes of this object's calls.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it; it outlives its buffers
template <typename Pool, typename A>
class arrow_pool final : public Pool {
  static_assert(detail::check_host_allocator<detail::allocator_of<A>>());
  using address = std::uint8_t*;
  using status = decltype(std::declval<Pool&>().Allocate(std::int64_t{}, std::declval<address*>()));

 public:
  using Pool::Allocate, Pool::Reallocate, Pool::Free;

  /// Serves Arrow from an allocator, on the default stream.
  explicit arrow_pool(detail::handle_argument<A> allocator) noexcept : allocator_(allocator) {}

  /// Serves a request. It writes an address to `out` that is not null, even for 0 bytes.
  ///   Returns:  Status::OutOfMemory if memory is full, Status::Invalid if the size is negative or the
  ///             alignment is no power of two
  status Allocate(std::int64_t bytes, std::int64_t alignment, address* out) override {
    if (bytes < 0) return status::Invalid("tessera: negative size of an allocation");
    if (!is_alignment(alignment)) return status::Invalid("tessera: the alignment is no power of two");
    address p = no_memory(alignment);
    if (bytes > 0) p = take(bytes, alignment);
    if (p == nullptr) return full(bytes);
    add(bytes);
    *out = p;
    return status::OK();
  }
  /// Moves the data into a block of the new size. Both blocks are live during the copy.
  ///   Requires:  `old_bytes` is the size of the allocation
  status Reallocate(std::int64_t old_bytes, std::int64_t bytes, std::int64_t alignment, address* p) override {
    if (bytes < 0) return status::Invalid("tessera: negative size of a reallocation");
    if (!is_alignment(alignment)) return status::Invalid("tessera: the alignment is no power of two");
    if (bytes == old_bytes) return status::OK();
    address moved = no_memory(alignment);
    if (bytes > 0) moved = take(bytes, alignment);
    if (moved == nullptr) return full(bytes);
    if (old_bytes > 0) {
      std::memcpy(moved, *p, static_cast<std::size_t>((std::min)(old_bytes, bytes)));
      request(old_bytes, alignment).deallocate(allocator_.get(), *p);
    }
    if (bytes > old_bytes)
      add(bytes - old_bytes);
    else
      live_ -= old_bytes - bytes;
    *p = moved;
    return status::OK();
  }
  /// Frees memory. Aborts if the address is unknown, or the size is not that of the allocation.
  void Free(address p, std::int64_t bytes, std::int64_t alignment) override {
    if (bytes == 0) return;
    request(bytes, alignment).deallocate(allocator_.get(), p);
    live_ -= bytes;
  }
  /// Releases all cached memory that can go back.
  void ReleaseUnused() override { allocator_.get().trim(); }

  /// Requested bytes that are live now.
  [[nodiscard]] std::int64_t bytes_allocated() const override { return live_; }
  /// The largest bytes_allocated() so far.
  [[nodiscard]] std::int64_t max_memory() const override { return peak_; }
  /// Requested bytes of all calls so far; a reallocation counts what it adds.
  [[nodiscard]] std::int64_t total_bytes_allocated() const override { return total_; }
  /// Calls so far that requested memory.
  [[nodiscard]] std::int64_t num_allocations() const override { return count_; }
  /// Always tessera.
  [[nodiscard]] std::string backend_name() const override { return "tessera"; }

 private:
  [[nodiscard]] static bool is_alignment(std::int64_t alignment) noexcept {
    return alignment > 0 && (alignment & (alignment - 1)) == 0;
  }
  [[nodiscard]] static aligned_request request(std::int64_t bytes, std::int64_t alignment) noexcept {
    return {static_cast<std::size_t>(bytes), static_cast<std::size_t>(alignment)};
  }
  /// An aligned address for 0 bytes, which is not null.
  [[nodiscard]] static address no_memory(std::int64_t alignment) noexcept {
    return reinterpret_cast<address>(static_cast<std::uintptr_t>(alignment));
  }
  [[nodiscard]] address take(std::int64_t bytes, std::int64_t alignment) noexcept {
    return static_cast<address>(request(bytes, alignment).try_allocate(allocator_.get(), stream_id{}));
  }
  [[nodiscard]] status full(std::int64_t bytes) const {
    const usage now = allocator_.get().current_usage();
    return status::OutOfMemory("tessera: ", bytes, " bytes requested; live ", now.allocated, ", reserved ",
                               now.reserved, " of at most ", now.limit);
  }
  void add(std::int64_t bytes) noexcept {
    const std::int64_t live = live_ += bytes;
    std::int64_t peak = peak_;
    while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
    }
    total_ += bytes;
    ++count_;
  }

  detail::handle_of<A> allocator_;
  std::atomic<std::int64_t> live_{0}, peak_{0}, total_{0}, count_{0};
};

}  // namespace tessera::inline v0_1::interop
