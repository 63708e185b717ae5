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

#include <tessera/caching_allocator.hpp>
#include <tessera/core/text.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/replay/recording.hpp>
#include "memory_map.hpp"
#include "snapshot_recording.hpp"

#include "commands.hpp"
#include "input.hpp"

namespace {

using tessera::oom_report;
using tessera::remedy;
using tessera::trace::event;
using tessera::trace::program;

/// Where memory first ran out, and whose blocks were in the way.
struct failure {
  std::size_t at;  // event
  tessera::out_of_memory error;
  std::string pinning;  // lines of text
  std::string lines;    // of the program, likewise
};

/// The ids of the blocks of a pin; `live` has the event that allocated what lives at an address.
std::string blocks_of(const oom_report::pin& p, const program& source,
                      const std::map<std::uintptr_t, std::size_t>& live) {
  constexpr std::size_t most = 6;
  std::string text = "    0x";
  char address[20];
  std::snprintf(address, sizeof address, "%" PRIxPTR ":", p.first);
  text += address;
  std::size_t count = 0;
  for (auto at = live.lower_bound(p.first); at != live.end() && at->first < p.begin + p.length; ++at) {
    if (++count > most) continue;
    const event& made = source.events()[at->second];
    const std::string line = replay::origin_text(source.source(), made.id);
    text += std::string(count > 1 ? "," : "") + " id " + std::to_string(made.id) + " (" +
            std::to_string(made.bytes) + " bytes, event " + std::to_string(at->second) +
            (line.empty() ? "" : ", ") + line + ")";
  }
  if (count > most) text += " and " + std::to_string(count - most) + " more";
  if (p.blocks > count) text += (count > 0 ? ", " : " ") + std::to_string(p.blocks - count) + " pending";
  return text + "\n";
}

/// The lines of the program that allocated the blocks which keep most memory from going back, most first; nothing where the
/// recording does not tell. Empties the cache.
template <typename Allocator>
std::string lines_of(const program& source, Allocator& pool,
                     const std::map<std::uintptr_t, std::size_t>& live) {
  if (source.source().origins.empty()) return {};
  struct kept {
    std::size_t blocks = 0, bytes = 0, pinned = 0;
    std::size_t last_segment = ~std::size_t{0};  // that was counted in `pinned`
  };
  std::map<std::string, kept> by_line;
  const auto map =
      replay::map_and_trim(pool, std::unordered_map<std::uintptr_t, std::size_t>(live.begin(), live.end()));
  for (const auto& cell : map.cells) {
    const std::size_t pinned = map.segments[cell.segment].pinned;
    if (cell.is != replay::memory_map::use::live || pinned == 0) continue;
    kept& k = by_line[replay::origin_text(source.source(), source.events()[cell.event].id)];
    ++k.blocks;
    k.bytes += cell.bytes;
    if (std::exchange(k.last_segment, cell.segment) != cell.segment) k.pinned += pinned;
  }
  std::vector<std::pair<std::string, kept>> order(by_line.begin(), by_line.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.pinned > b.second.pinned; });
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, order.size()); ++i) {
    const auto& [line, k] = order[i];
    text += "    " + (line.empty() ? "a line that was not recorded" : line) + ": " +
            std::to_string(k.blocks) + (k.blocks == 1 ? " block" : " blocks") + " of " +
            tessera::format_bytes(k.bytes).text() + ", beside " + tessera::format_bytes(k.pinned).text() +
            "\n";
  }
  if (order.size() > most) text += "    and " + std::to_string(order.size() - most) + " more lines\n";
  return text;
}

/// Replays until memory runs out; nothing where it does not.
template <typename Allocator>
std::optional<failure> first_failure(const program& source, Allocator& pool) {
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
    found = failure{i, pool.failure(e.bytes, e.stream), {}, {}};
    for (const oom_report::pin& pin : found->error.report().pins) {
      if (pin.blocks > 0) found->pinning += blocks_of(pin, source, live);
    }
    found->lines = lines_of(source, pool, live);
  };
  tessera::trace::replay(source, pool, [](std::size_t) {}, after);
  return found;
}

