// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/replay/read.hpp>
#include <tessera/replay/recording.hpp>
#include "recorded_replay.hpp"
#include "verification.hpp"

namespace tessera::trace {

/// Replays one device's history from its start through the pytorch recipe under the recorded settings, and where they
/// differ, through pytorch_2_14. Frees take
/// effect where they completed, and memory goes back where it went back on the device, which knows its own limits.
///
///     #include <tessera/replay/read.hpp>
///     #include "read_snapshot.hpp"
///     using namespace tessera::trace;
///     const auto bytes = read_file("snapshot.pickle");
///     const auto read = read_snapshot(std::get<std::string>(bytes), "snapshot.pickle");
///     const auto found = verifier(std::get<snapshot>(read), 0).run();  // of device 0
///     if (const auto* told = std::get_if<verification>(&found))
///       std::printf("%zu of %zu at the same address\n", told->same_address, told->allocations);
class verifier {
 public:
  verifier(const snapshot& source, std::size_t device) : source_(source), device_(device) {}

  ///   Returns:  an error where the history contradicts itself, or where another allocator decided
  [[nodiscard]] read_result<verification> run() const {
    config::pytorch_settings settings = settings_of(source_);
    if (settings.async_backend)
      return input_error{
          source_.name + ": device " + std::to_string(device_),
          "was recorded under backend:cudaMallocAsync, where the driver decides and not PyTorch"};
    read_result<verification> found = closest(settings);
    const std::string& recipe = source_.configured.recipe;
    if (recipe.empty() || recipe.starts_with("tessera::pytorch") || agree(found)) return found;
    return input_error{source_.name + ": device " + std::to_string(device_),
                       "was captured from " + shown(recipe) + ", which decides here and not PyTorch"};
  }

 private:
  static constexpr int most_tries = 16;

  /// What the recipes of one release make of it: of the one whose first difference comes last.
  [[nodiscard]] read_result<verification> closest(const config::pytorch_settings& settings) const {
    read_result<verification> best = under<pytorch_native, pytorch_expandable>(settings);
    if (agree(best)) return best;
    read_result<verification> other = under<pytorch_2_14_native, pytorch_2_14_expandable>(settings);
    auto* const made = std::get_if<verification>(&other);
    if (made == nullptr) return best;
    made->rules = "2.14";
    const auto* const before = std::get_if<verification>(&best);
    const bool is_closer =
        before == nullptr || made->agrees() || made->first_difference() > before->first_difference();
    return is_closer ? other : best;
  }

  [[nodiscard]] static bool agree(const read_result<verification>& found) noexcept {
    const auto* const made = std::get_if<verification>(&found);
    return made != nullptr && made->agrees();
  }
  /// What the recipes of one release make of it.
  template <typename Segments, typename Ranges>
  [[nodiscard]] read_result<verification> under(const config::pytorch_settings& settings) const {
    using rules = recorded_replay<Segments, Ranges>;
    // How large the device's ranges are is not recorded. Where that decided, the decision bounds it.
    read_result<verification> best = rules(source_, device_, settings, unlimited).run();
    std::size_t limit = limit_in(best, unlimited);
    for (int tries = 0; limit != 0 && tries < most_tries; ++tries) {
      read_result<verification> next = rules(source_, device_, settings, limit).run();
      limit = limit_in(next, limit);
      const auto* const made = std::get_if<verification>(&next);
      if (made != nullptr && made->first_difference() > std::get<verification>(best).first_difference())
        best = std::move(next);
    }
    return best;
  }

  /// The size of ranges to try next, or 0.
  [[nodiscard]] static std::size_t limit_in(const read_result<verification>& found,
                                            std::size_t tried) noexcept {
    const auto* const made = std::get_if<verification>(&found);
    return made != nullptr && !made->agrees() && made->range_limit < tried ? made->range_limit : 0;
  }

  const snapshot& source_;
  std::size_t device_;
};

}  // namespace tessera::trace
