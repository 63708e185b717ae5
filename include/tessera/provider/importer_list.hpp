// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::detail {

/// The processes that may import exported memory.
class importer_list {
 public:
  explicit importer_list(provider::importers who) noexcept : who_(who) {}

  /// Lists a process. Returns null on success, else the reason.
  [[nodiscard]] const char* allow(std::int32_t process) noexcept {
    if (who_ == provider::importers::any) return "any process may import the memory";
    if (process <= 0) return "the number of a process is not positive";
    if (may_import(process)) return nullptr;
    if (listed_.size() == max_listed) return "65,535 processes are listed already";
    return listed_.insert(number(process), {}) ? nullptr : no_host_memory;
  }
  [[nodiscard]] bool may_import(std::int32_t process) const noexcept {
    return who_ == provider::importers::any || listed_.find(number(process)) != nullptr;
  }

 private:
  ///   Source:  aclrtMemSetPidToShareableHandle takes at most 65,535 processes
  static constexpr std::size_t max_listed = 65'535;

  struct listed {};
  [[nodiscard]] static std::uint64_t number(std::int32_t process) noexcept {
    return static_cast<std::uint64_t>(process);
  }

  provider::importers who_;
  ordered_map<listed> listed_;
};

}  // namespace tessera::detail
