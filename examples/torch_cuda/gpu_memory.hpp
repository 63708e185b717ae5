// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <tessera/interop/torch_devices.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>

#include "chosen_recipe.hpp"
#include "gpu_allocators.hpp"
#include "history.hpp"
#include "named_pools.hpp"
#include "planned_blocks.hpp"
#include "torch_version.hpp"

namespace torch_cuda {

/// The states of the private pools of one name, as PyTorch passes them around.
struct saved_pool : torch::AllocatorState {
  /// The blocks that a restore freed, and those that are live again.
  struct change {
    std::vector<void*> freed, allocated;
  };
  std::array<tessera::extension::pool_checkpoint, gpu_allocators::kinds> states;
};

/// The memory of one GPU, with all that PyTorch's interface asks of one device.
class gpu_memory {
 public:
  using filter = named_pools<gpu_allocators>::filter;
  using rejection_observer = std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>;

  gpu_memory(const tessera::provider::cuda_driver& driver, c10::DeviceIndex number)
      : number_(number),
        history_(number),
        memory_(driver, number, history_, plan_or_error()),
        pools_(memory_, history_),
        planned_(history_) {
    follow_settings();
    if (torch_settings::fraction() != 1) set_fraction(torch_settings::fraction());
  }
  gpu_memory& operator=(gpu_memory&&) = delete;

  ///   Throws:  c10::OutOfMemoryError
  [[nodiscard]] void* allocate(std::size_t bytes, cudaStream_t stream) {
    const stack now = history_.take_stack(torch::RecordContext::STATE);
    const history::during labelled(now);
    if (settings_.differ(bytes)) [[unlikely]]
      follow_settings();
    const tessera::stream_id id(stream);
    const segments_from source(pools_.source_for(stream));
    void* const p = memory_.with_now([&](auto& in) {
      void* const found = in.try_allocate(bytes, id);
      if (found == nullptr) [[unlikely]]
        raise_out_of_memory(in, bytes, id);
      note_if_planned(in, found);
      return found;
    });
    if (c10::memoryProfilingEnabled()) report(p, static_cast<std::int64_t>(find(p).bytes));
    return p;
  }

  /// Frees a block, and returns true. Returns false if there is no such block here.
  [[nodiscard]] bool try_deallocate(void* p) {
    const stack now = history_.take_stack(torch::RecordContext::ALL);
    const history::during labelled(now);
    const std::size_t bytes = c10::memoryProfilingEnabled() ? find(p).bytes : 0;
    const bool is_freed = is_in_any([&](auto& in) {
      if (const tessera::block_view planned = planned_block_at(in, p); planned.bytes > 0)
        planned_.note_free(planned);
      return in.try_deallocate(p);
    });
    if (!is_freed) return false;
    if (bytes > 0) report(p, -static_cast<std::int64_t>(bytes));
    return true;
  }
  [[nodiscard]] bool try_record_stream(void* p, cudaStream_t stream) {
    return is_in_any([&](auto& in) {
      return find(in, p).bytes > 0 && ((void)in.record_stream(p, tessera::stream_id(stream)), true);
    });
  }
  /// The segment of a live block; of 0 bytes if there is no such block here.
  [[nodiscard]] tessera::segment_view segment_of(const void* p) {
    tessera::segment_view found{};
    (void)is_in_any([&](auto& in) { return (found = tessera::observe::segment_of(in, p)).bytes > 0; });
    return found;
  }

  /// Makes a handle by which another process maps the chunks of a live block in a range. Returns false if there is no such
  /// block here.
  ///   Throws:  tessera::provider::cuda_driver_error
  [[nodiscard]] bool try_share(const void* p, tessera::provider::cuda_shared_part& part) {
    return is_in_any([&](auto& in) {
      const std::size_t bytes = find(in, p).bytes;
      if (bytes > 0) in.visit_provider([&](gpu& device) { part = device.share(p, bytes); });
      return bytes > 0;
    });
  }
  /// The devices with access to the memory of ranges.
  [[nodiscard]] std::vector<int> peers() {
    const std::lock_guard lock(mutex_);
    return memory_.peers();
  }

