// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <tessera/provider/cuda_calls.hpp>
#include <tessera/provider/host_sharing.hpp>
#include <tessera/provider/range_map.hpp>

/// Shares the memory of ranges in PyTorch's format, so that the other process may have PyTorch's own allocator. The driver gives
/// a file descriptor for a physical chunk. Its owner keeps that open, and names its process and the descriptors in a handle,
/// which is plain bytes. Another process copies the descriptors and maps the same chunks into a range of its own. The handle
/// begins with a version and a kind. Chunks of different sizes need a kind of our own, which PyTorch refuses.
///   Source:  c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6 and 2.11

namespace tessera::inline v0_1::provider {

/// A part of a range, for another process.
struct cuda_shared_part {
  std::ptrdiff_t offset = 0;  ///< of the part in the shared chunks
  std::string handle;         ///< plain bytes, in PyTorch's format
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail::cuda {

inline constexpr char handle_version = 1;  // what is written; older processes of PyTorch read it
inline constexpr char newest_version = 2;  // of PyTorch 2.11, with the same content
enum class handle_kind : char {
  equal_chunks = 'e',  ///< process, bytes of a chunk, number of chunks, their descriptors
  chunks = 't'         ///< process, 0, number of chunks, their descriptors, their bytes
};

/// PyTorch 2.11 may write handles of the fabric in place of descriptors.
inline constexpr std::size_t fabric_handle_bytes = 64;

/// What a handle says in front of the descriptors.
struct chunks_header {
  pid_t process;
  std::size_t chunk_bytes;
  std::size_t count;
};
static_assert(sizeof(chunks_header) == 24);

/// The name of an exported chunk in other processes: plain bytes. Another machine uses the handle of the fabric.
struct shareable {
  host_shareable file{};  ///< process 0 if the chunk has no descriptor
  std::uint64_t bytes = 0;
  bool has_fabric = false;
  std::array<unsigned char, 64> fabric{};  // CUmemFabricHandle
  bool operator==(const shareable&) const = default;
};

/// A chunk that is mapped.
struct mapping {
  std::uintptr_t begin;
  std::size_t bytes;
  memory_handle memory;
  std::uint64_t number;
};

/// The ranges of a process, the chunks that are mapped in them, and the descriptors of those that it shares. Chunks have
/// numbers, because the driver uses a handle again. It is thread-safe.
///
/// It refuses what the rules of virtual memory forbid. The driver allows some of it: it unmaps addresses without memory, and
/// maps memory beyond the end of a range if another range of the process follows.
class chunk_table {
 public:
  [[nodiscard]] std::uint64_t next_number() noexcept { return ++latest_; }
  /// Notes a range of addresses. Returns false if host memory ran out.
  [[nodiscard]] bool add_range(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    return reserved_.insert(p, {bytes});
  }
  /// Returns null on success, else the reason.
  [[nodiscard]] const char* remove_range(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const range* const known = reserved_.find(p);
    if (known == nullptr || known->bytes != bytes) return "no range of these bytes begins there";
    if (mapped_.overlaps(p, bytes)) return "memory is mapped in the range";
    (void)reserved_.extract(p);
    return nullptr;
  }
  /// Returns null on success, else the reason.
  [[nodiscard]] const char* add_mapping(const mapping& m) noexcept {
    const std::lock_guard lock(mutex_);
    const void* const p = pointer_to(m.begin);
    if (reserved_.around(p, m.bytes) == nullptr) return "the addresses are not those of one reserved range";
    if (mapped_.overlaps(p, m.bytes)) return "memory is mapped there already";
    return mapped_.insert(p, m) ? nullptr : no_host_memory;
  }
  /// Returns nothing if no chunk of these bytes is mapped at `p`.
  [[nodiscard]] std::optional<mapping> extract_mapping(const void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const mapping* const known = mapped_.find(p);
    if (known == nullptr || known->bytes != bytes) return std::nullopt;
    return mapped_.extract(p);
  }
  /// Exports a chunk, and notes its name. Returns null on success, else the reason.
  [[nodiscard]] const char* add_export(const calls& cu, const mapping& m, provider::importers who,
                                       bool to_fabric, shareable& name) noexcept {
    const std::lock_guard lock(mutex_);
    if (imported_.find(m.number) != nullptr) return "imported memory cannot be exported";
    if (names_.find(m.number) != nullptr) return "the memory is exported already";
    shareable made{.file = {token_, m.number, 0}, .bytes = m.bytes};
    // A fabric cannot tell who imports.
    made.has_fabric = to_fabric && who == provider::importers::any &&
                      cu.export_fabric(made.fabric.data(), m.memory) == success;
    int file = -1;
    if (const host_descriptor* const known = files_.find(m.number)) {
      file = known->get();
    } else if (cu.export_file(file, m.memory) == success) {
      if (!files_.insert(m.number, host_descriptor(file))) return no_host_memory;
    } else if (!made.has_fabric) {
      return "the driver gives no descriptor of the memory";
    }
    if (file >= 0) {
      if (const char* const fault = exports_.add(m.number, file, m.bytes, page_kind::normal, who))
        return fault;
      made.file.process = ::getpid();
    }
    if (!names_.insert(m.number, made)) {
      exports_.remove(m.number);
      return no_host_memory;
    }
    name = made;
    return nullptr;
  }
  [[nodiscard]] bool find_export(std::uint64_t number, shareable& name) const noexcept {
    const std::lock_guard lock(mutex_);
    const shareable* const known = names_.find(number);
    if (known != nullptr) name = *known;
    return known != nullptr;
  }
  [[nodiscard]] const char* allow(const shareable& name, std::int32_t process) noexcept {
    return name.file.token == token_ ? exports_.allow(name.file.number, process)
                                     : "the memory is not exported here, or destroyed";
  }
  /// Returns null on success, else the reason.
  [[nodiscard]] const char* add_imported(const host_shareable& name) noexcept {
    const std::lock_guard lock(mutex_);
    if (name.token == token_) return "this process exported the memory";
    if (imported_.find(name.number) != nullptr) return imported_already;
    return imported_.insert(name.number, {}) ? nullptr : no_host_memory;
  }
  /// Closes the descriptor of a chunk, which was destroyed. Processes that have mapped it keep its memory.
  void forget(std::uint64_t number) noexcept {
    exports_.remove(number);
    const std::lock_guard lock(mutex_);
    if (imported_.find(number) != nullptr) (void)imported_.extract(number);
    if (names_.find(number) != nullptr) (void)names_.extract(number);
    if (files_.find(number) != nullptr) (void)files_.extract(number);
  }
  /// Makes a handle for the chunks behind [p, p + bytes). It is valid until one of them is destroyed.
  ///   Throws:  cuda_driver_error if the driver refuses, or if the bytes are not mapped here
  [[nodiscard]] provider::cuda_shared_part share(const calls& cu, const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes == 0) fail("there are no bytes to share");
    const std::uintptr_t begin = address_of(p);
    const mapping* const first = mapped_.around(p, 0);
    std::vector<std::pair<int, std::size_t>> chunks;
    bool are_equal = true;
    for (std::uintptr_t here = begin; here - begin < bytes;) {
      const mapping* const c = mapped_.around(pointer_to(here), 0);
      if (c == nullptr) fail("the memory to share is not mapped by this allocator");
      chunks.emplace_back(file_of(cu, *c), c->bytes);
      are_equal = are_equal && c->bytes == first->bytes;
      here = c->begin + c->bytes;
    }
    const chunks_header header{::getpid(), are_equal ? first->bytes : 0, chunks.size()};
    std::string handle{handle_version,
                       static_cast<char>(are_equal ? handle_kind::equal_chunks : handle_kind::chunks)};
    append(handle, header);
    for (const auto& [file, size] : chunks) append(handle, file);
    for (const auto& [file, size] : chunks) {
      if (!are_equal) append(handle, size);
    }
    return {static_cast<std::ptrdiff_t>(begin - first->begin), std::move(handle)};
  }

 private:
  template <typename T>
  static void append(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  [[nodiscard]] int file_of(const calls& cu, const mapping& m) {
    if (const host_descriptor* const known = files_.find(m.number)) return known->get();
    int file = -1;
    cu.require_success(cu.export_file(file, m.memory), "cuMemExportToShareableHandle");
    if (!files_.insert(m.number, host_descriptor(file))) fail(no_host_memory);
    return file;
  }

  struct range {
    std::size_t bytes;
  };
  struct imported {};
  const std::uint64_t token_ = host_random_number();
  std::atomic<std::uint64_t> latest_ = token_;
  mutable std::mutex mutex_;
  range_map<range> reserved_;
  range_map<mapping> mapped_;
  ordered_map<host_descriptor> files_;
  ordered_map<shareable> names_;
  ordered_map<imported> imported_;
  host_exports exports_{token_};  // destroyed first: its thread sends the files
};

/// The chunks that a handle names.
struct chunk_list {
  pid_t process;
  std::vector<int> files;
  std::vector<std::size_t> bytes;
};
inline constexpr std::size_t max_shared_bytes = std::size_t{1} << 46;  // of one handle

/// Reads a value from the front of a handle.
template <typename T>
void take(std::string_view& from, T& value) {
  if (from.size() < sizeof value) fail("the handle of shared memory is cut short, or has another format");
  from.copy(reinterpret_cast<char*>(&value), sizeof value);
  from.remove_prefix(sizeof value);
}
[[nodiscard]] inline chunk_list read_handle(std::string_view handle) {
  char version = 0, kind = 0;
  take(handle, version);
  take(handle, kind);
  const bool are_equal = kind == static_cast<char>(handle_kind::equal_chunks);
  if (version < handle_version || version > newest_version)
    fail("the handle of shared memory has version " + std::to_string(version) +
         "; versions 1 and 2 are known");
  if (!are_equal && kind != static_cast<char>(handle_kind::chunks))
    fail("the handle of shared memory names no chunks of a range");
  chunks_header header{};
  take(handle, header);
  const std::size_t each = are_equal ? sizeof(int) : sizeof(int) + sizeof(std::size_t);
  if (are_equal && header.count > 0 && handle.size() / header.count == fabric_handle_bytes)
    fail(
        "the handle of shared memory names its chunks for the fabric, which is not supported; share by "
        "files");
  if (header.count == 0 || header.count != handle.size() / each || handle.size() % each != 0)
    fail("the handle of shared memory names " + std::to_string(header.count) +
         " chunks, but its length is that of " + std::to_string(handle.size() / each));
  chunk_list list{header.process, std::vector<int>(header.count),
                  std::vector<std::size_t>(header.count, header.chunk_bytes)};
  for (int& file : list.files) take(handle, file);
  if (!are_equal) {
    for (std::size_t& bytes : list.bytes) take(handle, bytes);
  }
  std::size_t total = 0;
  for (const std::size_t bytes : list.bytes) {
    if (bytes == 0 || bytes > max_shared_bytes - total)
      fail("the handle of shared memory has a chunk of " + std::to_string(bytes) + " bytes");
    total += bytes;
  }
  return list;
}

// The system calls are older than the functions of the C library for them.
inline constexpr long pidfd_open = 434, pidfd_getfd = 438;

[[nodiscard]] inline std::string named(const char* call, pid_t process, int error) {
  return std::string(call) + " of process " + std::to_string(process) + ": " + std::strerror(error);
}
[[nodiscard]] inline host_descriptor open_process(pid_t process) {
  host_descriptor opened(static_cast<int>(::syscall(pidfd_open, process, 0)));
  if (opened) return opened;
  const std::string what = named("pidfd_open", process, errno);
  if (errno == ESRCH)
    fail(what + ". The process that shares the memory has ended, or is in another PID namespace");
  if (errno == ENOSYS || errno == EPERM)
    fail(what +
         ". Sharing the memory of ranges needs Linux 5.6, and a sandbox that allows the call. "
         "expandable_segments:False needs neither");
  fail(what);
}
[[nodiscard]] inline host_descriptor copy_file(pid_t process, const host_descriptor& opened, int file) {
  host_descriptor copied(static_cast<int>(::syscall(pidfd_getfd, opened.get(), file, 0)));
  if (copied) return copied;
  const std::string what = named("pidfd_getfd", process, errno);
  if (errno == EPERM)
    fail(what +
         ". A process gives its descriptors only to processes that may trace it. To allow "
         "it, that process calls "
         "prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), or root sets the sysctl "
         "kernel.yama.ptrace_scope to 0; a "
         "container needs the capability SYS_PTRACE");
  if (errno == EBADF || errno == ESRCH)
    fail(what + ". The process that shares the memory has freed it, or has ended");
  if (errno == ENOSYS)
    fail(what + ". Sharing the memory of ranges needs Linux 5.6; expandable_segments:False does not");
  fail(what);
}

/// A range of addresses with memory of other processes. The destructor unmaps it.
class foreign_range {
 public:
  explicit foreign_range(const primary_context& context) noexcept : context_(context) {}
  foreign_range(const foreign_range&) = delete;
  foreign_range& operator=(const foreign_range&) = delete;
  ~foreign_range() {
    const context_guard guard(context_);
    if (!guard || bytes_ == 0) return;
    const calls& cu = context_.calls();
    for (const auto& [at, bytes] : mapped_)
      (void)context_.succeeded("cuMemUnmap", cu.memory_unmap(at, bytes));
    (void)context_.succeeded("cuMemAddressFree", cu.address_free(begin_, bytes_));
  }

  ///   Throws:  cuda_driver_error, as the functions below
  void reserve(std::size_t bytes) {
    context_.calls().require_success(context_.calls().address_reserve(&begin_, bytes, 0, 0, 0),
                                     "cuMemAddressReserve");
    bytes_ = bytes;
  }
  /// Maps the memory behind a descriptor after what is mapped.
  void map(const host_descriptor& file, std::size_t bytes) {
    const calls& cu = context_.calls();
    mapped_.reserve(mapped_.size() + 1);
    memory_handle memory = 0;
    cu.require_success(cu.import_file(memory, file.get()), "cuMemImportFromShareableHandle");
    const device_address at = mapped_.empty() ? begin_ : mapped_.back().first + mapped_.back().second;
    const result answer = cu.memory_map(at, bytes, 0, memory, 0);
    // A mapping keeps its memory without the handle.
    (void)cu.memory_release(memory);
    cu.require_success(answer, "cuMemMap");
    mapped_.emplace_back(at, bytes);
  }
  void grant(device_number device) {
    const memory_access wanted{{location_is_device, device}, read_and_write};
    for (const auto& [at, bytes] : mapped_)
      context_.calls().require_success(context_.calls().memory_set_access(at, bytes, &wanted, 1),
                                       "cuMemSetAccess");
  }
  [[nodiscard]] void* begin() const noexcept { return pointer_to(begin_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  const primary_context& context_;
  std::size_t bytes_ = 0;
  device_address begin_ = 0;
  std::vector<std::pair<device_address, std::size_t>> mapped_;
};

}  // namespace tessera::inline v0_1::detail::cuda

namespace tessera::inline v0_1::provider {

/// Chunks of another process, mapped into a range of this one. The destructor waits for the device, and unmaps them.
class cuda_shared_range {
 public:
  /// Maps the chunks that a handle of cuda_device::share names. The device and its peers get access to them.
  ///   Throws:  cuda_driver_error if the handle is invalid, if the other process has ended, if the system refuses its
  ///            descriptors, or if the driver fails
  cuda_shared_range(const cuda_driver& driver, int device, const std::vector<int>& peers,
                    std::string_view handle)
      : context_(driver.calls(), device) {
    namespace cuda = detail::cuda;
    const cuda::chunk_list list = cuda::read_handle(handle);
    const cuda::context_guard guard(context_);
    if (!guard) cuda::fail(context_.last_error());
    std::size_t bytes = 0;
    for (const std::size_t of_chunk : list.bytes) bytes += of_chunk;
    range_.reserve(bytes);
    const detail::host_descriptor process = cuda::open_process(list.process);
    for (std::size_t i = 0; i < list.files.size(); ++i)
      range_.map(cuda::copy_file(list.process, process, list.files[i]), list.bytes[i]);
    range_.grant(device);
    for (const int peer : peers) range_.grant(peer);
  }
  cuda_shared_range(const cuda_shared_range&) = delete;
  cuda_shared_range& operator=(const cuda_shared_range&) = delete;
  ~cuda_shared_range() {
    const detail::cuda::context_guard guard(context_);
    // Work of this process may still use the memory.
    if (guard) (void)context_.succeeded("cuCtxSynchronize", context_.calls().context_synchronize());
  }
  /// The address of the first byte in this process.
  [[nodiscard]] void* begin() const noexcept { return range_.begin(); }
  /// Bytes of all chunks together.
  [[nodiscard]] std::size_t bytes() const noexcept { return range_.bytes(); }

 private:
  detail::cuda::primary_context context_;
  detail::cuda::foreign_range range_{context_};
};

}  // namespace tessera::inline v0_1::provider
