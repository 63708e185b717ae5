// SPDX-License-Identifier: Apache-2.0
#include "tune_composition.hpp"

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/chunks.hpp>

namespace replay::tune {
namespace {

// Template arguments, with the types of the policies' parameters.
std::string text(std::size_t n) {
  if (n == unlimited) return "tessera::unlimited";
  for (const auto& [unit, name] : {std::pair{1_GiB, "_GiB"}, {1_MiB, "_MiB"}, {1_KiB, "_KiB"}})
    if (n != 0 && n % unit == 0) return std::to_string(n / unit) + name;
  return "std::size_t{" + std::to_string(n) + "}";
}
std::string text(bool b) { return b ? "true" : "false"; }
std::string text(fraction f) {
  return f.billionths % 10'000'000 == 0
             ? "tessera::percent(" + std::to_string(f.billionths / 10'000'000) + ")"
             : "tessera::fraction{" + std::to_string(f.billionths) + "}";
}
std::string text(const memory_limit& m) {
  if (m.bytes == unlimited) return "tessera::memory_limit(" + text(m.share) + ")";
  return "tessera::memory_limit(" + text(m.bytes) +
         (m.share == percent(100) ? ")" : ", " + text(m.share) + ")");
}
std::string text(const policy::chunk_schedule& p) {
  return "tessera::policy::chunk_schedule{" + text(p.first) + ", " + text(p.further) + ", " + text(p.share) +
         "}";
}
std::string text(const divisions& d) {
  if (d == divisions::all(d.in_slot[0]))
    return "tessera::divisions::all(" + std::to_string(d.in_slot[0]) + ")";
  std::string slots;
  for (std::uint32_t parts : d.in_slot) slots += (slots.empty() ? "" : ", ") + std::to_string(parts);
  return "tessera::divisions{{" + slots + "}}";
}

/// A template argument, and whether it is the default.
struct argument {
  std::string words;
  bool is_default = false;
};
template <typename T>
argument set(const T& value, const T& default_value) {
  return {text(value), value == default_value};
}
argument plain(std::size_t n) { return {n % 1_KiB == 0 && n != 0 ? text(n) : std::to_string(n)}; }

/// Formats `tessera::policy::name<arguments>` without trailing defaults.
std::string named(const std::string& name, std::initializer_list<argument> arguments) {
  const argument* end = arguments.end();
  while (end != arguments.begin() && (end - 1)->is_default) --end;
  std::string all;
  for (const argument* a = arguments.begin(); a != end; ++a) all += (all.empty() ? "" : ", ") + a->words;
  return "tessera::policy::" + name + "<" + all + ">";
}

template <std::size_t Step>
std::string cpp(const policy::round_to_multiple<Step>&) {
  return named("round_to_multiple", {plain(Step)});
}
template <std::size_t Least, auto Threshold>
std::string cpp(const policy::round_to_power_of_two<Least, Threshold>& p) {
  return named("round_to_power_of_two", {plain(Least), set(p.threshold.get(), unlimited)});
}
template <std::size_t Step>
std::string cpp(const policy::round_to_divisions<Step>& p) {
  return named("round_to_divisions", {plain(Step), set(p.table.get(), divisions{})});
}
template <std::size_t Padding, typename Inner>
std::string cpp(const policy::round_padded<Padding, Inner>& p) {
  return named("round_padded", {plain(Padding), {cpp(p.inner)}});
}

std::string cpp(const boundary_of_pools& p) {
  return named("pool_small_and_large", {{text(p.boundary.get())}});
}
std::string cpp(const policy::pool_together&) { return "tessera::policy::pool_together"; }

std::string cpp(const policy::reuse_on_same_stream&) { return "tessera::policy::reuse_on_same_stream"; }
std::string cpp(const policy::reuse_on_same_stream_after_own_events&) {
  return "tessera::policy::reuse_on_same_stream_after_own_events";
}
template <typename Streams>
std::string cpp(const policy::poll_events_lazily<Streams>& p) {
  return named("poll_events_lazily", {{cpp(Streams{})}, set(p.threshold.get(), std::size_t{0})});
}
std::string cpp(const policy::reuse_after_events&) { return "tessera::policy::reuse_after_events"; }
std::string cpp(const policy::reuse_immediately&) { return "tessera::policy::reuse_immediately"; }
std::string cpp(const policy::reuse_across_streams<>& p) {
  return named("reuse_across_streams",
               {set(p.follow_dependencies.get(), true), set(p.opportunistic.get(), true),
                set(p.insert_dependencies.get(), true)});
}

template <policy::block_fit Fit>
std::string cpp(const policy::split_never<Fit>&) {
  const char* const names[] = {"any", "exact", "same_power_of_two"};
  return named("split_never",
               {{std::string("tessera::policy::block_fit::") + names[static_cast<std::size_t>(Fit)],
                 Fit == policy::block_fit::any}});
}
template <std::size_t Rest, policy::block_end End>
std::string cpp(const policy::split_if_remainder_at_least<Rest, End>&) {
  return named("split_if_remainder_at_least",
               {plain(Rest), {"tessera::policy::block_end::high", End == policy::block_end::low}});
}
template <auto Max, auto Slack, std::size_t SmallLimit, std::size_t Waste>
std::string cpp(const policy::split_below<Max, Slack, SmallLimit, Waste>& p) {
  return named("split_below",
               {set(p.max.get(), unlimited),
                set(p.slack.get(), 20_MiB),
                {SmallLimit == limit_of_pools ? "tessera::limit_of_pools" : plain(SmallLimit).words,
                 SmallLimit == limit_of_pools},
                {plain(Waste).words, Waste == SmallLimit}});
}

std::string cpp(const any_pages& p) {
  const page_choice chosen = p.choice.get();
  const char* const names[] = {"normal_only", "huge_first", "huge_only", "huge_1g_first", "huge_1g_only"};
  if (chosen == page_choice{.pages = page_preference::normal_only}) return "tessera::policy::normal_pages";
  if (chosen == page_choice{.pages = chosen.pages})
    return std::string("tessera::policy::prefer_pages<tessera::page_preference::") +
           names[static_cast<std::size_t>(chosen.pages)] + ">";
  return "";
}

argument limit(const memory_limit& most) { return set(most, memory_limit{}); }
template <std::size_t Small, std::size_t Own>
std::string cpp(const policy::grow_by_segments<Small, tunable(20_MiB), Own>& p) {
  return named("grow_by_segments", {{plain(Small).words, Small == 2_MiB},
                                    set(p.large.get(), 20_MiB),
                                    {plain(Own).words, Own == 10_MiB},
                                    limit(p.limit.get())});
}
std::string cpp(const policy::grow_exactly<>& p) { return named("grow_exactly", {limit(p.limit.get())}); }
std::string cpp(const policy::grow_by_chunks<>& p) {
  constexpr std::size_t none = 0;
  return named("grow_by_chunks", {set(p.small_chunk.get(), none),
                                  set(p.large.get(), none),
                                  {"tessera::limit_of_pools", true},
                                  limit(p.limit.get())});
}
std::string cpp(const policy::grow_by_schedule<>& p) {
  return named("grow_by_schedule", {set(p.schedule.get(), policy::chunk_schedule{}), limit(p.limit.get())});
}
template <std::size_t Small>
std::string cpp(const policy::grow_by_mapping<Small>& p) {
  return named("grow_by_mapping", {{plain(Small).words, Small == 2_MiB},
                                   set(p.large.get(), 20_MiB),
                                   limit(p.limit.get()),
                                   set(p.alignment.get(), std::size_t{1}),
                                   set(p.range.get(), memory_limit{fraction{1'125'000'000}})});
}
std::string cpp(const policy::grow_by_stitching<>& p) {
  return named(
      "grow_by_stitching",
      {set(p.peak_parts.get(), std::size_t{48}), set(p.slack.get(), percent(12)), limit(p.limit.get()),
       set(p.rest_parts.get(), std::size_t{1024}), set(p.alignment.get(), std::size_t{1})});
}

template <bool NeedsLimit>
std::string cpp(const policy::evict_idle_above<tunable(fraction{}), NeedsLimit>& p) {
  return named("evict_idle_above", {set(p.threshold.get(), fraction{}), {"true", !NeedsLimit}});
}
std::string cpp(const policy::evict_never&) { return "tessera::policy::evict_never"; }
template <auto Threshold>
std::string cpp(const policy::evict_at_free<Threshold>& p) {
  return named("evict_at_free", {set(p.threshold.get(), std::size_t{0})});
}
std::string cpp(const eviction_by_schedule& p) {
  return named("evict_at_free_above_schedule", {set(p.schedule.get(), policy::chunk_schedule{})});
}
std::string cpp(const policy::evict_idle_segments<>& p) {
  return named("evict_idle_segments", {set(p.before_growth.get(), false), set(p.at_free.get(), false)});
}
std::string cpp(const policy::evict_at_synchronize_above<>& p) {
  return named("evict_at_synchronize_above", {set(p.threshold.get(), std::size_t{0})});
}

std::string cpp(const policy::recover_never&) { return "tessera::policy::recover_never"; }
template <auto AcceptsExactSize>
std::string cpp(const policy::recover_by_emptying_cache<AcceptsExactSize>& p) {
  return named("recover_by_emptying_cache", {set(p.accepts_exact_size.get(), false)});
}

std::string cpp(const policy::recover_by_releasing_oversize&) {
  return "tessera::policy::recover_by_releasing_oversize";
}
template <typename Recovery>
std::string cpp(const policy::release_in_captures<Recovery>& p) {
  return named("release_in_captures", {{cpp(static_cast<const Recovery&>(p))}});
}
template <typename Recovery>
std::string cpp(const policy::fail_fast<Recovery>& p) {
  return named("fail_fast", {{cpp(p.inner)}, set(p.fails_fast.get(), false)});
}
template <typename Recovery>
std::string cpp(const policy::last_search<Recovery>& p) {
  return named("last_search", {{cpp(static_cast<const Recovery&>(p))}});
}

template <typename Own>
  requires requires(const Own& p) { p.text(); }
std::string cpp(const Own& p) {
  return p.text();
}

template <typename... Policy>
std::string cpp(const one_of<Policy...>& p) {
  return p.ask([](const auto& chosen) { return cpp(chosen); });
}

}  // namespace

std::array<std::string, axes> policy_texts(const composition& c) {
  return {cpp(c.rounding), cpp(c.pools),  cpp(c.streams),  cpp(c.split),
          cpp(c.pages),    cpp(c.growth), cpp(c.eviction), cpp(c.recovery)};
}

std::string as_variation(const composition& c) {
  const auto here = policy_texts(c);
  const auto there = policy_texts(composition{});
  std::string changes;
  for (std::size_t i = 0; i < axes; ++i)
    if (here[i] != there[i]) changes += ", " + here[i];
  std::string all = changes.empty() ? "pytorch<>" : "with<pytorch<>" + changes + ">";
  for (const std::string qualified : {"tessera::policy::", "tessera::"}) {
    for (std::size_t at = 0; (at = all.find(qualified, at)) != std::string::npos;)
      all.erase(at, qualified.size());
  }
  return all;
}

std::string as_recipe(const composition& c, const std::string& name) {
  const auto policies = policy_texts(c);
  std::string all = "#include <cstddef>\n#include <tessera/tessera.hpp>\n";
  for (const std::string& policy : policies) {
    if (!policy.starts_with("tessera::")) all += "// Include the header of your policy " + policy + ".\n";
  }
  all += "using namespace tessera::literals;\n\nstruct " + name + " final {\n";
  for (std::size_t i = 0; i < axes; ++i) {
    std::string axis = axis_names[i];
    axis.resize(8, ' ');
    all += "  using " + axis + " = " + policies[i] + ";\n";
  }
  return all + "};\nstatic_assert(tessera::recipe::well_formed<" + name + ">);\n";
}

composition with_axis_of(composition c, std::size_t axis, const composition& of) {
  switch (axis) {
    case 0: c.rounding = of.rounding; break;
    case 1: c.pools = of.pools; break;
    case 2: c.streams = of.streams; break;
    case 3: c.split = of.split; break;
    case 4: c.pages = of.pages; break;
    case 5: c.growth = of.growth; break;
    case 6: c.eviction = of.eviction; break;
    default: c.recovery = of.recovery; break;
  }
  if (c.growth.has_ranges() && c.streams.is<policy::reuse_across_streams<>>()) c.streams = of.streams;
  return c;
}

}  // namespace replay::tune
