// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <tessera/provider/host_memory.hpp>
#include <tessera/provider/host_stream.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/own_process.hpp>
#if defined(__linux__)
#include <tessera/provider/host_sharing.hpp>
#endif

namespace tessera::inline v0_1::provider {

/// Provides page-locked memory of this machine.
///
/// On Linux, it has all that follows. On macOS and other systems with POSIX, it has no larger pages, no nodes, and no memory
/// that other processes import. On Windows, it has no virtual memory either.
///
/// Each stream is a thread, and events track its work. A program that misuses memory between streams fails
/// here as on a device.
///
/// Of a page kind, only the page size and read_only have an effect. Bandwidth and peer access are ignored,
/// because the host has only one kind of memory.
///
/// It is thread-safe. Calls about streams and events do not wait for calls about memory.
///
/// After fork(), the child process has none of the threads. There, the streams of an inherited provider have ended, and it makes
/// no others and exports nothing. It still gives and takes memory, unless a thread of the parent was inside it at the fork:
/// then each call fails. It may be destroyed; what it holds stays until the child ends or calls exec. Blocks that the parent
/// allocated must not be used: the parent may use the same pages.
class host_pinned {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool is_host_visible = true;
  static constexpr bool release_waits = false;  // work of a stream may still use the pages
#if !defined(_WIN32)
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = true;
#endif
  /// Whether memory must be locked (`required`), is used unlocked if it cannot be (`where_allowed`), or is
  /// never locked.
  using pinning = detail::host_pinning;
  /// How much memory it gives, of which node, and whether it is locked.
  struct options {
    std::size_t capacity = 0;         ///< bytes acquired or created; 0 for all of the machine's memory
    pinning pin = pinning::required;  ///< whether memory is locked; if it must be and cannot, calls fail
    std::chrono::milliseconds import_timeout{2000};  ///< how long import_memory waits for the exporter
    /// The NUMA node of all acquired and created memory; negative for any. If the node has no memory or the kernel does not
    /// bind memory to it, calls for memory are refused, and take_refusal() says why.
    int node = -1;
  };
  /// A mark in a stream: the number of tasks before it.
  struct event {
    stream_id stream{};      ///< the stream in which it was recorded
    std::uint64_t mark = 0;  ///< how many tasks of the stream came before it
  };
#if !defined(_WIN32)
  /// A handle of physical memory, which is a memory file. Linux allocates its pages at once, other systems when it is mapped.
  struct physical {
    std::uint64_t number = 0;  ///< 0 if empty
    bool operator==(const physical&) const = default;
  };
#endif
#if defined(__linux__)
  using shareable = detail::host_shareable;
#endif
  /// Bytes in whole pages.
  struct holdings {
    std::size_t acquired = 0;    ///< bytes of segments, which count against the capacity
    std::size_t created = 0;     ///< bytes of handles that it created, which count, too
    std::size_t imported = 0;    ///< bytes of handles from other processes
    std::size_t reserved = 0;    ///< bytes of addresses
    std::size_t mapped = 0;      ///< bytes of mapped pages
    std::size_t registered = 0;  ///< bytes that register_memory took
    std::size_t locked = 0;      ///< locked bytes of acquired, mapped and registered memory
    bool operator==(const holdings&) const = default;
  };

  host_pinned() : host_pinned(options{}) {}
  /// Acquires nothing yet. What the system refuses is known at the first call for memory.
  ///   Throws:  std::bad_alloc; std::system_error if the system starts no thread for the default stream
  explicit host_pinned(const options& settings) : host_pinned(std::make_shared<state>(settings), settings) {}
  host_pinned(host_pinned&&) noexcept = default;
  host_pinned& operator=(host_pinned&&) noexcept = default;
  ~host_pinned() = default;

