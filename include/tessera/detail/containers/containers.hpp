// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <tessera/core/bytes.hpp>

namespace tessera::inline v0_1::detail {

/// Calls a function at the end of its lifetime.
template <typename F>
struct at_scope_end {
  F call;
  explicit at_scope_end(F f) noexcept : call(std::move(f)) {}
  at_scope_end& operator=(at_scope_end&&) = delete;
  ~at_scope_end() { call(); }
};

/// Gives out room for nodes of one size, from chunks of 4 KiB. The chunks are parts of regions, which grow with the
/// number of nodes up to 31 chunks; a region goes back to the host heap when none of its nodes is in use, but the last
/// such region stays for the next nodes. It knows no type, so that its code is compiled once for all slabs.
///
/// Each chunk has a list of its spare nodes. The nodes that came back last wait in an array, and are reused first.
///   Cost:  a few instructions. Of 32 calls, one moves 32 nodes between the array and their chunks, and may link the
///          nodes of a chunk; one in many allocates a region or frees one
class node_storage {
 public:
  static constexpr std::size_t max_reserve = 32;
  static constexpr std::size_t chunk_bytes = 4096;  // size and alignment of a chunk
  static constexpr std::size_t line = 64;           // of the processor's cache

  constexpr explicit node_storage(std::size_t node_bytes) noexcept
      : node_bytes_(node_bytes), per_chunk_((chunk_bytes - line) / node_bytes) {}
  node_storage& operator=(node_storage&&) = delete;
  ~node_storage() {
    while (regions_ != nullptr) {
      region* const following = regions_->next;
      free_region(*regions_);
      regions_ = following;
    }
  }

  /// Makes sure that the next `count` calls of take() succeed. Returns false if host memory ran out.
  ///   Requires:  count <= max_reserve
  [[nodiscard]] bool reserve(std::size_t count) noexcept { return waiting_ >= count || refill(count); }
  /// Makes sure that calls of reserve() succeed for the next `count` nodes together. Keeps every spare node until
  /// purge(), whatever comes back before.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    holds_ = true;
    while (spare_ + waiting_ < count) {
      if (!begin_chunk()) return false;
    }
    return true;
  }

  /// Takes the room of a node.
  ///   Requires:  a preceding reserve()
  [[nodiscard]] void* take() noexcept { return latest_[--waiting_]; }

  void give_back(void* node) noexcept {
    if (waiting_ >= limit_) make_room();
    latest_[waiting_++] = node;
  }

  /// Frees the regions without nodes in use, and ends hold_reserve().
  ///   Cost:  linear in the regions
  [[gnu::cold]] void purge() noexcept {
    holds_ = false;
    while (waiting_ > 0) give_to_chunk(latest_[--waiting_]);
    for (region* at = regions_; at != nullptr;) {
      region& here = *at;
      at = here.next;
      if (here.is_empty()) release(here);
    }
  }

  /// Number of nodes in use.
  [[nodiscard]] std::size_t in_use() const noexcept { return begun_ * per_chunk_ - spare_ - waiting_; }
  /// Bytes held from the host heap.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return held_bytes_; }

 private:
  struct slot {
    slot* next;
  };
  struct region;
  struct chunk {
    slot* unused;
    std::size_t spare;  // its unused nodes
    chunk* previous;    // in the list of chunks with unused nodes
    chunk* next;
    region* in;
  };
  struct region {
    region* previous;
    region* next;
    unsigned char* first_chunk;
    std::size_t size;   // chunks
    std::size_t begun;  // chunks whose nodes are linked
    std::size_t empty;  // begun chunks without nodes in use
    [[nodiscard]] bool is_empty() const noexcept { return empty == begun; }
  };
  static constexpr std::size_t max_chunks = 31;  // with the bytes lost to alignment, 128 KiB
  static_assert(sizeof(chunk) <= line);

