// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::trace {

/// Where in a program things happened: stacks of calls, each one kept once. Stacks and texts have numbers from 1 on; 0 is
/// for none.
class call_stacks {
 public:
  /// A call. Its file and function are numbers of texts.
  struct frame {
    std::uint32_t file = 0;
    std::uint32_t function = 0;
    std::uint64_t line = 0;  ///< from 1 on; 0 or 2^64 - 1 where it is not known
    auto operator<=>(const frame&) const = default;
  };

  [[nodiscard]] std::size_t texts() const noexcept { return texts_.size(); }
  [[nodiscard]] std::size_t frames() const noexcept { return frames_.size(); }
  [[nodiscard]] std::size_t stacks() const noexcept { return ends_.size(); }
  [[nodiscard]] std::string_view text(std::uint32_t number) const noexcept {
    return number == 0 ? std::string_view{} : std::string_view(texts_[number - 1]);
  }
  [[nodiscard]] const frame& frame_at(std::uint32_t place) const noexcept { return frames_[place]; }
  /// The frames of a stack, by their places, innermost first.
  [[nodiscard]] std::span<const std::uint32_t> stack(std::uint32_t number) const noexcept {
    if (number == 0) return {};
    const std::size_t begin = number == 1 ? 0 : ends_[number - 2];
    return {calls_.data() + begin, ends_[number - 1] - begin};
  }
  bool operator==(const call_stacks&) const = default;

 private:
  friend class call_stack_builder;
  std::vector<std::string> texts_;
  std::vector<frame> frames_;
  std::vector<std::uint32_t> calls_;  // of all stacks, one behind the other
  std::vector<std::size_t> ends_;     // of each stack in calls_
};

/// Fills a table of call stacks, and finds what is in it already.
///   Cost:  a look-up by content for each; not hashed, as files could choose what collides
class call_stack_builder {
 public:
  explicit call_stack_builder(call_stacks& to)
      : to_(to), texts_(by_content{&to}), frames_(by_content{&to}), stacks_(by_content{&to}) {
    for (std::uint32_t i = 0; i < to.texts(); ++i) texts_.insert(text_number{i + 1});
    for (std::uint32_t i = 0; i < to.frames(); ++i) frames_.insert(frame_place{i});
    for (std::uint32_t i = 0; i < to.stacks(); ++i) stacks_.insert(stack_number{i + 1});
  }
  call_stack_builder(const call_stack_builder&) = delete;
  call_stack_builder& operator=(const call_stack_builder&) = delete;

  /// The number of a text; 0 for an empty one.
  std::uint32_t add_text(std::string_view text) {
    if (text.empty()) return 0;
    if (const auto found = texts_.find(text); found != texts_.end()) return found->number;
    to_.texts_.emplace_back(text);
    const auto number = static_cast<std::uint32_t>(to_.texts_.size());
    texts_.insert(text_number{number});
    return number;
  }
  /// The place of a frame.
  std::uint32_t add_frame(const call_stacks::frame& frame) {
    if (const auto found = frames_.find(frame); found != frames_.end()) return found->place;
    const auto place = static_cast<std::uint32_t>(to_.frames_.size());
    to_.frames_.push_back(frame);
    frames_.insert(frame_place{place});
    return place;
  }
  /// The number of a stack of frames, given by their places, innermost first; 0 for an empty one.
  std::uint32_t add_stack(std::span<const std::uint32_t> frames) {
    if (frames.empty()) return 0;
    if (const auto found = stacks_.find(frames); found != stacks_.end()) return found->number;
    to_.calls_.insert(to_.calls_.end(), frames.begin(), frames.end());
    to_.ends_.push_back(to_.calls_.size());
    const auto number = static_cast<std::uint32_t>(to_.ends_.size());
    stacks_.insert(stack_number{number});
    return number;
  }

 private:
  struct text_number {
    std::uint32_t number;
  };
  struct frame_place {
    std::uint32_t place;
  };
  struct stack_number {
    std::uint32_t number;
  };
  /// Orders what is in the table by what it is, and finds it by that.
  struct by_content {
    using is_transparent = void;
    const call_stacks* of;

    [[nodiscard]] std::string_view content(text_number t) const noexcept { return of->text(t.number); }
    [[nodiscard]] std::string_view content(std::string_view t) const noexcept { return t; }
    [[nodiscard]] call_stacks::frame content(frame_place f) const noexcept { return of->frame_at(f.place); }
    [[nodiscard]] call_stacks::frame content(const call_stacks::frame& f) const noexcept { return f; }
    [[nodiscard]] std::span<const std::uint32_t> content(stack_number s) const noexcept {
      return of->stack(s.number);
    }
    [[nodiscard]] std::span<const std::uint32_t> content(std::span<const std::uint32_t> s) const noexcept {
      return s;
    }
    [[nodiscard]] static bool less(std::span<const std::uint32_t> a,
                                   std::span<const std::uint32_t> b) noexcept {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
    template <typename T>
    [[nodiscard]] static bool less(const T& a, const T& b) noexcept {
      return a < b;
    }
    template <typename A, typename B>
    [[nodiscard]] bool operator()(const A& a, const B& b) const noexcept {
      return less(content(a), content(b));
    }
  };

  call_stacks& to_;
  std::set<text_number, by_content> texts_;
  std::set<frame_place, by_content> frames_;
  std::set<stack_number, by_content> stacks_;
};

}  // namespace tessera::trace