  /// Creates a provider of other memory with the same streams, addresses and handles, as a bank of memory_domains. Of the
  /// settings, import_timeout is ignored.
  ///
  ///     tessera::provider::host_pinned near({.node = 0});
  ///     tessera::provider::host_pinned far = near.another_bank({.node = 1});
  [[nodiscard]] host_pinned another_bank(const options& settings) const {
    return host_pinned(*state_, settings);
  }
  /// Whether the other provider is this one, or another bank of it.
  [[nodiscard]] bool shares_addresses_with(const host_pinned& other) const noexcept {
    return *state_ == *other.state_;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return bank_->capacity; }
  [[nodiscard]] std::size_t granularity() const noexcept { return detail::host_page(); }
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept { return detail::host_page_size(kind); }
  /// Bytes that count against the capacity: acquired segments and created memory.
  [[nodiscard]] std::size_t used() const noexcept {
    const std::unique_lock<std::mutex> lock = hold();
    return lock ? bank_->used() : 0;
  }
  /// What this provider and its other banks hold together.
  [[nodiscard]] holdings held() const noexcept {
    holdings now;
    const std::unique_lock<std::mutex> lock = hold();
    if (!lock) return now;
    const auto add_locked = [&](void*, const auto& range) { now.locked += range.locked ? range.bytes : 0; };
    now.acquired = state_->memory.segments().bytes();
    state_->memory.segments().for_each(add_locked);
    now.registered = state_->registered.memory().bytes();
    state_->registered.memory().for_each(add_locked);
#if !defined(_WIN32)
    const auto& book = state_->ranges.book();
    now.reserved = book.ranges().bytes();
    now.mapped = book.mappings().bytes();
    book.for_each_chunk([&](const auto& chunk) {
      (chunk.source != 0 ? now.imported : now.created) += chunk.bytes;
      if (chunk.is_mapped && chunk.data.locked) now.locked += chunk.bytes;
    });
#endif
    return now;
  }

