// SPDX-License-Identifier: Apache-2.0
// The command line of tessera-replay, and of tools with further recipes.

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/bank_policy.hpp>
#include <tessera/tool/recipe_entry.hpp>
#include <tessera/version.hpp>

#include "commands.hpp"
#include "input.hpp"
#include "numbers.hpp"
#include "planner/make_plan.hpp"
#include "recipes.hpp"
#include "terminal.hpp"
#include "text.hpp"

namespace {

using replay::arguments;
using replay::print_error;

struct option {
  std::string_view name;
  std::string_view value;    // the name of its value; empty for a flag
  std::string_view meaning;  // lines
  std::string (*read)(arguments&,
                      std::string_view);  // stores a value; returns the error text, or an empty one
};

std::string read_recipe(arguments& args, std::string_view name) {
  if (const std::string wrong = args.known->unknown(name); !wrong.empty()) return wrong;
  args.recipe = args.recipes.emplace_back(args.known->full_name(name));
  return {};
}
std::string read_system(arguments& args, std::string_view name) {
  constexpr std::string_view known[] = {"pytorch", "torch_npu", "paddle"};
  args.system = name;
  if (std::find(std::begin(known), std::end(known), name) != std::end(known)) return {};
  return args.system + ": no such system; there are " + replay::listed(known) +
         replay::did_you_mean(name, known);
}
std::string read_conf(arguments& args, std::string_view text) {
  args.conf = args.confs.emplace_back(text);
  args.has_conf = replay::has_given_conf() = true;
  return {};
}
std::string read_out(arguments& args, std::string_view path) {
  args.out = args.outs.emplace_back(path);
  return {};
}
std::string read_plan_path(arguments& args, std::string_view path) {
  args.plan = path;
  return path.ends_with(".csv") ? "" : args.plan + ": must be a .csv file that the verb plan wrote";
}
std::string read_at(arguments& args, std::string_view text) {
  args.at = text;
  return text == "peak" || text == "end" ? "" : args.at + ": must be peak or end";
}
std::string read_capacity(arguments& args, std::string_view size) {
  args.has_capacity = true;
  return replay::read_size(size, args.capacity);
}
std::string read_memory_fraction(arguments& args, std::string_view text) {
  const auto share = replay::read_real(text);
  if (!share || !(*share >= 0 && *share <= 1)) return std::string(text) + ": must be a number from 0 to 1";
  args.memory_fraction = share;
  return {};
}
std::string read_device(arguments& args, std::string_view text) {
  args.device.reset();
  if (text == "all") return {};
  std::size_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc{} || end != last) return std::string(text) + ": must be a number from 0 on, or all";
  args.device = number;
  return {};
}
/// Reads a whole number of at least `min` and at most `max`.
template <typename Number>
std::string read_number(std::string_view text, Number& value, Number min, Number max) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error == std::errc{} && end == last && value >= min && value <= max) return {};
  return std::string(text) + ": must be a number from " + std::to_string(min) + " to " + std::to_string(max);
}
std::string read_from(arguments& args, std::string_view text) {
  return read_number<std::size_t>(text, args.from, 0, tessera::max_request);
}
std::string read_to(arguments& args, std::string_view text) {
  return read_number<std::size_t>(text, args.to, 1, tessera::max_request);
}
std::string read_effort(arguments& args, std::string_view text) {
  args.effort = replay::read_real(text).value_or(0);
  if (args.effort > 0 && args.effort <= 100'000) return {};
  return std::string(text) + ": must be a positive number, up to 100000";
}
std::string read_seed(arguments& args, std::string_view text) {
  return read_number<std::uint64_t>(text, args.seed, 0, ~std::uint64_t{0});
}
std::string read_alignment(arguments& args, std::string_view text) {
  const std::string wrong = read_number<std::uint32_t>(text, args.alignment, 64, 1u << 21);
  if (!wrong.empty() || std::has_single_bit(args.alignment)) return wrong;
  return std::string(text) + ": must be a power of two";
}
std::string read_bank(arguments& args, std::string_view size) {
  std::string wrong = replay::read_size(size, args.banks.emplace_back());
  if (!wrong.empty()) return wrong;
  if (args.banks.back() < tessera::plan::bank_alignment)
    return std::string(size) + ": a bank has at least 2 MiB";
  return args.banks.size() > tessera::provider::max_banks ? "there are at most 64 banks" : "";
}
std::string read_jobs(arguments& args, std::string_view text) {
  return read_number<std::size_t>(text, args.jobs, 1, 4096);
}
std::string read_addresses(arguments& args, std::string_view text) {
  return read_number<std::size_t>(text, args.addresses, 1, 1'000'000);
}
std::string read_trials(arguments& args, std::string_view text) {
  return read_number<std::size_t>(text, args.trials, 1, 100'000'000);
}
std::string read_vary(arguments& args, std::string_view text) {
  const std::string all(text);
  args.varied = {.order = false, .steps = false, .timing = false, .addresses = false, .percent = 0};
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::string_view size = one.starts_with("sizes=") ? one.substr(6) : one == "sizes" ? "2" : "";
    if (one == "order")
      args.varied.order = true;
    else if (one == "steps")
      args.varied.steps = true;
    else if (one == "timing")
      args.varied.timing = true;
    else if (one == "addresses")
      args.varied.addresses = true;
    else if (const auto percent = replay::read_real(size); percent && *percent >= 0 && *percent <= 50)
      args.varied.percent = *percent;
    else
      return all +
             ": must be words of order, steps, timing, addresses and sizes or sizes=PERCENT (0 to 50), with "
             "commas";
  }
  const replay::variation& by = args.varied;
  if (by.order || by.steps || by.timing || by.addresses || by.percent > 0) return {};
  return all + ": nothing would differ, so all neighbours would be the program itself";
}
std::string read_host_memory(arguments& args, std::string_view size) {
  return replay::read_size(size, args.host_memory);
}
std::string read_results(arguments& args, std::string_view path) {
  args.results = path;
  return path.empty() ? ": must be a folder, or - for standard output" : "";
}
std::string read_max_ns(arguments& args, std::string_view text) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, args.max_ns);
  if (error == std::errc{} && end == last && args.max_ns > 0) return {};
  return std::string(text) + ": must be a positive number of nanoseconds";
}

