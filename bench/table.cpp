// SPDX-License-Identifier: Apache-2.0
// Prints, from the JSON files that Google Benchmark wrote into a folder, one table of what tessera takes and how many
// times that the others take.

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>

namespace {

/// Medians by "question<subject>/argument", then by counter; times are nanoseconds of one core.
using results = std::map<std::string, std::map<std::string, double>>;

/// Google Benchmark writes each value on a line of its own.
void read(const std::filesystem::path& path, results& into) {
  std::ifstream file(path);
  std::string name;
  std::string statistic;
  std::map<std::string, double> values;
  double unit = 1;
  for (std::string line; std::getline(file, line);) {
    const std::size_t key = line.find('"');
    const std::size_t colon = line.find("\": ");
    if (key == std::string::npos || colon == std::string::npos) {
      if (line.find('}') == std::string::npos) continue;
      if (values.contains("cpu_time")) values["cpu_time"] *= unit;
      if (!name.empty() && (statistic.empty() || statistic == "median")) into[name] = values;
      name.clear(), statistic.clear(), values.clear(), unit = 1;
      continue;
    }
    const std::string field = line.substr(key + 1, colon - key - 1);
    std::string value = line.substr(colon + 3);
    if (value.starts_with('"')) value = value.substr(1, value.find('"', 1) - 1);
    if (field == "run_name") {
      name = value.substr(0, value.find("/iterations:"));
      if (const std::size_t at = name.find("bench::"); at != std::string::npos) name.erase(at, 7);
    } else if (field == "aggregate_name") {
      statistic = value;
    } else if (field == "time_unit") {
      unit = value == "ms" ? 1e6 : value == "us" ? 1e3 : 1;
    } else {
      values[field] = std::strtod(value.c_str(), nullptr);
    }
  }
}

/// A value, or where the argument is "*", the geometric mean over all arguments.
std::optional<double> find(const results& all, const std::string& question, const std::string& argument,
                           const std::string& counter) {
  double logarithms = 0;
  int count = 0;
  bool is_zero = false;
  for (const auto& [name, values] : all) {
    const bool wanted = argument == "*" ? name.starts_with(question + "/") : name == question + argument;
    const auto found = values.find(counter);
    if (!wanted || found == values.end()) continue;
    ++count;
    is_zero |= found->second == 0;
    logarithms += std::log(found->second);
  }
  if (count == 0) return std::nullopt;
  return is_zero ? 0 : std::exp(logarithms / count);
}

constexpr const char* subjects[] = {"tessera_pytorch", "textbook_engine", "host_heap", "tessera_passthrough"};

struct row {
  const char* title;
  const char* question;
  const char* argument;
  const char* counter = "cpu_time";
  const char* unit = " ns";     ///< where there is none, each subject's own number is shown, and no ratio
  const char* since = nullptr;  ///< the argument over whose value the growth is shown
  bool in_lookups = false;  ///< the growth over what it is for a look-up at random among as many descriptions
  const char* own = subjects[0];  ///< the subject in tessera's column
};
constexpr row measured_of(const char* own, row r) {
  r.own = own;
  return r;
}
constexpr row rows[] = {
    {"hot pair, 1 KiB", "hot_pair", "/1024"},
    {"hot pair, 5 MiB", "hot_pair", "/5242880"},
    {"mixed pair, 1000 live", "mixed_sizes", ""},
    {"operation of a recorded run", "replay", "*", "ns_per_operation"},
    {"pair, seven others in between", "back_later", ""},
    measured_of("stripped", {"the same without statistics, streams", "back_later", ""}),
    measured_of("by_handle", {"the same by handle", "back_later", ""}),
    measured_of("tessera_per_stream", {"a thread's pair, 1 thread", "own_streams", "/1", "real_time"}),
    measured_of("tessera_per_stream",
                {"a thread's pair, 4 on own streams", "own_streams", "/4", "real_time"}),
    measured_of("tessera_locked", {"the same behind one mutex", "own_streams", "/4", "real_time"}),
    measured_of("tessera_per_stream",
                {"pair of producer and consumer", "producer_and_consumer", "", "real_time"}),
    {"pair among 10^2 live", "live", "/100"},
    {"pair among 10^4 live", "live", "/10000"},
    {"pair among 10^6 live", "live", "/1000000"},
    {"pair among 10^2 fragments", "cached", "/100"},
    {"pair among 10^4 fragments", "cached", "/10000"},
    {"pair among 10^6 fragments", "cached", "/1000000"},
    {"pair on 1 stream", "streams", "/1"},
    {"pair on 256 streams in turn", "streams", "/256"},
    {"heap requests per hit, 10^4 live", "metadata", "/10000", "requests_per_hit", ""},
    {"host bytes per live block, 10^2", "metadata", "/100", "per_live", " B"},
    {"host bytes per live block, 10^4", "metadata", "/10000", "per_live", " B"},
    {"host bytes per live block, 10^6", "metadata", "/1000000", "per_live", " B"},
    {"the same per block, half of them free", "metadata", "/1000000", "per_block_half_free", " B"},
    {"of that kept with 1 of 100 live", "metadata", "/1000000", "kept_with_1_of_100", ""},
    {"of what is held, said by footprint()", "metadata", "/10000", "footprint_of_counted", ""},
    {"growth, 10^2 to 10^6 live", "live", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, 10^2 to 10^6 live, in look-ups", "live", "/1000000", "cpu_time", "", "/100", true},
    {"growth, 10^2 to 10^6 live, warm", "live_warm", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, 10^2 to 10^6 fragments", "cached", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, the same, in look-ups", "cached", "/1000000", "cpu_time", "", "/100", true},
    {"growth, 10^2 to 10^6 fragments, warm", "cached_warm", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, 1 to 256 streams", "streams", "/256", "cpu_time", "-fold", "/1"},
    measured_of("tessera_per_stream",
                {"growth, 1 to 4 threads, own streams", "own_streams", "/4", "real_time", "-fold", "/1"}),
};

/// What a row shows of a question put to one subject, or of how that grew.
std::optional<double> answer(const results& all, const row& r, const std::string& question) {
  const auto value = find(all, question, r.argument, r.counter);
  if (r.since == nullptr) return value;
  const auto before = find(all, question, r.since, r.counter);
  const auto memory = find(all, "memory_alone", r.argument, r.counter);
  const auto memory_before = find(all, "memory_alone", r.since, r.counter);
  if (!value || !before || (r.in_lookups && (!memory || !memory_before))) return std::nullopt;
  return r.in_lookups ? (*value - *before) / (*memory - *memory_before) : *value / *before;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: bench_table FOLDER\n"), 2;
  results all;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], unreadable)) {
    if (entry.path().extension() == ".json") read(entry.path(), all);
  }

