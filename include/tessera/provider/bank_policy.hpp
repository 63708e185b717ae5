// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>

/// The policies that choose between the banks of a memory_domains [tessera/provider/memory_domains.hpp], and what they see.

namespace tessera::inline v0_1::provider {

/// Means "no bank" where a bank has a number.
inline constexpr std::size_t no_bank = unlimited;
/// The largest number of banks of one memory_domains.
inline constexpr std::size_t max_banks = 64;

/// A request for memory that a bank_policy places.
struct bank_request {
  std::size_t bytes = 0;     ///< of the segment or of the physical memory
  page_kind kind{};          ///< the kind of pages that was asked for
  bool is_physical = false;  ///< whether it creates physical memory; otherwise it acquires a segment
};

/// What one bank has served. The counts of requests are those of Linux's numastat.
struct bank_statistics {
  std::size_t held = 0;       ///< bytes in segments and in handles of created memory
  std::size_t peak_held = 0;  ///< the largest value of `held`
  std::uint64_t served = 0;   ///< bytes served since the start
  /// Requests that the policy wanted here first, or create_in() named this bank for, and that were served here.
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;   ///< requests served here because the bank that the policy wanted first refused
  std::uint64_t foreign = 0;  ///< requests that the policy wanted here first, and that another bank served
  std::uint64_t refused = 0;  ///< requests that this bank refused
  /// Requests that the bank served.
  [[nodiscard]] std::uint64_t requests() const noexcept { return hits + misses; }
  bool operator==(const bank_statistics&) const = default;
};

/// The banks of a memory_domains, as a bank_policy sees them during one request.
class bank_list {
 public:
  /// Asks how many bytes a bank can still give.
  using left_function = std::size_t (*)(const void* domains, std::size_t bank) noexcept;

  /// Made by the memory_domains. It refers to arrays with one element for each bank, and `distances` with one
  /// for each pair.
  bank_list(std::size_t count, const std::size_t* capacities, const bank_statistics* statistics,
            const unsigned* distances, const void* domains, left_function left_of) noexcept
      : count_(count),
        capacities_(capacities),
        statistics_(statistics),
        distances_(distances),
        domains_(domains),
        left_(left_of) {}

  /// How many banks there are; their numbers are from 0 to one less.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether the bank refused this request.
  [[nodiscard]] bool has_refused(std::size_t bank) const noexcept { return has_refused_[bank]; }
  [[nodiscard]] std::size_t capacity(std::size_t bank) const noexcept { return capacities_[bank]; }
  /// What a bank has served so far, without the present request.
  [[nodiscard]] const bank_statistics& statistics(std::size_t bank) const noexcept {
    return statistics_[bank];
  }
  /// Bytes that the bank can still give. It may call the bank's available().
  [[nodiscard]] std::size_t left(std::size_t bank) const noexcept { return left_(domains_, bank); }
  /// How far a bank is from another: 10 for the bank itself, and larger for slower ones.
  ///   Source:  the System Locality Information Table (SLIT) of ACPI
  [[nodiscard]] unsigned distance(std::size_t from, std::size_t to) const noexcept {
    return distances_[from * count_ + to];
  }

  /// Called by the memory_domains when the bank refused the present request.
  void note_refused(std::size_t bank) noexcept { has_refused_[bank] = true; }

