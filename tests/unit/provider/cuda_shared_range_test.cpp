// SPDX-License-Identifier: Apache-2.0
// Two processes share the memory of ranges. The library in place of the driver has a file of the system behind each chunk
// that is shared, so one process reads what the other has written.
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/tessera.hpp>

#include "fake_cuda.hpp"

namespace {

using namespace tessera;

[[nodiscard]] std::size_t open_files() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                std::filesystem::directory_iterator()));
}
/// What a program writes into a block: the bytes tell where they are.
[[nodiscard]] std::vector<unsigned char> pattern(std::size_t bytes) {
  std::vector<unsigned char> text(bytes);
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<unsigned char>(i ^ i >> 8 ^ i >> 16);
  return text;
}
/// Reads device memory in parts of 1 MiB, none of which crosses chunks of whole MiB.
[[nodiscard]] std::vector<unsigned char> read(cuda_device& device, const void* from, std::size_t bytes) {
  std::vector<unsigned char> text(bytes);
  for (std::size_t at = 0; at < bytes; at += 1_MiB)
    EXPECT_TRUE(device.copy_to_host(text.data() + at, static_cast<const std::byte*>(from) + at, 1_MiB, {}));
  return text;
}
void write(cuda_device& device, void* to, const std::vector<unsigned char>& text) {
  for (std::size_t at = 0; at < text.size(); at += 1_MiB)
    EXPECT_TRUE(device.copy_to_device(static_cast<std::byte*>(to) + at, text.data() + at, 1_MiB, {}));
}
[[nodiscard]] const void* inside(const cuda_shared_range& range, std::ptrdiff_t offset) {
  return static_cast<const std::byte*>(range.begin()) + offset;
}

/// A pipe in each direction between a process and its child.
class conversation {
 public:
  conversation() { EXPECT_TRUE(::pipe(down_) == 0 && ::pipe(up_) == 0); }
  conversation(const conversation&) = delete;
  conversation& operator=(const conversation&) = delete;
  ~conversation() {
    for (const int file : {down_[0], down_[1], up_[0], up_[1]}) ::close(file);
  }
  void be_child() noexcept { std::swap(down_, up_); }
  void say(const std::string& text) const {
    const std::size_t bytes = text.size();
    (void)!::write(down_[1], &bytes, sizeof bytes);
    (void)!::write(down_[1], text.data(), bytes);
  }
  [[nodiscard]] std::string hear() const {
    std::size_t bytes = 0;
    if (::read(up_[0], &bytes, sizeof bytes) != sizeof bytes) return "nothing";
    std::string text(bytes, '\0');
    return ::read(up_[0], text.data(), bytes) == static_cast<ssize_t>(bytes) ? text : "nothing";
  }

 private:
  int down_[2], up_[2];
};

class cuda_shared_range_test : public with_fake_cuda {
 protected:
  /// Runs f(conversation) in a child process, which says its failures there. Returns the number of the process.
  template <typename F>
  pid_t in_child(conversation& with, F f) {
    const pid_t child = ::fork();
    if (child != 0) {
      (void)::prctl(PR_SET_PTRACER, child);  // allows it to copy descriptors
      return child;
    }
    with.be_child();
    begin();
    try {
      f();
    } catch (const std::exception& error) {
      with.say(error.what());
    }
    ::_exit(HasFailure() ? 1 : 0);
  }
  static void expect_end_of(pid_t child) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  /// Why a handle is refused.
  [[nodiscard]] static std::string refusal_of(const std::string& handle) {
    try {
      const cuda_shared_range opened(load(), 0, {}, handle);
    } catch (const cuda_driver_error& error) {
      return error.what();
    }
    return "nothing";
  }
};

constexpr std::size_t block = 30_MiB;

/// The process that opens shared memory, reads it, and reads it again when the other has freed its own.
void open_and_read(const conversation& other, const fake_cuda& cuda) {
  const std::size_t files = open_files();
  {
    const cuda_driver library(loaded_library::path_of("fake_cuda").c_str());
    cuda_device device(library, 0);
    const std::ptrdiff_t offset = std::stoll(other.hear());
    const cuda_shared_range range(library, 0, {}, other.hear());
    EXPECT_EQ(open_files() - files, 3u) << "the driver has its own descriptor of each chunk";
    EXPECT_EQ(range.bytes(), 60_MiB);
    EXPECT_EQ(read(device, inside(range, offset), block), pattern(block));
    other.say("read");
    EXPECT_EQ(other.hear(), "freed");
    EXPECT_EQ(read(device, inside(range, offset), block), pattern(block));
  }
  EXPECT_EQ(cuda.outstanding(), 0u);
  EXPECT_STREQ(cuda.misuse(), "");
  EXPECT_EQ(open_files(), files);
  other.say("done");
}

