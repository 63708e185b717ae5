// SPDX-License-Identifier: Apache-2.0
#include "run_settings.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>

#include "numbers.hpp"
#include "recorded_conf.hpp"
#include "snapshot_recording.hpp"
#include "terminal.hpp"

namespace {

using namespace tessera;
using replay::real_text;
using replay::setting_source;
using tessera::observe::snapshot;

bool is_same_conf(const std::string& text, const config::pytorch::settings& wanted) {
  const auto parsed = config::parse<config::pytorch>(text);
  const auto* const found = std::get_if<config::pytorch::settings>(&parsed);
  return found != nullptr && *found == wanted;
}

/// The settings of a PyTorch run as a configuration string. The program can change them while it runs, so the text of
/// the environment variable need not be what was in force.
std::string conf_of(const snapshot& source) {
  const std::string& given = source.configured.conf;
  const config::pytorch::settings wanted = replay::settings_of(source);
  if (is_same_conf(given, wanted)) return given;
  std::string text;
  const auto add = [&text](const std::string& setting) { (text += text.empty() ? "" : ",") += setting; };
  if (wanted.expandable_segments) add("expandable_segments:True");
  if (wanted.max_split_size != unlimited)
    add("max_split_size_mb:" + std::to_string(wanted.max_split_size / 1_MiB));
  if (wanted.roundup != divisions{}) {
    const std::uint32_t first = wanted.roundup.in_slot[0];
    std::string list = "[";
    for (std::size_t slot = 0; slot < divisions::slot_count; ++slot) {
      if (slot > 0) list += ',';
      list += slot + 1 < divisions::slot_count ? std::to_string(1u << slot) : std::string(1, '>');
      list += ':' + std::to_string(std::max<std::uint32_t>(1, wanted.roundup.in_slot[slot]));
    }
    list += ']';
    add("roundup_power2_divisions:" +
        (wanted.roundup == divisions::all(first) ? std::to_string(first) : list));
  }
  if (source.configured.garbage_collection_threshold > 0)
    add("garbage_collection_threshold:" + real_text(source.configured.garbage_collection_threshold));
  if (wanted.memory_fraction != percent(100))
    add("per_process_memory_fraction:" + real_text(wanted.memory_fraction.value()));
  if (wanted.large_segment_size != config::pytorch::settings{}.large_segment_size)
    add("large_segment_size_mb:" + std::to_string(wanted.large_segment_size / 1_MiB));
  return text;
}

/// The bytes that PyTorch wants to reserve for a request, and compares with its memory fraction.
std::size_t segment_for(std::size_t bytes, std::size_t large_segment) noexcept {
  if (bytes <= 1_MiB) return 2_MiB;
  return bytes < 10_MiB ? large_segment : align_up(bytes, 2_MiB);
}

}  // namespace

replay::recorded_facts replay::find_facts(const snapshot& source, std::size_t device,
                                          const std::string& recipe) {
  recorded_facts found;
  found.recipe = recipe;
  const bool is_pytorch = recipe.starts_with("pytorch");
  found.conf = is_pytorch ? conf_of(source) : source.configured.conf;
  found.capacity = recorded_capacity(source, device);
  if (found.capacity == 0) return found;
  std::uint64_t reserved = reserved_at_start(source, device);
  std::uint64_t peak = reserved;
  std::uint64_t live = 0;  // of what the history allocates
  bool has_segments = true;
  const config::pytorch::settings settings = settings_of(source);
  for (const snapshot::entry& e : source.trace_of(device)) {
    reserved += reserved_change(e);
    peak = std::max(peak, reserved);
    if (e.what == snapshot::action::alloc) live += e.size;
    if (e.what == snapshot::action::free_completed) live -= std::min(live, std::uint64_t{e.size});
    if (live > reserved) has_segments = false;
    if (e.what != snapshot::action::oom || reserved > max_request || e.device_free > max_request ||
        e.size > max_request)
      continue;
    const std::size_t segment = segment_for(e.size, settings.large_segment_size);
    // Pages for a request are whole steps.
    const std::size_t wanted = settings.expandable_segments && e.size > 1_MiB
                                   ? align_up(segment, settings.large_segment_size)
                                   : segment;
    if (!is_pytorch || e.device_free < wanted) continue;
    const std::size_t end = static_cast<std::size_t>(reserved) + segment;
    if (found.limit_end != 0 && end >= found.limit_end) continue;
    found.limit_end = end;
    found.limited_request = e.size;
    found.limited_free = e.device_free;
  }
  if (found.limit_end != 0 && peak < found.limit_end && has_segments) {
    found.min_limit = static_cast<std::size_t>(peak);
  } else {
    found.limit_end = 0;  // no limit explains the run, or the history does not say what was reserved
  }
  return found;
}

