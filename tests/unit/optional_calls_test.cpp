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
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/private_pool.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

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
  handle by_handle;
  pool_id pool;
  pool_checkpoint checkpoint;
  pool_share share;
  memory_source from;
};

/// The names of the calls that exist. Every call that exists is instantiated, as a function that no test runs.
template <typename Allocator>
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
    ROW("pools", a.create_pool());
    ROW("pools", a.create_pool(pool_options{}));
    ROW("pools", a.retain_pool(x.pool));
    ROW("pools", a.release_pool(x.pool));
    ROW("pools", a.uses_of_pool(x.pool));
    ROW("pools", a.has_pool(x.pool));
    ROW("pools", a.begin_allocate_to_pool(x.pool, stream_filter{}));
    ROW("pools", a.end_allocate_to_pool(x.pool));
    ROW("pools", a.is_capturing());
    ROW("pools", a.trim_pool(x.pool));
    ROW("pools", a.is_asleep(x.pool));
    ROW("sources", a.create_pool(x.from));
    ROW("sources", a.create_pool(x.from, pool_options{}));
    ROW("sources", private_pool(a, x.from));
    ROW("checkpoints", a.restore_pool(x.checkpoint));
    ROW("checkpoints", private_pool(a).restore(x.checkpoint));
    ROW("set_share", a.set_share(x.pool, x.share));
    ROW("set_share", private_pool(a).set_share(x.share));
    ROW("share_of", a.share_of(x.pool));
    ROW("share_of", a.bytes_of_pool(x.pool));
    ROW("share_of", private_pool(a).share());
    ROW("share_of", private_pool(a).current_usage());
    ROW("sleep", a.sleep(sleep_contents::save));
    ROW("sleep", a.wake());
    ROW("sleep_pool", a.sleep_pool(x.pool, sleep_contents::save));
    ROW("sleep_pool", a.wake_pool(x.pool));
    ROW("sleep_pool", private_pool(a).sleep(sleep_contents::save));
    ROW("sleep_pool", private_pool(a).wake());
    ROW("synchronize", a.synchronize(x.stream));
    ROW("deallocate_on", a.try_deallocate_on(x.p, x.stream));
    ROW("reuse_in_place", a.reuse_in_place(x.p, x.bytes, x.stream));
    ROW("any_allocator", any_allocator(a));
    // Whether these two say why there is no checkpoint, or do not exist, depends on the front end.
    ROW("", a.checkpoint_pool(x.pool));
    ROW("", private_pool(a).checkpoint());
