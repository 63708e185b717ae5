// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include <tessera/core/error.hpp>
#include <tessera/provider/host_memory.hpp>

namespace tessera::inline v0_1::provider {

/// Keeps bytes in a file, for example the contents of memory that sleeps [tessera/extension/sleep_store.hpp].
///
/// Room for a piece is allocated on the disk before it is written, so that a full disk is noticed before anything is copied.
/// When a piece has been read as a whole, a checksum tells whether it is what was written. The room of released pieces is
/// used again, and at the end of the file it goes back to the disk.
///
///     tessera::provider::host_file scratch("/var/tmp/weights");
///     if (!scratch.why()) std::puts("it can keep memory that sleeps");
///
/// The caller has one host_file for each allocator, because it is not thread-safe. Nothing is flushed to the disk: the bytes
/// are for this program, not for one after a crash.
class host_file {
 public:
  /// Creates a file that only this object can reach: its name is removed at once, and the file ends with the object. No file of
  /// this name may exist.
  explicit host_file(const char* path) noexcept {
    file_ = detail::host_descriptor{::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR)};
    if (!file_) {
      why_ = errno == EEXIST   ? "a file of this name exists already"
             : errno == ENOENT ? "the folder of the file does not exist"
             : errno == EACCES || errno == EPERM || errno == EROFS
                 ? "the folder of the file does not let this program write"
             : errno == EMFILE || errno == ENFILE ? "the limit of open files is reached; raise it (ulimit -n)"
                                                  : "the system cannot create the file";
      return;
    }
    (void)::unlink(path);
  }
  /// Uses a duplicate of a descriptor, from the end of its file on. The file has its former size when the object ends.
  ///   Requires:  it is a regular file, open for reading and writing, that nobody else changes
  explicit host_file(int descriptor) noexcept {
    struct stat status{};
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || ::fstat(descriptor, &status) != 0) {
      why_ = "the descriptor is not open";
    } else if (!S_ISREG(status.st_mode) || (flags & O_ACCMODE) != O_RDWR || (flags & O_APPEND) != 0) {
      why_ = "the descriptor is not of a regular file that is open for reading and writing, without O_APPEND";
    } else {
      file_ = detail::host_descriptor{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)};
      if (!file_) why_ = "the limit of open files is reached; raise it (ulimit -n)";
      begin_ = static_cast<std::size_t>(status.st_size);
    }
  }
  host_file& operator=(host_file&&) = delete;
  ~host_file() {
    while (last_ != nullptr) erase(last_);
    shrink();
  }

  /// Why there is no file, as text; null if there is one.
  [[nodiscard]] const char* why() const noexcept { return why_; }
  /// Bytes of the pieces.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

  /// Reserves room for a piece.
  ///   Cost:  linear in the pieces if released room may suffice
  [[nodiscard]] outcome reserve(std::size_t bytes, std::uint64_t& piece) noexcept {
    if (why_ != nullptr) return {why_};
    const std::size_t end = end_of(last_);
    part* before = last_;
    if (end - begin_ - used_ >= bytes) before = before_gap(bytes);
    const std::size_t at = end_of(before);
    if (bytes > max_request || at > max_request) return {"the file would be too large"};
    while (bytes > 0 && ::fallocate(file_.get(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0) {
      if (errno == EOPNOTSUPP) break;  // writing will find out
      if (errno == EINTR) continue;
      const char* const text = why_not_written();
      shrink();
      return {text};
    }
    auto* const fresh = new (std::nothrow) part{at, bytes, 0, 0, 0, before, nullptr};
    if (fresh == nullptr) {
      shrink();
      return {"host memory ran out"};
    }
    part*& following = before != nullptr ? before->next : first_;
    fresh->next = following;
    (following != nullptr ? following->previous : last_) = fresh;
    following = fresh;
    used_ += bytes;
    piece = reinterpret_cast<std::uintptr_t>(fresh);
    return {};
  }
  /// Writes bytes of a piece.
  ///   Requires:  `piece` is reserved, the bytes lie in it, and all calls together write each byte once; each call but the
  ///              last, a multiple of 8 bytes
  [[nodiscard]] outcome write(std::uint64_t piece, std::size_t offset, const std::byte* from,
                              std::size_t bytes) noexcept {
    part& p = *part_of(piece);
    p.written += sum_of(offset, from, bytes);
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t count =
          ::pwrite(file_.get(), from + done, bytes - done, static_cast<off_t>(p.offset + offset + done));
      if (count > 0) {
        done += static_cast<std::size_t>(count);
      } else if (count == 0) {
        return {"the system writes no more bytes to the file"};
      } else if (errno != EINTR) {
        return {why_not_written()};
      }
    }
    return {};
  }
  /// Reads bytes of a piece.
  ///   Requires:  as write(); a call with offset 0 begins to read anew
  ///   Returns:   why not: the system failed, or the bytes are not those that were written. That is known after the last byte
  [[nodiscard]] outcome read(std::uint64_t piece, std::size_t offset, std::byte* to,
                             std::size_t bytes) noexcept {
    part& p = *part_of(piece);
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t count =
          ::pread(file_.get(), to + done, bytes - done, static_cast<off_t>(p.offset + offset + done));
      if (count > 0) {
        done += static_cast<std::size_t>(count);
      } else if (count == 0) {
        return {"the file is shorter than what was written: another program has changed it"};
      } else if (errno != EINTR) {
        return {"the system cannot read the file"};
      }
    }
    if (offset == 0) p.read = p.bytes_read = 0;
    p.read += sum_of(offset, to, bytes);
    p.bytes_read += bytes;
    if (p.bytes_read == p.bytes && p.read != p.written)
      return {"the file does not have what was written: another program has changed it"};
    return {};
  }
  void release(std::uint64_t piece, std::size_t) noexcept {
    part* const gone = part_of(piece);
    const bool was_last = gone == last_;
    erase(gone);
    if (was_last) shrink();
  }

 private:
  struct part {
    std::size_t offset;  ///< in the file
    std::size_t bytes;
    std::uint64_t written;   ///< the checksum of what was written
    std::uint64_t read;      ///< the checksum of what was read since offset 0
    std::size_t bytes_read;  ///< since offset 0
    part* previous;          ///< in the order of the file
    part* next;
  };

  [[nodiscard]] static part* part_of(std::uint64_t piece) noexcept {
    return reinterpret_cast<part*>(static_cast<std::uintptr_t>(piece));
  }
  [[nodiscard]] std::size_t end_of(const part* p) const noexcept {
    return p != nullptr ? p->offset + p->bytes : begin_;
  }
  /// The piece after which so many bytes are not used.
  [[nodiscard]] part* before_gap(std::size_t bytes) const noexcept {
    part* before = nullptr;
    for (part* next = first_; next != nullptr && next->offset - end_of(before) < bytes; next = next->next)
      before = next;
    return before;
  }
  void erase(part* gone) noexcept {
    used_ -= gone->bytes;
    (gone->previous != nullptr ? gone->previous->next : first_) = gone->next;
    (gone->next != nullptr ? gone->next->previous : last_) = gone->previous;
    delete gone;
  }
  /// Gives the room after the last piece back to the disk. A forked process must not, because its parent uses the same file.
  void shrink() noexcept {
    if (process_ == ::getpid() && file_ && ::ftruncate(file_.get(), static_cast<off_t>(end_of(last_))) != 0)
      return;  // it stays for later
  }
  [[nodiscard]] static const char* why_not_written() noexcept {
    switch (errno) {
      case ENOSPC: return "the disk of the file is full";
      case EDQUOT: return "the quota of the disk is used up";
      case EFBIG: return "the file would be larger than the system allows (ulimit -f)";
      case EPERM: return "the system does not let this program change the file";
      default: return "the system cannot write the file";
    }
  }
  /// A checksum of bytes at an offset of a piece. The sum over parts of whole words is that of the piece.
  [[nodiscard]] static std::uint64_t sum_of(std::size_t offset, const std::byte* from,
                                            std::size_t bytes) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + at, bytes - at < sizeof word ? bytes - at : sizeof word);
      word = (word ^ ((offset + at + 1) * 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
      sum += word ^ (word >> 32);
    }
    return sum;
  }

  detail::host_descriptor file_;
  const ::pid_t process_ = ::getpid();  // that made it
  const char* why_ = nullptr;
  std::size_t begin_ = 0;  // of the pieces in the file
  std::size_t used_ = 0;
  part* first_ = nullptr;
  part* last_ = nullptr;
};

}  // namespace tessera::inline v0_1::provider
