// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// A private pool: memory of an allocator that serves only requests directed to it.
///
/// Choose it to keep memory apart, for example the memory of a captured graph. While a pool_scope is open, the
/// requests of its streams go to the pool. A block returns to its pool when it is freed, in any scope. The
/// pool's cached segments stay reserved while the object lives. After that, the next trim or recovery of the
/// allocator releases them.
///
///     tessera::private_pool graph_memory(allocator);
///     void* p = nullptr;
///     {
///       const tessera::pool_scope capture(graph_memory, tessera::stream_id{1});
///       p = allocator.allocate(5_MiB, tessera::stream_id{1});  // from the pool
///     }
///     allocator.deallocate(p);  // to the pool
///
/// `Allocator` is a caching_allocator, a front end of one, such as locked or per_stream, or an any_allocator.
/// Scopes of an allocator for several threads direct the requests of all threads.
///   Requires:  the allocator outlives it
///   Source:    PyTorch's torch.cuda.MemPool
template <typename Allocator>
class private_pool {
 public:
  ///   Throws:  std::bad_alloc if host memory ran out, or if the allocator of an any_allocator has no pools
  explicit private_pool(Allocator& allocator) : allocator_(&allocator), id_(allocator.create_pool()) {
    if (id_ == pool_id{}) detail::raise(std::bad_alloc());
  }
  private_pool(private_pool&& other) noexcept
      : allocator_(other.allocator_), id_(std::exchange(other.id_, {})) {}
  private_pool& operator=(private_pool&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(id_, other.id_);
    return *this;
  }
  /// Removes the object's use of the pool.
  ///   Requires:  no scope of the pool is open; otherwise the program aborts
  ~private_pool() {
    if (id_ != pool_id{} && !allocator_->release_pool(id_))
      detail::fatal("private_pool: destroyed while its scope is open");
  }

  /// Gives back the pool's memory, even under live blocks. Addresses stay. Until wake(), the pool serves no
  /// requests.
  ///   Returns:  the bytes that went back, or why nothing changed, as sleep [tessera/caching_allocator.hpp]
  sleep_result sleep(sleep_contents contents, stream_id copies = {}) noexcept {
    return id_ != pool_id{} ? allocator_->sleep_pool(id_, contents, copies) : sleep_result{.why = moved_from};
  }
  /// Maps memory at the pool's addresses again, all of it or none, and copies saved contents back.
  ///   Returns:  the bytes that came from the device, or why nothing changed, and how many bytes are missing
  sleep_result wake(stream_id copies = {}) noexcept {
    return id_ != pool_id{} ? allocator_->wake_pool(id_, copies) : sleep_result{.why = moved_from};
  }
  [[nodiscard]] bool is_asleep() const noexcept { return id_ != pool_id{} && allocator_->is_asleep(id_); }

  /// Names the pool for functions of the allocator. Names no pool after a move.
  [[nodiscard]] pool_id id() const noexcept { return id_; }
  [[nodiscard]] Allocator& allocator() const noexcept { return *allocator_; }

 private:
  static constexpr const char* moved_from = "the private_pool was moved from";

  Allocator* allocator_;
  pool_id id_;
};

/// Directs requests to a private pool while it lives.
///
/// Scopes of several pools may be open at a time, and may end in any order. If several select a stream, the
/// oldest decides. begin_allocate_to_pool [tessera/caching_allocator.hpp] describes what requests and frees do
/// while any scope is open.
///   Requires:  it ends before the private_pool does; otherwise the program aborts
template <typename Allocator>
class pool_scope {
 public:
  /// Directs the requests of the streams that `streams` selects; by default, of all streams.
  ///   Requires:  no scope of the pool is open, it does not sleep, and it was not moved from; otherwise the
  ///              program aborts
  explicit pool_scope(const private_pool<Allocator>& pool, stream_filter streams = {}) noexcept
      : allocator_(&pool.allocator()), id_(pool.id()) {
    if (!allocator_->begin_allocate_to_pool(id_, streams))
      detail::fatal("pool_scope: a scope of the pool is open, the pool sleeps, or it was moved from");
  }
  pool_scope(const pool_scope&) = delete;
  pool_scope& operator=(const pool_scope&) = delete;
  ~pool_scope() { (void)allocator_->end_allocate_to_pool(id_); }

 private:
  Allocator* allocator_;
  pool_id id_;
};

}  // namespace tessera
