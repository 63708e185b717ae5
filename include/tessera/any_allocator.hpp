// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

namespace detail {
/// An allocator of one device. A per_device has several: use front(d) of one.
template <typename Allocator>
concept is_allocator_of_one_device = requires(Allocator& a, void* p, std::size_t bytes, stream_id stream) {
  { a.allocate(bytes, stream) } -> std::same_as<void*>;
  { a.try_allocate(bytes, stream) } -> std::same_as<void*>;
  a.deallocate(p);
  a.deallocate(p, bytes);
  { a.try_deallocate(p) } -> std::same_as<bool>;
  { a.record_stream(p, stream) } -> std::same_as<bool>;
  { a.try_record_stream(p, stream) } -> std::same_as<bool>;
  a.trim(bytes);
  { a.current_usage() } -> std::same_as<usage>;
  { a.audit() } -> std::same_as<const char*>;
};
}  // namespace detail

/// Refers to an allocator of any type: a pointer to the allocator, and a pointer to a table of its calls.
///
/// Choose it for interfaces of your own program. Their headers then include neither a recipe nor a provider,
/// and compile in a tenth of a second. One source creates the allocator. It converts to an any_allocator:
///
///     struct texture_cache {
///       explicit texture_cache(tessera::any_allocator from) : memory(from) {}
///       tessera::any_allocator memory;
///     };
///     texture_cache textures(allocator);  // a caching_allocator, or any front end
///     void* const p = textures.memory.allocate(5_MiB);
///     textures.memory.deallocate(p);
///
/// Each call does what the call of that name does in the allocator; it is as thread-safe as the allocator. To
/// hold it before the allocator exists, use a std::optional.
///
/// A private_pool may be made over it. An allocator without private pools creates none: create_pool returns no
/// pool, and private_pool throws. Shares, memory sources and checkpoints are not forwarded. If the memory of the
/// allocator cannot sleep, sleep_pool and wake_pool say so.
///
///   Requires:  the allocator outlives it and does not move
///   Cost:      one indirect call; it allocates nothing
class any_allocator {
 public:
  template <typename Allocator>
    requires(!std::is_same_v<std::remove_cv_t<Allocator>, any_allocator> && !std::is_const_v<Allocator> &&
             detail::is_allocator_of_one_device<Allocator>)
  any_allocator(Allocator& allocator) noexcept : allocator_(&allocator), calls_(&calls_of<Allocator>) {}
  template <typename Allocator,
            typename Missing = detail::missing::any_allocator_needs_the_front_of_one_device>
    requires(!std::is_same_v<std::remove_cv_t<Allocator>, any_allocator> && !std::is_const_v<Allocator> &&
             !detail::is_allocator_of_one_device<Allocator>)
  any_allocator(Allocator& allocator) = delete;

  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) const {
    return calls_->allocate(allocator_, bytes, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) const noexcept {
    return calls_->try_allocate(allocator_, bytes, stream);
  }
  void deallocate(void* p) const noexcept { calls_->deallocate(allocator_, p); }
  void deallocate(void* p, std::size_t bytes) const noexcept {
    calls_->deallocate_sized(allocator_, p, bytes);
  }
  [[nodiscard]] bool try_deallocate(void* p) const noexcept { return calls_->try_deallocate(allocator_, p); }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) const noexcept {
    return calls_->record_stream(allocator_, p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) const noexcept {
    return calls_->try_record_stream(allocator_, p, stream);
  }
  void trim(std::size_t keep = 0) const noexcept { calls_->trim(allocator_, keep); }
  /// Does nothing if the allocator has no such call: only a `planned` and those around it have it.
  void begin_step(std::uint64_t key = 0) const noexcept { calls_->begin_step(allocator_, key); }
  void begin_step(std::uint64_t key, stream_id stream) const noexcept {
    calls_->begin_step_of(allocator_, key, stream);
  }
  [[nodiscard]] usage current_usage() const noexcept { return calls_->current_usage(allocator_); }
  [[nodiscard]] const char* audit() const noexcept { return calls_->audit(allocator_); }

  [[nodiscard]] pool_id create_pool(pool_options options = {}) const noexcept {
    return calls_->create_pool(allocator_, options);
  }
  [[nodiscard]] bool retain_pool(pool_id pool) const noexcept {
    return calls_->retain_pool(allocator_, pool);
  }
  [[nodiscard]] bool release_pool(pool_id pool) const noexcept {
    return calls_->release_pool(allocator_, pool);
  }
  [[nodiscard]] std::size_t uses_of_pool(pool_id pool) const noexcept {
    return calls_->uses_of_pool(allocator_, pool);
  }
  [[nodiscard]] bool has_pool(pool_id pool) const noexcept { return calls_->has_pool(allocator_, pool); }
  [[nodiscard]] bool begin_allocate_to_pool(pool_id pool, stream_filter streams,
                                            scope_kind kind = scope_kind::capture) const noexcept {
    return calls_->begin_allocate_to_pool(allocator_, pool, streams, kind);
  }
  [[nodiscard]] bool end_allocate_to_pool(pool_id pool) const noexcept {
    return calls_->end_allocate_to_pool(allocator_, pool);
  }
  [[nodiscard]] bool is_capturing() const noexcept { return calls_->is_capturing(allocator_); }
  void trim_pool(pool_id pool) const noexcept { calls_->trim_pool(allocator_, pool); }
  [[nodiscard]] sleep_result sleep_pool(pool_id pool, sleep_contents contents,
                                        stream_id copies = {}) const noexcept {
    return calls_->sleep_pool(allocator_, pool, contents, copies);
  }
  [[nodiscard]] sleep_result wake_pool(pool_id pool, stream_id copies = {}) const noexcept {
    return calls_->wake_pool(allocator_, pool, copies);
  }
  [[nodiscard]] bool is_asleep(pool_id pool = {}) const noexcept {
    return calls_->is_asleep(allocator_, pool);
  }
  [[nodiscard]] detail::missing::any_allocator_forwards_no_memory_sources create_pool(
      const memory_source& from, pool_options options = {}) const;
  [[nodiscard]] detail::missing::any_allocator_forwards_no_checkpoints checkpoint_pool(pool_id pool) const;
  [[nodiscard]] detail::missing::any_allocator_forwards_no_checkpoints restore_pool(
      const pool_checkpoint& from) const;
  [[nodiscard]] detail::missing::any_allocator_forwards_no_shares set_share(pool_id pool,
                                                                            pool_share share) const;
  [[nodiscard]] detail::missing::any_allocator_forwards_no_shares share_of(pool_id pool) const;
  [[nodiscard]] detail::missing::any_allocator_forwards_no_shares bytes_of_pool(pool_id pool) const;

  /// Whether both refer to the same allocator.
  bool operator==(const any_allocator& other) const noexcept { return allocator_ == other.allocator_; }

 private:
  struct call_table {
    void* (*allocate)(void*, std::size_t, stream_id);
    void* (*try_allocate)(void*, std::size_t, stream_id) noexcept;
    void (*deallocate)(void*, void*) noexcept;
    void (*deallocate_sized)(void*, void*, std::size_t) noexcept;
    bool (*try_deallocate)(void*, void*) noexcept;
    bool (*record_stream)(void*, void*, stream_id) noexcept;
    bool (*try_record_stream)(void*, void*, stream_id) noexcept;
    void (*trim)(void*, std::size_t) noexcept;
    void (*begin_step)(void*, std::uint64_t) noexcept;
    void (*begin_step_of)(void*, std::uint64_t, stream_id) noexcept;
    usage (*current_usage)(void*) noexcept;
    const char* (*audit)(void*) noexcept;
    pool_id (*create_pool)(void*, pool_options) noexcept;
    bool (*retain_pool)(void*, pool_id) noexcept;
    bool (*release_pool)(void*, pool_id) noexcept;
    std::size_t (*uses_of_pool)(void*, pool_id) noexcept;
    bool (*has_pool)(void*, pool_id) noexcept;
    bool (*begin_allocate_to_pool)(void*, pool_id, stream_filter, scope_kind) noexcept;
    bool (*end_allocate_to_pool)(void*, pool_id) noexcept;
    bool (*is_capturing)(void*) noexcept;
    void (*trim_pool)(void*, pool_id) noexcept;
    sleep_result (*sleep_pool)(void*, pool_id, sleep_contents, stream_id) noexcept;
    sleep_result (*wake_pool)(void*, pool_id, stream_id) noexcept;
    bool (*is_asleep)(void*, pool_id) noexcept;
  };
  template <typename Allocator>
  [[nodiscard]] static Allocator& to(void* allocator) noexcept {
    return *static_cast<Allocator*>(allocator);
  }
  /// Calls f(allocator) if it has private pools. Otherwise returns a default value.
  template <typename Result, typename Allocator, typename F>
  static Result with_pools(void* allocator, F f) noexcept {
    if constexpr (requires(Allocator& in) { in.create_pool(); }) {
      return f(to<Allocator>(allocator));
    } else {
      return Result();
    }
  }
  /// Calls f(allocator) if its memory can sleep.
  template <typename Allocator, typename F>
  static sleep_result with_sleep(void* allocator, F f) noexcept {
    if constexpr (requires { requires Allocator::can_sleep; }) {
      return f(to<Allocator>(allocator));
    } else {
      return {.why = "the memory of this allocator cannot sleep"};
    }
  }
  template <typename A>
  static constexpr call_table calls_of = {
      [](void* a, std::size_t bytes, stream_id s) { return to<A>(a).allocate(bytes, s); },
      [](void* a, std::size_t bytes, stream_id s) noexcept { return to<A>(a).try_allocate(bytes, s); },
      [](void* a, void* p) noexcept { to<A>(a).deallocate(p); },
      [](void* a, void* p, std::size_t bytes) noexcept { to<A>(a).deallocate(p, bytes); },
      [](void* a, void* p) noexcept { return to<A>(a).try_deallocate(p); },
      [](void* a, void* p, stream_id s) noexcept { return to<A>(a).record_stream(p, s); },
      [](void* a, void* p, stream_id s) noexcept { return to<A>(a).try_record_stream(p, s); },
      [](void* a, std::size_t keep) noexcept { to<A>(a).trim(keep); },
      [](void* a, std::uint64_t key) noexcept {
        if constexpr (requires { to<A>(a).begin_step(key); }) to<A>(a).begin_step(key);
      },
      [](void* a, std::uint64_t key, stream_id s) noexcept {
        if constexpr (requires { to<A>(a).begin_step(key, s); }) to<A>(a).begin_step(key, s);
      },
      [](void* a) noexcept { return to<A>(a).current_usage(); },
      [](void* a) noexcept { return to<A>(a).audit(); },
      [](void* a, pool_options options) noexcept {
        return with_pools<pool_id, A>(a, [=](auto& in) { return in.create_pool(options); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<bool, A>(a, [=](auto& in) { return in.retain_pool(pool); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<bool, A>(a, [=](auto& in) { return in.release_pool(pool); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<std::size_t, A>(a, [=](auto& in) { return in.uses_of_pool(pool); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<bool, A>(a, [=](auto& in) { return in.has_pool(pool); });
      },
      [](void* a, pool_id pool, stream_filter streams, scope_kind kind) noexcept {
        return with_pools<bool, A>(a,
                                   [=](auto& in) { return in.begin_allocate_to_pool(pool, streams, kind); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<bool, A>(a, [=](auto& in) { return in.end_allocate_to_pool(pool); });
      },
      [](void* a) noexcept { return with_pools<bool, A>(a, [](auto& in) { return in.is_capturing(); }); },
      [](void* a, pool_id pool) noexcept { with_pools<void, A>(a, [=](auto& in) { in.trim_pool(pool); }); },
      [](void* a, pool_id pool, sleep_contents contents, stream_id copies) noexcept {
        return with_sleep<A>(a, [=](auto& in) { return in.sleep_pool(pool, contents, copies); });
      },
      [](void* a, pool_id pool, stream_id copies) noexcept {
        return with_sleep<A>(a, [=](auto& in) { return in.wake_pool(pool, copies); });
      },
      [](void* a, pool_id pool) noexcept {
        return with_pools<bool, A>(a, [=](auto& in) { return in.is_asleep(pool); });
      }};

  void* allocator_;
  const call_table* calls_;
};
static_assert(sizeof(any_allocator) == 2 * sizeof(void*));

}  // namespace tessera
