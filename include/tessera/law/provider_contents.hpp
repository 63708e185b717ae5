// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_mapping.hpp>
#include <tessera/law/provider_streams.hpp>

/// The laws of what memory contains: accesses by the host, copies, and registered memory.

namespace tessera::inline v0_1::law::detail {

/// Reads and writes memory as the host.
struct host_access {
  static constexpr rule keeps_segment = rules::host_writes_change_one_segment;
  static constexpr rule keeps_mapping = rules::host_writes_change_one_mapping;
  static bool write(void* at, unsigned char value) noexcept {
    *static_cast<volatile unsigned char*>(at) = value;
    return true;
  }
  static bool read(void* at, unsigned char& value) noexcept {
    value = *static_cast<volatile unsigned char*>(at);
    return true;
  }
  static bool is_there(const void* p, std::size_t bytes) noexcept {
    const auto* const begin = static_cast<const unsigned char*>(p);
    return tessera::detail::host_can_read(begin) && tessera::detail::host_can_read(begin + bytes / 2) &&
           tessera::detail::host_can_read(begin + bytes - 1);
  }
};

/// Reads and writes memory through copies.
template <provider::copying_provider D>
struct copy_access {
  static constexpr rule keeps_segment = rules::copies_change_one_segment;
  static constexpr rule keeps_mapping = rules::copies_change_one_mapping;
  bool write(void* at, unsigned char value) const noexcept {
    return device.copy_to_device(at, &value, 1, {}) && tessera::detail::finish_work(device, {});
  }
  bool read(void* at, unsigned char& value) const noexcept {
    return device.copy_to_host(&value, at, 1, {}) && tessera::detail::finish_work(device, {});
  }
  static bool is_there(const void*, std::size_t) noexcept { return true; }

  D& device;
};

/// Marks the first, middle and last byte of memory with a number.
template <typename Access>
class trial_contents {
 public:
  trial_contents(const Access& access, void* p, std::size_t bytes, unsigned char number) noexcept
      : access_(access), begin_(static_cast<unsigned char*>(p)), bytes_(bytes), number_(number) {}
  [[nodiscard]] bool is_there() const noexcept { return access_.is_there(begin_, bytes_); }
  [[nodiscard]] bool write() const noexcept {
    return access_.write(begin_, number_) && access_.write(begin_ + bytes_ / 2, number_) &&
           access_.write(begin_ + bytes_ - 1, number_);
  }
  /// Whether the memory has the number, also in the first byte, which says more than a wrong one.
  [[nodiscard]] bool is_kept() const noexcept {
    unsigned char value = 0;
    for (const std::size_t at : {std::size_t{0}, bytes_ / 2, bytes_ - 1})
      if (!access_.read(begin_ + at, value) || value != number_) return false;
    return true;
  }

 private:
  const Access& access_;
  unsigned char* begin_;
  std::size_t bytes_;
  unsigned char number_;
};

/// Writes to two segments and reads them back.
template <provider::device_provider D, typename Access>
void segment_contents(provider_check_result& found, D& device, const Access& access) {
  const std::size_t bytes = 4 * device.granularity();
  const trial_segment one = acquire(device, bytes), two = acquire(device, bytes);
  if (one.begin != 0 && two.begin != 0) {
    const trial_contents first(access, one.at(), bytes, 1), second(access, two.at(), bytes, 2);
    found.must_hold(first.is_there() && second.is_there(), rules::host_reads_segments, one, two);
    const bool is_kept = found && first.write() && second.write() && first.is_kept() && second.is_kept();
    found.must_hold(is_kept, Access::keeps_segment, one, two);
  }
  for (const trial_segment& each : {one, two}) {
    if (each.begin != 0) (void)device.release(each.at(), bytes);
  }
}

/// Writes to two mappings and reads them back, also after one mapping moved, and after its memory was
/// destroyed.
template <provider::virtual_memory_provider D, typename Access>
void mapping_contents(provider_check_result& found, D& device, const Access& access) {
  constexpr auto is_there = rules::host_reads_mappings;
  const std::size_t step = device.page_size(page_kind::normal);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> one(device), two(device), three(device);
  if (range.place().begin == 0 || !one.create(step, page_kind::normal) ||
      !two.create(step, page_kind::normal))
    return;
  const trial_contents first(access, range.at(0), step, 1), second(access, range.at(step), step, 2);
  const trial_contents moved(access, range.at(2 * step), step, 1), third(access, range.at(3 * step), step, 3);
  const auto broken = [&](rule law, std::size_t page) {
    return found.fail(law, segment_at(range.at(page * step), step));
  };
  if (!one.map(range.at(0), step) || !two.map(range.at(step), step)) return broken(rules::map_succeeds, 0);
  if (!one.grant() || !two.grant()) return broken(rules::grant_succeeds, 0);
  if (!first.is_there() || !second.is_there()) return broken(is_there, 0);
  if (!first.write() || !second.write() || !first.is_kept() || !second.is_kept())
    return broken(Access::keeps_mapping, 0);
  if (!one.unmap() || !one.map(range.at(2 * step), step) || !one.grant())
    return broken(rules::unmapped_memory_can_be_mapped, 2);
  if (!moved.is_there()) return broken(is_there, 2);
  if (!moved.is_kept() || !second.is_kept()) return broken(rules::moved_memory_keeps_contents, 2);
  if (!one.destroy()) return broken(rules::destroyed_memory_stays_mapped, 2);
  if (!three.create(step, page_kind::normal) || !three.map(range.at(3 * step), step) || !three.grant())
    return;
  if (!third.is_there()) return broken(is_there, 3);
  if (!third.write() || !moved.is_there() || !moved.is_kept() || !third.is_kept())
    return broken(rules::destroyed_memory_keeps_contents, 2);
}

/// Writes to memory and reads it back.
template <provider::device_provider D, typename Access>
void contents(provider_check_result& found, D& device, const Access& access) {
  segment_contents(found, device, access);
  if constexpr (provider::virtual_memory_provider<D>) {
    if (found) mapping_contents(found, device, access);
  }
}

/// Host memory with a pattern; it begins at a page.
class trial_buffer {
 public:
  static constexpr std::size_t page = 64_KiB;  ///< a multiple of every host's page