constexpr option all_options[] = {
    {"--recipe", "NAME", "", &read_recipe},  // its meaning is the list of names
    {"--conf", "TEXT",
     "a configuration string of the recipe's system; see explain. Default: the recorded\n"
     "one, with the recorded recipe",
     &read_conf},
    {"--capacity", "SIZE",
     "device memory, in bytes or with a unit, as in 8GiB, 1.5GiB or 512MiB.\n"
     "Default: that of the recorded device, if a request failed there; else 80 GiB, and\n"
     "for tune, the larger of that and eight times peak live. For fit, plan, ranks and\n"
     "headroom, none",
     &read_capacity},
    {"--memory-fraction", "F",
     "the argument of set_per_process_memory_fraction, from 0 to 1;\n"
     "garbage_collection_threshold has an effect only with it. Default: what follows\n"
     "from a recorded request that failed although the device had room",
     &read_memory_fraction},
    {"--device", "N|all", "the device of a snapshot; default: all, one after the other", &read_device},
    {"--max-ns", "N", "the maximum host time per operation, in nanoseconds", &read_max_ns},
    {"--system", "NAME", "the system of the configuration string: pytorch (default), torch_npu or paddle",
     &read_system},
    {"--at", "peak|end", "when to take the snapshot: at peak reserved, or at the end of the trace", &read_at},
    {"--as-recorded", "", "convert the snapshot TRACE to another format, without a replay",
     [](arguments& args, std::string_view) {
       args.as_recorded = true;
       return std::string();
     }},
    {"--out", "FILE",
     "the file to write; its extension selects the format. For several devices, .device0\n"
     "and so on comes before the extension. Short: -o",
     &read_out},
    {"--plan", "FILE", "a plan in CSV, written by the verb plan; the recipe serves what it does not",
     &read_plan_path},
    {"--from", "EVENT", "the first event of the trace to plan, counted from 0; default: 0", &read_from},
    {"--to", "EVENT", "the event to stop before; default: the end of the trace", &read_to},
    {"--effort", "N",
     "the work of the search for places, at most about N seconds on an idle\n"
     "machine; counted in steps, so the plan is the same everywhere; default: 10",
     &read_effort},
    {"--seed", "N", "the seed of that search, or of the neighbours; default: 1", &read_seed},
    {"--alignment", "BYTES", "the alignment of all places, a power of two; default: 512", &read_alignment},
    {"--bank", "SIZE",
     "plan over several memories, such as HBM and DDR: the capacity of one, in\n"
     "whole 2 MiB. Give it once for each, in the order in which they are filled",
     &read_bank},
    {"--jobs", "N", "the files to work on at once; default: one per processor", &read_jobs},
    {"--addresses", "N",
     "also replay N times with addresses as drivers give them, each time others,\n"
     "and print the least and the largest peak reserved of these",
     &read_addresses},
    {"--trials", "N", "the neighbours to replay with the result; default: 1000", &read_trials},
    {"--vary", "WORDS",
     "how neighbours differ, of order, steps, timing, addresses and sizes=PERCENT;\n"
     "default: order,steps,timing,addresses,sizes=2",
     &read_vary},
    {"--host-memory", "SIZE",
     "host memory for all files at once; default: three quarters of what is\n"
     "available. A file takes up to 256 MiB and 30 bytes for each of its bytes",
     &read_host_memory},
    {"--results", "DIR",
     "the folder for one JSON file for each PATH that was measured; those of an\n"
     "earlier run are not measured again. With -, prints these results instead",
     &read_results},
    {"--json", "", "print the result as JSON", [](arguments& args, std::string_view) {
       args.json = true;
       return std::string();
     }}};

