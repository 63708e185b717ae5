// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/fwd.hpp>
#include <tessera/trace/recording.hpp>

namespace tessera::inline v0_1::trace::detail {

/// Options of a captured allocator.
struct capture_options {
  std::size_t max_events = 4'000'000;  ///< recording stops before it would have more
};

/// Keeps events in chunks. It never moves an event, and does not throw.
class event_log {
 public:
  /// Adds an event. Returns false if host memory ran out.
  [[nodiscard]] bool add(const event& e) noexcept {
    const std::size_t at = size_ % per_chunk;
    if (at == 0) {
      if (!chunks_.reserve(1)) return false;
      chunk* const fresh = chunks_.take();
      (first_ == nullptr ? first_ : last_->next) = fresh;
      last_ = fresh;
    }
    last_->events[at] = e;
    ++size_;
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return chunks_.metadata_bytes(); }

  /// Copies the first `count` events. Another thread may add events meanwhile.
  ///   Throws:  std::bad_alloc
  [[nodiscard]] std::vector<event> copy(std::size_t count) const {
    std::vector<event> copied;
    copied.reserve(count);
    for (const chunk* from = nullptr; copied.size() < count;) {
      from = from == nullptr ? first_ : from->next;
      const std::size_t left = count - copied.size();
      copied.insert(copied.end(), from->events, from->events + (left < per_chunk ? left : per_chunk));
    }
    return copied;
  }

 private:
  static constexpr std::size_t per_chunk = 31;
  struct chunk {
    chunk* next = nullptr;
    event events[per_chunk];
  };

  tessera::detail::slab<chunk> chunks_;
  chunk* first_ = nullptr;
  chunk* last_ = nullptr;
  std::size_t size_ = 0;
};

/// The stream_filter of an allocator without private pools.
struct no_filter {
  [[nodiscard]] static constexpr bool selects(stream_id) noexcept { return false; }
};

/// Turns the calls of a program into events. It is thread-safe. `Filter` is extension::stream_filter if the allocator has
/// private pools.
///
/// It names blocks by numbers from 0, and private pools by numbers from 1. Calls about a block or a pool that
/// it does not know leave no event.
template <typename Filter>
class program_recorder {
 public:
  explicit program_recorder(capture_options chosen) noexcept : max_events_(chosen.max_events) {}

