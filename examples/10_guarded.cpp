// SPDX-License-Identifier: Apache-2.0
// Detects out-of-bounds writes and use after free: each block has pages of its own between inaccessible pages.
// Usage: example_10_guarded [overrun|far|freed]
#include <cstdio>
#include <string_view>

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
  // In your program, replace `locked` or `per_stream` by `guarded`.
  using allocator_type = tessera::debug::guarded<
      tessera::caching_allocator<tessera::recipe::pytorch_pinned<>, tessera::provider::host_pinned>>;
  allocator_type allocator(
      tessera::provider::host_pinned({.pin = tessera::provider::host_pinned::pinning::where_allowed}));
  const tessera::debug::fault_reports reports(allocator);  // reports which block was accessed

  allocator.label("row of step 1");
  auto* const row = static_cast<float*>(allocator.allocate(250 * sizeof(float)));
  fill(row, mistake == "overrun" ? 251 : mistake == "far" ? 300 : 250);
  allocator.deallocate(row);               // detects the write of element 250
  if (mistake == "freed") fill(row, 250);  // aborts
  std::puts("no error was detected");
}
