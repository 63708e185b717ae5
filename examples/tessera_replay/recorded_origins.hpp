// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/observe/snapshot.hpp>
#include <tessera/replay/recording.hpp>

namespace tessera::trace {

/// Collects where the allocations of a snapshot come from while it becomes a recording, in the order of their ids.
class origin_collector {
 public:
  explicit origin_collector(call_stacks stacks) : stacks_(std::move(stacks)), table_(stacks_) {}

  void add(std::uint32_t stack, std::string_view label) { made_.push_back({stack, table_.add_text(label)}); }
  /// The user says more about an allocation: the latest label counts.
  void say(std::uint64_t id, std::string_view label) {
    made_[static_cast<std::size_t>(id)].label = table_.add_text(label);
  }
  /// The stack of an allocation that has none yet: some histories tell it of live blocks only.
  void complete(std::uint64_t id, std::uint32_t stack) {
    std::uint32_t& known = made_[static_cast<std::size_t>(id)].stack;
    if (known == 0) known = stack;
  }
  void finish(recording& to) && {
    const auto is_known = [](const origin& o) { return o.stack != 0 || o.label != 0; };
    if (std::none_of(made_.begin(), made_.end(), is_known)) return;
    to.stacks = std::move(stacks_);
    to.origins = std::move(made_);
  }

 private:
  call_stacks stacks_;
  call_stack_builder table_;
  std::vector<origin> made_;
};

/// Where an allocation of a recording comes from, "train.py:12 in forward, labelled 'weights'"; empty if unknown.
[[nodiscard]] inline std::string origin_text(const recording& source, std::uint64_t id) {
  constexpr std::size_t most = 80;  // bytes of a label
  const origin from = source.origin_of(id);
  std::string text = program_line(source.stacks, from.stack);
  const std::string_view label = source.stacks.text(from.label);
  if (label.empty()) return text;
  (text += text.empty() ? "" : ", ") += "labelled '";
  text += terminal_text(label.substr(0, most));
  return text += label.size() > most ? "...'" : "'";
}

}  // namespace tessera::trace
