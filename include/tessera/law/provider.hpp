// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// Which law is broken, in words, or null where all hold.
struct verdict {
  const char* broken = nullptr;
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == nullptr; }
};

/// What a device_provider must mean, tried on a device of which nothing is in use: for users' own providers, in any
/// test framework. Memory is not touched, and all of it is given back.
///   Requires:  a capacity of at least 8 segments of the granularity
template <device_provider D>
[[nodiscard]] verdict memory(D& device) {
  const std::size_t step = device.granularity();
  const std::size_t capacity = device.capacity();
  if (!is_power_of_two(step) || step < min_alignment)
    return {"granularity is a power of two, at least min_alignment"};
  if (capacity < 8 * step) return {"capacity holds a few segments"};

  constexpr std::size_t count = 4;
  std::uintptr_t begin[count] = {};
  const char* broken = nullptr;
  const auto require = [&broken](bool holds, const char* law) {
    if (!holds && broken == nullptr) broken = law;
  };
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = (i % 2 + 1) * step;
      begin[i] = reinterpret_cast<std::uintptr_t>(device.acquire(bytes));
      require(begin[i] != 0, round == 0 ? "acquire gives memory while there is capacity"
                                        : "released memory can be acquired again");
      require(begin[i] % step == 0, "segments start at a multiple of the granularity");
      for (std::size_t j = 0; j < i; ++j) {
        const bool apart = begin[i] + bytes <= begin[j] || begin[j] + (j % 2 + 1) * step <= begin[i];
        require(apart || begin[i] == 0 || begin[j] == 0, "segments do not overlap");
      }
    }
    require(device.acquire(capacity / step * step) == nullptr,
            "acquire refuses what goes beyond the capacity");
    for (std::size_t i = count; i-- > 0;) {
      const bool back =
          begin[i] == 0 || device.release(reinterpret_cast<void*>(begin[i]), (i % 2 + 1) * step);
      require(back, "release takes back what was acquired");
    }
    require(device.capacity() == capacity && device.granularity() == step,
            "capacity and granularity are constant");
    if (broken != nullptr) return {broken};
  }
  return {};
}

/// What an event_provider must mean, tried on its default stream, on which no work may be running forever.
template <event_provider D>
[[nodiscard]] verdict events(D& device) {
  typename D::event first{};
  if (!device.record(stream_id{}, first)) return {"record marks the default stream"};
  if (!device.wait(first)) return {"wait returns once the work is done"};
  if (!device.query(first)) return {"an event that was waited for is ready"};
  typename D::event second{};
  if (!device.record(stream_id{}, second)) return {"a stream can be marked again"};
  if (!device.query(first)) return {"a ready event stays ready when its stream goes on"};
  device.discard(first);
  if (!device.wait(second) || !device.query(second)) return {"discarding one event leaves others alone"};
  device.discard(second);
  return {};
}

/// All laws that concern a provider.
template <device_provider D>
[[nodiscard]] verdict provider(D& device) {
  if (const verdict found = memory(device); !found) return found;
  if constexpr (event_provider<D>) {
    if (const verdict found = events(device); !found) return found;
  }
  if constexpr (paged_provider<D>) {
    void* const p = device.acquire(device.granularity(), page_kind::normal);
    if (p == nullptr || !device.release(p, device.granularity()))
      return {"normal pages come and go as unasked ones do"};
  }
  return {};
}

}  // namespace tessera::law
