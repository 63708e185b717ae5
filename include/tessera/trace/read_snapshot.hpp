// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/pickle.hpp>
#include <tessera/trace/snapshot.hpp>

namespace tessera::trace {

class snapshot_reader {
 public:
  snapshot_reader(const pickle& source, std::string name) : source_(source) { out_.name = std::move(name); }

  [[nodiscard]] read_result<snapshot> read() {
    const pickled& root = source_.root();
    const bool state_only = root.is == kind::list;
    const pickled* const segments = state_only ? &root : required(root, "segments", kind::list);
    const pickled* const traces = state_only ? nullptr : required(root, "device_traces", kind::list);
    // Segments are twice in memory while they are put in order.
    if (good() && afford(*segments, segments->items.size(), 2 * sizeof(snapshot::segment) + 16)) {
      out_.segments.reserve(segments->items.size());
      where_.reserve(segments->items.size());
    }
    for (std::size_t i = 0; good() && i < segments->items.size(); ++i)
      read_segment(source_[segments->items[i]]);
    if (good() && traces != nullptr &&
        afford(*traces, traces->items.size(), sizeof(std::vector<snapshot::entry>)))
      out_.traces.reserve(traces->items.size());
    for (std::size_t i = 0; traces != nullptr && i < traces->items.size() && good(); ++i)
      read_trace(source_[traces->items[i]]);
    if (const pickled* given = source_.find(root, "allocator_settings"); given != nullptr && good())
      read_settings(*given);
    const pickled* const marks = source_.find(root, "external_annotations");
    if (marks != nullptr && good() && afford(*marks, marks->items.size(), sizeof(snapshot::annotation))) {
      out_.annotations.reserve(marks->items.size());
      for (std::size_t i = 0; i < marks->items.size() && good(); ++i)
        read_annotation(source_[marks->items[i]]);
    }
    if (good()) check_order();
    if (!good()) return input_error{out_.name + ": byte " + std::to_string(at_), rule_};
    return std::move(out_);
  }

 private:
  using kind = pickled::kind;

  [[nodiscard]] bool good() const noexcept { return rule_.empty(); }
  void fail(const pickled& at, std::string rule) {
    if (good()) at_ = at.at, rule_ = std::move(rule);
  }
  /// Books the memory that `count` of something take, so that a file which refers to the same things again and again
  /// is refused before they fill it.
  bool afford(const pickled& at, std::size_t count, std::size_t each) {
    if (count <= left_ / each) return left_ -= count * each, true;
    fail(at, "it refers to the same things so often that they would take more than " +
                 std::to_string(most_per_byte) + " bytes for each of the file's");
    return false;
  }
  /// The same for a dict that is looked through.
  bool afford(const pickled& dict) { return afford(dict, dict.items.size() + 1, 1); }
  [[nodiscard]] const pickled* optional(const pickled& dict, std::string_view key, kind wanted) {
    if (dict.is != kind::dict) fail(dict, "a dict is expected");
    const pickled* const found = source_.find(dict, key);
    if (found != nullptr && found->is != wanted)
      fail(*found, "'" + std::string(key) + "' has the wrong type");
    return good() ? found : nullptr;
  }
  [[nodiscard]] const pickled* required(const pickled& dict, std::string_view key, kind wanted) {
    const pickled* const found = optional(dict, key, wanted);
    if (found == nullptr) fail(dict, "'" + std::string(key) + "' is missing");
    return found;
  }
  [[nodiscard]] std::uint64_t natural(const pickled* value, std::string_view key) {
    if (value == nullptr) return 0;
    if (value->integer < 0) fail(*value, "'" + std::string(key) + "' is negative");
    return static_cast<std::uint64_t>(value->integer);
  }
  [[nodiscard]] std::uint64_t number(const pickled& dict, std::string_view key) {
    return natural(required(dict, key, kind::integer), key);
  }
  [[nodiscard]] std::size_t bytes(const pickled& dict, std::string_view key) {
    const std::uint64_t n = number(dict, key);
    if (n > max_request) fail(dict, "'" + std::string(key) + "' is " + above_max_request(n));
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] std::string_view text(const pickled& dict, std::string_view key) {
    const pickled* const found = required(dict, key, kind::text);
    return found != nullptr ? found->text : std::string_view{};
  }
  /// A stream's handle; -1 and other negative handles exist.
  [[nodiscard]] stream_id stream(const pickled& dict) {
    const pickled* const found = required(dict, "stream", kind::integer);
    return {found != nullptr ? static_cast<std::uint64_t>(found->integer) : 0};
  }

