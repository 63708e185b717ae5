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

#include <tessera/core/fatal.hpp>
#include <tessera/core/text.hpp>
#include <tessera/debug/guard_pages.hpp>

namespace tessera {

/// As long as it lives, who touches a guard page or a freed block of a `guarded` allocator reads on standard error which block
/// that is, how large it is, how far away, under which label it was allocated and whether it was freed. Then the program ends
/// as it would without: what handled SIGSEGV before is called, a sanitizer's report included.
///
/// The system has one handler for a process, so that all of these share it; up to 64 may live at a time.
///   Requires:  the allocator outlives it
class fault_reports {
 public:
  template <typename Guarded>
  explicit fault_reports(const Guarded& of) noexcept : fault_reports(of.book()) {}
  explicit fault_reports(const detail::guard_shadow& of) noexcept {
    const std::lock_guard lock(mutex);
    for (auto& place : books) {
      if (place.load() != nullptr) continue;
      place_ = &place;
      place.store(&of);
      if (++living == 1) install();
      return;
    }
    fatal("fault_reports: more than 64 at a time");
  }
  fault_reports(const fault_reports&) = delete;
  fault_reports& operator=(const fault_reports&) = delete;
  ~fault_reports() {
    const std::lock_guard lock(mutex);
    place_->store(nullptr);
    if (--living == 0) uninstall();
  }

 private:
  using handler = struct sigaction;

  static void install() noexcept {
    if (std::exchange(is_there, true)) return;
    handler ours{};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGSEGV, nullptr, &before);  // known before it may be needed
    ::sigaction(SIGSEGV, &ours, nullptr);
  }
  /// Where another handler was put in since, which may call this one, it stays.
  static void uninstall() noexcept {
    handler now{};
    ::sigaction(SIGSEGV, nullptr, &now);
    is_there = (now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != &on_fault;
    if (!is_there) ::sigaction(SIGSEGV, &before, nullptr);
  }

  static void on_fault(int number, siginfo_t* info, void* context) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (const auto& place : books) {
      const detail::guard_shadow* const book = place.load();
      const fixed_text words = book != nullptr ? book->explain(at) : fixed_text();
      if (words.empty()) continue;
      const fixed_text line = fixed_text().add("tessera: guarded: ").add(words.c_str()).add("\n");
      (void)!::write(STDERR_FILENO, line.c_str(), line.size());
      break;
    }
    hand_on(number, info, context);
  }
  static void hand_on(int number, siginfo_t* info, void* context) noexcept {
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(number);
    } else {
      // What faulted is tried again, and now the system ends the program there; but not what another process sent.
      handler system{};
      system.sa_handler = SIG_DFL;
      ::sigaction(number, &system, nullptr);
      if (info->si_code <= 0) ::raise(number);
    }
  }

  static inline std::mutex mutex;
  static inline std::array<std::atomic<const detail::guard_shadow*>, 64> books{};
  static inline handler before{};
  static inline int living = 0;
  static inline bool is_there = false;  // the handler, or one that may call it

  std::atomic<const detail::guard_shadow*>* place_ = nullptr;
};

}  // namespace tessera
