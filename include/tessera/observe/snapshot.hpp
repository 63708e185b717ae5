// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/output.hpp>

namespace tessera::trace {

/// A table of call stacks. Stacks and texts are numbered from 1; 0 means none.
class call_stacks {
 public:
  /// A call. `file` and `function` are the numbers of texts.
  struct frame {
    std::uint32_t file = 0;
    std::uint32_t function = 0;
    std::uint64_t line = 0;  ///< from 1; 0 or 2^64 - 1 if unknown
    auto operator<=>(const frame&) const = default;
  };

  [[nodiscard]] std::size_t texts() const noexcept { return texts_.size(); }
  [[nodiscard]] std::size_t frames() const noexcept { return frames_.size(); }
  [[nodiscard]] std::size_t stacks() const noexcept { return ends_.size(); }
  [[nodiscard]] std::string_view text(std::uint32_t number) const noexcept {
    return number == 0 ? std::string_view{} : std::string_view(texts_[number - 1]);
  }
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

/// A memory snapshot with the contents of a PyTorch snapshot: the state of an allocator, and the history that
/// led to it.
///   Source:  torch.cuda.memory._dump_snapshot
struct snapshot {
  /// The number of a pool of segments; (0, 0) is the default pool.
  using pool_id = std::pair<std::uint64_t, std::uint64_t>;

  struct block {
    enum class state : unsigned char {
      free,
      live,    ///< allocated
      pending  ///< freed, but a stream still uses it
    };
    std::uint64_t address = 0;
    std::size_t size = 0;
    std::size_t requested = 0;
    state is = state::free;
    std::uint32_t stack = 0;  ///< call stack of the allocation; 0 if unknown

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
    std::uint64_t device = 0;
    std::uint64_t address = 0;
    std::size_t size = 0;
    stream_id stream{};
    bool large = false;
    pool_id pool{};
    bool expandable = false;
    std::uint32_t stack = 0;  ///< call stack of the acquisition
    std::vector<block> blocks{};

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

  /// The trace actions of PyTorch, then the actions that only tessera records.
  enum class action : unsigned char {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    oom,            ///< an allocation failed; has `device_free` and no address
    snapshot,       ///< a snapshot was taken; `size` is the bytes active then
    annotate,       ///< the user labelled a live block
    range_reserve,  ///< addresses were reserved, without memory
    range_release,
    refused,  ///< the device refused `size` bytes
    other
  };
  struct entry {
    action what = action::other;
    std::uint32_t stack = 0;  ///< number in `stacks` of the call that caused it; 0 if unknown
    std::uint64_t address = 0;
    std::size_t size = 0;   ///< bytes requested, acquired or mapped
    std::size_t block = 0;  ///< bytes of the block that serves a request; 0 if unknown
    stream_id stream{};
    std::uint64_t time_us = 0;    ///< microseconds since an unspecified time; 0 in old snapshots
    std::size_t device_free = 0;  ///< bytes that the device reported free when an allocation failed
    pool_id pool{};
    std::string label{};  ///< the user's text, `user_metadata` in PyTorch
    bool operator==(const entry&) const = default;
  };

  /// The beginning or end of an interval that the user named, such as an optimizer step.
  struct annotation {
    std::string name{};
    bool begins = false;  ///< false: ends
    std::uint64_t device = 0;
    std::uint64_t time_us = 0;
    bool operator==(const annotation&) const = default;
  };

  /// The allocator settings that affect its decisions.
  struct settings {
    std::string conf;    ///< PYTORCH_CUDA_ALLOC_CONF
    std::string recipe;  ///< the recipe's name; empty in PyTorch's own snapshots
    std::size_t max_split_size = unlimited;
    double garbage_collection_threshold = 0;
    bool expandable_segments = false;
    std::uint32_t roundup_power2_divisions[16] = {};
    bool operator==(const settings&) const = default;
  };

  std::string name;
  std::vector<segment> segments;           ///< sorted by device, then address
  std::vector<std::vector<entry>> traces;  ///< one per device, oldest entry first
  std::vector<annotation> annotations;
  settings configured;
  call_stacks stacks;                             ///< the call stacks that blocks and entries refer to
  std::vector<segment> host_segments{};           ///< pinned host memory, as PyTorch reports it
  std::vector<std::vector<entry>> host_traces{};  ///< the history of pinned host memory

