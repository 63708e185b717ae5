// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A device's allocator for PyTorch 2.6 and later, with PyTorch's headers. Without them, the header declares only names.

#if __has_include(<c10/core/CachingDeviceAllocator.h>)

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/api/include/torch/version.h>

#include <tessera/concurrent/indexed.hpp>
#include <tessera/interop/torch_devices.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/host_statistics.hpp>
#include <tessera/observe/inspect.hpp>

namespace tessera::inline v0_1::detail {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
using torch_device_base = c10::DeviceAllocator;
using torch_host_base = at::HostAllocator;
#else
using torch_device_base = c10::Allocator;
using torch_host_base = c10::Allocator;
#endif

/// Whether this process was forked from one that used devices. Drivers do not survive a fork.
class torch_fork {
 public:
  /// Called when the process uses a device.
  static void watch() noexcept {
    static const int watched = ::pthread_atfork(nullptr, nullptr, [] { flag().store(true); });
    (void)watched;
  }
  [[nodiscard]] static bool happened() noexcept { return flag().load(std::memory_order_relaxed); }
  /// Raises an error in a forked process. Locks that another thread held at the fork stay locked there.
  static void check() {
    TORCH_CHECK(!happened(), "Cannot use ", c10::get_privateuse1_backend(),
                " in a forked process, because devices do not survive a fork. Start the process with the "
                "method 'spawn'");
  }

 private:
  [[nodiscard]] static std::atomic<bool>& flag() noexcept {
    static std::atomic<bool> forked{false};
    return forked;
  }
};

/// The allocators of a program, with PyTorch's types. `Definition` is that of torch_device or torch_host.
template <typename Definition>
class torch_memory {
 public:
  using device_type = decltype(Definition::make_device(0));
  using indexed_device = indexed<device_type>;
  using allocator_type = decltype(Definition::make_allocator(std::declval<indexed_device>()));

  struct state {
    state(pagemap& map, int its_number)
        : number(its_number),
          device(Definition::make_device(number)),
          allocator(Definition::make_allocator(
              indexed_device(device, map, static_cast<pagemap::owner_number>(number)))) {
      torch_fork::watch();
    }
    int number;
    device_type device;
    allocator_type allocator;
  };

  /// Never destroyed, because a program may free tensors after its static objects.
  [[nodiscard]] static devices_on_demand<state>& all() {
    static auto& made = *new devices_on_demand<state>;
    return made;
  }
  /// Makes the allocator of a device at its first use.
  [[nodiscard]] static state& at(int device) {
    torch_fork::check();
    if (state* const made = all().find(device)) [[likely]]
      return *made;
    check_number(device);
    return all().find_or_make(device);
  }
  /// The allocator of a device, or null before its first use.
  [[nodiscard]] static state* find(int device) {
    torch_fork::check();
    check_number(device);
    return all().find(device);
  }
  /// Raises an error if there is no device of this number, as far as the definition says how many there are.
  static void check_number(int device) {
    bool exists = all().can_exist(device);
    if constexpr (requires { Definition::device_count(); })
      exists = exists && device < Definition::device_count();
    TORCH_CHECK(exists, "there is no device ", device);
  }
  [[nodiscard]] static c10::DeviceType type() noexcept {
    if constexpr (requires { Definition::type; }) return Definition::type;
    return c10::DeviceType::PrivateUse1;
  }
  [[nodiscard]] static stream_id to_stream(const c10::Stream& stream) {
    if constexpr (requires { Definition::to_stream(stream); }) {
      return Definition::to_stream(stream);
    } else {
      return stream_id(static_cast<std::uint64_t>(stream.id()));
    }
  }

  [[nodiscard]] static void* allocate(int device, std::size_t bytes, stream_id stream,
                                      const c10::Device& place) {
    state& on = at(device);
    void* const p = on.allocator.try_allocate(bytes, stream);
    if (p == nullptr && bytes > 0) raise_out_of_memory(on, bytes, stream, place);
    if (p != nullptr) report(on, p, +1, place);
    return p;
  }
  /// Frees a block. In a forked process the block belongs to the parent.
  static void deallocate(void* p, const c10::DeviceType of) noexcept {
    if (p == nullptr || torch_fork::happened()) return;
    state* const on = all().owner_of(p);
    if (on == nullptr) refuse_stranger("free", p);
    report(*on, p, -1, c10::Device(of, static_cast<c10::DeviceIndex>(of == c10::kCPU ? -1 : on->number)));
    on->allocator.deallocate(p);
  }
  /// Returns false if no allocator here has a live block at the address.
  static bool record_stream(void* p, const c10::Stream& stream) {
    if (p == nullptr) return false;
    torch_fork::check();
    state* const on = all().owner_of(p);
    return on != nullptr && on->allocator.try_record_stream(p, to_stream(stream));
  }

