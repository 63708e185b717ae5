// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::detail {

struct deferred_free_options {
  /// Bytes to queue before they are freed. 0 frees at once; `unlimited` frees only at the end.
  std::size_t threshold = 0;
  bool waits = false;  ///< free only after the work on `stream` that uses the blocks
  stream_id stream{};
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::concurrent {

/// Queues blocks that a program no longer uses, and frees them together once they have `threshold` bytes.
///
/// Choose it if a program frees many blocks at once, for example after each operation of a graph. One thread
/// at a time may use it.
///
///     tessera::concurrent::deferred_free_queue garbage(allocator, {.threshold = 64_MiB});
///     garbage.push(allocator.allocate(40_MiB), 40_MiB);  // kept
///     garbage.push(allocator.allocate(40_MiB), 40_MiB);  // both are freed
///
/// Without `waits`, work that uses the blocks may still be running when they are freed. Later requests of the
/// same stream may use them at once. With `waits`, the queue records an event after that work and polls it.
/// The caller waits only if the device has no events, more than 1024 batches are pending, or host memory ran
/// out.
///
/// A device that captures a graph must not be asked for events. So with `waits`, while a scope_kind::capture is open, push(),
/// flush() and poll() only queue. The first of these calls after it flushes.
///   Requires:  the allocator outlives it. With `waits`, it is not destroyed or finished during a capture, because it would wait
///   Source:    Paddle's eager_delete_tensor_gb (a negative number means never), and fast_eager_deletion_mode
template <typename Allocator>
class deferred_free_queue {
 public:
  /// The bytes to queue (`threshold`; 0 frees at once, `unlimited` only at the end), and whether to free only
  /// after the work on `stream` (`waits`).
  using options = detail::deferred_free_options;

  /// Frees into an allocator. Aborts if `waits` is set and its device has no way to wait.
  explicit deferred_free_queue(Allocator& allocator, detail::deferred_free_options initial = {}) noexcept
      : allocator_(&allocator), options_(initial) {
    if constexpr (!provider::event_provider<device> && !can_synchronize) {
      if (initial.waits) detail::fatal("deferred_free_queue: to wait, the device must be an event_provider");
    }
  }
  deferred_free_queue& operator=(deferred_free_queue&&) = delete;
  ~deferred_free_queue() { finish(); }

  /// Takes ownership of a block, which counts as `bytes`. Ignores null.
  void push(void* p, std::size_t bytes) noexcept {
    poll();
    if (p == nullptr) return;
    item* const added = new (std::nothrow) item{p, queued_};
    if (added == nullptr) return free_now(p);
    queued_ = added;
    bytes_ = detail::saturating_add(bytes_, bytes);
    const bool is_full = bytes_ >= options_.threshold && options_.threshold != unlimited;
    if (options_.threshold <= 1 || is_full) flush();
  }
  /// Bytes that were pushed and not flushed yet.
  [[nodiscard]] std::size_t queued_bytes() const noexcept { return bytes_; }
  /// Whether flushed blocks still wait for the stream, or queued ones for the end of a capture.
  [[nodiscard]] bool has_pending() const noexcept { return oldest_ != nullptr || is_overdue_; }

  /// Frees the queued blocks now. With `waits`, frees them once the work before this call has completed.
  void flush() noexcept {
    is_overdue_ = queued_ != nullptr && options_.waits && is_capturing();
    if (!is_overdue_) flush_queued();
  }
  /// Frees the flushed blocks whose events have completed.
  void poll() noexcept {
    if (is_overdue_) flush();
    if constexpr (provider::event_provider<device>) {
      while (oldest_ != nullptr && !is_capturing() && ensure_recorded(*oldest_) &&
             allocator_->visit_provider([this](device& d) { return d.query(oldest_->mark); }))
        free_oldest();
    }
  }
  /// Frees all blocks. With `waits`, first waits for the stream.
  void finish() noexcept {
    flush_queued();
    while (oldest_ != nullptr) wait_and_free_oldest();
  }

 private:
  using device = detail::device_of<Allocator>;
  static constexpr bool can_synchronize = requires(device& d, stream_id s) { d.synchronize(s); };
  static constexpr std::size_t max_batches = 1024;

  struct item {
    void* address;
    item* next;
  };
  /// The blocks that wait for one event.
  struct batch {
    item* items;
    batch* next = nullptr;
    bool recorded = false;
    typename detail::event_of<device>::type mark{};
  };

  [[nodiscard]] bool is_capturing() const noexcept {
    if constexpr (detail::offers<Allocator, extension::private_pools>)
      return allocator_->template get<extension::private_pools>().is_capturing();
    return false;
  }
  void flush_queued() noexcept {
    is_overdue_ = false;
    item* const freed = std::exchange(queued_, nullptr);
    bytes_ = 0;
    if (freed == nullptr) return;
    if (!options_.waits) return free_all(freed);
    batch* const added = provider::event_provider<device> ? new (std::nothrow) batch{freed} : nullptr;
    if (added == nullptr) {
      wait_for_stream();
      return free_all(freed);
    }
    batch*& last_link = newest_ != nullptr ? newest_->next : oldest_;
    last_link = added;
    newest_ = added;
    (void)ensure_recorded(*added);
    if (++batches_ > max_batches) wait_and_free_oldest();
  }
  void free_all(item* first) noexcept {
    while (first != nullptr) {
      allocator_->deallocate(first->address);
      delete std::exchange(first, first->next);
    }
  }
  void free_now(void* p) noexcept {
    if (options_.waits) wait_for_stream();
    allocator_->deallocate(p);
  }
  void wait_for_stream() noexcept {
    allocator_->visit_provider([this](device& d) { (void)detail::finish_work(d, options_.stream); });
  }

  /// Records the event of a batch unless it is recorded already. If the device fails, a later call tries
  /// again.
  bool ensure_recorded(batch& b) noexcept {
    if constexpr (provider::event_provider<device>) {
      if (!b.recorded)
        b.recorded = allocator_->visit_provider([&](device& d) { return d.record(options_.stream, b.mark); });
    }
    return b.recorded;
  }
  void free_oldest() noexcept {
    if constexpr (provider::event_provider<device>) {
      if (oldest_->recorded) allocator_->visit_provider([this](device& d) { d.discard(oldest_->mark); });
    }
    batch* const removed = std::exchange(oldest_, oldest_->next);
    if (oldest_ == nullptr) newest_ = nullptr;
    --batches_;
    free_all(removed->items);
    delete removed;
  }
  void wait_and_free_oldest() noexcept {
    if constexpr (provider::event_provider<device>) {
      if (ensure_recorded(*oldest_))
        allocator_->visit_provider([this](device& d) { (void)d.wait(oldest_->mark); });
    }
    free_oldest();
  }

  Allocator* allocator_;
  options options_;
  item* queued_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_overdue_ = false;  // whether a capture kept the queued blocks from being flushed
  batch* oldest_ = nullptr;
  batch* newest_ = nullptr;
  std::size_t batches_ = 0;
};

}  // namespace tessera::inline v0_1::concurrent
