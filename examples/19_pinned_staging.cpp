// SPDX-License-Identifier: Apache-2.0
// Buffers for copies between the host and a device by DMA: ordinary host memory that the device registers. The program frees each
// buffer at once. Its memory is reused only when the copy is done.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using tessera::provider::host_pinned;

int main() {
  // In your program, `device` is a provider over a driver, and register_memory calls cuMemHostRegister, for example.
  host_pinned memory({.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  host_pinned device({.capacity = 64_MiB, .pin = host_pinned::pinning::where_allowed});
  using provider = tessera::provider::host_registering<host_pinned, host_pinned>;
  tessera::caching_allocator<tessera::recipe::pinned_packed, provider> staging{provider(memory, device)};

  constexpr std::size_t numbers = 1 << 16, bytes = numbers * sizeof(std::uint32_t), batches = 20;
  const tessera::stream_id copies = device.create_stream();
  std::vector<std::uint32_t> on_device(numbers * batches);
  for (std::uint32_t batch = 0; batch < batches; ++batch) {
    auto* const buffer = static_cast<std::uint32_t*>(staging.allocate(bytes));
    for (std::uint32_t i = 0; i < numbers; ++i) buffer[i] = batch + i;
    std::uint32_t* const to = on_device.data() + batch * numbers;
    if (!device.submit(copies, [=] { std::memcpy(to, buffer, bytes); })) return 1;
    if (!staging.record_stream(buffer, copies)) return 1;  // the copy reads it
    staging.deallocate(buffer);
  }
  if (!device.synchronize(copies)) return 1;

  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < on_device.size(); ++i) wrong += on_device[i] != i / numbers + i % numbers;
  std::printf("%zu numbers are wrong; %zu MiB are registered\n", wrong, device.held().registered >> 20);
  return wrong == 0 && device.held().registered > 0 && staging.audit() == nullptr ? 0 : 1;
}
