// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/simulated_calls.hpp>

namespace tessera::detail {

/// The memory of a simulated device in bytes: the total, and the limit of each kind.
struct simulated_budgets {
  std::size_t capacity;
  std::size_t normal, huge, giant;
  std::size_t peer_to_peer;
  std::size_t low_bandwidth, high_bandwidth;
};

/// The physical memory of one simulated device, shared by all its processes.
class simulated_memory {
 public:
  simulated_memory(unsigned device, const simulated_budgets& all, std::size_t page_granularity)
      : device_(device), all_(all), left_(all), page_granularity_(page_granularity) {}

  /// Subtracts memory from each budget that it counts against. If `kind` allows any bandwidth, it sets the
  /// bandwidth: high if all of the memory fits there, else low.
  [[nodiscard]] simulated_outcome take(std::size_t bytes, page_kind& kind) noexcept {
    page_kind taken = kind;
    if (taken.speed == page_kind::bandwidth::any)
      taken.speed = bytes <= left_.high_bandwidth ? page_kind::bandwidth::high : page_kind::bandwidth::low;
    if (bytes > left_.capacity) return lacks("the capacity is reached");
    if (bytes > pages_left(taken)) return lacks("there are no more pages of this size");
    if (bytes > bandwidth_left(taken)) return lacks("there is no more memory of this bandwidth");
    if (taken.peer_to_peer && bytes > left_.peer_to_peer)
      return lacks("there is no more peer-to-peer memory");
    left_.capacity -= bytes;
    pages_left(taken) -= bytes;
    bandwidth_left(taken) -= bytes;
    if (taken.peer_to_peer) left_.peer_to_peer -= bytes;
    peak_ = (std::max)(peak_, used());
    kind = taken;
    return {};
  }
  ///   Requires:  `kind` is the value that take() set
  void give_back(std::size_t bytes, page_kind kind) noexcept {
    left_.capacity += bytes;
    pages_left(kind) += bytes;
    bandwidth_left(kind) += bytes;
    if (kind.peer_to_peer) left_.peer_to_peer += bytes;
  }

  /// The number of the device.
  [[nodiscard]] unsigned device() const noexcept { return device_; }
  /// Bytes of a page.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return kind.size == page_kind::page_size::normal ? page_granularity_ : kind.granularity();
  }
  [[nodiscard]] std::size_t used() const noexcept { return all_.capacity - left_.capacity; }
  [[nodiscard]] std::size_t peak_used() const noexcept { return peak_; }

 private:
  [[nodiscard]] static simulated_outcome lacks(const char* why) noexcept {
    return {.broken = why, .for_want_of_memory = true};
  }
  [[nodiscard]] std::size_t& pages_left(page_kind kind) noexcept {
    return kind.size == page_kind::page_size::huge_1g ? left_.giant
           : kind.size == page_kind::page_size::huge  ? left_.huge
                                                      : left_.normal;
  }
  [[nodiscard]] std::size_t& bandwidth_left(page_kind kind) noexcept {
    return kind.speed == page_kind::bandwidth::low ? left_.low_bandwidth : left_.high_bandwidth;
  }

  unsigned device_;
  simulated_budgets all_;
  simulated_budgets left_;
  std::size_t page_granularity_;
  std::size_t peak_ = 0;
};

/// Physical memory without an address. It is given back once no handle and no mapping refers to it.
class simulated_piece {
 public:
  ///   Requires:  `bytes` of `kind` were taken from `from`
  simulated_piece(std::shared_ptr<simulated_memory> from, std::size_t bytes, page_kind kind)
      : from_(std::move(from)), bytes_(bytes), kind_(kind) {}
  simulated_piece(const simulated_piece&) = delete;
  simulated_piece& operator=(const simulated_piece&) = delete;
  ~simulated_piece() { from_->give_back(bytes_, kind_); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] unsigned device() const noexcept { return from_->device(); }
  /// Bytes of each of its pages. It is mapped at a multiple of the page size.
  [[nodiscard]] std::size_t page_size() const noexcept { return from_->page_size(kind_); }

 private:
  std::shared_ptr<simulated_memory> from_;
  std::size_t bytes_;
  page_kind kind_;
};

