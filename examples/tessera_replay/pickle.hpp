// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/csv.hpp>

#include "files.hpp"
#include "text.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// The name of a Python object, cut and made printable: a file may contain anything.
[[nodiscard]] inline std::string shown_object(std::string_view module, std::string_view name) {
  constexpr std::size_t max_length = 60;  // characters of module and name
  std::string shown(module.substr(0, max_length));
  (shown += '.') += name.substr(0, max_length);
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

/// The error text for an opcode that creates more than plain data. `after` are the bytes after the opcode;
/// `module` and `name` are the texts on top of the stack, or empty.
[[nodiscard]] inline std::string not_plain_data(unsigned char op, std::string_view after,
                                                std::string_view module, std::string_view name) {
  std::string what = "something";
  switch (op) {
    case 'c': {  // followed by two lines: module and name
      after = after.substr(0, 1024);
      const std::string_view first = after.substr(0, after.find('\n'));
      const std::string_view rest =
          after.substr(first.size() < after.size() ? first.size() + 1 : after.size());
      what = "the Python object " + shown_object(first, rest.substr(0, rest.find('\n')));
      break;
    }
    case 0x93: what = "the Python object " + shown_object(module, name); break;
    case 'R':
    case 'b':
    case 'i':
    case 'o':
    case 0x81:
    case 0x92: what = "a Python object"; break;
    case 'P':
    case 'Q': what = "a reference to data elsewhere, as torch.save writes it,"; break;
    case 0x8f:
    case 0x90:
    case 0x91: what = "a set"; break;
    case 0x96: what = "an array of bytes"; break;
    case 'F':
    case 'I':
    case 'L':
    case 'S':
    case 'V':
    case 'g':
    case 'p': what = "a value in the text form of protocol 0"; break;
    default: break;
  }
  return what + " (opcode " + std::to_string(op) +
         ") is not plain data and is not executed; a memory snapshot has none";
}

/// A value of plain data in the pickle's table.
struct pickled {
  enum class kind : unsigned char { none, boolean, integer, real, text, list, dict };
  kind is = kind::none;
  bool is_wide = false;      ///< the integer is 2^63 or more, and `integer` is 2^64 less
  std::size_t at = 0;        ///< offset of the opcode that created it, in bytes
  std::int64_t integer = 0;  ///< also the value of a boolean
  double real = 0;
  std::string_view text;             ///< the text, or the bytes of a bytes object
  std::vector<std::uint32_t> items;  ///< of a list or tuple; alternating keys and values of a dict
};

/// The plain data in a Python pickle of protocol 2 to 5.
///
/// Nothing is executed: an opcode that would create or call an object is an error. Nesting uses no stack. A
/// value that is referenced twice is stored once.
class pickle {
 public:
  /// The size of the file in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const pickled& root() const noexcept { return values_[root_]; }
  [[nodiscard]] const pickled& operator[](std::uint32_t index) const noexcept { return values_[index]; }
  /// The number of values in the table.
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }

  /// The value of a key in a dict, the last one if the key is repeated. Null if `dict` is no dict or lacks
  /// the key.
  [[nodiscard]] const pickled* find(const pickled& dict, std::string_view key) const noexcept {
    const std::uint32_t number = find_number(dict, key);
    return number != nowhere ? &values_[number] : nullptr;
  }
  /// The index of that value in the table, or `nowhere`.
  [[nodiscard]] std::uint32_t find_number(const pickled& dict, std::string_view key) const noexcept {
    if (dict.is != pickled::kind::dict) return nowhere;
    for (std::size_t i = dict.items.size(); i >= 2; i -= 2) {
      const pickled& name = values_[dict.items[i - 2]];
      if (name.is == pickled::kind::text && name.text == key) return dict.items[i - 1];
    }
    return nowhere;
  }
  static constexpr std::uint32_t nowhere = 0xFFFFFFFFu;

 private:
  friend class pickle_reader;
  std::deque<pickled> values_;  // a growing vector would take three times the memory
  std::uint32_t root_ = 0;
  std::size_t bytes_ = 0;
};