  /// Empties the caches of all pools, or of one private pool.
  void empty_cache(pool_name of) {
    const stack now = history_.take_stack(torch::RecordContext::ALL);
    const history::during labelled(now);
    if (of == all_pools) return memory_.for_each([](auto& in, std::size_t) { in.trim(); });
    const auto pool = pools_.find(of);
    memory_.for_each([&pool](auto& in, std::size_t kind) {
      in.template get<tessera::extension::private_pools>().trim(pool[kind]);
    });
  }
  void set_fraction(double fraction) {
    const double bytes = fraction * static_cast<double>(memory_on_device().total);
    if constexpr (torch_settings::whole_device_is_limit) {
      allowed_ = static_cast<std::size_t>(bytes);
    } else {
      allowed_ = fraction < 1 ? static_cast<std::size_t>(std::llround(bytes)) : tessera::unlimited;
    }
    memory_.set_limit(allowed_);
  }
  [[nodiscard]] double fraction() const {
    const std::size_t allowed = allowed_;
    if (allowed == tessera::unlimited) return 1;
    return static_cast<double>(allowed) / static_cast<double>(memory_on_device().total);
  }
  /// The bytes of the largest free block; at least `least`, or the free bytes of the device if it is 0.
  [[nodiscard]] std::size_t largest_free(std::size_t least) {
    if (least == 0) least = memory_on_device().free;
    for_each_block([&least](std::size_t, const tessera::segment_view&, const tessera::block_view& b) {
      if (b.is == tessera::block_view::state::free && b.bytes > least) least = b.bytes;
    });
    return least;
  }
  /// Whether memory was ever mapped into a range of addresses.
  [[nodiscard]] bool has_ranges() {
    bool any = false;
    memory_.for_each([&any](auto& in, std::size_t) {
      any = any || is_planned<decltype(in)> ||
            (gpu_allocators::settings_of(in).uses_ranges() && in.statistics().num_device_alloc > 0);
    });
    return any;
  }

  /// Adds up the allocators. With several, their peaks add up to an upper bound.
  [[nodiscard]] c10::CachingDeviceAllocator::DeviceStats statistics() {
    c10::CachingDeviceAllocator::DeviceStats to;
    memory_.for_each([&to](auto& in, std::size_t) {
      const auto from = in.statistics();
      tessera::interop::add_torch_statistics(to, from);
      if constexpr (requires { from.by_plan; }) add_reserved(to, from.by_plan.device_bytes);
    });
    if (memory_.planned() != nullptr) planned_.add_to(to);
    std::int64_t& peak = to.reserved_bytes[0].peak;
    peak = std::min(peak, static_cast<std::int64_t>(memory_.peak_reserved()));
    to.max_split_size =
        static_cast<std::int64_t>(memory_.with_now([](auto& in) { return in.statistics().max_split_size; }));
    return to;
  }
  void reset_peaks() {
    memory_.for_each([](auto& in, std::size_t) { in.reset_peak_statistics(); });
    planned_.reset_peaks();
    memory_.reset_peak();
  }
  void reset_accumulated() {
    memory_.for_each([](auto& in, std::size_t) { in.reset_accumulated_statistics(); });
    planned_.reset_accumulated();
  }

