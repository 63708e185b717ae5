// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/config/key.hpp>
#include <tessera/config/values.hpp>
#include <tessera/config/words.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

/// A dialect is what one system says to its allocator, as a type: `settings`, which an empty text leaves at their
/// defaults; `keys`, one for each enumerator of `key_name`, in their order; `exclusions` and `least_sizes` among them;
/// `delimiters`, of which `assign` parts a key from its value and `,` one setting from the next; and `settle`, for what follows from keys not written.
namespace tessera::config {

/// Whether a key is set to other than its default.
template <typename Dialect>
[[nodiscard]] constexpr bool is_on(const typename Dialect::settings& given,
                                   typename Dialect::key_name name) noexcept {
  bool on = false;
  Dialect::keys[static_cast<std::size_t>(name)].to.visit(
      [&](auto member) { on = !(given.*member == typename Dialect::settings{}.*member); });
  return on;
}

/// The place of a key in its table, which ends behind all keys where there is none of that name.
template <typename Dialect>
[[nodiscard]] constexpr std::size_t key_index(const word& name) noexcept {
  std::size_t index = 0;
  while (index < Dialect::keys.size() && !name.text_is(Dialect::keys[index].name)) ++index;
  return index;
}

/// Exchanges what one key is set to in two settings; false where that is the same already.
template <typename Settings, typename... More>
[[nodiscard]] constexpr bool exchange(const key<Settings, More...>& k, Settings& one,
                                      Settings& other) noexcept {
  bool differ = false;
  k.to.visit([&](auto member) {
    differ = !(one.*member == other.*member);
    if (differ) std::swap(one.*member, other.*member);
  });
  return differ;
}

/// Reads a text in a dialect.
template <typename Dialect>
class dialect_reader : value_reader {
  using settings = typename Dialect::settings;
  using key_name = typename Dialect::key_name;
  using key_type = typename decltype(Dialect::keys)::value_type;
  static constexpr std::size_t count = Dialect::keys.size();

 public:
  constexpr explicit dialect_reader(std::string_view text) noexcept
      : value_reader(text, Dialect::delimiters) {}

  [[nodiscard]] constexpr std::variant<settings, setting_error> read() noexcept {
    while (!failed() && !words_.at_end()) read_one();
    return end();
  }
  /// Reads the value of one key, for which there is a text of its own.
  constexpr void read_value(std::size_t of, std::string_view text) noexcept {
    if (failed()) return;
    words_ = word_reader(text, Dialect::delimiters);
    key_ = {Dialect::keys[of].name, ~std::size_t{0}};
    written_[of] = {true, key_, words_.ahead()};
    read_value(Dialect::keys[of]);
    if (!words_.at_end()) fail(words_.next(), fault::malformed, "nothing may follow the value");
  }
  [[nodiscard]] constexpr std::variant<settings, setting_error> end() noexcept {
    if (!failed()) Dialect::settle(settings_, [this](key_name k) { return written_[index(k)].is; });
    check_together();
    if (failed()) return error();
    return settings_;
  }

 private:
  struct place {
    bool is = false;
    word key{};
    word value{};
  };
  [[nodiscard]] static constexpr std::size_t index(key_name k) noexcept {
    return static_cast<std::size_t>(k);
  }

  constexpr void read_one() noexcept {
    key_ = words_.next();
    const word key = key_;
    if (words_.is_delimiter(key)) return fail(key, fault::malformed, "a key is expected");
    const std::size_t found = key_index<Dialect>(key);
    if (found == count) return fail(key, fault::unknown_key, "no such key");
    if (!expect(Dialect::assign, fault::missing_value, Dialect::assign_rule)) return;
    written_[found] = {true, key, words_.ahead()};
    read_value(Dialect::keys[found]);
    if (!failed() && !words_.at_end()) expect(",", fault::malformed, "a ',' must part settings");
  }

