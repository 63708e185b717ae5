// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/provider/capabilities.hpp>

namespace tessera::inline v0_1::extension {

/// The result of marking bytes as faulty.
struct [[nodiscard]] faulty_memory_result : outcome {
  std::size_t bytes = 0;  ///< marked bytes. Those that are no memory of the allocator, or sleep, are ignored
  std::size_t live = 0;   ///< live blocks that overlap the given bytes and have marked ones
};

/// The faulty memory of an allocator, in bytes.
struct faulty_memory_usage {
  std::size_t faulty = 0;    ///< marked, and not repaired or given back since
  std::size_t withheld = 0;  ///< withheld from requests: faulty bytes that no block uses, in whole blocks
  std::size_t live = 0;      ///< in live blocks that have faulty bytes
  bool operator==(const faulty_memory_usage&) const = default;
};

/// Withholds faulty memory from requests. Choose it if the device reports uncorrectable memory errors with their addresses,
/// and the program goes on with the rest of the memory.
///
/// The program marks the addresses. Free memory there serves no request any more. A live block there stays live;
/// `for_each_live` lists these blocks, whose contents the program must compute again. When they are freed, their faulty bytes
/// are withheld, and the rest of the block serves. Statistics count withheld bytes as pending, like a
/// block that was freed and waits for its events.
///
/// Emptying the cache gives a segment, or in ranges a chunk, with withheld bytes back to the device once no block uses
/// it, even for trim(keep). The addresses are then no longer marked, because the device may give other memory there. It is up to
/// the driver to retire a faulty page, or to hand it out again. A segment stays withheld if it would not go to the device: if
/// an adaptor such as preallocating would keep it, or if a pool_upstream gave it.
/// Faulty chunks never move to other addresses, and stay mapped while their pool sleeps.
///
///     using tessera::extension::faulty_memory;
///     tessera::caching_allocator<tessera::recipe::torch_npu<>, tessera::provider::simulated_npu, faulty_memory> checked;
///     auto* const p = static_cast<std::byte*>(checked.allocate(1_MiB));
///     const auto marked = checked.get<faulty_memory>().mark_faulty(p + 4096, 64);
///     std::printf("%zu live blocks have faulty bytes\n", marked.live);
///     checked.deallocate(p);
///     std::printf("%zu bytes are withheld\n", checked.get<faulty_memory>().current_usage().withheld);  // 512
///     checked.trim();                                                                               // now 0
///
///   Cost:    a comparison for each free. While memory is marked: for each free linear in the marked ranges, and linear in
///            the blocks if the block has faulty bytes
///   Source:  torch_npu's checkUceInMemPool, which marks blocks alike but lets them serve again after a free
struct faulty_memory {
  /// Keeps would_fit() from compiling, because that does not know which memory stays.
  static constexpr bool holds_memory = true;
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

/// The faulty memory of one allocator.
///
/// A withheld block is pending without a request, so it does not coalesce, move or go back. If host memory runs out when
/// a block is freed, the whole free block is withheld, until the next call that marks, repairs or empties the cache.
template <typename Core>
class faulty_memory::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using block = tessera::detail::block;
  using manager_type = typename Core::manager;
  using order = typename manager_type::order;
  using group = typename Core::group;
  using allocator = typename Core::allocator;
  static constexpr bool has_ranges = allocator::has_ranges;
  static constexpr bool shares = Core::traits::reuses_across_streams;

 public:
  state(allocator& in, const faulty_memory&) noexcept : in_(in) {}
  state& operator=(state&&) = delete;

  // Calls of the door.