class pickle_reader {
 public:
  pickle_reader(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  [[nodiscard]] read_result<pickle> read() {
    while (!finished_ && rule_.empty()) {
      op_at_ = at_;
      if (at_ == bytes_.size()) {
        fail("the pickle is cut short");
      } else {
        step(static_cast<unsigned char>(bytes_[at_++]));
      }
    }
    if (!rule_.empty()) return input_error{name_ + ": byte " + std::to_string(op_at_), rule_};
    return std::move(out_);
  }

 private:
  using kind = pickled::kind;

  void step(unsigned char op) {
    switch (op) {
      case 0x80: protocol(number(1)); break;
      case 0x95: number(8); break;  // FRAME: its length is not needed
      case '.': stop(); break;
      case '(': marks_.push_back(stack_.size()); break;
      case '0': pop(); break;
      case '1': pop_to_mark(); break;
      case '2':
        if (const auto top = peek()) push(*top);
        break;
      case 'N': make(kind::none); break;
      case 0x88: make(kind::boolean).integer = 1; break;
      case 0x89: make(kind::boolean).integer = 0; break;
      case 'J': make(kind::integer).integer = static_cast<std::int32_t>(number(4)); break;
      case 'K': make(kind::integer).integer = static_cast<std::int64_t>(number(1)); break;
      case 'M': make(kind::integer).integer = static_cast<std::int64_t>(number(2)); break;
      case 0x8a: long_integer(number(1)); break;
      case 0x8b: long_integer(number(4)); break;
      case 'G': make(kind::real).real = __builtin_bit_cast(double, reversed(number(8))); break;
      case 'U':
      case 0x8c:
      case 'C': text(number(1)); break;
      case 'T':
      case 'X':
      case 'B': text(number(4)); break;
      case 0x8d:
      case 0x8e: text(number(8)); break;
      case ']':
      case ')': make(kind::list); break;
      case '}': make(kind::dict); break;
      case 'l':
      case 't': collect(kind::list, pop_to_mark()); break;
      case 'd': collect(kind::dict, pop_to_mark()); break;
      case 0x85: collect(kind::list, pop(1)); break;
      case 0x86: collect(kind::list, pop(2)); break;
      case 0x87: collect(kind::list, pop(3)); break;
      case 'a': extend(kind::list, pop(1)); break;
      case 'e': extend(kind::list, pop_to_mark()); break;
      case 's': extend(kind::dict, pop(2)); break;
      case 'u': extend(kind::dict, pop_to_mark()); break;
      case 0x94: put(memo_.size()); break;
      case 'q': put(number(1)); break;
      case 'r': put(number(4)); break;
      case 'h': get(number(1)); break;
      case 'j': get(number(4)); break;
      default: refuse(op); break;
    }
  }

  void refuse(unsigned char op) {
    const auto text_at = [this](std::size_t depth) {
      return depth <= stack_.size() ? out_.values_[stack_[stack_.size() - depth]].text : std::string_view{};
    };
    fail(not_plain_data(op, bytes_.substr(at_), text_at(2), text_at(1)));
  }
  void fail(std::string rule) {
    if (rule_.empty()) rule_ = std::move(rule);
  }
  void protocol(std::uint64_t version) {
    if (version < 2 || version > 5) fail("protocol " + std::to_string(version) + "; 2 to 5 are read");
  }
  void stop() {
    finished_ = true;
    if (stack_.size() != 1 || !marks_.empty()) return fail("the pickle ends with other than one value");
    out_.root_ = stack_[0];
    out_.bytes_ = bytes_.size();
  }

  [[nodiscard]] std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail("the pickle is cut short: " + counted(count, "byte is", "bytes are") + " announced, " +
           std::to_string(bytes_.size() - at_) + " are left");
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += taken.size();
    return taken;
  }
  /// Reads `count` bytes as a little-endian number.
  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view digits = take(count);
    for (std::size_t i = digits.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  [[nodiscard]] static std::uint64_t reversed(std::uint64_t n) noexcept {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i, n >>= 8) value = value << 8 | (n & 0xff);
    return value;
  }
  /// Reads an integer of any length. One beyond 64 bits becomes a real number.
  void long_integer(std::uint64_t length) {
    if (length <= 8) {
      const std::uint64_t digits = number(static_cast<std::size_t>(length));
      const unsigned unused = 64 - 8 * static_cast<unsigned>(length);
      make(kind::integer).integer = length == 0 ? 0 : static_cast<std::int64_t>(digits << unused) >> unused;
      return;
    }
    const std::string_view digits = take(length);
    if (digits.empty()) return;
    if (length == 9 && digits[8] == 0) {
      at_ -= 9;
      pickled& made = make(kind::integer);
      made.integer = static_cast<std::int64_t>(number(8));
      made.is_wide = made.integer < 0;
      ++at_;
      return;
    }
    const bool is_negative = static_cast<unsigned char>(digits.back()) >= 0x80;
    double value = 0;
    for (std::size_t i = digits.size(); i-- > 0;) {
      const unsigned digit = static_cast<unsigned char>(digits[i]);
      value = value * 256 + (is_negative ? 255 - digit : digit);
    }
    make(kind::real).real = is_negative ? -value - 1 : value;
  }
  void text(std::uint64_t length) { make(kind::text).text = take(length); }