struct command {
  std::string_view name;
  int (*run)(const arguments&);
  std::string_view operand;  // TRACE, SNAPSHOT or TEXT; followed by dots if there may be several
  std::string_view takes;    // options; followed by dots if they may be repeated
  std::string_view outputs;  // the extensions of --out, which is required if `must_write`
  bool must_write;
  const char* meaning;          // lines that begin with four spaces
  std::string_view exit_codes;  // other than 0 and 2

  [[nodiscard]] bool takes_several() const { return operand.ends_with("..."); }
  [[nodiscard]] bool takes_a_text() const { return operand == "TEXT"; }
};

constexpr command all_commands[] = {
    {"compare", &replay::commands::compare, "TRACE...",
     "--recipe... --conf --capacity --memory-fraction --device --plan --addresses --json", "", false,
     "    compares recipes: peak reserved and device calls. Shows the main recipes and those named with "
     "--recipe;\n"
     "    with --conf also the last of these, or the recorded one, under these settings. All begin without a "
     "cache.\n"
     "    What the recorded GPU did is shown apart, as it began with a cache\n",
     ""},
    {"decisions", &replay::commands::decisions, "TRACE",
     "--recipe --conf --capacity --memory-fraction --device", "", false,
     "    prints every decision, one per line\n", "1 an allocation failed"},
    {"verify", &replay::commands::verify, "SNAPSHOT...", "--device --json", "", false,
     "    checks whether the pytorch recipe, or pytorch_2_14, decides as the recorded GPU did. With no "
     "allocation\n"
     "    in the history, the exit code is 0, and \"agrees\" is null in JSON\n",
     "1 it decides otherwise"},
    {"fit", &replay::commands::fit, "TRACE",
     "--recipe --conf --capacity --memory-fraction --device --plan --json", "", false,
     "    finds by bisection a capacity, up to --capacity, with which the trace completes and with one byte "
     "less\n"
     "    fails. Also tests larger capacities, since success is not strictly monotonic in capacity\n",
     "1 no capacity up to --capacity is enough"},
    {"headroom", &replay::commands::headroom, "TRACE...",
     "--recipe --conf --capacity --memory-fraction --device --trials --vary --seed --json", "", false,
     "    finds a capacity that suffices for the program and its neighbours: the same program with frees in "
     "another\n"
     "    order, streams at other times, memory at other addresses and slightly other sizes. Says how often "
     "the\n"
     "    capacity that fit finds is too small. With --capacity, only counts the neighbours that fail "
     "there\n",
     "1 a neighbour failed"},
    {"draw", &replay::commands::draw, "TRACE",
     "--recipe... --conf --capacity --memory-fraction --device --plan --out", ".svg .html", true,
     "    draws memory over time, as .html or .svg: the recorded run, if the trace is a snapshot with a "
     "history, and\n"
     "    the recipes named with --recipe. The HTML page shows each block over time and by address, the "
     "memory "
     "map\n"
     "    at any event, what keeps memory from release, and the table of compare\n",
     ""},
    {"explain-oom", &replay::commands::explain_oom, "TRACE",
     "--recipe --conf --capacity --memory-fraction --device --json", "", false,
     "    explains the first failed allocation: the blocks that keep memory from being released, and "
     "policies that\n"
     "    would help. If the recording ran out of memory, this is the last request that failed, in the "
     "recorded "
     "state\n",
     "1 an allocation failed"},
    {"tune", &replay::commands::tune, "TRACE", "--capacity --memory-fraction --device --max-ns --json", "",
     false,
     "    searches for the recipe with the least peak reserved (with --capacity: that needs the least "
     "capacity)\n"
     "    within limits of device and host time. Prints the alternatives, what each policy gains, and the "
     "recipe\n"
     "    as C++\n",
     "1 no candidate completes, or none keeps --max-ns"},
    {"plan", &replay::commands::plan, "TRACE",
     "--out... --from --to --effort --seed --capacity --bank... --alignment --device --json", ".hpp .h .csv",
     false,
     "    finds the repeated steps of a program and computes a place for each request. Prints peak live, a "
     "lower\n"
     "    bound and the plan's bytes. Writes the plan as a C++ header (.hpp), or for --plan (.csv). With "
     "--capacity,\n"
     "    it stops when the plan fits, and says whether it does. With --bank, few bytes lie outside the "
     "first\n"
     "    bank. Warns if the plan does not lower the peak\n",
     "1 the plan does not fit --capacity, or its banks"},
    {"explain", &replay::commands::explain, "TEXT", "--system", "", false,
     "    explains a configuration string key by key (* marks keys that are set, ! those of them that no "
     "policy\n"
     "    reads), or shows where it is wrong\n",
     ""},
    {"snapshot", &replay::commands::snapshot, "TRACE",
     "--out --at --recipe --conf --capacity --memory-fraction --device --as-recorded", ".pickle .json .csv",
     true,
     "    writes a snapshot for viewers of other tools: .pickle for pytorch.org/memory_viz (default: at "
     "peak\n"
     "    reserved), .json for ui.perfetto.dev or .csv in RMM's log format (default: the whole trace)\n",
     "1 an allocation failed"},
    {"ranks", &replay::commands::ranks, "PATH...",
     "--recipe... --conf... --capacity --device --jobs --host-memory --results --out --json", ".svg .html",
     false,
     "    compares the ranks of a job: peaks, fragmentation, which ran out of memory and why, and which "
     "settings\n"
     "    serve all. Tries the recipes of --recipe and pytorch with each --conf, or usual settings. --out "
     "draws it\n"
     "    as .svg or .html\n",
     "1 a rank ran out of memory"},
};

