// SPDX-License-Identifier: Apache-2.0
// Puts tessera in the place of PyTorch's own allocator for CUDA. README.md explains how to use it.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_version.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "chosen_recipe.hpp"
#include "gpu_memory.hpp"

namespace torch_cuda {
namespace {

/// PyTorch's allocator interface over one gpu_memory for each device.
class cuda_allocator final : public torch::CUDAAllocator {
 public:
  // Memory of tensors.

  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t one_exa_byte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < one_exa_byte,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    const c10::DeviceIndex device = current_device();
    void* p = nullptr;
    const c10::DeleterFnPtr deleter = raw_deleter();
    if (deleter == &free_uncached) {
      p = allocate_uncached(bytes);
    } else if (bytes != 0) {
      p = allocate_on(device, bytes, c10::cuda::getCurrentCUDAStream(device));
    }
    return {p, p, deleter, c10::Device(c10::DeviceType::CUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return is_cached() ? &free_cached : &free_uncached; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }
  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (!is_cached()) return allocate_uncached(bytes);
    const c10::DeviceIndex device = current_device();
    return allocate_on(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) return nullptr;
    return is_cached() ? allocate_on(current_device(), bytes, stream) : allocate_uncached(bytes);
  }
  void raw_delete(void* p) override { raw_deleter()(p); }
  void recordStream(const c10::DataPtr& of, c10::cuda::CUDAStream stream) override {
    // Memory that another process or library owns has another deleter.
    if (of.get() == nullptr || of.get_deleter() != &free_cached) return;
    const bool found =
        is_on_any([&](gpu_memory& on) { return on.try_record_stream(of.get(), stream.stream()); });
    TORCH_CHECK(found, "invalid device pointer: ", of.get());
  }

  // Devices.

  void init(int device_count) override {
    const std::lock_guard lock(mutex_);
    if (!driver_) driver_.emplace();
    const auto wanted = static_cast<std::size_t>(std::max(device_count, 0));
    TORCH_CHECK(wanted <= max_devices, "tessera serves at most ", max_devices, " devices");
    for (std::size_t i = device_count_; i < wanted; ++i) {
      devices_[i] = std::make_unique<gpu_memory>(*driver_, static_cast<c10::DeviceIndex>(i));
      device_count_ = i + 1;
    }
  }
  bool initialized() override { return device_count_ > 0; }
  void enable(bool is_on) override { is_enabled_ = is_on; }
  bool isEnabled() const override { return is_enabled_; }
  std::string name() override { return "tessera"; }
  double getMemoryFraction(c10::DeviceIndex device) override { return at(device).fraction(); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    TORCH_INTERNAL_ASSERT(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                          ". Please set within (0, 1).");
    at(device).set_fraction(fraction);
  }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    *largest = at(device).largest_free(*largest);
  }
  void* getBaseAllocation(void* p, std::size_t* bytes) override {
    const tessera::segment_view segment = segment_of(p);
    TORCH_CHECK(
        !segment.in_range,
        "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using "
        "expandable_segments:False in data loading workers via "
        "torch.cuda.memory._set_allocator_settings('expandable_segments:False')");
    if (bytes != nullptr) *bytes = segment.bytes;
    return reinterpret_cast<void*>(segment.address);
  }

  // Statistics, history and snapshots.

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return at(device).statistics();
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { at(device).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { at(device).reset_peaks(); }
  bool isHistoryEnabled() override { return at(current_device()).seen().is_enabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& of) override {
    const std::lock_guard lock(mutex_);
    if (!is_recording_) return;
    torch::AnnotationEntry entry(current_device(), c10::getApproximateTime());
    for (const auto& [key, value] : of) entry.recordUserMetadata(key, value);
    if (annotations_.size() >= max_annotations_) annotations_.pop_front();
    annotations_.push_back(std::move(entry));
  }
  void attachOutOfMemoryObserver(torch::OutOfMemoryObserver observer) override {
    for_each_device([&](gpu_memory& on) { on.add_out_of_memory_observer(observer); });
  }
  void attachAllocatorTraceTracker(torch::AllocatorTraceTracker tracker) override {
    for_each_device([&](gpu_memory& on) { on.seen().add_tracker(tracker); });
  }

  // Private pools and their states.

  void beginAllocateToPool(c10::DeviceIndex device, pool_name pool, gpu_memory::filter streams) override {
    at(device).pools().begin(pool, std::move(streams));
  }
  void endAllocateToPool(c10::DeviceIndex device, pool_name pool) override { at(device).pools().end(pool); }
  void releasePool(c10::DeviceIndex device, pool_name pool) override { at(device).pools().release(pool); }
  int getPoolUseCount(c10::DeviceIndex device, pool_name pool) override {
    return at(device).pools().uses(pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, pool_name pool,
                                const std::unordered_set<void*>& expected) override {
    return at(device).has_live_blocks(pool, expected);
  }
  std::shared_ptr<torch::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                            pool_name pool) override {
    return at(device).save_pool(pool);
  }
  torch::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                std::shared_ptr<torch::AllocatorState> state) override {
    const auto* const saved = dynamic_cast<const saved_pool*>(state.get());
    TORCH_CHECK(saved != nullptr, "the state is none of a private pool of tessera");
    saved_pool::change restored = at(device).restore_pool(*saved);
    torch::CheckpointDelta delta;
    delta.ptrs_freed = std::move(restored.freed);
    for (void* const p : restored.allocated)
      delta.dataptrs_allocd.emplace_back(p, p, &free_cached, c10::Device(c10::DeviceType::CUDA, device));
    return delta;
  }

