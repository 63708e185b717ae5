// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <tessera/trace/recording.hpp>

#include "call_site.hpp"
#include "run_log.hpp"
#include "text.hpp"

namespace {

using replay::drawn_run;
using replay::picture;
using replay::run_log;
using kind = tessera::trace::event::kind;

constexpr std::uint64_t max_exact = std::uint64_t{1} << 53;  // JavaScript rounds larger numbers

/// Formats a JSON string that is safe in a script element.
std::string json_quoted(std::string_view text) {
  std::string safe = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || code < ' ') {
      constexpr const char* digits = "0123456789abcdef";
      safe += "\\u00";
      safe += digits[code / 16];
      safe += digits[code % 16];
    } else {
      safe += c;
    }
  }
  return safe + '"';
}

/// Formats a JSON array of f(element).
template <typename Row, typename F>
std::string list(const Row& row, F f) {
  std::string text = "[";
  for (const auto& each : row) {
    if (text.size() > 1) text += ',';
    text += f(each);
  }
  return text += ']';
}
/// Formats a number as JSON; as a string if JavaScript would round it.
std::string number(std::uint64_t n) {
  return n < max_exact ? std::to_string(n) : json_quoted(std::to_string(n));
}
std::string text_value(const std::string& text) { return json_quoted(replay::printable_text(text)); }

/// Formats members of a JSON object.
class object {
 public:
  object& add(std::string_view name, std::string_view value) {
    text_ += text_.empty() ? '{' : ',';
    ((text_ += '"') += name) += "\":";
    text_ += value;
    return *this;
  }
  [[nodiscard]] std::string text() const { return text_.empty() ? "{}" : text_ + '}'; }

 private:
  std::string text_;
};

/// A column of numbers: seven bits a byte, the lowest first, as base64.
class column {
 public:
  void add(std::uint64_t n) {
    for (; n > 127; n >>= 7) bytes_ += static_cast<char>(n | 128);
    bytes_ += static_cast<char>(n);
  }
  /// Adds a number of either sign; the lowest bit is the sign.
  void add_difference(std::uint64_t from, std::uint64_t to) {
    add(to >= from ? 2 * (to - from) : 2 * (from - to) - 1);
  }
  /// The column as a JSON string.
  [[nodiscard]] std::string text() const {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string made = "\"";
    made.reserve(bytes_.size() / 3 * 4 + 8);
    for (std::size_t i = 0; i < bytes_.size(); i += 3) {
      std::uint32_t group = 0;
      for (std::size_t k = 0; k < 3; ++k)
        group = group << 8 | (i + k < bytes_.size() ? static_cast<unsigned char>(bytes_[i + k]) : 0u);
      for (std::size_t k = 0; k < 4; ++k)
        made += k <= bytes_.size() - i ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
    return made += '"';
  }

 private:
  std::string bytes_;
};

/// Bytes as JavaScript's numbers hold them. Sums stay exact for real devices.
std::uint64_t clamped(std::uint64_t n) { return (std::min)(n, max_exact - 1); }

/// The number of events from an event to another, at least 1; 0 if the other never comes.
std::uint64_t length(std::uint64_t from, std::uint32_t to) { return to == run_log::never ? 0 : to - from; }

/// The allocations of the program, which all runs share. Allocations of the same bytes, stream, call stack and label
/// are of one kind. The most frequent kind comes first, since small numbers are short.
std::string allocations(const tessera::trace::recording& source, std::vector<std::uint32_t>& made) {
  using described = std::tuple<std::size_t, std::uint64_t, std::uint32_t, std::uint32_t>;
  std::map<described, std::size_t> kinds;  // by first use
  std::vector<std::size_t> kind_of;
  std::vector<std::uint32_t> freed;
  std::vector<std::uint64_t> ids;
  std::map<std::uint64_t, std::size_t> slot_of;  // no hash map: ids could be chosen to collide
  bool are_dense = true, are_exact = true;
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    const tessera::trace::event& e = source.events[i];
    if (e.what == kind::allocate) {
      const auto from = source.origin_of(e.id);
      kind_of.push_back(
          kinds.try_emplace({e.bytes, e.stream.handle, from.stack, from.label}, kinds.size()).first->second);
      slot_of.emplace_hint(slot_of.end(), e.id, made.size());
      are_dense = are_dense && e.id == made.size();
      are_exact = are_exact && e.id < max_exact;
      made.push_back(static_cast<std::uint32_t>(i));
      freed.push_back(run_log::never);
      ids.push_back(e.id);
    } else if (e.what == kind::free) {
      freed[slot_of.at(e.id)] = static_cast<std::uint32_t>(i);
    }
  }
  std::vector<std::size_t> count(kinds.size()), order(kinds.size()), position(kinds.size());
  for (const std::size_t k : kind_of) ++count[k];
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return count[a] > count[b]; });
  for (std::size_t k = 0; k < order.size(); ++k) position[order[k]] = k;
  std::vector<const described*> all(kinds.size());
  for (const auto& [one, first] : kinds) all[position[first]] = &one;

  column births, lives, kind_column;
  for (std::size_t slot = 0; slot < made.size(); ++slot) {
    births.add(made[slot] - (slot == 0 ? 0 : made[slot - 1]));
    lives.add(length(made[slot], freed[slot]));
    kind_column.add(position[kind_of[slot]]);
  }
  object text;
  text.add("count", number(made.size()))
      .add("births", births.text())
      .add("lives", lives.text())
      .add("kind", kind_column.text())
      .add("kinds", list(all, [](const described* k) {
             const auto& [bytes, stream, stack, label] = *k;
             return '[' + number(clamped(bytes)) + ',' + number(stream) + ',' + number(stack) + ',' +
                    number(label) + ']';
           }));
  if (!are_dense && are_exact) {
    column differences;
    for (std::size_t slot = 0; slot < ids.size(); ++slot)
      differences.add_difference(slot == 0 ? 0 : ids[slot - 1], ids[slot]);
    text.add("ids", differences.text());
  } else if (!are_dense) {
    text.add("ids", list(ids, [](std::uint64_t id) { return json_quoted(std::to_string(id)); }));
  }
  return text.text();
}

