// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/physical_chunks.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// The memory behind the places of a plan: one segment, which is acquired whole and released whole.
///
/// Offsets count from base(). Memory is taken when a place is first used.
template <typename Provider>
class plan_memory {
 public:
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] bool contains(const void* p) const noexcept {
    return base_ != 0 && reinterpret_cast<std::uintptr_t>(p) - base_ < bytes_;
  }
  /// Counts the bytes that the device has given.
  [[nodiscard]] const counter& device_bytes() const noexcept { return device_bytes_; }
  [[nodiscard]] counter& device_bytes() noexcept { return device_bytes_; }
  [[nodiscard]] std::size_t footprint() const noexcept { return 0; }

  /// Reserves addresses for `bytes`. Returns false if the device or host memory refuses.
  [[nodiscard]] bool prepare(Provider& device, std::size_t bytes, std::size_t /*alignment*/) noexcept {
    bytes_ = align_up(bytes, device.granularity());
    return true;
  }
  /// Makes sure that [offset, offset + bytes) has memory. Returns false if the device refuses.
  [[nodiscard]] bool back(Provider& device, std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {
    if (base_ != 0) return true;
    base_ = reinterpret_cast<std::uintptr_t>(device.acquire(bytes_));
    if (base_ != 0) device_bytes_.increase(static_cast<std::int64_t>(bytes_));
    return base_ != 0;
  }
  /// Returns the memory in which nothing is used, after the work of `streams`. Calls for_each_used(f), which
  /// calls f(offset, bytes) for each part in use.
  ///   Returns:  the bytes that serve no place any more; the device may have failed to take some of them
  template <typename ForEachUsed>
  std::size_t give_back(Provider& device, std::span<const stream_id> streams,
                        ForEachUsed for_each_used) noexcept {
    bool is_used = base_ == 0;
    for_each_used([&is_used](std::size_t, std::size_t) { is_used = true; });
    if (is_used) return 0;
    for (const stream_id stream : streams) {
      if (!wait_before_release(device, stream)) return 0;
    }
    if (!device.release(reinterpret_cast<void*>(base_), bytes_)) return 0;
    device_bytes_.decrease(static_cast<std::int64_t>(bytes_));
    base_ = 0;
    return bytes_;
  }
  /// Returns all memory and addresses, after the work of `streams`. It goes on if the device fails.
  void finish(Provider& device, std::span<const stream_id> streams) noexcept {
    if (base_ == 0) return;
    for (const stream_id stream : streams) (void)wait_before_release(device, stream);
    (void)device.release(reinterpret_cast<void*>(base_), bytes_);
    base_ = 0;
  }

 private:
  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  counter device_bytes_{};
};

/// The memory behind the places of a plan: a range of addresses. Physical memory is mapped in pieces of at most
/// `max_piece` bytes, and each piece can go back on its own. Once one went back, new pieces are single pages.
template <virtual_memory_provider Provider>
class plan_memory<Provider> {
  using chunks = physical_chunks<Provider>;
  using chunk = typename chunks::chunk;

 public:
  /// Larger pieces take fewer device calls. Smaller ones return more if a program leaves its plan.
  static constexpr std::size_t max_piece = 16_MiB;
  /// A plan may have so many times the bytes of the device. A damaged one must not take host memory for its pages.
  static constexpr std::size_t max_devices = 64;

