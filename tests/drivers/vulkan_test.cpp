// SPDX-License-Identifier: Apache-2.0
// The provider over Vulkan and the suballocator of examples/vulkan, on a real driver. Its vulkan_functions are called through a table that can make
// each call fail, and that can pretend other memory types and limits. No test may cause a message of the validation layer.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/vulkan.hpp>
#include <tessera/tessera.hpp>

#include "first_broken_rule.hpp"
#include "session.hpp"
#include "suballocator.hpp"

namespace {

using namespace tessera;
using conformance::first_broken_rule;
using conformance::plan;
using provider::vulkan_device;
using provider::vulkan_error;
using provider::vulkan_functions;
using provider::vulkan_host;
using provider::vulkan_memory;
using provider::vulkan_timelines;
using vulkan::allocation;

constexpr stream_id first{0}, second{1}, third{2};
constexpr VkMemoryPropertyFlags device_local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
constexpr VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
constexpr VkMemoryPropertyFlags coherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
constexpr VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;

std::mutex counting;  // of calls in several threads

/// The behaviour of the functions between the tests and the driver, and what they saw.
struct between {
  std::optional<vulkan_functions> real;
  // Calls that can fail are counted; those from fail_from to fail_to fail.
  std::uint64_t calls = 0, failed = 0;
  std::uint64_t fail_from = 0, fail_to = 0;
  // Pretended properties. Every pretended type is the real type 0.
  std::optional<VkPhysicalDeviceMemoryProperties> types;
  std::function<void(VkPhysicalDeviceLimits&)> limits;
  VkDeviceSize max_allocation = 0;
  std::optional<VkPhysicalDeviceMemoryBudgetPropertiesEXT> budget;
  bool prefers_dedicated = false, requires_dedicated = false, refuses_dedicated = false;
  std::function<void()> before_wait;
  // Seen calls.
  std::uint64_t allocated = 0, freed = 0, mapped = 0, semaphores = 0;
  std::uint64_t buffers_destroyed = 0, images_destroyed = 0, dedicated = 0;
  std::vector<VkMappedMemoryRange> flushed;

  [[nodiscard]] bool fails() {
    const std::lock_guard guard(counting);
    ++calls;
    const bool failing = calls >= fail_from && calls <= fail_to;
    failed += failing ? 1 : 0;
    return failing;
  }
};
between driver;
std::optional<vulkan::session> session;

void count(std::uint64_t& calls, int change = 1) {
  const std::lock_guard guard(counting);
  calls += static_cast<std::uint64_t>(change);
}

/// A function that fails on request.
template <auto Member, typename... A>
VKAPI_ATTR VkResult VKAPI_CALL may_fail(A... arguments) {
  return driver.fails() ? VK_ERROR_OUT_OF_HOST_MEMORY : (*driver.real.*Member)(arguments...);
}
VKAPI_ATTR VkResult VKAPI_CALL allocate_memory(VkDevice device, const VkMemoryAllocateInfo* info,
                                               const VkAllocationCallbacks* host, VkDeviceMemory* made) {
  const bool is_dedicated = info->pNext != nullptr;
  if (driver.fails() || (is_dedicated && driver.refuses_dedicated)) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  VkMemoryAllocateInfo copy = *info;
  if (driver.types) copy.memoryTypeIndex = 0;
  const VkResult result = driver.real->allocate_memory(device, &copy, host, made);
  if (result == VK_SUCCESS) count(driver.allocated);
  if (result == VK_SUCCESS && is_dedicated) count(driver.dedicated);
  return result;
}
VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice device, VkDeviceMemory p, const VkAllocationCallbacks* host) {
  count(driver.freed);
  driver.real->free_memory(device, p, host);
}
VKAPI_ATTR VkResult VKAPI_CALL map_memory(VkDevice device, VkDeviceMemory p, VkDeviceSize at,
                                          VkDeviceSize bytes, VkMemoryMapFlags flags, void** mapped) {
  if (driver.fails()) return VK_ERROR_MEMORY_MAP_FAILED;
  count(driver.mapped);
  return driver.real->map_memory(device, p, at, bytes, flags, mapped);
}
VKAPI_ATTR VkResult VKAPI_CALL flush(VkDevice device, std::uint32_t count,
                                     const VkMappedMemoryRange* ranges) {
  driver.flushed.insert(driver.flushed.end(), ranges, ranges + count);
  return driver.real->flush(device, count, ranges);
}
VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* got) {
  driver.real->get_properties(device, got);
  if (driver.limits) driver.limits(got->properties.limits);
  auto* const sizes = static_cast<VkPhysicalDeviceMaintenance3Properties*>(got->pNext);
  if (driver.max_allocation != 0) sizes->maxMemoryAllocationSize = driver.max_allocation;
}
VKAPI_ATTR void VKAPI_CALL get_memory_properties(VkPhysicalDevice device,
                                                 VkPhysicalDeviceMemoryProperties2* got) {
  void* const next = std::exchange(got->pNext, nullptr);
  driver.real->get_memory_properties(device, got);
  if (driver.types) got->memoryProperties = *driver.types;
  got->pNext = next;
  if (next != nullptr) *static_cast<VkPhysicalDeviceMemoryBudgetPropertiesEXT*>(next) = *driver.budget;
}
void pretend(VkMemoryRequirements2& got) {
  if (driver.types) got.memoryRequirements.memoryTypeBits = (1u << driver.types->memoryTypeCount) - 1;
  auto* const dedicated = static_cast<VkMemoryDedicatedRequirements*>(got.pNext);
  dedicated->prefersDedicatedAllocation = driver.prefers_dedicated || driver.requires_dedicated;
  dedicated->requiresDedicatedAllocation = driver.requires_dedicated;
}
VKAPI_ATTR void VKAPI_CALL get_buffer_requirements(VkDevice device, const VkBufferMemoryRequirementsInfo2* of,
                                                   VkMemoryRequirements2* got) {
  driver.real->get_buffer_requirements(device, of, got);
  pretend(*got);
}
VKAPI_ATTR void VKAPI_CALL get_image_requirements(VkDevice device, const VkImageMemoryRequirementsInfo2* of,
                                                  VkMemoryRequirements2* got) {
  driver.real->get_image_requirements(device, of, got);
  pretend(*got);
}
VKAPI_ATTR VkResult VKAPI_CALL create_semaphore(VkDevice device, const VkSemaphoreCreateInfo* info,
                                                const VkAllocationCallbacks* host, VkSemaphore* made) {
  if (driver.fails()) return VK_ERROR_OUT_OF_HOST_MEMORY;
  count(driver.semaphores);
  return driver.real->create_semaphore(device, info, host, made);
}
VKAPI_ATTR void VKAPI_CALL destroy_semaphore(VkDevice device, VkSemaphore p,
                                             const VkAllocationCallbacks* host) {
  if (p != VK_NULL_HANDLE) count(driver.semaphores, -1);
  driver.real->destroy_semaphore(device, p, host);
}
VKAPI_ATTR VkResult VKAPI_CALL wait_semaphores(VkDevice device, const VkSemaphoreWaitInfo* info,
                                               std::uint64_t nanoseconds) {
  if (driver.before_wait) driver.before_wait();
  return may_fail<&vulkan_functions::wait_semaphores>(device, info, nanoseconds);
}
VKAPI_ATTR void VKAPI_CALL destroy_buffer(VkDevice device, VkBuffer p, const VkAllocationCallbacks* host) {
  count(driver.buffers_destroyed);
  driver.real->destroy_buffer(device, p, host);
}
VKAPI_ATTR void VKAPI_CALL destroy_image(VkDevice device, VkImage p, const VkAllocationCallbacks* host) {
  count(driver.images_destroyed);
  driver.real->destroy_image(device, p, host);
}

