// SPDX-License-Identifier: Apache-2.0
// Computes on a Vulkan device with buffers and images of the suballocator, checks every result, and counts the messages of the
// validation layer. Exits with 77 if there is no device.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>

#include <vulkan/vulkan_core.h>

#include <tessera/provider/vulkan.hpp>

#include "scale_add.h"
#include "session.hpp"
#include "suballocator.hpp"

namespace {

using tessera::stream_id;
using tessera::provider::vulkan_device;
using tessera::provider::vulkan_error;
using vulkan::check;
constexpr stream_id first{0}, second{1};

/// Records commands, each into a command buffer of its own. Its destructor frees all of them.
class commands {
 public:
  static constexpr std::uint32_t max_kernels = 256;
  struct constants {
    std::uint32_t count;
    std::uint32_t factor;
  };

  explicit commands(const vulkan::session& on) : device_(on.device()) {
    const VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0, on.family()};
    check(vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");
    const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 3 * max_kernels};
    const VkDescriptorPoolCreateInfo sets{
        VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, max_kernels, 1, &size};
    check(vkCreateDescriptorPool(device_, &sets, nullptr, &sets_), "vkCreateDescriptorPool");
    create_layouts();
    create_pipeline();
  }
  commands(const commands&) = delete;
  commands& operator=(const commands&) = delete;
  ~commands() {
    vkDestroyPipeline(device_, pipeline_, nullptr);
    vkDestroyPipelineLayout(device_, layout_, nullptr);
    vkDestroyDescriptorSetLayout(device_, set_layout_, nullptr);
    vkDestroyDescriptorPool(device_, sets_, nullptr);
    vkDestroyCommandPool(device_, pool_, nullptr);
  }

  /// result[i] = factor * left[i] + right[i]
  [[nodiscard]] VkCommandBuffer scale_add(const std::array<VkBuffer, 3>& buffers, constants values) {
    const VkDescriptorSet set = make_set(buffers);
    return record([&](VkCommandBuffer into) {
      vkCmdBindPipeline(into, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
      vkCmdBindDescriptorSets(into, VK_PIPELINE_BIND_POINT_COMPUTE, layout_, 0, 1, &set, 0, nullptr);
      vkCmdPushConstants(into, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof values, &values);
      vkCmdDispatch(into, (values.count + 63) / 64, 1, 1);
    });
  }
  [[nodiscard]] VkCommandBuffer copy(VkBuffer from, VkBuffer to, VkDeviceSize bytes) {
    return record([&](VkCommandBuffer into) {
      const VkBufferCopy all{0, 0, bytes};
      vkCmdCopyBuffer(into, from, to, 1, &all);
      show_to_host(into);
    });
  }
  [[nodiscard]] VkCommandBuffer copy(VkBuffer from, VkImage to, VkExtent3D extent) {
    return record([&](VkCommandBuffer into) {
      change_layout(into, to, VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
      const VkBufferImageCopy all = whole(extent);
      vkCmdCopyBufferToImage(into, from, to, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1, &all);
    });
  }
  [[nodiscard]] VkCommandBuffer copy(VkImage from, VkBuffer to, VkExtent3D extent) {
    return record([&](VkCommandBuffer into) {
      change_layout(into, from, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL);
      const VkBufferImageCopy all = whole(extent);
      vkCmdCopyImageToBuffer(into, from, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, to, 1, &all);
      show_to_host(into);
    });
  }

 private:
  template <typename F>
  [[nodiscard]] VkCommandBuffer record(F f) {
    VkCommandBuffer made = VK_NULL_HANDLE;
    const VkCommandBufferAllocateInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_,
                                           VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    check(vkAllocateCommandBuffers(device_, &info, &made), "vkAllocateCommandBuffers");
    const VkCommandBufferBeginInfo once{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr,
                                        VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, nullptr};
    check(vkBeginCommandBuffer(made, &once), "vkBeginCommandBuffer");
    f(made);
    check(vkEndCommandBuffer(made), "vkEndCommandBuffer");
    return made;
  }
  static void show_to_host(VkCommandBuffer into) {
    const VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_TRANSFER_WRITE_BIT,
                                  VK_ACCESS_HOST_READ_BIT};
    vkCmdPipelineBarrier(into, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0,
                         nullptr, 0, nullptr);
  }
  static void change_layout(VkCommandBuffer into, VkImage of, VkImageLayout from, VkImageLayout to) {
    VkImageMemoryBarrier barrier{};
    barrier.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER;
    barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.oldLayout = from;
    barrier.newLayout = to;
    barrier.srcQueueFamilyIndex = barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
    barrier.image = of;
    barrier.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    vkCmdPipelineBarrier(into, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, nullptr,
                         0, nullptr, 1, &barrier);
  }
  [[nodiscard]] static VkBufferImageCopy whole(VkExtent3D extent) {
    VkBufferImageCopy all{};
    all.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1};
    all.imageExtent = extent;
    return all;
  }
  [[nodiscard]] VkDescriptorSet make_set(const std::array<VkBuffer, 3>& buffers) {
    VkDescriptorSet set = VK_NULL_HANDLE;
    const VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, sets_, 1,
                                           &set_layout_};
    check(vkAllocateDescriptorSets(device_, &info, &set), "vkAllocateDescriptorSets");
    std::array<VkDescriptorBufferInfo, 3> whole{};
    for (std::size_t i = 0; i < buffers.size(); ++i) whole[i] = {buffers[i], 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write{};
    write.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    write.dstSet = set;
    write.descriptorCount = 3;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = whole.data();
    vkUpdateDescriptorSets(device_, 1, &write, 0, nullptr);
    return set;
  }
  void create_layouts() {
    std::array<VkDescriptorSetLayoutBinding, 3> bindings{};
    for (std::uint32_t i = 0; i < bindings.size(); ++i)
      bindings[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
    const VkDescriptorSetLayoutCreateInfo set{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, nullptr, 0,
                                              3, bindings.data()};
    check(vkCreateDescriptorSetLayout(device_, &set, nullptr, &set_layout_), "vkCreateDescriptorSetLayout");
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(constants)};
    const VkPipelineLayoutCreateInfo info{
        VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, nullptr, 0, 1, &set_layout_, 1, &range};
    check(vkCreatePipelineLayout(device_, &info, nullptr, &layout_), "vkCreatePipelineLayout");
  }
  void create_pipeline() {
    VkShaderModule shader = VK_NULL_HANDLE;
    const VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, nullptr, 0,
                                        sizeof scale_add_code, scale_add_code};
    check(vkCreateShaderModule(device_, &code, nullptr, &shader), "vkCreateShaderModule");
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = shader;
    info.stage.pName = "main";
    info.layout = layout_;
    const VkResult made = vkCreateComputePipelines(device_, VK_NULL_HANDLE, 1, &info, nullptr, &pipeline_);
    vkDestroyShaderModule(device_, shader, nullptr);
    check(made, "vkCreateComputePipelines");
  }

  VkDevice device_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
};

