// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "commands.hpp"
#include "compare.hpp"
#include "files.hpp"
#include "input.hpp"
#include "page/style.hpp"
#include "rank_picture.hpp"
#include "rank_result.hpp"
#include "rank_summary.hpp"
#include "terminal.hpp"

namespace {

using namespace replay;
using tessera::trace::input_error;
namespace fs = std::filesystem;

/// The settings that are tried if none is named: those that help most often, one by one.
const std::vector<rank_setting> default_settings = {{"pytorch", ""},
                                                    {"pytorch", "expandable_segments:True"},
                                                    {"pytorch", "max_split_size_mb:128"},
                                                    {"pytorch", "max_split_size_mb:512"},
                                                    {"pytorch", "roundup_power2_divisions:8"},
                                                    {"cuda_async", ""},
                                                    {"stitched", ""}};

rank_request request_of(const arguments& args) {
  rank_request made;
  made.known = args.known;
  const auto add = [&](rank_setting one) {
    if (std::find(made.settings.begin(), made.settings.end(), one) == made.settings.end())
      made.settings.push_back(std::move(one));
  };
  for (const std::string& name : args.recipes) add({name, ""});
  for (const std::string& conf : args.confs) add({"pytorch", conf});
  if (made.settings.empty()) made.settings = default_settings;
  if (args.has_capacity) made.capacity = args.capacity;
  made.device = args.device;
  return made;
}

constexpr std::size_t max_result_file = std::size_t{256} << 20;

bool is_result_file(const fs::path& path) {
  return path.extension() == ".json" || path.extension() == ".jsonl";
}

/// Whether a file in a folder is a recording, by its extension or as a pickle.
bool looks_like_recording(const fs::path& path) {
  const auto extension = path.extension();
  if (extension == ".pickle" || extension == ".pkl" || extension == ".csv") return true;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  const int first = std::fgetc(file);
  std::fclose(file);
  return first == 0x80;
}

/// What the command line names.
struct operands {
  std::vector<std::string> recordings;
  std::vector<std::string> result_files;
  std::vector<rank_result> wrong;  ///< what cannot be read
};

rank_result wrong_file(const std::string& path, std::string why) {
  rank_result made;
  made.file = path;
  made.error = std::move(why);
  return made;
}

/// Adds the recordings and results in a folder, also in folders below, but not those in `results`.
void add_folder(const std::string& folder, const std::string& results, operands& to) {
  std::vector<fs::path> files;
  std::error_code wrong;
  for (fs::recursive_directory_iterator at(folder, wrong), end; !wrong && at != end; at.increment(wrong)) {
    std::error_code unknown;
    if (at->is_directory(unknown) && !results.empty() && is_same_file(at->path().string(), results))
      at.disable_recursion_pending();
    if (at->is_regular_file(unknown)) files.push_back(at->path());
  }
  if (wrong) return to.wrong.push_back(wrong_file(folder, folder + ": cannot be read: " + wrong.message()));
  std::sort(files.begin(), files.end());
  std::size_t found = 0;
  for (const fs::path& path : files) {
    if (is_result_file(path)) {
      if (!results.empty() && is_same_file(path.parent_path().string(), results)) continue;
      to.result_files.push_back(path.string());
    } else if (looks_like_recording(path)) {
      to.recordings.push_back(path.string());
    } else {
      continue;
    }
    ++found;
  }
  if (found == 0) to.wrong.push_back(wrong_file(folder, folder + ": has neither recordings nor results"));
}

operands find_operands(const arguments& args) {
  operands found;
  const std::string results = args.results == "-" ? "" : args.results;
  for (const std::string& path : args.files) {
    std::error_code unknown;
    if (fs::is_directory(path, unknown)) {
      add_folder(path, results, found);
    } else if (is_result_file(path)) {
      found.result_files.push_back(path);
    } else {
      found.recordings.push_back(path);
    }
  }
  return found;
}

read_result<std::vector<rank_result>> read_results(const std::string& path) {
  std::error_code unknown;
  if (const auto size = fs::file_size(path, unknown); !unknown && size > max_result_file)
    return input_error{path, "is larger than the limit of " + std::to_string(max_result_file) + " bytes"};
  auto text = read_file(path);
  if (auto* const error = std::get_if<input_error>(&text)) return std::move(*error);
  return rank_result_reader::read_lines(std::get<std::string>(text), path);
}

/// The file for the result of a recording: its title, and a hash of its path, because ranks may have files of the same
/// name in their folders.
std::string result_path(const std::string& folder, const rank_result& of) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : of.file) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016jx", static_cast<std::uintmax_t>(hash));
  std::string title = title_of(of.file).substr(0, 100);
  const std::size_t slash = of.file.find_last_of('/', of.file.find_last_of('/') - 1);
  const std::size_t last = of.file.find_last_of('/');
  if (last != std::string::npos && last != 0 && slash != std::string::npos && last - slash - 1 <= 100)
    title = of.file.substr(slash + 1, last - slash - 1) + "-" + title;
  return folder + "/" + title + "-" + digits + ".json";
}