  [[nodiscard]] bool is_pool(const pickled& list) const noexcept {
    const auto is_natural = [this](std::uint32_t index) {
      return source_[index].is == kind::integer && source_[index].integer >= 0;
    };
    return list.is == kind::list && list.items.size() == 2 && is_natural(list.items[0]) &&
           is_natural(list.items[1]);
  }
  [[nodiscard]] snapshot::pool_id pool(const pickled& list) const noexcept {
    return {static_cast<std::uint64_t>(source_[list.items[0]].integer),
            static_cast<std::uint64_t>(source_[list.items[1]].integer)};
  }

  void read_segment(const pickled& dict) {
    if (!afford(dict)) return;
    snapshot::segment s;
    s.address = number(dict, "address");
    s.size = bytes(dict, "total_size");
    s.stream = stream(dict);
    const pickled* const device = optional(dict, "device", kind::integer);
    s.device = natural(device, "device");
    if (s.device >= most_devices)
      fail(*device, "'device' is " + std::to_string(s.device) + "; less than 65536 are read");
    s.large = text(dict, "segment_type") == "large";
    if (const pickled* flag = optional(dict, "is_expandable", kind::boolean))
      s.expandable = flag->integer != 0;
    if (const pickled* id = optional(dict, "segment_pool_id", kind::list)) {
      if (!is_pool(*id)) return fail(*id, "'segment_pool_id' is not a pair of integers from 0 on");
      s.pool = pool(*id);
    }
    const pickled* const blocks = required(dict, "blocks", kind::list);
    if (blocks == nullptr || s.address > (std::numeric_limits<std::uint64_t>::max)() - s.size)
      return fail(dict, "the segment wraps around");
    std::uint64_t at = s.address;
    if (!afford(*blocks, blocks->items.size(), sizeof(snapshot::block))) return;
    s.blocks.reserve(blocks->items.size());
    for (std::uint32_t index : blocks->items) {
      const pickled& one = source_[index];
      if (!afford(one)) return;
      snapshot::block b;
      b.address = at;
      b.size = bytes(one, "size");
      b.is = state_of(text(one, "state"));
      if (const pickled* requested = optional(one, "requested_size", kind::integer))
        b.requested = static_cast<std::size_t>(natural(requested, "requested_size"));
      if (!good()) return;
      if (b.size == 0 || b.size > s.size - (at - s.address))
        return fail(one, "the blocks do not add up to 'total_size'");
      if (const pickled* address = optional(one, "address", kind::integer);
          address != nullptr && natural(address, "address") != at) {
        return fail(one, "a block's address does not follow from those before it");
      }
      at += b.size;
      s.blocks.push_back(b);
    }
    if (at - s.address != s.size || s.size == 0)
      return fail(dict, "the blocks do not add up to 'total_size'");
    where_.push_back(dict.at);
    out_.segments.push_back(std::move(s));
  }