vulkan_functions table() {
  vulkan_functions between = *driver.real;
  between.get_properties = &get_properties;
  between.get_memory_properties = &get_memory_properties;
  between.allocate_memory = &allocate_memory;
  between.free_memory = &free_memory;
  between.map_memory = &map_memory;
  between.flush = &flush;
  between.create_semaphore = &create_semaphore;
  between.destroy_semaphore = &destroy_semaphore;
  between.get_semaphore_value = &may_fail<&vulkan_functions::get_semaphore_value>;
  between.wait_semaphores = &wait_semaphores;
  between.queue_submit = &may_fail<&vulkan_functions::queue_submit>;
  between.create_buffer = &may_fail<&vulkan_functions::create_buffer>;
  between.destroy_buffer = &destroy_buffer;
  between.get_buffer_requirements = &get_buffer_requirements;
  between.bind_buffer = &may_fail<&vulkan_functions::bind_buffer>;
  between.create_image = &may_fail<&vulkan_functions::create_image>;
  between.destroy_image = &destroy_image;
  between.get_image_requirements = &get_image_requirements;
  between.bind_image = &may_fail<&vulkan_functions::bind_image>;
  return between;
}

/// A device with three streams on one queue. It waits for their work at the end.
class tested_device {
 public:
  tested_device() {
    const std::array<VkQueue, 3> queues{session->queue(), session->queue(), session->queue()};
    device_.emplace(table(), provider::vulkan_device_settings{session->physical(), session->device(), queues,
                                                              driver.budget.has_value(), 0});
  }
  ~tested_device() { vkDeviceWaitIdle(session->device()); }
  vulkan_device& operator*() { return *device_; }
  vulkan_device* operator->() { return &*device_; }
  void submit(stream_id to) { ASSERT_TRUE(device_->streams().submit(to, VK_NULL_HANDLE)); }
  void finish() {
    for (const stream_id s : {first, second, third})
      ASSERT_TRUE(device_->streams().wait(s, device_->streams().position(s)));
  }

 private:
  std::optional<vulkan_device> device_;
};

/// Work that runs until open().
class gate {
 public:
  gate(vulkan_device& on, stream_id stream) {
    const VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr,
                                         VK_SEMAPHORE_TYPE_TIMELINE, 0};
    const VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
    EXPECT_EQ(vkCreateSemaphore(session->device(), &info, nullptr, &closed_), VK_SUCCESS);
    EXPECT_TRUE(on.streams().submit(stream, [&](const vulkan_timelines::turn& now) {
      const std::array<VkSemaphore, 2> waits{now.timeline, closed_};
      const std::array<std::uint64_t, 2> values{now.before, 1};
      const std::array<VkPipelineStageFlags, 2> stages{VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                                       VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
      const VkTimelineSemaphoreSubmitInfo timeline{
          VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, nullptr, 2, values.data(), 1, &now.after};
      const VkSubmitInfo work{VK_STRUCTURE_TYPE_SUBMIT_INFO,
                              &timeline,
                              2,
                              waits.data(),
                              stages.data(),
                              0,
                              nullptr,
                              1,
                              &now.timeline};
      return vkQueueSubmit(now.queue, 1, &work, VK_NULL_HANDLE);
    }));
  }
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;
  ~gate() {
    if (!open_) open();
    vkDeviceWaitIdle(session->device());
    vkDestroySemaphore(session->device(), closed_, nullptr);
  }
  void open() {
    const VkSemaphoreSignalInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, nullptr, closed_, 1};
    EXPECT_EQ(vkSignalSemaphore(session->device(), &info), VK_SUCCESS);
    open_ = true;
  }

 private:
  VkSemaphore closed_ = VK_NULL_HANDLE;
  bool open_ = false;
};

/// Commands that fill a buffer several times, one after another.
struct fill_commands {
  fill_commands(VkBuffer target, std::uint32_t times) {
    const VkCommandPoolCreateInfo pool_info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0,
                                            session->family()};
    EXPECT_EQ(vkCreateCommandPool(session->device(), &pool_info, nullptr, &pool), VK_SUCCESS);
    const VkCommandBufferAllocateInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool,
                                           VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    EXPECT_EQ(vkAllocateCommandBuffers(session->device(), &info, &handle), VK_SUCCESS);
    const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, 0, nullptr};
    EXPECT_EQ(vkBeginCommandBuffer(handle, &begin), VK_SUCCESS);
    const VkMemoryBarrier between_fills{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr,
                                        VK_ACCESS_TRANSFER_WRITE_BIT, VK_ACCESS_TRANSFER_WRITE_BIT};
    for (std::uint32_t i = 0; i < times; ++i) {
      if (i > 0)
        vkCmdPipelineBarrier(handle, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1,
                             &between_fills, 0, nullptr, 0, nullptr);
      vkCmdFillBuffer(handle, target, 0, VK_WHOLE_SIZE, i);
    }
    EXPECT_EQ(vkEndCommandBuffer(handle), VK_SUCCESS);
  }
  fill_commands(const fill_commands&) = delete;
  fill_commands& operator=(const fill_commands&) = delete;
  ~fill_commands() {
    vkDeviceWaitIdle(session->device());
    vkDestroyCommandPool(session->device(), pool, nullptr);
  }
  VkCommandPool pool = VK_NULL_HANDLE;
  VkCommandBuffer handle = VK_NULL_HANDLE;
};

/// Every test ends without messages, and without memory or semaphores.
class on_vulkan : public testing::Test {
 public:
  void SetUp() override {
    if (!session) GTEST_SKIP() << "there is no Vulkan device";
    driver = {};
    driver.real.emplace(session->calls());
    (void)session->take_messages();
  }
  void TearDown() override {
    if (!session) return;
    EXPECT_EQ(driver.allocated, driver.freed);
    EXPECT_EQ(driver.semaphores, 0u);
    EXPECT_EQ(session->take_messages(), 0u);
  }
};
using vulkan_provider = on_vulkan;
using vulkan_suballocator = on_vulkan;

