// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include <gtest/gtest.h>

/// The knowledge of a program about a library that it loads: its path, the names of its functions and their
/// types.
class loaded_library {
 public:
  explicit loaded_library(const std::string& path, int mode = RTLD_LOCAL)
      : handle_(dlopen(path.c_str(), RTLD_NOW | mode)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  [[nodiscard]] static std::string path_of(const char* name) {
    return std::string(TESSERA_LOADED_DIR "/lib") + name + ".so";
  }
  /// A copy of a library, unrelated to loaded ones. Its file is removed when the process ends.
  [[nodiscard]] static std::string copy_of(const char* name) {
    static const struct scratch {
      const pid_t owner = ::getpid();
      std::filesystem::path folder =
          std::filesystem::path(testing::TempDir()) / ("loaded" + std::to_string(owner));
      scratch() {
        std::filesystem::remove_all(folder);  // of a killed process that had the same number
        std::filesystem::create_directories(folder);
      }
      ~scratch() {
        if (::getpid() == owner) std::filesystem::remove_all(folder);  // death tests end in child processes
      }
    } own;
    static int number = 0;
    // A child process of a death test has the same folder and counts on.
    const std::string file = std::to_string(::getpid()) + "_" + std::to_string(++number) + ".so";
    const std::filesystem::path copy = own.folder / file;
    std::filesystem::copy_file(path_of(name), copy);
    return copy.string();
  }

  template <typename Function>
  [[nodiscard]] Function* find(const std::string& name) const {
    void* const found = dlsym(handle_, name.c_str());
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  void* handle_;
};

/// The functions that TESSERA_TORCH_FUNCTIONS defines, as their caller declares them.
struct torch_functions {
  torch_functions(const loaded_library& in, const std::string& prefix)
      : alloc(in.find<void*(std::size_t, int, void*)>(prefix + "_alloc")),
        free(in.find<void(void*, std::size_t, int, void*)>(prefix + "_free")),
        init(in.find<void(int)>(prefix + "_init")),
        reset(in.find<void()>(prefix + "_reset")),
        memory_fraction(in.find<void(double, int)>(prefix + "_memory_fraction")),
        base_alloc(in.find<void*(void*, std::size_t*)>(prefix + "_base_alloc")),
        record_stream(in.find<void(void*, void*)>(prefix + "_record_stream")),
        statistics(in.find<std::size_t(int, char*, std::size_t)>(prefix + "_statistics")),
        reset_peak_statistics(in.find<void(int)>(prefix + "_reset_peak_statistics")),
        reset_accumulated_statistics(in.find<void(int)>(prefix + "_reset_accumulated_statistics")),
        last_error(in.find<std::size_t(char*, std::size_t)>(prefix + "_last_error")) {}

  void* (*alloc)(std::size_t, int, void*);
  void (*free)(void*, std::size_t, int, void*);
  void (*init)(int);
  void (*reset)();
  void (*memory_fraction)(double, int);
  void* (*base_alloc)(void*, std::size_t*);
  void (*record_stream)(void*, void*);
  std::size_t (*statistics)(int, char*, std::size_t);
  void (*reset_peak_statistics)(int);
  void (*reset_accumulated_statistics)(int);
  std::size_t (*last_error)(char*, std::size_t);

  [[nodiscard]] std::string error() const {
    std::string text(last_error(nullptr, 0), '\0');
    last_error(text.data(), text.size() + 1);
    return text;
  }
  /// The library's counter under a key of torch.cuda.memory_stats(); -1 if it has no such key.
  [[nodiscard]] long count(const std::string& key, int device = 0) const {
    std::string text(statistics(device, nullptr, 0), '\0');
    statistics(device, text.data(), text.size() + 1);
    std::size_t at = 0;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = key.find('.', begin);
      const std::string part = '"' + key.substr(begin, end - begin) + "\": ";
      at = text.find(part, at);
      if (at == std::string::npos) return -1;
      at += part.size();
    }
    return std::stol(text.substr(at));
  }
};
