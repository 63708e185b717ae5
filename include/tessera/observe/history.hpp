// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tessera/detail/containers/per_thread.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::observe {

/// A call of a stack, in words. PyTorch names the parts `name`, `filename` and `line`.
struct stack_frame {
  std::string function{};  ///< empty if unknown
  std::string file{};      ///< empty if unknown
  std::uint64_t line = 0;  ///< from 1; 0 if unknown
};

/// Takes the call stack of the calling thread, for a `history`. The allocator calls it with its lock held.
///
/// | expression    | returns     | effect                                                                       |
/// |---------------|-------------|------------------------------------------------------------------------------|
/// | S::frame      |             | a call, for example a return address; copyable, with == and <                |
/// | s(frames)     | std::size_t | writes the calls to a std::span<S::frame>, innermost first; returns how many |
/// | s.describe(f) | stack_frame | the call in words. It is called for reports only, so it may be slow          |
///
/// It must not use the allocator. std_stacktrace [tessera/observe/std_stacktrace.hpp] takes those of C++23. With the
/// functions of another library:
///
///     #include <execinfo.h>
///     #include <tessera/extension/observer.hpp>
///     namespace program {
///     struct return_addresses {
///       using frame = void*;
///       std::size_t operator()(std::span<frame> frames) noexcept {
///         const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
///         return static_cast<std::size_t>(count);
///       }
///       static tessera::observe::stack_frame describe(frame f) {
///         char** const names = ::backtrace_symbols(&f, 1);
///         tessera::observe::stack_frame named{.function = names != nullptr ? *names : "?"};
///         std::free(names);
///         return named;
///       }
///     };
///     using watch = tessera::extension::observer<tessera::observe::history_with_stacks<return_addresses>>;
///     using allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch>;
///     }
template <typename S>
concept stack_source =
    std::totally_ordered<typename S::frame> && std::default_initializable<typename S::frame> &&
    requires(S& stacks, const S& constant, std::span<typename S::frame> frames,
             const typename S::frame& one) {
      { stacks(frames) } noexcept -> std::same_as<std::size_t>;
      { constant.describe(one) } -> std::same_as<stack_frame>;
    };

}  // namespace tessera::inline v0_1::observe

namespace tessera::inline v0_1::detail {

/// Returns the microseconds since 1970.
struct wall_time {
  [[nodiscard]] std::uint64_t operator()() const noexcept {
    const auto elapsed = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count());
  }
};
/// The call stacks of a history that takes none.
struct no_stacks {};

/// The distinct call stacks of a history, numbered from 1.
template <typename Stacks>
class kept_stacks {
  static_assert(observe::stack_source<Stacks>, "the Stacks of a history must be a stack_source");

 public:
  static constexpr bool exist = true;
  static constexpr std::size_t max_frames = 64;
  static constexpr std::size_t max_stacks = std::size_t{1} << 16;

  explicit kept_stacks(Stacks source) : source_(std::move(source)) {}
  /// Takes the stack of the calling thread. Returns its number; 0 if there are too many, or host memory ran out.
  [[nodiscard]] std::uint32_t take() noexcept {
    std::array<frame, max_frames> frames{};
    const std::size_t count = (std::min)(source_(std::span<frame>(frames)), max_frames);
    std::uint32_t number = 0;
    const bool works = try_run([&] {
      std::vector<frame> stack(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(count));
      const auto found = numbers_.find(stack);
      if (found != numbers_.end()) {
        number = found->second;
      } else if (numbers_.size() < max_stacks) {
        const auto next = static_cast<std::uint32_t>(numbers_.size() + 1);
        number = numbers_.emplace(std::move(stack), next).first->second;
      }
    });
    return works ? number : 0;
  }
  /// Calls f(number, calls) for each stack.
  template <typename F>
  void for_each(F f) const {
    for (const auto& [frames, number] : numbers_) f(number, describe(frames));
  }
  [[nodiscard]] std::vector<observe::stack_frame> of(std::uint32_t wanted) const {
    for (const auto& [frames, number] : numbers_) {
      if (number == wanted) return describe(frames);
    }
    return {};
  }

 private:
  using frame = typename Stacks::frame;
  /// Describes the calls of a stack, without the innermost ones of tessera's own functions.
  [[nodiscard]] std::vector<observe::stack_frame> describe(const std::vector<frame>& frames) const {
    std::vector<observe::stack_frame> calls;
    for (const frame& one : frames) {
      observe::stack_frame call = source_.describe(one);
      if (!calls.empty() || !call.function.starts_with("tessera::")) calls.push_back(std::move(call));
    }
    return calls;
  }

  Stacks source_;
  std::map<std::vector<frame>, std::uint32_t> numbers_;
};
template <>
class kept_stacks<no_stacks> {
 public:
  static constexpr bool exist = false;
  explicit kept_stacks(no_stacks) noexcept {}
  [[nodiscard]] static constexpr std::uint32_t take() noexcept { return 0; }
};

