// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/ggml.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

// The parts of ggml-backend-impl.h that a buffer type uses, as the header specifies them.
struct ggml_backend_device {
  int number;
};
struct ggml_tensor;
struct ggml_backend_buffer;
struct ggml_backend_buffer_type;
struct ggml_backend_buffer_type_i {
  const char* (*get_name)(ggml_backend_buffer_type*);
  ggml_backend_buffer* (*alloc_buffer)(ggml_backend_buffer_type*, std::size_t);
  std::size_t (*get_alignment)(ggml_backend_buffer_type*);
  std::size_t (*get_max_size)(ggml_backend_buffer_type*);
  std::size_t (*get_alloc_size)(ggml_backend_buffer_type*, const ggml_tensor*);
  bool (*is_host)(ggml_backend_buffer_type*);
};
struct ggml_backend_buffer_type {
  ggml_backend_buffer_type_i iface;
  ggml_backend_device* device;
  void* context;
};
struct ggml_backend_buffer_i {
  void (*free_buffer)(ggml_backend_buffer*);
  void* (*get_base)(ggml_backend_buffer*);
};
struct ggml_backend_buffer {
  ggml_backend_buffer_i iface;
  ggml_backend_buffer_type* buft;
  void* context;
  std::size_t size;
};
bool host_memory_is_full = false;
ggml_backend_buffer* ggml_backend_cpu_buffer_from_ptr(void* p, std::size_t size) {
  if (host_memory_is_full) throw std::bad_alloc();
  return new ggml_backend_buffer{
      {nullptr, [](ggml_backend_buffer* of) { return of->context; }}, nullptr, p, size};
}
void ggml_backend_buffer_free(ggml_backend_buffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->iface.free_buffer != nullptr) buffer->iface.free_buffer(buffer);
  delete buffer;
}

using namespace tessera::literals;
using allocator_type = tessera::concurrent::locked<
    tessera::caching_allocator<shape_tests::packed_tightly, tessera::provider::host_pinned>>;
using memory_type = tessera::interop::ggml_buffer_type<ggml_backend_cpu_buffer_from_ptr, allocator_type>;

struct ggml_buffer_type : testing::Test {
  allocator_type allocator{shape_tests::host_memory(64_MiB)};
  memory_type memory{allocator};
  ggml_backend_buffer_type* const type = memory.get();

  ggml_backend_buffer* take(std::size_t bytes) { return type->iface.alloc_buffer(type, bytes); }
  void TearDown() override {
    EXPECT_EQ(allocator.current_usage().allocated, 0u);
    EXPECT_STREQ(allocator.audit(), nullptr);
  }
};

TEST_F(ggml_buffer_type, describes_itself) {
  EXPECT_STREQ(type->iface.get_name(type), "tessera");
  EXPECT_EQ(type->iface.get_alignment(type), 64u);
  EXPECT_GE(type->iface.get_max_size(type), std::size_t{1} << 40);
  EXPECT_TRUE(type->iface.is_host(type));
  EXPECT_EQ(type->iface.get_alloc_size, nullptr) << "ggml then takes the bytes of the tensor";
  EXPECT_EQ(type->device, nullptr);
  ggml_backend_device gpu{1};
  memory_type of_gpu(allocator, "pinned", &gpu);
  EXPECT_EQ(of_gpu.get()->device, &gpu);
  EXPECT_STREQ(of_gpu.get()->iface.get_name(of_gpu.get()), "pinned");
}

TEST_F(ggml_buffer_type, makes_buffers_that_return_their_memory) {
  ggml_backend_buffer *const a = take(1000), *const b = take(1_MiB);
  EXPECT_EQ(a->buft, type);
  EXPECT_EQ(b->size, 1_MiB);
  EXPECT_TRUE(shape_tests::is_aligned(b->iface.get_base(b), 64));
  EXPECT_EQ(allocator.current_usage().requested, 1000 + 1_MiB);
  std::memset(b->iface.get_base(b), 1, b->size);
  ggml_backend_buffer_free(b);
  ggml_backend_buffer_free(a);
}

TEST_F(ggml_buffer_type, returns_null_when_memory_is_full) {
  EXPECT_EQ(take(65_MiB), nullptr);
  EXPECT_EQ(take(SIZE_MAX), nullptr);
  ggml_backend_buffer* const fits = take(4_MiB);
  EXPECT_NE(fits, nullptr);
  ggml_backend_buffer_free(fits);
}

TEST_F(ggml_buffer_type, keeps_no_block_if_ggml_makes_no_buffer) {
  host_memory_is_full = true;
  EXPECT_THROW((void)take(1000), std::bad_alloc);
  host_memory_is_full = false;
}

TEST_F(ggml_buffer_type, serves_threads) {
  std::vector<std::thread> running;
  for (int t = 0; t < 3; ++t)
    running.emplace_back([this] {
      for (std::size_t i = 1; i <= 300; ++i) ggml_backend_buffer_free(take(i));
    });
  for (std::thread& t : running) t.join();
  EXPECT_EQ(allocator.statistics().all.allocation.freed, 900);
}

}  // namespace
