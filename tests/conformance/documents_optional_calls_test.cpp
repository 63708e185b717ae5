// SPDX-License-Identifier: Apache-2.0
// Each call that an allocator need not have, in each front end and wrapper: `requires` says whether it exists, and a
// call that exists compiles. The table says which calls exist.
#include <cstddef>
#include <set>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/oom_observed.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/count_totals.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include "by_day.hpp"

namespace {

using namespace tessera;

struct source {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return false; }
};

/// Arguments of calls.
struct arguments {
  void* p;
  std::size_t bytes;
  stream_id stream;
  block_handle by_handle;
  pool_id pool;
  extension::pool_checkpoint checkpoint;
  extension::quota share;
  extension::pool_upstream from;
};

/// The names of the calls that exist. Each is instantiated, as a function that no test runs: by day, in each front end and wrapper over
/// one allocator, because instantiating takes most of the time to compile.
template <typename Allocator, bool Instantiated>
class optional_calls {
 public:
  optional_calls() {
// A macro, because each row needs its expression twice: in `requires`, and as a call.
#define ROW(name, expression)                                      \
  add(                                                             \
      name, []([[maybe_unused]] auto& a, [[maybe_unused]] auto& x) \
        requires requires { expression; }                          \
      { (void)(expression); })
    ROW("handles", a.deallocate(a.allocate_by_handle(x.bytes, x.stream)));
    ROW("handles", a.deallocate(x.by_handle));
    ROW("handles", a.record_stream(x.by_handle, x.stream));
    ROW("process_events", a.process_events());
    ROW("trim_without_waiting", a.trim_without_waiting(x.bytes));
    ROW("statistics", a.statistics());
    ROW("reset", a.reset_peak_statistics());
    ROW("reset", a.reset_accumulated_statistics());
    ROW("pools", a.template get<extension::private_pools>().create());
    ROW("pools", a.template get<extension::private_pools>().create(extension::pool_options{}));
    ROW("pools", a.template get<extension::private_pools>().retain(x.pool));
    ROW("pools", a.template get<extension::private_pools>().release(x.pool));
    ROW("pools", a.template get<extension::private_pools>().use_count(x.pool));
    ROW("pools", a.template get<extension::private_pools>().has(x.pool));
    ROW("pools", a.template get<extension::private_pools>().open(x.pool, extension::stream_filter{},
                                                                 extension::scope_kind::capture));
    ROW("pools", a.template get<extension::private_pools>().close(x.pool));
    ROW("pools", a.template get<extension::private_pools>().is_capturing());
    ROW("pools", a.template get<extension::private_pools>().trim(x.pool));
    ROW("usage_of", a.template get<extension::private_pools>().usage_of(x.pool));
    ROW("sources", a.template get<extension::private_pools>().create(x.from));
    ROW("sources", a.template get<extension::private_pools>().create(x.from, extension::pool_options{}));
    ROW("sources", extension::private_pool(a, x.from));
    ROW("checkpoints", a.template get<extension::checkpoints>().record(x.pool));
    ROW("checkpoints", a.template get<extension::checkpoints>().restore(x.checkpoint));
    ROW("quotas", a.template get<extension::quotas>().set(x.pool, x.share));
    ROW("quotas", a.template get<extension::quotas>().get(x.pool));
    ROW("is_asleep", a.template get<extension::sleep_mode>().is_asleep(x.pool));
    ROW("sleep", a.template get<extension::sleep_mode>().sleep(extension::sleep_contents::save));
    ROW("sleep", a.template get<extension::sleep_mode>().wake());
    ROW("sleep", a.template get<extension::sleep_mode>().sleep(x.pool, extension::sleep_contents::save));
    ROW("sleep", a.template get<extension::sleep_mode>().wake(x.pool));
    ROW("synchronize", a.synchronize(x.stream));
    ROW("deallocate_on", a.try_deallocate_on(x.p, x.stream));
    ROW("reuse_in_place", a.reuse_in_place(x.p, x.bytes, x.stream));
    ROW("any_allocator", any_allocator(a));
#undef ROW
  }

  /// The groups of which every call exists.
  [[nodiscard]] std::set<std::string> complete() const {
    std::set<std::string> result;
    for (const auto& [name, exists] : rows_) {
      if (exists) result.insert(name);
    }
    return result;
  }
  /// The first group of which only a part exists; empty if there is none.
  [[nodiscard]] std::string torn() const {
    for (const auto& [name, exists] : rows_) {
      for (const auto& [other, also] : rows_) {
        if (name == other && exists != also) return name;
      }
    }
    return {};
  }

