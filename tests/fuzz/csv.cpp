// SPDX-License-Identifier: Apache-2.0
// The text formats. A rejected text gives an error with a message. An accepted text is read back as it was written, and any
// allocator can replay it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/lifetimes.hpp"

#include "fuzz.hpp"

namespace {

using namespace tessera;
using trace::recording;

void expect_same(const recording& one, const recording& other) {
  fuzz::expect(one.events.size() == other.events.size(), "a written trace is read back with as many events");
  for (std::size_t i = 0; i < one.events.size(); ++i) {
    const trace::event &a = one.events[i], &b = other.events[i];
    fuzz::expect(a.what == b.what && a.id == b.id && a.bytes == b.bytes && a.stream == b.stream,
                 "a written trace is read back with the same events");
  }
}

template <typename Recipe>
void replay_on(const trace::program& source) {
  // Saved contents take host memory.
  caching_allocator<Recipe, provider::simulated_device> pool{
      provider::simulated_device{provider::simulated_device::options{.capacity = 1_GiB}}};
  trace::replay(source, pool);
  const char* const broken = pool.audit();
  fuzz::expect(broken == nullptr, broken);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = replay::read_text_trace(text, "csv");
  const auto* const made = fuzz::accepted(read, "csv");
  if (made == nullptr) return 0;

  const auto again = trace::read_csv(trace::to_csv(*made), "again");
  const auto* const same = fuzz::accepted(again, "again");
  fuzz::expect(same != nullptr, "a written trace is accepted");
  expect_same(*made, *same);

  const trace::program source(*made);
  fuzz::expect(source.peak_live() <= trace::detail::max_live, "peak live is at most 2^62 bytes");
  if (made->events.size() > 300) return 0;
  replay_on<recipe::pytorch<>>(source);
  replay_on<recipe::stitched>(source);
  return 0;
}
