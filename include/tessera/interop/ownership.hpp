// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/interop/allocator_handle.hpp>

/// Owners of blocks and of allocators: unique_block and shared_allocator.

namespace tessera::inline v0_1::interop {

/// Owns a block and deallocates it in its destructor. A default constructed or moved-from unique_block owns
/// no block. make_block allocates one.
///
///     #include <tessera/concurrent/locked.hpp>
///     tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>> allocator;
///     tessera::interop::unique_block weights = tessera::interop::make_block(allocator, 1000, tessera::stream_id{1});
///     if (!weights.record_stream(tessera::stream_id{2})) return;
///     std::printf("%zu bytes at %p\n", weights.size(), weights.get());
///
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
template <typename A>
class unique_block {
  static_assert(detail::check_allocator<detail::allocator_of<A>>());

 public:
  unique_block() = default;
  /// Takes ownership of a live block of `bytes` requested on `stream`, or of none if `p` is null.
  unique_block(detail::handle_argument<A> allocator, void* p, std::size_t bytes,
               stream_id stream = {}) noexcept
      : allocator_(allocator), p_(p), bytes_(p != nullptr ? bytes : 0), stream_(stream) {}
  /// Takes over the block; `other` owns none afterwards.
  unique_block(unique_block&& other) noexcept
      : allocator_(std::move(other.allocator_)),
        p_(std::exchange(other.p_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        stream_(other.stream_) {}
  /// Frees its own block, and takes over that of `other`, which owns none afterwards.
  unique_block& operator=(unique_block&& other) noexcept {
    unique_block moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~unique_block() { reset(); }

  /// The address of the block, or null.
  [[nodiscard]] void* get() const noexcept { return p_; }
  /// Whether it owns a block.
  [[nodiscard]] explicit operator bool() const noexcept { return p_ != nullptr; }
  /// The requested bytes, or 0.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  /// The stream of the request.
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

  /// Records that `stream` uses the block, so that its memory is not reused before that use completes.
  ///   Returns:  the result of the allocator's record_stream; false if there is no block
  [[nodiscard]] bool record_stream(stream_id stream) noexcept {
    return p_ != nullptr && allocator_.get().record_stream(p_, stream);
  }
  /// Deallocates the block.
  void reset() noexcept {
    if (p_ != nullptr) allocator_.get().deallocate(std::exchange(p_, nullptr), std::exchange(bytes_, 0));
  }
  /// Releases ownership. The caller must deallocate the block.
  [[nodiscard]] void* release() noexcept {
    bytes_ = 0;
    return std::exchange(p_, nullptr);
  }
  /// Exchanges the blocks, and the allocators to which they go back.
  void swap(unique_block& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(p_, other.p_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }
  friend void swap(unique_block& a, unique_block& b) noexcept { a.swap(b); }

  /// A deleter for std::unique_ptr and std::shared_ptr that returns the memory to an allocator. It calls no
  /// destructor.
  ///
  ///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
  ///     using deleter = tessera::interop::unique_block<decltype(allocator)>::deleter;
  ///     auto* const floats = static_cast<float*>(allocator.allocate(4000));
  ///     std::unique_ptr<float[], deleter> row(floats, deleter(allocator));
  ///
  ///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
  class deleter {
   public:
    deleter() = default;
    /// Returns memory to this allocator.
    explicit deleter(detail::handle_argument<A> allocator) noexcept : allocator_(allocator) {}
    /// Frees the memory. A type whose destructor does something does not compile.
    template <typename T>
    void operator()(T* p) const noexcept {
      static_assert(std::is_void_v<T> || std::is_trivially_destructible_v<T>,
                    "unique_block::deleter: the type must be void or trivially destructible");
      allocator_.get().deallocate(const_cast<std::remove_cv_t<T>*>(p));
    }

   private:
    detail::handle_of<A> allocator_{};
  };

 private:
  detail::handle_of<A> allocator_{};
  void* p_ = nullptr;
  std::size_t bytes_ = 0;
  stream_id stream_{};
};
template <typename A>
unique_block(A&&, void*, std::size_t, stream_id = {}) -> unique_block<std::remove_cvref_t<A>>;

/// Allocates a block of `bytes` on `stream`; none for 0 bytes.
///   Throws:  the exceptions of the allocator's allocate
template <typename A>
  requires(std::is_lvalue_reference_v<A> || detail::allocator_handle<A>)
[[nodiscard]] unique_block<std::remove_cvref_t<A>> make_block(A&& allocator, std::size_t bytes,
                                                              stream_id stream = {}) {
  detail::handle_of<std::remove_cvref_t<A>> handle(allocator);
  return {allocator, handle.get().allocate(bytes, stream), bytes, stream};
}
/// Shares the ownership of an allocator among its copies. The last copy destroys the allocator. Choose it if
/// memory may outlive the scope that made the allocator. It has the common interface of allocators; `->`
/// reaches the rest of `A`.
///
///     #include <tessera/concurrent/locked.hpp>
///     using allocator_type = tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
///     auto allocator = tessera::interop::shared_allocator<allocator_type>::make();
///     auto same = allocator;
///     same.deallocate(allocator.allocate(1000));
///     std::printf("%zu bytes reserved\n", allocator->current_usage().reserved);
///
/// Threads may copy and destroy their own handles at any time. `A` decides whether other calls are
/// thread-safe. A default constructed or moved-from handle owns nothing and may only be assigned to, compared
/// and destroyed.
///   Cost:  an atomic increment for a copy; one more load for a call
template <typename A>
class shared_allocator : public allocator_adaptor<shared_allocator<A>, A> {
 public:
  shared_allocator() = default;
  /// Makes an allocator from `args` and returns its first handle.
  ///   Throws:  std::bad_alloc if host memory is exhausted, and the exceptions of the constructor of `A`
  template <typename... Args>
  [[nodiscard]] static shared_allocator make(Args&&... args) {
    return shared_allocator(std::make_shared<A>(std::forward<Args>(args)...));
  }
  ///   Requires:  not null; aborts otherwise
  explicit shared_allocator(std::shared_ptr<A> allocator) noexcept : allocator_(std::move(allocator)) {
    if (allocator_ == nullptr) detail::fatal("shared_allocator: the pointer is null");
  }

  /// The allocator. The handle must own one.
  [[nodiscard]] A& get() const noexcept { return *allocator_; }
  /// The same.
  [[nodiscard]] A& operator*() const noexcept { return *allocator_; }
  /// Lets the handle call the allocator, as a pointer does.
  [[nodiscard]] A* operator->() const noexcept { return allocator_.get(); }
  [[nodiscard]] friend bool operator==(const shared_allocator& a, const shared_allocator& b) noexcept {
    return a.allocator_ == b.allocator_;
  }

 private:
  friend allocator_adaptor<shared_allocator, A>;
  template <typename Self, typename F>
  static decltype(auto) enter(Self& self, F&& f) {
    return std::forward<F>(f)(*self.allocator_);
  }

  std::shared_ptr<A> allocator_;
};

}  // namespace tessera::inline v0_1::interop
