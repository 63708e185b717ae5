// SPDX-License-Identifier: Apache-2.0
#include "tune_advice.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "input.hpp"
#include "tune_composition.hpp"

namespace replay::tune {
namespace {

double mib(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }
double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
double ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string name_of(const timed_candidate& r) {
  return r.what.name.empty() ? as_variation(r.what.made) : r.what.name;
}

/// A difference, absolute and in percent.
std::string change(const char* format, double before, double after) {
  const double share = before > 0 ? 100 * (after - before) / before : 0;
  return formatted(format, after - before) +
         formatted(std::fabs(share) < 1000 ? ", %+.1f %%" : ", %+.0f %%", share);
}

void print_row(const report& r, const timed_candidate& shown, const char* mark, const std::string& name) {
  const candidate& c = shown.what;
  const double over = ratio(static_cast<double>(c.memory), static_cast<double>(r.program.peak_live()));
  if (!c.completes) {
    std::printf("%s %18.1f %11.3f %42s  %s\n", mark, mib(c.memory), over, "does not complete", name.c_str());
    return;
  }
  std::printf("%s %18.1f %11.3f %10.2f %12ju %9.1f %8.2f  %s\n", mark, mib(c.memory), over, ms(c.device_ns),
              static_cast<std::uintmax_t>(c.calls), shown.host_ns * r.given.compiled_share,
              ratio(shown.host_ns, r.given.pytorch.host_ns), name.c_str());
}

bool is_own(const report& r, const timed_candidate& shown) {
  const auto& own = r.asked.own_names;
  return std::find(own.begin(), own.end(), shown.what.name) != own.end();
}

void print_compared(const report& r) {
  const advice& given = r.given;
  const candidate& shipped = given.shipped.what;
  const bool is_slow = shipped.is_eligible() && r.asked.max_ns > 0 &&
                       given.shipped.host_ns * given.compiled_share > r.asked.max_ns;
  const auto is_as_recorded = [&](const timed_candidate& one) {
    return given.recorded && one.what.made == given.recorded->what.made;
  };
  const auto name = [&](const timed_candidate& one) {
    return name_of(one) + (is_as_recorded(one) ? ", as recorded" : "");
  };
  std::printf("  for comparison, pytorch%s and %s%s:\n", given.recorded ? ", the recorded settings" : "",
              is_own(r, given.shipped) ? "your recipe, which needs no more memory than the shipped ones"
                                       : "the shipped recipe that needs least memory",
              !shipped.completes ? " (no recipe with a name completes)"
              : is_slow          ? " (above --max-ns)"
                                 : "");
  print_row(r, given.pytorch, " ", name(given.pytorch));
  if (given.recorded && !is_as_recorded(given.pytorch) && !is_as_recorded(given.shipped))
    print_row(r, *given.recorded, " ", "as recorded: " + r.asked.recorded->first);
  if (!(shipped.made == given.pytorch.what.made)) print_row(r, given.shipped, " ", name(given.shipped));
}

void print_front(const report& r) {
  const char* const memory = r.asked.has_capacity ? "min capacity, MiB" : "peak reserved, MiB";
  std::printf("  %18s %11s %10s %12s %9s %8s\n", memory, "/ peak live", "device, ms", "device calls",
              "host, ns", "relative");
  for (const timed_candidate& shown : r.given.front) {
    const bool wins = shown.what.made == r.given.winner.what.made;
    print_row(r, shown, wins ? "*" : " ", name_of(shown));
  }
  print_compared(r);
}

void print_knobs(const report& r) {
  const timed_candidate& w = r.given.winner;
  const double share = r.given.compiled_share;
  std::puts("What each policy gains: the change if that axis is as in pytorch");
  std::printf("  %-9s %-22s %-22s %-20s %s\n", "", r.asked.has_capacity ? "min capacity" : "peak reserved",
              "device time", "host time", "policy");
  for (const knob& k : r.given.knobs) {
    const timed_candidate& o = k.without;
    std::string device = "does not complete", host;
    if (o.what.completes) {
      device = change("%+.2f ms", ms(w.what.device_ns), ms(o.what.device_ns));
      host = change("%+.1f ns", w.host_ns * share, o.host_ns * share);
    }
    std::printf("  %-9s %-22s %-22s %-20s %s\n", axis_names[k.axis],
                change("%+.1f MiB", mib(w.what.memory), mib(o.what.memory)).c_str(), device.c_str(),
                host.c_str(), policy_texts(w.what.made)[k.axis].c_str());
  }
}

/// The functions that a composition needs from the provider beyond acquire and release.
std::string needs_of(const composition& c) {
  std::string needs;
  const auto add = [&](const char* what) { needs += (needs.empty() ? "" : ", ") + std::string(what); };
  if (c.growth.has_ranges()) add("virtual memory (virtual_memory_provider)");
  if (!(c.pages == any_pages{})) add("page sizes (paged_provider)");
  if (c.streams.is<policy::reuse_across_streams<>>()) add("stream ordering (ordering_provider)");
  return needs;
}

std::string verdict(const report& r) {
  const timed_candidate& w = r.given.winner;
  const timed_candidate& p = r.given.pytorch;
  if (!w.what.completes) return "No candidate completes with this capacity. The nearest:";
  if (!r.given.keeps_max_ns) return "No candidate keeps --max-ns. The fastest:";
  if (!r.given.beats_pytorch) return "No candidate beats pytorch by more than the noise: keep pytorch.";
  std::string text = r.asked.has_capacity ? "It needs " : "It reserves ";
  if (!p.what.completes) text = "pytorch does not complete with this capacity; this recipe does. It needs ";
  const auto against = [&](const char* format, double value, double baseline) {
    text +=
        formatted(format, value) + (p.what.completes ? " (" + change("%+.1f", baseline, value) + ")" : "");
  };
  against("%.1f MiB", mib(w.what.memory), mib(p.what.memory));
  text += " and takes ";
  against("%.2f ms", ms(w.what.device_ns), ms(p.what.device_ns));
  text += " of device time and ";
  against("%.1f ns", w.host_ns * r.given.compiled_share, p.host_ns * r.given.compiled_share);
  return text +
         (p.what.completes ? " of host time (in parentheses: compared with pytorch)." : " of host time.");
}

/// The rule that selected the winner; empty if the verdict says it.
std::string rule(const report& r) {
  const advice& given = r.given;
  const candidate& w = given.winner.what;
  if (!w.is_eligible() || !given.beats_pytorch || given.why == reason::quickest) return {};
  const std::string needs = r.asked.has_capacity ? "needs" : "reserves";
  const std::string verb = r.asked.has_capacity ? "need" : "reserve";
  const bool is_twice =
      given.pytorch.what.completes && given.device_limit_ns == 2 * given.pytorch.what.device_ns;
  const std::string device_limit = formatted("%.2f ms of device time (", ms(given.device_limit_ns)) +
                                   (is_twice ? "twice pytorch's)" : "1/200 of a device call per block)");
  const std::string host_limit = formatted("%.1f ns of host time", given.host_limit_ns);
  const bool keeps_host = given.winner.host_ns * given.compiled_share <= given.host_limit_ns;
  const std::string exception =
      w.device_ns <= given.device_limit_ns
          ? "."
          : ";\n  no candidate does within " + device_limit + " and " + host_limit + ".";
  if (given.why == reason::least_memory)
    return "Selected: the candidate that " + needs + " least memory within " + device_limit +
           (keeps_host ? " and " + host_limit : "") +
           ";\n  among those within 0.5 % of it, the one with the least device time.";
  if (given.why == reason::least_as_shipped)
    return "Selected: the least device time among candidates that " + verb + " no more memory than " +
           (is_own(r, given.shipped) ? "your recipe " : "the shipped ") + name_of(given.shipped) + exception;
  return "Selected: the least device time among candidates that complete" +
         (keeps_host ? " within " + host_limit : "") + exception;
}

void print_planned(const report& r) {
  if (!r.planned) return;
  const planned_run& run = *r.planned;
  std::printf("\nWith a plan of this recording and pytorch (%s plan):\n", program_name().c_str());
  std::printf("  %.1f MiB reserved at peak, %.4f of peak live; %s; %s not planned%s\n",
              mib(run.peak_reserved),
              ratio(static_cast<double>(run.peak_reserved), static_cast<double>(r.program.peak_live())),
              counted(run.calls, "device call").c_str(), counted(run.unplanned, "request").c_str(),
              run.failures > 0 ? "; does not complete" : "");
}

void print_recipe(const report& r) {
  const composition& made = r.given.winner.what.made;
  const std::string needs = needs_of(made);
  if (!needs.empty()) std::printf("// The provider must support %s.\n", needs.c_str());
  std::fputs(as_recipe(made, "tuned").c_str(), stdout);
}

void print_json_row(const report& r, const timed_candidate& shown) {
  std::printf("{\"composition\": \"%s\", \"shipped_as\": \"%s\", \"%s\": ",
              json_text(as_variation(shown.what.made)).c_str(), json_text(shown.what.name).c_str(),
              r.asked.has_capacity ? "min_capacity" : "peak_reserved");
  shown.what.memory == unlimited ? std::printf("null") : std::printf("%zu", shown.what.memory);
  std::printf(
      ", \"device_ns\": %ju, \"device_calls\": %ju, \"host_ns_per_operation\": %.1f, \"completes\": %s}",
      static_cast<std::uintmax_t>(shown.what.device_ns), static_cast<std::uintmax_t>(shown.what.calls),
      shown.host_ns * r.given.compiled_share, shown.what.completes ? "true" : "false");
}

}  // namespace

void print(const report& r) {
  const advice& given = r.given;
  std::printf("%s: %s, peak live %.1f MiB, %s; %s tried\n\n", r.trace.c_str(),
              counted(r.program.events().size(), "operation").c_str(), mib(r.program.peak_live()),
              given.several_streams ? "several streams" : "one stream",
              counted(given.tried, "composition").c_str());
  if (r.program.sleeps() != 0)
    std::printf("%s: only compositions that map pages execute them\n\n",
                counted(r.program.sleeps(), "sleep or wake", "sleeps and wakes").c_str());
  std::puts("Pareto front of memory, device time and host time (* is the selected recipe):");
  print_front(r);
  std::printf(
      "  Host time is per operation: measured with policies chosen at run time, times %.2f, the factor that\n"
      "  compiling gives for pytorch. \"relative\" compares with pytorch. Half of pytorch's repetitions lie "
      "within "
      "%.1f %%.\n",
      given.compiled_share, 100 * given.noise);
  if (!given.left_out.empty()) {
    std::printf(
        "  Left out: they need every use on a stream recorded, and this program uses several streams:");
    for (const std::string& name : given.left_out) std::printf(" %s", name.c_str());
    std::puts("");
  }
  std::printf("\n%s\n", verdict(r).c_str());
  if (const std::string why = rule(r); !why.empty()) std::printf("  %s\n", why.c_str());
  if (given.winner_elsewhere > 0)
    std::printf("  With all sizes 3 %% larger, peak reserved / peak live is %.3f, and %.3f with pytorch.\n",
                given.winner_elsewhere, given.pytorch_elsewhere);
  if (!given.knobs.empty()) {
    std::puts("");
    print_knobs(r);
  }
  print_planned(r);
  std::puts("");
  print_recipe(r);
}

void print_json(const report& r) {
  const advice& given = r.given;
  std::printf("{\"trace\": \"%s\", \"operations\": %zu, \"peak_live\": %zu, \"capacity\": ",
              json_text(r.trace).c_str(), r.program.events().size(), r.program.peak_live());
  r.asked.has_capacity ? std::printf("%zu", r.asked.capacity) : std::printf("null");
  if (!r.settings.empty()) std::printf(", %s", r.settings.c_str());
  std::printf(
      ", \"tried\": %zu, \"beats_pytorch\": %s, \"device_limit_ns\": %ju, \"host_limit_ns\": %.1f, "
      "\"noise\": %.4f,\n \"pytorch\": ",
      given.tried, given.beats_pytorch ? "true" : "false", static_cast<std::uintmax_t>(given.device_limit_ns),
      given.host_limit_ns, given.noise);
  print_json_row(r, given.pytorch);
  std::printf(",\n \"best_shipped\": ");
  print_json_row(r, given.shipped);
  std::printf(",\n \"recorded\": ");
  given.recorded ? print_json_row(r, *given.recorded) : void(std::printf("null"));
  std::printf(
      ",\n \"with_sizes_3_percent_larger\": {\"winner_over_live\": %.6f, \"pytorch_over_live\": %.6f}",
      given.winner_elsewhere, given.pytorch_elsewhere);
  std::printf(",\n \"winner\": ");
  print_json_row(r, given.winner);
  std::printf(",\n \"recipe\": \"%s\",\n \"front\": [",
              json_text(as_recipe(given.winner.what.made, "tuned")).c_str());
  for (const timed_candidate& shown : given.front) {
    std::printf("%s\n  ", &shown == given.front.data() ? "" : ",");
    print_json_row(r, shown);
  }
  std::printf("],\n \"without\": [");
  for (const knob& k : given.knobs) {
    std::printf("%s\n  {\"axis\": \"%s\", \"then\": ", &k == given.knobs.data() ? "" : ",",
                axis_names[k.axis]);
    print_json_row(r, k.without);
    std::printf("}");
  }
  std::printf("],\n \"planned\": ");
  if (!r.planned) {
    std::puts("null}");
    return;
  }
  std::printf(
      "{\"plan_bytes\": %zu, \"peak_reserved\": %zu, \"device_calls\": %ju, \"unplanned\": %ju, "
      "\"failures\": %zu}}\n",
      r.planned->plan_bytes, r.planned->peak_reserved, r.planned->calls, r.planned->unplanned,
      r.planned->failures);
}

}  // namespace replay::tune
