// SPDX-License-Identifier: Apache-2.0
// tessera-replay: runs recorded programs through allocators.

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tessera/version.hpp>

#include "commands.hpp"
#include "terminal.hpp"

namespace {

using replay::arguments;
using replay::complain;

struct option {
  std::string_view name;
  std::string_view value;                             // what stands behind it; nothing where it stands alone
  std::string_view meaning;                           // lines, broken by hand
  std::string (*read)(arguments&, std::string_view);  // notes a value; what is wrong with it, or nothing
};

std::string read_recipe(arguments& said, std::string_view name) {
  if (const std::string wrong = replay::no_such_recipe(name); !wrong.empty()) return wrong;
  said.recipe = said.recipes.emplace_back(name);
  return {};
}
std::string read_system(arguments& said, std::string_view name) {
  constexpr std::string_view known[] = {"pytorch", "torch_npu", "paddle"};
  said.system = name;
  if (std::find(std::begin(known), std::end(known), name) != std::end(known)) return {};
  return said.system + ": no such system; there are " + replay::listed(known) +
         replay::did_you_mean(name, known);
}
std::string read_conf(arguments& said, std::string_view text) { return said.conf = text, std::string(); }
std::string read_out(arguments& said, std::string_view path) { return said.out = path, std::string(); }
std::string read_at(arguments& said, std::string_view eviction_trigger) {
  said.at = eviction_trigger;
  return eviction_trigger == "peak" || eviction_trigger == "end" ? "" : said.at + ": must be peak or end";
}
std::string read_capacity(arguments& said, std::string_view size) {
  said.has_capacity = true;
  return replay::read_size(size, said.capacity);
}
std::string read_memory_fraction(arguments& said, std::string_view text) {
  double share = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, share);
  if (error != std::errc{} || end != last || !(share >= 0 && share <= 1))
    return std::string(text) + ": must be a number from 0 to 1";
  said.memory_fraction = share;
  return {};
}
std::string read_device(arguments& said, std::string_view text) {
  said.device.reset();
  if (text == "all") return {};
  std::size_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc{} || end != last) return std::string(text) + ": must be a number from 0 on, or all";
  said.device = number;
  return {};
}
std::string read_max_ns(arguments& said, std::string_view text) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, said.max_ns);
  if (error == std::errc{} && end == last && said.max_ns > 0) return {};
  return std::string(text) + ": must be a positive number of nanoseconds";
}

constexpr option options[] = {
    {"--recipe", "NAME", "", &read_recipe},  // its meaning is the names
    {"--conf", "TEXT", "settings in the words of the recipe's system, as explain explains them", &read_conf},
    {"--capacity", "SIZE",
     "device memory, in bytes or as in 8GiB, 1.5GiB or 512MiB.\n"
     "Default: 80 GiB; for tune, the larger of that and eight times peak live",
     &read_capacity},
    {"--memory-fraction", "F",
     "the share of the device, from 0 to 1, with which set_per_process_memory_fraction was called;\n"
     "garbage_collection_threshold works only where it was",
     &read_memory_fraction},
    {"--device", "N|all", "the device of a snapshot that is meant; all if not given, one after the other",
     &read_device},
    {"--max-ns", "N", "host nanoseconds that an operation may take", &read_max_ns},
    {"--system", "NAME", "pytorch (default), torch_npu or paddle: the system that the text is for",
     &read_system},
    {"--at", "peak|end", "the moment to show: where most is reserved, or the end of the trace", &read_at},
    {"--out", "FILE", "the file to write; its ending says the format", &read_out},
    {"--json", "", "the result as JSON", [](arguments& said, std::string_view) {
       said.json = true;
       return std::string();
     }}};

struct command {
  std::string_view name;
  int (*run)(const arguments&);
  std::string_view operand;     // TRACE, SNAPSHOT or TEXT; with dots behind it where it may be several
  std::string_view takes;       // options; with dots behind what may come again
  std::string_view must_have;   // of these
  const char* meaning;          // lines that begin with four blanks
  std::string_view exit_codes;  // other than 0 and 2

  [[nodiscard]] bool takes_several() const { return operand.ends_with("..."); }
  [[nodiscard]] bool takes_a_text() const { return operand == "TEXT"; }
};

