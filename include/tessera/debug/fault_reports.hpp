// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include <tessera/core/text.hpp>
#include <tessera/debug/guard_pages.hpp>

namespace tessera::debug {

/// Installs a SIGSEGV handler that explains faults in a `guarded` allocator on standard error. It prints the
/// accessed block, its size, distance and label, and whether it was freed. Then it calls the previous
/// handler, for example a sanitizer's.
///
/// All objects share one handler. Up to 64 objects may exist at a time.
///   Requires:  the allocator outlives it
class fault_reports {
 public:
  template <typename Guarded>
  [[nodiscard]] explicit fault_reports(const Guarded& pool) noexcept : fault_reports(pool.shadow()) {}
  [[nodiscard]] explicit fault_reports(const detail::guard_shadow& blocks) noexcept {
    const std::lock_guard lock(mutex);
    for (auto& slot : shadows) {
      if (slot.load() != nullptr) continue;
      slot_ = &slot;
      slot.store(&blocks);
      if (++count == 1) install();
      return;
    }
    detail::fatal("fault_reports: more than 64 at a time");
  }
  fault_reports(const fault_reports&) = delete;
  fault_reports& operator=(const fault_reports&) = delete;
  ~fault_reports() {
    const std::lock_guard lock(mutex);
    slot_->store(nullptr);
    if (--count == 0) uninstall();
  }

 private:
  using handler = struct sigaction;

  static void install() noexcept {
    if (std::exchange(is_installed, true)) return;
    handler ours{};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGSEGV, nullptr, &before);  // the handler may read it, so it is set first
    ::sigaction(SIGSEGV, &ours, nullptr);
  }
  /// Does not replace a handler that was installed later, because that handler may call this one.
  static void uninstall() noexcept {
    handler now{};
    ::sigaction(SIGSEGV, nullptr, &now);
    is_installed = (now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != &on_fault;
    if (!is_installed) ::sigaction(SIGSEGV, &before, nullptr);
  }

  static void on_fault(int number, siginfo_t* info, void* context) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (const auto& slot : shadows) {
      const detail::guard_shadow* const blocks = slot.load();
      const detail::fixed_text text = blocks != nullptr ? blocks->explain(address) : detail::fixed_text();
      if (text.empty()) continue;
      const detail::fixed_text line =
          detail::fixed_text().add("tessera: guarded: ").add(text.c_str()).add("\n");
      (void)!::write(STDERR_FILENO, line.c_str(), line.size());
      break;
    }
    call_previous(number, info, context);
  }
  static void call_previous(int number, siginfo_t* info, void* context) noexcept {
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(number);
    } else {
      // After the return, the access faults again and the default handler ends the program. A signal sent by
      // a process does not occur again.
      handler fallback{};
      fallback.sa_handler = SIG_DFL;
      ::sigaction(number, &fallback, nullptr);
      if (info->si_code <= 0) ::raise(number);
    }
  }

  static inline std::mutex mutex;
  static inline std::array<std::atomic<const detail::guard_shadow*>, 64> shadows{};
  static inline handler before{};
  static inline int count = 0;
  static inline bool is_installed = false;  // true if this handler may still be called

  std::atomic<const detail::guard_shadow*>* slot_ = nullptr;
};

}  // namespace tessera::debug
