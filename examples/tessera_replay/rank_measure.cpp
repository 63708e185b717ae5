// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>
#include <tessera/version.hpp>

#include "blocks_at_start.hpp"
#include "capacity.hpp"
#include "input.hpp"
#include "ranks.hpp"
#include "recipes.hpp"
#include "snapshot_recording.hpp"
#include "verification.hpp"

namespace {

using replay::rank_failure;
using replay::rank_row;
using replay::rank_setting;
using replay::setting_result;
using tessera::trace::event;
using tessera::trace::input_error;
using tessera::trace::program;

/// A replay on a device of some capacity.
struct outcome {
  std::size_t peak_reserved = 0;
  std::optional<rank_failure> failure;
};

/// Replays a program once.
outcome run(const replay::any_recipe& recipe, const program& source, std::size_t capacity) {
  outcome found;
  replay::simulated_allocator pool = recipe.make(replay::device_of(capacity));
  std::size_t failures = 0;  // also of requests that failed when recorded
  (void)tessera::trace::replay(
      source, pool, [](std::size_t) {},
      [&]<typename Outcome>(std::size_t i, [[maybe_unused]] Outcome got) {
        if constexpr (std::is_pointer_v<Outcome>) {
          const event& e = source.events()[i];
          const bool is_request = e.what == event::kind::allocate || e.what == event::kind::refused;
          if (!is_request || got != nullptr) return;
          ++failures;
          if (found.failure) return;
          const tessera::usage now = pool.current_usage();
          found.failure = rank_failure{0, e.bytes, now.active, now.reserved, capacity};
        }
      });
  if (found.failure) found.failure->count = failures;
  found.peak_reserved = pool.provider().peak_used();
  return found;
}

/// Makes the recipe of a setting; nothing if the setting is not valid.
std::optional<replay::any_recipe> recipe_of(const rank_setting& with, const replay::rank_request& asked) {
  auto chosen = asked.known->choose(with.recipe, with.conf, {});
  auto* const recipe = std::get_if<replay::any_recipe>(&chosen);
  return recipe != nullptr ? std::optional(std::move(*recipe)) : std::nullopt;
}

/// The setting as a recording of newer rules is replayed.
rank_setting under_rules(rank_setting with, const std::string& rules) {
  if (rules == "2.14" && (with.recipe == "pytorch" || with.recipe == "pytorch_expandable"))
    with.recipe.replace(0, 7, "pytorch_2_14");
  return with;
}

/// A capacity with which no program of the recording runs out of memory.
std::size_t ample_capacity(const program& source) {
  constexpr std::size_t max_peak = tessera::max_request / 8;
  return std::max(tessera::operator""_GiB(80), 8 * std::min(source.peak_live(), max_peak));
}

/// Bisects the capacity that a setting needs, up to 1/128 of peak live.
std::optional<std::size_t> needed_capacity(const replay::any_recipe& recipe, const program& source,
                                           std::size_t peak_reserved) {
  const auto completes = [&](std::size_t capacity) { return !run(recipe, source, capacity).failure; };
  const std::size_t least = std::max<std::size_t>(1, source.min_reserved());
  const std::size_t step = std::max(tessera::operator""_MiB(1), source.peak_live() / 128);
  std::size_t too_small = least - 1;
  std::size_t enough = std::max(peak_reserved, least);
  // A setting may limit itself to a share of the device, so that its peak alone is not enough.
  for (const std::size_t max = 16 * std::min(enough, tessera::max_request / 16); !completes(enough);) {
    if (enough >= max) return {};
    too_small = enough;
    enough *= 2;
  }
  return replay::bisect(too_small, enough, step, completes);
}

setting_result measure(const rank_setting& named, const program& source, const rank_row& row,
                       const replay::rank_request& asked) {
  setting_result found{named, 0, {}, {}};
  const std::optional<replay::any_recipe> recipe = recipe_of(under_rules(named, row.rules), asked);
  if (recipe) {
    const outcome ample = run(*recipe, source, ample_capacity(source));
    found.peak_reserved = ample.peak_reserved;
    if (!ample.failure) found.capacity = needed_capacity(*recipe, source, ample.peak_reserved);
  }
  if (row.capacity) found.completes = recipe && !run(*recipe, source, *row.capacity).failure;
  // The replay begins with less cached memory than the recorded run, so it may complete where that run failed.
  if (row.recorded && row.failure && named == rank_setting{"pytorch", row.conf}) {
    const std::size_t failed_with = row.failure->capacity;
    if (row.capacity && *row.capacity <= failed_with) found.completes = false;
    if (found.capacity) found.capacity = std::max(*found.capacity, failed_with + 1);
  }
  return found;
}

/// What the history of a device says about its memory.
struct recorded_memory {
  std::size_t peak_live = 0;
  std::size_t peak_reserved = 0;
  std::optional<rank_failure> failure;
};

/// Follows the live and reserved bytes of a device.
///   Returns:  nothing if the history contradicts itself
std::optional<recorded_memory> memory_in(const tessera::observe::snapshot& source, std::size_t device) {
  using action = tessera::observe::snapshot::action;
  const auto start = replay::blocks_at_start(source, device);
  if (std::holds_alternative<input_error>(start)) return {};
  std::map<std::uint64_t, std::uint64_t> live_blocks;
  // The numbers wrap around if a file is inconsistent.
  std::uint64_t live = 0, reserved = replay::reserved_at_start(source, device);
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, replay::block_at_start>>(start))
    live += live_blocks[address] = block.requested;
  recorded_memory found;
  std::uint64_t peak_live = live, peak_reserved = reserved;
  for (const auto& e : source.trace_of(device)) {
    reserved += replay::reserved_change(e);
    if (e.what == action::alloc) {
      live += live_blocks[e.address] = e.size;
    } else if (const auto at = live_blocks.find(e.address);
               e.what == action::free_completed && at != live_blocks.end()) {
      live -= at->second;
      live_blocks.erase(at);
    } else if (e.what == action::oom) {
      if (!found.failure)
        found.failure =
            rank_failure{0, e.size, static_cast<std::size_t>(live), static_cast<std::size_t>(reserved),
                         static_cast<std::size_t>(reserved) + e.device_free};
      ++found.failure->count;
    }
    peak_live = std::max(peak_live, live);
    peak_reserved = std::max(peak_reserved, reserved);
  }
  if (peak_live > tessera::max_request || peak_reserved > tessera::max_request) return {};
  if (found.failure && found.failure->capacity > tessera::max_request) return {};
  found.peak_live = static_cast<std::size_t>(peak_live);
  found.peak_reserved = static_cast<std::size_t>(peak_reserved);
  return found;
}