  /// Returns null at the capacity, or if the system refuses. last_error() then returns the reason and a
  /// remedy.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    void* p = nullptr;
    (void)ask("acquire", nullptr, bytes, [&] { return state_->memory.acquire(*bank_, bytes, kind, p); });
    return p;
  }
  /// False if no segment of this size begins at `p`.
  bool release(void* p, std::size_t bytes) noexcept {
    return run("release", p, bytes, [&] { return state_->memory.release(p, bytes); });
  }

#if !defined(_WIN32)
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    void* p = nullptr;
    (void)ask("reserve", nullptr, bytes, [&] { return state_->ranges.reserve(bytes, to, p); });
    return p;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return run("unreserve", p, bytes, [&] { return state_->ranges.unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept {
    return ask("create", nullptr, bytes,
               [&] { return state_->ranges.create(*bank_, bytes, kind, memory.number); });
  }
  bool destroy(const physical& memory) noexcept {
    return run("destroy", nullptr, 0, [&] {
#if defined(__linux__)
      state_->exports.remove(memory.number);
#endif
      return state_->ranges.destroy(memory.number);
    });
  }
  /// Maps the memory and locks it, according to the options.
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return ask("map", p, bytes, [&] { return state_->ranges.map(p, bytes, memory.number); });
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return ask("grant", p, bytes, [&] { return state_->ranges.book().why_no_mapping(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return run("unmap", p, bytes, [&] { return state_->ranges.unmap(p, bytes); });
  }
#endif

#if defined(__linux__)
  [[nodiscard]] chunk_traits chunk_abilities() const noexcept { return {.exports_file = true}; }
  /// The process id within its PID namespace.
  [[nodiscard]] std::int32_t process() const noexcept { return ::getpid(); }
  /// Exports to processes of the same user or of root. The first call starts a thread that answers importers.
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept {
    const auto add_export = [&]() -> const char* {
      if (!state_.is_here()) return is_forked;
      const auto& book = state_->ranges.book();
      if (const char* const fault = book.why_not_export(memory.number)) return fault;
      const auto& chunk = *book.find(memory.number);
      return state_->exports.add(memory.number, chunk.data.file.get(), chunk.bytes, chunk.data.kind, who);
    };
    const bool exported = ask("export_memory", nullptr, 0, add_export);
    if (exported) name = {state_->token, memory.number, process()};
    return exported;
  }
  [[nodiscard]] bool exported_name(const physical& memory, shareable& name) const noexcept {
    if (!state_.is_here() || !state_->exports.has(memory.number)) return false;
    name = {state_->token, memory.number, process()};
    return true;
  }
  bool allow(const shareable& name, std::int32_t process) noexcept {
    return ask("allow", nullptr, 0, [&] {
      return name.token == state_->token ? state_->exports.allow(name.number, process)
                                         : "the memory is not exported here, or destroyed";
    });
  }
  /// Waits for the exporter for at most the timeout of the options. Imported memory does not count against
  /// the capacity.
  bool import_memory(const shareable& name, physical& memory) noexcept {
    detail::host_import request(state_->import_timeout);
    const char* const fault = request.send(name);  // without the mutex, so that other calls proceed
    return ask("import_memory", nullptr, 0, [&] {
      return fault != nullptr ? fault
                              : state_->ranges.adopt(std::move(request.file), request.bytes, request.kind,
                                                     name.number, memory.number);
    });
  }
#endif

  /// Locks the user's memory in whole pages, according to the options. It does not count against the
  /// capacity. unregister_memory unlocks the pages even if another caller locked them too, because the system
  /// does not count locks. Memory of this provider is therefore refused.
  bool register_memory(void* p, std::size_t bytes) noexcept {
    return ask("register_memory", p, bytes, [&] {
      const bool own = bytes <= max_request && state_->overlaps(p, bytes);
      return own ? "the memory belongs to this provider" : state_->registered.add(p, bytes, bank_->pin);
    });
  }
  bool unregister_memory(void* p) noexcept {
    return run("unregister_memory", p, 0, [&] { return state_->registered.remove(p); });
  }

  /// Returns why the latest failed call about memory failed, and a remedy; empty if no call failed.
  [[nodiscard]] std::string last_error() const {
    const std::unique_lock<std::mutex> lock = hold();
    return lock ? state_->latest.text() : is_forked;
  }

  refusal take_refusal() noexcept { return state_->refused.take(); }

  /// Creates a stream. The default stream, 0, always exists.
  ///   Throws:  std::bad_alloc; std::system_error if the system starts no thread
  [[nodiscard]] stream_id create_stream() {
    if (!state_.is_here()) detail::fatal(is_forked);
    return state_->streams.create();
  }
  [[nodiscard]] bool has_stream(stream_id stream) noexcept { return find(stream) != nullptr; }
  /// Finishes a stream's work and ends its thread; false if there is no such stream, and for the default stream.
  bool destroy_stream(stream_id stream) { return state_.is_here() && state_->streams.destroy(stream); }
  /// Submits a callable as work of a stream; false if there is no such stream.
  ///   Requires:  the callable does not throw
  ///   Requires:  it does not allocate from this provider, because an allocation may wait for the stream
  ///   Requires:  if the recipe maps pages into ranges, it does not free memory of this provider either
  template <typename F>
  bool submit(stream_id stream, F work) {
    const auto on = find(stream);
    return on != nullptr && on->submit(std::move(work)) != 0;
  }
  /// Submits a copy as work of a stream. Host memory outside of the provider is not checked.
  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return copy("copy_to_host", to, from, from, bytes, stream);
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return copy("copy_to_device", to, from, to, bytes, stream);
  }
  /// Waits until all work submitted to the stream is done. Returns at once if the stream has ended. Returns
  /// false if that work itself calls it, as wait() does.
  bool synchronize(stream_id stream) noexcept {
    const auto on = find(stream);
    return on == nullptr || on->wait_for(on->mark());
  }

  bool record(stream_id stream, event& mark) noexcept {
    const auto on = find(stream);
    if (on == nullptr) return false;
    mark = {stream, on->mark()};
    return true;
  }
  /// An event of a stream that has ended is ready.
  [[nodiscard]] bool query(event& mark) noexcept { return is_done(mark.stream, mark.mark); }
  bool wait(event& mark) noexcept {
    const auto on = find(mark.stream);
    return on == nullptr || on->wait_for(mark.mark);
  }
  void discard(event&) noexcept {}
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept {
    const auto on = find(stream);
    return on != nullptr ? on->mark() : 0;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    const auto on = find(stream);
    return on == nullptr || on->has_reached(at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return !state_.is_here() || state_->streams.is_ordered_after(stream, of, at);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return state_.is_here() && state_->streams.make_wait(stream, of, at);
  }
  /// Makes all further work of a stream wait for an event, like cudaStreamWaitEvent.
  bool make_wait(stream_id stream, const event& mark) noexcept {
    return make_wait(stream, mark.stream, mark.mark);
  }

 private:
  struct failure_reason {
    const char* call = nullptr;
    const void* at = nullptr;
    std::size_t bytes = 0;
    const char* rule = nullptr;

    [[nodiscard]] std::string text() const {
      char where[80] = "";
      const auto address = static_cast<unsigned long long>(detail::address_of(at));
      if (at != nullptr && bytes != 0)
        TESSERA_DETAIL_SNPRINTF(where, sizeof where, " %zu bytes at 0x%llx", bytes, address);
      else if (at != nullptr)
        TESSERA_DETAIL_SNPRINTF(where, sizeof where, " at 0x%llx", address);
      else if (bytes != 0)
        TESSERA_DETAIL_SNPRINTF(where, sizeof where, " %zu bytes", bytes);
      return call != nullptr ? std::string(call) + where + ": " + rule : std::string();
    }
  };
  struct state {
    explicit state(const options& settings) : import_timeout(settings.import_timeout) {}

    /// Whether a part of the range is memory or addresses of the provider.
    [[nodiscard]] bool overlaps(const void* p, std::size_t bytes) const noexcept {
#if !defined(_WIN32)
      if (ranges.book().ranges().overlaps(p, bytes)) return true;
#endif
      return memory.segments().overlaps(p, bytes);
    }
    /// Whether the range lies in one segment or mapping.
    [[nodiscard]] bool has_memory(const void* p, std::size_t bytes) const noexcept {
#if !defined(_WIN32)
      if (ranges.book().mappings().around(p, bytes) != nullptr) return true;
#endif
      return memory.segments().around(p, bytes) != nullptr;
    }

    std::mutex mutex;  // guards all members except the streams
    detail::host_memory memory;
#if !defined(_WIN32)
    std::uint64_t token = detail::host_random_number();  // chunks have numbers above it
    detail::host_ranges ranges{memory, token};
#endif
    detail::host_registered registered;
#if defined(__linux__)
    detail::host_exports exports{token};
#endif
    std::chrono::milliseconds import_timeout;
    failure_reason latest;
    latest_refusals refused;
    detail::host_streams streams;  // destroyed first: work may use the memory
  };

  static constexpr const char* is_forked =
      "host_pinned: this process was forked from the one that made the provider, and lacks its threads; make "
      "another after the fork for streams and exports";

  host_pinned(std::shared_ptr<state> shared, const options& settings) : state_(std::move(shared)) {
    detail::host_bank bank{settings.capacity, settings.pin, settings.node,
                           detail::host_node_fault(settings.node)};
    if (bank.capacity == 0) bank.capacity = detail::host_all_memory(settings.node);
    const std::lock_guard lock(state_->mutex);
    bank_ = state_->memory.add_bank(std::move(bank));
  }

  /// Locks the mutex. In a forked process, does not wait for it: a thread of the parent may have held it, and has no end there.
  [[nodiscard]] std::unique_lock<std::mutex> hold() const noexcept {
    if (state_.is_here()) return std::unique_lock(state_->mutex);
    return {state_->mutex, std::try_to_lock};
  }
  /// Makes a call under the mutex. It returns null, or the reason of its failure, which is recorded.
  ///   Returns:  whether the call worked
  template <typename F>
  bool run(const char* call, const void* at, std::size_t bytes, F make_call) noexcept {
    const std::unique_lock<std::mutex> lock = hold();
    if (!lock) return false;
    const char* const rule = make_call();
    if (rule != nullptr) state_->latest = {call, at, bytes, rule};
    return rule == nullptr;
  }
  /// Makes a call for memory like run(). Its failure is a refusal, too.
  template <typename F>
  bool ask(const char* call, const void* at, std::size_t bytes, F make_call) noexcept {
    return run(call, at, bytes, [&]() -> const char* {
      const char* const rule = make_call();
      if (rule != nullptr) state_->refused.note(refusal::format("%s: %s", call, rule));
      return rule;
    });
  }
  bool copy(const char* call, void* to, const void* from, const void* device, std::size_t bytes,
            stream_id stream) noexcept {
    return run(call, device, bytes, [&]() -> const char* {
      if (!state_->has_memory(device, bytes))
        return "the addresses are not in one segment or mapping of this provider";
      bool exists = false;
      if (!detail::try_run([&] { exists = submit(stream, [=] { std::memcpy(to, from, bytes); }); }))
        return detail::no_host_memory;
      return exists ? nullptr : "the stream does not exist";
    });
  }

  /// Null if there is no such stream here.
  [[nodiscard]] std::shared_ptr<detail::host_stream> find(stream_id stream) noexcept {
    return state_.is_here() ? state_->streams.find(stream) : nullptr;
  }

  detail::own_process<std::shared_ptr<state>> state_;
  detail::host_bank* bank_ = nullptr;  // of the state
};
static_assert(ordering_provider<host_pinned> && detail::stream_listing_provider<host_pinned> &&
              paged_provider<host_pinned> && copying_provider<host_pinned>);
#if !defined(_WIN32)
static_assert(virtual_memory_provider<host_pinned>);
#endif

}  // namespace tessera::inline v0_1::provider
