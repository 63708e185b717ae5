// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/trace/recording.hpp>

namespace tessera::inline v0_1::plan {

/// The banks of a plan begin at multiples of this, in bytes. The normal pages of devices are not larger; otherwise, `planned` names
/// the fault.
inline constexpr std::size_t bank_alignment = std::size_t{2} << 20;
/// The bytes of a bank that a plan may use.
[[nodiscard]] constexpr std::size_t whole_bytes_of_bank(std::size_t bytes) noexcept {
  return bytes / bank_alignment * bank_alignment;
}

/// A plan and its arrays.
struct made_plan {
  memory_plan numbers;  ///< without the arrays
  std::vector<memory_plan::kind> kinds;
  std::vector<memory_plan::track> tracks;
  std::vector<memory_plan::step> steps;
  std::vector<memory_plan::entry> entries;
  std::vector<std::uint32_t> deaths;
  std::vector<std::uint64_t> bank_ends;
  std::vector<std::size_t> bank_bytes;  ///< that each bank of make_options::banks needs, if there are any
  std::size_t outside_bound = 0;  ///< no choice of banks for these steps needs fewer bytes outside the first
  std::size_t recorded_requests = 0;  ///< requests of the recording that the entries stand for
  /// Steps that the program marked, or that were found, in the stream with most requests. Requests before the first
  /// step and behind the last are none.
  std::size_t recorded_steps = 0;
  std::size_t different_steps = 0;   ///< of these, those that differ from all before
  std::size_t left_out_streams = 0;  ///< streams without a track: it would cost memory that streams now share
  std::size_t left_out_requests = 0;  ///< their requests
  bool is_optimal = false;            ///< whether no placement needs fewer bytes

  /// The plan, which is valid while this object is neither changed nor destroyed.
  [[nodiscard]] memory_plan view() const noexcept {
    memory_plan plan = numbers;
    plan.kinds = kinds;
    plan.tracks = tracks;
    plan.steps = steps;
    plan.entries = entries;
    plan.deaths = deaths;
    plan.bank_ends = bank_ends;
    return plan;
  }
  /// The bytes of all banks but the first.
  [[nodiscard]] std::size_t outside() const noexcept {
    std::size_t sum = 0;
    for (std::size_t bank = 1; bank < bank_bytes.size(); ++bank) sum += bank_bytes[bank];
    return sum;
  }
  /// Whether no bank of such capacities needs more than it has.
  [[nodiscard]] bool fits(std::span<const std::size_t> banks) const noexcept {
    bool all = banks.size() >= bank_bytes.size();
    for (std::size_t bank = 0; all && bank < bank_bytes.size(); ++bank)
      all = bank_bytes[bank] <= whole_bytes_of_bank(banks[bank]);
    return all;
  }
};

/// How to make a plan of a recording.
struct make_options {
  std::size_t first_event = 0;        ///< of the recording
  std::size_t end_event = unlimited;  ///< one behind the last
  double effort = 10;                 ///< the work of the search for places, as in place_options
  std::uint64_t seed = 1;             ///< of that search
  std::uint32_t alignment = 512;      ///< of all places, in bytes; a power of two, at least min_alignment
  /// The bytes of the banks, such as HBM and DDR, in the order in which they are filled. Each counts in whole multiples of
  /// bank_alignment. Empty: one bank. If there are any, `capacity` is that of the first.
  std::span<const std::size_t> banks{};
  std::size_t capacity = 0;  ///< the search stops if the plan has at most so many bytes; 0: no limit
  /// The bytes that the recipe reserves for the program without a plan. A plan of all streams may need fewer although streams
  /// share no bytes of it. 0: unknown, so streams are left out whose places add more than 2 % to peak live.
  std::size_t reserved_without = 0;
  /// Called now and then with the bytes of the best places so far.
  void (*progress)(void* state, std::size_t best, std::size_t lower_bound) = nullptr;
  void* progress_state = nullptr;
};

/// Makes a plan of a recorded program, for `planned`.
///
/// Steps that repeat share their entries. Requests in scopes of private pools are left out. A program may mark its
/// steps (event::kind::begin_step); otherwise, they are found from the sizes of the requests.
/// A stream is left out if its places would cost more than the memory that streams now use in turn, see `reserved_without`. With a
/// capacity, the program is planned as one step if the steps do not fit.
///
/// With several banks, the first takes as much as it can, and the others what is left. Long-lived blocks leave it first. Streams
/// are placed one after the other. The last bank may need more than it has; fits() says whether.
///
/// The same recording and options give the same plan: nothing depends on time.
///   Requires:  an alignment that is a power of two, at least min_alignment; at most 64 banks, of at least bank_alignment
///              each; otherwise the program aborts
///   Throws:    std::bad_alloc
///   Cost:      n log^2 n for the periods, n log n for each way to divide the program into steps, and the search for
///              places. With a capacity that the steps do not fit, that search runs twice. With several banks, it takes up to
///              four times as long.
[[nodiscard]] made_plan make(const trace::recording& source, const make_options& options = {});

/// Returns the fingerprint of a plan of these events, without making it.
///   Throws:  std::bad_alloc
[[nodiscard]] std::uint64_t fingerprint(const trace::recording& source, std::size_t first_event,
                                        std::size_t end_event);

}  // namespace tessera::inline v0_1::plan
