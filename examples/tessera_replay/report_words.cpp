// SPDX-License-Identifier: Apache-2.0
#include "report_words.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <tessera/core/readable.hpp>
#include <tessera/replay/recording.hpp>
#include "markup.hpp"

namespace {

using namespace replay::report;
using replay::drawn;
using replay::picture;
using tessera::trace::count_text;
using tessera::trace::fixed_text;
using tessera::trace::markup_text;

/// Why memory was asked for at the moment of a map, as far as sizes tell.
std::string cause(const drawn& d, const picture& shown) {
  const auto& asked = shown.source->events[d.eviction_trigger];
  if (asked.what != tessera::trace::event::kind::allocate) return {};
  std::string text = "The event asks for ";
  text += bytes_text(asked.bytes) + " on stream " + number(asked.stream.handle) + "; ";
  if (d.map.largest_free == 0) return text + "before it, nothing was free.";
  return text + "before it, the largest free block had " + bytes_text(d.map.largest_free) +
         (d.map.largest_free < asked.bytes ? ", too little." : ", but could not serve it.");
}

}  // namespace

std::string replay::report::bytes_text(std::size_t bytes) {
  std::string text = tessera::readable(bytes).text();
  return text.replace(text.find(' '), 1, "\u00a0");
}
std::string replay::report::times(std::size_t bytes, const picture& shown) {
  return fixed_text(bytes, shown.peak_live, 2) + "\u00a0\u00d7";
}
std::string replay::report::plural(std::size_t n, const std::string& one, const std::string& several) {
  return count_text(n) + ' ' + (n == 1 ? one : several);
}
std::string replay::report::number(std::size_t n) { return std::to_string(n); }

std::string replay::report::lead(const picture& shown) {
  const drawn& first = shown.recipes.front();
  const auto& sums = first.map.sums;
  std::string text = "What lives, as requested, is ";
  text +=
      bytes_text(shown.peak_live) + " at most: no allocator can reserve less. " + markup_text(first.recipe);
  text += first.failures == 0 ? " reserves " + bytes_text(sums.reserved) + " at most; at that moment "
                              : " first runs out with " + bytes_text(sums.reserved) + " reserved; ";
  text += bytes_text(sums.pinned) + " of it is free but pinned by " +
          plural(sums.pinning_blocks, "live block", "live blocks");
  if (first.failures == 0 && sums.idle != 0)
    text += ", and " + bytes_text(sums.idle) + " free in whole segments or pages";
  return text + ". " + cause(first, shown);
}

std::string replay::report::moment_text(const drawn& d, const picture& shown) {
  const auto& sums = d.map.sums;
  std::string text = d.failures != 0
                         ? "After event " + count_text(d.eviction_trigger) + ", the first of " +
                               plural(d.failures, "allocation that fails", "allocations that fail")
                         : "After event " + count_text(d.eviction_trigger) + ", when the most is reserved";
  text += ": " + bytes_text(sums.reserved) + " in " + plural(d.segments, "segment", "segments") + "; " +
          bytes_text(sums.live) + " live in " + plural(sums.live_blocks, "block", "blocks") + ", ";
  if (sums.pending != 0) text += bytes_text(sums.pending) + " pending, ";
  return text + bytes_text(sums.pinned) + " free but pinned by " +
         plural(sums.pinning_blocks, "live block", "live blocks") + ", " + bytes_text(sums.idle) +
         " free that could go back. " + cause(d, shown);
}

std::string replay::headline(const picture& shown) {
  const drawn& first = shown.recipes.front();
  const auto peak = [](const drawn& d) { return d.over.worst().reserved; };
  const auto best =
      std::min_element(shown.recipes.begin(), shown.recipes.end(), [&](const drawn& a, const drawn& b) {
        return std::pair(a.failures, peak(a)) < std::pair(b.failures, peak(b));
      });
  std::string text;
  if (first.failures != 0) {
    text = first.recipe + " runs out of memory " + plural(first.failures, "time", "times") + " with " +
           bytes_text(shown.capacity);
    return best->failures == 0 ? text + "; " + best->recipe + " completes" : text;
  }
  text = first.recipe + " reserves " + times(peak(first), shown) + " what lives at most";
  const std::string less = times(peak(*best), shown);
  return less != times(peak(first), shown) ? text + ", " + best->recipe + ' ' + less : text;
}
