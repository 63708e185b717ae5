// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rank_result.hpp"
#include "recipes.hpp"

namespace replay {

/// What the verb ranks measures of each file.
struct rank_request {
  const recipe_list* known = nullptr;  ///< the recipes that it may name
  std::vector<rank_setting> settings;
  std::optional<std::size_t> capacity;  ///< of the devices, in bytes; otherwise as recorded
  std::optional<std::size_t> device;    ///< of snapshots; nothing for all

  /// The request as text. Results of equal requests may take each other's place.
  [[nodiscard]] std::string text() const;
};

/// Says why a request cannot be measured; empty if it can.
[[nodiscard]] std::string wrong_setting(const rank_request& asked);

/// Measures the ranks of a file: replays each with each setting. Errors are part of the result.
[[nodiscard]] rank_result measure_ranks(const std::string& path, const rank_request& asked);

/// The file's size, time and absolute path, without rows.
[[nodiscard]] rank_result identify(const std::string& path, const rank_request& asked);

/// How work on many files is spread over processes.
struct worker_limits {
  std::size_t jobs = 1;
  std::size_t host_memory = 0;  ///< of all workers together, in bytes
};

/// The number of processors that this process may use.
[[nodiscard]] std::size_t usable_processors();
/// Three quarters of the host memory that is available to this process, in bytes.
[[nodiscard]] std::size_t usable_host_memory();

/// What a worker did.
struct worker_outcome {
  std::string output;  ///< what `work` returned
  std::string error;   ///< why there is no output; empty if there is one
  std::size_t peak_host_memory = 0;
};

/// Does `work(i)` for files of these sizes, each in a process of its own, and calls `finished(i, outcome)` in this
/// process, in the order in which they end.
///
/// A worker may take 256 MiB and 30 bytes for each byte of its file. Workers start while the sum of these limits
/// is at most the limit of all. A worker that fails is repeated alone, with all of that memory, before it is an
/// error, so the result does not depend on the number of jobs.
void run_workers(const std::vector<std::size_t>& file_bytes, const worker_limits& limits,
                 const std::function<std::string(std::size_t)>& work,
                 const std::function<void(std::size_t, const worker_outcome&)>& finished);

}  // namespace replay
