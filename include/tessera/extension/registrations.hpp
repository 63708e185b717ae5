// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension_set.hpp>

namespace tessera::inline v0_1::extension {

/// Chooses what sleep does with registered memory [tessera/extension/sleep_mode.hpp].
enum class registered_at_sleep : unsigned char {
  stays,  ///< it stays mapped; sleep_result::kept counts it
  goes    ///< it is unmapped, too. on_unmap is called before, and on_map after the wake
};

/// A registry that hears nothing, for programs that only need their registered memory to stay.
struct no_registry {
  /// Does nothing.
  static constexpr void on_map(void*, std::size_t) noexcept {}
  /// Does nothing.
  static constexpr void on_unmap(void*, std::size_t) noexcept {}
};

/// Keeps memory that others know in its place, and tells a registry of the program which memory there is. Choose it if
/// NCCL, UCX, RDMA verbs or another process use memory of the allocator, because they know its physical pages.
///
/// `register_memory` and `deregister_memory` of its door count: memory that was registered twice is deregistered twice.
/// The segments or chunks under registered bytes stay where they are. They are not released, evicted, or moved to other
/// addresses. Freed blocks there serve later requests, at addresses that are registered already.
///
/// A registry has on_map(p, bytes) and on_unmap(p, bytes), both noexcept, as a cache of registrations needs them. Each
/// call is about a whole segment, or in ranges about a whole chunk. on_map comes before a block uses the memory, on_unmap
/// before the device is asked to take it, while it is still there. If the device then fails, on_map follows. Before the
/// allocator ends, on_unmap is called for all its memory. The registry must not use the allocator; otherwise the program
/// aborts.
///
///     struct network {
///       void on_map(void* p, std::size_t bytes) noexcept { std::printf("new at %p: %zu bytes\n", p, bytes); }
///       void on_unmap(void* p, std::size_t) noexcept { std::printf("forget %p\n", p); }
///     };
///     using watch = tessera::extension::registrations<network>;
///     tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, watch> sends;
///     void* const buffer = sends.allocate(4_MiB);
///     if (!sends.get<watch>().register_memory(buffer, 4_MiB)) return;
///     sends.deallocate(buffer);
///     sends.trim();  // the memory stays, because it is registered
///     if (!sends.get<watch>().deregister_memory(buffer, 4_MiB)) return;
///
///   Cost:    nothing for a hit or a free; a search by hash for each segment or chunk that could go back
///   Source:  UCX's registration cache, NCCL's ncclCommRegister
template <typename Registry = no_registry>
struct registrations {
  /// Keeps would_fit() from compiling, because that does not know which memory stays.
  static constexpr bool holds_memory = true;
  static_assert(
      requires(Registry& r, void* p, std::size_t bytes) {
        { r.on_map(p, bytes) } noexcept;
        { r.on_unmap(p, bytes) } noexcept;
      },
      "registrations<T>: T has member functions on_map(void*, size_t) noexcept and on_unmap(void*, size_t) "
      "noexcept");
  /// The object that hears which memory comes and goes; the allocator takes it over.
  Registry registry = Registry();
  registered_at_sleep at_sleep = registered_at_sleep::stays;  ///< what sleep_mode does with registered memory

  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

/// The registered memory of one allocator.
template <typename Registry>
template <typename Core>
class registrations<Registry>::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using allocator = typename Core::allocator;

 public:
  state(allocator& in, registrations&& from) noexcept
      : in_(in), registry_(std::move(from.registry)), at_sleep_(from.at_sleep) {}
  state(allocator& in, const registrations& from)
      : in_(in), registry_(from.registry), at_sleep_(from.at_sleep) {}
  state& operator=(state&&) = delete;

  // Calls of the door.

