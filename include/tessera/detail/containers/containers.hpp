// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace tessera::detail {

/// Allocates default-initialised nodes of one type from small chunks, and frees empty chunks. The last
/// returned node is reused first. The destructor does not destroy nodes in use.
///
///   Cost:  constant, amortised; some calls allocate a chunk, or search the unused nodes for empty chunks
template <typename Node>
class slab {
 public:
  slab& operator=(slab&&) = delete;
  ~slab() {
    while (chunks_ != nullptr) {
      chunk* const following = chunks_->next;
      free_chunk(*chunks_);
      chunks_ = following;
    }
  }

  /// Makes sure that the next `count` calls of take() succeed. Returns false if host memory ran out.
  [[nodiscard]] bool reserve(std::size_t count) noexcept { return spare_ >= count || grow(count); }
  /// Does the same, and keeps every spare node until purge(), whatever comes back before.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    purge_at_ = ~std::size_t{0};
    return reserve(count);
  }

  /// Takes a node.
  ///   Requires:  a preceding reserve()
  [[nodiscard]] Node* take() noexcept {
    slot* const taken = latest_;
    latest_ = taken->next;
    --spare_;
    return ::new (static_cast<void*>(taken)) Node;
  }

  void give_back(Node* node) noexcept {
    node->~Node();
    latest_ = ::new (static_cast<void*>(node)) slot{latest_};
    if (++spare_ >= purge_at_) purge();
  }

  /// Frees the chunks without nodes in use, and ends hold_reserve(). It also runs by itself once a quarter of all nodes have come back
  /// since the last time.
  ///   Cost:  linear in the spare nodes
  [[gnu::noinline]] void purge() noexcept {
    for (chunk* c = chunks_; c != nullptr; c = c->next) c->spare = 0;
    for (const slot* s = latest_; s != nullptr; s = s->next) ++chunk_of(s).spare;
    for (slot** at = &latest_; *at != nullptr;) {
      slot& here = **at;
      if (chunk_of(&here).spare == per_chunk) {
        *at = here.next;
      } else {
        at = &here.next;
      }
    }
    for (chunk** at = &chunks_; *at != nullptr;) {
      chunk& here = **at;
      if (here.spare != per_chunk) {
        at = &here.next;
        continue;
      }
      *at = here.next;
      free_chunk(here);
      --held_;
      spare_ -= per_chunk;
    }
    purge_at_ = spare_ + held_ * per_chunk / 4 + 2 * per_chunk;
  }

  /// Number of nodes in use.
  [[nodiscard]] std::size_t in_use() const noexcept { return held_ * per_chunk - spare_; }
  /// Bytes held from the host heap.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return held_ * chunk_bytes; }

 private:
  struct slot {
    slot* next;
  };
  static_assert(sizeof(Node) >= sizeof(slot) && alignof(Node) >= alignof(slot));
  struct chunk {
    chunk* next;
    std::size_t spare;  // spare nodes, counted by purge()
  };
  static constexpr std::size_t chunk_bytes = 4096;  // size and alignment of a chunk
  static constexpr std::size_t header = 64;         // keeps each node of 64 bytes on its own cache line
  static constexpr std::size_t heap_header = 64;    // left to the host heap for its metadata between blocks
  static constexpr std::size_t per_chunk = (chunk_bytes - heap_header - header) / sizeof(Node);
  static_assert(sizeof(chunk) <= header && header % alignof(Node) == 0 && per_chunk > 1);

  // Not inlined, because rare paths must not keep the hit path from being inlined.
  [[gnu::noinline]] bool grow(std::size_t count) noexcept {
    while (spare_ < count) {
      void* const memory =
          ::operator new(chunk_bytes - heap_header, std::align_val_t{chunk_bytes}, std::nothrow);
      if (memory == nullptr) return false;
      chunks_ = ::new (memory) chunk{chunks_, 0};
      auto* const nodes = static_cast<unsigned char*>(memory) + header;
      for (std::size_t i = per_chunk; i-- > 0;) latest_ = ::new (nodes + i * sizeof(Node)) slot{latest_};
      spare_ += per_chunk;
      ++held_;
    }
    return true;
  }

  [[nodiscard]] static chunk& chunk_of(const slot* s) noexcept {
    return *reinterpret_cast<chunk*>(reinterpret_cast<std::uintptr_t>(s) & ~(chunk_bytes - 1));
  }
  static void free_chunk(chunk& one) noexcept {
    ::operator delete(static_cast<void*>(&one), std::align_val_t{chunk_bytes});
  }

  slot* latest_ = nullptr;
  std::size_t spare_ = 0;
  std::size_t purge_at_ = 2 * per_chunk;
  chunk* chunks_ = nullptr;
  std::size_t held_ = 0;
};

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

/// Finds objects by a 64-bit key that each object carries: `std::uint64_t map_key() const`. It does not own
/// the objects.
///
/// It uses open addressing with linear probing and is at most three eighths full. A removed entry leaves a
/// hole, which ends no search. A search ends after the largest number of steps that an insert ever took.
///   Cost:  one probe in nearly all cases; the host heap is called when the table grows or shrinks
template <typename Value>
class key_map {
 public:
  key_map& operator=(key_map&&) = delete;
  ~key_map() {
    if (capacity() > 0) delete[] entries_;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return capacity() * sizeof(Value*); }

