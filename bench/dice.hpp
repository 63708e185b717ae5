// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

/// Random numbers, always the same ones, that cost next to nothing and touch no memory.
///   Source:  G. Marsaglia, Xorshift RNGs, 2003
class dice {
 public:
  /// Below `count`, which is less than 2^32.
  std::size_t below(std::size_t count) { return ((next() >> 32) * count) >> 32; }
  /// A size from 512 B to 2 MiB; as many fall between one power of two and the next as between any others.
  std::size_t bytes() {
    const std::uint64_t roll = next();
    const std::size_t base = std::size_t{512} << (((roll >> 32) * 12) >> 32);
    return base + (roll & (base - 1));
  }

 private:
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545F4914F6CDD1Du;
  }

  std::uint64_t state_ = 20241121;
};

}  // namespace bench