/// Calls f(name, repeats) for each option that a command takes.
template <typename F>
void for_each_option(const command& c, F f) {
  for (std::string_view rest = c.takes; !rest.empty();) {
    std::string_view one = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const bool repeats = one.ends_with("...");
    if (repeats) one.remove_suffix(3);
    f(*std::find_if(std::begin(all_options), std::end(all_options),
                    [&](const option& o) { return o.name == one; }),
      repeats);
  }
}

std::string synopsis(const command& c) {
  std::string line = replay::program_name() + " " + std::string(c.name) + " " + std::string(c.operand);
  for_each_option(c, [&](const option& o, bool repeats) {
    std::string one(o.name);
    if (!o.value.empty()) (one += ' ') += o.value;
    line += c.must_write && o.read == &read_out ? " " + one : " [" + one + "]";
    if (repeats) line += "...";
  });
  return line + "\n" + c.meaning;
}

/// Formats "NAME  meaning", with further lines of the meaning aligned below the first.
std::string described(std::string_view name, std::string_view meaning) {
  constexpr std::size_t width = 12;
  std::string text(name);
  for (bool is_first = true; !meaning.empty(); is_first = false) {
    const std::string_view line = meaning.substr(0, meaning.find('\n'));
    meaning.remove_prefix(std::min(meaning.size(), line.size() + 1));
    if (is_first) text.resize(std::max(width, text.size() + 1), ' ');
    if (!is_first) text.append(width, ' ');
    (text += line) += '\n';
  }
  return text;
}

