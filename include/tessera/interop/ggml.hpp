// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/ownership.hpp>

/// A type of buffers for ggml, the library under llama.cpp: ggml_buffer_type.

namespace tessera::inline v0_1::interop {

/// Adapts an allocator of host memory to a ggml_backend_buffer_type. `FromPointer` is
/// ggml_backend_cpu_buffer_from_ptr, whose functions access the tensors. It includes no header of ggml. The
/// caller includes ggml-backend-impl.h, of October 2024 or newer, from the sources of the library that is
/// linked; packages do not install it, and its structures change between versions. Pass get() to functions
/// such as ggml_backend_alloc_ctx_tensors_from_buft.
///
/// For the weights of llama.cpp, name get() in tensor_buft_overrides of llama_model_params with the pattern
/// ".*", and choose LLAMA_LOAD_MODE_NONE, because a file that is mapped needs no buffers. llama.cpp places its KV
/// cache and its intermediate tensors itself.
///
/// If memory is full, an allocation returns null. ggml itself serves 0 bytes. Buffers are aligned to 64
/// bytes. It is as thread-safe as the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it; it outlives its buffers
template <auto FromPointer, typename A>
class ggml_buffer_type {
  static_assert(detail::check_host_allocator<detail::allocator_of<A>>());
  using buffer = std::remove_pointer_t<decltype(FromPointer(nullptr, std::size_t{}))>;
  using buffer_type = std::remove_pointer_t<decltype(std::declval<buffer&>().buft)>;
  using device = decltype(std::declval<buffer_type&>().device);

 public:
  /// `of` is the device that the memory is for, such as a GPU for page-locked memory. Null is the host.
  explicit ggml_buffer_type(detail::handle_argument<A> allocator, const char* name = "tessera",
                            device of = nullptr) noexcept
      : allocator_(allocator), name_(name) {
    type_.device = of;
    type_.context = this;
    type_.iface.get_name = [](buffer_type* type) { return self(type).name_; };
    type_.iface.get_alignment = [](buffer_type*) { return min_alignment; };
    type_.iface.get_max_size = [](buffer_type*) { return max_request; };
    type_.iface.is_host = [](buffer_type*) { return true; };
    type_.iface.alloc_buffer = &alloc;
  }
  ggml_buffer_type& operator=(ggml_buffer_type&&) = delete;

  /// The type as a ggml_backend_buffer_type_t.
  [[nodiscard]] buffer_type* get() noexcept { return &type_; }

 private:
  [[nodiscard]] static ggml_buffer_type& self(const buffer_type* type) noexcept {
    return *static_cast<ggml_buffer_type*>(type->context);
  }
  static buffer* alloc(buffer_type* type, std::size_t bytes) {
    auto& allocator = self(type).allocator_.get();
    unique_block<detail::allocator_of<A>> block(allocator, allocator.try_allocate(bytes, stream_id{}), bytes);
    if (block.get() == nullptr) return nullptr;
    buffer* const made = FromPointer(block.get(), bytes);  // may throw
    (void)block.release();
    made->buft = type;
    made->iface.free_buffer = [](buffer* of) {
      self(of->buft).allocator_.get().deallocate(of->iface.get_base(of), of->size);
    };
    return made;
  }

  detail::handle_of<A> allocator_;
  const char* name_;
  buffer_type type_{};
};

}  // namespace tessera::inline v0_1::interop
