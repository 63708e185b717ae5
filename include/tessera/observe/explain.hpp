// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/detail/backends/placement.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/law/growth_bound.hpp>
#include <tessera/observe/oom_report.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Finds out why a request cannot be served, from the policies and a walk over all blocks.
template <typename Recipe, typename Introspection>
class failure_survey {
  using provider_type = std::remove_cvref_t<decltype(std::declval<const Introspection&>().provider())>;
  using reason = observe::oom_report::reason;
  static constexpr bool has_segments = !Recipe::growth::backend::has_ranges;

 public:
  failure_survey(const Introspection& blocks, const recipe::policies<Recipe>& settings, std::size_t bytes,
                 stream_id stream) noexcept
      : blocks_(blocks), settings_(settings), key_(settings.streams.reuse_key(stream)) {
    report_.requested = bytes;
    report_.stream = stream;
    report_.segment = bytes;
    report_.now = usage_of(blocks, settings.growth);
    report_.capacity = blocks.provider().capacity();
    report_.available = left_on(blocks.provider(), report_.now.reserved);
    if (report_.exceeds_max_request()) return;
    add_request();
    add_policies();
    add_blocks();
    blocks_.for_each_unit([this](const auto& unit) { add_unit(unit); });
  }
  [[nodiscard]] const observe::oom_report& report() const noexcept { return report_; }

 private:
  void add_request() noexcept {
    const std::size_t size = settings_.rounding.block_size(report_.requested);
    report_.block = size;
    report_.pool = settings_.pools.select(size);
    report_.segment = segment_size_for(blocks_, settings_, size);
    report_.wanted = report_.segment;
    if constexpr (!has_segments) {
      const std::size_t unit = mapping_unit(settings_, size);
      const std::size_t smallest = mapping_unit(settings_, settings_.rounding.block_size(1));
      report_.wanted = align_up(size, unit);
      report_.small_pages = align_up(size, (std::min)(unit, smallest));
    }
    report_.exact_segment = has_segments ? segment_size_for(blocks_, settings_, size, true) : report_.wanted;
    report_.page_in_place = mapped_page_size(size);
    report_.rounding = observe::oom_report::above(size, align_up(report_.requested, 512));
    const std::size_t unpaged =
        align_up(wanted_segment(settings_, size, report_.now), blocks_.provider().granularity());
    report_.unpaged_segment = has_segments ? (std::min)(unpaged, report_.segment) : report_.wanted;
  }

  void add_policies() noexcept {
    const policy::failure_reason expected = predict_failure(blocks_, settings_, report_.segment, report_.now);
    for (const policy::recovery_steps::step step : settings_.recovery.steps(expected)) {
      report_.empties_cache = report_.empties_cache || step == policy::recovery_steps::step::release_cached;
      report_.accepts_exact_size =
          report_.accepts_exact_size || step == policy::recovery_steps::step::retry_exact_size;
    }
    report_.must_not_wait = !blocks_.may_wait();
    report_.capture_keeps_cache = report_.empties_cache && report_.must_not_wait;
    report_.empties_cache = report_.empties_cache && !report_.must_not_wait;
    report_.accepts_exact_size = report_.accepts_exact_size || !has_segments;
    report_.pools = Recipe::pools::count;
    report_.has_segments = has_segments;
    report_.grows_at_end = requires { settings_.growth.bytes_to_map(std::size_t{}, std::size_t{}); };
    // Moving within one list is not stitching, which takes idle pages of every list.
    report_.stitches = requires { settings_.growth.should_save_pages(std::size_t{}, std::size_t{}); };
    const auto key_of = [this](std::uint64_t stream) {
      return stream_id(settings_.streams.reuse_key(stream_id{stream}));
    };
    report_.reuses_across_streams = Recipe::streams::reuses_across_streams;
    report_.shares_streams = report_.reuses_across_streams || key_of(1) == key_of(2);
    report_.device_has_order = provider::ordering_provider<provider_type>;
    report_.device_has_ranges = provider::virtual_memory_provider<provider_type>;
    if constexpr (detail::limited_provider<provider_type>)
      report_.device_is_limited = blocks_.provider().would_exceed_limit(report_.segment);
    std::size_t backed = report_.segment;
    if constexpr (!has_segments) {
      backed = mapping_unit(settings_, report_.block);
      const std::size_t range = settings_.growth.range_size(report_.capacity);
      report_.range = align_up((std::min)(range, max_request), backed);
    }
    for (const page_kind& kind : settings_.pages.backing(backed))
      report_.pages_fall_back = kind.size == page_kind::page_size::normal;
    report_.split_limit = settings_.split.oversize_from();
  }

