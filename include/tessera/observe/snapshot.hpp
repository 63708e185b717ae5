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

/// Where in a program things happened: stacks of calls, each one kept once. Stacks and texts have numbers from 1 on; 0 is
/// for none.
class call_stacks {
 public:
  /// A call. Its file and function are numbers of texts.
  struct frame {
    std::uint32_t file = 0;
    std::uint32_t function = 0;
    std::uint64_t line = 0;  ///< from 1 on; 0 or 2^64 - 1 where it is not known
    auto operator<=>(const frame&) const = default;
  };

  [[nodiscard]] std::size_t texts() const noexcept { return texts_.size(); }
  [[nodiscard]] std::size_t frames() const noexcept { return frames_.size(); }
  [[nodiscard]] std::size_t stacks() const noexcept { return ends_.size(); }
  [[nodiscard]] std::string_view text(std::uint32_t number) const noexcept {
    return number == 0 ? std::string_view{} : std::string_view(texts_[number - 1]);
  }
  [[nodiscard]] const frame& frame_at(std::uint32_t place) const noexcept { return frames_[place]; }
  /// The frames of a stack, by their places, innermost first.
  [[nodiscard]] std::span<const std::uint32_t> stack(std::uint32_t number) const noexcept {
    if (number == 0) return {};
    const std::size_t begin = number == 1 ? 0 : ends_[number - 2];
    return {calls_.data() + begin, ends_[number - 1] - begin};
  }

  /// Appends a text, and returns its number. Looks for no equal one.
  std::uint32_t append_text(std::string_view text) {
    texts_.emplace_back(text);
    return static_cast<std::uint32_t>(texts_.size());
  }
  /// Appends a frame, and returns its position. Looks for no equal one.
  std::uint32_t append_frame(const frame& f) {
    frames_.push_back(f);
    return static_cast<std::uint32_t>(frames_.size() - 1);
  }
  /// Appends a stack of frames, given by their positions, innermost first. Returns its number. Looks for no equal one.
  std::uint32_t append_stack(std::span<const std::uint32_t> positions) {
    calls_.insert(calls_.end(), positions.begin(), positions.end());
    ends_.push_back(calls_.size());
    return static_cast<std::uint32_t>(ends_.size());
  }
  bool operator==(const call_stacks&) const = default;

 private:
  std::vector<std::string> texts_;
  std::vector<frame> frames_;
  std::vector<std::uint32_t> calls_;  // of all stacks, one behind the other
  std::vector<std::size_t> ends_;     // of each stack in calls_
};

/// A memory snapshot as PyTorch takes it: how an allocator stood, and what led there.
///   Source:  torch.cuda.memory._dump_snapshot
struct snapshot {
  /// The number of a pool of segments; (0, 0) is the default one.
  using pool_id = std::pair<std::uint64_t, std::uint64_t>;

  struct block {
    enum class state : unsigned char {
      free,
      live,    ///< allocated
      pending  ///< given back, and still used by a stream
    };
    std::uint64_t address = 0;
    std::size_t size = 0;
    std::size_t requested = 0;
    state is = state::free;
    std::uint32_t stack = 0;  ///< where it was allocated, in `stacks`; 0 if unknown

    [[nodiscard]] bool active() const noexcept { return is != state::free; }
    bool operator==(const block&) const = default;
  };

  /// What a segment's blocks amount to, in bytes.
  struct sums {
    std::size_t allocated = 0;  ///< of live blocks
    std::size_t active = 0;     ///< of live and pending blocks
    std::size_t requested = 0;  ///< what users asked for, of active blocks
  };

  /// What the device gave in one piece; of a range, what is mapped without a gap.
  struct segment {
    std::uint64_t device = 0;
    std::uint64_t address = 0;
    std::size_t size = 0;
    stream_id stream{};
    bool large = false;
    pool_id pool{};
    bool expandable = false;
    std::uint32_t stack = 0;  ///< where it was taken from the device, in `stacks`
    std::vector<block> blocks{};

    [[nodiscard]] sums add_up() const noexcept {
      sums s;
      for (const block& b : blocks) {
        if (b.is == block::state::live) s.allocated += b.size;
        if (b.active()) s.active += b.size, s.requested += b.requested;
      }
      return s;
    }
    bool operator==(const segment&) const = default;
  };

  /// PyTorch's trace actions, and what only this library tells.
  enum class action : unsigned char {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    oom,            ///< nothing helped; no address, but `device_free`
    snapshot,       ///< a snapshot was taken; `size` is what was active
    annotate,       ///< the user said more about a live block, which is the label
    range_reserve,  ///< of addresses without memory
    range_release,
    refused,  ///< the device did not give `size`
    other
  };
  struct entry {
    action what = action::other;
    std::uint32_t stack = 0;  ///< where it happened, in `stacks`; 0 if unknown
    std::uint64_t address = 0;
    std::size_t size = 0;   ///< as requested, of the segment, or of what was mapped
    std::size_t block = 0;  ///< of the block that serves a request; 0 if unknown
    stream_id stream{};
    std::uint64_t time_us = 0;    ///< microseconds since some moment; 0 in snapshots of old versions
    std::size_t device_free = 0;  ///< what the device said to be free when memory ran out
    pool_id pool{};
    std::string label{};  ///< what the user said about it, "user_metadata" in PyTorch's words
    bool operator==(const entry&) const = default;
  };

  /// What the user marked in time, such as a step of an optimizer.
  struct annotation {
    std::string name{};
    bool begins = false;  ///< or ends
    std::uint64_t device = 0;
    std::uint64_t time_us = 0;
    bool operator==(const annotation&) const = default;
  };

