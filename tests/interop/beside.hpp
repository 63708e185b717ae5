// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

/// Runs the same work with a library's own allocator and with a pool of tessera, and compares results, memory and time.
namespace interop_tests {

using pool_type = tessera::concurrent::locked<
    tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>>;

[[nodiscard]] inline tessera::provider::host_pinned host_memory() {
  return tessera::provider::host_pinned({.pin = tessera::provider::host_pinned::pinning::never});
}

/// Prints why a check failed. Returns `is_right`.
inline bool check(bool is_right, const char* rule) {
  if (!is_right) std::printf("FAILED: %s\n", rule);
  return is_right;
}
/// Checks that a pool has served requests, and that all of its memory came back.
inline bool is_empty_after_use(pool_type& pool) {
  return check(pool.statistics().all.allocation.allocated > 0, "the library asked the pool for memory") &&
         check(pool.current_usage().allocated == 0, "all memory came back to the pool") &&
         check(pool.audit() == nullptr, "the pool is consistent");
}
/// Whether an address lies in memory that the pool took from the system.
inline bool is_of(pool_type& pool, const void* p) { return tessera::observe::segment_of(pool, p).bytes > 0; }

/// What one piece of work took and computed.
class sample {
 public:
  /// Begins to count memory.
  void begin() {
    if (std::FILE* const file = std::fopen("/proc/self/clear_refs", "w")) {
      std::fputs("5", file);  // the peak of resident memory becomes its present size
      std::fclose(file);
    }
    before_ = resident("VmRSS:");
  }
  /// Ends to count memory, and notes the peaks of a pool.
  void end(pool_type* pool = nullptr) {
    taken.peak = std::max(resident("VmHWM:"), before_) - before_;
    if (pool == nullptr) return;
    const auto counted = pool->statistics().all;
    taken.requested = static_cast<std::size_t>(counted.requested_bytes.peak);
    taken.reserved = static_cast<std::size_t>(counted.reserved_bytes.peak);
  }
  /// Runs `work` a number of times, and adds the shortest time.
  template <typename Work>
  void time(int times, Work work) {
    double shortest = 0;
    for (int i = 0; i < times; ++i) {
      const auto began = std::chrono::steady_clock::now();
      work();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
      if (i == 0 || took.count() < shortest) shortest = took.count();
    }
    taken.ms += shortest;
  }
  /// Adds bytes to the result.
  void add(const void* data, std::size_t bytes) {
    const auto* const byte = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) taken.hash = (taken.hash ^ byte[i]) * 0x100000001b3;
    taken.bytes += bytes;
  }
  /// Adds numbers to the result. All must be finite.
  void add_floats(const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) taken.is_finite = taken.is_finite && std::isfinite(values[i]);
    add(values, count * sizeof(float));
  }
  struct figures {
    double ms = 0;
    std::size_t peak = 0;  ///< resident bytes above those at the beginning
    std::size_t requested = 0, reserved = 0;
    std::uint64_t hash = 0xcbf29ce484222325;
    std::size_t bytes = 0;  ///< of the result
    bool is_right = false, is_finite = true;
  } taken;

 private:
  static std::size_t resident(const char* key) {
    std::size_t kilobytes = 0;
    if (std::FILE* const file = std::fopen("/proc/self/status", "r")) {
      char line[256];
      while (std::fgets(line, sizeof line, file) != nullptr)
        if (std::strncmp(line, key, std::strlen(key)) == 0)
          std::sscanf(line + std::strlen(key), "%zu", &kilobytes);
      std::fclose(file);
    }
    return kilobytes * 1024;
  }

  std::size_t before_ = 0;
};

/// Runs `work(sample)` in a process of its own, because a library and its allocator keep memory. `work` returns whether its
/// checks passed.
template <typename Work>
std::optional<sample::figures> run_alone(Work work) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    sample in;
    in.taken.is_right = work(in);
    std::fflush(stdout);
    const bool sent = write(ends[1], &in.taken, sizeof in.taken) == sizeof in.taken;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  sample::figures taken;
  const bool received = child > 0 && read(ends[0], &taken, sizeof taken) == sizeof taken;
  close(ends[0]);
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  if (!received || !taken.is_right) return {};
  return taken;
}

/// Runs `work(sample, pool)` with a null pool, which means the library's own allocator, then with a pool of tessera, and prints
/// both. Returns the exit code of the program: 0 if all checks passed and the results are equal in each bit.
template <typename Work>
int run_beside(const char* name, Work work) {
  const auto theirs = run_alone([&](sample& in) { return work(in, static_cast<pool_type*>(nullptr)); });
  const auto ours = run_alone([&](sample& in) {
    pool_type pool(host_memory());
    return work(in, &pool) && is_empty_after_use(pool);
  });
  if (!check(theirs.has_value(), "the work with the library's own allocator") ||
      !check(ours.has_value(), "the work with tessera"))
    return 1;
  constexpr double mib = 1 << 20;
  std::printf("%s: own allocator: peak resident %.1f MiB, %.3f ms\n", name,
              static_cast<double>(theirs->peak) / mib, theirs->ms);
  std::printf(
      "%s: tessera:       peak resident %.1f MiB, %.3f ms; requested at most %.1f MiB, reserved %.1f MiB\n",
      name, static_cast<double>(ours->peak) / mib, ours->ms, static_cast<double>(ours->requested) / mib,
      static_cast<double>(ours->reserved) / mib);
  return check(theirs->is_finite && theirs->bytes > 0 && theirs->bytes == ours->bytes &&
                   theirs->hash == ours->hash,
               "the results are equal")
             ? 0
             : 1;
}

}  // namespace interop_tests
