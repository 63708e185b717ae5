// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::law {

/// A program of equal cycles, and what it makes a recipe reserve. Each cycle requests one or two blocks and
/// frees them at its end. It may also request a block that is freed at the end of the next cycle. Memory grows
/// until the device or a limit refuses; then recovery may empty the cache.
struct growth_witness {
  std::array<std::size_t, 2> requests{};  ///< in bytes, in this order; 0 for none
  std::size_t kept = 0;                   ///< bytes of the block that lives until the next cycle; 0 for none
  bool is_kept_first = false;             ///< it is requested before the others, otherwise after them
  std::size_t cycles = 0;                 ///< that were run; 0 if no program was found
  std::size_t reserved = 0;               ///< bytes after these cycles
  std::size_t peak_live = 0;              ///< requested bytes, the same in each cycle from the second on

  /// Whether no program was found: what is reserved stays bounded.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return cycles == 0; }
  /// Describes the program in words; empty if there is none.
  [[nodiscard]] tessera::detail::fixed_text text() const noexcept {
    tessera::detail::fixed_text words;
    if (cycles == 0) return words;
    words.add("growth has no bound: ").add(cycles).add(" cycles that free ");
    words.add(format_bytes(requests[0]).text());
    if (requests[1] > 0) words.add(" and ").add(format_bytes(requests[1]).text());
    if (kept > 0) words.add(", and keep ").add(format_bytes(kept).text()).add(" for the next");
    return words.add(", reserve ")
        .add(format_bytes(reserved).text())
        .add(" at a peak of ")
        .add(format_bytes(peak_live).text())
        .add(" live");
  }
};

}  // namespace tessera::inline v0_1::law

namespace tessera::inline v0_1::law::detail {

/// Sizes in bytes, ascending and distinct. Drops what exceeds its capacity.
template <std::size_t Capacity>
struct size_set {
  std::array<std::size_t, Capacity> sizes{};
  std::size_t count = 0;

  constexpr void insert(std::size_t n) noexcept {
    constexpr std::size_t max = std::size_t{1} << 40;
    std::size_t at = 0;
    while (at < count && sizes[at] < n) ++at;
    if (n == 0 || n > max || count == Capacity || (at < count && sizes[at] == n)) return;
    for (std::size_t i = count++; i > at; --i) sizes[i] = sizes[i - 1];
    sizes[at] = n;
  }
  [[nodiscard]] constexpr const std::size_t* begin() const noexcept { return sizes.data(); }
  [[nodiscard]] constexpr const std::size_t* end() const noexcept { return sizes.data() + count; }
};

/// The largest free block that may serve a request, or 0 if every larger one may.
template <typename R>
[[nodiscard]] constexpr std::size_t largest_that_serves(const recipe::policies<R>& p,
                                                        std::size_t wanted) noexcept {
  constexpr std::size_t max = std::size_t{1} << 50;
  if (p.split.may_serve(wanted, max)) return 0;
  std::size_t found = wanted;
  for (std::size_t step = max / 2; step >= min_alignment; step /= 2) {
    if (found + step < max && p.split.may_serve(wanted, found + step)) found += step;
  }
  return found;
}

/// The sizes at which the policies of a recipe decide differently, and sizes near them. Two of the parts of a
/// size are as large as the size.
template <typename R>
[[nodiscard]] constexpr auto trial_sizes(const recipe::policies<R>& p) noexcept {
  constexpr std::size_t step = 512;
  size_set<10> numbers;
  numbers.insert(p.split.oversize_from());
  const std::size_t limit = tessera::detail::traits_of(p.pools).small_limit_or(1_MiB);
  for (const std::size_t size : {limit, limit + step}) {
    const std::size_t block = p.rounding.block_size(size > 0 ? size : step);
    numbers.insert(tessera::detail::wanted_segment(p, block, usage{.limit = std::size_t{1} << 40}));
    if constexpr (R::growth::backend::has_ranges) numbers.insert(tessera::detail::mapping_unit(p, block));
  }
  const size_set<10> found = numbers;
  for (const std::size_t n : found) {
    const std::size_t served = largest_that_serves(p, n);
    if (served > 0) numbers.insert(served);
  }
  size_set<48> sizes;
  for (const std::size_t n : numbers) {
    for (const std::size_t part : {n / 3, n / 2 + n / 64, n / 7 * 5, n - n / 256, n, n + n / 8})
      sizes.insert(align_up(part > 0 ? part : 1, step));
    if (n > step) sizes.insert(align_up(n - step, step));
  }
  return sizes;
}

/// Whether free memory serves every request that it can hold. Then a cycle that repeats misses only finitely
/// often.
template <typename R>
[[nodiscard]] constexpr bool serves_whatever_fits(const recipe::policies<R>& p) noexcept {
  using backend = typename R::growth::backend;
  const auto sizes = trial_sizes(p);
  for (const std::size_t wanted : sizes) {
    // In a segment, a block that serves whole is as large again once it is free. In a range, it would take in its
    // neighbours, so it has to give back what the request does not need.
    if (backend::has_ranges && !tessera::detail::should_split(p, wanted, wanted + 1_GiB)) return false;
    if (backend::moves_memory) continue;  // also to requests that its block refuses
    for (const std::size_t more : sizes) {
      if (!p.split.may_serve(wanted, wanted + more)) return false;
    }
  }
  return true;
}

/// A device without end that only counts addresses, so that the law can run a whole allocator.
class endless_device {
 public:
  struct physical {
    bool operator==(const physical&) const = default;
  };
  static constexpr bool map_grants_access = true, unmap_wants_size = false;

