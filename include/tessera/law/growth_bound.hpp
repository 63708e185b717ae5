// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/split.hpp>
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

/// Whether a free block gives back what a request does not need, however large it is. In a segment, a block
/// that serves whole is as large again once it is free. In a range, it would take in its neighbours.
template <typename R>
[[nodiscard]] constexpr bool gives_back_the_rest(const recipe::policies<R>& p) noexcept {
  for (const std::size_t wanted : trial_sizes(p)) {
    if (R::growth::backend::has_ranges && !tessera::detail::should_split(p, wanted, wanted + 1_GiB))
      return false;
  }
  return true;
}
/// Whether free memory serves every request that it can hold. Then a cycle that repeats misses only finitely
/// often.
template <typename R>
[[nodiscard]] constexpr bool serves_whatever_fits(const recipe::policies<R>& p) noexcept {
  if (!gives_back_the_rest(p)) return false;
  if (R::growth::backend::moves_memory) return true;  // also to requests that its block refuses
  const auto sizes = trial_sizes(p);
  for (const std::size_t wanted : sizes) {
    for (const std::size_t more : sizes) {
      if (!p.split.may_serve(wanted, wanted + more)) return false;
    }
  }
  return true;
}

/// A recipe on one stream of a device without end: blocks, segments and ranges as sizes in the order of
/// addresses. It decides as caching_allocator with segment_backend or expandable_backend does.
template <typename R>
class growth_model {
 public:
  using id = std::uint32_t;
  static constexpr std::size_t device = std::size_t{1} << 58;  ///< bytes

