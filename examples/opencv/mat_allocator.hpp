// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <new>

#include <opencv2/core.hpp>

#include <tessera/core/bytes.hpp>
#include <tessera/interop/cccl.hpp>

/// Matrices of OpenCV in the memory of an allocator.
namespace opencv {

/// Throws OpenCV's exception for full memory, which programs with OpenCV catch.
struct no_memory {
  void operator()(const std::exception& error) const { CV_Error(cv::Error::StsNoMem, error.what()); }
};

/// Adapts an allocator of host memory to cv::MatAllocator. Its matrices are continuous, and aligned to 64
/// bytes as OpenCV's own are. It is as thread-safe as the allocator, and OpenCV needs a thread-safe one.
///
///     cv::Mat::setDefaultAllocator(&matrices);  // for all matrices from now on
///     image.allocator = &matrices;              // or for one matrix, before its memory is made
///
///   Requires:  the allocator and this object outlive their matrices, also static ones
///   Throws:    cv::Exception with the code StsNoMem if memory is full
template <typename A>
class mat_allocator final : public cv::MatAllocator {
  static_assert(tessera::min_alignment >= 64, "OpenCV's vector code expects this alignment");

 public:
  explicit mat_allocator(A& memory) noexcept : memory_(&memory) {}

  /// Describes a matrix of these sizes, with memory of the allocator or over `data` of the user. Writes the
  /// steps in bytes. Only a user's matrix may have steps that are larger than its rows.
  cv::UMatData* allocate(int dims, const int* sizes, int type, void* data, std::size_t* steps, cv::AccessFlag,
                         cv::UMatUsageFlags) const override {
    const std::size_t bytes = set_steps(dims, sizes, type, data != nullptr, steps);
    cv::UMatData* const made = new cv::UMatData(this);
    made->size = bytes;
    if (data != nullptr) {
      made->data = made->origdata = static_cast<uchar*>(data);
      made->flags |= cv::UMatData::USER_ALLOCATED;
      return made;
    }
    try {
      made->data = made->origdata = static_cast<uchar*>(memory_->allocate(bytes != 0 ? bytes : 1));
    } catch (...) {
      delete made;
      throw;
    }
    return made;
  }
  /// Makes the memory usable for a device. Host memory already is.
  bool allocate(cv::UMatData* matrix, cv::AccessFlag, cv::UMatUsageFlags) const override {
    return matrix != nullptr;
  }
  /// Frees the memory of a matrix without references, and its description. OpenCV calls it from unmap, too.
  void deallocate(cv::UMatData* matrix) const override {
    if (matrix == nullptr) return;
    CV_Assert(matrix->urefcount == 0 && matrix->refcount == 0);
    if ((matrix->flags & cv::UMatData::USER_ALLOCATED) == 0)
      memory_->deallocate(matrix->origdata, matrix->size != 0 ? matrix->size : 1);
    delete matrix;
  }

 private:
  /// Writes the steps of each dimension and returns the bytes of the matrix.
  static std::size_t set_steps(int dims, const int* sizes, int type, bool has_data, std::size_t* steps) {
    const auto depth = static_cast<std::size_t>(CV_ELEM_SIZE(type));
    std::size_t bytes = depth;
    for (int i = dims - 1; i >= 0; --i) {
      if (steps != nullptr && has_data && steps[i] != cv::Mat::AUTO_STEP) {
        CV_Assert(bytes <= steps[i]);
        bytes = steps[i];
      } else if (steps != nullptr) {
        steps[i] = bytes;
      }
      CV_Assert(sizes[i] >= 0);
      const auto count = static_cast<std::size_t>(sizes[i]);
      if (count != 0 && bytes > tessera::max_request / count) no_memory{}(std::bad_array_new_length());
      bytes *= count;
    }
    return bytes;
  }

  A* memory_;
};

}  // namespace opencv
