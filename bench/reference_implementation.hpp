// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>

namespace bench {

using namespace tessera::literals;

/// Takes no lock: the mutex of an allocator that one thread uses.
struct no_mutex {
  void lock() {}
  void unlock() {}
};

/// A plain implementation of PyTorch's native caching allocator with default settings. It makes the decisions of
/// `tessera::recipe::pytorch<>` and keeps the same statistics. Free blocks are in a `std::set` ordered by stream, size and
/// address; a `std::unordered_map` finds a live block by its address. Each call locks `Mutex`.
template <typename Provider, typename Mutex = no_mutex>
class reference_implementation {
 public:
  explicit reference_implementation(Provider device) : device_(std::move(device)) {}
  reference_implementation(const reference_implementation&) = delete;
  reference_implementation& operator=(const reference_implementation&) = delete;
  ~reference_implementation() {
    release_cached();
    for (auto& [address, b] : live_) delete b;
  }

  void* try_allocate(std::size_t bytes, tessera::stream_id stream = {}) {
    const std::lock_guard lock(mutex_);
    free_completed(false);
    const std::size_t size = tessera::align_up(bytes, 512);
    const bool small = size <= 1_MiB;
    auto& pool = small ? small_ : large_;
    block key{stream, size, 0, small};
    block* b = nullptr;
    if (auto it = pool.lower_bound(&key); it != pool.end() && (*it)->stream == stream) {
      b = *it;
      pool.erase(it);
    } else {
      b = grow(stream, size, small);
      if (b == nullptr) return nullptr;
    }
    const bool was_split = b->is_split();
    const std::size_t rest = b->size - size;
    if (small ? rest >= 512 : rest > 1_MiB) {
      auto* front = new block{stream, size, b->address, small};
      front->previous = b->previous;
      if (front->previous != nullptr) front->previous->next = front;
      front->next = b;
      b->previous = front;
      b->address += size;
      b->size = rest;
      pool.insert(b);
      count(small, [&](tessera::pool_statistics& s) {
        if (!was_split) s.inactive_split.increase(1);
        s.inactive_split_bytes.change(was_split ? -as_signed(size) : as_signed(rest));
      });
      b = front;
    } else if (was_split) {
      count(small, [&](tessera::pool_statistics& s) {
        s.inactive_split.decrease(1);
        s.inactive_split_bytes.decrease(as_signed(b->size));
      });
    }
    b->live = true;
    b->requested = bytes;
    live_.emplace(reinterpret_cast<void*>(b->address), b);
    count(small, [&](tessera::pool_statistics& s) {
      s.allocation.increase(1);
      s.allocated_bytes.increase(as_signed(b->size));
      s.active.increase(1);
      s.active_bytes.increase(as_signed(b->size));
      s.requested_bytes.increase(as_signed(bytes));
    });
    return reinterpret_cast<void*>(b->address);
  }

  void deallocate(void* p) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(p);
    if (found == live_.end()) return;
    block* const b = found->second;
    live_.erase(found);
    count(b->small, [&](tessera::pool_statistics& s) {
      s.allocation.decrease(1);
      s.allocated_bytes.decrease(as_signed(b->size));
    });
    if (b->uses.empty()) return free(b);
    for (tessera::stream_id stream : std::exchange(b->uses, {})) {
      typename Provider::event event;
      device_.record(stream, event);
      pending_[stream].emplace_back(event, b);
      ++b->events;
    }
  }

  void record_stream(void* p, tessera::stream_id stream) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(p);
    if (found != live_.end() && found->second->stream != stream) found->second->uses.insert(stream);
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    release_cached();
  }

  Provider& provider() { return device_; }
  [[nodiscard]] const tessera::statistics<2>& statistics() const { return statistics_; }

 private:
  struct block {
    tessera::stream_id stream;
    std::size_t size;
    std::uintptr_t address;
    bool small;
    block* previous = nullptr;
    block* next = nullptr;
    bool live = false;
    std::size_t requested = 0;
    int events = 0;
    std::set<tessera::stream_id> uses{};
    [[nodiscard]] bool is_split() const { return previous != nullptr || next != nullptr; }
  };
  struct by_size {
    bool operator()(const block* a, const block* b) const {
      if (a->stream != b->stream) return a->stream < b->stream;
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };

  static std::int64_t as_signed(std::size_t n) { return static_cast<std::int64_t>(n); }
  template <typename F>
  void count(bool small, F f) {
    f(statistics_.all);
    f(statistics_.pool[small ? 0 : 1]);
  }

  void free(block* b) {
    auto& pool = b->small ? small_ : large_;
    const std::size_t size = b->size;
    std::int64_t split_blocks = 0;
    std::int64_t bytes = 0;
    b->live = false;
    for (block* other : {b->previous, b->next}) {
      if (other == nullptr || other->live) continue;
      pool.erase(other);
      --split_blocks;
      bytes -= as_signed(other->size);
      block* const low = other == b->previous ? other : b;
      block* const high = other == b->previous ? b : other;
      b->size += other->size;
      b->address = low->address;
      b->previous = low->previous;
      b->next = high->next;
      if (b->previous != nullptr) b->previous->next = b;
      if (b->next != nullptr) b->next->previous = b;
      delete other;
    }
    pool.insert(b);
    if (b->is_split()) {
      ++split_blocks;
      bytes += as_signed(b->size);
    }
    count(b->small, [&](tessera::pool_statistics& s) {
      s.inactive_split.change(split_blocks);
      s.inactive_split_bytes.change(bytes);
      s.active.decrease(1);
      s.active_bytes.decrease(as_signed(size));
      s.requested_bytes.decrease(as_signed(b->requested));
    });
  }

  void free_completed(bool wait) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      auto& queue = it->second;
      while (!queue.empty()) {
        auto& [event, b] = queue.front();
        if (wait ? !device_.wait(event) : !device_.query(event)) break;
        block* const done = b;
        queue.pop_front();
        if (--done->events == 0) free(done);
      }
      it = queue.empty() ? pending_.erase(it) : std::next(it);
    }
  }

  /// Waits for pending blocks, then releases every segment that holds one free block only.
  void release_cached() {
    free_completed(true);
    for (auto* pool : {&large_, &small_}) {
      for (auto it = pool->begin(); it != pool->end();) {
        block* const b = *it;
        if (b->is_split()) {
          ++it;
          continue;
        }
        it = pool->erase(it);
        device_.release(reinterpret_cast<void*>(b->address), b->size);
        count(b->small, [&](tessera::pool_statistics& s) {
          s.segment.decrease(1);
          s.reserved_bytes.decrease(as_signed(b->size));
        });
        delete b;
      }
    }
  }

  block* grow(tessera::stream_id stream, std::size_t size, bool small) {
    const std::size_t bytes = small ? 2_MiB : size < 10_MiB ? 20_MiB : tessera::align_up(size, 2_MiB);
    void* segment = device_.acquire(bytes);
    if (segment == nullptr) {
      release_cached();
      segment = device_.acquire(bytes);
    }
    if (segment == nullptr) return nullptr;
    count(small, [&](tessera::pool_statistics& s) {
      s.segment.increase(1);
      s.reserved_bytes.increase(as_signed(bytes));
    });
    return new block{stream, bytes, reinterpret_cast<std::uintptr_t>(segment), small};
  }

  Provider device_;
  Mutex mutex_;
  std::set<block*, by_size> small_;
  std::set<block*, by_size> large_;
  std::unordered_map<void*, block*> live_;
  std::map<tessera::stream_id, std::deque<std::pair<typename Provider::event, block*>>> pending_;
  tessera::statistics<2> statistics_;
};

}  // namespace bench
