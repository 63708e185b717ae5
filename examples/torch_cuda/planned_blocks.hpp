// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>

#include "history.hpp"

namespace torch_cuda {

/// The blocks that a plan serves, in PyTorch's statistics and history. The allocator inside a plan neither counts nor
/// reports them.
class planned_blocks {
 public:
  using view = tessera::block_view;

  explicit planned_blocks(history& reports) noexcept : reports_(&reports) {}

  void note_allocation(const view& block) {
    count(block, 1);
    report(tessera::allocator_event::action::alloc, block);
  }
  void note_free(const view& block) {
    count(block, -1);
    report(tessera::allocator_event::action::free_requested, block);
    report(tessera::allocator_event::action::free_completed, block);
  }
  /// Notes the bytes of all live blocks, those of the allocator inside included.
  void note_allocated(std::size_t inside) {
    const std::lock_guard lock(mutex_);
    const std::int64_t planned = pools_[0].bytes.current + pools_[1].bytes.current;
    all_ = planned + static_cast<std::int64_t>(inside);
    peak_ = std::max(peak_, all_);
  }
  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    for (counters& in : pools_) {
      for (tessera::counter* const each : {&in.blocks, &in.bytes, &in.requested}) each->peak = each->current;
    }
    peak_ = all_;
  }
  void reset_accumulated() {
    const std::lock_guard lock(mutex_);
    for (counters& in : pools_) {
      for (tessera::counter* const each : {&in.blocks, &in.bytes, &in.requested})
        each->allocated = each->freed = 0;
    }
  }
  /// Adds the blocks to statistics. The peak of the live bytes is exact; the other peaks add up to upper bounds.
  template <typename Statistics>
  void add_to(Statistics& to) const {
    const std::lock_guard lock(mutex_);
    const auto add = [](auto& s, const tessera::counter& c) {
      s.current += c.current;
      s.peak += c.peak;
      s.allocated += c.allocated;
      s.freed += c.freed;
    };
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      for (const std::size_t i : {std::size_t{0}, pool + 1}) {
        add(to.allocation[i], pools_[pool].blocks);
        add(to.active[i], pools_[pool].blocks);
        add(to.allocated_bytes[i], pools_[pool].bytes);
        add(to.active_bytes[i], pools_[pool].bytes);
        add(to.requested_bytes[i], pools_[pool].requested);
      }
    }
    to.allocated_bytes[0].peak =
        std::min(to.allocated_bytes[0].peak, std::max(peak_, to.allocated_bytes[0].current));
  }

 private:
  struct counters {
    tessera::counter blocks, bytes, requested;
  };
  void count(const view& block, std::int64_t sign) {
    const std::lock_guard lock(mutex_);
    counters& in = pools_[block.requested <= tessera::operator""_MiB(1) ? 0 : 1];  // as PyTorch's pools
    in.blocks.change(sign);
    in.bytes.change(sign * static_cast<std::int64_t>(block.bytes));
    in.requested.change(sign * static_cast<std::int64_t>(block.requested));
  }
  void report(tessera::allocator_event::action what, const view& block) {
    reports_->on({.what = what,
                  .address = block.address,
                  .bytes = block.requested,
                  .block = block.bytes,
                  .stream = block.stream});
  }

  history* reports_;
  mutable std::mutex mutex_;
  std::array<counters, 2> pools_{};
  std::int64_t all_ = 0, peak_ = 0;  // bytes of all live blocks, those of the allocator inside included
};

}  // namespace torch_cuda
