// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "files.hpp"
#include "recorded_conf.hpp"
#include "recorded_pool.hpp"
#include "recorded_ranges.hpp"
#include "start_state.hpp"
#include "text.hpp"
#include "verification.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Replays one device's history through the pytorch recipe under the recorded settings, and if they differ,
/// through pytorch_2_14. Frees take effect when they completed, and memory is released when the device
/// released it.
template <typename Segments = recipe::pytorch_family::native,
          typename Ranges = recipe::pytorch_family::expandable>
class recorded_replay {
 public:
  /// Uses the recorded settings, with address ranges of at most `range_size` bytes.
  recorded_replay(const observe::snapshot& source, std::size_t device, config::pytorch::settings settings,
                  std::size_t range_size)
      : source_(source),
        device_(device),
        range_size_(range_size),
        segments_(Segments::configured(replayed(settings, false))),
        ranges_(Ranges::configured(replayed(settings, true))) {
    result_.device = device;
  }

  ///   Returns:  an error if the history contradicts itself
  [[nodiscard]] read_result<verification> run() {
    auto start = start_finder(source_, device_).find(segments_);
    if (auto* wrong = std::get_if<input_error>(&start)) return std::move(*wrong);
    const auto& [segments, owners] = std::get<start_state>(start);
    const auto entries = source_.trace_of(device_);
    const recorded_ranges known = range_finder(ranges_.growth.mapping_unit(unlimited), range_size_)
                                      .find(std::get<start_state>(start), entries);
    ranges_.growth.range = memory_limit(known.max_size);
    if (auto wrong = adopt(segments, known.of_segment)) return std::move(*wrong);
    std::vector<std::size_t> request(entries.size() + 1, entries.size());  // the next request, by entry
    for (std::size_t i = entries.size(); i-- > 0;) request[i] = is_request(entries[i]) ? i : request[i + 1];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const observe::snapshot::entry& e = entries[i];
      if (!is_possible(e)) return impossible(e.address, e.size, unit(e));
      if (about_pages(e) && !count_pages(e.size, e.what == action::segment_map)) return too_many_pages();
      if (growing_ != nullptr && e.what != action::segment_map && e.what != action::segment_alloc &&
          e.what != action::alloc)
        fail(entries, request[i]);
      const memory_owner& owner = owners[i];
      if (known.begins[i]) {
        pool_of(owner).visit([&](auto& all) { all.begin_range({e.address, e.size}, owner.large, e.stream); });
      }
      step(e, owner);
      note_recovery(entries, i);
    }
    finish();
    return result_;
  }

  /// The range sizes that the history suggests.
  [[nodiscard]] std::vector<std::size_t> guess_range_sizes() const {
    const auto start = start_finder(source_, device_).find(segments_);
    const auto* const found = std::get_if<start_state>(&start);
    if (found == nullptr) return {};
    return range_finder(ranges_.growth.mapping_unit(unlimited), unlimited)
        .find(*found, source_.trace_of(device_))
        .guesses;
  }

 private:
  /// The settings without those whose effects the history contains.
  [[nodiscard]] static config::pytorch::settings replayed(config::pytorch::settings settings,
                                                          bool in_ranges) {
    settings.garbage_collection_threshold = fraction{};
    settings.expandable_segments = in_ranges;
    return settings;
  }

  using action = observe::snapshot::action;
  /// Each part that decides independently has its own allocator: private pools, and segments of either kind.
  struct pool {
    std::unique_ptr<recorded_pool<Segments>> segments;
    std::unique_ptr<recorded_pool<Ranges>> ranges;

    template <typename F>
    decltype(auto) visit(F f) {
      return ranges != nullptr ? f(*ranges) : f(*segments);
    }
  };
  struct placed {
    pool* in;
    void* here;
  };

  [[nodiscard]] input_error error(std::string rule) const {
    return {source_.name + ": device " + std::to_string(device_), std::move(rule)};
  }
  [[nodiscard]] input_error impossible(std::uint64_t address, std::size_t bytes, std::size_t unit) const {
    return error(counted(bytes, "byte") + " at " + std::to_string(address) + (bytes == 1 ? " is" : " are") +
                 " not whole steps of " + counted(unit, "byte"));
  }
  /// Counts mapped pages.
  ///   Returns:  false if they are too many, since each takes host memory
  [[nodiscard]] bool count_pages(std::size_t bytes, bool come) noexcept {
    const std::size_t pages = bytes / operator""_MiB(2);
    pages_ = come ? pages_ + pages : pages_ - pages;
    return pages_ <= max_pages;
  }
  [[nodiscard]] input_error too_many_pages() const {
    return error("more than " + std::to_string(max_pages) + " pages are mapped");
  }
  [[nodiscard]] static bool is_request(const observe::snapshot::entry& e) noexcept {
    return e.what == action::alloc || e.what == action::oom;
  }
  [[nodiscard]] static bool about_pages(const observe::snapshot::entry& e) noexcept {
    return e.what == action::segment_map || e.what == action::segment_unmap;
  }
  /// The granularity of the device for an entry, in bytes.
  [[nodiscard]] static std::size_t unit(const observe::snapshot::entry& e) noexcept {
    return about_pages(e) ? recorded_device::page_size({}) : min_alignment;
  }
  /// Whether a device could have returned this memory; allocators manage no other.
  [[nodiscard]] static bool is_possible(std::uint64_t address, std::size_t bytes, std::size_t unit) noexcept {
    return address != 0 && address % unit == 0 && bytes != 0 && bytes % unit == 0;
  }
  [[nodiscard]] static bool is_possible(const observe::snapshot::entry& e) noexcept {
    return (!about_pages(e) && e.what != action::segment_alloc) || is_possible(e.address, e.size, unit(e));
  }

  [[nodiscard]] pool& pool_of(const memory_owner& owner) {
    pool& found = pools_[{owner.pool, owner.expandable}];
    if (owner.expandable && found.ranges == nullptr)
      found.ranges = std::make_unique<recorded_pool<Ranges>>(ranges_);
    if (!owner.expandable && found.segments == nullptr)
      found.segments = std::make_unique<recorded_pool<Segments>>(segments_);
    return found;
  }

  /// Notes whether the memory of the next request may have been freed or released by its own recovery. The
  /// history has the same entries if the program emptied the cache, or if streams completed.
  void note_recovery(std::span<const observe::snapshot::entry> entries, std::size_t i) {
    const observe::snapshot::entry& e = entries[i];
    const bool by_program =
        i > 0 && entries[i - 1].what == action::free_requested && entries[i - 1].address == e.address;
    switch (e.what) {
      case action::free_completed: recovered_ = !by_program; break;
      case action::segment_unmap:
      case action::segment_free: recovered_ = true; break;
      case action::segment_alloc:
      case action::segment_map: break;
      default: recovered_ = false; break;
    }
  }

  [[nodiscard]] std::optional<input_error> adopt(const std::vector<observe::snapshot::segment>& segments,
                                                 const std::vector<std::uint64_t>& ranges) {
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const observe::snapshot::segment& s = segments[i];
      const std::size_t unit = s.expandable ? recorded_device::page_size({}) : min_alignment;
      for (const observe::snapshot::block& b : s.blocks) {
        if (!is_possible(b.address, b.size, min_alignment))
          return impossible(b.address, b.size, min_alignment);
      }
      if (!is_possible(s.address, s.size, unit)) return impossible(s.address, s.size, unit);
      if (s.expandable && !count_pages(s.size, true)) return too_many_pages();
      pool& to = pool_of(memory_owner::of(s));
      if (!to.visit([&](auto& all) { return all.adopt(s, ranges[i]); }))
        return error("the segment at " + std::to_string(s.address) + " is impossible for the recipe");
      for (const observe::snapshot::block& b : s.blocks) {
        if (b.active()) live_[b.address] = {&to, reinterpret_cast<void*>(b.address)};
        if (!b.active()) result_.cached_at_start += b.size;
      }
      reserved_ += s.size;
      here_ += s.size;
    }
    for (auto& [id, one] : pools_) one.visit([](auto& all) { all.provider().forget_calls(); });
    peak();
    return {};
  }

  void step(const observe::snapshot::entry& e, const memory_owner& owner) {
    switch (e.what) {
      case action::alloc: allocate(e, owner); break;
      case action::free_completed:
        if (const auto found = live_.find(e.address); found != live_.end()) {
          change(*found->second.in, [&](auto& all) { all.deallocate(found->second.here); });
          live_.erase(found);
        }
        break;
      case action::segment_alloc:
      case action::segment_map: {
        reserved_ += e.size;
        ++(e.what == action::segment_map ? result_.maps : result_.segments);
        pool& to = pool_of(owner);
        to.visit([&](auto& all) { all.give({e.address, e.size}); });
        growing_ = &to;
        break;
      }
      case action::segment_free:
      case action::segment_unmap:
        change(pool_of(owner), [&](auto& all) {
          if (!all.take_away({e.address, e.size}, owner.large, e.stream))
            differ("a segment of " + counted(e.size, "byte") +
                   " was released by the recorded allocator and is in use in the replay");
        });
        reserved_ -= e.size;
        break;
      default: break;
    }
    peak();
  }

  void allocate(const observe::snapshot::entry& e, const memory_owner& owner) {
    pool& in = pool_of(owner);
    void* p = nullptr;
    const bool grew = std::exchange(growing_, nullptr) == &in;
    change(in, [&](auto& all) {
      p = recovered_ ? all.allocate_after_recovery(e.size, e.stream, grew, e.address)
                     : all.allocate(e.size, e.stream, false);
    });
    compare_memory(in);
    const bool same = reinterpret_cast<std::uint64_t>(p) == e.address;
    if (!same && result_.same_address == result_.allocations) {
      result_.first_other_address = result_.allocations;
      result_.other_entry = static_cast<std::size_t>(&e - source_.trace_of(device_).data());
      result_.other_expected = e.address;
      result_.other_given = reinterpret_cast<std::uint64_t>(p);
      if (in.ranges != nullptr) result_.range_limit = in.ranges->range_limit(e.address, p);
    }
    result_.same_address += same;
    ++result_.allocations;
    live_[e.address] = {&in, p};
  }
  /// Repeats the failed request for which the mapped pages were not enough.
  void fail(std::span<const observe::snapshot::entry> entries, std::size_t request) {
    pool& in = *std::exchange(growing_, nullptr);
    if (request == entries.size()) return;
    change(in, [&](auto& all) { all.fail(entries[request].size, entries[request].stream, recovered_); });
    compare_memory(in);
    peak();
  }
  void compare_memory(pool& in) {
    const std::string difference = in.visit([](auto& all) { return all.difference(); });
    if (!difference.empty())
      differ("before allocation " + std::to_string(result_.allocations) + " " + difference);
  }
  void finish() {
    for (auto& [id, one] : pools_) {
      compare_memory(one);
      one.visit([&](auto& all) {
        const device_calls& made = all.provider().calls();
        result_.calls.acquire += made.acquire;
        result_.calls.release += made.release;
        result_.calls.create += made.create;
        result_.calls.destroy += made.destroy;
        result_.calls.map += made.map;
        result_.calls.unmap += made.unmap;
        result_.cached_at_end += all.current_usage().cached;
      });
    }
  }

  void differ(std::string what) {
    if (result_.first_other_segment.empty()) result_.first_other_segment = std::move(what);
  }
  /// Calls act(pool), and updates the reserved bytes.
  template <typename Action>
  void change(pool& in, Action act) {
    in.visit([&](auto& all) {
      const std::size_t before = all.current_usage().reserved;
      act(all);
      here_ += all.current_usage().reserved - before;
    });
  }
  void peak() {
    result_.peak_here = (std::max)(result_.peak_here, here_);
    result_.peak_recorded = (std::max)(result_.peak_recorded, reserved_);
  }

  static constexpr std::size_t max_pages = 1 << 18;  // each of 2 MiB

  const observe::snapshot& source_;
  std::size_t device_;
  std::size_t range_size_;
  recipe::policies<Segments> segments_;
  recipe::policies<Ranges> ranges_;
  std::map<std::pair<observe::snapshot::pool_id, bool>, pool> pools_;
  std::map<std::uint64_t, placed> live_;  // by address on the recorded device
  pool* growing_ = nullptr;               // got memory for a request that comes next
  bool recovered_ = false;                // whether that request may have recovered
  std::size_t pages_ = 0;                 // mapped on the recorded device
  std::size_t reserved_ = 0;              // by the recorded device
  std::size_t here_ = 0;                  // by all pools here
  verification result_;
};

