// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <tessera/observe/inspect.hpp>

namespace tessera::inline v0_1::detail {

/// An observer that keeps the label of each live block, such as `history`.
template <typename Observer>
concept keeps_labels = requires(const Observer& observer) { observer.block_at(0).label; };

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::debug {

/// Lists the live blocks of any allocator. A history or a guarded allocator adds their labels, a history_with_stacks the
/// call stacks of their requests.
///
///     #include <tessera/concurrent/locked.hpp>
///     tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>> shared;
///     void* p = shared.allocate(1000);
///     std::printf("%zu bytes are live\n", tessera::debug::live_blocks(shared).bytes);
///     shared.deallocate(p);
struct live_blocks {
  /// A live block.
  struct block {
    std::uintptr_t address = 0;  ///< of the first byte
    std::size_t bytes = 0;       ///< requested bytes
    stream_id stream{};          ///< the stream that may reuse it
    std::string_view label{};    ///< the label of the request; empty if there is none
    std::uint32_t stack = 0;     ///< call stack of the request; 0 if unknown
  };
  /// The blocks with one label.
  struct labelled {
    std::string_view label{};  ///< empty for the blocks without a label
    std::size_t count = 0;     ///< blocks
    std::size_t bytes = 0;     ///< requested
  };
  /// The call stack of a request, innermost call first.
  struct call_stack {
    std::uint32_t number = 0;          ///< as in `stack` of a block
    std::vector<std::string> calls{};  ///< such as "load, model.cpp:12"
  };
  std::size_t count = 0;             ///< all live blocks, of which `first` and `largest` show some
  std::size_t bytes = 0;             ///< requested bytes of all live blocks
  std::array<block, 8> first{};      ///< the blocks at the lowest addresses
  std::array<block, 8> largest{};    ///< the largest blocks; of equal ones, those at the lowest addresses
  std::vector<labelled> labels{};    ///< the sums of each label, the largest first
  std::vector<call_stack> stacks{};  ///< of the largest blocks, as far as they are known
  /// How many elements of `first` and of `largest` are blocks.
  [[nodiscard]] std::size_t shown() const noexcept { return count < first.size() ? count : first.size(); }

  live_blocks() = default;
  /// Lists the blocks that are live now.
  ///   Throws:  std::bad_alloc
  ///   Cost:    linear in the blocks; it takes about 50 bytes of host memory for each meanwhile
  template <typename Allocator>
    requires(!std::same_as<Allocator, live_blocks>)
  explicit live_blocks(Allocator& allocator) {
    std::vector<block> all;
    observe::for_each_block(allocator, [&all](const segment_view&, const block_view& b) {
      if (b.is == block_view::state::live) all.push_back({b.address, b.requested, b.stream, {}});
    });
    if constexpr (requires { allocator.label_of(static_cast<const void*>(nullptr)); }) {
      for (block& b : all) b.label = allocator.label_of(reinterpret_cast<const void*>(b.address));
    }
    allocator.for_each_observer([&](auto& observer) { add_labels(observer, all); });
    summarize(all);
    allocator.for_each_observer([&](auto& observer) { add_stacks(observer); });
  }

 private:
  template <typename Observer>
  static void add_labels(const Observer& observer, std::vector<block>& all) {
    if constexpr (detail::keeps_labels<Observer>) {
      for (block& b : all) {
        const auto kept = observer.block_at(b.address);
        if (!kept.label.empty()) b.label = kept.label;
        if (kept.stack != 0) b.stack = kept.stack;
      }
    }
  }
  void summarize(std::vector<block>& all) {
    std::map<std::string_view, labelled> sums;
    count = all.size();
    for (const block& b : all) {
      bytes += b.bytes;
      labelled& sum = sums[b.label];
      sum.label = b.label;
      ++sum.count;
      sum.bytes += b.bytes;
    }
    for (const auto& [label, sum] : sums) labels.push_back(sum);
    std::sort(labels.begin(), labels.end(), [](const labelled& a, const labelled& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.label < b.label;
    });
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(shown());
    const auto is_lower = [](const block& a, const block& b) { return a.address < b.address; };
    std::partial_sort(all.begin(), end, all.end(), is_lower);
    std::copy(all.begin(), end, first.begin());
    std::partial_sort(all.begin(), end, all.end(), [is_lower](const block& a, const block& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : is_lower(a, b);
    });
    std::copy(all.begin(), end, largest.begin());
  }
  template <typename Observer>
  void add_stacks(const Observer& observer) {
    if constexpr (requires { observer.stack_of(0); }) {
      for (std::size_t i = 0; i < shown(); ++i) {
        const std::uint32_t number = observer.block_at(largest[i].address).stack;
        const bool is_known = std::any_of(stacks.begin(), stacks.end(),
                                          [=](const call_stack& s) { return s.number == number; });
        if (number == 0 || is_known) continue;
        call_stack& added = stacks.emplace_back(call_stack{number, {}});
        for (const auto& call : observer.stack_of(number)) {
          std::string& text = added.calls.emplace_back(call.function);
          if (!call.file.empty()) text += ", " + call.file + ":" + std::to_string(call.line);
        }
      }
    }
  }
};

}  // namespace tessera::inline v0_1::debug

namespace tessera::inline v0_1::detail {

/// Writes live blocks to standard error.
struct print_live_blocks {
  void operator()(const debug::live_blocks& left) const noexcept {
    std::fprintf(stderr, "tessera: %zu live %s of %zu bytes when their allocator ended:\n", left.count,
                 left.count == 1 ? "block" : "blocks", left.bytes);
    for (std::size_t i = 0; i < left.shown(); ++i) {
      const debug::live_blocks::block& b = left.largest[i];
      std::fprintf(stderr, "  %zu bytes at 0x%llx, stream %llu", b.bytes,
                   static_cast<unsigned long long>(b.address),
                   static_cast<unsigned long long>(b.stream.handle));
      if (!b.label.empty())
        std::fprintf(stderr, ", label '%.*s'", static_cast<int>(b.label.size()), b.label.data());
      std::fputc('\n', stderr);
      for (const debug::live_blocks::call_stack& stack : left.stacks) {
        if (stack.number != b.stack) continue;
        for (const std::string& call : stack.calls) std::fprintf(stderr, "    %s\n", call.c_str());
      }
    }
    if (left.count > left.shown()) std::fprintf(stderr, "  and %zu more\n", left.count - left.shown());
    print_labels(left);
  }