  /// Adds the free blocks and why they could not serve, and the bytes that live blocks waste.
  void add_blocks() noexcept {
    blocks_.for_each_segment([this](const block& first) {
      std::size_t usable = 0;  // adjacent bytes that are free, or pending and free later
      for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
        if (b->is_free()) add_free(*b);
        const bool is_used = b->is_live() || b->is_held();
        if (is_used) add_live(*b);
        const bool is_usable = !is_used && !b->is_unmapped() && is_of_pool(*b) && b->list->key == key_;
        if (b->list->where.group->is_private() && !b->is_unmapped()) report_.private_bytes += b->size;
        usable = is_usable ? usable + b->size : 0;
        if (usable > report_.after_pending && settings_.split.may_serve(report_.block, usable))
          report_.after_pending = usable;
      }
    });
  }
  void add_live(const block& b) noexcept {
    const std::size_t requested = b.request.bytes;
    if (requested == 0) return;
    const std::size_t rounded = (std::min)(settings_.rounding.block_size(requested), b.size);
    report_.rounding += observe::oom_report::above(rounded, align_up(requested, 512));
    report_.unsplit += b.size - rounded;
  }
  void add_free(const block& b) noexcept {
    const reason why = reason_for(b);
    if (b.size > report_.largest.bytes) {
      report_.largest = {b.address, b.size, b.list->where.pool, b.list->key};
      report_.largest_is = why;
    }
    if (why == reason::too_small) return;
    // A block of another group than the request's serves it under no policy.
    if (!blocks_.serves_requests(b, b.list->where.pool, report_.stream)) return;
    std::size_t& max = report_.but_for[static_cast<std::size_t>(why)];
    if (count_reasons(b) <= 1 && b.size > max) max = b.size;
  }
  [[nodiscard]] bool is_of_pool(const block& b) const noexcept {
    return blocks_.serves_requests(b, report_.pool, report_.stream);
  }
  [[nodiscard]] bool belongs_to_other_stream(const block& b) const noexcept {
    return b.list->key != key_ && !settings_.streams.reuse_rules().insert_dependencies;
  }
  [[nodiscard]] int count_reasons(const block& b) const noexcept {
    return !is_of_pool(b) + belongs_to_other_stream(b) + !settings_.split.may_serve(report_.block, b.size);
  }
  [[nodiscard]] reason reason_for(const block& b) const noexcept {
    if (b.size < report_.block) return reason::too_small;
    if (!is_of_pool(b)) return reason::pool;
    if (belongs_to_other_stream(b))
      return Recipe::streams::reuses_across_streams ? reason::unfinished : reason::stream;
    if (settings_.split.may_serve(report_.block, b.size)) return reason::none;
    const bool is_oversize = b.size >= report_.split_limit || report_.block >= report_.split_limit;
    return is_oversize ? reason::split_limit : reason::size_class;
  }

  /// Adds a segment or chunk: it may be released, or blocks prevent that.
  void add_unit(const typename Introspection::unit& of) noexcept {
    observe::oom_report::non_releasable_unit unit{.address = of.address, .length = of.bytes};
    std::size_t pending = 0;
    std::size_t live = 0;     // blocks
    std::size_t largest = 0;  // of the blocks in use
    of.for_each_block([&](const block& b, std::size_t low, std::size_t high) {
      if (b.is_free()) {
        unit.bytes += high - low;
        return;
      }
      if (unit.blocks == 0) unit.first_block = b.address;
      ++unit.blocks;
      unit.used += b.size;
      largest = (std::max)(largest, b.size);
      if (b.status.state == block::state::pending) {
        pending += high - low;
      } else {
        ++live;
      }
    });
    const bool may_release = blocks_.may_release(*of.lowest);
    if (unit.blocks == 0) {
      (may_release ? report_.idle : report_.private_idle) += unit.bytes;
      return;
    }
    if (live == 0 && may_release) report_.idle_later += unit.bytes + pending;
    const std::uintptr_t best = report_.largest.address;
    if (of.address < best + report_.largest.bytes && best < of.end())
      report_.largest_neighbours += unit.blocks;
    if (unit.bytes == 0) return;
    report_.non_releasable += unit.bytes;
    ++report_.non_releasable_units;
    report_.add_unit(unit);
    // Pages would be acquired for the largest of these blocks, not for the block that is wanted now.
    const std::size_t in_place = mapped_page_size(largest);
    const std::size_t stitched = stitched_page_size(largest);
    of.for_each_block([&](const block& b, std::size_t low, std::size_t high) {
      if (b.is_free()) report_.pages_in_place += whole_pages(low, high, in_place);
      if (b.is_free()) report_.pages_stitched += whole_pages(low, high, stitched);
    });
  }

  Introspection blocks_;
  const recipe::policies<Recipe>& settings_;
  stream_id key_;
  observe::oom_report report_{};
};

