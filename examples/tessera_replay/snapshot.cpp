// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "files.hpp"
#include "to_chrome.hpp"
#include "to_rmm.hpp"

#include "commands.hpp"
#include "input.hpp"
#include "recipes.hpp"

namespace {

using tessera::trace::input_error;
using tessera::trace::program;

struct event_counter {
  std::size_t* count;
  void on(const tessera::allocator_event&) const noexcept { ++*count; }
};

/// A clock that advances a microsecond per operation, since most traces have no times.
struct operation_time {
  const std::size_t* operation;
  std::uint64_t operator()() const noexcept { return *operation; }
};

/// The operation after which to take the snapshot, and the number of events until then.
struct capture_point {
  std::size_t operation = 0;
  std::size_t events = 0;
};

capture_point find_capture_point(const program& trace, const replay::any_recipe& recipe, std::size_t capacity,
                                 bool at_peak) {
  std::size_t events = 0;
  event_counter counter{&events};
  replay::any_observer observer(counter);
  replay::simulated_allocator pool = recipe.make(replay::device_of(capacity), {.observer = &observer});
  capture_point found;
  std::size_t peak = 0;
  tessera::trace::replay(
      trace, pool, [](std::size_t) {},
      [&](std::size_t i, void*) {
        const std::size_t reserved = pool.current_usage().reserved;
        if (at_peak && reserved <= peak) return;
        peak = std::max(peak, reserved);
        found = {i, events};
      });
  return found;
}

/// Writes a snapshot in the format of the extension. RMM's format has only one device.
std::optional<input_error> write(const tessera::observe::snapshot& seen, std::size_t device,
                                 const std::string& path) {
  if (path.ends_with(".pickle")) return replay::save(path, tessera::observe::to_pickle(seen));
  const auto text = path.ends_with(".json") ? replay::to_chrome(seen) : replay::to_rmm(seen, device);
  if (const auto* const error = std::get_if<input_error>(&text)) return *error;
  return replay::save(path, std::get<std::string>(text));
}

/// Adds the recording's call stacks and labels to a snapshot. The time of an entry is the index of its
/// operation.
void add_origins(tessera::observe::snapshot& to, const tessera::trace::recording& source) {
  if (source.origins.empty()) return;
  using action = tessera::observe::snapshot::action;
  to.stacks = source.stacks;
  std::map<std::pair<std::size_t, std::uint64_t>, std::uint32_t> blocks, segments;  // by device and address
  for (std::size_t device = 0; device < to.traces.size(); ++device) {
    for (tessera::observe::snapshot::entry& e : to.traces[device]) {
      const tessera::trace::event& operation = source.events[static_cast<std::size_t>(e.time_us)];
      using kind = tessera::trace::event::kind;
      if (operation.what != kind::allocate && operation.what != kind::refused) continue;
      const tessera::trace::recording::origin from = source.origin_of(operation.id);
      e.stack = from.stack;
      if (e.what == action::alloc || e.what == action::oom) e.label = source.stacks.text(from.label);
      if (e.what == action::alloc) blocks[{device, e.address}] = e.stack;
      if (e.what == action::segment_alloc || e.what == action::segment_map)
        segments[{device, e.address}] = e.stack;
    }
  }
  const auto stack_in = [](const auto& known, std::uint64_t device, std::uint64_t address) {
    const auto found = known.find({static_cast<std::size_t>(device), address});
    return found != known.end() ? found->second : 0;
  };
  for (tessera::observe::snapshot::segment& s : to.segments) {
    s.stack = stack_in(segments, s.device, s.address);
    for (tessera::observe::snapshot::block& b : s.blocks)
      if (b.active()) b.stack = stack_in(blocks, s.device, b.address);
  }
}

/// Converts a snapshot to another format, without a replay. RMM's format has one device, the others have all.
int convert(const replay::arguments& args) {
  const auto read = replay::read_traces(args.files[0], args.device);
  if (const auto* const wrong = std::get_if<input_error>(&read)) return replay::print_error(wrong->text());
  const auto& all = std::get<replay::traces>(read);
  if (!all.source) return replay::print_error(args.files[0] + ": is not a snapshot; --as-recorded needs one");
  const bool has_one_device = args.out.ends_with(".csv");
  int code = replay::done;
  for (const auto& one : all.each) {
    if (const auto* const wrong = std::get_if<input_error>(&one)) {
      code = replay::print_error(wrong->text());
      continue;
    }
    const auto& trace = std::get<replay::run_trace>(one);
    const std::string out = has_one_device ? replay::out_path(args.out, all, trace) : args.out;
    if (const auto error = write(*all.source, trace.device, out)) return replay::print_error(error->text());
    std::printf("%s: %s, %s of device %zu\n", out.c_str(),
                replay::counted(all.source->devices(), "device").c_str(),
                replay::counted(all.source->trace_of(trace.device).size(), "event").c_str(), trace.device);
    if (!has_one_device) break;
  }
  return code;
}

void report(const std::string& path, const replay::simulated_allocator& pool, const capture_point& when,
            const program& trace) {
  const auto counted = pool.statistics().all;
  const auto text = [](std::int64_t n, const char* noun) {
    return replay::counted(static_cast<std::uintmax_t>(n), noun);
  };
  std::printf("%s: after operation %zu of %zu, %s reserved, %jd allocated in %s, %jd requested, %s\n",
              path.c_str(), when.operation + 1, trace.events().size(),
              text(counted.reserved_bytes.current, "byte").c_str(),
              static_cast<std::intmax_t>(counted.allocated_bytes.current),
              text(counted.allocation.current, "block").c_str(),
              static_cast<std::intmax_t>(counted.requested_bytes.current),
              replay::counted(when.events, "event").c_str());
}

/// Replays one trace, and writes the snapshot to a file.
replay::verb_result snapshot_one(const replay::arguments& args, const replay::run_trace& trace,
                                 const replay::run_settings& used, const std::string& out) {
  using namespace replay;
  const bool at_peak = args.at.empty() ? out.ends_with(".pickle") : args.at == "peak";
  return with_recipe(used, trace.made, [&](const program& played, const any_recipe& recipe) -> verb_result {
    const capture_point when = find_capture_point(played, recipe, used.capacity, at_peak);
    std::size_t operation = 0;
    tessera::observe::history<operation_time> history(when.events, {&operation});
    any_observer observer(history);
    simulated_allocator pool = recipe.make(device_of(used.capacity), {.observer = &observer});
    std::optional<input_error> error;
    const auto look = [&] {
      tessera::observe::snapshot seen = pool.take_snapshot();
      seen.name = played.name();
      seen.configured.conf = used.conf;
      add_origins(seen, played.source());
      error = write(seen, 0, out);
      if (!error) report(out, pool, when, played);
    };
    std::size_t failures = 0;
    (void)tessera::trace::replay(
        played, pool, [&](std::size_t i) { operation = i; },
        [&](std::size_t i, void* p) {
          using kind = tessera::trace::event::kind;
          const kind what = played.events()[i].what;
          failures += p == nullptr && (what == kind::allocate || what == kind::refused);
          if (i == when.operation) look();
        });
    if (error) return error->text();
    std::printf("  used: %s\n", settings_text(used).c_str());
    if (failures != 0) print_message(args.files[0] + ": " + counted(failures, "allocation") + " failed");
    return failures != 0 ? +differs : +done;
  });
}

}  // namespace

int replay::commands::snapshot(const arguments& args) {
  if (args.as_recorded) return convert(args);
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces& all) {
    return snapshot_one(args, trace, used, out_path(args.out, all, trace));
  });
}
