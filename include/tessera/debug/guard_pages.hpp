// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/text.hpp>
#include <tessera/debug/guard_book.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/host_system.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// How blocks are guarded.
struct guarding {
  std::size_t guard = 1;  ///< bytes before and behind each block's pages, rounded up to whole pages
  std::size_t quarantine = 256_MiB;  ///< bytes of addresses that freed blocks keep from being given anew
  bool frees_pages =
      true;  ///< with a block, so that who touches it then faults; else its pages stay with it in
             ///< quarantine, filled, and a write is found when it leaves
  std::size_t most_mappings =
      0;  ///< of the process, for all blocks; one that is there takes up to three, one
          ///< in quarantine one. 0 stands for 15/16 of what the system allows
};

/// Gives segments in pages of their own, at the end of them, between addresses that nobody may touch; and keeps the
/// addresses of those that came back.
///   Requires:  the provider outlives it
template <virtual_memory_provider Device>
class guard_memory {
  static_assert(is_host_visible<Device>,
                "guarded: the provider must say is_host_visible, as patterns are written around blocks "
                "[tessera/provider/provider.hpp]");

 public:
  guard_memory(Device& device, guarding how) noexcept : device_(&device), how_(how) {
    const std::size_t system = how.most_mappings == 0 ? host_max_mappings() : 0;
    if (how.most_mappings == 0) how_.most_mappings = system - system / 16;
  }
  guard_memory(const guard_memory&) = delete;
  guard_memory& operator=(const guard_memory&) = delete;
  ~guard_memory() { drop_quarantine(0); }

  /// Where the device refuses, or mappings are to be spared, what is in quarantine goes first, as far as that may help.
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    if (bytes == 0 || bytes % min_alignment != 0 || bytes > max_request) return nullptr;
    while (true) {
      bool may_help = false;
      if (void* const given = try_acquire(bytes, may_help); given != nullptr || !may_help) return given;
      guarded_block* const oldest = book_.take_oldest(0);
      if (oldest == nullptr || !drop(*oldest)) return nullptr;
    }
  }
  bool release(void* p, std::size_t bytes) noexcept {
    guarded_block* const b = book_.find(p);
    if (b == nullptr || host_address(p) != b->address || host_address(p) + bytes != b->end_of_pages() ||
        b->is == guarded_block::state::gone)
      return false;
    if (b->is == guarded_block::state::live) end_if(book_.damage_in(*b), "at the end of the allocator");
    // What the device does not unmap is tried again when it leaves quarantine, so that it is not at each call.
    if (how_.frees_pages && device_->unmap(pages_of(*b), b->page_bytes)) {
      book_.lose_pages(*b);
    } else {
      book_.poison(*b);
    }
    book_.put_in_quarantine(*b);
    drop_quarantine(how_.quarantine);
    return true;
  }
  /// Gives the addresses back of what has been in quarantine for longest, until at most `most` bytes are there.
  void drop_quarantine(std::size_t most) noexcept {
    while (guarded_block* const oldest = book_.take_oldest(most)) {
      if (!drop(*oldest)) return;
    }
  }

  /// Why the latest request that failed did so, if that was not for the device, whose words are then its own; else null.
  [[nodiscard]] const char* failure_reason() const noexcept { return refusal_; }

  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] guard_book& book() noexcept { return book_; }
  [[nodiscard]] const guard_book& book() const noexcept { return book_; }

  /// Ends the program if something is wrong.
  static void end_if(const fixed_text& wrong, const char* when, const void* p = nullptr) noexcept {
    if (wrong.empty()) return;
    fatal(fixed_text().add("guarded: ").add(when).add(": ").add(wrong.c_str()).c_str(), p);
  }

 private:
  [[nodiscard]] void* try_acquire(std::size_t bytes, bool& quarantine_may_help) noexcept {
    const std::size_t step = device_->step(normal_pages);
    const std::size_t page_bytes = align_up(bytes, step);
    const std::size_t guard = align_up(how_.guard, step);
    const std::size_t all = page_bytes + 2 * guard;
    // Without a mapping to spare, the system could not unmap what is to go.
    quarantine_may_help = true;
    refusal_ = no_mappings;
    if (book_.mappings() + guard_book::most_mappings_each > how_.most_mappings) return nullptr;
    refusal_ = nullptr;
    void* const range = device_->reserve(all, step);
    quarantine_may_help = range == nullptr || !how_.frees_pages;
    if (range == nullptr) return nullptr;
    const std::uintptr_t pages = host_address(range) + guard;
    if (map(host_pointer(pages), page_bytes)) {
      const guarded_block* const b = book_.add(host_address(range), all, pages, page_bytes, bytes);
      if (b != nullptr) return host_pointer(b->address);
      (void)device_->unmap(host_pointer(pages), page_bytes);
    }
    (void)let_go(host_address(range), all);
    return nullptr;
  }
  /// Memory that goes when it is unmapped.
  [[nodiscard]] bool map(void* at, std::size_t bytes) noexcept {
    typename Device::physical memory{};
    if (!device_->create(bytes, normal_pages, memory)) return false;
    const bool mapped = device_->map(at, bytes, memory);
    const bool granted = mapped && (Device::map_grants_access || device_->grant(at, bytes));
    if (device_->destroy(memory) && granted) return true;
    if (mapped) (void)device_->unmap(at, bytes);
    if (!granted) return false;
    (void)device_->destroy(memory);
    return false;
  }
  /// Gives back what a block has that is out of quarantine; false where the device fails, and it is there again.
  [[nodiscard]] bool drop(guarded_block& b) noexcept {
    if (b.has_pages) {
      end_if(book_.misuse_of(b), "out of quarantine");
      if (!device_->unmap(pages_of(b), b.page_bytes)) return book_.put_in_quarantine(b), false;
      book_.lose_pages(b);
    }
    const std::uintptr_t range = b.range;
    const std::size_t bytes = b.range_bytes;
    book_.remove(b);  // before others may be given the same addresses
    return let_go(range, bytes);
  }
  /// Gives addresses back; where the device fails, they are in quarantine until it is tried again.
  [[nodiscard]] bool let_go(std::uintptr_t range, std::size_t range_bytes) noexcept {
    if (device_->unreserve(host_pointer(range), range_bytes)) return true;
    const std::uintptr_t pages = range;  // of which there are none any more
    if (guarded_block* const kept = book_.add(range, range_bytes, pages, 0, 0))
      book_.put_in_quarantine(*kept);
    return false;
  }
  static constexpr const char* no_mappings =
      "guarded: more blocks would take mappings that the process must spare; the system administrator raises "
      "/proc/sys/vm/max_map_count, or the program guarding::most_mappings";
  [[nodiscard]] static void* pages_of(const guarded_block& b) noexcept { return host_pointer(b.pages); }

  Device* device_;
  guarding how_;
  guard_book book_;
  std::atomic<const char*> refusal_{nullptr};
};

/// What a guarded allocator takes for its provider.
///   Requires:  the memory outlives it
template <virtual_memory_provider Device>
class guard_pages : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  explicit guard_pages(guard_memory<Device>& memory) noexcept
      : forwarding<Device>(memory.device()), memory_(&memory) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return memory_->acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return memory_->release(p, bytes); }
  [[nodiscard]] static constexpr std::size_t granularity() noexcept { return min_alignment; }

 private:
  guard_memory<Device>* memory_;
};

}  // namespace tessera
