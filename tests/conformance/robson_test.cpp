// SPDX-License-Identifier: Apache-2.0
// The worst-case memory of a placement strategy. M is the peak live memory and n the largest request, in
// words. Each request has at least one word.
//
// * Any placement: at least M (1 + log2(n) / 2) - n + 1 words. If requests are powers of two, one strategy needs no more.
//   Source: J. M. Robson, Bounds for some functions concerning dynamic storage allocation, J. ACM 21 (1974)
// * First fit: at most M H(n) / ln 2, with H(n) = 1 + 1/2 + ... + 1/n.
// * Best fit: at least M n - O(M + n^2). If memory grows only when nothing fits, M n is the maximum.
//   Source of both: J. M. Robson, Worst case fragmentation of first fit and best fit storage allocation strategies, Computer
//   Journal 20 (1977); also in D. E. Knuth, The Art of Computer Programming, 2.5
// * Size classes of powers of two, each with its own memory: M (log2(n) + 1) in the worst case.
// * Pages that move: M, for blocks of whole pages.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/with.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;

/// A block, in words from the end that is filled first.
struct piece {
  std::size_t at, words;
  void* address;
};
/// The placement strategy.
struct placement {
  std::function<piece(std::size_t words)> put;
  std::function<void(const piece& p)> take;
};

/// A placement strategy under attack, and its counters.
class field {
 public:
  explicit field(placement of) : of_(std::move(of)) {}
  piece put(std::size_t words) {
    const piece made = of_.put(words);
    live_ += words;
    most_live_ = std::max(most_live_, live_);
    extent_ = std::max(extent_, made.at + words);
    return made;
  }
  void take(const piece& p) {
    of_.take(p);
    live_ -= p.words;
  }
  [[nodiscard]] std::size_t live() const { return live_; }
  [[nodiscard]] std::size_t most_live() const { return most_live_; }
  /// Words up to the highest one that was ever used.
  [[nodiscard]] std::size_t extent() const { return extent_; }

 private:
  placement of_;
  std::size_t live_ = 0, most_live_ = 0, extent_ = 0;
};

struct size {
  std::size_t live, largest;  // M and n
};
using attack = void (*)(field&, size);

/// Robson's program of 1974, for any placement: requests of ever larger powers of two. It keeps the blocks
/// that cover words of one residue, chosen so that most memory around them is unusable.
void attack_any(field& of, size s) {
  std::vector<piece> live;
  for (std::size_t i = 0; i < s.live; ++i) live.push_back(of.put(1));
  std::size_t residue = 0;
  for (std::size_t large = 2; large <= s.largest; large *= 2) {
    const auto lies_across = [large](const piece& p, std::size_t word) {
      return (word + large - p.at % large) % large < p.words;
    };
    const auto unusable = [&](std::size_t word) {
      std::size_t sum = 0;
      for (const auto& p : live) sum += lies_across(p, word) ? large - p.words : 0;
      return sum;
    };
    if (unusable(residue + large / 2) > unusable(residue)) residue += large / 2;
    std::erase_if(live, [&](const piece& p) { return !lies_across(p, residue) && (of.take(p), true); });
    while (of.live() + large <= s.live) live.push_back(of.put(large));
  }
}

/// Robson's program of 1977, for best fit. Behind one block of n - 2 words lie gaps of n - 3 words between
/// single words. It makes one more gap at a time by moving a larger gap past all others.
void attack_best_fit(field& of, size s) {
  const std::size_t n = s.largest;
  piece first = of.put(n - 2), last = of.put(n - 2), spare = of.put(n - 2);
  std::vector<piece> pins;  // after each gap
  while (pins.size() + 5 * n <= s.live) {
    // Replaces the last separating word and the block after it by a gap of n words, a block of n - 5 and a
    // word.
    if (pins.empty()) {
      of.take(first);
    } else {
      of.take(pins.back());
    }
    of.take(last);
    piece gap = of.put(n), filler = of.put(n - 5), pin = of.put(1);
    of.take(gap);
    std::vector<piece> moved;
    for (std::size_t i = pins.size(); i > 0; --i) {
      const piece before = i > 1 ? pins[i - 2] : first;
      const piece wide = of.put(n - 2), two = of.put(2);
      of.take(before), of.take(wide);
      const piece next_gap = of.put(n), next_filler = of.put(n - 5), next_pin = of.put(1);
      of.take(next_gap), of.take(two), of.take(filler);
      moved.push_back(pin);
      filler = next_filler, pin = next_pin;
    }
    moved.push_back(pin);
    of.take(filler);
    first = of.put(n - 2);
    pins.assign(moved.rbegin(), moved.rend());
    last = std::exchange(spare, of.put(n - 2));
  }
}