  // What differs between the versions of PyTorch.

#if TESSERA_TORCH_2_11
  using torch::CUDAAllocator::recordStream;
  void emptyCache(pool_name of) override { empty_caches(of); }
  torch::SnapshotInfo snapshot(pool_name of, bool has_traces) override {
    return take_snapshot(of, has_traces);
  }
  void recordHistory(bool enabled, torch::CreateContextFn take, std::size_t entries,
                     torch::RecordContext when, bool clears,
                     const std::vector<std::string>& skipped) override {
    std::vector<torch::TraceEntry::Action> actions;
    for (const std::string& name : skipped) actions.push_back(torch::parseTraceEntryAction(name));
    record(enabled, take, entries, when, !enabled || clears, !enabled || clears, actions);
  }
  void pushCompileContext(std::string& what) override {
    if (is_recording()) entry_words::of_thread().compiled.push_back(what);
  }
  void popCompileContext() override {
    std::vector<std::string>& compiled = entry_words::of_thread().compiled;
    if (is_recording() && !compiled.empty()) compiled.pop_back();
  }
  void setUserMetadata(const std::string& words) override { entry_words::of_thread().user = words; }
  std::string getUserMetadata() override { return entry_words::of_thread().user; }
  /// The memory that is mapped for each stream and pool.
  std::vector<torch::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    std::map<std::pair<void*, bool>, std::size_t> bytes;
    for (const torch::SegmentInfo& segment : at(device).segments(all_pools)) {
      if (segment.is_expandable) bytes[{segment.stream, !segment.is_large}] += segment.total_size;
    }
    std::vector<torch::StreamSegmentSize> result;
    for (const auto& [key, size] : bytes)
      result.emplace_back(static_cast<cudaStream_t>(key.first), key.second, size);
    return result;
  }
  void createOrIncrefPool(c10::DeviceIndex device, pool_name pool,
                          std::shared_ptr<torch::CUDAAllocator> source) override {
    at(device).pools().retain(pool, std::move(source));
  }
  /// A pool that has memory keeps to lend until its last use ends, because an allocator takes the option when it makes
  /// the pool. PyTorch asks for that only before the first request and before the end.
  void setUseOnOOM(c10::DeviceIndex device, pool_name pool, bool lends) override {
    const bool works = at(device).pools().set_options(pool, [=](auto& o) { o.serves_on_oom = lends; });
    TORCH_CHECK(works || !lends, "setUseOnOOM: the pool has memory already");
  }
  void setNoSplit(c10::DeviceIndex device, pool_name pool) override {
    const bool works = at(device).pools().set_options(pool, [](auto& o) { o.never_splits = true; });
    TORCH_CHECK(works, "setNoSplit: the pool has memory already");
  }
#else
  void emptyCache() override { empty_caches(active_pool()); }
  torch::SnapshotInfo snapshot() override { return take_snapshot(active_pool(), true); }
  void recordHistory(bool enabled, torch::CreateContextFn take, std::size_t entries,
                     torch::RecordContext when) override {
    record(enabled, take, entries, when, !enabled, true, {});
  }
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, pool_name pool) override {
    at(device).pools().retain(pool);
  }