  /// The segments of one device.
  [[nodiscard]] std::span<const segment> segments_of(std::size_t device) const noexcept {
    const auto before = [](const segment& s, std::size_t number) { return s.device < number; };
    const auto begin = std::lower_bound(segments.begin(), segments.end(), device, before);
    return {begin, std::lower_bound(begin, segments.end(), device + 1, before)};
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

namespace detail {

/// PyTorch's names of its actions, in the order of snapshot::action.
inline constexpr std::string_view snapshot_actions[] = {
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "oom",
    "snapshot",     "annotate"};

/// A block that is active when a device's history begins.
struct block_at_start {
  std::size_t requested = 0;
  std::size_t size = 0;  ///< 0 if unknown
  stream_id stream{};
  bool live = true;         ///< false: pending
  std::uint32_t stack = 0;  ///< call stack of the allocation, in the snapshot's `stacks`
};

/// Finds the blocks that are live or pending when the history of one device begins, by address.
///
/// A history is bounded, so its oldest entries are lost. A block is active at the start if the history frees
/// it without allocating it. So is a block that is active at the end and not in the history.
///   Returns:  the blocks, or an error that names the entry or block that contradicts the history
///   Cost:     n log n in the length of the history
[[nodiscard]] inline read_result<std::map<std::uint64_t, block_at_start>> blocks_at_start(
    const snapshot& source, std::size_t device) {
  using state = snapshot::block::state;
  using action = snapshot::action;
  std::map<std::uint64_t, block_at_start> result;
  std::map<std::uint64_t, state> now;  // the state at each address in the history
  const auto error = [&](const char* subject, std::uint64_t number, const char* rule) {
    return input_error{source.name + ": device " + std::to_string(device),
                       subject + std::to_string(number) + rule};
  };
  const auto trace = source.trace_of(device);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const snapshot::entry& e = trace[i];
    if (e.what != action::alloc && e.what != action::free_requested && e.what != action::free_completed)
      continue;
    const auto [at, is_new] = now.emplace(e.address, state::free);
    if (e.what == action::alloc) {
      if (at->second != state::free) return error("entry ", i, ": allocates a block that is live already");
      at->second = state::live;
      continue;
    }
    const bool requested = e.what == action::free_requested;
    if (is_new) {
      result[e.address] = {e.size, e.block, e.stream, requested};
    } else if (at->second == state::free || (requested && at->second == state::pending)) {
      return error("entry ", i, ": frees a block that is not live");
    }
    at->second = requested ? state::pending : state::free;
  }
  for (const snapshot::segment& s : source.segments_of(device)) {
    for (const snapshot::block& b : s.blocks) {
      const auto at = now.find(b.address);
      if (at == now.end()) {
        const bool known = b.requested != 0 && b.requested <= b.size;
        if (b.active())
          result[b.address] = {known ? b.requested : b.size, b.size, s.stream, b.is == state::live, b.stack};
      } else if (b.active() == (at->second == state::free)) {
        return error("the block at ", b.address,
                     b.active() ? " is live and was freed" : " is free and was not freed");
      } else {
        now.erase(at);
      }
    }
  }
  for (const auto& [address, last] : now) {
    if (last != state::free) return error("the block at ", address, " was not freed and is in no segment");
  }
  return result;
}

/// Whether a frame's file is Python: a source file, or a name such as "<stdin>". C++ frames have files such
/// as "??" and "TensorImpl.cpp".
[[nodiscard]] inline bool is_python_file(std::string_view file) noexcept {
  return file.ends_with(".py") || (file.starts_with('<') && file.size() > 2);
}

/// Whether a Python file is part of PyTorch or generated by it.
[[nodiscard]] inline bool is_torch_file(std::string_view file) {
  if (file.starts_with("<eval_with_key>") || file.starts_with("<frozen ")) return true;
  std::string_view parent;
  while (!file.empty()) {
    const std::size_t end = (std::min)(file.find_first_of("/\\"), file.size());
    const std::string_view folder = file.substr(0, end);
    file.remove_prefix((std::min)(file.size(), end + 1));
    const bool holds_packages = parent == "site-packages" || parent == "dist-packages" || parent == "pytorch";
    if (holds_packages && (folder == "torch" || folder == "torch_npu")) return !file.empty();
    if (folder.starts_with("torchinductor_")) return !file.empty();
    parent = folder;
  }
  return false;
}

/// Returns the position of the frame that is most useful to the user. It is the innermost Python frame
/// outside PyTorch, else the innermost Python frame, else the innermost frame with a file.
///   Requires:  the stack is not empty
[[nodiscard]] inline std::uint32_t most_useful_frame(const call_stacks& table, std::uint32_t stack) {
  const std::span<const std::uint32_t> calls = table.stack(stack);
  const auto file_of = [&](std::uint32_t position) { return table.text(table.frame_at(position).file); };
  const auto first = [&](auto is_wanted) { return std::find_if(calls.begin(), calls.end(), is_wanted); };
  auto found = first([&](auto f) { return is_python_file(file_of(f)) && !is_torch_file(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return is_python_file(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return !file_of(f).empty() && file_of(f) != "??"; });
  return found == calls.end() ? calls.front() : *found;
}

/// Returns the source line of a call stack, such as "train.py:12 in forward"; empty if there is no stack.
/// Long names are cut.
[[nodiscard]] inline std::string call_site(const call_stacks& table, std::uint32_t stack) {
  if (table.stack(stack).empty()) return {};
  constexpr std::size_t max_file = 160, max_function = 80;    // bytes
  constexpr std::uint64_t max_line = std::uint64_t{1} << 31;  // larger numbers mean an unknown line
  const call_stacks::frame& f = table.frame_at(most_useful_frame(table, stack));
  const std::string_view file = table.text(f.file), function = table.text(f.function);
  std::string text = file.size() > max_file ? "..." : "";
  text += file.substr(file.size() - (std::min)(file.size(), max_file));
  if (f.line != 0 && f.line < max_line) text.append(":").append(std::to_string(f.line));
  if (!function.empty()) text.append(text.empty() ? "" : " in ").append(function.substr(0, max_function));
  if (function.size() > max_function) text += "...";
  return printable_text(text);
}

}  // namespace detail

}  // namespace tessera::trace
