// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/detail/extensions/extension.hpp>
#include <tessera/extension/private_pools.hpp>

/// The captures of graphs by PyTorch, and their private pools.

namespace tessera::inline v0_1::detail {

/// The name of a private pool, passed in two registers as PyTorch's std::pair of two numbers.
struct torch_pool_id {
  std::uint64_t first, second;
  auto operator<=>(const torch_pool_id&) const = default;
};

/// The streams of a capture, as the host names them. Reports when the capture is over, because a host may pass
/// no function to end it. Only the thread that began the capture finds out, because the answers of a host may
/// depend on the thread.
class torch_capture {
 public:
  using condition = std::function<bool(void*)>;

  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(streams_); }
  void open(condition streams) noexcept {
    thread_ = std::this_thread::get_id();
    stream_.store(nullptr, std::memory_order_relaxed);
    streams_ = std::move(streams);
  }
  void close() noexcept { streams_ = nullptr; }
  [[nodiscard]] bool selects(void* stream) noexcept {
    if (!is_true_for(stream, false)) return false;
    if (std::this_thread::get_id() == thread_) stream_.store(stream, std::memory_order_relaxed);
    return true;
  }
  /// Whether this thread began the capture, had a stream selected, and has it no more.
  [[nodiscard]] bool is_over() const noexcept {
    void* const stream = stream_.load(std::memory_order_relaxed);
    return stream != nullptr && std::this_thread::get_id() == thread_ && !is_true_for(stream, true);
  }

 private:
  /// If the host's function throws, the answer is not known.
  [[nodiscard]] bool is_true_for(void* stream, [[maybe_unused]] bool if_unknown) const noexcept {
    bool result = if_unknown;
    return try_run([&] { result = streams_(stream); }) ? result : if_unknown;
  }

  condition streams_;
  std::thread::id thread_;
  std::atomic<void*> stream_{nullptr};  // the latest that was selected; the default stream is never captured
};

/// The private pools of one device, by PyTorch's names.
class torch_pools {
 public:
  /// Returns null, or the reason why the scope does not begin; then nothing has changed.
  template <typename Allocator>
  [[nodiscard]] const char* begin(Allocator& allocator, torch_pool_id name,
                                  torch_capture::condition& streams) {
    if constexpr (offers<Allocator, extension::private_pools>) {
      const std::lock_guard lock(mutex_);
      close_ended_scopes(allocator);
      forget_erased(allocator);
      pool& p = pools_[name];
      if (p.capture.is_open()) return "its scope is open";
      if (p.id == pool_id{}) {
        p.id = pools_of(allocator).create();
        if (p.id == pool_id{}) return "host memory ran out";
      } else if (!pools_of(allocator).retain(p.id)) {
        return "it was released, and owns memory";
      }
      p.ended_by_itself = false;
      p.capture.open(std::move(streams));
      ++open_;
      (void)pools_of(allocator).open(p.id, {selects, &p.capture}, extension::scope_kind::capture);
      return nullptr;
    } else {
      return "the allocator has no private pools, so no graph can be captured";
    }
  }
  /// Returns false if there is no open scope.
  template <typename Allocator>
  [[nodiscard]] bool end(Allocator& allocator, torch_pool_id name) {
    if constexpr (offers<Allocator, extension::private_pools>) {
      const std::lock_guard lock(mutex_);
      const auto found = pools_.find(name);
      if (found == pools_.end()) return false;
      pool& p = found->second;
      if (p.capture.is_open()) {
        close(allocator, p);
        return true;
      }
      return std::exchange(p.ended_by_itself, false);
    }
    return false;
  }
  /// Ends the scopes whose captures are over.
  ///   Cost:  a load if no scope is open
  template <typename Allocator>
  void end_by_themselves(Allocator& allocator) {
    if (open_.load(std::memory_order_relaxed) == 0) return;
    if constexpr (offers<Allocator, extension::private_pools>) {
      const std::lock_guard lock(mutex_);
      close_ended_scopes(allocator);
    }
  }
  /// Returns the pool of a name; no pool if there is none.
  [[nodiscard]] pool_id find(torch_pool_id name) {
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(name);
    return found != pools_.end() ? found->second.id : pool_id{};
  }
  /// Returns false if the pool has no use, or if its last use is an open scope.
  template <typename Allocator>
  [[nodiscard]] bool release(Allocator& allocator, torch_pool_id name) {
    if constexpr (offers<Allocator, extension::private_pools>) {
      const std::lock_guard lock(mutex_);
      const auto found = pools_.find(name);
      return found != pools_.end() && pools_of(allocator).release(found->second.id);
    }
    return false;
  }

