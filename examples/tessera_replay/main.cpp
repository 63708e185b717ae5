// SPDX-License-Identifier: Apache-2.0
// tessera-replay: runs recorded programs through allocators.

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "commands.hpp"

namespace {

struct command {
  std::string_view name;
  int (*run)(const replay::arguments&);
  bool takes_one;            // file, or text
  bool takes_recipes;        // more than one
  std::string_view options;  // that it takes
  const char* usage;         // behind its name
};

constexpr command commands[] = {
    {"compare", &replay::compare, false, true, "--recipe --conf --capacity --json",
     "TRACE... [--recipe NAME]... [--conf TEXT] [--capacity BYTES] [--json]\n"
     "    what recipes would have reserved, and how often they would have called the device: the main ones,\n"
     "    those that are named, and with --conf the last of these, or pytorch, under these settings\n"},
    {"decisions", &replay::decisions, true, false, "--recipe --conf --capacity",
     "TRACE [--recipe NAME] [--conf TEXT] [--capacity BYTES]\n"
     "    every decision, a line each\n"},
    {"verify", &replay::verify, false, false, "--json",
     "SNAPSHOT... [--json]\n"
     "    whether the pytorch recipe decides as the GPU did on which the snapshot was recorded\n"},
    {"fit", &replay::fit, true, false, "--recipe --conf --capacity --json",
     "TRACE [--recipe NAME] [--conf TEXT] [--capacity BYTES] [--json]\n"
     "    a capacity, up to the one given, with which the trace completes and with a byte less does not,\n"
     "    and larger ones with which it fails\n"},
    {"draw", &replay::draw, true, true, "--recipe --conf --capacity --out",
     "TRACE [--recipe NAME]... [--conf TEXT] [--capacity BYTES] --out FILE.html|FILE.svg\n"
     "    a picture of memory over time; the HTML page also maps the worst moment and has the table of "
     "compare\n"},
    {"explain-oom", &replay::explain_oom, true, false, "--recipe --conf --capacity",
     "TRACE [--recipe NAME] [--conf TEXT] [--capacity BYTES]\n"
     "    why memory runs out where it first does, which blocks are in the way, and what would help\n"},
    {"tune", &replay::tune_recipe, true, false, "--capacity --max-ns --json",
     "TRACE [--capacity BYTES] [--max-ns N] [--json]\n"
     "    searches for a recipe that reserves least (with --capacity: that needs least), at a price in "
     "device and\n"
     "    host time that it names; shows what else there is, what each policy buys, and the recipe as C++\n"},
    {"explain", &replay::explain, true, false, "--dialect",
     "TEXT [--dialect pytorch|torch_npu|paddle]\n"
     "    what a configuration string means, key by key (* is not at its default), or where it is wrong\n"},
    {"snapshot", &replay::snapshot, true, false, "--recipe --conf --capacity --out --at",
     "TRACE --out FILE [--at peak|end] [--recipe NAME] [--conf TEXT] [--capacity BYTES]\n"
     "    how the recipe's memory stands, and what led there, for the viewers of others: a .pickle for\n"
     "    pytorch.org/memory_viz, as it is where most is reserved (--at peak); a .json for ui.perfetto.dev, "
     "or\n"
     "    a .csv as RMM logs it, of the whole trace (--at end)\n"},
};

constexpr const char* meanings =
    "\n"
    "TRACE     op,id,bytes,stream,t_us or id,lower,upper,size (CSV), an RMM log, or a PyTorch snapshot\n"
    "--recipe  pytorch (default), pytorch_expandable, cuda_async, torch_npu, torch_npu_expandable, paddle,\n"
    "          paddle_auto_growth, paddle_naive_best_fit, pinned, pinned_expandable, pinned_packed,\n"
    "          stitched, stitched_calmly, power_of_two, passthrough\n"
    "--conf    settings in the words of the recipe's system, as explain explains them\n"
    "--capacity  bytes of device memory; 80 GiB if not given, and for tune, eight times what lives at once "
    "if\n"
    "          that is more\n"
    "--max-ns    host nanoseconds that an operation may take\n";

void print_usage(std::FILE* to) {
  for (const command& c : commands)
    std::fprintf(to, "tessera-replay %.*s %s", static_cast<int>(c.name.size()), c.name.data(), c.usage);
  std::fputs(meanings, to);
}

int complain(const std::string& text) {
  std::fprintf(stderr, "tessera-replay: %s\n", text.c_str());
  return replay::wrong_input;
}

/// Whether a word is one of those that a text has between spaces.
bool is_among(std::string_view words, std::string_view word) {
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = words.find(' ', at);
    const std::string_view one = words.substr(at, end - at);
    if (one == word) return true;
    at += one.size() + 1;
  }
  return false;
}

