// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using extension::stream_filter, extension::scope_kind;

template <typename Recipe>
using allocator_of = caching_allocator<Recipe, simulated_device, extension::private_pools>;
using allocator = allocator_of<pytorch<>>;
using newest_first = allocator_of<passthrough>;
[[nodiscard]] auto pools_of(auto& in) { return in.template get<extension::private_pools>(); }
/// The pool that serves a request of a stream.
[[nodiscard]] pool_id destination(auto& in, stream_id stream) {
  return {detail::core_access::manager(in).group_for(stream).number};
}

/// Counts the calls of a filter, which selects even streams.
std::size_t calls = 0;
const stream_filter even(
    [](void*, stream_id stream) noexcept {
      ++calls;
      return stream.handle % 2 == 0;
    },
    nullptr);

struct open_scope {
  pool_id pool;
  stream_filter filter;
};

/// Opens and closes scopes at random, and asks a list of them for the one that decides.
template <typename Allocator>
void compare_with_a_list(bool prefers_newest) {
  std::mt19937 random(7);
  Allocator in;
  auto pools = pools_of(in);
  std::vector<pool_id> all;
  std::vector<open_scope> open;
  for (int i = 0; i < 40; ++i) all.push_back(pools.create());
  for (int step = 0; step < 20000; ++step) {
    const pool_id pool = all[random() % all.size()];
    if (pools.close(pool)) {
      std::erase_if(open, [pool](const open_scope& s) { return s.pool == pool; });
    } else {
      const auto kind = random() % 16;
      const stream_filter filter = kind == 0  ? stream_filter{}
                                   : kind < 3 ? even
                                              : stream_filter(stream_id{random() % 12});
      ASSERT_TRUE(pools.open(pool, filter, random() % 2 == 0 ? scope_kind::capture : scope_kind::plain));
      open.push_back({pool, filter});
    }
    const stream_id stream{random() % 12};
    pool_id expected{};
    for (const open_scope& s : open) {
      if (s.filter.selects(stream) && (prefers_newest || expected == pool_id{})) expected = s.pool;
    }
    ASSERT_EQ(destination(in, stream), expected) << step;
    ASSERT_EQ(detail::core_access::extensions(in).uses_fast_path(), open.empty());
    if (step % 64 == 0) {
      Allocator copies;
      ASSERT_TRUE(copies.adopt(in));
      for (std::size_t s = 0; s < 12; ++s)
        ASSERT_EQ(destination(copies, stream_id{s}), destination(in, stream_id{s}));
    }
  }
}
TEST(open_scopes, direct_a_stream_to_the_oldest_that_selects_it) { compare_with_a_list<allocator>(false); }
TEST(open_scopes, direct_a_stream_to_the_newest_if_the_recipe_says_so) {
  compare_with_a_list<newest_first>(true);
}

TEST(open_scopes, ask_no_function_of_a_scope_that_is_younger_than_the_answer) {
  allocator in;
  auto pools = pools_of(in);
  const pool_id first = pools.create();
  ASSERT_TRUE(pools.open(first, stream_id{2}, scope_kind::capture));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pools.open(pools.create(), even, scope_kind::capture));
  calls = 0;
  EXPECT_EQ(destination(in, stream_id{2}), first);
  EXPECT_EQ(calls, 0u);
  (void)destination(in, stream_id{4});
  EXPECT_EQ(calls, 1u) << "the oldest selects it";
}
TEST(open_scopes, ask_no_function_of_a_scope_that_is_older_than_the_answer) {
  newest_first in;
  auto pools = pools_of(in);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pools.open(pools.create(), even, scope_kind::capture));
  const pool_id last = pools.create();
  ASSERT_TRUE(pools.open(last, stream_id{2}, scope_kind::capture));
  calls = 0;
  EXPECT_EQ(destination(in, stream_id{2}), last);
  EXPECT_EQ(calls, 0u);
  (void)destination(in, stream_id{4});
  EXPECT_EQ(calls, 1u) << "the newest of the others selects it";
}

/// Opens or closes the scope of a pool when memory is short.
struct changes_scope {
  allocator_of<pytorch<>>& in;
  pool_id pool;
  bool opens;
  static bool run(void* self) noexcept {
    auto& me = *static_cast<changes_scope*>(self);
    auto pools = pools_of(me.in);
    EXPECT_TRUE(me.opens ? pools.open(me.pool, scope_kind::plain) : pools.close(me.pool));
    return false;
  }
};