/// Replays one device's history from its start through the pytorch recipe under the recorded settings, and
/// where they differ, through pytorch_2_14. Frees take effect where they completed, and segments are
/// released where the device released them, because the device has limits of its own.
///
///     #include <tessera/trace/csv.hpp>
///     #include "read_snapshot.hpp"
///     using namespace tessera::trace;
///     const auto bytes = read_file("snapshot.pickle");
///     const auto read = read_snapshot(std::get<std::string>(bytes), "snapshot.pickle");
///     const auto found = verifier(std::get<snapshot>(read), 0).run();  // of device 0
///     if (const auto* told = std::get_if<verification>(&found))
///       std::printf("%zu of %zu at the same address\n", told->same_address, told->allocations);
class verifier {
 public:
  verifier(const observe::snapshot& source, std::size_t device) : source_(source), device_(device) {}

  ///   Returns:  an error if the history contradicts itself, or another allocator made it
  [[nodiscard]] read_result<verification> run() const {
    if (auto refused = check_allocator(source_, device_)) return std::move(*refused);
    const config::pytorch::settings settings = settings_of(source_);
    read_result<verification> found = closest(settings);
    const std::string& recipe = source_.configured.recipe;
    if (recipe.empty() || recipe.starts_with("tessera::pytorch") || agree(found)) return found;
    return input_error{
        source_.name + ": device " + std::to_string(device_),
        "was captured from " + tessera::trace::detail::quoted_field(recipe) + ", not from PyTorch"};
  }

