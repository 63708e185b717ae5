// SPDX-License-Identifier: Apache-2.0
// Two processes work in one pool of tensors: one range of addresses each, over the same pieces of physical memory.
#include <array>
#include <cstddef>
#include <cstdio>
#include <span>

#include <sys/wait.h>
#include <unistd.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using device_type = tessera::host_pinned;

constexpr std::size_t piece = 2_MiB;
constexpr std::size_t tensor = 4 * piece / sizeof(float) / 2;  // two tensors fill four pieces
constexpr device_type::options here{.capacity = 64_MiB, .pin = device_type::pinning::where_allowed};
using shared_pieces = std::array<device_type::shareable, 4>;

/// Says why the device refused.
int fail(const device_type& device) {
  std::fprintf(stderr, "%s\n", device.last_error().c_str());
  return 1;
}

/// Maps pieces one behind the other, so that they look like one; null where the device refuses.
float* map_all(device_type& device, std::span<const device_type::physical> pieces) {
  auto* const range = static_cast<std::byte*>(device.reserve(pieces.size() * piece, piece));
  for (std::size_t i = 0; range != nullptr && i < pieces.size(); ++i)
    if (!device.map(range + i * piece, piece, pieces[i])) return nullptr;
  return reinterpret_cast<float*>(range);
}

/// Reads what it may import from a pipe and doubles the first tensor into the second.
int work_in_the_pool(int pipe) {
  device_type device{here};
  shared_pieces shared;
  std::array<device_type::physical, 4> pieces;
  if (::read(pipe, &shared, sizeof shared) != sizeof shared) return 1;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (!device.import_memory(shared[i], pieces[i])) return fail(device);
  float* const pool = map_all(device, pieces);
  for (std::size_t i = 0; pool != nullptr && i < tensor; ++i) pool[tensor + i] = 2 * pool[i];
  return pool != nullptr ? 0 : fail(device);
}

int main() {
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const ::pid_t child = ::fork();  // before the device, as threads do not come along
  if (child == 0) {
    ::close(pipe[1]);
    ::_exit(work_in_the_pool(pipe[0]));
  }
  device_type device{here};
  shared_pieces shared;
  std::array<device_type::physical, 4> pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!device.create(piece, tessera::normal_pages, pieces[i]) ||
        !device.export_memory(pieces[i], tessera::importers::listed, shared[i]) ||
        !device.allow(shared[i], child))
      return fail(device);
  }
  float* const pool = map_all(device, pieces);
  if (pool == nullptr) return fail(device);
  for (std::size_t i = 0; i < tensor; ++i) pool[i] = static_cast<float>(i % 1000);

  int status = 0;
  if (::write(pipe[1], &shared, sizeof shared) != sizeof shared || ::waitpid(child, &status, 0) != child)
    return 1;
  std::printf("the other process made %.0f of %.0f\n", pool[tensor + 999], pool[999]);
  return status == 0 && pool[tensor + 999] == 1998 && pool[2 * tensor - 1] == 2 * pool[tensor - 1] ? 0 : 1;
}