TEST_F(cuda_shared_range_test, shows_a_block_to_another_process) {
  conversation other;
  const pid_t child = in_child(other, [&] { open_and_read(other, cuda); });
  const std::size_t files = open_files();
  {
    concurrent::locked<caching_allocator<recipe::pytorch_family::expandable, cuda_device>> memory(
        cuda_device(load(), 0));
    void* const before = memory.allocate(15_MiB);
    void* const p = memory.allocate(block);  // it begins in the first chunk of 20 MiB, and ends in the third
    cuda_shared_part part;
    memory.visit_provider([&](cuda_device& device) {
      write(device, p, pattern(block));
      part = device.share(p, block);
      EXPECT_EQ(device.share(p, block).handle, part.handle);
    });
    EXPECT_EQ(part.offset, static_cast<std::ptrdiff_t>(15_MiB));
    EXPECT_EQ(part.handle.size(), 2 + 24 + 3 * sizeof(int));
    EXPECT_EQ(part.handle.substr(0, 2), "\1e") << "as PyTorch 2.6";
    other.say(std::to_string(part.offset));
    other.say(part.handle);
    const std::string answer = other.hear();
    if (answer.starts_with("pidfd_")) {
      memory.deallocate(before);
      memory.deallocate(p);
      expect_end_of(child);
      GTEST_SKIP() << answer;
    }
    ASSERT_EQ(answer, "read");
    memory.deallocate(before);
    memory.deallocate(p);
    memory.trim();
    EXPECT_EQ(cuda.used(0), 0u);
    EXPECT_EQ(open_files(), files) << "chunks that are destroyed leave no descriptor";
    other.say("freed");
  }
  EXPECT_EQ(other.hear(), "done");
  expect_end_of(child);
}

/// A range with chunks of these sizes, as an allocator maps them.
class mapped_range {
 public:
  mapped_range(cuda_device& device, const std::vector<std::size_t>& sizes) : device_(device), sizes_(sizes) {
    begin_ = static_cast<std::byte*>(device.reserve(range, 2_MiB));
    EXPECT_NE(begin_, nullptr);
    std::byte* at = begin_;
    for (const std::size_t bytes : sizes) {
      cuda_device::physical& made = chunks_.emplace_back();
      EXPECT_TRUE(device.create(bytes, page_kind::normal, made) && device.map(at, bytes, made) &&
                  device.grant(at, bytes));
      at += bytes;
    }
  }
  mapped_range(const mapped_range&) = delete;
  mapped_range& operator=(const mapped_range&) = delete;
  ~mapped_range() {
    std::byte* at = begin_;
    for (std::size_t i = 0; i < sizes_.size(); at += sizes_[i++])
      EXPECT_TRUE(device_.unmap(at, sizes_[i]) && device_.destroy(chunks_[i]));
    EXPECT_TRUE(device_.unreserve(begin_, range));
  }
  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }

 private:
  static constexpr std::size_t range = 32_MiB;
  cuda_device& device_;
  std::vector<std::size_t> sizes_;
  std::vector<cuda_device::physical> chunks_;
  std::byte* begin_;
};

TEST_F(cuda_shared_range_test, shares_chunks_of_different_sizes) {
  const std::size_t files = open_files();
  {
    cuda_device device(load(), 0);
    const mapped_range own(device, {2_MiB, 6_MiB, 4_MiB});
    write(device, own.begin() + 1_MiB, pattern(9_MiB));
    const cuda_shared_part part = device.share(own.begin() + 1_MiB, 9_MiB);
    EXPECT_EQ(part.handle.substr(0, 2), "\1t");
    const std::string refused = refusal_of(part.handle);
    if (refused.starts_with("pidfd_")) GTEST_SKIP() << refused;
    ASSERT_EQ(refused, "nothing");
    const cuda_shared_range first(load(), 0, {}, part.handle), second(load(), 0, {}, part.handle);
    EXPECT_EQ(first.bytes(), 12_MiB);
    EXPECT_EQ(read(device, inside(first, part.offset), 9_MiB), pattern(9_MiB));
    EXPECT_EQ(read(device, inside(second, part.offset), 9_MiB), pattern(9_MiB));
    const cuda_shared_part middle = device.share(own.begin() + 3_MiB, 1_MiB);
    EXPECT_EQ(middle.offset, static_cast<std::ptrdiff_t>(1_MiB));
    EXPECT_EQ(middle.handle.substr(0, 2), "\1e") << "one chunk";
  }
  EXPECT_EQ(open_files(), files);
}

TEST_F(cuda_shared_range_test, leaves_nothing_when_a_call_fails) {
  cuda_device device(load(), 0);
  const mapped_range own(device, {2_MiB, 2_MiB});
  const std::string handle = device.share(own.begin(), 4_MiB).handle;
  if (const std::string refused = refusal_of(handle); refused.starts_with("pidfd_")) GTEST_SKIP() << refused;
  const std::size_t files = open_files(), outstanding = cuda.outstanding();
  // The context, three calls; the range; for each chunk, import, map and release; access, a call for each chunk. A
  // release does not fail here, because the memory would then be lost.
  for (const unsigned long long call : {1u, 2u, 3u, 4u, 5u, 6u, 8u, 9u, 11u, 12u}) {
    cuda.fail(call, call, detail::cuda::out_of_memory);
    EXPECT_NE(refusal_of(handle).find("OUT_OF_MEMORY"), std::string::npos) << "call " << call;
    cuda.fail(0, 0, 0);
    EXPECT_EQ(open_files(), files);
    EXPECT_EQ(cuda.outstanding(), outstanding) << "call " << call;
  }
}

