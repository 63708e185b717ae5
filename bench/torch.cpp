// SPDX-License-Identifier: Apache-2.0
// PyTorch's own allocator beside tessera's recipe `pytorch`: the recorded programs, a pair that is freed at once, and the
// longest single free.
//
// PyTorch's allocator runs on a CUDA device and tessera's on a simulated one. The devices take no part once the caches are
// warm, except in `gnn_sage_streams`: it empties the cache and uses events, which CUDA completes at a time of its own.
// PyTorch's calls also look up the current device and lock a mutex. `tessera_locked` has the mutex, too.

#include <benchmark/benchmark.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>

#include "replayed.hpp"
#include "single_calls.hpp"
#include "subjects.hpp"

// libtorch_cuda, which this program does not load, calls this function of c10 at its start. Without the call, c10 throws when
// a block that other streams use is freed. No header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*answer)(DeviceIndex));
}

namespace {

using namespace tessera::literals;
namespace cached = c10::cuda::CUDACachingAllocator;

/// PyTorch's allocator of the current device. A process has only one, so it returns its memory at the end of each benchmark.
class torch_allocator {
 public:
  torch_allocator() {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    cached::init(c10::cuda::device_count());
  }
  ~torch_allocator() { cached::emptyCache(); }
  torch_allocator& operator=(torch_allocator&&) = delete;

  void* try_allocate(std::size_t bytes, tessera::stream_id stream = {}) {
    try {
      return cached::raw_alloc_with_stream(bytes,
                                           stream == tessera::stream_id{} ? nullptr : other(stream).handle);
    } catch (const c10::Error&) {  // out of memory
      return nullptr;
    }
  }
  static void deallocate(void* p) { cached::raw_delete(p); }
  bool record_stream(void* p, tessera::stream_id stream) {
    c10::DataPtr block(p, p, cached::get()->raw_deleter(), device_);
    cached::recordStream(
        block, stream == tessera::stream_id{} ? c10::cuda::getDefaultCUDAStream() : other(stream).torch);
    block.release_context();  // the block stays live
    return true;
  }
  static void trim() { cached::emptyCache(); }
  torch_allocator& provider() { return *this; }
  static void hold_events(bool) {}  // CUDA answers its queries itself

 private:
  struct stream_pair {
    c10::cuda::CUDAStream torch = c10::cuda::getStreamFromPool();
    cudaStream_t handle = torch.stream();
  };
  /// The recorded programs number their streams from 0.
  const stream_pair& other(tessera::stream_id recorded) {
    while (streams_.size() <= recorded.handle) streams_.emplace_back();
    return streams_[recorded.handle];
  }
  std::vector<stream_pair> streams_;
  c10::Device device_{c10::kCUDA, c10::cuda::current_device()};
};
struct pytorch {
  torch_allocator pool;
};

template <typename Subject>
void hot_pair_beside_torch(benchmark::State& state) {
  Subject subject;
  bench::run_hot_pairs(state, subject.pool);
}
BENCHMARK(hot_pair_beside_torch<pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair_beside_torch<bench::tessera_pytorch>)->Arg(1_KiB)->Arg(5_MiB);
BENCHMARK(hot_pair_beside_torch<bench::tessera_locked>)->Arg(1_KiB)->Arg(5_MiB);

/// As in bench/longest.cpp. The blocks of 100,000 take about 15 GiB of the device.
template <typename Subject>
void longest_beside_torch(benchmark::State& state) {
  for (auto _ : state)
    bench::report(state, "deallocate",
                  bench::run_passes<Subject>(static_cast<std::size_t>(state.range(0))).frees);
}
BENCHMARK(longest_beside_torch<pytorch>)->Arg(100'000)->Iterations(1)->Repetitions(1);
BENCHMARK(longest_beside_torch<bench::tessera_pytorch>)->Arg(100'000)->Iterations(1)->Repetitions(1);
BENCHMARK(longest_beside_torch<bench::tessera_locked>)->Arg(100'000)->Iterations(1)->Repetitions(1);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (c10::cuda::device_count() == 0) {
    std::fprintf(stderr, "there is no CUDA device for PyTorch's allocator, so nothing is measured\n");
    return 0;
  }
  const auto add = [](const std::string& title, const bench::shared_recording& run) {
    bench::add_replay<pytorch>("replay_beside_torch<pytorch>", title, run);
    bench::add_replay<bench::tessera_pytorch>("replay_beside_torch<bench::tessera_pytorch>", title, run);
    bench::add_replay<bench::tessera_locked>("replay_beside_torch<bench::tessera_locked>", title, run);
  };
  if (!bench::for_each_recording(add)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
