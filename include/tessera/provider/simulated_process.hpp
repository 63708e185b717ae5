// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <tessera/core/page.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/simulated_calls.hpp>
#include <tessera/provider/simulated_memory.hpp>
#include <tessera/provider/simulated_ranges.hpp>

namespace tessera {

class simulated_process;

/// What the processes of a simulated machine know of each other.
struct simulated_machine {
  static constexpr std::size_t most_devices = 255;
  /// How many processes may be listed for one export.
  ///   Source:  aclrtMemSetPidToShareableHandle takes at most 65,535
  static constexpr std::size_t most_listed = 65'535;

  std::array<bool, most_devices> devices{};   ///< whether there is one of a number
  std::vector<simulated_process*> processes;  ///< by number, from 1; null where one has ended
};

/// A process on one device of a simulated machine: its addresses, and its handles of physical memory. When it ends it lets
/// go of all that it holds, as when it is killed.
///   Source:  of the rules of sharing: CANN's acl.rt.mem_export_to_shareable_handle, by which memory is exported once, and
///            imported by other processes alone, before the exporter destroys it
class simulated_process {
 public:
  simulated_process(std::shared_ptr<simulated_machine> machine, std::shared_ptr<simulated_memory> memory)
      : machine_(std::move(machine)),
        memory_(std::move(memory)),
        number_(next_number()),
        addresses_(memory_, first_of_device() + first_of_process(), most_addresses - first_of_process()) {
    machine_->processes.push_back(this);
  }
  simulated_process(const simulated_process&) = delete;
  simulated_process& operator=(const simulated_process&) = delete;
  ~simulated_process() { machine_->processes[static_cast<std::size_t>(number_ - 1)] = nullptr; }

  [[nodiscard]] simulated_outcome create(std::size_t bytes, page_kind kind, std::uint64_t& handle) {
    if (bytes == 0 || bytes % memory_->step(kind) != 0)
      return {"memory is a multiple of its page's size long, and not empty"};
    simulated_outcome came = memory_->take(bytes, kind);
    if (came.broken != nullptr) return came;
    handle = hold({.memory = std::make_shared<simulated_piece>(memory_, bytes, kind)});
    came.units = bytes >> 20;
    return came;
  }
  [[nodiscard]] simulated_outcome destroy(std::uint64_t handle) {
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return no_handle;
    held_bytes_ -= found->second.memory->bytes();
    handles_.erase(found);
    return {};
  }
  [[nodiscard]] simulated_outcome map(std::uintptr_t at, std::size_t bytes, std::uint64_t handle,
                                      bool granted) {
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return no_handle;
    held& m = found->second;
    if (m.mapped) return {"memory is mapped in one place at a time"};
    const simulated_outcome came = addresses_.map(at, bytes, handle, m.memory, granted);
    m.mapped = came.broken == nullptr;
    return came;
  }
  [[nodiscard]] simulated_outcome unmap(std::uintptr_t at, std::size_t bytes, bool any_size) {
    std::uint64_t handle = 0;
    const simulated_outcome came = addresses_.unmap(at, bytes, any_size, handle);
    const auto found = handles_.find(handle);  // it is gone where the memory was destroyed meanwhile
    if (found != handles_.end()) found->second.mapped = false;
    return came;
  }

