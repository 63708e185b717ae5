// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

namespace tessera::detail {

/// The number of counted_ptrs to an object.
class reference_count {
 public:
  reference_count() noexcept = default;
  reference_count(const reference_count&) = delete;
  reference_count& operator=(const reference_count&) = delete;

 private:
  template <typename T>
  friend class counted_ptr;
  std::size_t count_ = 0;
};

/// A std::shared_ptr for one thread, which compiles ten times faster: <memory> alone takes 0.4 s.
///   Requires:  T has a public base class reference_count
template <typename T>
class counted_ptr {
 public:
  counted_ptr() noexcept = default;
  explicit counted_ptr(T* object) noexcept : object_(object) {
    if (object_ != nullptr) ++count();
  }
  counted_ptr(const counted_ptr& from) noexcept : counted_ptr(from.object_) {}
  counted_ptr(counted_ptr&& from) noexcept : object_(std::exchange(from.object_, nullptr)) {}
  counted_ptr& operator=(counted_ptr from) noexcept {
    std::swap(object_, from.object_);
    return *this;
  }
  ~counted_ptr() {
    if (object_ != nullptr && --count() == 0) delete object_;
  }

  [[nodiscard]] T& operator*() const noexcept { return *object_; }
  [[nodiscard]] T* operator->() const noexcept { return object_; }

 private:
  [[nodiscard]] std::size_t& count() const noexcept { return static_cast<reference_count*>(object_)->count_; }
  T* object_ = nullptr;
};

}  // namespace tessera::detail