constexpr command commands[] = {
    {"compare", &replay::commands::compare, "TRACE...",
     "--recipe... --conf --capacity --memory-fraction --device --json", "",
     "    what recipes would have reserved, and how often they would have called the device: the main ones,\n"
     "    those that are named, and with --conf the last of these, or pytorch, under these settings\n",
     ""},
    {"decisions", &replay::commands::decisions, "TRACE",
     "--recipe --conf --capacity --memory-fraction --device", "", "    every decision, a line each\n", ""},
    {"verify", &replay::commands::verify, "SNAPSHOT...", "--device --json", "",
     "    whether the pytorch recipe, or pytorch_2_14, decides as the GPU did on which the snapshot was "
     "recorded;\n"
     "    where there is nothing to verify, the exit code is 0, and in JSON \"agrees\" is null\n",
     "1 it does not"},
    {"fit", &replay::commands::fit, "TRACE", "--recipe --conf --capacity --memory-fraction --device --json",
     "",
     "    a capacity, up to the one given, with which the trace completes and with a byte less does not,\n"
     "    and larger ones with which it fails\n",
     ""},
    {"draw", &replay::commands::draw, "TRACE",
     "--recipe... --conf --capacity --memory-fraction --device --out", "--out",
     "    a picture of memory over time, as .html or .svg; the HTML page also maps the worst moment and has "
     "the\n"
     "    table of compare\n",
     ""},
    {"explain-oom", &replay::commands::explain_oom, "TRACE",
     "--recipe --conf --capacity --memory-fraction --device", "",
     "    why memory runs out where it first does, which blocks are in the way, and what would help\n",
     "1 memory runs out"},
    {"tune", &replay::commands::tune, "TRACE", "--capacity --memory-fraction --device --max-ns --json", "",
     "    searches for a recipe that reserves least (with --capacity: that needs least), at a price in "
     "device and\n"
     "    host time that it names; shows what else there is, what each policy buys, and the recipe as C++\n",
     "1 nothing completes, or nothing keeps --max-ns"},
    {"explain", &replay::commands::explain, "TEXT", "--system", "",
     "    what a configuration string means, key by key (* is not at its default), or where it is wrong\n",
     ""},
    {"snapshot", &replay::commands::snapshot, "TRACE",
     "--out --at --recipe --conf --capacity --memory-fraction --device", "--out",
     "    how the recipe's memory stands, and what led there, for the viewers of others: a .pickle for\n"
     "    pytorch.org/memory_viz, as it is where most is reserved (--at peak); a .json for ui.perfetto.dev, "
     "or\n"
     "    a .csv as RMM logs it, of the whole trace (--at end)\n",
     "1 an allocation failed"},
};

/// Calls f(name, repeats) for each option that a command takes.
template <typename F>
void for_each_option(const command& c, F f) {
  for (std::string_view rest = c.takes; !rest.empty();) {
    std::string_view one = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const bool repeats = one.ends_with("...");
    if (repeats) one.remove_suffix(3);
    f(*std::find_if(std::begin(options), std::end(options), [&](const option& o) { return o.name == one; }),
      repeats);
  }
}

std::string synopsis(const command& c) {
  std::string line = "tessera-replay " + std::string(c.name) + " " + std::string(c.operand);
  for_each_option(c, [&](const option& o, bool repeats) {
    std::string one(o.name);
    if (!o.value.empty()) (one += ' ') += o.value;
    line += c.must_have == o.name ? " " + one : " [" + one + "]";
    if (repeats) line += "...";
  });
  return line + "\n" + c.meaning;
}

