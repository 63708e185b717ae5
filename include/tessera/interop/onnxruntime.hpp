// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include <tessera/interop/allocator_handle.hpp>

/// An allocator for ONNX Runtime: ort_allocator.

namespace tessera::inline v0_1::interop {

/// Adapts an allocator to ONNX Runtime's C structure OrtAllocator, the type for `Base`. `Api` is OrtApi. It
/// includes no header of ONNX Runtime. It fills the members that the header's version has. Pass its address
/// to OrtApi::RegisterAllocator, with a memory information of type OrtDeviceAllocator.
///
/// Alloc returns null for 0 bytes and if memory is full, and throws nothing. Memory is aligned as the
/// allocator's blocks are: to 64 bytes, or to more if the recipe's sizes allow. It is as thread-safe as the
/// allocator, and sessions with several threads need a thread-safe one.
///
/// From version 1.23, GetStats reports the allocator's statistics. AllocOnStream allocates on a stream, which
/// must be the only one that uses the memory; other allocations are on the default stream.
///   Requires:  the allocator, the API and the memory information outlive it; it outlives its memory
template <typename Base, typename Api, typename A>
class ort_allocator final : public Base {
  static_assert(detail::check_allocator<detail::allocator_of<A>>());
  using memory_info = decltype(Base{}.Info(nullptr));

 public:
  /// Fills the structure. `api_version` is ORT_API_VERSION of the header.
  ort_allocator(detail::handle_argument<A> allocator, const Api& api, std::uint32_t api_version,
                memory_info info) noexcept
      : Base{}, allocator_(allocator), api_(&api), info_(info) {
    Base& base = *this;
    base.version = api_version;
    base.Alloc = &alloc;
    base.Free = &free;
    base.Info = &get_info;
    if constexpr (requires { base.Reserve; }) base.Reserve = &reserve;
    if constexpr (requires { base.GetStats; }) base.GetStats = &write_statistics;
    if constexpr (requires { base.AllocOnStream; }) base.AllocOnStream = &alloc_on_stream;
    if constexpr (requires { base.Shrink; }) base.Shrink = &shrink;
  }
  ort_allocator& operator=(ort_allocator&&) = delete;

 private:
  [[nodiscard]] static ort_allocator& self(Base* base) noexcept { return *static_cast<ort_allocator*>(base); }
  [[nodiscard]] static const ort_allocator& self(const Base* base) noexcept {
    return *static_cast<const ort_allocator*>(base);
  }

  static void* alloc(Base* base, std::size_t bytes) noexcept {
    return self(base).allocator_.get().try_allocate(bytes, stream_id{});
  }
  static void free(Base* base, void* p) noexcept { self(base).allocator_.get().deallocate(p); }
  static memory_info get_info(const Base* base) noexcept { return self(base).info_; }
  static void* reserve(Base* base, std::size_t bytes) noexcept {
    void* const p = alloc(base, bytes);
    if (p != nullptr) ++self(base).reserves_;
    return p;
  }
  template <typename Stream>
  static void* alloc_on_stream(Base* base, std::size_t bytes, Stream* stream) noexcept {
    ort_allocator& in = self(base);
    const void* const handle = stream != nullptr ? in.api_->SyncStream_GetHandle(stream) : nullptr;
    return in.allocator_.get().try_allocate(bytes, stream_id(handle));
  }
  template <typename Error>
  static Error* shrink(Base* base) noexcept {
    self(base).allocator_.get().trim();
    return nullptr;
  }
  template <typename Error, typename Pairs>
  static Error* write_statistics(const Base* base, Pairs** out) noexcept {
    const ort_allocator& in = self(base);
    in.api_->CreateKeyValuePairs(out);
    const auto add = [&](const char* key, auto value) {
      in.api_->AddKeyValuePair(*out, key, std::to_string(value).c_str());
    };
    const usage now = in.allocator_.get().current_usage();
    const auto counted = in.allocator_.get().statistics();
    add("Limit", now.has_limit ? static_cast<std::int64_t>(now.limit) : -1);
    add("InUse", now.allocated);
    add("TotalAllocated", now.reserved);
    add("MaxInUse", counted.all.allocated_bytes.peak);
    add("NumAllocs", counted.all.allocation.allocated);
    add("NumReserves", in.reserves_.load());
    add("NumArenaExtensions", counted.num_device_alloc);
    add("NumArenaShrinkages", counted.num_device_free);
    return nullptr;
  }

  detail::handle_of<A> allocator_;
  const Api* api_;
  memory_info info_;
  std::atomic<std::int64_t> reserves_{0};
};

}  // namespace tessera::inline v0_1::interop
