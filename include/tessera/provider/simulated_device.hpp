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

/// A device of addresses without memory, for replays, tests and measurements on any machine.
///
/// Deterministic: addresses only grow and are never given twice, and time passes only where a call or the user makes
/// it. It moves and does not copy, as a copy would give the same addresses again; provider_ref shares one. A call that
/// breaks a rule fails and changes nothing; last_error() says which rule. It takes virtual memory as CUDA does: what is
/// mapped cannot be used until access is granted, and what is unmapped is named with its size.
///
///     tessera::simulated_device device({.capacity = 16_GiB, .log_calls = 100});
///     device.fail_call(1);
///     if (device.acquire(2_MiB) == nullptr) std::puts(device.last_error());
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> small{std::move(device)};
///     std::printf("%zu bytes at most\n", small.now().limit);
class simulated_device : public detail::simulated_streams {
 public:
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;

  struct options {
    std::size_t capacity = 80_GiB;          ///< bytes
    std::size_t granularity = 512;          ///< bytes; a power of two from 64 B to 1 GiB; of acquire
    std::size_t page_granularity = 2_MiB;   ///< bytes of a normal page; a power of two from 4 KiB to 1 GiB
    unsigned device = 0;                    ///< below 255; devices with different numbers share no address
    std::size_t normal_budget = unlimited;  ///< bytes to be had in normal pages
    std::size_t huge_budget = unlimited;    ///< the same in huge pages
    std::size_t giant_budget = unlimited;   ///< the same in giant pages
    std::size_t peer_to_peer_budget = unlimited;    ///< bytes to be had for copies between two devices
    std::size_t low_bandwidth_budget = unlimited;   ///< bytes of low-bandwidth memory
    std::size_t high_bandwidth_budget = unlimited;  ///< bytes of high-bandwidth memory, which is taken first
    std::uint64_t fail_every = 0;                   ///< every k-th call that can fail does; 0 for none
    std::size_t log_calls = 0;                      ///< how many of the latest calls the log keeps
    call_costs costs{};
  };
  /// Names physical memory in one process.
  struct physical {
    std::uint64_t number = 0;
    bool operator==(const physical&) const = default;
  };
  /// Names exported memory in all processes of a machine.
  struct shareable {
    std::int32_t process = 0;  // which exported it
    physical memory;           // there
    bool operator==(const shareable&) const = default;
  };
  /// What a process holds; bytes, where nothing else is said.
  struct holdings {
    std::size_t handles = 0;      ///< how many
    std::size_t named = 0;        ///< physical memory that the handles name
    std::size_t reserved = 0;     ///< addresses in ranges
    std::size_t mapped = 0;       ///< of them those at which memory is mapped
    std::size_t not_granted = 0;  ///< of those, the ones that cannot be used
    /// How many, of segments and of mappings.
    ///   Source:  1 GiB takes 512 entries in pages of 2 MiB and one in a page of 1 GiB (ACL's aclrtMemMallocPolicy)
    std::size_t page_table_entries = 0;
  };

  simulated_device() : simulated_device(options{}) {}
  explicit simulated_device(const options& chosen)
      : simulated_device(chosen, std::make_shared<detail::simulated_machine>(), 0) {}
  simulated_device(simulated_device&&) = default;
  simulated_device& operator=(simulated_device&&) = default;

