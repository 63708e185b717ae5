// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory_resource>
#include <type_traits>

#include <tessera/core/stream.hpp>
#include <tessera/detail/aligned_request.hpp>
#include <tessera/interop/allocator_ref.hpp>

namespace tessera {

/// An allocator as a std::pmr::memory_resource, so that containers keep their elements in its memory, on one stream.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::caching_allocator<tessera::pinned_packed, tessera::host_pinned> pool;
///     tessera::pmr_resource memory(pool);
///     std::pmr::vector<float> batch(1000, &memory);
///
/// A block takes 512 bytes at least, and 4 KiB of pinned memory under `pinned`, which cuts none. So for many small objects,
/// as the nodes of a map, put a pool of the standard library before it:
///
///     #include <map>
///     tessera::caching_allocator<tessera::pinned_packed, tessera::host_pinned> pinned;
///     tessera::pmr_resource blocks(pinned);
///     std::pmr::unsynchronized_pool_resource nodes(&blocks);
///     std::pmr::map<int, float> by_number(&nodes);
///
/// What it asks for is an aligned_request, so every alignment is served. It is equal to resources that give from the
/// same allocator. As many threads may use it as may use the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
///   Throws:    what the allocator's allocate throws
template <typename A>
class pmr_resource final : public std::pmr::memory_resource {
  static_assert(check_host_allocator<allocator_behind<A>>());

 public:
  explicit pmr_resource(allocator_argument<A> from, stream_id stream = {}) noexcept
      : from_(from), stream_(stream) {}
  pmr_resource(const pmr_resource&) = delete;
  pmr_resource& operator=(const pmr_resource&) = delete;

  [[nodiscard]] const handle_of<A>& allocator() const noexcept { return from_; }
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return detail::aligned_request(bytes, alignment).allocate(from_.get(), stream_);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    detail::aligned_request(bytes, alignment).deallocate(from_.get(), p);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    const auto* const same = dynamic_cast<const pmr_resource*>(&other);
    return same != nullptr && same->from_ == from_;
#else
    return this == &other;
#endif
  }

  handle_of<A> from_;
  stream_id stream_;
};
template <typename A>
pmr_resource(A&&, stream_id = {}) -> pmr_resource<std::remove_cvref_t<A>>;

}  // namespace tessera
