// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "commands.hpp"
#include "text.hpp"

namespace replay {

[[nodiscard]] bool errors_go_to_a_terminal();
/// Makes standard output the same bytes on all systems. Windows would write "\r\n" for "\n".
void keep_line_ends_of_output();

/// Shows one line of progress on a terminal, which the next replaces. Silent if standard error is a file.
class progress_line {
 public:
  static void show(const std::string& text) {
    if (!errors_go_to_a_terminal()) return;
    std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
    is_shown() = true;
  }
  static void clear() {
    if (is_shown()) std::fputs("\r\x1b[K", stderr);
    is_shown() = false;
  }

 private:
  static bool& is_shown() {
    static bool shown = false;
    return shown;
  }
};

/// Shows numbered steps of a command on a terminal, as "[number/total] text".
///   Requires:  one call of `next` per step, unless the command fails
class steps {
 public:
  explicit steps(std::size_t total) : total_(total) {}
  steps(const steps&) = delete;
  steps& operator=(const steps&) = delete;
  ~steps() { progress_line::clear(); }

  void next(const std::string& text) {
    std::string line(1, '[');  // g++ 12 warns about "[" + std::string
    line.append(std::to_string(++done_)).append("/").append(std::to_string(total_)).append("] ");
    progress_line::show(line + text);
  }

 private:
  std::size_t done_ = 0;
  std::size_t total_;
};

/// The name of the program, as it was called, without folders. What it prints on standard error begins with it.
inline std::string& program_name() {
  static std::string name = "tessera-replay";
  return name;
}

/// Prints a line on standard error.
inline void print_message(const std::string& text) {
  progress_line::clear();
  std::fprintf(stderr, "%s: %s\n", program_name().c_str(), text.c_str());
}
/// Prints a line on standard error, the first time only.
inline void print_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> printed;
  const std::scoped_lock lock(mutex);
  if (printed.insert(text).second) print_message(text);
}
/// Whether the user gave a configuration string, so that settings without effect are worth a message.
inline bool& has_given_conf() {
  static bool given = false;
  return given;
}
/// Prints an error, and returns the exit code for invalid input.
inline int print_error(const std::string& text) {
  print_message(text);
  return invalid_input;
}

/// Prints the brackets and commas of a JSON array, also when a command ends early. Prints nothing if JSON is
/// not wanted.
class json_list {
 public:
  explicit json_list(bool wanted) : wanted_(wanted) {}
  json_list(const json_list&) = delete;
  json_list& operator=(const json_list&) = delete;
  ~json_list() {
    if (wanted_) std::puts(is_empty_ ? "[]" : "]");
  }

  /// Begins an element.
  void next() {
    if (wanted_) std::fputs(is_empty_ ? "[" : ",\n ", stdout);
    is_empty_ = false;
  }
  /// Adds an error as an element; `key` names the input.
  void add_error(const char* key, const std::string& name, const std::string& wrong) {
    next();
    end_with_error(key, name, wrong);
  }
  /// Makes an error of the element that `next` began.
  void end_with_error(const char* key, const std::string& name, const std::string& wrong) {
    if (!wanted_) return;
    std::printf("{\"%s\": \"%s\", \"error\": \"%s\"}", key, json_text(name).c_str(),
                json_text(wrong).c_str());
  }

 private:
  bool wanted_;
  bool is_empty_ = true;
};

}  // namespace replay
