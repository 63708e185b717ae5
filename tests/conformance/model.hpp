// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/handle.hpp>
#include <tessera/provider/simulated_calls.hpp>

#include "ownership.hpp"

/// What any caching allocator must keep, written down without knowing how one works.
namespace conformance {

/// What a user does, one thing at a time.
struct operation {
  enum class kind : unsigned char { allocate, free, record, hold, trim, retune };
  kind what = kind::allocate;
  bool by_handle = false;  // how an allocation is known to the allocator
  bool sized = false;      // whether a free says the size
  unsigned amount = 0;   // whether events are held; the percentage that a trim keeps; the number of settings
  std::uint64_t id = 0;  // of the allocation
  std::size_t bytes = 0;
  tessera::stream_id stream{};
  bool operator==(const operation&) const = default;
};
using program = std::vector<operation>;

/// What programs are made of.
struct habits {
  std::uint64_t seed = 1;
  std::size_t largest = std::size_t{32} << 20;  // bytes of the largest request
  std::size_t most_live = 200;                  // blocks
  std::vector<tessera::stream_id> streams{tessera::stream_id{0}};
  bool holds_events = true;
  unsigned settings = 0;  // how many an allocator can be told
};

/// Writes a program without end, which the habits determine.
class author {
 public:
  explicit author(const habits& of) : of_(of), random_(of.seed) {}
  [[nodiscard]] operation next();

 private:
  struct held {
    std::uint64_t id;
    std::size_t bytes;
  };
  [[nodiscard]] std::size_t pick(std::size_t below) { return static_cast<std::size_t>(random_() % below); }
  [[nodiscard]] operation free_any();

  habits of_;
  std::mt19937_64 random_;
  std::vector<held> live_;
  std::uint64_t made_ = 0;
};

/// What is promised of an allocator besides what all keep to.
struct promises {
  bool holds_recorded = true;  // a block that a stream was recorded for is nobody else's until that is done
  bool holds_own = true;       // also where that is its own stream
  bool keeps_apart = true;     // what was free on one stream serves another one only behind its work
  bool counts_at_once = true;  // what is freed is so when the call returns, and nobody else changes numbers
  bool host_visible = false;   // blocks can be written and read
  bool no_calls_fail = true;   // the device refuses only for want of memory
};

/// An allocator and where its memory comes from, as the model sees them.
class subject {
 public:
  struct block {
    void* address = nullptr;
    tessera::handle known;  // empty where it is known by its address
  };
  virtual ~subject() = default;
  [[nodiscard]] virtual block allocate(std::size_t bytes, tessera::stream_id stream, bool by_handle) = 0;
  virtual void free(const block& b) = 0;
  virtual void free_sized(const block& b, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool record(const block& b, tessera::stream_id stream) = 0;
  virtual void trim(std::size_t keep) = 0;
  [[nodiscard]] virtual tessera::usage current_usage() = 0;
  [[nodiscard]] virtual tessera::pool_statistics counted() = 0;
  [[nodiscard]] virtual const char* audit() = 0;
  /// Takes other settings over, of those of `number`.
  virtual void retune(unsigned number) = 0;
  /// Ends the allocator, and says what the device still holds; empty for nothing.
  [[nodiscard]] virtual std::string end() = 0;

  [[nodiscard]] virtual bool can_use(const void* p, std::size_t bytes) = 0;
  /// From here on event queries answer not ready, or what is so.
  virtual void hold_events(bool held) = 0;
  /// Calls so far that waited for work.
  [[nodiscard]] virtual std::uint64_t waits() = 0;
  /// What makes calls fail, where that can be; else null.
  [[nodiscard]] virtual tessera::detail::simulated_calls* calls() { return nullptr; }
};

/// What is wrong, and from which operation on; nothing is where it says nothing.
struct fault {
  std::string what;
  std::size_t at = 0;
  explicit operator bool() const { return !what.empty(); }
};

/// Carries out a program and says what an allocator did that it may not.
///   Cost:  logarithmic in what is live, for each operation; every so many operations a walk over all
class judge {
 public:
  judge(subject& of, const promises& kept, std::size_t audit_every)
      : of_(&of), kept_(kept), audit_every_(audit_every) {}

  /// The promise that is broken then, or null. What concerns no live allocation does nothing.
  [[nodiscard]] const char* carry_out(const operation& o);
  /// Gives all back and ends the allocator.
  [[nodiscard]] std::string finish();

 private:
  struct held {
    subject::block block;
    std::size_t bytes;
    tessera::stream_id stream;
    std::vector<tessera::stream_id> users;
  };
  struct withheld {
    std::size_t bytes;
    std::vector<tessera::stream_id> users;
    std::uint64_t waits;
  };
  [[nodiscard]] const char* allocate(const operation& o);
  [[nodiscard]] const char* free(const operation& o);
  [[nodiscard]] const char* take(const operation& o, const subject::block& b);
  [[nodiscard]] bool is_withheld(const subject::block& b, std::size_t bytes, tessera::stream_id by);
  void withhold(const held& h);
  [[nodiscard]] const char* look();
  [[nodiscard]] const char* count();

  subject* of_;
  promises kept_;
  std::size_t audit_every_;
  ownership owned_;
  std::unordered_map<std::uint64_t, held> live_;
  std::map<std::uintptr_t, withheld> withheld_;  // by address, while events are held
  bool holding_ = false;
  std::size_t done_ = 0;
};

/// A fresh subject, each time the same.
struct composition {
  std::string name;
  std::function<std::unique_ptr<subject>()> make;
  promises kept;
  habits used;
  double share = 1;  // of the operations that are asked for
};

[[nodiscard]] fault first_fault(subject& of, const promises& kept, const program& all,
                                std::size_t audit_every = 1);

/// Runs so many operations on a fresh subject; says the first promise that was broken, with the shortest program that
/// breaks it and where that was written, or nothing.
[[nodiscard]] std::string misbehaviour(const composition& of, std::size_t operations,
                                       std::size_t audit_every = 997);

/// The same on a subject that somebody else made, of which calls may fail and nothing is known but what all keep to.
[[nodiscard]] std::string misbehaviour(subject& of, const habits& used, std::size_t operations,
                                       std::size_t audit_every);

/// Whether this is a build without optimization or with sanitizers.
[[nodiscard]] bool is_slow();
/// So many as TESSERA_OPERATIONS says, else a million, or few where the build is slow; and the seed in TESSERA_SEED, else
/// the given one.
[[nodiscard]] std::size_t operations_asked_for();
[[nodiscard]] std::uint64_t seed_asked_for(std::uint64_t otherwise);

}  // namespace conformance
