// SPDX-License-Identifier: Apache-2.0
// Errors of PyTorch's own type, with libraries in place of PyTorch's. Each test loads them in a process of its own.
#include "cuda_driver/torch_error.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../provider/fake_cuda.hpp"

namespace {

using namespace tessera;
using cuda_pytorch::torch_error;

enum class caught { nothing, out_of_memory, other };

/// A library in place of libc10. Like Python, it is loaded without adding its names to those of the program.
struct fake_c10 : loaded_library {
  explicit fake_c10(const char* name) : loaded_library(path_of(name)) {}

  std::pair<caught, std::string> catch_from(std::function<void()> f) const {
    std::array<char, 4096> text{};
    const auto call = [](void* function) { (*static_cast<std::function<void()>*>(function))(); };
    const int result = catch_(call, &f, text.data(), text.size());
    return {static_cast<caught>(result), text.data()};
  }
  int (*alive)() = find<int()>("fake_c10_alive");

 private:
  int (*catch_)(void (*)(void*), void*, char*,
                std::size_t) = find<int(void (*)(void*), void*, char*, std::size_t)>("fake_c10_catch");
};

/// Ends the process with the failures of f, without a search for leaks. The process was forked while threads of earlier
/// tests may have been running, and the search fails on those.
template <typename F>
[[noreturn]] void end_with(F f) {
  f();
  std::fflush(nullptr);
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}
#define IN_ITS_PROCESS(...) EXPECT_EXIT(end_with([&] __VA_ARGS__), testing::ExitedWithCode(0), "")

void throws_the_type_of(const char* name) {
  const fake_c10 c10(name);
  const torch_error error;
  ASSERT_TRUE(error) << name;
  EXPECT_EQ(c10.alive(), 0) << "of the trials";
  const std::string text(3000, 'x');
  for (int i = 0; i < 3; ++i) {
    const auto [type, what] = c10.catch_from([&] { error.raise(text.c_str()); });
    EXPECT_EQ(type, caught::out_of_memory);
    EXPECT_EQ(what, text);
    EXPECT_EQ(c10.alive(), 0);
  }
}
TEST(torch_error_death, is_the_type_of_pytorch) {
  IN_ITS_PROCESS({ throws_the_type_of("fake_c10"); });
}
TEST(torch_error_death, is_the_type_of_a_pytorch_with_the_older_string) {
  IN_ITS_PROCESS({ throws_the_type_of("fake_c10_older_string"); });
}
TEST(torch_error_death, is_thrown_in_several_threads) {
  IN_ITS_PROCESS({
    const fake_c10 c10("fake_c10");
    const torch_error error;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const std::string text = "thread " + std::to_string(t);
        for (int i = 0; i < 200; ++i)
          EXPECT_EQ(c10.catch_from([&] { error.raise(text.c_str()); }),
                    std::pair(caught::out_of_memory, text));
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(c10.alive(), 0);
  });
}
TEST(torch_error_death, is_missing_without_pytorch) {
  IN_ITS_PROCESS({ EXPECT_FALSE(torch_error()); });
}
TEST(torch_error_death, is_missing_if_the_type_has_another_layout) {
  IN_ITS_PROCESS({
    const fake_c10 large("fake_c10_large");
    EXPECT_FALSE(torch_error());
    EXPECT_EQ(large.alive(), 0);
    const fake_c10 two_bases("fake_c10_two_bases");
    EXPECT_FALSE(torch_error());
  });
}

/// Throws as PyTorch's own allocator does, if memory is full.
TEST(torch_error_death, is_thrown_by_the_library_for_pytorch) {
  IN_ITS_PROCESS({
    const fake_cuda cuda;
    cuda.reset(2, 256_MiB, 1);
    const fake_c10 c10("fake_c10");
    const loaded_library library(loaded_library::copy_of("cuda_pytorch"));
    const torch_functions torch{library, "tessera"};
    void* const p = torch.alloc(100_MiB, 1, nullptr);
    const auto [type, text] = c10.catch_from([&] { (void)torch.alloc(1_GiB, 1, nullptr); });
    EXPECT_EQ(type, caught::out_of_memory);
    EXPECT_EQ(text.find("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of "
                        "256.00 MiB of which "
                        "156.00 MiB is free. Of the allocated memory 100.00 MiB is allocated by PyTorch"),
              0u)
        << text;
    EXPECT_NE(text.find("no policy would help"), std::string::npos) << text;
    EXPECT_EQ(c10.alive(), 0);
    EXPECT_EQ(torch.count("num_ooms", 1), 1);
    torch.memory_fraction(0.5, 1);
    EXPECT_NE(
        c10.catch_from([&] { (void)torch.alloc(50_MiB, 1, nullptr); }).second.find("128.00 MiB allowed; "),
        std::string::npos);
    torch.free(p, 100_MiB, 1, nullptr);
    torch.free(torch.alloc(50_MiB, 1, nullptr), 50_MiB, 1, nullptr);
    EXPECT_EQ(c10.catch_from([&] { (void)torch.alloc(1, 2, nullptr); }).first, caught::other);
    torch.reset();
    EXPECT_EQ(cuda.used(1), 0u);
  });
}

}  // namespace
