// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/provider/capabilities.hpp>

namespace tessera::inline v0_1::detail {

/// Replaces a type that a provider does not have.
struct absent {
  bool operator==(const absent&) const = default;
};

template <typename Device>
struct event_of {
  using type = absent;
};
template <typename Device>
  requires requires { typename Device::event; }
struct event_of<Device> {
  using type = typename Device::event;
};

template <typename Device>
struct shareable_of {
  using type = absent;
};
template <typename Device>
  requires requires { typename Device::shareable; }
struct shareable_of<Device> {
  using type = typename Device::shareable;
};

/// The names that a virtual_memory_provider declares.
template <typename Device>
struct virtual_memory_names {
  using physical = absent;
};
template <typename Device>
  requires requires {
    typename Device::physical;
    Device::map_grants_access;
    Device::unmap_wants_size;
  }
struct virtual_memory_names<Device> {
  using physical = typename Device::physical;
  static constexpr bool map_grants_access = Device::map_grants_access;
  static constexpr bool unmap_wants_size = Device::unmap_wants_size;
};

/// The default hook of a provider_adaptor: makes the call and nothing else.
struct call_directly {
  template <typename F>
  auto operator()(provider::provider_call, F call) const noexcept {
    return call();
  }
};

/// Whether a provider has acquire(bytes) or, with `page_kind` for Kind, acquire(bytes, kind).
template <typename D, typename... Kind>
concept acquires_with = requires(D& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); };

