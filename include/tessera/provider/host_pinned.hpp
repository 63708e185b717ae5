// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/host_stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Page-locked memory of this machine. Its streams are threads and its events are real, so that a program in which
/// streams misuse each other's memory goes wrong here as it would on a device. Linux.
///
/// Calls may come from several threads; those about streams and events wait for none about memory.
class host_pinned {
 public:
  static constexpr bool is_thread_safe = true;
  enum class pinning : unsigned char {
    required,       ///< refuses memory that cannot be locked
    where_allowed,  ///< takes it unlocked then
    never
  };
  struct options {
    std::size_t capacity = 0;  ///< bytes; 0 stands for all of the machine's memory
    pinning pin = pinning::required;
  };
  /// A mark in a stream: the number of tasks before it.
  struct event {
    stream_id stream{};
    std::uint64_t mark = 0;
  };

  host_pinned() : host_pinned(options{}) {}
  explicit host_pinned(const options& chosen) : state_(std::make_unique<state>(chosen)) {}
  host_pinned(host_pinned&&) noexcept = default;
  host_pinned& operator=(host_pinned&&) noexcept = default;
  ~host_pinned() = default;

  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  [[nodiscard]] std::size_t granularity() const noexcept { return state_->page; }

  /// Null where the capacity is reached or the system refuses; last_error() says which, and what helps.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    const std::lock_guard lock(state_->mutex);
    const std::size_t mapped = mapped_bytes(bytes, kind);
    if (bytes == 0 || bytes > max_request) return refuse("acquire: not a possible number of bytes");
    if (mapped > state_->capacity - state_->used)
      return refuse("acquire: the capacity of this provider is reached");
    const int huge =
        kind == page_kind::huge ? MAP_HUGETLB | (21 << 26) : 0;  // 2^21 bytes, as <linux/mman.h> codes it
    void* const p =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | huge, -1, 0);
    if (p == MAP_FAILED) {
      return refuse(kind == page_kind::huge
                        ? "acquire: no huge pages are free; the system administrator raises "
                          "/proc/sys/vm/nr_hugepages"
                        : "acquire: the system has no memory left");
    }
    if (state_->pin != pinning::never && ::mlock(p, mapped) != 0 && state_->pin == pinning::required) {
      const bool limit = errno == ENOMEM || errno == EPERM;
      ::munmap(p, mapped);
      return refuse(
          limit
              ? "acquire: the locked-memory limit is reached; raise it (ulimit -l, limits.conf, or the right "
                "CAP_IPC_LOCK), or choose pinning::where_allowed"
              : "acquire: the system cannot lock the memory now");
    }
    if (!state_->remember(p, bytes, kind)) {
      ::munmap(p, mapped);
      return refuse("acquire: host memory for bookkeeping ran out");
    }
    state_->used += mapped;
    return p;
  }

  /// False where it was not given, or not with this size.
  bool release(void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->segments.find(p);
    if (found == state_->segments.end() || found->second.bytes != bytes) {
      state_->error = "release: not a segment of this provider";
      return false;
    }
    const std::size_t mapped = mapped_bytes(bytes, found->second.kind);
    if (::munmap(p, mapped) != 0) {
      state_->error = "release: the system refuses";
      return false;
    }
    state_->used -= mapped;
    state_->segments.erase(found);
    return true;
  }

  /// Why the latest call failed, and what helps; empty if none has.
  [[nodiscard]] const char* last_error() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->error;
  }

  /// A new stream; the default one, stream 0, is always there.
  [[nodiscard]] stream_id create_stream() {
    const std::lock_guard lock(state_->streams_mutex);
    const stream_id made{++state_->last_stream};
    state_->streams.emplace(made, std::make_shared<host_stream>());
    return made;
  }
  /// Finishes a stream's work and ends its thread; false where there is no such stream.
  bool destroy_stream(stream_id stream) {
    std::shared_ptr<host_stream> ending = find(stream);
    const std::lock_guard lock(state_->streams_mutex);
    return state_->streams.erase(stream) == 1;
  }
  /// Queues a callable, which must not throw, on a stream; false where there is no such stream.
  template <typename F>
  bool submit(stream_id stream, F work) {
    const auto on = find(stream);
    if (on == nullptr) return false;
    on->submit(std::move(work));
    return true;
  }
  /// Returns once all work submitted to the stream so far is done; false where there is no such stream.
  bool synchronize(stream_id stream) {
    const auto on = find(stream);
    if (on == nullptr) return false;
    on->wait_for(on->mark());
    return true;
  }

  bool record(stream_id stream, event& mark) noexcept {
    const auto on = find(stream);
    if (on == nullptr) return false;
    mark = {stream, on->mark()};
    return true;
  }
  /// An event of a stream that has ended is ready.
  [[nodiscard]] bool query(event& mark) noexcept {
    const auto on = find(mark.stream);
    return on == nullptr || on->has_reached(mark.mark);
  }
  bool wait(event& mark) noexcept {
    if (const auto on = find(mark.stream)) on->wait_for(mark.mark);
    return true;
  }
  void discard(event&) noexcept {}

 private:
  struct segment {
    std::size_t bytes;
    page_kind kind;
  };
  struct state {
    explicit state(const options& chosen)
        : page(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
          capacity(chosen.capacity != 0 ? chosen.capacity
                                        : page * static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES))),
          pin(chosen.pin) {
      streams.emplace(stream_id{}, std::make_shared<host_stream>());
    }
    ~state() {
      streams.clear();
      for (const auto& [p, s] : segments) ::munmap(p, mapped_bytes(s.bytes, s.kind));
    }
    [[nodiscard]] bool remember(void* p, std::size_t bytes, page_kind kind) noexcept {
#if defined(__cpp_exceptions)
      try {
        segments.emplace(p, segment{bytes, kind});
      } catch (...) {
        return false;
      }
#else
      segments.emplace(p, segment{bytes, kind});
#endif
      return true;
    }

    std::size_t page;
    std::size_t capacity;
    pinning pin;
    std::mutex mutex;  // of the segments, and of what goes with them
    std::map<void*, segment> segments;
    std::size_t used = 0;
    const char* error = "";
    std::mutex streams_mutex;
    std::map<stream_id, std::shared_ptr<host_stream>> streams;
    std::uint64_t last_stream = 0;
  };

  [[nodiscard]] static std::size_t mapped_bytes(std::size_t bytes, page_kind kind) noexcept {
    return kind == page_kind::huge ? align_up(bytes, operator""_MiB(2)) : bytes;
  }
  [[nodiscard]] void* refuse(const char* why) noexcept {
    state_->error = why;
    return nullptr;
  }
  [[nodiscard]] std::shared_ptr<host_stream> find(stream_id stream) noexcept {
    const std::lock_guard lock(state_->streams_mutex);
    const auto found = state_->streams.find(stream);
    return found != state_->streams.end() ? found->second : nullptr;
  }

  std::unique_ptr<state> state_;
};
static_assert(event_provider<host_pinned> && paged_provider<host_pinned>);

}  // namespace tessera