  /// Makes sure that the next insert succeeds. Returns false if host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept {
    if (size_ < grow_at_) return true;
    return rehash(capacity() == 0 ? 16 : capacity() * 2);
  }
  /// Makes sure that the next `count` inserts succeed, even if objects are removed before. Until
  /// end_reserve(), the table does not shrink. Returns false if host memory ran out.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    std::size_t wanted = capacity() == 0 ? 16 : capacity();
    while (wanted / 8 * 3 < size_ + count) wanted *= 2;
    if (wanted != capacity() && !rehash(wanted)) return false;
    shrink_at_ = 0;
    return true;
  }
  /// Ends hold_reserve().
  void end_reserve() noexcept {
    shrink_at_ = min_size(capacity());
    while (size_ < shrink_at_ && rehash(capacity() / 4)) {
    }
  }

  /// Inserts an object.
  ///   Requires:  a preceding reserve_one()
  ///   Requires:  `key` is the object's key, and no other object in the map has it
  void insert(std::uint64_t key, Value& value) noexcept {
    std::size_t at = slot_of(key);
    for (std::size_t step = 1; entries_[at] != nullptr; ++step) {
      at = (at + 1) & mask_;
      if (step > longest_) longest_ = step;
    }
    entries_[at] = &value;
    ++size_;
  }

  /// Finds the object with a key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    Value* const* const found = locate(key);
    return found != nullptr ? *found : nullptr;
  }
  /// Removes the object with a key and returns it, or null.
  Value* remove(std::uint64_t key) noexcept {
    Value** const found = locate(key);
    if (found == nullptr) return nullptr;
    Value* const removed = std::exchange(*found, nullptr);
    if (--size_ < shrink_at_) (void)rehash(capacity() / 4);
    return removed;
  }

 private:
  [[nodiscard]] std::size_t capacity() const noexcept { return grow_at_ == 0 ? 0 : mask_ + 1; }
  /// The number of entries below which a table shrinks.
  [[nodiscard]] static std::size_t min_size(std::size_t capacity) noexcept {
    return capacity > 64 ? capacity / 20 : 0;
  }
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
    // Spreads neighbouring multiples of 512, because most addresses are such multiples.
    return static_cast<std::size_t>((std::rotr(key, 9) * 0x9E3779B97F4A7C15u) >> shift_);
  }
  [[nodiscard]] Value** locate(std::uint64_t key) const noexcept {
    std::size_t at = slot_of(key);
    for (std::size_t step = 0; step <= longest_; ++step) {
      if (entries_[at] != nullptr && entries_[at]->map_key() == key) return &entries_[at];
      at = (at + 1) & mask_;
    }
    return nullptr;
  }
  [[nodiscard, gnu::noinline]] bool rehash(std::size_t wanted) noexcept {
    auto* const fresh = new (std::nothrow) Value*[wanted]();
    if (fresh == nullptr) return false;
    Value** const old = entries_;
    const std::size_t count = capacity();
    entries_ = fresh;
    mask_ = wanted - 1;
    grow_at_ = wanted / 8 * 3;
    shrink_at_ = min_size(wanted);
    shift_ = 64 - static_cast<int>(std::bit_width(mask_));
    size_ = 0;
    longest_ = 0;
    for (std::size_t at = 0; at < count; ++at) {
      if (old[at] != nullptr) insert(old[at]->map_key(), *old[at]);
    }
    if (count > 0) delete[] old;
    return true;
  }

  static inline Value* nothing[2] = {};  // table of an empty map; never written

  Value** entries_ = nothing;
  std::size_t mask_ = 1;
  int shift_ = 63;
  std::size_t longest_ = 0;  // largest number of steps of an insert
  std::size_t size_ = 0;
  std::size_t grow_at_ = 0;    // number of entries at which it doubles
  std::size_t shrink_at_ = 0;  // number of entries below which it shrinks
};

/// User functions, called in the order of their registration.
class callback_list {
 public:
  using function = bool (*)(void* context) noexcept;

  callback_list& operator=(callback_list&&) = delete;
  ~callback_list() {
    while (first_ != nullptr) {
      callback* const following = first_->next;
      delete first_;
      first_ = following;
    }
  }

  /// Adds a function. Returns false if host memory ran out.
  [[nodiscard]] bool add(function call, void* context) noexcept {
    callback** at = &first_;
    while (*at != nullptr) at = &(*at)->next;
    *at = new (std::nothrow) callback{call, context, nullptr};
    return *at != nullptr;
  }

  /// Calls all functions, including functions added meanwhile. A nested call, also by another thread, calls
  /// nothing and returns false. Therefore, callbacks may use the allocator.
  ///   Returns:  whether any function returned true
  bool run() noexcept {
    if (running_) return false;
    running_ = true;
    bool any = false;
    for (const callback* c = first_; c != nullptr; c = c->next) any = c->call(c->context) || any;
    running_ = false;
    return any;
  }

 private:
  struct callback {
    function call;
    void* context;
    callback* next;
  };
  callback* first_ = nullptr;
  bool running_ = false;
};

}  // namespace tessera::detail
