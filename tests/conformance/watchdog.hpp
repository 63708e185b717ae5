// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace conformance {

/// Ends the program with a message if it lives too long, because of a deadlock.
class watchdog {
 public:
  explicit watchdog(const char* guarded, std::chrono::seconds patience = std::chrono::seconds(120))
      : thread_([this, guarded, patience] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, patience, [this] { return done_; })) return;
          std::fprintf(stderr, "watchdog: a deadlock, or slower than %lld s: %s\n",
                       static_cast<long long>(patience.count()), guarded);
          std::abort();
        }) {}
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace conformance
