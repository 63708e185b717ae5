// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <tessera/detail/containers/per_thread.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_memory.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::detail {

/// How blocks are guarded.
struct guard_options {
  std::size_t guard = 1;             ///< bytes before and after each block's pages, in whole pages
  std::size_t quarantine = 256_MiB;  ///< bytes of addresses of freed blocks that are not reused
  /// Whether a free unmaps the block's pages, so that later accesses fault. Otherwise the pages are filled
  /// with a pattern and stay mapped. Writes are then found when the block leaves the quarantine.
  bool frees_pages = true;
  /// The maximum number of mappings. A live block needs up to three mappings; a block in quarantine needs one
  /// mapping. 0 means 15/16 of the system's limit.
  std::size_t max_mappings = 0;
};

/// A block between guard pages, and its state. Writers hold the mutex. A signal handler reads it without the
/// mutex.
struct guarded_block {
  enum class state : unsigned char {
    unused,  ///< the record is unused
    idle,    ///< not handed out
    live,
    freed,       ///< keeps its memory, because streams may use it
    quarantined  ///< in quarantine
  };
  template <typename T>
  using field = std::atomic<T>;

  field<state> is{state::unused};
  field<std::uintptr_t> range{0};  ///< start of its addresses, guards included
  field<std::size_t> range_bytes{0};
  field<std::uintptr_t> pages{0};  ///< start of its memory
  field<std::size_t> page_bytes{0};
  field<std::uintptr_t> address{0};
  field<std::size_t> requested{0};  ///< bytes; the size of the block until it is handed out
  field<std::uint64_t> stream{0};
  field<const char*> label{""};
  bool has_pages = false;         ///< whether its pages are mapped
  guarded_block* next = nullptr;  ///< in the list of unused blocks, or in quarantine

  [[nodiscard]] std::uintptr_t end() const noexcept { return address + requested; }
  [[nodiscard]] std::uintptr_t end_of_pages() const noexcept { return pages + page_bytes; }
};

/// The shadow state of a guarded allocator. It finds a block by any address between its guards, and formats
/// the messages for misuse.
class guard_shadow {
 public:
  static constexpr unsigned char untouched = 0xBD;  ///< around a block in its pages
  static constexpr unsigned char fresh = 0xA5;      ///< in a block that was never written
  static constexpr unsigned char stale = 0x5A;      ///< in a freed block that keeps its memory

  guard_shadow& operator=(guard_shadow&&) = delete;
  ~guard_shadow() {
    for (chunk* c = chunks_.load(); c != nullptr;) delete std::exchange(c, c->next);
  }

  /// Adds an idle block; null if host memory ran out.
  [[nodiscard]] guarded_block* add(std::uintptr_t range, std::size_t range_bytes, std::uintptr_t pages,
                                   std::size_t page_bytes, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (unused_ == nullptr && !add_chunk()) return nullptr;
    if (!by_range_.insert(range, unused_)) return nullptr;
    guarded_block& b = *std::exchange(unused_, unused_->next);
    b.next = nullptr;
    b.range = range;
    b.range_bytes = range_bytes;
    b.pages = pages;
    b.page_bytes = page_bytes;
    b.address = pages + page_bytes - bytes;
    b.requested = bytes;
    b.label = "";
    b.has_pages = page_bytes != 0;
    b.is = guarded_block::state::idle;
    mappings_ += mappings_of(b);
    return &b;
  }
  /// Records that a block's pages were unmapped.
  void mark_unmapped(guarded_block& b) noexcept {
    const std::lock_guard lock(mutex_);
    if (std::exchange(b.has_pages, false)) mappings_ -= max_mappings_each - 1;
  }
  /// Removes a block.
  void remove(guarded_block& b) noexcept {
    const std::lock_guard lock(mutex_);
    mappings_ -= mappings_of(b);
    b.is = guarded_block::state::unused;
    (void)by_range_.extract(b.range);
    b.next = std::exchange(unused_, &b);
  }
  /// The block whose memory or guards contain an address, or null.
  [[nodiscard]] guarded_block* find(const void* p) const noexcept {
    const std::lock_guard lock(mutex_);
    return find_in(address_of(p));
  }

