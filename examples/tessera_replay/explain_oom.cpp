// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>
#include "call_site.hpp"
#include "memory_map.hpp"
#include "recorded_state.hpp"
#include "snapshot_recording.hpp"
#include "stream_names.hpp"

#include "commands.hpp"
#include "input.hpp"
#include "recipes.hpp"

namespace {

using tessera::observe::oom_report;
using hint = oom_report::hint;
using tessera::trace::event;
using tessera::trace::program;

/// The live blocks of one source line, or of one size if the recording has no call stacks.
struct holder {
  std::string line;
  std::optional<std::size_t> size;  // of each request, if the recording has no call stacks
  std::size_t blocks = 0, bytes = 0, non_releasable = 0;
  std::size_t keeping_blocks = 0, keeping_bytes = 0;  // of those that keep free memory from being released
  static constexpr std::size_t none = ~std::size_t{0};
  std::size_t last_segment = none, last_free = none;  // the last ones counted in `non_releasable`
};

/// The first allocation that failed, and the blocks that keep memory from being released then.
struct failure {
  std::size_t event;
  oom_report report;
  std::string blocks;                // lines of text
  std::vector<holder> holders;       // what holds memory
  std::string source_lines;          // lines of text
  std::optional<std::size_t> entry;  // of the history, if the state is the recorded one
};

/// Describes the blocks that keep segments or chunks, each block once. `live` maps addresses to the events that allocated
/// them.
std::string blocks_of(const oom_report& report, const program& source,
                      const std::map<std::uintptr_t, std::size_t>& live) {
  constexpr std::size_t max_blocks = 6;
  std::map<std::uintptr_t, std::size_t> units;  // by block: the number of units that it lies in
  const auto for_each_block = [&live](const oom_report::non_releasable_unit& in, auto f) {
    for (auto at = live.lower_bound(in.first_block); at != live.end() && at->first < in.address + in.length;
         ++at)
      f(at->first, at->second);
  };
  for (const oom_report::non_releasable_unit& unit : report.units)
    if (unit.blocks > 0) for_each_block(unit, [&](std::uintptr_t block, std::size_t) { ++units[block]; });

  std::string text;
  for (const oom_report::non_releasable_unit& unit : report.units) {
    if (unit.blocks == 0) continue;
    std::size_t count = 0, shown = 0, left_out = 0;
    std::string line;
    for_each_block(unit, [&](std::uintptr_t block, std::size_t number) {
      ++count;
      const std::size_t lies_in = std::exchange(units[block], 0);
      if (lies_in == 0) return;  // named already
      if (shown == max_blocks) return void(++left_out);
      const event& made = source.events()[number];
      const std::string origin = replay::origin_text(source.source(), made.id);
      line += (shown++ > 0 ? ", id " : " id ") + std::to_string(made.id) + " (" +
              replay::counted(made.bytes, "byte") + ", event " + std::to_string(number) +
              (origin.empty() ? "" : ", ") + origin +
              (lies_in > 1 ? "; in " + std::to_string(lies_in) + " of these chunks)" : ")");
    });
    if (left_out > 0) line += " and " + std::to_string(left_out) + " more";
    if (unit.blocks > count) {
      line += shown > 0 ? ", " : " ";
      line += std::to_string(unit.blocks - count) + " pending";
    }
    if (line.empty()) continue;
    char address[20];
    std::snprintf(address, sizeof address, "%" PRIxPTR, unit.first_block);
    text += "    0x" + std::string(address) + ':' + line + '\n';
  }
  return text;
}

/// The live blocks by source line or by size, with what they keep from being released. Empties the cache.
std::vector<holder> holders_of(const program& source, replay::simulated_allocator& pool,
                               const std::map<std::uintptr_t, std::size_t>& live) {
  const bool has_lines = !source.source().origins.empty();
  std::map<std::pair<std::string, std::optional<std::size_t>>, holder> by_origin;
  const auto map =
      replay::map_and_trim(pool, std::unordered_map<std::uintptr_t, std::size_t>(live.begin(), live.end()));
  const auto& cells = map.cells;
  // A segment is released as a whole. In a range, a block keeps the pages beside it.
  const auto is_kept_by = [&](std::size_t free, std::size_t block) {
    return free < cells.size() && cells[free].segment == cells[block].segment &&
           cells[free].non_releasable > 0;
  };
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto& cell = cells[i];
    if (cell.is != replay::memory_map::use::live) continue;
    std::string line =
        has_lines ? replay::origin_text(source.source(), source.events()[cell.event].id) : std::string();
    const auto size = has_lines ? std::nullopt : std::optional(cell.requested);
    holder& h = by_origin[{line, size}];
    h.line = std::move(line);
    h.size = size;
    ++h.blocks;
    h.bytes += cell.bytes;
    const auto& in = map.segments[cell.segment];
    const bool keeps = in.in_range ? is_kept_by(i - 1, i) || is_kept_by(i + 1, i) : in.non_releasable > 0;
    if (!keeps) continue;
    ++h.keeping_blocks;
    h.keeping_bytes += cell.bytes;
    if (!in.in_range) {
      if (std::exchange(h.last_segment, cell.segment) != cell.segment) h.non_releasable += in.non_releasable;
      continue;
    }
    for (const std::size_t free : {i - 1, i + 1}) {
      if (!is_kept_by(free, i) || (h.last_free != holder::none && free <= h.last_free)) continue;
      h.non_releasable += cells[free].non_releasable;
      h.last_free = free;
    }
  }
  std::vector<holder> found;
  for (auto& [origin, h] : by_origin) found.push_back(std::move(h));
  return found;
}