  [[nodiscard]] outcome register_memory(std::uintptr_t address, std::size_t bytes) noexcept {
    if (bytes == 0) return {"there are no bytes to register"};
    if (bytes > max_request) return {"the bytes reach beyond the mapped memory"};
    const tessera::detail::heap_unit first = memory().unit_at(address);
    if (first.bytes == 0) return {"the address is no mapped memory of this allocator"};
    const std::uintptr_t end = address + bytes;
    std::uintptr_t covered = first.end();
    for (std::size_t more = 1; covered < end && more > 0; covered += more) more = bytes_from(covered);
    if (covered < end) return {"the bytes reach beyond the mapped memory"};
    if (registration* const known = find(address, bytes)) {
      ++known->count;
      return {};
    }
    if (!registrations_.reserve(1) || !by_address_.reserve_one()) return {no_host_memory};
    for (std::uintptr_t at = first.address; at < end; at += bytes_from(at)) {
      if (hold(at)) continue;
      let_go(first.address, at);
      return {no_host_memory};
    }
    registration& fresh = *registrations_.take();
    fresh = {address, bytes, 1, first.address, by_address_.remove(address)};
    by_address_.insert(address, fresh);
    access::extensions(in_).on_rearrange();
    return {};
  }
  [[nodiscard]] outcome deregister_memory(std::uintptr_t address, std::size_t bytes) noexcept {
    registration* const known = find(address, bytes);
    if (known == nullptr) return {"no registration has this address and this size"};
    if (--known->count > 0) return {};
    let_go(known->first, address + bytes);
    erase(*known);
    access::extensions(in_).on_rearrange();
    return {};
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] Registry& registry() noexcept { return registry_; }
  [[nodiscard]] const Registry& registry() const noexcept { return registry_; }

  // Questions of the core.

  [[nodiscard]] bool may_unmap(std::uintptr_t address, std::size_t) const noexcept {
    return bytes_ == 0 || held_.find(address) == nullptr;
  }
  [[nodiscard]] bool may_sleep(std::uintptr_t address, std::size_t bytes) const noexcept {
    return at_sleep_ == registered_at_sleep::goes || may_unmap(address, bytes);
  }
  void on_event(const allocator_event& e) noexcept {
    using enum allocator_event::action;
    switch (e.what) {
      case segment_alloc:
      case segment_map:
      case wake: return note_map(e.address, e.bytes);
      case segment_free:
      case sleep: return note_unmap(e.address, e.bytes);
      case segment_unmap:
        if (bytes_from(e.address) > 0) note_unmap(e.address, e.bytes);  // otherwise it sleeps
        return;
      default: return;
    }
  }
  void on_end() noexcept {
    memory().for_each_unit([this](const auto& each) { note_unmap(each.address, each.bytes); });
  }
  void on_trim() noexcept {
    held_nodes_.purge();
    registrations_.purge();
  }
  void check_thread() const noexcept {
    calls_.check_thread("a registry must not use the allocator that calls it");
  }
  [[nodiscard]] const char* audit() const noexcept {
    std::size_t found = 0;
    memory().for_each_unit(
        [&](const auto& each) { found += may_unmap(each.address, each.bytes) ? 0 : each.bytes; });
    if (at_sleep_ == registered_at_sleep::goes && found < bytes_) return nullptr;  // the rest may sleep
    return found == bytes_ ? nullptr : "registered memory stays where it is";
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return held_nodes_.metadata_bytes() + held_.metadata_bytes() + registrations_.metadata_bytes() +
           by_address_.metadata_bytes();
  }

 private:
  static constexpr const char* no_host_memory = "host memory ran out";
  /// A segment or chunk with registered bytes.
  struct held_part {
    std::uintptr_t address;
    std::size_t bytes;
    std::size_t count;  ///< registrations that have bytes of it
    [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  };
  struct registration {
    std::uintptr_t address;
    std::size_t bytes;
    std::size_t count;
    std::uintptr_t first;  ///< address of its first part
    registration* next;    ///< of another size at this address
    [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  };

  void note_map(std::uintptr_t address, std::size_t bytes) noexcept {
    calls_.call([&] { registry_.on_map(reinterpret_cast<void*>(address), bytes); });
  }
  void note_unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    calls_.call([&] { registry_.on_unmap(reinterpret_cast<void*>(address), bytes); });
  }