  /// The segments of all pools, or of one private pool, in the order of addresses.
  [[nodiscard]] std::vector<torch::SegmentInfo> segments(pool_name of) {
    std::map<std::uintptr_t, torch::SegmentInfo> found;
    for_each_block([&](std::size_t, const tessera::segment_view& segment, const tessera::block_view& b) {
      const auto [at, is_new] = found.try_emplace(segment.address);
      torch::SegmentInfo& to = at->second;
      if (is_new) {
        to.device = number_;
        to.address = segment.address;
        to.stream = to_cuda(segment.stream);
        to.is_large = segment.pool == 1;
        to.is_expandable = segment.in_range;
        to.owner_private_pool_id = history_.name_of(segment.private_pool);
      }
      torch::BlockInfo& block = to.blocks.emplace_back();
      block.size = b.bytes;
      block.requested_size = b.requested;
      block.allocated = b.is == tessera::block_view::state::live;
      block.active = b.is != tessera::block_view::state::free;
      to.total_size += b.bytes;
      if (block.allocated) to.allocated_size += b.bytes;
      if (block.active) {
        to.active_size += b.bytes;
        to.requested_size += b.requested;
      }
    });
    std::vector<torch::SegmentInfo> result;
    for (auto& [address, segment] : found) {
      if (of == all_pools || segment.owner_private_pool_id == of) result.push_back(std::move(segment));
    }
    history_.complete(result, of);
    return result;
  }
  void add_peer(int device) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(memory_.add_peer(device), "device ", device, " gets no access to the memory of device ",
                static_cast<int>(number_));
  }
  /// Gives all memory in ranges back to the driver, even under live blocks. Saves its contents, or discards them.
  ///   Returns:  why not, or null
  [[nodiscard]] const char* sleep(bool saves) {
    using tessera::extension::sleep_contents;
    return in_each([saves](auto& in) {
      return in.template get<tessera::extension::sleep_mode>().sleep(saves ? sleep_contents::save
                                                                           : sleep_contents::discard);
    });
  }
  [[nodiscard]] const char* wake() {
    return in_each([](auto& in) { return in.template get<tessera::extension::sleep_mode>().wake(); });
  }
  /// Says why the latest request that failed did so; empty if none failed.
  [[nodiscard]] std::string explanation() {
    const std::lock_guard lock(mutex_);
    return explanation_;
  }
  [[nodiscard]] history& seen() noexcept { return history_; }
  void add_out_of_memory_observer(torch::OutOfMemoryObserver observer) {
    const std::lock_guard lock(mutex_);
    observers_.push_back(std::move(observer));
  }
  /// Calls `observer` with the device, the bytes of a request that was rejected before the driver was asked, all reserved
  /// bytes, and the capacity.
  void add_rejection_observer(rejection_observer observer) {
    const std::lock_guard lock(mutex_);
    rejection_observers_.push_back(std::move(observer));
  }
  /// Records words about a live block. Returns false if there is no such block here.
  [[nodiscard]] bool try_annotate(const void* p, torch::TraceEntry::Action what) {
    const tessera::segment_view segment = segment_of(p);
    if (segment.bytes == 0) return false;
    history_.note(what, reinterpret_cast<std::uintptr_t>(p), find(p).bytes, segment.stream,
                  segment.private_pool, history_.stack_of(p));
    return true;
  }

  [[nodiscard]] named_pools<gpu_allocators>& pools() noexcept { return pools_; }
  /// Whether the live blocks of a pool are exactly these.
  [[nodiscard]] bool has_live_blocks(pool_name name, const std::unordered_set<void*>& expected) {
    const auto pool = pools_.find(name);
    std::size_t live = 0;
    bool all_expected = true;
    for_each_block([&](std::size_t kind, const tessera::segment_view& segment, const tessera::block_view& b) {
      if (segment.private_pool != pool[kind] || b.is != tessera::block_view::state::live) return;
      ++live;
      all_expected = all_expected && expected.count(reinterpret_cast<void*>(b.address)) > 0;
    });
    return all_expected && live == expected.size();
  }
  [[nodiscard]] std::shared_ptr<torch::AllocatorState> save_pool(pool_name name) {
    const stack now = history_.take_stack(torch::RecordContext::ALL);
    const history::during labelled(now);
    const auto pool = pools_.find(name);
    auto saved = std::make_shared<saved_pool>();
    memory_.for_each([&](auto& in, std::size_t kind) {
      auto& state = saved->states[kind] =
          in.template get<tessera::extension::checkpoints>().record(pool[kind]);
      TORCH_CHECK(state, "the state of the private pool cannot be saved: ", state.why());
    });
    return saved;
  }
  [[nodiscard]] saved_pool::change restore_pool(const saved_pool& from) {
    const stack now = history_.take_stack(torch::RecordContext::STATE);
    const history::during labelled(now);
    saved_pool::change all;
    memory_.for_each([&](auto& in, std::size_t kind) {
      if (!from.states[kind]) return;
      const auto result = in.template get<tessera::extension::checkpoints>().restore(from.states[kind]);
      TORCH_CHECK(result, "the state of the private pool cannot be restored: ", result.why);
      all.freed.insert(all.freed.end(), result.freed.begin(), result.freed.end());
      all.allocated.insert(all.allocated.end(), result.allocated.begin(), result.allocated.end());
    });
    return all;
  }

