// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

#include "tune_search.hpp"

namespace replay::tune {

/// Relative differences that matter; smaller ones do not justify a choice.
inline constexpr double memory_counts = 0.005;
inline constexpr double device_counts = 0.05;

[[nodiscard]] inline double number(std::uint64_t n) noexcept { return static_cast<double>(n); }
[[nodiscard]] inline bool is_within(double more, double less, double share) noexcept {
  return more <= less * (1 + share);
}

/// The number of axes in which a composition differs from pytorch.
[[nodiscard]] std::size_t deviations(const composition& c);

/// The index of the best among the fastest compositions: least memory, then least device time. Times within
/// the noise count as equal.
[[nodiscard]] std::size_t place_of_quickest(const std::vector<const candidate*>& some,
                                            const std::vector<double>& host_ns, double noise);

/// The rule that selected the winner.
enum class reason {
  least_memory,  ///< least memory within the limits of device and host time; among near equals, least device time
  least_as_shipped,  ///< beyond the limits, a shipped recipe needs less: least device time with no more memory than it
                     ///< as little
  least_device_time,  ///< no candidate keeps the limits: least device time, within the host limit if possible
  quickest,           ///< no candidate keeps the mandatory host limit: least host time
  nearest             ///< no candidate completes: least memory
};

/// Selects the winner among the candidates of a search.
class winner_selector {
 public:
  winner_selector(const trace::program& program, std::size_t capacity, search& tried, double host_limit_ns,
                  bool must_keep_it)
      : program_(program),
        capacity_(capacity),
        tried_(tried),
        host_limit_ns_(host_limit_ns),
        must_keep_host_limit_(must_keep_it) {}

  /// Selects the winner, and simplifies it: each policy becomes that of pytorch, or of a shipped recipe, if
  /// the cost does not matter.
  [[nodiscard]] candidate winner(const std::vector<std::pair<std::string, composition>>& shipped);
  /// Corrects the host time of a composition, as compiled.
  void correct(const composition& c, double host_ns);
  [[nodiscard]] reason why() const noexcept { return why_; }
  /// The shipped recipe that needs least memory, without passthrough: within the mandatory host limit, else
  /// among those that complete, else among all.
  [[nodiscard]] const candidate& best_shipped() const noexcept { return shipped_; }
  /// Whether the winner keeps the mandatory host limit.
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
  double noise_ = 0;  // of the last measurement
  std::map<std::string, double> corrected_ns_;
  std::size_t max_memory_ = unlimited;  // the limit within which memory counts as equal
  candidate shipped_;
};

/// The request to `advise`.
struct advice_request {
  std::size_t capacity = 0;  ///< bytes of the device
  bool has_capacity = false;
  double max_ns = 0;  ///< host nanoseconds per operation; 0 for no limit
  std::vector<std::pair<std::string, composition>> shipped{};  ///< the recipes with a name, pytorch first
  std::vector<std::string> own_names{};                        ///< those of `shipped` that are the user's own
  std::optional<std::pair<std::string, composition>>
      recorded{};      ///< the recipe of the recorded run, if it is known
  own_policies own{};  ///< policies to try beside the shipped ones
  std::function<void(const std::string&)> progress{};
};

/// A candidate and its host time.
struct timed_candidate {
  candidate what;
  double host_ns = 0;  ///< per operation, with policies chosen at run time
};

/// The winner with one axis as in pytorch, which shows what that policy gains.
struct knob {
  std::size_t axis = 0;
  timed_candidate without;
};

/// The result of `advise`.
struct advice {
  timed_candidate pytorch;
  std::optional<timed_candidate> recorded;  ///< as the run was recorded
  timed_candidate shipped;  ///< the shipped recipe that needs least memory, within --max-ns if possible
  timed_candidate winner;
  bool beats_pytorch = false;
  bool keeps_max_ns = true;
  reason why = reason::least_memory;   ///< selected the winner
  std::vector<timed_candidate> front;  ///< sorted by memory
  std::vector<knob> knobs;             ///< one for each axis in which the winner differs
  std::vector<std::string> left_out;   ///< shipped recipes that need changes of the program
  std::uint64_t device_limit_ns = 0;
  double host_limit_ns = 0;   ///< as compiled
  double compiled_share = 1;  ///< the factor from measured host times to compiled ones
  double noise = 0;           ///< of host times, relative
  /// Peak reserved / peak live with all sizes 3 % larger, for which nothing was tuned; 0 with a capacity.
  double winner_elsewhere = 0;
  double pytorch_elsewhere = 0;
  std::size_t tried = 0;  ///< compositions
  bool several_streams = false;
};

[[nodiscard]] advice advise(const trace::program& program, const advice_request& asked);

/// The candidates that no other surpasses: none is as good in everything and better in something by a
/// difference that matters.
[[nodiscard]] std::vector<timed_candidate> front_of(std::vector<timed_candidate> rows, double noise);

/// Whether a candidate is better by a difference that matters: in memory, then device time, then host time.
[[nodiscard]] bool beats(const timed_candidate& a, const timed_candidate& b, double noise);

/// The data of a printed report.
/// A replay with a plan of the program, and pytorch for what the plan does not serve.
struct planned_run {
  std::size_t plan_bytes = 0;
  std::size_t peak_reserved = 0;  // bytes
  std::uintmax_t calls = 0;       // of the device
  std::uintmax_t unplanned = 0;   // requests
  std::size_t failures = 0;
};

struct report {
  const std::string& trace;
  const trace::program& program;
  const advice_request& asked;
  const advice& given;
  const std::optional<planned_run>& planned;  // nothing if no request can be planned
  std::string settings{};                     // a member of the JSON result; may be empty
};

void print(const report& r);
void print_json(const report& r);

}  // namespace replay::tune