/// Finds hints from the numbers of a report.
class oom_advisor {
 public:
  explicit oom_advisor(observe::oom_report& report) noexcept : report_(report) { report.hint_count = 0; }
  void add_all() noexcept {
    const std::size_t needed = report_.needed();
    const std::size_t lacking = observe::oom_report::above(needed, allowed_);
    if (needed > report_.all()) return add(true, hint::free_memory, lacking);
    add_device_and_limit();
    if (lacking == 0) {
      add_idle_memory();
      add_free_blocks();
      add_wasted_bytes();
    }
    add(report_.hint_count == 0 && report_.missing() > 0, hint::free_memory,
        lacking > 0 ? lacking : report_.missing());
  }

 private:
  using hint = observe::oom_report::hint;
  using reason = observe::oom_report::reason;

  void add(bool helps, hint what, std::size_t bytes) noexcept {
    if (helps && report_.hint_count < observe::oom_report::max_hints)
      report_.hints[report_.hint_count++] = {what, bytes};
  }
  [[nodiscard]] bool has_room() const noexcept { return room_ >= report_.wanted; }

  void add_device_and_limit() noexcept {
    const std::size_t min = report_.accepts_exact_size ? report_.exact_segment : report_.wanted;
    add(room_ < min && report_.device_room() >= min, hint::raise_limit, report_.device_room());
    add(report_.device_is_limited, hint::raise_device_limit, report_.segment);
    add(has_room() && !report_.pages_fall_back, hint::use_other_pages, report_.segment);
    add(report_.range < report_.block, hint::enlarge_range, report_.range);
    add(!has_room() && room_ >= report_.unpaged_segment, hint::use_normal_pages, report_.unpaged_segment);
    add(!has_room() && room_ >= report_.exact_segment && !report_.accepts_exact_size, hint::grow_exactly,
        report_.exact_segment);
    add(!has_room() && report_.small_pages > 0 && room_ >= report_.small_pages, hint::map_smaller_pages,
        report_.small_pages);
  }

