// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/observe/snapshot.hpp>

/// The requirements of the viewer at pytorch.org/memory_viz for a snapshot, somewhat stricter.
namespace viewer {

using tessera::observe::snapshot;

/// Executes a pickle as the viewer's unpickler does, which knows only these opcodes. Returns the first error,
/// or nothing.
///   Source:  torch/utils/viz/MemoryViz.js
inline std::string refuses(std::string_view bytes) {
  std::size_t at = 0;
  std::vector<std::size_t> marks;
  std::size_t depth = 0;  // of the stack
  const auto number = [&](std::size_t length) {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < length && at + i < bytes.size(); ++i)
      n |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
    at += length;
    return n;
  };
  while (at < bytes.size()) {
    const auto op = static_cast<unsigned char>(bytes[at++]);
    switch (op) {
      case 0x80:
        if (const auto version = number(1); version < 2 || version > 4) return "a protocol other than 2 to 4";
        break;
      case 0x95: at += 8; break;
      case '(': marks.push_back(depth); break;
      case 'N':
      case 0x88:
      case 0x89:
      case '}':
      case ']':
      case ')': ++depth; break;
      case 'K':
      case 'h': at += 1, ++depth; break;
      case 'M': at += 2, ++depth; break;
      case 'J':
      case 'j': at += 4, ++depth; break;
      case 'G': at += 8, ++depth; break;
      case 0x8a:
        if (const auto length = number(1); length > 8) {
          return "an integer of more than 64 bits";
        } else {
          at += static_cast<std::size_t>(length);
        }
        ++depth;
        break;
      case 0x8c: at += static_cast<std::size_t>(number(1)), ++depth; break;
      case 'X': at += static_cast<std::size_t>(number(4)), ++depth; break;
      case 'q': at += 1; break;
      case 'r': at += 4; break;
      case 0x94: break;
      case 'a': --depth; break;
      case 's': depth -= 2; break;
      case 0x85: break;
      case 0x86: --depth; break;
      case 0x87: depth -= 2; break;
      case 'e':
      case 'u':
      case 'l':
      case 't':
      case 'd': {
        if (marks.empty()) return "a mark is missing";
        // Appended values become the arguments of one call. Browsers allow some ten thousand arguments.
        if (op == 'e' && depth - marks.back() > 10'000) return "too many values in one portion";
        depth = marks.back() + (op == 'e' || op == 'u' ? 0 : 1);
        marks.pop_back();
        break;
      }
      case '.':
        if (depth != 1 || !marks.empty()) return "the end comes with other than one value";
        return at == bytes.size() ? "" : "bytes behind the end";
      default: return "opcode " + std::to_string(op);
    }
  }
  return "there is no end";
}

/// Intervals of bytes that do not touch.
class intervals {
 public:
  [[nodiscard]] bool covers(std::uint64_t from, std::uint64_t to) const {
    const auto after = begin_.upper_bound(from);
    return after != begin_.begin() && std::prev(after)->second >= to;
  }
  [[nodiscard]] bool touches(std::uint64_t from, std::uint64_t to) const {
    const auto after = begin_.lower_bound(to);
    return after != begin_.begin() && std::prev(after)->second > from;
  }
  void add(std::uint64_t from, std::uint64_t to) {
    auto after = begin_.lower_bound(from);
    if (after != begin_.end() && after->first == to) {
      to = after->second;
      after = begin_.erase(after);
    }
    if (after != begin_.begin() && std::prev(after)->second == from) {
      std::prev(after)->second = to;
    } else {
      begin_[from] = to;
    }
  }
  /// Takes from an interval that covers it.
  void remove(std::uint64_t from, std::uint64_t to) {
    const auto around = std::prev(begin_.upper_bound(from));
    const std::uint64_t end = around->second;
    around->second = from;
    if (around->first == from) begin_.erase(around);
    if (end > to) begin_[to] = end;
  }
  [[nodiscard]] bool empty() const { return begin_.empty(); }

