// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/capabilities.hpp>

// Without the sanitizer, its macros do nothing.
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif

namespace tessera::inline v0_1::detail {

template <typename Recipe>
struct guarded_recipe;
template <typename Recipe>
inline constexpr bool is_of_guarded = false;
template <typename Recipe>
inline constexpr bool is_of_guarded<guarded_recipe<Recipe>> = true;

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::debug {

/// Tells AddressSanitizer which bytes of the memory a program may use, so that it reports an access of the host to a freed
/// block, to cached memory, or behind the bytes of a request. Choose it for tests over memory that the host can reach. It is an
/// extension, so the program names it after the provider.
///
///     #include <tessera/provider/host_pinned.hpp>
///     using checked = tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned,
///                                                tessera::debug::asan_poisoning>;
///
/// A freed block with recorded streams is poisoned when their work has completed, because the work may still use it. In a build
/// without the sanitizer, nothing happens. After the restore of a checkpoint, all bytes of a block count as requested.
///
/// Code that was built without the sanitizer, and devices, are not checked. debug::guarded finds their writes behind a block, in
/// any build, but only when the block is freed. Blocks in the memory of a plan are not checked, either. sleep_mode, which copies
/// whole chunks, and guarded do not go together with it.
///   Requires:  tasks of the host on a block's own stream end before it is freed, because the free poisons it at once
///   Cost:    a call of the sanitizer for each request and each free, linear in the bytes of the block
///   Source:  ASAN_POISON_MEMORY_REGION of <sanitizer/asan_interface.h>
struct asan_poisoning {
  static constexpr bool spans_arenas = true;
  /// Whether this program is built with the sanitizer. GCC defines a macro; clang answers a question.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool is_active = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  static constexpr bool is_active = true;
#else
  static constexpr bool is_active = false;
#endif
#else
  static constexpr bool is_active = false;
#endif

  template <typename Core>
  class state;
};

/// What one allocator tells the sanitizer.
template <typename Core>
class asan_poisoning::state : public tessera::detail::extension_defaults {
  static_assert(tessera::detail::is_host_visible<typename Core::provider>,
                "asan_poisoning: the provider must say is_host_visible, because AddressSanitizer knows host "
                "memory only [tessera/provider/provider.hpp]");
  static_assert(
      !tessera::detail::is_of_guarded<typename Core::recipe>,
      "guarded: it writes patterns behind requests, which asan_poisoning poisons; use one of the two");

 public:
  state(typename Core::allocator& in, const asan_poisoning&) noexcept : in_(in) {}

  void on_event(const allocator_event& e) noexcept {
    static_assert(!tessera::detail::offers<typename Core::allocator, extension::sleep_mode>,
                  "asan_poisoning: sleep_mode copies whole chunks, with the poisoned bytes in them, so an "
                  "allocator has one of the two");
    using enum allocator_event::action;
    switch (e.what) {
      case alloc: return unpoison(e.address, e.bytes);
      case free_completed: return poison(e.address, e.block);
      case segment_alloc:
      case segment_map: return poison(e.address, e.bytes);
      case segment_free:
      case segment_unmap: return unpoison(e.address, e.bytes);
      default: return;
    }
  }
  void on_end() noexcept {
    tessera::detail::introspect(in_).for_each_block(
        [](const tessera::detail::block& b) { unpoison(b.address, b.size); });
  }

 private:
#ifdef ASAN_POISON_MEMORY_REGION
  static void poison(std::uintptr_t address, std::size_t bytes) noexcept {
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<const void*>(address), bytes);
  }
  static void unpoison(std::uintptr_t address, std::size_t bytes) noexcept {
    ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<const void*>(address), bytes);
  }
#else
  static constexpr void poison(std::uintptr_t, std::size_t) noexcept {}
  static constexpr void unpoison(std::uintptr_t, std::size_t) noexcept {}
#endif

  typename Core::allocator& in_;
};

}  // namespace tessera::inline v0_1::debug