bool read_number(std::string_view text, std::size_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number > 0;
}

/// Notes what an option says; what is wrong with it, or nothing.
std::string read_option(replay::arguments& said, std::string_view name, std::string_view value) {
  if (name == "--recipe") said.recipe = said.recipes.emplace_back(value);
  if (name == "--dialect") said.dialect = value;
  if (name == "--conf") said.conf = value;
  if (name == "--out") said.out = value;
  if (name == "--at") {
    if (value != "peak" && value != "end") return "--at " + std::string(value) + ": must be peak or end";
    said.at = value;
  }
  if (name == "--capacity") {
    said.has_capacity = true;
    if (!read_number(value, said.capacity))
      return "--capacity " + std::string(value) + ": must be a positive number of bytes";
  }
  if (name == "--max-ns" && !read_number(value, said.max_ns))
    return "--max-ns " + std::string(value) + ": must be a positive number of nanoseconds";
  return {};
}

/// Reads the words behind the command's name; what is wrong with them, or nothing.
std::string read_words(const command& chosen, int count, char** words, replay::arguments& said) {
  for (int i = 2; i < count; ++i) {
    const std::string_view word = words[i];
    if (!word.starts_with("-")) {
      said.files.emplace_back(word);
      continue;
    }
    constexpr std::string_view all = "--json --recipe --conf --dialect --capacity --out --at --max-ns";
    if (!is_among(all, word)) return std::string(word) + ": no such option; see tessera-replay --help";
    if (!is_among(chosen.options, word)) return std::string(chosen.name) + ": takes no " + std::string(word);
    if (word == "--json") {
      said.json = true;
    } else if (++i == count) {
      return std::string(word) + ": a value is missing";
    } else if (const std::string wrong = read_option(said, word, words[i]); !wrong.empty()) {
      return wrong;
    }
  }
  const std::string thing = chosen.run == &replay::explain ? "text" : "file";
  if (said.files.empty()) return std::string(chosen.name) + ": a " + thing + " is missing";
  if (chosen.takes_one && said.files.size() > 1) return std::string(chosen.name) + ": takes one " + thing;
  if (!chosen.takes_recipes && said.recipes.size() > 1)
    return std::string(chosen.name) + ": takes one --recipe";
  return {};
}

/// The exit code, once what was printed is known to have come to where it goes.
int printed(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return complain(std::string("standard output: cannot be written: ") +
                  (errno != 0 ? std::strerror(errno) : "what was printed is not complete"));
}

/// Runs a command; where host memory runs out, that is what is said.
int run(const command& chosen, const replay::arguments& said) {
  try {
    return printed(chosen.run(said));
  } catch (const std::bad_alloc&) {
    return complain(std::string(chosen.name) + " " + said.files[0] + ": host memory ran out");
  } catch (const std::length_error&) {
    return complain(std::string(chosen.name) + " " + said.files[0] + ": host memory ran out");
  }
}

}  // namespace

int main(int count, char** words) {
  const std::string_view name = count > 1 ? words[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return printed(replay::done);
  }
  for (const command& c : commands) {
    if (c.name != name) continue;
    replay::arguments said;
    const std::string wrong = read_words(c, count, words, said);
    return wrong.empty() ? run(c, said) : complain(wrong);
  }
  (void)complain(name.empty() ? "a command is missing" : std::string(name) + ": no such command");
  print_usage(stderr);
  return replay::wrong_input;
}