#endif
#if TESSERA_TORCH_2_14
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override {
    stack found;
    (void)is_on_any([&](gpu_memory& on) { return (found = on.seen().stack_of(p)) != nullptr; });
    return found;
  }
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* p, const std::string& words) override {
    std::string& now = entry_words::of_thread().user;
    const std::string before = std::exchange(now, words);
    const bool is_live =
        is_on_any([p](gpu_memory& on) { return on.try_annotate(p, torch::TraceEntry::ANNOTATE); });
    now = before;
    TORCH_CHECK(is_live, "no live block begins at ", p, ", so it cannot be annotated");
  }
  void attachOomRejectionObserver(torch::OomRejectionObserver observer) override {
    for_each_device([&](gpu_memory& on) { on.add_rejection_observer(observer); });
  }
  void markCaptureBegin(c10::DeviceIndex device) override { at(device).pools().begin_capture(); }
  void markCaptureEnd(c10::DeviceIndex device) override { at(device).pools().end_capture(); }
#endif

  /// The memory of a device, or null.
  [[nodiscard]] gpu_memory* find(int device) {
    const bool exists = device >= 0 && static_cast<std::size_t>(device) < device_count_;
    return exists ? devices_[static_cast<std::size_t>(device)].get() : nullptr;
  }

  // Several processes and devices.

  torch::ShareableHandle shareIpcHandle(void* p) override {
    const tessera::segment_view segment = segment_of(p);
    if (segment.in_range) {
      tessera::provider::cuda_shared_part part;
      checked("memory of an expandable segment is not shared: ",
              [&] { (void)is_on_any([&](gpu_memory& on) { return on.try_share(p, part); }); });
      return {part.offset, part.handle};
    }
    cudaIpcMemHandle_t handle;
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(segment.address)));
    return {static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(p) - segment.address),
            begin_of_segment + std::string(handle.reserved, sizeof handle.reserved)};
  }
  /// Opens memory of another process once at a time, because CUDA opens a segment once.
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    const std::lock_guard lock(opened_mutex_);
    const auto known = opened_.find(handle);
    if (known != opened_.end()) {
      if (std::shared_ptr<void> open = known->second.lock()) return open;
    }
    std::shared_ptr<void> open;
    if (handle.size() == sizeof(cudaIpcMemHandle_t)) {  // of a PyTorch that shares segments alone
      open = open_segment(handle, handle);
    } else if (names_segment(handle)) {
      open = open_segment(handle, handle.substr(begin_of_segment.size()));
    } else {
      open = open_range(handle);
    }
    opened_[handle] = open;
    return open;
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to) override {
    const c10::cuda::CUDAGuard on(device);
    const cudaError_t answer = cudaDeviceEnablePeerAccess(to, 0);
    if (answer == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(answer);
    }
    at(to).add_peer(device);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool has_peer_access) override {
    // Without peer access, memory that is mapped into ranges needs the call for two devices.
    const auto has_ranges = [this](int device) {
      return at(static_cast<c10::DeviceIndex>(device)).has_ranges();
    };
    if (has_peer_access || to_device == from_device || (!has_ranges(to_device) && !has_ranges(from_device)))
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

 private:
  static constexpr std::size_t max_devices = 64;

  [[nodiscard]] static c10::DeviceIndex current_device() {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse(c10::DeviceIndex device) {
    const std::string& error = chosen_recipe::get().error();
    TORCH_CHECK(error.empty(), error);
    TORCH_CHECK(false, "Invalid device argument ", static_cast<int>(device), ": did you call init?");
  }
  [[nodiscard]] gpu_memory& at(c10::DeviceIndex device) {
    if (device < 0 || static_cast<std::size_t>(device) >= device_count_) [[unlikely]]
      refuse(device);
    return *devices_[static_cast<std::size_t>(device)];
  }
  void empty_caches(pool_name of) {
    for_each_device([of](gpu_memory& on) { on.empty_cache(of); });
  }
  [[nodiscard]] torch::SnapshotInfo take_snapshot(pool_name of, bool has_traces) {
    const auto nanoseconds_of = clock_.makeConverter();
    const auto convert = [&](torch::trace_time_& time) {
      time.t_ = static_cast<time_t>(nanoseconds_of(time.approx_t_) / 1000);
    };
    torch::SnapshotInfo result;
    {
      const std::lock_guard lock(mutex_);
      result.external_annotations.assign(annotations_.begin(), annotations_.end());
    }
    for (torch::AnnotationEntry& entry : result.external_annotations) convert(entry.time_);
    for_each_device([&](gpu_memory& on) {
      std::vector<torch::TraceEntry>& trace = result.device_traces.emplace_back();
      if (has_traces) trace = on.seen().entries();
      for (torch::TraceEntry& entry : trace) convert(entry.time_);
      for (torch::SegmentInfo& segment : on.segments(of)) result.segments.push_back(std::move(segment));
    });
    result.config_metadata = torch_settings::info();
    return result;
  }
  void record(bool enabled, torch::CreateContextFn take, std::size_t entries, torch::RecordContext when,
              bool clears_entries, bool clears_annotations,
              const std::vector<torch::TraceEntry::Action>& skipped) {
    TORCH_CHECK(when == torch::RecordContext::NEVER || take != nullptr,
                "a history with stacks needs a function that takes them");
    const std::lock_guard lock(mutex_);
    is_recording_ = enabled;
    max_annotations_ = std::max(entries, std::size_t{1});
    if (clears_annotations) annotations_.clear();
    for_each_device(
        [&](gpu_memory& on) { on.seen().set(enabled, take, entries, when, clears_entries, skipped); });
  }
  [[nodiscard]] bool is_recording() {
    const std::lock_guard lock(mutex_);
    return is_recording_;
  }
  template <typename F>
  void for_each_device(F f) {
    for (std::size_t i = 0; i < device_count_; ++i) f(*devices_[i]);
  }
  /// Calls f(gpu_memory) until it returns true; first for the device where the calling thread last found a block.
  template <typename F>
  bool is_on_any(F f) {
    static thread_local std::size_t latest = 0;
    if (latest < device_count_ && f(*devices_[latest])) [[likely]]
      return true;
    for (std::size_t i = 0; i < device_count_; ++i) {
      if (i == latest || !f(*devices_[i])) continue;
      latest = i;
      return true;
    }
    return false;
  }
  /// Calls f, which may call the driver. If it fails, PyTorch's error says so.
  template <typename F>
  static void checked(const char* what, F f) {
    std::string why;
    try {
      return f();
    } catch (const tessera::provider::cuda_driver_error& error) {
      why = error.what();
    }
    TORCH_CHECK(false, what, why);
  }
  [[nodiscard]] std::shared_ptr<void> open_segment(const std::string& handle, const std::string& name) {
    cudaIpcMemHandle_t of;
    TORCH_CHECK(name.size() == sizeof of.reserved, "the handle of a shared segment has ", name.size(),
                " bytes instead of ", sizeof of.reserved);
    std::copy(name.begin(), name.end(), of.reserved);
    const c10::DeviceIndex device = current_device();
    void* p = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&p, of, cudaIpcMemLazyEnablePeerAccess));
    return {p, [this, handle, device](void* segment) {
              const std::lock_guard closing(opened_mutex_);
              const c10::cuda::CUDAGuard on(device);
              C10_CUDA_CHECK(cudaIpcCloseMemHandle(segment));
              forget(handle);
            }};
  }
  [[nodiscard]] std::shared_ptr<void> open_range(const std::string& handle) {
    const c10::DeviceIndex device = current_device();
    std::unique_ptr<tessera::provider::cuda_shared_range> opened;
    checked("memory of an expandable segment is not opened: ", [&] {
      opened = std::make_unique<tessera::provider::cuda_shared_range>(*driver_, device, at(device).peers(),
                                                                      handle);
    });
    void* const begin = opened->begin();
    return {begin, [this, handle, range = std::shared_ptr(std::move(opened))](void*) mutable {
              const std::lock_guard closing(opened_mutex_);
              range.reset();
              forget(handle);
            }};
  }
  /// Forgets a handle, unless its memory was opened again meanwhile.
  void forget(const std::string& handle) {
    const auto found = opened_.find(handle);
    if (found != opened_.end() && found->second.expired()) opened_.erase(found);
  }
  [[nodiscard]] tessera::segment_view segment_of(const void* p) {
    tessera::segment_view found{};
    const bool is_live = is_on_any([&](gpu_memory& on) { return (found = on.segment_of(p)).bytes > 0; });
    TORCH_CHECK(is_live, "invalid device pointer: ", p);
    return found;
  }

  /// If this variable is set, each request goes to the driver, as with PyTorch's own allocator.
  [[nodiscard]] bool is_cached() const {
    static const bool bypassed = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return !bypassed && is_enabled_;
  }
  [[nodiscard]] void* allocate_on(c10::DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    return traced(at(device).allocate(bytes, stream));
  }
  [[nodiscard]] static void* allocate_uncached(std::size_t bytes) {
    void* p = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&p, bytes));
    return traced(p);
  }
  [[nodiscard]] static void* traced(void* p) {
    if (const c10::impl::PyInterpreter* const python = c10::impl::GPUTrace::get_trace()) [[unlikely]]
      (*python)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
    return p;
  }
  static void trace_free(void* p) {
    if (const c10::impl::PyInterpreter* const python = c10::impl::GPUTrace::get_trace()) [[unlikely]]
      (*python)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
  }
  static void free_cached(void* p);
  static void free_uncached(void* p) {
    trace_free(p);
    C10_CUDA_CHECK(cudaFree(p));
  }

  /// Version and kind, in front of CUDA's handle of a segment. A range has the handle of a cuda_device. PyTorch 2.11 writes
  /// version 2 and 2.13 writes version 3; neither changes what follows.
  inline static const std::string begin_of_segment = "\1c";
  [[nodiscard]] static bool names_segment(const std::string& handle) {
    return handle.size() == begin_of_segment.size() + sizeof(cudaIpcMemHandle_t) && handle[0] >= 1 &&
           handle[0] <= 3 && handle[1] == begin_of_segment[1];
  }

  std::optional<tessera::provider::cuda_driver> driver_;
  std::array<std::unique_ptr<gpu_memory>, max_devices> devices_;
  std::atomic<std::size_t> device_count_{0};
  std::atomic<bool> is_enabled_{true};
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::mutex mutex_;  // guards the members below, and init
  bool is_recording_ = false;
  std::size_t max_annotations_ = 1;
  std::deque<torch::AnnotationEntry> annotations_;
  std::mutex opened_mutex_;                            // guards the member below
  std::map<std::string, std::weak_ptr<void>> opened_;  // memory of other processes, by handles
};