  void add_idle_memory() noexcept {
    const std::size_t idle = report_.idle;
    const bool idle_is_enough = idle > 0 && saturating_add(room_, idle) >= report_.wanted;
    const std::size_t later = saturating_add(idle, report_.idle_later);
    const bool release_is_enough = report_.idle_later > 0 && saturating_add(room_, later) >= report_.wanted;
    const bool waiting_is_enough = report_.now.pending() > 0 && !idle_is_enough &&
                                   (report_.after_pending >= report_.block || release_is_enough);
    // Growth at the end of a range maps nothing again where emptying the cache unmaps parts of the wanted block.
    const bool emptying_is_enough = waiting_is_enough && (release_is_enough || !report_.grows_at_end);
    const bool keeps_cache = !report_.empties_cache && !report_.must_not_wait;  // by its policy
    add(keeps_cache && idle_is_enough && !has_room(), hint::empty_cache, idle);
    add(report_.capture_keeps_cache && ((idle_is_enough && !has_room()) || emptying_is_enough),
        hint::end_capture, idle_is_enough ? idle : saturating_add(later, report_.now.pending()));
    add(keeps_cache && emptying_is_enough, hint::wait_for_streams, report_.now.pending());
    const std::size_t serves = largest_but_for(reason::none);
    add(report_.empties_cache && idle_is_enough && !has_room() && serves == 0, hint::release_later, idle);
    add(serves > 0 && report_.waited_ms <= 0, hint::try_again, serves);
    const bool should_wait = report_.empties_cache || (keeps_cache && !emptying_is_enough);
    add(should_wait && waiting_is_enough && report_.waited_ms <= 0, hint::try_later, report_.now.pending());
  }

  void add_free_blocks() noexcept {
    const std::size_t unfinished = largest_but_for(reason::unfinished);
    add(unfinished > 0, hint::insert_dependencies, unfinished);
    const std::size_t oversize = largest_but_for(reason::split_limit);
    add(oversize > 0, hint::raise_split_limit, oversize);
    const std::size_t other_size = largest_but_for(reason::size_class);
    add(other_size > 0, hint::split_blocks, other_size);
    add(report_.elsewhere >= report_.block && report_.shares_streams, hint::share_arenas, report_.elsewhere);

    const auto is_enough = [this](std::size_t pages, std::size_t lost) {
      return pages > 0 && saturating_add(room_, pages) >= saturating_add(report_.block, lost);
    };
    const bool has_segments = report_.has_segments;
    const bool can_stitch = is_enough(report_.pages_stitched, 0);
    // Part of the last page stays unused.
    add(has_segments && is_enough(report_.pages_in_place, report_.page_in_place), hint::map_pages,
        report_.pages_in_place);
    add(can_stitch && !report_.stitches, hint::stitch, report_.pages_stitched);
    add(can_stitch && report_.stitches, hint::use_smaller_chunks, report_.pages_stitched);

    const bool has_pages = can_stitch && report_.device_has_ranges;
    const std::size_t other_stream = largest_but_for(reason::stream);
    add(other_stream > 0 && has_segments && !has_pages, hint::reuse_across_streams, other_stream);
    const std::size_t other_pool = largest_but_for(reason::pool);
    add(other_pool > 0 && has_segments && !has_pages, hint::share_pool, other_pool);
  }

  void add_wasted_bytes() noexcept {
    const std::size_t missing = report_.missing();
    add(missing > 0 && report_.rounding >= missing, hint::round_less, report_.rounding);
    const std::size_t live = saturating_add(report_.now.allocated, report_.block);
    const std::size_t reserved =
        saturating_add(live, report_.non_releasable);  // scattered remainders would not help
    add(live > allowed_ && reserved - report_.unsplit <= allowed_, hint::split_off_remainders,
        report_.unsplit);
  }

  [[nodiscard]] std::size_t largest_but_for(reason only) const noexcept {
    return report_.but_for[static_cast<std::size_t>(only)];
  }

  observe::oom_report& report_;
  const std::size_t room_ = report_.room();
  const std::size_t allowed_ = report_.allowed();
};

