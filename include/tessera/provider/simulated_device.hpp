// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/simulated_memory.hpp>

namespace tessera {

/// Simulates a device: it provides addresses without memory. Choose it for replays, tests and benchmarks on
/// any machine.
///
/// It is deterministic. Addresses only grow and are never reused. Virtual time passes only in calls and in
/// advance(). A call that breaks a rule fails and changes nothing, and last_error() names the rule. Virtual
/// memory follows CUDA: mapped memory needs grant(), and unmap() checks the size.
///
/// It can be moved but not copied, because a copy would provide the same addresses. Share it through
/// provider_ref.
///
///     tessera::simulated_device device({.capacity = 16_GiB, .log_calls = 100});
///     device.fail_call(1);
///     if (device.acquire(2_MiB) == nullptr) std::puts(device.last_error());
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> small{std::move(device)};
///     std::printf("the limit is %zu bytes\n", small.current_usage().limit);
class simulated_device : public detail::simulated_streams {
 public:
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;

  struct options {
    std::size_t capacity = 80_GiB;          ///< bytes
    std::size_t granularity = 512;          ///< bytes, of acquire(); a power of two from 64 B to 1 GiB
    std::size_t page_granularity = 2_MiB;   ///< bytes of a normal page; a power of two from 4 KiB to 1 GiB
    unsigned device = 0;                    ///< below 255; devices with different numbers share no address
    std::size_t normal_budget = unlimited;  ///< bytes available in normal pages
    std::size_t huge_budget = unlimited;    ///< bytes available in pages of 2 MiB
    std::size_t giant_budget = unlimited;   ///< bytes available in pages of 1 GiB
    std::size_t peer_to_peer_budget = unlimited;    ///< bytes available for copies between two devices
    std::size_t low_bandwidth_budget = unlimited;   ///< bytes of low-bandwidth memory
    std::size_t high_bandwidth_budget = unlimited;  ///< bytes of high-bandwidth memory; used first
    std::uint64_t fail_every = 0;                   ///< makes every k-th call fail; 0 for none
    std::size_t log_calls = 0;                      ///< length of the log
    call_costs costs{};
  };
  /// A handle of physical memory in one process.
  struct physical {
    std::uint64_t number = 0;
    bool operator==(const physical&) const = default;
  };
  /// The name of exported memory in all processes of a machine.
  struct shareable {
    std::int32_t process = 0;  // the exporter
    physical memory;           // its handle
    bool operator==(const shareable&) const = default;
  };
  /// The resources of a process, in bytes except for counts.
  struct holdings {
    std::size_t handles = 0;      ///< count
    std::size_t named = 0;        ///< bytes of physical memory that the handles refer to
    std::size_t reserved = 0;     ///< reserved addresses
    std::size_t mapped = 0;       ///< reserved addresses with mapped memory
    std::size_t not_granted = 0;  ///< mapped addresses without access
    /// Page-table entries, of segments and of mappings.
    ///   Source:  1 GiB takes 512 entries in pages of 2 MiB and one in a page of 1 GiB (ACL's
    ///            aclrtMemMallocPolicy)
    std::size_t page_table_entries = 0;
  };

  simulated_device() : simulated_device(options{}) {}
  explicit simulated_device(const options& settings)
      : simulated_device(settings, std::make_shared<detail::simulated_machine>(), 0) {}
  simulated_device(simulated_device&&) = default;
  simulated_device& operator=(simulated_device&&) = default;

