// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace replay {

[[nodiscard]] inline std::size_t number_of_cores() {
  return std::max(1u, std::thread::hardware_concurrency());
}

/// Calls f(0) to f(count - 1) on all cores.
template <typename F>
void on_all_cores(std::size_t count, F f) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) f(i);
  };
  const std::size_t threads = std::min(number_of_cores(), count);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace replay