/// Sets the hints of a report from its numbers.
///
/// * Omits each change that the recipe has already, and each change that would not have been enough.
/// * Says "may help" where the numbers of the report do not tell whether the request would have succeeded.
/// * Lists the surest hint first.
/// * If there is no hint, the hint is to free blocks, unless the device refused although it had memory.
///
/// Measured on ten recorded programs and thirteen recipes, at capacities up to a tenth too small:
///
/// | hint          | the request succeeded | the program completed |
/// |---------------|-----------------------|-----------------------|
/// | stitch        | 99 %                  | 83 %                  |
/// | map_pages     | 92 %                  | 80 %                  |
/// | round_less    | 92 %                  | 81 %                  |
/// | grow_exactly  | 100 %                 | 54 %                  |
///
/// Blocks of other streams or pools helped in a third of the cases. So they are suggested only if pages do
/// not help.
inline void add_hints(observe::oom_report& report) noexcept {
  oom_advisor advisor(report);
  if (!report.exceeds_max_request() && !report.rule) advisor.add_all();
}

/// Tells whether the growth of a recipe has a bound.
struct growth_by_law {
  template <typename Recipe>
  [[nodiscard]] law::growth_witness operator()(const recipe::policies<Recipe>& settings) const noexcept {
    return law::growth_is_bounded<Recipe>(settings);
  }
};

/// Returns the report of one caching_allocator, without hints.
template <typename Allocator, typename FindGrowth>
[[nodiscard, gnu::noinline, gnu::cold]] observe::oom_report survey_of(Allocator& allocator, std::size_t bytes,
                                                                      stream_id stream,
                                                                      FindGrowth find_growth) noexcept {
  observe::oom_report report =
      failure_survey(detail::introspect(allocator), allocator.policies(), bytes, stream).report();
  // The search can take 10 ms with a front end's lock held. Without much idle memory, nothing has grown.
  if (!report.exceeds_max_request() && report.now.cached >= report.now.allocated)
    report.growth = find_growth(allocator.policies());
  const out_of_memory failure = allocator.make_out_of_memory(bytes, stream);
  (failure.numbers().by_extension ? report.rule : report.refused) = failure.numbers().refused;
  return report;
}

/// Adds the report of another arena of the same allocator.
inline void add_arena(observe::oom_report& report, const observe::oom_report& other) noexcept {
  const std::size_t wanted_rounding =
      observe::oom_report::above(report.block, align_up(report.requested, 512));
  report.now += other.now;
  report.elsewhere += other.now.cached;
  report.rounding += observe::oom_report::above(other.rounding, wanted_rounding);
  report.unsplit += other.unsplit;
  report.non_releasable += other.non_releasable;
  report.non_releasable_units += other.non_releasable_units;
  report.pages_in_place += other.pages_in_place;
  report.pages_stitched += other.pages_stitched;
  report.idle += other.idle;
  report.idle_later += other.idle_later;
  for (const observe::oom_report::non_releasable_unit& unit : other.units) report.add_unit(unit);
}

/// Adds the memory of a plan. It serves no other requests, and a request that fails takes what no block uses.
template <typename Plan>
void add_plan(observe::oom_report& report, const Plan& plan) noexcept {
  const usage bytes = plan.bytes();
  report.plan += bytes.reserved;
  add_plan_bytes(report.now, bytes, report.capacity, report.available);
  plan.for_each_unit([&report](std::uintptr_t address, std::size_t length, const auto& used) {
    const observe::oom_report::non_releasable_unit unit{.bytes = length - used.bytes,
                                                        .blocks = used.blocks,
                                                        .used = used.bytes,
                                                        .first_block = used.first,
                                                        .address = address,
                                                        .length = length};
    if (used.live == 0 && !report.must_not_wait)
      (used.blocks == 0 ? report.idle : report.idle_later) += length;
    if (used.blocks == 0 || unit.bytes == 0) return;
    report.non_releasable += unit.bytes;
    ++report.non_releasable_units;
    report.add_unit(unit);
  });
}

