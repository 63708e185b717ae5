// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include <tessera/core/types.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tool/recipe_entry.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Writes the decisions of an allocator: one line per device call and per event of the recording.
///
///   S+ <seg> <bytes>       a segment was acquired; segments are numbered from 1
///   S- <seg> <bytes>       a segment was released
///   V+ <seg> <bytes>       an address range was reserved; it counts as a segment
///   V- <seg> <bytes>       an address range was released
///   M+ <seg> <offset> <bytes>   pages were mapped, as one physical chunk
///   M- <seg> <offset> <bytes>   pages were unmapped
///   X <bytes>              the device refused
///   <i> a <id> <bytes> <stream> -> <seg>+<offset> blk=<block bytes>      or  -> OOM
///   <i> o <id> <bytes> <stream> -> ...   likewise, a request that failed in the recorded run; it is freed at once
///   <i> f <id> <seg>+<offset> blk=<block bytes>                          or  none, if its allocation had
///   failed <i> r <id>   <i> e <id>   <i> c <pool>
///   <i> b <pool> uses=<n>   <i> p <pool> uses=<n>   <i> x <pool> uses=<n>   <i> n <pool>
///   <i> j <pool> <stream>
///   <i> s <pool> bytes=<n>   <i> w <pool> bytes=<n>   the bytes that went back to the device, or came from it
///   An operation on pools that changes nothing ends with " -> error". For s and w, the reason follows.
class decision_log {
 public:
  explicit decision_log(std::FILE* out) noexcept : out_(out) {}

  void on(const allocator_event& e) noexcept {
    using action = allocator_event::action;
    switch (e.what) {
      case action::segment_alloc:
      case action::range_reserve:
        segments_[e.address] = ++last_segment_;
        std::fprintf(out_, "%c+ %zu %zu\n", e.what == action::segment_alloc ? 'S' : 'V', last_segment_,
                     e.bytes);
        break;
      case action::segment_free:
      case action::range_release:
        std::fprintf(out_, "%c- %zu %zu\n", e.what == action::segment_free ? 'S' : 'V', segments_[e.address],
                     e.bytes);
        segments_.erase(e.address);
        break;
      case action::segment_map:
      case action::segment_unmap: {
        const auto [segment, offset] = find(e.address);
        std::fprintf(out_, "M%c %zu %zu %zu\n", e.what == action::segment_map ? '+' : '-', segment, offset,
                     e.bytes);
        break;
      }
      case action::refused: std::fprintf(out_, "X %zu\n", e.bytes); break;
      case action::free_requested:
        freed_ = find(e.address);  // eviction may release the segment before the line is written
        block_ = e.block;
        break;
      case action::alloc: block_ = e.block; break;
      case action::free_completed:
      case action::oom:
      case action::sleep:
      case action::wake:
      case action::snapshot: break;
    }
  }

  void line(std::size_t i, const event& e, const void* address) noexcept {
    switch (e.what) {
      case event::kind::allocate:
      case event::kind::refused:
        std::fprintf(out_, "%zu %c %" PRIu64 " %zu %" PRIu64 " -> ", i,
                     tessera::trace::detail::csv_letter(e.what), e.id, e.bytes, e.stream.handle);
        place(address, address != nullptr ? find(reinterpret_cast<std::uintptr_t>(address)) : location(),
              "OOM");
        break;
      case event::kind::free:
        std::fprintf(out_, "%zu f %" PRIu64 " ", i, e.id);
        place(address, freed_, "none");
        break;
      case event::kind::record_stream: std::fprintf(out_, "%zu r %" PRIu64 "\n", i, e.id); break;
      default:
        std::fprintf(out_, "%zu %c %" PRIu64 "\n", i, tessera::trace::detail::csv_letter(e.what), e.id);
        break;
    }
  }
  void line(std::size_t i, const event& e, pool_outcome outcome) noexcept {
    const char letter = tessera::trace::detail::csv_letter(e.what);
    std::fprintf(out_, "%zu %c %" PRIu64, i, letter, e.id);
    if (!outcome.works) {
      std::fprintf(out_, " -> error%s%s", outcome.why != nullptr ? ": " : "",
                   outcome.why != nullptr ? outcome.why : "");
    } else if (letter == 's' || letter == 'w') {
      std::fprintf(out_, " bytes=%zu", outcome.bytes);
    } else if (letter == 'j') {
      std::fprintf(out_, " %" PRIu64, e.stream.handle);
    } else if (letter == 'b' || letter == 'p' || letter == 'x') {
      std::fprintf(out_, " uses=%zu", outcome.uses);
    }
    std::fprintf(out_, "\n");
  }

 private:
  using location = std::pair<std::size_t, std::size_t>;  // the number of a segment, and an offset in it

  void place(const void* address, location at, const char* fallback) noexcept {
    if (address == nullptr) {
      std::fprintf(out_, "%s\n", fallback);
      return;
    }
    std::fprintf(out_, "%zu+%zu blk=%zu\n", at.first, at.second, block_);
  }
  [[nodiscard]] location find(std::uintptr_t address) const noexcept {
    const auto segment = std::prev(segments_.upper_bound(address));
    return {segment->second, address - segment->first};
  }

  std::FILE* out_;
  std::map<std::uintptr_t, std::size_t> segments_;  // segment number by address
  std::size_t last_segment_ = 0;
  location freed_{};       // of the block freed last
  std::size_t block_ = 0;  // bytes of the block allocated or freed last
};

/// Replays a program with a recipe and writes its decisions. The last line has the bytes in use at the end, and the peak.
///
///     using namespace tessera::trace;
///     const recording made{"one block", {{event::kind::allocate, 0, 5_MiB}, {event::kind::free, 0}}};
///     write_decisions(stdout, program(made), tessera::provider::simulated_device{},
///                     any_recipe::of<tessera::recipe::pytorch<>>({}));
///
///   Returns:  the number of requests that failed
inline std::size_t write_decisions(std::FILE* out, const program& source, provider::simulated_device device,
                                   const tool::detail::any_recipe& recipe) {
  decision_log log(out);
  tool::detail::any_observer observer(log);
  tool::detail::simulated_allocator pool = recipe.make(std::move(device), {.observer = &observer});
  std::size_t failures = 0;
  (void)tessera::trace::replay(
      source, pool, [](std::size_t) {},
      [&]<typename Outcome>(std::size_t i, Outcome outcome) {
        const event& e = source.events()[i];
        log.line(i, e, outcome);
        if constexpr (std::is_pointer_v<Outcome>)
          failures +=
              outcome == nullptr && (e.what == event::kind::allocate || e.what == event::kind::refused);
      });
  std::fprintf(out, "# end in_use=%zu peak=%zu\n", pool.provider().used(), pool.provider().peak_used());
  return failures;
}

}  // namespace replay