 private:
  /// Writes the sums of the labels, if there are labels.
  static void print_labels(const debug::live_blocks& left) noexcept {
    constexpr std::size_t max_lines = 16;
    const std::size_t count = left.labels.size();
    if (count == 0 || (count == 1 && left.labels[0].label.empty())) return;
    for (std::size_t i = 0; i < count && i < max_lines; ++i) {
      const debug::live_blocks::labelled& sum = left.labels[i];
      std::fprintf(stderr, "  %zu bytes in %zu %s ", sum.bytes, sum.count,
                   sum.count == 1 ? "block" : "blocks");
      if (sum.label.empty()) {
        std::fputs("without a label\n", stderr);
      } else {
        std::fprintf(stderr, "with label '%.*s'\n", static_cast<int>(sum.label.size()), sum.label.data());
      }
    }
    if (count > max_lines) std::fprintf(stderr, "  and %zu more labels\n", count - max_lines);
  }
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::debug {

/// Reports the blocks that are live when the allocator is destroyed. Otherwise it behaves like `Allocator`,
/// which may be of any kind.
///
/// Choose it in tests, to find blocks that are never freed. Their memory is released in any case.
///
///     #include <tessera/extension/observer.hpp>
///     #include <tessera/observe/history.hpp>
///     using watch = tessera::extension::observer<tessera::observe::history<>>;
///     using labelled = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch>;
///     tessera::debug::leak_checked<labelled> checked;
///     const tessera::observe::label_scope weights(checked, "weights");
///     (void)checked.allocate(1000);
///     // prints at the end: "tessera: 1 live block of 1000 bytes when their allocator ended" ...
///
/// Prints the largest blocks and the sums of each label. `Report` is a function that takes live_blocks and does not throw.
/// The labels in live_blocks are valid until the allocator is destroyed.
///   Cost:  none until the destructor
template <typename Allocator, typename Report = detail::print_live_blocks>
class leak_checked : public Allocator {
 public:
  using Allocator::Allocator;
  // `A` delays the look-up, as some allocators have no such types.
  template <typename Other, typename A = Allocator>
  using rebind_provider = leak_checked<typename A::template rebind_provider<Other>, Report>;
  template <typename Other, typename A = Allocator>
  using rebind_recipe = leak_checked<typename A::template rebind_recipe<Other>, Report>;
  ~leak_checked() {
    if constexpr (requires { this->attach_to_thread(); }) this->attach_to_thread();
    const live_blocks left(static_cast<Allocator&>(*this));
    if (left.count > 0) report_(left);
  }

  /// The function that the destructor calls if blocks are live. Set what it needs while the allocator lives.
  [[nodiscard]] Report& report() noexcept { return report_; }

 private:
  [[TESSERA_NO_UNIQUE_ADDRESS]] Report report_{};
};

}  // namespace tessera::inline v0_1::debug