/// The source lines whose blocks keep the most memory from being released, in descending order. Empty if the
/// recording has no call stacks.
std::string source_lines_of(std::vector<holder> holders) {
  std::erase_if(holders, [](const holder& h) { return h.size || h.non_releasable == 0; });
  std::stable_sort(holders.begin(), holders.end(),
                   [](const holder& a, const holder& b) { return a.non_releasable > b.non_releasable; });
  constexpr std::size_t max_lines = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(max_lines, holders.size()); ++i) {
    const holder& h = holders[i];
    text += "    " + (h.line.empty() ? "a line that was not recorded" : h.line) + ": " +
            replay::counted(h.keeping_blocks, "block") + " of " +
            tessera::format_bytes(h.keeping_bytes).text() + (h.keeping_blocks == 1 ? " keeps " : " keep ") +
            tessera::format_bytes(h.non_releasable).text() + "\n";
  }
  if (holders.size() > max_lines)
    text += "    and " + replay::counted(holders.size() - max_lines, "more line") + '\n';
  return text;
}

/// Explains why a request fails. `live` maps addresses to the events that allocated them.
failure explain_failure(const program& source, replay::simulated_allocator& pool, std::size_t i,
                        const std::map<std::uintptr_t, std::size_t>& live) {
  const event& e = source.events()[i];
  failure found{i, pool.explain(e.bytes, e.stream), {}, {}, {}, {}};
  found.blocks = blocks_of(found.report, source, live);
  found.holders = holders_of(source, pool, live);
  found.source_lines = source_lines_of(found.holders);
  return found;
}

/// The last request that failed on the recorded device, or the number of events. The program went on after those before.
std::size_t last_refusal(const program& source) {
  const auto& events = source.events();
  std::size_t i = events.size();
  while (i-- > 0) {
    if (events[i].what == event::kind::refused) return i;
  }
  return events.size();
}

/// Replays a program until an allocation fails. Failures that the program is known to survive do not count.
///   Returns:  that failure, if there is one
std::optional<failure> first_failure(const program& source, replay::simulated_allocator& pool) {
  std::optional<failure> found;
  const std::size_t last = last_refusal(source);
  std::map<std::uintptr_t, std::size_t> live;
  const auto after = [&](std::size_t i, void* p) {
    const event& e = source.events()[i];
    if (found) return;
    if (e.what == event::kind::free) live.erase(reinterpret_cast<std::uintptr_t>(p));
    if (e.what != event::kind::allocate && e.what != event::kind::refused) return;
    if (e.what == event::kind::refused && (p != nullptr || i != last)) return;
    if (p != nullptr) {
      live[reinterpret_cast<std::uintptr_t>(p)] = i;
      return;
    }
    found = explain_failure(source, pool, i, live);
  };
  tessera::trace::replay(source, pool, [](std::size_t) {}, after);
  return found;
}

