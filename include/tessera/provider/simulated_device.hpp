// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/provider/simulated_memory.hpp>

namespace tessera::inline v0_1::provider {

/// Simulates a device: it provides addresses without memory. Choose it for replays, tests and benchmarks on
/// any machine.
///
/// It is deterministic. Addresses only grow and are never reused; with options.address_seed, they are random and reused, as
/// drivers give them. Virtual time passes only in calls and in advance(). A call that breaks a rule, or for which host
/// memory runs out, takes its time and fails. It changes no memory and no address, and last_error() says why. Virtual
/// memory follows CUDA: mapped memory needs grant(), and unmap() checks the size.
///
/// It can be moved but not copied, because a copy would provide the same addresses. Share it through
/// provider_ref.
///
///     tessera::provider::simulated_device device({.capacity = 16_GiB, .log_calls = 100});
///     device.fail_call(1);
///     if (device.acquire(2_MiB) == nullptr) std::puts(device.last_error());
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> small{std::move(device)};
///     std::printf("the limit is %zu bytes\n", small.current_usage().limit);
class simulated_device : public detail::simulated_streams {
 public:
  static constexpr bool map_grants_access = false;
  static constexpr bool unmap_wants_size = true;
  static constexpr bool has_contents = false;

  /// What the device is like. The defaults are those of a GPU with 80 GiB.
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
    /// If not 0, addresses are at random places, and often where memory was released. Each seed has others.
    std::uint64_t address_seed = 0;
    std::uint64_t fail_every = 0;  ///< makes every k-th call fail; 0 for none
    std::size_t log_calls = 0;     ///< length of the log
    call_costs costs{};            ///< how long calls take in simulated time
  };
  /// A handle of physical memory in one process.
  struct physical {
    std::uint64_t number = 0;  ///< 0 for none
    bool operator==(const physical&) const = default;
  };
  /// The name of exported memory in all processes of a machine.
  struct shareable {
    std::int32_t process = 0;  ///< the exporter
    physical memory;           ///< its handle
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
    bool operator==(const holdings&) const = default;
  };

  simulated_device() : simulated_device(options{}) {}
  /// Makes a device of a new machine. Aborts if an option is out of its range.
  ///   Throws:  std::bad_alloc, as the functions that make another process, device or bank
  explicit simulated_device(const options& settings)
      : simulated_device(settings, detail::counted_ptr(new detail::simulated_machine), 0) {}
  simulated_device(simulated_device&&) = default;
  simulated_device& operator=(simulated_device&&) = default;

  /// Creates another process on this device. It shares the memory, and copies the options and the time.
  ///
  ///   Requires:  one thread at a time uses the processes and devices of a machine
  [[nodiscard]] simulated_device another_process() const {
    return simulated_device(options_, process_->machine(), memory_, now_ns());
  }
  /// Creates another device of this machine, with its own process.
  ///   Requires:  the machine has no device of that number yet
  [[nodiscard]] simulated_device another_device(const options& settings) const {
    return simulated_device(settings, process_->machine(), now_ns());
  }

