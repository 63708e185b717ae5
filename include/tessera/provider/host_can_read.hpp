// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__linux__)
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera::detail {

/// Whether the host may read the byte at `p`. It asks Linux and does not read the byte. On other systems, it
/// says yes.
[[nodiscard]] inline bool host_can_read([[maybe_unused]] const void* p) noexcept {
#if defined(__linux__)
  // Eight aligned bytes never cross a page.
  const std::uintptr_t word = reinterpret_cast<std::uintptr_t>(p) & ~std::uintptr_t{7};
  // The system reads the set of signals before it finds that the operation is invalid.
  constexpr int nothing_known = -1;
  const long answer = ::syscall(SYS_rt_sigprocmask, nothing_known, word, nullptr, std::size_t{8});
  return answer == 0 || errno != EFAULT;
#else
  return true;
#endif
}

}  // namespace tessera::detail
