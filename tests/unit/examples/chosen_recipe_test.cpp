// SPDX-License-Identifier: Apache-2.0
// The variable TESSERA_RECIPE of examples/torch_cuda, and the plan that it names.
#include "torch_cuda/chosen_recipe.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include <gtest/gtest.h>

#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch_cuda::chosen_recipe;

class chosen_recipe_test : public testing::Test {
 protected:
  ~chosen_recipe_test() override {
    ::unsetenv("TESSERA_RECIPE");
    std::filesystem::remove(file);
  }
  [[nodiscard]] static chosen_recipe read(const std::string& value) {
    ::setenv("TESSERA_RECIPE", value.c_str(), 1);
    return {};
  }
  void write(const std::string& text) const { std::ofstream(file) << text; }

  const std::string file = testing::TempDir() + "chosen_recipe_" + std::to_string(::getpid()) + ".plan";
};

TEST_F(chosen_recipe_test, names_a_recipe) {
  ::unsetenv("TESSERA_RECIPE");
  const chosen_recipe by_default, pytorch = read("pytorch"), stitched = read("stitched");
  for (const chosen_recipe* const each : {&by_default, &pytorch, &stitched}) {
    EXPECT_EQ(each->error(), "");
    EXPECT_EQ(each->plan(), nullptr);
    EXPECT_EQ(each->stitches(), each == &stitched);
  }
  EXPECT_EQ(read("sitched").error(),
            "TESSERA_RECIPE: there is no recipe \"sitched\", only pytorch, stitched, and a plan in a file "
            "FILE.plan or FILE.csv");
  EXPECT_NE(read("").error(), "");
}

TEST_F(chosen_recipe_test, names_a_plan) {
  plan::made_plan made;
  made.numbers.bytes = made.numbers.peak_live = made.numbers.lower_bound = 5_MiB;
  made.kinds = {{5_MiB, 0, 0}};
  made.entries = {{0, 0, 0, 0}};
  made.tracks = {{0, 1, 1, 0}};
  write(plan::to_csv(made.view()));
  const chosen_recipe chosen = read(file);
  EXPECT_EQ(chosen.error(), "");
  EXPECT_EQ(chosen.plan_file(), file);
  ASSERT_NE(chosen.plan(), nullptr);
  plan::planned<caching_allocator<recipe::pytorch<>, provider::simulated_device>> memory(*chosen.plan());
  memory.deallocate(memory.allocate(5_MiB));
  EXPECT_EQ(memory.statistics().by_plan.requests, 1u);
}

TEST_F(chosen_recipe_test, says_what_is_wrong_with_a_file) {
  const chosen_recipe missing = read(file);
  EXPECT_EQ(missing.error(), "TESSERA_RECIPE: " + file + ": No such file or directory");
  EXPECT_EQ(missing.plan(), nullptr);
  write("op,id,bytes\n");
  EXPECT_TRUE(read(file).error().starts_with("TESSERA_RECIPE: " + file + ":1: the header must be "))
      << read(file).error();
  write("record,1,2,3,4,5,6,7\nplan,1,2,3,4,5,6,512\nentry,0,0,0\n");
  EXPECT_EQ(read(file).error(), "TESSERA_RECIPE: " + file + ":3: a track comes before its lines");
  EXPECT_EQ(read(file).plan(), nullptr);
}

}  // namespace
