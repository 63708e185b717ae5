// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>

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
  if (donor != nullptr && pool.reuse_in_place(donor, bytes, stream)) return std::exchange(donor, nullptr);
  void* const given = pool.allocate(bytes, stream);
  if (given != nullptr && given == donor) fatal("allocate_in_place: the donor is not a live block", donor);
  pool.deallocate(std::exchange(donor, nullptr));
  return given;
}

}  // namespace tessera