  /// Returns the chunk that begins at an address. If nodes fill a cache line, its head stands in another line than
  /// that of its neighbours, because the first lines of all chunks would share a set of the processor's cache.
  [[nodiscard]] void* head_of(std::uintptr_t begin) const noexcept {
    if (node_bytes_ == line) begin |= (begin >> 6) & (chunk_bytes - line);
    return reinterpret_cast<void*>(begin);
  }
  [[nodiscard]] chunk& chunk_of(const void* node) const noexcept {
    return *static_cast<chunk*>(head_of(reinterpret_cast<std::uintptr_t>(node) & ~(chunk_bytes - 1)));
  }

  // The rest is not inlined, because rare paths must not keep the hit path from being inlined.

  /// Moves nodes from chunks to the array, if host memory suffices.
  [[gnu::noinline, gnu::cold]] bool refill(std::size_t count) noexcept {
    const std::size_t wanted = larger(count, limit_ / 2);
    while (waiting_ < wanted) {
      if (open_ == nullptr && !begin_chunk()) return waiting_ >= count;
      chunk& from = *open_;
      if (from.spare == per_chunk_) --from.in->empty;
      const std::size_t moved = smaller(wanted - waiting_, from.spare);
      for (std::size_t i = 0; i < moved; ++i) {
        latest_[waiting_++] = from.unused;
        from.unused = from.unused->next;
      }
      spare_ -= moved;
      from.spare -= moved;
      if (from.spare == 0) unlink(from);
    }
    return true;
  }
  /// Moves the oldest nodes of the array to their chunks; the latest are probably in the processor's cache. If only few
  /// of many nodes are in use, few stay, because each may keep a region.
  [[gnu::noinline, gnu::cold]] void make_room() noexcept {
    const bool few = begun_ > 2 * max_chunks && spare_ > begun_ * per_chunk_ / 4 * 3;
    limit_ = few ? latest_.size() / 8 : latest_.size();
    const std::size_t moved = waiting_ - smaller(waiting_, limit_ / 2);
    for (std::size_t i = 0; i < moved; ++i) give_to_chunk(latest_[i]);
    for (std::size_t i = moved; i < waiting_; ++i) latest_[i - moved] = latest_[i];
    waiting_ -= moved;
  }
  void give_to_chunk(void* node) noexcept {
    chunk& to = chunk_of(node);
    to.unused = ::new (node) slot{to.unused};
    ++spare_;
    if (to.spare++ == 0) link(to);
    if (to.spare == per_chunk_ && ++to.in->empty == to.in->begun) keep_one_empty(*to.in);
  }
  void link(chunk& c) noexcept {
    c.previous = nullptr;
    c.next = open_;
    if (open_ != nullptr) open_->previous = &c;
    open_ = &c;
  }
  void unlink(chunk& c) noexcept {
    (c.previous != nullptr ? c.previous->next : open_) = c.next;
    if (c.next != nullptr) c.next->previous = c.previous;
  }

  /// Links the nodes of another chunk. Returns false if host memory ran out.
  [[nodiscard, gnu::cold]] bool begin_chunk() noexcept {
    if ((regions_ == nullptr || regions_->begun == regions_->size) && !grow()) return false;
    region& in = *regions_;
    unsigned char* const begin = in.first_chunk + in.begun * chunk_bytes;
    chunk& fresh = *::new (head_of(reinterpret_cast<std::uintptr_t>(begin)))
                       chunk{nullptr, per_chunk_, nullptr, nullptr, &in};
    auto* const head = reinterpret_cast<unsigned char*>(&fresh);
    unsigned char* node = begin + (node_bytes_ == line ? 0 : line);
    for (std::size_t i = 0; i < per_chunk_; ++i, node += node_bytes_) {
      if (node == head) node += line;
      fresh.unused = ::new (node) slot{fresh.unused};
    }
    link(fresh);
    ++in.begun;
    ++in.empty;
    ++begun_;
    spare_ += per_chunk_;
    return true;
  }
  [[nodiscard]] bool grow() noexcept {
    const std::size_t size = begun_ < 2 ? 1 : begun_ / 2 < max_chunks ? begun_ / 2 : max_chunks;
    void* const memory = ::operator new(bytes_of(size), std::nothrow);
    if (memory == nullptr) return false;
    const std::uintptr_t after = reinterpret_cast<std::uintptr_t>(memory) + sizeof(region);
    const std::size_t lost = (0 - after) & (chunk_bytes - 1);
    auto* const first = static_cast<unsigned char*>(memory) + sizeof(region) + lost;
    regions_ = ::new (memory) region{nullptr, regions_, first, size, 0, 0};
    if (regions_->next != nullptr) regions_->next->previous = regions_;
    held_bytes_ += bytes_of(size);
    return true;
  }
  [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t size) noexcept {
    return sizeof(region) + chunk_bytes - alignof(std::max_align_t) + size * chunk_bytes;
  }