/// Never destroyed: a program may free tensors after its static objects.
cuda_allocator& instance() {
  static auto* const made = new cuda_allocator;
  return *made;
}

void cuda_allocator::free_cached(void* p) {
  if (p == nullptr) return;
  trace_free(p);
  const bool freed = instance().is_on_any([p](gpu_memory& on) { return on.try_deallocate(p); });
  TORCH_CHECK(freed, "invalid device pointer: ", p);
}

}  // namespace
}  // namespace torch_cuda

/// Says why the variable TESSERA_RECIPE cannot be followed, for example what is wrong with the file of a plan.
///   Returns:  null if nothing is wrong
extern "C" [[gnu::visibility("default")]] const char* tessera_recipe_error() {
  const std::string& error = torch_cuda::chosen_recipe::get().error();
  return error.empty() ? nullptr : error.c_str();
}

/// Makes PyTorch use tessera for CUDA from now on. Blocks of the previous allocator still go back to that one. Call it
/// before the first tensor is on a GPU, so that all memory is in one cache.
extern "C" [[gnu::visibility("default")]] void tessera_install() {
  using namespace c10::cuda;
  torch_cuda::cuda_allocator& ours = torch_cuda::instance();
  CUDACachingAllocator::CUDAAllocator* const before = CUDACachingAllocator::allocator.load();
  if (before == &ours) return;
  // If TESSERA_RECIPE has an error, the first use of a device raises it. An exception must not leave this function.
  if (before != nullptr && before->initialized() && tessera_recipe_error() == nullptr)
    ours.init(device_count());
  CUDACachingAllocator::allocator.store(&ours);
}

