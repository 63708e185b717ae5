// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/host_can_read.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::detail {

/// The memory and addresses that a provider has returned and not taken back. Aborts if an answer of the
/// provider contradicts them. Thread-safe.
///
///   Cost:  logarithmic in the number of entries; about 100 bytes of host memory for each entry
class provider_shadow {
 public:
  /// Memory at addresses.
  struct entry {
    std::size_t bytes;
    bool is_segment = false;
    std::uint64_t map_number = 0;
  };
  enum class table : unsigned char { segments_and_ranges, mappings, registered };
  /// An entry that was withdrawn, and the number of maps at that time.
  struct withdrawal {
    entry removed;
    std::uint64_t maps = 0;
  };
  struct physical_memory {
    std::size_t bytes = 0;  ///< 0 if unknown, for example for imported memory
    std::size_t page = 1;
  };

  provider_shadow(std::size_t capacity, std::size_t granularity)
      : capacity_(capacity), granularity_(granularity) {
    if (!std::has_single_bit(granularity) || granularity < min_alignment)
      fatal("checked_provider: the granularity is no power of two, or below min_alignment");
  }
  void require_constant(std::size_t capacity, std::size_t granularity) const noexcept {
    if (capacity != capacity_) fatal("checked_provider: the capacity has changed");
    if (granularity != granularity_) fatal("checked_provider: the granularity has changed");
  }
  void require_available(std::size_t bytes) const noexcept {
    if (bytes > capacity_) fatal("checked_provider: more is available than the capacity");
  }

  void add_segment(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (address_of(p) % granularity_ != 0)
      fatal("checked_provider: acquire returned an address that is no multiple of the granularity", p);
    add_memory(p, {bytes, true});
    add_used(bytes);
  }
  void add_range(const void* p, std::size_t bytes, std::size_t alignment) noexcept {
    const std::lock_guard lock(mutex_);
    if (address_of(p) % alignment != 0)
      fatal("checked_provider: reserve returned an address that is no multiple of the alignment", p);
    add_memory(p, {bytes});
  }
  void add_mapping(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (tables_[1].overlaps(p, bytes))
      fatal("checked_provider: map accepted addresses with mapped memory", p);
    require_host_memory(tables_[1].insert(p, {.bytes = bytes, .map_number = ++maps_}));
  }
  void add_registered(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (tables_[2].overlaps(p, bytes))
      fatal("checked_provider: register_memory accepted registered memory", p);
    require_host_memory(tables_[2].insert(p, {bytes}));
  }
  [[nodiscard]] bool is_mapped(const void* p) const noexcept {
    const std::lock_guard lock(mutex_);
    return tables_[1].find(p) != nullptr;
  }

  /// Removes the entry of memory before the provider takes it back. Another thread may get the same addresses
  /// before the provider's call returns.
  [[nodiscard]] std::optional<withdrawal> withdraw(table from, const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    range_map<entry>& entries = tables_[static_cast<std::size_t>(from)];
    if (entries.find(p) == nullptr) return {};
    const withdrawal result{entries.extract(p), maps_};
    if (result.removed.is_segment) used_ -= result.removed.bytes;
    return result;
  }
  /// Restores a withdrawn entry, because the provider did not take the memory back.
  void restore(table to, const void* p, const withdrawal& withdrawn) noexcept {
    const std::lock_guard lock(mutex_);
    range_map<entry>& entries = tables_[static_cast<std::size_t>(to)];
    if (entries.overlaps(p, withdrawn.removed.bytes))
      fatal("checked_provider: memory was returned again although its release failed", p);
    require_host_memory(entries.insert(p, withdrawn.removed));
    if (withdrawn.removed.is_segment) used_ += withdrawn.removed.bytes;
  }
  void require_unmapped_range(const void* p, const std::optional<withdrawal>& withdrawn) const noexcept {
    if (!withdrawn || withdrawn->removed.is_segment)
      fatal("checked_provider: unreserve accepted a range that was not reserved", p);
    const std::lock_guard lock(mutex_);
    // Later maps belong to the next owner of the addresses.
    const auto is_earlier = [&](const entry& e) { return e.map_number <= withdrawn->maps; };
    if (tables_[1].overlaps(p, withdrawn->removed.bytes, is_earlier))
      fatal("checked_provider: unreserve accepted a range with mapped memory", p);
  }