  [[nodiscard]] simulated_outcome export_memory(std::uint64_t handle, importers who) {
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return no_handle;
    held& m = found->second;
    if (m.imported) return {"memory is exported where it was created"};
    if (m.exported) return {"memory is exported once"};
    m.exported = true;
    m.who = who;
    return {};
  }
  /// Lists a process as an importer of what this one, and no other, exported.
  [[nodiscard]] simulated_outcome allow(std::int32_t exporter, std::uint64_t handle, std::int32_t importer) {
    const auto found = handles_.find(handle);
    if (exporter != number_ || found == handles_.end() || !found->second.exported) return not_exported;
    if (found->second.who == importers::any) return {"every process may import this"};
    if (importer <= 0) return {"the number of a process is above 0"};
    auto& listed = found->second.listed;
    const auto at = std::lower_bound(listed.begin(), listed.end(), importer);
    if (at != listed.end() && *at == importer) return {};
    if (listed.size() == simulated_machine::most_listed) return {"65535 processes are listed already"};
    listed.insert(at, importer);
    return {};
  }
  /// Sets `handle` to memory that the process `exporter` exported under its own handle `theirs`.
  [[nodiscard]] simulated_outcome import_memory(std::int32_t exporter, std::uint64_t theirs,
                                                std::uint64_t& handle) {
    if (exporter == number_) return {"what a process exported it does not import"};
    const held* const m = exported_by(exporter, theirs);
    if (m == nullptr) return not_exported;
    if (m->who == importers::listed && !std::binary_search(m->listed.begin(), m->listed.end(), number_))
      return {"this process is not allowed to import this"};
    if (m->memory->device() != memory_->device() && !peers_[m->memory->device()])
      return {"the memory is on another device, to which this one has no peer access"};
    handle = hold({.memory = m->memory, .imported = true});
    return {};
  }
  [[nodiscard]] simulated_outcome enable_peer_access(unsigned device) {
    if (device == memory_->device()) return {"a device is no peer of itself"};
    if (!has_device(device)) return {"there is no such device on this machine"};
    peers_[device] = true;
    return {};
  }

  [[nodiscard]] bool has_device(unsigned device) const noexcept {
    return device < simulated_machine::most_devices && machine_->devices[device];
  }
  [[nodiscard]] const std::shared_ptr<simulated_machine>& machine() const noexcept { return machine_; }
  [[nodiscard]] const std::shared_ptr<simulated_memory>& memory() const noexcept { return memory_; }
  [[nodiscard]] std::int32_t number() const noexcept { return number_; }
  [[nodiscard]] simulated_ranges& addresses() noexcept { return addresses_; }
  [[nodiscard]] const simulated_ranges& addresses() const noexcept { return addresses_; }
  [[nodiscard]] std::size_t handles() const noexcept { return handles_.size(); }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }

 private:
  /// What a handle names.
  struct held {
    std::shared_ptr<simulated_piece> memory;
    bool imported = false;
    bool mapped = false;
    bool exported = false;
    importers who = importers::listed;
    std::vector<std::int32_t> listed{};  // ascending
  };

  static constexpr simulated_outcome no_handle{.broken = "no memory has this handle here"};
  static constexpr simulated_outcome not_exported{.broken =
                                                      "nothing is exported under this name, or not any more"};
  /// Far above the addresses that a process of today can have.
  static constexpr std::uintptr_t device_span = std::uintptr_t{1} << 56;
  /// The last of them are never given, so that no end wraps.
  static constexpr std::size_t most_addresses = device_span - simulated_ranges::alignment;

  [[nodiscard]] std::int32_t next_number() const noexcept {
    return static_cast<std::int32_t>(machine_->processes.size() + 1);
  }
  [[nodiscard]] const held* exported_by(std::int32_t process, std::uint64_t handle) const noexcept {
    const auto& all = machine_->processes;
    if (process <= 0 || process > static_cast<std::int32_t>(all.size())) return nullptr;
    const simulated_process* const other = all[static_cast<std::size_t>(process - 1)];
    if (other == nullptr) return nullptr;
    const auto found = other->handles_.find(handle);
    return found != other->handles_.end() && found->second.exported ? &found->second : nullptr;
  }
  [[nodiscard]] std::uintptr_t first_of_device() const noexcept {
    return (std::uintptr_t{memory_->device()} + 1) * device_span;
  }
  /// Each of a thousand processes begins elsewhere, so that what only looks like an address of its own is found out.
  [[nodiscard]] std::size_t first_of_process() const noexcept {
    return static_cast<std::size_t>((number_ - 1) % 1024) << 40;
  }
  [[nodiscard]] std::uint64_t hold(held m) {
    held_bytes_ += m.memory->bytes();
    handles_.emplace(++last_handle_, std::move(m));
    return last_handle_;
  }

  std::shared_ptr<simulated_machine> machine_;
  std::shared_ptr<simulated_memory> memory_;
  std::int32_t number_;
  simulated_ranges addresses_;
  std::map<std::uint64_t, held> handles_;
  std::uint64_t last_handle_ = 0;
  std::size_t held_bytes_ = 0;
  std::array<bool, simulated_machine::most_devices> peers_{};  // those that this device has access to
};

}  // namespace tessera