  explicit trial_buffer(std::size_t bytes) noexcept
      : bytes_(bytes), memory_(::operator new(bytes, aligned, std::nothrow)) {
    if (memory_ != nullptr) clear();
  }
  [[nodiscard]] unsigned char* data() const noexcept { return static_cast<unsigned char*>(memory_.get()); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  void fill(unsigned char first) const noexcept {
    for (std::size_t i = 0; i < bytes_; ++i) data()[i] = at(first, i);
  }
  void clear() const noexcept { std::memset(data(), 0, bytes_); }
  /// The first index in [from, to) without the pattern, or `to`.
  [[nodiscard]] std::size_t first_wrong(unsigned char first, std::size_t from,
                                        std::size_t to) const noexcept {
    while (from < to && data()[from] == at(first, from)) ++from;
    return from;
  }

 private:
  static constexpr std::align_val_t aligned{page};
  struct deleter {
    void operator()(void* p) const noexcept { ::operator delete(p, aligned); }
  };
  /// Differs from its neighbours, also from those of a page apart, and is never 0.
  [[nodiscard]] static unsigned char at(unsigned char first, std::size_t i) noexcept {
    return static_cast<unsigned char>((first + i + i / 251) % 255 + 1);
  }
  std::size_t bytes_;
  std::unique_ptr<void, deleter> memory_;
};

/// Checks a registering_provider with 128 KiB of host memory.
template <provider::registering_provider D>
void registering(provider_check_result& found, D& device) {
  constexpr std::size_t page = trial_buffer::page;
  const trial_buffer host(2 * page);
  unsigned char* const p = host.data();
  if (p == nullptr) return;
  const auto must_hold = [&](bool holds, rule law, std::size_t at, std::size_t bytes) {
    found.must_hold(holds, law, segment_at(p + at, bytes));
  };
  for (int round = 0; round < 64 && found; ++round) {
    const bool registered = device.register_memory(p, 2 * page);
    const rule gives = round == 0 ? rules::register_succeeds : rules::unregistered_memory_can_be_registered;
    must_hold(registered, gives, 0, 2 * page);
    if (!registered) break;
    must_hold(!device.register_memory(p, 2 * page) && !device.register_memory(p + page, page),
              rules::register_refuses_registered, 0, 2 * page);
    must_hold(!device.unregister_memory(p + page), rules::unregister_refuses_inside, page, 2 * page);
    must_hold(device.unregister_memory(p), rules::unregister_succeeds, 0, 2 * page);
    must_hold(!device.unregister_memory(p), rules::unregister_refuses_others, 0, 2 * page);
  }
  if (found && device.register_memory(p + min_alignment, page)) {
    found.fail(rules::register_refuses_inside_page, segment_at(p + min_alignment, page));
    (void)device.unregister_memory(p + min_alignment);
  }
  if (found && device.register_memory(p, page)) {
    must_hold(device.register_memory(p + page, page), rules::register_succeeds, page, page);
    must_hold(device.unregister_memory(p), rules::unregister_succeeds, 0, page);
    if (found) must_hold(device.unregister_memory(p + page), rules::unregister_changes_one, page, page);
  }
}

/// Checks a copying_provider with copies of up to 64 KiB to the device and back, on a stream.
template <provider::copying_provider D>
void copying(provider_check_result& found, D& device, stream_id stream = {}) {
  const std::size_t bytes = align_up(64_KiB, device.granularity());
  const trial_buffer host(bytes);
  void* const p = host.data() != nullptr ? device.acquire(bytes) : nullptr;
  if (p == nullptr) return;
  auto* const memory = static_cast<std::byte*>(p);
  const auto must_hold = [&](bool holds, rule law) {
    found.must_hold(holds, law, "device address", p, "bytes", bytes, stream);
  };
  const auto finish = [&] {
    trial_event<D> mark(device);
    const bool done = mark.record(stream) && mark.wait();
    must_hold(done, rules::event_is_ready_after_copy);
  };
  const auto compare = [&](unsigned char first, std::size_t from, std::size_t to) {
    if constexpr (tessera::detail::has_contents<D>) {
      const std::size_t wrong = host.first_wrong(first, from, to);
      found.must_hold(wrong == to, rules::copies_keep_bytes, "device address", p, "bytes", bytes,
                      "first wrong byte", wrong);
    }
  };
  // Copies a part to the device, and all of it back.
  const auto copy_there_and_back = [&](std::size_t offset, std::size_t size) {
    must_hold(device.copy_to_device(memory + offset, host.data() + offset, size, stream),
              rules::copy_to_device_succeeds);
    finish();
    host.clear();
    must_hold(device.copy_to_host(host.data(), p, bytes, stream), rules::copy_to_host_succeeds);
    finish();
  };
  for (const unsigned char first : {std::uint8_t{0}, std::uint8_t{100}}) {
    host.fill(first);
    copy_there_and_back(0, bytes);
    compare(first, 0, bytes);
  }
  // A part in the middle; the rest stays.
  const std::size_t quarter = bytes / 4;
  host.fill(7);
  copy_there_and_back(quarter, quarter);
  compare(100, 0, quarter);
  compare(7, quarter, 2 * quarter);
  compare(100, 2 * quarter, bytes);
  if constexpr (tessera::detail::stream_listing_provider<D> && !tessera::detail::trusts_handles<D>) {
    const stream_id nowhere{0xdead};
    const bool refuses =
        device.has_stream(nowhere) || (!device.copy_to_host(host.data(), p, bytes, nowhere) &&
                                       !device.copy_to_device(p, host.data(), bytes, nowhere));
    found.must_hold(refuses, rules::copies_refuse_missing_stream, nowhere, "bytes", bytes);
  }
  (void)tessera::detail::finish_work(device, stream);  // of a copy that should have been refused
  require_release(found, device, segment_at(p, bytes));
  found.must_hold(!device.copy_to_host(host.data(), nullptr, bytes, stream) &&
                      !device.copy_to_device(nullptr, host.data(), bytes, stream),
                  rules::copies_refuse_missing_memory, segment_at(nullptr, bytes));
}

/// Copies through host memory that is registered.
template <provider::copying_provider D>
  requires provider::registering_provider<D>
void registered_copies(provider_check_result& found, D& device) {
  const std::size_t bytes = align_up(64_KiB, device.granularity());
  const trial_buffer host(bytes);
  void* const p = host.data() != nullptr ? device.acquire(bytes) : nullptr;
  if (p != nullptr && device.register_memory(host.data(), bytes)) {
    const auto must_hold = [&](bool holds, std::size_t wrong) {
      found.must_hold(holds, rules::copies_use_registered_memory, "host address", host.data(),
                      "device address", p, "first wrong byte", wrong);
    };
    host.fill(0);
    must_hold(device.copy_to_device(p, host.data(), bytes, {}) && tessera::detail::finish_work(device, {}),
              0);
    if constexpr (tessera::detail::has_contents<D>) host.clear();
    must_hold(device.copy_to_host(host.data(), p, bytes, {}) && tessera::detail::finish_work(device, {}), 0);
    const std::size_t wrong = host.first_wrong(0, 0, bytes);
    must_hold(wrong == bytes, wrong);
    found.must_hold(device.unregister_memory(host.data()), rules::unregister_succeeds,
                    segment_at(host.data(), bytes));
  }
  if (p != nullptr) (void)device.release(p, bytes);
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Checks that the host can read and write the provider's memory. law::provider checks it, too. It uses four
/// times the granularity, and three pages of virtual memory. Linux.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::provider::host_pinned device({.pin = tessera::provider::host_pinned::pinning::never});
///     if (const auto found = tessera::law::host_visible(device); !found) std::puts(found.message());
template <provider::device_provider D>
  requires tessera::detail::is_host_visible<D>
[[nodiscard]] provider_check_result host_visible(D& device) {
  return detail::result_of([&](auto& found) { detail::contents(found, device, detail::host_access{}); });
}

}  // namespace tessera::inline v0_1::law
