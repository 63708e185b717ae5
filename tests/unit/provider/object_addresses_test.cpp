// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/object_addresses.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

[[nodiscard]] const void* after(const void* p, std::size_t bytes) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + bytes);
}

TEST(object_addresses, find_the_object_and_the_offset) {
  object_addresses<int> addresses(1_MiB);
  void* const one = addresses.insert(1, 1_MiB);
  void* const two = addresses.insert(2, 100);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, 1_MiB - 1}) {
    const auto place = addresses.find(after(one, offset));
    ASSERT_NE(place.object, nullptr);
    EXPECT_EQ(*place.object, 1);
    EXPECT_EQ(place.offset, offset);
  }
  EXPECT_EQ(*addresses.find(after(two, 99)).object, 2);
  EXPECT_EQ(addresses.bytes_at(two), 100u);
  EXPECT_EQ(addresses.bytes_at(after(two, 1)), 0u);
  EXPECT_EQ(addresses.size(), 2u);
}

TEST(object_addresses, know_addresses_without_an_object) {
  object_addresses<int> addresses(1_MiB);
  EXPECT_EQ(addresses.find(nullptr).object, nullptr);
  EXPECT_EQ(addresses.find(after(nullptr, 2_MiB)).object, nullptr);
  void* const one = addresses.insert(1, 1000);
  EXPECT_EQ(addresses.find(after(one, 1000)).object, nullptr);
  EXPECT_EQ(addresses.find(after(one, 2_MiB)).object, nullptr);
  EXPECT_EQ(addresses.find(reinterpret_cast<void*>(~std::uintptr_t{0})).object, nullptr);
  EXPECT_EQ(addresses.extract(one), 1);
  EXPECT_EQ(addresses.find(one).object, nullptr);
  EXPECT_EQ(addresses.bytes_at(one), 0u);
  EXPECT_EQ(addresses.size(), 0u);
}

/// If two objects had adjacent addresses, an allocator could make a block of both.
TEST(object_addresses, keep_the_largest_objects_apart) {
  for (const std::size_t bytes : {std::size_t{1}, 64_KiB - 1, 64_KiB, 64_KiB + 1, 3_GiB}) {
    object_addresses<int> addresses(bytes);
    const auto one = reinterpret_cast<std::uintptr_t>(addresses.insert(1, bytes));
    const auto two = reinterpret_cast<std::uintptr_t>(addresses.insert(2, bytes));
    EXPECT_GT(two - one, bytes);
  }
}

TEST(object_addresses, align_as_the_offset_does) {
  object_addresses<int> addresses(8_MiB);
  for (int i = 0; i < 300; ++i) {
    const auto number = reinterpret_cast<std::uintptr_t>(addresses.insert(i, 8_MiB));
    ASSERT_NE(number, 0u);
    ASSERT_EQ(number % 16_MiB, 0u);
  }
}

TEST(object_addresses, refuse_objects_that_are_too_large_or_empty) {
  object_addresses<int> addresses(1_MiB);
  EXPECT_EQ(addresses.insert(1, 0), nullptr);
  EXPECT_EQ(addresses.insert(1, 1_MiB + 1), nullptr);
  EXPECT_EQ(addresses.insert(1, 2_MiB), nullptr);
  EXPECT_EQ(addresses.insert(1, unlimited), nullptr);
  EXPECT_EQ(addresses.size(), 0u);
}

TEST(object_addresses, end_below_the_end_of_the_address_space) {
  object_addresses<char> addresses(unlimited);  // ranges of 2^47 bytes
  std::size_t count = 0;
  while (addresses.insert('a', 64) != nullptr) ++count;
  EXPECT_EQ(count, (std::size_t{1} << 16) - 1);
}

TEST(object_addresses, reuse_ranges_and_let_objects_stay_in_place) {
  object_addresses<int> addresses(1_MiB);
  std::vector<void*> held;
  for (int i = 0; i < 1000; ++i) held.push_back(addresses.insert(i, 64));
  const int* const first = addresses.find(held[0]).object;
  for (std::size_t i = 0; i < held.size(); i += 2) EXPECT_EQ(addresses.extract(held[i]), static_cast<int>(i));
  for (std::size_t i = 0; i < held.size(); i += 2) {
    held[i] = addresses.insert(-1, 64);
    EXPECT_LE(reinterpret_cast<std::uintptr_t>(held[i]), 1000 * 2_MiB);
  }
  EXPECT_EQ(addresses.find(held[0]).object != nullptr, true);
  EXPECT_EQ(*addresses.find(held[999]).object, 999);
  EXPECT_EQ(addresses.size(), 1000u);
  EXPECT_EQ(*first, -1);
}

TEST(object_addresses, hold_objects_that_only_move) {
  object_addresses<std::unique_ptr<int>> addresses(1_MiB);
  void* const p = addresses.insert(std::make_unique<int>(3), 64);
  EXPECT_EQ(**addresses.find(p).object, 3);
  EXPECT_EQ(*addresses.extract(p), 3);
}

/// A thread that holds an address finds its object while another thread adds objects.
TEST(object_addresses, are_found_by_other_threads) {
  object_addresses<int> addresses(1_MiB);
  void* const mine = addresses.insert(42, 1_MiB);
  std::thread reader([&] {
    for (int i = 0; i < 20'000; ++i) ASSERT_EQ(*addresses.find(after(mine, 5)).object, 42);
  });
  std::vector<void*> others;
  for (int i = 0; i < 2'000; ++i) others.push_back(addresses.insert(i, 64));
  for (void* const p : others) (void)addresses.extract(p);
  reader.join();
}

/// Memory that is named by an object and an offset, as a user of the page on providers would write it.
class heaps {
 public:
  static constexpr bool is_thread_safe = false;
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    if (bytes > 256_MiB - used_) return nullptr;
    void* const p = addresses_->insert(next_, bytes);
    if (p == nullptr) return nullptr;
    ++next_;
    used_ += bytes;
    return p;
  }
  [[nodiscard]] bool release(void* p, std::size_t bytes) noexcept {
    if (bytes == 0 || addresses_->bytes_at(p) != bytes) return false;
    (void)addresses_->extract(p);
    used_ -= bytes;
    return true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return 256_MiB; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 4_KiB; }
  [[nodiscard]] auto find(const void* p) const noexcept { return addresses_->find(p); }

 private:
  std::unique_ptr<object_addresses<int>> addresses_ = std::make_unique<object_addresses<int>>(256_MiB);
  int next_ = 1;
  std::size_t used_ = 0;
};

TEST(object_addresses, make_a_provider_of_memory_without_addresses) {
  checked_provider<heaps> device{heaps()};
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  locked<caching_allocator<with<pytorch<>, reuse_immediately>, checked_provider<heaps>>> pool(
      std::move(device));
  std::vector<void*> blocks;
  for (std::size_t i = 1; i <= 200; ++i) blocks.push_back(pool.allocate(i * 1000));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    pool.visit_provider([&](auto& on) {
      const auto first = on.inner().find(blocks[i]), last = on.inner().find(after(blocks[i], 1000 * i + 999));
      EXPECT_EQ(first.object, last.object);
      EXPECT_EQ(last.offset - first.offset, 1000 * i + 999);
    });
    pool.deallocate(blocks[i]);
  }
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

}  // namespace
