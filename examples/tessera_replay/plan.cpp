// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/tool/simulated.hpp>
#include <tessera/trace/recording.hpp>

#include "capacity.hpp"
#include "commands.hpp"
#include "compare.hpp"
#include "files.hpp"
#include "input.hpp"
#include "plan.hpp"
#include "planner/make_plan.hpp"
#include "planner/plan_file.hpp"
#include "recipes.hpp"
#include "terminal.hpp"

namespace {

using namespace replay;

bool is_keyword(std::string_view name) {
  constexpr std::string_view keywords[] = {
      "alignas",     "alignof",  "and",        "and_eq",    "asm",       "auto",         "bitand",
      "bitor",       "bool",     "break",      "case",      "catch",     "char",         "char16_t",
      "char32_t",    "char8_t",  "class",      "co_await",  "co_return", "co_yield",     "compl",
      "concept",     "const",    "const_cast", "consteval", "constexpr", "constinit",    "continue",
      "decltype",    "default",  "delete",     "do",        "double",    "dynamic_cast", "else",
      "enum",        "explicit", "export",     "extern",    "false",     "float",        "for",
      "friend",      "goto",     "if",         "inline",    "int",       "long",         "mutable",
      "namespace",   "new",      "noexcept",   "not",       "not_eq",    "nullptr",      "operator",
      "or",          "or_eq",    "private",    "protected", "public",    "register",     "reinterpret_cast",
      "requires",    "return",   "short",      "signed",    "sizeof",    "static",       "static_assert",
      "static_cast", "struct",   "switch",     "template",  "this",      "thread_local", "throw",
      "true",        "try",      "typedef",    "typeid",    "typename",  "union",        "unsigned",
      "using",       "virtual",  "void",       "volatile",  "wchar_t",   "while",        "xor",
      "xor_eq"};
  return std::find(std::begin(keywords), std::end(keywords), name) != std::end(keywords);
}
/// Turns a title into an identifier.
std::string identifier(std::string_view title) {
  std::string name;
  for (const char c : title) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && name.empty()) name += '_';
    name += is_letter || is_digit ? c : '_';
  }
  return name.empty() ? "plan" : is_keyword(name) ? name + "_" : name;
}

void show_progress(void*, std::size_t best, std::size_t lower_bound) {
  char line[128];
  std::snprintf(line, sizeof line, "plan: %.1f MiB, at least %.1f MiB", mib(best), mib(lower_bound));
  progress_line::show(line);
}

/// Says which bank holds how much, and how few bytes would do outside the first.
void print_banks(const tessera::plan::made_plan& made, const std::vector<std::size_t>& banks) {
  for (std::size_t bank = 0; bank < banks.size(); ++bank) {
    const std::size_t bytes = made.bank_bytes[bank], most = tessera::plan::whole_bytes_of_bank(banks[bank]);
    std::printf("  bank %-7zu %14zu %s of %zu%s\n", bank, bytes, bytes == 1 ? "byte" : "bytes", banks[bank],
                bytes > most ? ": does not fit" : "");
  }
  if (banks.size() == 1) return;
  std::printf("  %-12s %14zu bytes%s\n", "outside", made.outside(),
              made.outside() == made.outside_bound
                  ? "; no choice for these steps needs less"
                  : (", at least " + std::to_string(made.outside_bound) + " for these steps").c_str());
}
std::string banks_json(const tessera::plan::made_plan& made, const std::vector<std::size_t>& banks) {
  if (banks.empty()) return {};
  std::string text = R"("banks": [)";
  for (std::size_t bank = 0; bank < banks.size(); ++bank) {
    text += std::string(bank == 0 ? "" : ", ") + R"({"capacity": )" + std::to_string(banks[bank]) +
            R"(, "bytes": )" + std::to_string(made.bank_bytes[bank]) + "}";
  }
  return text + R"(], "outside": )" + std::to_string(made.outside()) + R"(, "outside_lower_bound": )" +
         std::to_string(made.outside_bound) + ", ";
}

/// `capacity` is 0 if none was given.
void print(const std::string& title, const tessera::plan::made_plan& made, std::size_t capacity,
           const std::vector<std::size_t>& banks, const std::string& warning, double seconds) {
  const tessera::plan::memory_plan& plan = made.numbers;
  std::printf("%s: %s in %s, %zu of them different; %s\n", title.c_str(),
              counted(made.recorded_requests, "request").c_str(),
              counted(made.recorded_steps, "step").c_str(), made.different_steps,
              counted(made.entries.size(), "entry", "entries").c_str());
  const auto print_size = [](const char* name, std::uintmax_t bytes, const std::string& more) {
    std::printf("  %-12s %14ju %s%s\n", name, bytes, bytes == 1 ? "byte" : "bytes", more.c_str());
  };
  const auto over_peak = [&](std::uintmax_t bytes) {
    char text[48];
    std::snprintf(text, sizeof text, ", %.4f of peak live", ratio(bytes, plan.peak_live));
    return std::string(text);
  };
  print_size("peak live", plan.peak_live, "");
  print_size("lower bound", plan.lower_bound, over_peak(plan.lower_bound));
  print_size("plan", plan.bytes,
             over_peak(plan.bytes) +
                 (made.is_optimal && banks.empty() ? "; no placement of these steps needs less" : ""));
  if (capacity > 0)
    print_size("capacity", capacity,
               plan.bytes <= capacity ? ": the plan fits"
               : plan.lower_bound <= capacity
                   ? ": the plan does not fit"
                   : ": the plan does not fit, and no placement of these steps does");
  if (!banks.empty()) print_banks(made, banks);
  if (made.left_out_streams > 0)
    std::printf("  %-12s %14zu %s with %s: places of their own would cost more memory\n", "left out",
                made.left_out_streams, made.left_out_streams == 1 ? "stream" : "streams",
                counted(made.left_out_requests, "request").c_str());
  std::printf("  %-12s %14.1f s\n", "time", seconds);
  if (!warning.empty()) std::printf("  warning: %s\n", warning.c_str());
}

