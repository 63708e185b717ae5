// SPDX-License-Identifier: Apache-2.0
// C++ libraries that were built as other standards, independently of each other, share pools and exceptions.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../layout.hpp"
#include "library_pool.hpp"
#include "loaded_library.hpp"

namespace {

using namespace tessera::literals;

struct pool_library : loaded_library {
  pool_library(const char* name, int mode)
      : loaded_library(copy_of(name), mode),
        standard(find<long()>("pool_standard")),
        layout(find<std::size_t()>("pool_layout")),
        make(find<shared_pool*(std::size_t)>("pool_make")),
        destroy(find<void(shared_pool*)>("pool_destroy")),
        allocate(find<allocate_function>("pool_allocate")),
        free(find<void(shared_pool*, void*)>("pool_free")),
        create_private(find<std::uint64_t(shared_pool*)>("pool_create_private")),
        caught(find<std::size_t(shared_pool*, std::size_t, allocate_function*)>("pool_caught")) {}

  long (*standard)();
  std::size_t (*layout)();
  shared_pool* (*make)(std::size_t);
  void (*destroy)(shared_pool*);
  allocate_function* allocate;
  void (*free)(shared_pool*, void*);
  std::uint64_t (*create_private)(shared_pool*);
  std::size_t (*caught)(shared_pool*, std::size_t, allocate_function*);
};

/// Two libraries in the order of loading, and whether their names are visible to others.
struct two_libraries : testing::TestWithParam<std::pair<int, std::vector<const char*>>> {
  pool_library first{GetParam().second[0], GetParam().first};
  pool_library second{GetParam().second[1], GetParam().first};
};

TEST_P(two_libraries, are_of_two_standards_and_one_layout) {
  EXPECT_EQ(first.layout(), layout());
  EXPECT_EQ(second.layout(), layout());
#if defined(TESSERA_TWO_STANDARDS)
  EXPECT_NE(first.standard(), second.standard());
#endif
}

TEST_P(two_libraries, free_what_the_other_one_allocated) {
  shared_pool* const pool = first.make(64_MiB);
  void* const p = second.allocate(pool, 3_MiB);
  void* const q = first.allocate(pool, 1000);
  void* const r = pool->allocate(1000);
  EXPECT_EQ(pool->current_usage().allocated, 3_MiB + 2 * 1024);
  first.free(pool, p);
  second.free(pool, r);
  pool->deallocate(q);
  EXPECT_EQ(pool->current_usage().allocated, 0u);
  EXPECT_EQ(pool->audit(), nullptr);
  second.destroy(pool);
}

TEST_P(two_libraries, name_private_pools_apart) {
  shared_pool* const pool = first.make(64_MiB);
  std::set<std::uint64_t> names;
  for (int i = 0; i < 3; ++i) {
    names.insert(first.create_private(pool));
    names.insert(second.create_private(pool));
    names.insert(pool->get<tessera::extension::private_pools>().create().number);
  }
  EXPECT_EQ(names.size(), 9u);
  EXPECT_FALSE(names.contains(0));
  EXPECT_EQ(pool->audit(), nullptr);
  second.destroy(pool);
}

TEST_P(two_libraries, catch_what_the_other_one_throws) {
  shared_pool* const pool = second.make(2_MiB);
  EXPECT_EQ(first.caught(pool, 3_MiB, second.allocate), 3_MiB);
  EXPECT_EQ(second.caught(pool, 4_MiB, first.allocate), 4_MiB);
  allocate_function* const of_program = [](shared_pool* in, std::size_t bytes) -> void* {
    return in->allocate(bytes);
  };
  EXPECT_EQ(first.caught(pool, 5_MiB, of_program), 5_MiB);
  try {
    (void)first.allocate(pool, 6_MiB);
    ADD_FAILURE() << "a full device throws";
  } catch (const tessera::out_of_memory& error) {
    EXPECT_EQ(error.requested(), 6_MiB);
    EXPECT_NE(std::string(error.what()).find("6.00 MiB"), std::string::npos) << error.what();
  }
  first.destroy(pool);
}

TEST_P(two_libraries, live_on_when_the_other_one_is_closed) {
  shared_pool* const pool = second.make(32_MiB);
  void* const p = first.allocate(pool, 1_MiB);
  EXPECT_EQ(second.caught(pool, 40_MiB, first.allocate), 40_MiB);
  ASSERT_EQ(dlclose(first.handle()), 0);
  second.free(pool, p);
  void* const q = second.allocate(pool, 2_MiB);
  EXPECT_EQ(second.caught(pool, 40_MiB, second.allocate), 40_MiB);
  EXPECT_THROW((void)second.allocate(pool, 40_MiB), tessera::out_of_memory);
  second.free(pool, q);
  EXPECT_EQ(pool->audit(), nullptr);
  second.destroy(pool);
}

INSTANTIATE_TEST_SUITE_P(, two_libraries,
                         testing::Values(std::pair(RTLD_LOCAL, std::vector{"pool_20", "pool_23"}),
                                         std::pair(RTLD_LOCAL, std::vector{"pool_23", "pool_20"}),
                                         std::pair(RTLD_GLOBAL, std::vector{"pool_20", "pool_23"}),
                                         std::pair(RTLD_GLOBAL, std::vector{"pool_23", "pool_20"})),
                         [](const auto& one) {
                           return std::string(one.param.first == RTLD_LOCAL ? "local_" : "global_") +
                                  one.param.second[0] + "_first";
                         });

}  // namespace