  /// Keeps a region that has no nodes in use, instead of the one that was kept before.
  void keep_one_empty(region& now) noexcept {
    region* const before = kept_;
    kept_ = &now;
    if (!holds_ && before != nullptr && before != &now && before->is_empty()) release(*before);
  }
  void release(region& r) noexcept {
    for (std::size_t i = 0; i < r.begun; ++i) unlink(chunk_of(r.first_chunk + i * chunk_bytes));
    spare_ -= r.begun * per_chunk_;
    begun_ -= r.begun;
    held_bytes_ -= bytes_of(r.size);
    if (kept_ == &r) kept_ = nullptr;
    (r.previous != nullptr ? r.previous->next : regions_) = r.next;
    if (r.next != nullptr) r.next->previous = r.previous;
    free_region(r);
  }
  static void free_region(region& r) noexcept { ::operator delete(static_cast<void*>(&r)); }

  std::size_t node_bytes_;
  std::size_t per_chunk_;
  std::array<void*, 2 * max_reserve> latest_;  // spare nodes that came back last
  std::size_t waiting_ = 0;                    // their number
  std::size_t limit_ = 2 * max_reserve;        // the number at which some return to their chunks
  chunk* open_ = nullptr;                      // chunks with unused nodes
  std::size_t spare_ = 0;                      // unused nodes of all chunks
  std::size_t begun_ = 0;                      // begun chunks
  region* regions_ = nullptr;  // the newest comes first; only it may have chunks that have not begun
  region* kept_ = nullptr;     // the last region that had no nodes in use
  std::size_t held_bytes_ = 0;
  bool holds_ = false;
};

/// A node_storage of one type, which also makes the nodes, default-initialised. Its destructor does not destroy those in
/// use.
template <typename Node>
class slab : public node_storage {
 public:
  static_assert(sizeof(Node) >= sizeof(void*) && sizeof(Node) <= chunk_bytes / 4);
  static_assert(alignof(Node) >= alignof(void*) && line % alignof(Node) == 0);

  constexpr slab() noexcept : node_storage(sizeof(Node)) {}
  [[nodiscard]] Node* take() noexcept { return ::new (node_storage::take()) Node; }
  void give_back(Node* node) noexcept {
    node->~Node();
    node_storage::give_back(node);
  }
};