/// The configuration setting that has the effect of a hint; empty if there is none.
std::string setting_for(oom_report::hint_for advised, const oom_report& report,
                        const replay::run_settings& used) {
  const auto is_set = [&used](const char* key) { return used.conf.find(key) != std::string::npos; };
  const std::string_view recipe = used.recipe;
  if (recipe.starts_with("paddle")) {
    const bool is_later = advised.what == hint::try_later || advised.what == hint::release_later;
    if (is_later || advised.what == hint::try_again) return "FLAGS_gpu_allocator_retry_time";
    return advised.what == hint::share_pool ? "FLAGS_small_pool_size_in_mb=0" : "";
  }
  const bool is_npu = recipe.starts_with("torch_npu");
  if (recipe == "pinned") return advised.what == hint::map_pages ? "pin_memory_expandable_segments:True" : "";
  if (!is_npu && !recipe.starts_with("pytorch") && recipe != "cuda_async") return "";
  switch (advised.what) {
    case hint::map_pages:
      if (is_npu && is_set("garbage_collection_threshold"))
        return "expandable_segments:True, no garbage_collection_threshold";
      return report.reuses_across_streams ? "backend:native,expandable_segments:True"
                                          : "expandable_segments:True";
    case hint::raise_limit:
      return is_npu ? "per_process_memory_fraction, torch_npu.npu.set_per_process_memory_fraction"
                    : "per_process_memory_fraction, torch.cuda.set_per_process_memory_fraction";
    case hint::raise_split_limit:
      return "max_split_size_mb:" + std::to_string(advised.bytes / tessera::operator""_MiB(1) + 1);
    case hint::round_less: return is_set("roundup_power2_divisions") ? "no roundup_power2_divisions" : "";
    case hint::use_normal_pages: return is_set("page_size") ? "no page_size" : "";
    case hint::empty_cache:
    case hint::wait_for_streams:
      return is_npu ? "throw_on_npumalloc_oom:False" : "throw_on_cudamalloc_oom:False";
    default: return "";
  }
}

/// A hint of a report, and the configuration setting that has its effect; empty if there is none.
struct advice {
  std::string text, setting;
};
std::vector<advice> advice_in(const oom_report& report, const replay::run_settings& used) {
  constexpr std::string_view mark = "  hint: ";
  const std::string explanation = report.text().c_str();
  std::vector<advice> found;
  for (std::string_view rest = explanation; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : line.size());
    if (line.starts_with(mark))
      found.push_back(
          {std::string(line.substr(mark.size())), setting_for(report.hints[found.size()], report, used)});
  }
  return found;
}

/// The text of a report, with configuration settings after the hints.
std::string text_of(const oom_report& report, const replay::run_settings& used) {
  std::string text = report.text().c_str();
  for (const advice& one : advice_in(report, used)) {
    const std::string line = "  hint: " + one.text;
    if (!one.setting.empty()) text.insert(text.find(line) + line.size(), " (" + one.setting + ")");
  }
  return text + '\n';
}

/// Says where a capacity is from.
std::string capacity_source(const replay::run_settings& used) {
  std::string text;
  if (used.capacity_from == replay::setting_source::deduced)
    text = " (reserved plus free when the recording ran out of memory)";
  if (used.capacity_from == replay::setting_source::by_default)
    text = " (80 GiB by default; set the device's with --capacity)";
  return text;
}

/// Says that a memory fraction was set, if the recorded device had room for a request that failed.
std::string limit_text(const replay::recorded_facts& known, const replay::run_settings& used) {
  if (used.limit == tessera::unlimited) return {};
  return "  a memory fraction was set: a request of " + replay::counted(known.limited_request, "byte") +
         " failed although " + replay::counted(known.limited_free, "byte") +
         " of the device were free. It allowed at least " + replay::counted(known.min_limit, "byte") +
         " and less than " + std::to_string(known.limit_end) + ". This report is under " +
         std::to_string(used.limit) + ", so what helps here helps in each case\n";
}

