// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tessera/core/types.hpp>

#include "torch_version.hpp"

namespace torch_cuda {

[[nodiscard]] inline cudaStream_t to_cuda(tessera::stream_id stream) noexcept {
  return reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(stream.handle));
}

/// What PyTorch records of one device: the trace of events, and the stacks of blocks and segments. PyTorch gives the
/// function that takes a stack, which may need Python's lock. So it runs before a call enters the allocator.
class history {
 public:
  explicit history(c10::DeviceIndex device) noexcept : device_(device) {}
  history& operator=(history&&) = delete;

  /// Takes the stack of the calling thread, if PyTorch wants one at this level.
  [[nodiscard]] stack take_stack(torch::RecordContext level) const {
    if (level_.load(std::memory_order_relaxed) < level) return nullptr;
    const torch::CreateContextFn take = take_.load();
    return take != nullptr ? take() : nullptr;
  }
  /// The events of the calling thread have this stack during the lifetime of the object.
  class during {
   public:
    explicit during(const stack& now) noexcept : before_(std::exchange(current(), &now)) {}
    during(const during&) = delete;
    during& operator=(const during&) = delete;
    ~during() { current() = before_; }

   private:
    const stack* before_;
  };
  [[nodiscard]] bool is_enabled() const noexcept { return is_enabled_.load(std::memory_order_relaxed); }

  /// Begins or ends the recording. Entries of the actions in `skipped` are not kept.
  void set(bool enabled, torch::CreateContextFn take, std::size_t entries, torch::RecordContext level,
           bool clears, const std::vector<torch::TraceEntry::Action>& skipped) {
    const std::lock_guard lock(mutex_);
    end_run();
    skipped_.reset();
    for (const torch::TraceEntry::Action each : skipped) skipped_.set(static_cast<std::size_t>(each));
    is_enabled_ = enabled;
    take_ = enabled ? take : nullptr;
    level_ = enabled ? level : torch::RecordContext::NEVER;
    max_entries_ = entries > 0 ? entries : 1;
    if (clears) trace_.clear();
    note_use();
  }
  /// Adds a function that hears each event at once, such as that of PyTorch's process group for NCCL, which registers and
  /// deregisters memory. A whole segment or a whole chunk of a range comes before a block uses it, and goes while it is
  /// still there. Memory that sleeps is reported as unmapped.
  void add_tracker(torch::AllocatorTraceTracker tracker) {
    const std::lock_guard lock(mutex_);
    trackers_.push_back(std::move(tracker));
    note_use();
  }
  [[nodiscard]] std::vector<torch::TraceEntry> entries() {
    const std::lock_guard lock(mutex_);
    end_run();
    return {trace_.begin(), trace_.end()};
  }
  /// The stack that allocated the live block at an address; null if none was taken.
  [[nodiscard]] stack stack_of(const void* p) {
    const std::lock_guard lock(mutex_);
    return of_block(reinterpret_cast<std::uintptr_t>(p));
  }
  /// Records an entry that is no event of the allocator.
  void note(torch::TraceEntry::Action what, std::uintptr_t address, std::size_t bytes,
            tessera::stream_id stream, tessera::pool_id pool, const stack& with) {
    const std::lock_guard lock(mutex_);
    record(what, address, bytes, to_cuda(stream), name_of(pool), with, device_);
  }
  /// Gives a private pool of an allocator PyTorch's name. Entries and snapshots show it.
  void name_pool(tessera::pool_id pool, pool_name name) {
    const std::lock_guard lock(names_mutex_);
    names_[pool.number] = name;
  }
  void forget_pool(tessera::pool_id pool) {
    const std::lock_guard lock(names_mutex_);
    names_.erase(pool.number);
  }
  /// PyTorch's name of a private pool; (0, 0) for the default pools.
  [[nodiscard]] pool_name name_of(tessera::pool_id pool) const {
    if (pool == tessera::default_pools) return {0, 0};
    const std::lock_guard lock(names_mutex_);
    const auto found = names_.find(pool.number);
    return found != names_.end() ? found->second : pool_name{0, 0};
  }

