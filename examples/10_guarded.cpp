// SPDX-License-Identifier: Apache-2.0
// Finds who writes where nothing is his: example_10_guarded [overrun|far|freed]
#include <cstdio>
#include <string_view>

#include <tessera/debug/fault_reports.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

void fill(float* row, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) row[i] = 1.0f;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view mistake = count > 1 ? arguments[1] : "none";
  // Of the type of its allocator, a program changes `locked` or `per_stream` into `guarded`.
  using pool_type = tessera::guarded<tessera::pytorch_pinned<>, tessera::host_pinned>;
  pool_type pool(tessera::host_pinned({.pin = tessera::host_pinned::pinning::where_allowed}));
  const tessera::fault_reports reports(pool);  // says which block was touched

  pool.label("row of step 1");
  auto* const row = static_cast<float*>(pool.allocate(250 * sizeof(float)));
  fill(row, mistake == "overrun" ? 251 : mistake == "far" ? 300 : 250);
  pool.deallocate(row);                    // finds the 251st
  if (mistake == "freed") fill(row, 250);  // ends here
  std::puts("nothing was found");
}