  constexpr explicit growth_model(const recipe::policies<R>& p) noexcept : p_(p) {}
  constexpr void reset() noexcept { count_ = reserved_ = live_ = 0; }
  [[nodiscard]] constexpr std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] constexpr std::size_t live() const noexcept { return live_; }

  /// Serves a request. Returns 0 if the model has too many blocks.
  constexpr id allocate(std::size_t bytes) noexcept {
    const std::size_t size = p_.rounding.block_size(bytes);
    const std::size_t pool = p_.pools.select(size);
    ++searches_;
    std::size_t at = best_fit(size, pool);
    if (at == none || !p_.split.may_serve(size, blocks_[at].bytes)) {
      evict(policy::eviction_trigger::before_growth);
      at = grow(size, pool);
    }
    if (at == none || count_ + 2 > capacity) return 0;
    if (tessera::detail::should_split(p_, size, blocks_[at].bytes)) {
      const bool is_low = p_.split.allocated_end() == policy::block_end::low;
      split(at, is_low ? size : blocks_[at].bytes - size);
      if (!is_low) ++at;
    }
    blocks_[at].is = state::live;
    blocks_[at].name = ++last_;
    blocks_[at].requested = bytes;
    live_ += bytes;
    return last_;
  }
  constexpr void deallocate(id name) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (blocks_[i].is != state::live || blocks_[i].name != name) continue;
      live_ -= blocks_[i].requested;
      make_free(i);
      return evict(policy::eviction_trigger::after_free);
    }
  }

 private:
  enum class state : unsigned char { free, live, unmapped };
  struct block {
    std::size_t bytes = 0, pool = 0, requested = 0;
    std::uint64_t since = 0;
    id name = 0;
    state is = state::free;
    bool is_first = true;  // of a segment or range
  };
  static constexpr bool has_ranges = R::growth::backend::has_ranges;
  static constexpr std::size_t capacity = 512, none = unlimited;

  [[nodiscard]] constexpr bool continues(std::size_t i, state is) const noexcept {
    return i < count_ && !blocks_[i].is_first && blocks_[i].is == is;
  }
  [[nodiscard]] constexpr std::size_t best_fit(std::size_t size, std::size_t pool) const noexcept {
    std::size_t found = next_fit(size, pool, none);
    if constexpr (has_ranges) {
      if (found == none || !continues(found + 1, state::unmapped)) return found;
      for (std::size_t next = next_fit(size, pool, found); next != none && room_at(next) < room_at(found);
           next = next_fit(size, pool, found))
        found = next;
    }
    return found;
  }
  /// The smallest fitting free block that comes after block `after` in the order of sizes and addresses.
  [[nodiscard]] constexpr std::size_t next_fit(std::size_t size, std::size_t pool,
                                               std::size_t after) const noexcept {
    std::size_t found = none;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t bytes = blocks_[i].bytes;
      if (blocks_[i].is != state::free || blocks_[i].pool != pool || bytes < size) continue;
      const bool is_later =
          after == none || bytes > blocks_[after].bytes || (bytes == blocks_[after].bytes && i > after);
      if (is_later && (found == none || bytes < blocks_[found].bytes)) found = i;
    }
    return found;
  }
  [[nodiscard]] constexpr std::size_t room_at(std::size_t i) const noexcept {
    return blocks_[i].bytes + (continues(i + 1, state::unmapped) ? blocks_[i + 1].bytes : 0);
  }
  [[nodiscard]] constexpr usage now() const noexcept {
    return {.requested = live_,
            .allocated = live_,
            .active = live_,
            .cached = reserved_ - live_,
            .reserved = reserved_,
            .limit = device,
            .has_limit = false};
  }

  constexpr std::size_t append(std::size_t bytes, std::size_t pool, state is) noexcept {
    if (count_ == capacity) return none;
    block& added = blocks_[count_];
    added = {};
    added.bytes = bytes;
    added.pool = pool;
    added.since = searches_;
    added.is = is;
    return count_++;
  }
  constexpr void erase(std::size_t at) noexcept {
    for (std::size_t i = at + 1; i < count_; ++i) blocks_[i - 1] = blocks_[i];
    --count_;
  }
  constexpr void split(std::size_t at, std::size_t low) noexcept {
    for (std::size_t i = count_++; i > at; --i) blocks_[i] = blocks_[i - 1];
    blocks_[at].bytes = low;
    blocks_[at + 1].bytes -= low;
    blocks_[at + 1].is_first = false;
  }
  /// Makes a block free, and coalesces it. Returns the block that contains it.
  constexpr std::size_t make_free(std::size_t at) noexcept {
    blocks_[at].is = state::free;
    blocks_[at].since = searches_;
    return coalesce(at);
  }
  constexpr std::size_t coalesce(std::size_t at) noexcept {
    const state is = blocks_[at].is;
    if (continues(at + 1, is)) {
      blocks_[at].bytes += blocks_[at + 1].bytes;
      erase(at + 1);
    }
    if (at == 0 || blocks_[at].is_first || blocks_[at - 1].is != is) return at;
    blocks_[at - 1].bytes += blocks_[at].bytes;
    blocks_[at - 1].since = blocks_[at].since;
    erase(at);
    return at - 1;
  }

  /// Gets memory for a block. Returns the free block that holds it.
  constexpr std::size_t grow(std::size_t size, std::size_t pool) noexcept {
    if constexpr (has_ranges) {
      return map(size, pool);
    } else {
      return acquire(size, pool);
    }
  }
  constexpr std::size_t acquire(std::size_t size, std::size_t pool) noexcept {
    const std::size_t segment = tessera::detail::in_whole_pages(
        p_.pages, align_up(tessera::detail::wanted_segment(p_, size, now()), min_alignment));
    const bool serves_whole = segment != size && !p_.split.may_serve(size, segment) &&
                              segment < p_.split.oversize_from() &&
                              !tessera::detail::should_split(p_, size, segment);
    const std::size_t idle = serves_whole ? next_fit(size, pool, none) : none;
    if (idle != none && blocks_[idle].bytes == segment) return idle;
    reserved_ += segment;
    return append(segment, pool, state::free);
  }
  constexpr std::size_t map(std::size_t size, std::size_t pool) noexcept {
    const std::size_t unit = align_up(tessera::detail::mapping_unit(p_, size), 2_MiB);
    std::size_t at = lowest_place(size, pool);
    if (at == none) at = append(device, pool, state::unmapped);
    while (at != none && (blocks_[at].is == state::unmapped || blocks_[at].bytes < size)) {
      if (count_ + 2 > capacity) return none;
      const bool is_hole = blocks_[at].is == state::unmapped;
      const std::size_t hole = is_hole ? at : at + 1;
      const std::size_t wanted = align_up(is_hole ? size : size - blocks_[at].bytes, unit);
      const std::size_t bytes = wanted < blocks_[hole].bytes ? wanted : blocks_[hole].bytes;
      if (bytes < blocks_[hole].bytes) split(hole, bytes);
      reserved_ += bytes;
      at = make_free(hole);
    }
    return at;
  }
  /// The first block of the lowest free and unmapped blocks that hold `size` bytes.
  [[nodiscard]] constexpr std::size_t lowest_place(std::size_t size, std::size_t pool) const noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (blocks_[i].is != state::unmapped || blocks_[i].pool != pool) continue;
      const bool joins = !blocks_[i].is_first && blocks_[i - 1].is == state::free;
      std::size_t room = 0;
      for (std::size_t j = joins ? i - 1 : i; room < size; ++j) {
        room += blocks_[j].bytes;
        if (j + 1 == count_ || blocks_[j + 1].is_first || blocks_[j + 1].is == state::live) break;
      }
      if (room >= size) return joins ? i - 1 : i;
    }
    return none;
  }

  [[nodiscard]] constexpr bool is_idle(std::size_t i) const noexcept {
    if (blocks_[i].is != state::free) return false;
    return has_ranges || (blocks_[i].is_first && (i + 1 == count_ || blocks_[i + 1].is_first));
  }
  /// Releases idle memory. A policy with a clock releases nothing, because the cycles take no time. One that ranks
  /// segments releases nothing, because the model has no history of segments.
  constexpr void evict(policy::eviction_trigger when) noexcept {
    if constexpr (!requires { typename R::eviction::clock; } &&
                  !tessera::detail::ranks_segments<typename R::eviction>) {
      const usage full = now();
      const std::size_t wanted = p_.eviction.bytes_to_evict(when, full);
      policy::idle_segment all;
      for (std::size_t i = 0; wanted > 0 && i < count_; ++i) {
        if (!is_idle(i) || !p_.eviction.is_candidate(blocks_[i].bytes, full)) continue;
        const std::uint64_t age = searches_ - blocks_[i].since;
        ++all.candidates;
        all.total_age += age;
        if (age > all.max_age) all.max_age = age;
      }
      for (std::size_t i = 0, freed = 0; freed < wanted && i < count_;) {
        policy::idle_segment idle = all;
        idle.bytes = blocks_[i].bytes;
        idle.age = searches_ - blocks_[i].since;
        idle.remaining = wanted - freed;
        if (!is_idle(i) || !p_.eviction.is_candidate(idle.bytes, full) || !p_.eviction.should_evict(idle)) {
          ++i;
          continue;
        }
        freed += idle.bytes;
        reserved_ -= idle.bytes;
        if (has_ranges) {
          blocks_[i].is = state::unmapped;
          i = coalesce(i) + 1;
        } else {
          erase(i);
        }
      }
    }
  }

  const recipe::policies<R>& p_;
  std::array<block, capacity> blocks_{};
  std::size_t count_ = 0, reserved_ = 0, live_ = 0;
  std::uint64_t searches_ = 0;
  id last_ = 0;
};

