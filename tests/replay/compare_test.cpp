// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>
#include <tessera/tool/main.hpp>

#include "tessera_replay/commands.hpp"
#include "tessera_replay/compare.hpp"
#include "tessera_replay/recipes.hpp"
#include "tessera_replay/run_settings.hpp"

namespace {

using namespace tessera::literals;
using replay::named_recipe;

using fixed = tessera::recipe::with<tessera::recipe::pytorch<>,
                                    tessera::policy::grow_exactly<tessera::memory_limit::none>>;

TEST(leave_out_unlimited, removes_recipes_whose_limit_is_fixed) {
  const replay::recipe_list known(
      {tessera::tool::detail::entry_for<tessera::tool::named<"mine", fixed>>::make()});
  replay::arguments args;
  replay::run_settings used;
  used.known = &known;
  std::vector<named_recipe> recipes = {{"mine", "", "mine"}, {"pytorch", "", "pytorch"}};
  EXPECT_EQ(replay::leave_out_unlimited(recipes, used, args), "") << "without a limit";

  used.limit = 100_MiB;
  EXPECT_EQ(
      replay::leave_out_unlimited(recipes, used, args),
      "mine is left out: no limit can be set in the growth policy, which the recorded memory fraction needs");
  ASSERT_EQ(recipes.size(), 1u);
  EXPECT_EQ(recipes[0].name, "pytorch");

  used.limit = tessera::unlimited;
  used.memory_fraction = 0.5;
  recipes.push_back({"mine", "", "mine"});
  args.recipes = {"mine"};
  EXPECT_EQ(replay::leave_out_unlimited(recipes, used, args), "") << "both are asked for, so it is an error";
  args.recipes.clear();
  EXPECT_EQ(replay::leave_out_unlimited(recipes, used, args),
            "mine is left out: no limit can be set in the growth policy, which --memory-fraction needs");
  recipes.push_back({"pytorch", "turbo:1", "wrong"});
  EXPECT_EQ(replay::leave_out_unlimited(recipes, used, args), "") << "the setting is the error";
  EXPECT_EQ(recipes.size(), 2u);
}

}  // namespace