  [[nodiscard]] auto memory() const noexcept { return access::map(in_); }
  /// Bytes of the part that begins at an address: of a chunk if there is one, or of a segment.
  [[nodiscard]] std::size_t bytes_from(std::uintptr_t address) const noexcept {
    return memory().unit_bytes(address);
  }

  // Registered memory.

  /// Counts a registration of the part that begins at an address. Returns false if host memory ran out.
  [[nodiscard]] bool hold(std::uintptr_t address) noexcept {
    if (held_part* const known = held_.find(address)) {
      ++known->count;
      return true;
    }
    if (!held_nodes_.reserve(1) || !held_.reserve_one()) return false;
    held_part& fresh = *held_nodes_.take();
    fresh = {address, bytes_from(address), 1};
    held_.insert(address, fresh);
    bytes_ += fresh.bytes;
    return true;
  }
  /// Removes one registration of each part from `first` to `end`. Some may sleep.
  void let_go(std::uintptr_t first, std::uintptr_t end) noexcept {
    while (first < end) {
      held_part& known = *held_.find(first);
      first += known.bytes;
      if (--known.count > 0) continue;
      bytes_ -= known.bytes;
      (void)held_.remove(known.address);
      held_nodes_.give_back(&known);
    }
  }
  [[nodiscard]] registration* find(std::uintptr_t address, std::size_t bytes) const noexcept {
    registration* found = by_address_.find(address);
    while (found != nullptr && found->bytes != bytes) found = found->next;
    return found;
  }
  void erase(registration& gone) noexcept {
    registration* first = by_address_.remove(gone.address);
    registration** at = &first;
    while (*at != &gone) at = &(*at)->next;
    *at = gone.next;
    if (first != nullptr) by_address_.insert(first->address, *first);
    registrations_.give_back(&gone);
  }

  allocator& in_;
  Registry registry_;
  registered_at_sleep at_sleep_;
  tessera::detail::user_calls calls_;
  std::size_t bytes_ = 0;  // of the held parts
  tessera::detail::slab<held_part> held_nodes_;
  tessera::detail::key_map<held_part> held_;
  tessera::detail::slab<registration> registrations_;
  tessera::detail::key_map<registration> by_address_;
};

/// What `allocator.get<registrations<T>>()` returns.
template <typename Registry>
template <typename Allocator>
class registrations<Registry>::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Registers bytes of mapped memory, of one block or of several. Until they are deregistered, their segments or chunks
  /// stay where they are. The allocator does not call the network: do that after this call worked.
  ///   Returns:  why nothing changed: the bytes are not mapped memory of this allocator, or host memory ran out. The
  ///             memory of a plan [tessera/plan/planned.hpp] is not of this allocator, and never moves before its end
  ///   Cost:     linear in the segments or ranges, and in the registered chunks
  [[nodiscard]] outcome register_memory(const void* p, std::size_t bytes) noexcept {
    return in_->template change_extension<registrations>(
        [=](auto& s) { return s.register_memory(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }
  /// Takes one registration of these bytes back. Call it after the network has forgotten them.
  ///   Returns:  why nothing changed, if the same address and size were not registered, or not that often
  ///   Cost:     linear in the registered chunks
  [[nodiscard]] outcome deregister_memory(const void* p, std::size_t bytes) noexcept {
    return in_->template change_extension<registrations>(
        [=](auto& s) { return s.deregister_memory(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }
  /// Bytes of the segments and chunks that stay because they have registered bytes.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return in_->template visit_extension<registrations>([](const auto& s) { return s.bytes(); });
  }
  /// Calls f(registry), with the lock of a front end held. f must not use the allocator.
  template <typename F>
  decltype(auto) with(F f) {
    return in_->template visit_extension<registrations>(
        [&f](auto& s) -> decltype(auto) { return f(s.registry()); });
  }

 private:
  Allocator* in_;
};

}  // namespace tessera::inline v0_1::extension