  [[nodiscard]] void* acquire(std::size_t bytes, page_kind = {}) noexcept { return reserve(bytes, 2_MiB); }
  [[nodiscard]] bool release(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] std::size_t capacity() const noexcept { return std::size_t{1} << 49; }
  [[nodiscard]] std::size_t granularity() const noexcept { return min_alignment; }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return tessera::detail::larger(kind.granularity(), 2_MiB);
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    const std::uintptr_t begin = align_up(next_, alignment);
    next_ = begin + bytes;
    return reinterpret_cast<void*>(begin);
  }
  [[nodiscard]] bool unreserve(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] bool create(std::size_t, page_kind, physical&) noexcept { return true; }
  [[nodiscard]] bool destroy(const physical&) noexcept { return true; }
  [[nodiscard]] bool map(void*, std::size_t, const physical&) noexcept { return true; }
  [[nodiscard]] bool grant(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] bool unmap(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] bool synchronize(stream_id) noexcept { return true; }

 private:
  std::uintptr_t next_ = 1_GiB;
};

/// A growth policy without its limit, which would end a program before it shows that memory grows. A policy that is
/// `final` gets no limit where it can be set, and keeps it otherwise.
template <typename Growth>
struct without_limit : Growth {
  static constexpr memory_limit limit{};
  bool operator==(const without_limit&) const = default;
};

/// A recipe on one stream of a device that refuses nothing. The cycles take no time, so a policy with a clock
/// evicts nothing.
template <typename R>
struct endless_recipe : tessera::detail::aliases_of<R> {
  static constexpr bool has_clock =
      requires { typename R::eviction::clock; } || requires { typename R::eviction::call_clock; };
  using streams = policy::reuse_immediately;
  using growth = std::conditional_t<std::is_final_v<typename R::growth>, typename R::growth,
                                    without_limit<typename R::growth>>;
  using eviction = std::conditional_t<has_clock, policy::evict_never, typename R::eviction>;
  using recovery = policy::recover_never;
};

template <typename R>
[[nodiscard]] recipe::policies<endless_recipe<R>> without_end(const recipe::policies<R>& p) noexcept {
  recipe::policies<endless_recipe<R>> endless;
  endless.rounding = p.rounding;
  endless.pools = p.pools;
  endless.split = p.split;
  endless.pages = p.pages;
  static_cast<typename R::growth&>(endless.growth) = p.growth;
  if constexpr (std::is_final_v<typename R::growth> && requires { endless.growth.limit = memory_limit{}; })
    endless.growth.limit = memory_limit{};
  if constexpr (!endless_recipe<R>::has_clock) endless.eviction = p.eviction;
  return endless;
}