  pickled& make(kind what) {
    push(static_cast<std::uint32_t>(out_.values_.size()));
    pickled& made = out_.values_.emplace_back();
    made.is = what;
    made.at = op_at_;
    return made;
  }
  void push(std::uint32_t value) {
    if (out_.values_.size() >= 0xFFFFFFFFu) return fail("more than 2^32 values");
    stack_.push_back(value);
  }
  [[nodiscard]] const std::uint32_t* peek() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() > floor) return &stack_.back();
    fail("a value is missing on the stack");
    return nullptr;
  }
  std::vector<std::uint32_t> pop(std::size_t count = 1) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) {
      fail("a value is missing on the stack");
      return {};
    }
    return pop_from(stack_.size() - count);
  }
  std::vector<std::uint32_t> pop_to_mark() {
    if (marks_.empty()) {
      fail("a mark is missing on the stack");
      return {};
    }
    const std::size_t floor = marks_.back();
    marks_.pop_back();
    return pop_from(floor);
  }
  std::vector<std::uint32_t> pop_from(std::size_t floor) {
    std::vector<std::uint32_t> taken(stack_.begin() + static_cast<std::ptrdiff_t>(floor), stack_.end());
    stack_.resize(floor);
    return taken;
  }
  void collect(kind what, std::vector<std::uint32_t> items) {
    if (what == kind::dict && items.size() % 2 != 0) return fail("a key without a value");
    make(what).items = std::move(items);
  }
  void extend(kind what, const std::vector<std::uint32_t>& items) {
    const std::uint32_t* const top = peek();
    if (top == nullptr) return;
    pickled& target = out_.values_[*top];
    if (target.is != what)
      return fail(what == kind::list ? "items for a value that is no list"
                                     : "items for a value that is no dict");
    if (what == kind::dict && items.size() % 2 != 0) return fail("a key without a value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  /// Rejects a gap in memo indexes, which Python never writes, so that no file can make the memo large.
  void put(std::uint64_t index) {
    const std::uint32_t* const top = peek();
    if (top == nullptr) return;
    if (index > memo_.size()) return fail("memo " + std::to_string(index) + " leaves a gap");
    if (index == memo_.size()) memo_.emplace_back();
    memo_[static_cast<std::size_t>(index)] = *top;
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size()) return fail("memo " + std::to_string(index) + " was never set");
    push(memo_[static_cast<std::size_t>(index)]);
  }

  std::string_view bytes_;
  std::string name_;
  std::size_t at_ = 0;
  std::size_t op_at_ = 0;
  bool finished_ = false;
  std::string rule_;
  pickle out_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::vector<std::uint32_t> memo_;
};

/// Reads a pickle. Its texts are views into `bytes`, which must outlive it.
///   Returns:  an error with its byte offset for anything but plain data
///   Cost:     linear; at most 100 bytes of host memory per byte of file, and 30 for a snapshot
[[nodiscard]] inline read_result<pickle> read_pickle(std::string_view bytes, std::string name) {
  return pickle_reader(bytes, std::move(name)).read();
}

