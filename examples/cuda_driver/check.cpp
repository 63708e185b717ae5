// SPDX-License-Identifier: Apache-2.0
// Checks the provider on each GPU of this machine: that it obeys the laws of providers, that allocators over it release all
// memory, and that another process can map its chunks. Another program on the GPU may disturb the check. Exits with 77 if
// there is no GPU.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <tessera/law/provider_laws.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/provider/shared_chunks.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Runs an allocator: grows, splits, frees every other block, uses a second stream, and empties the cache.
template <typename Recipe>
bool serves(tessera::provider::cuda_device& device, const char* recipe) {
  constexpr tessera::stream_id per_thread{2};  // CU_STREAM_PER_THREAD, which always exists
  tessera::caching_allocator<Recipe, tessera::provider::provider_ref<tessera::provider::cuda_device>> pool{
      tessera::provider::provider_ref(device)};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 64; ++i) {
    void* const p = pool.try_allocate((i % 7 + 1) * 500_KiB, i % 2 == 0 ? tessera::stream_id{} : per_thread);
    if (p == nullptr) {
      std::printf("  %s: %s\n", recipe, device.last_error().c_str());
      return false;
    }
    if (i % 4 == 0 && !pool.record_stream(p, per_thread)) {
      std::printf("  %s: record_stream failed\n", recipe);
      return false;
    }
    blocks.push_back(p);
    if (i % 2 == 1) pool.deallocate(blocks[i / 2]);
  }
  const std::size_t reserved = pool.current_usage().reserved;
  for (std::size_t i = 32; i < 64; ++i) pool.deallocate(blocks[i]);
  pool.trim();
  const bool released = pool.audit() == nullptr && pool.current_usage().reserved == 0;
  std::printf("  %s: reserved %zu MiB, %s\n", recipe, reserved >> 20,
              released ? "all released" : "not released");
  return released;
}

