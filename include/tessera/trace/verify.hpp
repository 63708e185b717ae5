// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include <tessera/config/pytorch.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/recorded_replay.hpp>
#include <tessera/trace/snapshot.hpp>
#include <tessera/trace/verification.hpp>

namespace tessera::trace {

/// Replays one device's history from its start through the pytorch recipe under the recorded settings. Frees take
/// effect where they completed, and memory goes back where it went back on the device, which knows its own limits.
///
///     #include <tessera/trace/file.hpp>
///     #include <tessera/trace/read_snapshot.hpp>
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
    // How large the device's ranges are is not recorded. Where that decided, the decision bounds it.
    read_result<verification> best = recorded_replay(source_, device_, settings, unlimited).run();
    std::size_t limit = limit_in(best, unlimited);
    for (int tries = 0; limit != 0 && tries < most_tries; ++tries) {
      read_result<verification> next = recorded_replay(source_, device_, settings, limit).run();
      limit = limit_in(next, limit);
      const auto* const made = std::get_if<verification>(&next);
      if (made != nullptr && made->first_difference() > std::get<verification>(best).first_difference())
        best = std::move(next);
    }
    return best;
  }

 private:
  static constexpr int most_tries = 16;

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
