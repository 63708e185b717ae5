// SPDX-License-Identifier: Apache-2.0
// Each concept rejects a type that lacks one member. Nothing runs here: the test passes if it compiles.
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

struct rounds {
  std::size_t block_size(std::size_t n) const noexcept { return n; }
  bool operator==(const rounds&) const = default;
};
struct rounds_and_may_throw {
  std::size_t block_size(std::size_t n) const { return n; }
  bool operator==(const rounds_and_may_throw&) const = default;
};
struct rounds_unasked {
  std::size_t block_size(std::size_t n) noexcept { return n; }
  bool operator==(const rounds_unasked&) const = default;
};
struct rounds_to_int {
  int block_size(std::size_t) const noexcept { return 0; }
  bool operator==(const rounds_to_int&) const = default;
};
struct rounds_misspelt {
  std::size_t blocksize(std::size_t n) const noexcept { return n; }
  bool operator==(const rounds_misspelt&) const = default;
};
struct rounds_incomparably {
  std::size_t block_size(std::size_t n) const noexcept { return n; }
};
static_assert(rounding_policy<rounds>);
static_assert(!rounding_policy<rounds_and_may_throw> && !rounding_policy<rounds_unasked> &&
              !rounding_policy<rounds_to_int>);
static_assert(!rounding_policy<rounds_misspelt> && !rounding_policy<rounds_incomparably> &&
              !rounding_policy<int>);

struct pools_without_count {
  std::size_t select(std::size_t) const noexcept { return 0; }
  bool operator==(const pools_without_count&) const = default;
};
static_assert(pools_policy<pool_together> && !pools_policy<pools_without_count> && !pools_policy<rounds>);

struct streams_without_crossing {
  static constexpr bool uses_events = false, reuses_across_streams = false;
  stream_id reuse_key(stream_id s) const noexcept { return s; }
  bool needs_event(stream_id, stream_id) const noexcept { return false; }
  bool should_poll_events(std::size_t) const noexcept { return true; }
  bool operator==(const streams_without_crossing&) const = default;
};
static_assert(streams_policy<reuse_across_streams<>> && !streams_policy<streams_without_crossing>);

struct streams_without_hold : tessera::detail::no_reuse_across_streams {
  static constexpr bool uses_events = false;
  stream_id reuse_key(stream_id s) const noexcept { return s; }
  bool operator==(const streams_without_hold&) const = default;
};
static_assert(streams_policy<reuse_immediately> && !streams_policy<streams_without_hold>);

struct split_without_oversize {
  bool may_serve(std::size_t, std::size_t) const noexcept { return true; }
  bool should_split(std::size_t, std::size_t) const noexcept { return true; }
  block_end allocated_end() const noexcept { return block_end::low; }
  bool operator==(const split_without_oversize&) const = default;
};
static_assert(split_policy<split_never<>> && !split_policy<split_without_oversize>);

struct pages_without_flag {
  page_order backing(std::size_t) const noexcept { return {}; }
  bool operator==(const pages_without_flag&) const = default;
};
static_assert(pages_policy<prefer_pages<page_preference::normal_only>> && !pages_policy<pages_without_flag>);

struct growth_without_limit {
  std::size_t segment_size(std::size_t n, const usage&) const noexcept { return n; }
  bool operator==(const growth_without_limit&) const = default;
};
static_assert(growth_policy<grow_exactly<>> && !growth_policy<growth_without_limit>);

struct eviction_without_candidates {
  std::size_t bytes_to_evict(eviction_trigger, const usage&) const noexcept { return 0; }
  bool should_evict(const idle_segment&) const noexcept { return true; }
  bool operator==(const eviction_without_candidates&) const = default;
};
static_assert(eviction_policy<evict_never> && !eviction_policy<eviction_without_candidates>);

struct recovery_without_reason {
  recovery_steps steps() const noexcept { return {}; }
  bool operator==(const recovery_without_reason&) const = default;
};
static_assert(recovery_policy<recover_never> && !recovery_policy<recovery_without_reason>);

struct no_alias {};
static_assert(recipe::well_formed<pytorch<>> && !recipe::well_formed<no_alias> &&
              !detail::has_rounding<no_alias>);

struct device_that_throws {
  void* acquire(std::size_t) { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return 0; }
  std::size_t granularity() const noexcept { return 512; }
};
struct plain_device {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return 0; }
  std::size_t granularity() const noexcept { return 512; }
};
static_assert(!device_provider<device_that_throws> && device_provider<plain_device>);
static_assert(!event_provider<plain_device> && !paged_provider<plain_device>);
static_assert(!event_provider<provider_ref<plain_device>> && !paged_provider<provider_ref<plain_device>>);
static_assert(!virtual_memory_provider<provider_ref<plain_device>> &&
              !sharing_provider<provider_ref<plain_device>> &&
              !registering_provider<provider_ref<plain_device>>);
static_assert(!detail::is_thread_safe<plain_device> && !detail::is_thread_safe<provider_ref<plain_device>>);
static_assert(detail::is_thread_safe<host_pinned> && detail::is_thread_safe<provider_ref<host_pinned>>);

/// Each type lacks one function of virtual memory.
struct silent_about_access : simulated_device {
 private:
  using simulated_device::map_grants_access;
};
struct silent_about_sizes : simulated_device {
 private:
  using simulated_device::unmap_wants_size;
};
struct without_page_size : simulated_device {
  void page_size() const noexcept {}
};
struct without_handles : simulated_device {
  using physical = void;
};
struct unmaps_by_address_alone : simulated_device {
  bool unmap(void*) noexcept { return false; }
};
struct synchronizes_all : simulated_device {
  bool synchronize() noexcept { return true; }
};
struct without_a_process_number : simulated_device {
  void process() const noexcept {}
};
static_assert(virtual_memory_provider<simulated_device> && sharing_provider<simulated_device>);
static_assert(!virtual_memory_provider<plain_device> && !virtual_memory_provider<silent_about_access> &&
              !virtual_memory_provider<silent_about_sizes> && !virtual_memory_provider<without_page_size> &&
              !virtual_memory_provider<without_handles> &&
              !virtual_memory_provider<unmaps_by_address_alone> &&
              !virtual_memory_provider<synchronizes_all>);
static_assert(virtual_memory_provider<without_a_process_number> &&
              !sharing_provider<without_a_process_number>);

struct orders_and_may_throw : simulated_device {
  std::uint64_t position(stream_id) { return 0; }
};
struct waits_for_all : simulated_device {
  bool make_wait(stream_id) noexcept { return true; }
};
static_assert(ordering_provider<simulated_device> && ordering_provider<host_pinned> &&
              ordering_provider<provider_ref<simulated_device>>);
static_assert(!ordering_provider<plain_device> && !ordering_provider<provider_ref<plain_device>> &&
              !ordering_provider<orders_and_may_throw> && !ordering_provider<waits_for_all>);

struct brings_memory_in : plain_device {
  bool register_memory(void*, std::size_t) noexcept { return false; }
  bool unregister_memory(void*) noexcept { return false; }
};
static_assert(!registering_provider<plain_device> && registering_provider<brings_memory_in> &&
              registering_provider<provider_ref<brings_memory_in>>);

// Variations: the order does not matter, and axes that are not named stay.
using one = with<pytorch<>, split_never<>, evict_never>;
using other = with<pytorch<>, evict_never, split_never<>>;
static_assert(std::is_same_v<one::split, other::split> && std::is_same_v<one::eviction, other::eviction>);
static_assert(std::is_same_v<one::rounding, pytorch_family::native::rounding> && recipe::well_formed<one>);

}  // namespace
