// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/core/bytes.hpp>

namespace tessera::inline v0_1::provider {

/// Keeps the latest refusal of each thread, for the take_refusal() of a thread-safe provider.
///
///     tessera::provider::latest_refusals refused;
///     refused.note(tessera::refusal::format("%d objects exist, the device has no more", 4096));
///     std::puts(refused.take().text());
///
/// Thread-safe. It keeps the refusals of eight threads that noted one and have not taken it. If more threads do so at the
/// same time, some lose theirs, and their reports have no reason.
///   Cost:  a mutex; about 1 KiB
class latest_refusals {
 public:
  /// Keeps why a call of this thread was refused, in place of the reason before.
  void note(const refusal& why) noexcept {
    const std::lock_guard lock(mutex_);
    const std::thread::id me = std::this_thread::get_id();
    slot* to = find(me);
    if (to == nullptr) to = find({});
    if (to == nullptr) {
      to = &slots_[next_];
      next_ = (next_ + 1) % slots_.size();
    }
    *to = {me, why};
  }
  /// Returns the refusal that the calling thread noted last, and forgets it.
  refusal take() noexcept {
    const std::lock_guard lock(mutex_);
    slot* const own = find(std::this_thread::get_id());
    return own != nullptr ? std::exchange(*own, {}).why : refusal();
  }

 private:
  struct slot {
    std::thread::id thread{};  // of no thread if it is empty
    refusal why{};
  };
  [[nodiscard]] slot* find(std::thread::id thread) noexcept {
    for (slot& s : slots_) {
      if (s.thread == thread) return &s;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::array<slot, 8> slots_{};
  std::size_t next_ = 0;
};

}  // namespace tessera::inline v0_1::provider