 private:
  struct pool {
    pool_id id;
    torch_capture capture;  // of the open scope
    bool ended_by_itself = false;
  };
  template <typename Allocator>
  [[nodiscard]] static auto pools_of(Allocator& allocator) noexcept {
    return allocator.template get<extension::private_pools>();
  }
  static bool selects(void* capture, stream_id stream) noexcept {
    return static_cast<torch_capture*>(capture)->selects(
        reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream.handle)));
  }
  template <typename Allocator>
  void close(Allocator& allocator, pool& p) {
    (void)pools_of(allocator).close(p.id);
    p.capture.close();
    --open_;
  }
  template <typename Allocator>
  void close_ended_scopes(Allocator& allocator) {
    for (auto& [name, p] : pools_) {
      if (!p.capture.is_open() || !p.capture.is_over()) continue;
      close(allocator, p);
      p.ended_by_itself = true;
    }
  }
  /// Forgets the pools that no longer exist, so that their names can be used again.
  template <typename Allocator>
  void forget_erased(Allocator& allocator) {
    std::erase_if(pools_, [&](const auto& entry) { return !pools_of(allocator).has(entry.second.id); });
  }

  std::mutex mutex_;
  std::map<torch_pool_id, pool> pools_;
  std::atomic<int> open_{0};
};

/// The captures that cannot be served. PyTorch is left half captured if the begin of a capture fails, but recovers
/// if an allocation fails. So the first allocation of such a capture does.
class refused_captures {
 public:
  void add(int device, torch_pool_id name, torch_capture::condition streams, const char* why) {
    const std::lock_guard lock(mutex_);
    capture& c = captures_.emplace_back();
    c.device = device;
    c.name = name;
    c.why = why;
    c.streams.open(std::move(streams));
    ++count_;
  }
  struct refusal {
    torch_pool_id name{};
    const char* why = nullptr;  // null if there is none
  };
  /// Returns the refusal of a stream's capture, if it has one.
  ///   Cost:  a load if no capture was refused
  [[nodiscard]] refusal find(int device, void* stream) {
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    const std::lock_guard lock(mutex_);
    for (capture& c : captures_) {
      if (c.device != device || !c.streams.is_open()) continue;
      if (c.streams.is_over()) c.streams.close();
      if (c.streams.is_open() && c.streams.selects(stream)) return {c.name, c.why};
    }
    return {};
  }
  /// Ends a capture. Returns false if there is none.
  [[nodiscard]] bool end(int device, torch_pool_id name) {
    const std::lock_guard lock(mutex_);
    for (capture& c : captures_) {
      if (c.device != device || c.name != name || c.is_ended) continue;
      c.streams.close();
      return c.is_ended = true;
    }
    return false;
  }
  /// Forgets a capture whose host gives its use of the pool back. Returns false if there is none.
  [[nodiscard]] bool release(int device, torch_pool_id name) {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const capture& c) { return c.device == device && c.name == name; };
    const auto found = std::find_if(captures_.begin(), captures_.end(), is_it);
    if (found == captures_.end()) return false;
    captures_.erase(found);
    --count_;
    return true;
  }

 private:
  struct capture {
    int device = 0;
    torch_pool_id name{};
    const char* why = nullptr;
    torch_capture streams;
    bool is_ended = false;
  };
  std::mutex mutex_;
  std::list<capture> captures_;
  std::atomic<int> count_{0};
};

}  // namespace tessera::inline v0_1::detail