  /// Sets the stacks of segments and of their blocks, and notes that a snapshot of these pools was taken.
  void complete(std::vector<torch::SegmentInfo>& segments, pool_name of) {
    const std::lock_guard lock(mutex_);
    std::size_t active_bytes = 0;
    for (torch::SegmentInfo& segment : segments) {
      segment.context_when_allocated = of_segment(segment.address);
      std::uintptr_t at = segment.address;
      for (torch::BlockInfo& block : segment.blocks) {
        if (block.active) block.context_when_allocated = of_block(at);
        at += block.size;
      }
      active_bytes += segment.active_size;
    }
    record(torch::TraceEntry::SNAPSHOT, 0, active_bytes, nullptr, of, nullptr, 0);
  }
  /// Receives the events of the allocator. An entry is lost if host memory runs out.
  void on(const tessera::allocator_event& e) noexcept {
    if (!is_used_.load(std::memory_order_relaxed)) return;
    try {
      const std::lock_guard lock(mutex_);
      handle(e);
      if (!is_enabled()) note_use();
    } catch (const std::bad_alloc&) {
    }
  }

 private:
  using stacks = std::unordered_map<std::uintptr_t, stack>;
  /// The stack that acquired a segment, or the memory at the begin of a range.
  struct segment_stack {
    stack of;
    std::size_t bytes = 0;
  };
  using action = tessera::allocator_event::action;

  [[nodiscard]] static const stack*& current() noexcept {
    static thread_local const stack* now = nullptr;
    return now;
  }
  [[nodiscard]] stack of_block(std::uintptr_t address) const {
    const auto found = blocks_.find(address);
    return found != blocks_.end() ? found->second : nullptr;
  }
  [[nodiscard]] stack of_segment(std::uintptr_t address) const {
    const auto found = segments_.find(address);
    return found != segments_.end() ? found->second.of : nullptr;
  }

  void note_use() { is_used_ = is_enabled() || !trackers_.empty() || !blocks_.empty() || !segments_.empty(); }
  void keep_for_block(std::uintptr_t address, const stack& now) {
    if (now != nullptr) {
      blocks_[address] = now;
    } else {
      blocks_.erase(address);
    }
  }
  /// Memory that is mapped behind other memory of a range joins it.
  void note_mapped(std::uintptr_t address, std::size_t bytes, const stack& now) {
    const auto above = segments_.upper_bound(address);
    if (above != segments_.begin()) {
      const auto& [begin, below] = *std::prev(above);
      if (begin + below.bytes == address) {
        std::prev(above)->second.bytes += bytes;
        return;
      }
    }
    if (now != nullptr) segments_[address] = {now, bytes};
  }