void print_json(const std::string& title, const tessera::plan::made_plan& made, std::size_t capacity,
                const std::vector<std::size_t>& banks, const std::string& warning,
                const std::string& settings, double seconds) {
  const tessera::plan::memory_plan& plan = made.numbers;
  std::printf(
      "{\"trace\": \"%s\", \"requests\": %zu, \"steps\": %zu, \"different_steps\": %zu, \"entries\": %zu, "
      "\"peak_live\": %ju, \"lower_bound\": %ju, \"bytes\": %ju, \"over_peak_live\": %.6f, \"optimal\": %s, "
      "\"fits\": %s, %s\"left_out_streams\": %zu, \"left_out_requests\": %zu, \"warning\": \"%s\", "
      "%s, \"seconds\": %.1f}\n",
      json_text(title).c_str(), made.recorded_requests, made.recorded_steps, made.different_steps,
      made.entries.size(), std::uintmax_t{plan.peak_live}, std::uintmax_t{plan.lower_bound},
      std::uintmax_t{plan.bytes}, ratio(plan.bytes, plan.peak_live), made.is_optimal ? "true" : "false",
      !banks.empty()           ? made.fits(banks) ? "true" : "false"
      : capacity == 0          ? "null"
      : plan.bytes <= capacity ? "true"
                               : "false",
      banks_json(made, banks).c_str(), made.left_out_streams, made.left_out_requests,
      json_text(warning).c_str(), settings.c_str(), seconds);
}

struct replay_result {
  std::size_t failures = 0, peak = 0;
};
/// Replays the whole recording with a recipe, with a plan or without.
replay_result replay_with(const any_recipe& recipe, const run_settings& used,
                          const tessera::trace::recording& recording,
                          const tessera::plan::memory_plan* plan) {
  const tessera::trace::program program(recording);
  simulated_allocator pool = recipe.make(device_of(used.capacity), {.plan = plan});
  const std::size_t failures = tessera::trace::replay(program, pool);
  return {failures, pool.provider().peak_used()};
}
/// Returns a warning if a plan does not lower the peak; empty if it does.
std::string warning_of(const run_settings& used, const replay_result& alone, const replay_result& planned) {
  if (planned.failures < alone.failures || (planned.failures == alone.failures && planned.peak < alone.peak))
    return {};
  std::string warning = "the recipe " + used.recipe + " alone reserves " + counted(alone.peak, "byte") +
                        ", and " + std::to_string(planned.peak) + " with this plan";
  if (planned.failures != 0)
    warning += "; " + counted(planned.failures, "request fails", "requests fail") + " with it, and " +
               std::to_string(alone.failures) + " without";
  return warning;
}

/// Writes a plan in the format of the file's extension.
///   Returns:  the exit code
int write(const std::string& path, const std::string& title, const tessera::plan::made_plan& made) {
  std::string text;
  if (path.ends_with(".csv")) {
    text = tessera::plan::to_csv(made.view());
  } else {
    char comment[160];
    std::snprintf(comment, sizeof comment,
                  "A plan of %.60s, written by tessera-replay: %ju bytes for a peak of %ju.",
                  identifier(title).c_str(), std::uintmax_t{made.numbers.bytes},
                  std::uintmax_t{made.numbers.peak_live});
    text = tessera::plan::to_header(made.view(), identifier(title), comment);
  }
  const std::optional<input_error> failed = save(path, text);
  return failed ? print_error(failed->text()) : +done;
}

}  // namespace

replay::read_result<std::optional<tessera::plan::made_plan>> replay::read_plan(const arguments& args) {
  if (args.plan.empty()) return std::optional<tessera::plan::made_plan>();
  auto text = read_file(args.plan);
  if (auto* const wrong = std::get_if<input_error>(&text)) return std::move(*wrong);
  auto read = tessera::plan::read_csv(std::get<std::string>(text), args.plan);
  if (auto* const wrong = std::get_if<input_error>(&read)) return std::move(*wrong);
  return std::optional(std::move(std::get<tessera::plan::made_plan>(read)));
}

