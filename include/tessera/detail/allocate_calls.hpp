// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

#include <tessera/core/stream.hpp>
#include <tessera/detail/aligned_request.hpp>
#include <tessera/observe/explain_failure.hpp>

namespace tessera {

/// The calls that every allocator makes of its try_allocate, deallocate and record_stream: allocate, which throws, and the
/// calls that take an alignment.
///
///     void* const table = pool.allocate(1000, std::align_val_t{4096});
///     pool.deallocate(table, 1000, std::align_val_t{4096});
///
/// What was allocated with an alignment is given back, and recorded, with the same bytes and alignment, as its address need
/// not be where its block begins. An alignment is a power of two; else the program ends.
template <typename Self>
class allocate_calls {
 public:
  /// Serves a request of `bytes` on `stream`.
  ///   Returns:  an address aligned to min_alignment, valid until deallocate; null for 0 bytes
  ///   Throws:   out_of_memory once everything has been tried, and at once above max_request
  ///   Cost:     constant, and a query for each stream that frees wait for; calls to the device where nothing fits
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    if (void* p = self().try_allocate(bytes, stream); p != nullptr || bytes == 0) return p;
    raise_failure(self(), bytes, stream);
  }
  /// The same at a multiple of `alignment`.
  ///   Cost:  up to 512 nothing more where the block happens to lie so; else `alignment` more bytes
  [[nodiscard]] void* allocate(std::size_t bytes, std::align_val_t alignment, stream_id stream = {}) {
    const aligned_request wanted(bytes, alignment);
    return bytes != 0 ? wanted.allocate(self(), stream) : nullptr;
  }
  /// The same, but null where allocate throws.
  [[nodiscard]] void* try_allocate(std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream = {}) noexcept {
    const aligned_request wanted(bytes, alignment);
    return bytes != 0 ? wanted.try_allocate(self(), stream) : nullptr;
  }
  /// Takes back what was allocated with an alignment. Null is ignored.
  ///   Requires:  the same bytes and alignment; else the program ends, as far as an aligned_request notices
  void deallocate(void* p, std::size_t bytes, std::align_val_t alignment) noexcept {
    if (p != nullptr) aligned_request(bytes, alignment).deallocate(self(), p);
  }
  /// Notes that `stream` uses what was allocated with an alignment, as record_stream does.
  [[nodiscard]] bool record_stream(void* p, std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream) noexcept {
    return p != nullptr && aligned_request(bytes, alignment).record_stream(self(), p, stream);
  }

 protected:
  // Not private with Self as a friend, as by_visit lies between the two. NOLINTNEXTLINE(bugprone-crtp-constructor-accessibility)
  allocate_calls() = default;

 private:
  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
};

}  // namespace tessera
