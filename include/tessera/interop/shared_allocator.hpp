// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <tessera/core/fatal.hpp>
#include <tessera/facade.hpp>

namespace tessera {

/// Owns an allocator together with its copies, the last of which ends it: for whoever keeps memory and may outlive the
/// place where the allocator was made. Equal ones own the same allocator. It has the calls of `A` that any allocator has;
/// of the others, `->` has those of `A` itself.
///
///     #include <tessera/concurrent/locked.hpp>
///     using pool_type = tessera::locked<tessera::pytorch<>, tessera::simulated_device>;
///     auto pool = tessera::make_shared_allocator<pool_type>();
///     auto same = pool;
///     same.deallocate(pool.allocate(1000));
///     std::printf("%zu bytes reserved\n", pool->now().reserved);
///
/// Threads may copy and end their own handles at any time; what else they may do is up to `A`. One that is default, or
/// was moved from, owns nothing: it may be assigned to, compared and ended.
///   Cost:  copying counts atomically; a call costs one more load
template <typename A>
class shared_allocator : public facade<shared_allocator<A>, A> {
 public:
  shared_allocator() = default;
  ///   Requires:  not null; else the program ends
  explicit shared_allocator(std::shared_ptr<A> owned) noexcept : owned_(std::move(owned)) {
    if (owned_ == nullptr) fatal("shared_allocator: there is no allocator");
  }

  [[nodiscard]] A& get() const noexcept { return *owned_; }
  [[nodiscard]] A& operator*() const noexcept { return *owned_; }
  [[nodiscard]] A* operator->() const noexcept { return owned_.get(); }
  [[nodiscard]] friend bool operator==(const shared_allocator& a, const shared_allocator& b) noexcept {
    return a.owned_ == b.owned_;
  }

 private:
  friend facade<shared_allocator, A>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return std::forward<F>(f)(*me.owned_);
  }

  std::shared_ptr<A> owned_;
};

/// An allocator made from `args`, and the first handle that owns it.
///   Throws:  std::bad_alloc where host memory ran out, and what making `A` throws
template <typename A, typename... Args>
[[nodiscard]] shared_allocator<A> make_shared_allocator(Args&&... args) {
  return shared_allocator<A>(std::make_shared<A>(std::forward<Args>(args)...));
}

}  // namespace tessera
