// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/provider/stream_order.hpp>

namespace tessera::inline v0_1::detail {

/// A stream of work on the host: one thread that runs tasks in the order of submission.
class host_stream {
 public:
  host_stream() : worker_([this] { run(); }) {}
  host_stream& operator=(host_stream&&) = delete;
  ~host_stream() { finish(); }

  /// Finishes all tasks and ends the thread. Returns false at once if another call has begun or done this.
  ///   Requires:  the stream's own work does not call it
  bool finish() {
    {
      const std::lock_guard lock(progress_->mutex);
      if (std::exchange(ending_, true)) return false;
    }
    progress_->changed.notify_all();
    worker_.join();
    return true;
  }

  /// Submits a callable that does not throw.
  ///   Returns:  a mark after the callable; 0 if the stream has ended
  template <typename F>
  std::uint64_t submit(F work) {
    auto queued = std::make_unique<task_of<F>>(std::move(work));
    std::uint64_t mark = 0;
    {
      const std::lock_guard lock(progress_->mutex);
      if (ending_) return 0;
      tasks_.push_back(std::move(queued));
      mark = ++submitted_;
    }
    progress_->changed.notify_all();
    return mark;
  }

  /// The number of submitted tasks, which is a mark after all of them.
  [[nodiscard]] std::uint64_t mark() {
    const std::lock_guard lock(progress_->mutex);
    return submitted_;
  }
  [[nodiscard]] bool has_reached(std::uint64_t mark) const noexcept { return progress_->has_reached(mark); }
  /// Waits for a mark. Returns false at once if the stream's own work would wait for itself or for later
  /// work.
  [[nodiscard]] bool wait_for(std::uint64_t mark) {
    if (is_its_work() && !has_reached(mark)) return false;
    progress_->wait_for(mark);
    return true;
  }
  /// Whether the calling thread runs this stream's work.
  [[nodiscard]] bool is_its_work() const noexcept { return std::this_thread::get_id() == id_; }
  /// Submits a wait for another stream's work up to a mark; returns a mark after the wait. The work exists
  /// already, so streams cannot wait for each other in a circle.
  std::uint64_t submit_wait(host_stream& other, std::uint64_t mark) {
    const std::uint64_t submitted = other.mark();
    // Keeps only the other stream's progress alive. This thread must not join the other stream's thread,
    // whose work may wait for this stream.
    return submit(
        [of = other.progress_, until = mark < submitted ? mark : submitted] { of->wait_for(until); });
  }

 private:
  struct task {
    virtual ~task() = default;
    virtual void run() noexcept = 0;
  };
  template <typename F>
  struct task_of final : task {
    explicit task_of(F callable) : work(std::move(callable)) {}
    void run() noexcept override { work(); }
    F work;
  };

  /// The progress of the stream. It outlives the stream for callers that wait.
  struct progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<std::uint64_t> completed{0};

    [[nodiscard]] bool has_reached(std::uint64_t mark) const noexcept {
      return completed.load(std::memory_order_acquire) >= mark;
    }
    void wait_for(std::uint64_t mark) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this, mark] { return has_reached(mark); });
    }
  };

  void run() {
    std::unique_lock lock(progress_->mutex);
    while (true) {
      progress_->changed.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::unique_ptr<task> next = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      next->run();
      next.reset();
      lock.lock();
      progress_->completed.fetch_add(1, std::memory_order_release);
      progress_->changed.notify_all();
    }
  }

  std::shared_ptr<progress> progress_ = std::make_shared<progress>();
  std::deque<std::unique_ptr<task>> tasks_;
  std::uint64_t submitted_ = 0;
  bool ending_ = false;
  std::thread worker_;
  const std::thread::id id_ = worker_.get_id();
};

/// The streams of one provider. Calls share ownership of the stream that they use.
class host_streams {
 public:
  host_streams() { streams_.emplace(stream_id{}, std::make_shared<host_stream>()); }
  host_streams& operator=(host_streams&&) = delete;
  /// Finishes the work of all streams, which may still look up streams.
  ~host_streams() {
    while (const std::shared_ptr<host_stream> ending = take_any()) ending->finish();
  }

  [[nodiscard]] stream_id create() {
    const std::lock_guard lock(mutex_);
    const stream_id made{++last_};
    streams_.emplace(made, std::make_shared<host_stream>());
    return made;
  }
  /// Finishes a stream's work; false if there is no such stream, and for the default stream.
  ///   Requires:  the stream's own work does not call it; aborts otherwise
  bool destroy(stream_id stream) {
    if (stream == stream_id{}) return false;
    const std::shared_ptr<host_stream> ending = find(stream);
    if (ending != nullptr && ending->is_its_work())
      fatal("destroy_stream: work must not end the stream that it is on");
    // The stream finishes here because its work may own the stream. It finishes before it is erased, because
    // an unknown stream counts as having no work.
    if (ending == nullptr || !ending->finish()) return false;
    const std::lock_guard lock(mutex_);
    return streams_.erase(stream) == 1;
  }
  [[nodiscard]] std::shared_ptr<host_stream> find(stream_id stream) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    return found != streams_.end() ? found->second : nullptr;
  }

  /// Whether all further work of `stream` runs after the work of `of` up to a mark.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t mark) {
    const std::lock_guard lock(mutex_);
    return order_.is_ordered_after(stream, of, mark);
  }
  /// Makes `stream` wait; false if there is no such stream or host memory ran out. No wait is needed if `of`
  /// has ended.
  bool make_wait(stream_id stream, stream_id of, std::uint64_t mark) {
    const std::shared_ptr<host_stream> waiting = find(stream), other = find(of);
    if (waiting == nullptr || other == nullptr || waiting == other) return waiting != nullptr;
    const std::lock_guard lock(mutex_);
    if (!order_.reserve(stream, of)) return false;
    std::uint64_t queued = 0;
    if (!try_run([&] { queued = waiting->submit_wait(*other, mark); })) return false;
    if (queued != 0) (void)order_.add(stream, queued, of, mark);
    return queued != 0;
  }

 private:
  [[nodiscard]] std::shared_ptr<host_stream> take_any() {
    const std::lock_guard lock(mutex_);
    if (streams_.empty()) return nullptr;
    return std::move(streams_.extract(streams_.begin()).mapped());
  }

  std::mutex mutex_;
  std::map<stream_id, std::shared_ptr<host_stream>> streams_;
  provider::stream_order order_;
  std::uint64_t last_ = 0;
};

}  // namespace tessera::inline v0_1::detail
