// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/provider/provider.hpp>

/// What is said of a failure: messages for calls with a wrong address, handle or size, broken invariants, and the numbers of
/// a request that failed.

namespace tessera::inline v0_1::detail {

inline constexpr const char* in_no_segment = "it lies in no segment of this allocator";

/// Describes the block that an address lies in. Returns false, and adds nothing, if there is none.
///   Cost:  linear in the blocks
template <typename Blocks>
[[gnu::cold]] bool add_block_at(fixed_text& text, const Blocks& blocks, const void* p) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const block* found = nullptr;
  const auto look = [&found, address](const block& b) {
    if (address - b.address < b.size) found = &b;
  };
  blocks.for_each_block(look, true);
  if (found == nullptr) return false;
  if (found->is_unmapped()) {
    text.add("it lies in a range of addresses, where nothing is mapped");
    return true;
  }
  const bool is_free = found->is_idle();
  const std::size_t inside = address - found->address;
  text.add("it lies ").add(inside).add(inside == 1 ? " byte into a " : " bytes into a ");
  text.add(is_free ? "free" : found->status.state == block::state::pending ? "freed, still used" : "live");
  text.add(" block of ").add(is_free ? found->size : found->request.bytes).add(" bytes at ");
  text.add_address(found->address).add(", stream ").add(stream_id(found->list->key).handle);
  if (!is_free && found->is_by_handle()) text.add(", which was given as a handle");
  if (is_free && inside == 0) text.add(", perhaps freed before");
  return true;
}

/// Aborts if an address is in no segment of several allocators.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_stranger(const char* call, const void* p) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": not the address of a live block; ").add(in_no_segment).c_str(), p);
}

/// Aborts if no live block begins at an address.
template <typename Blocks>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_address(const Blocks& blocks, const char* call,
                                                           const void* p) noexcept {
  fixed_text text;
  text.add(call).add(": ");
  blocks.for_each_block([&](const block& b) {
    if (b.is_by_handle() && b.address == reinterpret_cast<std::uintptr_t>(p))
      fatal(text.add("this block was allocated by handle; pass its handle").c_str(), p);
  });
  text.add("not the address of a live block; ");
  if (!add_block_at(text, blocks, p)) text.add(in_no_segment);
  fatal(text.c_str(), p);
}

/// Aborts if an extension forbids the use of a live block, and says why.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_use(const char* call, const char* why,
                                                              const void* p) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": ").add(why).c_str(), p);
}

/// Aborts if a handle names no live block.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_handle(const char* call) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": not the handle of a live block").c_str(), nullptr);
}

/// Aborts if the caller gives a wrong requested size for a live block.
template <typename Blocks>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_size(const Blocks& blocks, const char* call, const void* p,
                                                        std::size_t requested, std::size_t passed) noexcept {
  fixed_text text;
  text.add(call).add(": not the requested size: ").add(passed).add(" bytes were passed, ");
  text.add(requested).add(" were requested; ");
  (void)add_block_at(text, blocks, p);
  fatal(text.c_str(), p);
}

