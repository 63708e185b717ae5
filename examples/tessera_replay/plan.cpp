// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>

#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/make_plan.hpp>
#include <tessera/plan/plan_file.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "compare.hpp"
#include "files.hpp"
#include "input.hpp"
#include "plan.hpp"
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

void show_progress(void*, std::size_t best, std::size_t lower_bound, double seconds) {
  char line[128];
  std::snprintf(line, sizeof line, "plan: %.1f MiB after %.1f s, at least %.1f MiB", mib(best), seconds,
                mib(lower_bound));
  progress_line::show(line);
}

void print(const std::string& title, const tessera::plan::made_plan& made, double seconds) {
  const tessera::memory_plan& plan = made.numbers;
  const auto of_peak = [&](std::size_t bytes) { return ratio(bytes, plan.peak_live); };
  std::printf("%s: %zu requests in %zu steps, %zu of them different; %zu entries\n", title.c_str(),
              made.recorded_requests, made.recorded_steps, made.different_steps, made.entries.size());
  std::printf("  %-12s %14ju bytes\n", "peak live", std::uintmax_t{plan.peak_live});
  std::printf("  %-12s %14ju bytes, %.4f of peak live\n", "lower bound", std::uintmax_t{plan.lower_bound},
              of_peak(plan.lower_bound));
  std::printf("  %-12s %14ju bytes, %.4f of peak live%s\n", "plan", std::uintmax_t{plan.bytes},
              of_peak(plan.bytes), made.is_optimal ? "; no placement of these steps needs less" : "");
  if (made.left_out_streams > 0)
    std::printf("  %-12s %14zu streams with %zu requests: places of their own would cost more memory\n",
                "left out", made.left_out_streams, made.left_out_requests);
  std::printf("  %-12s %14.1f s\n", "time", seconds);
}

void print_json(const std::string& title, const tessera::plan::made_plan& made, double seconds) {
  const tessera::memory_plan& plan = made.numbers;
  std::printf(
      "{\"trace\": \"%s\", \"requests\": %zu, \"steps\": %zu, \"different_steps\": %zu, \"entries\": %zu, "
      "\"peak_live\": %ju, \"lower_bound\": %ju, \"bytes\": %ju, \"over_peak_live\": %.6f, \"optimal\": %s, "
      "\"left_out_streams\": %zu, \"left_out_requests\": %zu, \"seconds\": %.1f}\n",
      json_text(title).c_str(), made.recorded_requests, made.recorded_steps, made.different_steps,
      made.entries.size(), std::uintmax_t{plan.peak_live}, std::uintmax_t{plan.lower_bound},
      std::uintmax_t{plan.bytes}, ratio(plan.bytes, plan.peak_live), made.is_optimal ? "true" : "false",
      made.left_out_streams, made.left_out_requests, seconds);
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

std::string replay::plan_note(const tessera::memory_plan& plan, const tessera::trace::recording& source) {
  const std::uint64_t here = tessera::plan::fingerprint(source, plan.first_event, plan.end_event);
  if (here == plan.fingerprint) return {};
  return "the plan was made of another recording, or of another part of it";
}

int replay::commands::plan(const arguments& args) {
  for (const std::string& out : args.outs) {
    if (!out.ends_with(".hpp") && !out.ends_with(".h") && !out.ends_with(".csv"))
      return print_error("plan: --out " + out + ": the extension must be .hpp, .h or .csv");
    if (is_same_file(args.files[0], out)) return print_error("plan: --out " + out + ": is the trace");
    const std::filesystem::path folder = std::filesystem::path(out).parent_path();
    std::error_code unknown;  // then writing the file reports it
    if (!folder.empty() && !std::filesystem::exists(folder, unknown) && !unknown)
      return print_error("plan: --out " + out + ": its folder does not exist");
  }
  const auto read = read_only_trace(args);
  if (const auto* const wrong = std::get_if<input_error>(&read)) return print_error(wrong->text());
  const auto& recording = std::get<tessera::trace::recording>(read);
  if (args.from >= (std::min)(args.to, recording.events.size()))
    return print_error(args.files[0] + ": --from " + std::to_string(args.from) +
                       ": no event lies between it and the end");

  tessera::plan::make_options options;
  options.first_event = args.from;
  options.end_event = args.to;
  options.seconds = args.seconds;
  options.seed = args.seed;
  options.alignment = args.alignment;
  options.progress = show_progress;
  progress_line::show("plan: finding the steps of " + recording.name);
  const auto begin = std::chrono::steady_clock::now();
  const tessera::plan::made_plan made = tessera::plan::make(recording, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress_line::clear();
  if (const char* const fault = tessera::plan::find_fault(made.view()))
    return print_error(args.files[0] + ": no plan can be made: " + fault);
  if (made.entries.empty())
    return print_error(args.files[0] + ": nothing to plan: no request outside private pools");
  args.json ? print_json(recording.name, made, seconds) : print(recording.name, made, seconds);
  for (const std::string& out : args.outs) {
    if (const int code = write(out, recording.name, made); code != done) return code;
  }
  return done;
}
