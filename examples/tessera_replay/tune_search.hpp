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
#include <tessera/replay/recording.hpp>

#include "tune_composition.hpp"

namespace replay::tune {

/// What came of one replay.
struct outcome {
  std::size_t peak_reserved = 0;  ///< bytes
  std::uint64_t device_ns = 0;    ///< of the simulated device's clock
  std::uint64_t calls = 0;        ///< of the device, to get and to give back memory
  std::size_t failures = 0;       ///< allocations
  double processor_ns = 0;        ///< that the thread took for each operation
  bool given_up = false;          ///< whether a limit was passed, so that the rest is not known
};

/// Where a replay is given up, as what it would tell is of no use.
struct limits {
  std::size_t reserved = unlimited;             ///< bytes
  std::uint64_t device_ns = ~std::uint64_t{0};  ///< of the simulated device's clock
  double processor_ns = 0;                      ///< for each operation of the program; 0 for no limit
  bool failures = false;                        ///< whether an allocation that fails ends it
};

/// Replays a program on a simulated device of so many bytes, until a limit is passed.
[[nodiscard]] outcome replay_once(const trace::program& program, const composition& c, std::size_t capacity,
                                  const limits& until = {});

/// The least capacity with which a program completes, as `fit` finds it; `unlimited` where 1 EiB is not enough.
[[nodiscard]] std::size_t least_capacity(const trace::program& program, const composition& c);
/// The same to within `step` bytes, where it is at most `most`, and completing means to keep the limits, too; otherwise
/// `unlimited`.
[[nodiscard]] std::size_t least_capacity_up_to(const trace::program& program, const composition& c,
                                               std::size_t most, std::size_t step, limits until);

/// Host time for each operation, in nanoseconds for which the thread had a processor: the lower quartile of repetitions.
struct host_times {
  std::vector<double> each{};   ///< of the compositions, chosen while the program runs
  double pytorch = 0;           ///< of pytorch, chosen in the same way
  double pytorch_compiled = 0;  ///< of pytorch as it is compiled
  double noise = 0;             ///< the share of it within which half of pytorch's repetitions lie

  /// What one would take if it were compiled, by what pytorch takes both ways.
  [[nodiscard]] double as_compiled(double chosen_when_run) const noexcept {
    return pytorch > 0 ? chosen_when_run / pytorch * pytorch_compiled : 0;
  }
};

/// Measures compositions and pytorch in turn, again and again, on one thread.
[[nodiscard]] host_times measure(const trace::program& program, const std::vector<composition>& some,
                                 std::size_t capacity, std::size_t repetitions);

/// A composition and what it costs on a program.
struct candidate {
  composition made{};
  std::string name{};      ///< of the shipped recipe that it is, or empty
  std::size_t memory = 0;  ///< bytes: the most that was reserved, or with a capacity, the least that suffices
  std::uint64_t device_ns = 0;  ///< of the device's time; where it does not complete, with `memory` bytes
  std::uint64_t calls = 0;      ///< of the device; likewise
  double host_share = 1;        ///< of the processor time that pytorch takes; rough, as others run beside it
  bool completes = true;        ///< with the capacity; and it was not given up as far behind the others
  bool is_exact = false;        ///< it was looked at to the end
  bool asks_more = false;       ///< of the program, than pytorch does
  bool was_left = false;        ///< what is around it was tried, too

  [[nodiscard]] bool may_win() const noexcept { return completes && !asks_more; }
};

/// What a search goes by.
struct search_options {
  scene known;
  std::size_t capacity = 0;  ///< bytes of the device
  std::size_t most = 0;      ///< compositions to try, about
  double most_host = 2.5;    ///< times pytorch's processor time that may be taken, roughly
  std::function<void(std::size_t tried, std::size_t least)> progress{};
};

/// Tries compositions on a program, on all cores: shipped recipes, then what lies around the best of them, one policy
/// changed at a time, then around the best of all.
///
/// Where nothing that caches completes with the capacity, it goes by the least capacity that each needs, until one does.
/// What it finds depends on the machine only where host time is near its limit. What reserves a quarter more than pytorch
/// is given up, and so is what takes far more time than is worth it.
class search {
 public:
  /// Tries the shipped recipes, pytorch first.
  search(const trace::program& program, search_options chosen,
         const std::vector<std::pair<std::string, composition>>& shipped);

  /// Goes on until nothing is left to try, or as many were tried as may be.
  void run();
  /// What a composition costs, to the end, however bad it is; with a capacity, to the byte.
  candidate look_at(const composition& c);

  [[nodiscard]] const std::vector<candidate>& tried() const noexcept { return tried_; }
  [[nodiscard]] const candidate& pytorch() const noexcept { return tried_.front(); }
  /// The shipped recipe that needs least memory, but for the one that caches nothing: of those that complete, or where
  /// none does, of all; null where all ask more of the program.
  [[nodiscard]] const candidate* best_shipped() const noexcept;
  /// The device's time that less memory is worth: a two-hundredth of what asking for each block takes, or where it is
  /// more, twice what pytorch takes if it completes.
  [[nodiscard]] std::uint64_t device_limit_ns() const noexcept;

 private:
  void try_all(const std::vector<composition>& some);
  [[nodiscard]] candidate tried_out(const composition& c, bool to_the_end) const;
  [[nodiscard]] std::uint64_t asking_ns() const noexcept;
  [[nodiscard]] bool is_cheap(const candidate& c) const noexcept;
  [[nodiscard]] std::vector<std::size_t> worth_leaving() const;
  void note_host_time();

  const trace::program& program_;
  search_options chosen_;
  std::vector<candidate> tried_;
  std::map<std::string, std::size_t> place_;  // by the texts of the policies
  std::uint64_t device_reach_ns_ = 0;         // beyond which nothing is left
  std::size_t memory_reach_ = 0;              // that is left though it does not complete
  bool any_is_cheap_ = false;
  bool any_completes_cheaply_ = false;
  double pytorch_ns_ = 0;  // of processor time for an operation, lately
};

}  // namespace replay::tune