 private:
  std::size_t count_;
  const std::size_t* capacities_;
  const bank_statistics* statistics_;
  const unsigned* distances_;  // count_ rows of count_
  const void* domains_;
  left_function left_;
  std::array<bool, max_banks> has_refused_{};
};

/// Chooses the bank of a request.
///
/// | expression             | returns     | meaning                                                                    |
/// |------------------------|-------------|----------------------------------------------------------------------------|
/// | c.choose(request, all) | std::size_t | the bank to ask next, which has not refused this request; no_bank to refuse |
/// | c.uses(bank)           | bool        | whether it ever chooses this bank; constant. Capacity and available() are  |
/// |                        |             | sums over these banks                                                      |
///
/// choose() is called again for each bank that refuses. It runs under the mutex of the memory_domains, so it must not call
/// it. It answers only, and changes nothing: what it may count is in bank_statistics. law::bank_policy
/// [tessera/law/bank_policy_laws.hpp] tests a policy.
template <typename P>
concept bank_policy = std::movable<P> && requires(const P& c, const bank_request& request,
                                                  const bank_list& all, std::size_t bank) {
  { c.choose(request, all) } noexcept -> std::same_as<std::size_t>;
  { c.uses(bank) } noexcept -> std::same_as<bool>;
};

/// Uses one bank only.
///   Source:  Linux's MPOL_BIND with one node; numactl --membind
struct bind_bank {
  std::size_t bank = 0;  ///< the number of the bank
  [[nodiscard]] std::size_t choose(const bank_request&, const bank_list& all) const noexcept {
    return bank < all.count() && !all.has_refused(bank) ? bank : no_bank;
  }
  [[nodiscard]] bool uses(std::size_t other) const noexcept { return other == bank; }
};

/// Uses one bank first, then the others by their distance from it; at equal distance, the lower number first.
///   Source:  Linux's MPOL_PREFERRED; numactl --preferred
struct prefer_bank {
  std::size_t bank = 0;  ///< the number of the bank that is asked first
  [[nodiscard]] std::size_t choose(const bank_request&, const bank_list& all) const noexcept {
    if (bank >= all.count()) return bank;  // which memory_domains refuses, and names
    std::size_t nearest = no_bank;
    for (std::size_t i = 0; i < all.count(); ++i) {
      if (!all.has_refused(i) && (nearest == no_bank || all.distance(bank, i) < all.distance(bank, nearest)))
        nearest = i;
    }
    return all.has_refused(bank) ? nearest : bank;
  }
  [[nodiscard]] bool uses(std::size_t) const noexcept { return true; }
};

/// Spreads requests over all banks, so that a program gets the bandwidth of all of them.
///
/// A request is never split over banks. Under a recipe that maps pages, each physical chunk is a request, so a range of
/// several chunks is interleaved.
///   Source:  Linux's MPOL_INTERLEAVE, which interleaves by page
struct interleave_banks {
  /// How it finds the next bank.
  enum class by : unsigned char {
    turn,  ///< one request after the other
    bytes  ///< the bank that holds the smallest share of its capacity
  };
  by next = by::turn;  ///< the way in force
  [[nodiscard]] std::size_t choose(const bank_request&, const bank_list& all) const noexcept {
    std::size_t chosen = no_bank;
    if (next == by::turn) {
      std::uint64_t served = 0;
      for (std::size_t i = 0; i < all.count(); ++i) served += all.statistics(i).requests();
      for (std::size_t i = all.count(); i-- > 0;) {
        const auto bank = static_cast<std::size_t>((served + i) % all.count());
        if (!all.has_refused(bank)) chosen = bank;
      }
      return chosen;
    }
    const auto share = [&](std::size_t bank) {
      return static_cast<double>(all.statistics(bank).held) / static_cast<double>(all.capacity(bank));
    };
    for (std::size_t i = 0; i < all.count(); ++i) {
      if (!all.has_refused(i) && (chosen == no_bank || share(i) < share(chosen))) chosen = i;
    }
    return chosen;
  }
  [[nodiscard]] bool uses(std::size_t) const noexcept { return true; }
};

/// Fills the banks in the order of their numbers, each up to a share of its capacity. Once a request fits below the
/// watermark of no bank, it uses the memory above the watermarks, in the same order.
///
/// Number the banks from the fastest to the slowest. A watermark below 100 percent reserves the remainder of the fast banks
/// for the time when all others are in use, too.
struct spill_banks {
  fraction watermark = percent(100);  ///< of the capacity of each bank
  [[nodiscard]] std::size_t choose(const bank_request& request, const bank_list& all) const noexcept {
    std::size_t above = no_bank;
    for (std::size_t i = 0; i < all.count(); ++i) {
      if (all.has_refused(i)) continue;
      if (detail::saturating_add(all.statistics(i).held, request.bytes) <= watermark.of(all.capacity(i)))
        return i;
      if (above == no_bank) above = i;
    }
    return above;
  }
  [[nodiscard]] bool uses(std::size_t) const noexcept { return true; }
};

}  // namespace tessera::inline v0_1::provider