 private:
  struct device_bytes {
    std::size_t free = 0;
    std::size_t total = 0;
  };
  [[nodiscard]] device_bytes memory_on_device() const {
    c10::DeviceIndex before = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&before));
    C10_CUDA_CHECK(c10::cuda::SetDevice(number_));
    device_bytes found;
    const cudaError_t answer = cudaMemGetInfo(&found.free, &found.total);
    C10_CUDA_CHECK(c10::cuda::SetDevice(before));
    C10_CUDA_CHECK(answer);
    return found;
  }
  template <typename F>
  void for_each_block(F f) {
    memory_.for_each([&f](auto& in, std::size_t kind) {
      tessera::observe::for_each_block(in, [&](const tessera::segment_view& segment,
                                               const tessera::block_view& b) { f(kind, segment, b); });
    });
  }
  /// Calls f(allocator) for each allocator with memory in ranges. Returns the first reason why one failed, or null.
  template <typename F>
  [[nodiscard]] const char* in_each(F f) {
    const char* why = "no memory is in expandable segments";
    bool any = false;
    memory_.for_each([&](auto& in, std::size_t) {
      if constexpr (is_planned<decltype(in)>) {
        any = true;
        why = "an allocator that follows a plan cannot sleep";
      } else {
        if (!in.settings().uses_ranges() || (any && why != nullptr)) return;
        any = true;
        why = f(in).why;
      }
    });
    return why;
  }
  /// Calls f(allocator) until it returns true; first for the one that serves requests now.
  template <typename F>
  bool is_in_any(F f) {
    const void* asked = nullptr;
    bool is_found = memory_.with_now([&](auto& in) {
      asked = &in;
      return f(in);
    });
    if (is_found) [[likely]]
      return true;
    memory_.for_each([&](auto& in, std::size_t) { is_found = is_found || (&in != asked && f(in)); });
    return is_found;
  }
  [[nodiscard]] static tessera::block_view find(auto& in, const void* p) {
    return tessera::observe::live_block_at(in, p);
  }
  [[nodiscard]] tessera::block_view find(const void* p) {
    tessera::block_view found{};
    (void)is_in_any([&](auto& in) { return (found = find(in, p)).bytes > 0; });
    return found;
  }
  /// PyTorch's callbacks may free memory when a request finds no block.
  static bool run_callbacks(void*) noexcept {
    bool any = false;
    try {
      for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
        any = c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute() || any;
    } catch (const std::exception&) {
    }
    return any;
  }
  [[nodiscard]] tessera::usage usage() {
    tessera::usage sum;
    memory_.for_each([&sum](auto& in, std::size_t) {
      const tessera::usage part = in.current_usage();
      sum.allocated += part.allocated;
      sum.reserved += part.reserved;
    });
    return sum;
  }
  void report(void* p, std::int64_t bytes) {
    const tessera::usage now = usage();
    c10::reportMemoryUsageToProfiler(p, bytes, now.allocated, now.reserved,
                                     c10::Device(c10::DeviceType::CUDA, number_));
  }

  template <typename In>
  static constexpr bool is_planned =
      std::is_same_v<std::remove_cvref_t<In>, gpu_allocators::planned_allocator>;
  /// The live block at an address if the plan serves it; else one of 0 bytes.
  [[nodiscard]] static tessera::block_view planned_block_at(auto& in, const void* p) {
    tessera::block_view found{};
    if constexpr (is_planned<decltype(in)>)
      in.visit_plan([&](const auto& plan) { found = plan.live_block_at(p); });
    return found;
  }
  void note_if_planned(auto& in, const void* p) {
    if constexpr (is_planned<decltype(in)>) {
      if (const tessera::block_view served = planned_block_at(in, p); served.bytes > 0)
        planned_.note_allocation(served);
      planned_.note_allocated(in.inner().current_usage().allocated);
    }
  }
  /// Adds the memory of a plan. It has no small pool.
  static void add_reserved(c10::CachingDeviceAllocator::DeviceStats& to, const tessera::counter& bytes) {
    for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
      to.reserved_bytes[i].current += bytes.current;
      to.reserved_bytes[i].peak += bytes.peak;
      to.reserved_bytes[i].allocated += bytes.allocated;
      to.reserved_bytes[i].freed += bytes.freed;
    }
  }
  /// The plan that TESSERA_RECIPE names, or null.
  [[nodiscard]] static const tessera::plan::memory_plan* plan_or_error() {
    const chosen_recipe& chosen = chosen_recipe::get();
    TORCH_CHECK(chosen.error().empty(), chosen.error());
    return chosen.plan();
  }
  void follow_settings() {
    const std::lock_guard lock(mutex_);
    const std::string text = settings_.note();
    const auto refuse = [&text](const tessera::config::setting_error& why) {
      TORCH_CHECK(false, "tessera cannot follow the settings \"", text, "\": ", std::string(why.key), ": ",
                  std::string(why.rule));
    };
    const auto parsed = tessera::config::parse<tessera::config::pytorch>(text);
    if (const auto* const error = std::get_if<tessera::config::setting_error>(&parsed)) return refuse(*error);
    const auto refused =
        memory_.choose({std::get<tessera::config::pytorch_settings>(parsed), chosen_recipe::get().stitches()},
                       [this](auto& added, std::size_t kind) {
                         (void)added.on_pressure(&run_callbacks, nullptr);
                         pools_.add(added, kind);
                       });
    if (refused) refuse(*refused);
    if (memory_.planned() == nullptr) return;
    const char* const fault = memory_.planned()->statistics().by_plan.fault;
    TORCH_CHECK(fault == nullptr, "TESSERA_RECIPE: ", chosen_recipe::get().plan_file(), ": ", fault);
  }

  [[noreturn, gnu::noinline, gnu::cold]] void raise_out_of_memory(auto& in, std::size_t bytes,
                                                                  tessera::stream_id stream) {
    const auto numbers = in.make_out_of_memory(bytes, stream).numbers();
    const tessera::usage now = usage();
    const device_bytes device = memory_on_device();
    std::size_t free_in_pools = 0;
    for_each_block([&](std::size_t, const tessera::segment_view& segment, const tessera::block_view& b) {
      if (segment.private_pool != tessera::default_pools && b.is == tessera::block_view::state::free)
        free_in_pools += b.bytes;
    });
    std::vector<torch::OutOfMemoryObserver> observers;
    std::vector<rejection_observer> rejection_observers;
    {
      const std::lock_guard lock(mutex_);
      observers = observers_;
      std::uint64_t rejections = 0;
      memory_.for_each(
          [&rejections](auto& each, std::size_t) { rejections += each.statistics().num_oom_rejections; });
      if (rejections > rejections_) rejection_observers = rejection_observers_;
      rejections_ = rejections;
    }
    const std::size_t allowed = allowed_;
    const bool is_limited = allowed != tessera::unlimited;
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(numbers.block), now.allocated, now.reserved,
                                     c10::Device(c10::DeviceType::CUDA, number_));
    for (const torch::OutOfMemoryObserver& observer : observers)
      observer(number_, numbers.segment, is_limited ? allowed : device.total, device.free);
    for (const rejection_observer& observer : rejection_observers)
      observer(number_, numbers.segment, now.reserved, device.total);
    const auto text = [](std::size_t n) { return c10::CachingDeviceAllocator::format_size(n); };
    std::string allowed_text, pool_text;
    if (is_limited) allowed_text = text(allowed) + " allowed; ";
    if (free_in_pools > 0)
      pool_text = "with " + text(free_in_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
    // The first sentences are PyTorch's, because programs search them.
    static const bool explains = std::getenv("TESSERA_EXPLAIN") != nullptr;
    const std::string why = tessera::observe::explain(in, bytes, stream).text().c_str();
    const std::string explanation = explains ? "\n" + why : std::string();
    {
      const std::lock_guard lock(mutex_);
      explanation_ = why;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", text(numbers.segment),
                     ". GPU ", static_cast<int>(number_), " has a total capacity of ", text(device.total),
                     " of which ", text(device.free), " is free. ", allowed_text, "Of the allocated memory ",
                     text(now.allocated + free_in_pools), " is allocated by PyTorch, ", pool_text, "and ",
                     text(now.reserved - now.allocated - free_in_pools),
                     " is reserved by PyTorch but unallocated.",
                     " If reserved but unallocated memory is large try setting "
                     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
                     "documentation for Memory "
                     "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
                     explanation);
  }

  c10::DeviceIndex number_;
  history history_;
  followed_settings settings_;
  std::atomic<std::size_t> allowed_{tessera::unlimited};  // bytes, by a memory fraction
  gpu_allocators memory_;
  named_pools<gpu_allocators> pools_;
  planned_blocks planned_;
  std::mutex mutex_;  // guards changes of settings, and the members below
  std::string explanation_;
  std::vector<torch::OutOfMemoryObserver> observers_;
  std::vector<rejection_observer> rejection_observers_;
  std::uint64_t rejections_ = 0;  // those seen when a request last failed
};

}  // namespace torch_cuda
