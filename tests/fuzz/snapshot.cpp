// SPDX-License-Identifier: Apache-2.0
// Pickles and snapshots. An accepted snapshot is the same after it is written and read again, and everything
// that accepts a snapshot accepts it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/pickle.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/to_chrome.hpp"
#include "tessera_replay/to_rmm.hpp"
#include "tessera_replay/verify.hpp"

#include "fuzz.hpp"

namespace {

using namespace tessera;
using replay::pickle;
using replay::pickled;

/// Every reference is to an existing value.
void walk(const pickle& plain, std::size_t bytes) {
  std::vector<const pickled*> open{&plain.root()};
  std::vector<const pickled*> seen;
  while (!open.empty()) {
    const pickled& value = *open.back();
    open.pop_back();
    fuzz::expect(value.at < bytes, "a value was made by a byte of the file");
    if (value.is == pickled::kind::dict) fuzz::expect(value.items.size() % 2 == 0, "a key has a value");
    if (value.items.empty() || std::find(seen.begin(), seen.end(), &value) != seen.end()) continue;
    if (seen.size() == 200) return;
    seen.push_back(&value);
    for (const std::uint32_t index : value.items) open.push_back(&plain[index]);
  }
}

std::string written(const observe::snapshot& source) { return observe::to_pickle(source); }

void expect_same_when_read_again(const observe::snapshot& source) {
  const std::string bytes = written(source);
  const auto again = replay::read_snapshot(bytes, "again");
  const auto* const same = fuzz::accepted(again, "again");
  fuzz::expect(same != nullptr, "a written snapshot is accepted");
  fuzz::expect(same->segments == source.segments, "what was written is read again");
  fuzz::expect(written(*same) == bytes, "what was read again is written the same");
}

void use(const observe::snapshot& source, std::size_t device) {
  const auto found = replay::verifier(source, device).run();
  (void)fuzz::accepted(found, source.name);
  const auto log = replay::to_rmm(source, device);
  if (const auto* const wrong = std::get_if<trace::input_error>(&log)) {
    fuzz::expect_sound(*wrong, source.name);
  } else {
    const auto read = replay::read_rmm(std::get<std::string>(log), "rmm");
    (void)fuzz::accepted(read, "rmm");  // may be rejected: the sizes of a free and its allocation may differ
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto plain = replay::read_pickle(bytes, "file");
  if (const auto* const values = fuzz::accepted(plain, "file")) walk(*values, size);
  const auto read = replay::read_snapshot(bytes, "file");
  const observe::snapshot* const source = fuzz::accepted(read, "file");
  if (source == nullptr) return 0;
  expect_same_when_read_again(*source);
  for (std::size_t device = 0; device < std::min<std::size_t>(source->devices(), 3); ++device)
    use(*source, device);
  const auto chrome = replay::to_chrome(*source);
  if (const auto* const wrong = std::get_if<trace::input_error>(&chrome)) fuzz::expect_sound(*wrong, "file");
  const auto as_recording = replay::recording_of(*source);
  if (const auto* const made = fuzz::accepted(as_recording, "file")) {
    const trace::program program(*made);
    if (made->events.size() > 300) return 0;
    caching_allocator<recipe::pytorch<>, provider::simulated_device> pool;
    trace::replay(program, pool);
    fuzz::expect(pool.audit() == nullptr, "an allocator that replays a recording stays consistent");
  }
  return 0;
}
