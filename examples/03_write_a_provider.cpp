// SPDX-License-Identifier: Apache-2.0
// A provider of one's own, checked by the law of providers, with an allocator over it.
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <tessera/law/provider.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Gives pieces of one piece of host memory: a device with 64 pages of 1 MiB, each used or not.
class arena {
 public:
  arena() : memory_(static_cast<std::byte*>(std::aligned_alloc(page, page * pages))) {}
  arena(arena&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), used_(other.used_) {}
  arena& operator=(arena&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(used_, other.used_);
    return *this;
  }
  ~arena() { std::free(memory_); }

  void* acquire(std::size_t bytes) noexcept {
    const std::size_t wanted = tessera::align_up(bytes, page) / page;
    for (std::size_t first = 0, run = 0; first + run < pages;) {
      if (used_[first + run]) {
        first += run + 1, run = 0;
      } else if (++run == wanted) {
        mark(first, wanted, true);
        return memory_ + first * page;
      }
    }
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    mark(static_cast<std::size_t>(static_cast<std::byte*>(p) - memory_) / page, bytes / page, false);
    return true;
  }
  std::size_t capacity() const noexcept { return page * pages; }
  std::size_t granularity() const noexcept { return page; }

 private:
  static constexpr std::size_t page = 1_MiB, pages = 64;
  void mark(std::size_t first, std::size_t count, bool value) noexcept {
    for (std::size_t i = first; i < first + count; ++i) used_[i] = value;
  }
  std::byte* memory_;
  std::array<bool, pages> used_{};
};

int main() {
  arena device;
  if (const tessera::law::verdict found = tessera::law::provider(device); !found)
    return std::puts(found.broken), 1;

  // It has no events, so the recipe must not ask for any.
  using recipe = tessera::with<tessera::pytorch, tessera::reuse_ignoring_streams>;
  tessera::caching_allocator<recipe, arena> pool{std::move(device)};
  auto* numbers = static_cast<int*>(pool.allocate(1000 * sizeof(int)));
  numbers[999] = 42;
  std::printf("%d, in %zu bytes reserved\n", numbers[999], pool.now().reserved);
  pool.deallocate(numbers);
  return 0;
}
