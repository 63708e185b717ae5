// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "context.hpp"
#include "driver.hpp"

/// Shares the memory of ranges between processes. The driver gives a file descriptor for a physical chunk. Its owner keeps
/// that open, and names its process and the descriptors in a handle, which is plain bytes. Another process copies the
/// descriptors and maps the same chunks into a range of its own.
///
/// The handle is that of PyTorch 2.6, so that a process with PyTorch's own allocator is a possible partner. It begins with a
/// version and a kind. Chunks of different sizes need a kind of our own, which PyTorch refuses.
///   Source:  c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6

namespace cuda_driver {

inline constexpr char handle_version = 1;
enum class handle_kind : char {
  segment = 'c',       ///< CUDA's handle of a segment follows
  equal_chunks = 'e',  ///< process, bytes of a chunk, number of chunks, their descriptors
  chunks = 't'         ///< process, 0, number of chunks, their descriptors, their bytes
};
/// Begins a handle.
[[nodiscard]] inline std::string begin_handle(handle_kind kind) {
  return {handle_version, static_cast<char>(kind)};
}

/// A part of a range, for another process.
struct shared_part {
  std::ptrdiff_t offset = 0;  ///< of the part in the shared chunks
  std::string handle;
};

/// An open file, which the destructor closes.
class descriptor {
 public:
  explicit descriptor(int file = -1) noexcept : file_(file) {}
  descriptor(descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~descriptor() {
    if (file_ >= 0) (void)::close(file_);
  }
  [[nodiscard]] int get() const noexcept { return file_; }

 private:
  int file_;
};

/// What a handle says in front of the descriptors.
struct chunks_header {
  pid_t process;
  std::size_t chunk_bytes;
  std::size_t count;
};
static_assert(sizeof(chunks_header) == 24);

/// The chunks that a process has mapped, and the descriptors of those that it shares. It is thread-safe.
class mapped_chunks {
 public:
  ///   Throws:  std::bad_alloc
  void insert(const void* p, std::size_t bytes, memory_handle memory) {
    const std::lock_guard lock(mutex_);
    mapped_[reinterpret_cast<std::uintptr_t>(p)] = {bytes, memory};
  }
  void erase(const void* p) noexcept {
    const std::lock_guard lock(mutex_);
    mapped_.erase(reinterpret_cast<std::uintptr_t>(p));
  }
  /// Closes the descriptor of a chunk, which is destroyed. Processes that have mapped it keep its memory.
  void close(memory_handle memory) noexcept {
    const std::lock_guard lock(mutex_);
    files_.erase(memory);
  }
  /// Makes a handle for the chunks behind [p, p + bytes). It is valid until one of them is destroyed.
  ///   Throws:  driver_error if the driver refuses, or if the bytes are not mapped here
  [[nodiscard]] shared_part share(const driver& calls, const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    auto at = mapped_.upper_bound(begin);
    if (at != mapped_.begin()) --at;
    const auto first = at;
    if (bytes == 0) throw driver_error("there are no bytes to share");
    std::vector<std::pair<int, std::size_t>> chunks;
    bool are_equal = true;
    for (std::uintptr_t here = begin; here - begin < bytes; ++at) {
      if (at == mapped_.end() || here < at->first || here - at->first >= at->second.bytes)
        throw driver_error("the memory to share is not mapped by this allocator");
      chunks.emplace_back(file_of(calls, at->second.memory), at->second.bytes);
      are_equal = are_equal && at->second.bytes == first->second.bytes;
      here = at->first + at->second.bytes;
    }
    const chunks_header header{::getpid(), are_equal ? first->second.bytes : 0, chunks.size()};
    std::string handle = begin_handle(are_equal ? handle_kind::equal_chunks : handle_kind::chunks);
    append(handle, header);
    for (const auto& [file, size] : chunks) append(handle, file);
    for (const auto& [file, size] : chunks) {
      if (!are_equal) append(handle, size);
    }
    return {static_cast<std::ptrdiff_t>(begin - first->first), std::move(handle)};
  }

