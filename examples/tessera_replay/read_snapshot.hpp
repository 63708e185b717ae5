// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>

#include "pickle.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;
using tessera::trace::detail::max_live;

/// Adds to a table of call stacks, and finds equal entries.
///   Cost:  n log n; no hash map, since hostile files could cause collisions
class call_stack_builder {
 public:
  explicit call_stack_builder(observe::snapshot::call_stacks& to)
      : to_(to), texts_(by_content{&to}), frames_(by_content{&to}), stacks_(by_content{&to}) {
    for (std::uint32_t i = 0; i < to.texts(); ++i) texts_.insert(text_number{i + 1});
    for (std::uint32_t i = 0; i < to.frames(); ++i) frames_.insert(frame_place{i});
    for (std::uint32_t i = 0; i < to.stacks(); ++i) stacks_.insert(stack_number{i + 1});
  }
  call_stack_builder(const call_stack_builder&) = delete;
  call_stack_builder& operator=(const call_stack_builder&) = delete;

  /// Returns the number of a text; 0 for an empty one.
  std::uint32_t add_text(std::string_view text) {
    if (text.empty()) return 0;
    if (const auto found = texts_.find(text); found != texts_.end()) return found->number;
    const std::uint32_t number = to_.append_text(text);
    texts_.insert(text_number{number});
    return number;
  }
  /// Returns the position of a frame.
  std::uint32_t add_frame(const observe::snapshot::call_stacks::frame& frame) {
    if (const auto found = frames_.find(frame); found != frames_.end()) return found->place;
    const std::uint32_t place = to_.append_frame(frame);
    frames_.insert(frame_place{place});
    return place;
  }
  /// Returns the number of a stack, given by the positions of its frames, innermost first; 0 for an empty
  /// one.
  std::uint32_t add_stack(std::span<const std::uint32_t> frames) {
    if (frames.empty()) return 0;
    if (const auto found = stacks_.find(frames); found != stacks_.end()) return found->number;
    const std::uint32_t number = to_.append_stack(frames);
    stacks_.insert(stack_number{number});
    return number;
  }

 private:
  struct text_number {
    std::uint32_t number;
  };
  struct frame_place {
    std::uint32_t place;
  };
  struct stack_number {
    std::uint32_t number;
  };
  /// Orders and finds entries by their contents.
  struct by_content {
    using is_transparent = void;
    const observe::snapshot::call_stacks* of;

    [[nodiscard]] std::string_view content(text_number t) const noexcept { return of->text(t.number); }
    [[nodiscard]] std::string_view content(std::string_view t) const noexcept { return t; }
    [[nodiscard]] observe::snapshot::call_stacks::frame content(frame_place f) const noexcept {
      return of->frame_at(f.place);
    }
    [[nodiscard]] observe::snapshot::call_stacks::frame content(
        const observe::snapshot::call_stacks::frame& f) const noexcept {
      return f;
    }
    [[nodiscard]] std::span<const std::uint32_t> content(stack_number s) const noexcept {
      return of->stack(s.number);
    }
    [[nodiscard]] std::span<const std::uint32_t> content(std::span<const std::uint32_t> s) const noexcept {
      return s;
    }
    [[nodiscard]] static bool less(std::span<const std::uint32_t> a,
                                   std::span<const std::uint32_t> b) noexcept {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
    template <typename T>
    [[nodiscard]] static bool less(const T& a, const T& b) noexcept {
      return a < b;
    }
    template <typename A, typename B>
    [[nodiscard]] bool operator()(const A& a, const B& b) const noexcept {
      return less(content(a), content(b));
    }
  };

  observe::snapshot::call_stacks& to_;
  std::set<text_number, by_content> texts_;
  std::set<frame_place, by_content> frames_;
  std::set<stack_number, by_content> stacks_;
};

/// Reads the call stacks in a pickle: lists of dicts with 'filename', 'line' and 'name'. Shared values are
/// read once; values of other types are ignored.
class call_stack_reader {
 public:
  call_stack_reader(const pickle& source, pickled_fields& in, observe::snapshot::call_stacks& to)
      : source_(source), in_(in), made_(to), table_(to) {}

