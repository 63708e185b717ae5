// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

/// What any caching allocator must keep, written down without knowing how one works.
namespace conformance {

/// The blocks a user holds: they never overlap.
class ownership {
 public:
  [[nodiscard]] bool claim(void* p, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    const auto above = held_.upper_bound(begin);
    if (above != held_.end() && above->first < begin + bytes) return false;
    if (above != held_.begin() && std::prev(above)->first + std::prev(above)->second > begin) return false;
    held_.emplace(begin, bytes);
    bytes_ += bytes;
    return true;
  }
  void drop(void* p) {
    const auto found = held_.find(reinterpret_cast<std::uintptr_t>(p));
    bytes_ -= found->second;
    held_.erase(found);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::map<std::uintptr_t, std::size_t> held_;
  std::size_t bytes_ = 0;
};

struct plan {
  std::uint64_t seed;
  std::size_t operations;
  std::size_t largest;      // bytes of the largest request
  std::size_t most_live;    // blocks
  std::size_t audit_every;  // operations
};

/// Runs random operations; says the first promise that was broken, or nothing.
template <typename Allocator>
std::string misbehaviour(Allocator& pool, const plan& p, const std::vector<tessera::stream_id>& streams) {
  std::mt19937_64 random(p.seed);
  ownership owned;
  struct held {
    void* address;
    std::size_t bytes;
  };
  std::vector<held> live;
  const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  for (std::size_t i = 0; i < p.operations; ++i) {
    const std::size_t what = pick(1000);
    const std::string at = "operation " + std::to_string(i) + ", seed " + std::to_string(p.seed) + ": ";
    if (what < 480 && live.size() < p.most_live) {
      const std::size_t bytes = 1 + pick(std::size_t{1} << (4 + pick(std::bit_width(p.largest) - 4)));
      if (void* got = pool.try_allocate(bytes, streams[pick(streams.size())])) {
        if (reinterpret_cast<std::uintptr_t>(got) % tessera::min_alignment != 0) return at + "misaligned";
        if (!owned.claim(got, bytes)) return at + "a block overlaps one in use";
        live.push_back({got, bytes});
      }
    } else if (what < 960 && !live.empty()) {
      held& chosen = live[pick(live.size())];
      if (pick(4) == 0) (void)pool.record_stream(chosen.address, streams[pick(streams.size())]);
      owned.drop(chosen.address);
      pick(2) == 0 ? pool.deallocate(chosen.address) : pool.deallocate(chosen.address, chosen.bytes);
      chosen = live.back();
      live.pop_back();
    } else if (what == 960) {
      pool.trim(pick(2) == 0 ? 0 : pool.now().reserved / 2);
    } else if (!live.empty()) {
      (void)pool.record_stream(live[pick(live.size())].address, streams[pick(streams.size())]);
    }
    if (i % p.audit_every == 0) {
      if (const char* broken = pool.audit()) return at + broken;
    }
    const tessera::usage now = pool.now();
    if (now.requested < owned.bytes() || now.live < owned.bytes()) return at + "less is live than is held";
    if (now.live + now.pending + now.cached != now.reserved) return at + "usage does not add up";
  }
  for (const held& h : live) pool.deallocate(h.address);
  pool.trim();
  pool.trim();  // makes up for a device call that failed in the first
  if (const char* broken = pool.audit()) return std::string("at the end: ") + broken;
  if (pool.now().live != 0 || pool.now().pending != 0) return "at the end: something is lost";
  return {};
}

}  // namespace conformance