TEST_F(cuda_shared_range_test, says_what_is_wrong_with_a_handle) {
  cuda_device device(load(), 0);
  std::string handle;
  const auto refusal_to_share = [&device](const void* p, std::size_t bytes) -> std::string {
    try {
      (void)device.share(p, bytes);
    } catch (const cuda_driver_error& error) {
      return error.what();
    }
    return "nothing";
  };
  constexpr const char* not_mapped = "the memory to share is not mapped by this allocator";
  const std::byte* unmapped = nullptr;
  {
    const mapped_range own(device, {2_MiB});
    unmapped = own.begin();
    handle = device.share(own.begin(), 2_MiB).handle;
    EXPECT_NE(refusal_of(handle.substr(0, 20)).find("cut short"), std::string::npos);
    EXPECT_NE(refusal_of(handle + "1234").find("names 1 chunks, but its length is that of 2"),
              std::string::npos);
    EXPECT_NE(refusal_of("\3" + handle.substr(1)).find("version 3"), std::string::npos);
    EXPECT_EQ(refusal_of("\2" + handle.substr(1)), refusal_of(handle)) << "PyTorch 2.11 writes version 2";
    const std::string of_fabric = handle.substr(0, handle.size() - sizeof(int)) + std::string(64, 'f');
    EXPECT_NE(refusal_of(of_fabric).find("for the fabric"), std::string::npos);
    EXPECT_NE(refusal_of("\1c" + handle.substr(2)).find("no chunks"), std::string::npos);
    std::string huge = handle;
    const std::size_t bytes = ~std::size_t{0};
    std::memcpy(huge.data() + 2 + offsetof(detail::cuda::chunks_header, chunk_bytes), &bytes, sizeof bytes);
    EXPECT_NE(refusal_of(huge).find("has a chunk of 18446744073709551615 bytes"), std::string::npos);
    EXPECT_EQ(cuda.outstanding(), 4u) << "the context, the range, the chunk and its mapping";
    EXPECT_EQ(refusal_to_share(own.begin() + 1_MiB, 2_MiB), not_mapped);
  }
  EXPECT_EQ(refusal_to_share(unmapped, 1_MiB), not_mapped);
  const std::string freed = refusal_of(handle);
  EXPECT_TRUE(freed.find("has freed it") != std::string::npos || freed.starts_with("pidfd_open")) << freed;

  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  (void)::waitpid(child, nullptr, 0);
  std::memcpy(handle.data() + 2, &child, sizeof child);
  const std::string ended = refusal_of(handle);
  EXPECT_TRUE(ended.starts_with("pidfd_open of process " + std::to_string(child))) << ended;
  EXPECT_TRUE(ended.find("has ended") != std::string::npos || ended.find("sandbox") != std::string::npos)
      << ended;
}

TEST_F(cuda_shared_range_test, says_how_to_allow_what_the_system_refuses) {
  conversation other;
  // Whether or not this process is root: the child may not trace it.
  const bool is_root = ::geteuid() == 0;
  if (!is_root) (void)::prctl(PR_SET_DUMPABLE, 0);
  const pid_t child = in_child(other, [&] {
    const std::string handle = other.hear();
    EXPECT_TRUE(!is_root || ::setresuid(65534, 65534, 65534) == 0);
    other.say(refusal_of(handle));
  });
  {
    cuda_device device(load(), 0);
    const mapped_range own(device, {2_MiB});
    other.say(device.share(own.begin(), 2_MiB).handle);
    const std::string why = other.hear();
    EXPECT_TRUE(why.starts_with("pidfd_")) << why;
    EXPECT_NE(why.find("Operation not permitted"), std::string::npos) << why;
    EXPECT_NE(why.find(why.starts_with("pidfd_getfd") ? "PR_SET_PTRACER" : "sandbox"), std::string::npos)
        << why;
  }
  expect_end_of(child);
  if (!is_root) (void)::prctl(PR_SET_DUMPABLE, 1);
}

TEST_F(cuda_shared_range_test, works_on_a_device_that_shares_nothing) {
  for (const int late : {0, 1}) {
    begin();
    cuda.refuse_files(late);
    {
      cuda_device device(load(), 0);
      const mapped_range own(device, {2_MiB, 4_MiB});
      EXPECT_EQ(cuda.count("cuMemCreate"), late != 0 ? 3 : 2)
          << "it asks once for memory that it could share";
    }
    end();
  }
}

}  // namespace