/// Returns the report of an allocator with arenas: the report of the arena of `stream`, plus the memory of
/// the other arenas.
template <typename Allocator, typename FindGrowth>
[[nodiscard]] observe::oom_report survey_of_arenas(Allocator& allocator, std::size_t bytes, stream_id stream,
                                                   FindGrowth find_growth) noexcept {
  observe::oom_report report{
      .requested = bytes, .stream = stream, .block = bytes, .segment = bytes, .wanted = bytes};
  const auto no_growth = [](const auto&) { return law::growth_witness{}; };
  allocator.visit_arenas(stream, [&](auto& arena, bool is_own) {
    if (is_own) report = survey_of(arena, bytes, stream, find_growth);
    if (!is_own && !report.exceeds_max_request())
      add_arena(report, survey_of(arena, bytes, stream, no_growth));
  });
  report.available =
      (std::min)(report.available, observe::oom_report::above(report.capacity, report.now.reserved));
  report.device_is_limited = false;  // that limit is the arenas' shared budget, set by growth
  return report;
}

/// Returns the report of an allocator of any kind, without hints.
template <typename Allocator, typename FindGrowth>
[[nodiscard]] observe::oom_report survey_of_any(Allocator& allocator, std::size_t bytes, stream_id stream,
                                                FindGrowth find_growth) noexcept {
  observe::oom_report report{};
  if constexpr (requires { detail::introspect(allocator); }) {
    report = survey_of(allocator, bytes, stream, find_growth);
  } else if constexpr (requires { allocator.visit_arenas(stream, ignore_arguments{}); }) {
    report = survey_of_arenas(allocator, bytes, stream, find_growth);
  } else if constexpr (requires { allocator.visit(ignore_arguments{}); }) {
    allocator.visit([&](auto& inner) { report = survey_of_any(inner, bytes, stream, find_growth); });
  } else if constexpr (requires { allocator.inner(); }) {
    report = survey_of_any(allocator.inner(), bytes, stream, find_growth);
  } else {
    allocator.for_each_allocator([&](auto& inner) { report = survey_of(inner, bytes, stream, find_growth); });
  }
  return report;
}

/// As observe::explain. find_growth(policies) tells whether their growth has a bound.
template <typename Allocator, typename FindGrowth>
[[nodiscard]] observe::oom_report explain_with(Allocator& allocator, std::size_t bytes, stream_id stream,
                                               FindGrowth find_growth) noexcept {
  observe::oom_report report = survey_of_any(allocator, bytes, stream, find_growth);
  report.waited_ms = allocator.make_out_of_memory(bytes, stream).numbers().waited_ms;
  visit_plan_of(allocator, [&report](const auto& plan) {
    if (!report.exceeds_max_request()) add_plan(report, plan);
  });
  add_hints(report);
  return report;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Explains why a request of `bytes` on `stream` cannot be served now, and suggests remedies.
///
/// Call it after a failed allocation, before blocks are freed. The allocator may be of any kind. For a
/// per_device, pass the front() of one device.
///
///     try {
///       allocator.deallocate(allocator.allocate(100_GiB));
///     } catch (const tessera::out_of_memory& error) {
///       std::puts(tessera::observe::explain(allocator, error.requested(), error.stream()).text().c_str());
///     }
///
/// The report also warns of recipes that can reserve without bound (law::growth_is_bounded). It does not search for that
/// while more memory is live than cached, because growth without bound leaves idle memory.
///
///   Cost:  linear in the blocks, and in ranges in their pages; about 10 ms for that warning, if the split
///          policy refuses blocks
template <typename Allocator>
[[nodiscard]] oom_report explain(Allocator& allocator, std::size_t bytes, stream_id stream = {}) noexcept {
  return detail::explain_with(allocator, bytes, stream, detail::growth_by_law{});
}

}  // namespace tessera::inline v0_1::observe