  /// Returns the number of the stack in a dict, under 'frames' or, in old snapshots, in the first entry of
  /// 'history'. 0 if there is none.
  [[nodiscard]] std::uint32_t stack_of(const pickled& dict) {
    std::uint32_t list = source_.find_number(dict, "frames");
    const pickled* const history = list == pickle::nowhere ? source_.find(dict, "history") : nullptr;
    if (history != nullptr && history->is == pickled::kind::list && !history->items.empty())
      list = source_.find_number(source_[history->items[0]], "frames");
    if (list == pickle::nowhere) return 0;
    const pickled& frames = source_[list];
    if (frames.is != pickled::kind::list || frames.items.empty() || !begin(dict)) return 0;
    if (done_[list] == 0) done_[list] = 1 + read_stack(frames);
    return done_[list] - 1;
  }

 private:
  // Bytes per entry of the table and its index, while they grow.
  static constexpr std::size_t of_stack = 64, of_frame = 80, of_text = 112;

  /// Allocates the memo of values.
  ///   Returns:  false if the memory limit is exceeded
  bool begin(const pickled& at) {
    if (!done_.empty()) return true;
    if (!in_.charge(at, source_.size(), sizeof(std::uint32_t))) return false;
    done_.resize(source_.size());
    return true;
  }
  [[nodiscard]] std::uint32_t read_stack(const pickled& list) {
    calls_.clear();
    for (const std::uint32_t item : list.items) {
      if (source_[item].is != pickled::kind::dict) continue;
      if (done_[item] == 0) done_[item] = 1 + read_frame(source_[item]);
      if (!in_.good()) return 0;
      calls_.push_back(done_[item] - 1);
    }
    const std::size_t before = made_.stacks();
    const std::uint32_t number = table_.add_stack(calls_);
    if (made_.stacks() > before) in_.charge(list, of_stack + 3 * sizeof(std::uint32_t) * calls_.size(), 1);
    return number;
  }
  [[nodiscard]] std::uint32_t read_frame(const pickled& dict) {
    const std::size_t before = made_.frames();
    const std::uint32_t file = read_text(dict, "filename");
    const std::uint32_t function = read_text(dict, "name");
    // PyTorch writes -1, or 2^64 - 1, for an unknown line.
    const pickled* const number = source_.find(dict, "line");
    const bool has_line = number != nullptr && number->is == pickled::kind::integer;
    const auto line = static_cast<std::uint64_t>(has_line ? number->integer : 0);
    const std::uint32_t place = table_.add_frame({file, function, line});
    if (made_.frames() > before) in_.charge(dict, of_frame, 1);
    return place;
  }
  [[nodiscard]] std::uint32_t read_text(const pickled& dict, std::string_view key) {
    const std::uint32_t at = source_.find_number(dict, key);
    if (at == pickle::nowhere || source_[at].is != pickled::kind::text) return 0;
    if (done_[at] == 0) {
      const std::size_t before = made_.texts();
      done_[at] = 1 + table_.add_text(source_[at].text);
      if (made_.texts() > before) in_.charge(dict, of_text + source_[at].text.size(), 1);
    }
    return done_[at] - 1;
  }

  const pickle& source_;
  pickled_fields& in_;
  observe::snapshot::call_stacks& made_;
  call_stack_builder table_;
  std::vector<std::uint32_t> done_;   // by value of the pickle: its number plus 1, or 0 if not read yet
  std::vector<std::uint32_t> calls_;  // of the stack being read
};

class snapshot_reader {
 public:
  snapshot_reader(const pickle& source, std::string name)
      : source_(source), in_(source), stacks_(source, in_, out_.stacks) {
    out_.name = std::move(name);
  }

