// needs: entt/entt.hpp
// SPDX-License-Identifier: Apache-2.0
// A registry of EnTT in the memory of an allocator that a function returns.
#include <cstddef>
#include <cstdio>

#include <entt/entt.hpp>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using tessera::provider::host_pinned;
using pool_type =
    tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pinned_packed, host_pinned>>;
pool_type& registry_pool() {
  static auto* const pool = new pool_type(host_pinned({.pin = host_pinned::pinning::never}));
  return *pool;
}
template <typename T>
using registry_allocator =
    tessera::interop::typed_allocator<T, tessera::interop::allocator_from<registry_pool>>;
struct position {
  double x, y;
};

bool use() {
  entt::basic_registry<entt::entity, registry_allocator<entt::entity>> world;
  for (int i = 0; i < 10'000; ++i) {
    const entt::entity entity = world.create();
    world.emplace<position>(entity, i * 1.0, 2.0);
    if (i % 2 == 0) world.emplace<int>(entity, i);
  }
  double sum = 0;
  for (auto [entity, place, number] : world.view<position, int>().each()) sum += place.x - number;
  auto moved = std::move(world);
  const std::size_t live = registry_pool().current_usage().allocated;
  return sum == 0 && moved.storage<position>().size() == 10'000 && live > 10'000 * sizeof(position);
}

}  // namespace

int main() {
  const bool is_right = use();
  const std::size_t left = registry_pool().current_usage().allocated;
  std::printf("%zu bytes are left\n", left);
  return is_right && left == 0 && registry_pool().audit() == nullptr ? 0 : 1;
}
