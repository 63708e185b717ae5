// SPDX-License-Identifier: Apache-2.0
// ACL's malloc policy as a number and as names, converted both ways.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/interop/acl_malloc_policy.hpp>

#include "fuzz.hpp"

namespace {

using namespace tessera;
using config::bad_setting;
using config::setting_error;

/// The names that make up a number.
std::string names_of(std::uint32_t value) {
  std::string names;
  for (const tessera::detail::acl_enumerator& each : tessera::detail::acl_enumerators) {
    const bool is_page = each.value <= tessera::detail::acl_page_mask;
    if (is_page ? each.value != (value & tessera::detail::acl_page_mask) : (value & each.value) == 0)
      continue;
    names += (names.empty() ? "" : " | ") + std::string(each.name);
  }
  return names;
}

void expect_kept(const page_choice& choice) {
  fuzz::expect(choice.broken_rule() == nullptr, "what is accepted is legal");
  const std::uint32_t value = interop::acl_malloc_policy::number(choice);
  const auto by_number = interop::acl_malloc_policy::parse(value);
  fuzz::expect(by_number.index() == 0 && std::get<0>(by_number) == choice, "the number means the same");
  const auto by_name = interop::acl_malloc_policy::parse(std::string_view(names_of(value)));
  fuzz::expect(by_name.index() == 0 && std::get<0>(by_name) == choice, "the names mean the same");
  for (unsigned i = 0; i < tessera::detail::acl_product_names.size(); ++i) {
    const interop::acl_malloc_policy::support_result said = interop::acl_malloc_policy::check_support(
        choice, static_cast<interop::acl_malloc_policy::product>(i));
    fuzz::expect(!said.rule.empty() && said.product == tessera::detail::acl_product_names[i],
                 "a verdict has a rule");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto by_name = interop::acl_malloc_policy::parse(text);
  if (const auto* const why = std::get_if<setting_error>(&by_name)) {
    fuzz::expect(!why->rule.empty() && why->offset <= size, "an error has a rule and a place in the text");
    fuzz::expect(*bad_setting("policy", *why).what() != '\0', "an error has words");
  } else {
    expect_kept(std::get<0>(by_name));
  }
  const auto value = static_cast<std::uint32_t>(fuzz::input(data, size).number(4));
  const auto by_number = interop::acl_malloc_policy::parse(value);
  if (const auto* const why = std::get_if<setting_error>(&by_number)) {
    fuzz::expect(!why->rule.empty() && why->offset == setting_error::nowhere,
                 "an error has a rule, and no place in a number");
    fuzz::expect(why->value.starts_with("bit ") || !why->other_key.empty(),
                 "an error names a bit or two names");
  } else {
    fuzz::expect(interop::acl_malloc_policy::number(std::get<0>(by_number)) == value,
                 "a number is read as it is");
    expect_kept(std::get<0>(by_number));
  }
  return 0;
}
