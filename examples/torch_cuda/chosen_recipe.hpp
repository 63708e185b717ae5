// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <tessera/plan/memory_plan.hpp>

#include "../tessera_replay/planner/plan_file.hpp"

namespace torch_cuda {

/// What the variable TESSERA_RECIPE says. An unset variable chooses PyTorch's recipe.
class chosen_recipe {
 public:
  /// Reads the variable, and the plan that it names.
  chosen_recipe() {
    const char* const value = std::getenv("TESSERA_RECIPE");
    const std::string name = value != nullptr ? value : "pytorch";
    if (name.ends_with(".plan") || name.ends_with(".csv")) {
      read_plan(name);
    } else if (name == "stitched") {
      stitches_ = true;
    } else if (name != "pytorch") {
      error_ = "TESSERA_RECIPE: there is no recipe \"" + name +
               "\", only pytorch, stitched, and a plan in a file FILE.plan or FILE.csv";
    }
  }
  chosen_recipe(const chosen_recipe&) = delete;
  chosen_recipe& operator=(const chosen_recipe&) = delete;
  /// Reads the variable when it is first called, and again as long as it has an error, so that a program can mend it.
  [[nodiscard]] static const chosen_recipe& get() {
    static std::mutex reading;
    static std::unique_ptr<const chosen_recipe> chosen;
    const std::lock_guard lock(reading);
    if (chosen == nullptr || !chosen->error().empty()) chosen = std::make_unique<const chosen_recipe>();
    return *chosen;
  }

  /// What is wrong with the variable or its file; empty if nothing is. A text is valid until the next call of get().
  [[nodiscard]] const std::string& error() const noexcept { return error_; }
  [[nodiscard]] bool stitches() const noexcept { return stitches_; }
  /// The plan that a device follows, or null. It and the name of its file are valid while the program runs.
  [[nodiscard]] const tessera::plan::memory_plan* plan() const noexcept { return plan_ ? &*plan_ : nullptr; }
  [[nodiscard]] const std::string& plan_file() const noexcept { return file_; }

 private:
  void read_plan(const std::string& path) {
    file_ = path;
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) {
      error_ = "TESSERA_RECIPE: " + path + ": " + std::strerror(errno != 0 ? errno : EIO);
      return;
    }
    auto read = tessera::plan::read_csv(text, path);
    if (const auto* const error = std::get_if<tessera::trace::input_error>(&read)) {
      error_ = "TESSERA_RECIPE: " + error->text();
      return;
    }
    made_ = std::move(std::get<tessera::plan::made_plan>(read));
    plan_ = made_.view();
  }

  std::string error_, file_;
  bool stitches_ = false;
  tessera::plan::made_plan made_;
  std::optional<tessera::plan::memory_plan> plan_;  // a view of made_
};

}  // namespace torch_cuda