[[nodiscard]] VkBufferCreateInfo buffer_of(VkDeviceSize bytes) {
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  return info;
}
[[nodiscard]] VkImageCreateInfo image_of(std::uint32_t side) {
  VkImageCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO;
  info.imageType = VK_IMAGE_TYPE_2D;
  info.format = VK_FORMAT_R32_UINT;
  info.extent = {side, side, 1};
  info.mipLevels = info.arrayLayers = 1;
  info.samples = VK_SAMPLE_COUNT_1_BIT;
  info.usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
  return info;
}
/// A device-local type, a coherent and a cached type of the host on one heap, and a small type that is both.
[[nodiscard]] VkPhysicalDeviceMemoryProperties types_of_a_card(VkDeviceSize device_bytes = 256_MiB,
                                                               VkDeviceSize host_bytes = 256_MiB) {
  VkPhysicalDeviceMemoryProperties all{};
  all.memoryHeapCount = 3;
  all.memoryHeaps[0] = {device_bytes, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
  all.memoryHeaps[1] = {host_bytes, 0};
  all.memoryHeaps[2] = {64_MiB, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
  all.memoryTypeCount = 5;
  all.memoryTypes[0] = {device_local | VK_MEMORY_PROPERTY_PROTECTED_BIT, 0};
  all.memoryTypes[1] = {device_local, 0};
  all.memoryTypes[2] = {visible | coherent, 1};
  all.memoryTypes[3] = {visible | cached, 1};
  all.memoryTypes[4] = {device_local | visible | coherent, 2};
  return all;
}
[[nodiscard]] vulkan::request request_of(VkDeviceSize bytes, VkDeviceSize alignment = 64,
                                         vulkan::memory_use use = vulkan::for_device,
                                         vulkan::tiling is = vulkan::tiling::linear) {
  return {{bytes, alignment, ~0u}, use, is, first, nullptr, false};
}

TEST_F(vulkan_provider, obeys_the_laws) {
  tested_device device;
  vulkan_memory memory(*device, 0);
  EXPECT_STREQ(law::provider(memory, 16_MiB, second).broken, nullptr);
  debug::checked_provider checked{vulkan_memory(*device, 0)};
  EXPECT_STREQ(law::provider(checked, 1_MiB, third).broken, nullptr);
  EXPECT_EQ(device->allocations(), 0u);
}

TEST_F(vulkan_provider, knows_when_running_work_ends) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const vulkan::buffer target = memory.create_buffer(buffer_of(8_MiB));
  const fill_commands fills(target.handle, 30);
  VkFence fence = VK_NULL_HANDLE;
  const VkFenceCreateInfo fence_info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, nullptr, 0};
  ASSERT_EQ(vkCreateFence(session->device(), &fence_info, nullptr, &fence), VK_SUCCESS);

  const auto begin = [&] {
    (void)device->streams().submit(first, [&](const vulkan_timelines::turn& now) {
      const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
      const VkTimelineSemaphoreSubmitInfo timeline{
          VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, nullptr, 1, &now.before, 1, &now.after};
      const VkSubmitInfo work{VK_STRUCTURE_TYPE_SUBMIT_INFO,
                              &timeline,
                              1,
                              &now.timeline,
                              &stage,
                              1,
                              &fills.handle,
                              1,
                              &now.timeline};
      return vkQueueSubmit(now.queue, 1, &work, fence);
    });
  };
  vulkan_memory provider(*device, 0);
  const auto ended = [&] { return vkGetFenceStatus(session->device(), fence) == VK_SUCCESS; };
  EXPECT_STREQ(law::work(provider, first, begin, ended).broken, nullptr);
  ASSERT_EQ(vkWaitForFences(session->device(), 1, &fence, VK_TRUE, UINT64_MAX), VK_SUCCESS);
  vkDestroyFence(session->device(), fence, nullptr);
  memory.destroy(target);
}

TEST_F(vulkan_provider, respects_the_limits_of_the_device) {
  driver.limits = [](VkPhysicalDeviceLimits& limits) { limits.maxMemoryAllocationCount = 3; };
  driver.max_allocation = 8_MiB;
  tested_device device;
  vulkan_memory one(*device, 0), other(*device, 0);
  EXPECT_EQ(one.acquire(8_MiB + one.granularity()), nullptr);
  EXPECT_NE(std::string(one.take_refusal().text()).find(" bytes exceed maxMemoryAllocationSize, 8388608"),
            std::string::npos);
  EXPECT_EQ(one.acquire(0), nullptr);
  EXPECT_EQ(one.acquire(one.granularity() / 2), nullptr);
  std::array<void*, 3> held{one.acquire(8_MiB), other.acquire(64_KiB), one.acquire(64_KiB)};
  for (void* const p : held) EXPECT_NE(p, nullptr);
  EXPECT_EQ(other.acquire(64_KiB), nullptr);
  EXPECT_STREQ(other.take_refusal().text(), "all 3 objects of maxMemoryAllocationCount exist");
  EXPECT_FALSE(other.take_refusal());
  EXPECT_FALSE(one.release(held[0], 64_KiB));
  EXPECT_TRUE(one.release(held[0], 8_MiB));
  EXPECT_FALSE(one.release(held[0], 8_MiB));
  held[0] = other.acquire(64_KiB);
  EXPECT_NE(held[0], nullptr);
  EXPECT_TRUE(other.release(held[0], 64_KiB) && other.release(held[1], 64_KiB) &&
              one.release(held[2], 64_KiB));
}

TEST_F(vulkan_provider, names_the_result_of_the_driver) {
  tested_device device;
  vulkan_memory memory(*device, 0);
  driver.calls = driver.failed = 0;
  driver.fail_from = driver.fail_to = 1;
  EXPECT_EQ(memory.acquire(64_KiB), nullptr);
  driver.fail_from = driver.fail_to = 0;
  EXPECT_STREQ(memory.take_refusal().text(), "vkAllocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY");
}

TEST_F(vulkan_provider, shares_a_heap_with_other_types) {
  driver.types = types_of_a_card(16_MiB, 16_MiB);
  tested_device device;
  vulkan_memory one(*device, 2), other(*device, 3);
  void* const p = one.acquire(12_MiB);
  EXPECT_EQ(other.available(), 4_MiB);
  EXPECT_EQ(other.acquire(8_MiB), nullptr);
  EXPECT_TRUE(one.release(p, 12_MiB));
  EXPECT_EQ(other.available(), 16_MiB);
}

TEST_F(vulkan_provider, follows_the_budget_of_the_driver) {
  driver.types = types_of_a_card();
  driver.budget.emplace();
  driver.budget->heapBudget[1] = 100_MiB;
  driver.budget->heapUsage[1] = 30_MiB;
  tested_device device;
  EXPECT_EQ(vulkan_memory(*device, 2).available(), 70_MiB);
  driver.budget->heapUsage[1] = 101_MiB;
  EXPECT_EQ(vulkan_memory(*device, 2).available(), 0u);
}

