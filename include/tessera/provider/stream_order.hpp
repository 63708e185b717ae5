// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include <tessera/core/stream.hpp>

namespace tessera {

/// Which streams come behind which work of others, by the waits that were put into them: what a provider needs to answer
/// is_behind(). Waits pass on what they wait for.
///
/// Of each stream the latest waits are known one by one, so that what is put behind an older mark may seem to come behind
/// less than it does.
class stream_order {
 public:
  /// `stream`, which has been given work up to `position`, the wait included, waits for `of` up to `at`.
  void add(stream_id stream, std::uint64_t position, stream_id of, std::uint64_t at) {
    if (is_behind(stream, of, at)) return;
    std::deque<step>& steps = steps_[stream.handle];
    step next{position, steps.empty() ? reach{} : steps.back().behind};
    raise(next.behind[of.handle], at);
    for (const auto& [other, far] : reach_of(of, at)) raise(next.behind[other], far);
    steps.push_back(std::move(next));
    if (steps.size() > most_steps) steps.pop_front();
  }
  /// Whether all further work of `stream` comes behind that of `of` up to `at`.
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) const {
    if (stream == of || at == 0) return true;
    const auto steps = steps_.find(stream.handle);
    if (steps == steps_.end()) return false;
    const reach& behind = steps->second.back().behind;
    const auto found = behind.find(of.handle);
    return found != behind.end() && found->second >= at;
  }

 private:
  using reach = std::map<std::uint64_t, std::uint64_t>;  // how far, by stream
  struct step {
    std::uint64_t position;
    reach behind;  // from there on
  };
  static constexpr std::size_t most_steps = 64;

  static void raise(std::uint64_t& far, std::uint64_t at) noexcept { far = at > far ? at : far; }
  /// What the work of a stream at a position is behind.
  [[nodiscard]] reach reach_of(stream_id stream, std::uint64_t at) const {
    const auto steps = steps_.find(stream.handle);
    if (steps == steps_.end()) return {};
    for (auto latest = steps->second.rbegin(); latest != steps->second.rend(); ++latest) {
      if (latest->position <= at) return latest->behind;
    }
    return {};
  }

  std::map<std::uint64_t, std::deque<step>> steps_;  // by stream, oldest first; none is empty
};

}  // namespace tessera