  /// Marks a block as handed out, and writes the patterns in and around it.
  void mark_live(void* p, std::size_t requested, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    guarded_block& b = *find_in(address_of(p));
    b.requested = requested;
    b.stream = stream.handle;
    const char* const label = label_.get();
    b.label = label != nullptr ? label : "";
    b.is = guarded_block::state::live;
    fill(b.pages, b.address, untouched);
    fill(b.address, b.end(), fresh);
    fill(b.end(), b.end_of_pages(), untouched);
  }
  struct free_result {
    bool is_live;      ///< whether a live block begins at the address
    fixed_text wrong;  ///< the caller's mistake, or the damage to the block; empty if none
  };
  /// Checks the free of a block, and the size if it is passed. Marks the block freed if there is no error.
  [[nodiscard]] free_result mark_freed(const void* p, const std::size_t* passed_bytes = nullptr) noexcept {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t at = address_of(p);
    guarded_block* const b = find_in(at);
    if (b == nullptr || at != b->address || b->is != guarded_block::state::live)
      return {false, describe_mistake(b, at)};
    free_result result{true, find_damage_in(*b)};
    if (passed_bytes != nullptr && *passed_bytes != b->requested)
      result.wrong = describe(
          fixed_text().add("not the requested size: ").add(*passed_bytes).add(" bytes were passed for "), *b);
    if (result.wrong.empty()) b->is = guarded_block::state::freed;
    return result;
  }
  /// Describes a live block with a write outside its bytes; empty if there is no such block.
  ///   Cost:  reads less than two pages for each live block
  [[nodiscard]] fixed_text find_damage() const noexcept {
    const std::lock_guard lock(mutex_);
    fixed_text damage;
    for (const auto* at = by_range_.from(0); at != nullptr && damage.empty(); at = by_range_.after(*at))
      if (at->value->is == guarded_block::state::live) damage = find_damage_in(*at->value);
    return damage;
  }
  [[nodiscard]] fixed_text find_damage(const guarded_block& b) const noexcept {
    const std::lock_guard lock(mutex_);
    return find_damage_in(b);
  }
  /// Fills the memory of a freed block whose pages stay mapped.
  void poison(const guarded_block& b) const noexcept {
    const std::lock_guard lock(mutex_);
    fill(b.pages, b.end_of_pages(), stale);
  }
  /// Describes writes to a block since it was freed.
  [[nodiscard]] fixed_text find_use_after_free(const guarded_block& b) const noexcept {
    const std::uintptr_t at = find_other_byte(b.pages, b.end_of_pages(), stale);
    fixed_text text;
    return at < b.end_of_pages() ? add_position(text.add("a use after free: a byte was written "), b, at)
                                 : text;
  }

  /// Labels the blocks that the calling thread allocates from now on; an empty text removes the label. At most 4,095
  /// labels are distinct; later labels share one text.
  ///   Throws:  std::bad_alloc
  void label(std::string_view text) {
    const std::lock_guard lock(mutex_);
    label_.set(text.empty() ? std::nullopt : std::optional(stored(text)));
  }
  /// Labels the blocks of the threads that have set no label.
  ///   Throws:  std::bad_alloc
  void set_default_label(std::string_view text) {
    const std::lock_guard lock(mutex_);
    label_.set_for_others(stored(text));
  }
  /// The label of the block at an address between its guards; empty if there is none.
  [[nodiscard]] const char* label_of(const void* p) const noexcept {
    const guarded_block* const b = find(p);
    return b != nullptr ? b->label.load() : "";
  }

  /// Puts a block in quarantine.
  ///   Requires:  its memory was unmapped or filled
  void put_in_quarantine(guarded_block& b) noexcept {
    const std::lock_guard lock(mutex_);
    b.is = guarded_block::state::quarantined;
    b.next = nullptr;
    guarded_block*& last_link = newest_ != nullptr ? newest_->next : oldest_;
    last_link = &b;
    newest_ = &b;
    quarantined_ += b.range_bytes;
  }
  /// Removes the oldest block if the quarantine holds more than `max_bytes` bytes of addresses; else returns
  /// null.
  [[nodiscard]] guarded_block* remove_oldest(std::size_t max_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (oldest_ == nullptr || quarantined_ <= max_bytes) return nullptr;
    guarded_block* const b = std::exchange(oldest_, oldest_->next);
    if (oldest_ == nullptr) newest_ = nullptr;
    quarantined_ -= b->range_bytes;
    return b;
  }
  /// Bytes of addresses in quarantine.
  [[nodiscard]] std::size_t quarantined() const noexcept {
    const std::lock_guard lock(mutex_);
    return quarantined_;
  }