TEST_F(vulkan_provider, treats_the_host_as_a_stream_without_running_work) {
  tested_device device;
  vulkan_memory memory(*device, 0);
  const stream_id host = vulkan_host;
  EXPECT_TRUE(memory.has_stream(host));
  vulkan_memory::event mark;
  EXPECT_TRUE(memory.record(host, mark));
  EXPECT_TRUE(memory.query(mark) && memory.wait(mark));
  gate running(*device, first);
  const std::uint64_t at = memory.position(first);
  EXPECT_FALSE(memory.is_ordered_after(host, first, at));
  EXPECT_FALSE(memory.make_wait(host, first, at));
  EXPECT_TRUE(memory.make_wait(first, host, memory.position(host)));
  running.open();
  device.finish();
  EXPECT_TRUE(memory.is_ordered_after(host, first, at));
}

TEST_F(vulkan_provider, passes_on_what_a_submission_throws) {
  tested_device device;
  vulkan_timelines& streams = device->streams();
  const auto throwing = [](const vulkan_timelines::turn&) -> VkResult { throw 3; };
  EXPECT_THROW(streams.submit(first, throwing), int);
  EXPECT_EQ(streams.position(first), 0u);
  device.submit(first);  // the queue is not locked
  EXPECT_EQ(streams.position(first), 1u);
  device.finish();
}

/// A lost device uses no memory, so all of it can be freed.
TEST_F(vulkan_provider, frees_memory_of_a_lost_device) {
  vulkan_functions lost = table();
  lost.get_semaphore_value = [](VkDevice, VkSemaphore, std::uint64_t*) -> VkResult {
    return VK_ERROR_DEVICE_LOST;
  };
  lost.wait_semaphores = [](VkDevice, const VkSemaphoreWaitInfo*, std::uint64_t) -> VkResult {
    return VK_ERROR_DEVICE_LOST;
  };
  const std::array<VkQueue, 1> queues{session->queue()};
  {
    vulkan_device device(lost, {session->physical(), session->device(), queues, false, 0});
    caching_allocator<recipe::pytorch<>, vulkan_memory> pool{vulkan_memory(device, 0)};
    void* const p = pool.allocate(1_MiB);
    ASSERT_TRUE(device.streams().submit(first, VK_NULL_HANDLE));
    pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(device.allocations(), 0u);
    vkDeviceWaitIdle(session->device());
    vulkan::suballocator<> memory(device);
    memory.destroy(memory.create_buffer(buffer_of(1000)));
    memory.trim();
    EXPECT_EQ(driver.buffers_destroyed, 1u);
  }
}

template <typename Recipe>
class vulkan_recipes : public on_vulkan {};
using recipes =
    testing::Types<vulkan::few_objects, recipe::pytorch_family::native, recipe::cuda_async,
                   recipe::paddle_family::auto_growth, recipe::paddle_family::naive_best_fit, recipe::pinned,
                   recipe::pinned_packed, recipe::passthrough, recipe::power_of_two>;
TYPED_TEST_SUITE(vulkan_recipes, recipes);

