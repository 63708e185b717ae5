// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>

/// The NUMA nodes of this machine, by Linux's system calls and /sys/devices/system/node. No library is needed.

namespace tessera::inline v0_1::provider {

/// A node with memory.
struct numa_node {
  int number = 0;         ///< as the kernel numbers nodes
  std::size_t bytes = 0;  ///< of all its memory, free or not
  /// To each node of the list, in its order: 10 for the node itself, and larger for slower ones.
  std::vector<unsigned> distances{};
};

/// The nodes with memory by ascending number, or the reason why they are unknown.
struct numa_node_list {
  std::vector<numa_node> nodes{};  ///< empty if there is an error
  std::string error{};             ///< empty if the nodes are known: the file and the broken rule
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

inline constexpr int max_numa_nodes = 1024;  // of Linux

/// Reads a small file; false if it cannot be read or is longer than 64 KiB.
[[nodiscard]] inline bool read_small_file(const std::string& path, std::string& text) {
  text.resize(64_KiB);
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  const std::size_t length = std::fread(text.data(), 1, text.size(), file);
  const bool is_whole = length < text.size() && std::ferror(file) == 0;
  std::fclose(file);
  text.resize(length);
  return is_whole;
}

/// Reads decimal digits at `at`, and moves it behind them; false without digits or above `max`.
[[nodiscard]] inline bool read_digits(const std::string& text, std::size_t& at, std::size_t max,
                                      std::size_t& number) {
  const std::size_t first = at;
  number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    const auto digit = static_cast<std::size_t>(text[at] - '0');
    if (number > (max - digit) / 10) return false;
    number = number * 10 + digit;
  }
  return at != first;
}

/// Reads a list of ascending node numbers such as "0-1,4"; false if it is malformed.
[[nodiscard]] inline bool read_node_list(const std::string& text, std::vector<int>& nodes) {
  for (std::size_t at = 0;;) {
    std::size_t first = 0, last = 0;
    if (!read_digits(text, at, max_numa_nodes - 1, first)) return false;
    last = first;
    if (at < text.size() && text[at] == '-' && !read_digits(text, ++at, max_numa_nodes - 1, last))
      return false;
    if (last < first || (!nodes.empty() && static_cast<int>(first) <= nodes.back())) return false;
    for (std::size_t n = first; n <= last; ++n) nodes.push_back(static_cast<int>(n));
    if (at == text.size() || text[at] == '\n') return true;
    if (text[at++] != ',') return false;
  }
}

/// The number of KiB after a label of a meminfo file, in bytes; false if it is missing.
[[nodiscard]] inline bool read_kib_after(const std::string& text, const char* label, std::size_t& bytes) {
  std::size_t at = text.find(label);
  if (at == std::string::npos) return false;
  for (at += std::strlen(label); at < text.size() && text[at] == ' ';) ++at;
  if (!read_digits(text, at, max_request >> 10, bytes)) return false;
  bytes <<= 10;
  return true;
}

/// Binds the pages of a mapping that are not yet touched to a node; nothing for a negative node. Null on success, else the
/// reason.
[[nodiscard]] inline const char* bind_to_numa_node(void* p, std::size_t bytes, int node) noexcept {
  if (node < 0) return nullptr;
  constexpr unsigned long bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, max_numa_nodes / bits> mask{};
  mask[static_cast<unsigned long>(node) / bits] = 1ul << (static_cast<unsigned long>(node) % bits);
  constexpr int bind = 2;  // MPOL_BIND of <numaif.h>, which belongs to libnuma
  // The kernel subtracts 1 from the number of bits.
  if (::syscall(SYS_mbind, p, bytes, bind, mask.data(), max_numa_nodes + 1ul, 0u) == 0) return nullptr;
  if (errno == EINVAL)
    return "mbind: the process may not use the node; see Mems_allowed_list in /proc/self/status";
  if (errno == ENOSYS || errno == EPERM) return "mbind: the kernel or a container's filter forbids the call";
  return "mbind: the kernel refuses to bind memory to the node";
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Lists the nodes that have memory. On a machine without NUMA, that is node 0. `root` is for tests.
///
///     for (const auto& node : tessera::provider::list_numa_nodes().nodes)
///       std::printf("node %d: %zu MiB\n", node.number, node.bytes >> 20);
[[nodiscard]] inline numa_node_list list_numa_nodes(const std::string& root = "/sys/devices/system/node") {
  const auto failed = [](const std::string& file, const char* rule) {
    numa_node_list none;
    none.error = file + ": " + rule;
    return none;
  };
  std::string text;
  std::vector<int> online, with_memory;
  for (const auto& [name, list] : {std::pair{"/online", &online}, std::pair{"/has_memory", &with_memory}}) {
    if (!detail::read_small_file(root + name, text)) return failed(root + name, "cannot be read");
    if (!detail::read_node_list(text, *list)) return failed(root + name, "is no list of node numbers");
  }
  numa_node_list all;
  for (const int number : with_memory) {
    numa_node node{.number = number};
    const std::string folder = root + "/node" + std::to_string(number);
    if (!detail::read_small_file(folder + "/meminfo", text))
      return failed(folder + "/meminfo", "cannot be read");
    if (!detail::read_kib_after(text, "MemTotal:", node.bytes))
      return failed(folder + "/meminfo", "has no number after MemTotal:");
    if (!detail::read_small_file(folder + "/distance", text))
      return failed(folder + "/distance", "cannot be read");
    std::size_t at = 0;
    for (const int other : online) {
      std::size_t distance = 0;
      while (at < text.size() && text[at] == ' ') ++at;
      if (!detail::read_digits(text, at, 255, distance))
        return failed(folder + "/distance", "has no distance from 0 to 255 for each online node");
      if (std::find(with_memory.begin(), with_memory.end(), other) != with_memory.end())
        node.distances.push_back(static_cast<unsigned>(distance));
    }
    if (node.distances.size() != with_memory.size())
      return failed(root + "/has_memory", "has a node that is not online");
    all.nodes.push_back(std::move(node));
  }
  return all;
}

/// The node of the CPU on which the calling thread runs; negative if the system does not say. The thread may move later.
[[nodiscard]] inline int numa_node_of_thread() noexcept {
  unsigned cpu = 0, node = 0;
  return ::syscall(SYS_getcpu, &cpu, &node, nullptr) == 0 ? static_cast<int>(node) : -1;
}

/// The node of the page at an address, which is touched if it was not; negative if there is none.
[[nodiscard]] inline int numa_node_of(const void* p) noexcept {
  constexpr unsigned long of_address = 3;  // MPOL_F_NODE and MPOL_F_ADDR
  int node = -1;
  return ::syscall(SYS_get_mempolicy, &node, nullptr, 0ul, p, of_address) == 0 ? node : -1;
}

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

/// Why memory cannot be bound to a node; empty if it can, or for a negative node.
[[nodiscard]] inline std::string why_no_numa_node(int node) {
  if (node < 0) return {};
  const provider::numa_node_list all = provider::list_numa_nodes();
  const std::string name = "node " + std::to_string(node);
  if (!all.error.empty()) return name + ": " + all.error;
  std::string known;
  for (const provider::numa_node& each : all.nodes) {
    if (each.number == node) return {};
    if (known.size() >= 64) continue;
    if (!known.empty()) known += ' ';
    known += std::to_string(each.number);
  }
  return name + " does not exist or has no memory; the nodes with memory are: " + known;
}

/// The sum of the numbers of KiB after labels of a meminfo file, in bytes; `unlimited` if it is unknown.
[[nodiscard]] inline std::size_t sum_of_kib(const char* path,
                                            std::initializer_list<const char*> labels) noexcept {
  std::size_t sum = 0;
  const auto read = [&] {
    std::string text;
    bool is_known = read_small_file(path, text);
    for (const char* const label : labels) {
      std::size_t bytes = 0;
      is_known = is_known && read_kib_after(text, label, bytes);
      sum += bytes;
    }
    if (!is_known) sum = unlimited;
  };
  return try_run(read) ? sum : unlimited;
}
/// Bytes of a node that are free or hold cached files; `unlimited` if unknown.
[[nodiscard]] inline std::size_t numa_available(int node) noexcept {
  fixed_text path;
  path.add("/sys/devices/system/node/node").add(static_cast<std::uint64_t>(node)).add("/meminfo");
  return sum_of_kib(path.c_str(), {"MemFree:", "Active(file):", "Inactive(file):"});
}

}  // namespace tessera::inline v0_1::detail