  /// Records an event that names neither a block nor a pool.
  void add(const event& e) noexcept {
    const std::lock_guard lock(mutex_);
    append(e);
  }
  /// Ends the recording, because an event has no form in the format.
  void stop() noexcept {
    const std::lock_guard lock(mutex_);
    drop();
  }
  /// Counts an event if the recording has ended.
  void count_if_stopped() noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) ++dropped_;
  }

  /// Records that a request got a block. Null is ignored.
  template <typename Block>
  void add_allocation(Block served, std::size_t bytes, stream_id stream) noexcept {
    if (!served) return;
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    join_scopes(stream);
    block* const known = blocks_.insert(served, [this](const block& freed) { append_free(freed); });
    if (known == nullptr) return drop();
    append_allocation(*known, bytes, stream);
  }
  /// Records that a block goes back.
  ///   Returns:  false if the block is not known, or the recording has ended before
  bool add_free(const tessera::detail::free_call& call) noexcept {
    const std::lock_guard lock(mutex_);
    return is_recording_ && blocks_.erase(call, [this](const block& freed) { append_free(freed); });
  }
  /// Records that a live block was given to a new request.
  void add_reuse(const void* p, std::size_t bytes, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    block* const known = blocks_.find(p);
    if (known == nullptr) return;
    join_scopes(stream);
    append_free(*known);
    append_allocation(*known, bytes, stream);
  }
  void add_use(const void* p, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    if (const block* const known = blocks_.find(p))
      append({event::kind::record_stream, known->id, 0, stream});
  }

  void add_pool(pool_id made) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    if (!pools_.reserve_one() || !pool_nodes_.reserve(1)) return drop();
    pool& added = *pool_nodes_.take();
    added.name = made.number;
    added.number = pools_.size() + 1;
    pools_.insert(added.name, added);
    append({event::kind::retain_pool, added.number});
  }
  /// Records an operation on a pool. The default pool_id stands for all pools.
  void add_pool_operation(event::kind what, pool_id of, std::size_t bytes = 0,
                          stream_id stream = {}) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    const pool* const known = pools_.find(of.number);
    if (of == pool_id{}) {
      append({what, 0, bytes, stream});
    } else if (known != nullptr) {
      append({what, known->number, bytes, stream});
    }
  }
  void add_begin(pool_id of, const Filter& streams) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    pool* const known = pools_.find(of.number);
    if (known == nullptr) return;
    const bool by_function = !streams.selects_all() && streams.only() == nullptr;
    const stream_id first = streams.only() != nullptr ? *streams.only()
                            : by_function             ? no_stream
                                                      : stream_id{};
    append({event::kind::begin_pool, known->number, streams.selects_all() ? 1u : 0u, first});
    append({event::kind::release_pool, known->number});  // begin_pool adds a use
    known->is_open = true;
    if (!by_function) return;
    known->streams = streams;
    known->next_open = first_open_;
    first_open_ = known;
  }
  void add_end(pool_id of) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return drop();
    pool* const known = pools_.find(of.number);
    if (known == nullptr || !known->is_open) return;
    append({event::kind::end_pool, known->number});
    known->is_open = false;
    for (pool** at = &first_open_; *at != nullptr; at = &(*at)->next_open) {
      if (*at != known) continue;
      *at = known->next_open;
      break;
    }
    while (known->joined != nullptr) {
      joined_stream* const each = known->joined;
      known->joined = each->next;
      joined_nodes_.give_back(each);
    }
  }

  [[nodiscard]] std::uint64_t dropped() const noexcept {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  ///   Throws:  std::bad_alloc
  [[nodiscard]] std::vector<event> events() const {
    const std::size_t count = [this] {
      const std::lock_guard lock(mutex_);
      return log_.size();
    }();
    return log_.copy(count);
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return log_.metadata_bytes() + blocks_.metadata_bytes() + pools_.metadata_bytes() +
           pool_nodes_.metadata_bytes() + joined_nodes_.metadata_bytes();
  }

 private:
  /// A live block.
  struct block {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
  };
  struct joined_stream {
    joined_stream* next;
    stream_id stream;
  };
  struct pool {
    std::uint64_t name = 0;    // in the allocator
    std::uint64_t number = 0;  // in the recording
    bool is_open = false;      // a recorded scope of it is open
    // If a function selects the streams of the scope:
    Filter streams{};
    joined_stream* joined = nullptr;
    pool* next_open = nullptr;
    [[nodiscard]] std::uint64_t map_key() const noexcept { return name; }
  };
  /// Stands for the first stream of a scope until a request is made in it. No device has such a stream.
  static constexpr stream_id no_stream{~std::uint64_t{0}};

  void drop() noexcept {
    is_recording_ = false;
    ++dropped_;
  }
  void append(const event& e) noexcept {
    if (!is_recording_ || log_.size() >= max_events_ || !log_.add(e)) drop();
  }
  void append_free(const block& b) noexcept { append({event::kind::free, b.id, b.bytes}); }
  void append_allocation(block& b, std::size_t bytes, stream_id stream) noexcept {
    b.id = next_id_++;
    b.bytes = bytes;
    append({event::kind::allocate, b.id, bytes, stream});
  }
  /// Records that the open scopes whose functions select a stream direct its requests.
  void join_scopes(stream_id stream) noexcept {
    for (pool* p = first_open_; p != nullptr; p = p->next_open) {
      if (!p->streams.selects(stream) || has_joined(*p, stream)) continue;
      if (!joined_nodes_.reserve(1)) return drop();
      joined_stream* const made = joined_nodes_.take();
      *made = {p->joined, stream};
      p->joined = made;
      append({event::kind::join_pool, p->number, 0, stream});
    }
  }
  [[nodiscard]] static bool has_joined(const pool& in, stream_id stream) noexcept {
    for (const joined_stream* j = in.joined; j != nullptr; j = j->next) {
      if (j->stream == stream) return true;
    }
    return false;
  }

  const std::size_t max_events_;
  mutable std::mutex mutex_;  // guards the members below
  bool is_recording_ = true;
  std::uint64_t dropped_ = 0;
  std::uint64_t next_id_ = 0;
  event_log log_;
  tessera::detail::block_notes<block> blocks_;
  tessera::detail::key_map<pool> pools_;
  tessera::detail::slab<pool> pool_nodes_;
  tessera::detail::slab<joined_stream> joined_nodes_;
  pool* first_open_ = nullptr;  // of the scopes whose streams a function selects
};

}  // namespace tessera::inline v0_1::trace::detail