TYPED_TEST(vulkan_recipes, keep_the_rules_of_the_model) {
  driver.types = types_of_a_card();
  tested_device device;
  caching_allocator<TypeParam, debug::checked_provider<vulkan_memory>> pool{
      debug::checked_provider(vulkan_memory(*device, 1))};
  const std::vector<stream_id> streams{first, second, vulkan_host};
  ASSERT_EQ(first_broken_rule(pool, plan{3, 20'000, 4_MiB, 100, 97}, streams), "");
  pool.trim();
  EXPECT_EQ(device->allocations(), 0u);
}

/// Uses an allocator with work on two streams; requests may fail.
template <typename Pool>
void use(Pool& pool, vulkan_device& device, unsigned rounds) {
  std::vector<void*> held;
  std::mt19937 random(7);
  for (unsigned i = 0; i < rounds; ++i) {
    const stream_id on = i % 2 == 0 ? first : second;
    if (void* const p = pool.try_allocate(std::size_t{1} << (10 + random() % 14), on)) held.push_back(p);
    (void)device.streams().submit(on, VK_NULL_HANDLE);
    if (!held.empty() && i % 3 != 0) {
      const std::size_t which = random() % held.size();
      if (i % 4 == 1) (void)pool.record_stream(held[which], second);
      pool.deallocate(held[which]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (i % 10 == 9) pool.trim();
  }
  for (void* const p : held) pool.deallocate(p);
}

TYPED_TEST(vulkan_recipes, survive_failures_of_any_call) {
  driver.types = types_of_a_card();
  std::uint64_t last = 1;
  for (std::uint64_t k = 0; k <= last; ++k) {
    for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{1'000'000}}) {
      tested_device device;
      caching_allocator<TypeParam, vulkan_memory> pool{vulkan_memory(*device, 1)};
      driver.calls = driver.failed = 0;
      driver.fail_from = k;
      driver.fail_to = k == 0 ? 0 : k + length - 1;
      use(pool, *device, 30);
      if (k == 0) last = driver.calls;
      driver.fail_to = 0;
      ASSERT_STREQ(pool.audit(), nullptr) << "with call " << k << " failing";
      pool.trim();
      ASSERT_EQ(device->allocations(), 0u) << "with call " << k << " failing";
    }
  }
  EXPECT_GT(last, 30u);
}

TEST_F(vulkan_suballocator, survives_failures_of_any_call) {
  std::uint64_t last = 1;
  for (std::uint64_t k = 0; k <= last; ++k) {
    tested_device device;
    vulkan::suballocator<> memory(*device, {.dedicated_from = 3_MiB});
    std::vector<vulkan::buffer> buffers;
    std::vector<vulkan::image> images;
    driver.calls = 0;
    driver.fail_from = driver.fail_to = k;
    std::size_t refused = 0;
    for (std::uint32_t i = 1; i <= 12; ++i) {
      const auto& use = i % 2 == 0 ? vulkan::for_upload : vulkan::for_device;
      const vulkan::buffer b = memory.create_buffer(buffer_of(i * 300_KiB), use, i % 3 == 0 ? second : first);
      const vulkan::image im = memory.create_image(image_of(i * 40));
      refused += (b ? 0u : 1u) + (im ? 0u : 1u);
      if (b) buffers.push_back(b);
      if (im) images.push_back(im);
      (void)device->streams().submit(first, VK_NULL_HANDLE);
      if (i % 4 != 0) continue;
      for (const vulkan::buffer& each : buffers) {
        (void)memory.record_stream(each.memory, second);
        memory.destroy(each);
      }
      buffers.clear();
    }
    if (k == 0) last = driver.calls;
    EXPECT_LE(refused, 1u) << "with call " << k << " failing";
    for (const vulkan::buffer& each : buffers) memory.destroy(each);
    for (const vulkan::image& each : images) memory.destroy(each);
    driver.fail_to = 0;
    device.finish();
    memory.trim();
    ASSERT_EQ(device->allocations(), 0u) << "with call " << k << " failing";
  }
  EXPECT_GT(last, 50u);
}

/// The constructor of a device frees the semaphores that it made.
TEST_F(vulkan_provider, survives_failures_of_its_constructor) {
  for (std::uint64_t k = 1; k <= 3; ++k) {
    driver.calls = 0;
    driver.fail_from = driver.fail_to = k;
    EXPECT_THROW(tested_device{}, vulkan_error);
    EXPECT_EQ(driver.semaphores, 0u);
  }
}

TEST_F(vulkan_suballocator, chooses_the_type) {
  driver.types = types_of_a_card();
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const auto type_of = [&](const vulkan::request& asked) {
    const allocation made = memory.allocate(asked);
    memory.deallocate(made);
    return made ? static_cast<int>(made.type) : -1;
  };
  EXPECT_EQ(type_of(request_of(1000)), 1);
  EXPECT_EQ(type_of(request_of(1000, 64, vulkan::for_upload)), 2);
  EXPECT_EQ(type_of(request_of(1000, 64, vulkan::for_readback)), 3);
  EXPECT_EQ(type_of(request_of(1000, 64, {visible, device_local, 0})), 4);
  EXPECT_EQ(type_of(request_of(1000, 64, {visible | device_local | cached, 0, 0})), -1);
  EXPECT_EQ(type_of(request_of(1000, 64, {VK_MEMORY_PROPERTY_PROTECTED_BIT, 0, 0})), 0);
  vulkan::request limited = request_of(1000);
  limited.needs.memoryTypeBits = 1u << 3;  // not what it prefers
  EXPECT_EQ(type_of(limited), 3);
  limited.needs.memoryTypeBits = 1u << 0;  // only protected memory
  EXPECT_EQ(type_of(limited), -1);
}

TEST_F(vulkan_suballocator, falls_back_to_the_next_type) {
  driver.types = types_of_a_card(24_MiB, 40_MiB);
  tested_device device;
  vulkan::suballocator<> memory(*device);
  std::vector<allocation> held;
  std::vector<std::uint32_t> types;
  for (int i = 0; i < 6; ++i) {
    if (const allocation made = memory.allocate(request_of(20_MiB))) {
      types.push_back(made.type);
      held.push_back(made);
    }
  }
  // The first prefers a type that is only for the device, then one that is also for the host, then memory of the host.
  EXPECT_EQ(types, (std::vector<std::uint32_t>{1, 4, 4, 4, 2, 2}));
  EXPECT_EQ(memory.allocate(request_of(20_MiB)).memory, VK_NULL_HANDLE);
  for (const allocation& each : held) memory.deallocate(each);
}

TEST_F(vulkan_suballocator, releases_the_cache_of_other_types_of_the_heap) {
  driver.types = types_of_a_card(24_MiB, 40_MiB);
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const allocation one = memory.allocate(request_of(30_MiB, 64, vulkan::for_upload));
  EXPECT_EQ(one.type, 2u);
  memory.deallocate(one);
  EXPECT_EQ(memory.budget_of(1).cached, 30_MiB);
  const allocation other = memory.allocate(request_of(30_MiB, 64, {visible | cached, 0, 0}));
  EXPECT_EQ(other.type, 3u);
  memory.deallocate(other);
}

/// Whether two allocations share a byte, or a page of this size.
[[nodiscard]] bool share(const allocation& a, const allocation& b, VkDeviceSize page = 1) {
  if (a.memory != b.memory) return false;
  const auto& low = a.offset < b.offset ? a : b;
  const auto& high = a.offset < b.offset ? b : a;
  return (low.offset + low.size - 1) / page >= high.offset / page;
}

TEST_F(vulkan_suballocator, aligns_offsets) {
  driver.types = types_of_a_card(1_GiB);
  tested_device device;
  vulkan::suballocator<> memory(*device);
  std::mt19937 random(11);
  std::vector<allocation> held;
  for (int i = 0; i < 400; ++i) {
    const VkDeviceSize alignment = VkDeviceSize{1} << (random() % 19);  // up to 256 KiB
    const allocation made = memory.allocate(request_of(1 + random() % 300'000, alignment));
    ASSERT_TRUE(made);
    ASSERT_EQ(made.offset % alignment, 0u);
    for (const allocation& other : held) ASSERT_FALSE(share(made, other));
    held.push_back(made);
    if (i % 3 == 2) {
      const std::size_t which = random() % held.size();
      memory.deallocate(held[which]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (const allocation& each : held) memory.deallocate(each);
  EXPECT_EQ(memory.budget_of(0).live, 0u);
  memory.trim();
  EXPECT_EQ(device->allocations(), 0u);
}

TEST_F(vulkan_suballocator, keeps_linear_and_optimal_resources_on_pages_of_their_own) {
  constexpr VkDeviceSize page = 4_KiB;
  driver.types = types_of_a_card(1_GiB);
  driver.limits = [](VkPhysicalDeviceLimits& limits) { limits.bufferImageGranularity = page; };
  tested_device device;
  vulkan::suballocator<> memory(*device);
  std::mt19937 random(5);
  std::vector<allocation> linear, optimal;
  for (int i = 0; i < 200; ++i) {
    const bool is_linear = random() % 2 == 0;
    const allocation made =
        memory.allocate(request_of(1 + random() % 3'000, 64, vulkan::for_device,
                                   is_linear ? vulkan::tiling::linear : vulkan::tiling::optimal));
    for (const allocation& other : is_linear ? optimal : linear) ASSERT_FALSE(share(made, other, page));
    (is_linear ? linear : optimal).push_back(made);
  }
  for (const auto* const all : {&linear, &optimal}) {
    for (const allocation& each : *all) memory.deallocate(each);
  }
}

/// If a page is no larger than the alignment of blocks, buffers and images may share a VkDeviceMemory.
TEST_F(vulkan_suballocator, shares_memory_between_linear_and_optimal_resources_where_it_may) {
  driver.limits = [](VkPhysicalDeviceLimits& limits) { limits.bufferImageGranularity = 64; };
  tested_device device;
  vulkan::suballocator<tessera::recipe::with<recipe::pytorch<>, policy::round_to_multiple<64>>> memory(
      *device);
  const allocation one = memory.allocate(request_of(100));
  const allocation other = memory.allocate(request_of(100, 1, vulkan::for_device, vulkan::tiling::optimal));
  EXPECT_EQ(one.memory, other.memory);
  EXPECT_FALSE(share(one, other, 64));
  memory.deallocate(one);
  memory.deallocate(other);
}

TEST_F(vulkan_suballocator, gives_large_resources_memory_of_their_own) {
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 1_MiB});
  const vulkan::buffer small = memory.create_buffer(buffer_of(1000));
  const vulkan::buffer large = memory.create_buffer(buffer_of(1_MiB));
  const vulkan::image drawn = memory.create_image(image_of(600));
  EXPECT_FALSE(small.memory.is_dedicated);
  for (const allocation& each : {large.memory, drawn.memory}) {
    EXPECT_TRUE(each.is_dedicated);
    EXPECT_EQ(each.offset, 0u);
  }
  EXPECT_EQ(driver.dedicated, 2u);
  EXPECT_TRUE(memory.record_stream(large.memory, second));
  memory.destroy(small);
  memory.destroy(large);
  memory.destroy(drawn);
  EXPECT_EQ(driver.freed, 0u);  // until the next call that collects
  memory.trim();
  EXPECT_EQ(driver.freed, 3u);
}

TEST_F(vulkan_suballocator, follows_the_wishes_of_the_driver_for_dedicated_memory) {
  driver.prefers_dedicated = true;
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const vulkan::buffer preferred = memory.create_buffer(buffer_of(1000));
  EXPECT_TRUE(preferred.memory.is_dedicated);
  driver.refuses_dedicated = true;
  const vulkan::buffer shared = memory.create_buffer(buffer_of(1000));
  EXPECT_TRUE(shared);
  EXPECT_FALSE(shared.memory.is_dedicated);
  driver.requires_dedicated = true;
  EXPECT_FALSE(memory.create_buffer(buffer_of(1000)));
  driver.refuses_dedicated = false;
  const vulkan::buffer required = memory.create_buffer(buffer_of(1000));
  EXPECT_TRUE(required.memory.is_dedicated);
  for (const vulkan::buffer& each : {preferred, shared, required}) memory.destroy(each);
}

TEST_F(vulkan_suballocator, maps_each_memory_once) {
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 3_MiB});
  std::vector<vulkan::buffer> held;
  for (unsigned char i = 0; i < 60; ++i) {
    held.push_back(
        memory.create_buffer(buffer_of(i % 20 == 0 ? 3_MiB : 100 + i * 1000u), vulkan::for_upload));
    ASSERT_NE(held.back().memory.mapped, nullptr);
    std::memset(held.back().memory.mapped, i, static_cast<std::size_t>(held.back().memory.size));
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    const allocation& one = held[i].memory;
    for (const VkDeviceSize at : {VkDeviceSize{0}, one.size / 2, one.size - 1})
      ASSERT_EQ(one.mapped[at], static_cast<std::byte>(i));
    for (std::size_t j = 0; j < i; ++j) {
      if (one.memory != held[j].memory.memory) continue;
      ASSERT_EQ(one.mapped - held[j].memory.mapped,
                static_cast<std::ptrdiff_t>(one.offset) - static_cast<std::ptrdiff_t>(held[j].memory.offset));
    }
    memory.destroy(held[i]);
  }
  EXPECT_EQ(driver.mapped, driver.allocated);
  const allocation internal = memory.allocate(request_of(1000));
  EXPECT_EQ(internal.mapped, nullptr);  // its stream may still use it
  memory.deallocate(internal);
}

TEST_F(vulkan_suballocator, flushes_whole_atoms) {
  constexpr VkDeviceSize atom = 256;
  driver.types = types_of_a_card();
  driver.limits = [](VkPhysicalDeviceLimits& limits) { limits.nonCoherentAtomSize = atom; };
  tested_device device;
  vulkan::suballocator<tessera::recipe::with<recipe::pytorch<>, policy::round_to_multiple<64>>> memory(
      *device, {.dedicated_from = 1_MiB});
  const vulkan::memory_use not_coherent{visible | cached, 0, 0};
  std::vector<allocation> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(memory.allocate(request_of(100, 1, not_coherent)));
    ASSERT_EQ(held.back().offset % atom, 0u);
    for (int j = 0; j < i; ++j) ASSERT_FALSE(share(held.back(), held[static_cast<std::size_t>(j)], atom));
  }
  const allocation& one = held[3];
  EXPECT_TRUE(memory.flush(one, 10, 5));
  EXPECT_TRUE(memory.flush(one));
  EXPECT_TRUE(memory.invalidate(one));
  ASSERT_EQ(driver.flushed.size(), 2u);
  for (const VkMappedMemoryRange& range : driver.flushed) {
    EXPECT_EQ(range.memory, one.memory);
    EXPECT_EQ(range.offset, one.offset);
    EXPECT_EQ(range.size, atom);
  }
  const vulkan::buffer large = memory.create_buffer(buffer_of(1_MiB + 100), not_coherent);
  EXPECT_TRUE(large.memory.is_dedicated);
  EXPECT_TRUE(memory.flush(large.memory, 1_MiB));
  EXPECT_EQ(driver.flushed.back().offset, 1_MiB);
  EXPECT_EQ(driver.flushed.back().size, VK_WHOLE_SIZE);
  EXPECT_TRUE(memory.flush(large.memory, 300, 300));
  EXPECT_EQ(driver.flushed.back().offset, 256u);
  EXPECT_EQ(driver.flushed.back().size, 512u);
  memory.destroy(large);
  for (const allocation& each : held) memory.deallocate(each);

  const std::size_t before = driver.flushed.size();
  const allocation plain = memory.allocate(request_of(100, 1, vulkan::for_upload));
  EXPECT_TRUE(memory.flush(plain));
  EXPECT_EQ(driver.flushed.size(), before);  // it is coherent
  memory.deallocate(plain);
}

TEST_F(vulkan_suballocator, tells_the_budget) {
  driver.types = types_of_a_card();
  driver.budget.emplace();
  driver.budget->heapBudget[0] = 200_MiB;
  driver.budget->heapUsage[0] = 70_MiB;
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 32_MiB});
  const allocation block = memory.allocate(request_of(1_MiB));
  const vulkan::buffer large = memory.create_buffer(buffer_of(32_MiB));
  const auto now = memory.budget_of(0);
  EXPECT_EQ(now.heap.budget, 200_MiB);
  EXPECT_EQ(now.heap.used, 70_MiB);
  EXPECT_EQ(now.live, 33_MiB);
  EXPECT_EQ(now.heap.taken, now.live + now.cached);
  EXPECT_EQ(memory.budget_of(1).heap.taken, 0u);
  std::int64_t requested = 0;
  memory.for_each_pool([&](std::uint32_t type, auto& pool) {
    EXPECT_TRUE(type == 1 || pool.current_usage().reserved == 0);
    requested += pool.statistics().all.requested_bytes.current;
  });
  EXPECT_EQ(requested, 1024 * 1024);
  memory.deallocate(block);
  EXPECT_EQ(memory.budget_of(0).live, 32_MiB);
  memory.destroy(large);
}

TEST_F(vulkan_suballocator, counts_its_own_live_and_cached_memory) {
  driver.types = types_of_a_card();
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 32_MiB}), other(*device);
  const vulkan::buffer large = memory.create_buffer(buffer_of(32_MiB));
  const allocation of_other = other.allocate(request_of(30_MiB));
  const auto expect = [&](std::size_t live, std::size_t unused) {
    EXPECT_EQ(memory.budget_of(0).live, live);
    EXPECT_EQ(memory.budget_of(0).cached, unused);
  };
  EXPECT_EQ(memory.budget_of(0).heap.taken, 62_MiB);
  expect(32_MiB, 0);
  EXPECT_EQ(other.budget_of(0).live, 30_MiB);
  other.deallocate(of_other);
  EXPECT_EQ(other.budget_of(0).live, 0u);
  EXPECT_EQ(other.budget_of(0).cached, 30_MiB);
  gate running(*device, first);
  memory.destroy(large);
  memory.trim();
  expect(0, 32_MiB);
  EXPECT_EQ(memory.budget_of(1).cached, 0u);
  running.open();
  device.finish();
  memory.trim();
  expect(0, 0);
  EXPECT_EQ(memory.budget_of(0).heap.taken, 30_MiB);
}