TEST(open_scopes, that_close_during_a_miss_leave_the_request_its_pool) {
  allocator_of<pytorch<>> in;
  auto pools = pools_of(in);
  changes_scope closes{in, pools.create(), false};
  ASSERT_TRUE(pools.open(closes.pool, scope_kind::plain));
  ASSERT_TRUE(in.on_pressure(&changes_scope::run, &closes));
  void* const p = in.allocate(5_MiB);
  EXPECT_EQ(pools.usage_of(closes.pool).reserved, 20_MiB);
  EXPECT_EQ(pools.take_back(closes.pool).blocks, 0u);
  ASSERT_TRUE(pools.open(closes.pool, scope_kind::plain));
  EXPECT_TRUE(in.reuse_in_place(p, 5_MiB, {}));
}

TEST(open_scopes, that_open_during_a_miss_do_not_get_its_request) {
  allocator_of<pytorch<>> in;
  auto pools = pools_of(in);
  changes_scope opens{in, pools.create(), true};
  ASSERT_TRUE(in.on_pressure(&changes_scope::run, &opens));
  void* const p = in.allocate(5_MiB);
  EXPECT_EQ(pools.usage_of(opens.pool).reserved, 0u);
  ASSERT_TRUE(pools.close(opens.pool));
  EXPECT_TRUE(in.reuse_in_place(p, 5_MiB, {}));
}

/// A device that knows its streams.
struct device_with_streams : simulated_device {
  using simulated_device::simulated_device;
  [[nodiscard]] static bool has_stream(stream_id) noexcept { return true; }
};
/// The calls during a capture that it forbids. Memory that was never mapped may be destroyed, as growth that fails halfway does.
struct forbidden_calls {
  bool is_capturing = false;
  std::string names;
};
struct note_forbidden {
  forbidden_calls* to;

  template <typename F>
  auto operator()(provider::provider_call call, F f) const noexcept {
    using enum provider::provider_call::kind;
    for (const auto forbidden :
         {release, unmap, unreserve, reclaim, record, query, wait, synchronize, has_stream}) {
      if (to->is_capturing && call == forbidden) to->names.append(call.name()).append(" ");
    }
    return f();
  }
};

/// The forbidden calls in a capture on a full device. Requests hit, miss and fail there, frees have recorded streams, and the
/// cache is emptied.
template <typename Recipe>
struct capture_on_a_small_device {
  forbidden_calls forbidden;
  device_with_streams device{simulated_device::options{.capacity = 1_GiB}};
  caching_allocator<Recipe, provider_adaptor<device_with_streams, note_forbidden>, extension::private_pools>
      in{provider_adaptor(device, note_forbidden{&forbidden})};
  bool served = false;

  /// Frees a block that another stream uses.
  void free_used(void* p) {
    (void)in.record_stream(p, stream_id{2});
    in.deallocate(p);
  }
  [[nodiscard]] std::string calls() {
    in.deallocate(in.allocate(200_MiB));
    void* const used = in.allocate(1_MiB);
    (void)in.record_stream(used, stream_id{2});
    device.submit(stream_id{2}, 1'000'000'000'000);
    free_used(in.allocate(1_MiB));
    const pool_id pool = pools_of(in).create();
    EXPECT_TRUE(pools_of(in).open(pool, scope_kind::capture));
    forbidden.is_capturing = true;
    void* const a = in.allocate(300_MiB);
    void* const b = in.allocate(320_MiB);
    in.deallocate(a);
    in.deallocate(b);
    void* const large = in.try_allocate(600_MiB);
    served = large != nullptr;
    EXPECT_EQ(in.try_allocate(500_MiB, stream_id{4}), nullptr);
    void* const after_failure = in.try_allocate(15_MiB, stream_id{4});
    EXPECT_NE(after_failure, nullptr);
    in.deallocate(used);
    free_used(in.allocate(1_MiB, stream_id{1}));
    if constexpr (requires { in.try_deallocate_on(a, stream_id{}); }) {
      EXPECT_TRUE(in.try_deallocate_on(in.allocate(1_MiB), stream_id{3}));
    }
    (void)in.process_events();
    in.evict_idle();
    in.trim();
    pools_of(in).trim(pool);
    forbidden.is_capturing = false;
    EXPECT_TRUE(pools_of(in).close(pool));
    EXPECT_EQ(in.audit(), nullptr);
    for (void* const p : {large, after_failure}) in.deallocate(p);
    EXPECT_TRUE(pools_of(in).release(pool));
    in.trim();
    EXPECT_EQ(device.used(), in.current_usage().reserved);
    EXPECT_EQ(in.current_usage().allocated + in.current_usage().pending(), 0u);
    return forbidden.names;
  }
};
template <typename... Recipe>
void expect_no_forbidden_calls() {
  const auto expect_none = [](const std::string& made, const char* recipe) { EXPECT_EQ(made, "") << recipe; };
  (expect_none(capture_on_a_small_device<Recipe>().calls(), typeid(Recipe).name()), ...);
}

