// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/provider/provider.hpp>

/// What a provider may have besides what a caching_allocator asks for: capabilities for front ends, extensions and
/// other libraries.

namespace tessera::inline v0_1::provider {

/// The processes that may import exported memory.
enum class importers : unsigned char {
  listed,  ///< the processes listed with allow()
  any
};

/// What the physical memory that a provider creates can do, as c.chunk_abilities() says.
struct chunk_traits {
  bool exports_file = false;    ///< other processes of this machine can import it
  bool exports_fabric = false;  ///< other machines of the device's fabric can import it
  bool rdma = false;            ///< network devices can read and write it directly
  bool operator==(const chunk_traits&) const = default;
};

/// Shares physical memory between processes. Each process has its own handle, and destroys it.
///
/// | expression                 | returns      | effect                                                     |
/// |----------------------------|--------------|------------------------------------------------------------|
/// | D::shareable               |              | a name of exported memory, valid in all processes;         |
/// |                            |              | trivially copyable                                         |
/// | c.process()                | std::int32_t | the number by which other processes list this process; may |
/// |                            |              | be valid only inside one PID namespace                     |
/// | d.export_memory(m, who, s) | bool         | sets `s` to a name of `m`, which was created here; once    |
/// |                            |              | for each `m`                                               |
/// | d.allow(s, process)        | bool         | lists an importer of memory that was exported here to      |
/// |                            |              | listed processes                                           |
/// | d.import_memory(s, m)      | bool         | sets `m` to memory that another process exported and still |
/// |                            |              | holds; may wait for that process, for a bounded time. Once |
/// |                            |              | for each name, until the handle is destroyed               |
///
/// Rules:
///   "processes have different numbers"
///   "created memory can be exported"
///   "export_memory refuses exported memory"
///   "export_memory refuses imported memory"
///   "the exporter can list a process"
///   "allow refuses every process except the exporter"
///   "allow refuses memory that any process may import"
///   "a listed process can import"
///   "any process can import memory that is exported to any"
///   "import_memory refuses a process that is not listed"
///   "import_memory refuses memory of the same process"
///   "import_memory refuses memory that the exporter destroyed"
///   "import_memory refuses memory of which a handle was imported"
///   "exported memory can be destroyed"
///   "each process can destroy its own handle"
///   "imported memory can be used after the exporter destroyed its handle"
///   "memory is freed after all processes have destroyed it"
template <typename D>
concept sharing_provider =
    virtual_memory_provider<D> && std::is_trivially_copyable_v<typename D::shareable> &&
    requires(D& d, const D& c, typename D::physical& m, const typename D::physical& made,
             typename D::shareable& s, const typename D::shareable& exported, importers who,
             std::int32_t process) {
      { c.process() } noexcept -> std::same_as<std::int32_t>;
      { d.export_memory(made, who, s) } noexcept -> std::same_as<bool>;
      { d.allow(exported, process) } noexcept -> std::same_as<bool>;
      { d.import_memory(exported, m) } noexcept -> std::same_as<bool>;
    };

/// Registers the user's host memory. Transfers then use it like the provider's memory.
///
/// | expression                  | returns | effect                                                         |
/// |-----------------------------|---------|----------------------------------------------------------------|
/// | d.register_memory(p, bytes) | bool    | false if `p` is no multiple of the host's page, or a part is   |
/// |                             |         | registered or already belongs to the provider                  |
/// | d.unregister_memory(p)      | bool    | false if no registered memory begins at `p`                    |
///
/// Rules:
///   "the user's memory can be registered"
///   "unregistered memory can be registered again"
///   "register_memory refuses registered memory"
///   "register_memory refuses an address inside a page"
///   "unregister_memory accepts registered memory"
///   "unregister_memory refuses an address inside registered memory"
///   "unregister_memory refuses memory that is not registered"
///   "unregister_memory changes no other registration"
template <typename D>
concept registering_provider = device_provider<D> && requires(D& d, void* p, std::size_t bytes) {
  { d.register_memory(p, bytes) } noexcept -> std::same_as<bool>;
  { d.unregister_memory(p) } noexcept -> std::same_as<bool>;
};

/// Copies between the device's memory and host memory, asynchronously on a stream.
///
/// | expression                         | returns | effect                                                  |
/// |------------------------------------|---------|---------------------------------------------------------|
/// | d.copy_to_host(to, from, bytes, s) | bool    | submits to `s` a copy from the device's memory `from`   |
/// | d.copy_to_device(to, from, bytes, s) | bool  | submits to `s` a copy from host memory `from`           |
///
/// The memory must stay until the copy is done. Callers learn that from an event, or from synchronize(s).
///
/// Rules:
///   "copy_to_device accepts memory of the device"
///   "copy_to_host accepts memory of the device"
///   "an event is ready after a copy"
///   "a copy to the device and back keeps the bytes", if D::has_contents is true
///   "a copy changes one segment, which keeps it", too
///   "a copy changes one mapping, which keeps it", too
///   "copies use registered memory"
///   "copies refuse device addresses without memory"
///   "copies refuse a stream that does not exist", if the provider knows its streams
template <typename D>
concept copying_provider =
    event_provider<D> && requires(D& d, void* to, const void* from, std::size_t bytes, stream_id s) {
      { d.copy_to_host(to, from, bytes, s) } noexcept -> std::same_as<bool>;
      { d.copy_to_device(to, from, bytes, s) } noexcept -> std::same_as<bool>;
    };

/// A call of a provider that has an effect, or a query. Calls that return constants are not listed.
class provider_call {
 public:
  /// The calls, by the names of a provider's members.
  enum kind : unsigned char {
    // The calls from here to synchronize may take long.
    acquire,
    release,
    reserve,
    unreserve,
    create,
    destroy,
    map,
    grant,
    unmap,
    record,
    wait,
    synchronize,
    // The calls up to copy_to_device may fail.
    make_wait,
    reclaim,
    export_memory,
    allow,
    import_memory,
    register_memory,
    unregister_memory,
    enable_peer_access,  // of simulated_device alone
    copy_to_host,
    copy_to_device,
    // The calls below neither take long nor fail.
    query,
    discard,
    has_stream,
    position,
    is_done,
    is_ordered_after
  };

