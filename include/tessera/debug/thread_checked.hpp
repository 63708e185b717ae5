// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <unistd.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/interop/in_place.hpp>

namespace tessera {

/// A caching_allocator that checks that one thread at a time uses it: the one that did so first, until that one hands it
/// over. Another one ends the program, in words that name both by the numbers that debuggers show. Who does not name this type
/// pays nothing for it. Linux.
///
///     using pool_type = tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device>;
///     tessera::one_thread<pool_type> mine;
///     mine.deallocate(mine.allocate(5_MiB));
///     mine.hand_over();  // from here on it belongs to the next one that uses it
///
/// It may end in any thread. A thread that began after another one had ended may bear its number, and pass for it.
///   Cost:  two loads for each call
template <typename Allocator>
class one_thread : public Allocator, public allocate_calls<one_thread<Allocator>> {
  using calls = allocate_calls<one_thread>;

 public:
  using Allocator::Allocator;

  /// Leaves the allocator to the next thread that uses it, which then sees all that was done here.
  void hand_over() noexcept { check(), owner_.store(nobody, std::memory_order_release); }
  /// Gives the allocator to this thread, whoever had it, as what ends it may look at it first.
  void end_here() noexcept { owner_.store(my_number(), std::memory_order_relaxed); }

  using calls::allocate, calls::try_allocate, calls::deallocate, calls::record_stream;
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    return mine().allocate(bytes, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return mine().try_allocate(bytes, stream);
  }
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    return mine().allocate_by_handle(bytes, stream);
  }
  void deallocate(void* p) noexcept { mine().deallocate(p); }
  void deallocate(void* p, std::size_t bytes) noexcept { mine().deallocate(p, bytes); }
  void deallocate(handle h) noexcept { mine().deallocate(h); }
  [[nodiscard]] bool try_deallocate(void* p) noexcept { return mine().try_deallocate(p); }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return mine().record_stream(p, stream);
  }
  [[nodiscard]] bool record_stream(handle h, stream_id stream) noexcept {
    return mine().record_stream(h, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return mine().try_record_stream(p, stream);
  }
  /// What allocate_in_place asks for.
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    return mine().reuse_in_place(p, bytes, stream);
  }
  void trim(std::size_t keep = 0) noexcept { mine().trim(keep); }
  [[nodiscard]] bool on_pressure(bool (*call)(void* context) noexcept, void* context) noexcept {
    return mine().on_pressure(call, context);
  }
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    return mine().failure(bytes, stream);
  }
  [[nodiscard]] usage now() const noexcept { return mine().now(); }
  [[nodiscard]] auto statistics() const noexcept
    requires requires(const Allocator& a) { a.statistics(); }
  {
    return mine().statistics();
  }
  void reset_peak_statistics() noexcept { mine().reset_peak_statistics(); }
  void reset_accumulated_statistics() noexcept { mine().reset_accumulated_statistics(); }
  [[nodiscard]] std::size_t footprint() const noexcept { return mine().footprint(); }
  [[nodiscard]] const char* audit() const noexcept { return mine().audit(); }
  [[nodiscard]] auto& settings() noexcept { return mine().settings(); }
  [[nodiscard]] auto& device() noexcept { return mine().device(); }
  [[nodiscard]] auto& observer() noexcept { return mine().observer(); }
  [[nodiscard]] auto introspect() const noexcept { return mine().introspect(); }

 private:
  using thread_number = std::int64_t;
  static constexpr thread_number nobody = 0;

  [[nodiscard]] Allocator& mine() noexcept { return check(), *this; }
  [[nodiscard]] const Allocator& mine() const noexcept { return check(), *this; }
  [[nodiscard]] static thread_number my_number() noexcept {
    static thread_local const thread_number me = ::gettid();
    return me;
  }
  void check() const noexcept {
    const thread_number me = my_number();
    thread_number owner = owner_.load(std::memory_order_relaxed);
    if (owner == me) return;
    if (owner == nobody && owner_.compare_exchange_strong(owner, me, std::memory_order_acquire)) return;
    refuse(me, owner);
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse(thread_number me, thread_number owner) noexcept {
    fixed_text words;
    words.add("one_thread: thread ").add(static_cast<std::uint64_t>(me)).add(" uses an allocator of thread ");
    words.add(static_cast<std::uint64_t>(owner)).add(", which has not handed it over");
    fatal(words.c_str());
  }

  mutable std::atomic<thread_number> owner_{nobody};
};

}  // namespace tessera
