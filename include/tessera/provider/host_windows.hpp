// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include <tessera/core/types.hpp>

/// The calls of host_pinned on Windows. Functions that can fail return null on success. Otherwise they return the broken rule,
/// or a text that names the missing resource and a remedy.

#if defined(_WIN32)
// As <windows.h> declares them. That header has thousands of macros, among them words such as small and near.
struct _MEMORYSTATUSEX;
struct _MEMORY_BASIC_INFORMATION;
extern "C" {
__declspec(dllimport) void* __stdcall VirtualAlloc(void*, std::size_t, unsigned long, unsigned long);
__declspec(dllimport) int __stdcall VirtualFree(void*, std::size_t, unsigned long);
__declspec(dllimport) int __stdcall VirtualLock(void*, std::size_t);
__declspec(dllimport) int __stdcall VirtualUnlock(void*, std::size_t);
__declspec(dllimport) std::size_t __stdcall VirtualQuery(const void*, _MEMORY_BASIC_INFORMATION*,
                                                         std::size_t);
__declspec(dllimport) int __stdcall GlobalMemoryStatusEx(_MEMORYSTATUSEX*);
__declspec(dllimport) void* __stdcall GetCurrentProcess();
__declspec(dllimport) int __stdcall GetProcessWorkingSetSize(void*, std::size_t*, std::size_t*);
__declspec(dllimport) int __stdcall SetProcessWorkingSetSize(void*, std::size_t, std::size_t);
}

namespace tessera::inline v0_1::detail {

/// Bytes of a page, on all processors with 64 bits.
[[nodiscard]] constexpr std::size_t host_page() noexcept { return 4_KiB; }
/// Bytes of one page of a kind.
[[nodiscard]] inline std::size_t host_page_size(page_kind kind) noexcept {
  return kind.size == page_kind::page_size::normal ? host_page() : kind.granularity();
}
[[nodiscard]] inline const char* host_lacks_pages(page_kind kind) noexcept {
  return kind.size == page_kind::page_size::normal ? "the system has too little memory left"
                                                   : "host_pinned has larger pages on Linux alone";
}
/// VirtualAlloc refuses what exceeds the system's memory, so nothing needs to be asked before.
[[nodiscard]] constexpr std::size_t host_available(int) noexcept { return unlimited; }

/// Bytes of the machine's memory.
[[nodiscard]] inline std::size_t host_all_memory(int) noexcept {
  struct {  // MEMORYSTATUSEX
    std::uint32_t bytes, load;
    std::uint64_t total, available, others[5];
  } now{};
  now.bytes = sizeof now;
  return ::GlobalMemoryStatusEx(reinterpret_cast<_MEMORYSTATUSEX*>(&now)) != 0
             ? static_cast<std::size_t>(now.total)
             : unlimited;
}

/// Moves the limits of what the process may lock, which the system calls its working set. Returns false if the system refuses.
inline bool host_change_working_set(std::ptrdiff_t bytes) noexcept {
  static std::mutex one_at_a_time;  // of all providers
  const std::lock_guard lock(one_at_a_time);
  std::size_t least = 0, most = 0;
  const auto change = static_cast<std::size_t>(bytes);
  return ::GetProcessWorkingSetSize(::GetCurrentProcess(), &least, &most) != 0 &&
         ::SetProcessWorkingSetSize(::GetCurrentProcess(), least + change, most + change) != 0;
}
/// Locks memory. It is never swapped out then.
[[nodiscard]] inline const char* host_lock_pages(void* p, std::size_t bytes) noexcept {
  if (host_change_working_set(static_cast<std::ptrdiff_t>(bytes))) {
    if (::VirtualLock(p, bytes) != 0) return nullptr;
    (void)host_change_working_set(-static_cast<std::ptrdiff_t>(bytes));
  }
  return "the system does not let this process lock so much memory; give the user the right to increase a "
         "working set, or "
         "choose pinning::where_allowed";
}
inline void host_unlock_pages(void* p, std::size_t bytes) noexcept {
  if (::VirtualUnlock(p, bytes) != 0) (void)host_change_working_set(-static_cast<std::ptrdiff_t>(bytes));
}

/// Acquires pages, which are not locked yet.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_acquire(std::size_t bytes, page_kind kind, int, void*& made) noexcept {
  constexpr unsigned long reserve_and_commit = 0x3000, read = 0x02, read_and_write = 0x04;
  if (kind.size != page_kind::page_size::normal) return host_lacks_pages(kind);
  void* const p = ::VirtualAlloc(nullptr, bytes, reserve_and_commit, kind.read_only ? read : read_and_write);
  if (p == nullptr) return host_lacks_pages(kind);
  made = p;
  return nullptr;
}
///   Requires:  the pages are a whole segment
inline bool host_unmap(void* p, std::size_t bytes) noexcept {
  constexpr unsigned long release = 0x8000;
  host_unlock_pages(p, bytes);  // for the working set
  return ::VirtualFree(p, 0, release) != 0;
}

/// Whether each of these pages is memory of this process that it may read.
[[nodiscard]] inline bool host_is_memory(const void* p, std::size_t bytes) noexcept {
  constexpr std::uint32_t committed = 0x1000, no_access = 0x01, guard = 0x100;
  for (auto at = reinterpret_cast<std::uintptr_t>(p), end = at + bytes; at < end;) {
    struct {  // MEMORY_BASIC_INFORMATION
      void *begin, *allocation;
      std::uint32_t first_protection;
      std::uint16_t partition;
      std::size_t bytes;
      std::uint32_t state, protection, type;
    } pages{};
    if (::VirtualQuery(reinterpret_cast<void*>(at), reinterpret_cast<_MEMORY_BASIC_INFORMATION*>(&pages),
                       sizeof pages) == 0)
      return false;
    if (pages.state != committed || (pages.protection & (no_access | guard)) != 0) return false;
    at = reinterpret_cast<std::uintptr_t>(pages.begin) + pages.bytes;
  }
  return true;
}

/// Why memory cannot be bound to a node; empty for a negative node.
[[nodiscard]] inline std::string host_node_fault(int node) {
  return node < 0 ? std::string()
                  : "node " + std::to_string(node) + ": host_pinned binds memory on Linux alone";
}

}  // namespace tessera::inline v0_1::detail
#endif