  /// Creates another process on this device. It shares the memory, and copies the options and the time.
  ///
  ///   Requires:  one thread at a time uses the processes and devices of a machine
  [[nodiscard]] simulated_device another_process() const {
    return simulated_device(options_, process_->machine(), process_->memory(), now_ns());
  }
  /// Creates another device of this machine, with its own process.
  ///   Requires:  the machine has no device of that number yet
  [[nodiscard]] simulated_device another_device(const options& settings) const {
    return simulated_device(settings, process_->machine(), now_ns());
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::size_t available() const noexcept { return options_.capacity - used(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Segments start at a multiple of 2 MiB and of the page size. Also returns null if `bytes` is 0 or not a
  /// multiple of the granularity. Pages of 2 MiB and 1 GiB need a multiple of the page size, too.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->addresses().acquire(bytes, kind, options_.granularity);
    finish(counts_.acquire, {.kind = call::acquire, .bytes = bytes}, outcome, costs_.acquire,
           costs_.acquire_per_mib);
    return reinterpret_cast<void*>(outcome.given);
  }
  /// False if no segment of this size begins at `p`.
  bool release(void* p, std::size_t bytes) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->addresses().release(address_of(p), bytes);
    return finish(counts_.release, {call::release, address_of(p), bytes}, outcome, costs_.release,
                  costs_.release_per_mib);
  }

  /// Bytes of a page.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return process_->memory()->page_size(kind);
  }
  /// Ranges start at a multiple of 2 MiB and do not count against the capacity. Also returns null if `bytes`
  /// is not a multiple of 4 KiB.
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->addresses().reserve(bytes, to);
    finish(counts_.reserve, {.kind = call::reserve, .bytes = bytes}, outcome, costs_.reserve);
    return reinterpret_cast<void*>(outcome.given);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->addresses().unreserve(address_of(p), bytes);
    return finish(counts_.unreserve, {call::unreserve, address_of(p), bytes}, outcome, costs_.unreserve);
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->create(bytes, kind, memory.number);
    return finish(counts_.create, {.kind = call::create, .bytes = bytes}, outcome, costs_.create,
                  costs_.create_per_mib);
  }
  /// Mapped memory stays until it is unmapped.
  bool destroy(const physical& memory) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->destroy(memory.number);
    return finish(counts_.destroy, {.kind = call::destroy}, outcome, costs_.destroy);
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return map(p, bytes, memory, map_grants_access);
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->addresses().grant(address_of(p), bytes);
    return finish(counts_.grant, {call::grant, address_of(p), bytes}, outcome, costs_.grant,
                  costs_.grant_per_entry);
  }
  bool unmap(void* p, std::size_t bytes) noexcept { return unmap(p, bytes, !unmap_wants_size); }

  /// The number by which other processes of the machine list this process.
  [[nodiscard]] std::int32_t process() const noexcept { return process_->number(); }
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->export_memory(memory.number, who);
    if (outcome.broken == nullptr) name = {process(), memory};
    return finish(counts_.export_memory, {.kind = call::export_memory}, outcome, costs_.export_memory);
  }
  /// Also returns false if 65,535 processes are listed already.
  bool allow(const shareable& name, std::int32_t importer) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->allow(name.process, name.memory.number, importer);
    return finish(counts_.allow, {.kind = call::allow}, outcome, costs_.allow);
  }
  ///   Requires:  enable_peer_access() was called if the memory is on another device
  bool import_memory(const shareable& name, physical& memory) noexcept {
    const auto outcome = take_failure()
                             ? injected_failure
                             : process_->import_memory(name.process, name.memory.number, memory.number);
    return finish(counts_.import_memory, {.kind = call::import_memory}, outcome, costs_.import_memory);
  }
  /// Lets this process import memory of another device of the machine. A second call changes nothing.
  ///   Source:  CANN's acl.rt.mem_export_to_shareable_handle requires device_enable_peer_access across
  ///            devices
  bool enable_peer_access(unsigned device) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->enable_peer_access(device);
    return finish(counts_.enable_peer_access, {.kind = call::enable_peer_access}, outcome,
                  costs_.enable_peer_access);
  }

  /// Whether the device may access all these addresses: they lie in one segment, or are mapped with access.
  [[nodiscard]] bool can_use(const void* p, std::size_t bytes) const noexcept {
    return process_->addresses().can_use(address_of(p), bytes);
  }
  /// The memory and addresses that this process holds now.
  [[nodiscard]] holdings held() const noexcept {
    const detail::simulated_ranges& addresses = process_->addresses();
    return {process_->handles(), process_->held_bytes(),  addresses.reserved(),
            addresses.mapped(),  addresses.not_granted(), addresses.page_table_entries()};
  }
  /// Bytes of physical memory in use, in segments and handles of all processes.
  [[nodiscard]] std::size_t used() const noexcept { return process_->memory()->used(); }
  [[nodiscard]] std::size_t peak_used() const noexcept { return process_->memory()->peak_used(); }

 protected:
  bool map(void* p, std::size_t bytes, const physical& memory, bool granted) noexcept {
    const auto outcome =
        take_failure() ? injected_failure : process_->map(address_of(p), bytes, memory.number, granted);
    return finish(counts_.map, {call::map, address_of(p), bytes}, outcome, costs_.map, costs_.map_per_entry);
  }
  bool unmap(void* p, std::size_t bytes, bool any_size) noexcept {
    const auto outcome = take_failure() ? injected_failure : process_->unmap(address_of(p), bytes, any_size);
    return finish(counts_.unmap, {call::unmap, address_of(p), bytes}, outcome, costs_.unmap,
                  costs_.unmap_per_entry);
  }

 private:
  simulated_device(const options& settings, const std::shared_ptr<detail::simulated_machine>& machine,
                   std::uint64_t now_ns)
      : simulated_device(checked(settings, *machine), machine,
                         std::make_shared<detail::simulated_memory>(settings.device, budgets_of(settings),
                                                                    settings.page_granularity),
                         now_ns) {
    machine->devices[settings.device] = true;
  }
  simulated_device(const options& settings, std::shared_ptr<detail::simulated_machine> machine,
                   std::shared_ptr<detail::simulated_memory> memory, std::uint64_t now_ns)
      : detail::simulated_streams(settings.costs, settings.fail_every, settings.log_calls),
        options_(settings),
        process_(std::make_unique<detail::simulated_process>(std::move(machine), std::move(memory))) {
    advance(now_ns);
  }

  [[nodiscard]] static options checked(const options& o, const detail::simulated_machine& machine) {
    if (!std::has_single_bit(o.granularity) || o.granularity < min_alignment || o.granularity > 1_GiB)
      detail::fatal("simulated_device: options.granularity is a power of two from 64 B to 1 GiB");
    if (!std::has_single_bit(o.page_granularity) || o.page_granularity < detail::simulated_ranges::min_page ||
        o.page_granularity > 1_GiB)
      detail::fatal("simulated_device: options.page_granularity is a power of two from 4 KiB to 1 GiB");
    if (o.device >= detail::simulated_machine::max_devices)
      detail::fatal("simulated_device: options.device is below 255");
    if (machine.devices[o.device]) detail::fatal("simulated_device: a machine has one device of a number");
    return o;
  }
  [[nodiscard]] static detail::simulated_budgets budgets_of(const options& o) noexcept {
    return {o.capacity,
            o.normal_budget,
            o.huge_budget,
            o.giant_budget,
            o.peer_to_peer_budget,
            o.low_bandwidth_budget,
            o.high_bandwidth_budget};
  }
  [[nodiscard]] static std::uintptr_t address_of(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }

  options options_;
  std::unique_ptr<detail::simulated_process> process_;
};
static_assert(ordering_provider<simulated_device> && paged_provider<simulated_device> &&
              sharing_provider<simulated_device>);

/// A simulated_device that follows ACL: mapped memory needs no grant, unmap ignores the size, and release
/// does not wait for work.
///
///     tessera::caching_allocator<tessera::torch_npu<"page_size:1g">, tessera::simulated_npu> npu;
///     npu.deallocate(npu.allocate(5_MiB));
///     std::printf("%zu bytes used\n", npu.device().used());
class simulated_npu : public simulated_device {
 public:
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = false;
  static constexpr bool release_waits = false;

  using simulated_device::simulated_device;

  [[nodiscard]] simulated_npu another_process() const {
    return simulated_npu(simulated_device::another_process());
  }
  [[nodiscard]] simulated_npu another_device(const options& settings) const {
    return simulated_npu(simulated_device::another_device(settings));
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return simulated_device::map(p, bytes, memory, map_grants_access);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return simulated_device::unmap(p, bytes, !unmap_wants_size);
  }

 private:
  explicit simulated_npu(simulated_device&& made) : simulated_device(std::move(made)) {}
};
static_assert(sharing_provider<simulated_npu>);

}  // namespace tessera
