// SPDX-License-Identifier: Apache-2.0
// The C library's functions on files, over files that the page keeps. Emscripten's own need its JavaScript, which this page does
// without: it supports no memory with addresses of 64 bits well.

#include <sys/stat.h>
#include <sys/types.h>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#define PAGE_IMPORT(name) __attribute__((import_module("page"), import_name(#name)))

extern "C" {
/// The bytes of a file; negative if there is no such file.
PAGE_IMPORT(size) double page_size(const char* path);
/// Copies bytes of a file into memory.
///   Returns:  their number; 0 at the end
PAGE_IMPORT(read) double page_read(const char* path, double offset, void* to, double count);
/// Appends bytes to a file.
PAGE_IMPORT(write) void page_write(const char* path, const void* from, double count);
PAGE_IMPORT(create) void page_create(const char* path);
/// Renames a file, or removes it if `to` is null.
PAGE_IMPORT(rename) void page_rename(const char* path, const char* to);
}

namespace {

struct open_file {
  std::string path;
  std::size_t offset = 0;
};

ssize_t read_some(void* cookie, char* to, std::size_t count) {
  auto& file = *static_cast<open_file*>(cookie);
  const double got =
      page_read(file.path.c_str(), static_cast<double>(file.offset), to, static_cast<double>(count));
  file.offset += static_cast<std::size_t>(got);
  return static_cast<ssize_t>(got);
}
ssize_t write_some(void* cookie, const char* from, std::size_t count) {
  page_write(static_cast<open_file*>(cookie)->path.c_str(), from, static_cast<double>(count));
  return static_cast<ssize_t>(count);
}
int close_file(void* cookie) {
  delete static_cast<open_file*>(cookie);
  return 0;
}

int not_there() {
  errno = ENOENT;
  return -1;
}

}  // namespace

extern "C" {

std::FILE* fopen(const char* path, const char* mode) {
  const std::string_view how(mode);
  const bool exists = page_size(path) >= 0;
  if (how.starts_with('r') ? !exists : how.ends_with('x') && exists) {
    errno = exists ? EEXIST : ENOENT;
    return nullptr;
  }
  auto file = std::unique_ptr<open_file>(new (std::nothrow) open_file{path});
  if (file == nullptr) return nullptr;
  if (!how.starts_with('r')) page_create(path);
  cookie_io_functions_t functions{};
  functions.read = &read_some;
  functions.write = &write_some;
  functions.close = &close_file;
  std::FILE* const opened = fopencookie(file.get(), how.starts_with('r') ? "r" : "w", functions);
  if (opened != nullptr) (void)file.release();
  return opened;
}

int stat(const char* path, struct stat* found) {
  const double size = page_size(path);
  if (size < 0) return not_there();
  std::memset(found, 0, sizeof *found);
  found->st_mode = S_IFREG | 0644;
  found->st_nlink = 1;
  found->st_size = static_cast<off_t>(size);
  return 0;
}

char* realpath(const char* path, char* resolved) {
  if (page_size(path) < 0) {
    (void)not_there();
    return nullptr;
  }
  if (resolved == nullptr) return strdup(path);
  return std::strcpy(resolved, path);
}

char* getcwd(char* folder, std::size_t size) {
  if (folder == nullptr) return strdup("/");
  if (size < 2) {
    errno = ERANGE;
    return nullptr;
  }
  return std::strcpy(folder, "/");
}

int rename(const char* from, const char* to) {
  if (page_size(from) < 0) return not_there();
  page_rename(from, to);
  return 0;
}

int remove(const char* path) {
  if (page_size(path) < 0) return not_there();
  page_rename(path, nullptr);
  return 0;
}

}  // extern "C"
