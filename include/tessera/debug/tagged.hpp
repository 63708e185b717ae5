// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/containers/per_thread.hpp>
#include <tessera/fwd.hpp>

namespace tessera::inline v0_1::detail::missing {

struct a_tagged_allocator_brings_no_tags_back;

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1::debug {

/// Says what a block is for, by a number from 0 to 255. The program gives the numbers their meaning.
enum class block_tag : std::uint8_t {};

/// The live blocks of one tag.
struct tag_usage {
  std::size_t blocks = 0;      ///< live blocks
  std::size_t bytes = 0;       ///< requested bytes
  std::size_t peak_bytes = 0;  ///< maximum of `bytes`, since reset_peak_statistics() if it was called
  bool operator==(const tag_usage&) const = default;
};

/// Keeps a tag and a pointer of the user for each live block, and counts the bytes of each tag. Otherwise it
/// behaves like `Allocator`.
///
/// Choose it to see what the memory is used for, such as weights and activations.
///
///     #include <tessera/concurrent/locked.hpp>
///     constexpr tessera::debug::block_tag weights{1}, activations{2};
///     using device_allocator = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
///     tessera::debug::tagged<tessera::concurrent::locked<device_allocator>> memory;
///     void* const p = memory.allocate(5_MiB, weights);
///     const tessera::debug::tag_scope forward(memory, activations);
///     void* const q = memory.allocate(1000);
///     memory.set_user_pointer(q, &memory);
///     memory.for_each_tag([](tessera::debug::block_tag tag, const tessera::debug::tag_usage& now) {
///       std::printf("tag %d: %zu bytes\n", static_cast<int>(tag), now.bytes);
///     });
///     memory.deallocate(p);
///     memory.deallocate(q);
///
/// * A request has the current tag if the call names none. Each thread has a current tag of its own. At first, it is
///   that of set_default_tag, which is 0 at first.
/// * A free drops the tag and the pointer. A block that reuse_in_place gives to a new request gets the current
///   tag and a null pointer.
/// * The bytes of all tags are the requested bytes of all live blocks. A block that was allocated through
///   inner() has no tag and does not count. Free all others here, not through inner().
/// * It has no checkpoints, because tags would not come back.
/// * A request fails if host memory for its tag runs out.
///
/// It is as thread-safe as `Allocator`.
///   Cost:  a mutex and a look-up for each allocation and free; about 70 bytes of host memory for a live block
template <typename Allocator>
class tagged : public detail::wrapping_adaptor<tagged<Allocator>, Allocator> {
  using adaptor_type = detail::wrapping_adaptor<tagged, Allocator>;
  using adaptor_type::allocator_;

 public:
  template <typename E>
  using refused = std::conditional_t<std::is_same_v<E, extension::checkpoints>,
                                     detail::missing::a_tagged_allocator_brings_no_tags_back,
                                     typename adaptor_type::template refused<E>>;

  using adaptor_type::adaptor_type;
  using adaptor_type::allocate;
  /// Serves a request, and gives the block a tag.
  ///   Throws:  out_of_memory, also if host memory for the tag ran out
  [[nodiscard]] void* allocate(std::size_t bytes, block_tag tag, stream_id stream = {}) {
    if (void* const p = try_allocate(bytes, tag, stream); p != nullptr || bytes == 0) return p;
    tagged::raise(this->make_out_of_memory(bytes, stream));
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, block_tag tag, stream_id stream = {}) noexcept {
    return give_tag(allocator_.try_allocate(bytes, stream), bytes, tag);
  }
  using adaptor_type::try_allocate;
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    if (!allocator_.reuse_in_place(p, bytes, stream)) return false;
    const std::lock_guard lock(mutex_);
    if (entry* const e = entries_.find(p)) assign(*e, {bytes, nullptr, current_.get()});
    return true;
  }

  /// The tag of requests of the calling thread that name none. tag_scope changes it.
  [[nodiscard]] block_tag current_tag() const noexcept {
    const std::lock_guard lock(mutex_);
    return current_.get();
  }
  /// Changes the current tag of the calling thread. Without a tag, it has the default tag again: a thread that ends
  /// should do so, because a later thread may get its id.
  ///   Returns:  the tag that the thread had set before
  ///   Throws:   std::bad_alloc if it had set none
  std::optional<block_tag> set_current_tag(std::optional<block_tag> tag) {
    const std::lock_guard lock(mutex_);
    return current_.set(tag);
  }
  /// Changes the tag of requests of the threads that have set none.
  void set_default_tag(block_tag tag) noexcept {
    const std::lock_guard lock(mutex_);
    current_.set_for_others(tag);
  }

  /// Changes the tag of a live block. Null is ignored, here and in set_user_pointer.
  ///   Requires:  the address of a live block with a tag; otherwise the program aborts
  ///   Cost:      a look-up, here and in the members below
  void set_tag(const void* p, block_tag tag) noexcept {
    change(p, "set_tag", [this, tag](entry& e) { assign(e, {e.bytes, e.user_pointer, tag}); });
  }
  /// Keeps a pointer of the user for a live block.
  ///   Requires:  as set_tag
  void set_user_pointer(const void* p, void* user_pointer) noexcept {
    change(p, "set_user_pointer", [=](entry& e) { e.user_pointer = user_pointer; });
  }
  /// Returns the tag of a live block; tag 0 for another address.
  [[nodiscard]] block_tag tag_of(const void* p) const noexcept {
    const std::lock_guard lock(mutex_);
    const entry* const e = entries_.find(p);
    return e != nullptr ? e->tag : block_tag{};
  }
  /// Returns the pointer kept for a live block; null if there is none, and for another address.
  [[nodiscard]] void* user_pointer_of(const void* p) const noexcept {
    const std::lock_guard lock(mutex_);
    const entry* const e = entries_.find(p);
    return e != nullptr ? e->user_pointer : nullptr;
  }

  /// The live blocks of a tag; zeros if no request has had it.
  [[nodiscard]] tag_usage usage_of(block_tag tag) const noexcept {
    const std::lock_guard lock(mutex_);
    return tags_[static_cast<std::size_t>(tag)];
  }
  /// Calls f(tag, tag_usage) for each tag that has had live blocks. The numbers are those of one moment. `f` may
  /// use the allocator.
  template <typename F>
  void for_each_tag(F f) const {
    const auto now = [this] {
      const std::lock_guard lock(mutex_);
      return tags_;
    }();
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].peak_bytes > 0) f(static_cast<block_tag>(i), now[i]);
    }
  }

  void reset_peak_statistics() noexcept
    requires requires(Allocator& in) { in.reset_peak_statistics(); }
  {
    adaptor_type::reset_peak_statistics();
    const std::lock_guard lock(mutex_);
    for (tag_usage& of : tags_) of.peak_bytes = of.bytes;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const std::size_t inside = adaptor_type::metadata_bytes();
    const std::lock_guard lock(mutex_);
    return inside + entries_.metadata_bytes();
  }
  [[nodiscard]] const char* audit() const noexcept {
    if (const char* const broken = adaptor_type::audit(); broken != nullptr) return broken;
    const std::lock_guard lock(mutex_);
    std::size_t blocks = 0;
    for (const tag_usage& of : tags_) blocks += of.blocks;
    return blocks == entries_.size() ? nullptr : "each block has one tag";
  }

 private:
  struct entry {
    std::size_t bytes = 0;
    void* user_pointer = nullptr;
    block_tag tag{};
  };

  friend allocator_adaptor<tagged, Allocator>;
  template <typename F>
  static auto on_call(tagged& me, const detail::request_call& call, F ask) noexcept {
    const block_tag tag = me.current_tag();
    return me.give_tag(ask(), call.bytes, tag);
  }
  template <typename F>
  static bool on_call(tagged& me, const detail::free_call& call, F free) noexcept {
    {
      const std::lock_guard lock(me.mutex_);
      me.entries_.erase(call, [&me](const entry& e) { me.subtract(e); });
    }
    return free();
  }
  /// Frees the block of a request again if host memory for its tag ran out. Returns the block, or null.
  template <typename Block>
  [[nodiscard]] Block give_tag(Block served, std::size_t bytes, block_tag tag) noexcept {
    if (!served || insert(served, {bytes, nullptr, tag})) return served;
    allocator_.deallocate(served);
    return Block();
  }
  template <typename Block>
  [[nodiscard]] bool insert(Block b, const entry& inserted) noexcept {
    const std::lock_guard lock(mutex_);
    entry* const e = entries_.insert(b, [this](const entry& stale) { subtract(stale); });
    if (e == nullptr) return false;
    *e = inserted;
    add(*e);
    return true;
  }
  void assign(entry& e, const entry& to) noexcept {
    subtract(e);
    e = to;
    add(e);
  }
  void add(const entry& e) noexcept {
    tag_usage& now = tags_[static_cast<std::size_t>(e.tag)];
    ++now.blocks;
    now.bytes += e.bytes;
    if (now.bytes > now.peak_bytes) now.peak_bytes = now.bytes;
  }
  void subtract(const entry& e) noexcept {
    tag_usage& now = tags_[static_cast<std::size_t>(e.tag)];
    --now.blocks;
    now.bytes -= e.bytes;
  }
  template <typename F>
  void change(const void* p, const char* call, F f) noexcept {
    if (p == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      if (entry* const e = entries_.find(p)) return f(*e);
    }
    detail::visit_plan_of(allocator_, [call, p](const auto& plan) {
      if (plan.contains(p)) plan.refuse(call, p);
    });
    this->visit_owner(p, [call, p](auto& in) { detail::refuse_address(detail::introspect(in), call, p); });
    detail::refuse_stranger(call, p);
  }

  mutable std::mutex mutex_;  // guards the members below; it is not held while the allocator inside is called
  detail::per_thread<block_tag> current_;
  detail::block_notes<entry> entries_;
  std::array<tag_usage, 256> tags_{};
};

/// Changes the current tag of the calling thread in a tagged allocator while it lives.
///   Requires:  scopes of a thread end in the reverse order of their beginnings, and in that thread
template <typename Tagged>
class tag_scope {
 public:
  ///   Throws:  std::bad_alloc
  [[nodiscard]] tag_scope(Tagged& allocator, block_tag tag)
      : allocator_(&allocator), before_(allocator.set_current_tag(tag)) {}
  tag_scope& operator=(tag_scope&&) = delete;
  ~tag_scope() { allocator_->set_current_tag(before_); }

 private:
  Tagged* allocator_;
  std::optional<block_tag> before_;
};

}  // namespace tessera::inline v0_1::debug
