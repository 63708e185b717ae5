// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

namespace complaints {

/// Where the requests of a replay come from.
enum class source : unsigned char {
  report,  ///< the issue gives the sizes and the order, so the replay has to give the figure of the issue
  shape    ///< the issue describes the program; sizes that it does not give were chosen to fit its figure
};

/// A complaint of a user about a memory allocator, as a program that runs with the recipe of that system and with a cure.
struct complaint {
  const char* issue;               ///< the project, and the number of its issue or pull request
  const char* says;                ///< what the user saw
  const char* figure;              ///< what is counted, and in which unit; less is better
  std::optional<double> reported;  ///< the figure of the issue, if it gives one
  source requests;
  double within;                   ///< how far the replay may be from the reported figure, as a part of that
  double saves;                    ///< the part of the replayed figure that the cure saves at least
  const char* recipe;              ///< what decides as that system does
  const char* cure;                ///< the one policy, recipe, extension or front end that helps
  double (*replayed)() = nullptr;  ///< runs the program with the recipe, and returns the figure
  double (*cured)() = nullptr;     ///< runs it with the cure
};

/// The figures of a complaint, from two runs of its program.
struct outcome {
  double replayed;
  double cured;
};

/// All complaints: first those with the sizes of the issue, then the shapes. To add one, add an element in complaints.cpp.
[[nodiscard]] std::span<const complaint> all();

/// Says why figures do not show what the complaint promises; null if they do.
[[nodiscard]] const char* fault_of(const complaint& each, const outcome& now);

}  // namespace complaints
