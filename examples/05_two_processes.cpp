// SPDX-License-Identifier: Apache-2.0
// Two processes share physical memory. The parent creates and exports four physical chunks; the child imports them. Each
// process maps them into an address range of its own. This uses a provider directly, without an allocator.
#include <array>
#include <cstddef>
#include <cstdio>
#include <span>

#include <sys/wait.h>
#include <unistd.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using device_type = tessera::provider::host_pinned;

constexpr std::size_t chunk = 2_MiB;
constexpr std::size_t tensor = 4 * chunk / sizeof(float) / 2;  // two tensors fill four chunks
constexpr device_type::options options{.capacity = 64_MiB, .pin = device_type::pinning::where_allowed};
using shared_chunks = std::array<device_type::shareable, 4>;

/// Prints the error of the device.
int fail(const device_type& device) {
  std::fprintf(stderr, "%s\n", device.last_error().c_str());
  return 1;
}

/// Maps chunks into one contiguous address range. Returns null if the device fails.
float* map_all(device_type& device, std::span<const device_type::physical> chunks) {
  auto* const range = static_cast<std::byte*>(device.reserve(chunks.size() * chunk, chunk));
  for (std::size_t i = 0; range != nullptr && i < chunks.size(); ++i)
    if (!device.map(range + i * chunk, chunk, chunks[i])) return nullptr;
  return reinterpret_cast<float*>(range);
}

/// The child: imports the chunks that the pipe names, and writes twice the first tensor into the second.
int work_on_shared_memory(int pipe) {
  device_type device{options};
  shared_chunks shared;
  std::array<device_type::physical, 4> chunks;
  if (::read(pipe, &shared, sizeof shared) != sizeof shared) return 1;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    if (!device.import_memory(shared[i], chunks[i])) return fail(device);
  float* const memory = map_all(device, chunks);
  for (std::size_t i = 0; memory != nullptr && i < tensor; ++i) memory[tensor + i] = 2 * memory[i];
  return memory != nullptr ? 0 : fail(device);
}

int main() {
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const ::pid_t child = ::fork();  // before the device starts threads, which fork does not copy
  if (child == 0) {
    ::close(pipe[1]);
    ::_exit(work_on_shared_memory(pipe[0]));
  }
  device_type device{options};
  shared_chunks shared;
  std::array<device_type::physical, 4> chunks;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!device.create(chunk, tessera::page_kind::normal, chunks[i]) ||
        !device.export_memory(chunks[i], tessera::provider::importers::listed, shared[i]) ||
        !device.allow(shared[i], child))
      return fail(device);
  }
  float* const memory = map_all(device, chunks);
  if (memory == nullptr) return fail(device);
  for (std::size_t i = 0; i < tensor; ++i) memory[i] = static_cast<float>(i % 1000);

  int status = 0;
  if (::write(pipe[1], &shared, sizeof shared) != sizeof shared || ::waitpid(child, &status, 0) != child)
    return 1;
  std::printf("the other process computed %.0f from %.0f\n", memory[tensor + 999], memory[999]);
  return status == 0 && memory[tensor + 999] == 1998 && memory[2 * tensor - 1] == 2 * memory[tensor - 1] ? 0
                                                                                                         : 1;
}
