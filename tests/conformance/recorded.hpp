// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"

/// Recorded programs for allocators of any kind.
namespace conformance {

/// A recording of examples/traces, by its name without an ending.
///   Throws:  std::bad_variant_access where it cannot be read
[[nodiscard]] inline tessera::trace::recording recorded(const std::string& name) {
  const std::string path = TESSERA_EXAMPLES_DIR "/traces/" + name + ".csv";
  const std::string text = std::get<std::string>(replay::read_file(path));
  return std::get<tessera::trace::recording>(tessera::trace::read_csv(text, path));
}

/// An allocator over a device, as trace::replay takes one.
template <typename Pool>
class replayed {
 public:
  replayed(Pool& pool, tessera::provider::simulated_device& device) noexcept : pool_(pool), device_(device) {}
  [[nodiscard]] void* try_allocate(std::size_t bytes, tessera::stream_id stream) {
    return pool_.try_allocate(bytes, stream);
  }
  void deallocate(void* p) { pool_.deallocate(p); }
  void record_stream(void* p, tessera::stream_id stream) { (void)pool_.record_stream(p, stream); }
  void trim() { pool_.trim(); }
  [[nodiscard]] tessera::provider::simulated_device& provider() noexcept { return device_; }

 private:
  Pool& pool_;
  tessera::provider::simulated_device& device_;
};

/// Replays a program; calls after() behind each event. Returns how many allocations failed.
template <typename Pool, typename After>
std::size_t replay_on(Pool& pool, tessera::provider::simulated_device& device,
                      const tessera::trace::program& source, After after) {
  replayed<Pool> on(pool, device);
  return tessera::trace::replay(source, on, [](std::size_t) {}, [&](std::size_t, void*) { after(); });
}

}  // namespace conformance