std::string json_lines(const std::string& text) {
  std::string list = "[";
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : line.size());
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    list += (list.size() > 1 ? ", \"" : "\"") + replay::json_text(line) + "\"";
  }
  return list + "]";
}

/// The call stack of an allocation as a list, the innermost frame first.
std::string stack_json(const tessera::trace::recording& source, std::uint64_t id) {
  constexpr std::size_t max_frames = 100;
  std::string list = "[";
  const auto frames = source.stacks.stack(source.origin_of(id).stack);
  for (const std::uint32_t frame : frames.first(std::min(max_frames, frames.size())))
    list += (list.size() > 1 ? ", \"" : "\"") + replay::json_text(replay::frame_text(source.stacks, frame)) +
            "\"";
  return list + "]";
}

/// What holds the most memory as a list, the largest first; what is not listed is summed at the end.
std::string holders_json(std::vector<holder> holders) {
  constexpr std::size_t max_holders = 20;
  std::stable_sort(holders.begin(), holders.end(),
                   [](const holder& a, const holder& b) { return a.bytes > b.bytes; });
  std::string list = "[";
  for (std::size_t i = 0; i < std::min(max_holders, holders.size()); ++i) {
    const holder& h = holders[i];
    const std::string origin =
        h.size ? "\"size\": " + std::to_string(*h.size) : "\"line\": \"" + replay::json_text(h.line) + "\"";
    list += (i > 0 ? ",\n  {" : "\n  {") + origin + ", \"blocks\": " + std::to_string(h.blocks) +
            ", \"bytes\": " + std::to_string(h.bytes) +
            ", \"keeps_non_releasable\": " + std::to_string(h.non_releasable) + "}";
  }
  list += "], \"held_by_others\": ";
  std::size_t rest = 0;
  for (std::size_t i = max_holders; i < holders.size(); ++i) rest += holders[i].bytes;
  return list + std::to_string(rest);
}

void print_json(const program& source, const replay::run_settings& used, const std::optional<failure>& found,
                std::size_t peak_reserved) {
  std::printf("{\"trace\": \"%s\", %s, \"events\": %zu, \"peak_live\": %zu, \"completes\": %s",
              replay::json_text(source.name()).c_str(), replay::settings_json(used).c_str(),
              source.events().size(), source.peak_live(), found ? "false" : "true");
  if (!found) {
    std::printf(", \"peak_reserved\": %zu}\n", peak_reserved);
    return;
  }
  const oom_report& report = found->report;
  const event& asked = source.events()[found->event];
  std::printf(
      ", \"state\": \"%s\", \"event\": %zu, \"id\": %" PRIu64 ", \"bytes\": %zu, \"stream\": %" PRIu64
      ", \"failed_when_recorded\": %s, \"block\": %zu, \"wanted\": %zu, \"reserved\": %zu, \"limit\": %zu, "
      "\"allocated\": %zu, \"pending\": %zu, \"cached\": %zu, \"requested\": %zu, \"largest_free\": %zu, "
      "\"non_releasable\": %zu, \"hints\": [",
      found->entry ? "recorded" : "replayed", found->event, asked.id, asked.bytes, asked.stream.handle,
      asked.what == event::kind::refused ? "true" : "false", report.block, report.wanted, report.now.reserved,
      report.now.limit, report.now.allocated, report.now.pending(), report.now.cached, report.now.requested,
      report.largest.bytes, report.non_releasable);
  bool is_first = true;
  for (const advice& one : advice_in(report, used)) {
    std::printf("%s{\"text\": \"%s\", \"setting\": \"%s\"}", is_first ? "" : ", ",
                replay::json_text(one.text).c_str(), replay::json_text(one.setting).c_str());
    is_first = false;
  }
  std::printf(
      "], \"line\": \"%s\", \"stack\": %s, \"held\": %s, \"source_lines\": %s, \"blocks\": %s, \"text\": "
      "%s}\n",
      replay::json_text(replay::origin_text(source.source(), asked.id)).c_str(),
      stack_json(source.source(), asked.id).c_str(), holders_json(found->holders).c_str(),
      json_lines(found->source_lines).c_str(), json_lines(found->blocks).c_str(),
      json_lines(text_of(report, used)).c_str());
}

