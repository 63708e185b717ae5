// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <tessera/detail/backends/physical_chunks.hpp>

namespace tessera::detail {

/// The memory behind the places of a plan: one segment, which is acquired whole and released whole.
///
/// Offsets count from base(). Memory is taken when a place is first used.
template <typename Provider>
class plan_memory {
 public:
  static constexpr bool in_range = false;
  static constexpr bool waits = must_wait_before_release<Provider>;  ///< see give_back
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] bool contains(const void* p) const noexcept {
    const auto segment = reinterpret_cast<std::uintptr_t>(segment_);
    return base_ != 0 && reinterpret_cast<std::uintptr_t>(p) - segment < bytes_;
  }
  /// The bytes behind all places.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Counts the bytes that the device has given.
  [[nodiscard]] const counter& device_bytes() const noexcept { return device_bytes_; }
  [[nodiscard]] counter& device_bytes() noexcept { return device_bytes_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return 0; }

  /// Reserves addresses for `bytes`. Returns false if the device or host memory refuses.
  [[nodiscard]] bool prepare(Provider& device, std::size_t bytes, std::size_t alignment) noexcept {
    const std::size_t given = device.granularity();  // segments are aligned to it
    alignment_ = alignment;
    bytes_ = align_up(bytes + (alignment > given ? alignment - given : 0), given);
    return true;
  }
  /// Makes sure that [offset, offset + bytes) has memory. Returns false if the device refuses.
  [[nodiscard]] bool back(Provider& device, std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {
    if (base_ != 0) return true;
    segment_ = device.acquire(bytes_);
    base_ = align_up(reinterpret_cast<std::uintptr_t>(segment_), alignment_);
    if (base_ != 0) device_bytes_.increase(static_cast<std::int64_t>(bytes_));
    return base_ != 0;
  }
  /// The bytes that back() would take from the device.
  [[nodiscard]] std::size_t missing_bytes(std::size_t /*offset*/, std::size_t /*bytes*/) const noexcept {
    return base_ == 0 ? bytes_ : 0;
  }
  /// Returns the memory in which nothing is used, until `enough` bytes went back. Calls for_each_used(f), which calls
  /// f(offset, bytes) for each part in use.
  ///   Requires:  if `waits` is true, the work of all streams of the plan is done
  ///   Returns:  the bytes that serve no place any more; the device may have failed to take some of them
  template <typename ForEachUsed>
  std::size_t give_back(Provider& device, std::size_t /*enough*/, ForEachUsed for_each_used) noexcept {
    bool is_used = base_ == 0;
    for_each_used([&is_used](std::size_t, std::size_t) { is_used = true; });
    if (is_used) return 0;
    if (!device.release(segment_, bytes_)) return 0;
    device_bytes_.decrease(static_cast<std::int64_t>(bytes_));
    base_ = 0;
    return bytes_;
  }
  /// Calls f(offset, bytes) for each part that has memory and goes back as a whole, in ascending order.
  template <typename F>
  void for_each_unit(F f) const {
    if (base_ != 0) f(std::size_t{0}, bytes_ - (base_ - reinterpret_cast<std::uintptr_t>(segment_)));
  }
  /// Returns all memory and addresses. It goes on if the device fails. As for give_back, all work must be done.
  void finish(Provider& device) noexcept {
    if (base_ == 0) return;
    (void)device.release(segment_, bytes_);
    base_ = 0;
  }

 private:
  void* segment_ = nullptr;
  std::uintptr_t base_ = 0;  // in the segment
  std::size_t bytes_ = 0;    // of the segment
  std::size_t alignment_ = 1;
  counter device_bytes_{};
};

/// The memory behind the places of a plan: a range of addresses. Physical memory is mapped in pieces of at most
/// `max_piece` bytes, and each piece can go back on its own. Once one went back, new pieces are single pages.
template <provider::virtual_memory_provider Provider>
class plan_memory<Provider> {
  using chunks = physical_chunks<Provider>;
  using chunk = typename chunks::chunk;

 public:
  /// Larger pieces take fewer device calls. Smaller ones return more if a program leaves its plan: one live block
  /// keeps its piece.
  static constexpr std::size_t max_piece = 2_MiB;
  /// A plan may have so many times the bytes of the device. A damaged one must not take host memory for its pages.
  static constexpr std::size_t max_devices = 64;

  static constexpr bool in_range = true;
  static constexpr bool waits = true;

  plan_memory() = default;

  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] bool contains(const void* p) const noexcept {
    return reinterpret_cast<std::uintptr_t>(p) - base_ < bytes_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const counter& device_bytes() const noexcept { return device_bytes_; }
  [[nodiscard]] counter& device_bytes() noexcept { return device_bytes_; }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return pages_ * (sizeof(chunk*) + sizeof(bool)) + chunks_.metadata_bytes();
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

  [[nodiscard]] std::size_t missing_bytes(std::size_t offset, std::size_t bytes) const noexcept {
    const auto from = by_page_.get() + offset / page_, to = by_page_.get() + (offset + bytes - 1) / page_ + 1;
    return page_ * static_cast<std::size_t>(std::count(from, to, nullptr));
  }

  template <typename ForEachUsed>
  std::size_t give_back(Provider& device, std::size_t enough, ForEachUsed for_each_used) noexcept {
    if (device_bytes_.current == 0) return 0;
    chunks_.retry_orphaned(device);
    std::fill_n(is_used_.get(), pages_, false);
    for_each_used([this](std::size_t offset, std::size_t bytes) {
      std::fill(is_used_.get() + offset / page_, is_used_.get() + (offset + bytes - 1) / page_ + 1, true);
    });
    std::size_t given = 0;
    for (std::size_t page = 0; page < pages_ && given < enough; ++page) {
      chunk* const here = by_page_[page];
      if (here == nullptr || here->address != base_ + page * page_) continue;
      const bool* const used = is_used_.get() + page;
      if (std::find(used, used + here->bytes / page_, true) != used + here->bytes / page_) continue;
      given += here->bytes;
      destroy(device, page);
    }
    if (given > 0) piece_ = page_;
    return given;
  }

  template <typename F>
  void for_each_unit(F f) const {
    for (std::size_t page = 0; page < pages_;) {
      const chunk* const here = by_page_[page];
      if (here != nullptr) f(page * page_, here->bytes);
      page += here != nullptr ? here->bytes / page_ : 1;
    }
  }

  void finish(Provider& device) noexcept {
    if (base_ == 0) return;
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