// For Python's ctypes. tessera_sleep and tessera_wake return why nothing changed, as text, or null if they worked.

/// Gives the memory of a device back to the driver, even under live tensors, if it is in expandable segments or the recipe is
/// `stitched`. Saves the contents in host memory, or discards them.
extern "C" [[gnu::visibility("default")]] const char* tessera_sleep(int device, bool saves) {
  torch_cuda::gpu_memory* const memory = torch_cuda::instance().find(device);
  return memory != nullptr ? memory->sleep(saves) : "there is no such device";
}
/// Gives memory to all tensors of a device again, at their addresses.
extern "C" [[gnu::visibility("default")]] const char* tessera_wake(int device) {
  torch_cuda::gpu_memory* const memory = torch_cuda::instance().find(device);
  return memory != nullptr ? memory->wake() : "there is no such device";
}
/// Writes why the latest request of a device that failed did so.
///   Returns:  the length of the text, whatever `size` is; 0 if none failed
extern "C" [[gnu::visibility("default")]] std::size_t tessera_explain_last_oom(int device, char* out,
                                                                               std::size_t size) {
  torch_cuda::gpu_memory* const memory = torch_cuda::instance().find(device);
  const std::string text = memory != nullptr ? memory->explanation() : std::string();
  if (size > 0) out[text.copy(out, size - 1)] = '\0';
  return text.size();
}
/// The version of PyTorch whose headers the library was built with.
extern "C" [[gnu::visibility("default")]] const char* tessera_built_for() { return TORCH_VERSION; }