 private:
  /// Tells PyTorch's profiler and its tracers of memory.
  static void report(state& on, void* p, int sign, const c10::Device& place) noexcept {
    if (const c10::impl::PyInterpreter* const python = c10::impl::GPUTrace::get_trace(); python != nullptr)
        [[unlikely]] {
      const auto address = reinterpret_cast<std::uintptr_t>(p);
      if (sign > 0) {
        (*python)->trace_gpu_memory_allocation(place.type(), address);
      } else {
        (*python)->trace_gpu_memory_deallocation(place.type(), address);
      }
    }
    if (!profiles()) [[likely]]
      return;
    const usage now = on.allocator.current_usage();
    const auto bytes = static_cast<std::int64_t>(observe::live_block_at(on.allocator, p).bytes);
    c10::reportMemoryUsageToProfiler(p, sign * bytes, now.allocated, now.reserved, place);
  }
  [[nodiscard]] static bool profiles() noexcept {
    auto* const profiler = static_cast<c10::MemoryReportingInfoBase*>(
        c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
    return profiler != nullptr && profiler->memoryProfilingEnabled();
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void raise_out_of_memory(state& on, std::size_t bytes,
                                                                         stream_id stream,
                                                                         const c10::Device& place) {
    const usage now = on.allocator.current_usage();
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), now.allocated, now.reserved, place);
    const std::string why = observe::explain(on.allocator, bytes, stream).text().c_str();
    TORCH_CHECK_WITH(OutOfMemoryError, false, place, " out of memory. Tried to allocate ",
                     format_bytes(bytes).text(), ".\n", why);
    std::terminate();  // not reached; the compiler does not know that the check throws
  }
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// The allocator of a device type of PyTorch: a c10::DeviceAllocator, or a c10::Allocator before PyTorch 2.9.
///
/// Choose it for the backend of a new device. `torch.accelerator.memory`, empty_cache, record_stream, the profiler and
/// torch.OutOfMemoryError work with it. `Definition` has two static functions, which the first use of a device calls:
///
///   make_device(number)     returns a provider for the device, or throws a std::exception that says why there is none
///   make_allocator(device)  returns a thread-safe allocator over a movable provider
///
/// Optional members are:
///
///   type                    the device type; c10::DeviceType::PrivateUse1 if absent
///   to_stream(stream)       returns the provider's stream for a c10::Stream; the stream of the same number if absent
///   copy(to, from, bytes)   copies within the memory of a device, and returns when it is done, or throws. Needed unless the
///                           provider is host visible
///   memory_info(number)     returns the free bytes and all bytes of a device, as a std::pair; if absent, what the allocator
///                           has not reserved is free
///
/// Register it once, in one source of the backend:
///
///   using memory = tessera::interop::torch_device<my_chip>;
///   c10::SetAllocator(memory::type(), &memory::instance());
///   TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
///     m.impl("record_stream", &memory::record_stream_of);
///     m.impl("resize_", &memory::resize_of);
///   }
///
/// The backend's device guard must be registered, because it says which device and stream are current. Its
/// recordDataPtrOnStream calls recordStream(). A program may record a stream of another device for a block, so the provider of
/// each device must record events in the streams of all. If the provider has has_stream(), a stream that does not exist is
/// refused; otherwise a block would wait for it forever.
///
/// Allocators are never destroyed. After a fork, calls in the child process raise an error in words, and frees do nothing.
template <typename Definition>
class torch_device final : public detail::torch_device_base {
  using memory = detail::torch_memory<Definition>;

 public:
  /// The allocator of one device, as the definition makes it.
  using allocator_type = typename memory::allocator_type;

  /// The one object of this type, for c10::SetAllocator. It is never destroyed.
  [[nodiscard]] static torch_device& instance() {
    static auto& made = *new torch_device;
    return made;
  }
  /// The device type of the definition.
  [[nodiscard]] static c10::DeviceType type() noexcept { return memory::type(); }
  /// The allocator of a device, made at its first use.
  [[nodiscard]] static allocator_type& front(int device) { return memory::at(device).allocator; }

