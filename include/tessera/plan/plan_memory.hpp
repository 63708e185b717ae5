// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <tessera/detail/backends/physical_chunks.hpp>
#include <tessera/plan/plan_follower.hpp>
#include <tessera/provider/adaptor.hpp>

namespace tessera::inline v0_1::detail {

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

  /// Reserves addresses for a plan. Returns why it can serve nothing, or null.
  [[nodiscard]] const char* prepare(Provider& device, const plan::memory_plan& plan) noexcept {
    if (!plan.bank_ends.empty()) return "a plan over several banks needs virtual memory";
    const std::size_t given = device.granularity();  // segments are aligned to it
    alignment_ = plan.alignment;
    bytes_ = align_up(plan.bytes + (alignment_ > given ? alignment_ - given : 0), given);
    return nullptr;
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

/// One bank of a provider that has several.
template <typename Provider>
struct bank_of_device {
  Provider& device;
  std::size_t bank;
  [[nodiscard]] bool create(std::size_t bytes, page_kind kind, auto& made) noexcept {
    return device.create_in(bank, bytes, kind, made);
  }
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
  static constexpr bool has_banks = has_several_banks<Provider>;

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

  [[nodiscard]] const char* prepare(Provider& device, const plan::memory_plan& plan) noexcept {
    constexpr const char* refused = "the device reserves no addresses for the plan";
    if (plan.bytes / max_devices > device.capacity()) return refused;
    page_ = larger(device.page_size(page_kind::normal), device.granularity());
    if constexpr (has_banks) {
      if (plan.bank_ends.size() >= device.count()) return "the plan has more banks than the device";
      for (const std::uint64_t end : plan.bank_ends) {
        if (end % page_ != 0) return "the banks of the plan end within pages of the device";
      }
    }
    plan_ = &plan;
    const std::size_t whole = align_up(plan.bytes, page_), pages = whole / page_;
    // The device may refuse the size. So it is asked before host memory is taken.
    void* const range = device.reserve(whole, larger(page_, plan.alignment));
    if (range == nullptr) return refused;
    by_page_.reset(new (std::nothrow) chunk*[pages]());
    is_used_.reset(new (std::nothrow) bool[pages]);
    if (by_page_ == nullptr || is_used_ == nullptr) {
      (void)device.unreserve(range, whole);
      return refused;
    }
    base_ = reinterpret_cast<std::uintptr_t>(range);
    bytes_ = whole;
    pages_ = pages;
    return nullptr;
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

  /// Calls f(chunk) for each physical chunk behind [offset, offset + bytes), in ascending order.
  ///   Requires:  all these bytes have memory
  template <typename F>
  void for_each_chunk(std::size_t offset, std::size_t bytes, F f) const {
    for (std::size_t at = offset; at < offset + bytes;) {
      const chunk& here = *by_page_[at / page_];
      f(here);
      at = here.address + here.bytes - base_;
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
    if constexpr (has_banks) {
      if (!plan_->bank_ends.empty()) {
        bank_of_device<Provider> bank{device, plan_->bank_of(page * page_)};
        if (!chunks_.create(bank, *fresh, kinds)) return chunks_.destroy(device, *fresh), false;
      }
    }
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

  const plan::memory_plan* plan_ = nullptr;
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

/// A read-only view of the memory of a plan, for tools: its blocks, and the device's memory behind the places.
/// It is valid until the allocator next changes.
template <typename Provider>
class plan_view {
  using follower = plan_follower;
  using memory = plan_memory<Provider>;
  static constexpr std::uint32_t none = follower::none;

 public:
  plan_view(const follower& places, const memory& behind) noexcept : places_(places), memory_(behind) {}

  /// Calls f(const segment_view&, const block_view&) for each block, in the order of addresses. Adjacent mapped
  /// pages form one segment, which ends where the stream of the blocks changes.
  ///   Cost:  linear in the places of the plan. The same holds for the members below without a cost.
  template <typename F>
  void for_each_block(F f) const {
    cursor next(places_);
    for_each_run([&](std::size_t offset, std::size_t end) {
      while (offset < end) {
        const segment_view segment = segment_at(offset, end, next);
        const std::size_t stop = segment.address + segment.bytes - memory_.base();
        for (; next.begin() < stop; next.advance()) {
          if (next.begin() > offset) f(segment, free_block(segment, offset, next.begin()));
          f(segment, view_of(next.number()));
          offset = next.end();
        }
        if (offset < stop) f(segment, free_block(segment, offset, stop));
        offset = stop;
      }
    });
  }
  /// Calls f(offset, bytes, used) for each part that goes back to the device as a whole: a segment, or a
  /// physical chunk. `used` has the live and pending blocks in it.
  struct blocks_in_unit {
    std::size_t bytes = 0;  ///< of the blocks, in the unit
    std::size_t blocks = 0;
    std::size_t live = 0;      ///< of these, not pending
    std::uintptr_t first = 0;  ///< address of the lowest
  };
  template <typename F>
  void for_each_unit(F f) const {
    cursor next(places_);
    memory_.for_each_unit([&](std::size_t offset, std::size_t bytes) {
      blocks_in_unit used;
      while (next.end() <= offset) next.advance();
      for (cursor c = next; c.begin() < offset + bytes; c.advance()) {
        const std::size_t low = c.begin() > offset ? c.begin() : offset;
        const std::size_t high = c.end() < offset + bytes ? c.end() : offset + bytes;
        used.bytes += high - low;
        if (used.blocks++ == 0) used.first = memory_.base() + c.begin();
        used.live += view_of(c.number()).is == block_view::state::live;
      }
      f(memory_.base() + offset, bytes, used);
    });
  }

  /// Calls f(chunk) for each physical chunk behind bytes of a live block, in ascending order, if memory is mapped in chunks.
  ///   Cost:  linear in the chunks
  template <typename F>
    requires(memory::in_range)
  void for_each_chunk(std::uintptr_t address, std::size_t bytes, F f) const {
    memory_.for_each_chunk(address - memory_.base(), bytes, f);
  }

  /// Whether an address lies in the addresses of the plan.
  ///   Cost:  constant
  [[nodiscard]] bool contains(const void* p) const noexcept { return memory_.contains(p); }
  /// Returns the live block that begins at an address; a block of 0 bytes if there is none.
  ///   Cost:  constant
  [[nodiscard]] block_view live_block_at(const void* p) const noexcept {
    if (!contains(p)) return {};
    const std::uint32_t i = places_.find(reinterpret_cast<std::uintptr_t>(p) - memory_.base());
    const block_view found = i != none ? view_of(i) : block_view{};
    return found.is == block_view::state::live ? found : block_view{};
  }
  /// Returns the block, free or not, that an address lies in; a block of 0 bytes if there is none.
  [[nodiscard]] block_view block_around(const void* p) const noexcept {
    block_view found;
    for_each_block([&found, p](const segment_view&, const block_view& b) {
      if (reinterpret_cast<std::uintptr_t>(p) - b.address < b.bytes) found = b;
    });
    return found;
  }
  /// Returns the segment that an address lies in; a segment of 0 bytes if there is none.
  [[nodiscard]] segment_view segment_around(const void* p) const noexcept {
    segment_view found;
    for_each_block([&found, p](const segment_view& s, const block_view&) {
      if (reinterpret_cast<std::uintptr_t>(p) - s.address < s.bytes) found = s;
    });
    return found;
  }

  /// The use of the memory, without a limit.
  [[nodiscard]] usage bytes() const noexcept {
    usage now;
    places_.for_each_live([&](std::uint32_t i, const follower::node& n) {
      const block_view b = view_of(i);
      now.requested += n.bytes;
      now.active += b.bytes;
      if (b.is == block_view::state::live) now.allocated += b.bytes;
    });
    const std::size_t in_use = now.active;
    now.reserved = static_cast<std::size_t>(memory_.device_bytes().current);
    now.cached = now.reserved > in_use ? now.reserved - in_use : 0;
    return now;
  }
  /// The free bytes that cannot go back, because live or pending blocks share their units.
  [[nodiscard]] std::size_t non_releasable() const noexcept {
    std::size_t result = 0;
    for_each_unit([&result](std::uintptr_t, std::size_t bytes, const blocks_in_unit& used) {
      if (used.blocks > 0) result += bytes - used.bytes;
    });
    return result;
  }

  /// Aborts, because no live block begins at an address of the plan.
  [[noreturn, gnu::noinline, gnu::cold]] void refuse(const char* call, const void* p) const noexcept {
    fixed_text text;
    text.add(call).add(": not the address of a live block; it lies ");
    text.add(reinterpret_cast<std::uintptr_t>(p) - memory_.base()).add(" bytes into the memory of the plan");
    const char* where = ", in no live block, perhaps freed before";
    places_.for_each_live([&](std::uint32_t i, const follower::node&) {
      const block_view b = view_of(i);
      if (reinterpret_cast<std::uintptr_t>(p) - b.address >= b.bytes) return;
      where = b.is == block_view::state::pending ? ", in a freed, still used block" : ", inside a live block";
    });
    fatal(text.add(where).c_str(), p);
  }

 private:
  /// A position among the live blocks, in the order of places.
  class cursor {
   public:
    explicit cursor(const follower& places) noexcept : places_(&places) { advance(); }
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    /// The offsets of the block; after the last block, no memory lies so high.
    [[nodiscard]] std::size_t begin() const noexcept {
      return number_ != none ? places_->offset_of(places_->at(number_)) : ~std::size_t{0};
    }
    [[nodiscard]] std::size_t end() const noexcept {
      return number_ != none ? begin() + places_->bytes_of(places_->at(number_)) : ~std::size_t{0};
    }
    [[nodiscard]] stream_id stream() const noexcept { return places_->track_of(places_->at(number_)).stream; }
    void advance() noexcept { number_ = places_->next_live(position_); }

   private:
    const follower* places_;
    std::size_t position_ = 0;
    std::uint32_t number_ = none;
  };

  /// Calls f(offset, end) for each run of adjacent memory.
  template <typename F>
  void for_each_run(F f) const {
    std::size_t begin = 0, end = 0;
    memory_.for_each_unit([&](std::size_t offset, std::size_t bytes) {
      if (offset != end && begin != end) f(begin, end);
      if (offset != end) begin = offset;
      end = offset + bytes;
    });
    if (begin != end) f(begin, end);
  }
  /// The segment that begins at an offset, in memory that goes on until `end`. `next` is the first block there.
  [[nodiscard]] segment_view segment_at(std::size_t offset, std::size_t end, cursor next) const noexcept {
    segment_view segment{memory_.base() + offset, end - offset};
    segment.in_range = memory::in_range;
    if (next.begin() >= end) return segment;
    segment.stream = next.stream();
    while (memory::in_range && next.begin() < end && next.stream() == segment.stream) next.advance();
    if (next.begin() < end && next.stream() != segment.stream) segment.bytes = next.begin() - offset;
    return segment;
  }
  [[nodiscard]] block_view view_of(std::uint32_t i) const noexcept {
    using state = block_view::state;
    const follower::node& n = places_.at(i);
    return {memory_.base() + places_.offset_of(n), places_.bytes_of(n), n.bytes,
            (n.state & follower::is_freed) != 0 ? state::pending : state::live, places_.track_of(n).stream};
  }
  [[nodiscard]] block_view free_block(const segment_view& in, std::size_t begin,
                                      std::size_t end) const noexcept {
    return {memory_.base() + begin, end - begin, 0, block_view::state::free, in.stream};
  }

  const follower& places_;
  const memory& memory_;
};

}  // namespace tessera::inline v0_1::detail
