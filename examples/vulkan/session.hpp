// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <vulkan/vulkan_core.h>

#include <tessera/provider/vulkan.hpp>

namespace vulkan {

using tessera::provider::vulkan_error;

/// Throws if a call failed.
inline void check(VkResult result, const char* call) {
  if (result < VK_SUCCESS) throw vulkan_error(call, result);
}

/// Makes an instance and a device for the programs of this folder, with VK_LAYER_KHRONOS_validation if it is installed. Counts
/// the warnings and errors of the layer, and prints them.
class session {
 public:
  /// Takes a device that runs on the CPU, if `prefers_cpu` and there is one; otherwise the first device.
  ///   Throws:  vulkan_error if there is no suitable device
  explicit session(bool prefers_cpu = false) {
    try {
      create_instance();
      choose(prefers_cpu);
      create_device();
    } catch (const vulkan_error&) {
      destroy();
      throw;
    }
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { destroy(); }

  [[nodiscard]] VkInstance instance() const noexcept { return instance_; }
  [[nodiscard]] VkPhysicalDevice physical() const noexcept { return physical_; }
  [[nodiscard]] VkDevice device() const noexcept { return device_; }
  [[nodiscard]] VkQueue queue() const noexcept { return queue_; }
  [[nodiscard]] std::uint32_t family() const noexcept { return family_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool has_memory_budget() const noexcept { return has_memory_budget_; }
  [[nodiscard]] bool is_validated() const noexcept { return messenger_ != VK_NULL_HANDLE; }
  /// The number of messages of the validation layer since the last call.
  [[nodiscard]] std::uint64_t take_messages() noexcept { return messages_->count.exchange(0); }
  /// Whether messages are printed.
  void print(bool printed) noexcept { messages_->printed.store(printed); }
  [[nodiscard]] tessera::provider::vulkan_functions calls() const {
    return {&vkGetInstanceProcAddr, instance_, device_};
  }

 private:
  struct messages {
    std::atomic<std::uint64_t> count = 0;
    std::atomic<bool> printed = true;
  };
  static constexpr const char* layer = "VK_LAYER_KHRONOS_validation";

  static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT,
                                                   VkDebugUtilsMessageTypeFlagsEXT,
                                                   const VkDebugUtilsMessengerCallbackDataEXT* message,
                                                   void* user) {
    auto& seen = *static_cast<messages*>(user);
    ++seen.count;
    if (seen.printed.load()) std::fprintf(stderr, "validation: %s\n", message->pMessage);
    return VK_FALSE;
  }
  [[nodiscard]] static bool has_layer() {
    std::uint32_t count = 0;
    check(vkEnumerateInstanceLayerProperties(&count, nullptr), "vkEnumerateInstanceLayerProperties");
    std::vector<VkLayerProperties> all(count);
    check(vkEnumerateInstanceLayerProperties(&count, all.data()), "vkEnumerateInstanceLayerProperties");
    for (const VkLayerProperties& one : all) {
      if (std::strcmp(one.layerName, layer) == 0) return true;
    }
    return false;
  }
  void create_instance() {
    const bool validates = has_layer();
    VkApplicationInfo program{};
    program.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    program.apiVersion = VK_API_VERSION_1_2;
    const char* const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    VkDebugUtilsMessengerCreateInfoEXT wanted{};
    wanted.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
    wanted.messageSeverity =
        VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
    wanted.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
    wanted.pfnUserCallback = &on_message;
    wanted.pUserData = messages_.get();
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &program;
    if (validates) {
      info.pNext = &wanted;  // for the calls that create and destroy the instance
      info.enabledLayerCount = 1;
      info.ppEnabledLayerNames = &layer_;
      info.enabledExtensionCount = 1;
      info.ppEnabledExtensionNames = &extension;
    }
    check(vkCreateInstance(&info, nullptr, &instance_), "vkCreateInstance");
    if (!validates) return;
    const auto create = find<PFN_vkCreateDebugUtilsMessengerEXT>("vkCreateDebugUtilsMessengerEXT");
    check(create(instance_, &wanted, nullptr, &messenger_), "vkCreateDebugUtilsMessengerEXT");
  }
  void choose(bool prefers_cpu) {
    std::uint32_t count = 0;
    check(vkEnumeratePhysicalDevices(instance_, &count, nullptr), "vkEnumeratePhysicalDevices");
    std::vector<VkPhysicalDevice> all(count);
    check(vkEnumeratePhysicalDevices(instance_, &count, all.data()), "vkEnumeratePhysicalDevices");
    for (const VkPhysicalDevice one : all) {
      VkPhysicalDeviceProperties properties{};
      vkGetPhysicalDeviceProperties(one, &properties);
      if (properties.apiVersion < VK_API_VERSION_1_2 || !has_timelines(one) || !family_of(one)) continue;
      const bool is_preferred = prefers_cpu && properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
      if (physical_ != VK_NULL_HANDLE && !is_preferred) continue;
      physical_ = one;
      family_ = *family_of(one);
      name_ = properties.deviceName;
    }
    if (physical_ == VK_NULL_HANDLE) throw vulkan_error("a search for devices", VK_ERROR_INCOMPATIBLE_DRIVER);
  }
  [[nodiscard]] static bool has_timelines(VkPhysicalDevice one) {
    VkPhysicalDeviceTimelineSemaphoreFeatures timelines{};
    timelines.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES;
    VkPhysicalDeviceFeatures2 features{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &timelines, {}};
    vkGetPhysicalDeviceFeatures2(one, &features);
    return timelines.timelineSemaphore == VK_TRUE;
  }
  /// A family of queues that compute.
  [[nodiscard]] static std::optional<std::uint32_t> family_of(VkPhysicalDevice one) {
    std::uint32_t count = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(one, &count, nullptr);
    std::vector<VkQueueFamilyProperties> all(count);
    vkGetPhysicalDeviceQueueFamilyProperties(one, &count, all.data());
    for (std::uint32_t i = 0; i < count; ++i) {
      if ((all[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) return i;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool has_extension(const char* name) const {
    std::uint32_t count = 0;
    check(vkEnumerateDeviceExtensionProperties(physical_, nullptr, &count, nullptr), "a list of extensions");
    std::vector<VkExtensionProperties> all(count);
    check(vkEnumerateDeviceExtensionProperties(physical_, nullptr, &count, all.data()),
          "a list of extensions");
    for (const VkExtensionProperties& one : all) {
      if (std::strcmp(one.extensionName, name) == 0) return true;
    }
    return false;
  }
  void create_device() {
    has_memory_budget_ = has_extension(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    const char* const extension = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    VkPhysicalDeviceTimelineSemaphoreFeatures timelines{};
    timelines.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES;
    timelines.timelineSemaphore = VK_TRUE;
    const float priority = 1;
    VkDeviceQueueCreateInfo queues{};
    queues.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queues.queueFamilyIndex = family_;
    queues.queueCount = 1;
    queues.pQueuePriorities = &priority;
    VkDeviceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    info.pNext = &timelines;
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queues;
    info.enabledExtensionCount = has_memory_budget_ ? 1 : 0;
    info.ppEnabledExtensionNames = &extension;
    check(vkCreateDevice(physical_, &info, nullptr, &device_), "vkCreateDevice");
    vkGetDeviceQueue(device_, family_, 0, &queue_);
  }
  template <typename Function>
  [[nodiscard]] Function find(const char* name) const {
    return reinterpret_cast<Function>(vkGetInstanceProcAddr(instance_, name));
  }
  void destroy() noexcept {
    if (device_ != VK_NULL_HANDLE) vkDestroyDevice(device_, nullptr);
    if (messenger_ != VK_NULL_HANDLE)
      find<PFN_vkDestroyDebugUtilsMessengerEXT>("vkDestroyDebugUtilsMessengerEXT")(instance_, messenger_,
                                                                                   nullptr);
    if (instance_ != VK_NULL_HANDLE) vkDestroyInstance(instance_, nullptr);
  }

  std::unique_ptr<messages> messages_ = std::make_unique<messages>();
  const char* layer_ = layer;
  VkInstance instance_ = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  std::uint32_t family_ = 0;
  std::string name_;
  bool has_memory_budget_ = false;
};

}  // namespace vulkan