/// Fills and empties one size class after the other.
void attack_classes(field& of, size s) {
  for (std::size_t words = 1; words <= s.largest; words *= 2) {
    std::vector<piece> live;
    while (of.live() + words <= s.live) live.push_back(of.put(words));
    for (const auto& p : live) of.take(p);
  }
}

/// Blocks of one allocator, in words from the lowest address, which is that of the first block; or downwards
/// from the end.
template <typename Pool>
placement of_pool(Pool& pool, std::size_t word, std::uintptr_t end = 0) {
  return {[&pool, word, end, first = std::uintptr_t{0}](std::size_t words) mutable {
            void* const p = pool.allocate(words * word);
            const auto address = reinterpret_cast<std::uintptr_t>(p);
            if (first == 0) first = address;
            return piece{end != 0 ? (end - address) / word - words : (address - first) / word, words, p};
          },
          [&pool](const piece& p) { pool.deallocate(p.address); }};
}

constexpr std::size_t arena = 64_MiB;
template <block_end End>
using best_fit_from = caching_allocator<with<passthrough, split_if_remainder_at_least<512, End>, evict_never,
                                             grow_by_chunks<std::size_t{0}, std::size_t{arena}>>,
                                        simulated_device>;
/// Pages of one word that are unmapped at once. So all free memory is unmapped and mapped again at the lowest
/// place.
using first_fit = caching_allocator<
    with<pytorch_family::expandable, round_to_multiple<4_KiB>, pool_together,
         split_if_remainder_at_least<4_KiB>, grow_by_mapping<4_KiB, 4_KiB>, evict_at_free<>>,
    simulated_device>;

/// One attack on a placement, and its result.
template <block_end End>
double best_fit_under(attack by, size s) {
  best_fit_from<End> pool{simulated_device{simulated_device::options{.capacity = arena}}};
  void* const whole = pool.allocate(arena);
  pool.deallocate(whole);
  const bool high = End == block_end::high;
  field attacked(of_pool(pool, 512, high ? reinterpret_cast<std::uintptr_t>(whole) + arena : 0));
  by(attacked, s);
  EXPECT_LE(attacked.most_live(), s.live);
  EXPECT_STREQ(pool.audit(), nullptr);
  return static_cast<double>(attacked.extent());
}
double first_fit_under(attack by, size s) {
  first_fit pool{simulated_device{simulated_device::options{.capacity = arena, .page_granularity = 4_KiB}}};
  field attacked(of_pool(pool, 4_KiB));
  by(attacked, s);
  EXPECT_LE(attacked.most_live(), s.live);
  EXPECT_STREQ(pool.audit(), nullptr);
  return static_cast<double>(attacked.extent());
}

double bound_of_any(size s) {
  const auto m = static_cast<double>(s.live), n = static_cast<double>(s.largest);
  return m * (1 + std::log2(n) / 2) - n + 1;
}
double bound_of_first_fit(size s) {
  double harmonic = 0;
  for (std::size_t i = 1; i <= s.largest; ++i) harmonic += 1 / static_cast<double>(i);
  return static_cast<double>(s.live) * harmonic / std::log(2.0);
}
double bound_of_best_fit(size s) { return static_cast<double>(s.live * s.largest); }

/// A line of the table: the bound and the result, as multiples of the live memory.
void tell(const char* what, const char* program, size s, double least, double measured, double most) {
  const auto m = static_cast<double>(s.live);
  std::printf("| %s | %s | %zu | %zu | %.2f | %.2f | %.2f |\n", what, program, s.live, s.largest, least / m,
              measured / m, most / m);
}

TEST(robson, no_placement_escapes_the_program_against_any) {
  const size s = is_slow() ? size{1024, 64} : size{4096, 256};
  const size fewer{s.live / 4, s.largest / 4};
  const double low = best_fit_under<block_end::low>(&attack_any, s);
  const double high = best_fit_under<block_end::high>(&attack_any, s);
  const double first = first_fit_under(&attack_any, fewer);
  EXPECT_GE(low, bound_of_any(s));
  EXPECT_LE(low, bound_of_best_fit(s));
  EXPECT_GE(high, bound_of_any(s));
  EXPECT_LE(high, bound_of_best_fit(s));
  EXPECT_GE(first, bound_of_any(fewer));
  EXPECT_LE(first, bound_of_first_fit(fewer));
  tell("best fit, low end", "any", s, bound_of_any(s), low, bound_of_best_fit(s));
  tell("best fit, high end", "any", s, bound_of_any(s), high, bound_of_best_fit(s));
  tell("first fit of pages", "any", fewer, bound_of_any(fewer), first, bound_of_first_fit(fewer));
}