  /// An upper bound of the blocks' mappings; adjacent blocks may share mappings.
  [[nodiscard]] std::size_t mappings() const noexcept {
    const std::lock_guard lock(mutex_);
    return mappings_;
  }
  static constexpr std::size_t max_mappings_each = 3;  ///< per block: its pages and two guards

  /// Describes the block at or near an address; empty if there is none. It takes no lock, so signal handlers
  /// may call it.
  ///   Cost:  linear in the blocks
  [[nodiscard]] fixed_text explain(std::uintptr_t at) const noexcept {
    fixed_text text;
    for (const chunk* c = chunks_.load(std::memory_order_acquire); c != nullptr; c = c->next) {
      for (const guarded_block& b : c->blocks) {
        if (b.is != guarded_block::state::unused && at - b.range < b.range_bytes)
          return add_position(text.add("an access at ").add_address(at).add(", "), b, at);
      }
    }
    return text;
  }

 private:
  [[nodiscard]] static std::size_t mappings_of(const guarded_block& b) noexcept {
    return b.has_pages ? max_mappings_each : 1;
  }
  static constexpr std::size_t max_labels = 4095;
  [[nodiscard]] const char* stored(std::string_view label) {
    const bool is_known = labels_.contains(label) || labels_.size() < max_labels;
    return labels_.emplace(is_known ? label : "(more labels)").first->c_str();
  }
  struct chunk {
    std::array<guarded_block, 128> blocks;
    chunk* next = nullptr;
  };

  [[nodiscard]] bool add_chunk() noexcept {
    auto* const added = new (std::nothrow) chunk;
    if (added == nullptr) return false;
    for (guarded_block& b : added->blocks) b.next = std::exchange(unused_, &b);
    added->next = chunks_.load(std::memory_order_relaxed);
    chunks_.store(added, std::memory_order_release);
    return true;
  }
  [[nodiscard]] guarded_block* find_in(std::uintptr_t at) const noexcept {
    const auto* const found = by_range_.up_to(at);
    return found != nullptr && at - found->key < found->value->range_bytes ? found->value : nullptr;
  }

  static void fill(std::uintptr_t from, std::uintptr_t to, unsigned char with) noexcept {
    std::memset(pointer_to(from), with, to - from);
  }
  [[nodiscard]] static std::uintptr_t find_other_byte(std::uintptr_t from, std::uintptr_t to,
                                                      unsigned char than) noexcept {
    while (from < to && *static_cast<const unsigned char*>(pointer_to(from)) == than) ++from;
    return from;
  }
  [[nodiscard]] static fixed_text describe_mistake(const guarded_block* b, std::uintptr_t at) noexcept {
    fixed_text why;
    if (b == nullptr) return why.add("not the address of a live block, nor of any other");
    if (at == b->address) return describe(why.add("a double free of "), *b);
    return add_position(why.add("not the address of a live block, but "), *b, at);
  }
  /// Reports the damaged byte that is nearest to the block on each side.
  [[nodiscard]] static fixed_text find_damage_in(const guarded_block& b) noexcept {
    fixed_text text;
    if (const std::uintptr_t at = find_other_byte(b.end(), b.end_of_pages(), untouched);
        at < b.end_of_pages())
      return add_position(text.add("an overrun: a byte was written "), b, at);
    std::uintptr_t at = b.address;
    while (at > b.pages && *static_cast<const unsigned char*>(pointer_to(at - 1)) == untouched) --at;
    return at > b.pages ? add_position(text.add("an underrun: a byte was written "), b, at - 1) : text;
  }
  static fixed_text& add_position(fixed_text& text, const guarded_block& b, std::uintptr_t at) noexcept {
    const char* position = "into ";
    std::uint64_t bytes = at - b.address;
    if (at < b.address) {
      position = "before the beginning of ";
      bytes = b.address - at;
    } else if (at >= b.end()) {
      position = "past the end of ";
      bytes = at - b.end() + 1;
    }
    return describe(text.add(bytes).add(bytes == 1 ? " byte " : " bytes ").add(position), b);
  }
  static fixed_text& describe(fixed_text& text, const guarded_block& b) noexcept {
    const char* state = "a freed block of ";
    if (b.is == guarded_block::state::live) state = "a live block of ";
    if (b.is == guarded_block::state::idle) state = "an unused block of ";
    text.add(state).add(b.requested).add(" bytes at ").add_address(b.address).add(", stream ").add(b.stream);
    const char* const label = b.label;
    return *label != '\0' ? text.add(", label '").add(label).add("'") : text;
  }

