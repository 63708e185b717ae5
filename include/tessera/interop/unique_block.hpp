// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <tessera/core/stream.hpp>
#include <tessera/interop/allocator_ref.hpp>

namespace tessera {

/// Owns a block of an allocator and gives it back when it ends; where default or moved from, none.
///
///     #include <tessera/concurrent/locked.hpp>
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device> pool;
///     tessera::unique_block weights = tessera::make_block(pool, 1000, tessera::stream_id{1});
///     if (!weights.record_stream(tessera::stream_id{2})) return;
///     std::printf("%zu bytes at %p\n", weights.size(), weights.get());
///
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
template <typename A>
class unique_block {
  static_assert(check_allocator<allocator_behind<A>>());

 public:
  unique_block() = default;
  /// Takes over a live block of `bytes`, as they were requested on `stream`; of null, none.
  unique_block(allocator_argument<A> from, void* p, std::size_t bytes, stream_id stream = {}) noexcept
      : from_(from), p_(p), bytes_(p != nullptr ? bytes : 0), stream_(stream) {}
  unique_block(unique_block&& other) noexcept
      : from_(std::move(other.from_)),
        p_(std::exchange(other.p_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        stream_(other.stream_) {}
  unique_block& operator=(unique_block&& other) noexcept {
    unique_block taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~unique_block() { reset(); }

  /// The block's address; null where there is none.
  [[nodiscard]] void* get() const noexcept { return p_; }
  [[nodiscard]] explicit operator bool() const noexcept { return p_ != nullptr; }
  /// Bytes as they were requested; 0 where there is none.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  /// The stream that it was requested on.
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

  /// Notes that `stream` uses the block, so that giving it back waits for that use; false where nothing is noted, as the
  /// allocator's record_stream says, and where there is no block.
  [[nodiscard]] bool record_stream(stream_id stream) noexcept {
    return p_ != nullptr && from_.get().record_stream(p_, stream);
  }
  /// Gives the block back.
  void reset() noexcept {
    if (p_ != nullptr) from_.get().deallocate(std::exchange(p_, nullptr), std::exchange(bytes_, 0));
  }
  /// Leaves the block to the caller, who gives it back to the allocator.
  [[nodiscard]] void* release() noexcept {
    bytes_ = 0;
    return std::exchange(p_, nullptr);
  }
  void swap(unique_block& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(p_, other.p_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }
  friend void swap(unique_block& a, unique_block& b) noexcept { a.swap(b); }

 private:
  handle_of<A> from_{};
  void* p_ = nullptr;
  std::size_t bytes_ = 0;
  stream_id stream_{};
};
template <typename A>
unique_block(A&&, void*, std::size_t, stream_id = {}) -> unique_block<std::remove_cvref_t<A>>;

/// A new block of `bytes` on `stream`; of 0 bytes, none.
///   Throws:  what the allocator's allocate throws
template <typename A>
  requires(std::is_lvalue_reference_v<A> || allocator_handle<A>)
[[nodiscard]] unique_block<std::remove_cvref_t<A>> make_block(A&& from, std::size_t bytes,
                                                              stream_id stream = {}) {
  handle_of<std::remove_cvref_t<A>> in(from);
  return {from, in.get().allocate(bytes, stream), bytes, stream};
}
/// The same, but none where make_block throws.
template <typename A>
  requires(std::is_lvalue_reference_v<A> || allocator_handle<A>)
[[nodiscard]] unique_block<std::remove_cvref_t<A>> try_make_block(A&& from, std::size_t bytes,
                                                                  stream_id stream = {}) noexcept {
  handle_of<std::remove_cvref_t<A>> in(from);
  return {from, in.get().try_allocate(bytes, stream), bytes, stream};
}

/// Gives back to an allocator what a std::unique_ptr or std::shared_ptr owns, without ending any objects there.
///
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool;
///     using deleter = tessera::block_deleter<decltype(pool)>;
///     std::unique_ptr<float[], deleter> row(static_cast<float*>(pool.allocate(4000)), deleter(pool));
///
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
template <typename A>
class block_deleter {
  static_assert(check_allocator<allocator_behind<A>>());

 public:
  block_deleter() = default;
  explicit block_deleter(allocator_argument<A> from) noexcept : from_(from) {}
  template <typename T>
  void operator()(T* p) const noexcept {
    static_assert(std::is_void_v<T> || std::is_trivially_destructible_v<T>,
                  "block_deleter: what it gives back must need no destructor");
    from_.get().deallocate(const_cast<std::remove_cv_t<T>*>(p));
  }

 private:
  handle_of<A> from_{};
};
template <typename A>
block_deleter(A&&) -> block_deleter<std::remove_cvref_t<A>>;

}  // namespace tessera
