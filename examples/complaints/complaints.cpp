// SPDX-License-Identifier: Apache-2.0
#include "complaints.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/concurrent/per_device.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera::literals;
using complaints::complaint;
using complaints::source;
using tessera::stream_id;
using tessera::provider::simulated_device;
using tessera::recipe::pytorch;
using tessera::recipe::pytorch_2_14;
using tessera::recipe::with;
namespace extension = tessera::extension;
namespace policy = tessera::policy;
namespace recipe = tessera::recipe;

// Tools of the programs.

template <typename Recipe, typename... Extensions>
using allocator = tessera::caching_allocator<Recipe, simulated_device, Extensions...>;

simulated_device device(std::size_t bytes) { return simulated_device({.capacity = bytes}); }

constexpr std::size_t gib(double n) { return static_cast<std::size_t>(n * (1 << 30)); }
constexpr std::size_t mib(double n) { return static_cast<std::size_t>(n * (1 << 20)); }
constexpr double in_gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
constexpr double in_mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Returns a figure of a program that has ended, if the allocator is sound.
double checked(const auto& of, double figure) {
  if (const char* const broken = of.audit(); broken != nullptr) {
    std::fprintf(stderr, "audit: %s\n", broken);
    std::abort();
  }
  return figure;
}
double peak_gib(auto& of) { return checked(of, in_gib(of.provider().peak_used())); }

/// Allocates and frees at once. Returns the number of requests that failed: 0 or 1.
int fails_to_serve(auto& from, std::size_t bytes) {
  void* const p = from.try_allocate(bytes);
  from.deallocate(p);
  return p == nullptr ? 1 : 0;
}
void free_all(auto& of, std::vector<void*>& blocks) {
  for (; !blocks.empty(); blocks.pop_back()) of.deallocate(blocks.back());
}

/// Names a recipe for a program.
template <typename Recipe>
using as = std::type_identity<Recipe>;

/// A complaint whose program runs with a recipe, and with another one that cures it.
template <typename Recipe, typename Cure, typename Program>
complaint replay(complaint about, Program) {
  about.replayed = [] { return Program{}(as<Recipe>{}); };
  about.cured = [] { return Program{}(as<Cure>{}); };
  return about;
}
/// A complaint whose cure is another use of the allocator.
template <typename Program, typename Cured>
complaint replay(complaint about, Program, Cured) {
  about.replayed = [] { return Program{}(); };
  about.cured = [] { return Cured{}(); };
  return about;
}

// Rules of systems for which tessera has no recipe.

/// ONNX Runtime's kNextPowerOfTwo: each region is twice as large as the one before, beginning with 1 MiB.
struct double_regions {
  using backend = policy::segment_backend;
  tessera::memory_limit limit{};
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block,
                                                          const tessera::usage& now) noexcept {
    return std::max({block, 1_MiB, std::bit_ceil(now.reserved + 1)});
  }
  bool operator==(const double_regions&) const = default;
};

/// llama.cpp's pool without virtual memory: each buffer has 5 % more than it was asked for.
struct look_ahead {
  using backend = policy::segment_backend;
  tessera::memory_limit limit{};
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const tessera::usage&) noexcept {
    return tessera::align_up(block + block / 20, 512);
  }
  bool operator==(const look_ahead&) const = default;
};

/// MLX's cache for Metal: a buffer serves as a whole, if it is at most two pages larger than the request.
struct nearly_exact : policy::split_never<> {
  static constexpr std::size_t page = 16_KiB;
  [[nodiscard]] static constexpr bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    return block == wanted || block < std::min(2 * wanted, wanted + 2 * page);
  }
  bool operator==(const nearly_exact&) const = default;
};

using onnxruntime_arena = with<pytorch<>, policy::round_to_multiple<256>, policy::pool_together,
                               policy::split_if_remainder_at_least<256>, double_regions>;
using llama_pool = with<pytorch<>, policy::round_to_multiple<256>, policy::pool_together,
                        policy::split_never<>, look_ahead, policy::evict_never, policy::recover_never>;