  [[nodiscard]] faulty_memory_result mark_faulty(std::uintptr_t address, std::size_t bytes) noexcept {
    faulty_memory_result result;
    if (bytes == 0) {
      result.why = "there are no bytes to mark";
      return result;
    }
    const std::uintptr_t end = end_of(address, bytes);
    std::size_t parts = 0;
    memory().for_each_unit([&](const part&) { ++parts; }, address, end);
    if (!ranges_.reserve(parts)) {
      result.why = no_host_memory;
      return result;
    }
    const auto mark = [&](const part& in) {
      const std::uintptr_t low = address > in.address ? address : in.address;
      const std::uintptr_t high = end < in.end() ? end : in.end();
      result.bytes += high - low;
      add(low, high, in);
    };
    memory().for_each_unit(mark, address, end);
    if (result.bytes > 0) rearrange();
    memory().for_each_block_in(address, end,
                               [&](const block& b) { result.live += is_live_and_faulty(b) ? 1 : 0; });
    return result;
  }
  [[nodiscard]] outcome mark_repaired(std::uintptr_t address, std::size_t bytes) noexcept {
    if (bytes == 0) return {"there are no bytes to repair"};
    const std::uintptr_t end = end_of(address, bytes);
    if (!ranges_.reserve(1)) return {no_host_memory};
    bool any = false;
    for (faulty_range** at = &first_; *at != nullptr;) {
      faulty_range& r = **at;
      if (!r.overlaps(address, end)) {
        at = &r.next;
        continue;
      }
      any = true;
      const std::uintptr_t high = r.end;
      if (r.begin < address) {
        r.end = address;
        at = &r.next;
        if (end < high) at = &insert(end, high, r.in)->next;
      } else if (end < high) {
        r.begin = end;
        at = &r.next;
      } else {
        erase(at);
      }
    }
    if (any) rearrange();
    return {};
  }
  [[nodiscard]] bool is_safe(std::uintptr_t address) const noexcept {
    if (first_ == nullptr) return true;
    const block* const around = memory().block_at(address);
    return !any_in(address, address + 1) && (around == nullptr || !is_live_and_faulty(*around));
  }
  /// Calls f(block) for each live block that has faulty bytes.
  template <typename F>
  void for_each_live(F f) const {
    if (first_ == nullptr) return;
    manager().for_each_block([&](const block& b) {
      if (is_live_and_faulty(b)) f(b);
    });
  }
  [[nodiscard]] faulty_memory_usage current_usage() const noexcept {
    faulty_memory_usage now{.withheld = withheld_};
    for (const faulty_range* r = first_; r != nullptr; r = r->next) now.faulty += r->end - r->begin;
    for_each_live([&now](const block& b) { now.live += b.size; });
    return now;
  }

  // Questions and reports of the core.

  [[nodiscard]] bool may_reuse(const block& live) const noexcept { return !any_in(live.address, live.end()); }
  [[nodiscard]] bool may_unmap(std::uintptr_t address, std::size_t bytes) const noexcept {
    return !any_in(address, address + bytes) || goes_to_device(address);
  }
  [[nodiscard]] bool may_sleep(std::uintptr_t address, std::size_t bytes) const noexcept {
    return !any_in(address, address + bytes);
  }
  [[nodiscard]] const char* why_not_checkpointable(const group& g) const noexcept {
    const char* why = nullptr;
    for (const faulty_range* r = first_; r != nullptr; r = r->next) {
      const auto is_of_pool = [&g](const block& b) { return b.list->where.group == &g; };
      if (memory().find_in(r->begin, r->end, is_of_pool) != nullptr) why = "the pool has faulty memory";
    }
    return why;
  }
  void on_free(const block& b, std::size_t offset, std::size_t size) noexcept {
    has_freed_ = first_ != nullptr && any_in(b.address + offset, b.address + offset + size);
  }
  void on_freed(block& b) noexcept {
    if (!std::exchange(has_freed_, false)) return;
    withhold_in(b);
    access::extensions(in_).on_rearrange();
  }
  /// Gives the faulty parts that no block uses back to the device.
  void on_trim() noexcept {
    if (first_ != nullptr && manager().may_wait()) {
      if (is_coarse_) rearrange();
      for (faulty_range* r = first_; r != nullptr; r = r->next) r->is_tried = false;
      for (faulty_range* r = first_; r != nullptr && manager().may_wait();) {
        if (r->is_tried) {
          r = r->next;
          continue;
        }
        try_to_release(r->in);
        r = first_;  // other threads may have run, and begun a capture
      }
    }
    ranges_.purge();
  }
  void explain(auto& numbers) const noexcept {
    if (withheld_ < numbers.block || numbers.largest_free >= numbers.block || numbers.block == 0) return;
    numbers.refuse(refusal::format("%s of unused memory are withheld, because %s are faulty; reserved %s",
                                   format_bytes(withheld_).text(),
                                   format_bytes(current_usage().faulty).text(),
                                   format_bytes(numbers.now.reserved).text()));
  }
  [[nodiscard]] const char* audit() const noexcept {
    const char* broken = nullptr;
    std::size_t found = 0;
    manager().for_each_block([&](const block& b) {
      const bool is_faulty = any_in(b.address, b.end());
      found += b.is_held() ? b.size : 0;
      if (b.is_free() && is_faulty) broken = "no free block has faulty bytes";
      if (b.is_held() && !is_faulty) broken = "a withheld block has faulty bytes";
    });
    return found == withheld_ ? broken : "withheld bytes are counted";
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return ranges_.metadata_bytes(); }

