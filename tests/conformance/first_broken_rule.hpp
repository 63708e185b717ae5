// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"

namespace conformance {

/// Tests for an allocator that the caller made and continues to use.
struct plan {
  std::uint64_t seed;
  std::size_t operations;
  std::size_t largest;             // bytes of the largest request
  std::size_t most_live;           // blocks
  std::size_t audit_every;         // operations
  void (*at_the_end)() = nullptr;  // is called before all blocks are freed
};

/// Settings for an allocator that supports less.
template <typename Allocator>
class borrowed final : public subject {
 public:
  borrowed(Allocator& pool, void (*at_the_end)()) : pool_(&pool), at_the_end_(at_the_end) {}
  block allocate(std::size_t bytes, tessera::stream_id stream, bool) override {
    return {pool_->try_allocate(bytes, stream), {}};
  }
  void free(const block& b) override { pool_->deallocate(b.address); }
  void free_sized(const block& b, std::size_t bytes) override { pool_->deallocate(b.address, bytes); }
  bool record(const block& b, tessera::stream_id stream) override {
    return pool_->record_stream(b.address, stream);
  }
  void trim(std::size_t keep) override { pool_->trim(keep); }
  tessera::usage current_usage() override { return pool_->current_usage(); }
  tessera::pool_statistics counted() override { return {}; }
  const char* audit() override { return pool_->audit(); }
  void retune(unsigned) override {}
  std::string end() override { return {}; }
  bool can_use(const void*, std::size_t) override { return true; }
  /// The judge calls it only at the end, because programs of this file hold no events.
  void hold_events(bool) override {
    if (at_the_end_ != nullptr) at_the_end_();
  }
  std::uint64_t waits() override { return 0; }

 private:
  Allocator* pool_;
  void (*at_the_end_)();
};

/// Runs random operations on it and frees all blocks. Returns the first broken rule, or nothing.
template <typename Allocator>
[[nodiscard]] std::string first_broken_rule(Allocator& pool, const plan& p,
                                            const std::vector<tessera::stream_id>& streams) {
  borrowed<Allocator> seen(pool, p.at_the_end);
  return first_broken_rule(seen,
                           {.seed = p.seed,
                            .largest = p.largest,
                            .most_live = p.most_live,
                            .streams = streams,
                            .holds_events = false},
                           p.operations, p.audit_every);
}

}  // namespace conformance
