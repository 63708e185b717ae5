// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::detail {

/// A balanced search tree of objects that it does not own. Each has two pointers, `Node* links[2]`, so an insert
/// takes no host memory and cannot fail. Order::precedes(a, b) orders them.
///
/// No node has a higher priority than its parent. The priority is a hash of the address, which never changes.
///   Cost:  logarithmic on average
template <typename Node, typename Order>
class treap {
 public:
  [[nodiscard]] bool empty() const noexcept { return root_ == nullptr; }

  /// Inserts a node. Returns the node before it, or null.
  Node* insert(Node& fresh) noexcept {
    Node* before = nullptr;
    Node** at = &root_;
    while (*at != nullptr && priority_of(**at) >= priority_of(fresh)) at = step(**at, fresh, before);
    Node* rest = *at;
    *at = &fresh;
    Node** open[2] = {&fresh.links[0], &fresh.links[1]};
    while (rest != nullptr) {
      const bool is_high = !Order::precedes(*rest, fresh);
      if (!is_high) before = rest;
      *open[is_high] = rest;
      open[is_high] = &rest->links[!is_high];
      rest = rest->links[!is_high];
    }
    *open[0] = *open[1] = nullptr;
    return before;
  }
  /// Erases a node. Returns the node before it, or null.
  Node* erase(Node& old) noexcept {
    Node* before = nullptr;
    Node** at = &root_;
    while (*at != &old) at = step(**at, old, before);
    Node* low = old.links[0];
    Node* high = old.links[1];
    for (Node* last = low; last != nullptr; last = last->links[1]) before = last;
    while (low != nullptr && high != nullptr) {
      const bool low_leads = priority_of(*low) >= priority_of(*high);
      Node*& leader = low_leads ? low : high;
      *at = leader;
      at = &leader->links[low_leads];
      leader = *at;
    }
    *at = low != nullptr ? low : high;
    return before;
  }
  /// Finds the first node for which is_before(node) is false, or null. No node for which it is true may follow.
  template <typename F>
  [[nodiscard]] Node* find(F is_before) const noexcept {
    Node* found = nullptr;
    for (Node* at = root_; at != nullptr;) {
      const bool goes_on = is_before(*at);
      if (!goes_on) found = at;
      at = at->links[goes_on];
    }
    return found;
  }

 private:
  [[nodiscard]] static std::uint64_t priority_of(const Node& n) noexcept {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(&n) * 0xD6E8FEB86659FD93u;
    return mixed ^ (mixed >> 32);
  }
  /// Goes from a node towards another. Sets `before` to the node if it precedes the other.
  [[nodiscard]] static Node** step(Node& from, const Node& to, Node*& before) noexcept {
    const bool is_low = Order::precedes(from, to);
    if (is_low) before = &from;
    return &from.links[is_low];
  }

  Node* root_ = nullptr;
};

}  // namespace tessera::detail