/// Shows how many files are done: on a terminal as one line, elsewhere as about ten lines in all.
class rank_progress {
 public:
  explicit rank_progress(std::size_t total) : total_(total) {}
  void next(const std::string& file) {
    ++done_;
    const std::string text = std::to_string(done_) + " of " + counted(total_, "file");
    if (errors_go_to_a_terminal()) return progress_line::show(text + ": " + title_of(file));
    const std::size_t tenth = std::max<std::size_t>(1, total_ / 10);
    if (total_ >= 20 && done_ % tenth == 0) print_message(text);
  }

 private:
  std::size_t total_;
  std::size_t done_ = 0;
};

/// Computes the results of recordings, or takes those that an earlier run left in the folder.
class rank_runner {
 public:
  rank_runner(const arguments& args, const rank_request& asked)
      : args_(args), asked_(asked), folder_(args.results == "-" ? "" : args.results) {}

  [[nodiscard]] std::vector<rank_result> run(const std::vector<std::string>& recordings) {
    for (const std::string& path : recordings) {
      rank_result identity = identify(path, asked_);
      if (!seen_.insert(identity.file).second) continue;
      if (std::optional<rank_result> before = earlier(identity)) {
        found_.push_back(std::move(*before));
        ++reused_;
        continue;
      }
      missing_.push_back(std::move(identity));
    }
    if (!missing_.empty()) compute();
    if (missing_.empty() && reused_ != 0) say(reused_text());
    return std::move(found_);
  }
  [[nodiscard]] bool could_save() const { return could_save_; }

