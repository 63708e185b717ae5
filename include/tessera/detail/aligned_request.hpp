// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/caller_mistake.hpp>
#include <tessera/detail/owner.hpp>

namespace tessera {

/// How the shapes of other libraries, which ask for an alignment and for addresses even of nothing, are served by an
/// allocator that has neither: 0 bytes count as 1. Blocks are aligned to min_alignment; up to `tried_alignment`, to which
/// those of most recipes happen to be, one of just the bytes is tried first. Where that does not do, a block is taken that
/// is larger by the alignment, and the address lies in it; nothing is written there, so that this goes for the memory of a
/// device too.
struct aligned_request {
  static constexpr std::size_t tried_alignment = 512;

  std::size_t bytes;
  std::size_t alignment;  ///< a power of two; else the program ends

  aligned_request(std::size_t wanted, std::size_t to) noexcept
      : bytes(wanted != 0 ? wanted : 1), alignment(to) {
    if (!is_power_of_two(to)) fatal("aligned_request: an alignment is a power of two");
  }

  aligned_request(std::size_t wanted, std::align_val_t to) noexcept
      : aligned_request(wanted, static_cast<std::size_t>(to)) {}

  /// Bytes of a block in which an aligned address lies wherever it begins.
  [[nodiscard]] std::size_t with_room() const noexcept {
    return alignment > min_alignment ? saturating_add(bytes, alignment - min_alignment) : bytes;
  }

  ///   Throws:  what the allocator's allocate throws
  template <typename A>
  [[nodiscard]] void* allocate(A& pool, stream_id stream) const {
    return serve(pool, [&pool, stream](std::size_t wanted) { return pool.allocate(wanted, stream); });
  }
  /// The same, but null where that throws.
  template <typename A>
  [[nodiscard]] void* try_allocate(A& pool, stream_id stream) const noexcept {
    return serve(pool, [&pool, stream](std::size_t wanted) { return pool.try_allocate(wanted, stream); });
  }

  /// What serves a request, by the address that allocate gave.
  struct block {
    void* address = nullptr;
    std::size_t bytes = 0;  ///< as it was requested
  };
  /// Finds it; null where there is none.
  ///   Cost:  a look-up for each 64 bytes of the alignment
  template <typename A>
  [[nodiscard]] block find(A& pool, void* p) const noexcept {
    block found;
    with_owner_of(pool, p, [&](auto& in) {
      // Downwards, the first live block is the only one in which p can lie.
      for (std::size_t below = 0; below < alignment && found.address == nullptr; below += min_alignment) {
        void* const at = reinterpret_cast<void*>(number(p) - below);
        const std::size_t requested = in.introspect().requested_at(at);
        if (requested == with_room() || (below == 0 && requested == bytes)) found = {at, requested};
      }
    });
    return number(p) % alignment == 0 ? found : block{};
  }

  /// Takes back what allocate gave for an equal request. Null is ignored.
  ///   Requires:  that; else the program ends. Not noticed are other bytes with alignments of 128 to 512, and a request of
  ///              another size and alignment that needs a block of just as many bytes
  ///   Cost:      that of the allocator's, where the block is one of just the bytes; else that of find
  template <typename A>
  void deallocate(A& pool, void* p) const noexcept {
    if (alignment <= min_alignment) return pool.deallocate(p, bytes);
    if (p == nullptr || (alignment <= tried_alignment && pool.try_deallocate(p))) return;
    give_back(pool, expect(pool, "deallocate", p));
  }
  /// Notes that a stream uses what allocate gave for an equal request, as the allocator's record_stream does.
  template <typename A>
  [[nodiscard]] bool record_stream(A& pool, void* p, stream_id stream) const noexcept {
    return pool.record_stream(expect(pool, "record_stream", p).address, stream);
  }
  /// The same once `stream`, too, has come past this call. Where neither can that be noted nor `finish(stream)` wait for it,
  /// the block stays live.
  template <typename A, typename Finish>
  void deallocate_behind(A& pool, void* p, stream_id stream, Finish finish) const noexcept {
    if (p == nullptr) return;
    if (alignment <= tried_alignment && pool.try_record_stream(p, stream)) return deallocate(pool, p);
    const block found = expect(pool, "deallocate", p);
    if (pool.record_stream(found.address, stream) || finish(stream)) give_back(pool, found);
  }

 private:
  [[nodiscard]] static std::uintptr_t number(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }
  /// What `take(bytes)` gives, at a multiple of the alignment; null where that gives null.
  template <typename A, typename Take>
  [[nodiscard]] void* serve(A& pool, Take take) const {
    if (alignment <= tried_alignment) {
      void* const p = take(bytes);
      if (number(p) % alignment == 0) return p;
      pool.deallocate(p, bytes);
    }
    return reinterpret_cast<void*>(align_up(number(take(with_room())), alignment));
  }
  /// The same as find, but where there is none, the program ends.
  template <typename A>
  [[nodiscard]] block expect(A& pool, const char* call, void* p) const noexcept {
    const block found = find(pool, p);
    if (found.address == nullptr) refuse(pool, call, p);
    return found;
  }
  template <typename A>
  static void give_back(A& pool, const block& found) noexcept {
    pool.deallocate(found.address, found.bytes);
  }
  template <typename A>
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse(A& pool, const char* call, void* p) noexcept {
    fixed_text words;
    words.add(call).add(": not the address of a live block of this size and alignment; ");
    bool is_known = false;
    with_owner_of(pool, p, [&](auto& in) { is_known = add_block_at(words, in.introspect(), p); });
    if (!is_known) words.add(in_no_segment);
    fatal(words.c_str(), p);
  }
};

}  // namespace tessera