TEST_F(vulkan_suballocator, waits_for_freed_dedicated_memory_if_its_heap_is_full) {
  driver.types = types_of_a_card(64_MiB, 64_MiB);
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 24_MiB});
  const vulkan::memory_use use{visible | cached, 0, 0};
  const vulkan::buffer oldest = memory.create_buffer(buffer_of(30_MiB), use);
  const vulkan::buffer newest = memory.create_buffer(buffer_of(30_MiB), use);
  ASSERT_TRUE(oldest.memory.is_dedicated && newest.memory.is_dedicated);
  EXPECT_FALSE(memory.create_buffer(buffer_of(30_MiB), use));
  gate one(*device, first);
  memory.destroy(oldest);
  gate other(*device, second);
  memory.destroy(newest);
  int waits = 0;
  driver.before_wait = [&] { ++waits == 1 ? one.open() : other.open(); };
  const vulkan::buffer made = memory.create_buffer(buffer_of(30_MiB), use);
  EXPECT_TRUE(made);
  EXPECT_EQ(waits, 1);  // `newest` still waits for the other work
  EXPECT_EQ(driver.freed, 1u);
  const allocation pooled = memory.allocate(request_of(20_MiB, 64, use));
  EXPECT_TRUE(pooled);
  EXPECT_EQ(waits, 2);
  EXPECT_EQ(driver.freed, 2u);
  EXPECT_FALSE(memory.allocate(request_of(40_MiB, 64, use)));
  driver.before_wait = nullptr;
  memory.destroy(made);
  memory.deallocate(pooled);
}