/// Takes what a snapshot says about the run of a device.
void take_recorded(rank_row& row, const tessera::observe::snapshot& source, const replay::run_trace& trace) {
  if (trace.known.conf.size() <= replay::rank_result_reader::max_text_bytes) row.conf = trace.known.conf;
  const auto* const made = trace.verified ? std::get_if<replay::verification>(&*trace.verified) : nullptr;
  if (made != nullptr && made->has_compared()) {
    row.agrees = made->agrees();
    row.rules = made->rules;
  }
  const std::optional<recorded_memory> memory = memory_in(source, trace.device);
  if (!memory || memory->peak_reserved == 0) return;
  row.recorded = true;
  row.peak_live = memory->peak_live;
  row.peak_reserved = memory->peak_reserved;
  row.failure = memory->failure;
}

/// The settings to measure: those asked for, and the recorded ones if they are valid and not among them.
std::vector<rank_setting> settings_for(const rank_row& row, const replay::rank_request& asked) {
  std::vector<rank_setting> found = asked.settings;
  const rank_setting recorded{"pytorch", row.conf};
  const bool is_new = std::find(found.begin(), found.end(), recorded) == found.end();
  const bool is_valid = recipe_of(recorded, asked).has_value();
  if (!row.conf.empty() && is_new && is_valid) found.push_back(recorded);
  return found;
}

rank_row measure_row(const replay::run_trace& trace, const tessera::observe::snapshot* snapshot,
                     const replay::rank_request& asked) {
  const program source(trace.made);
  rank_row row;
  row.rules = "2.6";
  row.operations = source.events().size();
  row.peak_live = source.peak_live();
  row.capacity = asked.capacity;
  if (!row.capacity && trace.known.capacity != 0) row.capacity = trace.known.capacity;
  if (snapshot != nullptr) {
    row.device = trace.device;
    take_recorded(row, *snapshot, trace);
  }
  if (!row.recorded) {
    const std::size_t capacity = row.capacity.value_or(ample_capacity(source));
    if (const auto recipe = recipe_of(under_rules(asked.settings.front(), row.rules), asked)) {
      const outcome made = run(*recipe, source, capacity);
      row.peak_reserved = made.peak_reserved;
      row.failure = made.failure;
    }
  }
  for (const rank_setting& one : settings_for(row, asked))
    row.settings.push_back(measure(one, source, row, asked));
  return row;
}

}  // namespace

std::string replay::rank_request::text() const {
  std::string made = "capacity " + (capacity ? std::to_string(*capacity) : "as recorded") + ", device " +
                     (device ? std::to_string(*device) : "all");
  for (const rank_setting& one : settings)
    made += "; " + one.recipe + (one.conf.empty() ? "" : ", " + one.conf);
  return made;
}

std::string replay::wrong_setting(const rank_request& asked) {
  for (const rank_setting& one : asked.settings) {
    const auto chosen = asked.known->choose(one.recipe, one.conf, {});
    if (const auto* const wrong = std::get_if<std::string>(&chosen)) return *wrong;
  }
  return {};
}

replay::rank_result replay::identify(const std::string& path, const rank_request& asked) {
  rank_result made;
  made.version = TESSERA_VERSION_STRING;
  made.asked = asked.text();
  std::error_code unknown;
  const auto absolute = std::filesystem::absolute(path, unknown);
  made.file = unknown ? path : absolute.lexically_normal().string();
  const auto size = std::filesystem::file_size(path, unknown);
  if (!unknown) made.size = static_cast<std::uint64_t>(size);
  const auto modified = std::filesystem::last_write_time(path, unknown);
  if (!unknown)
    made.modified_ns =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                       std::chrono::file_clock::to_sys(modified).time_since_epoch())
                                       .count());
  return made;
}

replay::rank_result replay::measure_ranks(const std::string& path, const rank_request& asked) {
  rank_result made = identify(path, asked);
  const auto read = read_traces(path, asked.device);
  if (const auto* const wrong = std::get_if<input_error>(&read)) {
    made.error = wrong->text();
    return made;
  }
  const auto& found = std::get<traces>(read);
  const tessera::observe::snapshot* const source = found.source ? &*found.source : nullptr;
  const std::vector<std::size_t> devices = source == nullptr ? std::vector<std::size_t>{}
                                           : asked.device    ? std::vector<std::size_t>{*asked.device}
                                                             : recorded_devices(*source);
  for (std::size_t i = 0; i < found.each.size(); ++i) {
    if (const auto* const wrong = std::get_if<input_error>(&found.each[i])) {
      rank_row row;
      if (i < devices.size()) row.device = devices[i];
      row.error = wrong->text();
      made.rows.push_back(std::move(row));
      continue;
    }
    made.rows.push_back(measure_row(std::get<run_trace>(found.each[i]), source, asked));
  }
  return made;
}