/// The call stacks that allocations have, as [line, frames...], the lines, the frames and the labels. Number 0 is none.
void add_origins(object& to, const tessera::trace::recording& source) {
  if (source.origins.empty()) return;
  std::vector<bool> is_used(source.stacks.stacks() + 1), is_label(source.stacks.texts() + 1);
  for (const auto& from : source.origins) {
    is_used[from.stack] = true;
    is_label[from.label] = true;
  }
  std::map<std::string, std::size_t> line_numbers;
  std::string lines, frames, stacks = "[[0]", labels = "{";
  std::map<std::uint32_t, std::size_t> frame_numbers;
  const auto line_number = [&](const std::string& line) {
    const auto [at, is_new] = line_numbers.try_emplace(line, line_numbers.size());
    if (is_new) (lines += lines.empty() ? "" : ",") += text_value(line);
    return std::to_string(at->second);
  };
  (void)line_number("");
  for (std::uint32_t stack = 1; stack < is_used.size(); ++stack) {
    if (!is_used[stack]) {
      stacks += ",0";
      continue;
    }
    stacks += ",[" + line_number(replay::call_site(source.stacks, stack));
    for (const std::uint32_t position : source.stacks.stack(stack)) {
      const auto [at, is_new] = frame_numbers.try_emplace(position, frame_numbers.size());
      stacks += ',' + std::to_string(at->second);
      if (!is_new) continue;
      const auto& f = source.stacks.frame_at(position);
      std::string text(source.stacks.text(f.file));
      if (f.line != 0 && f.line < std::uint64_t{1} << 31) text.append(":").append(std::to_string(f.line));
      const std::string_view function = source.stacks.text(f.function);
      if (!function.empty()) text.append(text.empty() ? "" : " in ").append(function);
      (frames += frames.empty() ? "" : ",") += text_value(text);
    }
    stacks += ']';
  }
  for (std::uint32_t label = 1; label < is_label.size(); ++label) {
    if (!is_label[label]) continue;
    (labels += labels.size() > 1 ? ",\"" : "\"") += std::to_string(label);
    (labels += "\":") += text_value(std::string(source.stacks.text(label)));
  }
  to.add("lines", '[' + lines + ']').add("frames", '[' + frames + ']');
  to.add("stacks", stacks + ']').add("labels", labels + '}');
}

/// The blocks of a run. A place is an address and a size, relative to the lowest address; place 0 is none.
std::string blocks_of(const run_log& log, const std::vector<std::uint32_t>& made,
                      const std::vector<std::uint32_t>& freed, std::uint64_t base) {
  std::map<std::pair<std::uint64_t, std::size_t>, std::size_t> places;
  for (const run_log::block& b : log.blocks) {
    if (b.address != 0) places.try_emplace({b.address - base, b.bytes});
  }
  column addresses, sizes, place, late_slot, late_live, late_to;
  std::size_t count = 0, late = 0, last_late = 0;
  std::uint64_t last = 0;
  for (auto& [one, index] : places) {
    index = ++count;
    addresses.add(one.first - last);
    sizes.add(clamped(one.second));
    last = one.first;
  }
  for (std::size_t slot = 0; slot < log.blocks.size(); ++slot) {
    const run_log::block& b = log.blocks[slot];
    place.add(b.address == 0 ? 0 : places.find({b.address - base, b.bytes})->second);
    if (b.address == 0 || (b.live_to == freed[slot] && b.to == freed[slot])) continue;
    late_slot.add(slot - last_late);
    late_live.add(length(made[slot], b.live_to));
    late_to.add(length(made[slot], b.to));
    last_late = slot;
    ++late;
  }
  object text;
  text.add("places", number(count))
      .add("addresses", addresses.text())
      .add("sizes", sizes.text())
      .add("place", place.text());
  if (late != 0) {
    text.add("late", number(late))
        .add("lateSlots", late_slot.text())
        .add("lateLives", late_live.text())
        .add("lateEnds", late_to.text());
  }
  return text.text();
}