  /// What the allocator was told to do, as far as it bears on decisions.
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
  std::vector<segment> segments;           ///< in the order of device and address
  std::vector<std::vector<entry>> traces;  ///< of each device, oldest first
  std::vector<annotation> annotations;
  settings configured;
  call_stacks stacks;                             ///< where in the program things happened
  std::vector<segment> host_segments{};           ///< of pinned host memory, as PyTorch gives them
  std::vector<std::vector<entry>> host_traces{};  ///< its history

  /// The segments of one device.
  [[nodiscard]] std::span<const segment> segments_of(std::size_t device) const noexcept {
    const auto before = [](const segment& s, std::size_t of) { return s.device < of; };
    const auto begin = std::lower_bound(segments.begin(), segments.end(), device, before);
    return {begin, std::lower_bound(begin, segments.end(), device + 1, before)};
  }
  /// The history of one device, empty where there is none.
  [[nodiscard]] std::span<const entry> trace_of(std::size_t device) const noexcept {
    return device < traces.size() ? std::span<const entry>(traces[device]) : std::span<const entry>();
  }
  /// One more than the largest number of a device.
  [[nodiscard]] std::size_t devices() const noexcept {
    const std::size_t last = segments.empty() ? 0 : static_cast<std::size_t>(segments.back().device) + 1;
    return (std::max)(last, traces.size());
  }
  bool operator==(const snapshot&) const = default;
};

/// PyTorch's names of its actions, in the order of snapshot::action.
inline constexpr std::string_view snapshot_actions[] = {
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "oom",
    "snapshot",     "annotate"};

/// A block that was there before a device's history begins.
struct early_block {
  std::size_t requested = 0;
  std::size_t size = 0;  ///< 0 where nobody recorded it
  stream_id stream{};
  bool live = true;         ///< or pending
  std::uint32_t stack = 0;  ///< where it was allocated, in the snapshot's `stacks`
};

/// The blocks that were live or pending when the history of one device begins, by address. The history keeps only the
/// latest entries, so they are those which it frees without having allocated them, and those which are there at the end
/// and which it does not mention.
///   Returns:  an error with the number of the entry that contradicts those before it, or the state at the end
///   Cost:     n log n in the length of the history
[[nodiscard]] inline read_result<std::map<std::uint64_t, early_block>> active_at_start(const snapshot& source,
                                                                                       std::size_t device) {
  using state = snapshot::block::state;
  using action = snapshot::action;
  std::map<std::uint64_t, early_block> early;
  std::map<std::uint64_t, state> now;  // of every address that is mentioned
  const auto error = [&](const char* what, std::uint64_t number, const char* rule) {
    return input_error{source.name + ": device " + std::to_string(device),
                       what + std::to_string(number) + rule};
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
      early[e.address] = {e.size, e.block, e.stream, requested};
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
          early[b.address] = {known ? b.requested : b.size, b.size, s.stream, b.is == state::live, b.stack};
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
  return early;
}

/// Whether a frame's file is of Python: a source, or what an interpreter names "<stdin>". Frames of C++ have names such as
/// "??" and "TensorImpl.cpp".
[[nodiscard]] inline bool is_python_file(std::string_view file) noexcept {
  return file.ends_with(".py") || (file.starts_with('<') && file.size() > 2);
}

/// Whether a Python file belongs to PyTorch or was written by it, so that its line tells a user little.
[[nodiscard]] inline bool is_file_of_torch(std::string_view file) {
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

/// The frame of a stack that tells a user most, as a place in the table: the innermost one of Python that is not PyTorch's;
/// else the innermost one of Python; else the innermost one that has a file or a function.
///   Requires:  the stack is not empty
[[nodiscard]] inline std::uint32_t telling_frame(const call_stacks& table, std::uint32_t stack) {
  const std::span<const std::uint32_t> calls = table.stack(stack);
  const auto file_of = [&](std::uint32_t place) { return table.text(table.frame_at(place).file); };
  const auto first = [&](auto is_wanted) { return std::find_if(calls.begin(), calls.end(), is_wanted); };
  auto found = first([&](auto f) { return is_python_file(file_of(f)) && !is_file_of_torch(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return is_python_file(file_of(f)); });
  if (found == calls.end()) found = first([&](auto f) { return !file_of(f).empty() && file_of(f) != "??"; });
  return found == calls.end() ? calls.front() : *found;
}

/// `text` as it may stand on a terminal, whatever it holds.
[[nodiscard]] inline std::string terminal_text(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return utf8_text(shown);
}

/// The line of a program where a stack comes from, "train.py:12 in forward"; empty for no stack. Long names are cut short.
[[nodiscard]] inline std::string program_line(const call_stacks& table, std::uint32_t stack) {
  if (table.stack(stack).empty()) return {};
  constexpr std::size_t most_of_file = 160, most_of_function = 80;  // bytes
  constexpr std::uint64_t most_lines = std::uint64_t{1} << 31;  // more stands for a line that is not known
  const call_stacks::frame& f = table.frame_at(telling_frame(table, stack));
  std::string_view file = table.text(f.file), function = table.text(f.function);
  std::string line = file.size() > most_of_file ? "..." : "";
  line += file.substr(file.size() - (std::min)(file.size(), most_of_file));
  if (f.line != 0 && f.line < most_lines) (line += ':') += std::to_string(f.line);
  if (!function.empty()) (line += line.empty() ? "" : " in ") += function.substr(0, most_of_function);
  if (function.size() > most_of_function) line += "...";
  return terminal_text(line);
}

}  // namespace tessera::trace