 private:
  static constexpr const char* no_host_memory = "host memory ran out";
  /// A segment or a chunk, which goes back to the device as a whole.
  using part = tessera::detail::heap_unit;
  /// Faulty bytes of one part. Ranges that touch are merged.
  struct faulty_range {
    std::uintptr_t begin;
    std::uintptr_t end;
    part in;
    faulty_range* next;
    bool is_tried;  ///< whether emptying the cache has tried to give the part back
    [[nodiscard]] bool overlaps(std::uintptr_t low, std::uintptr_t high) const noexcept {
      return begin < high && low < end;
    }
  };

  [[nodiscard]] manager_type& manager() const noexcept { return access::manager(in_); }
  [[nodiscard]] auto memory() const noexcept { return access::map(in_); }
  [[nodiscard]] bool is_live_and_faulty(const block& b) const noexcept {
    return b.is_live() && any_in(b.address, b.end());
  }
  [[nodiscard]] static std::uintptr_t end_of(std::uintptr_t address, std::size_t bytes) noexcept {
    return bytes > ~address ? ~std::uintptr_t{0} : address + bytes;
  }

  // The faulty ranges.

  [[nodiscard]] bool any_in(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    const faulty_range* r = first_;
    while (r != nullptr && !r->overlaps(begin, end)) r = r->next;
    return r != nullptr;
  }
  ///   Requires:  a preceding reserve of host memory
  faulty_range* insert(std::uintptr_t low, std::uintptr_t high, const part& in) noexcept {
    faulty_range* const fresh = ranges_.take();
    *fresh = {low, high, in, first_, true};
    return first_ = fresh;
  }
  void erase(faulty_range** at) noexcept {
    faulty_range* const gone = std::exchange(*at, (*at)->next);
    ranges_.give_back(gone);
  }
  /// Adds faulty bytes of a part, and joins them with those that they overlap or touch.
  void add(std::uintptr_t begin, std::uintptr_t end, const part& in) noexcept {
    for (faulty_range** at = &first_; *at != nullptr;) {
      const faulty_range& r = **at;
      if (r.in != in || r.begin > end || begin > r.end) {
        at = &(*at)->next;
        continue;
      }
      begin = r.begin < begin ? r.begin : begin;
      end = r.end > end ? r.end : end;
      erase(at);
    }
    insert(begin, end, in);
  }

  // Blocks.

