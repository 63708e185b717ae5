// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/cuda_calls.hpp>

#include "../examples/loaded_library.hpp"

/// Declares the functions by which tests control the library in place of CUDA's driver.
struct fake_cuda : loaded_library {
  fake_cuda() : loaded_library(path_of("fake_cuda")) {}

  void (*reset)(int, std::size_t, int) = find<void(int, std::size_t, int)>("fake_reset");
  void (*refuse_files)(int) = find<void(int)>("fake_refuse_files");
  void (*offer)(int, int) = find<void(int, int)>("fake_offer");
  int (*latest_chunk)() = find<int()>("fake_latest_chunk");
  void (*fail)(unsigned long long, unsigned long long,
               int) = find<void(unsigned long long, unsigned long long, int)>("fake_fail");
  unsigned long long (*calls)() = find<unsigned long long()>("fake_calls");
  int (*count)(const char*) = find<int(const char*)>("fake_count");
  void (*hold)(int) = find<void(int)>("fake_hold");
  void (*submit)(int, void*) = find<void(int, void*)>("fake_submit");
  void (*finish)(int, void*) = find<void(int, void*)>("fake_finish");
  void (*finish_one)(int, void*) = find<void(int, void*)>("fake_finish_one");
  void (*end_stream)(int, void*) = find<void(int, void*)>("fake_end_stream");
  void* (*other_context)(int) = find<void*(int)>("fake_other_context");
  int (*usable)(int, unsigned long long,
                std::size_t) = find<int(int, unsigned long long, std::size_t)>("fake_usable");
  std::size_t (*used)(int) = find<std::size_t(int)>("fake_used");
  std::size_t (*outstanding)() = find<std::size_t()>("fake_outstanding");
  const char* (*misuse)() = find<const char*()>("fake_misuse");
  void* (*current)() = find<void*()>("fake_current");
  int (*set_current)(void*) = find<int(void*)>("cuCtxSetCurrent");

  [[nodiscard]] bool is_usable(int device, const void* p, std::size_t bytes) const {
    return usable(device, reinterpret_cast<std::uintptr_t>(p), bytes) == 1;
  }
};

inline void* handle_of(tessera::stream_id stream) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream.handle));
}

/// A test that checks at its end that the driver has all memory back and saw no forbidden call.
class with_fake_cuda : public testing::Test {
 protected:
  with_fake_cuda() { begin(); }
  ~with_fake_cuda() override { end(); }

  void begin(int devices = 2, std::size_t capacity = tessera::operator""_MiB(256),
             bool virtual_memory = true) {
    cuda.reset(devices, capacity, virtual_memory ? 1 : 0);
  }
  void end() {
    cuda.fail(0, 0, 0);
    EXPECT_STREQ(cuda.misuse(), "");
    EXPECT_EQ(cuda.outstanding(), 0u);
    EXPECT_EQ(cuda.current(), nullptr);
  }
  [[nodiscard]] static tessera::provider::cuda_driver load() {
    return tessera::provider::cuda_driver(loaded_library::path_of("fake_cuda").c_str());
  }

  const fake_cuda cuda;
};