  void handle(const tessera::allocator_event& e) {
    const stack now = current() != nullptr ? *current() : nullptr;
    const auto record_with = [&](torch::TraceEntry::Action what, const stack& with) {
      record(what, e.address, e.bytes, to_cuda(e.stream), name_of(e.private_pool), with, device_);
    };
    const auto now_or = [&now](const stack& kept) { return now != nullptr ? now : kept; };
    switch (e.what) {
      case action::alloc:
        keep_for_block(e.address, now);
        // PyTorch forgets the stack of a segment when its first block is split.
        if (const auto at = segments_.find(e.address); at != segments_.end() && e.block < at->second.bytes)
          segments_.erase(at);
        return record_with(torch::TraceEntry::ALLOC, now);
      case action::free_requested:
        return record_with(torch::TraceEntry::FREE_REQUESTED, now_or(of_block(e.address)));
      case action::free_completed:
        record_with(torch::TraceEntry::FREE_COMPLETED, now_or(of_block(e.address)));
        blocks_.erase(e.address);
        return;
      case action::segment_alloc:
        if (now != nullptr) segments_[e.address] = {now, e.bytes};
        return record_with(torch::TraceEntry::SEGMENT_ALLOC, now);
      case action::segment_free:
        record_with(torch::TraceEntry::SEGMENT_FREE, now_or(of_segment(e.address)));
        segments_.erase(e.address);
        return;
      case action::segment_map:
        note_mapped(e.address, e.bytes, now);
        return record_run(torch::TraceEntry::SEGMENT_MAP, e, now);
      case action::segment_unmap:
        return record_run(torch::TraceEntry::SEGMENT_UNMAP, e, now_or(of_segment(e.address)));
      case action::sleep:
        tell(entry_of(torch::TraceEntry::SEGMENT_UNMAP, e, nullptr));
        if (!trackers_.empty()) asleep_.insert(e.address);
        return;
      case action::wake:
        asleep_.erase(e.address);
        return tell(entry_of(torch::TraceEntry::SEGMENT_MAP, e, nullptr));
      case action::oom:
        return record(torch::TraceEntry::OOM, e.address, e.block, to_cuda(e.stream), name_of(e.private_pool),
                      now, device_);
      default: return;
    }
  }
  [[nodiscard]] torch::TraceEntry entry_of(torch::TraceEntry::Action what, const tessera::allocator_event& e,
                                           const stack& with) const {
    return make_entry(what, device_, e.address, e.bytes, to_cuda(e.stream), name_of(e.private_pool),
                      keeps_stacks() ? with : nullptr);
  }
  /// Records that memory is mapped or unmapped. PyTorch's trace has one entry for adjacent chunks.
  void record_run(torch::TraceEntry::Action what, const tessera::allocator_event& e, const stack& with) {
    if (!is_enabled() && trackers_.empty()) return;
    const torch::TraceEntry entry = entry_of(what, e, with);
    if (asleep_.erase(e.address) == 0) tell(entry);
    if (run_ && run_->action_ == what && run_->addr_ + run_->size_ == e.address) {
      run_->size_ += e.bytes;
      return;
    }
    end_run();
    run_ = entry;
  }
  void end_run() {
    if (run_) keep(*std::exchange(run_, std::nullopt));
  }
  [[nodiscard]] bool keeps_stacks() const noexcept {
    return level_.load(std::memory_order_relaxed) >= torch::RecordContext::ALLOC;
  }
  void record(torch::TraceEntry::Action what, std::uintptr_t address, std::size_t bytes, cudaStream_t stream,
              pool_name pool, const stack& with, c10::DeviceIndex device) {
    end_run();
    if (!is_enabled() && trackers_.empty()) return;
    const torch::TraceEntry entry =
        make_entry(what, device, address, bytes, stream, pool, keeps_stacks() ? with : nullptr);
    tell(entry);
    keep(entry);
  }
  void tell(const torch::TraceEntry& entry) const {
    for (const torch::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  }
  void keep(const torch::TraceEntry& entry) {
    if (!is_enabled() || skipped_[static_cast<std::size_t>(entry.action_)]) return;
    while (trace_.size() >= max_entries_) trace_.pop_front();
    trace_.push_back(entry);
  }

  c10::DeviceIndex device_;
  mutable std::mutex mutex_;
  std::atomic<bool> is_used_{false};  // whether an event changes anything
  std::atomic<bool> is_enabled_{false};
  std::atomic<torch::CreateContextFn> take_{nullptr};
  std::atomic<torch::RecordContext> level_{torch::RecordContext::NEVER};
  std::size_t max_entries_ = 1;
  std::bitset<16> skipped_;  // the actions that are not kept, by number
  std::deque<torch::TraceEntry> trace_;
  std::optional<torch::TraceEntry> run_;  // the latest entry of mapping or unmapping, which may grow
  std::vector<torch::AllocatorTraceTracker> trackers_;
  std::unordered_set<std::uintptr_t> asleep_;  // chunks that the trackers heard of as unmapped
  stacks blocks_;
  std::map<std::uintptr_t, segment_stack> segments_;
  mutable std::mutex names_mutex_;  // taken with or without the other
  std::unordered_map<std::uint64_t, pool_name> names_;
};

/// The observer of an allocator, which reports to a history.
struct reports_to {
  history* to = nullptr;
  void on(const tessera::allocator_event& e) noexcept {
    if (to != nullptr) to->on(e);
  }
};

}  // namespace torch_cuda
