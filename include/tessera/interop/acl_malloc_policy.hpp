// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/policy/prefer_pages.hpp>

namespace tessera::inline v0_1::detail {

inline constexpr std::array<std::string_view, 5> acl_product_names{
    "Atlas A3 training products/Atlas A3 inference products",
    "Atlas A2 training products/Atlas A2 inference products", "Atlas 200I/500 A2 inference products",
    "Atlas inference products", "Atlas training products"};

struct acl_enumerator {
  std::string_view name;
  std::uint32_t value;
  std::string_view support;  ///< for each product: y for yes, n for no, ? if it is not documented
};

/// The enumerators of aclrtMemMallocPolicy.
inline constexpr std::array<acl_enumerator, 11> acl_enumerators{
    {{"ACL_MEM_MALLOC_HUGE_FIRST", 0, "?????"},
     {"ACL_MEM_MALLOC_HUGE_ONLY", 1, "?????"},
     {"ACL_MEM_MALLOC_NORMAL_ONLY", 2, "?????"},
     {"ACL_MEM_MALLOC_HUGE_FIRST_P2P", 3, "yynyy"},
     {"ACL_MEM_MALLOC_HUGE_ONLY_P2P", 4, "yynyy"},
     {"ACL_MEM_MALLOC_NORMAL_ONLY_P2P", 5, "yynyy"},
     {"ACL_MEM_MALLOC_HUGE1G_ONLY", 6, "yynnn"},
     {"ACL_MEM_MALLOC_HUGE1G_ONLY_P2P", 7, "yynnn"},
     {"ACL_MEM_TYPE_LOW_BAND_WIDTH", 0x100, "?????"},
     {"ACL_MEM_TYPE_HIGH_BAND_WIDTH", 0x1000, "?????"},
     {"ACL_MEM_ACCESS_USER_SPACE_READONLY", 0x100000, "?????"}}};
inline constexpr std::uint32_t acl_page_mask = 0x7;  ///< selects one of the first eight enumerators
inline constexpr std::uint32_t acl_low = 0x100;
inline constexpr std::uint32_t acl_high = 0x1000;
inline constexpr std::uint32_t acl_read_only = 0x100000;

/// The meaning of the first eight enumerators.
inline constexpr std::array<page_choice, 8> acl_page_choices{
    {{.pages = page_preference::huge_first},
     {.pages = page_preference::huge_only},
     {.pages = page_preference::normal_only},
     {.pages = page_preference::huge_first, .peer_to_peer = true},
     {.pages = page_preference::huge_only, .peer_to_peer = true},
     {.pages = page_preference::normal_only, .peer_to_peer = true},
     {.pages = page_preference::huge_1g_only},
     {.pages = page_preference::huge_1g_only, .peer_to_peer = true}}};

/// Names each bit of a number: "bit 12 (0x1000)".
struct acl_bit_name {
  char text[24] = "bit ";
  std::size_t size = 4;
  constexpr void add(char c) noexcept { text[size++] = c; }
};
inline constexpr std::array<acl_bit_name, 32> acl_bit_names = [] {
  std::array<acl_bit_name, 32> names{};
  for (unsigned bit = 0; bit < names.size(); ++bit) {
    acl_bit_name& name = names[bit];
    if (bit >= 10) name.add(static_cast<char>('0' + bit / 10));
    name.add(static_cast<char>('0' + bit % 10));
    for (const char c : {' ', '(', '0', 'x', "1248"[bit % 4]}) name.add(c);
    for (unsigned i = 0; i < bit / 4; ++i) name.add('0');
    name.add(')');
  }
  return names;
}();

/// Never defined. A call in a constant expression stops the compiler, which prints the arguments: the rule, and what
/// breaks it.
template <auto... What>
void acl_policy_refused();
template <fixed_string Rule>
constexpr void refuse_acl_policy(std::string_view broken) {
  if (broken == std::string_view(Rule.chars)) acl_policy_refused<Rule>();
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Converts ACL's aclrtMemMallocPolicy, as numbers or names, to a page_choice, and says which products
/// support it.
///
///     constexpr auto huge = tessera::interop::acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_ONLY");
///     using recipe = tessera::recipe::with<tessera::recipe::torch_npu<>, tessera::policy::prefer_pages<huge>>;
///
/// ACL's document, its translation and its code contradict each other in some points. tessera decides as
/// follows:
///   - The names LOW and HIGH are right. The descriptions under them are swapped.
///   - A bandwidth alone is legal and means huge first, though the document also calls it invalid.
///   - Enumerators may be combined by `|`, and each one counts, as in aclrtMallocWithCfg. aclrtMalloc
///     compares the whole number, so that it treats HUGE_ONLY | HIGH_BAND_WIDTH as the default policy.
///   - A number that is not a combination of enumerators is an error. It is never the default policy.
/// page_choice documents which sizes are rounded up to 2 MiB and which are small.
struct acl_malloc_policy {
  /// The result of parse(): the choice, or the first error.
  using parsed = std::variant<page_choice, config::setting_error>;

 private:
  using error = config::setting_error;
  using code = error::error_code;

 public:
  /// The groups of products in ACL's document.
  enum class product : unsigned char {
    atlas_a3,
    atlas_a2,
    atlas_200i_500_a2,
    atlas_inference,
    atlas_training
  };
  /// Whether a product supports something according to ACL's document. Ordered from best to worst.
  enum class support : unsigned char { yes, not_documented, no };

  /// The number of aclrtMemMallocPolicy for a legal choice. For huge_1g_first, it is the number of its first
  /// page kind.
  [[nodiscard]] static constexpr std::uint32_t number(const page_choice& choice) noexcept {
    std::uint32_t value = choice.speed == page_kind::bandwidth::low    ? detail::acl_low
                          : choice.speed == page_kind::bandwidth::high ? detail::acl_high
                                                                       : 0;
    if (choice.read_only) value |= detail::acl_read_only;
    const page_preference plan = choice.is_huge_1g() ? page_preference::huge_1g_only : choice.pages;
    for (std::uint32_t i = 0; i < detail::acl_page_choices.size(); ++i) {
      if (detail::acl_page_choices[i] == page_choice{.pages = plan, .peer_to_peer = choice.peer_to_peer})
        return value | i;
    }
    return value;
  }
  /// The number of aclrtMemMallocPolicy for one page kind. A provider needs it in acquire(bytes, kind).
  [[nodiscard]] static constexpr std::uint32_t number(const page_kind& kind) noexcept {
    return number(page_choice::only(kind));
  }

  /// Parses a number of aclrtMemMallocPolicy.
  ///   Returns:  the choice, or an error. Its value names the lowest unknown bit; if two enumerators exclude
  ///             each other, they are its key and other_key
  [[nodiscard]] static constexpr parsed parse(std::uint32_t value) noexcept {
    const std::uint32_t unknown =
        value & ~(detail::acl_page_mask | detail::acl_low | detail::acl_high | detail::acl_read_only);
    if (unknown != 0) {
      const detail::acl_bit_name& bit =
          detail::acl_bit_names[static_cast<unsigned>(std::countr_zero(unknown))];
      return error{"aclrtMemMallocPolicy",
                   {bit.text, bit.size},
                   "a bit that no enumerator has",
                   error::nowhere,
                   code::unknown_key};
    }
    const bool low = (value & detail::acl_low) != 0;
    const bool high = (value & detail::acl_high) != 0;
    const std::string_view low_name = detail::acl_enumerators[8].name;
    const std::string_view high_name = detail::acl_enumerators[9].name;
    if (low && high)
      return error{high_name,         {},      "low and high bandwidth exclude each other", error::nowhere,
                   code::excluded_by, low_name};
    page_choice choice = detail::acl_page_choices[value & detail::acl_page_mask];
    choice.speed = low    ? page_kind::bandwidth::low
                   : high ? page_kind::bandwidth::high
                          : page_kind::bandwidth::any;
    choice.read_only = (value & detail::acl_read_only) != 0;
    if (const char* const rule = choice.broken_rule()) {
      const std::string_view page_name = detail::acl_enumerators[value & detail::acl_page_mask].name;
      return error{low ? low_name : high_name, {}, rule, error::nowhere, code::excluded_by, page_name};
    }
    return choice;
  }

  /// Parses names of aclrtMemMallocPolicy joined by `|`, with or without blanks around them. Rejects two of
  /// the first eight names, even if the sum of their numbers is the number of a third name.
  ///   Returns:  the choice, or an error with the offset of the name that causes it; other_key is a name that
  ///             excludes it
  ///   Cost:     linear in the length of `text`; usable in constant expressions
  [[nodiscard]] static constexpr parsed parse(std::string_view text) noexcept {
    std::uint32_t value = 0;
    std::string_view page_name;  // the name among the first eight, if one was read
    for (std::size_t begin = 0;;) {
      std::size_t end = text.find('|', begin);
      if (end == text.npos) end = text.size();
      const std::size_t next = end + 1;
      while (begin < end && config::detail::is_blank(text[begin])) ++begin;
      while (end > begin && config::detail::is_blank(text[end - 1])) --end;
      const std::string_view name = text.substr(begin, end - begin);
      if (name.empty()) return error{name, {}, "an enumerator is expected", begin, code::missing_value};
      const detail::acl_enumerator* found = nullptr;
      for (const detail::acl_enumerator& enumerator : detail::acl_enumerators) {
        if (enumerator.name == name) found = &enumerator;
      }
      if (found == nullptr)
        return error{name, {}, "no such enumerator of aclrtMemMallocPolicy", begin, code::unknown_key};
      if (found->value <= detail::acl_page_mask) {
        if (!page_name.empty())
          return error{name, {}, "only one page size may be named", begin, code::excluded_by, page_name};
        page_name = name;
      }
      value |= found->value;
      auto choice = parse(value);
      if (error* const found_error = std::get_if<error>(&choice)) {
        found_error->offset = begin;
        if (found_error->key != name) std::swap(found_error->key, found_error->other_key);
        return choice;
      }
      if (next > text.size()) return choice;
      begin = next;
    }
  }

  /// The same for a text that may be null, for example of std::getenv. Null is an error.
  template <std::same_as<char> Char>
  [[nodiscard]] static constexpr parsed parse(const Char* text) noexcept {
    if (text != nullptr) return parse(std::string_view(text));
    return error{{}, {}, "there is no text", error::nowhere, code::missing_value};
  }

  /// The statement of ACL's document about a choice on a product.
  struct support_result {
    /// The weakest statement of the document about an enumerator of the choice.
    acl_malloc_policy::support support;
    std::string_view enumerator;  ///< the enumerator that decides
    std::string_view product;     ///< the name of the product in the document
    std::string_view rule;        ///< the statement in words, also if the choice is supported
    bool operator==(const support_result&) const = default;
  };

  /// Whether a product supports a legal choice. Returns `no` if it does not support one of the enumerators,
  /// and `yes` if the document states support for all of them. For huge_1g_first, only the first page kind
  /// counts.
  [[nodiscard]] static constexpr support_result check_support(const page_choice& choice,
                                                              product target) noexcept {
    const auto column = static_cast<std::size_t>(target);
    const std::uint32_t value = number(choice);
    support_result result{support::yes, {}, detail::acl_product_names[column], {}};
    for (const detail::acl_enumerator& each : detail::acl_enumerators) {
      const bool is_page = each.value <= detail::acl_page_mask;
      const bool is_used =
          is_page ? each.value == (value & detail::acl_page_mask) : (value & each.value) != 0;
      const char statement = each.support[column];
      const support supported = statement == 'y'   ? support::yes
                                : statement == 'n' ? support::no
                                                   : support::not_documented;
      if (!is_used || (supported <= result.support && !is_page)) continue;
      result.support = supported;
      result.enumerator = each.name;
    }
    if (result.support == support::no) {
      result.rule = "the product does not support it";
    } else if (result.support == support::not_documented) {
      result.rule = "the document does not say whether the product supports it";
    } else if (choice.peer_to_peer && target == product::atlas_inference) {
      result.rule = "supported; initialize communicators before any other memory is allocated";
    } else {
      result.rule = "supported";
    }
    return result;
  }

  /// Converts a number or names of aclrtMemMallocPolicy at compile time. Does not compile if they are
  /// rejected.
  [[nodiscard]] static consteval page_choice choice(auto policy) { return checked(parse(policy)); }
  /// It also does not compile if `target` does not support the choice.
  [[nodiscard]] static consteval page_choice choice(auto policy, product target) {
    const page_choice result = checked(parse(policy));
    const support_result found = check_support(result, target);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      constexpr std::size_t products = detail::acl_product_names.size();
      constexpr detail::fixed_string rule("the product does not support it");
      ((found.support == support::no && found.enumerator == detail::acl_enumerators[I / products].name &&
                target == product{I % products}
            ? detail::acl_policy_refused<rule, name_of<I / products>, product{I % products}>()
            : void()),
       ...);
    }(std::make_index_sequence<detail::acl_enumerators.size() * detail::acl_product_names.size()>{});
    return result;
  }

  /// The name of an enumerator as a template argument.
  template <std::size_t Index>
  static constexpr auto name_of = config::detail::copy_of<detail::acl_enumerators[Index].name.size()>(
      detail::acl_enumerators[Index].name);

  /// Returns the choice, or reports the broken rule to the compiler.
  [[nodiscard]] static constexpr page_choice checked(const parsed& result) {
    if (const auto* const why = std::get_if<config::setting_error>(&result)) {
      // One call for each rule, because compilers print template arguments.
      detail::refuse_acl_policy<"a bit that no enumerator has">(why->rule);
      detail::refuse_acl_policy<"an enumerator is expected">(why->rule);
      detail::refuse_acl_policy<"there is no text">(why->rule);
      detail::refuse_acl_policy<"no such enumerator of aclrtMemMallocPolicy">(why->rule);
      detail::refuse_acl_policy<"only one page size may be named">(why->rule);
      detail::refuse_acl_policy<"low and high bandwidth exclude each other">(why->rule);
      detail::refuse_acl_policy<
          "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages">(why->rule);
      detail::refuse_acl_policy<"low or high bandwidth does not go with peer-to-peer memory">(why->rule);
      detail::acl_policy_refused<>();
    }
    return std::get<page_choice>(result);
  }
};

}  // namespace tessera::inline v0_1::interop
