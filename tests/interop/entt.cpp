// needs: entt/entt.hpp
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// A registry of EnTT in the memory of an allocator that a function returns, with a pool for its nodes.
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include <entt/entt.hpp>

#include "nodes.hpp"

namespace {

using interop_tests::check;
using interop_tests::from_blocks;
using interop_tests::from_malloc;
using interop_tests::from_nodes;
using interop_tests::sample;

struct position {
  double x, y;
};
/// One of many types of components, most of which few entities have.
template <int>
struct component {
  int value;
};

template <template <typename> class Allocator>
using registry = entt::basic_registry<entt::entity, Allocator<entt::entity>>;

template <template <typename> class Allocator>
bool works() {
  registry<Allocator> world;
  for (int i = 0; i < 10'000; ++i) {
    const entt::entity entity = world.create();
    world.template emplace<position>(entity, i * 1.0, 2.0);
    if (i % 2 == 0) world.template emplace<int>(entity, i);
  }
  double sum = 0;
  for (auto [entity, place, number] : world.template view<position, int>().each()) sum += place.x - number;
  auto moved = std::move(world);
  return check(sum == 0, "a view has its values") &&
         check(moved.template storage<position>().size() == 10'000, "a moved registry has its entities");
}

template <typename World, int... N>
void add_components(World& world, entt::entity entity, std::integer_sequence<int, N...>) {
  (world.template emplace<component<N>>(entity, N), ...);
}
/// Fills 200 small registries, as scenes of a game.
template <template <typename> class Allocator>
void fill_scenes(sample& in) {
  in.begin();
  std::vector<std::unique_ptr<registry<Allocator>>> scenes;
  in.time(1, [&] {
    for (int i = 0; i < 200; ++i) {
      auto& world = *scenes.emplace_back(std::make_unique<registry<Allocator>>());
      for (int k = 0; k < 50; ++k) {
        const entt::entity entity = world.create();
        world.template emplace<position>(entity, i * 1.0, k * 1.0);
        if (k % 10 == 0) add_components(world, entity, std::make_integer_sequence<int, 16>());
      }
    }
  });
  in.end(&interop_tests::blocks());
  for (const auto& world : scenes)
    for (auto [entity, place] : world->template view<position>().each()) in.add(&place, sizeof place);
}

}  // namespace

int main() {
  return interop_tests::compare_nodes("EnTT", works<from_nodes>, works<from_blocks>, fill_scenes<from_malloc>,
                                      fill_scenes<from_nodes>, fill_scenes<from_blocks>);
}
