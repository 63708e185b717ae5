// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/interop/kokkos.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

/// The parts of Kokkos' counts of references that are used here, as its headers specify them. tests/interop has the real ones.
namespace counts {

struct record;
/// Lies before the elements.
struct header {
  record* of;
  char label[120];
};
struct record {
  record(header* block, std::size_t bytes, void (*destroy)(record*), const std::string& label)
      : m_alloc_ptr(block), size(bytes), m_dealloc(destroy), m_label(label) {}
  virtual ~record() = default;
  [[nodiscard]] virtual std::string get_label() const { return "none"; }
  [[nodiscard]] const header* head() const { return m_alloc_ptr; }
  [[nodiscard]] void* data() const { return m_alloc_ptr + 1; }
  header* m_alloc_ptr;
  std::size_t size;
  void (*m_dealloc)(record*);
  int count = 0;
  std::string m_label;
};
void fill_host_accessible_header_info(record* of, header& to, const std::string& label) {
  to.of = of;
  label.copy(to.label, sizeof to.label);
}
struct tracker {
  tracker() = default;
  tracker(const tracker& other) : of(other.of) {
    if (of != nullptr) ++of->count;
  }
  tracker& operator=(const tracker&) = delete;
  ~tracker() {
    if (of != nullptr && --of->count == 0) of->m_dealloc(of);
  }
  template <typename Space>
  [[nodiscard]] record* get_record() const {
    return of;
  }
  void assign_allocated_record_to_uninitialized(record* added) {
    of = added;
    ++of->count;
  }
  record* of = nullptr;
};

}  // namespace counts

namespace {

/// The parts of Kokkos::View<float*>.
struct managed_view {
  struct traits {
    struct memory_traits {
      static constexpr bool is_unmanaged = false;
    };
  };
  using value_type = float;
  using pointer_type = float*;
  struct data_handle_type {
    data_handle_type(const counts::tracker& counted, float* p) : owner(counted), data(p) {}
    data_handle_type(float* p) : data(p) {}
    counts::tracker owner;
    float* data;
  };
  static std::size_t required_allocation_size(std::size_t n) { return n * sizeof(float); }
  managed_view(float* p, std::size_t n) : handle(p), size(n) {}
  managed_view(const data_handle_type& owned, std::size_t n) : handle(owned), size(n) {}
  [[nodiscard]] std::size_t mapping() const { return size; }
  [[nodiscard]] const counts::tracker& impl_track() const { return handle.owner; }
  data_handle_type handle;
  std::size_t size;
};

/// The parts of Kokkos::View<float**, Unmanaged>. Rows are padded.
struct matrix_view {
  struct traits {
    struct memory_traits {
      static constexpr bool is_unmanaged = true;
    };
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

TEST(make_kokkos_view, gives_the_memory_back_with_the_last_copy) {
  allocator_type allocator{shape_tests::host_memory()};
  {
    std::optional<managed_view> first =
        make_kokkos_view<managed_view>(allocator, "a label", stream_id{}, 100);
    const counts::record& record = *first->impl_track().of;
    EXPECT_EQ(record.get_label(), "a label");
    EXPECT_STREQ(record.head()->label, "a label");
    EXPECT_EQ(record.head()->of, &record);
    EXPECT_EQ(record.count, 1);
    EXPECT_EQ(record.size, 128 + 100 * sizeof(float));
    EXPECT_EQ(allocator.current_usage().requested, record.size);
    EXPECT_EQ(first->handle.data, record.data());
    EXPECT_TRUE(shape_tests::is_aligned(first->handle.data, 64));
    const managed_view second = *first;
    EXPECT_EQ(record.count, 2);
    first.reset();
    EXPECT_EQ(allocator.current_usage().requested, 128 + 100 * sizeof(float));
    second.handle.data[99] = 1;
  }
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
  EXPECT_STREQ(allocator.audit(), nullptr);
}

TEST(make_kokkos_view, throws_when_memory_is_full) {
  allocator_type allocator{shape_tests::host_memory(64_MiB)};
  for (const std::size_t n : {std::size_t{1} << 26, std::size_t{1} << 62, SIZE_MAX})
    EXPECT_THROW((void)make_kokkos_view<managed_view>(allocator, "a", stream_id{}, n), out_of_memory);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
}

TEST(make_kokkos_view, keeps_a_shared_allocator_alive) {
  auto shared = shared_allocator<allocator_type>::make(shape_tests::host_memory());
  const managed_view kept = make_kokkos_view<managed_view>(shared, "kept", stream_id{}, 3);
  shared = {};
  kept.handle.data[2] = 1;
}

}  // namespace
