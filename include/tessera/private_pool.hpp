// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

namespace detail {
/// Whether an allocator makes pools that take their segments from a source.
template <typename Allocator>
concept has_pools_of_memory_sources =
    requires(Allocator& a, const memory_source& from, pool_options options) { a.create_pool(from, options); };
}  // namespace detail

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
/// A scope selects streams, not threads: it directs the requests of all threads.
///   Requires:  the allocator outlives it
///   Source:    PyTorch's torch.cuda.MemPool
template <typename Allocator>
class private_pool {
 public:
  ///   Throws:  std::bad_alloc if host memory ran out, or if the allocator of an any_allocator has no pools
  explicit private_pool(Allocator& allocator, pool_options options = {})
      : private_pool(allocator, allocator.create_pool(options)) {}
  /// Takes the segments of the pool from a source. The recipe must not map memory into ranges.
  ///   Requires:  the object of the source outlives the allocator
  ///   Throws:    std::bad_alloc if host memory ran out
  private_pool(Allocator& allocator, const memory_source& from, pool_options options = {})
    requires detail::has_pools_of_memory_sources<Allocator>
      : private_pool(allocator, allocator.create_pool(from, options)) {}
  template <typename Missing = detail::missing::memory_sources_need_a_recipe_that_acquires_segments>
    requires(!detail::has_pools_of_memory_sources<Allocator>)
  private_pool(Allocator& allocator, const memory_source& from, pool_options options = {}) = delete;
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

  /// Records which blocks the pool has, and which of them are live. restore() brings that state back.
  ///
  ///     tessera::private_pool graph_memory(allocator);
  ///     void* result = nullptr;
  ///     {
  ///       const tessera::pool_scope capture(graph_memory);
  ///       result = allocator.allocate(5_MiB);
  ///     }
  ///     const tessera::pool_checkpoint captured = graph_memory.checkpoint();
  ///     allocator.deallocate(result);
  ///     if (graph_memory.restore(captured)) allocator.deallocate(result);  // it was live again
  ///
  ///   Returns:  a checkpoint, or why there is none, as checkpoint_pool [tessera/caching_allocator.hpp]
  template <typename A = Allocator>
  [[nodiscard]] auto checkpoint() noexcept -> decltype(std::declval<A&>().checkpoint_pool(pool_id{})) {
    return id_ != pool_id{} ? allocator_->checkpoint_pool(id_) : pool_checkpoint(moved_from);
  }
  /// Frees each live block of the pool, and makes the blocks live again that `from` recorded as live. Without
  /// segments acquired since, the same requests then get the same addresses as after the checkpoint.
  ///   Returns:  the addresses that were freed and that are live now, or why nothing changed, as restore_pool
  ///             [tessera/caching_allocator.hpp]; also fails for a checkpoint of another pool
  template <typename A = Allocator>
  auto restore(const pool_checkpoint& from) noexcept -> decltype(std::declval<A&>().restore_pool(from)) {
    if (id_ == pool_id{}) return {.why = moved_from};
    if (from && from.pool() != id_) return {.why = "the checkpoint is of another pool"};
    return allocator_->restore_pool(from);
  }

  /// Sets what the pool may hold, and what is kept for it. A captured graph must not use a pool with a share,
  /// because its idle memory may go back.
  ///   Requires:  the growth policy of the allocator answers `admits`, like guarantee_shares
  ///   Returns:   as set_share [tessera/caching_allocator.hpp]
  template <typename A = Allocator>
  [[nodiscard]] auto set_share(pool_share share) noexcept
      -> decltype(std::declval<A&>().set_share(pool_id{}, share)) {
    return id_ != pool_id{} ? allocator_->set_share(id_, share) : share_result{.why = moved_from};
  }
  template <typename A = Allocator>
  [[nodiscard]] auto share() const noexcept -> decltype(std::declval<const A&>().share_of(pool_id{})) {
    return id_ != pool_id{} ? allocator_->share_of(id_) : pool_share{};
  }
  ///   Cost:  linear in the blocks of the allocator
  template <typename A = Allocator>
  [[nodiscard]] auto current_usage() const noexcept
      -> decltype(std::declval<const A&>().bytes_of_pool(pool_id{})) {
    return id_ != pool_id{} ? allocator_->bytes_of_pool(id_) : pool_usage{};
  }

  /// Gives back the pool's memory, even under live blocks. Addresses stay. Until wake(), the pool serves no
  /// requests.
  ///   Returns:  the bytes that went back, or why nothing changed, as sleep [tessera/caching_allocator.hpp]
  template <typename A = Allocator>
  auto sleep(sleep_contents contents, stream_id copies = {}) noexcept
      -> decltype(std::declval<A&>().sleep_pool(pool_id{}, contents, copies)) {
    return id_ != pool_id{} ? allocator_->sleep_pool(id_, contents, copies) : sleep_result{.why = moved_from};
  }
  /// Maps memory at the pool's addresses again, all of it or none, and copies saved contents back.
  ///   Returns:  the bytes that came from the device, or why nothing changed, and how many bytes are missing
  template <typename A = Allocator>
  auto wake(stream_id copies = {}) noexcept -> decltype(std::declval<A&>().wake_pool(pool_id{}, copies)) {
    return id_ != pool_id{} ? allocator_->wake_pool(id_, copies) : sleep_result{.why = moved_from};
  }
  [[nodiscard]] bool is_asleep() const noexcept { return id_ != pool_id{} && allocator_->is_asleep(id_); }

  /// Names the pool for functions of the allocator. Names no pool after a move.
  [[nodiscard]] pool_id id() const noexcept { return id_; }
  [[nodiscard]] Allocator& allocator() const noexcept { return *allocator_; }

 private:
  private_pool(Allocator& allocator, pool_id id) : allocator_(&allocator), id_(id) {
    if (id_ == pool_id{}) detail::raise(std::bad_alloc());
  }
  static constexpr const char* moved_from = "the private_pool was moved from";

  Allocator* allocator_;
  pool_id id_;
};
// clang 14 finds two constructors for these arguments.
template <typename Allocator>
private_pool(Allocator&, const memory_source&) -> private_pool<Allocator>;
template <typename Allocator>
private_pool(Allocator&, const memory_source&, pool_options) -> private_pool<Allocator>;

/// Directs requests to a private pool while it lives.
///
/// Scopes of several pools may be open at a time, and may end in any order. If several select a stream, the
/// oldest decides. begin_allocate_to_pool [tessera/caching_allocator.hpp] describes what else changes while a
/// scope of the kind capture is open.
///   Requires:  it ends before the private_pool does; otherwise the program aborts
template <typename Allocator>
class pool_scope {
 public:
  /// Directs the requests of the streams that `streams` selects; by default, of all streams.
  ///   Requires:  no scope of the pool is open, it does not sleep, and it was not moved from; otherwise the
  ///              program aborts
  explicit pool_scope(const private_pool<Allocator>& pool, stream_filter streams = {},
                      scope_kind kind = scope_kind::capture) noexcept
      : allocator_(&pool.allocator()), id_(pool.id()) {
    if (!allocator_->begin_allocate_to_pool(id_, streams, kind))
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
