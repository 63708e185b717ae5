// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_mapping.hpp>
#include <tessera/law/provider_streams.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/host_can_read.hpp>
#include <tessera/provider/provider.hpp>

/// The laws of what memory contains: accesses by the host, copies, and registered memory.

namespace tessera::law::detail {

/// Reads and writes memory as the host.
struct host_access {
  static constexpr rule keeps_segment = "a host write changes one segment, which keeps it"_rule;
  static constexpr rule keeps_mapping = "a host write changes one mapping, which keeps it"_rule;
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
  static constexpr rule keeps_segment = "a copy changes one segment, which keeps it"_rule;
  static constexpr rule keeps_mapping = "a copy changes one mapping, which keeps it"_rule;
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
[[nodiscard]] provider_check_result segment_contents(D& device, const Access& access) {
  const std::size_t bytes = 4 * device.granularity();
  void* const one = device.acquire(bytes);
  void* const two = device.acquire(bytes);
  provider_check_result found;
  if (one != nullptr && two != nullptr) {
    const auto must_hold = [&](bool holds, rule law) {
      found.must_hold(holds, law, "address", one, "other address", two, "bytes", bytes);
    };
    const trial_contents first(access, one, bytes, 1), second(access, two, bytes, 2);
    must_hold(first.is_there() && second.is_there(), "the host can read a segment from end to end"_rule);
    if (found) {
      const bool written = first.write() && second.write();
      must_hold(written && first.is_kept() && second.is_kept(), Access::keeps_segment);
    }
  }
  for (void* const p : {one, two}) {
    if (p != nullptr) (void)device.release(p, bytes);
  }
  return found;
}

/// Writes to two mappings and reads them back, also after one mapping moved, and after its memory was
/// destroyed.
template <provider::virtual_memory_provider D, typename Access>
[[nodiscard]] provider_check_result mapping_contents(D& device, const Access& access) {
  constexpr auto is_there = "the host can read a mapping from end to end"_rule;
  const std::size_t step = device.page_size(page_kind::normal);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> one(device), two(device), three(device);
  if (range.number() == 0 || !one.create(step, page_kind::normal) || !two.create(step, page_kind::normal))
    return {};
  const trial_contents first(access, range.at(0), step, 1), second(access, range.at(step), step, 2);
  const trial_contents moved(access, range.at(2 * step), step, 1), third(access, range.at(3 * step), step, 3);
  const auto broken = [&](rule law, std::size_t page) {
    return broken_rule(law, "address", range.at(page * step), "bytes", step);
  };
  if (!one.map(range.at(0), step) || !two.map(range.at(step), step))
    return broken("map succeeds at free addresses of a range"_rule, 0);
  if (!one.grant() || !two.grant()) return broken("grant accepts a mapping"_rule, 0);
  if (!first.is_there() || !second.is_there()) return broken(is_there, 0);
  if (!first.write() || !second.write() || !first.is_kept() || !second.is_kept())
    return broken(Access::keeps_mapping, 0);
  if (!one.unmap() || !one.map(range.at(2 * step), step) || !one.grant())
    return broken("unmapped memory can be mapped elsewhere"_rule, 2);
  if (!moved.is_there()) return broken(is_there, 2);
  if (!moved.is_kept() || !second.is_kept())
    return broken("memory keeps its contents when it is mapped elsewhere"_rule, 2);
  if (!one.destroy()) return broken("destroyed memory stays mapped until unmap"_rule, 2);
  if (!three.create(step, page_kind::normal) || !three.map(range.at(3 * step), step) || !three.grant())
    return {};
  if (!third.is_there()) return broken(is_there, 3);
  if (!third.write() || !moved.is_there() || !moved.is_kept() || !third.is_kept())
    return broken("destroyed memory keeps its contents until unmap"_rule, 2);
  return {};
}

/// Writes to memory and reads it back.
template <provider::device_provider D, typename Access>
[[nodiscard]] provider_check_result contents(D& device, const Access& access) {
  provider_check_result found = segment_contents(device, access);
  if constexpr (provider::virtual_memory_provider<D>) {
    if (found) found = mapping_contents(device, access);
  }
  return found;
}

/// Checks a registering_provider with 128 KiB of host memory.
template <provider::registering_provider D>
[[nodiscard]] provider_check_result registering(D& device) {
  constexpr std::size_t page = 64_KiB;  // a multiple of every host's page
  constexpr std::align_val_t aligned{page};
  auto* const p = static_cast<std::byte*>(::operator new(2 * page, aligned, std::nothrow));
  if (p == nullptr) return {};
  provider_check_result found;
  const auto must_hold = [&](bool holds, rule law, std::size_t at, std::size_t bytes) {
    const void* const address = p + at;
    found.must_hold(holds, law, "address", address, "bytes", bytes);
  };
  for (int round = 0; round < 64 && found; ++round) {
    const bool registered = device.register_memory(p, 2 * page);
    must_hold(registered,
              round == 0 ? "the user's memory can be registered"_rule
                         : "unregistered memory can be registered again"_rule,
              0, 2 * page);
    if (!registered) break;
    must_hold(!device.register_memory(p, 2 * page) && !device.register_memory(p + page, page),
              "register_memory refuses registered memory"_rule, 0, 2 * page);
    must_hold(!device.unregister_memory(p + page),
              "unregister_memory refuses an address inside registered memory"_rule, page, 2 * page);
    must_hold(device.unregister_memory(p), "unregister_memory accepts registered memory"_rule, 0, 2 * page);
    must_hold(!device.unregister_memory(p), "unregister_memory refuses memory that is not registered"_rule, 0,
              2 * page);
  }
  if (found && device.register_memory(p + min_alignment, page)) {
    must_hold(false, "register_memory refuses an address inside a page"_rule, min_alignment, page);
    (void)device.unregister_memory(p + min_alignment);
  }
  if (found && device.register_memory(p, page)) {
    must_hold(device.register_memory(p + page, page), "the user's memory can be registered"_rule, page, page);
    must_hold(device.unregister_memory(p), "unregister_memory accepts registered memory"_rule, 0, page);
    if (found)
      must_hold(device.unregister_memory(p + page), "unregister_memory changes no other registration"_rule,
                page, page);
  }
  ::operator delete(p, aligned);
  return found;
}

/// Host memory with a pattern.
class trial_buffer {
 public:
  explicit trial_buffer(std::size_t bytes) noexcept
      : bytes_(bytes), memory_(new(std::nothrow) unsigned char[bytes]()) {}
  [[nodiscard]] unsigned char* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  void fill(unsigned char first) const noexcept {
    for (std::size_t i = 0; i < bytes_; ++i) memory_[i] = at(first, i);
  }
  void clear() const noexcept { std::memset(data(), 0, bytes_); }
  /// The first index in [from, to) without the pattern, or `to`.
  [[nodiscard]] std::size_t first_wrong(unsigned char first, std::size_t from,
                                        std::size_t to) const noexcept {
    while (from < to && memory_[from] == at(first, from)) ++from;
    return from;
  }