replay::simulated_allocator replay::simulated_allocator::with_plan(simulated_allocator inside,
                                                                   const tessera::plan::memory_plan& plan) {
  using allocator = tessera::plan::planned<simulated_allocator>;
  auto& made = *new allocator(plan, std::move(inside));
  simulated_allocator result(made);
  result.for_each_block = {made, [](allocator& a, auto f) {
                             a.inner().for_each_block(f);
                             a.visit_plan([f](const auto& planned) { planned.for_each_block(f); });
                           }};
  result.live_block_at = {made, [](allocator& a, const void* p) {
                            tessera::block_view found{};
                            a.visit_plan([&](const auto& planned) { found = planned.live_block_at(p); });
                            return found.bytes > 0 ? found : a.inner().live_block_at(p);
                          }};
  return result;
}

std::string replay::plan_note(const tessera::plan::memory_plan& plan,
                              const tessera::trace::recording& source) {
  const std::uint64_t here = tessera::plan::fingerprint(source, plan.first_event, plan.end_event);
  if (here == plan.fingerprint) return {};
  return "the plan was made of another recording, or of another part of it";
}

std::string replay::served_text(const tessera::plan::plan_usage& used) {
  return "the plan served " + std::to_string(used.requests) + " of " +
         counted(used.requests + used.unplanned_requests, "request");
}

std::string replay::plan_warning(const tessera::plan::plan_usage& used, std::size_t with_plan,
                                 std::size_t alone) {
  std::string text;
  if (used.fault != nullptr) text = std::string("the plan serves nothing: ") + used.fault;
  if (text.empty() && used.requests == 0) text = "this is not a plan of this program: it served no request";
  if (text.empty() && used.requests < used.unplanned_requests)
    text = "the plan serves less than half of the requests: this run differs from the recorded one";
  if (with_plan >= alone)
    text +=
        std::string(text.empty() ? "" : "; ") + "the recipe alone needs no more memory than with this plan";
  return text;
}

std::string replay::plan_json(const tessera::plan::plan_usage& used, const std::string& warning) {
  return ", \"planned_requests\": " + std::to_string(used.requests) +
         ", \"unplanned_requests\": " + std::to_string(used.unplanned_requests) + ", \"warning\": \"" +
         json_text(warning) + "\"";
}

namespace {

/// Plans one trace, and writes the plan to files.
verb_result plan_one(const arguments& args, const run_trace& trace, const traces& all) {
  const auto& recording = trace.made;
  if (args.from >= (std::min)(args.to, recording.events.size()))
    return args.files[0] + ": --from " + std::to_string(args.from) + ": no event lies between it and the end";

  tessera::plan::make_options options;
  options.first_event = args.from;
  options.end_event = args.to;
  options.effort = args.effort;
  if (args.has_capacity) options.capacity = args.capacity;
  options.banks = args.banks;
  options.seed = args.seed;
  options.alignment = args.alignment;
  options.progress = show_progress;
  // --capacity is that of the plan.
  arguments of_device = args;
  of_device.has_capacity = false;
  const run_settings device = settle(of_device, trace.known);
  const recipe_or_error chosen = choose_recipe(device);
  const auto* const recipe = std::get_if<any_recipe>(&chosen);
  progress_line::show("plan: finding the steps of " + recording.name);
  replay_result alone;
  if (recipe != nullptr) alone = replay_with(*recipe, device, recording, nullptr);
  if (args.banks.empty()) options.reserved_without = alone.peak;
  const auto begin = std::chrono::steady_clock::now();
  const tessera::plan::made_plan made = tessera::plan::make(recording, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress_line::clear();
  if (const char* const fault = tessera::plan::find_fault(made.view()))
    return args.files[0] + ": no plan can be made: " + fault;
  if (made.entries.empty()) return args.files[0] + ": nothing to plan: no request outside private pools";
  const tessera::plan::memory_plan view = made.view();
  const std::string warning = recipe == nullptr
                                  ? std::get<std::string>(chosen)
                                  : warning_of(device, alone, replay_with(*recipe, device, recording, &view));
  if (args.json) {
    print_json(recording.name, made, options.capacity, args.banks, warning, settings_json(device), seconds);
  } else {
    const std::size_t known = args.banks.empty() ? trace.known.capacity : 0;
    print(recording.name, made, args.has_capacity ? options.capacity : known, args.banks, warning, seconds);
    std::printf("  used to replay with and without the plan: %s\n", settings_text(device).c_str());
  }
  for (const std::string& out : args.outs) {
    if (const int code = write(out_path(out, all, trace), recording.name, made); code != done) return code;
  }
  if (!args.banks.empty()) return made.fits(args.banks) ? +done : +differs;
  return options.capacity > 0 && made.numbers.bytes > options.capacity ? +differs : +done;
}

}  // namespace

int replay::commands::plan(const arguments& args) {
  if (args.has_capacity && !args.banks.empty())
    return print_error("plan: --capacity is that of one bank; give --bank for each instead");
  return with_each_trace(args, [&](const run_trace& trace, const run_settings&, const traces& all) {
    return plan_one(args, trace, all);
  });
}
