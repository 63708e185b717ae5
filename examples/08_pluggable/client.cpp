// SPDX-License-Identifier: Apache-2.0
// Loads the library and calls its functions by name, as PyTorch does. Usage: client libpinned.so
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

/// Finds a function of a library by name. Exits if there is none.
template <typename Function>
Function* find(void* library, const char* name) {
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

/// The work of a stream: fills a tensor.
constexpr std::size_t bytes = 3 << 20;
void fill(void* tensor) { std::memset(tensor, 42, bytes); }

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: client LIBRARY\n", stderr);
    return 1;
  }
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  const auto alloc = find<void*(std::size_t, int, void*)>(library, "pinned_alloc");
  const auto free = find<void(void*, std::size_t, int, void*)>(library, "pinned_free");
  const auto record_stream = find<void(void*, void*)>(library, "pinned_record_stream");
  const auto statistics = find<std::size_t(int, char*, std::size_t)>(library, "pinned_statistics");
  const auto last_error = find<std::size_t(char*, std::size_t)>(library, "pinned_last_error");
  const auto create_stream = find<void*(int)>(library, "pinned_create_stream");
  const auto submit = find<void(int, void*, void (*)(void*), void*)>(library, "pinned_submit");
  const auto synchronize = find<void(int, void*)>(library, "pinned_synchronize");

  // Another stream writes a tensor of the default stream. The tensor is not reused before that work completes.
  void* const side = create_stream(0);
  void* const tensor = alloc(bytes, 0, nullptr);
  submit(0, side, fill, tensor);
  record_stream(tensor, side);
  free(tensor, bytes, 0, nullptr);
  synchronize(0, side);
  void* const again = alloc(bytes, 0, nullptr);
  std::printf("written: %d, used again: %s\n", static_cast<char*>(again)[bytes - 1],
              again == tensor ? "yes" : "no");

  char text[8192];
  void* const too_much = alloc(std::size_t{1} << 40, 1, nullptr);
  last_error(text, sizeof text);
  std::printf("1 TiB: %p, %s\n", too_much, text);
  statistics(0, text, sizeof text);
  std::printf("%.*s}\n", static_cast<int>(std::strcspn(text, "}")), text);
  free(again, bytes, 0, nullptr);
  return again == tensor && too_much == nullptr ? 0 : 1;
}
