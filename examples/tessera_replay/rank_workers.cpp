// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "commands.hpp"
#include "files.hpp"
#include "ranks.hpp"
#include "text.hpp"

namespace {

using replay::worker_outcome;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool limits_addresses = false;  // sanitizers reserve terabytes of addresses
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool limits_addresses = false;
#else
constexpr bool limits_addresses = true;
#endif
#else
constexpr bool limits_addresses = true;
#endif

constexpr std::size_t base_bytes =
    tessera::operator""_MiB(256);           // the program, its libraries and small files
constexpr std::size_t bytes_per_byte = 30;  // a recorded snapshot takes 7 to 15

enum : int { failed_to_write = 4, out_of_memory = 3, failed = 5 };

using output_file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// A process that works on a file.
struct worker {
  std::size_t file;
  std::size_t limit;  // of host memory
  bool is_alone;
  output_file output;
};

/// The work of a process. Never returns, and runs no destructors of the parent's objects.
[[noreturn]] void work_and_exit(const std::function<std::string(std::size_t)>& work, const worker& mine) {
#if defined(__linux__)
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives an interrupted run
#endif
  if (limits_addresses) {
    const rlimit limit{mine.limit, mine.limit};
    (void)setrlimit(RLIMIT_AS, &limit);
    const rlimit no_core{0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
  }
  int code = failed_to_write;
  try {
    const std::string text = work(mine.file);
    const bool is_written = std::fwrite(text.data(), 1, text.size(), mine.output.get()) == text.size();
    if (is_written && std::fflush(mine.output.get()) == 0) code = 0;
  } catch (const std::bad_alloc&) {
    code = out_of_memory;
  } catch (const std::length_error&) {
    code = out_of_memory;
  } catch (const std::exception&) {
    code = failed;
  }
  _exit(code);
}

std::string why_it_failed(int status, std::size_t limit) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* const name = strsignal(number);
    return "the worker was ended by signal " + std::to_string(number) +
           (name == nullptr ? "" : " (" + std::string(name) + ")");
  }
  switch (WEXITSTATUS(status)) {
    case out_of_memory: return "host memory ran out, with " + replay::counted(limit, "byte") + " for it";
    case failed_to_write: return "the worker could not write its result to a temporary file";
    default: return "the worker failed";
  }
}

std::string read_all(std::FILE* from) {
  std::string text;
  std::rewind(from);
  char chunk[65536];
  for (std::size_t count = sizeof chunk; count == sizeof chunk;) {
    count = std::fread(chunk, 1, sizeof chunk, from);
    text.append(chunk, count);
  }
  return text;
}

/// The first number in a small file, or of the line that begins with `key`.
std::optional<std::size_t> number_in(const char* path, std::string_view key) {
  const auto text = replay::read_file(path);
  const auto* const bytes = std::get_if<std::string>(&text);
  if (bytes == nullptr) return {};
  std::string_view rest = *bytes;
  if (const std::size_t at = rest.find(key); at != rest.npos) {
    rest.remove_prefix(at + key.size());
  } else {
    return {};
  }
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  std::size_t number = 0;
  std::string digits(rest.substr(0, rest.find_first_not_of("0123456789")));
  if (digits.empty() || !replay::read_size(digits, number).empty()) return {};
  return number;
}

}  // namespace

std::size_t replay::usable_processors() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&allowed)));
#endif
  return static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::size_t replay::usable_host_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  std::size_t bytes = pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page)
                                            : tessera::operator""_GiB(4);
  if (const auto available = number_in("/proc/meminfo", "MemAvailable:"))
    bytes = std::min(bytes, *available * 1024);
  // In a container, its limit counts.
  for (const char* const path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const auto limit = number_in(path, "")) bytes = std::min(bytes, *limit);
  }
  return bytes / 4 * 3;
}

void replay::run_workers(const std::vector<std::size_t>& file_bytes, const worker_limits& limits,
                         const std::function<std::string(std::size_t)>& work,
                         const std::function<void(std::size_t, const worker_outcome&)>& finished) {
  const std::size_t all_memory = std::max(limits.host_memory, base_bytes);
  std::map<pid_t, worker> running;
  std::size_t used = 0;  // the sum of the limits of the running ones
  std::vector<std::size_t> again;

  const auto give_up = [&](std::size_t file, std::string why) {
    finished(file, worker_outcome{{}, std::move(why), 0});
  };
  const auto limit_of = [&](std::size_t file) {
    const std::size_t most = all_memory / bytes_per_byte;
    return file_bytes[file] >= most ? all_memory
                                    : std::min(all_memory, base_bytes + bytes_per_byte * file_bytes[file]);
  };
  const auto start = [&](std::size_t file, std::size_t limit, bool is_alone) {
    worker made{file, limit, is_alone, output_file(std::tmpfile(), &std::fclose)};
    if (made.output == nullptr)
      return give_up(file, std::string("no temporary file for the result: ") + std::strerror(errno));
    std::fflush(stdout);
    std::fflush(stderr);
    const pid_t id = fork();
    if (id == 0) work_and_exit(work, made);
    if (id < 0) return give_up(file, std::string("no process for it: ") + std::strerror(errno));
    used += limit;
    running.emplace(id, std::move(made));
  };
  const auto wait_for_one = [&] {
    int status = 0;
    rusage taken{};
    const pid_t id = wait4(-1, &status, 0, &taken);
    if (id < 0 && errno == EINTR) return;
    if (id < 0) {
      const std::map<pid_t, worker> lost = std::exchange(running, {});
      used = 0;
      for (const auto& [its_id, one] : lost) give_up(one.file, std::string("lost: ") + std::strerror(errno));
      return;
    }
    const auto at = running.find(id);
    if (at == running.end()) return;
    const worker ended = std::move(at->second);
    running.erase(at);
    used -= ended.limit;
    if (status != 0 && !ended.is_alone) return again.push_back(ended.file);
    worker_outcome made;
    made.peak_host_memory = static_cast<std::size_t>(taken.ru_maxrss) * 1024;
    if (status != 0) made.error = why_it_failed(status, ended.limit);
    if (status == 0) made.output = read_all(ended.output.get());
    finished(ended.file, made);
  };

  for (std::size_t file = 0; file < file_bytes.size(); ++file) {
    const std::size_t limit = limit_of(file);
    while (!running.empty() && (running.size() >= limits.jobs || used + limit > all_memory)) wait_for_one();
    start(file, limit, false);
  }
  while (!running.empty()) wait_for_one();
  for (std::size_t i = 0; i < again.size(); ++i) {
    start(again[i], all_memory, true);
    while (!running.empty()) wait_for_one();
  }
}