  /// A process of its own on this device, which shares its memory; its options, and the time it is, are this one's now.
  ///
  /// What belongs to one machine is used by one thread at a time.
  [[nodiscard]] simulated_device another_process() const {
    return simulated_device(options_, process_->machine(), process_->memory(), now_ns());
  }
  /// Another device of this machine, and a process of its own on it.
  ///   Requires:  the machine has no device of that number yet
  [[nodiscard]] simulated_device another_device(const options& chosen) const {
    return simulated_device(chosen, process_->machine(), now_ns());
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::size_t available() const noexcept { return options_.capacity - used(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Null also where `bytes` is 0 or no multiple of the granularity and of the page's size, if that is huge or giant.
  /// Segments start at a multiple of 2 MiB, and of the page's size.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = normal_pages) noexcept {
    const auto came = fails() ? as_told : process_->addresses().acquire(bytes, kind, options_.granularity);
    booked(counts_.acquire, {.kind = call::acquire, .bytes = bytes}, came, costs_.acquire,
           costs_.acquire_per_mib);
    return reinterpret_cast<void*>(came.given);
  }
  /// False where it was not given, or not with this size.
  bool release(void* p, std::size_t bytes) noexcept {
    const auto came = fails() ? as_told : process_->addresses().release(number(p), bytes);
    return booked(counts_.release, {call::release, number(p), bytes}, came, costs_.release,
                  costs_.release_per_mib);
  }

  /// Bytes of a page.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return process_->memory()->page_size(kind);
  }
  /// Null also where `bytes` is no multiple of 4 KiB. Ranges start at a multiple of 2 MiB; they do not count against the
  /// capacity.
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    const auto came = fails() ? as_told : process_->addresses().reserve(bytes, to);
    booked(counts_.reserve, {.kind = call::reserve, .bytes = bytes}, came, costs_.reserve);
    return reinterpret_cast<void*>(came.given);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    const auto came = fails() ? as_told : process_->addresses().unreserve(number(p), bytes);
    return booked(counts_.unreserve, {call::unreserve, number(p), bytes}, came, costs_.unreserve);
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept {
    const auto came = fails() ? as_told : process_->create(bytes, kind, memory.number);
    return booked(counts_.create, {.kind = call::create, .bytes = bytes}, came, costs_.create,
                  costs_.create_per_mib);
  }
  /// Memory that is mapped stays until it is unmapped.
  bool destroy(const physical& memory) noexcept {
    const auto came = fails() ? as_told : process_->destroy(memory.number);
    return booked(counts_.destroy, {.kind = call::destroy}, came, costs_.destroy);
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return map(p, bytes, memory, map_grants_access);
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const auto came = fails() ? as_told : process_->addresses().grant(number(p), bytes);
    return booked(counts_.grant, {call::grant, number(p), bytes}, came, costs_.grant, costs_.grant_per_entry);
  }
  bool unmap(void* p, std::size_t bytes) noexcept { return unmap(p, bytes, !unmap_wants_size); }

  /// The number by which other processes of the machine list this one.
  [[nodiscard]] std::int32_t process() const noexcept { return process_->number(); }
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept {
    const auto came = fails() ? as_told : process_->export_memory(memory.number, who);
    if (came.broken == nullptr) name = {process(), memory};
    return booked(counts_.export_memory, {.kind = call::export_memory}, came, costs_.export_memory);
  }
  /// False also where 65,535 processes are listed.
  bool allow(const shareable& name, std::int32_t importer) noexcept {
    const auto came = fails() ? as_told : process_->allow(name.process, name.memory.number, importer);
    return booked(counts_.allow, {.kind = call::allow}, came, costs_.allow);
  }
  /// Memory of another device wants enable_peer_access() before.
  bool import_memory(const shareable& name, physical& memory) noexcept {
    const auto came =
        fails() ? as_told : process_->import_memory(name.process, name.memory.number, memory.number);
    return booked(counts_.import_memory, {.kind = call::import_memory}, came, costs_.import_memory);
  }
  /// Lets this process import memory of another device of the machine; again changes nothing.
  ///   Source:  CANN's acl.rt.mem_export_to_shareable_handle wants device_enable_peer_access across devices
  bool enable_peer_access(unsigned device) noexcept {
    const auto came = fails() ? as_told : process_->enable_peer_access(device);
    return booked(counts_.enable_peer_access, {.kind = call::enable_peer_access}, came,
                  costs_.enable_peer_access);
  }

  /// Whether the device may use all these addresses: of one segment, or mapped with access.
  [[nodiscard]] bool can_use(const void* p, std::size_t bytes) const noexcept {
    return process_->addresses().can_use(number(p), bytes);
  }
  /// What this process holds now.
  [[nodiscard]] holdings held() const noexcept {
    const detail::simulated_ranges& addresses = process_->addresses();
    return {process_->handles(), process_->held_bytes(),  addresses.reserved(),
            addresses.mapped(),  addresses.not_granted(), addresses.page_table_entries()};
  }
  /// Bytes of physical memory that the device has given, in whatever way.
  [[nodiscard]] std::size_t used() const noexcept { return process_->memory()->used(); }
  [[nodiscard]] std::size_t peak_used() const noexcept { return process_->memory()->peak_used(); }

 protected:
  bool map(void* p, std::size_t bytes, const physical& memory, bool granted) noexcept {
    const auto came = fails() ? as_told : process_->map(number(p), bytes, memory.number, granted);
    return booked(counts_.map, {call::map, number(p), bytes}, came, costs_.map, costs_.map_per_entry);
  }
  bool unmap(void* p, std::size_t bytes, bool any_size) noexcept {
    const auto came = fails() ? as_told : process_->unmap(number(p), bytes, any_size);
    return booked(counts_.unmap, {call::unmap, number(p), bytes}, came, costs_.unmap, costs_.unmap_per_entry);
  }

 private:
  simulated_device(const options& chosen, const std::shared_ptr<detail::simulated_machine>& machine,
                   std::uint64_t now_ns)
      : simulated_device(checked(chosen, *machine), machine,
                         std::make_shared<detail::simulated_memory>(chosen.device, budgets_of(chosen),
                                                                    chosen.page_granularity),
                         now_ns) {
    machine->devices[chosen.device] = true;
  }
  simulated_device(const options& chosen, std::shared_ptr<detail::simulated_machine> machine,
                   std::shared_ptr<detail::simulated_memory> memory, std::uint64_t now_ns)
      : detail::simulated_streams(chosen.costs, chosen.fail_every, chosen.log_calls),
        options_(chosen),
        process_(std::make_unique<detail::simulated_process>(std::move(machine), std::move(memory))) {
    advance(now_ns);
  }

  [[nodiscard]] static options checked(const options& o, const detail::simulated_machine& machine) {
    if (!is_power_of_two(o.granularity) || o.granularity < min_alignment || o.granularity > 1_GiB)
      fatal("simulated_device: options.granularity is a power of two from 64 B to 1 GiB");
    if (!is_power_of_two(o.page_granularity) || o.page_granularity < detail::simulated_ranges::least_page ||
        o.page_granularity > 1_GiB)
      fatal("simulated_device: options.page_granularity is a power of two from 4 KiB to 1 GiB");
    if (o.device >= detail::simulated_machine::max_devices)
      fatal("simulated_device: options.device is below 255");
    if (machine.devices[o.device]) fatal("simulated_device: a machine has one device of a number");
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
  [[nodiscard]] static std::uintptr_t number(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }

  options options_;
  std::unique_ptr<detail::simulated_process> process_;
};
static_assert(ordering_provider<simulated_device> && paged_provider<simulated_device> &&
              sharing_provider<simulated_device>);

/// A simulated_device that does as ACL does: what is mapped can be used at once, unmap looks at no size, and release does
/// not wait for work.
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
  [[nodiscard]] simulated_npu another_device(const options& chosen) const {
    return simulated_npu(simulated_device::another_device(chosen));
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