  /// Records the handle of physical memory. 0 bytes means imported memory.
  void add_handle(const std::string& handle, const std::string& empty, physical_memory memory) noexcept {
    const std::lock_guard lock(mutex_);
    if (handle == empty) fatal("checked_provider: create or import_memory returned an empty handle");
    if (memory.bytes % memory.page != 0)
      fatal("checked_provider: create accepted a size that is no multiple of the page size");
    insert_handle(handle, memory);
    add_used(memory.bytes);
  }
  [[nodiscard]] std::optional<physical_memory> withdraw_handle(const std::string& handle) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return {};
    const physical_memory memory = found->second;
    handles_.erase(found);
    used_ -= memory.bytes;
    return memory;
  }
  void restore_handle(const std::string& handle, const physical_memory& memory) noexcept {
    const std::lock_guard lock(mutex_);
    insert_handle(handle, memory);
    used_ += memory.bytes;
  }

  /// The reason why a map must fail even if nothing else is mapped there; null if it may succeed. It is
  /// called before the provider.
  [[nodiscard]] const char* why_not_mappable(const void* p, std::size_t bytes,
                                             const std::string& handle) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return "checked_provider: map accepted a handle that was not created";
    const physical_memory& memory = found->second;
    if (memory.bytes != 0 && bytes != memory.bytes)
      return "checked_provider: map accepted another size than the memory has";
    if (address_of(p) % memory.page != 0)
      return "checked_provider: map accepted an address that is no multiple of the page size";
    const entry* const range = tables_[0].around(p, bytes);
    if (range == nullptr || range->is_segment)
      return "checked_provider: map accepted addresses that are not reserved";
    return nullptr;
  }

  /// Counts the starts and ends of calls about events.
  [[nodiscard]] std::uint64_t tick() noexcept {
    const std::lock_guard lock(mutex_);
    return ++ticks_;
  }
  /// Returns the latest tick before which all work submitted to a stream is done.
  [[nodiscard]] std::uint64_t done_before(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = done_.find(stream);
    return found != done_.end() ? found->second : 0;
  }
  void record_done(stream_id stream, std::uint64_t tick) noexcept {
    const std::lock_guard lock(mutex_);
    require_host_memory(try_run([&] {
      std::uint64_t& latest = done_[stream];
      latest = (std::max)(latest, tick);
    }));
  }

 private:
  static void require_host_memory(bool inserted) noexcept {
    if (!inserted) fatal("checked_provider: host memory for bookkeeping ran out");
  }
  void add_memory(const void* p, const entry& memory) noexcept {
    if (memory.bytes > unlimited - address_of(p))
      fatal("checked_provider: new memory exceeds the address space", p);
    if (tables_[0].overlaps(p, memory.bytes)) fatal("checked_provider: new memory overlaps memory in use", p);
    require_host_memory(tables_[0].insert(p, memory));
  }
  void add_used(std::size_t bytes) noexcept {
    used_ = saturating_add(used_, bytes);
    if (used_ > capacity_) fatal("checked_provider: the memory in use exceeds the capacity");
  }
  void insert_handle(const std::string& handle, const physical_memory& memory) noexcept {
    bool is_new = false;
    require_host_memory(try_run([&] { is_new = handles_.emplace(handle, memory).second; }));
    if (!is_new) fatal("checked_provider: the handle names other memory already");
  }

  std::size_t capacity_, granularity_;
  mutable std::mutex mutex_;
  range_map<entry> tables_[3];  // by `table`
  std::map<std::string, physical_memory> handles_;
  std::map<stream_id, std::uint64_t> done_;
  std::size_t used_ = 0;  // bytes of segments and of created memory
  std::uint64_t ticks_ = 0, maps_ = 0;
};

/// An event of a device, and the state when it was recorded.
template <typename Device>
struct checked_event {};
template <typename Device>
  requires requires { typename Device::event; }
struct checked_event<Device> {
  typename Device::event mark{};
  stream_id stream{};
  std::uint64_t position = 0;          ///< position of the stream; 0 without ordering
  std::uint64_t begun = 0, ended = 0;  ///< the ticks around record(); 0 if it was never recorded
  bool was_ready = false;
};

}  // namespace tessera::detail

namespace tessera::debug {

/// Owns a provider, forwards its calls, and aborts when the provider violates its contract. Use it under an
/// allocator to check the provider and the allocator.
///
///     #include <tessera/debug/checked_provider.hpp>
///     using checked = tessera::debug::checked_provider<tessera::provider::simulated_device>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, checked> pool_over_checked;
///     pool_over_checked.deallocate(pool_over_checked.allocate(5_MiB));
///
/// It checks:
/// * segments and ranges: alignment, overlap, capacity, the end of the address space
/// * host-visible memory: the host can read both ends
/// * physical memory: empty or reused handles; maps outside of ranges or over other maps
/// * calls that report success although they had no effect
/// * events: ready too early, after a later event, or no longer ready; not if the provider declares
///   completion_may_lag
/// * capacity, granularity and page size: constant and valid
///
/// A failed call is always valid, and the failure is returned. Some errors do not show in a single answer:
/// memory that is mapped elsewhere or too short, and memory that never becomes reusable. The laws
/// [tessera/law/provider_laws.hpp] find them.
///
/// If D::physical has padding bytes, handles are not compared and their maps are not checked. It is
/// thread-safe if the provider is. It holds no lock during the provider's calls.
///   Cost:  logarithmic in the segments, ranges and maps for each call about memory; two ticks and a look-up
///          for each call about events; a position for each record
template <provider::device_provider Device>
class checked_provider : public provider::provider_adaptor<Device> {
  using table = detail::provider_shadow::table;
  static constexpr bool knows_order =
      provider::ordering_provider<Device> && !detail::completion_may_lag<Device>;
  static constexpr bool knows_handles = [] {
    if constexpr (requires { typename Device::physical; })
      return std::has_unique_object_representations_v<typename Device::physical>;
    else
      return false;
  }();