/// The addresses of one process on a simulated device: reserved ranges, segments and mappings.
///
/// Addresses only grow and are never reused. The destructor gives all memory back.
///   Cost:  logarithmic in the ranges, segments and mappings; can_use() is linear in the mappings that it
///          checks
class simulated_ranges {
 public:
  static constexpr std::size_t alignment = 2_MiB;
  /// The size of a range is a multiple of this.
  static constexpr std::size_t min_page = 4_KiB;

  ///   Requires:  `first` and `room` are multiples of the alignment; their sum does not wrap
  simulated_ranges(std::shared_ptr<simulated_memory> memory, std::uintptr_t first, std::size_t room) noexcept
      : memory_(std::move(memory)), next_(first), room_(room) {}
  simulated_ranges(const simulated_ranges&) = delete;
  simulated_ranges& operator=(const simulated_ranges&) = delete;
  ~simulated_ranges() {
    for (const auto& [at, entry] : placed_) {
      if (entry.is_segment()) memory_->give_back(entry.bytes, entry.kind);
    }
  }

  [[nodiscard]] simulated_outcome acquire(std::size_t bytes, page_kind kind, std::size_t granularity) {
    const std::size_t step = (std::max)(granularity, kind.granularity());
    if (bytes == 0 || (bytes & (step - 1)) != 0)
      return {"a segment is a multiple of the granularity and of the page's size long, and not empty"};
    if (!has_room(bytes, step)) return {"there are no addresses left", true};
    simulated_outcome outcome = memory_->take(bytes, kind);
    if (outcome.broken != nullptr) return outcome;
    const placed made{bytes, ((bytes - 1) >> std::countr_zero(memory_->page_size(kind))) + 1, kind};
    outcome.given = take(bytes, step);
    outcome.units = bytes >> 20;
    placed_.emplace(outcome.given, made);
    entries_ += made.entries;
    return outcome;
  }
  [[nodiscard]] simulated_outcome release(std::uintptr_t at, std::size_t bytes) {
    const auto found = placed_.find(at);
    if (found == placed_.end() || !found->second.is_segment()) return {"no segment begins here"};
    if (found->second.bytes != bytes) return {"a segment is released whole"};
    memory_->give_back(bytes, found->second.kind);
    entries_ -= found->second.entries;
    placed_.erase(found);
    return {.units = bytes >> 20};
  }

  [[nodiscard]] simulated_outcome reserve(std::size_t bytes, std::size_t to) {
    if (bytes == 0 || bytes % min_page != 0) return {"a range is a multiple of 4 KiB long, and not empty"};
    if (!std::has_single_bit(to)) return {"an alignment is a power of two"};
    if (!has_room(bytes, to)) return {"there are no addresses left", true};
    const std::uintptr_t given = take(bytes, to);
    ranges_.emplace(given, bytes);
    reserved_ += bytes;
    return {.given = given};
  }
  [[nodiscard]] simulated_outcome unreserve(std::uintptr_t at, std::size_t bytes) {
    const auto found = ranges_.find(at);
    if (found == ranges_.end()) return {"no range begins here"};
    if (found->second != bytes) return {"a range is given back whole"};
    if (is_taken(at, bytes)) return {"something is mapped in the range"};
    reserved_ -= bytes;
    ranges_.erase(found);
    return {};
  }