  mutable std::mutex mutex_;
  ordered_map<guarded_block*> by_range_;
  std::atomic<chunk*> chunks_{nullptr};  // only grows
  guarded_block* unused_ = nullptr;
  guarded_block* oldest_ = nullptr;  // in quarantine
  guarded_block* newest_ = nullptr;
  std::size_t quarantined_ = 0, mappings_ = 0;
  std::set<std::string, std::less<>> labels_;  // a set, because its elements do not move
  per_thread<const char*> label_;              // null for none
};

/// Provides each segment in its own pages, between inaccessible guard addresses. A segment ends at the end of
/// its pages. The addresses of released segments stay in quarantine.
///   Requires:  the provider outlives it
template <provider::virtual_memory_provider Device>
class guard_memory {
  static_assert(detail::is_host_visible<Device>,
                "guarded: the provider must say is_host_visible, as patterns are written around blocks "
                "[tessera/provider/provider.hpp]");

 public:
  guard_memory(Device& device, guard_options options) noexcept : device_(&device), options_(options) {
    if (options.max_mappings != 0) return;
    const std::size_t system = host_max_mappings();
    options_.max_mappings = system - system / 16;
  }
  guard_memory& operator=(guard_memory&&) = delete;
  ~guard_memory() { drop_quarantine(0); }