/// Looks up fields of dicts in a pickle, and stores the first error. It limits the host memory that is
/// created from the pickle, since a short pickle can refer to the same values repeatedly.
class pickled_fields {
 public:
  using kind = pickled::kind;

  explicit pickled_fields(const pickle& source) : source_(source) {}

  [[nodiscard]] bool good() const noexcept { return rule_.empty(); }
  /// The first error, if there is one.
  [[nodiscard]] std::optional<input_error> error(const std::string& file) const {
    if (good()) return {};
    return input_error{file + ": byte " + std::to_string(at_), rule_};
  }
  void fail(const pickled& at, std::string rule) { fail(at.at, std::move(rule)); }
  void fail(std::size_t byte, std::string rule) {
    if (good()) at_ = byte, rule_ = std::move(rule);
  }
  /// Clears the error, for an optional part of the file.
  void clear_error() { rule_.clear(); }

  /// Charges the memory of `count` objects of `each` bytes to the limit.
  ///   Returns:  false, with an error, if the limit is exceeded
  bool charge(const pickled& at, std::size_t count, std::size_t each) {
    if (count <= left_ / each) return left_ -= count * each, true;
    fail(at, "it references the same values so often that they would need more than " +
                 std::to_string(max_per_byte) + " bytes per byte of the file");
    return false;
  }
  /// Charges a search through a dict.
  bool charge(const pickled& dict) { return charge(dict, dict.items.size() + 1, 1); }

  [[nodiscard]] const pickled* optional(const pickled& dict, std::string_view key, kind wanted) {
    if (dict.is != kind::dict) fail(dict, "a dict is expected");
    const pickled* const found = source_.find(dict, key);
    if (found != nullptr && found->is != wanted)
      fail(*found, "'" + std::string(key) + "' has the wrong type");
    return good() ? found : nullptr;
  }
  [[nodiscard]] const pickled* required(const pickled& dict, std::string_view key, kind wanted) {
    const pickled* const found = optional(dict, key, wanted);
    if (found == nullptr) fail(dict, "'" + std::string(key) + "' is missing");
    return found;
  }
  [[nodiscard]] std::uint64_t natural(const pickled* value, std::string_view key) {
    if (value == nullptr) return 0;
    if (value->integer < 0 && !value->is_wide) fail(*value, "'" + std::string(key) + "' is negative");
    return static_cast<std::uint64_t>(value->integer);
  }
  [[nodiscard]] std::uint64_t number(const pickled& dict, std::string_view key) {
    return natural(required(dict, key, kind::integer), key);
  }
  /// Reads an address. Devices have at most 63 bits of addresses.
  [[nodiscard]] std::uint64_t address(const pickled& dict, std::string_view key) {
    const std::uint64_t n = number(dict, key);
    if (n >> 63 != 0)
      fail(dict, "'" + std::string(key) + "' is " + std::to_string(n) + "; addresses are below 2^63");
    return n;
  }
  [[nodiscard]] std::size_t bytes(const pickled& dict, std::string_view key) {
    const std::uint64_t n = number(dict, key);
    if (n > max_request) fail(dict, "'" + std::string(key) + "' is " + trace::detail::request_limit_text(n));
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] std::string_view text(const pickled& dict, std::string_view key) {
    const pickled* const found = required(dict, key, kind::text);
    return found != nullptr ? found->text : std::string_view{};
  }
  /// Reads an optional number that does not affect decisions; 0 if it is missing or no integer.
  [[nodiscard]] std::uint64_t aside(const pickled& dict, std::string_view key) const noexcept {
    const pickled* const found = source_.find(dict, key);
    const bool is_natural =
        found != nullptr && found->is == kind::integer && (found->integer >= 0 || found->is_wide);
    return is_natural ? static_cast<std::uint64_t>(found->integer) : 0;
  }

 private:
  static constexpr std::size_t max_per_byte = 28;  // an empty trace takes 24, and the index of a value 4

  const pickle& source_;
  std::size_t left_ = tessera::detail::saturating_add(operator""_KiB(64), source_.bytes() * max_per_byte);
  std::size_t at_ = 0;
  std::string rule_;
};

}  // namespace replay
