// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

#include <tessera/observe/output.hpp>

namespace replay {

/// The brackets and commas of an array that is printed element by element; whole however it ends. Prints nothing where no
/// JSON is wanted.
class json_list {
 public:
  explicit json_list(bool wanted) : wanted_(wanted) {}
  json_list(const json_list&) = delete;
  json_list& operator=(const json_list&) = delete;
  ~json_list() {
    if (wanted_) std::puts(is_empty_ ? "[]" : "]");
  }

  /// Says that an element comes next.
  void next() {
    if (wanted_) std::fputs(is_empty_ ? "[" : ",\n ", stdout);
    is_empty_ = false;
  }
  /// Adds what is wrong with an input, which is named by the key.
  void add_error(const char* key, const std::string& name, const std::string& wrong) {
    if (!wanted_) return;
    next();
    std::printf("{\"%s\": \"%s\", \"error\": \"%s\"}", key, tessera::trace::json_text(name).c_str(),
                tessera::trace::json_text(wrong).c_str());
  }

 private:
  bool wanted_;
  bool is_empty_ = true;
};

}  // namespace replay
