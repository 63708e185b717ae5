// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include "pickle.hpp"
#include "pickled_fields.hpp"

namespace tessera::trace {

/// Reads the stacks of calls in a pickle, lists of dicts with 'filename', 'line' and 'name'. What the pickle has once, and
/// refers to again, is read once; what has another form is left out.
class call_stack_reader {
 public:
  call_stack_reader(const pickle& source, pickled_fields& in, call_stacks& to)
      : source_(source), in_(in), made_(to), table_(to) {}

  /// The number of the stack that stands in a dict under 'frames', or in old snapshots, in the first of its 'history'; 0
  /// where there is none.
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
  // Bytes of a table and of what finds something there, while they grow.
  static constexpr std::size_t of_stack = 64, of_frame = 80, of_text = 112;

  /// Makes room to remember what was read; false where there is none.
  bool begin(const pickled& at) {
    if (!done_.empty()) return true;
    if (!in_.afford(at, source_.size(), sizeof(std::uint32_t))) return false;
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
    if (made_.stacks() > before) in_.afford(list, of_stack + 3 * sizeof(std::uint32_t) * calls_.size(), 1);
    return number;
  }
  [[nodiscard]] std::uint32_t read_frame(const pickled& dict) {
    const std::size_t before = made_.frames();
    const std::uint32_t file = read_text(dict, "filename");
    const std::uint32_t function = read_text(dict, "name");
    // PyTorch gives -1, or 2^64 - 1, where it knows no line.
    const pickled* const number = source_.find(dict, "line");
    const bool has_line = number != nullptr && number->is == pickled::kind::integer;
    const auto line = static_cast<std::uint64_t>(has_line ? number->integer : 0);
    const std::uint32_t place = table_.add_frame({file, function, line});
    if (made_.frames() > before) in_.afford(dict, of_frame, 1);
    return place;
  }
  [[nodiscard]] std::uint32_t read_text(const pickled& dict, std::string_view key) {
    const std::uint32_t at = source_.find_number(dict, key);
    if (at == pickle::nowhere || source_[at].is != pickled::kind::text) return 0;
    if (done_[at] == 0) {
      const std::size_t before = made_.texts();
      done_[at] = 1 + table_.add_text(source_[at].text);
      if (made_.texts() > before) in_.afford(dict, of_text + source_[at].text.size(), 1);
    }
    return done_[at] - 1;
  }

  const pickle& source_;
  pickled_fields& in_;
  call_stacks& made_;
  call_stack_builder table_;
  std::vector<std::uint32_t>
      done_;  // for each value of the pickle, one more than its number; 0 while it was not read
  std::vector<std::uint32_t> calls_;  // of the stack that is read
};

}  // namespace tessera::trace
