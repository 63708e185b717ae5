// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::observe {

/// A memory snapshot with the contents of a PyTorch snapshot: the state of an allocator, and the history that
/// led to it.
///   Source:  torch.cuda.memory._dump_snapshot
struct snapshot {
  /// A table of call stacks. Stacks and texts are numbered from 1; 0 means none.
  class call_stacks {
   public:
    /// A call. `file` and `function` are the numbers of texts.
    struct frame {
      std::uint32_t file = 0;      ///< the number of the text with its path; 0 if unknown
      std::uint32_t function = 0;  ///< the number of the text with its name; 0 if unknown
      std::uint64_t line = 0;      ///< from 1; 0 or 2^64 - 1 if unknown
      auto operator<=>(const frame&) const = default;
    };

    /// How many texts there are; the last one has this number.
    [[nodiscard]] std::size_t texts() const noexcept { return texts_.size(); }
    /// How many frames there are; their positions are from 0.
    [[nodiscard]] std::size_t frames() const noexcept { return frames_.size(); }
    /// How many stacks there are; the last one has this number.
    [[nodiscard]] std::size_t stacks() const noexcept { return ends_.size(); }
    /// The text of a number; empty for 0.
    [[nodiscard]] std::string_view text(std::uint32_t number) const noexcept {
      return number == 0 ? std::string_view{} : std::string_view(texts_[number - 1]);
    }
    /// The frame at a position.
    [[nodiscard]] const frame& frame_at(std::uint32_t position) const noexcept { return frames_[position]; }
    /// Returns the positions of a stack's frames, innermost first.
    [[nodiscard]] std::span<const std::uint32_t> stack(std::uint32_t number) const noexcept {
      if (number == 0) return {};
      const std::size_t begin = number == 1 ? 0 : ends_[number - 2];
      return {calls_.data() + begin, ends_[number - 1] - begin};
    }

    /// Appends a text without looking for an equal one, and returns its number.
    std::uint32_t append_text(std::string_view text) {
      texts_.emplace_back(text);
      return static_cast<std::uint32_t>(texts_.size());
    }
    /// Appends a frame without looking for an equal one, and returns its position.
    std::uint32_t append_frame(const frame& f) {
      frames_.push_back(f);
      return static_cast<std::uint32_t>(frames_.size() - 1);
    }
    /// Appends a stack, given by the positions of its frames, and returns its number.
    std::uint32_t append_stack(std::span<const std::uint32_t> positions) {
      calls_.insert(calls_.end(), positions.begin(), positions.end());
      ends_.push_back(calls_.size());
      return static_cast<std::uint32_t>(ends_.size());
    }
    bool operator==(const call_stacks&) const = default;

   private:
    std::vector<std::string> texts_;
    std::vector<frame> frames_;
    std::vector<std::uint32_t> calls_;  // the positions of all stacks' frames
    std::vector<std::size_t> ends_;     // the end of each stack in calls_
  };

  /// The number of a pool of segments; (0, 0) is the default pool.
  using pool_id = std::pair<std::uint64_t, std::uint64_t>;

  /// A block of a segment.
  struct block {
    /// Whether a request has the block.
    using state = block_view::state;
    std::uint64_t address = 0;  ///< of the first byte
    std::size_t size = 0;       ///< bytes of the block
    std::size_t requested = 0;  ///< bytes that the program asked for; 0 while it is free
    state is = state::free;     ///< `pending` is PyTorch's active_pending_free
    std::uint32_t stack = 0;    ///< call stack of the allocation; 0 if unknown

    /// Whether it is live or pending.
    [[nodiscard]] bool active() const noexcept { return is != state::free; }
    bool operator==(const block&) const = default;
  };

  /// Bytes in the blocks of a segment.
  struct byte_counts {
    std::size_t allocated = 0;  ///< in live blocks
    std::size_t active = 0;     ///< in live and pending blocks
    std::size_t requested = 0;  ///< requested bytes of active blocks
  };