  /// Serves a request of `bytes` on the current stream of the current device.
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto* const guard = c10::impl::getDeviceGuardImpl(type());
    const c10::Device device = guard->getDevice();
    void* const p =
        memory::allocate(device.index(), bytes, memory::to_stream(guard->getStream(device)), device);
    return {p, p, &deallocate, device};
  }
  /// The function that frees an address of this allocator. It aborts for any other address.
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  /// Copies within the memory of a device, and returns when it is done, as the definition says.
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    if constexpr (requires { Definition::copy(to, from, bytes); }) {
      Definition::copy(to, from, bytes);
    } else {
      static_assert(detail::is_host_visible<typename memory::device_type>,
                    "torch_device<Definition>: the host cannot access the device's memory, so "
                    "Definition::copy copies it");
      default_copy_data(to, from, bytes);
    }
  }

  /// Whether this process was forked from one that used devices of any type. Then it can use none.
  [[nodiscard]] static bool is_forked() noexcept { return detail::torch_fork::happened(); }

  /// Raises an error in such a process, for kernels that use the driver themselves.
  static void check_process() { detail::torch_fork::check(); }

  /// Waits for `stream` before the memory is reused. Ignores memory of other allocators.
  static void record_stream(const c10::DataPtr& of, const c10::Stream& stream) {
    if (of.get_deleter() != &deallocate) return;
    TORCH_CHECK(of.get() == nullptr || memory::record_stream(of.get(), stream),
                "invalid device pointer: ", of.get());
  }
  /// The kernel of aten::record_stream.
  static void record_stream_of(at::Tensor& tensor, c10::Stream stream) {
    record_stream(tensor.storage().data_ptr(), stream);
  }

  /// The kernel of aten::resize_, which operators with `out=` call, too. PyTorch's own copies with the host and to the
  /// current device; this one lets the backend's hooks enlarge the storage first.
  static const at::Tensor& resize_of(const at::Tensor& tensor, c10::IntArrayRef size,
                                     std::optional<c10::MemoryFormat> format) {
    const auto numbers = static_cast<std::size_t>(c10::multiply_integers(size) + tensor.storage_offset());
    const std::size_t bytes = numbers * tensor.itemsize();
    if (bytes > tensor.storage().nbytes()) at::native::resize_bytes_nocuda(tensor.storage(), bytes);
    return at::native::resize_(tensor, size, format);
  }

  // The functions of c10::DeviceAllocator. Before PyTorch 2.9, they override nothing.
  // NOLINTBEGIN(modernize-use-override)
  /// Always true: a device's allocator is made at its first use.
  bool initialized() { return true; }
  /// Releases all cached memory of all devices.
  void emptyCache(std::pair<unsigned long long, unsigned long long> = {0, 0}) {
    detail::torch_fork::check();
    memory::all().for_each([](auto& on) { on.allocator.trim(); });
  }
  /// Does what record_stream does.
  void recordStream(const c10::DataPtr& of, c10::Stream stream) { record_stream(of, stream); }
  /// The statistics of a device, with PyTorch's names. All are zero before its first use.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) {
    c10::CachingDeviceAllocator::DeviceStats result;
    if (auto* const on = memory::find(device)) add_torch_statistics(result, on->allocator.statistics());
    return result;
  }
  /// Sets the sums and counts of a device to zero, but not the current values and peaks.
  void resetAccumulatedStats(c10::DeviceIndex device) {
    if (auto* const on = memory::find(device)) on->allocator.reset_accumulated_statistics();
  }
  /// Sets each peak of a device to the current value.
  void resetPeakStats(c10::DeviceIndex device) {
    if (auto* const on = memory::find(device)) on->allocator.reset_peak_statistics();
  }
  /// The free bytes of a device and all its bytes.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) {
    if constexpr (requires { Definition::memory_info(device); }) {
      return Definition::memory_info(device);
    } else {
      auto& on = memory::at(device);
      const std::size_t total = on.device.capacity();
      const std::size_t reserved = on.allocator.current_usage().reserved;
      return {total > reserved ? total - reserved : 0, total};
    }
  }
  // NOLINTEND(modernize-use-override)

 private:
  torch_device() = default;
  static void deallocate(void* p) { memory::deallocate(p, type()); }
};

