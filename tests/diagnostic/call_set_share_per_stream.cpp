// expect first: per_stream_has_no_shares
// SPDX-License-Identifier: Apache-2.0
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

int main() {
  tessera::trace::captured<tessera::per_stream<tessera::pytorch<>, tessera::simulated_device>> memory;
  (void)memory.set_share({}, {.guaranteed = 1000});
}