  /// Memory from one device allocation, or a run of mapped pages in an address range.
  struct segment {
    std::uint64_t device = 0;     ///< the number of the device
    std::uint64_t address = 0;    ///< of the first byte
    std::size_t size = 0;         ///< bytes
    stream_id stream{};           ///< the stream on which its blocks are allocated
    bool large = false;           ///< whether it is of the large pool; otherwise of the small one
    pool_id pool{};               ///< the private pool that owns it
    bool expandable = false;      ///< whether it is mapped pages of a range
    std::uint32_t stack = 0;      ///< call stack of the acquisition
    std::vector<block> blocks{};  ///< in the order of addresses; they cover the segment

    /// Adds up the blocks, except free ones.
    [[nodiscard]] byte_counts count_bytes() const noexcept {
      byte_counts counts;
      for (const block& b : blocks) {
        if (!b.active()) continue;
        if (b.is == block::state::live) counts.allocated += b.size;
        counts.active += b.size;
        counts.requested += b.requested;
      }
      return counts;
    }
    bool operator==(const segment&) const = default;
  };

  /// The actions of allocator_event in their order, then those that only PyTorch records.
  enum class action : unsigned char {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    sleep,          ///< memory under live blocks went back to the device
    wake,           ///< it came back
    range_reserve,  ///< addresses were reserved, without memory
    range_release,
    refused,   ///< the device refused `size` bytes
    oom,       ///< an allocation failed; has `device_free` and no address
    snapshot,  ///< a snapshot was taken; `size` is the bytes active then
    annotate,  ///< the user labelled a live block
    other
  };
  /// An event of a trace.
  struct entry {
    action what = action::other;  ///< what happened
    std::uint32_t stack = 0;      ///< number in `stacks` of the call that caused it; 0 if unknown
    std::uint64_t address = 0;    ///< of the block, the segment or the pages; 0 for oom
    std::size_t size = 0;         ///< bytes requested, acquired or mapped
    std::size_t block = 0;        ///< bytes of the block that serves a request; 0 if unknown
    stream_id stream{};           ///< of the request; otherwise that of the segment
    std::uint64_t time_us = 0;    ///< microseconds since an unspecified time; 0 in old snapshots
    std::size_t device_free = 0;  ///< bytes that the device reported free when an allocation failed
    pool_id pool{};               ///< the private pool that it is about
    std::string label{};          ///< the user's text, `user_metadata` in PyTorch
    bool operator==(const entry&) const = default;
  };

  /// The beginning or end of an interval that the user named, such as an optimizer step.
  struct annotation {
    std::string name{};         ///< as the user wrote it
    bool begins = false;        ///< false: ends
    std::uint64_t device = 0;   ///< the number of the device
    std::uint64_t time_us = 0;  ///< microseconds, on the clock of the traces
    bool operator==(const annotation&) const = default;
  };

  /// The allocator settings that affect its decisions.
  struct settings {
    std::string conf;                         ///< PYTORCH_CUDA_ALLOC_CONF
    std::string recipe;                       ///< the recipe's name; empty in PyTorch's own snapshots
    std::size_t max_split_size = unlimited;   ///< bytes from which a block is oversize
    double garbage_collection_threshold = 0;  ///< a fraction of the limit; 0 if it is off
    bool expandable_segments = false;         ///< whether pages are mapped into ranges
    /// Steps between two powers of two, by size, as in divisions; 0 for none.
    std::uint32_t roundup_power2_divisions[16] = {};
    bool operator==(const settings&) const = default;
  };