  /// Takes the kind, so that a hook may compare with one.
  constexpr provider_call(kind value) noexcept : kind_(value) {}
  /// Lets a hook write a switch over the kinds.
  constexpr operator kind() const noexcept { return kind_; }

  /// The name of the member, for messages; it lives as long as the program.
  [[nodiscard]] constexpr const char* name() const noexcept { return names[kind_]; }
  /// Whether the call may take long, because the device's driver executes it.
  [[nodiscard]] constexpr bool may_take_long() const noexcept { return kind_ <= synchronize; }
  /// Whether the contract of a provider allows the call to fail. A failed call returns false or null.
  [[nodiscard]] constexpr bool may_fail() const noexcept { return kind_ <= copy_to_device; }

 private:
  static constexpr const char* names[] = {"acquire",
                                          "release",
                                          "reserve",
                                          "unreserve",
                                          "create",
                                          "destroy",
                                          "map",
                                          "grant",
                                          "unmap",
                                          "record",
                                          "wait",
                                          "synchronize",
                                          "make_wait",
                                          "reclaim",
                                          "export_memory",
                                          "allow",
                                          "import_memory",
                                          "register_memory",
                                          "unregister_memory",
                                          "enable_peer_access",
                                          "copy_to_host",
                                          "copy_to_device",
                                          "query",
                                          "discard",
                                          "has_stream",
                                          "position",
                                          "is_done",
                                          "is_ordered_after"};

  kind kind_;
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

template <typename D>
concept event_counting_provider = provider::device_provider<D> && requires(const D& d) {
  { d.live_events() } noexcept -> std::same_as<std::size_t>;
};

/// Whether the memory at an address stays with an adaptor when it is released, which may give it again.
template <typename D>
[[nodiscard]] bool keeps_released(const D& device, const void* p) noexcept {
  if constexpr (requires { device.keeps_released(p); }) return device.keeps_released(p);
  return false;
}

// The constants that a provider declares, or their defaults.
template <typename D>
inline constexpr bool is_thread_safe = requires { requires bool(D::is_thread_safe); };

template <typename D>
inline constexpr bool is_host_visible = requires { requires bool(D::is_host_visible); };

template <typename D>
inline constexpr bool completion_may_lag = requires { requires bool(D::completion_may_lag); };

template <typename D>
inline constexpr bool trusts_handles = requires { requires bool(D::trusts_handles); };
template <typename D>
inline constexpr bool copies_page_locked = requires { requires bool(D::copies_page_locked); };

template <typename D>
inline constexpr bool has_contents = !requires { requires !bool(D::has_contents); };

}  // namespace tessera::inline v0_1::detail