 private:
  /// The result of an earlier run for the same file and request, if there is one.
  [[nodiscard]] std::optional<rank_result> earlier(const rank_result& of) {
    if (folder_.empty()) return {};
    const std::string path = result_path(folder_, of);
    std::error_code unknown;
    if (!fs::exists(path, unknown)) return {};
    auto read = read_results(path);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      say(wrong->text() + "; the result is computed again");
      return {};
    }
    auto& all = std::get<std::vector<rank_result>>(read);
    if (all.size() != 1 || all[0].file != of.file) {
      say(path + ": must be the result of " + of.file + "; the result is computed again");
      return {};
    }
    rank_result& made = all[0];
    // An error may have had a cause outside the file, such as too little host memory.
    const bool is_same = made.version == of.version && made.asked == of.asked && made.size == of.size &&
                         made.modified_ns == of.modified_ns && made.error.empty();
    if (!is_same) return {};
    return std::move(made);
  }

  void compute() {
    std::vector<std::size_t> sizes;
    for (const rank_result& one : missing_) sizes.push_back(static_cast<std::size_t>(one.size));
    const worker_limits limits{args_.jobs != 0 ? args_.jobs : usable_processors(),
                               args_.host_memory != 0 ? args_.host_memory : usable_host_memory()};
    rank_progress progress(missing_.size());
    std::size_t most = 0, largest = 0;
    const auto finished = [&](std::size_t i, const worker_outcome& made) {
      progress.next(missing_[i].file);
      if (made.peak_host_memory > most) {
        most = made.peak_host_memory;
        largest = i;
      }
      keep(i, made);
    };
    run_workers(
        sizes, limits, [&](std::size_t i) { return to_json(measure_ranks(missing_[i].file, asked_)); },
        finished);
    std::string text = counted(missing_.size(), "file") + " computed with at most " +
                       std::to_string(limits.jobs) + " at once and " +
                       format_bytes(limits.host_memory).text() + " of host memory";
    if (reused_ != 0) text += ", " + reused_text();
    if (most != 0)
      text += "; the largest worker took " + std::string(format_bytes(most).text()) + " for " +
              title_of(missing_[largest].file) + " of " + format_bytes(sizes[largest]).text();
    say(text);
  }

  /// Keeps what a worker found, also in the folder.
  void keep(std::size_t i, const worker_outcome& made) {
    rank_result result = missing_[i];
    if (!made.error.empty()) {
      result.error = result.file + ": " + made.error;
    } else {
      auto read = rank_result_reader::read(made.output, "the result of a worker");
      if (const auto* const wrong = std::get_if<input_error>(&read)) {
        result.error = result.file + ": " + wrong->text();
      } else {
        result = std::move(std::get<rank_result>(read));
      }
    }
    if (!folder_.empty()) {
      if (const auto failed = save(result_path(folder_, result), to_json(result))) {
        say(failed->text());
        could_save_ = false;
      }
    }
    found_.push_back(std::move(result));
  }
  [[nodiscard]] std::string reused_text() const {
    return counted(reused_, "result") + " taken from " + folder_;
  }
  static void say(const std::string& text) { print_message(text); }

  const arguments& args_;
  const rank_request& asked_;
  std::string folder_;
  std::set<std::string> seen_;
  std::vector<rank_result> found_, missing_;
  std::size_t reused_ = 0;
  bool could_save_ = true;
};

/// The numbers of ranks and failures in one line.
std::string headline(const rank_summary& job) {
  std::string text = counted(job.lines.size(), "rank");
  if (job.failed != 0) text += ", " + std::to_string(job.failed) + " out of memory";
  const std::size_t wrong = job.lines.size() - job.measured;
  if (wrong != 0) text += ", " + std::to_string(wrong) + " with errors";
  return text;
}
std::string spread_text(const rank_summary& job) {
  const std::size_t more = job.reserved.max - job.reserved.min;
  const rank_line& worst = job.lines[job.worst];
  return "worst " + worst.label + " with " + format_bytes(worst.row.peak_reserved).text() +
         " peak reserved; spread of all " + format_bytes(more).text() + ", " +
         decimal_text(
             static_cast<std::size_t>(1000 * ratio(more, std::max<std::size_t>(1, job.reserved.max))), 10,
             1) +
         " % of the most";
}
std::string percent(double share) { return decimal_text(static_cast<std::size_t>(share * 10 + 0.5), 10, 1); }

/// The remarks on a rank in the table.
std::string remark(const rank_summary& job, std::size_t i) {
  const rank_line& one = job.lines[i];
  std::vector<std::string> all;
  if (i == job.worst) all.push_back("worst");
  if (!one.row.recorded && job.recorded != 0) all.push_back("replayed");
  if (one.row.agrees && !*one.row.agrees)
    all.push_back("decisions differ from the recorded ones: see verify");
  if (one.failed()) all.push_back("out of memory: " + why_it_failed(one));
  std::string text;
  for (const std::string& next : all) text += (text.empty() ? "" : "; ") + next;
  return text;
}

