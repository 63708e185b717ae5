// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/interop/kokkos.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

/// The parts of Kokkos::View<float**, Unmanaged> that are used here, as its documentation specifies them. Rows are padded.
struct matrix_view {
  struct traits {
    static constexpr bool is_managed = false;
  };
  using value_type = float;
  using pointer_type = float*;
  static std::size_t required_allocation_size(std::size_t rows, std::size_t columns) {
    return rows * (columns + 1) * sizeof(float);
  }
  matrix_view(float* p, std::size_t rows, std::size_t columns) : data(p), n(rows), m(columns) {}
  float& operator()(std::size_t i, std::size_t j) const { return data[i * (m + 1) + j]; }
  float* data;
  std::size_t n, m;
};

using namespace tessera;
using allocator_type = caching_allocator<shape_tests::packed_tightly, host_pinned>;
using owner = kokkos_view<matrix_view, allocator_type>;

TEST(kokkos_view, owns_as_much_memory_as_the_view_needs) {
  allocator_type allocator{shape_tests::host_memory()};
  {
    owner a(allocator, stream_id{}, 10, 20);
    EXPECT_EQ(allocator.current_usage().requested, 10 * 21 * sizeof(float));
    EXPECT_TRUE(shape_tests::is_aligned(a.view().data, 64));
    for (std::size_t i = 0; i < 10; ++i)
      for (std::size_t j = 0; j < 20; ++j) a.view()(i, j) = static_cast<float>(i * j);
    owner moved = std::move(a);
    EXPECT_EQ(moved.view()(9, 19), 171.0f);
    EXPECT_EQ(moved.view().n, 10u);
    EXPECT_EQ(moved.block().get(), moved.view().data);
  }
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
  EXPECT_STREQ(allocator.audit(), nullptr);
}

TEST(kokkos_view, needs_no_memory_for_no_elements) {
  allocator_type allocator{shape_tests::host_memory()};
  const owner none(allocator, stream_id{}, 0, 20);
  EXPECT_EQ(none.view().data, nullptr);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
}

TEST(kokkos_view, throws_when_memory_is_full) {
  allocator_type allocator{shape_tests::host_memory(64_MiB)};
  EXPECT_THROW(owner(allocator, stream_id{}, 1 << 20, 1 << 10), out_of_memory);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
}

TEST(kokkos_view, throws_for_extents_that_overflow) {
  allocator_type allocator{shape_tests::host_memory(64_MiB)};
  for (const std::size_t rows : {std::size_t{1} << 33, std::size_t{1} << 62, SIZE_MAX})
    EXPECT_THROW(owner(allocator, stream_id{}, rows, std::size_t{1} << 31), out_of_memory);
  EXPECT_THROW(owner(allocator, stream_id{}, -1, -1), out_of_memory);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
}

TEST(kokkos_view, keeps_a_shared_allocator_alive) {
  auto shared = shared_allocator<allocator_type>::make(shape_tests::host_memory());
  kokkos_view<matrix_view, decltype(shared)> kept(shared, stream_id{}, 3, 3);
  shared = {};
  kept.view()(2, 2) = 1;
  EXPECT_EQ(kept.block().size(), 3 * 4 * sizeof(float));
}

}  // namespace
