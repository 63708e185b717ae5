// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::plan {

/// The places of a program's requests, computed from a recording. `planned` serves requests by it.
///
/// It is a view of arrays, which must outlive it. `tessera-replay plan` writes them as a header, or as a file that
/// the planner reads.
///
/// A plan has one track for each recorded stream that it serves, and a track has steps. Its entries are the requests of
/// these steps, as a tree in preorder. Steps that begin alike share their first entries, and `other` names what
/// may come instead.
struct memory_plan {
  /// All requests of one size. Those that outlive several steps are kept, at `kept` adjacent places.
  /// Several kinds may have the same size: all their kept places serve it.
  struct kind {
    std::uint64_t bytes = 0;       ///< of a request
    std::uint32_t kept_place = 0;  ///< the first kept place
    std::uint32_t kept = 0;        ///< the number of kept places
  };
  /// A request. Places are offsets in units of `alignment`.
  struct entry {
    std::uint32_t kind = 0;   ///< the position of its kind in `kinds`
    std::uint32_t place = 0;  ///< `keeps` if any free kept place of its kind serves it
    std::uint32_t other = 0;  ///< the entry that may come instead of this one; 0 if there is none
    std::uint32_t deaths =
        0;  ///< the end of its deaths in `deaths`; they begin where the previous entry's end
  };
  /// A step that begin_step(key) starts; key 0 stands for any. A track without steps ignores begin_step.
  struct step {
    std::uint64_t key = 0;    ///< as begin_step() gets it
    std::uint32_t entry = 0;  ///< its first entry
  };
  /// The requests of one stream.
  struct track {
    std::uint64_t stream = 0;       ///< in the recording; only 0 names the same stream at run time
    std::uint32_t kinds_end = 0;    ///< the end of its kinds; they begin where the previous track's end
    std::uint32_t entries_end = 0;  ///< likewise
    std::uint32_t steps_end = 0;    ///< likewise
  };
  /// The place of an entry that is kept.
  static constexpr std::uint32_t keeps = 0xFFFFFFFF;
  /// A bit of `other`: the step may have ended before this entry, so the first entry of another may come.
  static constexpr std::uint32_t may_end = 0x80000000;

  std::uint64_t fingerprint = 0;     ///< of the recorded requests and frees
  std::uint64_t first_event = 0;     ///< of the recording
  std::uint64_t end_event = 0;       ///< one behind the last
  std::uint64_t bytes = 0;           ///< of all places together
  std::uint64_t peak_live = 0;       ///< of the recorded requests, in bytes
  std::uint64_t lower_bound = 0;     ///< no placement of these requests needs fewer bytes
  std::uint32_t alignment = 512;     ///< of all places
  std::span<const kind> kinds{};     ///< of all tracks, one track after the other
  std::span<const track> tracks{};   ///< in the order of the recorded streams
  std::span<const step> steps{};     ///< of all tracks, one track after the other
  std::span<const entry> entries{};  ///< of all tracks, one track after the other
  /// For each entry, the entries whose blocks are freed by then. For the first entry of a step, instead those
  /// entries of other steps whose blocks may still be live.
  std::span<const std::uint32_t> deaths{};
  /// The end of each bank but the last, as an offset: places below the first end lie in bank 0, those from there to the
  /// second in bank 1, and so on. Empty for one bank.
  std::span<const std::uint64_t> bank_ends{};

  /// Whether it serves no request.
  [[nodiscard]] constexpr bool empty() const noexcept { return entries.empty(); }
  /// The bank of an offset.
  [[nodiscard]] constexpr std::size_t bank_of(std::uint64_t offset) const noexcept {
    std::size_t bank = 0;
    while (bank < bank_ends.size() && bank_ends[bank] <= offset) ++bank;
    return bank;
  }
  /// The bytes of a place for a request of `request` bytes.
  [[nodiscard]] constexpr std::uint64_t place_bytes(std::uint64_t request) const noexcept {
    return align_up(request, alignment);
  }
};

/// The requests and bytes that a plan served.
struct plan_usage {
  std::uint64_t requests = 0;            ///< requests served by the plan
  std::uint64_t bytes = 0;               ///< their bytes
  std::uint64_t unplanned_requests = 0;  ///< requests that the allocator inside served, or that failed
  std::uint64_t unplanned_bytes = 0;     ///< their bytes
  std::uint64_t occupied = 0;            ///< of these, planned requests whose place was still in use
  counter device_bytes;                  ///< bytes of the device behind the plan's places
  std::size_t plan_bytes = 0;            ///< bytes of all places
  std::uint64_t fingerprint = 0;         ///< of the recorded program
  const char* fault = nullptr;           ///< the rule that the plan breaks; then it serves nothing
  bool is_aside = false;                 ///< whether the plan serves nothing, because the program has left it

  /// The least requests of the window by which is_stale() judges.
  static constexpr std::uint64_t recent_window = 1000;
  std::uint64_t recent_requests = 0;            ///< of the last window, the requests that the plan served
  std::uint64_t recent_unplanned_requests = 0;  ///< of the last window, the others

  /// Whether the program differs from the recorded one: of the last window of at least 1,000 requests, the plan
  /// served less than half.
  [[nodiscard]] bool is_stale() const noexcept {
    return recent_requests + recent_unplanned_requests >= recent_window &&
           recent_requests < recent_unplanned_requests;
  }
};

}  // namespace tessera::inline v0_1::plan
