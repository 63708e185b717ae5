// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <tessera/block_handle.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/simulated_calls.hpp>
#include <tessera/trace/recording.hpp>

#include "ownership.hpp"

/// The rules for any caching allocator, independent of its implementation.
namespace conformance {

/// One operation of a user.
struct operation {
  enum class kind : unsigned char { allocate, free, record, hold, trim, retune, pool, sleep };
  kind what = kind::allocate;
  bool by_handle = false;  // how the allocation is named
  bool sized = false;      // whether a free passes the size
  // whether events are held; the percentage that a trim keeps; the number of settings; an event::kind on pools;
  // a sleep_change
  unsigned amount = 0;
  std::uint64_t id = 0;  // of the allocation, or of the private pool; to sleep: 0 for the default pools
  std::size_t bytes = 0;
  tessera::stream_id stream{};
  bool operator==(const operation&) const = default;
};
using program = std::vector<operation>;
enum sleep_change : unsigned { wake_one, wake_all, sleep_and_discard, sleep_and_save };

/// The parameters of random programs.
struct habits {
  std::uint64_t seed = 1;
  std::size_t largest = std::size_t{32} << 20;  // bytes of the largest request
  std::size_t most_live = 200;                  // blocks
  std::vector<tessera::stream_id> streams{tessera::stream_id{0}};
  bool holds_events = true;
  unsigned settings = 0;  // the number of settings that an allocator has
  unsigned pools = 0;     // the number of private pools
  bool sleeps = true;     // if the allocator can
};

/// An operation on a private pool as an event of a recording.
[[nodiscard]] tessera::trace::event pool_event(const operation& o);

/// Writes an endless program, determined by the parameters.
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
  [[nodiscard]] operation change_pool();
  [[nodiscard]] operation change_sleep();

  habits of_;
  std::mt19937_64 random_;
  std::vector<held> live_;
  std::uint64_t made_ = 0;
};

/// The rules that an allocator keeps in addition to the general ones.
struct extra_rules {
  bool holds_recorded = true;  // a block is not reused while a recorded stream uses it
  bool holds_own = true;       // also if the stream is its own
  // a block that was free on one stream serves another stream only after its work
  bool keeps_apart = true;
  // a free has its effect when the call returns, and no other thread changes the counters
  bool counts_at_once = true;
  bool host_visible = false;  // blocks can be written and read
  bool no_calls_fail = true;  // the device refuses only if memory is short
  // if several scopes of private pools select a stream, the newest decides; otherwise the oldest
  bool newest_scope_decides = false;
};

/// An allocator and its source of memory, as the model sees them.
class subject {
 public:
  struct block {
    void* address = nullptr;
    tessera::block_handle known;  // empty if the block is named by its address
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
  /// Executes an operation on private pools. Returns nothing if the subject has none.
  [[nodiscard]] virtual std::optional<tessera::trace::pool_outcome> change_pool(
      const tessera::trace::event&) {
    return {};
  }
  /// Puts a pool to sleep or wakes pools. Returns nothing if the subject cannot.
  [[nodiscard]] virtual std::optional<tessera::extension::sleep_result> change_sleep(const operation&) {
    return {};
  }
  /// The number, in the program, of the private pool that a live block belongs to; 0 for none.
  [[nodiscard]] virtual std::uint64_t pool_of(const block&, unsigned /*pools*/) { return 0; }
  /// Changes to other settings, one of `number`.
  virtual void retune(unsigned number) = 0;
  /// Destroys the allocator. Returns what the device still holds, or an empty text.
  [[nodiscard]] virtual std::string end() = 0;

  [[nodiscard]] virtual bool can_use(const void* p, std::size_t bytes) = 0;
  /// From now on, event queries report unfinished, or the truth.
  virtual void hold_events(bool held) = 0;
  /// The number of calls so far that waited for work.
  [[nodiscard]] virtual std::uint64_t waits() = 0;
  /// Makes calls fail, if the device supports it; else null.
  [[nodiscard]] virtual tessera::detail::simulated_calls* calls() { return nullptr; }
};

/// The broken rule, and the operation that broke it. No rule is broken if the text is empty.
struct fault {
  std::string what;
  std::size_t at = 0;
  explicit operator bool() const { return !what.empty(); }
};

/// Executes a program and returns the first rule that the allocator breaks.
///   Cost:  logarithmic in the live blocks for each operation; a walk over all blocks at intervals
class judge {
 public:
  judge(subject& of, const extra_rules& kept, std::size_t audit_every)
      : of_(&of), kept_(kept), audit_every_(audit_every) {}

  /// Executes one operation. Returns the broken rule, or null. An operation on a block that is not live does
  /// nothing.
  [[nodiscard]] const char* carry_out(const operation& o);
  /// Frees all blocks and destroys the allocator.
  [[nodiscard]] std::string finish();

 private:
  struct held {
    subject::block block;
    std::size_t bytes;
    tessera::stream_id stream;
    std::vector<tessera::stream_id> users;
    std::uint64_t pool = 0;    // that served it
    bool has_contents = true;  // until its pool sleeps and discards them
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
  [[nodiscard]] const char* change_pool(const operation& o);
  [[nodiscard]] const char* change_sleep(const operation& o);
  [[nodiscard]] bool sleeps(std::uint64_t pool) const { return asleep_.contains(pool); }
  /// The private pool to which the scope that decides directs a stream's requests; 0 for none.
  [[nodiscard]] std::uint64_t destination(tessera::stream_id stream) const;
  [[nodiscard]] const char* look();
  [[nodiscard]] const char* count();

  subject* of_;
  extra_rules kept_;
  std::size_t audit_every_;
  ownership owned_;
  std::unordered_map<std::uint64_t, held> live_;
  std::map<std::uintptr_t, withheld> withheld_;  // by address, while events are held
  struct scope {
    std::uint64_t pool;
    bool all;
    std::vector<tessera::stream_id> streams;
  };
  std::vector<scope> open_;                    // the oldest first
  std::map<std::uint64_t, std::size_t> uses_;  // of each pool
  std::set<std::uint64_t> asleep_;
  bool holding_ = false;
  std::size_t done_ = 0;
};

/// A new subject, each time the same.
struct composition {
  std::string name;
  std::function<std::unique_ptr<subject>()> make;
  extra_rules kept;
  habits used;
  double share = 1;  // of the requested operations
};

[[nodiscard]] fault first_fault(subject& of, const extra_rules& kept, const program& all,
                                std::size_t audit_every = 1);

/// Runs operations on a new subject. Returns the first broken rule, the shortest program that breaks it and
/// its file, or nothing.
[[nodiscard]] std::string first_broken_rule(const composition& of, std::size_t operations,
                                            std::size_t audit_every = 997);

/// Runs operations on a subject that the caller made. Its calls may fail, and only the general rules apply.
[[nodiscard]] std::string first_broken_rule(subject& of, const habits& used, std::size_t operations,
                                            std::size_t audit_every);

/// Whether this is a build without optimization or with sanitizers.
[[nodiscard]] bool is_slow();
/// The number of operations: TESSERA_OPERATIONS, else a million, or few in a slow build. The seed:
/// TESSERA_SEED, else the argument.
[[nodiscard]] std::size_t operations_asked_for();
[[nodiscard]] std::uint64_t seed_asked_for(std::uint64_t otherwise);

}  // namespace conformance