namespace tessera::inline v0_1::trace {

/// Records the calls of a running program. Otherwise it behaves like `Allocator`.
///
/// Choose it to replay the program later, for example with tessera-replay, and to compare recipes for it.
///
///     #include <tessera/concurrent/locked.hpp>
///     #include <tessera/trace/csv.hpp>
///     using device_allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
///     tessera::trace::captured<tessera::concurrent::locked<device_allocator>> memory;
///     for (std::uint64_t batch = 0; batch < 3; ++batch) {
///       memory.begin_step();
///       memory.deallocate(memory.allocate(5_MiB));
///     }
///     std::fputs(tessera::trace::to_csv(memory.recorded()).c_str(), stdout);
///     if (!memory.is_complete()) std::puts("the last events are missing");
///
/// * It records requests that are served, frees, recorded streams and steps. It also records trim() and the
///   private pools with their scopes, trims, sleep and wake. A call that fails leaves no event.
/// * Requests by handle are recorded like others. A successful reuse_in_place is a free and a request.
/// * The recording ends at options::max_events, and if host memory runs out. It also ends when a checkpoint
///   is restored, because it has no such event. The program goes on.
/// * A free is recorded before the memory goes back, a request after the memory was obtained. Calls of several
///   threads that overlap are in any order.
/// * Blocks and pools that were made through inner() are not recorded. Free all others here.
///
/// These calls leave no event: trim(keep) with more than 0 bytes, trim_without_waiting, evict_idle and
/// process_events. Nor do the options, sources and quotas of pools, and sleep of the default pools alone.
/// Requests in a scope of the kind plain are recorded without their pool.
///
/// If a function selects the streams of a scope, a stream joins at its first request in the scope. Until then,
/// the recorded scope selects the stream 2^64 - 1. The function is called once more for each request, perhaps
/// while another thread calls it, too.
///
/// It is as thread-safe as `Allocator`.
///   Cost:  a mutex for each recorded call, and a look-up for each block; 32 bytes of host memory for an event,
///          and about 70 for a live block
template <typename Allocator>
class captured : public tessera::detail::wrapping_adaptor<captured<Allocator>, Allocator> {
  using adaptor_type = tessera::detail::wrapping_adaptor<captured, Allocator>;
  using adaptor_type::allocator_;
  static constexpr bool has_handles = requires(Allocator& a) { a.allocate_by_handle(0); };
  static constexpr bool has_pools = tessera::detail::offers<Allocator, extension::private_pools>;
  using filter = std::conditional_t<has_pools, extension::stream_filter, detail::no_filter>;

 public:
  /// How many events are kept at most (`max_events`).
  using options = detail::capture_options;

  captured() = default;
  /// Makes the allocator from the arguments.
  using adaptor_type::adaptor_type;
  /// Makes the allocator from the arguments that follow the options.
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit captured(options chosen, Args&&... args)
      : adaptor_type(std::forward<Args>(args)...), recorder_(chosen) {}

  /// Returns the program so far. Other threads may go on meanwhile.
  ///   Throws:  std::bad_alloc
  ///   Cost:    copies the events
  [[nodiscard]] recording recorded(std::string name = "captured") const {
    return {std::move(name), recorder_.events()};
  }
  /// Whether the recording has every event.
  [[nodiscard]] bool is_complete() const noexcept { return dropped() == 0; }
  /// The number of events since the recording ended; 0 if it goes on.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return recorder_.dropped(); }

