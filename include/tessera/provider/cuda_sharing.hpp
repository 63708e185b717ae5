// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

#include <tessera/provider/address_book.hpp>
#include <tessera/provider/cuda_calls.hpp>
#include <tessera/provider/host_sharing.hpp>

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

/// What the process knows of a chunk.
struct chunk {
  memory_handle memory;
  host_descriptor file{};           ///< empty if the chunk is not shared by a descriptor
  std::optional<shareable> name{};  ///< of an exported chunk
};

/// The ranges of a process, its chunks and where they are mapped, and the descriptors of those that it shares. Chunks have
/// numbers, because the driver uses a handle again.
///
/// It refuses what the rules of virtual memory forbid. The driver allows some of it: it unmaps addresses without memory, and
/// maps memory beyond the end of a range if another range of the process follows.
class chunk_table {
 public:
  /// Holds off other threads. Required during calls of book(), and taken by the other members. cuda_driver holds it while the
  /// driver maps and unmaps, so that the book is right about a call that fails.
  [[nodiscard]] std::unique_lock<std::mutex> lock() const noexcept { return std::unique_lock(mutex_); }
  [[nodiscard]] address_book<chunk>& book() noexcept { return book_; }
  /// Exports a chunk, and notes its name. Returns null on success, else the reason.
  [[nodiscard]] const char* add_export(const calls& cu, std::uint64_t number, provider::importers who,
                                       bool to_fabric, shareable& name) noexcept {
    const auto held = lock();
    if (const char* const fault = book_.why_not_export(number)) return fault;
    const std::size_t bytes = book_.find(number)->bytes;
    chunk& exported = book_.find(number)->data;
    if (exported.name.has_value()) return "the memory is exported already";
    shareable made{.file = {token_, number, 0}, .bytes = bytes};
    // A fabric cannot tell who imports.
    made.has_fabric = to_fabric && who == provider::importers::any &&
                      cu.export_fabric(made.fabric.data(), exported.memory) == success;
    if (open_file(cu, exported) == success) {
      if (const char* const fault = exports_.add(number, exported.file.get(), bytes, page_kind::normal, who))
        return fault;
      made.file.process = ::getpid();
    } else if (!made.has_fabric) {
      return "the driver gives no descriptor of the memory";
    }
    exported.name = name = made;
    return nullptr;
  }
  [[nodiscard]] bool find_export(std::uint64_t number, shareable& name) const noexcept {
    const auto held = lock();
    const auto* const known = book_.find(number);
    if (known == nullptr || !known->data.name.has_value()) return false;
    name = *known->data.name;
    return true;
  }
  [[nodiscard]] const char* allow(const shareable& name, std::int32_t process) noexcept {
    return exported_here(name) ? exports_.allow(name.file.number, process)
                               : "the memory is not exported here, or destroyed";
  }
  [[nodiscard]] bool exported_here(const shareable& name) const noexcept { return name.file.token == token_; }
  /// Drops a chunk whose handle was destroyed, and closes its descriptor. Processes that have mapped it keep its memory.
  ///   Requires:  lock() is held, and book() has the handle
  void forget(std::uint64_t number) noexcept {
    exports_.remove(number);
    book_.find(number)->data.file = {};
    (void)book_.destroy(number);
  }
  /// Makes a handle for the chunks behind [p, p + bytes). It is valid until one of them is destroyed.
  ///   Throws:  cuda_driver_error if the driver refuses, or if the bytes are not mapped here
  [[nodiscard]] provider::cuda_shared_part share(const calls& cu, const void* p, std::size_t bytes) {
    const auto held = lock();
    if (bytes == 0) fail("there are no bytes to share");
    const std::uintptr_t begin = address_of(p);
    const auto* const first = book_.mappings().around(p, 0);
    std::vector<std::pair<int, std::size_t>> chunks;
    bool are_equal = true;
    for (std::uintptr_t here = begin; here - begin < bytes;) {
      const auto* const c = book_.mappings().around(pointer_to(here), 0);
      if (c == nullptr) fail("the memory to share is not mapped by this allocator");
      chunk& shared = book_.chunk_of(*c).data;
      cu.require_success(open_file(cu, shared), "cuMemExportToShareableHandle");
      chunks.emplace_back(shared.file.get(), c->bytes);
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
  /// Gets the descriptor of a chunk, once.
  [[nodiscard]] static result open_file(const calls& cu, chunk& shared) noexcept {
    if (shared.file) return success;
    int file = -1;
    const result answer = cu.export_file(file, shared.memory);
    if (answer == success) shared.file = host_descriptor(file);
    return answer;
  }

  const std::uint64_t token_ = host_random_number();
  mutable std::mutex mutex_;
  address_book<chunk> book_{token_};
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
      : cuda_shared_range(driver, device) {
    namespace cuda = detail::cuda;
    const cuda::chunk_list list = cuda::read_handle(handle);
    const cuda::context_guard guard(context_);
    if (!guard) cuda::fail(context_.last_error());
    std::size_t bytes = 0;
    for (const std::size_t of_chunk : list.bytes) bytes += of_chunk;
    const cuda::calls& cu = context_.calls();
    cu.require_success(cu.address_reserve(&begin_, bytes, 0, 0, 0), "cuMemAddressReserve");
    bytes_ = bytes;
    const detail::host_descriptor process = cuda::open_process(list.process);
    for (std::size_t i = 0; i < list.files.size(); ++i)
      map(cuda::copy_file(list.process, process, list.files[i]), list.bytes[i]);
    grant(device);
    for (const int peer : peers) grant(peer);
  }
  cuda_shared_range(const cuda_shared_range&) = delete;
  cuda_shared_range& operator=(const cuda_shared_range&) = delete;
  ~cuda_shared_range() {
    const detail::cuda::context_guard guard(context_);
    if (!guard || bytes_ == 0) return;
    const detail::cuda::calls& cu = context_.calls();
    // Work of this process may still use the memory.
    (void)context_.succeeded("cuCtxSynchronize", cu.context_synchronize());
    for (const auto& [at, bytes] : mapped_)
      (void)context_.succeeded("cuMemUnmap", cu.memory_unmap(at, bytes));
    (void)context_.succeeded("cuMemAddressFree", cu.address_free(begin_, bytes_));
  }
  /// The address of the first byte in this process.
  [[nodiscard]] void* begin() const noexcept { return detail::pointer_to(begin_); }
  /// Bytes of all chunks together.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  /// Has no chunks yet. The destructor then also runs if one of them cannot be mapped.
  cuda_shared_range(const cuda_driver& driver, int device) : context_(driver.calls(), device) {}

  /// Maps the memory behind a descriptor after what is mapped.
  void map(const detail::host_descriptor& file, std::size_t bytes) {
    const detail::cuda::calls& cu = context_.calls();
    mapped_.reserve(mapped_.size() + 1);
    detail::cuda::memory_handle memory = 0;
    cu.require_success(cu.import_file(memory, file.get()), "cuMemImportFromShareableHandle");
    const auto at = mapped_.empty() ? begin_ : mapped_.back().first + mapped_.back().second;
    const detail::cuda::result answer = cu.memory_map(at, bytes, 0, memory, 0);
    // A mapping keeps its memory without the handle.
    (void)cu.memory_release(memory);
    cu.require_success(answer, "cuMemMap");
    mapped_.emplace_back(at, bytes);
  }
  void grant(int device) {
    namespace cuda = detail::cuda;
    const cuda::memory_access wanted{{cuda::location_is_device, device}, cuda::read_and_write};
    for (const auto& [at, bytes] : mapped_)
      context_.calls().require_success(context_.calls().memory_set_access(at, bytes, &wanted, 1),
                                       "cuMemSetAccess");
  }

  detail::cuda::primary_context context_;
  detail::cuda::device_address begin_ = 0;
  std::size_t bytes_ = 0;
  std::vector<std::pair<detail::cuda::device_address, std::size_t>> mapped_;
};

}  // namespace tessera::inline v0_1::provider
