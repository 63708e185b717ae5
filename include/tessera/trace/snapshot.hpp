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

namespace tessera::trace {

/// A memory snapshot of PyTorch: how its allocator stood, and what led there.
///   Source:  torch.cuda.memory._dump_snapshot
struct snapshot {
  struct block {
    std::uint64_t address = 0;
    std::size_t size = 0;
    std::size_t requested = 0;
    bool active = false;  ///< allocated, or freed and still used by a stream
  };
  struct segment {
    std::uint64_t device = 0;
    std::uint64_t address = 0;
    std::size_t size = 0;
    stream_id stream{};
    bool large = false;
    std::pair<std::uint64_t, std::uint64_t> pool{};  ///< (0, 0) is the default one
    bool expandable = false;
    std::vector<block> blocks;
  };
  enum class action : unsigned char {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    other
  };
  struct entry {
    action what = action::other;
    std::uint64_t address = 0;
    std::size_t size = 0;
    stream_id stream{};
  };
  /// What the allocator was told to do, as far as it bears on decisions.
  struct settings {
    std::string conf;  ///< PYTORCH_CUDA_ALLOC_CONF
    std::size_t max_split_size = unlimited;
    double garbage_collection_threshold = 0;
    std::uint32_t roundup_power2_divisions[16] = {};
  };
  std::string name;
  std::vector<segment> segments;           ///< in the order of device and address
  std::vector<std::vector<entry>> traces;  ///< of each device, oldest first
  settings configured;
};

class snapshot_reader {
 public:
  snapshot_reader(const pickle& source, std::string name) : source_(source) { out_.name = std::move(name); }

  [[nodiscard]] read_result<snapshot> read() {
    const pickled& root = source_.root();
    const bool state_only = root.is == kind::list;
    const pickled* const segments = state_only ? &root : required(root, "segments", kind::list);
    const pickled* const traces = state_only ? nullptr : required(root, "device_traces", kind::list);
    for (std::size_t i = 0; segments != nullptr && i < segments->items.size() && good(); ++i)
      read_segment(source_[segments->items[i]]);
    for (std::size_t i = 0; traces != nullptr && i < traces->items.size() && good(); ++i)
      read_trace(source_[traces->items[i]]);
    if (const pickled* given = source_.find(root, "allocator_settings"); given != nullptr && good())
      read_settings(*given);
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
    if (n > max_request)
      fail(dict, "'" + std::string(key) + "' is " + std::to_string(n) + " bytes; less than 2^60 are allowed");
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

  void read_segment(const pickled& dict) {
    snapshot::segment s;
    s.address = number(dict, "address");
    s.size = bytes(dict, "total_size");
    s.stream = stream(dict);
    s.device = natural(optional(dict, "device", kind::integer), "device");
    s.large = text(dict, "segment_type") == "large";
    if (const pickled* flag = optional(dict, "is_expandable", kind::boolean))
      s.expandable = flag->integer != 0;
    if (const pickled* pool = optional(dict, "segment_pool_id", kind::list)) {
      const bool is_pair = pool->items.size() == 2 && source_[pool->items[0]].is == kind::integer &&
                           source_[pool->items[1]].is == kind::integer;
      if (!is_pair) return fail(*pool, "'segment_pool_id' is not a pair of integers");
      s.pool = {natural(&source_[pool->items[0]], "segment_pool_id"),
                natural(&source_[pool->items[1]], "segment_pool_id")};
    }
    const pickled* const blocks = required(dict, "blocks", kind::list);
    if (blocks == nullptr || s.address > std::numeric_limits<std::uint64_t>::max() - s.size)
      return fail(dict, "the segment wraps around");
    std::uint64_t at = s.address;
    for (std::uint32_t index : blocks->items) {
      const pickled& one = source_[index];
      snapshot::block b;
      b.address = at;
      b.size = bytes(one, "size");
      b.active = text(one, "state") != "inactive";
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
    entries.reserve(list.items.size());
    for (std::uint32_t index : list.items) {
      const pickled& dict = source_[index];
      snapshot::entry e;
      e.what = action_of(text(dict, "action"));
      if (!good()) return;
      if (e.what != snapshot::action::other) {
        e.address = number(dict, "addr");
        e.size = bytes(dict, "size");
        e.stream = stream(dict);
      }
      entries.push_back(e);
    }
  }
  [[nodiscard]] static snapshot::action action_of(std::string_view name) noexcept {
    constexpr std::string_view names[] = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                          "segment_free", "segment_map",    "segment_unmap"};
    const auto found = std::find(std::begin(names), std::end(names), name);
    return static_cast<snapshot::action>(found - std::begin(names));
  }

  void read_settings(const pickled& dict) {
    auto& to = out_.configured;
    if (const pickled* conf = optional(dict, "PYTORCH_CUDA_ALLOC_CONF", kind::text)) to.conf = conf->text;
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

  const pickle& source_;
  snapshot out_;
  std::vector<std::size_t> where_;
  std::size_t at_ = 0;
  std::string rule_;
};

/// Reads a snapshot of any version; keys that older versions lack have their neutral value.
///   Returns:  an error with the byte offset where something has the wrong type, or sizes do not add up
[[nodiscard]] inline read_result<snapshot> read_snapshot(std::string_view bytes, const std::string& name) {
  auto plain = read_pickle(bytes, name);
  if (auto* error = std::get_if<input_error>(&plain)) return std::move(*error);
  return snapshot_reader(std::get<pickle>(plain), name).read();
}

}  // namespace tessera::trace
