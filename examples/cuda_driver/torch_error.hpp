// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

namespace cuda_pytorch {

/// Throws PyTorch's type for exhausted memory, c10::OutOfMemoryError. Python code catches it as torch.OutOfMemoryError, and
/// PyTorch catches it to try algorithms of cuDNN that need less memory.
///
/// It needs no header of PyTorch. It finds the type and its constructor by their names in the libraries that the program has
/// loaded. The names depend on the std::string that PyTorch was built with, so both are tried.
///
///   Source:  c10/util/Exception.h of PyTorch 2.0 to 2.6
class torch_error {
 public:
  /// Finds the type. Without PyTorch, or with another layout of the type, there is none.
  torch_error() {
    for (const std::string& library : loaded_libraries()) {
      void* const handle = dlopen(library.empty() ? nullptr : library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
      if (handle == nullptr) continue;
      // The handle of the right library stays open, because exceptions refer to its code.
      if (find_in(handle) && has_expected_layout() && fits()) return;
      construct_ = nullptr;
      dlclose(handle);
    }
  }

  [[nodiscard]] explicit operator bool() const noexcept { return construct_ != nullptr; }

  ///   Requires:  the type was found
  [[noreturn]] void raise(const char* text) const {
    void* const error = abi::__cxa_allocate_exception(space);
    try {
      construct(error, text);
    } catch (...) {
      abi::__cxa_free_exception(error);
      throw;
    }
    abi::__cxa_throw(error, const_cast<std::type_info*>(type_), destroy);
  }

 private:
  struct source_location {  // c10::SourceLocation
    const char* function;
    const char* file;
    std::uint32_t line;
  };
  using error_constructor = void(void* error, source_location where, void* text);
  using string_constructor = void(void* string, const char* text, const std::allocator<char>& allocator);
  using string_destructor = void(void* string);
  /// The names of the functions for one kind of std::string. libstdc++ has both kinds, whichever this file is compiled with.
  struct names {
    const char* construct;
    const char* make_string;
    const char* destroy_string;
  };
  static constexpr std::array<names, 2> kinds = {{
      {"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
       "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
       "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev"},
      {"_ZN3c105ErrorC1ENS_14SourceLocationESs", "_ZNSsC1EPKcRKSaIcE", "_ZNSsD1Ev"},
  }};
  /// Bytes for an exception. The object has 96 bytes in PyTorch 2.6; fits() checks that half of this is enough. More than the
  /// object needs does no harm: whoever frees an exception does not ask for its size.
  static constexpr std::size_t space = 1024;

  /// Lists the loaded libraries; the program itself has an empty name.
  [[nodiscard]] static std::vector<std::string> loaded_libraries() {
    std::vector<std::string> found;
    const auto add = [](dl_phdr_info* library, std::size_t, void* to) {
      static_cast<std::vector<std::string>*>(to)->emplace_back(library->dlpi_name);
      return 0;
    };
    dl_iterate_phdr(add, &found);
    return found;
  }

  [[nodiscard]] bool find_in(void* handle) noexcept {
    type_ = static_cast<const std::type_info*>(dlsym(handle, "_ZTIN3c1016OutOfMemoryErrorE"));
    table_ = static_cast<const void* const*>(dlsym(handle, "_ZTVN3c1016OutOfMemoryErrorE"));
    if (type_ == nullptr || table_ == nullptr) return false;
    for (const names& kind : kinds) {
      construct_ = reinterpret_cast<error_constructor*>(dlsym(handle, kind.construct));
      make_string_ = reinterpret_cast<string_constructor*>(dlsym(RTLD_DEFAULT, kind.make_string));
      destroy_string_ = reinterpret_cast<string_destructor*>(dlsym(RTLD_DEFAULT, kind.destroy_string));
      if (construct_ != nullptr && make_string_ != nullptr && destroy_string_ != nullptr) return true;
    }
    return false;
  }
  /// Whether the type has one base, c10::Error, that has one base, std::exception. Then all three begin at the same address.
  [[nodiscard]] bool has_expected_layout() const noexcept {
    const auto base_of = [](const std::type_info* type) -> const std::type_info* {
      const auto* const single = dynamic_cast<const abi::__si_class_type_info*>(type);
      return single != nullptr ? single->__base_type : nullptr;
    };
    const std::type_info* const error = base_of(type_);
    const std::type_info* const exception = error != nullptr ? base_of(error) : nullptr;
    if (exception == nullptr || *exception != typeid(std::exception)) return false;
    // A table of virtual functions begins with the offset of the object and its type.
    return std::string(error->name()) == "N3c105ErrorE" && table_[0] == nullptr &&
           *static_cast<const std::type_info*>(table_[1]) == *type_;
  }
  /// Whether the space is enough. A byte that the constructor writes differs from what was there before, with at least one
  /// of the two fillings.
  [[nodiscard]] bool fits() const {
    std::size_t end = 0;
    for (const unsigned char filling : std::array<unsigned char, 2>{0x00, 0xff}) {
      alignas(std::max_align_t) std::array<unsigned char, 4 * space> trial;
      trial.fill(filling);
      construct(trial.data(), "tessera");
      const auto last =
          std::find_if(trial.rbegin(), trial.rend(), [=](unsigned char c) { return c != filling; });
      end = std::max(end, static_cast<std::size_t>(trial.rend() - last));
      destroy(trial.data());
    }
    return end <= space / 2;
  }

  void construct(void* error, const char* text) const {
    alignas(std::max_align_t) std::array<unsigned char, 64> string;
    make_string_(string.data(), text, {});
    try {
      construct_(error, {"alloc", "tessera", 0}, string.data());
    } catch (...) {
      destroy_string_(string.data());
      throw;
    }
    destroy_string_(string.data());
    // The derived type adds no members, so it differs from c10::Error only in its virtual functions.
    *static_cast<const void* const**>(error) = table_ + 2;
  }
  static void destroy(void* error) { static_cast<std::exception*>(error)->~exception(); }

  const std::type_info* type_ = nullptr;
  const void* const* table_ = nullptr;
  error_constructor* construct_ = nullptr;
  string_constructor* make_string_ = nullptr;
  string_destructor* destroy_string_ = nullptr;
};

}  // namespace cuda_pytorch
