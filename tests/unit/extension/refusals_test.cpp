// SPDX-License-Identifier: Apache-2.0
// An extension refuses memory: what is tried then, who hears of it, and what the error says.
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

enum class place : unsigned char { start_growth, acquire, use };

/// Refuses what would make more than `most` bytes reserved, at one of the three places.
template <place At, bool Recovers = true>
struct ceiling {
  std::size_t most = 0;

  template <typename Core>
  class state : public detail::extension_defaults {
    using group = typename Core::group;

   public:
    state(typename Core::allocator& in, const ceiling& from) noexcept : in_(in), most_(from.most) {}
    [[nodiscard]] bool may_start_growth(const group&, std::size_t bytes) const noexcept {
      return At != place::start_growth || reserved() + bytes <= most_;
    }
    [[nodiscard]] bool may_acquire(const group&, std::size_t bytes) const noexcept {
      return At != place::acquire || reserved() + bytes <= most_;
    }
    [[nodiscard]] bool may_use(const detail::block&, std::size_t, std::size_t) const noexcept {
      return At != place::use || reserved() <= most_;
    }
    void adjust(auto& miss) const noexcept {
      if (!Recovers && miss.why == policy::failure_reason::by_extension) miss.steps = {};
    }

   private:
    [[nodiscard]] std::size_t reserved() const noexcept { return in_.current_usage().reserved; }
    typename Core::allocator& in_;
    std::size_t most_;
  };
  template <typename Allocator>
  struct door {};
};

template <typename Extension>
class refusals : public testing::Test {};
using places = testing::Types<ceiling<place::start_growth>, ceiling<place::acquire>, ceiling<place::use>,
                              ceiling<place::start_growth, false>, ceiling<place::acquire, false>>;
TYPED_TEST_SUITE(refusals, places);

template <typename Extension>
inline constexpr bool recovers = true;
template <place At>
inline constexpr bool recovers<ceiling<At, false>> = false;

// The cache holds 200 MiB. To serve 220 MiB under the ceiling, recovery must empty it.
TYPED_TEST(refusals, are_followed_by_recovery_unless_the_extension_has_none) {
  caching_allocator<pytorch<>, simulated_device, TypeParam> pool{simulated_device{}, {}, TypeParam{350_MiB}};
  pool.deallocate(pool.allocate(200_MiB));
  void* const p = pool.try_allocate(220_MiB);
  EXPECT_EQ(p != nullptr, recovers<TypeParam>);
  EXPECT_EQ(pool.statistics().num_alloc_retries, recovers<TypeParam> ? 1u : 0u);
  EXPECT_EQ(pool.statistics().num_oom_rejections, recovers<TypeParam> ? 0u : 1u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TYPED_TEST(refusals, are_named_by_errors) {
  caching_allocator<pytorch<>, simulated_device, TypeParam> pool{simulated_device{}, {}, TypeParam{350_MiB}};
  (void)pool.allocate(200_MiB);
  try {
    (void)pool.allocate(220_MiB);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_STREQ(error.why(), "an extension refuses it, and gives no reason");
    const std::string text = explain(pool, error.requested()).text().c_str();
    EXPECT_NE(text.find(error.why()), std::string::npos) << text;
    EXPECT_EQ(text.find("the device refused it"), std::string::npos) << text;
  }
  EXPECT_STREQ(pool.make_out_of_memory(100_MiB).why(), "") << "it was not refused";
  (void)pool.allocate(20_MiB);
  EXPECT_STREQ(pool.make_out_of_memory(220_MiB).why(), "") << "a later request was served";
}

// Like a limit, a refusal is no reason to recover if the recipe fails fast.
TEST(refusals_of_a_recipe_that_fails_fast, are_not_followed_by_recovery) {
  using refusing = ceiling<place::acquire>;
  using recipe = with<pytorch<>, fail_fast<recover_by_emptying_cache<>, true>>;
  caching_allocator<recipe, simulated_device, refusing> pool{simulated_device{}, {}, refusing{350_MiB}};
  pool.deallocate(pool.allocate(200_MiB));
  EXPECT_EQ(pool.try_allocate(220_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 200_MiB);
}

/// Counts the bytes in use. Refuses requests above `most` bytes.
template <int Number>
struct meter {
  std::size_t most = unlimited;

  template <typename Core>
  class state : public detail::extension_defaults {
   public:
    state(typename Core::allocator& in, const meter& from) noexcept : in_(in), most_(from.most) {}
    void begin() noexcept { detail::core_access::extensions(in_).note_special_case(1); }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }

    [[nodiscard]] bool may_use(const detail::block&, std::size_t, std::size_t size) const noexcept {
      return size <= most_;
    }
    void on_use(const detail::block&, std::size_t, std::size_t size) noexcept { used_ += size; }
    void on_free(const detail::block&, std::size_t, std::size_t size) noexcept { used_ -= size; }

   private:
    typename Core::allocator& in_;
    std::size_t most_;
    std::size_t used_ = 0;
  };
  template <typename Allocator>
  struct door {
    explicit door(Allocator& allocator) noexcept : in(&allocator) {}
    void begin() noexcept {
      in->template visit_extension<meter>([](auto& s) { s.begin(); });
    }
    [[nodiscard]] std::size_t used() const noexcept {
      return in->template visit_extension<meter>([](const auto& s) { return s.used(); });
    }
    Allocator* in;
  };
};

TEST(refusals_of_one_of_two_extensions, leave_the_counts_of_the_other) {
  caching_allocator<pytorch<>, simulated_device, meter<1>, meter<2>> pool{
      simulated_device{}, {}, meter<1>{}, meter<2>{10_MiB}};
  pool.get<meter<1>>().begin();
  void* const p = pool.allocate(8_MiB);
  EXPECT_EQ(pool.try_allocate(12_MiB), nullptr);
  EXPECT_EQ(pool.get<meter<1>>().used(), 8_MiB);
  EXPECT_EQ(pool.get<meter<2>>().used(), 8_MiB);
  pool.deallocate(p);
  EXPECT_EQ(pool.get<meter<1>>().used(), 0u);
  EXPECT_EQ(pool.get<meter<2>>().used(), 0u);
}

}  // namespace