#undef ROW
  }

  /// The groups of which every call exists.
  [[nodiscard]] std::set<std::string> complete() const {
    std::set<std::string> result;
    for (const auto& [name, exists] : rows_) {
      if (exists) result.insert(name);
    }
    result.erase("");
    return result;
  }
  /// The first group of which only a part exists; empty if there is none.
  [[nodiscard]] std::string torn() const {
    for (const auto& [name, exists] : rows_) {
      for (const auto& [other, also] : rows_) {
        if (name == other && exists != also && !name.empty()) return name;
      }
    }
    return {};
  }

 private:
  template <typename Call>
  void add(const char* name, Call call) {
    constexpr bool exists = std::is_invocable_v<Call, Allocator&, arguments&>;
    if constexpr (exists) {
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
struct plain_front : facade<plain_front<Allocator>, Allocator> {
  friend facade<plain_front, Allocator>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return f(me.allocator);
  }
  Allocator allocator;
};

using segments = pytorch<>;
using ranges = pytorch<"expandable_segments:True">;
using shared_segments = with<pytorch<>, guarantee_shares<grow_by_segments<>>>;
using shared_ranges = with<stitched, guarantee_shares<stitched::growth>>;
template <typename Recipe, template <typename, typename, typename, typename> typename Front>
using of = Front<Recipe, simulated_device, ignore_events, detail::count_everything>;
template <typename Recipe, template <typename, typename, typename, typename> typename Front>
using lean = Front<Recipe, simulated_device, ignore_events, count_totals>;

using words = std::set<std::string>;

const words every_front{"reuse_in_place", "any_allocator"};
const words with_pools{"pools",   "share_of",   "checkpoints", "process_events", "trim_without_waiting",
                       "handles", "statistics", "reset"};

words operator+(words all, const words& more) {
  all.insert(more.begin(), more.end());
  return all;
}
words operator-(words all, const words& less) {
  for (const std::string& word : less) all.erase(word);
  return all;
}

template <typename Allocator>
void expect_calls(const char* type, const words& expected) {
  const optional_calls<Allocator> calls;
  EXPECT_EQ(calls.complete(), expected) << type;
  EXPECT_EQ(calls.torn(), "") << type;
}
#define EXPECT_CALLS(expected, ...) expect_calls<__VA_ARGS__>(#__VA_ARGS__, expected)

const words of_segments = every_front + with_pools + words{"sources"};
const words of_ranges = every_front + with_pools + words{"sleep", "sleep_pool"};
const words of_arenas = every_front + words{"pools", "statistics", "reset"};
const words resets{"statistics", "reset"};

TEST(optional_calls, caching_allocator_has_those_of_its_recipe) {
  EXPECT_CALLS(of_segments, of<segments, caching_allocator>);
  EXPECT_CALLS(of_ranges, of<ranges, caching_allocator>);
  EXPECT_CALLS(of_segments + words{"set_share"}, of<shared_segments, caching_allocator>);
  EXPECT_CALLS(of_ranges + words{"set_share"}, of<shared_ranges, caching_allocator>);
  EXPECT_CALLS((of_segments + words{"synchronize", "deallocate_on"}), of<cuda_async, caching_allocator>);
  EXPECT_CALLS(of_segments - resets, lean<segments, caching_allocator>);
}

TEST(optional_calls, front_ends_have_those_of_the_allocator_inside) {
  EXPECT_CALLS(of_segments, of<segments, locked>);
  EXPECT_CALLS(of_ranges, of<ranges, locked>);
  EXPECT_CALLS(of_segments + words{"set_share"}, of<shared_segments, locked>);
  EXPECT_CALLS(of_segments - resets, lean<segments, locked>);
  EXPECT_CALLS(of_segments, of<segments, background_reclaiming>);
  EXPECT_CALLS(of_ranges, of<ranges, background_reclaiming>);
  EXPECT_CALLS(of_segments, guarded<pytorch_pinned<>, host_pinned>);
  EXPECT_CALLS(of_segments, plain_front<of<segments, caching_allocator>>);
  EXPECT_CALLS(of_ranges - resets, plain_front<lean<ranges, locked>>);
}

TEST(optional_calls, arenas_have_few) {
  EXPECT_CALLS(of_arenas, of<segments, per_stream>);
  EXPECT_CALLS(of_arenas, of<ranges, per_stream>);
  EXPECT_CALLS(of_arenas, of<shared_segments, per_stream>);
  EXPECT_CALLS(of_arenas - resets, lean<segments, per_stream>);
}

template <template <typename...> typename Wrapper>
void expect_calls_of_inner(const char* wrapper, const words& lacks = {}) {
  const auto expect = [&]<typename Inner>(Inner*, const words& inner) {
    const std::string name = wrapper + std::string(" over ") + typeid(Inner).name();
    expect_calls<Wrapper<Inner>>(name.c_str(), inner - lacks);
  };
  expect(static_cast<of<segments, locked>*>(nullptr), of_segments);
  expect(static_cast<of<shared_ranges, caching_allocator>*>(nullptr), of_ranges + words{"set_share"});
  expect(static_cast<lean<segments, per_stream>*>(nullptr), of_arenas - resets);
}

template <typename Allocator>
using captured = trace::captured<Allocator>;

TEST(optional_calls, wrappers_have_those_of_the_allocator_inside) {
  expect_calls_of_inner<tagged>("tagged");
  expect_calls_of_inner<captured>("captured");
  expect_calls_of_inner<waiting>("waiting");
  expect_calls_of_inner<thread_checked>("thread_checked");
  expect_calls_of_inner<leak_checked>("leak_checked");
  expect_calls_of_inner<planned>("planned", {"sleep", "sleep_pool"});
}

TEST(optional_calls, wrappers_nest) {
  EXPECT_CALLS(of_arenas, tagged<captured<of<segments, per_stream>>>);
  EXPECT_CALLS(of_arenas, captured<tagged<waiting<of<ranges, per_stream>>>>);
  EXPECT_CALLS(of_ranges, leak_checked<tagged<captured<of<ranges, locked>>>>);
  EXPECT_CALLS(of_segments, waiting<captured<of<segments, background_reclaiming>>>);
  EXPECT_CALLS((of_ranges - words{"sleep", "sleep_pool"}), tagged<captured<planned<of<ranges, locked>>>>);
  EXPECT_CALLS(of_segments, captured<guarded<pytorch_pinned<>, host_pinned>>);
}

TEST(optional_calls, recipes_chosen_at_run_time) {
  using plain = configured<pytorch_family, simulated_device>;
  using shared = configured<pytorch_family, simulated_device, locked>;
  using streamed = configured<pytorch_family, simulated_device, per_stream>;
  using lean_family = configured<pytorch_family, simulated_device, per_stream, ignore_events, count_totals>;
  const words pools =
      every_front + words{"pools", "share_of", "checkpoints", "statistics", "reset", "sleep", "sleep_pool"};
  EXPECT_CALLS(pools, plain);
  EXPECT_CALLS(pools, shared);
  EXPECT_CALLS(pools, tagged<shared>);
  EXPECT_CALLS((pools - words{"share_of", "checkpoints"}), streamed);
  EXPECT_CALLS((pools - words{"share_of", "checkpoints"}), captured<streamed>);
  EXPECT_CALLS((pools - words{"share_of", "checkpoints"} - resets), lean_family);
}

TEST(optional_calls, types_without_one_allocator_inside) {
  EXPECT_CALLS((words{"pools", "sleep_pool", "any_allocator"}), any_allocator);
  EXPECT_CALLS(words{}, per_device<segments, simulated_device>);
  EXPECT_CALLS(words{}, per_device<ranges, simulated_device, per_stream>);
  EXPECT_CALLS((every_front + resets),
               configured_pinned<pytorch_family::pinned_family, host_pinned, host_pinned>);
}

}  // namespace