  void read_trace(const pickled& list) {
    if (list.is != kind::list) return fail(list, "a device's trace is not a list");
    auto& entries = out_.traces.emplace_back();
    if (!afford(list, list.items.size(), sizeof(snapshot::entry))) return;
    entries.reserve(list.items.size());
    for (std::uint32_t index : list.items) {
      const pickled& dict = source_[index];
      if (!afford(dict)) return;
      snapshot::entry e;
      e.what = action_of(text(dict, "action"));
      if (!good()) return;
      if (e.what != snapshot::action::other) read_entry(dict, e);
      if (!good()) return;
      entries.push_back(std::move(e));
    }
  }
  void read_entry(const pickled& dict, snapshot::entry& e) {
    const bool placed = e.what != snapshot::action::oom && e.what != snapshot::action::snapshot;
    if (placed) {
      e.address = number(dict, "addr");
      e.size = bytes(dict, "size");
      e.stream = stream(dict);
    } else {
      e.size = static_cast<std::size_t>(aside(dict, "size"));
      e.stream = {aside(dict, "stream")};
      e.device_free = static_cast<std::size_t>(aside(dict, "device_free"));
    }
    e.block = static_cast<std::size_t>(aside(dict, "block_size"));
    e.time_us = aside(dict, "time_us");
    if (const pickled* id = source_.find(dict, "pool_id"); id != nullptr && is_pool(*id)) e.pool = pool(*id);
    if (const pickled* label = source_.find(dict, "user_metadata");
        label != nullptr && label->is == kind::text && afford(*label, label->text.size(), 1))
      e.label = label->text;
  }
  /// A number that no decision depends on; 0 where it is missing or something else.
  [[nodiscard]] std::uint64_t aside(const pickled& dict, std::string_view key) const noexcept {
    const pickled* const found = source_.find(dict, key);
    const bool is_natural = found != nullptr && found->is == kind::integer && found->integer >= 0;
    return is_natural ? static_cast<std::uint64_t>(found->integer) : 0;
  }
  /// An annotation of another form is left out.
  void read_annotation(const pickled& dict) {
    if (!afford(dict)) return;
    const pickled* const name = source_.find(dict, "name");
    const pickled* const stage = source_.find(dict, "stage");
    if (name == nullptr || stage == nullptr || aside(dict, "device") >= most_devices) return;
    if (!afford(*name, name->text.size(), 1)) return;
    out_.annotations.push_back({.name = std::string(name->text),
                                .begins = stage->text == "START",
                                .device = aside(dict, "device"),
                                .time_us = aside(dict, "time_us")});
  }
  [[nodiscard]] static snapshot::block::state state_of(std::string_view name) noexcept {
    using state = snapshot::block::state;
    const bool pending = name == "active_pending_free" || name == "active_awaiting_free";
    return name == "inactive" ? state::free : pending ? state::pending : state::live;
  }
  [[nodiscard]] static snapshot::action action_of(std::string_view name) noexcept {
    const auto& names = snapshot_actions;
    const auto found = std::find(std::begin(names), std::end(names), name);
    return found == std::end(names) ? snapshot::action::other
                                    : static_cast<snapshot::action>(found - std::begin(names));
  }

  void read_settings(const pickled& dict) {
    auto& to = out_.configured;
    if (const pickled* conf = optional(dict, "PYTORCH_CUDA_ALLOC_CONF", kind::text)) to.conf = conf->text;
    if (const pickled* recipe = source_.find(dict, "recipe")) to.recipe = recipe->text;
    if (const pickled* flag = source_.find(dict, "expandable_segments"))
      to.expandable_segments = flag->integer != 0;
    if (const pickled* split = optional(dict, "max_split_size", kind::integer);
        split != nullptr && split->integer >= 0) {
      to.max_split_size = static_cast<std::size_t>(split->integer);
    }
    if (const pickled* threshold = optional(dict, "garbage_collection_threshold", kind::real))
      to.garbage_collection_threshold = threshold->real;
    if (const pickled* table = optional(dict, "roundup_power2_divisions", kind::dict)) {
      for (std::size_t slot = 0; slot < 16; ++slot) {
        const std::uint64_t parts =
            natural(optional(*table, std::to_string(1u << slot), kind::integer), "roundup_power2_divisions");
        const bool legal = parts <= 1u << 20 && (parts == 0 || is_power_of_two(parts));
        if (!legal) return fail(*table, "'roundup_power2_divisions' holds other than powers of two");
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
    std::vector<snapshot::segment> sorted;
    sorted.reserve(order.size());
    for (std::size_t i : order) {
      snapshot::segment& s = out_.segments[i];
      if (!sorted.empty() && sorted.back().device == s.device &&
          sorted.back().address + sorted.back().size > s.address) {
        at_ = where_[i];
        rule_ = "two segments overlap";
        return;
      }
      sorted.push_back(std::move(s));
    }
    out_.segments = std::move(sorted);
  }

  static constexpr std::uint64_t most_devices = 65536;  // since what is written has a list for each
  static constexpr std::size_t most_per_byte = 24;      // an empty trace is written in one

  const pickle& source_;
  snapshot out_;
  std::size_t left_ = saturating_add(operator""_KiB(64), source_.bytes() * most_per_byte);
  std::vector<std::size_t> where_;
  std::size_t at_ = 0;
  std::string rule_;
};

/// Reads a snapshot of any version; keys that older versions lack have their neutral value.
///   Returns:  an error with the byte offset where something has the wrong type, sizes do not add up, or references to the
///             same things would make more of it than 24 bytes for each of the file's
///   Cost:     linear in the bytes; 110 bytes of host memory for each of them at most
[[nodiscard]] inline read_result<snapshot> read_snapshot(std::string_view bytes, const std::string& name) {
  auto plain = read_pickle(bytes, name);
  if (auto* error = std::get_if<input_error>(&plain)) return std::move(*error);
  return snapshot_reader(std::get<pickle>(plain), name).read();
}

}  // namespace tessera::trace
