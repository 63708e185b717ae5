// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/core/stream.hpp>

namespace tessera {

/// A stream of work on the host: one thread that runs tasks in the order of their submission.
class host_stream {
 public:
  host_stream() : worker_([this] { run(); }) {}
  host_stream(const host_stream&) = delete;
  host_stream& operator=(const host_stream&) = delete;
  /// Finishes what was submitted.
  ~host_stream() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  /// Queues a callable that does not throw.
  template <typename F>
  void submit(F work) {
    auto queued = std::make_unique<task_of<F>>(std::move(work));
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(queued));
      ++submitted_;
    }
    changed_.notify_all();
  }

  /// How many tasks have been submitted so far: a mark behind all of them.
  [[nodiscard]] std::uint64_t mark() {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  [[nodiscard]] bool has_reached(std::uint64_t mark) const noexcept {
    return completed_.load(std::memory_order_acquire) >= mark;
  }
  void wait_for(std::uint64_t mark) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, mark] { return has_reached(mark); });
  }

 private:
  struct task {
    virtual ~task() = default;
    virtual void run() noexcept = 0;
  };
  template <typename F>
  struct task_of final : task {
    explicit task_of(F given) : work(std::move(given)) {}
    void run() noexcept override { work(); }
    F work;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::unique_ptr<task> next = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      next->run();
      next.reset();
      lock.lock();
      completed_.fetch_add(1, std::memory_order_release);
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<task>> tasks_;
  std::uint64_t submitted_ = 0;
  std::atomic<std::uint64_t> completed_{0};
  bool ending_ = false;
  std::thread worker_;
};

/// The streams of one provider. Each is shared with the calls that use it, so that none ends under them.
class host_streams {
 public:
  host_streams() { streams_.emplace(stream_id{}, std::make_shared<host_stream>()); }

  [[nodiscard]] stream_id create() {
    const std::lock_guard lock(mutex_);
    const stream_id made{++last_};
    streams_.emplace(made, std::make_shared<host_stream>());
    return made;
  }
  /// Finishes a stream's work; false where there is no such stream.
  bool destroy(stream_id stream) {
    const std::shared_ptr<host_stream> ending = find(stream);
    const std::lock_guard lock(mutex_);
    return streams_.erase(stream) == 1;
  }
  [[nodiscard]] std::shared_ptr<host_stream> find(stream_id stream) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    return found != streams_.end() ? found->second : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<stream_id, std::shared_ptr<host_stream>> streams_;
  std::uint64_t last_ = 0;
};

}  // namespace tessera