  [[nodiscard]] read_result<observe::snapshot> read() {
    const pickled& root = source_.root();
    const bool state_only = root.is == kind::list;
    if (!looks_like_snapshot(root))
      in_.fail(
          root,
          "the pickle is no memory snapshot of PyTorch, which is a dict with 'segments' and 'device_traces', "
          "or a list of segments");
    const pickled* const segments = state_only ? &root : in_.required(root, "segments", kind::list);
    const pickled* const traces = state_only ? nullptr : in_.required(root, "device_traces", kind::list);
    // Segments exist twice while they are sorted.
    if (in_.good() &&
        in_.charge(*segments, segments->items.size(), 2 * sizeof(observe::snapshot::segment) + 16)) {
      out_.segments.reserve(segments->items.size());
      where_.reserve(segments->items.size());
    }
    for (std::size_t i = 0; in_.good() && i < segments->items.size(); ++i)
      read_segment(source_[segments->items[i]], out_.segments, true);
    if (in_.good() && traces != nullptr &&
        in_.charge(*traces, traces->items.size(), sizeof(std::vector<observe::snapshot::entry>)))
      out_.traces.reserve(traces->items.size());
    for (std::size_t i = 0; traces != nullptr && i < traces->items.size() && in_.good(); ++i)
      read_trace(source_[traces->items[i]], out_.traces);
    if (const pickled* given = source_.find(root, "allocator_settings"); given != nullptr && in_.good())
      read_settings(*given);
    const pickled* const marks = source_.find(root, "external_annotations");
    if (marks != nullptr && in_.good() &&
        in_.charge(*marks, marks->items.size(), sizeof(observe::snapshot::annotation))) {
      out_.annotations.reserve(marks->items.size());
      for (std::size_t i = 0; i < marks->items.size() && in_.good(); ++i)
        read_annotation(source_[marks->items[i]]);
    }
    const pickled* const dropped = source_.find(root, "dropped_trace_entries");
    if (dropped != nullptr && in_.good() &&
        in_.charge(*dropped, dropped->items.size(), sizeof(std::uint64_t))) {
      for (const std::uint32_t count : dropped->items)
        out_.dropped.push_back(in_.natural(&source_[count], "dropped_trace_entries"));
    }
    if (in_.good()) check_order();
    if (in_.good()) read_host_memory(root);
    if (auto error = in_.error(out_.name)) return std::move(*error);
    return std::move(out_);
  }

 private:
  using kind = pickled::kind;

  [[nodiscard]] bool looks_like_snapshot(const pickled& root) const noexcept {
    if (root.is == kind::list) {
      return root.items.empty() || source_.find(source_[root.items[0]], "total_size") != nullptr;
    }
    return source_.find(root, "segments") != nullptr && source_.find(root, "device_traces") != nullptr;
  }

  /// Reads a stream handle. Some are negative, such as -1.
  [[nodiscard]] stream_id stream(const pickled& dict) {
    const pickled* const found = in_.required(dict, "stream", kind::integer);
    return stream_id(found != nullptr ? static_cast<std::uint64_t>(found->integer) : 0);
  }

  [[nodiscard]] bool is_pool(const pickled& list) const noexcept {
    const auto is_natural = [this](std::uint32_t index) {
      return source_[index].is == kind::integer && source_[index].integer >= 0;
    };
    return list.is == kind::list && list.items.size() == 2 && is_natural(list.items[0]) &&
           is_natural(list.items[1]);
  }
  [[nodiscard]] observe::snapshot::pool_id pool(const pickled& list) const noexcept {
    return {static_cast<std::uint64_t>(source_[list.items[0]].integer),
            static_cast<std::uint64_t>(source_[list.items[1]].integer)};
  }

  /// Reads pinned host memory in PyTorch's format of 2026. Ignores other formats, since no decision depends
  /// on it.
  void read_host_memory(const pickled& root) {
    const auto list_of = [&](std::string_view key) {
      const pickled* const found = source_.find(root, key);
      return found != nullptr && found->is == kind::list ? std::span<const std::uint32_t>(found->items)
                                                         : std::span<const std::uint32_t>();
    };
    for (const std::uint32_t item : list_of("host_segments")) {
      if (!in_.good() || !in_.charge(source_[item], 1, 2 * sizeof(observe::snapshot::segment))) break;
      read_segment(source_[item], out_.host_segments, false);
    }
    const auto traces = list_of("host_traces");
    const bool is_one = !traces.empty() && source_[traces[0]].is == kind::dict;
    if (is_one) read_trace(*source_.find(root, "host_traces"), out_.host_traces);
    for (const std::uint32_t item : traces) {
      if (is_one || !in_.good() ||
          !in_.charge(source_[item], 1, 2 * sizeof(std::vector<observe::snapshot::entry>)))
        break;
      read_trace(source_[item], out_.host_traces);
    }
    if (in_.good()) return;
    in_.clear_error();
    out_.host_segments.clear();
    out_.host_traces.clear();
  }

