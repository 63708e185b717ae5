// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/replay/recording.hpp>

#include "tune_composition.hpp"
#include "tune_grid.hpp"

namespace replay::tune {

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