/// PyTorch's allocator of pinned host memory: an at::HostAllocator, or a c10::Allocator before PyTorch 2.9. A copy to a device
/// may still read a block after the program freed it. So a block is reused only when the recorded streams are done.
///
/// `Definition` is like that of torch_device, with one device of the number 0. Its streams are those of all devices that
/// copy. So to_stream() must tell the streams of two devices apart, and the provider must record events in each of them. The
/// requests themselves are on stream_id{}. Register it once:
///
///   using host_memory = tessera::interop::torch_host<my_pinned_memory>;
///   at::setHostAllocator(c10::DeviceType::PrivateUse1, &host_memory::instance());
template <typename Definition>
class torch_host final : public detail::torch_host_base {
  using memory = detail::torch_memory<Definition>;

 public:
  /// The allocator of pinned memory, as the definition makes it.
  using allocator_type = typename memory::allocator_type;

  /// The one object of this type, for at::setHostAllocator. It is never destroyed.
  [[nodiscard]] static torch_host& instance() {
    static auto& made = *new torch_host;
    return made;
  }
  /// The allocator itself, made at its first use.
  [[nodiscard]] static allocator_type& front() { return memory::at(0).allocator; }
  /// Whether an address is in memory of this allocator, for the backend's isPinnedPtr. It may be inside a block, because a
  /// program can make a storage of a part of another one.
  [[nodiscard]] static bool is_pinned(const void* p) noexcept { return memory::all().contains(p); }

  /// Serves a request of `bytes` of pinned memory.
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const p = memory::allocate(0, bytes, stream_id{}, c10::Device(c10::kCPU));
    return {p, p, &deallocate, c10::Device(c10::kCPU)};
  }
  /// The function that frees an address of this allocator. It aborts for any other address.
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  /// Copies within host memory.
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // The functions of at::HostAllocator. Before PyTorch 2.9, they override nothing.
  // NOLINTBEGIN(modernize-use-override)
  /// Waits for `stream` before the memory is reused.
  ///   Returns:  false if the memory is not of this allocator
  bool record_event(void* p, void* block, c10::Stream stream) {
    return memory::record_stream(block != nullptr ? block : p, stream);
  }
  /// Releases all cached memory to the host.
  void empty_cache() {
    if (auto* const on = memory::find(0)) on->allocator.trim();
  }
  /// Sets the sums and counts to zero, but not the current values and peaks.
  void reset_accumulated_stats() {
    if (auto* const on = memory::find(0)) on->allocator.reset_accumulated_statistics();
  }
  /// Sets each peak to the current value.
  void reset_peak_stats() {
    if (auto* const on = memory::find(0)) on->allocator.reset_peak_statistics();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  /// PyTorch's statistics, without times.
  at::HostStats get_stats() override {
    at::HostStats result;
    auto* const on = memory::find(0);
    if (on == nullptr) return result;
    using recipe_type = typename allocator_type::recipe_type;
    const auto from = observe::host_statistics::from<recipe_type>(on->allocator.statistics());
    const auto copy = [](auto& to, const counter& c) {
      to.current = c.current;
      to.peak = c.peak;
      to.allocated = c.allocated;
      to.freed = c.freed;
    };
    copy(result.allocations, from.allocations);
    copy(result.allocated_bytes, from.allocated_bytes);
    copy(result.active_requests, from.active_requests);
    copy(result.active_bytes, from.active_bytes);
    result.num_host_alloc = static_cast<std::int64_t>(from.num_host_alloc);
    result.num_host_free = static_cast<std::int64_t>(from.num_host_free);
    return result;
  }
#endif
  // NOLINTEND(modernize-use-override)

 private:
  torch_host() = default;
  static void deallocate(void* p) { memory::deallocate(p, c10::kCPU); }
};

