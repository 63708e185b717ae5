// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/containers/containers.hpp>

namespace tessera::inline v0_1::detail {

/// The free lists of one pool, by stream.
class free_list_map {
 public:
  free_list_map& operator=(free_list_map&&) = delete;
  ~free_list_map() {
    while (free_list* const list = first()) erase(*list);
  }

  /// Sets the place of the lists, before any is created.
  void set_place(const free_list::place& where) noexcept { place_ = where; }

  /// Finds the free list of a stream, or creates it. Returns null if host memory ran out.
  ///   Cost:  constant; logarithmic in the lists if it creates a list
  [[nodiscard]] free_list* find_or_create(stream_id key) noexcept {
    return recent_ != nullptr && recent_->key.handle == key.handle ? recent_ : look_up_or_create(key);
  }
  [[nodiscard]] free_list* find_or_create(stream_id::any key) noexcept {
    return recent_ != nullptr ? recent_ : look_up_or_create(key);
  }
  /// The first free list in the order of streams, or null. free_list::next leads to the others.
  ///   Cost:  logarithmic in the lists
  [[nodiscard]] free_list* first() const noexcept {
    return by_stream_.find([](const free_list&) { return false; });
  }

  /// Erases the lists without users. Runs by itself before the number of lists doubles.
  [[gnu::cold]] void erase_unused() noexcept {
    for (free_list* list = first(); list != nullptr;) {
      free_list* const following = list->next;
      if (list->users == 0) erase(*list);
      list = following;
    }
    purge_at_ = 2 * by_key_.size() + 16;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return by_key_.metadata_bytes() + by_key_.size() * sizeof(free_list);
  }

 private:
  [[nodiscard, gnu::noinline]] free_list* look_up_or_create(stream_id key) noexcept {
    free_list* found = by_key_.find(key.handle);
    if (found == nullptr) {
      if (by_key_.size() >= purge_at_) erase_unused();
      if (!by_key_.reserve_one()) return nullptr;
      found = new (std::nothrow) free_list(place_, key);
      if (found == nullptr) return nullptr;
      by_key_.insert(key.handle, *found);
      free_list* const lowest = first();
      free_list* const before = by_stream_.insert(*found);
      found->next = before != nullptr ? before->next : lowest;
      if (before != nullptr) before->next = found;
    }
    recent_ = found;
    return found;
  }
  [[gnu::cold]] void erase(free_list& list) noexcept {
    if (free_list* const before = by_stream_.erase(list)) before->next = list.next;
    by_key_.remove(list.key.handle);
    if (recent_ == &list) recent_ = nullptr;
    delete &list;
  }

  struct stream_order {
    [[nodiscard]] static bool precedes(const free_list& a, const free_list& b) noexcept {
      return a.key < b.key;
    }
  };

  free_list::place place_;
  free_list* recent_ = nullptr;  // the list of the last request
  treap<free_list, stream_order> by_stream_;
  key_map<free_list> by_key_;
  std::size_t purge_at_ = 16;
};

/// A group of free lists. Its free blocks serve only requests that are directed to it. An allocator has one of its
/// own; extensions may add others.
struct pool_group {
  std::uint64_t number = 0;  ///< 0 for the allocator's own
  std::size_t reserved = 0;  ///< bytes of its segments and mapped memory
  std::size_t visitors = 0;  ///< calls in progress that may add memory to it, or walk through it
  [[nodiscard]] bool is_private() const noexcept { return number != 0; }
};

/// Keeps a group from being erased.
class group_visit {
 public:
  explicit group_visit(pool_group& in) noexcept : in_(in) { ++in_.visitors; }
  group_visit& operator=(group_visit&&) = delete;
  ~group_visit() { --in_.visitors; }

 private:
  pool_group& in_;
};

/// A group with its free lists, and with what extensions keep in it. `Pools` is the number of pools of the recipe.
template <std::size_t Pools, typename... Part>
struct pool_group_of : pool_group, Part... {
  pool_group_of() noexcept {
    for (std::size_t pool = 0; pool < Pools; ++pool) lists[pool].set_place({pool, this, &clocks[pool]});
  }
  [[nodiscard]] std::uint64_t map_key() const noexcept { return number; }
  [[nodiscard]] bool owns_memory() const noexcept {
    for (const free_list_map& of_pool : lists) {
      for (const free_list* list = of_pool.first(); list != nullptr; list = list->next) {
        if (list->users > 0) return true;
      }
    }
    return false;
  }

  std::array<search_clock, Pools> clocks{};
  std::array<free_list_map, Pools> lists;
};

/// Finds the first block after a position, or null. If blocks are not ordered by size, returns the first block of
/// the list.
template <typename Order>
[[nodiscard]] block* first_after(free_list& list, const list_position& at) noexcept {
  list.flush<Order>();
  if constexpr (!Order::is_by_size) return list.first();
  block* found = list.best_fit<Order>(at.size);
  while (found != nullptr && !Order::precedes(at, *found)) found = list.after<Order>(*found);
  return found;
}

/// Refers to a function that takes a block and returns a bool. Its type is hidden, so that walk_idle is
/// compiled once for all functions.
class block_function {
 public:
  template <typename F>
  explicit block_function(F& f) noexcept
      : object_(&f), call_([](void* object, block& b) -> bool { return (*static_cast<F*>(object))(b); }) {}
  bool operator()(block& b) const { return call_(object_, b); }

 private:
  void* object_;
  bool (*call_)(void*, block&);
};

/// Calls f(block&) for each free block of at least `min_size` bytes that is a whole segment. In ranges, calls
/// it for every free block. f returns whether it tried to release the block; blocks may come and go during
/// the call.
///   Returns:  false if it stopped after `tries` releases
template <typename Order, bool Ranges>
[[nodiscard]] bool walk_idle(free_list& list, std::size_t min_size, std::size_t& tries, block_function f) {
  list.flush<Order>();
  for (block* b = list.best_fit<Order>(min_size); b != nullptr;) {
    // The call may erase the block, and its range.
    const list_position at = Order::position_of(*b);
    if ((!Ranges && b->is_split()) || !f(*b)) {
      b = list.after<Order>(*b);
    } else if (--tries > 0) {
      b = first_after<Order>(list, at);
    } else {
      return false;
    }
  }
  return true;
}

/// Releases one free oversize block that holds `wanted` bytes. If there is none, releases the largest blocks
/// until they hold `wanted` bytes together. `release(block&)` returns the released bytes; blocks may come and
/// go during the call.
///   Returns:  whether `wanted` bytes were released
///   Source:   PyTorch's release_available_cached_blocks
template <typename Order, bool Ranges, typename F>
[[nodiscard, gnu::cold]] bool release_largest(free_list& list, std::size_t wanted, std::size_t oversize,
                                              F& release) {
  const std::size_t min_size = wanted > oversize ? wanted : oversize;
  if (block* fitting = list.best_fit<Order>(min_size); fitting != nullptr)
    return (Ranges || !fitting->is_split()) && release(*fitting) >= (Ranges ? wanted : min_size);
  list.flush<Order>();
  std::size_t released = 0;
  list_position at{.size = min_size};  // precedes every block of its size
  for (block* b = list.last_before<Order>(at); b != nullptr && b->size >= oversize && released < min_size;) {
    at = Order::position_of(*b);
    if (Ranges || !b->is_split()) {
      released += release(*b);
      list.flush<Order>();
    }
    b = list.last_before<Order>(at);
  }
  return released >= min_size;
}

}  // namespace tessera::inline v0_1::detail
