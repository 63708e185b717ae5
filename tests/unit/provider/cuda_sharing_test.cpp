// SPDX-License-Identifier: Apache-2.0
// Two processes share the chunks of a cuda_device. The library in place of the driver has a file of the system behind each
// chunk that is shared.
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/tessera.hpp>

#include "fake_cuda.hpp"
#include "host_process.hpp"

namespace {

using namespace tessera;
using host_process::channel;
using name = exported_chunk<cuda_device>;

/// Writes or reads one number at the begin of a mapping.
bool write(cuda_device& device, void* to, int value) {
  return device.copy_to_device(to, &value, sizeof value, {}) && device.synchronize({});
}
int read(cuda_device& device, const void* from) {
  int value = 0;
  return device.copy_to_host(&value, from, sizeof value, {}) && device.synchronize({}) ? value : -1;
}

class cuda_sharing : public with_fake_cuda {
 protected:
  /// The importing process: maps `count` chunks that it receives.
  int import_chunks(const channel& way, std::size_t count, bool has_fabric) {
    begin();
    if (has_fabric) cuda.offer(0, 0);
    {
      cuda_device device(load());
      std::vector<name> names(count);
      if (!way.send(device.process())) return 1;
      for (name& n : names)
        if (!way.receive(n)) return 2;
      const imported_range<cuda_device> range(device, names);
      if (!range) return std::fputs(range.why(), stderr), 3;
      if (read(device, range.begin()) != 41 || !write(device, range.begin(), 42) || !way.pass()) return 4;
      cuda_device::physical memory;
      cuda_device::shareable again;
      if (!device.import_memory(names[0].name, memory) || memory.bytes != names[0].bytes) return 5;
      if (device.export_memory(memory, importers::any, again)) return 6;
      cuda_device::physical second;
      if (device.import_memory(names[0].name, second) ||
          device.last_error().find("imported already; destroy it first") == std::string::npos)
        return 9;
      if (!device.destroy(memory)) return 7;
    }
    return cuda.outstanding() == 0 && std::string(cuda.misuse()).empty() ? 0 : 8;
  }
};

TEST_F(cuda_sharing, maps_the_chunks_of_a_block_in_another_process) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] { return import_chunks(way, 3, false); });
  {
    locked<caching_allocator<pytorch_family::expandable, cuda_device>> memory(cuda_device(load(), 0));
    void* const before = memory.allocate(20_MiB);
    void* const p = memory.allocate(60_MiB);
    const auto chunks = list_chunks(memory, p).chunks;
    ASSERT_EQ(chunks.size(), 3u);
    std::int32_t process = 0;
    ASSERT_TRUE(way.receive(process));
    std::vector<name> names;
    memory.visit_provider([&](cuda_device& device) {
      EXPECT_TRUE(write(device, p, 41));
      names = export_chunks<cuda_device>(device, chunks, process).chunks;
      const auto again = export_chunks<cuda_device>(device, chunks, process);
      EXPECT_EQ(again.chunks.size(), 3u) << again.why.text();
    });
    ASSERT_EQ(names.size(), 3u);
    for (const name& n : names) ASSERT_TRUE(way.send(n));
    EXPECT_TRUE(way.wait());
    memory.visit_provider([&](cuda_device& device) { EXPECT_EQ(read(device, p), 42); });
    EXPECT_EQ(host_process::end_of(importer), 0);
    memory.deallocate(before);
    memory.deallocate(p);
  }
}

TEST_F(cuda_sharing, goes_over_the_fabric_if_no_exporter_answers) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] { return import_chunks(way, 1, true); });
  cuda.offer(0, 0);
  {
    cuda_device device(load());
    cuda_device::physical memory;
    name n{2_MiB, 2_MiB, {}};
    ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory));
    void* const p = device.reserve(2_MiB, 2_MiB);
    ASSERT_TRUE(device.map(p, 2_MiB, memory) && device.grant(p, 2_MiB) && write(device, p, 41));
    ASSERT_TRUE(device.export_memory(memory, importers::any, n.name)) << device.last_error();
    EXPECT_TRUE(n.name.has_fabric);
    n.name.file.token ^= 1;  // as on another machine
    std::int32_t process = 0;
    ASSERT_TRUE(way.receive(process) && way.send(n) && way.wait());
    EXPECT_EQ(read(device, p), 42);
    EXPECT_EQ(host_process::end_of(importer), 0);
    EXPECT_TRUE(device.destroy(memory) && device.unmap(p, 2_MiB) && device.unreserve(p, 2_MiB));
  }
}

TEST_F(cuda_sharing, obeys_its_rules) {
  cuda.offer(0, 0);
  cuda_device device(load()), other(load());
  cuda_device::physical memory, imported;
  cuda_device::shareable shared, none;
  EXPECT_FALSE(device.export_memory(memory, importers::any, shared));
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory));
  EXPECT_FALSE(device.exported_name(memory, none));
  ASSERT_TRUE(device.export_memory(memory, importers::listed, shared)) << device.last_error();
  EXPECT_FALSE(shared.has_fabric) << "a fabric cannot tell who imports";
  EXPECT_FALSE(device.export_memory(memory, importers::any, none));
  EXPECT_EQ(device.last_error(), "export_memory: the memory is exported already");
  EXPECT_STREQ(device.take_refusal().text(), "export_memory: the memory is exported already");
  EXPECT_TRUE(device.exported_name(memory, none));
  EXPECT_EQ(none, shared);
  EXPECT_TRUE(device.allow(shared, 1));
  EXPECT_FALSE(other.allow(shared, 1));
  EXPECT_STREQ(other.take_refusal().text(), "allow: the memory is not exported here, or destroyed");
  EXPECT_FALSE(other.import_memory(shared, imported));
  EXPECT_STREQ(other.take_refusal().text(), "import_memory: this process exported the memory");
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    begin();
    cuda_device stranger(load());
    cuda_device::physical got;
    const bool listed = stranger.import_memory(shared, got);
    if (listed || stranger.last_error().find("is not listed") == std::string::npos) return 1;
    if (!way.pass() || !way.wait() || stranger.import_memory(shared, got)) return 2;
    return stranger.last_error().find("has destroyed the memory") != std::string::npos ? 0 : 3;
  });
  ASSERT_TRUE(way.wait());
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_FALSE(device.allow(shared, 1));
  ASSERT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(importer), 0);
}

TEST_F(cuda_sharing, keeps_the_laws_in_checked_mode) {
  checked_provider<cuda_device> device(cuda_device(load(), 0));
  const law::provider_check_result found = law::provider(device);
  EXPECT_TRUE(found) << found.message();
}

}  // namespace
