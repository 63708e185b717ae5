// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// How a pool gets memory where nothing cached fits.
enum class growth_way : unsigned char {
  segments,  ///< in pieces that come and go whole
  in_place,  ///< in pages that are mapped into ranges of addresses, where a range can grow
  stitching  ///< the same, and idle pages of any pool and stream move to where they are wanted
};

}  // namespace tessera
