// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace conformance {

/// The blocks of a user. They never overlap.
class ownership {
 public:
  [[nodiscard]] bool claim(void* p, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    const auto above = held_.upper_bound(begin);
    if (above != held_.end() && above->first < begin + bytes) return false;
    if (above != held_.begin() && std::prev(above)->first + std::prev(above)->second > begin) return false;
    held_.emplace_hint(above, begin, bytes);
    bytes_ += bytes;
    return true;
  }
  void drop(void* p) {
    const auto found = held_.find(reinterpret_cast<std::uintptr_t>(p));
    bytes_ -= found->second;
    held_.erase(found);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t blocks() const { return held_.size(); }

 private:
  std::map<std::uintptr_t, std::size_t> held_;
  std::size_t bytes_ = 0;
};

}  // namespace conformance