  std::string name;                               ///< for reports, for example that of the file
  std::vector<segment> segments;                  ///< sorted by device, then address
  std::vector<std::vector<entry>> traces;         ///< one per device, oldest entry first
  std::vector<annotation> annotations;            ///< of all devices
  settings configured;                            ///< the settings of the allocator that was recorded
  call_stacks stacks;                             ///< the call stacks of blocks and entries
  std::vector<segment> host_segments{};           ///< pinned host memory, as PyTorch reports it
  std::vector<std::vector<entry>> host_traces{};  ///< the history of pinned host memory
  /// The entries that a full history dropped before the first of each device's trace. Empty if their number is unknown, as in
  /// PyTorch's own snapshots.
  std::vector<std::uint64_t> dropped{};

  /// The segments of one device.
  [[nodiscard]] std::span<const segment> segments_of(std::size_t device) const noexcept {
    const auto before = [](const segment& s, std::size_t number) { return s.device < number; };
    const auto* const end = segments.data() + segments.size();
    const auto* const begin = std::lower_bound(segments.data(), end, device, before);
    return {begin, std::lower_bound(begin, end, device + 1, before)};
  }
  /// The history of one device; empty if there is none.
  [[nodiscard]] std::span<const entry> trace_of(std::size_t device) const noexcept {
    return device < traces.size() ? std::span<const entry>(traces[device]) : std::span<const entry>();
  }
  /// One more than the largest device number.
  [[nodiscard]] std::size_t devices() const noexcept {
    const std::size_t last = segments.empty() ? 0 : static_cast<std::size_t>(segments.back().device) + 1;
    return (std::max)(last, traces.size());
  }
  bool operator==(const snapshot&) const = default;
};

}  // namespace tessera::inline v0_1::observe

// A namespace of its own, because g++ leaves out the function's namespace.

namespace tessera::inline v0_1::detail::spelling {

/// The signature of this function, which has the name of a type in it.
template <typename T>
[[nodiscard]] constexpr std::string_view signature() noexcept {
#if defined(_MSC_VER) && !defined(__clang__)
  return __FUNCSIG__;
#else
  return __PRETTY_FUNCTION__;
#endif
}

/// The part of the signature that is the name of a type.
template <typename T>
[[nodiscard]] constexpr std::string_view in_signature() noexcept {
  constexpr std::string_view known = signature<double>();
  constexpr std::string_view type = "double";
  std::string_view found = signature<T>();
  found.remove_prefix(known.find(type));
  found.remove_suffix(known.size() - known.find(type) - type.size());
  return found;
}

/// Erases each `part` that stands behind `before`, if a name begins with `before`.
inline void erase_behind(std::string& text, std::string_view before, std::string_view part) {
  constexpr std::string_view inside = ":_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::string both = std::string(before) + std::string(part);
  for (std::size_t at = 0; (at = text.find(both, at)) != std::string::npos; at += before.size() + 1) {
    if (at == 0 || inside.find(text[at - 1]) == std::string_view::npos)
      text.erase(at + before.size(), part.size());
  }
}

/// The C++ spelling of a type, without the namespace of the version: a name that a file stores outlives the version.
template <typename T>
[[nodiscard]] std::string of_type() {
  constexpr std::string_view library = "tessera::";
  std::string_view version = in_signature<block_view>();  // tessera::v0_1::block_view; clang leaves out v0_1
  version.remove_prefix(version.find(library) + library.size());
  version.remove_suffix(std::string_view("block_view").size());
  std::string name(in_signature<T>());
  if (!version.empty()) erase_behind(name, library, version);
#if defined(_MSC_VER) && !defined(__clang__)
  for (const std::string_view key : {"struct ", "class ", "enum "}) erase_behind(name, "", key);
#endif
  return name;
}

}  // namespace tessera::inline v0_1::detail::spelling

