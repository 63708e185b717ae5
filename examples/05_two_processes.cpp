// SPDX-License-Identifier: Apache-2.0
// Two processes share physical memory, which each maps into an address range of its own. First, the parent creates and exports
// four chunks of a provider, without an allocator. Then it exports the chunks behind a block of an allocator.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/shared_chunks.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using device_type = tessera::provider::host_pinned;

constexpr device_type::options options{.capacity = 64_MiB, .pin = device_type::pinning::where_allowed};

int fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  return 1;
}
/// Prints the error of the device.
int fail(const device_type& device) { return fail(device.last_error().c_str()); }

/// A child that runs `work`, which reads from a pipe. Start it before a device starts threads, which fork does not copy.
class child_process {
 public:
  explicit child_process(int (*work)(int pipe)) {
    int pipe[2];
    if (::pipe(pipe) != 0) return;
    std::fflush(stdout);  // or the child has a copy of what is not written yet
    id_ = ::fork();
    if (id_ == 0) {
      ::close(pipe[1]);
      ::_exit(work(pipe[0]));
    }
    ::close(pipe[0]);
    pipe_ = pipe[1];
  }
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process() { (void)ended_well(); }

  [[nodiscard]] ::pid_t id() const { return id_; }
  [[nodiscard]] bool send(const void* data, std::size_t bytes) const {
    return ::write(pipe_, data, bytes) == static_cast<::ssize_t>(bytes);
  }
  /// Waits for the end of the child. The end of the pipe ends a child that still reads.
  [[nodiscard]] bool ended_well() {
    if (id_ <= 0) return false;
    ::close(pipe_);
    int status = 0;
    const bool has_ended = ::waitpid(id_, &status, 0) == id_;
    id_ = -1;
    return has_ended && status == 0;
  }

 private:
  ::pid_t id_ = -1;
  int pipe_ = -1;
};
bool receive(int pipe, void* data, std::size_t bytes) {
  return ::read(pipe, data, bytes) == static_cast<::ssize_t>(bytes);
}

// Chunks of a provider.

constexpr std::size_t chunk = 2_MiB;
constexpr std::size_t tensor = 4 * chunk / sizeof(float) / 2;  // two tensors fill four chunks
using shared_chunks = std::array<device_type::shareable, 4>;

/// Maps chunks into one contiguous address range. Returns null if the device fails.
float* map_all(device_type& device, std::span<const device_type::physical> chunks) {
  auto* const range = static_cast<std::byte*>(device.reserve(chunks.size() * chunk, chunk));
  for (std::size_t i = 0; range != nullptr && i < chunks.size(); ++i)
    if (!device.map(range + i * chunk, chunk, chunks[i])) return nullptr;
  return reinterpret_cast<float*>(range);
}

/// The child: imports the chunks that the pipe names, and writes twice the first tensor into the second.
int work_on_shared_memory(int pipe) {
  device_type device{options};
  shared_chunks shared;
  std::array<device_type::physical, 4> chunks;
  if (!receive(pipe, &shared, sizeof shared)) return 1;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    if (!device.import_memory(shared[i], chunks[i])) return fail(device);
  float* const memory = map_all(device, chunks);
  for (std::size_t i = 0; memory != nullptr && i < tensor; ++i) memory[tensor + i] = 2 * memory[i];
  return memory != nullptr ? 0 : fail(device);
}

int share_chunks() {
  child_process other(work_on_shared_memory);
  const ::pid_t child = other.id();
  device_type device{options};
  shared_chunks shared;
  std::array<device_type::physical, 4> chunks;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!device.create(chunk, tessera::page_kind::normal, chunks[i]) ||
        !device.export_memory(chunks[i], tessera::provider::importers::listed, shared[i]) ||
        !device.allow(shared[i], child))
      return fail(device);
  }
  float* const memory = map_all(device, chunks);
  if (memory == nullptr) return fail(device);
  for (std::size_t i = 0; i < tensor; ++i) memory[i] = static_cast<float>(i % 1000);

  if (!other.send(&shared, sizeof shared) || !other.ended_well()) return 1;
  std::printf("the other process computed %.0f from %.0f\n", memory[tensor + 999], memory[999]);
  return memory[tensor + 999] == 1998 && memory[2 * tensor - 1] == 2 * memory[tensor - 1] ? 0 : 1;
}

// A block of an allocator.

using chunk_name = tessera::provider::exported_chunk<device_type>;
constexpr std::size_t numbers = 30_MiB / sizeof(std::size_t);  // in the block

/// Where the names of a block's chunks follow in the pipe. Chunks are exported whole, and the block begins inside the first.
struct block_place {
  std::size_t chunks;
  std::size_t offset;
};

/// The child: maps the chunks that the pipe names, and compares the block with what the parent wrote.
int compare_block(int pipe) {
  device_type device{options};
  block_place place;
  if (!receive(pipe, &place, sizeof place)) return 1;
  std::vector<chunk_name> names(place.chunks);
  if (!receive(pipe, names.data(), names.size() * sizeof(chunk_name))) return 1;
  const tessera::provider::imported_range<device_type> range(device, names);
  if (!range) return fail(range.why());
  const void* const block = static_cast<const std::byte*>(range.begin()) + place.offset;
  for (std::size_t i = 0; i < numbers; ++i)
    if (static_cast<const std::size_t*>(block)[i] != 3 * i) return 1;
  return 0;
}

int share_block() {
  child_process other(compare_block);
  tessera::caching_allocator<tessera::recipe::pytorch<"expandable_segments:True">, device_type> allocator(
      device_type{options});
  void* const before = allocator.allocate(5_MiB);
  auto* const block = static_cast<std::size_t*>(allocator.allocate(numbers * sizeof(std::size_t)));
  for (std::size_t i = 0; i < numbers; ++i) block[i] = 3 * i;

  const auto list = tessera::observe::list_chunks(allocator, block);
  if (!list) return fail(list.why);
  const auto exported =
      tessera::provider::export_chunks<device_type>(allocator.provider(), list.chunks, other.id());
  if (!exported) return fail(exported.why.text());
  const block_place place{exported.chunks.size(),
                          reinterpret_cast<std::uintptr_t>(block) - list.chunks[0].address};
  // The block stays live until the other process has imported it.
  const bool is_equal = other.send(&place, sizeof place) &&
                        other.send(exported.chunks.data(), place.chunks * sizeof(chunk_name)) &&
                        other.ended_well();
  std::printf("the other process read a block of 30 MiB, %zu MiB into %zu chunks: %s\n", place.offset >> 20,
              place.chunks, is_equal ? "equal" : "not equal");
  for (void* const p : {before, static_cast<void*>(block)}) allocator.deallocate(p);
  return is_equal && allocator.audit() == nullptr ? 0 : 1;
}

int main() { return share_chunks() == 0 && share_block() == 0 ? 0 : 1; }