/// PyTorch's device guard for the devices of a torch_device: the current device and streams of each thread, and events.
///
/// Choose it if the provider of the devices is thread-safe and has events. `Definition` is that of the torch_device. It has these
/// static functions, too:
///
///   device_count()            returns the number of devices, at most 128
///   create_stream(device)     returns a new stream of a device, which lasts until the program ends; throws if there is none
///   synchronize(stream)       waits until all work of a stream is done; throws if the device fails
///   make_wait(stream, event)  makes further work of a stream wait for an event of the provider
///   set_device(device)        makes a device the driver's current one for the calling thread, and must not throw; optional
///   is_idle(stream)           returns whether all work of a stream is done; optional
///   elapsed(first, second)    returns the milliseconds between two events of the provider; optional
///
/// Without is_idle, Stream.query() records an event and queries it at once. A device that needs time to reach the event then says
/// that an idle stream is busy. Only the guard may change the driver's current device, because the guard keeps its own
/// number of it.
///
/// The default stream of a device has the id 0; to_stream() says which stream that is. A program gets other streams from a
/// pool of eight for each device. Register it once:
///
///   using my_guard = tessera::interop::torch_guard<my_chip>;
///   C10_REGISTER_GUARD_IMPL(PrivateUse1, my_guard)
template <typename Definition>
class torch_guard final : public c10::impl::DeviceGuardImplInterface {
  using memory = detail::torch_memory<Definition>;
  using provider_type = typename memory::device_type;
  static_assert(detail::is_thread_safe<provider_type>,
                "torch_guard<Definition>: the provider of the devices is thread-safe");

 public:
  c10::DeviceType type() const override { return memory::type(); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(Definition::device_count());
  }
  c10::Device getDevice() const override { return {memory::type(), current()}; }
  c10::Device exchangeDevice(c10::Device to) const override {
    TORCH_CHECK(0 <= to.index() && to.index() < deviceCount(), "there is no device ", to);
    const c10::Device before = getDevice();
    uncheckedSetDevice(to);
    return before;
  }
  void setDevice(c10::Device to) const override { exchangeDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    current() = to.index();
    if constexpr (requires { Definition::set_device(0); }) Definition::set_device(to.index());
  }

