// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

#include "tune_composition.hpp"

namespace replay::tune {

/// The result of one replay.
struct outcome {
  std::size_t peak_reserved = 0;  ///< bytes
  std::uint64_t device_ns = 0;    ///< on the simulated device's clock
  std::uint64_t calls = 0;        ///< device calls that acquire and release memory
  std::size_t failures = 0;       ///< allocations
  double processor_ns = 0;        ///< of the thread, per operation
  bool given_up = false;          ///< a limit was exceeded, so the rest is unknown
};

/// Limits at which a replay is given up.
struct limits {
  std::size_t reserved = unlimited;             ///< bytes
  std::uint64_t device_ns = ~std::uint64_t{0};  ///< on the simulated device's clock
  double processor_ns = 0;                      ///< per operation; 0 for no limit
  bool failures = false;                        ///< give up at the first failed allocation
};

/// Replays a program on a simulated device, until a limit is exceeded.
[[nodiscard]] outcome replay_once(const trace::program& program, const composition& c, std::size_t capacity,
                                  const limits& until = {});

/// The minimum capacity with which a program completes, as `fit` finds it; `unlimited` if 1 EiB is not
/// enough.
[[nodiscard]] std::size_t min_capacity(const trace::program& program, const composition& c);
/// The minimum capacity up to `max`, within `step` bytes and the limits; `unlimited` if there is none.
[[nodiscard]] std::size_t min_capacity_up_to(const trace::program& program, const composition& c,
                                             std::size_t max, std::size_t step, limits until);

/// Host time per operation: processor time in nanoseconds, the lower quartile of the repetitions.
struct host_times {
  std::vector<double> each{};   ///< of the compositions, with policies chosen at run time
  double pytorch = 0;           ///< of pytorch, likewise
  double pytorch_compiled = 0;  ///< of pytorch as a compiled recipe
  double noise = 0;             ///< the relative range of half of pytorch's repetitions

  /// Converts a time to that of a compiled recipe, by the ratio of pytorch's times.
  [[nodiscard]] double as_compiled(double chosen_when_run) const noexcept {
    return pytorch > 0 ? chosen_when_run / pytorch * pytorch_compiled : 0;
  }
};

/// Measures compositions and pytorch in turn, repeatedly, on one thread.
[[nodiscard]] host_times measure(const trace::program& program, const std::vector<composition>& some,
                                 std::size_t capacity, std::size_t repetitions);

/// A composition and its costs on a program.
struct candidate {
  composition made{};
  std::string name{};           ///< the name of the shipped recipe, or empty
  std::size_t memory = 0;       ///< peak reserved in bytes, or the minimum capacity if a capacity is given
  std::uint64_t device_ns = 0;  ///< if it does not complete: with a device of `memory` bytes
  std::uint64_t calls = 0;      ///< device calls
  double host_share =
      1;  ///< processor time relative to pytorch; approximate, since candidates run concurrently
  bool completes = true;               ///< with the capacity, and it was not given up
  bool is_exact = false;               ///< evaluated to the end
  bool needs_program_changes = false;  ///< of streams, compared with pytorch
  bool was_expanded = false;           ///< its neighbours were tried

  [[nodiscard]] bool is_eligible() const noexcept { return completes && !needs_program_changes; }
};

/// The options of a search.
struct search_options {
  program_traits known;
  std::size_t capacity = 0;        ///< bytes of the device
  std::size_t max_candidates = 0;  ///< compositions to try, approximately
  double max_host = 2.5;           ///< the limit of processor time relative to pytorch, approximately
  std::function<void(std::size_t tried, std::size_t min_memory)> progress{};
};

/// Searches for good compositions for a program, on all cores. Tries shipped recipes, then neighbours of the
/// best.
///
/// If nothing that caches completes with the capacity, it minimizes the capacity that candidates need, until
/// one completes. The result depends on the machine only if host time is near its limit. Gives up candidates
/// that reserve a quarter more than pytorch, or take far too much time.
class search {
 public:
  /// Tries the shipped recipes, pytorch first.
  search(const trace::program& program, search_options chosen,
         const std::vector<std::pair<std::string, composition>>& shipped);

  /// Searches until nothing is left to try, or the number of compositions is reached.
  void run();
  /// Evaluates a composition exactly, without giving up; with a capacity, to the byte.
  candidate evaluate(const composition& c);

  [[nodiscard]] const std::vector<candidate>& tried() const noexcept { return tried_; }
  [[nodiscard]] const candidate& pytorch() const noexcept { return tried_.front(); }
  /// The shipped recipe that needs least memory, without passthrough, among those that complete, else among
  /// all. Null if all need changes of the program.
  [[nodiscard]] const candidate* best_shipped() const noexcept;
  /// The limit of device time: 1/200 of one device call per block, or twice pytorch's if that is more and it
  /// completes.
  [[nodiscard]] std::uint64_t device_limit_ns() const noexcept;

 private:
  void try_all(const std::vector<composition>& some);
  [[nodiscard]] candidate tried_out(const composition& c, bool to_the_end) const;
  [[nodiscard]] std::uint64_t asking_ns() const noexcept;
  [[nodiscard]] bool is_cheap(const candidate& c) const noexcept;
  [[nodiscard]] std::vector<std::size_t> worth_expanding() const;
  void note_host_time();

  const trace::program& program_;
  search_options options_;
  std::vector<candidate> tried_;
  std::map<std::string, std::size_t> place_;  // by the texts of the policies
  std::uint64_t device_reach_ns_ = 0;         // candidates beyond it are not expanded
  std::size_t memory_reach_ = 0;              // incomplete candidates within it are expanded
  bool any_is_cheap_ = false;
  bool any_completes_cheaply_ = false;
  double pytorch_ns_ = 0;  // processor time per operation, measured last
};

}  // namespace replay::tune
