// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/reach.hpp>
#include <tessera/observe/inspect.hpp>

namespace tessera {

/// The live blocks of an allocator.
struct live_blocks {
  struct block {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;  ///< as requested
    stream_id stream{};     ///< the key under which it will be shared
    std::string_view label{};
  };
  std::size_t count = 0;
  std::size_t bytes = 0;         ///< as requested, of all
  std::array<block, 8> first{};  ///< of them, those at the lowest addresses
  [[nodiscard]] std::size_t shown() const noexcept { return count < first.size() ? count : first.size(); }

  void add(block b) noexcept {
    ++count;
    bytes += b.bytes;
    for (std::size_t i = 0; i < shown(); ++i) {
      if (i + 1 == count) return void(first[i] = b);
      if (b.address < first[i].address) std::swap(b, first[i]);
    }
  }
};

/// A sink that knows under which label each of its events happened, as a history does.
template <typename Observer>
concept keeps_labels =
    requires(const Observer& observer, const typename Observer::entry& seen) { observer.text_of(seen); };

/// What is live in an allocator of any kind now, with the labels that a history or a guarded allocator has for it.
///
///     #include <tessera/concurrent/locked.hpp>
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device> shared;
///     void* p = shared.allocate(1000);
///     std::printf("%zu bytes are live\n", tessera::live_blocks_of(shared).bytes);
///     shared.deallocate(p);
///
///   Cost:  linear in the blocks, and in what the history keeps
template <typename Allocator>
[[nodiscard]] live_blocks live_blocks_of(Allocator& pool) {
  live_blocks found;
  for_each_allocator(pool, [&found](auto& one, std::size_t) {
    for_each_block(one, [&found](const segment_view&, const block_view& b) {
      if (b.is == block_view::state::live) found.add({b.address, b.requested, b.stream, {}});
    });
  });
  for (std::size_t i = 0; i < found.shown(); ++i) {
    live_blocks::block& b = found.first[i];
    if constexpr (requires { pool.label_of(static_cast<const void*>(nullptr)); })
      b.label = pool.label_of(reinterpret_cast<const void*>(b.address));
  }
  for_each_observer(pool, [&found]<typename Observer>(Observer& observer, std::size_t) {
    if constexpr (keeps_labels<Observer>) {
      observer.for_each([&](const auto& seen) {
        if (seen.event.what != allocator_event::action::alloc) return;
        for (std::size_t i = 0; i < found.shown(); ++i) {
          if (found.first[i].address == seen.event.address) found.first[i].label = observer.text_of(seen);
        }
      });
    }
  });
  return found;
}

/// Writes them to standard error.
struct say_what_lives {
  void operator()(const live_blocks& left) const noexcept {
    std::fprintf(stderr, "tessera: %zu live %s of %zu bytes when their allocator ended:\n", left.count,
                 left.count == 1 ? "block" : "blocks", left.bytes);
    for (std::size_t i = 0; i < left.shown(); ++i) {
      const live_blocks::block& b = left.first[i];
      std::fprintf(stderr, "  %zu bytes at %p, stream %llu", b.bytes, reinterpret_cast<void*>(b.address),
                   static_cast<unsigned long long>(b.stream.handle));
      if (!b.label.empty())
        std::fprintf(stderr, ", label '%.*s'", static_cast<int>(b.label.size()), b.label.data());
      std::fputc('\n', stderr);
    }
    if (left.count > left.shown()) std::fprintf(stderr, "  and %zu more\n", left.count - left.shown());
  }
};

/// An allocator of any kind that reports the blocks which are live when it ends. Their memory goes back to the device in any
/// case.
///
///     #include <tessera/observe/history.hpp>
///     using watched = tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device, tessera::history<>>;
///     tessera::leak_checked<watched> checked;
///     checked.observer().label("weights");
///     (void)checked.allocate(1000);  // at the end: "tessera: 1 live block of 1000 bytes when their allocator ended" ...
///
/// `To` is a function that takes live_blocks and must not throw; what they refer to ends with the allocator.
///   Cost:  nothing until the end
template <typename Allocator, typename To = say_what_lives>
class leak_checked : public Allocator {
 public:
  using Allocator::Allocator;
  ~leak_checked() {
    if constexpr (requires { this->end_here(); }) this->end_here();
    const live_blocks left = live_blocks_of(static_cast<Allocator&>(*this));
    if (left.count > 0) to_(left);
  }

  /// Whom it reports to.
  [[nodiscard]] To& report_to() noexcept { return to_; }

 private:
  [[no_unique_address]] To to_{};
};

}  // namespace tessera