template <typename Observer>
concept is_labelled = requires(Observer observer) { observer.exchange_label({}); };

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// An observer that stores the latest events of an allocator, with times and labels. When full, it drops the
/// oldest. A live block keeps its label, even if its event was dropped.
///
///     #include <tessera/extension/observer.hpp>
///     using watch = tessera::extension::observer<tessera::observe::history<>>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch> watched;
///     const tessera::observe::label_scope forward(watched, "forward");
///     watched.deallocate(watched.allocate(1000));
///     watched.get<watch>().with([](const tessera::observe::history<>& seen) {
///       seen.for_each([](const auto& entry) { std::printf("%zu bytes\n", entry.event.bytes); });
///     });
///
/// `Time` is callable, returns microseconds, and must not use the allocator. `Stacks` is a stack_source, whose stacks
/// are kept with the live blocks, too; by default, none are taken. A moved-from history may only be assigned to and
/// destroyed.
///   Cost:  a call of `Time` and a store for each event; 64 bytes for each stored event
///   Cost:  a look-up for each allocation and free while any label is in use; about 50 bytes for a labelled live block
///   Cost:  with `Stacks`, the same for each live block, and a stack for each request, free, segment and failure
template <typename Time, typename Stacks>
class history {
 public:
  /// An event that is stored.
  struct entry {
    allocator_event event{};    ///< as the allocator reported it
    std::uint64_t time_us = 0;  ///< microseconds, as `Time` returned them
    std::uint32_t label = 0;    ///< for label_of()
    std::uint32_t stack = 0;    ///< for for_each_stack(); 0 if none was taken
  };
  /// Events that it stores if the program names no number.
  static constexpr std::size_t default_capacity = std::size_t{1} << 16;
  /// Texts that are kept, with the empty one and the one for all further labels.
  static constexpr std::size_t max_labels = std::size_t{1} << 12;

  history() : history(default_capacity) {}
  /// Stores up to `capacity` events, at least 1.
  ///   Throws:  std::bad_alloc or std::length_error
  explicit history(std::size_t capacity, Time time = {}, Stacks stacks = {})
      : capacity_(capacity > 0 ? capacity : 1), time_(time), stacks_(std::move(stacks)), labels_(1) {
    ring_.reserve(capacity_);
  }
  history(history&&) noexcept = default;
  history& operator=(history&&) noexcept = default;
  /// Copies the stored events, labels and stacks. The copy stores as many events as the original.
  history(const history& other)
      : capacity_(other.capacity_),
        time_(other.time_),
        stacks_(other.stacks_),
        labels_(other.labels_),
        label_(other.label_),
        has_labels_(other.has_labels_),
        blocks_(other.blocks_),
        total_(other.total_) {
    ring_.reserve(capacity_);  // a copied vector does not keep its capacity
    ring_.insert(ring_.end(), other.ring_.begin(), other.ring_.end());
  }
  /// As the constructor. It leaves the history unchanged if host memory runs out.
  history& operator=(const history& other) {
    *this = history(other);
    return *this;
  }
  ~history() = default;

  /// Stores an event, with the time and the label of the calling thread. The allocator calls it.
  void on(const allocator_event& event) noexcept {
    entry next{event, time_()};
    if (has_labels_ || detail::kept_stacks<Stacks>::exist) describe(next);
    if (ring_.size() < capacity_) {
      ring_.push_back(next);
    } else {
      ring_[static_cast<std::size_t>(total_ % capacity_)] = next;
    }
    ++total_;
  }

  /// Labels the events of the calling thread from now on. An empty text removes the label: a thread that ends should do
  /// so, because a later thread may get its id. label_scope does it.
  ///
  /// Stores at most 4,095 different labels. Later labels all become "(more labels)".
  ///   Throws:  std::bad_alloc
  void label(std::string_view text) { (void)exchange_label(text); }
  /// Does the same.
  ///   Returns:  the label that the thread had set before, empty if none; valid until the next label is stored
  std::string_view exchange_label(std::string_view text) {
    const std::uint32_t number = number_of(text);
    const std::optional<std::uint32_t> before =
        label_.set(number != 0 ? std::optional(number) : std::nullopt);
    return labels_[before.value_or(0)];
  }
  /// Labels the events of all threads that have set no label.
  ///   Throws:  std::bad_alloc
  void set_default_label(std::string_view text) { label_.set_for_others(number_of(text)); }
  /// The label of the calling thread's next event; empty if there is none.
  [[nodiscard]] std::string_view current_label() const noexcept { return labels_[label_.get()]; }
  /// The label of a stored event; empty if it has none. It is valid until the next label is stored.
  [[nodiscard]] std::string_view label_of(const entry& e) const noexcept { return labels_[e.label]; }

