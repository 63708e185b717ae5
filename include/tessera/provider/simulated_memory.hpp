// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/provider/simulated_calls.hpp>

namespace tessera {

/// How much there is of a simulated device's memory, in all and of each kind, in bytes.
struct simulated_budgets {
  std::size_t capacity;
  std::size_t normal, huge, giant;
  std::size_t peer_to_peer;
  std::size_t low_bandwidth, high_bandwidth;
};

/// The physical memory of one simulated device, on which all its processes draw.
class simulated_memory {
 public:
  simulated_memory(unsigned device, const simulated_budgets& all, std::size_t page_granularity)
      : device_(device), all_(all), left_(all), page_granularity_(page_granularity) {}

  /// Takes memory out of every budget that it counts against; where any bandwidth will do, `kind` says which it has: high
  /// where there is room for all of it, low otherwise.
  [[nodiscard]] simulated_outcome take(std::size_t bytes, page_kind& kind) noexcept {
    page_kind taken = kind;
    if (taken.speed == bandwidth::any)
      taken.speed = bytes <= left_.high_bandwidth ? bandwidth::high : bandwidth::low;
    if (bytes > left_.capacity) return full("the capacity is reached");
    if (bytes > pages(taken)) return full("there are no more pages of this size");
    if (bytes > lane(taken)) return full("there is no more memory of this bandwidth");
    if (taken.peer_to_peer && bytes > left_.peer_to_peer) return full("there is no more peer-to-peer memory");
    left_.capacity -= bytes;
    pages(taken) -= bytes;
    lane(taken) -= bytes;
    if (taken.peer_to_peer) left_.peer_to_peer -= bytes;
    peak_ = (std::max)(peak_, used());
    kind = taken;
    return {};
  }
  ///   Requires:  `kind` as take() left it
  void give_back(std::size_t bytes, page_kind kind) noexcept {
    left_.capacity += bytes;
    pages(kind) += bytes;
    lane(kind) += bytes;
    if (kind.peer_to_peer) left_.peer_to_peer += bytes;
  }

  /// The number of the device.
  [[nodiscard]] unsigned device() const noexcept { return device_; }
  /// Bytes of a page.
  [[nodiscard]] std::size_t step(page_kind kind) const noexcept {
    return kind.size == page_size::normal ? page_granularity_ : kind.step();
  }
  [[nodiscard]] std::size_t used() const noexcept { return all_.capacity - left_.capacity; }
  [[nodiscard]] std::size_t peak_used() const noexcept { return peak_; }

 private:
  [[nodiscard]] static simulated_outcome full(const char* why) noexcept {
    return {.broken = why, .for_want_of_memory = true};
  }
  [[nodiscard]] std::size_t& pages(page_kind kind) noexcept {
    return kind.size == page_size::huge_1g ? left_.giant
           : kind.size == page_size::huge  ? left_.huge
                                           : left_.normal;
  }
  [[nodiscard]] std::size_t& lane(page_kind kind) noexcept {
    return kind.speed == bandwidth::low ? left_.low_bandwidth : left_.high_bandwidth;
  }

  unsigned device_;
  simulated_budgets all_;
  simulated_budgets left_;
  std::size_t page_granularity_;
  std::size_t peak_ = 0;
};

/// Physical memory of its own, apart from any address; goes back when no handle names it and no mapping shows it.
class simulated_piece {
 public:
  ///   Requires:  `bytes` of `kind` taken from `from`
  simulated_piece(std::shared_ptr<simulated_memory> from, std::size_t bytes, page_kind kind)
      : from_(std::move(from)), bytes_(bytes), kind_(kind) {}
  simulated_piece(const simulated_piece&) = delete;
  simulated_piece& operator=(const simulated_piece&) = delete;
  ~simulated_piece() { from_->give_back(bytes_, kind_); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] unsigned device() const noexcept { return from_->device(); }
  /// Bytes of each of its pages, at a multiple of which it is mapped.
  [[nodiscard]] std::size_t step() const noexcept { return from_->step(kind_); }

 private:
  std::shared_ptr<simulated_memory> from_;
  std::size_t bytes_;
  page_kind kind_;
};

}  // namespace tessera
