// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

/// Withdraws the record that a stream uses the live block at an address. Returns false if there is none.
template <typename Allocator>
[[nodiscard]] bool drop_use(Allocator& in, const void* p, stream_id by) noexcept {
  bool found = false;
  if constexpr (Allocator::recipe_type::streams::uses_events) {
    auto& manager = core_access::manager(in);
    block* const live = manager.find_live(p);
    if (live == nullptr) return false;
    manager.pending().drop_uses_if(*live, [&](stream_id user) {
      found = found || user == by;
      return user == by;
    });
  }
  return found;
}
/// Withdraws every record that a stream uses a live block.
///   Cost:  linear in the blocks, if any stream is recorded
template <typename Allocator>
void drop_uses_of(Allocator& in, stream_id ended) noexcept {
  if constexpr (Allocator::recipe_type::streams::uses_events) {
    auto& manager = core_access::manager(in);
    if (!manager.has_recorded_streams()) return;
    core_access::map(in).for_each_block_in(0, ~std::uintptr_t{0}, [&](block& b) {
      manager.pending().drop_uses_if(b, [ended](stream_id user) { return user == ended; });
    });
  }
}
/// Gives the idle memory of a stream back to the device.
template <typename Manager, typename Backend>
void release_idle_of(Manager& manager, Backend& backend, stream_id key) noexcept {
  manager.for_each_group([&](typename Manager::group& in) {
    if (!manager.may_release(in)) return;
    const group_visit visit(in);
    auto release = [&](block& idle) {
      if (!manager.may_wait() || backend.releasable(idle) == 0) return false;
      (void)backend.release(idle);
      return true;
    };
    // A bound, because other threads may free blocks during a release.
    std::size_t tries = in.reserved / min_alignment + 1;
    for (auto& lists : in.lists) {
      free_list* const list = lists.find_or_create(key);
      if (list == nullptr) continue;
      if (!walk_idle<typename Manager::order, Manager::traits::has_ranges>(*list, min_alignment, tries,
                                                                           block_function(release)))
        return;
    }
  });
}

/// Waits for the work of a stream; true at once if the device has neither events nor synchronize().
template <typename Device>
[[nodiscard]] bool finish_work_if_any(Device& device, stream_id stream) noexcept {
  constexpr bool has_streams = provider::event_provider<Device> || requires { device.synchronize(stream); };
  return !has_streams || finish_work(device, stream);
}

/// Waits for the work of a stream that ends, in one caching_allocator, and lets nothing wait for it any more. Returns false if
/// the device failed, or must not be waited for.
template <typename Allocator>
[[nodiscard]] bool end_stream_in(Allocator& in, stream_id stream) noexcept {
  using streams = typename Allocator::recipe_type::streams;
  auto& manager = core_access::manager(in);
  if (!manager.may_wait() || !finish_work_if_any(manager.provider(), stream)) return false;
  drop_uses_of(in, stream);
  (void)in.process_events();
  const auto key = core_access::policies(in).streams.reuse_key(stream);
  if constexpr (!streams::reuses_across_streams && !std::is_same_v<decltype(key), const stream_id::any>)
    release_idle_of(manager, core_access::backend(in), key);
  return true;
}

}  // namespace tessera::inline v0_1::detail
