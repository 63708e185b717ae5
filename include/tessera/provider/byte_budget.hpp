// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

#include <tessera/core/bytes.hpp>

namespace tessera {

/// How much memory any threads together may take from a device.
///
/// It is exact: what is being asked for counts as taken, and who is in want for that reason alone waits until it is known
/// whether it was given.
///
///     tessera::byte_budget budget(1_GiB);
///     tessera::simulated_device device;
///     void* p = nullptr;
///     if (budget.take(2_MiB, 0, [&] { return (p = device.acquire(2_MiB)) != nullptr; }) && device.release(p, 2_MiB))
///       budget.give_back(2_MiB);
class byte_budget {
 public:
  explicit byte_budget(std::size_t limit) noexcept : limit_(limit) {}
  byte_budget(const byte_budget&) = delete;
  byte_budget& operator=(const byte_budget&) = delete;

  [[nodiscard]] std::size_t limit() const noexcept {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  /// Does not take back what is above it.
  void set_limit(std::size_t limit) noexcept {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
    settled_.notify_all();
  }
  [[nodiscard]] std::size_t taken() const noexcept {
    const std::lock_guard lock(mutex_);
    return taken_;
  }
  /// The most that were taken at one time, since the start or the last reset_peak(). Never less than the device gave; what
  /// several threads give back and take at once may count as taken at one time.
  [[nodiscard]] std::size_t peak() const noexcept {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() noexcept {
    const std::lock_guard lock(mutex_);
    peak_ = taken_;
  }
  /// Bytes that may still be taken.
  [[nodiscard]] std::size_t left() const noexcept {
    const std::lock_guard lock(mutex_);
    return limit_ > taken_ ? limit_ - taken_ : 0;
  }
  /// Whether `bytes` more than what is taken would pass the limit; just at it is not past it.
  [[nodiscard]] bool is_passed_by(std::size_t bytes) const noexcept {
    const std::lock_guard lock(mutex_);
    return !has_room(bytes);
  }

  /// Calls ask(), which says whether the device gave `bytes`, if that passes the limit by at most `beyond` bytes; whether it
  /// gave them. No lock is held meanwhile; ask() may use the budget, but for this call.
  template <typename F>
  [[nodiscard]] bool take(std::size_t bytes, std::size_t beyond, F ask) noexcept {
    std::size_t given_back = 0;
    {
      const std::size_t within = bytes - beyond;
      std::unique_lock lock(mutex_);
      settled_.wait(lock, [&] { return !has_room(within) || has_room(saturating_add(asked_for_, within)); });
      if (!has_room(within)) return false;
      asked_for_ += bytes;
      given_back = given_back_;
    }
    const bool given = ask();
    const std::lock_guard lock(mutex_);
    asked_for_ -= bytes;
    if (given) {
      taken_ += bytes;
      // The device may have given this before it took back what was given back meanwhile.
      const std::size_t most = taken_ + (given_back_ - given_back);
      if (most > peak_) peak_ = most;
    }
    settled_.notify_all();
    return given;
  }
  void give_back(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
    given_back_ += bytes;
    settled_.notify_all();
  }

 private:
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept {
    return saturating_add(taken_, bytes) <= limit_;
  }

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::size_t limit_;
  std::size_t taken_ = 0;
  std::size_t peak_ = 0;
  std::size_t given_back_ = 0;  // since the start; wraps
  std::size_t asked_for_ = 0;   // of calls that have not ended
};

}  // namespace tessera
