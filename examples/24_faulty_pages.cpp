// SPDX-License-Identifier: Apache-2.0
// What a backend for torch_npu needs: memory in which the NPU reports errors serves no request any more, and a tensor of a
// collective is free at its free.
#include <cstddef>
#include <cstdio>
#include <vector>

#include <tessera/extension/faulty_memory.hpp>
#include <tessera/interop/erase_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

namespace {

using tessera::extension::faulty_memory;
using allocator_type =
    tessera::caching_allocator<tessera::recipe::torch_npu<>, tessera::provider::simulated_npu, faulty_memory>;

constexpr tessera::stream_id compute{1};
constexpr tessera::stream_id hccl{2};  // of the communication library

/// Sends a tensor and frees it. Returns how much memory is pending then.
std::size_t pending_after_send(bool erases) {
  allocator_type allocator;
  tessera::provider::simulated_npu& npu = allocator.provider();
  void* const tensor = allocator.allocate(30_MiB, compute);
  if (!allocator.record_stream(tensor, hccl)) return tessera::unlimited;
  npu.submit(hccl, 1'000'000);  // the collective

  // The program waits for the collective: all later work on its stream comes after it, so the record is not needed.
  tessera::provider::simulated_npu::event done;
  if (!npu.record(hccl, done) || !npu.make_wait(compute, done)) return tessera::unlimited;
  npu.discard(done);
  if (erases && !tessera::interop::erase_stream(allocator, tensor, hccl)) return tessera::unlimited;

  allocator.deallocate(tensor);
  return allocator.current_usage().pending();
}

bool erase_the_stream_of_a_collective() {
  const std::size_t recorded = pending_after_send(false);
  const std::size_t erased = pending_after_send(true);
  std::printf("after the free of a sent tensor, %zu MiB are pending; with erase_stream, %zu\n",
              recorded >> 20, erased >> 20);
  return recorded >= 30_MiB && recorded < 31_MiB && erased == 0;
}

/// What a program does after the NPU reported an error at an address.
bool go_on_after_an_error() {
  allocator_type allocator;
  auto faults = allocator.get<faulty_memory>();
  auto* const activations = static_cast<std::byte*>(allocator.allocate(8_MiB, compute));
  void* const weights = allocator.allocate(8_MiB, compute);  // in the same segment
  if (!faults.mark_faulty(activations + 3_MiB, 4096)) return false;

  // The contents of these blocks are lost, so the program computes them again, in other memory.
  std::vector<void*> lost;
  faults.for_each_live(
      [&lost](const tessera::block_view& b) { lost.push_back(reinterpret_cast<void*>(b.address)); });
  if (lost != std::vector<void*>{activations}) return false;
  allocator.deallocate(activations);
  std::vector<void*> blocks{allocator.allocate(8_MiB, compute)};
  std::printf("%zu block was lost; %zu bytes are withheld\n", lost.size(), faults.current_usage().withheld);

  // The rest of the lost block serves requests, and the faulty bytes serve none.
  std::size_t around = 0;
  for (int i = 0; i < 5; ++i) {
    auto* const p = static_cast<std::byte*>(allocator.allocate(2_MiB, compute));
    if (!faults.is_safe(p)) return false;
    if (p >= activations && p < activations + 8_MiB) ++around;
    blocks.push_back(p);
  }
  std::printf("%zu of 5 requests of 2 MiB were served from the rest of it\n", around);

  // Once no block uses the segment, emptying the cache gives it back to the device with its faulty bytes.
  for (void* const p : blocks) allocator.deallocate(p);
  allocator.deallocate(weights);
  allocator.trim();
  std::printf("%zu bytes are faulty after trim\n", faults.current_usage().faulty);
  return around == 3 && faults.current_usage() == tessera::extension::faulty_memory_usage{} &&
         allocator.audit() == nullptr;
}

}  // namespace

int main() { return erase_the_stream_of_a_collective() && go_on_after_an_error() ? 0 : 1; }
