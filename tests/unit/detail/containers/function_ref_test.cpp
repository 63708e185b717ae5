// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/detail/containers/function_ref.hpp>

namespace {

using tessera::detail::function_ref;

TEST(function_ref, calls_a_function_object) {
  int sum = 0;
  const auto add = [&sum](int by) { return sum += by; };
  const function_ref<int(int)> call = add;
  EXPECT_EQ(call(2), 2);
  const auto twice = [](function_ref<void(int)> f) {  // which ignores what the function returns
    f(3);
    f(3);
  };
  twice([&sum](int by) { return sum += by; });
  EXPECT_EQ(sum, 8);
}

TEST(function_ref, makes_a_call_of_an_object) {
  struct account {
    int held = 0;
    void pay(int& rest, int by) {
      held += by;
      rest -= by;
    }
    [[nodiscard]] int balance() const noexcept { return held; }
  };
  account one;
  const function_ref<void(int&, int)> pay(one, [](account& to, auto&&... given) { to.pay(given...); });
  const function_ref<int() noexcept> balance(std::as_const(one),
                                             [](const account& of) { return of.balance(); });
  static_assert(noexcept(balance()) && !noexcept(pay(one.held, 1)));
  int rest = 5;
  pay(rest, 2);
  EXPECT_EQ(rest, 3);
  EXPECT_EQ(balance(), 2);
}

TEST(function_ref, is_equal_to_one_of_the_same_call_and_object) {
  const auto one = [] {};
  const auto other = [] {};
  const function_ref<void()> none, a = one, same = one, b = other;
  EXPECT_FALSE(none);
  EXPECT_TRUE(a);
  EXPECT_TRUE(a == same);
  EXPECT_FALSE(a == b);
  static_assert(std::is_trivially_copyable_v<function_ref<void()>>);
}

}  // namespace
