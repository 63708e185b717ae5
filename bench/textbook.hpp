// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>

namespace bench {

/// The caching allocator as one would write it from a textbook: an ordered set of free blocks by (stream, size,
/// address), a hash map from address to block, one mutex. It decides as the pytorch recipe with default settings.
template <typename Provider>
class textbook {
 public:
  explicit textbook(Provider device) : device_(std::move(device)) {}
  textbook(const textbook&) = delete;
  textbook& operator=(const textbook&) = delete;
  ~textbook() {
    trim();
    for (auto& [address, b] : live_) delete b;
  }

  void* try_allocate(std::size_t bytes, tessera::stream_id stream = {}) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = tessera::align_up(bytes, 512);
    const bool small = size <= tessera::operator""_MiB(1);
    auto& pool = small ? small_ : large_;
    block wanted{stream, size, 0, small, nullptr, nullptr, false};
    block* b = nullptr;
    if (auto it = pool.lower_bound(&wanted); it != pool.end() && (*it)->stream == stream) {
      b = *it;
      pool.erase(it);
    } else {
      b = grow(stream, size, small);
      if (b == nullptr) return nullptr;
    }
    const std::size_t rest = b->size - size;
    if (small ? rest >= 512 : rest > tessera::operator""_MiB(1)) {
      auto* tail = new block{stream, rest, b->address + size, small, b, b->next, false};
      if (tail->next != nullptr) tail->next->previous = tail;
      b->next = tail;
      b->size = size;
      pool.insert(tail);
    }
    b->live = true;
    live_.emplace(reinterpret_cast<void*>(b->address), b);
    allocated_ += b->size;
    if (allocated_ > peak_) peak_ = allocated_;
    return reinterpret_cast<void*>(b->address);
  }

  void deallocate(void* p) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(p);
    if (found == live_.end()) return;
    block* b = found->second;
    live_.erase(found);
    allocated_ -= b->size;
    b->live = false;
    auto& pool = b->small ? small_ : large_;
    if (block* low = b->previous; low != nullptr && !low->live) {
      pool.erase(low);
      low->size += b->size;
      low->next = b->next;
      if (low->next != nullptr) low->next->previous = low;
      delete b;
      b = low;
    }
    if (block* high = b->next; high != nullptr && !high->live) {
      pool.erase(high);
      b->size += high->size;
      b->next = high->next;
      if (b->next != nullptr) b->next->previous = b;
      delete high;
    }
    pool.insert(b);
  }

  void record_stream(void*, tessera::stream_id) {}

  void trim() {
    for (auto* pool : {&large_, &small_}) {
      for (auto it = pool->begin(); it != pool->end();) {
        block* b = *it;
        if (b->previous != nullptr || b->next != nullptr) {
          ++it;
          continue;
        }
        it = pool->erase(it);
        device_.release(reinterpret_cast<void*>(b->address), b->size);
        delete b;
      }
    }
  }

  Provider& device() { return device_; }

 private:
  struct block {
    tessera::stream_id stream;
    std::size_t size;
    std::uintptr_t address;
    bool small;
    block* previous;
    block* next;
    bool live;
  };
  struct by_size {
    bool operator()(const block* a, const block* b) const {
      if (a->stream != b->stream) return a->stream < b->stream;
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };

  block* grow(tessera::stream_id stream, std::size_t size, bool small) {
    using namespace tessera::literals;
    const std::size_t bytes = small ? 2_MiB : size < 10_MiB ? 20_MiB : tessera::align_up(size, 2_MiB);
    void* given = device_.acquire(bytes);
    if (given == nullptr) {
      trim();
      given = device_.acquire(bytes);
    }
    if (given == nullptr) return nullptr;
    return new block{stream, bytes, reinterpret_cast<std::uintptr_t>(given), small, nullptr, nullptr, false};
  }

  Provider device_;
  std::mutex mutex_;
  std::set<block*, by_size> small_;
  std::set<block*, by_size> large_;
  std::unordered_map<void*, block*> live_;
  std::size_t allocated_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace bench
