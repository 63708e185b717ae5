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

#include "tune_search.hpp"

namespace replay::tune {

/// Differences that count; smaller ones are no reason to choose, or to differ from pytorch.
inline constexpr double memory_counts = 0.005;
inline constexpr double device_counts = 0.05;

[[nodiscard]] inline double number(std::uint64_t n) noexcept { return static_cast<double>(n); }
[[nodiscard]] inline bool is_within(double more, double less, double share) noexcept {
  return more <= less * (1 + share);
}

/// In how many axes a composition differs from pytorch.
[[nodiscard]] std::size_t deviations(const composition& c);

/// Of compositions and their host times the place of the one that needs least memory, and of those, takes least of the
/// device's time, among those that are as quick as the quickest but for a share that does not count.
[[nodiscard]] std::size_t place_of_quickest(const std::vector<const candidate*>& some,
                                            const std::vector<double>& host_ns, double noise);

/// Why the winner is it.
enum class reason {
  least_memory,  ///< within limits of device and host time; of about as little, it takes least of the device's time
  least_as_shipped,  ///< a shipped recipe needs less than that beyond the limits: it takes least of the device's time for
                     ///< as little
  least_device_time,  ///< nothing keeps the limits: of what completes, within that of host time if what is tried of it keeps that
  quickest,  ///< nothing keeps the limit of host time that must be kept
  nearest    ///< nothing completes: it needs least
};

/// Finds the winner among what was tried.
class judge {
 public:
  judge(const trace::program& program, std::size_t capacity, search& tried, double host_limit_ns,
        bool must_keep_it)
      : program_(program),
        capacity_(capacity),
        tried_(tried),
        host_limit_ns_(host_limit_ns),
        must_keep_host_limit_(must_keep_it) {}

  /// Chooses; simpler is better: each policy is as in pytorch, or else as in a shipped recipe, where that costs nothing
  /// that counts.
  [[nodiscard]] candidate winner(const std::vector<std::pair<std::string, composition>>& shipped);
  /// Takes back what a few repetitions said of a composition's host time, as compiled.
  void correct(const composition& c, double host_ns);
  [[nodiscard]] reason why() const noexcept { return why_; }
  /// The shipped recipe that needs least memory, passthrough aside: within the limit of host time that must be kept, or
  /// else of those that complete, or else of all.
  [[nodiscard]] const candidate& best_shipped() const noexcept { return shipped_; }
  /// Whether the winner takes no more host time than it must.
  [[nodiscard]] bool keeps_host_limit() const noexcept { return why_ != reason::quickest; }

 private:
  using list = std::vector<const candidate*>;
  [[nodiscard]] std::vector<double> compiled_ns(const list& some);
  [[nodiscard]] const candidate* first_in_time(const list& order, double limit_ns);
  void find_best_shipped();
  [[nodiscard]] const candidate* least_within_limits();
  [[nodiscard]] const candidate* as_little_as_shipped();
  [[nodiscard]] candidate choose();
  [[nodiscard]] candidate without_limits();
  [[nodiscard]] candidate quickest_of(list some);

  const trace::program& program_;
  std::size_t capacity_;
  search& tried_;
  double host_limit_ns_;  // as compiled
  bool must_keep_host_limit_;
  bool has_shipped_ = false;
  reason why_ = reason::least_memory;
  double noise_ = 0;  // of the host times that were measured last
  std::map<std::string, double> corrected_ns_;
  std::size_t most_memory_ = unlimited;  // that is about as little as the winner's
  candidate shipped_;
};

/// What is asked.
struct question {
  std::size_t capacity = 0;  ///< bytes of the device
  bool has_capacity = false;
  double max_ns = 0;  ///< host nanoseconds for each operation; 0 where none were named
  std::vector<std::pair<std::string, composition>> shipped{};  ///< the recipes that there are, pytorch first
  std::function<void(const std::string&)> progress{};
};

/// A candidate and its host time.
struct row {
  candidate what;
  double host_ns = 0;  ///< for each operation, chosen while the program runs
};

/// What a policy of the winner buys: the winner with that axis as in pytorch.
struct knob {
  std::size_t axis = 0;
  row without;
};

/// What is advised.
struct advice {
  row pytorch;
  row shipped;  ///< the shipped recipe that needs least memory; within --max-ns, or where none is, beyond it
  row winner;
  bool beats_pytorch = false;
  bool keeps_max_ns = true;
  reason why = reason::least_memory;  ///< the winner is it
  std::vector<row> front;             ///< the least memory first
  std::vector<knob> knobs;            ///< of the axes in which the winner differs
  std::vector<std::string> left_out;  ///< shipped recipes that ask more of the program
  std::uint64_t device_limit_ns = 0;
  double host_limit_ns = 0;   ///< as compiled
  double compiled_share = 1;  ///< of the host times, which is what they would be if compiled
  double noise = 0;           ///< of host times, as a share
  /// What is reserved over what lives where every size is 3 % larger, for which nothing was tuned; 0 with a capacity.
  double winner_elsewhere = 0;
  double pytorch_elsewhere = 0;
  std::size_t tried = 0;  ///< compositions
  bool several_streams = false;
};

[[nodiscard]] advice advise(const trace::program& program, const question& asked);

/// The rows of which none is surpassed: none takes as little of each, and less of one by so much that it counts.
[[nodiscard]] std::vector<row> front_of(std::vector<row> rows, double noise);

/// Whether a row takes less than another of something by so much that it counts, memory first, then device time, then
/// host time, and about as much of what comes before that.
[[nodiscard]] bool beats(const row& a, const row& b, double noise);

/// What is told about one trace.
struct report {
  const std::string& trace;
  const trace::program& program;
  const question& asked;
  const advice& given;
};

void print(const report& r);
void print_json(const report& r);

}  // namespace replay::tune