/// Runs the cycles of a witness, and sets what they reserve. Returns whether that still grew in both halves of
/// the last cycles.
template <typename Allocator>
bool run_cycles(Allocator& on, growth_witness& of, std::size_t cycles) noexcept {
  on.trim();
  void* kept = on.try_allocate(of.kept > 0 ? of.kept : 1);
  if (of.kept == 0) on.deallocate(std::exchange(kept, nullptr));
  bool works = true;
  std::size_t at_half = 0, at_three_quarters = 0;
  for (std::size_t i = 0; works && i < cycles; ++i) {
    void* next = of.is_kept_first ? on.try_allocate(of.kept) : nullptr;
    void* const a = on.try_allocate(of.requests[0]);
    void* const b = on.try_allocate(of.requests[1]);
    if (!of.is_kept_first) next = on.try_allocate(of.kept);
    works = a && (b || of.requests[1] == 0) && (next || of.kept == 0);
    of.peak_live = tessera::detail::larger(of.peak_live, on.current_usage().requested);
    for (void* const p : {a, b, kept}) on.deallocate(p);
    kept = next;
    if (i + 1 == cycles / 2) at_half = on.current_usage().reserved;
    if (i + 1 == cycles / 4 * 3) at_three_quarters = on.current_usage().reserved;
  }
  of.cycles = cycles;
  of.reserved = on.current_usage().reserved;
  on.deallocate(kept);
  return works && at_three_quarters > at_half && of.reserved > at_three_quarters;
}

/// Searches the cycles of one or two of the sizes, with and without a small block that is kept. Returns the
/// one that reserves most for its peak, or an empty witness.
template <typename Allocator>
growth_witness find_growth(Allocator& allocator) noexcept {
  constexpr std::size_t short_run = 16, long_run = 100;
  const auto& p = allocator.policies();
  const auto sizes = trial_sizes(p);
  growth_witness found;
  const auto ratio = [](const growth_witness& w) {
    return static_cast<double>(w.reserved) / static_cast<double>(w.peak_live);
  };
  double best = 0;
  const auto attempt = [&](growth_witness w) {
    growth_witness confirmed = w;
    if (!run_cycles(allocator, w, short_run) || ratio(w) <= best) return;
    if (!run_cycles(allocator, confirmed, long_run)) return;
    best = ratio(w);
    found = confirmed;
  };
  for (std::size_t i = 0; i < sizes.count; ++i) {
    const std::size_t a = sizes.sizes[i];
    const std::size_t pool = p.pools.select(p.rounding.block_size(a));
    const bool is_small = p.pools.select(p.rounding.block_size(512)) == pool;
    const std::size_t kept = is_small ? 512 : tessera::detail::traits_of(p.pools).small_limit_or(0) + 512;
    attempt({.requests = {a, 0}});
    attempt({.requests = {a, 0}, .kept = kept});
    for (std::size_t j = 0; j <= i; ++j) {
      const std::size_t b = sizes.sizes[j];
      attempt({.requests = {a, b}});
      attempt({.requests = {a, b}, .kept = kept});
      attempt({.requests = {a, b}, .kept = kept, .is_kept_first = true});
    }
  }
  return found;
}
template <typename R>
growth_witness find_growth_without_end(const recipe::policies<R>& p) noexcept {
  caching_allocator<endless_recipe<R>, endless_device> allocator({}, without_end(p));
  return find_growth(allocator);
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Searches short programs for one that makes a recipe reserve more in every cycle, although its peak live
/// stays the same. Their sizes are those at which the policies decide differently: the limits of pools and of
/// splitting, segments and mapped units. A stream policy does not matter, as there is one stream.
///
/// A recipe whose free memory serves whatever fits has no such program. This is cheap enough for a constant
/// expression. For other recipes, an allocator over a device without end runs the programs, at run time. No limit
/// of the growth policy applies there, unless the policy is `final` and its limit a constant.
///
///     static_assert(tessera::law::growth_is_bounded<tessera::recipe::pytorch<>>());
///     using grows = tessera::recipe::pytorch<"max_split_size_mb:128,expandable_segments:True">;
///     const tessera::law::growth_witness found = tessera::law::growth_is_bounded<grows>();
///     if (!found) std::puts(found.text().c_str());
///
///   Returns:  the program that reserves most for its peak; it converts to true if there is none
///   Cost:     thousands of programs, about 10 ms, if free blocks may refuse requests
template <tessera::recipe::well_formed R>
[[nodiscard]] constexpr growth_witness growth_is_bounded(const recipe::policies<R>& p = {}) noexcept {
  if (detail::serves_whatever_fits(p)) return {};
  return detail::find_growth_without_end(p);
}

/// Runs these programs on an allocator of the program. For growth policies that need its device.
///   Requires:  an allocator without live blocks, over a device that can reserve far more than the programs need
///              at one time; a simulated_device of 1 TiB is enough for the shipped recipes
template <typename Allocator>
  requires requires(Allocator& a) { a.policies(); }
[[nodiscard]] growth_witness growth_is_bounded(Allocator& allocator) noexcept {
  const growth_witness found = detail::find_growth(allocator);
  allocator.trim();
  return found;
}

}  // namespace tessera::inline v0_1::law