  std::printf("| %-38s | %12s | %9s | %9s | %11s |\n", "", "tessera", "textbook", "malloc", "passthrough");
  std::puts(
      "|----------------------------------------|-------------:|----------:|----------:|------------:|");
  bool complete = true;
  for (const row& r : rows) {
    std::printf("| %-38s |", r.title);
    double own = 0;
    for (const char* subject : subjects) {
      const bool is_own = subject == subjects[0];
      const std::string question = std::string(r.question) + "<" + (is_own ? r.own : subject) + ">";
      const std::optional<double> value = answer(all, r, question);
      if (is_own) own = value.value_or(0);
      if (is_own && !value) complete = false;
      const bool as_is = is_own || r.since != nullptr || r.unit[0] == '\0';
      char cell[32] = "";
      if (value && as_is)
        std::snprintf(cell, sizeof cell, *value < 1000 ? "%.3g%s" : "%.0f%s", *value, r.unit);
      if (value && !as_is) std::snprintf(cell, sizeof cell, "x %.2f", *value / own);
      std::printf(" %*s |", is_own ? 12 : subject == subjects[3] ? 11 : 9, cell);
    }
    std::puts("");
  }
  const auto first = find(all, "memory_alone", "/100", "cpu_time");
  const auto last = find(all, "memory_alone", "/1000000", "cpu_time");
  if (first && last)
    std::printf("A look-up at random takes %.1f ns among 10^2 descriptions, %.0f ns among 10^6.\n", *first,
                *last);
  if (!complete) return std::fprintf(stderr, "not every row was measured\n"), 1;
}