TEST_F(vulkan_suballocator, tries_other_types_before_it_waits) {
  driver.types = types_of_a_card(40_MiB, 40_MiB);
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 24_MiB});
  const vulkan::buffer one = memory.create_buffer(buffer_of(40_MiB));
  EXPECT_EQ(one.memory.type, 1u);
  gate running(*device, first);
  memory.destroy(one);
  const vulkan::buffer other = memory.create_buffer(buffer_of(40_MiB));
  EXPECT_EQ(other.memory.type, 4u);
  EXPECT_EQ(driver.freed, 0u);
  memory.destroy(other);
}

/// If a wait fails, the request fails, and a later one waits again.
TEST_F(vulkan_suballocator, survives_failed_waits_for_dedicated_memory) {
  driver.types = types_of_a_card(64_MiB, 64_MiB);
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 24_MiB});
  const vulkan::memory_use use{visible | cached, 0, 0};
  const vulkan::buffer one = memory.create_buffer(buffer_of(40_MiB), use);
  gate running(*device, first);
  memory.destroy(one);
  driver.before_wait = [] { driver.fail_from = driver.fail_to = driver.calls + 1; };
  EXPECT_FALSE(memory.create_buffer(buffer_of(40_MiB), use));
  EXPECT_EQ(driver.failed, 1u);
  EXPECT_EQ(memory.budget_of(1).cached, 40_MiB);
  driver.before_wait = [&] { running.open(); };
  const vulkan::buffer made = memory.create_buffer(buffer_of(40_MiB), use);
  EXPECT_TRUE(made);
  driver.before_wait = nullptr;
  memory.destroy(made);
}

TEST_F(vulkan_suballocator, serves_requests_without_alignment) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const allocation made = memory.allocate(request_of(1000, 0));
  EXPECT_TRUE(made);
  memory.deallocate(made);
}

TEST_F(vulkan_suballocator, refuses_streams_that_do_not_exist) {
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 1_MiB});
  constexpr stream_id unknown{3};
  for (const vulkan::memory_use& use : {vulkan::for_device, vulkan::for_upload}) {
    for (const VkDeviceSize bytes : {VkDeviceSize{1000}, VkDeviceSize{2_MiB}}) {
      EXPECT_FALSE(memory.create_buffer(buffer_of(bytes), use, unknown));
      const vulkan::buffer made = memory.create_buffer(buffer_of(bytes), use, third);
      EXPECT_TRUE(made);
      EXPECT_FALSE(memory.record_stream(made.memory, unknown));
      memory.destroy(made);
    }
  }
  const allocation of_host = memory.allocate({{1000, 64, ~0u}, vulkan::for_device, {}, vulkan_host});
  EXPECT_TRUE(of_host);
  memory.deallocate(of_host);
}

TEST_F(vulkan_suballocator, reuses_memory_at_once_on_its_own_stream_only) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  gate running(*device, first);
  const allocation one = memory.allocate(request_of(1_MiB));
  memory.deallocate(one);
  const allocation again = memory.allocate(request_of(1_MiB));
  EXPECT_FALSE(one.memory != again.memory || one.offset != again.offset);
  memory.deallocate(again);
  vulkan::request elsewhere = request_of(1_MiB);
  elsewhere.stream = second;
  const allocation other = memory.allocate(elsewhere);
  EXPECT_FALSE(share(one, other));
  const allocation of_host = memory.allocate(request_of(1_MiB, 64, vulkan::for_upload));
  EXPECT_FALSE(share(one, of_host));
  memory.deallocate(other);
  memory.deallocate(of_host);
}

TEST_F(vulkan_suballocator, waits_for_recorded_streams) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const allocation one = memory.allocate(request_of(1_MiB));
  gate running(*device, second);
  ASSERT_TRUE(memory.record_stream(one, second));
  memory.deallocate(one);
  const allocation meanwhile = memory.allocate(request_of(1_MiB));
  EXPECT_FALSE(share(one, meanwhile));
  memory.deallocate(meanwhile);
  running.open();
  device.finish();
  bool reused = false;
  std::vector<allocation> held;
  for (int i = 0; i < 30; ++i) {
    held.push_back(memory.allocate(request_of(1_MiB)));
    reused = reused || share(one, held.back());
  }
  EXPECT_TRUE(reused);
  for (const allocation& each : held) memory.deallocate(each);
}

/// The host would write while the device still reads.
TEST_F(vulkan_suballocator, reuses_memory_of_the_host_only_after_the_work) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  std::vector<allocation> held;
  {
    const allocation one = memory.allocate(request_of(1_MiB, 64, vulkan::for_upload));
    gate running(*device, first);
    memory.deallocate(one);
    for (int i = 0; i < 30; ++i) {
      held.push_back(memory.allocate(request_of(1_MiB, 64, vulkan::for_upload)));
      ASSERT_FALSE(share(one, held.back()));
    }
    running.open();
    device.finish();
    held.push_back(memory.allocate(request_of(1_MiB, 64, vulkan::for_upload)));
    EXPECT_TRUE(share(one, held.back()));
  }
  for (const allocation& each : held) memory.deallocate(each);
}

