// SPDX-License-Identifier: Apache-2.0
// The system's own data about this process, for the tests of host_pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace host_process {

/// Bytes of the mappings in a range of addresses, as /proc/self/smaps counts them.
struct extent {
  std::size_t size = 0;
  std::size_t resident = 0;
  std::size_t locked = 0;
  std::string rights;  ///< of each mapping, with a space behind it
};
inline extent smaps(const void* p, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  extent sum;
  bool inside = false;
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    unsigned long from = 0, to = 0;
    char rights[5] = "";
    std::size_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights) == 3) {
      inside = from < begin + bytes && begin < to;
      if (!inside) continue;
      sum.size += to - from;
      sum.rights += rights + std::string(" ");
    } else if (inside && std::sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1) {
      sum.resident += kib << 10;
    } else if (inside && std::sscanf(line.c_str(), "Locked: %zu kB", &kib) == 1) {
      sum.locked += kib << 10;
    }
  }
  return sum;
}

/// Whether some MiB can be locked. The limit may forbid it, and under a sanitizer mlock does nothing.
inline bool locks() {
  constexpr std::size_t bytes = std::size_t{6} << 20;
  void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool real = ::mlock(p, bytes) == 0 && smaps(p, bytes).locked == bytes;
  ::munmap(p, bytes);
  return real;
}

/// Whether a new mapping is in memory at once if it asks for that. An emulator, such as qemu, ignores it.
/// The mapping is shared, because a private one may become part of another.
inline bool populates() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const p =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  const bool there = smaps(p, page).resident == page;
  ::munmap(p, page);
  return there;
}

/// Bytes of a mapped range that mincore reports as resident.
inline std::size_t in_core(void* p, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(bytes /
                                   4096);  // qemu writes an element for 4 KiB, however large its pages are
  if (::mincore(p, bytes, pages.data()) != 0) return 0;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < bytes / page; ++i) sum += (pages[i] & 1) * page;
  return sum;
}

/// The open files of this process, by number.
inline std::size_t open_files() {
  std::size_t count = 0;
  if (DIR* const folder = ::opendir("/proc/self/fd")) {
    while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.';
    ::closedir(folder);
  }
  return count;
}

/// Bytes of the memory files of providers that are mapped in this process.
inline std::size_t memory_files_mapped() {
  std::size_t sum = 0;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    unsigned long from = 0, to = 0;
    if (line.find("/memfd:tessera") != std::string::npos &&
        std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2)
      sum += to - from;
  }
  return sum;
}

/// A channel between two processes, made before they fork. Each keeps one end. A wait of half a minute fails.
class channel {
 public:
  channel() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_) != 0) ends_[0] = ends_[1] = -1;
  }
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel() {
    for (const int end : ends_)
      if (end >= 0) ::close(end);
  }
  /// The other end belongs to the other process.
  void keep(int which) {
    ::close(ends_[1 - which]);
    ends_[1 - which] = -1;
    mine_ = which;
  }
  template <typename T>
  bool send(const T& value) const {
    return ::send(ends_[mine_], &value, sizeof value, MSG_NOSIGNAL) == ssize_t{sizeof value};
  }
  template <typename T>
  bool receive(T& value, int milliseconds = 30'000) const {
    pollfd watched{ends_[mine_], POLLIN, 0};
    return ::poll(&watched, 1, milliseconds) == 1 &&
           ::recv(ends_[mine_], &value, sizeof value, MSG_WAITALL) == ssize_t{sizeof value};
  }
  /// Discards all received data.
  void drain() const {
    char some[256];
    while (::recv(ends_[mine_], some, sizeof some, MSG_DONTWAIT) > 0) {
    }
  }
  /// Signals the other process, or waits for its signal.
  bool pass() const { return send('.'); }
  bool wait() const {
    char dot = 0;
    return receive(dot);
  }

 private:
  int ends_[2];
  int mine_ = 0;
};

/// Runs a part of a test in a new process without threads. Its return value is the exit code.
template <typename F>
::pid_t start(F part) {
  std::fflush(nullptr);
  const ::pid_t child = ::fork();
  if (child == 0) ::_exit(part());
  return child;
}
/// The same with a channel to the child, which has end 1.
template <typename F>
::pid_t start(channel& way, F part) {
  const ::pid_t child = start([&] { return way.keep(1), part(); });
  way.keep(0);
  return child;
}
/// The exit code of a child; 128 and more if a signal ended it.
inline int end_of(::pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace host_process