 private:
  /// Differs from its neighbours, also from those of a page apart, and is never 0.
  [[nodiscard]] static unsigned char at(unsigned char first, std::size_t i) noexcept {
    return static_cast<unsigned char>((first + i + i / 251) % 255 + 1);
  }
  std::size_t bytes_;
  std::unique_ptr<unsigned char[]> memory_;
};

/// Checks a copying_provider with copies of up to 64 KiB to the device and back, on a stream.
template <provider::copying_provider D>
[[nodiscard]] provider_check_result copying(D& device, stream_id stream = {}) {
  const std::size_t bytes = align_up(64_KiB, device.granularity());
  const trial_buffer host(bytes);
  void* const p = host.data() != nullptr ? device.acquire(bytes) : nullptr;
  if (p == nullptr) return {};
  provider_check_result found;
  auto* const memory = static_cast<std::byte*>(p);
  const auto must_hold = [&](bool holds, rule law) {
    found.must_hold(holds, law, "device address", p, "bytes", bytes, "stream", stream);
  };
  const auto finish = [&] {
    trial_event<D> mark(device);
    const bool done = mark.record(stream) && mark.wait();
    must_hold(done, "an event is ready after a copy"_rule);
  };
  const auto compare = [&](unsigned char first, std::size_t from, std::size_t to) {
    if constexpr (tessera::detail::has_contents<D>) {
      const std::size_t wrong = host.first_wrong(first, from, to);
      found.must_hold(wrong == to, "a copy to the device and back keeps the bytes"_rule, "device address", p,
                      "bytes", bytes, "first wrong byte", wrong);
    }
  };
  // Copies a part to the device, and all of it back.
  const auto copy_there_and_back = [&](std::size_t offset, std::size_t size) {
    must_hold(device.copy_to_device(memory + offset, host.data() + offset, size, stream),
              "copy_to_device accepts memory of the device"_rule);
    finish();
    host.clear();
    must_hold(device.copy_to_host(host.data(), p, bytes, stream),
              "copy_to_host accepts memory of the device"_rule);
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
  if constexpr (tessera::detail::stream_listing_provider<D>) {
    const stream_id nowhere{0xdead};
    const bool refuses =
        device.has_stream(nowhere) || (!device.copy_to_host(host.data(), p, bytes, nowhere) &&
                                       !device.copy_to_device(p, host.data(), bytes, nowhere));
    found.must_hold(refuses, "copies refuse a stream that does not exist"_rule, "stream", nowhere, "bytes",
                    bytes);
  }
  (void)tessera::detail::finish_work(device, stream);  // of a copy that should have been refused
  if (!device.release(p, bytes))
    return broken_rule("release accepts an acquired segment"_rule, "address", p, "bytes", bytes);
  const void* const nothing = nullptr;
  found.must_hold(!device.copy_to_host(host.data(), nullptr, bytes, stream) &&
                      !device.copy_to_device(nullptr, host.data(), bytes, stream),
                  "copies refuse device addresses without memory"_rule, "address", nothing, "bytes", bytes);
  return found;
}

/// Copies through host memory that is registered.
template <provider::copying_provider D>
  requires provider::registering_provider<D>
[[nodiscard]] provider_check_result registered_copies(D& device) {
  constexpr std::align_val_t aligned{64_KiB};
  const std::size_t bytes = align_up(64_KiB, device.granularity());
  provider_check_result found;
  auto* const host = static_cast<unsigned char*>(::operator new(bytes, aligned, std::nothrow));
  void* const p = host != nullptr ? device.acquire(bytes) : nullptr;
  if (p != nullptr && device.register_memory(host, bytes)) {
    const void* const address = host;
    const auto must_hold = [&](bool holds, std::size_t wrong) {
      found.must_hold(holds, "copies use registered memory"_rule, "host address", address, "device address",
                      p, "first wrong byte", wrong);
    };
    for (std::size_t i = 0; i < bytes; ++i) host[i] = static_cast<unsigned char>(i % 251 + 1);
    must_hold(device.copy_to_device(p, host, bytes, {}) && tessera::detail::finish_work(device, {}), 0);
    if constexpr (tessera::detail::has_contents<D>) std::memset(host, 0, bytes);
    must_hold(device.copy_to_host(host, p, bytes, {}) && tessera::detail::finish_work(device, {}), 0);
    for (std::size_t i = 0; i < bytes && found; ++i)
      must_hold(host[i] == static_cast<unsigned char>(i % 251 + 1), i);
    found.must_hold(device.unregister_memory(host), "unregister_memory accepts registered memory"_rule,
                    "address", address, "bytes", bytes);
  }
  if (p != nullptr) (void)device.release(p, bytes);
  ::operator delete(host, aligned);
  return found;
}

}  // namespace tessera::law::detail