/// What a user should do, in one or two lines.
std::vector<std::string> conclusions(const rank_summary& job) {
  std::vector<std::string> lines;
  std::string all;
  for (const setting_summary& s : job.settings)
    if (job.serves_all(s)) all += (all.empty() ? "" : " | ") + printable_text(s.setting.text());
  const bool has_errors = job.measured < job.lines.size();
  const char* const which = has_errors ? "all ranks that could be read" : "all ranks";
  const std::string with = job.capacity ? " with " + counted(*job.capacity, "byte") : "";
  lines.push_back(all.empty() ? std::string("no tested setting serves ") + which + with
                              : std::string("serve ") + which + with + ": " + all);
  if (job.recorded == 0)
    lines.push_back("all peaks are those of replays, because the files do not say what was reserved");
  if (!job.capacity)
    lines.push_back(
        "the capacity of the devices is not recorded; with --capacity, the table counts the ranks that fit");
  if (job.best) {
    const setting_summary& s = job.settings[*job.best];
    lines.push_back("least memory: " + printable_text(s.setting.text()) + ", with which " + which +
                    " need at most " + counted(*s.capacity, "byte") + " (" +
                    format_bytes(*s.capacity).text() + "), " + job.lines[s.worst].label + " the most");
  }
  return lines;
}

void print(const rank_summary& job) {
  std::size_t width = 6;
  for (const rank_line& one : job.lines) width = std::max(width, std::min<std::size_t>(40, one.label.size()));
  const int columns = static_cast<int>(width);
  std::printf("%s%s\n", headline(job).c_str(), job.measured == 0 ? "" : ("; " + spread_text(job)).c_str());
  if (job.measured != 0)
    std::printf("  %-*s %14s %18s %16s\n", columns, "rank", "peak live, MiB", "peak reserved, MiB",
                "fragmentation, %");
  for (std::size_t i = 0; i < job.lines.size(); ++i) {
    const rank_line& one = job.lines[i];
    if (!one.is_measured()) {
      std::printf("  %-*s error: %s\n", columns, one.label.c_str(), printable_text(one.row.error).c_str());
      continue;
    }
    const std::string note = remark(job, i);
    std::printf("  %-*s %14.1f %18.1f %16s%s%s\n", columns, one.label.c_str(), mib(one.row.peak_live),
                mib(one.row.peak_reserved), percent(one.fragmentation()).c_str(), note.empty() ? "" : "  ",
                note.c_str());
  }
  if (job.measured == 0) return;
  const auto row = [&](const char* name, std::size_t live, std::size_t reserved, double share) {
    std::printf("  %-*s %14.1f %18.1f %16s\n", columns, name, mib(live), mib(reserved),
                percent(share).c_str());
  };
  row("least", job.live.min, job.reserved.min, job.fragmentation.min);
  row("median", job.live.median, job.reserved.median, job.fragmentation.median);
  row("most", job.live.max, job.reserved.max, job.fragmentation.max);
  std::printf("\n  %-34s %12s %25s %23s  %s\n", "setting", "ranks served", "capacity all need, MiB",
              "peak reserved, MiB", "worst");
  for (const setting_summary& s : job.settings) {
    const std::string served =
        (job.capacity ? std::to_string(s.served) : std::string("-")) + " of " + std::to_string(s.measured);
    char capacity[40] = "none is enough";
    if (s.capacity) std::snprintf(capacity, sizeof capacity, "%.1f", mib(*s.capacity));
    std::printf("%s %-34s %12s %25s %23.1f  %s\n", job.best && &s == &job.settings[*job.best] ? "*" : " ",
                printable_text(s.setting.text()).c_str(), served.c_str(), capacity, mib(s.peak_reserved),
                job.lines[s.worst].label.c_str());
  }
  for (const std::string& line : conclusions(job)) std::printf("  %s\n", line.c_str());
}

