// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <ggml-backend.h>

/// The types of buffers of ggml, which its header ggml-backend-impl.h has. Packages do not install that header, so these are the
/// structures of ggml 0.27. has_these_types() compares them with the library that is linked.
#if __has_include(<ggml-backend-impl.h>)
#include <ggml-backend-impl.h>
#else
extern "C" {
struct ggml_backend_buffer_type_i {
  const char* (*get_name)(ggml_backend_buffer_type_t);
  ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, std::size_t);
  ggml_backend_buffer_t (*alloc_buffer_n)(ggml_backend_buffer_type_t, ggml_tensor**, int);
  std::size_t (*get_alignment)(ggml_backend_buffer_type_t);
  std::size_t (*get_max_size)(ggml_backend_buffer_type_t);
  std::size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor*);
  std::size_t (*get_alloc_size_n)(ggml_backend_buffer_type_t, ggml_tensor**, int);
  bool (*is_host)(ggml_backend_buffer_type_t);
};
struct ggml_backend_buffer_type {
  ggml_backend_buffer_type_i iface;
  ggml_backend_dev_t device;
  void* context;
};
struct ggml_backend_buffer_i {
  void (*free_buffer)(ggml_backend_buffer_t);
  void* (*get_base)(ggml_backend_buffer_t);
  void* others[9];  // access to tensors
};
struct ggml_backend_buffer {
  ggml_backend_buffer_i iface;
  ggml_backend_buffer_type_t buft;
  void* context;
  std::size_t size;
  ggml_backend_buffer_usage usage;
};
}
#endif

namespace interop_tests {

/// Whether the library that is linked has these structures.
inline bool has_these_types() {
  alignas(64) static char memory[256];
  ggml_backend_buffer_t const buffer = ggml_backend_cpu_buffer_from_ptr(memory, sizeof memory);
  ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
  ggml_backend_buffer_type_t const type = ggml_backend_buffer_get_type(buffer);
  const bool is_alike = buffer->size == sizeof memory && buffer->context == memory && buffer->buft == type &&
                        buffer->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE &&
                        type->device == ggml_backend_buft_get_device(type) &&
                        type->iface.is_host != nullptr && type->iface.is_host(type) &&
                        type->iface.get_alignment != nullptr &&
                        type->iface.get_alignment(type) == ggml_backend_buft_get_alignment(type);
  ggml_backend_buffer_free(buffer);
  if (!is_alike) std::puts("SKIPPED: this version of ggml has other types of buffers than 0.27");
  return is_alike;
}

}  // namespace interop_tests
