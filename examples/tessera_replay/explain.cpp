// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/torch_npu.hpp>

#include "commands.hpp"
#include "input.hpp"

namespace {

using value_format = tessera::config::pytorch::format;

std::string shown(std::size_t value, value_format format) {
  if (value == tessera::unlimited) return format == value_format::gibibytes_or_never ? "never" : "unlimited";
  const std::size_t unit = format == value_format::mebibytes            ? tessera::operator""_MiB(1)
                           : format == value_format::kibibytes          ? tessera::operator""_KiB(1)
                           : format == value_format::gibibytes_or_never ? tessera::operator""_GiB(1)
                                                                        : 1;
  if (value % unit != 0) return std::to_string(value) + " bytes";
  const char* const name = unit == 1                            ? ""
                           : unit == tessera::operator""_KiB(1) ? " KiB"
                           : unit == tessera::operator""_MiB(1) ? " MiB"
                                                                : " GiB";
  return std::to_string(value / unit) + name;
}
std::string shown(tessera::fraction value, value_format) {
  std::string digits = std::to_string(value.billionths % 1'000'000'000);
  digits.insert(0, 9 - digits.size(), '0');
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return std::to_string(value.billionths / 1'000'000'000) + "." + digits;
}
std::string shown(const tessera::memory_limit& value, value_format format) {
  return value.bytes != tessera::unlimited ? shown(value.bytes, value_format::mebibytes)
                                           : shown(value.share, format);
}
std::string shown(const tessera::divisions& value, value_format) {
  std::string all;
  for (std::uint32_t parts : value.in_slot) all.append(all.empty() ? "[" : " ").append(std::to_string(parts));
  return all.append("] by power of two from 1 MiB on");
}

/// The value of a key, or its documented default.
template <typename Key, typename Settings>
std::string shown(const Key& key, const Settings& given) {
  std::string args(key.default_value);
  key.member.visit([&](auto member) {
    if (given.*member == Settings{}.*member) return;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(given.*member)>, bool>) {
      const std::size_t comma = key.allowed.find(", ");
      std::string_view word = key.allowed;
      if (key.format != value_format::single_choice)
        word = given.*member ? word.substr(comma + 2) : word.substr(0, comma);
      args = word.substr(0, word.find('|'));
    } else {
      args = shown(given.*member, key.format);
    }
  });
  return args;
}

/// Explains the keys of a family's grammar. `Pinned` is the family for pinned memory that reads the same string, if any.
template <typename Family, typename... Pinned>
int explain_in(const std::string& text) {
  using Grammar = typename Family::grammar;
  const auto parsed = tessera::config::parse<Grammar>(text);
  if (const auto* const error = std::get_if<tessera::config::setting_error>(&parsed))
    return replay::print_error(tessera::config::bad_setting(Grammar::name, *error).what());
  const auto& given = std::get<typename Grammar::settings>(parsed);
  for (const auto& key : Grammar::keys) {
    const bool is_set = !key.is_equal(given, {});
    const bool is_unread = Family::has_no_effect(key, given) && (Pinned::has_no_effect(key, given) && ...);
    std::printf("%c %.*s = %s\n      %s%.*s\n",
                is_unread ? '!'
                : is_set  ? '*'
                          : ' ',
                static_cast<int>(key.name.size()), key.name.data(), shown(key, given).c_str(),
                is_unread ? "no policy of the recipe reads it; " : "", static_cast<int>(key.effect.size()),
                key.effect.data());
  }
  return replay::done;
}

}  // namespace

int replay::commands::explain(const arguments& args) {
  const std::string& text = args.files[0];
  using namespace tessera::recipe;
  if (args.system == "pytorch") return explain_in<pytorch_family, pytorch_family::pinned_family>(text);
  if (args.system == "torch_npu") return explain_in<torch_npu_family, torch_npu_family::pinned_family>(text);
  return explain_in<paddle_family>(text);
}
