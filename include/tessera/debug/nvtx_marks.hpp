// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#include <utility>

#include <nvtx3/nvToolsExtMem.h>

#include <tessera/core/types.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::debug {

/// An observer that tells NVTX which bytes of each segment serve a request. Compute Sanitizer then reports a kernel that uses a
/// freed block, cached memory, or the bytes behind a request. It exists if NVTX's header <nvtx3/nvToolsExtMem.h> is found,
/// which CUDA 13 has.
///
///     using marks = tessera::extension::observer<tessera::debug::nvtx_marks>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, cuda_device, marks> checked;
///
/// A freed block with recorded streams is marked as free when their work has completed. Each segment or chunk of a range is a heap
/// of NVTX; a block over several chunks is a region in each. The first segment comes before the first call of NVTX, because
/// Compute Sanitizer wants CUDA to be initialized then.
///   Cost:    for each request and free, a search in the segments, and a call of NVTX, which does nothing without a tool
///   Source:  the suballocation API of "NVTX API for Compute Sanitizer"
class nvtx_marks {
 public:
  nvtx_marks() = default;
  nvtx_marks(nvtx_marks&& other) noexcept
      : domain_(std::exchange(other.domain_, nullptr)), heaps_(std::move(other.heaps_)) {}
  nvtx_marks& operator=(nvtx_marks&& other) noexcept {
    std::swap(domain_, other.domain_);
    std::swap(heaps_, other.heaps_);
    return *this;
  }
  /// Removes all marks.
  ~nvtx_marks() {
    while (const auto* const first = heaps_.from(0)) remove_heap(first->key);
    if (domain_ != nullptr) nvtxDomainDestroy(domain_);
  }

  /// Passes an event on. The allocator calls it.
  void on(const allocator_event& e) noexcept {
    using enum allocator_event::action;
    switch (e.what) {
      case segment_alloc:
      case segment_map: return add_heap(e.address, e.bytes);
      case segment_free:
      case segment_unmap: return remove_heap(e.address);
      case alloc:
        return for_each_part(e, [this](nvtxMemHeapHandle_t of, const nvtxMemVirtualRangeDesc_t& part) {
          nvtxMemRegionsRegisterBatch_t batch{};
          batch.extCompatID = NVTX_EXT_COMPATID_MEM;
          batch.structSize = sizeof batch;
          batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
          batch.heap = of;
          batch.regionCount = 1;
          batch.regionDescElementSize = sizeof part;
          batch.regionDescElements = &part;
          nvtxMemRegionsRegister(domain_, &batch);
        });
      case free_completed:
        return for_each_part(e, [this](nvtxMemHeapHandle_t, const nvtxMemVirtualRangeDesc_t& part) {
          nvtxMemRegionRef_t region{};
          region.pointer = part.ptr;
          nvtxMemRegionsUnregisterBatch_t batch{};
          batch.extCompatID = NVTX_EXT_COMPATID_MEM;
          batch.structSize = sizeof batch;
          batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
          batch.refCount = 1;
          batch.refElementSize = sizeof region;
          batch.refElements = &region;
          nvtxMemRegionsUnregister(domain_, &batch);
        });
      default: return;
    }
  }

 private:
  struct heap {
    std::size_t bytes;
    nvtxMemHeapHandle_t handle;
  };

  [[nodiscard]] static nvtxMemVirtualRangeDesc_t range(std::uintptr_t address, std::size_t bytes) noexcept {
    nvtxMemVirtualRangeDesc_t made{};
    made.size = bytes;
    made.ptr = reinterpret_cast<const void*>(address);
    return made;
  }
  /// Marks a segment. If host memory runs out, its blocks have no marks.
  void add_heap(std::uintptr_t address, std::size_t bytes) noexcept {
    if (domain_ == nullptr) domain_ = nvtxDomainCreateA("tessera");
    const nvtxMemVirtualRangeDesc_t all = range(address, bytes);
    nvtxMemHeapDesc_t desc{};
    desc.extCompatID = NVTX_EXT_COMPATID_MEM;
    desc.structSize = sizeof desc;
    desc.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    desc.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    desc.typeSpecificDescSize = sizeof all;
    desc.typeSpecificDesc = &all;
    const nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(domain_, &desc);
    if (!heaps_.insert(address, {bytes, handle})) nvtxMemHeapUnregister(domain_, handle);
  }
  void remove_heap(std::uintptr_t address) noexcept {
    if (heaps_.find(address) != nullptr) nvtxMemHeapUnregister(domain_, heaps_.extract(address).handle);
  }
  /// Calls f(heap, part) for the part of a request in each heap.
  template <typename F>
  void for_each_part(const allocator_event& e, F f) const noexcept {
    const std::uintptr_t end = e.address + e.bytes;
    const auto* at = heaps_.up_to(e.address);
    if (at == nullptr) at = heaps_.from(e.address);
    for (; at != nullptr && at->key < end; at = heaps_.after(*at)) {
      const std::uintptr_t from = at->key > e.address ? at->key : e.address;
      const std::uintptr_t heap_end = at->key + at->value.bytes;
      const std::uintptr_t to = heap_end < end ? heap_end : end;
      if (from < to) f(at->value.handle, range(from, to - from));
    }
  }

  nvtxDomainHandle_t domain_ = nullptr;
  tessera::detail::ordered_map<heap> heaps_;  // by address
};

}  // namespace tessera::inline v0_1::debug
#endif