 private:
  template <typename Call>
  void add(const char* name, Call call) {
    constexpr bool exists = std::is_invocable_v<Call, Allocator&, arguments&>;
    if constexpr (exists && (Instantiated || is_night)) {
      // Taking the address of the call instantiates it.
      void (Call::* const instance)(Allocator&, arguments&) const =
          &Call::template operator()<Allocator, arguments>;
      EXPECT_NE(instance, nullptr);
    }
    (void)call;
    rows_.emplace_back(name, exists);
  }

  std::vector<std::pair<std::string, bool>> rows_;
};

template <typename Allocator>
struct plain_front : allocator_adaptor<plain_front<Allocator>, Allocator> {
  friend allocator_adaptor<plain_front, Allocator>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return f(me.allocator);
  }
  Allocator allocator;
};

using segments = pytorch<>;
using ranges = pytorch<"expandable_segments:True">;
template <typename Recipe, typename... More>
using full = caching_allocator<Recipe, simulated_device, extension::private_pools, extension::checkpoints,
                               extension::sleep_mode, More...>;
template <typename Recipe>
using shared = full<Recipe, extension::quotas>;
template <typename Recipe>
using lean = full<Recipe, extension::count_totals>;

using words = std::set<std::string>;

const words every_front{"reuse_in_place", "any_allocator"};
const words of_one{"process_events", "trim_without_waiting", "handles", "statistics", "reset"};
const words with_pools{"pools", "usage_of", "checkpoints", "is_asleep"};

words operator+(words all, const words& more) {
  all.insert(more.begin(), more.end());
  return all;
}
words operator-(words all, const words& less) {
  for (const std::string& word : less) all.erase(word);
  return all;
}

constexpr bool instantiated = true;
template <typename Allocator, bool Instantiated = false>
void expect_calls(const char* type, const words& expected) {
  const optional_calls<Allocator, Instantiated> calls;
  EXPECT_EQ(calls.complete(), expected) << type;
  EXPECT_EQ(calls.torn(), "") << type;
}
#define EXPECT_CALLS(expected, ...) expect_calls<__VA_ARGS__>(#__VA_ARGS__, expected)
#define EXPECT_INSTANTIATED(expected, ...) expect_calls<__VA_ARGS__, instantiated>(#__VA_ARGS__, expected)

const words of_segments = every_front + of_one + with_pools + words{"sources"};
const words of_ranges = every_front + of_one + with_pools + words{"sleep"};
const words of_arenas = every_front + words{"pools", "usage_of", "statistics", "reset"};
const words resets{"statistics", "reset"};

TEST(optional_calls, caching_allocator_has_those_of_its_recipe) {
  EXPECT_CALLS(every_front + of_one, caching_allocator<segments, simulated_device>);
  EXPECT_CALLS((every_front + of_one + words{"synchronize", "deallocate_on"}),
               caching_allocator<cuda_async, simulated_device>);
  EXPECT_CALLS(of_segments, full<segments>);
  EXPECT_CALLS(of_ranges, full<ranges>);
  EXPECT_CALLS(of_segments + words{"quotas"}, shared<segments>);
  EXPECT_INSTANTIATED(of_ranges + words{"quotas"}, shared<stitched>);
  EXPECT_INSTANTIATED((of_segments + words{"synchronize", "deallocate_on"}), full<cuda_async>);
  EXPECT_CALLS(of_segments - resets, lean<segments>);
}

TEST(optional_calls, front_ends_have_those_of_the_allocator_inside) {
  EXPECT_CALLS(every_front + of_one, locked<caching_allocator<segments, simulated_device>>);
  EXPECT_CALLS(of_segments, locked<full<segments>>);
  EXPECT_INSTANTIATED(of_ranges, locked<full<ranges>>);
  EXPECT_CALLS(of_segments + words{"quotas"}, locked<shared<segments>>);
  EXPECT_CALLS(of_segments - resets, locked<lean<segments>>);
  EXPECT_CALLS(of_segments, background_reclaiming<full<segments>>);
  EXPECT_INSTANTIATED(of_ranges, background_reclaiming<full<ranges>>);
  EXPECT_INSTANTIATED((of_segments - words{"checkpoints", "is_asleep"}),
                      guarded<full<pytorch_pinned<>>::rebind_provider<host_pinned>>);
  EXPECT_CALLS(of_segments, plain_front<full<segments>>);
  EXPECT_INSTANTIATED(of_ranges - resets, plain_front<locked<lean<ranges>>>);
}

