// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/range_map.hpp>
#include <tessera/provider/rules.hpp>

namespace tessera::inline v0_1::detail {

/// The memory and addresses that a provider has returned and not taken back. Aborts if an answer of the
/// provider contradicts them. Thread-safe.
///
///   Cost:  logarithmic in the number of entries; about 100 bytes of host memory for each entry
class provider_shadow {
 public:
  using rule = rules::rule;
  /// Memory at addresses.
  struct entry {
    std::size_t bytes;
    bool is_segment = false;
    std::uint64_t number = 0;  ///< grows with each entry that is added
    const void* begin = nullptr;
    const char* failed_call = nullptr;  ///< a call that did not take it back; null if none failed
  };
  enum class table : unsigned char { segments_and_ranges, mappings, registered };
  /// An entry that was withdrawn, and how many entries had been added at that time.
  struct withdrawal {
    entry removed;
    std::uint64_t added = 0;
  };
  struct physical_memory {
    std::size_t bytes = 0;  ///< 0 if unknown, for example for imported memory
    std::size_t page = 1;
  };

  /// Aborts if a call of the provider broke a rule. The message has the values that show it.
  template <typename... Values>
  static void expect(bool holds, const char* call, const rule& law, const Values&... values) noexcept {
    if (holds) return;
    rules::values_text text;
    text.add("checked_provider: ").add(call).add(": ").add(law.text);
    text.add_values(": ", values...);
    fatal(text.c_str());
  }

  /// Whether two handles, as bytes, are equal.
  using equality = bool (*)(const std::string& one, const std::string& other) noexcept;

