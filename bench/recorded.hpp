// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"

/// Reads recorded programs.
namespace bench {

using tessera::trace::event;
using tessera::trace::recording;

/// Adds frees of the blocks that are live at the end, so that every round begins with the same state.
inline void close(recording& run) {
  std::map<std::uint64_t, bool> live;
  for (const event& e : run.events) {
    if (e.what == event::kind::allocate || e.what == event::kind::free)
      live[e.id] = e.what == event::kind::allocate;
  }
  run.events.push_back({event::kind::answer_events, 0, 1});
  for (const auto& [id, is_live] : live) {
    if (is_live) run.events.push_back({event::kind::free, id});
  }
}

inline replay::read_result<recording> read(const std::string& path) {
  auto text = replay::read_file(path);
  if (auto* wrong = std::get_if<tessera::trace::input_error>(&text)) return std::move(*wrong);
  auto run = tessera::trace::read_csv(std::get<std::string>(text), path);
  if (auto* read = std::get_if<recording>(&run)) close(*read);
  return run;
}

}  // namespace bench