  void read_segment(const pickled& dict, std::vector<observe::snapshot::segment>& to, bool on_device) {
    if (!in_.charge(dict)) return;
    observe::snapshot::segment s;
    s.address = in_.address(dict, "address");
    s.size = in_.bytes(dict, "total_size");
    s.stream = stream(dict);
    if (on_device) s.device = device_of(dict);
    s.stack = stacks_.stack_of(dict);
    s.large = in_.text(dict, "segment_type") == "large";
    if (const pickled* flag = in_.optional(dict, "is_expandable", kind::boolean))
      s.expandable = flag->integer != 0;
    if (const pickled* id = in_.optional(dict, "segment_pool_id", kind::list)) {
      if (!is_pool(*id)) return in_.fail(*id, "'segment_pool_id' is not a pair of integers from 0 on");
      s.pool = pool(*id);
    }
    const pickled* const blocks = in_.required(dict, "blocks", kind::list);
    if (blocks == nullptr || s.address > (std::numeric_limits<std::uint64_t>::max)() - s.size)
      return in_.fail(dict, "the segment wraps around");
    std::uint64_t at = s.address;
    if (!in_.charge(*blocks, blocks->items.size(), sizeof(observe::snapshot::block))) return;
    s.blocks.reserve(blocks->items.size());
    for (std::uint32_t index : blocks->items) {
      const pickled& one = source_[index];
      if (!in_.charge(one)) return;
      observe::snapshot::block b;
      b.address = at;
      b.size = in_.bytes(one, "size");
      b.is = state_of(in_.text(one, "state"));
      if (const pickled* requested = in_.optional(one, "requested_size", kind::integer))
        b.requested =
            (std::min)(static_cast<std::size_t>(in_.natural(requested, "requested_size")), max_live);
      b.stack = stacks_.stack_of(one);
      if (!in_.good()) return;
      if (b.size == 0 || b.size > s.size - (at - s.address))
        return in_.fail(one, "the blocks do not add up to 'total_size'");
      if (const pickled* address = in_.optional(one, "address", kind::integer);
          address != nullptr && in_.natural(address, "address") != at) {
        return in_.fail(one, "a block's address does not follow from those before it");
      }
      at += b.size;
      s.blocks.push_back(b);
    }
    if (at - s.address != s.size || s.size == 0)
      return in_.fail(dict, "the blocks do not add up to 'total_size'");
    if (on_device) where_.push_back(dict.at);
    to.push_back(std::move(s));
  }

  [[nodiscard]] std::uint64_t device_of(const pickled& dict) {
    const pickled* const device = in_.optional(dict, "device", kind::integer);
    const std::uint64_t number = in_.natural(device, "device");
    if (number >= max_devices)
      in_.fail(*device, "'device' is " + std::to_string(number) + "; less than 65536 are read");
    return number;
  }

  void read_trace(const pickled& list, std::vector<std::vector<observe::snapshot::entry>>& to) {
    if (list.is != kind::list) return in_.fail(list, "a device's trace is not a list");
    auto& entries = to.emplace_back();
    if (!in_.charge(list, list.items.size(), sizeof(observe::snapshot::entry))) return;
    entries.reserve(list.items.size());
    for (std::uint32_t index : list.items) {
      const pickled& dict = source_[index];
      if (!in_.charge(dict)) return;
      observe::snapshot::entry e;
      e.what = action_of(in_.text(dict, "action"));
      if (!in_.good()) return;
      if (e.what != observe::snapshot::action::other) read_entry(dict, e);
      if (!in_.good()) return;
      entries.push_back(std::move(e));
    }
  }
  void read_entry(const pickled& dict, observe::snapshot::entry& e) {
    using action = observe::snapshot::action;
    const bool placed = e.what != action::oom && e.what != action::snapshot && e.what != action::annotate;
    if (placed) {
      e.address = in_.address(dict, "addr");
      e.size = in_.bytes(dict, "size");
      e.stream = stream(dict);
    } else {
      if (e.what == action::annotate) e.address = in_.aside(dict, "addr");
      e.size = static_cast<std::size_t>(in_.aside(dict, "size"));
      e.stream = stream_id(in_.aside(dict, "stream"));
      e.device_free = static_cast<std::size_t>(in_.aside(dict, "device_free"));
    }
    e.block = static_cast<std::size_t>(in_.aside(dict, "block_size"));
    e.time_us = in_.aside(dict, "time_us");
    e.stack = stacks_.stack_of(dict);
    if (const pickled* id = source_.find(dict, "pool_id"); id != nullptr && is_pool(*id)) e.pool = pool(*id);
    if (const pickled* label = source_.find(dict, "user_metadata");
        label != nullptr && label->is == kind::text && in_.charge(*label, label->text.size(), 1))
      e.label = label->text;
  }
  /// Reads an annotation; ignores one of another format.
  void read_annotation(const pickled& dict) {
    if (!in_.charge(dict)) return;
    const pickled* const name = source_.find(dict, "name");
    const pickled* const stage = source_.find(dict, "stage");
    if (name == nullptr || stage == nullptr || in_.aside(dict, "device") >= max_devices) return;
    if (!in_.charge(*name, name->text.size(), 1)) return;
    out_.annotations.push_back({.name = std::string(name->text),
                                .begins = stage->text == "START",
                                .device = in_.aside(dict, "device"),
                                .time_us = in_.aside(dict, "time_us")});
  }
  [[nodiscard]] static observe::snapshot::block::state state_of(std::string_view name) noexcept {
    using state = observe::snapshot::block::state;
    const bool pending = name == "active_pending_free" || name == "active_awaiting_free";
    return name == "inactive" ? state::free : pending ? state::pending : state::live;
  }
  [[nodiscard]] static observe::snapshot::action action_of(std::string_view name) noexcept {
    for (const auto& [action, known] : tessera::detail::pytorch_actions) {
      if (known == name) return action;
    }
    return observe::snapshot::action::other;
  }