 private:
  static constexpr int max_tries = 16;

  /// Replays with the rules of each release, and returns the result whose first difference comes last.
  [[nodiscard]] read_result<verification> closest(const config::pytorch::settings& settings) const {
    read_result<verification> best =
        under<recipe::pytorch_family::native, recipe::pytorch_family::expandable>(settings);
    if (agree(best)) return best;
    read_result<verification> other =
        under<recipe::pytorch_2_14_family::native, recipe::pytorch_2_14_family::expandable>(settings);
    auto* const made = std::get_if<verification>(&other);
    if (made == nullptr) return best;
    made->rules = "2.14";
    const auto* const before = std::get_if<verification>(&best);
    const bool is_closer =
        before == nullptr || made->agrees() || made->first_difference() > before->first_difference();
    if (auto* const first = std::get_if<verification>(&best)) first->tried_2_14 = true;
    made->tried_2_14 = true;
    return is_closer ? other : best;
  }

  [[nodiscard]] static bool agree(const read_result<verification>& found) noexcept {
    const auto* const made = std::get_if<verification>(&found);
    return made != nullptr && made->agrees();
  }
  /// Replays with the recipes of one release.
  template <typename Segments, typename Ranges>
  [[nodiscard]] read_result<verification> under(const config::pytorch::settings& settings) const {
    using rules = recorded_replay<Segments, Ranges>;
    // The size of the device's ranges is not recorded. A difference that depends on it limits it.
    read_result<verification> best = rules(source_, device_, settings, unlimited).run();
    if (agree(best)) return best;
    std::vector<std::size_t> sizes = rules(source_, device_, settings, unlimited).guess_range_sizes();
    sizes.push_back(limit_in(best, unlimited));
    for (std::size_t limit : sizes) {
      for (int tries = 0; limit != 0 && tries < max_tries && !agree(best); ++tries) {
        read_result<verification> next = rules(source_, device_, settings, limit).run();
        limit = limit_in(next, limit);
        const auto* const made = std::get_if<verification>(&next);
        const auto* const before = std::get_if<verification>(&best);
        const bool is_better = made != nullptr && (before == nullptr || made->agrees() ||
                                                   made->first_difference() > before->first_difference());
        if (is_better) best = std::move(next);
      }
    }
    return best;
  }

  /// The range size to try next, or 0.
  [[nodiscard]] static std::size_t limit_in(const read_result<verification>& found,
                                            std::size_t tried) noexcept {
    const auto* const made = std::get_if<verification>(&found);
    return made != nullptr && !made->agrees() && made->range_limit < tried ? made->range_limit : 0;
  }

  const observe::snapshot& source_;
  std::size_t device_;
};

}  // namespace replay
