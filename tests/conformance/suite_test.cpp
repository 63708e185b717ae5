// SPDX-License-Identifier: Apache-2.0
// The suite for all compositions; the files named suite_*_test.cpp list them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "suite.hpp"

namespace conformance {

TEST_P(suite, obeys_the_model) {
  const composition& c = GetParam();
  const auto operations = static_cast<std::size_t>(static_cast<double>(operations_asked_for()) * c.share);
  EXPECT_EQ(first_broken_rule(c, std::max<std::size_t>(operations, 300)), "");
}

namespace {

/// The same while calls of the device fail.
composition with_failing(const composition& c, void (*fail)(tessera::detail::simulated_calls&, std::uint64_t),
                         std::uint64_t number) {
  composition failing = c;
  failing.used.seed += number;
  failing.used.most_live = 40;
  failing.kept.no_calls_fail = false;
  failing.make = [make = c.make, fail, number] {
    std::unique_ptr<subject> made = make();
    fail(*made->calls(), number);
    return made;
  };
  return failing;
}

}  // namespace

TEST_P(suite_of_failures, survives_failing_calls) {
  const auto one = [](tessera::detail::simulated_calls& of, std::uint64_t n) { of.fail_call(n); };
  for (std::uint64_t k = 1; k <= 100; k += is_slow() ? 9 : 1) {
    ASSERT_EQ(first_broken_rule(with_failing(GetParam(), one, k), 400, 1), "")
        << "with call " << k << " failing";
  }
  const auto many = [](tessera::detail::simulated_calls& of, std::uint64_t n) { of.fail_every(n); };
  for (std::uint64_t k = 2; k <= 20; k += is_slow() ? 5 : 1) {
    ASSERT_EQ(first_broken_rule(with_failing(GetParam(), many, k), 1000, 1), "")
        << "with every call " << k << " failing";
  }
}

}  // namespace conformance