  void read_settings(const pickled& dict) {
    auto& to = out_.configured;
    if (const pickled* conf = in_.optional(dict, "PYTORCH_CUDA_ALLOC_CONF", kind::text)) to.conf = conf->text;
    if (const pickled* recipe = source_.find(dict, "recipe")) to.recipe = recipe->text;
    if (const pickled* flag = source_.find(dict, "expandable_segments"))
      to.expandable_segments = flag->integer != 0;
    if (const pickled* split = in_.optional(dict, "max_split_size", kind::integer);
        split != nullptr && split->integer >= 0) {
      to.max_split_size = static_cast<std::size_t>(split->integer);
    }
    if (const pickled* threshold = in_.optional(dict, "garbage_collection_threshold", kind::real))
      to.garbage_collection_threshold = threshold->real;
    if (const pickled* table = in_.optional(dict, "roundup_power2_divisions", kind::dict)) {
      for (std::size_t slot = 0; slot < 16; ++slot) {
        const std::uint64_t parts = in_.natural(
            in_.optional(*table, std::to_string(1u << slot), kind::integer), "roundup_power2_divisions");
        const bool legal = parts <= 1u << 20 && (parts == 0 || std::has_single_bit(parts));
        if (!legal) return in_.fail(*table, "'roundup_power2_divisions' holds other than powers of two");
        to.roundup_power2_divisions[slot] = static_cast<std::uint32_t>(parts);
      }
    }
  }

  void check_order() {
    std::vector<std::size_t> order(out_.segments.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      const auto &x = out_.segments[a], &y = out_.segments[b];
      return std::pair(x.device, x.address) < std::pair(y.device, y.address);
    });
    std::vector<observe::snapshot::segment> sorted;
    sorted.reserve(order.size());
    for (std::size_t i : order) {
      observe::snapshot::segment& s = out_.segments[i];
      if (!sorted.empty() && sorted.back().device == s.device &&
          sorted.back().address + sorted.back().size > s.address)
        return in_.fail(where_[i], "two segments overlap");
      sorted.push_back(std::move(s));
    }
    out_.segments = std::move(sorted);
  }

  static constexpr std::uint64_t max_devices = 65536;  // written snapshots have a list for each device

  const pickle& source_;
  pickled_fields in_;
  observe::snapshot out_;
  call_stack_reader stacks_;
  std::vector<std::size_t> where_;
};

/// Reads a snapshot of any PyTorch version. Missing keys get neutral values.
///   Returns:  an error with its byte offset for wrong types, sizes that do not add up, or values that are
///             referenced so often that they would need more than 28 bytes per byte of file
///   Cost:     linear; at most 110 bytes of host memory per byte of file
[[nodiscard]] inline read_result<observe::snapshot> read_snapshot(std::string_view bytes,
                                                                  const std::string& name) {
  auto plain = read_pickle(bytes, name);
  if (auto* error = std::get_if<input_error>(&plain)) return std::move(*error);
  return snapshot_reader(std::get<pickle>(plain), name).read();
}

}  // namespace replay