  constexpr void read_value(const key_type& k) noexcept {
    const bounds in{k.least, k.most, k.rule};
    if (k.written == form::list) return skip_list();
    k.to.visit([&](auto member) {
      using type = std::remove_cvref_t<decltype(settings_.*member)>;
      settings_.*member = read_as<type>(k, in);
    });
  }
  template <typename T>
  constexpr T read_as(const key_type& k, const bounds& in) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return choice(k.value, k.rule) > 0 || k.written == form::only_word;
    } else if constexpr (std::is_same_v<T, fraction>) {
      return decimal(in);
    } else if constexpr (std::is_same_v<T, divisions>) {
      return parts(k.written == form::divisions_or_zero);
    } else if constexpr (std::is_same_v<T, memory_limit>) {
      return share_or_gibibytes();
    } else if (k.written == form::mebibytes) {
      return mebibytes(in);
    } else if (k.written == form::power_of_two) {
      return power_of_two(in);
    } else if (k.written == form::gibibytes_or_less) {
      return gibibytes_or_less(in);
    } else if (k.written == form::kibibytes) {
      return whole(in, "must be a whole number of KiB", true) << 10;
    } else {
      return whole(in, "must be a whole number", false);
    }
  }

  /// What each key alone allows may not be allowed together.
  constexpr void check_together() noexcept {
    if (failed()) return;
    for (const auto& least : Dialect::least_sizes) {
      const place& at = written_[index(least.size)];
      key_ = at.key;
      if (at.is && size(least.size) < size(least.bound)) fail(at.value, fault::out_of_range, least.rule);
    }
    for (const auto& pair : Dialect::exclusions) {
      if (!is_on<Dialect>(settings_, pair.one) || !is_on<Dialect>(settings_, pair.other)) continue;
      const place& one = written_[index(pair.one)];
      const place& other = written_[index(pair.other)];
      const bool later = one.key.at > other.key.at;
      key_ = later ? one.key : other.key;
      fail(key_, fault::excluded_by, pair.rule, later ? other.key.text : one.key.text);
    }
  }
  [[nodiscard]] constexpr std::size_t size(key_name k) const noexcept {
    return settings_.*Dialect::keys[index(k)].to.template as<std::size_t>();
  }

  settings settings_{};
  place written_[count]{};
};

/// Reads settings; an empty text stands for the defaults, and the last of equal keys counts. Stricter than PyTorch's
/// reader, which takes any delimiter for any other and passes over what follows a number.
///
///     #include <tessera/config/bad_setting.hpp>
///     using namespace tessera::config;
///     const auto read = parse<pytorch>("max_split_size_mb:10");  // less than large_segment_size_mb
///     if (const auto* error = std::get_if<setting_error>(&read)) std::puts(bad_setting("--conf", *error).what());
///
///   Returns:  the settings, or the first error, whose words point into the text
///   Cost:     linear in the text; works in constant expressions
template <typename Dialect>
[[nodiscard]] constexpr std::variant<typename Dialect::settings, setting_error> parse(
    std::string_view text) noexcept {
  return dialect_reader<Dialect>(text).read();
}

/// What a compiler names in its first error where a string is refused as a template argument: what is wrong, with which
/// key (letter by letter where there is no such key), which other one excludes it, and at which character. Never defined.
template <fault Why, auto... Where>
struct setting_refused;

/// The settings in a text that is a template argument.
template <typename Dialect, auto Text>
[[nodiscard]] consteval typename Dialect::settings settings_in() {
  using key_name = typename Dialect::key_name;
  constexpr auto name = [](std::string_view key) {
    return static_cast<key_name>(key_index<Dialect>(word{key}));
  };
  constexpr auto parsed = parse<Dialect>(Text.view());
  if constexpr (parsed.index() == 0) {
    return std::get<0>(parsed);
  } else {
    constexpr setting_error error = std::get<1>(parsed);
    if constexpr (key_index<Dialect>(word{error.key}) == Dialect::keys.size()) {
      return [error]<std::size_t... At>(std::index_sequence<At...>) {
        return setting_refused<error.what, error.key[At]..., error.at>{};
      }(std::make_index_sequence<error.key.size()>{});
    } else if constexpr (error.what == fault::excluded_by) {
      return setting_refused<error.what, name(error.key), name(error.other), error.at>{};
    } else {
      return setting_refused<error.what, name(error.key), error.at>{};
    }
  }
}

}  // namespace tessera::config
