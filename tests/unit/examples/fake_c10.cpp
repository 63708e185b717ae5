// SPDX-License-Identifier: Apache-2.0
// A library in place of PyTorch's libc10. It has an error type with PyTorch's names, and catches it as PyTorch does.
// The build makes it with both kinds of std::string, with a type that is too large, and with a base too many.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if !defined(FAKE_C10_BYTES)
#define FAKE_C10_BYTES 16
#endif

namespace {
std::atomic<int> alive{0};
}

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

class Error : public std::exception {
 public:
  Error(SourceLocation where, std::string text);
  Error(const Error&) = delete;
  Error& operator=(const Error&) = delete;
  ~Error() override { --alive; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
  std::vector<std::string> context_;
  std::shared_ptr<const std::string> where_;
  unsigned char more_[FAKE_C10_BYTES];
};
Error::Error(SourceLocation where, std::string text)
    : text_(std::move(text)),
      context_{where.function},
      where_(std::make_shared<const std::string>(where.file + std::to_string(where.line))) {
  for (unsigned char& byte : more_) byte = 1;
  ++alive;
}

#if defined(FAKE_C10_TWO_BASES)
struct Other {
  virtual ~Other() = default;
};
class OutOfMemoryError : public Other, public Error {
#else
class OutOfMemoryError : public Error {
#endif
 public:
  using Error::Error;
};

}  // namespace c10

extern "C" {

/// Calls f, and copies the text of what it throws. Returns 1 for the type above, 2 for another, 0 for nothing.
int fake_c10_catch(void (*f)(void*), void* argument, char* text, std::size_t size) {
  try {
    f(argument);
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    std::snprintf(text, size, "%s", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::snprintf(text, size, "%s", error.what());
    return 2;
  }
}
/// The number of errors that exist.
int fake_c10_alive() { return alive; }
/// Keeps the type in the library, as PyTorch's own code does.
void fake_c10_throw() { throw c10::OutOfMemoryError({"f", "file", 1}, "thrown by the library"); }

}  // extern "C"
