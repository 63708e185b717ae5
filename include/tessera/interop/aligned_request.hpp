// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/blocks/introspection.hpp>

namespace tessera::inline v0_1::interop {

/// A request with an alignment, for an allocator that aligns to min_alignment only. 0 bytes count as 1,
/// because other libraries expect an address for 0 bytes.
///
/// Up to `tried_alignment`, it first tries a block of the requested bytes, because most recipes align their
/// blocks that well. Otherwise it takes a block that is larger by the alignment. The returned address then
/// lies inside the block. It writes nothing, so it serves device memory, too.
struct aligned_request {
  /// Up to this alignment, a block without extra bytes is tried first.
  static constexpr std::size_t tried_alignment = 512;
  /// Up to this alignment, find() looks at each place where a block may begin.
  static constexpr std::size_t searched_alignment = std::size_t{1} << 16;

  std::size_t bytes;      ///< as requested; 1 for 0 bytes
  std::size_t alignment;  ///< a power of two; aborts otherwise

  /// Aborts if the alignment is no power of two.
  aligned_request(std::size_t requested, std::size_t to) noexcept
      : bytes(requested != 0 ? requested : 1), alignment(to) {
    if (!std::has_single_bit(to)) detail::fatal("aligned_request: an alignment is a power of two");
  }

  /// Returns the bytes of a block that contains an aligned address wherever it begins.
  [[nodiscard]] std::size_t with_room() const noexcept {
    return alignment > min_alignment ? detail::saturating_add(bytes, alignment - min_alignment) : bytes;
  }

  /// Serves the request.
  ///   Throws:  the exceptions of the allocator's allocate
  template <typename A>
  [[nodiscard]] void* allocate(A& allocator, stream_id stream) const {
    return serve(allocator,
                 [&allocator, stream](std::size_t size) { return allocator.allocate(size, stream); });
  }
  /// Returns null if allocate would throw.
  template <typename A>
  [[nodiscard]] void* try_allocate(A& allocator, stream_id stream) const noexcept {
    return serve(allocator,
                 [&allocator, stream](std::size_t size) { return allocator.try_allocate(size, stream); });
  }

  /// A block that serves a request.
  struct block {
    /// Where the block begins, at or below the aligned address; null if there is none.
    void* address = nullptr;
    std::size_t bytes = 0;  ///< as requested from the allocator
  };
  /// Finds the block of an address that allocate returned. Returns a null block if there is none.
  ///   Cost:  one look-up per 64 bytes of the alignment; above `searched_alignment`, linear in the blocks
  template <typename A>
  [[nodiscard]] block find(A& allocator, void* p) const noexcept {
    block found;
    if (number(p) % alignment != 0) return found;
    const auto look = [&](std::uintptr_t address, std::size_t requested) {
      void* const begin = reinterpret_cast<void*>(address);
      if (requested == with_room() || (begin == p && requested == bytes)) found = {begin, requested};
    };
    detail::visit_plan_of(allocator, [&](const auto& plan) {
      const block_view b = plan.contains(p) ? plan.block_around(p) : block_view{};
      if (b.is == block_view::state::live) look(b.address, b.requested);
    });
    if (found.address != nullptr) return found;
    allocator.visit_owner(p, [&](auto& in) {
      const auto blocks = detail::introspect(in);
      const auto look_at = [&](std::uintptr_t address) {
        look(address, blocks.requested_at(reinterpret_cast<void*>(address)));
      };
      if (alignment > searched_alignment) {
        if (const detail::block* const around = blocks.block_at(number(p))) look_at(around->address);
        return;
      }
      // Search downwards: only the first live block can contain p.
      for (std::size_t below = 0; below < alignment && found.address == nullptr; below += min_alignment)
        look_at(number(p) - below);
    });
    return found;
  }

  /// Frees memory that allocate returned for an equal request. Null is ignored.
  ///   Requires:  an equal request; aborts if it detects a different one. It does not detect wrong bytes with
  ///              alignments of 128 to 512. It does not detect a request that needs a block of as many bytes.
  ///   Cost:      the cost of the allocator's deallocate, for a block of just the requested bytes; otherwise
  ///              the cost of find
  template <typename A>
  void deallocate(A& allocator, void* p) const noexcept {
    if (alignment <= min_alignment) return allocator.deallocate(p, bytes);
    if (p == nullptr || (alignment <= tried_alignment && allocator.try_deallocate(p))) return;
    free(allocator, find_or_abort(allocator, "deallocate", p));
  }
  /// Records that a stream uses memory that allocate returned for an equal request.
  template <typename A>
  [[nodiscard]] bool record_stream(A& allocator, void* p, stream_id stream) const noexcept {
    return allocator.record_stream(find_or_abort(allocator, "record_stream", p).address, stream);
  }
  /// Frees like deallocate, after the work on `stream` before this call. The block stays live if that use can
  /// be neither recorded nor waited for by `finish(stream)`.
  template <typename A, typename Finish>
  void deallocate_recording(A& allocator, void* p, stream_id stream, Finish finish) const noexcept {
    if (p == nullptr) return;
    if (alignment <= tried_alignment && allocator.try_record_stream(p, stream))
      return deallocate(allocator, p);
    const block found = find_or_abort(allocator, "deallocate", p);
    if (allocator.record_stream(found.address, stream) || finish(stream)) free(allocator, found);
  }

 private:
  [[nodiscard]] static std::uintptr_t number(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }
  /// Aligns the address that `take(bytes)` returns, which may be null.
  template <typename A, typename Take>
  [[nodiscard]] void* serve(A& allocator, Take take) const {
    if (alignment <= tried_alignment) {
      void* const p = take(bytes);
      if (number(p) % alignment == 0) return p;
      allocator.deallocate(p, bytes);
    }
    return reinterpret_cast<void*>(align_up(number(take(with_room())), alignment));
  }
  /// Finds the block of an address. Aborts if there is none.
  template <typename A>
  [[nodiscard]] block find_or_abort(A& allocator, const char* call, void* p) const noexcept {
    const block found = find(allocator, p);
    if (found.address == nullptr) refuse(allocator, call, p);
    return found;
  }
  template <typename A>
  static void free(A& allocator, const block& found) noexcept {
    allocator.deallocate(found.address, found.bytes);
  }
  template <typename A>
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse(A& allocator, const char* call,
                                                            void* p) noexcept {
    detail::fixed_text text;
    text.add(call).add(": not the address of a live block of this size and alignment; ");
    bool is_known = false;
    allocator.visit_owner(
        p, [&](auto& in) { is_known = detail::add_block_at(text, detail::introspect(in), p); });
    if (!is_known) text.add(detail::in_no_segment);
    detail::fatal(text.c_str(), p);
  }
};

}  // namespace tessera::inline v0_1::interop