  /// Withholds the faulty bytes of a free block, in units of the smallest block of the recipe.
  void withhold_in(block& free) noexcept {
    const std::size_t unit = access::policies(in_).rounding.block_size(1);
    const std::uintptr_t end = free.end();
    for (block* b = &free;;) {
      const faulty_range* lowest = nullptr;
      for (const faulty_range* r = first_; r != nullptr; r = r->next) {
        if (r->overlaps(b->address, b->end()) && (lowest == nullptr || r->begin < lowest->begin)) lowest = r;
      }
      if (lowest == nullptr) return;
      std::size_t low = lowest->begin > b->address ? (lowest->begin - b->address) / unit * unit : 0;
      std::size_t high = lowest->end < b->end() ? lowest->end - b->address : b->size;
      high = high + (unit - high % unit) % unit;
      if (high > b->size) high = b->size;
      if (!manager().reserve_blocks()) {
        low = 0;
        high = b->size;
        is_coarse_ = true;
      }
      b = withhold(*b, low, high - low).next;
      if (b->address >= end || !b->is_free()) return;
    }
  }
  /// Takes bytes out of a free block. Counts them as a block that was allocated, freed, and is pending.
  block& withhold(block& from, std::size_t offset, std::size_t size) noexcept {
    const std::size_t pool = from.list->where.pool;
    const std::size_t rest = from.size - size;
    const int before = from.is_split() ? 1 : 0;
    const int after = (offset > 0 ? 1 : 0) + (offset < rest ? 1 : 0);
    block* taken = &from;
    if (offset > 0) {
      taken = &manager().split(from, from.size - offset, false);
      if constexpr (has_ranges) taken->free_since = from.free_since;
      if constexpr (shares) taken->free_after = from.free_after;
      if (offset < rest) taken->list->template insert<order>(*taken);
    }
    if (offset < rest) {
      taken = &manager().split(*taken, size, true);
    } else if (offset == 0) {
      from.list->template erase<order>(from);
    }
    auto& counters = manager().counters();
    if constexpr (!has_ranges) {
      if (before == 0 && after > 0) counters.inactive_split_grew(pool, after, rest);
      if (before == 1) {
        counters.inactive_split_grew(pool, after > 1 ? 1 : 0, 0);
        counters.inactive_split_shrank(pool, after == 0 ? 1 : 0, size);
      }
    }
    counters.free_deferred(pool, size);  // before allocated(), so that no peak of allocated bytes counts it
    counters.allocated(pool, 0, size);
    taken->status.state = block::state::pending;
    taken->request.bytes = 0;
    taken->request.pending_events = 1;
    withheld_ += size;
    return *taken;
  }
  /// Makes a withheld block free.
  void readmit(block& held) noexcept {
    withheld_ -= held.size;
    manager().counters().free_completed(held.list->where.pool, 0, held.size);
    manager().mark_free_after_submitted(held);
    manager().make_free(held);
  }
  void readmit_in(std::uintptr_t begin, std::uintptr_t end) noexcept {
    memory().for_each_block_in(begin, end, [this](block& b) {
      if (b.is_held()) readmit(b);
    });
  }
  void withhold_free() noexcept {
    for (const faulty_range* r = first_; r != nullptr; r = r->next) {
      memory().for_each_block_in(r->begin, r->end, [this](block& b) {
        if (b.is_free()) withhold_in(b);
      });
    }
  }
  /// Withholds what is faulty now, and nothing else.
  void rearrange() noexcept {
    is_coarse_ = false;
    readmit_in(0, ~std::uintptr_t{0});
    withhold_free();
    access::extensions(in_).on_rearrange();
  }

  // Memory that goes back.

