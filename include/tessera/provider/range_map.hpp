// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

/// An array, because its address is compared.
inline constexpr char no_host_memory[] = "host memory for bookkeeping ran out";

[[nodiscard]] inline std::uintptr_t address_of(const void* p) noexcept {
  return reinterpret_cast<std::uintptr_t>(p);
}
[[nodiscard]] inline void* pointer_to(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

/// Keys of 64 bits in their order, each of an object that it does not own. It knows no type of objects, so that its code
/// is compiled once for all maps.
///   Cost:  logarithmic
class ordered_index {
 public:
  struct node {
    explicit node(std::uint64_t its_key) noexcept : key(its_key) {}
    node* links[2]{};
    std::uint64_t key;
  };

  ordered_index() = default;
  ordered_index(ordered_index&& other) noexcept
      : root_(std::exchange(other.root_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ordered_index& operator=(ordered_index&& other) noexcept {
    std::swap(root_, other.root_);
    std::swap(size_, other.size_);
    return *this;
  }

  ///   Requires:  no node has its key
  [[gnu::noinline]] void insert(node& added) noexcept {
    tree::insert(root_, added);
    ++size_;
  }
  [[gnu::noinline]] void erase(node& old) noexcept {
    tree::erase(root_, old);
    --size_;
  }
  /// Erases any node and returns it; null if there is none.
  node* pop() noexcept {
    node* const old = root_;
    if (old != nullptr) erase(*old);
    return old;
  }
  /// The node with this key, or null.
  [[nodiscard]] node* find(std::uint64_t key) const noexcept {
    node* at = root_;
    while (at != nullptr && at->key != key) at = at->links[at->key < key];
    return at;
  }
  /// The node with the smallest key that is at least this, or null.
  [[nodiscard]] node* from(std::uint64_t key) const noexcept {
    return tree::outermost(root_, 0, [key](const node& n) { return n.key >= key; });
  }
  /// The node with the largest key that is at most this, or null.
  [[nodiscard]] node* up_to(std::uint64_t key) const noexcept {
    return tree::outermost(root_, 1, [key](const node& n) { return n.key <= key; });
  }
  /// The node that follows, or null.
  [[nodiscard]] node* after(const node& n) const noexcept {
    return n.key == unlimited ? nullptr : from(n.key + 1);
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct by_key {
    [[nodiscard]] static bool precedes(const node& a, const node& b) noexcept { return a.key < b.key; }
  };
  using tree = treap<node, by_key>;

  node* root_ = nullptr;
  std::size_t size_ = 0;
};

/// Values by key, in the order of keys.
///   Cost:  logarithmic in the values; a heap request for each
template <typename Value>
class ordered_map {
  static_assert(std::is_nothrow_move_constructible_v<Value>);

 public:
  struct entry : ordered_index::node {
    explicit entry(std::uint64_t its_key) noexcept : node(its_key), value() {}
    entry(std::uint64_t its_key, Value&& its_value) noexcept : node(its_key), value(std::move(its_value)) {}
    Value value;
  };

  ordered_map() = default;
  ordered_map(ordered_map&&) = default;
  ordered_map& operator=(ordered_map&&) = default;
  ~ordered_map() {
    while (ordered_index::node* const last = index_.pop()) delete static_cast<entry*>(last);
  }

  /// Adds a value; false if host memory ran out, or if a value has this key.
  [[nodiscard]] bool insert(std::uint64_t key, Value value) noexcept {
    return index_.find(key) == nullptr && add(new (std::nothrow) entry(key, std::move(value)));
  }
  /// Adds a default value; false as above.
  [[nodiscard]] bool insert_default(std::uint64_t key) noexcept {
    return index_.find(key) == nullptr && add(new (std::nothrow) entry(key));
  }
  /// The value with this key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    ordered_index::node* const found = index_.find(key);
    return found != nullptr ? &static_cast<entry*>(found)->value : nullptr;
  }
  ///   Requires:  a value has this key
  Value extract(std::uint64_t key) noexcept {
    auto* const removed = static_cast<entry*>(index_.find(key));
    index_.erase(*removed);
    Value value = std::move(removed->value);
    delete removed;
    return value;
  }
  [[nodiscard]] std::size_t size() const noexcept { return index_.size(); }
  /// The entry with the smallest key that is at least this, or null.
  [[nodiscard]] entry* from(std::uint64_t key) const noexcept {
    return static_cast<entry*>(index_.from(key));
  }
  /// The entry with the largest key that is at most this, or null.
  [[nodiscard]] entry* up_to(std::uint64_t key) const noexcept {
    return static_cast<entry*>(index_.up_to(key));
  }
  /// The entry that follows, or null.
  [[nodiscard]] entry* after(const entry& e) const noexcept { return static_cast<entry*>(index_.after(e)); }

 private:
  /// Adds an entry of the heap. Null means that host memory ran out.
  [[nodiscard]] bool add(entry* added) noexcept {
    if (added != nullptr) index_.insert(*added);
    return added != nullptr;
  }

  ordered_index index_;
};

/// Address ranges that do not overlap. Range has a member `bytes`, and any other data.
///   Cost:  logarithmic in the ranges
template <typename Range>
class range_map {
 public:
  /// Adds the range that begins at `p`; false if host memory ran out.
  ///   Requires:  it overlaps no other range
  [[nodiscard]] bool insert(const void* p, Range range) noexcept {
    const std::size_t bytes = range.bytes;
    if (!ranges_.insert(address_of(p), std::move(range))) return false;
    bytes_ += bytes;
    return true;
  }
  /// The range that begins at `p`, or null.
  [[nodiscard]] Range* find(const void* p) noexcept { return ranges_.find(address_of(p)); }
  [[nodiscard]] const Range* find(const void* p) const noexcept { return ranges_.find(address_of(p)); }
  ///   Requires:  a range begins at `p`
  Range extract(const void* p) noexcept {
    Range range = ranges_.extract(address_of(p));
    bytes_ -= range.bytes;
    return range;
  }

  /// Whether a range that satisfies `condition` overlaps these addresses.
  template <typename F>
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes, F condition) const noexcept {
    const std::uintptr_t begin = address_of(p);
    const entry* at = ranges_.up_to(begin);
    if (at != nullptr && at->key != begin && begin - at->key < at->value.bytes && condition(at->value))
      return true;
    for (at = ranges_.from(begin); at != nullptr && at->key - begin < bytes; at = ranges_.after(*at))
      if (condition(at->value)) return true;
    return false;
  }
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes) const noexcept {
    return overlaps(p, bytes, [](const Range&) { return true; });
  }
  /// The range that contains all these addresses, or null. With 0 bytes, the range that contains `p`.
  [[nodiscard]] Range* around(const void* p, std::size_t bytes) noexcept {
    entry* const before = ranges_.up_to(address_of(p));
    if (before == nullptr) return nullptr;
    const std::size_t offset = address_of(p) - before->key;
    const std::size_t whole = before->value.bytes;
    return offset < whole && bytes <= whole - offset ? &before->value : nullptr;
  }
  [[nodiscard]] const Range* around(const void* p, std::size_t bytes) const noexcept {
    return const_cast<range_map*>(this)->around(p, bytes);
  }

  /// Calls f(pointer, range) for each range, by ascending address.
  template <typename F>
  void for_each(F f) const noexcept {
    for (const entry* e = ranges_.from(0); e != nullptr; e = ranges_.after(*e))
      f(pointer_to(e->key), std::as_const(e->value));
  }
  /// The sum of the bytes of all ranges.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  using entry = typename ordered_map<Range>::entry;

  ordered_map<Range> ranges_;
  std::size_t bytes_ = 0;
};

}  // namespace tessera::inline v0_1::detail