template <typename T>
std::string spread_json(const char* name, const rank_summary& job, const rank_spread<T>& s) {
  const auto number = [](T n) {
    char digits[48];
    if constexpr (std::is_same_v<T, double>) {
      std::snprintf(digits, sizeof digits, "%.3f", n);
    } else {
      std::snprintf(digits, sizeof digits, "%zu", n);
    }
    return std::string(digits);
  };
  return "\"" + std::string(name) + "\": {\"min\": " + number(s.min) + ", \"median\": " + number(s.median) +
         ", \"max\": " + number(s.max) + ", \"at_min\": \"" + json_text(job.lines[s.at_min].label) +
         "\", \"at_max\": \"" + json_text(job.lines[s.at_max].label) + "\"}";
}

void print_json(const rank_summary& job) {
  std::printf("{\"ranks\": [");
  for (std::size_t i = 0; i < job.lines.size(); ++i) {
    const rank_line& one = job.lines[i];
    std::printf("%s\n  {\"rank\": %s, \"label\": \"%s\", \"file\": \"%s\"", i == 0 ? "" : ",",
                one.rank ? std::to_string(*one.rank).c_str() : "null", json_text(one.label).c_str(),
                json_text(one.file).c_str());
    if (one.row.device) std::printf(", \"device\": %zu", *one.row.device);
    if (!one.is_measured()) {
      std::printf(", \"error\": \"%s\"}", json_text(one.row.error).c_str());
      continue;
    }
    std::printf(
        ", \"peak_live\": %zu, \"peak_reserved\": %zu, \"fragmentation_percent\": %.3f, \"recorded\": %s",
        one.row.peak_live, one.row.peak_reserved, one.fragmentation(), one.row.recorded ? "true" : "false");
    if (one.failed()) std::printf(", \"out_of_memory\": \"%s\"", json_text(why_it_failed(one)).c_str());
    std::printf("}");
  }
  std::printf("],\n \"out_of_memory\": %zu, \"errors\": %zu", job.failed, job.lines.size() - job.measured);
  if (job.capacity) std::printf(", \"capacity\": %zu", *job.capacity);
  if (job.measured != 0)
    std::printf(",\n %s,\n %s,\n %s", spread_json("peak_live", job, job.live).c_str(),
                spread_json("peak_reserved", job, job.reserved).c_str(),
                spread_json("fragmentation_percent", job, job.fragmentation).c_str());
  if (job.measured != 0) std::printf(",\n \"worst\": \"%s\"", json_text(job.lines[job.worst].label).c_str());
  std::printf(",\n \"settings\": [");
  for (const setting_summary& s : job.settings) {
    std::printf("%s\n  {\"recipe\": \"%s\", \"conf\": \"%s\", \"measured\": %zu, ",
                &s == job.settings.data() ? "" : ",", json_text(s.setting.recipe).c_str(),
                json_text(s.setting.conf).c_str(), s.measured);
    if (job.capacity) std::printf("\"served\": %zu, ", s.served);
    std::printf("\"serves_all\": %s, \"capacity\": %s, \"peak_reserved\": %zu, \"worst\": \"%s\"}",
                job.serves_all(s) ? "true" : "false",
                s.capacity ? std::to_string(*s.capacity).c_str() : "null", s.peak_reserved,
                json_text(job.lines[s.worst].label).c_str());
  }
  std::printf("]}\n");
}