 private:
  struct chunk {
    std::size_t bytes;
    memory_handle memory;
  };
  template <typename T>
  static void append(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  [[nodiscard]] int file_of(const driver& calls, memory_handle memory) {
    const auto known = files_.find(memory);
    if (known != files_.end()) return known->second.get();
    if (calls.memory_export == nullptr)
      throw driver_error("the CUDA driver has no function cuMemExportToShareableHandle");
    int file = -1;
    calls.check(calls.memory_export(&file, memory, file_handle, 0), "cuMemExportToShareableHandle");
    return files_.emplace(memory, descriptor(file)).first->second.get();
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, chunk> mapped_;
  std::unordered_map<memory_handle, descriptor> files_;
};

/// Chunks of another process, mapped into a range of this one. The destructor waits for the device, and unmaps them.
class shared_range {
 public:
  /// Maps the chunks that a handle of mapped_chunks::share names. The device and its peers get access to them.
  ///   Throws:  driver_error if the handle is invalid, if the other process has ended, if the system refuses its
  ///            descriptors, or if the driver fails
  shared_range(std::shared_ptr<const driver> library, int device, const std::vector<int>& peers,
               std::string_view handle)
      : context_(std::move(library), device) {
    const chunk_list list = read(handle);
    for (const std::size_t bytes : list.bytes) bytes_ += bytes;
    const context_guard guard(context_);
    if (!guard) throw driver_error(context_.last_error());
    const driver& calls = context_.calls();
    if (calls.memory_import == nullptr)
      throw driver_error("the CUDA driver has no function cuMemImportFromShareableHandle");
    calls.check(calls.address_reserve(&begin_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    try {
      const descriptor process = open_process(list.process);
      for (std::size_t i = 0; i < list.files.size(); ++i)
        map(list.process, process, list.files[i], list.bytes[i]);
      grant(device);
      for (const int peer : peers) grant(peer);
    } catch (...) {
      unmap();
      throw;
    }
  }
  shared_range(const shared_range&) = delete;
  shared_range& operator=(const shared_range&) = delete;
  ~shared_range() {
    const context_guard guard(context_);
    if (!guard) return;
    // Work of this process may still use the memory.
    (void)context_.succeeded("cuCtxSynchronize", context_.calls().context_synchronize());
    unmap();
  }
  [[nodiscard]] void* begin() const noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(begin_));
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct chunk_list {
    pid_t process;
    std::vector<int> files;
    std::vector<std::size_t> bytes;
  };
  static constexpr std::size_t max_bytes = std::size_t{1} << 46;  // of one handle

  /// Reads a value from the front of a handle.
  template <typename T>
  static void take(std::string_view& from, T& value) {
    if (from.size() < sizeof value)
      throw driver_error("the handle of shared memory is cut short, or has another format");
    std::memcpy(&value, from.data(), sizeof value);
    from.remove_prefix(sizeof value);
  }
  [[nodiscard]] static chunk_list read(std::string_view handle) {
    char version = 0, kind = 0;
    take(handle, version);
    take(handle, kind);
    const bool are_equal = kind == static_cast<char>(handle_kind::equal_chunks);
    if (version != handle_version)
      throw driver_error("the handle of shared memory has version " + std::to_string(version) +
                         "; only version 1 is known");
    if (!are_equal && kind != static_cast<char>(handle_kind::chunks))
      throw driver_error("the handle of shared memory names no chunks of a range");
    chunks_header header{};
    take(handle, header);
    const std::size_t each = are_equal ? sizeof(int) : sizeof(int) + sizeof(std::size_t);
    if (header.count == 0 || header.count != handle.size() / each || handle.size() % each != 0)
      throw driver_error("the handle of shared memory names " + std::to_string(header.count) +
                         " chunks, but its length is that of " + std::to_string(handle.size() / each));
    chunk_list list{header.process, std::vector<int>(header.count),
                    std::vector<std::size_t>(header.count, header.chunk_bytes)};
    for (int& file : list.files) take(handle, file);
    if (!are_equal) {
      for (std::size_t& bytes : list.bytes) take(handle, bytes);
    }
    std::size_t total = 0;
    for (const std::size_t bytes : list.bytes) {
      if (bytes == 0 || bytes > max_bytes - total)
        throw driver_error("the handle of shared memory has a chunk of " + std::to_string(bytes) + " bytes");
      total += bytes;
    }
    return list;
  }

  // The system calls are older than the functions of the C library for them.
  static constexpr long pidfd_open = 434, pidfd_getfd = 438;

  [[nodiscard]] static std::string named(const char* call, pid_t process, int error) {
    return std::string(call) + " of process " + std::to_string(process) + ": " + std::strerror(error);
  }
  [[nodiscard]] static descriptor open_process(pid_t process) {
    descriptor opened(static_cast<int>(::syscall(pidfd_open, process, 0)));
    if (opened.get() >= 0) return opened;
    const std::string what = named("pidfd_open", process, errno);
    if (errno == ESRCH)
      throw driver_error(what +
                         ". The process that shares the memory has ended, or is in another PID namespace");
    if (errno == ENOSYS || errno == EPERM)
      throw driver_error(
          what +
          ". Sharing the memory of ranges needs Linux 5.6, and a sandbox that allows the call. "
          "expandable_segments:False needs neither");
    throw driver_error(what);
  }
  [[nodiscard]] static descriptor copy_file(pid_t process, const descriptor& opened, int file) {
    descriptor copied(static_cast<int>(::syscall(pidfd_getfd, opened.get(), file, 0)));
    if (copied.get() >= 0) return copied;
    const std::string what = named("pidfd_getfd", process, errno);
    if (errno == EPERM)
      throw driver_error(what +
                         ". A process gives its descriptors only to processes that may trace it. To allow "
                         "it, that process calls "
                         "prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), or root sets the sysctl "
                         "kernel.yama.ptrace_scope to 0; a "
                         "container needs the capability SYS_PTRACE");
    if (errno == EBADF || errno == ESRCH)
      throw driver_error(what + ". The process that shares the memory has freed it, or has ended");
    if (errno == ENOSYS)
      throw driver_error(
          what + ". Sharing the memory of ranges needs Linux 5.6; expandable_segments:False does not");
    throw driver_error(what);
  }

  void map(pid_t process, const descriptor& opened, int file, std::size_t bytes) {
    const driver& calls = context_.calls();
    const descriptor copied = copy_file(process, opened, file);
    memory_handle memory = 0;
    mapped_.reserve(mapped_.size() + 1);
    // The driver takes a descriptor in the place of a pointer.
    void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(copied.get()));
    calls.check(calls.memory_import(&memory, number, file_handle), "cuMemImportFromShareableHandle");
    const device_address at = mapped_.empty() ? begin_ : mapped_.back().first + mapped_.back().second;
    const result answer = calls.memory_map(at, bytes, 0, memory, 0);
    // A mapping keeps its memory without the handle.
    (void)calls.memory_release(memory);
    calls.check(answer, "cuMemMap");
    mapped_.emplace_back(at, bytes);
  }
  void grant(device_number device) {
    const memory_access wanted{{location_is_device, device}, read_and_write};
    for (const auto& [at, bytes] : mapped_)
      context_.calls().check(context_.calls().memory_set_access(at, bytes, &wanted, 1), "cuMemSetAccess");
  }
  void unmap() noexcept {
    const driver& calls = context_.calls();
    for (const auto& [at, bytes] : mapped_)
      (void)context_.succeeded("cuMemUnmap", calls.memory_unmap(at, bytes));
    (void)context_.succeeded("cuMemAddressFree", calls.address_free(begin_, bytes_));
  }

  primary_context context_;
  std::size_t bytes_ = 0;
  device_address begin_ = 0;
  std::vector<std::pair<device_address, std::size_t>> mapped_;
};

}  // namespace cuda_driver