 public:
  using event = detail::checked_event<Device>;
  using typename provider::provider_adaptor<Device>::physical;
  using typename provider::provider_adaptor<Device>::shareable;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  checked_provider() : checked_provider(Device{}) {}
  explicit checked_provider(Device device)
      : checked_provider(std::make_unique<owned_device>(std::move(device))) {}

  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const p = this->inner().acquire(bytes, kind...);
    if (p == nullptr) return nullptr;
    shadow().add_segment(p, bytes);
    require_readable(p, bytes, "checked_provider: acquire returned memory that the host cannot read");
    return p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return remove(table::segments_and_ranges, p, [&] { return this->inner().release(p, bytes); }).first;
  }
  [[nodiscard]] std::size_t capacity() const noexcept {
    const std::size_t result = this->inner().capacity();
    shadow().require_constant(result, this->inner().granularity());
    return result;
  }
  [[nodiscard]] std::size_t granularity() const noexcept {
    const std::size_t result = this->inner().granularity();
    shadow().require_constant(this->inner().capacity(), result);
    return result;
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Device>
  {
    const std::size_t result = this->inner().available();
    shadow().require_available(result);
    return result;
  }

  bool record(stream_id stream, event& mark) noexcept
    requires provider::event_provider<Device>
  {
    event recorded{.stream = stream, .position = position_of(stream), .begun = shadow().tick()};
    if (!this->inner().record(stream, recorded.mark)) return false;
    recorded.ended = shadow().tick();
    mark = recorded;
    return true;
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires provider::event_provider<Device>
  {
    const std::uint64_t done = shadow().done_before(mark.stream);
    if (this->inner().query(mark.mark)) {
      require_ready(mark, "checked_provider: query reports an event as ready before its work is done");
      return true;
    }
    if (detail::completion_may_lag<Device>) return false;
    if (mark.was_ready) detail::fatal("checked_provider: query reports a ready event as not ready");
    if (mark.ended != 0 && mark.ended < done)
      detail::fatal("checked_provider: query reports an event as not ready after a later event was ready");
    return false;
  }
  bool wait(event& mark) noexcept
    requires provider::event_provider<Device>
  {
    if (!this->inner().wait(mark.mark)) return false;
    require_ready(mark, "checked_provider: wait returned before the work of the event was done");
    return true;
  }
  void discard(event& mark) noexcept
    requires provider::event_provider<Device>
  {
    this->inner().discard(mark.mark);
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    const std::uint64_t position = position_of(stream), begun = shadow().tick();
    if (!this->inner().synchronize(stream)) return false;
    require_done(stream, position,
                 "checked_provider: synchronize returned before the work of the stream was done");
    shadow().record_done(stream, begun);
    return true;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool done = this->inner().is_done(stream, position);
    if (!done && position == 0) detail::fatal("checked_provider: is_done reports position 0 as not done");
    return done;
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool ordered = this->inner().is_ordered_after(stream, other, position);
    if (!ordered && (position == 0 || stream == other))
      detail::fatal("checked_provider: is_ordered_after denies the order of a stream's own work");
    return ordered;
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool waits = this->inner().make_wait(stream, other, position);
    if (waits && !this->inner().is_ordered_after(stream, other, position) &&
        !this->inner().is_done(other, position))
      detail::fatal("checked_provider: make_wait succeeded without an effect");
    return waits;
  }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const std::size_t result = this->inner().page_size(kind);
    if (!std::has_single_bit(result) || result % kind.granularity() != 0)
      detail::fatal(
          "checked_provider: page_size is no power of two, or no multiple of the kind's granularity");
    return result;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    void* const p = this->inner().reserve(bytes, alignment);
    if (p != nullptr) shadow().add_range(p, bytes, alignment);
    return p;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const auto [removed, entry] =
        remove(table::segments_and_ranges, p, [&] { return this->inner().unreserve(p, bytes); });
    if (removed) shadow().require_unmapped_range(p, entry);
    return removed;
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    if (!this->inner().create(bytes, kind, memory)) return false;
    if constexpr (knows_handles)
      shadow().add_handle(bytes_of(memory), bytes_of(physical{}), {bytes, page_size(kind)});
    return true;
  }
  bool destroy(const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    if constexpr (!knows_handles) {
      return this->inner().destroy(memory);
    } else {
      const std::string handle = bytes_of(memory);
      const auto withdrawn = shadow().withdraw_handle(handle);
      const bool destroyed = this->inner().destroy(memory);
      if (destroyed && !withdrawn)
        detail::fatal("checked_provider: destroy accepted a handle that was not created");
      if (!destroyed && withdrawn) shadow().restore_handle(handle, *withdrawn);
      return destroyed;
    }
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const char* reason = nullptr;
    if constexpr (knows_handles) reason = shadow().why_not_mappable(p, bytes, bytes_of(memory));
    if (!this->inner().map(p, bytes, memory)) return false;
    if (reason != nullptr) detail::fatal(reason, p);
    if constexpr (knows_handles) shadow().add_mapping(p, bytes);
    if constexpr (Device::map_grants_access)
      require_readable(p, bytes, "checked_provider: map succeeded, but the host cannot read the memory");
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const bool mapped = !knows_handles || shadow().is_mapped(p);
    if (!this->inner().grant(p, bytes)) return false;
    if (!mapped) detail::fatal("checked_provider: grant accepted addresses without mapped memory", p);
    require_readable(p, bytes, "checked_provider: grant succeeded, but the host cannot read the memory");
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const auto [removed, entry] = remove(table::mappings, p, [&] { return this->inner().unmap(p, bytes); });
    if (knows_handles && removed && !entry)
      detail::fatal("checked_provider: unmap accepted addresses without mapped memory", p);
    return removed;
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires provider::sharing_provider<Device>
  {
    if (!this->inner().import_memory(name, memory)) return false;
    if constexpr (knows_handles) shadow().add_handle(bytes_of(memory), bytes_of(physical{}), {});
    return true;
  }
  bool register_memory(void* p, std::size_t bytes) noexcept
    requires provider::registering_provider<Device>
  {
    const bool registered = this->inner().register_memory(p, bytes);
    if (registered) shadow().add_registered(p, bytes);
    return registered;
  }
  bool unregister_memory(void* p) noexcept
    requires provider::registering_provider<Device>
  {
    return remove(table::registered, p, [&] { return this->inner().unregister_memory(p); }).first;
  }

 private:
  struct owned_device {
    explicit owned_device(Device own)
        : device(std::move(own)), shadow(device.capacity(), device.granularity()) {}
    Device device;
    detail::provider_shadow shadow;
  };
  explicit checked_provider(std::unique_ptr<owned_device> own)
      : provider::provider_adaptor<Device>(own->device), own_(std::move(own)) {}

  [[nodiscard]] detail::provider_shadow& shadow() const noexcept { return own_->shadow; }

  /// Withdraws the entry at `p` and makes a call of the provider. Restores the entry if the call fails.
  ///   Returns:  whether the call succeeded, and the entry
  template <typename F>
  std::pair<bool, std::optional<detail::provider_shadow::withdrawal>> remove(table from, const void* p,
                                                                             F make_call) noexcept {
    const auto entry = shadow().withdraw(from, p);
    const bool removed = make_call();
    if (!removed && entry) shadow().restore(from, p, *entry);
    return {removed, entry};
  }
  [[nodiscard]] std::uint64_t position_of(stream_id stream) noexcept {
    if constexpr (knows_order) return this->inner().position(stream);
    return 0;
  }
  /// Aborts if the work up to `position` is not done. A stream below that position is no error: its handle
  /// was reused for a new stream.
  void require_done(stream_id stream, std::uint64_t position, const char* violation) noexcept {
    if constexpr (knows_order) {
      if (!this->inner().is_done(stream, position) && this->inner().position(stream) >= position)
        detail::fatal(violation);
    }
  }
  void require_ready(event& mark, const char* violation) noexcept {
    require_done(mark.stream, mark.position, violation);
    shadow().record_done(mark.stream, mark.begun);
    mark.was_ready = true;
  }
  [[nodiscard]] static std::string bytes_of(const physical& memory) {
    std::string bytes(sizeof memory, '\0');
    std::memcpy(bytes.data(), &memory, sizeof memory);
    return bytes;
  }
  static void require_readable(const void* p, std::size_t bytes, const char* violation) noexcept {
    if constexpr (detail::is_host_visible<Device>) {
      if (!detail::host_can_read(p) || !detail::host_can_read(static_cast<const char*>(p) + bytes - 1))
        detail::fatal(violation, p);
    }
  }

  std::unique_ptr<owned_device> own_;
};

}  // namespace tessera::debug