/// A device that may fail to take memory back.
struct keeping_device : simulated_device {
  using simulated_device::simulated_device;
  bool keeps = false;
  std::uint64_t asked = 0;
  [[nodiscard]] bool destroy(const physical& memory) noexcept {
    ++asked;
    return !keeps && simulated_device::destroy(memory);
  }
};
/// Memory that the device did not take is offered again after a capture, and not in it.
template <typename Recipe>
void ask_for_it_after_the_capture() {
  keeping_device device;
  caching_allocator<Recipe, provider_ref<keeping_device>, extension::private_pools> in{provider_ref(device)};
  void* const kept = in.allocate(40_MiB);
  in.deallocate(in.allocate(50_MiB));
  device.keeps = true;
  in.trim();
  EXPECT_GT(device.asked, 0u);
  device.keeps = false;
  device.asked = 0;
  const auto pool = pools_of(in).create();
  EXPECT_TRUE(pools_of(in).open(pool, scope_kind::capture));
  void* const captured = in.allocate(60_MiB);
  EXPECT_EQ(device.asked, 0u);
  EXPECT_TRUE(pools_of(in).close(pool));
  void* const grown = in.allocate(200_MiB);
  EXPECT_GT(device.asked, 0u);
  for (void* const p : {kept, captured, grown}) in.deallocate(p);
  EXPECT_EQ(in.audit(), nullptr);
}

TEST(captures, release_no_memory) {
  expect_no_forbidden_calls<pytorch_2_14<"max_split_size_mb:64">,
                            pytorch_2_14<"garbage_collection_threshold:0.1,per_process_memory_fraction:0.9">,
                            pytorch_2_14<"expandable_segments:True">, torch_npu<"max_split_size_mb:64">,
                            passthrough, paddle<"FLAGS_free_idle_chunk=1">, paddle_virtual_memory_v2,
                            stitched, cuda_async>();
  ask_for_it_after_the_capture<pytorch_2_14<"expandable_segments:True">>();
  ask_for_it_after_the_capture<stitched>();
  ask_for_it_after_the_capture<paddle_virtual_memory_v2>();
}

// PyTorch 2.6 releases memory while a graph is captured.
TEST(captures, release_memory_if_the_recovery_policy_says_so) {
  using as_pytorch = pytorch<"max_split_size_mb:64">;
  capture_on_a_small_device<as_pytorch> releasing;
  EXPECT_EQ(releasing.calls(), "release release ");
  EXPECT_TRUE(releasing.served);
  using safe = with<as_pytorch, fail_fast<recover_by_releasing_oversize>>;
  capture_on_a_small_device<safe> keeping;
  EXPECT_EQ(keeping.calls(), "");
  EXPECT_FALSE(keeping.served);
}

TEST(open_scopes, may_select_the_requests_of_one_thread) {
  allocator in;
  const pool_id pool = pools_of(in).create();
  ASSERT_TRUE(pools_of(in).open(pool, stream_filter::of_this_thread(), scope_kind::plain));
  EXPECT_EQ(destination(in, stream_id{3}), pool);
  std::thread([&] { EXPECT_EQ(destination(in, stream_id{3}), default_pools); }).join();
  ASSERT_TRUE(pools_of(in).close(pool));
  EXPECT_EQ(destination(in, stream_id{3}), default_pools);
}

}  // namespace