  provider_shadow(std::size_t capacity, std::size_t granularity, equality are_equal)
      : capacity_(capacity), granularity_(granularity), are_equal_(are_equal) {
    expect(std::has_single_bit(granularity) && granularity >= min_alignment, "granularity",
           rules::granularity_is_valid, "granularity", granularity);
  }
  void require_constant(std::size_t capacity, std::size_t granularity) const noexcept {
    expect(capacity == capacity_, "capacity", rules::sizes_are_constant, "at first", capacity_, "now",
           capacity);
    expect(granularity == granularity_, "granularity", rules::sizes_are_constant, "at first", granularity_,
           "now", granularity);
  }
  void require_constant_page(page_kind kind, std::size_t size) noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, first] : page_sizes_) {
      if (known != kind) continue;
      return expect(size == first, "page_size", rules::page_size_is_constant, kind, "at first", first, "now",
                    size);
    }
    require_host_memory(try_run([&] { page_sizes_.emplace_back(kind, size); }));
  }
  void require_available(std::size_t bytes) const noexcept {
    expect(bytes <= capacity_, "available", rules::available_is_at_most_capacity, "available", bytes,
           "capacity", capacity_);
  }

  void add_segment(const void* p, std::size_t bytes) noexcept {
    expect(address_of(p) % granularity_ == 0, "acquire", rules::segments_are_aligned, "address", p,
           "granularity", granularity_);
    expect(bytes <= unlimited - address_of(p), "acquire", rules::segments_end_in_address_space, "address", p,
           "bytes", bytes);
    add(table::segments_and_ranges, "acquire", p, {bytes, true}, rules::segments_do_not_overlap);
  }
  void add_range(const void* p, std::size_t bytes, std::size_t alignment) noexcept {
    expect(address_of(p) % alignment == 0, "reserve", rules::ranges_are_aligned, "address", p, "alignment",
           alignment);
    expect(bytes <= unlimited - address_of(p), "reserve", rules::reserve_keeps_address_space, "address", p,
           "bytes", bytes);
    add(table::segments_and_ranges, "reserve", p, {bytes}, rules::ranges_do_not_overlap);
  }
  /// Adds what a call returned or accepted. It must overlap no entry of the table because of a rule.
  void add(table to, const char* call, const void* p, entry added, const rule& law) noexcept {
    const std::lock_guard lock(mutex_);
    added.number = ++added_;
    added.begin = p;
    insert(to, call, p, added, law);
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
    const withdrawal result{entries.extract(p), added_};
    if (result.removed.is_segment) used_ -= result.removed.bytes;
    return result;
  }
  /// Restores a withdrawn entry, because the provider did not take the memory back.
  void restore(table to, const char* call, const void* p, withdrawal withdrawn) noexcept {
    const std::lock_guard lock(mutex_);
    withdrawn.removed.failed_call = call;
    insert(to, call, p, withdrawn.removed, rules::failures_change_nothing);
  }
  /// Aborts because a provider took back what begins at no entry: inside of one, or nowhere.
  void refuse_unknown(table from, const char* call, const void* p, const rule& inside,
                      const rule& unknown) const noexcept {
    const std::lock_guard lock(mutex_);
    const entry* const around = tables_[static_cast<std::size_t>(from)].around(p, 0);
    if (around != nullptr)
      expect(false, call, inside, "address", p, "inside of", around->begin, "bytes", around->bytes);
    expect(false, call, unknown, "address", p);
  }
  void require_unmapped_range(const void* p, const std::optional<withdrawal>& withdrawn) const noexcept {
    if (!withdrawn || withdrawn->removed.is_segment)
      return expect(false, "unreserve", rules::unreserve_refuses_unreserved, "address", p);
    const std::lock_guard lock(mutex_);
    // Later maps belong to the next owner of the addresses.
    const auto is_earlier = [&](const entry& e) { return e.number <= withdrawn->added; };
    const bool is_mapped = tables_[1].overlaps(p, withdrawn->removed.bytes, is_earlier);
    expect(!is_mapped, "unreserve", rules::unreserve_refuses_mapped, "address", p, "bytes",
           withdrawn->removed.bytes);
  }

  /// Records the handle of physical memory. 0 bytes means imported memory.
  void add_handle(const char* call, const std::string& handle, const std::string& empty,
                  physical_memory memory) noexcept {
    const std::lock_guard lock(mutex_);
    expect(!is_same(handle, empty), call, rules::handles_are_not_empty, "bytes", memory.bytes);
    expect(memory.bytes % memory.page == 0, call, rules::create_refuses_parts, "bytes", memory.bytes,
           "page size", memory.page);
    insert_handle(handle, memory, call, rules::handles_are_unique);
    add_used(memory.bytes, call, rules::create_keeps_capacity);
  }
  [[nodiscard]] bool is_same(const std::string& one, const std::string& other) const noexcept {
    return are_equal_ != nullptr ? are_equal_(one, other) : one == other;
  }
  [[nodiscard]] std::optional<physical_memory> withdraw_handle(const std::string& handle) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = find_handle(handle);
    if (found == handles_.end()) return {};
    const physical_memory memory = found->second;
    handles_.erase(found);
    used_ -= memory.bytes;
    return memory;
  }
  void restore_handle(const std::string& handle, const physical_memory& memory) noexcept {
    const std::lock_guard lock(mutex_);
    insert_handle(handle, memory, "destroy", rules::failures_change_nothing);
    used_ += memory.bytes;
  }

  /// The rule by which a map must fail even if nothing else is mapped there; null if it may succeed. It is
  /// called before the provider.
  [[nodiscard]] const rule* why_not_mappable(const void* p, std::size_t bytes,
                                             const std::string& handle) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = find_handle(handle);
    if (found == handles_.end()) return &rules::unknown_handles_are_refused;
    const physical_memory& memory = found->second;
    if (memory.bytes != 0 && bytes != memory.bytes) return &rules::map_refuses_other_size;
    if (address_of(p) % memory.page != 0) return &rules::map_refuses_inside_page;
    const entry* const range = tables_[0].around(p, bytes);
    return range == nullptr || range->is_segment ? &rules::map_refuses_unreserved : nullptr;
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
  void insert(table to, const char* call, const void* p, const entry& added, const rule& law) noexcept {
    range_map<entry>& entries = tables_[static_cast<std::size_t>(to)];
    const entry* other = nullptr;
    const auto keep_first = [&other](const entry& e) {
      other = &e;
      return true;
    };
    if (entries.overlaps(p, added.bytes, keep_first)) {
      const bool is_in_range = added.is_segment && !other->is_segment;
      const char* const failed = other->failed_call;
      expect(false, failed != nullptr ? failed : call,
             failed != nullptr ? rules::failures_change_nothing
             : is_in_range     ? rules::ranges_do_not_overlap
                               : law,
             "address", p, "bytes", added.bytes, "held already", other->begin, "its bytes", other->bytes);
    }
    require_host_memory(entries.insert(p, added));
    if (added.is_segment) add_used(added.bytes, call, rules::acquire_keeps_capacity);
  }
  void insert_handle(const std::string& handle, const physical_memory& memory, const char* call,
                     const rule& law) noexcept {
    expect(find_handle(handle) == handles_.end(), call, law, "bytes", memory.bytes);
    require_host_memory(try_run([&] { handles_.emplace(handle, memory); }));
  }
  [[nodiscard]] std::map<std::string, physical_memory>::const_iterator find_handle(
      const std::string& handle) const noexcept {
    if (are_equal_ == nullptr) return handles_.find(handle);
    const auto is_it = [&](const auto& each) { return are_equal_(each.first, handle); };
    return std::find_if(handles_.begin(), handles_.end(), is_it);
  }
  void add_used(std::size_t bytes, const char* call, const rule& law) noexcept {
    used_ = saturating_add(used_, bytes);
    expect(used_ <= capacity_, call, law, "bytes", bytes, "held then", used_, "capacity", capacity_);
  }

  std::size_t capacity_, granularity_;
  equality are_equal_;  // null if handles are equal when their bytes are
  std::vector<std::pair<page_kind, std::size_t>> page_sizes_;
  mutable std::mutex mutex_;
  range_map<entry> tables_[3];  // by `table`
  std::map<std::string, physical_memory> handles_;
  std::map<stream_id, std::uint64_t> done_;
  std::size_t used_ = 0;  // bytes of segments and of created memory
  std::uint64_t ticks_ = 0, added_ = 0;
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

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::debug {

/// Owns a provider, forwards its calls, and aborts when the provider violates its contract. The message names
/// the call and the rule [provider/provider.hpp]. Use it under an allocator to check the provider and the
/// allocator.
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
/// * calls that report success although they had no effect, and calls that fail although they had one
/// * events: ready too early, after a later event, or no longer ready; not if the provider declares
///   completion_may_lag
/// * capacity, granularity and page size: constant and valid
///
/// A failed call is always valid, and the failure is returned. Some errors do not show in a single answer:
/// memory that is mapped elsewhere or too short, and memory that never becomes reusable. The laws
/// [tessera/law/provider_laws.hpp] find them.
///
/// Handles with padding bytes are compared with their operator==. Without one, handles are not compared and
/// their maps are not checked: checks_handles is false. It is thread-safe if the provider is. It holds no lock
/// during the provider's calls.
///   Cost:  logarithmic in the segments, ranges and maps for each call about memory; two ticks and a look-up
///          for each call about events; a position for each record; linear in the handles if they have
///          padding bytes
///   Requires:  the provider holds no memory at first that is released through this
template <provider::device_provider Device>
class checked_provider : public provider::provider_adaptor<Device> {
  using table = detail::provider_shadow::table;
  using rule = detail::provider_shadow::rule;
  static constexpr bool knows_order =
      provider::ordering_provider<Device> && !detail::completion_may_lag<Device>;

 public:
  /// Whether handles of physical memory are compared, and their maps checked.
  static constexpr bool checks_handles = requires {
    requires std::is_trivially_copyable_v<typename Device::physical>;
    requires std::has_unique_object_representations_v<typename Device::physical> ||
                 std::equality_comparable<typename Device::physical>;
  };
  using event = detail::checked_event<Device>;
  using typename provider::provider_adaptor<Device>::physical;
  using typename provider::provider_adaptor<Device>::shareable;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Device>;

  checked_provider() : checked_provider(Device{}) {}
  /// Takes over a provider, and checks the calls that it gets from here on.
  explicit checked_provider(Device device)
      : checked_provider(std::make_unique<owned_device>(std::move(device))) {}

  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const p = this->inner().acquire(bytes, kind...);
    if (p == nullptr) return nullptr;
    shadow().add_segment(p, bytes);
    require_readable(p, bytes, "acquire", detail::rules::host_reads_segments);
    return p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto make_call = [&] { return this->inner().release(p, bytes); };
    const auto [removed, entry] = remove(table::segments_and_ranges, "release", p, make_call);
    if (removed && !(entry && entry->removed.is_segment))
      shadow().refuse_unknown(table::segments_and_ranges, "release", p, detail::rules::release_refuses_inside,
                              detail::rules::release_refuses_released);
    return removed;
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
      require_ready(mark, "query", detail::rules::no_event_is_early);
      return true;
    }
    if (detail::completion_may_lag<Device>) return false;
    shadow().expect(!mark.was_ready, "query", detail::rules::ready_event_stays_ready, mark.stream);
    shadow().expect(mark.ended == 0 || mark.ended >= done, "query", detail::rules::earlier_event_is_ready,
                    mark.stream);
    return false;
  }
  bool wait(event& mark) noexcept
    requires provider::event_provider<Device>
  {
    if (!this->inner().wait(mark.mark)) return false;
    require_ready(mark, "wait", detail::rules::wait_waits);
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
    require_done(stream, position, "synchronize", detail::rules::synchronize_waits);
    shadow().record_done(stream, begun);
    return true;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool done = this->inner().is_done(stream, position);
    shadow().expect(done || position != 0, "is_done", detail::rules::position_0_is_done, stream);
    return done;
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool ordered = this->inner().is_ordered_after(stream, other, position);
    shadow().expect(ordered || position != 0, "is_ordered_after", detail::rules::position_0_is_done, stream,
                    "other stream", other);
    shadow().expect(ordered || stream != other, "is_ordered_after", detail::rules::stream_is_after_own_work,
                    stream, "position", position);
    return ordered;
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires provider::ordering_provider<Device>
  {
    const bool waits = this->inner().make_wait(stream, other, position);
    const bool is_right = !waits || this->inner().is_ordered_after(stream, other, position) ||
                          this->inner().is_done(other, position);
    shadow().expect(is_right, "make_wait", detail::rules::stream_is_after_awaited_work, stream,
                    "waits for stream", other, "position", position);
    return waits;
  }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const std::size_t result = this->inner().page_size(kind);
    const bool is_valid = std::has_single_bit(result) && result % kind.granularity() == 0;
    shadow().expect(is_valid, "page_size", detail::rules::page_size_is_valid, kind, "page size", result);
    shadow().require_constant_page(kind, result);
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
    const auto make_call = [&] { return this->inner().unreserve(p, bytes); };
    const auto [removed, entry] = remove(table::segments_and_ranges, "unreserve", p, make_call);
    if (removed) shadow().require_unmapped_range(p, entry);
    return removed;
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    return check_create(bytes, kind, memory, [&] { return this->inner().create(bytes, kind, memory); });
  }
  /// Checks what create_in of the device does by the rules of create.
  bool create_in(std::size_t bank, std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires tessera::detail::has_several_banks<Device>
  {
    return check_create(bytes, kind, memory,
                        [&] { return this->inner().create_in(bank, bytes, kind, memory); });
  }
  bool destroy(const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    if constexpr (!checks_handles) {
      return this->inner().destroy(memory);
    } else {
      const std::string handle = bytes_of(memory);
      const auto withdrawn = shadow().withdraw_handle(handle);
      const bool destroyed = this->inner().destroy(memory);
      shadow().expect(!destroyed || withdrawn, "destroy", detail::rules::unknown_handles_are_refused);
      if (!destroyed && withdrawn) shadow().restore_handle(handle, *withdrawn);
      return destroyed;
    }
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const rule* law = nullptr;
    if constexpr (checks_handles) law = shadow().why_not_mappable(p, bytes, bytes_of(memory));
    if (!this->inner().map(p, bytes, memory)) return false;
    if (law != nullptr) shadow().expect(false, "map", *law, "address", p, "bytes", bytes);
    if constexpr (checks_handles)
      shadow().add(table::mappings, "map", p, {bytes}, detail::rules::map_refuses_mapped);
    if constexpr (Device::map_grants_access)
      require_readable(p, bytes, "map", detail::rules::host_reads_mappings);
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const bool mapped = !checks_handles || shadow().is_mapped(p);
    if (!this->inner().grant(p, bytes)) return false;
    shadow().expect(mapped, "grant", detail::rules::grant_refuses_unmapped, "address", p, "bytes", bytes);
    require_readable(p, bytes, "grant", detail::rules::host_reads_mappings);
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires provider::virtual_memory_provider<Device>
  {
    const auto make_call = [&] { return this->inner().unmap(p, bytes); };
    const auto [removed, entry] = remove(table::mappings, "unmap", p, make_call);
    shadow().expect(!checks_handles || !removed || entry, "unmap", detail::rules::unmap_refuses_unmapped,
                    "address", p, "bytes", bytes);
    return removed;
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires provider::sharing_provider<Device>
  {
    if (!this->inner().import_memory(name, memory)) return false;
    if constexpr (checks_handles)
      shadow().add_handle("import_memory", bytes_of(memory), bytes_of(physical{}), {});
    return true;
  }
  bool register_memory(void* p, std::size_t bytes) noexcept
    requires provider::registering_provider<Device>
  {
    if (!this->inner().register_memory(p, bytes)) return false;
    shadow().add(table::registered, "register_memory", p, {bytes},
                 detail::rules::register_refuses_registered);
    return true;
  }
  bool unregister_memory(void* p) noexcept
    requires provider::registering_provider<Device>
  {
    const auto make_call = [&] { return this->inner().unregister_memory(p); };
    const auto [removed, entry] = remove(table::registered, "unregister_memory", p, make_call);
    if (removed && !entry)
      shadow().refuse_unknown(table::registered, "unregister_memory", p,
                              detail::rules::unregister_refuses_inside,
                              detail::rules::unregister_refuses_others);
    return removed;
  }

 private:
  template <typename Create>
  bool check_create(std::size_t bytes, page_kind kind, physical& memory, Create create) noexcept {
    const physical before = memory;
    if (!create()) {
      if constexpr (checks_handles)
        shadow().expect(shadow().is_same(bytes_of(before), bytes_of(memory)), "create",
                        detail::rules::refused_create_keeps_handle, kind, "bytes", bytes);
      return false;
    }
    if constexpr (checks_handles)
      shadow().add_handle("create", bytes_of(memory), bytes_of(physical{}), {bytes, page_size(kind)});
    return true;
  }
  [[nodiscard]] static constexpr detail::provider_shadow::equality equality_of_handles() noexcept {
    if constexpr (checks_handles && !std::has_unique_object_representations_v<physical>)
      return [](const std::string& one, const std::string& other) noexcept {
        physical a{}, b{};
        std::memcpy(&a, one.data(), sizeof a);
        std::memcpy(&b, other.data(), sizeof b);
        return a == b;
      };
    return nullptr;
  }
  struct owned_device {
    explicit owned_device(Device own)
        : device(std::move(own)), shadow(device.capacity(), device.granularity(), equality_of_handles()) {}
    Device device;
    detail::provider_shadow shadow;
  };
  explicit checked_provider(std::unique_ptr<owned_device> own)
      : provider::provider_adaptor<Device>(own->device), own_(std::move(own)) {}

  [[nodiscard]] detail::provider_shadow& shadow() const noexcept { return own_->shadow; }

  /// Withdraws the entry at `p` and makes a call of the provider. Restores the entry if the call fails.
  ///   Returns:  whether the call succeeded, and the entry
  template <typename F>
  auto remove(table from, const char* function, const void* p, F make_call) noexcept {
    const auto entry = shadow().withdraw(from, p);
    const bool removed = make_call();
    if (!removed && entry) shadow().restore(from, function, p, *entry);
    return std::pair(removed, entry);
  }
  [[nodiscard]] std::uint64_t position_of(stream_id stream) noexcept {
    if constexpr (knows_order) return this->inner().position(stream);
    return 0;
  }
  /// Aborts if the work up to `position` is not done. A stream below that position is no error: its handle
  /// was reused for a new stream.
  void require_done(stream_id stream, std::uint64_t position, const char* function,
                    const rule& law) noexcept {
    if constexpr (knows_order) {
      const bool is_done =
          this->inner().is_done(stream, position) || this->inner().position(stream) < position;
      shadow().expect(is_done, function, law, stream, "position", position);
    }
  }
  void require_ready(event& mark, const char* function, const rule& law) noexcept {
    require_done(mark.stream, mark.position, function, law);
    shadow().record_done(mark.stream, mark.begun);
    mark.was_ready = true;
  }
  [[nodiscard]] static std::string bytes_of(const physical& memory) {
    std::string bytes(sizeof memory, '\0');
    std::memcpy(bytes.data(), &memory, sizeof memory);
    return bytes;
  }
  void require_readable(const void* p, std::size_t bytes, const char* function, const rule& law) noexcept {
    if constexpr (detail::is_host_visible<Device>) {
      const void* const last = static_cast<const char*>(p) + bytes - 1;
      shadow().expect(detail::host_can_read(p) && detail::host_can_read(last), function, law, "address", p,
                      "bytes", bytes);
    }
  }

  std::unique_ptr<owned_device> own_;
};

}  // namespace tessera::inline v0_1::debug