/// An allocator as growth_model: for growth policies whose backend has no model.
template <typename Allocator>
class growth_trial {
 public:
  explicit growth_trial(Allocator& allocator) noexcept : allocator_(allocator) {}
  void reset() noexcept { allocator_.trim(); }
  [[nodiscard]] std::size_t reserved() const noexcept { return allocator_.current_usage().reserved; }
  [[nodiscard]] std::size_t live() const noexcept { return allocator_.current_usage().requested; }
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept { return allocator_.try_allocate(bytes); }
  void deallocate(void* p) noexcept { allocator_.deallocate(p); }

 private:
  Allocator& allocator_;
};

/// Runs the cycles of a witness, and sets what they reserve. Returns whether that still grew in both halves of
/// the last cycles.
template <typename Subject>
constexpr bool run_cycles(Subject& subject, growth_witness& of, std::size_t cycles) noexcept {
  subject.reset();
  const auto first = subject.allocate(of.kept > 0 ? of.kept : 1);
  if (of.kept == 0) subject.deallocate(first);
  auto kept = first;
  bool works = true;
  std::size_t at_half = 0, at_three_quarters = 0;
  for (std::size_t i = 0; works && i < cycles; ++i) {
    auto next = kept;
    if (of.kept > 0 && of.is_kept_first) next = subject.allocate(of.kept);
    const auto a = subject.allocate(of.requests[0]);
    auto b = a;
    if (of.requests[1] > 0) b = subject.allocate(of.requests[1]);
    if (of.kept > 0 && !of.is_kept_first) next = subject.allocate(of.kept);
    works = static_cast<bool>(a) && static_cast<bool>(b) && static_cast<bool>(next);
    if (subject.live() > of.peak_live) of.peak_live = subject.live();
    if (a) subject.deallocate(a);
    if (of.requests[1] > 0 && b) subject.deallocate(b);
    if (of.kept > 0 && next) {
      subject.deallocate(kept);
      kept = next;
    }
    if (i + 1 == cycles / 2) at_half = subject.reserved();
    if (i + 1 == cycles / 4 * 3) at_three_quarters = subject.reserved();
  }
  of.cycles = cycles;
  of.reserved = subject.reserved();
  if (of.kept > 0 && kept) subject.deallocate(kept);
  return works && at_three_quarters > at_half && of.reserved > at_three_quarters;
}