void print(const program& source, const replay::recorded_facts& known, const replay::run_settings& used,
           const std::optional<failure>& found, std::size_t peak_reserved) {
  const std::string title = title_of(used, source.name());
  const std::string from = capacity_source(used);
  if (!found) {
    std::printf("%s: completes with a capacity of %s%s; peak reserved %s\n", title.c_str(),
                replay::counted(used.capacity, "byte").c_str(), from.c_str(),
                replay::counted(peak_reserved, "byte").c_str());
    std::printf("%s  used: %s\n", limit_text(known, used).c_str(), settings_text(used).c_str());
    return;
  }
  replay::stream_names streams(source.events());
  std::printf("%s: with a capacity of %s%s, memory runs out at event %zu of %zu, for id %" PRIu64
              "; peak live is %s\n%s%s",
              title.c_str(), replay::counted(used.capacity, "byte").c_str(), from.c_str(), found->event,
              source.events().size(), source.events()[found->event].id,
              replay::counted(source.peak_live(), "byte").c_str(),
              streams.in(text_of(found->report, used)).c_str(), limit_text(known, used).c_str());
  const std::size_t limit = found->report.now.limit;
  if (limit < source.peak_live())
    std::printf("  this is about one request; peak live of the program exceeds this %s\n",
                limit < used.capacity ? "limit" : "capacity");
  if (!found->blocks.empty())
    std::printf("  the blocks that keep these %s, in the trace:\n%s",
                found->report.has_segments ? "segments" : "physical chunks", found->blocks.c_str());
  if (!found->source_lines.empty())
    std::printf("  source lines whose blocks keep the most memory from being released:\n%s",
                found->source_lines.c_str());
  std::printf("  used: %s\n", settings_text(used).c_str());
  if (found->entry) {
    std::printf("  the state is the recorded one, before entry %zu of the history%s\n", *found->entry,
                source.refusals() > 1 ? ("; the program survived " +
                                         replay::counted(source.refusals() - 1, "failed request") + " before")
                                            .c_str()
                                      : "");
  } else {
    std::puts("  the state is that of a replay, which begins without a cache");
  }
}

/// Explains the last request that failed on the recorded device, in its state then.
///   Returns:  nothing if none failed, or the state is unknown
std::optional<failure> recorded_failure(const replay::traces& all, const replay::run_trace& trace,
                                        const replay::run_settings& used, const program& source) {
  const auto& events = trace.made.events;
  const std::size_t number = last_refusal(source);
  std::optional<failure> found;
  if (number == events.size() || !all.source || number < trace.events_at_start) return found;
  const event& asked = events[number];
  const std::size_t entry = trace.entries[number - trace.events_at_start];
  (void)replay::with_recorded_state(
      *all.source, trace.device, entry, used,
      [&](replay::simulated_allocator& pool, const replay::restored_state& here) {
        const auto live = replay::live_events(trace, number, here);
        if (void* const p = pool.try_allocate(asked.bytes, asked.stream)) {
          pool.deallocate(p);
          return;
        }
        found = explain_failure(source, pool, number, live);
        found->entry = entry;
      });
  return found;
}

replay::verb_result explain_one(const replay::arguments& args, const replay::run_trace& trace,
                                const replay::run_settings& used, const replay::traces& all) {
  if (args.recipes.empty() && !args.has_conf && !args.has_capacity && !args.memory_fraction) {
    const program source(trace.made);
    if (const auto found = recorded_failure(all, trace, used, source)) {
      args.json ? print_json(source, used, found, 0) : print(source, trace.known, used, found, 0);
      return +replay::differs;
    }
  }
  return replay::with_recipe(used, trace.made, [&](const program& source, const replay::any_recipe& recipe) {
    replay::simulated_allocator pool = recipe.make(replay::device_of(used.capacity));
    const std::optional<failure> found = first_failure(source, pool);
    const std::size_t peak = pool.provider().peak_used();
    args.json ? print_json(source, used, found, peak) : print(source, trace.known, used, found, peak);
    return found ? +replay::differs : +replay::done;
  });
}

}  // namespace

int replay::commands::explain_oom(const arguments& args) {
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces& all) {
    return explain_one(args, trace, used, all);
  });
}