/// A balanced search tree of objects that it does not own. Each has two pointers, `Node* links[2]`, so an insert
/// takes no host memory and cannot fail. Order::precedes(a, b) orders them. The static functions serve owners that keep
/// the root themselves.
///
/// In links[0] is the subtree of preceding nodes, in links[1] that of following ones. No node has a higher priority than
/// its parent. The priority is a hash of the address, which never changes.
///   Cost:  logarithmic on average
template <typename Node, typename Order>
class treap {
 public:
  /// Inserts a node. Returns the node before it, or null.
  static Node* insert(Node*& root, Node& fresh) noexcept {
    Node* before = nullptr;
    Node** at = &root;
    const std::uint64_t priority = priority_of(fresh);
    while (*at != nullptr && priority_of(**at) >= priority) at = step(**at, fresh, before);
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
  static Node* erase(Node*& root, Node& old) noexcept {
    Node* before = nullptr;
    Node** at = &root;
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
  /// Finds the first (side 0) or last (side 1) qualifying node, or null. The qualifying nodes must be contiguous and reach
  /// the other end.
  template <typename F>
  [[nodiscard]] static Node* outermost(Node* root, int side, F qualifies) noexcept {
    Node* found = nullptr;
    for (Node* at = root; at != nullptr;) {
      const bool is_one = qualifies(*at);
      found = is_one ? at : found;
      at = at->links[is_one ? side : 1 - side];
    }
    return found;
  }

  [[nodiscard]] bool empty() const noexcept { return root_ == nullptr; }
  Node* insert(Node& fresh) noexcept { return insert(root_, fresh); }
  Node* erase(Node& old) noexcept { return erase(root_, old); }
  /// Finds the first node for which is_before(node) is false, or null. No node for which it is true may follow.
  template <typename F>
  [[nodiscard]] Node* find(F is_before) const noexcept {
    return outermost(root_, 0, [&is_before](const Node& n) { return !is_before(n); });
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

/// Finds objects by a 64-bit key that each object carries. It does not own the objects. It knows no type, so that its code
/// is compiled once for all maps: a function reads the keys.
///
/// It uses open addressing with linear probing. It is at most three eighths full, and with many objects half. A removed
/// entry leaves a hole, which ends no search. A search ends after the largest number of steps that an insert ever took.
///
/// It grows and shrinks a part at each call, so that no call takes long. Both tables have the order of hashes: entries
/// whose first slot in the old table is below a border are in the new table, all others in the old one.
///   Cost:  one probe in nearly all cases. While it grows or shrinks, a call moves the entries of 64 slots
class pointer_map {
 public:
  using key_function = std::uint64_t (*)(const void* object) noexcept;

  constexpr explicit pointer_map(key_function key_of) noexcept : key_of_(key_of) {}
  pointer_map& operator=(pointer_map&&) = delete;
  ~pointer_map() {
    if (capacity() > 0) delete[] now_.entries;
    delete[] next_.entries;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return (capacity() + (is_moving() ? next_.mask + 1 : 0)) * sizeof(void*);
  }

  /// Makes sure that the next insert succeeds. Returns false if host memory ran out.
  [[nodiscard]] bool reserve_one() noexcept { return size_ < grow_at_ || make_room(); }
  /// Makes sure that the next `count` inserts succeed, even if objects are removed before. Until
  /// shrink_to_fit(), the table does not shrink. Returns false if host memory ran out.
  ///   Cost:  linear in the objects
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    std::size_t wanted = larger(capacity(), min_capacity);
    while (most_in(wanted) < size_ + count) wanted *= 2;
    if (!move_to(wanted)) return false;
    shrink_at_ = 0;
    return true;
  }
  /// Moves to the smallest table that suffices, and ends hold_reserve().
  ///   Cost:  linear in the objects
  [[gnu::cold]] void shrink_to_fit() noexcept {
    (void)move_to(smaller(capacity(), larger(std::bit_ceil(size_ * 4), min_capacity)));
    set_limits();
  }

  /// Inserts an object.
  ///   Requires:  a preceding reserve_one()
  ///   Requires:  `key` is the object's key, and no other object in the map has it
  void insert(std::uint64_t key, void* object) noexcept {
    const std::size_t home = now_.home_of(hash_of(key));
    ++size_;
    if (home < moved_) return insert_in_next(hash_of(key), object);
    std::size_t at = home;
    for (std::size_t step = 1; now_.entries[at] != nullptr; ++step) {
      at = (at + 1) & now_.mask;
      if (step > now_.longest) now_.longest = step;
    }
    now_.entries[at] = object;
  }

 protected:
  // `key_of` is the function of the map. It is an argument, so that it is inlined.
  [[nodiscard, gnu::always_inline]] void** locate(std::uint64_t key, key_function key_of) const noexcept {
    void** const found = now_.locate(now_.home_of(hash_of(key)), key, key_of);
    return found != nullptr ? found : locate_in_next(key);
  }
  void erase(void** found) noexcept {
    *found = nullptr;
    if (--size_ < shrink_at_) shrink();
  }

 private:
  struct table {
    void** entries;
    std::size_t mask;
    int shift;
    std::size_t longest;  // largest number of steps of an insert

    [[nodiscard]] std::size_t home_of(std::uint64_t hash) const noexcept {
      return static_cast<std::size_t>(hash >> shift);
    }
    [[nodiscard, gnu::always_inline]] void** locate(std::size_t at, std::uint64_t key,
                                                    key_function key_of) const noexcept {
      // Before the loop, because most searches end here.
      if (entries[at] != nullptr && key_of(entries[at]) == key) return &entries[at];
      for (std::size_t step = 0; step < longest; ++step) {
        at = (at + 1) & mask;
        if (entries[at] != nullptr && key_of(entries[at]) == key) return &entries[at];
      }
      return nullptr;
    }
  };
  static constexpr std::size_t min_capacity = 64;
  static constexpr std::size_t slots_a_call = 64;  // that are moved while it grows or shrinks

  // Shared objects with hidden names have their own `nothing`, so only the size says that there is no table.
  [[nodiscard]] std::size_t capacity() const noexcept { return now_.mask == 1 ? 0 : now_.mask + 1; }
  [[nodiscard]] bool is_moving() const noexcept { return next_.entries != nullptr; }
  [[nodiscard]] static std::uint64_t hash_of(std::uint64_t key) noexcept {
    // Spreads neighbouring multiples of 512, because most addresses are such multiples.
    return std::rotr(key, 9) * 0x9E3779B97F4A7C15u;
  }
  [[nodiscard, gnu::noinline, gnu::cold]] void** locate_in_next(std::uint64_t key) const noexcept {
    const std::uint64_t hash = hash_of(key);
    return now_.home_of(hash) < moved_ ? next_.locate(next_.home_of(hash), key, key_of_) : nullptr;
  }

  [[nodiscard, gnu::noinline, gnu::cold]] bool make_room() noexcept {
    if (!is_moving()) return begin_move(larger(capacity() * 2, min_capacity));
    move_some();
    return true;
  }
  [[gnu::noinline, gnu::cold]] void shrink() noexcept {
    if (is_moving()) {
      move_some();
    } else if (!begin_move(capacity() / 4)) {
      shrink_at_ = size_ / 2;  // without host memory for the small table, the large one stays
    }
  }
  /// Begins to move all entries to a table of another size. Returns false if host memory ran out.
  [[nodiscard, gnu::cold]] bool begin_move(std::size_t wanted) noexcept {
    auto* const fresh = new (std::nothrow) void*[wanted];
    if (fresh == nullptr) return false;
    next_ = {fresh, wanted - 1, 64 - std::countr_zero(wanted), 0};
    cleared_ = 0;
    // Each insert and each remove comes by now.
    grow_at_ = 0;
    shrink_at_ = ~std::size_t{0};
    if (capacity() == 0) {
      clear_to(wanted);
      end_move();
    } else {
      move_some();
    }
    return true;
  }
  /// Moves the entries whose homes are the next few slots.
  void move_some() noexcept {
    const std::size_t first = moved_;
    moved_ = first + smaller(slots_a_call, capacity() - first);
    clear_behind();
    for (std::size_t at = first; at < moved_ + now_.longest; ++at) {
      void*& entry = now_.entries[at & now_.mask];
      if (entry == nullptr) continue;
      const std::uint64_t hash = hash_of(key_of_(entry));
      if (now_.home_of(hash) - first < moved_ - first) insert_in_next(hash, std::exchange(entry, nullptr));
    }
    if (moved_ == capacity()) end_move();
  }
  void end_move() noexcept {
    if (capacity() > 0) delete[] now_.entries;
    now_ = next_;
    next_ = {};
    moved_ = 0;
    set_limits();
  }
  /// The most entries of a table. A small table is emptier, because its searches are then shorter; in a large one,
  /// memory matters more.
  [[nodiscard]] static std::size_t most_in(std::size_t capacity) noexcept {
    return capacity < std::size_t{1} << 18 ? capacity / 8 * 3 : capacity / 2;
  }
  void set_limits() noexcept {
    grow_at_ = most_in(capacity());
    shrink_at_ = capacity() > 1024 ? capacity() / 16 : 0;
  }
  /// Moves all entries to a table of another size.
  [[nodiscard]] bool move_to(std::size_t wanted) noexcept {
    while (is_moving()) move_some();
    if (wanted == capacity()) return true;
    if (!begin_move(wanted)) return false;
    while (is_moving()) move_some();
    return true;
  }
  [[gnu::noinline, gnu::cold]] void insert_in_next(std::uint64_t hash, void* object) noexcept {
    const std::size_t home = next_.home_of(hash);
    for (std::size_t step = 0;; ++step) {
      if (home + step >= cleared_) clear_to(home + step + 1);
      void*& slot = next_.entries[(home + step) & next_.mask];
      if (slot != nullptr) continue;
      slot = object;
      if (step > next_.longest) {
        next_.longest = step;
        clear_behind();
      }
      return;
    }
  }
  /// Clears the slots of the new table that a search may reach.
  void clear_behind() noexcept {
    const std::uint64_t last = (static_cast<std::uint64_t>(moved_) << now_.shift) - 1;
    clear_to(next_.home_of(last) + next_.longest + 1);
  }
  void clear_to(std::size_t end) noexcept {
    end = smaller(end, next_.mask + 1);
    while (cleared_ < end) next_.entries[cleared_++] = nullptr;
  }

  key_function key_of_;
  static inline void* nothing[2] = {};  // table of an empty map; never written

  table now_{nothing, 1, 63, 0};
  table next_{};
  std::size_t moved_ = 0;  // entries with a home below are in next_
  std::size_t size_ = 0;
  std::size_t grow_at_ = 0;    // number of entries at which it doubles
  std::size_t shrink_at_ = 0;  // number of entries below which it shrinks
  std::size_t cleared_ = 0;    // slots of next_ that have a value
};

/// A pointer_map of one type, whose objects tell their keys: `std::uint64_t map_key() const`.
template <typename Value>
class key_map : public pointer_map {
 public:
  constexpr key_map() noexcept : pointer_map(&key_of) {}

  void insert(std::uint64_t key, Value& value) noexcept { pointer_map::insert(key, &value); }
  /// Finds the object with a key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    void* const* const found = locate(key, &key_of);
    return found != nullptr ? static_cast<Value*>(*found) : nullptr;
  }
  /// Removes the object with a key and returns it, or null.
  Value* remove(std::uint64_t key) noexcept {
    void** const found = locate(key, &key_of);
    if (found == nullptr) return nullptr;
    auto* const removed = static_cast<Value*>(*found);
    erase(found);
    return removed;
  }

 private:
  [[nodiscard]] static std::uint64_t key_of(const void* value) noexcept {
    return static_cast<const Value*>(value)->map_key();
  }
};

/// User functions, called in the order of their registration. Any thread may run them; calls of add() come one at a time.
class callback_list {
 public:
  using function = bool (*)(void* context) noexcept;

  callback_list& operator=(callback_list&&) = delete;
  ~callback_list() {
    while (first_ != nullptr) delete std::exchange(first_, first_->next);
  }

  /// Adds a function. Returns false if host memory ran out.
  [[nodiscard]] bool add(function call, void* context) noexcept {
    callback** at = &first_;
    while (*at != nullptr) at = &(*at)->next;
    __atomic_store_n(at, new (std::nothrow) callback{call, context, nullptr}, __ATOMIC_RELEASE);
    return *at != nullptr;
  }

  /// Calls all functions, including functions added meanwhile. A nested call, also by another thread, calls
  /// nothing and returns false. Therefore, callbacks may use the allocator.
  ///   Returns:  whether any function returned true
  bool run() noexcept {
    const callback* c = after(first_);
    if (c == nullptr || __atomic_exchange_n(&running_, 1, __ATOMIC_ACQ_REL) != 0) return false;
    bool any = false;
    for (; c != nullptr; c = after(c->next)) any = c->call(c->context) || any;
    __atomic_store_n(&running_, 0, __ATOMIC_RELEASE);
    return any;
  }
  /// Calls run() of a callback_list, as a callback.
  static bool run_list(void* callbacks) noexcept { return static_cast<callback_list*>(callbacks)->run(); }

 private:
  struct callback {
    function call;
    void* context;
    callback* next;
  };
  [[nodiscard]] static const callback* after(callback* const& link) noexcept {
    return __atomic_load_n(&link, __ATOMIC_ACQUIRE);
  }

  callback* first_ = nullptr;
  int running_ = 0;  // no bool: g++ 12 exchanges a byte on RISC-V by a call of libatomic
};

}  // namespace tessera::inline v0_1::detail