  ///   Requires:  `handle` is not 0
  [[nodiscard]] simulated_outcome map(std::uintptr_t at, std::size_t bytes, std::uint64_t handle,
                                      const std::shared_ptr<simulated_piece>& memory, bool granted) {
    if (bytes != memory->bytes()) return {"memory is mapped whole"};
    if (at % memory->page_size() != 0) return {"memory is mapped at a multiple of its page's size"};
    const auto range = last_at_or_below(ranges_, at);
    if (range == ranges_.end() || at - range->first >= range->second)
      return {"the addresses are not reserved"};
    if (bytes > range->second - (at - range->first)) return {"memory is mapped within one range"};
    if (is_taken(at, bytes)) return {"something is mapped here already"};
    const placed made{bytes, bytes / memory->page_size(), {}, handle, granted, memory};
    placed_.emplace(at, made);
    mapped_ += bytes;
    if (!granted) not_granted_ += bytes;
    entries_ += made.entries;
    return {.units = made.entries};
  }
  [[nodiscard]] simulated_outcome grant(std::uintptr_t at, std::size_t bytes) noexcept {
    const auto found = placed_.find(at);
    if (found == placed_.end() || found->second.is_segment()) return {"nothing that was mapped begins here"};
    placed& entry = found->second;
    if (entry.bytes != bytes) return {"access is granted to what one map put there, whole"};
    if (!entry.granted) not_granted_ -= bytes;
    entry.granted = true;
    return {.units = entry.entries};
  }
  /// Sets `handle` to the handle that was mapped.
  [[nodiscard]] simulated_outcome unmap(std::uintptr_t at, std::size_t bytes, bool any_size,
                                        std::uint64_t& handle) {
    const auto found = placed_.find(at);
    if (found == placed_.end() || found->second.is_segment()) return {"nothing that was mapped begins here"};
    const placed& entry = found->second;
    if (entry.bytes != bytes && !any_size) return {"what one map put there is unmapped whole, and alone"};
    const simulated_outcome outcome{.units = entry.entries};
    handle = entry.handle;
    mapped_ -= entry.bytes;
    if (!entry.granted) not_granted_ -= entry.bytes;
    entries_ -= entry.entries;
    placed_.erase(found);
    return outcome;
  }

  /// Whether the device may access all these addresses: they lie in one segment, or are mapped with access.
  [[nodiscard]] bool can_use(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto m = last_at_or_below(placed_, at);
    while (m != placed_.end() && m->second.granted && at - m->first < m->second.bytes) {
      const std::size_t here = m->second.bytes - (at - m->first);
      if (bytes <= here) return true;
      if (m->second.is_segment()) return false;  // the next bytes may belong to another segment
      at += here;
      bytes -= here;
      ++m;
    }
    return false;
  }

  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t mapped() const noexcept { return mapped_; }
  [[nodiscard]] std::size_t not_granted() const noexcept { return not_granted_; }
  [[nodiscard]] std::size_t page_table_entries() const noexcept { return entries_; }

 private:
  /// Memory at addresses: a segment, or one mapping.
  struct placed {
    std::size_t bytes;
    std::size_t entries;
    page_kind kind;            // of a segment
    std::uint64_t handle = 0;  // of a mapping
    bool granted = true;
    std::shared_ptr<simulated_piece> memory{};

    [[nodiscard]] bool is_segment() const noexcept { return handle == 0; }
  };

  [[nodiscard]] std::size_t gap(std::size_t to) const noexcept { return (0 - next_) & (to - 1); }
  [[nodiscard]] bool has_room(std::size_t bytes, std::size_t to) const noexcept {
    const std::size_t skipped = gap(to);
    return skipped <= room_ && bytes <= room_ - skipped;
  }
  /// Takes addresses that begin at a multiple of 2 MiB and of `alignment`, a power of two.
  ///   Requires:  has_room()
  [[nodiscard]] std::uintptr_t take(std::size_t bytes, std::size_t to) noexcept {
    const std::uintptr_t given = next_ + gap(to);
    const std::size_t taken = gap(to) + align_up(bytes, alignment);
    next_ += taken;
    room_ -= taken;
    return given;
  }
  /// The last entry that begins at or below `address`, or end().
  template <typename Map>
  [[nodiscard]] static auto last_at_or_below(Map& map, std::uintptr_t at) noexcept -> decltype(map.begin()) {
    const auto above = map.upper_bound(at);
    return above == map.begin() ? map.end() : std::prev(above);
  }
  [[nodiscard]] bool is_taken(std::uintptr_t at, std::size_t bytes) const noexcept {
    const auto last = last_at_or_below(placed_, at + bytes - 1);
    return last != placed_.end() && (last->first >= at || at - last->first < last->second.bytes);
  }

  std::shared_ptr<simulated_memory> memory_;
  std::uintptr_t next_;
  std::size_t room_;  // bytes of addresses left
  std::map<std::uintptr_t, std::size_t> ranges_;
  std::map<std::uintptr_t, placed> placed_;
  std::size_t reserved_ = 0;
  std::size_t mapped_ = 0;
  std::size_t not_granted_ = 0;
  std::size_t entries_ = 0;
};

class simulated_process;