TEST(optional_calls, arenas_have_few) {
  EXPECT_CALLS((every_front + resets), per_stream<caching_allocator<segments, simulated_device>>);
  EXPECT_CALLS(of_arenas, per_stream<full<segments>>);
  EXPECT_INSTANTIATED(of_arenas, per_stream<full<ranges>>);
  EXPECT_CALLS(of_arenas, per_stream<shared<segments>>);
  EXPECT_CALLS(of_arenas - resets, per_stream<lean<segments>>);
}

template <template <typename...> typename Wrapper>
void expect_calls_of_inner(const char* wrapper, const words& lacks = {}) {
  const auto expect = [&]<typename Inner>(Inner*, const words& inner) {
    const std::string name = wrapper + std::string(" over ") + typeid(Inner).name();
    expect_calls<Wrapper<Inner>, std::is_same_v<Inner, shared<stitched>>>(name.c_str(), inner - lacks);
  };
  expect(static_cast<locked<full<segments>>*>(nullptr), of_segments);
  expect(static_cast<shared<stitched>*>(nullptr), of_ranges + words{"quotas"});
  expect(static_cast<per_stream<lean<segments>>*>(nullptr), of_arenas - resets);
}

template <typename Allocator>
using captured = trace::captured<Allocator>;
struct ignores {
  void operator()(const out_of_memory&) noexcept {}
};
template <typename Allocator>
using observed = oom_observed<Allocator, ignores>;

TEST(optional_calls, wrappers_have_those_of_the_allocator_inside) {
  expect_calls_of_inner<tagged>("tagged", {"checkpoints"});
  expect_calls_of_inner<captured>("captured");
  expect_calls_of_inner<waiting>("waiting");
  expect_calls_of_inner<thread_checked>("thread_checked");
  expect_calls_of_inner<observed>("oom_observed");
  expect_calls_of_inner<leak_checked>("leak_checked");
  expect_calls_of_inner<planned>("planned", {"sleep", "is_asleep"});
}

TEST(optional_calls, wrappers_nest) {
  const words tags{"checkpoints"};
  EXPECT_CALLS(of_arenas, tagged<captured<per_stream<full<segments>>>>);
  EXPECT_CALLS(of_arenas, captured<tagged<waiting<per_stream<full<ranges>>>>>);
  EXPECT_INSTANTIATED(of_ranges - tags, leak_checked<tagged<captured<locked<full<ranges>>>>>);
  EXPECT_CALLS(of_segments, waiting<captured<background_reclaiming<full<segments>>>>);
  EXPECT_CALLS((of_ranges - tags - words{"sleep", "is_asleep"}),
               tagged<captured<planned<locked<full<ranges>>>>>);
  EXPECT_CALLS((of_segments - words{"checkpoints", "is_asleep"}),
               captured<guarded<full<pytorch_pinned<>>::rebind_provider<host_pinned>>>);
}

TEST(optional_calls, recipes_chosen_at_run_time) {
  const words chosen = every_front + with_pools + words{"statistics", "reset", "sleep"};
  const words no_arenas{"checkpoints", "sleep", "is_asleep"};
  EXPECT_CALLS((every_front + resets),
               configured<pytorch_family, caching_allocator<segments, simulated_device>>);
  EXPECT_INSTANTIATED(chosen, configured<pytorch_family, full<segments>>);
  EXPECT_CALLS(chosen, configured<pytorch_family, locked<full<segments>>>);
  EXPECT_CALLS(chosen - words{"checkpoints"}, tagged<configured<pytorch_family, locked<full<segments>>>>);
  EXPECT_INSTANTIATED(chosen - no_arenas, configured<pytorch_family, per_stream<full<segments>>>);
  EXPECT_CALLS(chosen - no_arenas, captured<configured<pytorch_family, per_stream<full<segments>>>>);
  EXPECT_CALLS(chosen - no_arenas - resets, configured<pytorch_family, per_stream<lean<segments>>>);
}

TEST(optional_calls, types_without_one_allocator_inside) {
  EXPECT_INSTANTIATED((words{"pools", "usage_of", "is_asleep", "sleep", "any_allocator"}), any_allocator);
  EXPECT_CALLS(words{}, per_device<locked<full<segments>>>);
  EXPECT_CALLS(words{}, per_device<per_stream<full<ranges>>>);
  EXPECT_INSTANTIATED((every_front + resets),
                      configured_pinned<pytorch_family::pinned_family, host_pinned, host_pinned>);
}

}  // namespace