std::string described(const option& o, const replay::recipe_list& known) {
  if (o.read != &read_recipe) return described(o.name, o.meaning);
  std::string names = "pytorch (default, if none is recorded)";
  std::size_t column = names.size();
  for (const std::string_view name : known.names()) {
    if (name == "pytorch") continue;
    const bool is_full = column + name.size() > 84;
    names += is_full ? ",\n" : ", ";
    column = (is_full ? 0 : column + 2) + name.size();
    names += name;
  }
  return described(o.name, names);
}

std::string described_operand(std::string_view operand) {
  if (operand.starts_with("TRACE"))
    return described(
        "TRACE", "op,id,bytes,stream,t_us or id,lower,upper,size (CSV), an RMM log, or a PyTorch snapshot");
  if (operand.starts_with("SNAPSHOT"))
    return described("SNAPSHOT", "a snapshot written by torch.cuda.memory._dump_snapshot");
  if (operand.starts_with("PATH"))
    return described("PATH", "a TRACE, a folder of them, or results that --results wrote (.json, .jsonl)");
  return described("TEXT", "a configuration string, as in PYTORCH_CUDA_ALLOC_CONF");
}

std::string exit_codes(std::string_view of_a_command) {
  std::string text = "0 done; ";
  if (!of_a_command.empty()) (text += of_a_command) += "; ";
  return described("exit code", text + "2 invalid arguments or input, or an output that cannot be written");
}

void print_usage(const replay::recipe_list& known) {
  for (const command& c : all_commands) std::fputs(synopsis(c).c_str(), stdout);
  const char* const name = replay::program_name().c_str();
  std::printf("%s VERB --help\n    help for one verb\n%s --version\n\n%s", name, name,
              described_operand("TRACE").c_str());
  for (const option& o : all_options) std::fputs(described(o, known).c_str(), stdout);
  std::fputs(exit_codes("1 the answer is no: see VERB --help").c_str(), stdout);
}

void print_usage_of(const command& c, const replay::recipe_list& known) {
  std::printf("%s\n%s", synopsis(c).c_str(), described_operand(c.operand).c_str());
  for_each_option(c, [&](const option& o, bool) { std::fputs(described(o, known).c_str(), stdout); });
  std::fputs(exit_codes(c.exit_codes).c_str(), stdout);
}

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

std::string unknown_option(const command& verb, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view asked = word.substr(0, equals);
  std::string advice;
  std::vector<std::string_view> names{"--help"};
  for_each_option(verb, [&](const option& o, bool) {
    names.push_back(o.name);
    if (o.name != asked) return;
    advice = "; write " + std::string(asked);
    const std::string_view value = word.substr(equals + 1);
    if (!o.value.empty()) (advice += ' ') += value.empty() ? o.value : value;
  });
  if (advice.empty()) advice = replay::did_you_mean(asked, names);
  return std::string(verb.name) + ": " + std::string(word) + ": no such option" + advice + "; see " +
         replay::program_name() + " " + std::string(verb.name) + " --help";
}

/// Checks the files to write before hours of work. Returns the error text, or an empty one.
std::string wrong_out(const command& verb, const arguments& args) {
  if (verb.must_write && args.outs.empty()) return "--out FILE is missing";
  namespace fs = std::filesystem;
  for (const std::string& out : args.outs) {
    std::string extensions;
    bool is_known = false;
    for (std::string_view rest = verb.outputs; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      is_known = is_known || out.ends_with(one);
      extensions += extensions.empty() ? " " : rest.empty() ? " or " : ", ";
      extensions += one;
    }
    const std::string about = "--out " + out + ": ";
    if (!is_known) return about + "must end with" + extensions;
    for (const std::string& file : args.files)
      if (replay::is_same_file(file, out)) return about + "is the input itself";
    std::error_code unknown;
    if (fs::is_directory(out, unknown)) return about + "is a folder";
    const fs::path folder = fs::path(out).parent_path();
    if (!folder.empty() && !fs::is_directory(folder, unknown))
      return about + "the folder " + folder.string() + " does not exist; create it first";
  }
  return {};
}