/// The devices and processes of a simulated machine.
struct simulated_machine {
  static constexpr std::size_t max_devices = 255;
  /// The maximum number of processes that one export may list.
  ///   Source:  aclrtMemSetPidToShareableHandle takes at most 65,535
  static constexpr std::size_t max_listed = 65'535;

  std::array<bool, max_devices> devices{};    ///< whether a device has this number
  std::vector<simulated_process*> processes;  ///< by number, from 1; null if the process has ended
};

/// A process on one device of a simulated machine: its addresses and its handles of physical memory. The
/// destructor gives back all of them, as the end of a process does.
///   Source:  the rules of sharing follow CANN's acl.rt.mem_export_to_shareable_handle: memory is exported
///            once, and imported by other processes before the exporter destroys it
class simulated_process {
 public:
  simulated_process(std::shared_ptr<simulated_machine> machine, std::shared_ptr<simulated_memory> memory)
      : machine_(std::move(machine)),
        memory_(std::move(memory)),
        number_(next_number()),
        addresses_(memory_, first_of_device() + first_of_process(), max_addresses - first_of_process()) {
    machine_->processes.push_back(this);
  }
  simulated_process(const simulated_process&) = delete;
  simulated_process& operator=(const simulated_process&) = delete;
  ~simulated_process() { machine_->processes[static_cast<std::size_t>(number_ - 1)] = nullptr; }

  [[nodiscard]] simulated_outcome create(std::size_t bytes, page_kind kind, std::uint64_t& handle) {
    if (bytes == 0 || bytes % memory_->page_size(kind) != 0)
      return {"memory is a multiple of its page's size long, and not empty"};
    simulated_outcome outcome = memory_->take(bytes, kind);
    if (outcome.broken != nullptr) return outcome;
    handle = hold({.memory = std::make_shared<simulated_piece>(memory_, bytes, kind)});
    outcome.units = bytes >> 20;
    return outcome;
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
    const simulated_outcome outcome = addresses_.map(at, bytes, handle, m.memory, granted);
    m.mapped = outcome.broken == nullptr;
    return outcome;
  }
  [[nodiscard]] simulated_outcome unmap(std::uintptr_t at, std::size_t bytes, bool any_size) {
    std::uint64_t handle = 0;
    const simulated_outcome outcome = addresses_.unmap(at, bytes, any_size, handle);
    const auto found = handles_.find(handle);  // absent if the memory was destroyed while mapped
    if (found != handles_.end()) found->second.mapped = false;
    return outcome;
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
  /// Lists a process as an importer of memory that this process exported.
  [[nodiscard]] simulated_outcome allow(std::int32_t exporter, std::uint64_t handle, std::int32_t importer) {
    const auto found = handles_.find(handle);
    if (exporter != number_ || found == handles_.end() || !found->second.exported) return not_exported;
    if (found->second.who == importers::any) return {"every process may import this"};
    if (importer <= 0) return {"the number of a process is above 0"};
    auto& listed = found->second.listed;
    const auto at = std::lower_bound(listed.begin(), listed.end(), importer);
    if (at != listed.end() && *at == importer) return {};
    if (listed.size() == simulated_machine::max_listed) return {"65535 processes are listed already"};
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
    return device < simulated_machine::max_devices && machine_->devices[device];
  }
  [[nodiscard]] const std::shared_ptr<simulated_machine>& machine() const noexcept { return machine_; }
  [[nodiscard]] const std::shared_ptr<simulated_memory>& memory() const noexcept { return memory_; }
  [[nodiscard]] std::int32_t number() const noexcept { return number_; }
  [[nodiscard]] simulated_ranges& addresses() noexcept { return addresses_; }
  [[nodiscard]] const simulated_ranges& addresses() const noexcept { return addresses_; }
  [[nodiscard]] std::size_t handles() const noexcept { return handles_.size(); }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }

 private:
  /// The memory behind a handle.
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
  /// Far above the addresses of a real process.
  static constexpr std::uintptr_t device_span = std::uintptr_t{1} << 56;
  /// The last addresses are never used, so that the end of a range never wraps.
  static constexpr std::size_t max_addresses = device_span - simulated_ranges::alignment;

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
  /// Each of 1,024 processes begins at a different address, so that a foreign address is recognised.
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
  std::array<bool, simulated_machine::max_devices> peers_{};  // devices to which this process has access
};

}  // namespace tessera::detail