  /// Records that a step of the program begins, such as a training iteration. Passes it to `Allocator` if that
  /// has begin_step. The program chooses the key.
  void begin_step(std::uint64_t key = 0) noexcept {
    recorder_.add({event::kind::begin_step, key});
    if constexpr (requires { allocator_.begin_step(key); }) allocator_.begin_step(key);
  }
  /// Passes the step of one stream to `Allocator` if that has begin_step. The recording has it as a step of all streams.
  void begin_step(std::uint64_t key, stream_id stream) noexcept {
    recorder_.add({event::kind::begin_step, key});
    if constexpr (requires { allocator_.begin_step(key, stream); }) allocator_.begin_step(key, stream);
  }

  /// Throws what `Allocator` throws.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    const tessera::detail::request_call call{bytes, stream};
    return on_call(*this, call, [this, bytes, stream] { return allocator_.allocate(bytes, stream); });
  }
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    const bool done = allocator_.reuse_in_place(p, bytes, stream);
    if (done) recorder_.add_reuse(p, bytes, stream);
    return done;
  }

  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    const bool done = allocator_.record_stream(p, stream);
    if (done) recorder_.add_use(p, stream);
    return done;
  }
  [[nodiscard]] bool record_stream(block_handle h, stream_id stream) noexcept
    requires has_handles
  {
    const bool done = allocator_.record_stream(h, stream);
    if (done) recorder_.add_use(h.data(), stream);
    return done;
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    const bool done = allocator_.try_record_stream(p, stream);
    if (done) recorder_.add_use(p, stream);
    return done;
  }

  void trim(std::size_t keep = 0) noexcept {
    adaptor_type::trim(keep);
    if (keep == 0) recorder_.add({event::kind::empty_cache});
  }

  /// Records a change that a door made, such as a scope that was opened, and passes it to `Allocator`.
  template <typename Note>
  void note_change(const Note& note) {
    adaptor_type::note_change(note);
    if constexpr (std::is_same_v<Note, extension::pool_change>) {
      record_pool(note);
    } else if constexpr (std::is_same_v<Note, extension::sleep_change>) {
      record_sleep(note);
    } else if constexpr (std::is_same_v<Note, extension::pool_restored>) {
      recorder_.stop();
    }
  }

  /// Adds the bytes of the recording.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return adaptor_type::metadata_bytes() + recorder_.metadata_bytes();
  }

 private:
  friend allocator_adaptor<captured, Allocator>;
  template <typename F>
  static auto on_call(captured& me, const tessera::detail::request_call& call, F ask) {
    const auto got = ask();
    me.recorder_.add_allocation(got, call.bytes, call.stream);
    return got;
  }
  template <typename F>
  static bool on_call(captured& me, const tessera::detail::free_call& call, F free) noexcept {
    const bool is_recorded = call.address == nullptr || me.recorder_.add_free(call);
    const bool done = free();
    if (done && !is_recorded) me.recorder_.count_if_stopped();
    return done;
  }
  // `Note` is extension::pool_change or sleep_change, which only the header of the extension defines.

  template <typename Note>
  void record_pool(const Note& note) noexcept {
    using change = typename Note::kind;
    const pool_id pool = note.pool;
    switch (note.what) {
      case change::created: return recorder_.add_pool(pool);
      case change::retained: return recorder_.add_pool_operation(event::kind::retain_pool, pool);
      case change::released: return recorder_.add_pool_operation(event::kind::release_pool, pool);
      case change::opened:
        if (note.scope == decltype(note.scope)::capture) recorder_.add_begin(pool, *note.streams);
        return;
      case change::closed: return recorder_.add_end(pool);
      case change::trimmed:
        if (pool != pool_id{}) recorder_.add_pool_operation(event::kind::empty_cache, pool);
    }
  }
  template <typename Note>
  void record_sleep(const Note& note) noexcept {
    if (note.is_one && note.pool == pool_id{}) return;  // the default pools alone
    const bool saves = !note.is_wake && note.contents == decltype(note.contents)::save;
    recorder_.add_pool_operation(note.is_wake ? event::kind::wake : event::kind::sleep, note.pool,
                                 saves ? 1 : 0, note.is_wake || saves ? note.copies : stream_id{});
  }

  detail::program_recorder<filter> recorder_{
      options{}};  // its mutex is not held while the allocator is called
};

}  // namespace tessera::inline v0_1::trace
