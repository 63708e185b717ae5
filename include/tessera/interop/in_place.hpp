// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/reach.hpp>

namespace tessera {

/// What a program knows of an operation's input that might give its memory to an output.
struct donor_facts {
  std::size_t last_readers = 1;  ///< how many operations may be the last to read it
  std::size_t uses = 1;          ///< how often this operation names it, as input or output
  bool is_empty = false;
  bool is_dense = true;
  bool is_persistable = false;
  bool is_pinned = false;
  bool is_given_away = false;  ///< to another output
  bool is_fetched = false;     ///< by the user, after the run
};

/// And of that output.
struct receiver_facts {
  std::size_t uses = 1;          ///< how often this operation names it, as output or input
  bool is_first_version = true;  ///< nothing had its name before
  bool is_same_variable = false;
  bool is_empty = false;
  bool is_dense = true;
  bool is_persistable = false;
  bool is_pinned = false;
  bool has_memory = false;  ///< from another input
};

/// Whether an output may be written over an input, which nobody reads afterwards; whether it fits is another question.
///   Source:  Paddle's in-place pass
[[nodiscard]] constexpr bool may_take_over(const donor_facts& in, const receiver_facts& out) noexcept {
  const bool gives = in.last_readers == 1 && in.uses == 1 && !in.is_empty && in.is_dense &&
                     !in.is_persistable && !in.is_pinned && !in.is_given_away && !in.is_fetched;
  const bool takes = out.uses == 1 && out.is_first_version && !out.is_same_variable && !out.is_empty &&
                     out.is_dense && !out.is_persistable && !out.is_pinned && !out.has_memory;
  return gives && takes;
}

/// Ends the life of a live block and begins another at its address, if a request of `bytes` on `stream` could get just that
/// block once it were free: it holds them, would not be cut for them, and nothing but its own stream uses it. What is
/// counted and told is a free and an allocation.
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
[[nodiscard]] bool pass_on(caching_allocator<Recipe, Provider, Observer, Counting>& pool, void* p,
                           std::size_t bytes, stream_id stream) noexcept {
  auto& machine = pool.machine();
  auto* const block = bytes > 0 && bytes <= max_request ? machine.find_live(p) : nullptr;
  if (block == nullptr) return false;
  const policies<Recipe>& chosen = pool.settings();
  const std::size_t size = chosen.rounding.block_size(bytes);
  const std::size_t in = block->home->pool();
  const stream_id key = block->home->key();
  const auto noted = block->what_is_noted();
  const bool fits = block->size >= size && chosen.split.may_serve(size, block->size) &&
                    !chosen.split.should_split(size, block->size) && chosen.pools.select(size) == in;
  if (!fits || noted.has_uses || stream_id(chosen.streams.reuse_key(stream)) != key) return false;
  using action = allocator_event::action;
  for (action what : {action::free_requested, action::free_completed})
    machine.tell(what, block->address, block->facts.requested, block->size, key);
  if (noted.oversize) machine.books().oversize_allocations.decrease(1);
  machine.books().freed(in, block->facts.requested, block->size);
  block->facts.requested = bytes;
  machine.books().handed_out(in, bytes, block->size);
  if (noted.oversize) machine.books().oversize_allocations.increase(1);
  machine.tell(action::alloc, block->address, bytes, block->size, stream);
  return true;
}

/// The same for an allocator that has that as its own, or is one of several.
template <typename Allocator>
[[nodiscard]] bool passed_on(Allocator& pool, void* p, std::size_t bytes, stream_id stream) noexcept {
  if constexpr (requires { pool.pass_on(p, bytes, stream); }) {
    return pool.pass_on(p, bytes, stream);
  } else if constexpr (chosen_when_run<Allocator>) {
    return pool.visit([=](auto& chosen) { return passed_on(chosen, p, bytes, stream); });
  } else {
    return pass_on(pool, p, bytes, stream);
  }
}

/// Serves a request of `bytes` with the block of `donor`, an input that may_take_over says so of, if that fits as it would
/// were it free; else as allocate and then a free of the donor. Either way the donor is null then, so that it is given once.
///
///     void* input = pool.allocate(30_MiB);
///     void* output = tessera::allocate_in_place(pool, input, 30_MiB);  // at the same address; input is null
///     pool.deallocate(output);
///
///   Requires:  a live block that `pool` gave for an address, or null; work that uses it lies before the output's on `stream`
///   Throws:    what allocate throws; the donor is as before
template <typename Allocator>
[[nodiscard]] void* allocate_in_place(Allocator& pool, void*& donor, std::size_t bytes,
                                      stream_id stream = {}) {
  if (donor != nullptr && passed_on(pool, donor, bytes, stream)) return std::exchange(donor, nullptr);
  void* const given = pool.allocate(bytes, stream);
  if (given != nullptr && given == donor) fatal("allocate_in_place: the donor is not a live block", donor);
  pool.deallocate(std::exchange(donor, nullptr));
  return given;
}

}  // namespace tessera
