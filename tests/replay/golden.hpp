// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include "tessera_replay/decisions.hpp"
#include "tessera_replay/lifetimes.hpp"

#include "printed.hpp"
#include "tool_recipe.hpp"

namespace golden {

/// FNV-1a of 64 bits. It identifies a log without storing it.
inline std::uint64_t digest(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// The decision lines of PyTorch's recipe under a configuration, on a trace; or the reason why there are
/// none.
inline std::string decisions(const std::string& trace, const std::string& conf, std::size_t capacity) {
  namespace t = tessera::trace;
  const auto text = replay::read_file(trace);
  if (const auto* error = std::get_if<t::input_error>(&text)) return error->text();
  const auto read = replay::read_text_trace(std::get<std::string>(text), trace);
  if (const auto* error = std::get_if<t::input_error>(&read)) return error->text();
  const auto parsed = tessera::config::parse<tessera::config::pytorch>(conf);
  if (const auto* error = std::get_if<tessera::config::setting_error>(&parsed))
    return std::string(error->rule);
  const auto& settings = std::get<tessera::config::pytorch::settings>(parsed);

  const t::program program(std::get<t::recording>(read));
  return replay_tests::printed([&](std::FILE* out) {
    replay::memory_limits limits;
    if (settings.garbage_collection_threshold != tessera::fraction{}) limits.fraction = 1.0;
    replay::write_decisions(out, program,
                            tessera::provider::simulated_device{
                                tessera::provider::simulated_device::options{.capacity = capacity}},
                            replay_tests::tool_recipe("pytorch", conf, limits));
  });
}

}  // namespace golden
