// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <semaphore>
#include <utility>
#include <vector>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// A device, two of its streams, and the contents of blocks, for a program that writes and reads blocks on
/// streams. The contents of a block are a number.
namespace conformance {

/// A simulated device, and the contents that its memory would have.
class simulated_place {
 public:
  using device_type = tessera::provider::simulated_device;

  explicit simulated_place(std::size_t capacity = std::size_t{64} << 30)
      : device{device_type::options{.capacity = capacity}} {}

  void write(tessera::stream_id, void* p, std::size_t bytes, unsigned number) {
    is_good_ = is_good_ && device.can_use(p, bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    std::erase_if(contents_,
                  [&](const auto& c) { return c.first < begin + bytes && begin < c.first + c.second.bytes; });
    contents_[begin] = {bytes, number};
  }
  void read(tessera::stream_id on, void* p, std::size_t bytes, unsigned number) {
    if (on == copies && is_held_)
      waiting_.push_back({p, {bytes, number}});
    else
      check(p, {bytes, number});
  }
  /// Makes the work of the stream `copies` wait from now on.
  void hold() {
    is_held_ = true;
    device.submit(copies, hour);
  }
  /// Ends that, and waits until all work is done.
  void let_go() {
    for (const auto& [p, expected] : std::exchange(waiting_, {})) check(p, expected);
    is_held_ = false;
    finish();
  }
  void finish() { (void)device.synchronize(compute), (void)device.synchronize(copies); }
  /// Whether all blocks kept their contents.
  [[nodiscard]] bool is_good() const { return is_good_; }

  device_type device;
  tessera::stream_id compute{}, copies{1};

 private:
  static constexpr std::uint64_t hour = 3'600'000'000'000;
  struct content {
    std::size_t bytes = 0;
    unsigned number = 0;
    bool operator==(const content&) const = default;
  };
  void check(void* p, const content& expected) {
    const auto found = contents_.find(reinterpret_cast<std::uintptr_t>(p));
    is_good_ = is_good_ && device.can_use(p, expected.bytes) && found != contents_.end() &&
               found->second == expected;
  }

  std::map<std::uintptr_t, content> contents_;  // by address
  std::vector<std::pair<void*, content>> waiting_;
  bool is_held_ = false;
  bool is_good_ = true;
};

/// Host memory, and threads that write and read it.
class host_place {
 public:
  using device_type = tessera::provider::host_pinned;

  explicit host_place(std::size_t capacity = std::size_t{512} << 20)
      : device{device_type::options{.capacity = capacity, .pin = device_type::pinning::never}},
        copies{device.create_stream()} {}

  void write(tessera::stream_id on, void* p, std::size_t bytes, unsigned number) {
    device.submit(on, [p, bytes, number] { std::memset(p, byte_of(number), bytes); });
  }
  void read(tessera::stream_id on, void* p, std::size_t bytes, unsigned number) {
    device.submit(on, [this, p, bytes, number] {
      const auto* const begin = static_cast<const unsigned char*>(p);
      // All bytes are equal if each is equal to the next.
      if (*begin != byte_of(number) || std::memcmp(begin, begin + 1, bytes - 1) != 0) is_good_ = false;
    });
  }
  void hold() {
    device.submit(copies, [this] { gate_.acquire(); });
  }
  void let_go() {
    (void)device.synchronize(compute);  // writes until then come before
    gate_.release();
    finish();
  }
  void finish() { (void)device.synchronize(compute), (void)device.synchronize(copies); }
  [[nodiscard]] bool is_good() const { return is_good_; }

  device_type device;
  tessera::stream_id compute{}, copies;

 private:
  [[nodiscard]] static unsigned char byte_of(unsigned number) {
    return static_cast<unsigned char>(number % 251 + 1);
  }

  std::binary_semaphore gate_{0};
  std::atomic<bool> is_good_{true};
};

}  // namespace conformance
