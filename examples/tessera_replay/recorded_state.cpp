// SPDX-License-Identifier: Apache-2.0
#include "recorded_state.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/tool/simulated_allocator.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "input.hpp"
#include "recipe_family.hpp"
#include "recorded_ranges.hpp"
#include "run_settings.hpp"
#include "start_state.hpp"

namespace {

using namespace replay;

/// The memory of a recorded device before one entry of its history.
struct recorded_state {
  std::vector<tessera::observe::snapshot::segment> segments;  ///< with their blocks
  std::vector<std::uint64_t> ranges;                          ///< where the range of each segment begins
};

/// Finds the state before an entry.
///   Returns:  an error if the history contradicts itself
template <typename Recipe>
[[nodiscard]] read_result<recorded_state> find_state(const tessera::observe::snapshot& source,
                                                     std::size_t device, std::size_t entry,
                                                     const tessera::recipe::policies<Recipe>& settings) {
  tessera::observe::snapshot rest;
  rest.name = source.name;
  const auto segments = source.segments_of(device);
  rest.segments.assign(segments.begin(), segments.end());
  rest.traces.resize(device + 1);
  const auto entries = source.trace_of(device);
  rest.traces[device].assign(entries.begin() + static_cast<std::ptrdiff_t>(entry), entries.end());
  auto found = start_finder(rest, device).find(settings);
  if (auto* error = std::get_if<tessera::trace::input_error>(&found)) return std::move(*error);
  auto& state = std::get<start_state>(found);
  recorded_state made;
  made.ranges = range_finder(tessera::operator""_MiB(20), tessera::unlimited)
                    .find(state, rest.trace_of(device))
                    .of_segment;
  made.segments = std::move(state.segments);
  return made;
}

/// Puts a state into an empty allocator, each private pool in one of its own.
///   Returns:  no blocks if the allocator cannot have the state
[[nodiscard]] restored_state restore_state(const recorded_state& state,
                                           const tessera::tool::detail::recorded_memory& to) {
  std::map<tessera::observe::snapshot::pool_id, tessera::pool_id> made;
  std::map<std::uint64_t, std::uintptr_t> range_at;
  restored_state here;
  for (std::size_t i = 0; i < state.segments.size(); ++i) {
    const tessera::observe::snapshot::segment& s = state.segments[i];
    if (s.expandable != to.has_ranges) return {};
    const std::vector<tessera::block_view> blocks = views_of(s.blocks);
    tessera::pool_id scope{};
    if (s.pool != tessera::observe::snapshot::pool_id{}) {
      const auto [at, is_new] = made.try_emplace(s.pool);
      if (is_new) at->second = to.create_pool();
      scope = at->second;
      here.pools[scope.number] = s.pool.first != 0 ? s.pool.first : s.pool.second;
      if (!to.open_pool(scope)) return {};
    }
    tessera::segment_view place{0, s.size, s.stream, s.large ? std::size_t{1} : 0, s.expandable};
    const std::size_t size = s.large ? s.size : 1;
    if (s.expandable) {
      const auto [at, is_new] = range_at.try_emplace(state.ranges[i]);
      if (is_new) at->second = to.reserve(place, size);
      if (at->second != 0) place.address = at->second + (s.address - state.ranges[i]);
    }
    const bool has_place = !s.expandable || place.address != 0;
    const std::uintptr_t address = has_place ? to.restore(place, size, blocks) : 0;
    if (scope != tessera::pool_id{} && !to.close_pool(scope)) return {};
    if (address == 0) return {};
    for (const auto& b : s.blocks) {
      if (b.active()) here.blocks[b.address] = address + (b.address - s.address);
    }
  }
  return here;
}

}  // namespace

std::map<std::uintptr_t, std::size_t> replay::live_events(const run_trace& trace, std::size_t event,
                                                          const restored_state& here) {
  using kind = tessera::trace::event::kind;
  std::map<std::uint64_t, std::size_t> live;  // events by id
  for (std::size_t i = 0; i < event; ++i) {
    const tessera::trace::event& e = trace.made.events[i];
    if (e.what == kind::allocate) live[e.id] = i;
    if (e.what == kind::free) live.erase(e.id);
  }
  std::map<std::uintptr_t, std::size_t> found;
  for (const auto& [id, at] : live) {
    const auto place = here.blocks.find(trace.addresses[static_cast<std::size_t>(id)]);
    if (place != here.blocks.end()) found[place->second] = at;
  }
  return found;
}

bool replay::with_recorded_state(const tessera::observe::snapshot& source, std::size_t device,
                                 std::size_t entry, const run_settings& used,
                                 const std::function<void(simulated_allocator&, const restored_state&)>& f) {
  read_result<recorded_state> state;
  const auto find = [&]<typename Recipe>(const tessera::recipe::policies<Recipe>& settings) {
    state = find_state<Recipe>(source, device, entry, settings);
  };
  const bool is_newer = used.recipe == "pytorch_2_14";
  if (!is_newer && used.recipe != "pytorch") return false;
  const std::string wrong = is_newer ? choose_in<tessera::recipe::pytorch_2_14_family>("", used.conf, find)
                                     : choose_in<tessera::recipe::pytorch_family>("", used.conf, find);
  const auto* const found = std::get_if<recorded_state>(&state);
  if (!wrong.empty() || found == nullptr) return false;
  const recipe_or_error recipe = used.known->choose(used.recipe, used.conf, {{}, used.limit});
  const auto* const chosen = std::get_if<any_recipe>(&recipe);
  if (chosen == nullptr) return false;
  simulated_allocator pool = chosen->make(device_of(used.capacity));
  const restored_state here = restore_state(*found, pool.recorded);
  if (here.blocks.empty()) return false;
  f(pool, here);
  return true;
}
