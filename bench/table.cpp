// SPDX-License-Identifier: Apache-2.0
// Prints one table from the JSON files that Google Benchmark wrote into a folder. It shows the times of tessera, and how many
// times longer the reference implementation and malloc take.

#include <array>
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

/// Medians by "benchmark<subject>/argument", then by counter. Times are in nanoseconds.
using results = std::map<std::string, std::map<std::string, double>>;

/// Adds the medians of a file to `all`. Google Benchmark writes each value on a line of its own.
void read(const std::filesystem::path& path, results& all) {
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
      if (!name.empty() && (statistic.empty() || statistic == "median")) all[name] = values;
      name.clear();
      statistic.clear();
      values.clear();
      unit = 1;
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

/// Returns a value, or for the argument "*" the geometric mean over all arguments.
std::optional<double> find(const results& all, const std::string& benchmark, const std::string& argument,
                           const std::string& counter) {
  double logarithms = 0;
  int count = 0;
  bool is_zero = false;
  for (const auto& [name, values] : all) {
    const bool wanted = argument == "*" ? name.starts_with(benchmark + "/") : name == benchmark + argument;
    const auto found = values.find(counter);
    if (!wanted || found == values.end()) continue;
    ++count;
    is_zero |= found->second == 0;
    logarithms += std::log(found->second);
  }
  if (count == 0) return std::nullopt;
  return is_zero ? 0 : std::exp(logarithms / count);
}

/// A front end of tessera, its benchmark subject, and that of the reference implementation for as many threads.
struct front_end {
  const char* name;
  const char* subject;
  const char* reference;
};
constexpr front_end unlocked{"caching_allocator", "tessera_pytorch", "reference"};
constexpr front_end locked{"locked", "tessera_locked", "reference_with_mutex"};
constexpr front_end per_stream{"per_stream", "tessera_per_stream", "reference_with_mutex"};
constexpr front_end without_statistics_and_streams{"caching_allocator", "stripped", ""};
constexpr front_end ranges{"caching_allocator", "tessera_stitched", "by_hand"};
constexpr front_end by_handle{"caching_allocator", "by_handle", ""};
constexpr const char* host_heap = "host_heap";

/// One line of the table for each front end. A "pair" is an allocation and a free.
struct row {
  const char* title;
  std::array<const front_end*, 2> front_ends;
  const char* benchmark;
  const char* argument;
  const char* counter = "cpu_time";
  const char* unit = " ns";        ///< "" or "-fold": each column shows its own value instead of a ratio
  const char* baseline = nullptr;  ///< the argument by whose value the row's value is divided
  bool in_lookups = false;         ///< divides the growth by that of `memory_alone` over the same arguments
};
constexpr row rows[] = {
    {"operation of a recorded program", {&unlocked, &locked}, "replay", "*", "ns_per_operation"},
    {"pair among 1000 live, mixed sizes", {&unlocked, &locked}, "mixed_sizes", ""},
    {"pair among 1000 live, to 64 KiB", {&unlocked, &locked}, "small_sizes", ""},
    {"pair, freed after seven more", {&unlocked, &locked}, "freed_later", ""},
    {"the same without statistics, streams", {&without_statistics_and_streams}, "freed_later", ""},
    {"the same by handle", {&by_handle}, "freed_later", ""},
    {"pair of 1 thread on its stream", {&per_stream}, "own_streams", "/1", "real_time"},
    {"pair of each of 4, on own streams", {&per_stream, &locked}, "own_streams", "/4", "real_time"},
    {"allocated and freed by two threads", {&per_stream, &locked}, "producer_and_consumer", "", "real_time"},
    {"pair among 10^2 live", {&unlocked}, "live", "/100"},
    {"pair among 10^4 live", {&unlocked}, "live", "/10000"},
    {"pair among 10^6 live", {&unlocked}, "live", "/1000000"},
    {"pair among 10^2 fragments", {&unlocked}, "cached", "/100"},
    {"pair among 10^4 fragments", {&unlocked}, "cached", "/10000"},
    {"pair among 10^6 fragments", {&unlocked}, "cached", "/1000000"},
    {"pair on 1 stream", {&unlocked}, "streams", "/1"},
    {"pair on 256 streams in turn", {&unlocked}, "streams", "/256"},
    {"pair, freed at once, 1 KiB", {&unlocked, &locked}, "hot_pair", "/1024"},
    {"pair, freed at once, 5 MiB", {&unlocked, &locked}, "hot_pair", "/5242880"},
    {"longest allocation of 10^6", {&unlocked}, "longest", "/1000000", "allocate_max"},
    {"the same by handle", {&by_handle}, "longest", "/1000000", "allocate_max"},
    {"longest free of 10^6", {&unlocked}, "longest", "/1000000", "deallocate_max"},
    {"the same by handle", {&by_handle}, "longest", "/1000000", "deallocate_max"},
    {"sleep and wake of 1 GiB, saved", {&ranges}, "sleep_and_wake", "", "real_time"},
    {"heap requests per hit, 10^4 live", {&unlocked}, "metadata", "/10000", "requests_per_hit", ""},
    {"host bytes per live block, 10^2", {&unlocked}, "metadata", "/100", "per_live", " B"},
    {"host bytes per live block, 10^4", {&unlocked}, "metadata", "/10000", "per_live", " B"},
    {"host bytes per live block, 10^6", {&unlocked}, "metadata", "/1000000", "per_live", " B"},
    {"the same per block, half free", {&unlocked}, "metadata", "/1000000", "per_block_half_free", " B"},
    {"resident bytes per live block, 10^6", {&unlocked}, "resident", "/1000000", "resident_per_live", " B"},
    {"the same by handle", {&by_handle}, "resident", "/1000000", "resident_per_live", " B"},
    {"share kept with 1 of 100 live", {&unlocked}, "metadata", "/1000000", "kept_with_1_of_100", ""},
    {"metadata_bytes() over counted bytes", {&unlocked}, "metadata", "/10000", "footprint_of_counted", ""},
    {"growth, 10^2 to 10^6 live", {&unlocked}, "live", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, the same, in look-ups", {&unlocked}, "live", "/1000000", "cpu_time", "", "/100", true},
    {"growth, 10^2 to 10^6 live, warm", {&unlocked}, "live_warm", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, 10^2 to 10^6 fragments", {&unlocked}, "cached", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, the same, in look-ups", {&unlocked}, "cached", "/1000000", "cpu_time", "", "/100", true},
    {"growth, to 10^6 fragments, warm", {&unlocked}, "cached_warm", "/1000000", "cpu_time", "-fold", "/100"},
    {"growth, 1 to 256 streams", {&unlocked}, "streams", "/256", "cpu_time", "-fold", "/1"},
    {"growth, 1 to 4 threads, own streams", {&per_stream}, "own_streams", "/4", "real_time", "-fold", "/1"},
};

/// Returns the value of a row for one subject.
std::optional<double> value_of(const results& all, const row& r, const char* subject) {
  const std::string name = std::string(r.benchmark) + "<" + subject + ">";
  const auto value = find(all, name, r.argument, r.counter);
  if (r.baseline == nullptr) return value;
  const auto before = find(all, name, r.baseline, r.counter);
  const auto memory = find(all, "memory_alone", r.argument, r.counter);
  const auto memory_before = find(all, "memory_alone", r.baseline, r.counter);
  if (!value || !before || (r.in_lookups && (!memory || !memory_before))) return std::nullopt;
  return r.in_lookups ? (*value - *before) / (*memory - *memory_before) : *value / *before;
}

/// Returns a value with its unit, three digits.
std::string with_unit(double value, const char* unit) {
  char text[32];
  std::snprintf(text, sizeof text, value < 1000 ? "%.3g%s" : "%.0f%s", value, unit);
  return text;
}

/// Prints the line of a front end. Returns false if it was not measured.
bool print(const results& all, const row& r, const front_end& front) {
  const auto tessera = value_of(all, r, front.subject);
  std::printf("| %-37s | %-17s | %10s |", r.title, front.name,
              tessera ? with_unit(*tessera, r.unit).c_str() : "");
  const bool is_ratio = r.baseline == nullptr && r.unit[0] != '\0';
  for (const char* subject : {front.reference, host_heap}) {
    std::string cell;
    if (const auto value = value_of(all, r, subject); value && (tessera || !is_ratio))
      cell = is_ratio ? with_unit(*value / *tessera, "x") : with_unit(*value, r.unit);
    std::printf(" %9s |", cell.c_str());
  }
  std::puts("");
  return tessera.has_value();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_table FOLDER\n");
    return 2;
  }
  results all;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], unreadable)) {
    if (entry.path().extension() == ".json") read(entry.path(), all);
  }

  std::puts("Times relative to tessera: 1x = tessera, higher is slower.\n");
  std::printf("| %-37s | %-17s | %10s | %9s | %9s |\n", "", "front end", "tessera", "reference", "malloc");
  std::puts(
      "|---------------------------------------|-------------------|-----------:|----------:|----------:|");
  bool complete = true;
  for (const row& r : rows) {
    for (const front_end* front : r.front_ends) {
      if (front != nullptr) complete &= print(all, r, *front);
    }
  }
  const auto first = find(all, "memory_alone", "/100", "cpu_time");
  const auto last = find(all, "memory_alone", "/1000000", "cpu_time");
  if (first && last)
    std::printf("A random look-up takes %.1f ns among 10^2 descriptions, %.0f ns among 10^6.\n", *first,
                *last);
  if (!complete) {
    std::fprintf(stderr, "some rows were not measured\n");
    return 1;
  }
}