/// A program that uses the suballocator as an engine does.
class program {
 public:
  program(const vulkan::session& on, vulkan_device& device)
      : device_(device), memory_(device), commands_(on) {}

  /// Uploads, computes on two streams and reads back. Buffers are destroyed as soon as their work is submitted, and up to
  /// three steps run at the same time.
  void compute(std::uint32_t count, std::uint32_t factor) {
    const VkDeviceSize bytes = VkDeviceSize{count} * sizeof(std::uint32_t);
    const vulkan::buffer upload = make(bytes, vulkan::for_upload, first);
    auto* const given = reinterpret_cast<std::uint32_t*>(upload.memory.mapped);
    for (std::uint32_t i = 0; i < count; ++i) given[i] = i ^ factor;
    require(memory_.flush(upload.memory), "flush");
    const vulkan::buffer source = make(bytes, vulkan::for_device, first);
    const vulkan::buffer sum = make(bytes, vulkan::for_device, first);
    submit(first, commands_.copy(upload.handle, source.handle, bytes));
    memory_.destroy(upload);
    submit(first, commands_.scale_add({source.handle, source.handle, sum.handle}, {count, factor}));

    // The second stream computes from both buffers, and the first stream may go on.
    const std::uint64_t ready = device_.streams().position(first);
    require(device_.streams().make_wait(second, first, ready), "make_wait");
    const vulkan::buffer product = make(bytes, vulkan::for_device, second);
    submit(second, commands_.scale_add({sum.handle, source.handle, product.handle}, {count, 3}));
    for (const vulkan::buffer& used : {source, sum}) {
      require(memory_.record_stream(used.memory, second), "record_stream");
      memory_.destroy(used);
    }
    const vulkan::buffer result = make(bytes, vulkan::for_readback, second);
    submit(second, commands_.copy(product.handle, result.handle, bytes));
    memory_.destroy(product);
    running_.push_back({result, count, factor, device_.streams().position(second)});
    if (running_.size() > 3) check_oldest();
  }
  void finish() {
    while (!running_.empty()) check_oldest();
  }

  /// Copies through an image between two small buffers of the same memory type.
  void use_image() {
    constexpr VkExtent3D extent{61, 7, 1};
    constexpr std::uint32_t count = 61 * 7;
    constexpr VkDeviceSize bytes = count * sizeof(std::uint32_t);
    const vulkan::buffer before = make(bytes, vulkan::for_upload, first);
    VkImageCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO;
    info.imageType = VK_IMAGE_TYPE_2D;
    info.format = VK_FORMAT_R32_UINT;
    info.extent = extent;
    info.mipLevels = info.arrayLayers = 1;
    info.samples = VK_SAMPLE_COUNT_1_BIT;
    info.tiling = VK_IMAGE_TILING_OPTIMAL;
    info.usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
    const vulkan::image between = memory_.create_image(info, vulkan::for_device, first);
    require(static_cast<bool>(between), "create_image");
    const vulkan::buffer after = make(bytes, vulkan::for_readback, first);
    for (const vulkan::buffer& each : {before, after}) require_no_shared_page(each.memory, between.memory);

    auto* const given = reinterpret_cast<std::uint32_t*>(before.memory.mapped);
    for (std::uint32_t i = 0; i < count; ++i) given[i] = i * i;
    require(memory_.flush(before.memory), "flush");
    submit(first, commands_.copy(before.handle, between.handle, extent));
    submit(first, commands_.copy(between.handle, after.handle, extent));
    const auto* const got = read(after, first, device_.streams().position(first));
    for (std::uint32_t i = 0; i < count; ++i) require(got[i] == i * i, "a texel");
    for (const vulkan::buffer& each : {before, after}) memory_.destroy(each);
    memory_.destroy(between);
  }