/// Whether a provider creates memory in the bank that the caller names, as memory_domains does.
template <typename D>
concept has_several_banks = requires(D& d, std::size_t n, page_kind kind, typename D::physical& made) {
  { d.count() } noexcept -> std::same_as<std::size_t>;
  { d.create_in(n, n, kind, made) } noexcept -> std::same_as<bool>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Wraps a provider, and has exactly its capabilities: events, virtual memory, sharing and so on.
///
/// There are two ways to use it. A hook sees the kind of each call, but not its arguments. It serves
/// logging, timing, locking and injected failures. A derived class hides the members that it changes, and
/// calls the wrapped provider through inner().
///
/// The adaptor calls hook(provider_call, f). The hook calls f(), which makes the call, and returns the result
/// of f(): a `bool`, a pointer or a number. f() returns a value-initialised result if the call fails. It
/// returns true if the call has no result.
///
///     namespace logging {
///     struct log_failures {
///       template <typename F>
///       auto operator()(tessera::provider::provider_call call, F f) noexcept {
///         const auto result = f();
///         if (!result && call.may_fail()) std::printf("%s failed\n", call.name());
///         return result;
///       }
///     };
///     using device = tessera::provider::provider_adaptor<tessera::provider::simulated_device, log_failures>;
///     static_assert(tessera::provider::virtual_memory_provider<device> && tessera::provider::event_provider<device>);
///     }
///
/// It is thread-safe if both the provider and the hook declare is_thread_safe. A derived class without
/// mutable state declares it again, equal to inner_is_thread_safe.
///
///   Requires:  Device is a device_provider; it need not be movable, and must outlive the adaptor
template <typename Device, typename Hook = detail::call_directly>
class provider_adaptor : public detail::virtual_memory_names<Device> {
  using call = provider_call;

 public:
  using event = typename detail::event_of<Device>::type;
  using typename detail::virtual_memory_names<Device>::physical;
  using shareable = typename detail::shareable_of<Device>::type;
  /// Whether the wrapped provider may be used by several threads at a time.
  static constexpr bool inner_is_thread_safe = detail::is_thread_safe<Device>;
  static constexpr bool is_thread_safe = inner_is_thread_safe && detail::is_thread_safe<Hook>;
  static constexpr bool is_host_visible = detail::is_host_visible<Device>;
  static constexpr bool release_waits = detail::release_waits<Device>;
  static constexpr bool completion_may_lag = detail::completion_may_lag<Device>;
  static constexpr bool trusts_handles = detail::trusts_handles<Device>;
  static constexpr bool copies_page_locked = detail::copies_page_locked<Device>;
  static constexpr bool has_contents = detail::has_contents<Device>;

  /// Wraps a provider, which the adaptor does not own.
  explicit provider_adaptor(Device& inner, Hook hook = Hook()) noexcept
      : inner_(&inner), hook_(std::move(hook)) {}

  /// The wrapped provider. Its calls do not pass the hook.
  [[nodiscard]] Device& inner() const noexcept { return *inner_; }

  [[nodiscard]] std::size_t capacity() const noexcept { return inner_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return inner_->granularity(); }
  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Device, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    return hook_(call::acquire, [&, this] { return inner_->acquire(bytes, kind...); });
  }
  bool release(void* p, std::size_t bytes) noexcept {
    return hook_(call::release, [&, this] { return inner_->release(p, bytes); });
  }

  [[nodiscard]] bool keeps_released(const void* p) const noexcept
    requires requires(const Device& d) { d.keeps_released(p); }
  {
    return inner_->keeps_released(p);
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires requires(const Device& d) { d.available(); }
  {
    return inner_->available();
  }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept
    requires requires(const Device& d) { d.would_exceed_limit(bytes); }
  {
    return inner_->would_exceed_limit(bytes);
  }
  bool reclaim() noexcept
    requires requires(Device& d) { d.reclaim(); }
  {
    return hook_(call::reclaim, [this] { return inner_->reclaim(); });
  }

  bool record(stream_id stream, event& mark) noexcept
    requires requires(Device& d) { d.record(stream, mark); }
  {
    return hook_(call::record, [&, this] { return inner_->record(stream, mark); });
  }
  [[nodiscard]] bool query(event& mark) noexcept
    requires requires(Device& d) { d.query(mark); }
  {
    return hook_(call::query, [&, this] { return inner_->query(mark); });
  }
  bool wait(event& mark) noexcept
    requires requires(Device& d) { d.wait(mark); }
  {
    return hook_(call::wait, [&, this] { return inner_->wait(mark); });
  }
  void discard(event& mark) noexcept
    requires requires(Device& d) { d.discard(mark); }
  {
    (void)hook_(call::discard, [&, this] {
      inner_->discard(mark);
      return true;
    });
  }

  [[nodiscard]] refusal explain_limit(std::size_t bytes) const noexcept
    requires requires(const Device& d) { d.explain_limit(bytes); }
  {
    return inner_->explain_limit(bytes);
  }
  /// Not passed to the hook, which sees the call that was refused.
  refusal take_refusal() noexcept
    requires requires(Device& d) { d.take_refusal(); }
  {
    return inner_->take_refusal();
  }

  [[nodiscard]] bool shares_addresses_with(const provider_adaptor& other) const noexcept
    requires requires(const Device& d) { d.shares_addresses_with(d); }
  {
    return inner_->shares_addresses_with(*other.inner_);
  }
  [[nodiscard]] std::size_t live_events() const noexcept
    requires requires(const Device& d) { d.live_events(); }
  {
    return inner_->live_events();
  }
  [[nodiscard]] bool has_stream(stream_id stream) noexcept
    requires requires(Device& d) { d.has_stream(stream); }
  {
    return hook_(call::has_stream, [&, this] { return inner_->has_stream(stream); });
  }
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept
    requires requires(Device& d) { d.position(stream); }
  {
    return hook_(call::position, [&, this] { return inner_->position(stream); });
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t position) noexcept
    requires requires(Device& d) { d.is_done(stream, position); }
  {
    return hook_(call::is_done, [&, this] { return inner_->is_done(stream, position); });
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires requires(Device& d) { d.is_ordered_after(stream, other, position); }
  {
    return hook_(call::is_ordered_after,
                 [&, this] { return inner_->is_ordered_after(stream, other, position); });
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t position) noexcept
    requires requires(Device& d) { d.make_wait(stream, other, position); }
  {
    return hook_(call::make_wait, [&, this] { return inner_->make_wait(stream, other, position); });
  }

  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires requires(const Device& d) { d.page_size(kind); }
  {
    return inner_->page_size(kind);
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept
    requires requires(Device& d) { d.reserve(bytes, alignment); }
  {
    return hook_(call::reserve, [&, this] { return inner_->reserve(bytes, alignment); });
  }
  bool unreserve(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unreserve(p, bytes); }
  {
    return hook_(call::unreserve, [&, this] { return inner_->unreserve(p, bytes); });
  }
  bool create(std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires requires(Device& d) { d.create(bytes, kind, memory); }
  {
    return hook_(call::create, [&, this] { return inner_->create(bytes, kind, memory); });
  }
  /// The number of banks.
  [[nodiscard]] std::size_t count() const noexcept
    requires detail::has_several_banks<Device>
  {
    return inner_->count();
  }
  /// Creates memory in one bank.
  bool create_in(std::size_t bank, std::size_t bytes, page_kind kind, physical& memory) noexcept
    requires detail::has_several_banks<Device>
  {
    return hook_(call::create, [&, this] { return inner_->create_in(bank, bytes, kind, memory); });
  }
  bool destroy(const physical& memory) noexcept
    requires requires(Device& d) { d.destroy(memory); }
  {
    return hook_(call::destroy, [&, this] { return inner_->destroy(memory); });
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept
    requires requires(Device& d) { d.map(p, bytes, memory); }
  {
    return hook_(call::map, [&, this] { return inner_->map(p, bytes, memory); });
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.grant(p, bytes); }
  {
    return hook_(call::grant, [&, this] { return inner_->grant(p, bytes); });
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unmap(p, bytes); }
  {
    return hook_(call::unmap, [&, this] { return inner_->unmap(p, bytes); });
  }
  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    return hook_(call::synchronize, [&, this] { return inner_->synchronize(stream); });
  }

  [[nodiscard]] chunk_traits chunk_abilities() const noexcept
    requires requires(const Device& d) { d.chunk_abilities(); }
  {
    return inner_->chunk_abilities();
  }
  [[nodiscard]] std::int32_t process() const noexcept
    requires requires(const Device& d) { d.process(); }
  {
    return inner_->process();
  }
  bool export_memory(const physical& memory, importers who, shareable& name) noexcept
    requires requires(Device& d) { d.export_memory(memory, who, name); }
  {
    return hook_(call::export_memory, [&, this] { return inner_->export_memory(memory, who, name); });
  }
  [[nodiscard]] bool exported_name(const physical& memory, shareable& name) const noexcept
    requires requires(const Device& d) { d.exported_name(memory, name); }
  {
    return inner_->exported_name(memory, name);
  }
  bool allow(const shareable& name, std::int32_t importer) noexcept
    requires requires(Device& d) { d.allow(name, importer); }
  {
    return hook_(call::allow, [&, this] { return inner_->allow(name, importer); });
  }
  bool import_memory(const shareable& name, physical& memory) noexcept
    requires requires(Device& d) { d.import_memory(name, memory); }
  {
    return hook_(call::import_memory, [&, this] { return inner_->import_memory(name, memory); });
  }

  bool register_memory(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.register_memory(p, bytes); }
  {
    return hook_(call::register_memory, [&, this] { return inner_->register_memory(p, bytes); });
  }
  bool unregister_memory(void* p) noexcept
    requires requires(Device& d) { d.unregister_memory(p); }
  {
    return hook_(call::unregister_memory, [&, this] { return inner_->unregister_memory(p); });
  }

  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept
    requires requires(Device& d) { d.copy_to_host(to, from, bytes, stream); }
  {
    return hook_(call::copy_to_host, [&, this] { return inner_->copy_to_host(to, from, bytes, stream); });
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept
    requires requires(Device& d) { d.copy_to_device(to, from, bytes, stream); }
  {
    return hook_(call::copy_to_device, [&, this] { return inner_->copy_to_device(to, from, bytes, stream); });
  }

 protected:
  /// The hook, for a derived class.
  [[nodiscard]] Hook& hook() noexcept { return hook_; }

 private:
  Device* inner_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] Hook hook_;
};

/// Refers to a provider that it does not own, so that several allocators share one device.
///
///     tessera::provider::simulated_device device;
///     using shared = tessera::provider::provider_ref<tessera::provider::simulated_device>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, shared> weights{shared(device)};
///     tessera::caching_allocator<tessera::recipe::stitched, shared> activations{shared(device)};
///
///   Requires:  the provider outlives the reference
template <device_provider Provider>
class provider_ref : public provider_adaptor<Provider> {
 public:
  static constexpr bool is_thread_safe = detail::is_thread_safe<Provider>;
  using provider_adaptor<Provider>::provider_adaptor;
};
template <device_provider Provider>
provider_ref(Provider&) -> provider_ref<Provider>;

}  // namespace tessera::inline v0_1::provider