/// "NAME  meaning", with further lines of the meaning below its first.
std::string explained(std::string_view name, std::string_view meaning) {
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

std::string explained(const option& o) {
  if (o.read != &read_recipe) return explained(o.name, o.meaning);
  std::string names = "pytorch (default)";
  std::size_t column = names.size();
  for (const std::string_view name : replay::recipe_names) {
    if (name == "pytorch") continue;
    const bool is_full = column + name.size() > 84;
    names += is_full ? ",\n" : ", ";
    column = (is_full ? 0 : column + 2) + name.size();
    names += name;
  }
  return explained(o.name, names);
}

std::string explained_operand(std::string_view operand) {
  if (operand.starts_with("TRACE"))
    return explained(
        "TRACE", "op,id,bytes,stream,t_us or id,lower,upper,size (CSV), an RMM log, or a PyTorch snapshot");
  if (operand.starts_with("SNAPSHOT"))
    return explained("SNAPSHOT", "what torch.cuda.memory._dump_snapshot writes");
  return explained("TEXT", "a configuration string, as in PYTORCH_CUDA_ALLOC_CONF");
}

std::string exit_codes(std::string_view of_a_command) {
  std::string text = "0 done; ";
  if (!of_a_command.empty()) (text += of_a_command) += "; ";
  return explained("exit code", text + "2 what was given is wrong");
}

void print_usage() {
  for (const command& c : commands) std::fputs(synopsis(c).c_str(), stdout);
  std::printf("tessera-replay VERB --help\n    one of these alone\ntessera-replay --version\n\n%s",
              explained_operand("TRACE").c_str());
  for (const option& o : options) std::fputs(explained(o).c_str(), stdout);
  std::fputs(exit_codes("1 what VERB --help says").c_str(), stdout);
}

void print_usage_of(const command& c) {
  std::printf("%s\n%s", synopsis(c).c_str(), explained_operand(c.operand).c_str());
  for_each_option(c, [](const option& o, bool) { std::fputs(explained(o).c_str(), stdout); });
  std::fputs(exit_codes(c.exit_codes).c_str(), stdout);
}

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

std::string no_such_option(const command& chosen, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view asked = word.substr(0, equals);
  std::string advice;
  std::vector<std::string_view> names{"--help"};
  for_each_option(chosen, [&](const option& o, bool) {
    names.push_back(o.name);
    if (o.name != asked) return;
    advice = "; write " + std::string(asked);
    const std::string_view value = word.substr(equals + 1);
    if (!o.value.empty()) (advice += ' ') += value.empty() ? o.value : value;
  });
  if (advice.empty()) advice = replay::did_you_mean(asked, names);
  return std::string(chosen.name) + ": " + std::string(word) + ": no such option" + advice +
         "; see tessera-replay " + std::string(chosen.name) + " --help";
}

/// Reads the words behind the command's name; what is wrong with them, or nothing.
std::string read_words(const command& chosen, int count, char** words, arguments& said) {
  const std::string name(chosen.name);
  std::vector<std::string_view> seen;
  for (int i = 2; i < count; ++i) {
    const std::string_view word = words[i];
    if (!word.starts_with("-")) {
      said.files.emplace_back(word);
      continue;
    }
    const auto* const found =
        std::find_if(std::begin(options), std::end(options), [&](const option& o) { return o.name == word; });
    if (found == std::end(options)) return no_such_option(chosen, word);
    bool is_taken = false, repeats = false;
    for_each_option(chosen, [&](const option& o, bool may_repeat) {
      if (&o == found) is_taken = true, repeats = may_repeat;
    });
    if (!is_taken) return name + ": takes no " + std::string(word);
    if (!repeats && std::find(seen.begin(), seen.end(), word) != seen.end())
      return name + ": takes one " + std::string(word);
    seen.push_back(word);
    if (!found->value.empty() && ++i == count)
      return name + ": " + std::string(word) + ": a value is missing";
    const std::string wrong = found->read(said, found->value.empty() ? "" : words[i]);
    if (!wrong.empty()) return name + ": " + std::string(word) + " " + wrong;
  }
  const std::string thing = chosen.takes_a_text() ? "text" : "file";
  if (said.files.empty()) return name + ": a " + thing + " is missing";
  if (!chosen.takes_several() && said.files.size() > 1)
    return name + ": takes one " + thing + ", not also " + said.files[1];
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
int run(const command& chosen, const arguments& said) {
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
  std::string_view name = count > 1 ? words[1] : "";
  if (name == "--version") {
    std::puts("tessera-replay " TESSERA_VERSION_STRING);
    return printed(replay::done);
  }
  bool wants_help = asks_for_help(name) || name == "help";
  if (wants_help && count == 2) {
    print_usage();
    return printed(replay::done);
  }
  if (wants_help) name = words[2];
  for (const command& c : commands) {
    if (c.name != name) continue;
    wants_help = wants_help || std::any_of(words + 2, words + count, asks_for_help);
    if (wants_help) {
      print_usage_of(c);
      return printed(replay::done);
    }
    arguments said;
    const std::string wrong = read_words(c, count, words, said);
    return wrong.empty() ? run(c, said) : complain(wrong);
  }
  std::vector<std::string_view> names{"help", "--help", "--version"};
  for (const command& c : commands) names.push_back(c.name);
  return complain((name.empty()
                       ? "a command is missing"
                       : std::string(name) + ": no such command" + replay::did_you_mean(name, names)) +
                  "; see tessera-replay --help");
}
