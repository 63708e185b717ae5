// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <tessera/caching_allocator.hpp>

/// What an allocator counts, under the names and in the shapes in which PyTorch's users look for it.
namespace tessera {

/// Writes into room that somebody else has, and counts what all of it would take.
class text_in_room {
 public:
  text_in_room(char* out, std::size_t room) noexcept : out_(out), room_(room) {}

  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) noexcept {
    std::va_list values;
    va_start(values, format);
    add_values(format, values);
    va_end(values);
  }
  void add_values(const char* format, std::va_list values) noexcept {
    char* const at = length_ < room_ ? out_ + length_ : nullptr;
    const int added = std::vsnprintf(at, at != nullptr ? room_ - length_ : 0, format, values);
    if (added > 0) length_ += static_cast<std::size_t>(added);
  }
  [[nodiscard]] std::size_t length() const noexcept { return length_; }

 private:
  char* out_;
  std::size_t room_;
  std::size_t length_ = 0;
};

struct named_counter {
  const char* name;
  counter pool_statistics::* of;
};
inline constexpr named_counter torch_counters[] = {
    {"allocation", &pool_statistics::allocation},
    {"segment", &pool_statistics::segment},
    {"active", &pool_statistics::active},
    {"inactive_split", &pool_statistics::inactive_split},
    {"allocated_bytes", &pool_statistics::allocated_bytes},
    {"reserved_bytes", &pool_statistics::reserved_bytes},
    {"active_bytes", &pool_statistics::active_bytes},
    {"inactive_split_bytes", &pool_statistics::inactive_split_bytes},
    {"requested_bytes", &pool_statistics::requested_bytes},
};

/// What torch.cuda.memory_stats() would give, as one object of JSON with the same keys; those of small and large pools
/// where there are two.
///   Returns:  its length, without the 0 that ends it; above `room` it was cut short, as by snprintf
template <std::size_t Pools>
std::size_t write_memory_stats(const statistics<Pools>& of, char* out, std::size_t room) noexcept {
  text_in_room text(out, room);
  const auto add = [&text](const char* name, const char* group, const counter& c) {
    text.add("%s\"%s%s.current\":%" PRId64 ",\"%s%s.peak\":%" PRId64, text.length() > 1 ? "," : "", name,
             group, c.current, name, group, c.peak);
    text.add(",\"%s%s.allocated\":%" PRId64 ",\"%s%s.freed\":%" PRId64, name, group, c.allocated, name, group,
             c.freed);
  };
  text.add("{");
  for (const named_counter& c : torch_counters) {
    add(c.name, ".all", of.all.*c.of);
    if constexpr (Pools == 2) {
      add(c.name, ".small_pool", of.pool[0].*c.of);
      add(c.name, ".large_pool", of.pool[1].*c.of);
    }
  }
  add("oversize_allocations", "", of.oversize_allocations);
  add("oversize_segments", "", of.oversize_segments);
  text.add(",\"num_alloc_retries\":%" PRIu64 ",\"num_ooms\":%" PRIu64, of.num_alloc_retries, of.num_ooms);
  text.add(",\"num_sync_all_streams\":%" PRIu64, of.num_sync_all_streams);
  text.add(",\"num_device_alloc\":%" PRIu64 ",\"num_device_free\":%" PRIu64, of.num_device_alloc,
           of.num_device_free);
  text.add("}");
  return text.length();
}

/// What torch_npu 2.8 calls c10_npu::NPUCachingAllocator::DeviceStats, for who has not its header: the three in a group
/// are all pools, the small and the large one.
struct npu_device_stats {
  using group = std::array<counter, 3>;
  group allocation, segment, active, inactive_split;
  group allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  counter oversize_allocations, oversize_segments;
  std::int64_t max_split_size = 0;
};
static_assert(sizeof(npu_device_stats) == 952 && offsetof(npu_device_stats, num_alloc_retries) == 864);

/// What write_memory_stats() writes, in a structure with PyTorch's members: one that it has not is left out, and one that
/// is not counted here stays as it is made.
template <typename DeviceStats, std::size_t Pools>
[[nodiscard]] DeviceStats to_device_stats(const statistics<Pools>& of) {
  DeviceStats made{};
  const auto set = [](auto& to, const counter& from) {
    to.current = from.current;
    to.peak = from.peak;
    to.allocated = from.allocated;
    to.freed = from.freed;
  };
  const auto set_all = [&](auto& to, counter pool_statistics::* from) {
    set(to[0], of.all.*from);
    if constexpr (Pools == 2) {
      set(to[1], of.pool[0].*from);
      set(to[2], of.pool[1].*from);
    }
  };
  set_all(made.allocation, &pool_statistics::allocation);
  set_all(made.segment, &pool_statistics::segment);
  set_all(made.active, &pool_statistics::active);
  set_all(made.inactive_split, &pool_statistics::inactive_split);
  set_all(made.allocated_bytes, &pool_statistics::allocated_bytes);
  set_all(made.reserved_bytes, &pool_statistics::reserved_bytes);
  set_all(made.active_bytes, &pool_statistics::active_bytes);
  set_all(made.inactive_split_bytes, &pool_statistics::inactive_split_bytes);
  set_all(made.requested_bytes, &pool_statistics::requested_bytes);
  made.num_alloc_retries = static_cast<std::int64_t>(of.num_alloc_retries);
  made.num_ooms = static_cast<std::int64_t>(of.num_ooms);
  set(made.oversize_allocations, of.oversize_allocations);
  set(made.oversize_segments, of.oversize_segments);
  if constexpr (requires { made.num_sync_all_streams; })
    made.num_sync_all_streams = static_cast<std::int64_t>(of.num_sync_all_streams);
  if constexpr (requires { made.num_device_free; }) {
    made.num_device_alloc = static_cast<std::int64_t>(of.num_device_alloc);
    made.num_device_free = static_cast<std::int64_t>(of.num_device_free);
  }
  return made;
}

}  // namespace tessera
