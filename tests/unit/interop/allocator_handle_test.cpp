// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;
using pinned_memory = caching_allocator<pinned_packed, host_pinned>;

static_assert(!detail::allocator_handle<torch> &&
              !detail::allocator_handle<locked<caching_allocator<pytorch<>, simulated_device>>>);
static_assert(detail::allocator_handle<detail::allocator_ref<torch>> &&
              detail::allocator_handle<shared_allocator<torch>>);
static_assert(std::is_same_v<detail::handle_of<torch>, detail::allocator_ref<torch>>);
static_assert(std::is_same_v<detail::handle_of<shared_allocator<torch>>, shared_allocator<torch>>);
static_assert(std::is_same_v<detail::allocator_of<torch>, torch>);
static_assert(std::is_same_v<detail::allocator_of<shared_allocator<torch>>, torch>);

static_assert(detail::stream_allocator<torch> &&
              detail::stream_allocator<locked<caching_allocator<pytorch<>, simulated_device>>>);
static_assert(detail::stream_allocator<per_stream<caching_allocator<pytorch<>, simulated_device>>>);
static_assert(
    detail::stream_allocator<background_reclaiming<caching_allocator<pytorch<>, simulated_device>>>);
static_assert(detail::stream_allocator<waiting<locked<caching_allocator<pytorch<>, simulated_device>>>>);
static_assert(
    detail::stream_allocator<configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>>>);
static_assert(detail::stream_allocator<configured_pinned<pytorch_family::pinned_family, host_pinned>>);
static_assert(detail::stream_allocator<shared_allocator<torch>>);
static_assert(!detail::stream_allocator<per_device<locked<caching_allocator<pytorch<>, simulated_device>>>>);
static_assert(
    detail::stream_allocator<per_device<locked<caching_allocator<pytorch<>, simulated_device>>>::front_type>);
static_assert(!detail::stream_allocator<cuda_mempool<caching_allocator<cuda_async, simulated_device>>> &&
              !detail::stream_allocator<int>);

// A provider declares host visibility. Adaptors, front ends and allocators over it inherit it.
static_assert(detail::is_host_visible<host_pinned> && !detail::is_host_visible<simulated_device>);
static_assert(detail::is_host_visible<provider_ref<host_pinned>> &&
              !detail::is_host_visible<provider_ref<simulated_device>>);
static_assert(detail::is_host_visible<limiting<host_pinned>> && detail::is_host_visible<timed<host_pinned>>);
static_assert(detail::is_host_visible<host_registering<host_pinned, host_pinned>>);
struct registering_device : simulated_device {
  bool register_memory(void*, std::size_t) noexcept { return true; }
  bool unregister_memory(void*) noexcept { return true; }
};
static_assert(detail::is_host_visible<host_registering<host_pinned, registering_device>>);
static_assert(!detail::is_host_visible<host_registering<simulated_device, host_pinned>>);

static_assert(detail::host_allocator<pinned_memory> && !detail::host_allocator<torch>);
static_assert(detail::host_allocator<locked<caching_allocator<pinned_packed, host_pinned>>>);
static_assert(!detail::host_allocator<locked<caching_allocator<pytorch<>, simulated_device>>>);
static_assert(detail::host_allocator<per_stream<caching_allocator<pinned_packed, host_pinned>>>);
static_assert(detail::host_allocator<background_reclaiming<caching_allocator<pinned_packed, host_pinned>>>);
static_assert(detail::host_allocator<waiting<locked<caching_allocator<pinned_packed, host_pinned>>>>);
static_assert(detail::host_allocator<configured<pytorch_family::pinned_family,
                                                locked<caching_allocator<pytorch_pinned<>, host_pinned>>>>);
static_assert(!detail::host_allocator<configured<pytorch_family::pinned_family,
                                                 caching_allocator<pytorch_pinned<>, simulated_device>>>);
static_assert(detail::host_allocator<
              configured_pinned<torch_npu_family::pinned_family, host_pinned, registering_device>>);
static_assert(!detail::host_allocator<configured_pinned<pytorch_family::pinned_family, simulated_device>>);
static_assert(detail::host_allocator<shared_allocator<pinned_memory>> &&
              !detail::host_allocator<shared_allocator<torch>>);

TEST(allocator_ref, stands_for_one_allocator) {
  torch a, b;
  const detail::allocator_ref<torch> to_a(a), again(a), to_b(b), to_none;
  EXPECT_EQ(&to_a.get(), &a);
  EXPECT_EQ(to_a, again);
  EXPECT_NE(to_a, to_b);
  EXPECT_NE(to_a, to_none);
  detail::allocator_ref<torch> assigned;
  assigned = to_b;
  EXPECT_EQ(&assigned.get(), &b);
}

}  // namespace