/// A page with the picture and both tables.
std::string html_page(const rank_summary& job, const std::string& picture) {
  const auto cell = [](const std::string& text) { return "<td>" + markup_text(text) + "</td>"; };
  const auto size = [](std::size_t bytes) { return std::string(format_bytes(bytes).text()); };
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" +
      markup_text(headline(job)) +
      "</title>\n<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n:root{color-scheme:light "
      "dark}"
      "body{font:14px/1.5 system-ui,-apple-system,\"Segoe "
      "UI\",Roboto,Arial,sans-serif;max-width:1000px;margin:1em auto;"
      "padding:0 1em}svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:1.5em "
      "0}th,td{text-align:left;"
      "padding:.2em .8em .2em 0;vertical-align:top;border-bottom:1px solid "
      "#8884;font-variant-numeric:tabular-nums}"
      "td{white-space:nowrap}td:last-child{white-space:normal}.best{font-weight:600}\n</style></"
      "head><body>\n" +
      picture +
      "<table><tr><th>setting</th><th>ranks served</th><th>capacity that all need</th><th>peak reserved</th>"
      "<th>worst</th></tr>\n";
  for (const setting_summary& s : job.settings) {
    const bool is_best = job.best && &s == &job.settings[*job.best];
    html += std::string(is_best ? "<tr class=\"best\">" : "<tr>") + cell(printable_text(s.setting.text())) +
            cell((job.capacity ? std::to_string(s.served) : std::string("-")) + " of " +
                 std::to_string(s.measured)) +
            cell(s.capacity ? size(*s.capacity) : "none is enough") + cell(size(s.peak_reserved)) +
            cell(job.lines[s.worst].label) + "</tr>\n";
  }
  html += "</table>\n";
  for (const std::string& line : conclusions(job)) html += "<p>" + markup_text(line) + "</p>\n";
  html +=
      "<table><tr><th>rank</th><th>peak live</th><th>peak "
      "reserved</th><th>fragmentation</th><th></th></tr>\n";
  for (std::size_t i = 0; i < job.lines.size(); ++i) {
    const rank_line& one = job.lines[i];
    html += "<tr>" + cell(one.label);
    if (one.is_measured())
      html += cell(size(one.row.peak_live)) + cell(size(one.row.peak_reserved)) +
              cell(percent(one.fragmentation()) + " %") + cell(remark(job, i));
    if (!one.is_measured()) html += "<td colspan=\"4\">" + markup_text("error: " + one.row.error) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table>\n</body></html>\n";
}

std::string wrong_results(const arguments& args) {
  if (args.results.empty() || args.results == "-") return {};
  std::error_code wrong;
  fs::create_directories(args.results, wrong);
  if (wrong) return args.results + ": cannot be created: " + wrong.message();
  return fs::is_directory(args.results, wrong) ? "" : args.results + ": is no folder";
}

}  // namespace

int replay::commands::ranks(const arguments& args) {
  const rank_request asked = request_of(args);
  for (const std::string& wrong : {wrong_setting(asked), wrong_results(args)})
    if (!wrong.empty()) return print_error(wrong);
  const operands given = find_operands(args);
  rank_runner runner(args, asked);
  std::vector<rank_result> results = runner.run(given.recordings);
  for (const std::string& path : given.result_files) {
    auto read = read_results(path);
    if (const auto* const wrong = std::get_if<input_error>(&read)) {
      results.push_back(wrong_file(path, wrong->text()));
      continue;
    }
    for (rank_result& one : std::get<std::vector<rank_result>>(read)) results.push_back(std::move(one));
  }
  results.insert(results.end(), given.wrong.begin(), given.wrong.end());
  progress_line::clear();

  const rank_summary job = summarize(results, asked.capacity);
  int code = job.failed != 0 ? differs : done;
  for (const rank_line& one : job.lines) {
    if (!one.is_measured()) code = print_error(one.row.error);
  }
  if (!runner.could_save()) code = invalid_input;
  if (args.results == "-") {
    for (const rank_result& one : results) std::fputs(to_json(one).c_str(), stdout);
  } else {
    args.json ? print_json(job) : print(job);
  }
  if (args.out.empty()) return code;
  if (job.measured == 0) return print_error(args.out + ": is not written, because no rank was measured");
  const std::string picture = rank_picture::draw(job, headline(job), spread_text(job));
  if (const auto failed = save(args.out, args.out.ends_with(".svg") ? picture : html_page(job, picture)))
    return print_error(failed->text());
  return code;
}
