// SPDX-License-Identifier: Apache-2.0
// Settings in the grammar that the first byte chooses. The parser returns settings in range, or an error that
// points into the text. Settings that are written as text are the same after they are read again, and an
// allocator accepts them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/config/grammar.hpp>
#include <tessera/config/paddle_flags.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>

#include "../unit/config/sound.hpp"
#include "fuzz.hpp"

namespace {

using namespace tessera;
using namespace tessera::config;

std::string decimal(std::uint64_t billionths) {
  const std::string places = std::to_string(1'000'000'000 + billionths % 1'000'000'000);
  return std::to_string(billionths / 1'000'000'000) + "." + places.substr(1);
}
/// The smallest number of billionths of a GiB that is at least this many bytes.
std::string gibibytes(std::size_t bytes) {
  const std::uint64_t rest = bytes & (1_GiB - 1);
  return decimal((bytes >> 30) * 1'000'000'000 + (rest * 1'000'000'000 + 1_GiB - 1) / 1_GiB);
}

/// A value in the format of its key; empty if it cannot be written.
template <typename Key>
std::string words_of(const Key& k, bool on) {
  if (k.format == config::detail::value_format::single_choice) return std::string(k.allowed);
  const std::size_t comma = k.allowed.find(',');
  const std::string_view of =
      on ? k.allowed.substr(k.allowed.find_first_not_of(" ", comma + 1)) : k.allowed.substr(0, comma);
  return std::string(of.substr(0, of.find_first_of(",|")));
}
template <typename Key>
std::string words_of(const Key& k, std::size_t n) {
  switch (k.format) {
    case config::detail::value_format::mebibytes: return std::to_string(n == unlimited ? unlimited : n >> 20);
    case config::detail::value_format::kibibytes: return std::to_string(n >> 10);
    case config::detail::value_format::gibibytes_or_never:
      return n == unlimited ? "-1" : n >= unlimited >> 4 ? std::string() : gibibytes(n);
    default: return std::to_string(n);
  }
}
template <typename Key>
std::string words_of(const Key&, fraction share) {
  return decimal(share.billionths);
}
template <typename Key>
std::string words_of(const Key&, const memory_limit& most) {
  if (most.bytes == unlimited) return decimal(most.share.billionths);
  return most.bytes >= unlimited >> 4 ? std::string() : gibibytes(most.bytes) + "G";
}
template <typename Key>
std::string words_of(const Key& k, const divisions& table) {
  if (table == divisions{} && k.format == config::detail::value_format::divisions_or_zero) return "0";
  std::string list;
  for (std::size_t i = 0; i < divisions::slot_count; ++i)
    list +=
        (i == 0 ? "[" : ",") + std::to_string(std::uint64_t{1} << i) + ":" + std::to_string(table.in_slot[i]);
  return list + "]";
}

/// Whether a key counts as written, whatever its value.
template <typename Grammar>
bool is_noted(std::string_view key) {
  for (const auto& least : Grammar::min_sizes) {
    if (least.size == key) return true;
  }
  return false;
}

template <typename Grammar>
void expect_kept(const typename Grammar::settings& given) {
  std::string text;
  for (const auto& k : Grammar::keys) {
    bool possible = true;
    k.member.visit([&](auto member) {
      if (given.*member == typename Grammar::settings{}.*member && !is_noted<Grammar>(k.name)) return;
      const std::string value = words_of(k, given.*member);
      possible = !value.empty();
      text.append(k.name).append(Grammar::assign).append(value) += ',';
    });
    if (!possible) return;
  }
  const auto again = parse<Grammar>(text);
  const bool same = again.index() == 0 && std::get<0>(again) == given;
  if (!same) std::fprintf(stderr, "%s\n", text.c_str());
  fuzz::expect(same, "settings that are written down are read again");
}

template <typename Grammar>
void read(std::string_view text) {
  const auto parsed = parse<Grammar>(text);
  if (const auto* const why = std::get_if<setting_error>(&parsed)) {
    const char* const flaw = config_test::flaw_of<Grammar>(*why, text);
    fuzz::expect(flaw == nullptr, flaw);
    const bad_setting said(Grammar::name, *why);
    fuzz::expect(std::string_view(said.what()).ends_with(why->rule), "an error is said with its rule");
    return;
  }
  const auto& given = std::get<0>(parsed);
  const char* const flaw = config_test::flaw_of<Grammar>(given);
  fuzz::expect(flaw == nullptr, flaw);
  expect_kept<Grammar>(given);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::input in(data, size);
  const std::size_t grammar = in.below(3);
  const std::string_view text = in.text(size);
  if (grammar == 0) read<config::pytorch>(text);
  if (grammar == 1) read<config::torch_npu>(text);
  if (grammar == 2) read<config::paddle>(text);
  return 0;
}