  /// Whether released memory goes to the device, and not to an adaptor or a source that may give it again.
  [[nodiscard]] bool goes_to_device(std::uintptr_t address) const noexcept {
    const block* const b = memory().block_at(address);
    return !tessera::detail::keeps_released(manager().provider(), reinterpret_cast<const void*>(address)) &&
           (b == nullptr || !access::extensions(in_).supplies(manager_type::group_of(*b->list)));
  }
  void try_to_release(const part p) noexcept {
    for (faulty_range* r = first_; r != nullptr; r = r->next) r->is_tried = r->is_tried || r->in == p;
    const block* const first = memory().block_at(p.address);
    const auto is_used = [](const block& b) { return !b.is_idle(); };
    if (first == nullptr || memory().find_in(p.address, p.end(), is_used) != nullptr) return;
    if (!memory().may_release(*first) || !memory().has_memory(*first)) return;
    if (!manager().may_unmap(p.address, p.bytes)) return;
    faulty_range* going = nullptr;
    for (faulty_range** at = &first_; *at != nullptr;) {
      faulty_range* const r = *at;
      if (r->in != p) {
        at = &r->next;
        continue;
      }
      *at = r->next;
      r->next = std::exchange(going, r);
    }
    readmit_in(p.address, p.end());
    withhold_free();  // a block may have been withheld as a whole
    const bool works = give_back(p);
    while (going != nullptr) {
      faulty_range* const r = std::exchange(going, going->next);
      if (works) {
        ranges_.give_back(r);
      } else {
        r->next = std::exchange(first_, r);
      }
    }
    if (!works) withhold_free();
    access::extensions(in_).on_rearrange();
  }
  /// Gives back a part whose blocks are free. Returns false if the device failed, or a block was withheld as a whole.
  [[nodiscard]] bool give_back(const part& p) noexcept {
    auto& backend = access::backend(in_);
    access::sharing(in_).coalesce_idle();
    block* const idle = memory().block_at(p.address);
    if (!idle->is_free()) return false;
    if constexpr (has_ranges) {
      auto& all = backend.ranges();
      return all.unmap_chunks(
                 *idle, [&p](const auto& c) { return c.address == p.address; },
                 [&](auto& c, block& hole) {
                   all.chunks().destroy(manager().provider(), c);
                   if (!hole.is_split()) all.unreserve_range(hole);
                 }) > 0;
    } else {
      return !idle->is_split() && backend.release(*idle) > 0;
    }
  }

  allocator& in_;
  tessera::detail::slab<faulty_range> ranges_;
  faulty_range* first_ = nullptr;
  std::size_t withheld_ = 0;
  bool has_freed_ = false;  // whether the latest on_free() reported faulty bytes
  bool is_coarse_ = false;  // whether more may be withheld than is faulty
};

/// What `allocator.get<faulty_memory>()` returns.
template <typename Allocator>
class faulty_memory::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Marks bytes as faulty. Those that are no memory of this allocator, and those that sleep, are ignored. Bytes may be
  /// marked twice.
  ///   Returns:  how much of this allocator's memory is concerned; or why nothing changed: there are no bytes, or host
  ///             memory ran out
  ///   Cost:     linear in the blocks, and in ranges in the chunks
  faulty_memory_result mark_faulty(const void* p, std::size_t bytes) noexcept {
    return in_->template change_extension<faulty_memory>(
        [=](auto& s) { return s.mark_faulty(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }
  /// Takes the mark back from bytes, for example after the driver replaced the memory. Unused ones serve again. Bytes
  /// without a mark are ignored.
  ///   Returns:  why nothing changed: there are no bytes, or host memory ran out
  ///   Cost:     linear in the blocks
  outcome mark_repaired(const void* p, std::size_t bytes) noexcept {
    return in_->template change_extension<faulty_memory>(
        [=](auto& s) { return s.mark_repaired(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }
  /// Whether neither the byte at an address nor, if a live block contains it, any byte of that block is marked.
  ///   Cost:  constant while nothing is marked; else linear in the blocks
  [[nodiscard]] bool is_safe(const void* p) const noexcept {
    return in_->template visit_extension<faulty_memory>(
        [=](const auto& s) { return s.is_safe(reinterpret_cast<std::uintptr_t>(p)); });
  }
  /// Calls f(block_view) for each live block that has faulty bytes, with the lock of a front end held. f must not use the
  /// allocator.
  ///   Cost:  constant while nothing is marked; else linear in the blocks
  template <typename F>
  void for_each_live(F f) const {
    in_->template visit_extension<faulty_memory>([&f](const auto& s) {
      s.for_each_live([&f](const tessera::detail::block& b) {
        f(block_view{b.address, b.size, b.request.bytes, block_view::state::live, b.list->key});
      });
    });
  }
  ///   Cost:  constant while nothing is marked; else linear in the blocks
  [[nodiscard]] faulty_memory_usage current_usage() const noexcept {
    return in_->template visit_extension<faulty_memory>([](const auto& s) { return s.current_usage(); });
  }

 private:
  Allocator* in_;
};

}  // namespace tessera::inline v0_1::extension