/// What does what a remedy says in the configuration string of the recipe's system; nothing where no key does.
std::string setting_for(oom_report::remedy_for advised, const oom_report& told,
                        const replay::arguments& said) {
  const auto is_set = [&said](const char* key) { return said.conf.find(key) != std::string::npos; };
  const std::string_view recipe = said.recipe;
  if (recipe.starts_with("paddle")) {
    const bool is_later = advised.what == remedy::try_later || advised.what == remedy::give_back_later;
    if (is_later || advised.what == remedy::try_again) return "FLAGS_gpu_allocator_retry_time";
    return advised.what == remedy::share_pool ? "FLAGS_small_pool_size_in_mb=0" : "";
  }
  const bool is_npu = recipe.starts_with("torch_npu");
  if (recipe == "pinned")
    return advised.what == remedy::grow_in_place ? "pin_memory_expandable_segments:True" : "";
  if (!is_npu && !recipe.starts_with("pytorch") && recipe != "cuda_async") return "";
  switch (advised.what) {
    case remedy::grow_in_place:
      if (is_npu && is_set("garbage_collection_threshold"))
        return "expandable_segments:True, no garbage_collection_threshold";
      return told.crosses ? "backend:native,expandable_segments:True" : "expandable_segments:True";
    case remedy::raise_limit:
      return is_npu ? "per_process_memory_fraction, torch_npu.npu.set_per_process_memory_fraction"
                    : "per_process_memory_fraction, torch.cuda.set_per_process_memory_fraction";
    case remedy::raise_split_limit:
      return "max_split_size_mb:" + std::to_string(advised.bytes / tessera::operator""_MiB(1) + 1);
    case remedy::round_less: return is_set("roundup_power2_divisions") ? "no roundup_power2_divisions" : "";
    case remedy::use_normal_pages: return is_set("page_size") ? "no page_size" : "";
    case remedy::empty_cache:
    case remedy::wait_for_streams:
      return is_npu ? "throw_on_npumalloc_oom:False" : "throw_on_cudamalloc_oom:False";
    default: return "";
  }
}

/// An error's words, with settings behind what would help.
std::string words_of(const tessera::out_of_memory& error, const replay::arguments& said) {
  const oom_report& told = error.report();
  std::string text;
  std::size_t advised = 0;
  for (std::string_view rest = error.what(); !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : line.size());
    text += line;
    if (line.starts_with("  would help: ")) {
      const std::string setting = setting_for(told.remedies[advised++], told, said);
      if (!setting.empty()) text += " (" + setting + ")";
    }
    text += '\n';
  }
  return text;
}

int explain_one(const replay::arguments& asked, const tessera::trace::recording& recording) {
  replay::arguments said = asked;
  const bool is_told = !said.has_capacity && recording.capacity != 0;
  if (is_told) said.capacity = recording.capacity;
  return replay::with_recording(
      said, recording, [&]<typename Recipe>(const program& source, const tessera::policies<Recipe>& chosen) {
        const std::string title = title_of(said, source);
        const char* const assumed =
            said.has_capacity ? ""
            : is_told         ? " (what was reserved and free where memory ran out in the recording)"
                              : " (80 GiB, assumed: give the device's with --capacity)";
        tessera::caching_allocator<Recipe, tessera::simulated_device> pool{replay::device_of(said.capacity),
                                                                           chosen};
        const std::optional<failure> found = first_failure(source, pool);
        if (!found) {
          std::printf("%s: completes with a capacity of %zu bytes%s; at most %zu were reserved\n",
                      title.c_str(), said.capacity, assumed, pool.device().peak_used());
          return +replay::done;
        }
        std::printf("%s: with a capacity of %zu bytes%s, memory runs out at event %zu of %zu, for id %" PRIu64
                    "; no allocator could do with less than %zu bytes\n%s",
                    title.c_str(), said.capacity, assumed, found->at, source.events().size(),
                    source.events()[found->at].id, source.peak_live(), words_of(found->error, said).c_str());
        const std::size_t limit = found->error.report().now.limit;
        if (limit < source.peak_live())
          std::printf(
              "  what is said is for this request: the program as a whole cannot complete with this %s\n",
              limit < said.capacity ? "limit" : "capacity");
        if (!found->pinning.empty())
          std::printf("  the blocks that pin these, in the trace:\n%s", found->pinning.c_str());
        if (!found->lines.empty())
          std::printf(
              "  the lines of the program that allocated the blocks which keep most memory from going back, "
              "and how much:\n%s",
              found->lines.c_str());
        return +replay::differs;
      });
}

}  // namespace

int replay::commands::explain_oom(const arguments& asked) {
  return with_each_recording(
      asked, [&](const tessera::trace::recording& recording) { return explain_one(asked, recording); });
}