  plan_memory() = default;

  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] bool contains(const void* p) const noexcept {
    return reinterpret_cast<std::uintptr_t>(p) - base_ < bytes_;
  }
  [[nodiscard]] const counter& device_bytes() const noexcept { return device_bytes_; }
  [[nodiscard]] counter& device_bytes() noexcept { return device_bytes_; }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return pages_ * (sizeof(chunk*) + sizeof(bool)) + chunks_.footprint();
  }

  [[nodiscard]] bool prepare(Provider& device, std::size_t bytes, std::size_t alignment) noexcept {
    if (bytes / max_devices > device.capacity()) return false;
    page_ = larger(device.page_size(page_kind::normal), device.granularity());
    const std::size_t whole = align_up(bytes, page_), pages = whole / page_;
    // The device may refuse the size. So it is asked before host memory is taken.
    void* const range = device.reserve(whole, larger(page_, alignment));
    if (range == nullptr) return false;
    by_page_.reset(new (std::nothrow) chunk*[pages]());
    is_used_.reset(new (std::nothrow) bool[pages]);
    if (by_page_ == nullptr || is_used_ == nullptr) {
      (void)device.unreserve(range, whole);
      return false;
    }
    base_ = reinterpret_cast<std::uintptr_t>(range);
    bytes_ = whole;
    pages_ = pages;
    return true;
  }

  [[nodiscard]] bool back(Provider& device, std::size_t offset, std::size_t bytes) noexcept {
    const std::size_t end = (offset + bytes - 1) / page_ + 1;
    for (std::size_t page = offset / page_; page < end;) {
      if (by_page_[page] != nullptr) {
        ++page;
        continue;
      }
      std::size_t count = 1;
      while (page + count < end && (count + 1) * page_ <= piece_ && by_page_[page + count] == nullptr)
        ++count;
      if (!map(device, page, count)) return false;
      page += count;
    }
    return true;
  }

  template <typename ForEachUsed>
  std::size_t give_back(Provider& device, std::span<const stream_id> streams,
                        ForEachUsed for_each_used) noexcept {
    if (device_bytes_.current == 0) return 0;
    chunks_.retry_orphaned(device);
    std::fill_n(is_used_.get(), pages_, false);
    for_each_used([this](std::size_t offset, std::size_t bytes) {
      std::fill(is_used_.get() + offset / page_, is_used_.get() + (offset + bytes - 1) / page_ + 1, true);
    });
    bool has_waited = false;
    std::size_t given = 0;
    for (std::size_t page = 0; page < pages_; ++page) {
      chunk* const here = by_page_[page];
      if (here == nullptr || here->address != base_ + page * page_) continue;
      const bool* const used = is_used_.get() + page;
      if (std::find(used, used + here->bytes / page_, true) != used + here->bytes / page_) continue;
      for (std::size_t i = 0; !has_waited && i < streams.size(); ++i) {
        if (!device.synchronize(streams[i])) return 0;
      }
      has_waited = true;
      given += here->bytes;
      destroy(device, page);
    }
    if (given > 0) piece_ = page_;
    return given;
  }

  void finish(Provider& device, std::span<const stream_id> streams) noexcept {
    if (base_ == 0) return;
    for (const stream_id stream : streams) (void)device.synchronize(stream);
    for (std::size_t page = 0; page < pages_; ++page) {
      if (by_page_[page] != nullptr) destroy(device, page);
    }
    chunks_.retry_orphaned(device);
    (void)device.unreserve(reinterpret_cast<void*>(base_), bytes_);
    base_ = 0;
    bytes_ = 0;
  }

 private:
  [[nodiscard]] bool map(Provider& device, std::size_t page, std::size_t count) noexcept {
    chunks_.retry_orphaned(device);
    chunk* const fresh = chunks_.plan(base_ + page * page_, count * page_);
    if (fresh == nullptr) return false;
    constexpr page_order kinds{{page_kind::normal}, 1};
    if (!chunks_.map_all(device, fresh, kinds)) return false;
    for (std::size_t i = 0; i < count; ++i) by_page_[page + i] = fresh;
    return true;
  }
  /// Destroys the chunk that begins at a page. On failure it is orphaned, and serves no place any more.
  void destroy(Provider& device, std::size_t page) noexcept {
    chunk& here = *by_page_[page];
    for (std::size_t i = 0, count = here.bytes / page_; i < count; ++i) by_page_[page + i] = nullptr;
    chunks_.destroy(device, here);
  }

  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  std::size_t page_ = 1;
  std::size_t piece_ = max_piece;  // a page once memory was given back: the program leaves its plan
  std::size_t pages_ = 0;
  counter device_bytes_{};
  chunks chunks_{device_bytes_};
  std::unique_ptr<chunk*[]> by_page_;  // the chunk that covers a page, or null
  std::unique_ptr<bool[]> is_used_;    // pages in use, during give_back
};

}  // namespace tessera::detail