  /// If the device refuses or too few mappings are left, releases the quarantine step by step.
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    if (bytes == 0 || bytes % min_alignment != 0 || bytes > max_request) return nullptr;
    while (true) {
      bool may_help = false;
      if (void* const p = try_acquire(bytes, may_help); p != nullptr || !may_help) return p;
      guarded_block* const oldest = shadow_.remove_oldest(0);
      if (oldest == nullptr || !drop(*oldest)) return nullptr;
    }
  }
  bool release(void* p, std::size_t bytes) noexcept {
    guarded_block* const b = shadow_.find(p);
    if (b == nullptr || address_of(p) != b->address || address_of(p) + bytes != b->end_of_pages() ||
        b->is == guarded_block::state::quarantined)
      return false;
    if (b->is == guarded_block::state::live) abort_if(shadow_.find_damage(*b), "at the end of the allocator");
    // If the device fails to unmap it, drop() tries again when the block leaves the quarantine.
    if (options_.frees_pages && device_->unmap(pages_of(*b), b->page_bytes)) {
      shadow_.mark_unmapped(*b);
    } else {
      shadow_.poison(*b);
    }
    shadow_.put_in_quarantine(*b);
    drop_quarantine(options_.quarantine);
    return true;
  }
  /// Unreserves the oldest addresses in quarantine until at most `max_bytes` bytes are left.
  void drop_quarantine(std::size_t max_bytes) noexcept {
    while (guarded_block* const oldest = shadow_.remove_oldest(max_bytes)) {
      if (!drop(*oldest)) return;
    }
  }

  /// The reason why the latest request failed; null if the device refused.
  [[nodiscard]] const char* failure_reason() const noexcept { return failure_reason_; }
  refusal take_refusal() noexcept {
    const refusal of_device = tessera::detail::take_refusal(*device_);
    const refusal own = refused_.take();
    return own ? own : of_device;
  }

  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] guard_shadow& shadow() noexcept { return shadow_; }
  [[nodiscard]] const guard_shadow& shadow() const noexcept { return shadow_; }

  /// Aborts if a fault was found.
  static void abort_if(const fixed_text& wrong, const char* when, const void* p = nullptr) noexcept {
    if (wrong.empty()) return;
    fatal(fixed_text().add("guarded: ").add(when).add(": ").add(wrong.c_str()).c_str(), p);
  }

 private:
  [[nodiscard]] void* try_acquire(std::size_t bytes, bool& quarantine_may_help) noexcept {
    const std::size_t step = device_->page_size(page_kind::normal);
    const std::size_t page_bytes = align_up(bytes, step);
    const std::size_t guard = align_up(options_.guard, step);
    const std::size_t all = page_bytes + 2 * guard;
    // Keeps one mapping free, because the system may need it to unmap.
    quarantine_may_help = true;
    failure_reason_ = no_mappings;
    if (shadow_.mappings() + guard_shadow::max_mappings_each > options_.max_mappings) {
      refused_.note(refusal(no_mappings));
      return nullptr;
    }
    failure_reason_ = nullptr;
    void* const range = device_->reserve(all, step);
    quarantine_may_help = range == nullptr || !options_.frees_pages;
    if (range == nullptr) return nullptr;
    const std::uintptr_t pages = address_of(range) + guard;
    if (map(pointer_to(pages), page_bytes)) {
      const guarded_block* const b = shadow_.add(address_of(range), all, pages, page_bytes, bytes);
      if (b != nullptr) return pointer_to(b->address);
      (void)device_->unmap(pointer_to(pages), page_bytes);
    }
    (void)unreserve(address_of(range), all);
    return nullptr;
  }
  /// Creates and maps physical memory, which is freed when it is unmapped.
  [[nodiscard]] bool map(void* at, std::size_t bytes) noexcept {
    typename Device::physical memory{};
    if (!device_->create(bytes, page_kind::normal, memory)) return false;
    const bool mapped = device_->map(at, bytes, memory);
    const bool granted = mapped && (Device::map_grants_access || device_->grant(at, bytes));
    if (device_->destroy(memory) && granted) return true;
    if (mapped) (void)device_->unmap(at, bytes);
    if (!granted) return false;
    (void)device_->destroy(memory);
    return false;
  }
  /// Gives back a block that left the quarantine. If the device fails, returns false and puts the block back.
  [[nodiscard]] bool drop(guarded_block& b) noexcept {
    if (b.has_pages) {
      abort_if(shadow_.find_use_after_free(b), "out of quarantine");
      if (!device_->unmap(pages_of(b), b.page_bytes)) {
        shadow_.put_in_quarantine(b);
        return false;
      }
      shadow_.mark_unmapped(b);
    }
    const std::uintptr_t range = b.range;
    const std::size_t bytes = b.range_bytes;
    shadow_.remove(b);  // before another thread may get the same addresses
    return unreserve(range, bytes);
  }
  /// Unreserves addresses. If the device fails, they stay in quarantine until the next try.
  [[nodiscard]] bool unreserve(std::uintptr_t range, std::size_t range_bytes) noexcept {
    if (device_->unreserve(pointer_to(range), range_bytes)) return true;
    const std::uintptr_t no_pages = range;
    if (guarded_block* const kept = shadow_.add(range, range_bytes, no_pages, 0, 0))
      shadow_.put_in_quarantine(*kept);
    return false;
  }
  static constexpr const char* no_mappings =
      "guarded: more blocks would take mappings that the process must spare; the system administrator raises "
      "/proc/sys/vm/max_map_count, or the program guarded::options::max_mappings";
  [[nodiscard]] static void* pages_of(const guarded_block& b) noexcept { return pointer_to(b.pages); }

  Device* device_;
  guard_options options_;
  guard_shadow shadow_;
  std::atomic<const char*> failure_reason_{nullptr};
  provider::latest_refusals refused_;
};

/// The provider of a guarded allocator.
///   Requires:  the memory outlives it
template <provider::virtual_memory_provider Device>
class guard_pages : public provider::provider_adaptor<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::detail::is_thread_safe<Device>;
  struct physical {};  // hides the device's virtual memory, in which the guarded pages are

  explicit guard_pages(guard_memory<Device>& memory) noexcept
      : provider::provider_adaptor<Device>(memory.device()), memory_(&memory) {}

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return memory_->acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return memory_->release(p, bytes); }
  [[nodiscard]] static constexpr std::size_t granularity() noexcept { return min_alignment; }
  refusal take_refusal() noexcept { return memory_->take_refusal(); }

 private:
  guard_memory<Device>* memory_;
};

}  // namespace tessera::inline v0_1::detail
