// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <sys/mman.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/host_extents.hpp>
#include <tessera/provider/host_system.hpp>

namespace tessera {

/// Memory of the user that one host_pinned has locked, in whole pages. Functions that can fail return null or what
/// hinders them.
class host_registered {
 public:
  host_registered() = default;
  host_registered(const host_registered&) = delete;
  host_registered& operator=(const host_registered&) = delete;
  ~host_registered() { extents_.each(unlock); }

  [[nodiscard]] const char* add(void* p, std::size_t bytes, host_pinning pin) noexcept {
    if (p == nullptr || host_address(p) % host_page() != 0)
      return "registered memory begins at a multiple of the page";
    if (bytes == 0 || bytes > max_request) return "not a possible number of bytes";
    host_extents::extent made{align_up(bytes, host_page()), 0};
    if (extents_.overlaps(p, made.bytes)) return "a part is registered already";
    if (::msync(p, made.bytes, MS_ASYNC) != 0) return "a part of it is no memory of this process";
    if (const char* const fault = host_lock(p, made.bytes, normal_pages, pin, made.locked)) return fault;
    if (extents_.add(p, made)) return nullptr;
    unlock(p, made);
    return host_cannot_remember;
  }

  [[nodiscard]] const char* remove(void* p) noexcept {
    if (extents_.find(p) == nullptr) return "nothing is registered there";
    unlock(p, extents_.remove(p));
    return nullptr;
  }

  [[nodiscard]] const host_extents& extents() const noexcept { return extents_; }

 private:
  static void unlock(void* p, const host_extents::extent& e) noexcept {
    if (e.locked) (void)::munlock(p, e.bytes);
  }

  host_extents extents_;
};

}  // namespace tessera
