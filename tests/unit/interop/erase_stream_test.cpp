// SPDX-License-Identifier: Apache-2.0
// Random programs that record and erase uses, beside a model of what each block waits for.
#include <tessera/interop/erase_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using interop::erase_stream;

/// A live block: the bytes that it adds to what is pending, and the streams that use it.
struct model_block {
  std::size_t bytes = 0;
  std::set<std::uint64_t> users;
};

template <typename Allocator>
class recording_program {
 public:
  explicit recording_program(std::uint64_t seed) : random_(seed) {
    device([](auto& d) { d.hold_events(true); });
  }
  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) step();
    EXPECT_GT(erased_, 100u);
    device([](auto& d) { d.hold_events(false); });
    allocator_.trim();
    EXPECT_EQ(allocator_.current_usage().pending(), 0u);
    for (const auto& [p, b] : live_) allocator_.deallocate(p);
    allocator_.trim();
    EXPECT_EQ(allocator_.current_usage().reserved, 0u);
    EXPECT_STREQ(allocator_.audit(), nullptr);
  }

 private:
  [[nodiscard]] std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
  template <typename F>
  void device(F f) {
    if constexpr (requires { allocator_.provider(); }) {
      f(allocator_.provider());
    } else {
      allocator_.visit_provider(f);
    }
  }
  void step() {
    const std::uint64_t what = below(8);
    if (live_.empty() || what == 0) {
      const std::size_t before = allocator_.current_usage().active;
      void* const p = allocator_.allocate(512 + below(2_MiB), stream_id{1});
      live_[p] = {allocator_.current_usage().active - before, {}};
      return;
    }
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(live_.size())));
    auto& [p, block] = *at;
    const std::uint64_t stream = 2 + below(4);
    if (what < 4) {
      ASSERT_TRUE(allocator_.record_stream(p, stream_id{stream}));
      block.users.insert(stream);
    } else if (what < 7) {
      const bool is_known = block.users.erase(stream) > 0;
      ASSERT_EQ(erase_stream(allocator_, p, stream_id{stream}), is_known);
      erased_ += is_known;
    } else {
      allocator_.deallocate(p);
      pending_ += block.users.empty() ? 0 : block.bytes;
      ASSERT_FALSE(erase_stream(allocator_, p, stream_id{stream})) << "a freed block is not live";
      live_.erase(at);
    }
    ASSERT_EQ(allocator_.current_usage().pending(), pending_);
  }

  std::mt19937_64 random_;
  Allocator allocator_;
  std::map<void*, model_block> live_;
  std::size_t pending_ = 0;  // no event is done while the device holds them
  std::size_t erased_ = 0;
};

template <typename Allocator>
struct erased_streams : testing::Test {};
template <typename Recipe, typename Device = simulated_device>
using plain = caching_allocator<Recipe, Device>;
using allocators = testing::Types<plain<recipe::torch_npu<>, simulated_npu>, plain<recipe::pytorch<>>,
                                  plain<recipe::pytorch<"expandable_segments:True">>, plain<recipe::stitched>,
                                  concurrent::locked<plain<recipe::pytorch<>>>,
                                  concurrent::per_stream<plain<recipe::pytorch<>>>>;
TYPED_TEST_SUITE(erased_streams, allocators, );

TYPED_TEST(erased_streams, are_not_waited_for_and_all_others_are) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) recording_program<TypeParam>(seed).run(2'000);
}

}  // namespace