namespace tessera::inline v0_1::detail {

/// PyTorch's names of its actions.
inline constexpr std::pair<observe::snapshot::action, std::string_view> pytorch_actions[] = {
    {observe::snapshot::action::alloc, "alloc"},
    {observe::snapshot::action::free_requested, "free_requested"},
    {observe::snapshot::action::free_completed, "free_completed"},
    {observe::snapshot::action::segment_alloc, "segment_alloc"},
    {observe::snapshot::action::segment_free, "segment_free"},
    {observe::snapshot::action::segment_map, "segment_map"},
    {observe::snapshot::action::segment_unmap, "segment_unmap"},
    {observe::snapshot::action::oom, "oom"},
    {observe::snapshot::action::snapshot, "snapshot"},
    {observe::snapshot::action::annotate, "annotate"}};

/// Returns PyTorch's name of an action; empty if PyTorch has no such action.
[[nodiscard]] constexpr std::string_view pytorch_name(observe::snapshot::action what) noexcept {
  for (const auto& [action, name] : pytorch_actions) {
    if (action == what) return name;
  }
  return {};
}

/// An observer that stores events and can iterate over them, such as history.
template <typename S>
concept event_store =
    allocator_observer<S> && requires(const S& observer) { observer.for_each(return_argument{}); };

/// The name of a recipe. A recipe of a front end, such as that of a guarded, is named without `detail::`. A recipe with
/// settings has the name of the recipe without them.
template <typename Recipe>
[[nodiscard]] std::string recipe_name() {
  if constexpr (requires { typename Recipe::base; }) return recipe_name<typename Recipe::base>();
  std::string name = spelling::of_type<Recipe>();
  constexpr std::string_view hidden = "detail::";
  if (name.starts_with("tessera::detail::")) name.erase(name.find(hidden), hidden.size());
  return name;
}

/// Builds a snapshot from one or more allocators.
class snapshot_builder {
 public:
  template <typename Allocator>
  void add_allocator(Allocator& allocator, std::size_t device) {
    const bool one_pool = number_of_pools(allocator.policies()) == 1;
    observe::for_each_block(allocator, [&](const segment_view& s, const block_view& b) {
      add_block(s, s.pool > 0 || one_pool, b, device);
    });
    if (result_.configured.recipe.empty()) add_settings(allocator.policies());
    add_history_of(allocator, device);
  }
  /// Adds the history of an allocator; the first one if it has several.
  template <typename Allocator>
  void add_history_of(Allocator& allocator, std::size_t device) {
    bool is_first = true;
    allocator.for_each_observer([&](auto& observer) {
      if constexpr (event_store<std::remove_cvref_t<decltype(observer)>>) {
        if (std::exchange(is_first, false)) add_history(observer, device);
      }
    });
  }

  /// Adds the memory of a plan.
  template <typename Plan>
  void add_plan(const Plan& plan, std::size_t device) {
    plan.for_each_block([&](const segment_view& s, const block_view& b) { add_block(s, true, b, device); });
  }

  [[nodiscard]] bool has_history() const noexcept { return has_history_; }

