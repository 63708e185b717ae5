// needs: Kokkos_Core.hpp
// links: kokkoscore
// flags: -O1 -fopenmp
// SPDX-License-Identifier: Apache-2.0
// Kokkos computes with views in a pool of tessera.
#include <cstddef>
#include <string>

#include <Kokkos_Core.hpp>

#include <tessera/interop/kokkos.hpp>

#include "beside.hpp"

namespace {

using interop_tests::check;
using interop_tests::pool_type;
using interop_tests::sample;
using matrix = Kokkos::View<double**>;
using row = Kokkos::View<double*, Kokkos::HostSpace>;
using tessera::interop::kokkos_view;
using tessera::interop::make_kokkos_view;
using namespace tessera::literals;

matrix make(pool_type* pool, const std::string& label, std::size_t rows, std::size_t columns) {
  if (pool == nullptr) return matrix(Kokkos::view_alloc(label, Kokkos::WithoutInitializing), rows, columns);
  return make_kokkos_view<matrix>(*pool, label, tessera::stream_id{}, rows, columns);
}

/// A label, a count of references, and a last copy that gives the memory back.
bool is_a_view(pool_type& pool) {
  bool is_right = true;
  const auto expect = [&is_right](bool holds, const char* rule) {
    is_right = check(holds, rule) && is_right;
  };
  {
    matrix first = make(&pool, "pressure", 100, 30);
    expect(first.label() == "pressure", "a view keeps its label");
    expect(first.use_count() == 1, "a view counts itself");
    expect(first.extent(0) == 100 && first.extent(1) == 30 && first.span() == 3000, "a view has its extents");
    expect(reinterpret_cast<std::uintptr_t>(first.data()) % 64 == 0, "elements are aligned to 64 bytes");
    const std::size_t live = pool.current_usage().requested;
    expect(live >= 3000 * sizeof(double), "the elements are in the pool");
    matrix second = first;
    auto third = Kokkos::subview(second, 7, Kokkos::ALL);
    expect(first.use_count() == 3, "copies and subviews count");
    expect(third.label() == "pressure", "a subview has the label");
    Kokkos::deep_copy(first, 2.5);
    first = matrix();
    second = matrix();
    expect(third.use_count() == 1 && third(29) == 2.5, "the last subview keeps the memory");
    expect(pool.current_usage().requested == live, "memory is live while a subview is");
  }
  expect(pool.current_usage().allocated == 0, "the last copy gives the memory back");
  {
    const row none = make_kokkos_view<row>(pool, "none", tessera::stream_id{}, 0);
    expect(none.extent(0) == 0 && none.label() == "none" && none.use_count() == 1,
           "a view may have no elements");
    using fixed = Kokkos::View<int[4][8], Kokkos::LayoutLeft>;
    const auto of_constants = make_kokkos_view<fixed>(pool, "fixed", tessera::stream_id{});
    Kokkos::deep_copy(of_constants, 3);
    expect(of_constants(3, 7) == 3 && of_constants.stride(1) == 4, "extents may be constants");
    const Kokkos::View<const double*> as_constant =
        make_kokkos_view<row>(pool, "temporary", tessera::stream_id{}, 5);
    expect(as_constant.use_count() == 1 && as_constant.label() == "temporary",
           "a view of constants keeps the memory");
  }
  using shared = tessera::interop::shared_allocator<pool_type>;
  auto own = shared::make(interop_tests::host_memory());
  row kept = make_kokkos_view<row>(own, "kept", tessera::stream_id{}, 1000);
  own = {};
  Kokkos::deep_copy(kept, 1.0);
  expect(kept(999) == 1.0, "a view keeps a shared allocator alive");
  try {
    (void)make(&pool, "large", std::size_t{1} << 40, std::size_t{1} << 40);
    expect(false, "too large extents throw");
  } catch (const tessera::out_of_memory&) {
    expect(pool.current_usage().allocated == 0, "a failed allocation leaves nothing");
  }
  using unmanaged = Kokkos::View<double**, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  kokkos_view<unmanaged, pool_type> owner(pool, tessera::stream_id{}, 50, 60);
  Kokkos::deep_copy(owner.view(), 4.0);
  expect(owner.view()(49, 59) == 4.0 && owner.block().size() >= 3000 * sizeof(double),
         "an unmanaged view has the memory");
  return is_right;
}

/// A solver that makes temporary views of several sizes in each step.
void simulate(sample& in, pool_type* pool) {
  const std::size_t n = 1000;
  matrix field = make(pool, "field", n, n);
  Kokkos::parallel_for("begin", Kokkos::RangePolicy<>(0, n), [=](std::size_t i) {
    for (std::size_t j = 0; j < n; ++j) field(i, j) = static_cast<double>((i * 7 + j * 13) % 101);
  });
  for (std::size_t step = 0; step < 40; ++step) {
    const std::size_t inner = n - 2 - step % 5 * 100;
    matrix next = make(pool, "next", inner, inner);
    Kokkos::parallel_for("average", Kokkos::RangePolicy<>(0, inner), [=](std::size_t i) {
      for (std::size_t j = 0; j < inner; ++j)
        next(i, j) = (field(i, j + 1) + field(i + 2, j + 1) + field(i + 1, j) + field(i + 1, j + 2)) / 4;
    });
    const auto target = Kokkos::subview(field, Kokkos::make_pair(std::size_t{1}, inner + 1),
                                        Kokkos::make_pair(std::size_t{1}, inner + 1));
    Kokkos::deep_copy(target, next);
  }
  const matrix result = make(pool, "result", n, n);
  Kokkos::deep_copy(result, field);
  if (in.taken.bytes == 0) in.add(result.data(), n * n * sizeof(double));
}

bool use(sample& in, pool_type* pool) {
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(1);
  Kokkos::ScopeGuard running(settings);
  in.begin();
  in.time(5, [&] { simulate(in, pool); });
  in.end(pool);
  return pool == nullptr || is_a_view(*pool);
}

}  // namespace

int main() { return interop_tests::run_beside("Kokkos", use); }
