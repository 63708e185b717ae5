// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/law/law.hpp>
#include <tessera/law/provider.hpp>
#include <tessera/provider/host_can_read.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

namespace detail {
/// Marks the first, middle and last byte of memory with a number.
class trial_contents {
 public:
  trial_contents(void* p, std::size_t bytes, unsigned char number) noexcept
      : begin_(static_cast<unsigned char*>(p)), bytes_(bytes), number_(number) {}
  [[nodiscard]] bool is_there() const noexcept {
    return tessera::detail::host_can_read(begin_) && tessera::detail::host_can_read(begin_ + bytes_ / 2) &&
           tessera::detail::host_can_read(begin_ + bytes_ - 1);
  }
  void write() const noexcept {
    for (const std::size_t at : {std::size_t{0}, bytes_ / 2, bytes_ - 1}) byte(at) = number_;
  }
  [[nodiscard]] bool is_kept() const noexcept {
    return byte(0) == number_ && byte(bytes_ / 2) == number_ && byte(bytes_ - 1) == number_;
  }

 private:
  [[nodiscard]] volatile unsigned char& byte(std::size_t at) const noexcept { return begin_[at]; }
  unsigned char* begin_;
  std::size_t bytes_;
  unsigned char number_;
};

/// Writes to two segments and reads them back.
template <device_provider D>
[[nodiscard]] verdict visible_segments(D& device) {
  const std::size_t bytes = 4 * device.granularity();
  void* const one = device.acquire(bytes);
  void* const two = device.acquire(bytes);
  verdict found;
  if (one != nullptr && two != nullptr) {
    const trial_contents first(one, bytes, 1), second(two, bytes, 2);
    found.require(first.is_there() && second.is_there(), "the host can read a segment from end to end");
    if (found) {
      first.write();
      second.write();
      found.require(first.is_kept() && second.is_kept(), "a host write changes one segment, which keeps it");
    }
  }
  for (void* const p : {one, two}) {
    if (p != nullptr) (void)device.release(p, bytes);
  }
  return found;
}

/// Writes to two mappings and reads them back, also after one mapping moved.
template <virtual_memory_provider D>
[[nodiscard]] verdict visible_mappings(D& device) {
  constexpr auto is_there = "the host can read a mapping from end to end";
  const std::size_t step = device.page_size(page_kind::normal);
  trial_range<D> range(device, 3 * step, step);
  trial_memory<D> one(device), two(device);
  if (range.number() == 0 || !one.create(step, page_kind::normal) || !two.create(step, page_kind::normal))
    return {};
  const trial_contents first(range.at(0), step, 1), second(range.at(step), step, 2);
  const trial_contents moved(range.at(2 * step), step, 1);
  if (!one.map(range.at(0), step) || !two.map(range.at(step), step))
    return {"map succeeds at free addresses of a range"};
  if (!one.grant() || !two.grant()) return {"grant accepts a mapping"};
  if (!first.is_there() || !second.is_there()) return {is_there};
  first.write();
  second.write();
  if (!first.is_kept() || !second.is_kept()) return {"a host write changes one mapping, which keeps it"};
  if (!one.unmap() || !one.map(range.at(2 * step), step) || !one.grant())
    return {"unmapped memory can be mapped elsewhere"};
  if (!moved.is_there()) return {is_there};
  if (!moved.is_kept() || !second.is_kept()) return {"memory keeps its contents when it is mapped elsewhere"};
  return {};
}
}  // namespace detail

/// Checks that the host can read and write the provider's memory. It uses four times the granularity, and two
/// pages of virtual memory. Linux.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::host_pinned device({.pin = tessera::host_pinned::pinning::never});
///     if (const auto found = tessera::law::host_visible(device); !found) std::puts(found.broken);
template <device_provider D>
  requires tessera::detail::is_host_visible<D>
[[nodiscard]] verdict host_visible(D& device) {
  verdict found = detail::visible_segments(device);
  if constexpr (virtual_memory_provider<D>) {
    if (found) found = detail::visible_mappings(device);
  }
  return found;
}

}  // namespace tessera::law
