// SPDX-License-Identifier: Apache-2.0
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include <tessera/caching_allocator.hpp>
#include <tessera/trace/program.hpp>

#include "commands.hpp"
#include "input.hpp"

namespace {

using tessera::oom_report;
using tessera::trace::event;
using tessera::trace::program;

/// Where memory first ran out, and whose blocks were in the way.
struct failure {
  std::size_t at;  // event
  tessera::out_of_memory error;
  std::string pinning;  // lines of text
};

/// The ids of the blocks of a pin; `live` has the event that allocated what lives at an address.
std::string blocks_of(const oom_report::pin& p, const program& source,
                      const std::map<std::uintptr_t, std::size_t>& live) {
  constexpr std::size_t most = 6;
  std::string text = "    0x";
  char address[20];
  std::snprintf(address, sizeof address, "%" PRIxPTR ":", p.first);
  text += address;
  std::size_t count = 0;
  for (auto at = live.lower_bound(p.first); at != live.end() && at->first < p.begin + p.length; ++at) {
    if (++count > most) continue;
    const event& made = source.events()[at->second];
    text += std::string(count > 1 ? "," : "") + " id " + std::to_string(made.id) + " (" +
            std::to_string(made.bytes) + " bytes, event " + std::to_string(at->second) + ")";
  }
  if (count > most) text += " and " + std::to_string(count - most) + " more";
  if (p.blocks > count) text += (count > 0 ? ", " : " ") + std::to_string(p.blocks - count) + " pending";
  return text + "\n";
}

/// Replays until memory runs out; nothing where it does not.
template <typename Allocator>
std::optional<failure> first_failure(const program& source, Allocator& pool) {
  std::optional<failure> found;
  std::map<std::uintptr_t, std::size_t> live;
  const auto after = [&](std::size_t i, void* p) {
    const event& e = source.events()[i];
    if (found) return;
    if (e.what == event::kind::free) live.erase(reinterpret_cast<std::uintptr_t>(p));
    if (e.what != event::kind::allocate) return;
    if (p != nullptr) {
      live[reinterpret_cast<std::uintptr_t>(p)] = i;
      return;
    }
    found = failure{i, pool.failure(e.bytes, e.stream), {}};
    for (const oom_report::pin& pin : found->error.report().pins) {
      if (pin.blocks > 0) found->pinning += blocks_of(pin, source, live);
    }
  };
  tessera::trace::replay(source, pool, [](std::size_t) {}, after);
  return found;
}

}  // namespace

int replay::explain_oom(const arguments& said) {
  return with_trace(said, [&]<typename Recipe>(const program& source,
                                               const tessera::policies<Recipe>& chosen) {
    const std::string title = title_of(said.files[0]) + ", " + said.recipe;
    tessera::caching_allocator<Recipe, tessera::simulated_device> pool{device_of(said.capacity), chosen};
    const std::optional<failure> found = first_failure(source, pool);
    if (!found) {
      std::printf("%s: completes with a capacity of %zu bytes; at most %jd were reserved\n", title.c_str(),
                  said.capacity, static_cast<std::intmax_t>(pool.statistics().all.reserved_bytes.peak));
      return +done;
    }
    std::printf("%s: with a capacity of %zu bytes, memory runs out at event %zu of %zu, for id %" PRIu64
                "; no allocator could do with less than %zu bytes\n%s\n",
                title.c_str(), said.capacity, found->at, source.events().size(),
                source.events()[found->at].id, source.peak_live(), found->error.what());
    if (!found->pinning.empty())
      std::printf("  the blocks that pin these, in the trace:\n%s", found->pinning.c_str());
    return +differs;
  });
}
