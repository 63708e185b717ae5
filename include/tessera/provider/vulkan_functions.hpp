// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#if __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>
#endif

#include <tessera/core/error.hpp>

#if defined(VK_VERSION_1_2)

namespace tessera::inline v0_1::detail {

/// The name of a result of a call for memory.
[[nodiscard]] inline const char* name_of_result(VkResult result) noexcept {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    default: return "an error without a name here";
  }
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// The constructor of an object failed.
class vulkan_error : public std::runtime_error {
 public:
  /// Names the call of Vulkan and the VkResult that it returned, as a number.
  vulkan_error(const char* call, VkResult result)
      : std::runtime_error(std::string(call) + " returned " + std::to_string(result)) {}
};

/// The functions of Vulkan 1.2 that allocate memory, and make buffers and images in it. They are in a table, so that a program
/// may load Vulkan as it likes, and a test can make each call fail.
struct vulkan_functions {
  ///   Throws:  vulkan_error if a function is missing
  vulkan_functions(PFN_vkGetInstanceProcAddr find, VkInstance instance, VkDevice device) {
    const auto of_instance = [&](auto& function, const char* name) {
      set(function, find(instance, name), name);
    };
    PFN_vkGetDeviceProcAddr find_in_device = nullptr;
    of_instance(find_in_device, "vkGetDeviceProcAddr");
    const auto of_device = [&](auto& function, const char* name) {
      set(function, find_in_device(device, name), name);
    };
    of_instance(get_properties, "vkGetPhysicalDeviceProperties2");
    of_instance(get_memory_properties, "vkGetPhysicalDeviceMemoryProperties2");
    of_device(allocate_memory, "vkAllocateMemory");
    of_device(free_memory, "vkFreeMemory");
    of_device(map_memory, "vkMapMemory");
    of_device(flush, "vkFlushMappedMemoryRanges");
    of_device(invalidate, "vkInvalidateMappedMemoryRanges");
    of_device(create_semaphore, "vkCreateSemaphore");
    of_device(destroy_semaphore, "vkDestroySemaphore");
    of_device(get_semaphore_value, "vkGetSemaphoreCounterValue");
    of_device(wait_semaphores, "vkWaitSemaphores");
    of_device(queue_submit, "vkQueueSubmit");
    of_device(create_buffer, "vkCreateBuffer");
    of_device(destroy_buffer, "vkDestroyBuffer");
    of_device(get_buffer_requirements, "vkGetBufferMemoryRequirements2");
    of_device(bind_buffer, "vkBindBufferMemory");
    of_device(create_image, "vkCreateImage");
    of_device(destroy_image, "vkDestroyImage");
    of_device(get_image_requirements, "vkGetImageMemoryRequirements2");
    of_device(bind_image, "vkBindImageMemory");
  }

  ///@{
  /// The function of Vulkan that the type names. None is null after the constructor.
  PFN_vkGetPhysicalDeviceProperties2 get_properties = nullptr;
  PFN_vkGetPhysicalDeviceMemoryProperties2 get_memory_properties = nullptr;
  PFN_vkAllocateMemory allocate_memory = nullptr;
  PFN_vkFreeMemory free_memory = nullptr;
  PFN_vkMapMemory map_memory = nullptr;
  PFN_vkFlushMappedMemoryRanges flush = nullptr;
  PFN_vkInvalidateMappedMemoryRanges invalidate = nullptr;
  PFN_vkCreateSemaphore create_semaphore = nullptr;
  PFN_vkDestroySemaphore destroy_semaphore = nullptr;
  PFN_vkGetSemaphoreCounterValue get_semaphore_value = nullptr;
  PFN_vkWaitSemaphores wait_semaphores = nullptr;
  PFN_vkQueueSubmit queue_submit = nullptr;
  PFN_vkCreateBuffer create_buffer = nullptr;
  PFN_vkDestroyBuffer destroy_buffer = nullptr;
  PFN_vkGetBufferMemoryRequirements2 get_buffer_requirements = nullptr;
  PFN_vkBindBufferMemory bind_buffer = nullptr;
  PFN_vkCreateImage create_image = nullptr;
  PFN_vkDestroyImage destroy_image = nullptr;
  PFN_vkGetImageMemoryRequirements2 get_image_requirements = nullptr;
  PFN_vkBindImageMemory bind_image = nullptr;
  ///@}

 private:
  template <typename Function>
  static void set(Function& function, PFN_vkVoidFunction found, const char* name) {
    function = reinterpret_cast<Function>(found);
    if (function == nullptr) detail::raise(vulkan_error(name, VK_ERROR_EXTENSION_NOT_PRESENT));
  }
};

}  // namespace tessera::inline v0_1::provider

#else

namespace tessera::inline v0_1::provider {

/// Vulkan's headers, of version 1.2 or later, are not in the include path.
class vulkan_error;
/// Vulkan's headers, of version 1.2 or later, are not in the include path.
struct vulkan_functions;

}  // namespace tessera::inline v0_1::provider

#endif