using mlx_cache = with<pytorch<>, policy::round_to_multiple<nearly_exact::page>, policy::pool_together,
                       nearly_exact, policy::grow_exactly<>, policy::evict_never>;
using mps_cache =
    with<pytorch<>, policy::round_to_multiple<nearly_exact::page>, policy::pool_together,
         policy::split_never<policy::block_fit::exact>, policy::grow_exactly<>, policy::evict_never>;
using rmm_pool = with<pytorch<>, policy::round_to_multiple<256>, policy::pool_together,
                      policy::split_if_remainder_at_least<256>, policy::grow_exactly<>, policy::evict_never,
                      policy::recover_never>;
using expandable = pytorch<"expandable_segments:True">;

/// What a network card knows: the physical memory behind each address at the time of the registration.
class network_card {
 public:
  void on_map(void*, std::size_t) const noexcept {}
  void on_unmap(void* p, std::size_t) noexcept { known_.erase(reinterpret_cast<std::uintptr_t>(p)); }

  /// Registers the chunks behind a block that it does not know yet.
  void know(const auto& chunks) {
    for (const auto& chunk : chunks) known_.try_emplace(chunk.address, chunk.memory.number);
  }
  /// Counts the chunks that it knows with memory that is not there any more.
  [[nodiscard]] double stale(const auto& chunks) const {
    return static_cast<double>(std::count_if(chunks.begin(), chunks.end(), [this](const auto& chunk) {
      return known_.at(chunk.address) != chunk.memory.number;
    }));
  }

 private:
  std::map<std::uintptr_t, std::uint64_t> known_;
};

/// The registrations that are stale after all memory slept and woke. `card` gives the card of the allocator.
double stale_after_sleep(auto& memory, auto card) {
  void* const buffer = memory.allocate(1_GiB);
  card([&](network_card& c) { c.know(tessera::observe::list_chunks(memory, buffer).chunks); });
  auto mode = memory.template get<extension::sleep_mode>();
  if (!mode.sleep(extension::sleep_contents::discard) || !mode.wake()) std::abort();
  double stale = 0;
  card([&](network_card& c) {
    const auto now = tessera::observe::list_chunks(memory, buffer).chunks;
    c.know(now);
    stale = c.stale(now);
  });
  return checked(memory, stale);
}

/// The idle GiB of a graph's pool that cannot serve the program's other requests, on a full device. A small buffer of the
/// graph lives in a block of 2.3 GiB.
double hidden_in_graph_pool(bool lends) {
  allocator<pytorch<>, extension::private_pools> memory(device(16_GiB));
  const extension::private_pool graph(memory);
  std::vector<void*> live;
  {
    const extension::pool_scope capture(graph, extension::scope_kind::capture);
    memory.deallocate(memory.allocate(gib(2.3)));
    live.push_back(memory.allocate(16_MiB));  // in the block that was freed
  }
  const std::size_t idle = memory.current_usage().cached;
  live.push_back(memory.allocate(memory.provider().available()));  // now the device is full
  if (lends && !memory.get<extension::private_pools>().lend(graph.id())) std::abort();
  std::size_t served = 0;
  while (void* const p = memory.try_allocate(64_MiB)) {
    live.push_back(p);
    served += 64_MiB;
  }
  free_all(memory, live);
  return checked(memory, in_gib(idle - served));
}

/// Loads 23 layers with 210.5 MiB of experts and 198 MiB of other weights. Then gives the experts of each layer 234 MiB, and
/// frees the old ones.
void convert_weights(auto& memory) {
  std::vector<void*> live, experts;
  for (int layer = 0; layer < 23; ++layer) {
    experts.push_back(memory.allocate(mib(210.5)));
    live.push_back(memory.allocate(198_MiB));
  }
  for (void* const old : experts) {
    live.push_back(memory.allocate(234_MiB));
    memory.deallocate(old);
  }
  free_all(memory, live);
}