/// Segments, or memory asleep. An owner is a stream, a private pool, and whether the memory is in a range.
template <typename Spans>
std::string spans_of(const Spans& spans, std::uint64_t base, const std::vector<std::size_t>& owner_of) {
  column from, lives, addresses, sizes, owners;
  std::uint64_t last = 0, last_from = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto& s = spans[i];
    from.add_difference(last_from, s.from);
    lives.add(length(s.from, s.to));
    addresses.add_difference(last, s.address - base);
    sizes.add(clamped(s.bytes));
    if (!owner_of.empty()) owners.add(owner_of[i]);
    last = s.address - base;
    last_from = s.from;
  }
  object text;
  text.add("count", number(spans.size()))
      .add("from", from.text())
      .add("lives", lives.text())
      .add("addresses", addresses.text())
      .add("sizes", sizes.text());
  if (!owner_of.empty()) text.add("owner", owners.text());
  return text.text();
}

std::string run_text(const drawn_run& run, const std::vector<std::uint32_t>& made,
                     const std::vector<std::uint32_t>& freed) {
  const run_log& log = run.log;
  std::uint64_t base = ~std::uint64_t{0};
  for (const run_log::block& b : log.blocks)
    if (b.address != 0) base = (std::min)(base, b.address);
  for (const run_log::segment& s : log.segments) base = (std::min)(base, s.address);
  using owner = std::tuple<std::uint64_t, std::uint64_t, bool>;
  std::map<owner, std::size_t> owners;
  std::string owner_list;
  std::vector<std::size_t> owner_of;
  for (const run_log::segment& s : log.segments) {
    const auto [at, is_new] = owners.try_emplace({s.stream, s.private_pool, s.in_range}, owners.size());
    owner_of.push_back(at->second);
    if (!is_new) continue;
    owner_list += owner_list.empty() ? "[" : ",[";
    owner_list += number(s.stream) + ',' + number(s.private_pool) + (s.in_range ? ",1]" : ",0]");
  }
  constexpr std::string_view kinds[] = {"recorded", "replayed", "planned"};
  object text;
  text.add("name", json_quoted(run.name))
      .add("is", json_quoted(kinds[static_cast<std::size_t>(run.is)]))
      .add("failures", number(run.failures))
      .add("moment", number(run.mapped_event))
      .add("base", json_quoted(std::to_string(base)))
      .add("blocks", blocks_of(log, made, freed, base))
      .add("owners", '[' + owner_list + ']')
      .add("segments", spans_of(log.segments, base, owner_of));
  if (!log.pool_uses.empty()) {
    text.add("uses", list(log.pool_uses, [](const run_log::pool_use& use) {
               return '[' + number(use.private_pool) + ',' + number(use.from) + ',' + number(use.to) + ']';
             }));
  }
  if (!log.asleep.empty()) text.add("asleep", spans_of(log.asleep, base, {}));
  return text.text();
}

/// The times of the events since the first, in microseconds. Empty if they are unknown or all the same. A time before
/// that of an earlier event becomes that of the earlier event.
std::string times_of(const tessera::trace::recording& source) {
  const auto& times = source.times_us;
  if (times.size() != source.events.size() || times.size() < 2) return {};
  const auto [first, last] = std::minmax_element(times.begin(), times.end());
  if (*first == *last) return {};
  column differences;
  std::uint64_t before = times.front();
  for (const std::uint64_t time : times) {
    const std::uint64_t now = (std::max)(before, time);
    differences.add(clamped(now - before));
    before = now;
  }
  return differences.text();
}

}  // namespace

std::string replay::report_data(const picture& shown) {
  const tessera::trace::recording& source = *shown.source;
  std::vector<std::uint32_t> made;
  object text;
  text.add("title", text_value(shown.trace))
      .add("events", number(source.events.size()))
      .add("start", number(shown.events_at_start))
      .add("peak", number(clamped(shown.peak_live)));
  if (!shown.note.empty()) text.add("note", text_value(shown.note));
  text.add("blocks", allocations(source, made));
  add_origins(text, source);
  const std::string times = times_of(source);
  if (!times.empty()) text.add("times", times);
  const tessera::trace::program program(source);
  std::vector<std::uint32_t> freed(program.slot_count(), run_log::never);
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    if (source.events[i].what == kind::free) freed[program.slot(i)] = static_cast<std::uint32_t>(i);
  }
  text.add("runs", list(shown.runs, [&](const drawn_run& run) { return run_text(run, made, freed); }));
  return text.text();
}
