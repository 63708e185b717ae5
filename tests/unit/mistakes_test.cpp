// SPDX-License-Identifier: Apache-2.0
// Every front end reports a mistake of its caller with a message, before it changes anything.
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include "mistakes.hpp"

namespace {

using namespace tessera;
using mistakes::row;
using mistakes::stack;
using mistakes::stack_of;

simulated_device device(unsigned number) { return simulated_device({.capacity = 1_GiB, .device = number}); }
host_pinned host() { return host_pinned({.capacity = 128_MiB, .pin = host_pinned::pinning::never}); }

template <typename Pool>
std::unique_ptr<stack> plain(unsigned number) {
  return std::make_unique<stack_of<Pool>>(device(number));
}
template <typename Recipe>
using alone = caching_allocator<Recipe, simulated_device>;
template <typename Recipe>
using with_mutex = locked<caching_allocator<Recipe, simulated_device>>;

/// The allocators of two devices.
template <typename All>
class devices : public stack {
 public:
  explicit devices(unsigned number) : all_(two(number)) {}
  void* take(std::size_t bytes) override { return all_.allocate(bytes, 1, stream_id{1}); }
  void give(void* p) override { all_.deallocate(p); }
  bool give(void* p, std::size_t bytes) override { return all_.deallocate(p, bytes), true; }
  std::optional<bool> try_give(void* p) override { return all_.try_deallocate(p); }
  std::optional<bool> note(void* p) override { return all_.record_stream(p, stream_id{2}); }
  std::optional<bool> try_note(void* p) override { return all_.try_record_stream(p, stream_id{2}); }
  void trim() override { all_.trim(); }
  const char* audit() override { return all_.audit(); }

 private:
  static std::vector<simulated_device> two(unsigned number) {
    std::vector<simulated_device> made;
    for (unsigned d = 0; d < 2; ++d) made.push_back(device(2 * number + d));
    return made;
  }
  All all_;
};

class driver : public stack {
 public:
  explicit driver(unsigned number) : pool_(device(number)) {}
  void* take(std::size_t bytes) override { return pool_.allocate_async(bytes, stream_id{1}); }
  void give(void* p) override { pool_.free_async(p, stream_id{1}); }
  std::optional<bool> try_give(void* p) override { return pool_.try_free_async(p, stream_id{1}); }
  std::optional<bool> note(void* p) override { return pool_.record_stream(p, stream_id{2}); }
  std::optional<bool> try_note(void* p) override { return pool_.try_record_stream(p, stream_id{2}); }
  void trim() override { pool_.synchronize(stream_id{1}), pool_.trim_to(0); }
  const char* audit() override { return pool_.audit(); }

 private:
  cuda_mempool<caching_allocator<cuda_async, simulated_device>> pool_;
};

/// Frees the reported block at once.
class collected : public stack_of<alone<pytorch<>>> {
 public:
  explicit collected(unsigned number) : stack_of(device(number)), garbage_(pool) {}
  void give(void* p) override { garbage_.push(p, 1); }

 private:
  deferred_free_queue<alone<pytorch<>>> garbage_;
};

/// Frees a block by making it an output, which does not fit in it.
class donated : public stack_of<alone<pytorch<>>> {
 public:
  explicit donated(unsigned number) : stack_of(device(number)) {}
  void give(void* p) override { pool.deallocate(allocate_in_place(pool, p, 300_MiB)); }
};

/// Provider adaptors.
struct measured {
  explicit measured(unsigned number) : to(device(number)) {}
  simulated_device to;
  call_times times;
  timed<simulated_device> provider{to, times};
};
struct cut_off_one_region {
  explicit cut_off_one_region(unsigned number) : to(device(number)) {}
  simulated_device to;
  preallocating<simulated_device>::region region{to, 512_MiB};
  preallocating<simulated_device> provider{region};
};
struct registered_with_a_device {
  explicit registered_with_a_device(unsigned) {}
  host_pinned memory = host(), to = host();
  host_registering<host_pinned, host_pinned> provider{memory, to};
};
template <typename Before>
using pool_over = caching_allocator<pytorch<>, decltype(Before::provider)>;
template <typename Before>
class over : private Before, public stack_of<pool_over<Before>> {
 public:
  explicit over(unsigned number) : Before(number), stack_of<pool_over<Before>>(Before::provider) {}
};
template <typename Stack>
std::unique_ptr<stack> make(unsigned number) {
  return std::make_unique<Stack>(number);
}

std::vector<row> single_threaded() {
  return {
      {"pytorch", &plain<alone<pytorch<>>>},
      {"in ranges", &plain<alone<pytorch_family::expandable>>},
      {"stitched", &plain<alone<stitched>>},
      {"crossing", &plain<alone<cuda_async>>},
      {"passthrough", &plain<alone<passthrough>>},
      {"history", &plain<caching_allocator<pytorch<>, simulated_device, extension::observer<history<>>>>},
      {"configured",
       [](unsigned n) {
         return std::make_unique<
             stack_of<configured<torch_npu_family, caching_allocator<pytorch<>, simulated_device>>>>(
             config::torch_npu::settings{}, device(n));
       }},
      {"cuda_mempool", &make<driver>},
      {"tagged", &plain<tagged<alone<pytorch<>>>>},
      {"captured", &plain<trace::captured<alone<pytorch<>>>>},
      {"deferred_free_queue", &make<collected>},
      {"in place", &make<donated>},
      {"timed", &make<over<measured>>},
      {"reserving", &make<over<cut_off_one_region>>},
      {"registering", &make<over<registered_with_a_device>>},
      {"limited",
       [](unsigned n) {
         return std::make_unique<stack_of<caching_allocator<pytorch<>, limiting<simulated_device>>>>(
             limiting<simulated_device>(device(n), 512_MiB));
       }},
  };
}
TEST(mistakes_death, are_named_by_allocators_for_one_thread) { mistakes::run(single_threaded()); }

std::vector<row> several_threads() {
  return {
      {"locked", &plain<with_mutex<pytorch<>>>},
      {"per_stream", &plain<per_stream<caching_allocator<pytorch<>, simulated_device>>>},
      {"waiting",
       [](unsigned n) {
         return std::make_unique<stack_of<waiting<with_mutex<pytorch<>>>>>(std::chrono::milliseconds(0),
                                                                           device(n));
       }},
      {"background_reclaiming",
       &plain<background_reclaiming<caching_allocator<pytorch<>, simulated_device>>>},
      {"per_device", &make<devices<per_device<locked<caching_allocator<pytorch<>, simulated_device>>>>>},
      {"per_device of per_stream",
       &make<devices<per_device<per_stream<caching_allocator<pytorch<>, simulated_device>>>>>},
      {"configured_pinned",
       [](unsigned) {
         return std::make_unique<stack_of<configured_pinned<torch_npu_family::pinned_family, host_pinned>>>(
             config::torch_npu::settings{}, host());
       }},
      {"tagged arenas", &plain<tagged<per_stream<caching_allocator<pytorch<>, simulated_device>>>>},
      {"guarded",
       [](unsigned) {
         return std::make_unique<stack_of<guarded<caching_allocator<pytorch_pinned<>, host_pinned>>>>(host());
       }},
  };
}
TEST(mistakes_death, are_named_by_allocators_for_several_threads) { mistakes::run(several_threads()); }

}  // namespace