 private:
  std::map<std::uint64_t, std::uint64_t> begin_;
};

/// Runs the history of a device backward from the state at its end, as "Allocator State History" does.
class backward {
 public:
  backward(const snapshot& source, std::size_t device) {
    for (const snapshot::segment& s : source.segments) {
      if (s.device != device) continue;
      if (s.expandable) {
        mapped_.add(s.address, s.address + s.size);
      } else {
        segments_[s.address] = s.size;
      }
      for (const snapshot::block& b : s.blocks) {
        if (b.active()) blocks_[b.address] = b;
      }
    }
    const auto& trace = source.traces.at(device);
    for (std::size_t i = trace.size(); i-- > 0 && rule_.empty();) {
      if (const char* const broken = undo(trace[i])) rule_ = "entry " + std::to_string(i) + " " + broken;
    }
  }

  /// The first impossible event, or nothing.
  [[nodiscard]] const std::string& rule() const { return rule_; }
  /// Whether no memory was allocated when the history began.
  [[nodiscard]] bool began_empty() const { return blocks_.empty() && segments_.empty() && mapped_.empty(); }

 private:
  using state = snapshot::block::state;

  [[nodiscard]] bool lies_in_memory(std::uint64_t from, std::uint64_t to) const {
    const auto after = segments_.upper_bound(from);
    const bool in_segment =
        after != segments_.begin() && to - std::prev(after)->first <= std::prev(after)->second;
    return in_segment || mapped_.covers(from, to);
  }
  [[nodiscard]] bool is_in_use(std::uint64_t from, std::uint64_t to) const {
    const auto after = blocks_.lower_bound(to);
    return after != blocks_.begin() &&
           std::prev(after)->second.address + std::prev(after)->second.size > from;
  }
  [[nodiscard]] bool has_memory(std::uint64_t from, std::uint64_t to) const {
    const auto after = segments_.lower_bound(to);
    return mapped_.touches(from, to) ||
           (after != segments_.begin() && std::prev(after)->first + std::prev(after)->second > from);
  }

  [[nodiscard]] const char* undo(const snapshot::entry& e) {
    using action = snapshot::action;
    const auto found = blocks_.find(e.address);
    const std::uint64_t end = e.address + e.size;
    switch (e.what) {
      case action::alloc:
        if (found == blocks_.end() || found->second.is != state::live)
          return "hands out a block that is not live";
        if (found->second.requested != e.size || found->second.size != e.block) return "is of another size";
        blocks_.erase(found);
        return nullptr;
      case action::free_requested:
        if (found == blocks_.end() || found->second.is != state::pending) return "frees what is not pending";
        found->second.is = state::live;
        return nullptr;
      case action::free_completed:
        if (is_in_use(e.address, e.address + e.block)) return "frees where a block is";
        if (e.block < e.size || e.block == 0) return "frees a block smaller than its request";
        if (!lies_in_memory(e.address, e.address + e.block)) return "frees where no memory is";
        blocks_[e.address] = {e.address, e.block, e.size, state::pending};
        return nullptr;
      case action::segment_alloc:
        if (segments_.find(e.address) == segments_.end() || segments_[e.address] != e.size)
          return "gives a segment that is not there";
        if (is_in_use(e.address, end)) return "gives a segment that is in use";
        segments_.erase(e.address);
        return nullptr;
      case action::segment_free:
        if (has_memory(e.address, end)) return "takes a segment from where memory is";
        segments_[e.address] = e.size;
        return nullptr;
      case action::segment_map:
        if (!mapped_.covers(e.address, end)) return "maps what is not mapped";
        if (is_in_use(e.address, end)) return "maps what is in use";
        mapped_.remove(e.address, end);
        return nullptr;
      case action::segment_unmap:
        if (has_memory(e.address, end)) return "unmaps where memory is";
        mapped_.add(e.address, end);
        return nullptr;
      default: return nullptr;
    }
  }

  std::map<std::uint64_t, snapshot::block> blocks_;
  std::map<std::uint64_t, std::size_t> segments_;
  intervals mapped_;
  std::string rule_;
};

}  // namespace viewer