/// Reads the arguments after the command. Returns the error text, or an empty one.
std::string read_words(const command& verb, int count, char** words, arguments& args) {
  const std::string name(verb.name);
  std::vector<std::string_view> seen;
  for (int i = 2; i < count; ++i) {
    std::string_view word = words[i];
    if (word == "-o") word = "--out";
    if (!word.starts_with("-")) {
      args.files.emplace_back(word);
      continue;
    }
    const auto* const found = std::find_if(std::begin(all_options), std::end(all_options),
                                           [&](const option& o) { return o.name == word; });
    if (found == std::end(all_options)) return unknown_option(verb, word);
    bool is_taken = false, repeats = false;
    for_each_option(verb, [&](const option& o, bool may_repeat) {
      if (&o == found) is_taken = true, repeats = may_repeat;
    });
    if (!is_taken) return name + ": takes no " + std::string(word);
    if (!repeats && std::find(seen.begin(), seen.end(), word) != seen.end())
      return name + ": takes one " + std::string(word);
    seen.push_back(word);
    if (!found->value.empty() && ++i == count)
      return name + ": " + std::string(word) + ": a value is missing";
    const std::string wrong = found->read(args, found->value.empty() ? "" : words[i]);
    if (!wrong.empty()) return name + ": " + std::string(word) + " " + wrong;
  }
  const std::string thing = verb.takes_a_text() ? "text" : "file";
  if (args.files.empty()) return name + ": a " + thing + " is missing";
  if (!verb.takes_several() && args.files.size() > 1)
    return name + ": takes one " + thing + ", not also " + args.files[1];
  const std::string wrong = wrong_out(verb, args);
  return wrong.empty() ? wrong : name + ": " + wrong;
}

/// Flushes standard output. Returns `code`, or the code of an error if the output could not be written.
int printed(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return print_error(std::string("standard output: cannot be written: ") +
                     (errno != 0 ? std::strerror(errno) : "the output is incomplete"));
}

/// Runs a command, and reports exhausted host memory as an error.
int run(const command& verb, const arguments& args) {
  try {
    return printed(verb.run(args));
  } catch (const std::bad_alloc&) {
    return print_error(std::string(verb.name) + " " + args.files[0] + ": host memory ran out");
  } catch (const std::length_error&) {
    return print_error(std::string(verb.name) + " " + args.files[0] + ": host memory ran out");
  }
}

}  // namespace

int tessera::tool::detail::run_with(int count, char** words, std::vector<recipe_entry> own) {
  replay::keep_line_ends_of_output();
  if (count > 0) {
    std::filesystem::path called = std::filesystem::path(words[0]).filename();
    if (called.extension() == ".exe") called.replace_extension();
    if (!called.empty()) replay::program_name() = replay::printable_text(called.string());
  }
  const replay::recipe_list known(std::move(own));
  if (const std::string wrong = known.find_fault(); !wrong.empty()) return print_error(wrong);
  std::string_view name = count > 1 ? words[1] : "";
  if (name == "--version") {
    const bool is_own = replay::program_name() != "tessera-replay";
    std::printf("%s%s " TESSERA_VERSION_STRING "\n", replay::program_name().c_str(),
                is_own ? " (tessera-replay)" : "");
    return printed(replay::done);
  }
  bool wants_help = asks_for_help(name) || name == "help";
  if (wants_help && count == 2) {
    print_usage(known);
    return printed(replay::done);
  }
  if (wants_help) name = words[2];
  for (const command& c : all_commands) {
    if (c.name != name) continue;
    wants_help = wants_help || std::any_of(words + 2, words + count, asks_for_help);
    if (wants_help) {
      print_usage_of(c, known);
      return printed(replay::done);
    }
    arguments args;
    args.known = &known;
    const std::string wrong = read_words(c, count, words, args);
    return wrong.empty() ? run(c, args) : print_error(wrong);
  }
  std::vector<std::string_view> names{"help", "--help", "--version"};
  for (const command& c : all_commands) names.push_back(c.name);
  return print_error((name.empty()
                          ? "a command is missing"
                          : std::string(name) + ": no such command" + replay::did_you_mean(name, names)) +
                     "; see " + replay::program_name() + " --help");
}