const char* replay::text_of(setting_source from) noexcept {
  switch (from) {
    case setting_source::given: return "given";
    case setting_source::recorded: return "recorded";
    case setting_source::deduced: return "deduced from the out-of-memory";
    case setting_source::by_default: break;
  }
  return "default";
}

replay::run_settings replay::settle(const arguments& args, const recorded_facts& known) {
  run_settings used;
  used.known = args.known;
  const bool has_recipe = !args.recipes.empty();
  if (has_recipe) {
    used.recipe = args.recipe;
    used.recipe_from = setting_source::given;
  } else if (!known.recipe.empty()) {
    used.recipe = known.recipe;
    used.recipe_from = setting_source::recorded;
  }
  if (args.has_conf) {
    used.conf = args.conf;
    used.conf_from = setting_source::given;
  } else if (!has_recipe && !known.recipe.empty()) {
    used.conf = known.conf;
    used.conf_from = setting_source::recorded;
  }
  used.memory_fraction = args.memory_fraction;
  if (args.has_capacity) {
    used.capacity = args.capacity;
    used.capacity_from = setting_source::given;
  } else if (known.capacity != 0) {
    used.capacity = known.capacity;
    used.capacity_from = setting_source::deduced;
  }
  if (!args.has_capacity && !args.memory_fraction && known.limit_end != 0) {
    used.limit = known.min_limit;  // what helps under it, helps under each limit that explains the run
    used.limit_end = known.limit_end;
  }
  return used;
}

std::string replay::capacity_text(const run_settings& used) {
  std::string text = "capacity " + counted(used.capacity, "byte") + " (" + text_of(used.capacity_from) + ")";
  if (used.memory_fraction) text += ", memory fraction " + real_text(*used.memory_fraction) + " (given)";
  if (used.limit != unlimited)
    text += ", at most " + counted(used.limit, "byte") + " reserved (" + text_of(setting_source::deduced) +
            ": a memory fraction)";
  return text;
}

std::string replay::recipe_text(const run_settings& used) {
  return "recipe " + used.recipe + " (" + text_of(used.recipe_from) + "), " +
         (used.conf.empty() ? "no conf" : "conf " + used.conf) + " (" + text_of(used.conf_from) + ")";
}

std::string replay::settings_text(const run_settings& used) {
  return recipe_text(used) + ", " + capacity_text(used);
}

std::string replay::settings_json(const run_settings& used) {
  const auto is_limited = used.limit != unlimited;
  return "\"settings\": {\"recipe\": \"" + json_text(used.recipe) + "\", \"recipe_from\": \"" +
         text_of(used.recipe_from) + "\", \"conf\": \"" + json_text(used.conf) + "\", \"conf_from\": \"" +
         text_of(used.conf_from) + "\", \"capacity\": " + std::to_string(used.capacity) +
         ", \"capacity_from\": \"" + text_of(used.capacity_from) +
         "\", \"memory_fraction\": " + (used.memory_fraction ? real_text(*used.memory_fraction) : "null") +
         ", \"memory_limit\": " + (is_limited ? std::to_string(used.limit) : "null") +
         (is_limited ? std::string(", \"memory_limit_from\": \"") + text_of(setting_source::deduced) +
                           "\", \"memory_limit_below\": " + std::to_string(used.limit_end)
                     : "") +
         "}";
}