  /// Creates another memory of this device, as a bank of memory_domains. Both have the same addresses and handles: each maps
  /// and copies memory of the other. The bank has streams, a log and a time of its own.
  ///   Requires:  settings.device is the number of this device; aborts otherwise
  [[nodiscard]] simulated_device another_bank(const options& settings) const {
    if (settings.device != memory_->device())
      detail::fatal("simulated_device: options.device must be the number of the device in another_bank()");
    return simulated_device(checked(settings), detail::counted_ptr(new detail::simulated_memory(settings)),
                            process_, now_ns());
  }
  /// Whether the other provider is this one, or another bank of it.
  [[nodiscard]] bool shares_addresses_with(const simulated_device& other) const noexcept {
    return &*process_ == &*other.process_;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::size_t available() const noexcept { return options_.capacity - used(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Segments start at a multiple of 2 MiB and of the page size. Also returns null if `bytes` is 0 or not a
  /// multiple of the granularity. Pages of 2 MiB and 1 GiB need a multiple of the page size, too.
  [[nodiscard, gnu::cold]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    const auto make = [&] {
      return process_->addresses().acquire(memory_, bytes, kind, options_.granularity);
    };
    return run({.kind = call::acquire, .bytes = bytes, .pages = kind}, make).address;
  }
  /// False if no segment of this size begins at `p`.
  [[gnu::cold]] bool release(void* p, std::size_t bytes) noexcept {
    return run_at(call::release, p, bytes, [&] { return process_->addresses().release(p, bytes); });
  }

  /// Bytes of a page.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept { return memory_->page_size(kind); }
  /// Ranges start at a multiple of 2 MiB and do not count against the capacity. Also returns null if `bytes`
  /// is not a multiple of 4 KiB.
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    const auto make = [&] { return process_->addresses().reserve(bytes, to); };
    return run({.kind = call::reserve, .bytes = bytes}, make).address;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return run_at(call::unreserve, p, bytes, [&] { return process_->addresses().unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept {
    return run({.kind = call::create, .bytes = bytes, .pages = kind},
               [&] { return process_->create(memory_, bytes, kind, memory.number); })
        .works();
  }
  /// Mapped memory stays until it is unmapped.
  bool destroy(const physical& memory) noexcept {
    return run_at(call::destroy, nullptr, 0,
                  [&]() -> detail::simulated_outcome { return {process_->book().destroy(memory.number)}; });
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    return map(p, bytes, memory, map_grants_access);
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return run_at(call::grant, p, bytes, [&] { return process_->grant(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept { return unmap(p, bytes, !unmap_wants_size); }

  /// The number by which other processes of the machine list this process.
  [[nodiscard]] std::int32_t process() const noexcept { return process_->number(); }
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept {
    const bool exported =
        run_at(call::export_memory, nullptr, 0, [&] { return process_->export_memory(memory.number, who); });
    if (exported) name = {process(), memory};
    return exported;
  }
  [[nodiscard]] bool exported_name(const physical& memory, shareable& name) const noexcept {
    name = {process(), memory};
    return process_->is_exported(memory.number);
  }
  /// Also returns false if 65,535 processes are listed already.
  bool allow(const shareable& name, std::int32_t importer) noexcept {
    return run_at(call::allow, nullptr, 0,
                  [&] { return process_->allow(name.process, name.memory.number, importer); });
  }
  ///   Requires:  enable_peer_access() was called if the memory is on another device
  bool import_memory(const shareable& name, physical& memory) noexcept {
    return run_at(call::import_memory, nullptr, 0,
                  [&] { return process_->import_memory(name.process, name.memory.number, memory.number); });
  }
  /// Lets this process import memory of another device of the machine. A second call changes nothing.
  ///   Source:  CANN's acl.rt.mem_export_to_shareable_handle requires device_enable_peer_access across
  ///            devices
  bool enable_peer_access(unsigned device) noexcept {
    return run_at(call::enable_peer_access, nullptr, 0, [&] { return process_->enable_peer_access(device); });
  }

  /// A copy checks the device's addresses and takes time on its stream. It moves no bytes, because the
  /// simulated memory has no contents.
  bool copy_to_host(void*, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return copy(call::copy_to_host, from, bytes, stream);
  }
  bool copy_to_device(void* to, const void*, std::size_t bytes, stream_id stream) noexcept {
    return copy(call::copy_to_device, to, bytes, stream);
  }

  /// Whether the device may access all these addresses: they lie in one segment, or are mapped with access.
  [[nodiscard]] bool can_use(const void* p, std::size_t bytes) const noexcept {
    return process_->addresses().can_use(p, bytes);
  }
  /// The memory and addresses that this process holds now.
  [[nodiscard]] holdings held() const noexcept {
    const auto& book = process_->book();
    holdings now;
    now.reserved = book.ranges().bytes();
    now.mapped = book.mappings().bytes();
    now.page_table_entries = process_->addresses().segment_entries();
    book.for_each_chunk([&](const auto& chunk) {
      now.handles += chunk.has_handle ? 1 : 0;
      now.named += chunk.has_handle ? chunk.bytes : 0;
      if (!chunk.is_mapped) return;
      now.page_table_entries += chunk.bytes / chunk.page_size;
      now.not_granted += chunk.data.is_granted ? 0 : chunk.bytes;
    });
    return now;
  }
  /// Bytes of physical memory in use, in segments, handles and mappings of all processes.
  [[nodiscard]] std::size_t used() const noexcept { return memory_->used(); }
  /// The largest used() so far.
  [[nodiscard]] std::size_t peak_used() const noexcept { return memory_->peak_used(); }

 protected:
  bool map(void* p, std::size_t bytes, const physical& memory, bool granted) noexcept {
    return run_at(call::map, p, bytes, [&] { return process_->map(p, bytes, memory.number, granted); });
  }
  bool unmap(void* p, std::size_t bytes, bool any_size) noexcept {
    return run_at(call::unmap, p, bytes, [&] { return process_->unmap(p, bytes, any_size); });
  }

 private:
  [[gnu::cold]] simulated_device(const options& settings,
                                 const detail::counted_ptr<detail::simulated_machine>& machine,
                                 std::uint64_t now_ns)
      : simulated_device(checked(settings, *machine), machine,
                         detail::counted_ptr(new detail::simulated_memory(settings)), now_ns) {
    machine->devices[settings.device] = true;
  }
  [[gnu::cold]] simulated_device(const options& settings,
                                 const detail::counted_ptr<detail::simulated_machine>& machine,
                                 const detail::counted_ptr<detail::simulated_memory>& memory,
                                 std::uint64_t now_ns)
      : simulated_device(
            settings, memory,
            detail::counted_ptr(new detail::simulated_process(machine, memory, settings.address_seed)),
            now_ns) {}
  [[gnu::cold]] simulated_device(const options& settings,
                                 detail::counted_ptr<detail::simulated_memory> memory,
                                 detail::counted_ptr<detail::simulated_process> process, std::uint64_t now_ns)
      : detail::simulated_streams(settings.costs, settings.fail_every, settings.log_calls),
        options_(settings),
        memory_(std::move(memory)),
        process_(std::move(process)) {
    advance(now_ns);
  }

  [[nodiscard]] static options checked(const options& o, const detail::simulated_machine& machine) {
    if (o.device < detail::simulated_machine::max_devices && machine.devices[o.device])
      detail::fatal("simulated_device: the machine has a device of this number already");
    return checked(o);
  }
  [[nodiscard]] static options checked(const options& o) {
    if (!std::has_single_bit(o.granularity) || o.granularity < min_alignment || o.granularity > 1_GiB)
      detail::fatal("simulated_device: options.granularity must be a power of two from 64 B to 1 GiB");
    if (!std::has_single_bit(o.page_granularity) || o.page_granularity < detail::simulated_ranges::min_page ||
        o.page_granularity > 1_GiB)
      detail::fatal("simulated_device: options.page_granularity must be a power of two from 4 KiB to 1 GiB");
    if (o.device >= detail::simulated_machine::max_devices)
      detail::fatal("simulated_device: options.device must be below 255");
    return o;
  }
  /// Makes a call about the memory at `p`, and returns whether it worked.
  template <typename F>
  bool run_at(call kind, const void* p, std::size_t bytes, F make_call) noexcept {
    return run({kind, detail::address_of(p), bytes}, make_call).works();
  }

  bool copy(call kind, const void* device, std::size_t bytes, stream_id stream) noexcept {
    const bool works = run_at(kind, device, bytes, [&]() -> detail::simulated_outcome {
      if (can_use(device, bytes)) return {};
      return {"the device may not access these addresses"};
    });
    if (works) submit(stream, bytes / 1_MiB * costs().copied_per_mib);
    return works;
  }

  options options_;
  detail::counted_ptr<detail::simulated_memory> memory_;
  detail::counted_ptr<detail::simulated_process> process_;
};
static_assert(ordering_provider<simulated_device> && paged_provider<simulated_device> &&
              sharing_provider<simulated_device> && copying_provider<simulated_device>);

/// A simulated_device that follows ACL: mapped memory needs no grant, unmap ignores the size, and release
/// does not wait for work.
///
///     tessera::caching_allocator<tessera::recipe::torch_npu<"page_size:1g">, tessera::provider::simulated_npu> npu;
///     npu.deallocate(npu.allocate(5_MiB));
///     std::printf("%zu bytes used\n", npu.provider().used());
class simulated_npu : public simulated_device {
 public:
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = false;
  static constexpr bool release_waits = false;

  /// As the constructors of simulated_device.
  using simulated_device::simulated_device;

  /// Creates another process on this device, as simulated_device::another_process().
  [[nodiscard]] simulated_npu another_process() const {
    return simulated_npu(simulated_device::another_process());
  }
  /// Creates another device of this machine, as simulated_device::another_device().
  [[nodiscard]] simulated_npu another_device(const options& settings) const {
    return simulated_npu(simulated_device::another_device(settings));
  }
  /// Creates another memory of this device, as simulated_device::another_bank().
  [[nodiscard]] simulated_npu another_bank(const options& settings) const {
    return simulated_npu(simulated_device::another_bank(settings));
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

}  // namespace tessera::inline v0_1::provider
