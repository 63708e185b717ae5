// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

namespace tessera {

/// Addresses that any threads hand over and one at a time takes, in the order of handing over; bounded, without a lock.
class hand_over {
 public:
  struct item {
    void* address = nullptr;  ///< null stands for none
    std::size_t bytes = 0;
  };
  static constexpr std::size_t capacity = 1024;

  /// False where it is full.
  [[nodiscard]] bool push(item handed) noexcept {
    std::size_t at = end_.load(std::memory_order_relaxed);
    do {
      // Of a place behind those that were taken, it is known here that it is empty.
      const std::size_t taken = begin_.load(std::memory_order_acquire);
      if (static_cast<std::ptrdiff_t>(at - taken) >= static_cast<std::ptrdiff_t>(capacity)) return false;
    } while (!end_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel, std::memory_order_relaxed));
    place& mine = places_[at % capacity];
    mine.bytes = handed.bytes;
    mine.address.store(handed.address, std::memory_order_release);
    return true;
  }

  /// Takes the oldest one, or none where there is none or its push() has not ended.
  ///   Requires:  one call at a time
  [[nodiscard]] item take() noexcept {
    const std::size_t at = begin_.load(std::memory_order_relaxed);
    place& oldest = places_[at % capacity];
    void* const address = oldest.address.load(std::memory_order_acquire);
    if (address == nullptr) return {};
    const item taken{address, oldest.bytes};
    oldest.address.store(nullptr, std::memory_order_relaxed);
    begin_.store(at + 1, std::memory_order_release);
    return taken;
  }
  /// Calls f(item) for what was handed over before, and waits for a push() that has not ended.
  ///   Requires:  one call at a time; f may let another one in between
  template <typename F>
  void take_all(F f) noexcept {
    const std::size_t end = end_.load(std::memory_order_acquire);
    while (static_cast<std::ptrdiff_t>(end - begin_.load(std::memory_order_relaxed)) > 0) {
      if (const item taken = take(); taken.address != nullptr) {
        f(taken);
      } else {
        std::this_thread::yield();  // between two stores of another thread
      }
    }
  }

 private:
  struct place {
    std::atomic<void*> address{nullptr};
    std::size_t bytes = 0;
  };

  alignas(64) std::atomic<std::size_t> end_{0};
  alignas(64) std::atomic<std::size_t> begin_{0};
  alignas(64) std::array<place, capacity> places_;
};

}  // namespace tessera