  /// The label and the stack of the live or pending block at an address.
  struct block {
    std::string_view label{};  ///< empty if it has none; valid until the next label is stored
    std::uint32_t stack = 0;   ///< for for_each_stack(); 0 if none was taken
  };
  /// Finds what is kept of the block that begins at an address; empty if nothing is.
  [[nodiscard]] block block_at(std::uintptr_t address) const noexcept {
    const auto found = blocks_.find(address);
    return found != blocks_.end() ? block{labels_[found->second.label], found->second.stack} : block{};
  }
  /// Calls f(number, calls) for each distinct call stack. `calls` is a range of stack_frame, innermost first, without the
  /// innermost calls of tessera's own functions.
  ///   Throws:  what Stacks::describe throws, or std::bad_alloc
  template <typename F>
    requires detail::kept_stacks<Stacks>::exist
  void for_each_stack(F f) const {
    stacks_.for_each(f);
  }
  /// The calls of one stack, as for_each_stack gives them. Empty for 0.
  ///   Cost:  linear in the distinct stacks
  [[nodiscard]] std::vector<stack_frame> stack_of(std::uint32_t number) const
    requires detail::kept_stacks<Stacks>::exist
  {
    return stacks_.of(number);
  }

  /// Calls f(const entry&) for each stored event, oldest first.
  template <typename F>
  void for_each(F f) const {
    const std::size_t begin = total_ > ring_.size() ? static_cast<std::size_t>(total_ % capacity_) : 0;
    for (std::size_t i = 0; i < ring_.size(); ++i) f(ring_[(begin + i) % ring_.size()]);
  }
  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// The number of events that were dropped.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return total_ - ring_.size(); }
  /// Removes all events; labels stay, also those of live blocks.
  void clear() noexcept {
    ring_.clear();
    total_ = 0;
  }

 private:
  using action = allocator_event::action;
  struct kept {
    std::uint32_t label;
    std::uint32_t stack;
  };

  /// Whether the program caused an event by the call that it makes.
  [[nodiscard]] static constexpr bool is_of_caller(action what) noexcept {
    return what == action::alloc || what == action::free_requested || what == action::segment_alloc ||
           what == action::segment_map || what == action::oom;
  }
  /// Adds the label and the stack to an event, and keeps them while its block is live or pending. If host memory runs
  /// out, they are lost.
  [[gnu::noinline]] void describe(entry& e) noexcept {
    const action what = e.event.what;
    e.label = label_.get();
    if (is_of_caller(what)) e.stack = stacks_.take();
    if (what == action::alloc && (e.label != 0 || e.stack != 0)) {
      (void)detail::try_run([&] { blocks_[e.event.address] = {e.label, e.stack}; });
    } else if (what == action::alloc || what == action::free_completed) {
      blocks_.erase(e.event.address);
    }
  }
  /// The number of a label, which is stored if it is new.
  [[nodiscard]] std::uint32_t number_of(std::string_view text) {
    has_labels_ = has_labels_ || !text.empty();
    std::size_t number = 0;
    while (number < labels_.size() && labels_[number] != text) ++number;
    if (number == labels_.size() && number == max_labels) {
      number = max_labels - 1;
    } else if (number == labels_.size()) {
      labels_.emplace_back(number == max_labels - 1 ? std::string_view("(more labels)") : text);
    }
    return static_cast<std::uint32_t>(number);
  }

  std::size_t capacity_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] Time time_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::kept_stacks<Stacks> stacks_;
  std::vector<entry> ring_;
  std::deque<std::string> labels_;  // stay in place, because users hold views; the first is empty: no label
  detail::per_thread<std::uint32_t> label_;
  bool has_labels_ = false;                          // whether any label was ever set
  std::unordered_map<std::uintptr_t, kept> blocks_;  // by address
  std::uint64_t total_ = 0;                          // events observed
};

/// A history that also keeps the call stacks that `Stacks` takes.
template <typename Stacks>
using history_with_stacks = history<detail::wall_time, Stacks>;

/// Labels the events of the calling thread in the histories of an allocator while it lives. The blocks that the thread
/// allocates meanwhile keep the label.
///
///     #include <tessera/concurrent/locked.hpp>
///     #include <tessera/extension/observer.hpp>
///     using watch = tessera::extension::observer<tessera::observe::history<>>;
///     using watched = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch>;
///     tessera::concurrent::locked<watched> shared;
///     const tessera::observe::label_scope forward(shared, "forward");
///     shared.deallocate(shared.allocate(5_MiB));
///
///   Requires:  scopes of a thread end in the reverse order of their beginnings, and in that thread
template <typename Allocator>
class label_scope {
 public:
  ///   Requires:  an extension::observer of the allocator has a history; otherwise the program aborts
  ///   Throws:    std::bad_alloc
  [[nodiscard]] label_scope(Allocator& allocator, std::string_view text) : allocator_(&allocator) {
    allocator.for_each_observer([&](auto& observer) {
      if constexpr (detail::is_labelled<decltype(observer)>)
        before_.emplace_back().assign(observer.exchange_label(text));
    });
    if (before_.empty()) detail::fatal("label_scope: the allocator has no history");
  }
  label_scope& operator=(label_scope&&) = delete;
  ~label_scope() {
    allocator_->for_each_observer([this, i = std::size_t{0}](auto& observer) mutable {
      if constexpr (detail::is_labelled<decltype(observer)>) observer.label(before_[i++]);
    });
  }

 private:
  Allocator* allocator_;
  std::vector<std::string> before_;  // the label in each history
};

}  // namespace tessera::inline v0_1::observe