  [[nodiscard]] observe::snapshot finish() && {
    const auto key = [](const observe::snapshot::segment& s) { return std::pair(s.device, s.address); };
    std::sort(result_.segments.begin(), result_.segments.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    drop_given_again();
    if (!result_.segments.empty() && result_.traces.size() <= result_.segments.back().device)
      result_.traces.resize(static_cast<std::size_t>(result_.segments.back().device) + 1);
    return std::move(result_);
  }

 private:
  /// Copies the events that an observer stores, and sends it a `snapshot` event.
  template <event_store Observer>
  void add_history(Observer& observer, std::size_t device) {
    has_history_ = true;
    if (result_.traces.size() <= device) result_.traces.resize(device + 1);
    auto& trace = result_.traces[device];
    const std::vector<std::uint32_t> stacks = add_stacks(observer, device);
    observer.for_each([&](const auto& entry) {
      trace.push_back(entry_of(entry.event, entry.time_us));
      if constexpr (requires { entry.stack; }) {
        if (entry.stack < stacks.size()) trace.back().stack = stacks[entry.stack];
      }
      trace.back().label = label_of(observer, entry);
    });
    drop_released(trace, device);
    if constexpr (requires { observer.dropped(); }) {
      result_.dropped.resize((std::max)(result_.dropped.size(), device + 1));
      result_.dropped[device] = observer.dropped();
    }
    std::size_t active = 0;
    for (const observe::snapshot::segment& s : result_.segments)
      active += s.device == device ? s.count_bytes().active : 0;
    observer.on(allocator_event{.what = allocator_event::action::snapshot, .bytes = active});
  }
  /// Drops the segments that the device is taking back now: the history has their release already.
  void drop_released(std::span<const observe::snapshot::entry> trace, std::size_t device) {
    std::map<std::uint64_t, bool> is_gone;  // by address
    for (const observe::snapshot::entry& e : trace) {
      if (e.what == observe::snapshot::action::segment_free) is_gone[e.address] = true;
      if (e.what == observe::snapshot::action::segment_alloc) is_gone[e.address] = false;
    }
    std::erase_if(result_.segments, [&](const observe::snapshot::segment& s) {
      const auto found = is_gone.find(s.address);
      return s.device == device && !s.expandable && found != is_gone.end() && found->second;
    });
  }
  /// The label of an entry, or none if the observer keeps no labels.
  template <typename Observer, typename Entry>
  [[nodiscard]] static std::string_view label_of(const Observer& observer, const Entry& entry) {
    if constexpr (requires { observer.label_of(entry); })
      return observer.label_of(entry);
    else
      return {};
  }
  /// Adds the call stacks of an observer, and sets those of the blocks of a device.
  ///   Returns:  for each number of a stack in the observer, its number in the snapshot
  template <typename Observer>
  [[nodiscard]] std::vector<std::uint32_t> add_stacks(const Observer& observer, std::size_t device) {
    if constexpr (requires { observer.stack_of(0); }) {
      std::vector<std::uint32_t> numbers(1);
      std::map<observe::snapshot::call_stacks::frame, std::uint32_t> frames;
      std::map<std::string, std::uint32_t> texts;
      const auto text = [&](const std::string& of) {
        std::uint32_t& number = texts[of];
        if (number == 0 && !of.empty()) number = result_.stacks.append_text(of);
        return number;
      };
      observer.for_each_stack([&](std::uint32_t number, const auto& calls) {
        std::vector<std::uint32_t> positions;
        for (const auto& call : calls) {
          const observe::snapshot::call_stacks::frame f{text(call.file), text(call.function), call.line};
          const auto [at, is_new] = frames.emplace(f, 0);
          if (is_new) at->second = result_.stacks.append_frame(f);
          positions.push_back(at->second);
        }
        if (numbers.size() <= number) numbers.resize(number + 1);
        numbers[number] = result_.stacks.append_stack(positions);
      });
      for (observe::snapshot::segment& s : result_.segments) {
        if (s.device != device) continue;
        for (observe::snapshot::block& b : s.blocks) {
          if (b.active()) b.stack = numbers[observer.block_at(static_cast<std::uintptr_t>(b.address)).stack];
        }
      }
      return numbers;
    } else {
      return {};
    }
  }
  template <typename Recipe>
  [[nodiscard]] static constexpr std::size_t number_of_pools(const recipe::policies<Recipe>&) noexcept {
    return Recipe::pools::count;
  }
  /// Drops segments whose memory the device has already given again, to another thread. Their release has not returned
  /// yet, so the allocator still has them. They overlap the new segment, and have no live block.
  void drop_given_again() {
    std::vector<observe::snapshot::segment> kept;
    for (observe::snapshot::segment& next : result_.segments) {
      const bool overlaps = !kept.empty() && kept.back().device == next.device &&
                            next.address - kept.back().address < kept.back().size;
      if (overlaps && next.count_bytes().active == 0) continue;
      if (overlaps && kept.back().count_bytes().active == 0) kept.pop_back();
      kept.push_back(std::move(next));
    }
    result_.segments = std::move(kept);
  }

  void add_block(const segment_view& s, bool is_large, const block_view& b, std::size_t device) {
    // Not a comparison with the segment before: that may have the same address while it is being released.
    if (b.address == s.address) {
      result_.segments.push_back({.device = device,
                                  .address = s.address,
                                  .size = s.bytes,
                                  .stream = s.stream,
                                  .large = is_large,
                                  .pool = {0, s.private_pool.number},
                                  .expandable = s.in_range});
    }
    result_.segments.back().blocks.push_back({b.address, b.bytes, b.requested, b.is});
  }
  [[nodiscard]] static observe::snapshot::entry entry_of(const allocator_event& e, std::uint64_t time_us) {
    static_assert(int{static_cast<unsigned char>(allocator_event::action::snapshot)} ==
                  int{static_cast<unsigned char>(observe::snapshot::action::snapshot)});
    observe::snapshot::entry entry{.what = static_cast<observe::snapshot::action>(e.what),
                                   .size = e.bytes,
                                   .stream = e.stream,
                                   .time_us = time_us,
                                   .pool = {0, e.private_pool.number}};
    using action = allocator_event::action;
    const bool is_oom = e.what == action::oom;
    if (is_oom) {
      entry.device_free = e.address;
    } else {
      entry.address = e.address;
    }
    const bool is_request =
        e.what == action::alloc || e.what == action::free_requested || e.what == action::free_completed;
    if (is_request || is_oom) entry.block = e.block;
    return entry;
  }

  /// Converts the policies to PyTorch's settings. Omits settings that PyTorch does not have.
  template <typename Recipe>
  void add_settings(const recipe::policies<Recipe>& chosen) {
    observe::snapshot::settings& to = result_.configured;
    to.recipe = recipe_name<Recipe>();
    to.max_split_size = chosen.split.oversize_from();
    to.expandable_segments = Recipe::growth::backend::has_ranges;
    if constexpr (requires {
                    { chosen.eviction.threshold } -> std::convertible_to<fraction>;
                  })
      to.garbage_collection_threshold = fraction(chosen.eviction.threshold).value();
    if constexpr (requires { chosen.rounding.table.get().in_slot; }) {
      const auto& table = chosen.rounding.table.get().in_slot;
      std::copy(std::begin(table), std::end(table), std::begin(to.roundup_power2_divisions));
    }
  }

  observe::snapshot result_;
  bool has_history_ = false;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Takes a snapshot of any allocator: its segments and blocks, and the history if it has a `history`
/// observer.
///
/// Adjacent mapped pages form one segment. The history ends at the state, so memory_viz can replay it backward. `dropped` counts
/// the events that a full history dropped, without those that history::clear() removed. The arenas of a per_stream are read
/// one after the other. Its snapshot is consistent only if no other thread uses it meanwhile.
///
///     #include <tessera/concurrent/locked.hpp>
///     #include <tessera/extension/observer.hpp>
///     #include <tessera/observe/history.hpp>
///     using watch = tessera::extension::observer<tessera::observe::history<>>;
///     using watched = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch>;
///     tessera::concurrent::locked<watched> allocator;
///     const tessera::observe::snapshot seen = tessera::observe::take_snapshot(allocator);
///
/// Then the allocator's history gets a `snapshot` event, as in PyTorch.
///
///   Throws:  std::bad_alloc
///   Cost:    linear in the blocks and in the history
template <typename Allocator>
[[nodiscard]] snapshot take_snapshot(Allocator& allocator) {
  detail::snapshot_builder builder;
  allocator.for_each_device([&](auto& front, std::size_t device) {
    detail::visit_plan_of(front, [&](const auto& plan) { builder.add_plan(plan, device); });
    front.for_each_allocator([&](auto& one) { builder.add_allocator(one, device); });
  });
  if (!builder.has_history()) {
    allocator.for_each_device(
        [&](auto& front, std::size_t device) { builder.add_history_of(front, device); });
  }
  return std::move(builder).finish();
}

}  // namespace tessera::inline v0_1::observe