/// The MiB of 12 x 64 MiB for the second NUMA node that lie on the first one, whose thread freed its 12 buffers before.
double on_wrong_node(auto& memory, auto allocate_on) {
  std::vector<void*> first, second;
  for (int i = 0; i < 12; ++i) first.push_back(allocate_on(0u));
  for (void* const p : first) memory.deallocate(p);
  for (int i = 0; i < 12; ++i) second.push_back(allocate_on(1u));
  for (void* const p : second) memory.deallocate(p);
  const auto lies_there = [&](void* p) { return std::find(first.begin(), first.end(), p) != first.end(); };
  return 64.0 * static_cast<double>(std::count_if(second.begin(), second.end(), lies_there));
}

// The complaints. Each is one element: what was reported, the recipe, the cure, and the program.

const complaint list[] = {
    // 64 MiB are live. Each cycle allocates 91 and 45.5 MiB, then 2 MiB that stay, and frees the first two.
    replay<pytorch_2_14<"max_split_size_mb:128,expandable_segments:True">,
           pytorch_2_14<"expandable_segments:True">>(
        {.issue = "pytorch#193400",
         .says = "reserved memory grows by 138 MiB in each cycle, with 66 to 266 MiB live",
         .figure = "MiB reserved in cycle 100",
         .reported = 14060,
         .requests = source::report,
         .within = 0.02,
         .saves = 0.9,
         .recipe = "pytorch_2_14, max_split_size_mb:128 and expandable_segments",
         .cure = "without max_split_size_mb"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(16'304_MiB));
          std::vector<void*> live{memory.allocate(64_MiB)};
          for (int cycle = 0; cycle <= 100; ++cycle) {
            void* const a = memory.allocate(91_MiB);
            void* const b = memory.allocate(mib(45.5));
            live.push_back(memory.allocate(2_MiB));
            memory.deallocate(a);
            memory.deallocate(b);
          }
          const std::size_t reserved = memory.current_usage().reserved;
          free_all(memory, live);
          return checked(memory, in_mib(reserved));
        }),

    // Tokens times 303,872 bytes, and 7.5 GiB for two other streams, as the log says. Nothing stays. The fifth batch is ours.
    replay<pytorch<>, expandable>(
        {.issue = "ROCm/legacy-rocm-build#6333",
         .says = "reserved memory climbs with each longer batch, although all tensors were freed",
         .figure = "GiB reserved",
         .reported = 27.488,
         .requests = source::report,
         .within = 0.02,
         .saves = 0.5,
         .recipe = "pytorch",
         .cure = "recipe pytorch_expandable"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(192_GiB));
          for (const std::size_t tokens : {14'000u, 17'000u, 19'000u, 20'480u, 12'000u, 14'500u}) {
            std::vector<void*> all{memory.allocate(tokens * 303'872)};
            all.push_back(memory.allocate(gib(3.5), stream_id{1}));
            all.push_back(memory.allocate(4_GiB, stream_id{2}));
            all.push_back(memory.allocate(36_MiB, stream_id{2}));
            free_all(memory, all);
          }
          return peak_gib(memory);
        }),

    // Each call makes two streams and a buffer of 1 GiB on each. PyTorch has 32 streams, which come again after 16 calls.
    replay<pytorch<>, with<pytorch<>, policy::reuse_across_streams<>>>(
        {.issue = "vllm#52951",
         .says = "each weight transfer leaves 2 GiB that only its own two streams may use",
         .figure = "GiB reserved",
         .reported = 32,
         .requests = source::report,
         .within = 0.02,
         .saves = 0.9,
         .recipe = "pytorch",
         .cure = "policy reuse_across_streams"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(80_GiB));
          for (std::uintptr_t call = 0; call < 100; ++call) {
            void* const first = memory.allocate(1_GiB, stream_id{2 * call % 32 + 1});
            void* const second = memory.allocate(1_GiB, stream_id{(2 * call + 1) % 32 + 1});
            memory.deallocate(first);
            memory.deallocate(second);
          }
          return peak_gib(memory);
        }),

    replay<pytorch<>, expandable>(
        {.issue = "pytorch#159674",
         .says = "in a MemPool, 70 GiB fail on a device of 80 GiB after 60 GiB were freed",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::report,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch, private_pools",
         .cure = "recipe pytorch_expandable, private_pools"},
        []<typename R>(as<R>) {
          allocator<R, extension::private_pools> memory(device(80_GiB));
          const extension::private_pool pool(memory);
          const extension::pool_scope scope(pool, extension::scope_kind::capture);
          int failed = fails_to_serve(memory, 60_GiB);
          failed += fails_to_serve(memory, 70_GiB);
          return checked(memory, failed);
        }),

    // A matrix of 18,944 x 3,584 numbers of 2 bytes: 129.5 MiB.
    replay<recipe::pytorch_pinned<>, recipe::pinned_packed>(
        {.issue = "pytorch#150517",
         .says = "129.5 MiB of weights pin 256 MiB of host memory",
         .figure = "MiB pinned",
         .reported = 256,
         .requests = source::report,
         .within = 0.02,
         .saves = 0.45,
         .recipe = "pytorch_pinned",
         .cure = "recipe pinned_packed"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(64_GiB));
          memory.deallocate(memory.allocate(18'944 * 3'584 * 2));
          return checked(memory, in_mib(memory.provider().peak_used()));
        }),

    replay(
        {.issue = "pytorch#160420",
         .says = "the buffers of the second NUMA node are those that the first node freed",
         .figure = "MiB on the wrong node",
         .reported = 768,
         .requests = source::report,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch_pinned",
         .cure = "front end per_device, a device per node"},
        [] {
          allocator<recipe::pytorch_pinned<>> memory(device(64_GiB));
          return on_wrong_node(memory, [&](unsigned) { return memory.allocate(64_MiB); });
        },
        [] {
          std::vector<simulated_device> nodes;
          for (unsigned node = 0; node < 2; ++node)
            nodes.push_back(simulated_device({.capacity = 32_GiB, .device = node}));
          tessera::concurrent::per_device<allocator<recipe::pytorch_pinned<>>> memory(std::move(nodes));
          return on_wrong_node(memory, [&](unsigned node) { return memory.allocate(64_MiB, node); });
        }),

    // The issue has 256 and 1,024 bytes; here they are MiB.
    replay<rmm_pool, with<rmm_pool, policy::grow_by_mapping<2_MiB, 2_MiB>>>(
        {.issue = "rmm#1957",
         .says = "a pool that begins with 256 of at most 1,024 cannot serve one request of 1,024",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::report,
         .within = 0,
         .saves = 1,
         .recipe = "RMM's pool, composed",
         .cure = "policy grow_by_mapping"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(1'024_MiB));
          memory.deallocate(memory.allocate(256_MiB));  // the initial size
          return checked(memory, fails_to_serve(memory, 1'024_MiB));
        }),

    // 18.05 GiB are live. Each step takes 125.67 GiB and frees them; the pool may keep 138.22 GiB.
    replay<with<recipe::cuda_async, policy::evict_at_synchronize_above<gib(138.22)>>,
           with<recipe::cuda_async, policy::evict_at_synchronize_above<gib(152.96)>>>(
        {.issue = "marin#8490",
         .says = "each step returns 125.67 GiB to the driver and takes them again, which fails now and then",
         .figure = "GiB taken from the device per step",
         .reported = 125.67,
         .requests = source::report,
         .within = 0.02,
         .saves = 0.99,
         .recipe = "cuda_async, release threshold of 138.22 GiB",
         .cure = "policy evict_at_synchronize_above 152.96 GiB"},
        []<typename R>(as<R>) {
          constexpr int steps = 380;
          allocator<R> memory(device(gib(155.69)));
          void* const live = memory.allocate(gib(18.05));
          std::int64_t before = 0;
          for (int step = 0; step <= steps; ++step) {
            memory.deallocate(memory.allocate(gib(125.67)));
            if (!memory.synchronize(stream_id{})) std::abort();
            if (step == 0) before = memory.statistics().all.reserved_bytes.allocated;
          }
          const std::int64_t taken = memory.statistics().all.reserved_bytes.allocated - before;
          memory.deallocate(live);
          return checked(memory, in_gib(static_cast<std::size_t>(taken)) / steps);
        }),

    // A cache of 1,916,853,120 bytes begins 8,214,528 bytes behind the start of a chunk; chunks have 20 MiB.
    replay<expandable, recipe::paddle<"FLAGS_use_virtual_memory_auto_growth=True">>(
        {.issue = "Mooncake#3538",
         .says = "a KV cache cannot be registered, because one export covers only a chunk of 20 MiB",
         .figure = "chunks behind the cache",
         .reported = 92,
         .requests = source::report,
         .within = 0,
         .saves = 0.9,
         .recipe = "pytorch_expandable",
         .cure = "recipe paddle_virtual_memory"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(80_GiB));
          void* const before = memory.allocate(8'214'528);
          void* const cache = memory.allocate(1'916'853'120);
          const auto chunks = tessera::observe::list_chunks(memory, cache).chunks.size();
          memory.deallocate(before);
          memory.deallocate(cache);
          return checked(memory, static_cast<double>(chunks));
        }),

    // 16.5 GiB of weights, in tensors of 64 MiB.
    replay<onnxruntime_arena, with<onnxruntime_arena, policy::grow_by_segments<>>>(
        {.issue = "onnxruntime#15983",
         .says = "a model of a little more than 16 GB takes 32 GB",
         .figure = "GiB reserved",
         .reported = 32,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.4,
         .recipe = "ONNX Runtime's arena, composed",
         .cure = "policy grow_by_segments"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(80_GiB));
          std::vector<void*> weights;
          for (int i = 0; i < 264; ++i) weights.push_back(memory.allocate(64_MiB));
          free_all(memory, weights);
          return peak_gib(memory);
        }),

    replay(
        {.issue = "vllm#49151",
         .says = "loading under sleep mode converts weights, and the pool keeps the memory of the old ones",
         .figure = "GiB reserved",
         .reported = 14.44,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.2,
         .recipe = "pytorch, all in a private pool",
         .cure = "recipe stitched, whose sleep_mode needs no pool"},
        [] {
          allocator<pytorch<>, extension::private_pools> memory(device(16_GiB));
          const extension::private_pool pool(memory);
          const extension::pool_scope loading(pool, extension::scope_kind::capture);
          convert_weights(memory);
          return peak_gib(memory);
        },
        [] {
          allocator<recipe::stitched, extension::sleep_mode> memory(device(16_GiB));
          convert_weights(memory);
          return peak_gib(memory);
        }),

    // 36 layers: a buffer of 530 MiB is freed, and a weight of 270 MiB that stays takes its place.
    replay<pytorch<>, recipe::stitched>(
        {.issue = "vllm#41268",
         .says = "270 MiB that stay split a block of 530 MiB, so 260 MiB of each layer are lost",
         .figure = "MiB lost per layer",
         .reported = 260,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.9,
         .recipe = "pytorch",
         .cure = "recipe stitched"},
        []<typename R>(as<R>) {
          constexpr int layers = 36;
          allocator<R> memory(device(80_GiB));
          std::vector<void*> weights;
          for (int layer = 0; layer < layers; ++layer) {
            memory.deallocate(memory.allocate(530_MiB));
            weights.push_back(memory.allocate(270_MiB));
          }
          const auto used = memory.current_usage();
          free_all(memory, weights);
          return checked(memory, in_mib(used.reserved - used.allocated) / layers);
        }),

    // 33 tables of 1 GiB leave, activations of half their size take their place, and the tables come back; 27 GiB stay.
    replay<pytorch<>, expandable>(
        {.issue = "torchrec#4584",
         .says = "tables that are stashed and restored leave 16 GiB that nothing can use, with 77 GiB live",
         .figure = "GiB reserved",
         .reported = 93,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.15,
         .recipe = "pytorch",
         .cure = "recipe pytorch_expandable"},
        []<typename R>(as<R>) {
          constexpr int tables = 33;
          allocator<R> memory(device(96_GiB));
          std::vector<void*> stashed, activations;
          void* const live = memory.allocate(27_GiB);
          const auto fill = [&](std::vector<void*>& blocks, std::size_t bytes) {
            for (int i = 0; i < tables; ++i) blocks.push_back(memory.allocate(bytes));
          };
          fill(stashed, 1_GiB);
          for (int step = 0; step < 4; ++step) {
            free_all(memory, stashed);
            fill(activations, 528_MiB);
            fill(stashed, 1_GiB);
            free_all(memory, activations);
          }
          free_all(memory, stashed);
          memory.deallocate(live);
          return peak_gib(memory);
        }),

    // 8 GB of optimizer state are freed while a copy of them runs, and taken again before it ends; 24 GB are live.
    replay<pytorch<>, with<pytorch<>, policy::wait_for_events<pytorch<>::streams>>>(
        {.issue = "torchrec#4447",
         .says = "a stash that is still being copied is not reused by the restore: 8 GB more, 20 %",
         .figure = "GB reserved",
         .reported = 40,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.19,
         .recipe = "pytorch",
         .cure = "policy wait_for_events"},
        []<typename R>(as<R>) {
          constexpr stream_id copies{1};
          constexpr std::size_t state = 8'000'000'000;
          allocator<R> memory(device(80_GiB));
          void* const live = memory.allocate(3 * state);
          void* stash = memory.allocate(state);
          if (!memory.record_stream(stash, copies)) std::abort();
          memory.provider().submit(copies, 1'000'000'000);
          memory.deallocate(stash);
          stash = memory.allocate(state);
          memory.deallocate(stash);
          memory.deallocate(live);
          return checked(memory, static_cast<double>(memory.provider().peak_used()) / 1e9);
        }),

    // Requests with 262,144 to a million tokens of 32 KiB, in 16 buffers each; 3 GiB of weights.
    replay<mlx_cache, with<mlx_cache, policy::evict_at_free<64_MiB>>>(
        {.issue = "mlx#3350",
         .says = "each longer context leaves its cache behind: 108 GB for 34 GB",
         .figure = "GiB reserved",
         .reported = 108,
         .requests = source::shape,
         .within = 0.15,
         .saves = 0.6,
         .recipe = "MLX's buffer cache, composed",
         .cure = "policy evict_at_free above 64 MiB"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(192_GiB));
          void* const weights = memory.allocate(3_GiB);
          for (const std::size_t tokens : {262'144u, 393'216u, 524'288u, 786'432u, 1'000'000u}) {
            std::vector<void*> cache;
            for (int buffer = 0; buffer < 16; ++buffer) cache.push_back(memory.allocate(tokens * 2_KiB));
            free_all(memory, cache);
          }
          memory.deallocate(weights);
          return peak_gib(memory);
        }),

    // 104 batches of 40 to 160 tokens, in mixed order. Each of 8 layers keeps 130 KiB per token: at most 170 MB.
    replay<mps_cache, with<mps_cache, policy::split_if_remainder_at_least<16_KiB>>>(
        {.issue = "pytorch#188045",
         .says = "on MPS, buffers are cached whole and by size: 11 GB for 170 MB that are live",
         .figure = "GB reserved",
         .reported = 11,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.85,
         .recipe = "PyTorch's cache for MPS, composed",
         .cure = "policy split_if_remainder_at_least 16 KiB"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(64_GiB));
          for (std::size_t batch = 0; batch < 104; ++batch) {
            const std::size_t tokens = 40 + batch * 37 % 121;
            std::vector<void*> activations;
            for (int layer = 0; layer < 8; ++layer) activations.push_back(memory.allocate(tokens * 130_KiB));
            free_all(memory, activations);
          }
          return checked(memory, static_cast<double>(memory.provider().peak_used()) / 1e9);
        }),

    // On 16,368 MiB with 13 GiB in use, two workspaces of 4 KiB per token grow by 256 tokens a time, up to 131,072.
    replay<llama_pool, with<llama_pool, policy::recover_by_emptying_cache<>>>(
        {.issue = "llama.cpp#22107",
         .says =
             "each longer context needs a buffer that none of the kept ones can serve, until memory is full",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "llama.cpp's pool, composed",
         .cure = "policy recover_by_emptying_cache"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(16'368_MiB));
          void* const model = memory.allocate(13_GiB);
          int failed = 0;
          for (std::size_t tokens = 256; tokens <= 131'072 && failed == 0; tokens += 256) {
            void* const keys = memory.try_allocate(tokens * 4_KiB);
            failed = fails_to_serve(memory, tokens * 4_KiB);
            memory.deallocate(keys);
          }
          memory.deallocate(model);
          return checked(memory, failed);
        }),

    // 900 MiB are freed while another stream uses them. Their segment has 100 MiB that are live, and the device is full.
    replay<pytorch<>, with<pytorch<>, policy::last_search<pytorch<>::recovery>>>(
        {.issue = "pytorch#189504",
         .says = "a request fails once, although a block fits; the same request then succeeds",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch",
         .cure = "policy last_search"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(1'000_MiB));
          memory.deallocate(memory.allocate(1'000_MiB));
          void* const live = memory.allocate(100_MiB);
          void* const used = memory.allocate(900_MiB);
          if (!memory.record_stream(used, stream_id{1})) std::abort();
          memory.provider().submit(stream_id{1}, 1'000'000'000);
          memory.deallocate(used);
          int failed = fails_to_serve(memory, 900_MiB);
          failed += fails_to_serve(memory, 900_MiB);
          memory.deallocate(live);
          return checked(memory, failed);
        }),

    // 10.26 of 22.79 GiB are free, 1.69 GiB are elsewhere. 10.84 GiB are freed, and 16 MiB that stay are split from them.
    replay<pytorch<>, pytorch<"max_split_size_mb:200">>(
        {.issue = "pytorch#35901",
         .says = "16 MiB keep a block of 10.84 GiB from going back, so half of the device is lost",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch",
         .cure = "policy split_below 200 MiB (max_split_size_mb)"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(gib(10.26 + 12.53)));
          void* const other = memory.allocate(gib(12.53 - 10.84));
          memory.deallocate(memory.allocate(gib(10.84)));
          void* const live = memory.allocate(16_MiB);
          const int failed = fails_to_serve(memory, gib(10.84));
          memory.deallocate(live);
          memory.deallocate(other);
          return checked(memory, failed);
        }),

    // Batches of growing length on 16 GiB, with a threshold of 60 % and no memory fraction.
    replay<pytorch<"garbage_collection_threshold:0.6">,
           with<pytorch<>, policy::evict_idle_above<tessera::percent(60)>>>(
        {.issue = "pytorch#106660",
         .says = "garbage_collection_threshold does nothing unless a memory fraction was set",
         .figure = "GiB reserved",
         .reported = {},
         .requests = source::shape,
         .within = 0,
         .saves = 0.25,
         .recipe = "pytorch, garbage_collection_threshold:0.6",
         .cure = "policy evict_idle_above 60 %"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(16_GiB));
          for (std::size_t batch = 500; batch < 1'000; batch += 20)
            memory.deallocate(memory.allocate(batch * 1_MiB));
          return peak_gib(memory);
        }),

    // On 80 GB with 39.87 GB in use, buffers of 6, 13 and 13 GB were freed, and kernels still use them.
    replay<with<pytorch<>, policy::recover_never>, with<pytorch<>, policy::recover_by_emptying_cache<>>>(
        {.issue = "modular#6801",
         .says = "11.9 GB fail while 39.87 of 80 GB are in use: memory that was freed is not reclaimed",
         .figure = "failed requests",
         .reported = 1,
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch with recover_never",
         .cure = "policy recover_by_emptying_cache"},
        []<typename R>(as<R>) {
          constexpr std::size_t megabyte = 1'000'000;
          constexpr stream_id kernels{1};
          allocator<R> memory(device(80'000'000'000 / 512 * 512));
          void* const live = memory.allocate(39'870 * megabyte);
          for (const std::size_t size : {6'000u, 13'000u, 13'000u}) {
            void* const transient = memory.allocate(size * megabyte);
            if (!memory.record_stream(transient, kernels)) std::abort();
            memory.provider().submit(kernels, 1'000'000'000);
            memory.deallocate(transient);
          }
          const int failed = fails_to_serve(memory, 11'900 * megabyte);
          memory.deallocate(live);
          return checked(memory, failed);
        }),

    // Batches of up to 900 frames. Each of 24 layers keeps 170 KiB per frame, which the backward pass frees.
    replay<recipe::paddle<>, recipe::paddle<"FLAGS_use_virtual_memory_auto_growth=True">>(
        {.issue = "Paddle#36189",
         .says =
             "free chunks never coalesce, so batches of many lengths need 8,710 MiB, and 3,660 if they do",
         .figure = "MiB reserved",
         .reported = 8710,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.5,
         .recipe = "paddle_auto_growth",
         .cure = "recipe paddle_virtual_memory"},
        []<typename R>(as<R>) {
          allocator<R> memory(device(32_GiB));
          for (const std::size_t frames : {505u, 705u, 890u, 600u, 800u, 400u}) {
            std::vector<void*> activations;
            for (int layer = 0; layer < 24; ++layer) activations.push_back(memory.allocate(frames * 170_KiB));
            for (; !activations.empty(); activations.pop_back()) {
              void* const gradient = memory.allocate(frames * 170_KiB);
              memory.deallocate(activations.back());
              memory.deallocate(gradient);
            }
          }
          return checked(memory, in_mib(memory.provider().peak_used()));
        }),

    // Two ranks run one program, and the driver gives them different addresses.
    replay<pytorch<>, recipe::symmetric<pytorch<>>>(
        {.issue = "pytorch#190977",
         .says = "ranks reuse buffers in the order of their addresses, so windows do not belong together",
         .figure = "buffers of 16 in another window",
         .reported = {},
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch",
         .cure = "recipe symmetric"},
        []<typename R>(as<R>) {
          const auto windows = [](std::uint64_t seed) {
            allocator<R> memory(simulated_device({.address_seed = seed}));
            std::vector<void*> buffers, order;
            for (int i = 0; i < 16; ++i) buffers.push_back(memory.allocate(64_MiB));
            const std::vector<void*> first = buffers;
            free_all(memory, buffers);
            std::vector<std::ptrdiff_t> used;
            for (int i = 0; i < 16; ++i) {
              order.push_back(memory.allocate(64_MiB));
              used.push_back(std::find(first.begin(), first.end(), order.back()) - first.begin());
            }
            free_all(memory, order);
            return used;
          };
          const auto one = windows(1);
          const auto other = windows(2);
          double differ = 0;
          for (std::size_t i = 0; i < one.size(); ++i) differ += one[i] != other[i];
          return differ;
        }),

    // 1 GiB is registered, sleeps and wakes. The card looks up addresses.
    replay(
        {.issue = "torch_memory_saver#88",
         .says = "after sleep, NCCL finds registrations of memory that is gone, and hangs",
         .figure = "stale registrations",
         .reported = {},
         .requests = source::shape,
         .within = 0,
         .saves = 1,
         .recipe = "pytorch_expandable, sleep_mode",
         .cure = "extension registrations"},
        [] {
          allocator<expandable, extension::sleep_mode> memory(device(16_GiB));
          network_card card;
          return stale_after_sleep(memory, [&card](auto use) { use(card); });
        },
        [] {
          using watched = extension::registrations<network_card>;
          allocator<expandable, extension::sleep_mode, watched> memory(
              device(16_GiB), {}, watched{.at_sleep = extension::registered_at_sleep::goes});
          return stale_after_sleep(memory, [&](auto use) { memory.template get<watched>().with(use); });
        }),

    replay(
        {.issue = "sglang#36911",
         .says = "one live buffer of a graph hides 2.3 GB of its pool from all other requests",
         .figure = "idle GiB that cannot serve",
         .reported = 2.3,
         .requests = source::shape,
         .within = 0.02,
         .saves = 0.9,
         .recipe = "pytorch, private_pools",
         .cure = "private_pools, lend"},
        [] { return hidden_in_graph_pool(false); }, [] { return hidden_in_graph_pool(true); }),
};

}  // namespace

std::span<const complaint> complaints::all() { return list; }

const char* complaints::fault_of(const complaint& each, const outcome& now) {
  if (now.replayed <= 0) return "the replay shows nothing";
  if (each.reported && std::abs(now.replayed - *each.reported) > each.within * *each.reported)
    return "the replay is too far from the report";
  if (now.cured > (1 - each.saves) * now.replayed) return "the cure saves too little";
  return nullptr;
}
