// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <tessera/config/bad_setting.hpp>
#include <tessera/config/dialect.hpp>
#include <tessera/config/key.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/config/torch_npu.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

#include "commands.hpp"
#include "input.hpp"

namespace {

using tessera::config::form;

std::string shown(std::size_t value, form written) {
  if (value == tessera::unlimited) return written == form::gibibytes_or_less ? "never" : "unlimited";
  const std::size_t unit = written == form::mebibytes           ? tessera::operator""_MiB(1)
                           : written == form::kibibytes         ? tessera::operator""_KiB(1)
                           : written == form::gibibytes_or_less ? tessera::operator""_GiB(1)
                                                                : 1;
  if (value % unit != 0) return std::to_string(value) + " bytes";
  const char* const name = unit == 1                            ? ""
                           : unit == tessera::operator""_KiB(1) ? " KiB"
                           : unit == tessera::operator""_MiB(1) ? " MiB"
                                                                : " GiB";
  return std::to_string(value / unit) + name;
}
std::string shown(tessera::fraction value, form) {
  std::string digits = std::to_string(value.billionths % 1'000'000'000);
  digits.insert(0, 9 - digits.size(), '0');
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return std::to_string(value.billionths / 1'000'000'000) + "." + digits;
}
std::string shown(const tessera::memory_limit& value, form written) {
  return value.bytes != tessera::unlimited ? shown(value.bytes, form::mebibytes)
                                           : shown(value.share, written);
}
std::string shown(const tessera::divisions& value, form) {
  std::string all;
  for (std::uint32_t parts : value.in_slot) all.append(all.empty() ? "[" : " ").append(std::to_string(parts));
  return all.append("] by power of two from 1 MiB on");
}

/// What a key is set to; what it is at its default, as its documentation says it.
template <typename Settings, typename... More>
std::string shown(const tessera::config::key<Settings, More...>& key, const Settings& given) {
  std::string said(key.otherwise);
  key.to.visit([&](auto member) {
    if (given.*member == Settings{}.*member) return;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(given.*member)>, bool>) {
      const std::size_t comma = key.value.find(", ");
      std::string_view word = key.value;
      if (key.written != form::only_word)
        word = given.*member ? word.substr(comma + 2) : word.substr(0, comma);
      said = word.substr(0, word.find('|'));
    } else {
      said = shown(given.*member, key.written);
    }
  });
  return said;
}

template <typename Dialect>
int explain_in(const std::string& text) {
  const auto parsed = tessera::config::parse<Dialect>(text);
  if (const auto* const error = std::get_if<tessera::config::setting_error>(&parsed))
    return replay::complain(tessera::config::bad_setting(Dialect::name, *error).what());
  const auto& given = std::get<typename Dialect::settings>(parsed);
  for (std::size_t i = 0; i < Dialect::keys.size(); ++i) {
    const auto& key = Dialect::keys[i];
    const bool is_set = tessera::config::is_on<Dialect>(given, static_cast<typename Dialect::key_name>(i));
    std::printf("%c %.*s = %s\n      %.*s\n", is_set ? '*' : ' ', static_cast<int>(key.name.size()),
                key.name.data(), shown(key, given).c_str(), static_cast<int>(key.effect.size()),
                key.effect.data());
  }
  return replay::done;
}

}  // namespace

int replay::explain(const arguments& said) {
  const std::string& text = said.files[0];
  if (said.dialect == "pytorch") return explain_in<tessera::config::pytorch>(text);
  if (said.dialect == "torch_npu") return explain_in<tessera::config::torch_npu>(text);
  return explain_in<tessera::config::paddle>(text);
}