namespace shared {

using tessera::provider::cuda_device;
using chunk = tessera::provider::exported_chunk<cuda_device>;
constexpr int written_here = 41, written_there = 42;

/// A pipe in each direction, and the process at the other end. It starts before this one uses the driver, because a forked
/// process cannot use the driver of its parent.
class other_process {
 public:
  /// `part` runs in the new process, and returns its exit code.
  template <typename F>
  explicit other_process(F part) {
    int there[2], back[2];
    if (::pipe(there) != 0 || ::pipe(back) != 0) return;
    std::fflush(nullptr);
    process_ = ::fork();
    const bool is_child = process_ == 0;
    ::close(there[is_child ? 1 : 0]);
    ::close(back[is_child ? 0 : 1]);
    in_ = is_child ? there[0] : back[0];
    out_ = is_child ? back[1] : there[1];
    if (is_child) ::_exit(part(*this));
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;
  ~other_process() { (void)end(); }

  template <typename T>
  bool send(const T& value) const {
    return ::write(out_, &value, sizeof value) == static_cast<::ssize_t>(sizeof value);
  }
  template <typename T>
  bool receive(T& value) const {
    return ::read(in_, &value, sizeof value) == static_cast<::ssize_t>(sizeof value);
  }
  /// Ends the connection, and waits for the exit code.
  int end() {
    if (process_ <= 0) return -1;
    ::close(in_);
    ::close(out_);
    int status = 0;
    const bool found = ::waitpid(process_, &status, 0) == process_;
    process_ = 0;
    return found && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  ::pid_t process_ = -1;
  int in_ = -1, out_ = -1;
};

int read(cuda_device& device, const void* from) {
  int value = 0;
  return device.copy_to_host(&value, from, sizeof value, {}) && device.synchronize({}) ? value : -1;
}
bool write(cuda_device& device, void* to, int value) {
  return device.copy_to_device(to, &value, sizeof value, {}) && device.synchronize({});
}

/// Maps the chunks of a block, reads what the other process wrote at its begin, and writes another number.
int import_block(const char* path, const other_process& exporter) {
  std::size_t count = 0, offset = 0;
  if (!exporter.receive(count)) return 0;  // there is no GPU, or it does not share memory
  std::vector<chunk> chunks(count);
  for (chunk& c : chunks)
    if (!exporter.receive(c)) return 1;
  if (!exporter.receive(offset)) return 1;
  try {
    cuda_device device(tessera::provider::cuda_driver(path), 0);
    const tessera::provider::imported_range<cuda_device> range(device, chunks);
    if (!range) {
      std::printf("  the other process: %s\n", range.why());
      std::fflush(stdout);
      return 2;
    }
    void* const block = static_cast<char*>(range.begin()) + offset;
    if (read(device, block) != written_here || !write(device, block, written_there)) return 3;
    return exporter.send(written_there) ? 0 : 4;
  } catch (const std::exception& error) {
    std::printf("  the other process: %s\n", error.what());
    std::fflush(stdout);
    return 5;
  }
}

/// Exports the chunks of a block, and reads what the other process wrote into it.
bool exports(cuda_device& device, other_process& importer) {
  using tessera::provider::provider_ref;
  tessera::caching_allocator<tessera::recipe::pytorch_family::expandable, provider_ref<cuda_device>> pool{
      provider_ref(device)};
  void* const before = pool.allocate(20_MiB);
  void* const p = pool.allocate(60_MiB);
  const auto listed = tessera::observe::list_chunks(pool, p, 60_MiB).chunks;
  std::vector<tessera::provider::mapped_chunk<cuda_device>> mapped;
  for (const auto& c : listed) mapped.push_back({c.address, c.bytes, c.memory});
  bool works = !listed.empty() && write(device, p, written_here);
  const auto [chunks, why] = tessera::provider::export_chunks<cuda_device>(device, mapped);
  works = works && !chunks.empty() && importer.send(chunks.size());
  for (const chunk& c : chunks) works = works && importer.send(c);
  int answer = 0;
  works = works &&
          importer.send(static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(p) - chunks[0].address)) &&
          importer.receive(answer) && answer == written_there && read(device, p) == written_there;
  pool.deallocate(before);
  pool.deallocate(p);
  const int code = importer.end();
  std::printf("  another process: %zu chunks, %s\n", chunks.size(),
              works && code == 0 ? "mapped, read and written" : "not shared");
  if (why) std::printf("  its chunks cannot be exported: %s\n", why.text());
  return works && code == 0;
}

}  // namespace shared

int main(int count, char** arguments) {
  const char* const path = count > 1 ? arguments[1] : "libcuda.so.1";
  shared::other_process importer(
      [path](const shared::other_process& exporter) { return shared::import_block(path, exporter); });
  std::optional<tessera::provider::cuda_driver> library;
  try {
    library.emplace(path);
  } catch (const tessera::provider::cuda_driver_error& error) {
    std::printf("%s\n", error.what());
    return 77;
  }
  bool good = library->devices() > 0;
  try {
    for (int number = 0; number < library->devices(); ++number) {
      tessera::provider::cuda_device device(*library, number);
      const tessera::law::provider_check_result found = tessera::law::provider(device);
      std::printf("device %d: %zu of %zu MiB free, pages of %zu KiB; %s\n", number, device.available() >> 20,
                  device.capacity() >> 20, device.page_size(tessera::page_kind::normal) >> 10,
                  found ? "obeys the laws of providers" : found.message());
      for (const auto& [law, why] : found.not_checked()) std::printf("  not checked: %s: %s\n", law, why);
      if (!found) std::printf("  its latest error: %s\n", device.last_error().c_str());
      good = good && found;
      good = serves<tessera::recipe::pytorch<>>(device, "pytorch") && good;
      good = serves<tessera::recipe::pytorch_family::expandable>(device, "pytorch_expandable") && good;
      good = serves<tessera::recipe::stitched>(device, "stitched") && good;
      good = serves<tessera::recipe::cuda_async>(device, "cuda_async") && good;
      const tessera::provider::chunk_traits can = device.chunk_abilities();
      std::printf("  chunks: shared by %s%s%s\n", can.exports_file ? "files" : "nothing",
                  can.exports_fabric ? " and the fabric" : "", can.rdma ? "; RDMA" : "");
      if (number == 0 && can.exports_file) good = shared::exports(device, importer) && good;
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return good ? 0 : 1;
}
