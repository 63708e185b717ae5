// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <variant>
#include <vector>

#include <tessera/config/pytorch_conf.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// Helpers for the tests of the compatibility matrix.
namespace conformance {

/// An observer that keeps all events.
struct event_list {
  using action = tessera::allocator_event::action;
  std::vector<tessera::allocator_event> events;

  void on(const tessera::allocator_event& e) noexcept { events.push_back(e); }
  [[nodiscard]] std::size_t count(action what) const {
    std::size_t found = 0;
    for (const auto& e : events) found += e.what == what;
    return found;
  }
  [[nodiscard]] std::vector<action> actions() const {
    std::vector<action> all;
    for (const auto& e : events) all.push_back(e.what);
    return all;
  }
};

template <typename Recipe, typename Device = tessera::provider::simulated_device>
using observed = tessera::caching_allocator<Recipe, Device, tessera::extension::observer<event_list>>;
using native = observed<tessera::recipe::pytorch_family::native>;
using expandable = observed<tessera::recipe::pytorch_family::expandable>;

[[nodiscard]] inline tessera::provider::simulated_device device_of(std::size_t capacity) {
  return tessera::provider::simulated_device{
      tessera::provider::simulated_device::options{.capacity = capacity}};
}
/// The settings of a valid text.
[[nodiscard]] constexpr tessera::config::pytorch::settings said(std::string_view text) {
  return std::get<tessera::config::pytorch::settings>(tessera::config::parse<tessera::config::pytorch>(text));
}

[[nodiscard]] inline std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
template <typename Pool>
[[nodiscard]] std::size_t live(const Pool& pool) {
  return pool.current_usage().allocated;
}
template <typename Pool>
[[nodiscard]] std::size_t reserved(const Pool& pool) {
  return pool.current_usage().reserved;
}
template <typename Pool>
[[nodiscard]] std::size_t segments(const Pool& pool) {
  return static_cast<std::size_t>(pool.statistics().all.segment.current);
}

/// Free blocks that share their segment: their number and their bytes.
struct parts {
  std::int64_t count = 0;
  std::size_t bytes = 0;
  bool operator==(const parts&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const parts& p) {
  return out << p.count << " parts of " << p.bytes << " bytes";
}
template <typename Pool>
[[nodiscard]] parts split_off(const Pool& pool) {
  const auto all = pool.statistics().all;
  return {all.inactive_split.current, static_cast<std::size_t>(all.inactive_split_bytes.current)};
}

/// The block and segment of the first request of an allocator.
struct service {
  std::size_t block = 0, reserved = 0;
  bool is_small = false;  // from the pool of small blocks
  bool operator==(const service&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const service& s) {
  return out << "a block of " << s.block << " of " << s.reserved << (s.is_small ? " small" : " large")
             << " bytes";
}
template <typename Pool = native>
[[nodiscard]] service first(std::size_t bytes, Pool&& pool = native{}) {
  (void)pool.allocate(bytes);
  return {live(pool), reserved(pool), pool.statistics().pool[0].allocation.current == 1};
}

}  // namespace conformance
