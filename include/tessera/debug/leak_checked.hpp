// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/inspect.hpp>

namespace tessera {

namespace detail {
/// An observer that stores the label of each event, such as `history`.
template <typename Observer>
concept keeps_labels =
    requires(const Observer& observer, const typename Observer::entry& seen) { observer.label_of(seen); };
}  // namespace detail

/// Lists the live blocks of any allocator. A history or a guarded allocator adds their labels.
///
///     #include <tessera/concurrent/locked.hpp>
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device> shared;
///     void* p = shared.allocate(1000);
///     std::printf("%zu bytes are live\n", tessera::live_blocks(shared).bytes);
///     shared.deallocate(p);
struct live_blocks {
  struct block {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;  ///< requested bytes
    stream_id stream{};     ///< the stream that may reuse it
    std::string_view label{};
  };
  std::size_t count = 0;
  std::size_t bytes = 0;         ///< requested bytes of all live blocks
  std::array<block, 8> first{};  ///< the blocks at the lowest addresses
  [[nodiscard]] std::size_t shown() const noexcept { return count < first.size() ? count : first.size(); }

  live_blocks() = default;
  /// Lists the blocks that are live now.
  ///   Cost:  linear in the blocks, and in the stored events of the history
  template <typename Allocator>
    requires(!std::same_as<Allocator, live_blocks>)
  explicit live_blocks(Allocator& allocator) {
    allocator.for_each_allocator([this](auto& one) {
      for_each_block(one, [this](const segment_view&, const block_view& b) {
        if (b.is == block_view::state::live) add({b.address, b.requested, b.stream, {}});
      });
    });
    if constexpr (requires { allocator.label_of(static_cast<const void*>(nullptr)); }) {
      for (std::size_t i = 0; i < shown(); ++i)
        first[i].label = allocator.label_of(reinterpret_cast<const void*>(first[i].address));
    }
    allocator.with_observer([&](auto& observer) { add_labels(observer); });
  }

 private:
  void add(block b) noexcept {
    ++count;
    bytes += b.bytes;
    for (std::size_t i = 0; i < shown(); ++i) {
      if (i + 1 == count) {
        first[i] = b;
        return;
      }
      if (b.address < first[i].address) std::swap(b, first[i]);
    }
  }
  template <typename Observer>
  void add_labels(const Observer& observer) {
    if constexpr (detail::keeps_labels<Observer>) {
      observer.for_each([&](const auto& entry) {
        if (entry.event.what != allocator_event::action::alloc) return;
        for (std::size_t i = 0; i < shown(); ++i) {
          if (first[i].address == entry.event.address) first[i].label = observer.label_of(entry);
        }
      });
    }
  }
};

namespace detail {
/// Writes live blocks to standard error.
struct print_live_blocks {
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
}  // namespace detail

/// Reports the blocks that are live when the allocator is destroyed. Otherwise it behaves like `Allocator`,
/// which may be of any kind.
///
/// Choose it in tests, to find blocks that are never freed. Their memory is released in any case.
///
///     #include <tessera/observe/history.hpp>
///     using device = tessera::simulated_device;
///     using labelled = tessera::caching_allocator<tessera::pytorch<>, device, tessera::history<>>;
///     tessera::leak_checked<labelled> checked;
///     checked.observer().label("weights");
///     (void)checked.allocate(1000);
///     // prints at the end: "tessera: 1 live block of 1000 bytes when their allocator ended" ...
///
/// `Report` is a function that takes live_blocks and does not throw. The labels in live_blocks are valid
/// until the allocator is destroyed.
///   Cost:  none until the destructor
template <typename Allocator, typename Report = detail::print_live_blocks>
class leak_checked : public Allocator {
 public:
  using Allocator::Allocator;
  ~leak_checked() {
    if constexpr (requires { this->attach_to_thread(); }) this->attach_to_thread();
    const live_blocks left(static_cast<Allocator&>(*this));
    if (left.count > 0) report_(left);
  }

  [[nodiscard]] Report& report() noexcept { return report_; }

 private:
  [[no_unique_address]] Report report_{};
};

}  // namespace tessera