  c10::Stream getStream(c10::Device on) const noexcept override { return stream_of(on, current_id(on)); }
  c10::Stream getDefaultStream(c10::Device on) const override { return stream_of(on, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    detail::torch_fork::check();
    memory::check_number(number_of(on));
    return stream_of(on, static_cast<c10::StreamId>(pool_of(number_of(on)).next(number_of(on)).handle));
  }
  c10::Stream getNewStream(c10::Device on, int) const override { return getStreamFromGlobalPool(on, false); }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    return stream_of(to.device(), std::exchange(current_id(to.device()), to.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    detail::torch_fork::check();
    const stream_id on = memory::to_stream(stream);
    if constexpr (requires { Definition::is_idle(on); }) {
      return Definition::is_idle(on);
    } else {
      return recorded(stream).is_done();
    }
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    detail::torch_fork::check();
    Definition::synchronize(memory::to_stream(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    memory::check_number(device);
    synchronizeStream(getDefaultStream({memory::type(), device}));
    pool_of(device).for_each([](stream_id stream) { Definition::synchronize(stream); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    torch_device<Definition>::record_stream(data, stream);
  }

  /// Records an event of the provider on a stream, and makes `*of` point to it. Discards the one there
  /// before.
  void record(void** of, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    auto next = std::make_unique<recorded>(stream);
    destroyEvent(*of, 0);
    *of = next.release();
  }
  void block(void* of, const c10::Stream& stream) const override {
    detail::torch_fork::check();
    if (of != nullptr) Definition::make_wait(memory::to_stream(stream), static_cast<recorded*>(of)->mark);
  }
  bool queryEvent(void* of) const override {
    detail::torch_fork::check();
    return of == nullptr || static_cast<recorded*>(of)->is_done();
  }
  void synchronizeEvent(void* of) const override {
    detail::torch_fork::check();
    if (of != nullptr) static_cast<recorded*>(of)->wait();
  }
  /// In a forked process, the event belongs to the parent.
  void destroyEvent(void* of, const c10::DeviceIndex) const noexcept override {
    if (!detail::torch_fork::happened()) delete static_cast<recorded*>(of);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex device) const override {
    if constexpr (requires(recorded& e) { Definition::elapsed(e.mark, e.mark); }) {
      TORCH_CHECK(first != nullptr && second != nullptr,
                  "both events must be recorded before their time is taken");
      return Definition::elapsed(static_cast<recorded*>(first)->mark, static_cast<recorded*>(second)->mark);
    } else {
      return c10::impl::DeviceGuardImplInterface::elapsedTime(first, second, device);
    }
  }

 private:
  /// An event of a stream's provider.
  struct recorded {
    explicit recorded(const c10::Stream& stream) : on(memory::at(stream.device_index()).device) {
      TORCH_CHECK(on.record(memory::to_stream(stream), mark), "no event can be recorded in ", stream);
    }
    recorded& operator=(recorded&&) = delete;
    ~recorded() { on.discard(mark); }
    [[nodiscard]] bool is_done() const { return on.query(mark); }
    void wait() const { TORCH_CHECK(on.wait(mark), "the device cannot wait for the event"); }

    provider_type& on;
    mutable typename provider_type::event mark{};
  };
  /// Streams of a device, made when they are first asked for.
  class pool {
   public:
    stream_id next(int device) {
      const std::lock_guard lock(mutex_);
      const std::size_t place = next_++ % max_streams;
      if (place == streams_.size()) streams_.push_back(Definition::create_stream(device));
      return streams_[place];
    }
    template <typename F>
    void for_each(F f) {
      const std::vector<stream_id> streams = [this] {
        const std::lock_guard lock(mutex_);
        return streams_;
      }();
      for (const stream_id stream : streams) f(stream);
    }

   private:
    static constexpr std::size_t max_streams = 8;
    std::mutex mutex_;
    std::vector<stream_id> streams_;
    std::size_t next_ = 0;
  };
  static constexpr std::size_t max_devices = detail::devices_on_demand<int>::max_devices;

  [[nodiscard]] static c10::DeviceIndex& current() noexcept {
    static thread_local c10::DeviceIndex device = 0;
    return device;
  }
  /// PyTorch may leave out the number of the current device.
  [[nodiscard]] static c10::DeviceIndex number_of(c10::Device device) noexcept {
    return device.has_index() ? device.index() : current();
  }
  [[nodiscard]] static c10::StreamId& current_id(c10::Device of) noexcept {
    static thread_local std::array<c10::StreamId, max_devices> ids{};
    return ids[static_cast<std::size_t>(number_of(of)) % max_devices];
  }
  [[nodiscard]] static pool& pool_of(c10::DeviceIndex device) noexcept {
    static auto& pools = *new std::array<pool, max_devices>;
    return pools[static_cast<std::size_t>(device) % max_devices];
  }
  [[nodiscard]] static c10::Stream stream_of(c10::Device on, c10::StreamId id) noexcept {
    return c10::Stream(c10::Stream::UNSAFE, {memory::type(), number_of(on)}, id);
  }
};

/// PyTorch's hooks of a backend whose allocators are a torch_device and a torch_host. Derive from it for what else a backend
/// offers, such as generators of random numbers.
///
///   at::RegisterPrivateUse1HooksInterface(new tessera::interop::torch_hooks<my_chip, my_pinned_memory>);
template <typename Definition, typename PinnedDefinition>
class torch_hooks : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return detail::torch_memory<Definition>::all().find(device) != nullptr;
  }
  at::Device getDeviceFromPtr(void* p) const override {
    const auto* const on = detail::torch_memory<Definition>::all().owner_of(p);
    TORCH_CHECK(on != nullptr, "invalid device pointer: ", p);
    return {detail::torch_memory<Definition>::type(), static_cast<c10::DeviceIndex>(on->number)};
  }
  bool isPinnedPtr(const void* p) const override { return torch_host<PinnedDefinition>::is_pinned(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &torch_host<PinnedDefinition>::instance();
  }
  /// Gives a storage another size. Bytes that both sizes have keep their values.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const auto* const guard = c10::impl::getDeviceGuardImpl(storage.device_type());
    const c10::DeviceGuard on(storage.device());
    c10::DataPtr moved = torch_device<Definition>::instance().allocate(bytes);
    if (const std::size_t kept = (std::min)(bytes, storage.nbytes()); kept > 0) {
      guard->synchronizeStream(guard->getStream(storage.device()));
      torch_device<Definition>::instance().copy_data(moved.get(), storage.data(), kept);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(moved));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
#endif
};

}  // namespace tessera::inline v0_1::interop

#else

namespace tessera::inline v0_1::interop {

/// PyTorch's headers, of version 2.6 or later, are not in the include path.
template <typename Definition>
class torch_device;
/// PyTorch's headers, of version 2.6 or later, are not in the include path.
template <typename Definition>
class torch_host;
/// PyTorch's headers, of version 2.6 or later, are not in the include path.
template <typename Definition>
class torch_guard;
/// PyTorch's headers, of version 2.6 or later, are not in the include path.
template <typename Definition, typename PinnedDefinition>
class torch_hooks;

}  // namespace tessera::inline v0_1::interop

#endif
