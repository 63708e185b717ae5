// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tune_composition.hpp"

namespace replay::tune {

/// What is known of a program before it is tuned for.
struct scene {
  std::size_t peak_live = 0;     ///< bytes
  bool several_streams = false;  ///< whether more than one allocates or is recorded
  bool has_capacity = false;     ///< whether the device can become full
};

/// A composition that decides the same with policies of pytorch where others do as they do: what does not matter without
/// a capacity, on one stream, or in a replay, which waits for no stream.
[[nodiscard]] composition in_plain_words(composition c, const scene& of);

/// The compositions in whose plain words one policy is another than in those of `from`, and `from` itself.
[[nodiscard]] std::vector<composition> neighbours(const composition& from, const scene& of);

/// Whether the program must do more than with pytorch for it to be correct: record all streams, or use one alone.
[[nodiscard]] bool asks_more_of_the_program(const composition& c, const scene& of);

}  // namespace replay::tune