/// Searches the cycles of one or two of the sizes, with and without a small block that is kept. Returns the
/// one that reserves most for its peak, or an empty witness.
template <typename Subject, typename R>
constexpr growth_witness find_growth(Subject& subject, const recipe::policies<R>& p) noexcept {
  constexpr std::size_t short_run = 16, long_run = 100;
  const auto sizes = trial_sizes(p);
  growth_witness found;
  const auto ratio = [](const growth_witness& w) {
    return static_cast<double>(w.reserved) / static_cast<double>(w.peak_live);
  };
  double best = 0;
  const auto attempt = [&](growth_witness w) {
    growth_witness confirmed = w;
    if (!run_cycles(subject, w, short_run) || ratio(w) <= best) return;
    if (!run_cycles(subject, confirmed, long_run)) return;
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

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Searches short programs for one that makes a recipe reserve more in every cycle, although its peak live
/// stays the same. Their sizes are those at which the policies decide differently: the limits of pools and of
/// splitting, segments and mapped units. A stream policy does not matter, as there is one stream.
///
/// A recipe whose free memory serves whatever fits has no such program. This is cheap enough for a constant
/// expression. Other recipes are searched, in a model of segments and ranges: do that at run time. The model
/// does not move memory between ranges. If a recipe does that without splitting, the numbers may differ.
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
  detail::growth_model<R> model(p);
  return detail::find_growth(model, p);
}

/// Runs these programs on an allocator. For growth policies with a backend of their own.
///   Requires:  an allocator without live blocks, over a device that can reserve far more than the programs need
///              at one time; a simulated_device of 1 TiB is enough for the shipped recipes
template <typename Allocator>
  requires requires(Allocator& a) { a.policies(); }
[[nodiscard]] growth_witness growth_is_bounded(Allocator& allocator) noexcept {
  detail::growth_trial<Allocator> trial(allocator);
  const growth_witness found = detail::find_growth(trial, allocator.policies());
  trial.reset();
  return found;
}

}  // namespace tessera::inline v0_1::law