  /// Gives all memory back.
  void end() {
    memory_.trim();
    require(device_.allocations() == 0, "the return of all memory");
  }
  [[nodiscard]] std::size_t buffers() const { return buffers_; }
  [[nodiscard]] std::size_t max_allocations() const { return max_allocations_; }
  [[nodiscard]] std::size_t failures() const { return failures_; }

 private:
  /// A step whose result was not read yet.
  struct step {
    vulkan::buffer result;
    std::uint32_t count;
    std::uint32_t factor;
    std::uint64_t done;  // position of the second stream
  };
  void require(bool holds, const char* what) {
    if (holds) return;
    if (++failures_ <= 10) std::printf("wrong: %s\n", what);
  }
  [[nodiscard]] vulkan::buffer make(VkDeviceSize bytes, const vulkan::memory_use& use, stream_id stream) {
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = bytes;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    const vulkan::buffer made = memory_.create_buffer(info, use, stream);
    if (!made) throw vulkan_error("create_buffer", device_.streams().last_error());
    ++buffers_;
    max_allocations_ = (std::max)(max_allocations_, device_.allocations());
    return made;
  }
  void submit(stream_id to, VkCommandBuffer work) { require(device_.streams().submit(to, work), "submit"); }
  /// Waits for the work that writes a buffer, and returns the contents.
  [[nodiscard]] const std::uint32_t* read(const vulkan::buffer& from, stream_id stream,
                                          std::uint64_t position) {
    require(device_.streams().wait(stream, position), "wait");
    require(memory_.invalidate(from.memory), "invalidate");
    return reinterpret_cast<const std::uint32_t*>(from.memory.mapped);
  }
  void check_oldest() {
    const step oldest = running_.front();
    running_.pop_front();
    const auto* const got = read(oldest.result, second, oldest.done);
    for (std::uint32_t i = 0; i < oldest.count; ++i) {
      const std::uint32_t a = i ^ oldest.factor;
      require(got[i] == 3 * (oldest.factor * a + a) + a, "a result");
    }
    memory_.destroy(oldest.result);
  }
  void require_no_shared_page(const vulkan::allocation& one, const vulkan::allocation& other) {
    const VkDeviceSize page = device_.limits().bufferImageGranularity;
    const auto& low = one.offset < other.offset ? one : other;
    const auto& high = one.offset < other.offset ? other : one;
    require(one.memory != other.memory || (low.offset + low.size - 1) / page < high.offset / page,
            "a page of a buffer and an image");
  }

  vulkan_device& device_;
  vulkan::suballocator<> memory_;
  commands commands_;
  std::deque<step> running_;
  std::size_t buffers_ = 0;
  std::size_t max_allocations_ = 0;
  std::size_t failures_ = 0;
};

bool run(vulkan::session& on) {
  const std::array<VkQueue, 2> queues{on.queue(), on.queue()};  // two streams
  vulkan_device device(on.calls(), {on.physical(), on.device(), queues, on.has_memory_budget(), 0});
  program engine(on, device);
  for (std::uint32_t step = 1; step <= 60; ++step) engine.compute(step * 7919 % 100'000 + 1, step);
  engine.finish();
  for (int i = 0; i < 3; ++i) engine.use_image();
  engine.end();
  std::printf("%zu buffers in at most %zu allocations of the device; %zu wrong results\n", engine.buffers(),
              engine.max_allocations(), engine.failures());
  return engine.failures() == 0 && engine.max_allocations() < engine.buffers() / 10;
}

}  // namespace

int main() {
  std::optional<vulkan::session> on;
  try {
    on.emplace();
  } catch (const vulkan_error& error) {
    std::printf("no device: %s\n", error.what());
    return 77;
  }
  try {
    std::printf("%s\n", on->name().c_str());
    const bool works = run(*on);
    const std::uint64_t messages = on->take_messages();
    if (on->is_validated()) {
      std::printf("%llu messages of the validation layer\n", static_cast<unsigned long long>(messages));
    } else {
      std::printf("VK_LAYER_KHRONOS_validation is not installed\n");
    }
    return works && messages == 0 ? 0 : 1;
  } catch (const vulkan_error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
