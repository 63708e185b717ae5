// SPDX-License-Identifier: Apache-2.0
// In place of NVTX's header: the part of its memory API that debug::nvtx_marks calls. The functions keep what a tool would know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

struct nvtx_heap {
  std::uintptr_t address;
  std::size_t bytes;
};
struct nvtx_domain {
  int number;
};
using nvtxMemHeapHandle_t = nvtx_heap*;
using nvtxDomainHandle_t = nvtx_domain*;
using nvtxMemRegionHandle_t = const void*;

inline constexpr std::uint16_t NVTX_EXT_COMPATID_MEM = 0x0102;
inline constexpr std::uint32_t NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR = 1;
inline constexpr std::uint32_t NVTX_MEM_TYPE_VIRTUAL_ADDRESS = 1;
inline constexpr std::uint32_t NVTX_MEM_REGION_REF_TYPE_POINTER = 1;

struct nvtxMemVirtualRangeDesc_t {
  std::size_t size;
  const void* ptr;
};
struct nvtxMemHeapDesc_t {
  std::uint16_t extCompatID, structSize;
  std::uint32_t reserved0, usage, type;
  std::size_t typeSpecificDescSize;
  const void* typeSpecificDesc;
};
struct nvtxMemRegionsRegisterBatch_t {
  std::uint16_t extCompatID, structSize;
  std::uint32_t regionType;
  nvtxMemHeapHandle_t heap;
  std::size_t regionCount, regionDescElementSize;
  const void* regionDescElements;
  nvtxMemRegionHandle_t* regionHandleElementsOut;
};
union nvtxMemRegionRef_t {
  const void* pointer;
  nvtxMemRegionHandle_t handle;
};
struct nvtxMemRegionsUnregisterBatch_t {
  std::uint16_t extCompatID, structSize;
  std::uint32_t refType;
  std::size_t refCount, refElementSize;
  const nvtxMemRegionRef_t* refElements;
};

/// What a tool knows, and how many calls broke a rule of NVTX.
struct nvtx_tool {
  std::map<std::uintptr_t, std::size_t> heaps, regions;
  int domains = 0, mistakes = 0;
  void expect(bool rule) { mistakes += rule ? 0 : 1; }
};
inline nvtx_tool nvtx_knows;

inline nvtxDomainHandle_t nvtxDomainCreateA(const char*) { return new nvtx_domain{++nvtx_knows.domains}; }
inline void nvtxDomainDestroy(nvtxDomainHandle_t domain) {
  nvtx_knows.expect(nvtx_knows.heaps.empty());
  --nvtx_knows.domains;
  delete domain;
}
inline nvtxMemHeapHandle_t nvtxMemHeapRegister(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t* desc) {
  const auto& all = *static_cast<const nvtxMemVirtualRangeDesc_t*>(desc->typeSpecificDesc);
  nvtx_knows.expect(domain != nullptr && desc->extCompatID == NVTX_EXT_COMPATID_MEM &&
                    desc->structSize == sizeof *desc && desc->typeSpecificDescSize == sizeof all &&
                    desc->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
  const auto address = reinterpret_cast<std::uintptr_t>(all.ptr);
  nvtx_knows.expect(nvtx_knows.heaps.emplace(address, all.size).second);
  return new nvtx_heap{address, all.size};
}
inline void nvtxMemHeapUnregister(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  nvtx_knows.expect(nvtx_knows.heaps.erase(heap->address) == 1);
  std::erase_if(nvtx_knows.regions,
                [&](const auto& region) { return region.first - heap->address < heap->bytes; });
  delete heap;
}
inline void nvtxMemRegionsRegister(nvtxDomainHandle_t, const nvtxMemRegionsRegisterBatch_t* batch) {
  const auto& one = *static_cast<const nvtxMemVirtualRangeDesc_t*>(batch->regionDescElements);
  const auto address = reinterpret_cast<std::uintptr_t>(one.ptr);
  nvtx_knows.expect(batch->regionCount == 1 && batch->regionDescElementSize == sizeof one);
  nvtx_knows.expect(address >= batch->heap->address &&
                    address + one.size <= batch->heap->address + batch->heap->bytes);
  nvtx_knows.expect(nvtx_knows.regions.emplace(address, one.size).second);
}
inline void nvtxMemRegionsUnregister(nvtxDomainHandle_t, const nvtxMemRegionsUnregisterBatch_t* batch) {
  nvtx_knows.expect(batch->refCount == 1 && batch->refType == NVTX_MEM_REGION_REF_TYPE_POINTER);
  nvtx_knows.expect(
      nvtx_knows.regions.erase(reinterpret_cast<std::uintptr_t>(batch->refElements[0].pointer)) == 1);
}
