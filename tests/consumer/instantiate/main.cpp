// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <my_allocator.hpp>

std::size_t run_layers(my_allocator& allocator);
std::size_t run_two();
std::size_t run_shared();
std::size_t run_streams();

int main() {
  my_allocator allocator;
  const std::size_t one = run_layers(allocator);
  const bool same = run_two() == 2 * one;
  std::printf("%zu %zu %zu MiB\n", one >> 20, run_shared() >> 20, run_streams() >> 20);
  return same && allocator.audit() == nullptr ? 0 : 1;
}