TEST_F(vulkan_suballocator, destroys_handles_after_the_work) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const vulkan::buffer one = memory.create_buffer(buffer_of(1000));
  const vulkan::image two = memory.create_image(image_of(16));
  gate running(*device, second);
  memory.destroy(one);
  memory.destroy(two);
  memory.trim();
  EXPECT_EQ(driver.buffers_destroyed + driver.images_destroyed, 0u);
  running.open();
  device.finish();
  memory.trim();
  EXPECT_EQ(driver.buffers_destroyed, 1u);
  EXPECT_EQ(driver.images_destroyed, 1u);
}

TEST_F(vulkan_suballocator, destroys_few_handles_at_once) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  std::vector<vulkan::buffer> made(1000);
  for (vulkan::buffer& each : made) each = memory.create_buffer(buffer_of(1000));
  for (const vulkan::buffer& each : made) memory.destroy(each);
  EXPECT_EQ(driver.buffers_destroyed, 0u);
  const vulkan::buffer next = memory.create_buffer(buffer_of(1000));
  EXPECT_EQ(driver.buffers_destroyed, 16u);
  memory.destroy(next);
  memory.trim();
  EXPECT_EQ(driver.buffers_destroyed, 1001u);

  // In a loop, the handles that are not destroyed yet stay few.
  for (int i = 0; i < 100; ++i) memory.destroy(memory.create_buffer(buffer_of(1000)));
  EXPECT_GE(driver.buffers_destroyed, 1001u + 99u);
}

TEST_F(vulkan_suballocator, takes_few_objects) {
  for (const VkDeviceSize largest : {64_KiB, 1_MiB}) {
    driver.types = types_of_a_card(8_GiB, 8_GiB);
    tested_device device;
    vulkan::suballocator<> memory(*device);
    std::vector<allocation> held;
    std::mt19937 random(1);
    for (VkDeviceSize sum = 0; sum < 200_MiB; sum += held.back().size) {
      held.push_back(memory.allocate(request_of((random() % largest / 256 + 1) * 256)));
      ASSERT_TRUE(held.back());
    }
    EXPECT_LE(device->allocations(), 3u) << "32, 64 and 128 MiB";
    for (const allocation& each : held) memory.deallocate(each);
  }
}

TEST_F(vulkan_suballocator, fills_a_heap_with_the_objects_that_the_device_allows) {
  for (const std::uint32_t objects : {4u, 8u, 64u, 4096u}) {
    driver.types = types_of_a_card(2_GiB);
    driver.limits = [=](VkPhysicalDeviceLimits& limits) { limits.maxMemoryAllocationCount = objects; };
    tested_device device;
    vulkan::suballocator<> memory(*device);
    std::vector<allocation> held;
    vulkan::request asked = request_of(256_KiB);
    asked.needs.memoryTypeBits = 1u << 1;
    VkDeviceSize served = 0;
    while (const allocation made = memory.allocate(asked)) {
      held.push_back(made);
      served += made.size;
    }
    EXPECT_GE(served, objects < 8 ? 7 * 256_MiB : 2_GiB - 32_MiB) << objects;
    EXPECT_LE(device->allocations(), objects);
    for (const allocation& each : held) memory.deallocate(each);
  }
}

TEST_F(vulkan_suballocator, serves_several_threads) {
  tested_device device;
  vulkan::suballocator<> memory(*device, {.dedicated_from = 2_MiB});
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 3; ++number) {
    threads.emplace_back([&memory, &device, on = stream_id{number}] {
      const stream_id next{(on.handle + 1) % 3};
      for (std::uint32_t i = 0; i < 60; ++i) {
        const auto& use = i % 4 == 0 ? vulkan::for_upload : vulkan::for_device;
        const vulkan::buffer made = memory.create_buffer(buffer_of(1000 + i % 7 * 350_KiB), use, on);
        ASSERT_TRUE(made);
        if (made.memory.mapped != nullptr) std::memset(made.memory.mapped, 1, 1000);
        ASSERT_TRUE(device->streams().submit(on, VK_NULL_HANDLE));
        ASSERT_TRUE(device->streams().make_wait(next, on, device->streams().position(on)));
        ASSERT_TRUE(memory.record_stream(made.memory, next));
        memory.destroy(made);
        if (i % 20 == 19) memory.trim();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  device.finish();
  memory.trim();
  EXPECT_EQ(device->allocations(), 0u);
}

TEST_F(vulkan_suballocator, ignores_what_is_empty) {
  tested_device device;
  vulkan::suballocator<> memory(*device);
  memory.deallocate({});
  memory.destroy(vulkan::buffer{});
  memory.destroy(vulkan::image{});
  EXPECT_FALSE(memory.allocate(request_of(VkDeviceSize{1} << 50)));
}

/// Otherwise the absence of messages would show nothing.
TEST_F(vulkan_provider, is_tested_with_a_layer_that_reports_mistakes) {
  if (!session->is_validated()) GTEST_SKIP() << "VK_LAYER_KHRONOS_validation is not installed";
  session->print(false);
  VkBuffer made = VK_NULL_HANDLE;
  VkBufferCreateInfo wrong = buffer_of(0);
  if (vkCreateBuffer(session->device(), &wrong, nullptr, &made) == VK_SUCCESS)
    vkDestroyBuffer(session->device(), made, nullptr);
  EXPECT_GT(session->take_messages(), 0u);

  // Two submissions that write the same buffer, and do not wait for each other.
  tested_device device;
  vulkan::suballocator<> memory(*device);
  const vulkan::buffer target = memory.create_buffer(buffer_of(1000));
  {
    const fill_commands one(target.handle, 1), other(target.handle, 1);
    for (const VkCommandBuffer* const commands : {&one.handle, &other.handle}) {
      VkSubmitInfo work{};
      work.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
      work.commandBufferCount = 1;
      work.pCommandBuffers = commands;
      EXPECT_EQ(vkQueueSubmit(session->queue(), 1, &work, VK_NULL_HANDLE), VK_SUCCESS);
    }
  }
  memory.destroy(target);
  session->print(true);
  EXPECT_GT(session->take_messages(), 0u) << "the layer does not compare submissions";
}

/// Makes the session before the tests, and destroys it after them.
class all_tests : public testing::Environment {
 public:
  void SetUp() override {
    // The layer checks the accesses of one submission against those of others.
    ::setenv("VK_LAYER_ENABLES",
             "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT:"
             "VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT",
             1);
    try {
      session.emplace(true);
    } catch (const vulkan_error&) {
    }
  }
  void TearDown() override {
    driver.real.reset();
    session.reset();
  }
};
const auto* const registered = testing::AddGlobalTestEnvironment(new all_tests);

}  // namespace