/// Finds the first broken invariant of a block manager. `expected` is the usage according to the statistics.
///   Returns:  the invariant as text, or null
///   Cost:     linear in the blocks; logarithmic for each free block in a treap
template <typename Manager>
[[nodiscard, gnu::cold]] const char* audit(const Manager& manager, const usage& expected) {
  constexpr bool shares = Manager::traits::reuses_across_streams;
  const char* broken = nullptr;
  const auto must_hold = [&broken](bool holds, const char* rule) {
    if (!holds && broken == nullptr) broken = rule;
  };
  usage found{.cached = manager.releasing_bytes(), .reserved = manager.releasing_bytes()};
  std::size_t live = 0;
  std::size_t free = 0;
  std::size_t in_lists = 0;
  manager.for_each_segment([&](const block& head) {
    const block* const end = head.prev;
    must_hold(!end->is_free(), "a segment closes its list of blocks");
    for (const block* b = &head; b != end; b = b->next) {
      must_hold(b->size > 0, "no block is empty");
      must_hold(b->list == head.list || (shares && b->list->where == head.list->where),
                "all blocks of a segment share one pool, and one stream unless streams share blocks");
      in_lists += shares ? 1 : 0;
      must_hold(b->next->prev == b, "neighbours agree");
      if (b->next != end) {
        must_hold(b->next->address == b->address + b->size, "neighbours touch");
        must_hold(!b->is_free() || !b->next->is_free() || b->list != b->next->list,
                  "free neighbours are coalesced");
        must_hold(!b->is_unmapped() || !b->next->is_unmapped(), "unmapped neighbours are joined");
      }
      if (b->is_unmapped()) continue;
      found.reserved += b->size;
      if (b->is_free()) {
        ++free;
        found.cached += b->size;
        continue;
      }
      found.requested += b->request.bytes;
      found.active += b->size;
      must_hold(b->request.bytes <= b->size, "a block holds what was requested");
      if (b->status.state == block::state::pending) {
        must_hold(b->request.pending_events > 0, "a pending block awaits an event");
      } else {
        found.allocated += b->size;
        if (b->is_by_handle()) continue;
        ++live;
        must_hold(manager.find_live(reinterpret_cast<const void*>(b->address)) == b,
                  "a live block is found by address");
      }
    }
  });
  std::size_t in_groups = 0;
  manager.for_each_group([&in_groups](const auto& of) { in_groups += of.reserved; });
  must_hold(in_groups == expected.reserved, "the groups of free lists have what is reserved");
  std::size_t indexed = 0;
  manager.for_each_list([&](const free_list& list) {
    if (shares) in_lists -= list.users;
    if (const block* const resized = list.last_resized(); resized != nullptr) {
      ++indexed;
      must_hold(resized->is_free() && resized->list == &list, "the last resized block is free");
    }
    using order = typename Manager::order;
    for (const block *b = list.first(), *last = nullptr; b != nullptr;
         last = b, b = list.template after<order>(*b)) {
      ++indexed;
      must_hold(b->is_free() && b->list == &list, "an index holds its own free blocks only");
      must_hold(last == nullptr || !order::is_by_size || order::precedes(*last, *b),
                "an index is in its order, by size first");
    }
  });
  must_hold(indexed == free, "each free block is indexed once");
  must_hold(in_lists == 0 || manager.releasing_bytes() + manager.requested_bytes() > 0,
            "free lists count their blocks");
  must_hold(live == manager.live_count(), "each live block is mapped once");
  must_hold(found.requested == expected.requested, "statistics: requested bytes");
  must_hold(found.allocated == expected.allocated, "statistics: allocated bytes");
  must_hold(found.active == expected.active, "statistics: active bytes");
  must_hold(found.cached == expected.cached, "statistics: cached bytes");
  must_hold(found.reserved == expected.reserved + expected.unbacked, "statistics: reserved bytes");
  return broken;
}

/// Collects the numbers of a request that fails now.
///   Cost:  linear in the blocks
[[nodiscard, gnu::noinline, gnu::cold]] oom_numbers make_oom_numbers(const auto& blocks, const auto& p,
                                                                     std::size_t bytes,
                                                                     stream_id stream) noexcept {
  oom_numbers numbers{.requested = bytes, .segment = bytes, .stream = stream};
  numbers.now = usage_of(blocks, p.growth);
  numbers.capacity = blocks.provider().capacity();
  numbers.available = left_on(blocks.provider(), numbers.now.reserved);
  blocks.for_each_block([&numbers](const block& b) {
    if (b.is_free() && b.size > numbers.largest_free) numbers.largest_free = b.size;
  });
  if (bytes > max_request) return numbers;
  numbers.block = p.rounding.block_size(bytes);
  if constexpr (std::remove_cvref_t<decltype(p.growth)>::backend::has_ranges)
    numbers.segment = align_up(numbers.block, mapping_unit(p, numbers.block));
  else
    numbers.segment = segment_size_for(blocks, p, numbers.block);
  return numbers;
}

/// Remembers who refused memory for the latest request that failed, and why. It is an empty class if neither extensions
/// nor the provider give reasons.
template <typename Provider, bool IsExtended>
class latest_failure {
 public:
  static void begin(auto& /*manager*/) noexcept {}
  static void end(auto& /*manager*/, std::size_t, stream_id, std::size_t, bool) noexcept {}
  static void explain(oom_numbers&) noexcept {}
};
template <typename Provider, bool IsExtended>
  requires(IsExtended || explaining_provider<Provider> || limit_explaining_provider<Provider>)
class latest_failure<Provider, IsExtended> {
 public:
  /// Forgets what the provider refused before this request.
  void begin(auto& manager) noexcept {
    (void)take_refusal(manager.provider());
    *this = {};
  }
  /// Keeps what the provider refused since, or how `segment` bytes exceed its limit.
  void end(auto& manager, std::size_t bytes, stream_id stream, std::size_t segment,
           bool by_extension) noexcept {
    Provider& from = manager.provider();
    bytes_ = bytes;
    stream_ = stream;
    by_extension_ = by_extension;
    why_ = take_refusal(from);
    if (!why_) why_ = explain_limit(from, segment);
  }
  /// Adds to numbers why their request failed, if it was the latest. An extension that gave a reason did so before.
  void explain(oom_numbers& n) const noexcept {
    if (n.by_extension || n.requested != bytes_ || n.stream != stream_) return;
    n.refused = why_;
    if (by_extension_) n.refuse(refusal("an extension refuses it, and gives no reason"));
  }

 private:
  std::size_t bytes_ = 0;
  stream_id stream_{};
  refusal why_{};
  bool by_extension_ = false;
};

}  // namespace tessera::inline v0_1::detail
