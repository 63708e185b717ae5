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
#include "memory_map.hpp"
#include "snapshot_recording.hpp"

#include "commands.hpp"
#include "input.hpp"
#include "recipes.hpp"

namespace {

using tessera::observe::oom_report;
using hint = oom_report::hint;
using tessera::trace::event;
using tessera::trace::program;

/// The first allocation that failed, and the blocks that keep memory from being released then.
struct failure {
  std::size_t event;
  oom_report report;
  std::string blocks;        // lines of text
  std::string source_lines;  // lines of text
};

/// Describes the blocks that keep a segment. `live` maps addresses to the events that allocated them.
std::string blocks_of(const oom_report::non_releasable_unit& p, const program& source,
                      const std::map<std::uintptr_t, std::size_t>& live) {
  constexpr std::size_t max_blocks = 6;
  std::string text = "    0x";
  char address[20];
  std::snprintf(address, sizeof address, "%" PRIxPTR ":", p.first_block);
  text += address;
  std::size_t count = 0;
  for (auto at = live.lower_bound(p.first_block); at != live.end() && at->first < p.address + p.length;
       ++at) {
    if (++count > max_blocks) continue;
    const event& made = source.events()[at->second];
    const std::string line = replay::origin_text(source.source(), made.id);
    text += std::string(count > 1 ? "," : "") + " id " + std::to_string(made.id) + " (" +
            std::to_string(made.bytes) + " bytes, event " + std::to_string(at->second) +
            (line.empty() ? "" : ", ") + line + ")";
  }
  if (count > max_blocks) text += " and " + std::to_string(count - max_blocks) + " more";
  if (p.blocks > count) text += (count > 0 ? ", " : " ") + std::to_string(p.blocks - count) + " pending";
  return text + "\n";
}

/// The source lines whose blocks keep the most memory from being released, in descending order. Empty if the
/// recording has no call stacks. Empties the cache.
std::string source_lines_of(const program& source, replay::simulated_allocator& pool,
                            const std::map<std::uintptr_t, std::size_t>& live) {
  if (source.source().origins.empty()) return {};
  struct kept {
    std::size_t blocks = 0, bytes = 0, non_releasable = 0;
    std::size_t last_segment = ~std::size_t{0};  // the last one counted in `non_releasable`
  };
  std::map<std::string, kept> by_line;
  const auto map =
      replay::map_and_trim(pool, std::unordered_map<std::uintptr_t, std::size_t>(live.begin(), live.end()));
  for (const auto& cell : map.cells) {
    const std::size_t free = map.segments[cell.segment].non_releasable;
    if (cell.is != replay::memory_map::use::live || free == 0) continue;
    kept& k = by_line[replay::origin_text(source.source(), source.events()[cell.event].id)];
    ++k.blocks;
    k.bytes += cell.bytes;
    if (std::exchange(k.last_segment, cell.segment) != cell.segment) k.non_releasable += free;
  }
  std::vector<std::pair<std::string, kept>> order(by_line.begin(), by_line.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.non_releasable > b.second.non_releasable;
  });
  constexpr std::size_t max_lines = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(max_lines, order.size()); ++i) {
    const auto& [line, k] = order[i];
    text += "    " + (line.empty() ? "a line that was not recorded" : line) + ": " +
            std::to_string(k.blocks) + (k.blocks == 1 ? " block" : " blocks") + " of " +
            tessera::format_bytes(k.bytes).text() + " keep " +
            tessera::format_bytes(k.non_releasable).text() + "\n";
  }
  if (order.size() > max_lines)
    text += "    and " + std::to_string(order.size() - max_lines) + " more lines\n";
  return text;
}

/// Replays a program until an allocation fails.
///   Returns:  that failure, if there is one
std::optional<failure> first_failure(const program& source, replay::simulated_allocator& pool) {
  std::optional<failure> found;
  std::map<std::uintptr_t, std::size_t> live;
  const auto after = [&](std::size_t i, void* p) {
    const event& e = source.events()[i];
    if (found) return;
    if (e.what == event::kind::free) live.erase(reinterpret_cast<std::uintptr_t>(p));
    if (e.what != event::kind::allocate) return;
    if (p != nullptr) {
      live[reinterpret_cast<std::uintptr_t>(p)] = i;
      return;
    }
    found = failure{i, pool.explain(e.bytes, e.stream), {}, {}};
    for (const oom_report::non_releasable_unit& pin : found->report.units) {
      if (pin.blocks > 0) found->blocks += blocks_of(pin, source, live);
    }
    found->source_lines = source_lines_of(source, pool, live);
  };
  tessera::trace::replay(source, pool, [](std::size_t) {}, after);
  return found;
}

/// The configuration setting that has the effect of a hint; empty if there is none.
std::string setting_for(oom_report::hint_for advised, const oom_report& report,
                        const replay::arguments& args) {
  const auto is_set = [&args](const char* key) { return args.conf.find(key) != std::string::npos; };
  const std::string_view recipe = args.recipe;
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

/// The text of a report, with configuration settings after the hints.
std::string text_of(const oom_report& report, const replay::arguments& args) {
  const std::string explanation = report.text().c_str();
  std::string text;
  std::size_t advised = 0;
  for (std::string_view rest = explanation; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : line.size());
    text += line;
    if (line.starts_with("  hint: ")) {
      const std::string setting = setting_for(report.hints[advised++], report, args);
      if (!setting.empty()) text += " (" + setting + ")";
    }
    text += '\n';
  }
  return text;
}

int explain_one(replay::arguments args, const tessera::trace::recording& recording) {
  const bool is_recorded = !args.has_capacity && recording.capacity != 0;
  if (is_recorded) args.capacity = recording.capacity;
  return replay::with_recording(
      args, recording, [&](const program& source, const replay::any_recipe& recipe) {
        const std::string title = title_of(args, source);
        const char* const assumed = args.has_capacity ? ""
                                    : is_recorded
                                        ? " (reserved plus free when the recording ran out of memory)"
                                        : " (80 GiB by default; set the device's with --capacity)";
        replay::simulated_allocator pool = recipe.make(replay::device_of(args.capacity));
        const std::optional<failure> found = first_failure(source, pool);
        if (!found) {
          std::printf("%s: completes with a capacity of %zu bytes%s; peak reserved %zu bytes\n",
                      title.c_str(), args.capacity, assumed, pool.provider().peak_used());
          return +replay::done;
        }
        std::printf("%s: with a capacity of %zu bytes%s, memory runs out at event %zu of %zu, for id %" PRIu64
                    "; peak live is %zu bytes\n%s",
                    title.c_str(), args.capacity, assumed, found->event, source.events().size(),
                    source.events()[found->event].id, source.peak_live(),
                    text_of(found->report, args).c_str());
        const std::size_t limit = found->report.now.limit;
        if (limit < source.peak_live())
          std::printf("  this is about one request; peak live of the program exceeds this %s\n",
                      limit < args.capacity ? "limit" : "capacity");
        if (!found->blocks.empty())
          std::printf("  the blocks that keep these segments, in the trace:\n%s", found->blocks.c_str());
        if (!found->source_lines.empty())
          std::printf("  source lines whose blocks keep the most memory from being released:\n%s",
                      found->source_lines.c_str());
        return +replay::differs;
      });
}

}  // namespace

int replay::commands::explain_oom(const arguments& args) {
  return with_each_recording(
      args, [&](const tessera::trace::recording& recording) { return explain_one(args, recording); });
}