TEST(robson, best_fit_comes_near_its_worst_case_and_first_fit_does_not) {
  const size s = is_slow() ? size{200, 16} : size{400, 32};
  // The result of the program: a gap and a separating word for each word except the ones that it works with.
  const auto least = static_cast<double>((s.live - 5 * s.largest) * (s.largest - 2));
  const double low = best_fit_under<block_end::low>(&attack_best_fit, s);
  const double high = best_fit_under<block_end::high>(&attack_best_fit, s);
  constexpr size fewer{120, 16};
  const double first = first_fit_under(&attack_best_fit, fewer);
  EXPECT_GE(low, least);
  EXPECT_LE(low, bound_of_best_fit(s));
  EXPECT_GE(high, least);
  EXPECT_LE(high, bound_of_best_fit(s));
  EXPECT_LE(first, bound_of_first_fit(fewer));
  tell("best fit, low end", "best fit", s, least, low, bound_of_best_fit(s));
  tell("best fit, high end", "best fit", s, least, high, bound_of_best_fit(s));
  tell("first fit of pages", "best fit", fewer, static_cast<double>(fewer.live), first,
       bound_of_first_fit(fewer));
}

/// The most that a recipe of the library reserves under an attack, in words.
double reserved_under(const composition& of, std::size_t word, attack by, size s) {
  const std::unique_ptr<subject> pool = of.make();
  std::size_t most = 0;
  const placement anywhere{[&](std::size_t words) {
                             void* const p = pool->allocate(words * word, {}, false).address;
                             EXPECT_NE(p, nullptr);
                             most = std::max(most, pool->current_usage().reserved);
                             return piece{reinterpret_cast<std::uintptr_t>(p) / word, words, p};
                           },
                           [&](const piece& p) { pool->free({p.address, {}}); }};
  field attacked(anywhere);
  by(attacked, s);
  EXPECT_STREQ(pool->audit(), nullptr);
  return static_cast<double>(most) / static_cast<double>(word);
}
const composition& shipped(const compositions& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&name](const composition& c) { return c.name == name; });
}

TEST(robson, size_classes_share_no_memory) {
  const compositions all = shipped_on_simulated_devices();
  constexpr size s{1024, 256};
  for (const auto& [name, word] : {std::pair("power_of_two", std::size_t{512}), std::pair("pinned", 4_KiB)}) {
    const double came = reserved_under(shipped(all, name), word, &attack_classes, s);
    const double bound = static_cast<double>(s.live) * (std::log2(static_cast<double>(s.largest)) + 1);
    EXPECT_EQ(came, bound) << name;
    tell(name, "classes", s, bound, came, bound);
  }
}

TEST(robson, pages_that_move_leave_nothing_unusable) {
  const compositions all = shipped_on_simulated_devices();
  constexpr size s{256, 64};
  const double came = reserved_under(shipped(all, "stitched"), 2_MiB, &attack_any, s);
  const auto least = static_cast<double>(s.live);
  EXPECT_GE(came, least);
  EXPECT_LE(came, least * 1.12 + 1) << "the slack of grow_by_stitching";
  tell("stitched, whole pages", "any", s, least, came, least * 1.12 + 1);
}

TEST(robson, a_recipe_that_releases_at_each_free_keeps_nothing) {
  const compositions all = shipped_on_simulated_devices();
  constexpr size s{1024, 64};
  const double came = reserved_under(shipped(all, "passthrough"), 512, &attack_any, s);
  EXPECT_EQ(came, static_cast<double>(s.live));
  tell("passthrough", "any", s, static_cast<double>(s.live), came, static_cast<double>(s.live));
}

// Also with segments and pools: the most that each recipe reserves. At most 16 MiB are live, in requests of
// up to 1 MiB; less in a slow build. Blocks with segments of their own have no neighbours, so the worse of
// two programs counts.
TEST(robson, every_recipe_that_caches_has_a_worst_case) {
  const size s = is_slow() ? size{8192, 512} : size{32768, 2048};
  for (const composition& c : shipped_on_simulated_devices()) {
    const double came =
        std::max(reserved_under(c, 512, &attack_any, s), reserved_under(c, 512, &attack_classes, s));
    const double least = c.name == "passthrough" ? static_cast<double>(s.live) : bound_of_any(s);
    EXPECT_GE(came, least) << c.name;
    EXPECT_LE(came, bound_of_best_fit(s)) << c.name;
    tell(c.name.c_str(), "any, classes", s, least, came, bound_of_best_fit(s));
  }
}

}  // namespace
}  // namespace conformance
