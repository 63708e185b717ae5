// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

/// Stand-ins for the concepts and wrappers of CCCL 3.1's cuda/__memory_resource, which compile only with CUDA's headers.
namespace cccl_stand_ins {

struct stream_object;
using stream_handle = stream_object*;  // as cudaStream_t

/// Like cuda::stream_ref.
class stream_ref {
 public:
  stream_ref(stream_handle of) noexcept : of_(of) {}
  stream_ref(std::nullptr_t) = delete;
  stream_ref(int) = delete;
  [[nodiscard]] stream_handle get() const noexcept { return of_; }
  bool operator==(const stream_ref&) const = default;

 private:
  stream_handle of_;
};

struct device_accessible {};
struct host_accessible {};

template <typename R>
concept synchronous_resource =
    std::equality_comparable<R> && requires(R& r, void* p, std::size_t bytes, std::size_t alignment) {
      { r.allocate_sync(bytes, alignment) } -> std::same_as<void*>;
      { r.deallocate_sync(p, bytes, alignment) } -> std::same_as<void>;
    };

template <typename R>
concept resource = synchronous_resource<R> &&
                   requires(R& r, void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) {
                     { r.allocate(stream, bytes, alignment) } -> std::same_as<void*>;
                     { r.deallocate(stream, p, bytes, alignment) } -> std::same_as<void>;
                   };

/// The concepts of CCCL 3.0, which is part of CUDA 13.0.
namespace before_3_1 {

template <typename R>
concept resource =
    std::equality_comparable<R> && requires(R& r, void* p, std::size_t bytes, std::size_t alignment) {
      { r.allocate(bytes, alignment) } -> std::same_as<void*>;
      { r.deallocate(p, bytes, alignment) } -> std::same_as<void>;
    };
template <typename R>
concept async_resource =
    requires(R& r, void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) {
      { r.allocate_async(bytes, alignment, stream) } -> std::same_as<void*>;
      { r.deallocate_async(p, bytes, alignment, stream) } -> std::same_as<void>;
    };

}  // namespace before_3_1

template <typename R, typename Property>
concept has_property = requires(const R& r, Property property) { get_property(r, property); };

template <typename R, typename... Properties>
concept synchronous_resource_with = synchronous_resource<R> && (has_property<R, Properties> && ...);
template <typename R, typename... Properties>
concept resource_with = resource<R> && (has_property<R, Properties> && ...);

/// Whether cuda::mr::any_resource accepts an R: it must be copyable and comparable, and is stored in place only if its move
/// cannot throw.
template <typename R>
concept can_be_kept = std::copyable<R> && std::equality_comparable<R> &&
                      std::is_nothrow_move_constructible_v<R> && std::is_nothrow_destructible_v<R>;

/// Like cuda::mr::any_resource: owns a resource of any type, copies it with itself, and is a resource.
template <typename... Properties>
class any_resource {
 public:
  template <typename R>
    requires(!std::same_as<R, any_resource> && resource_with<R, Properties...> && can_be_kept<R>)
  any_resource(R kept) : kept_(std::make_unique<holder<R>>(std::move(kept))) {}
  any_resource(const any_resource& other) : kept_(other.kept_->copy()) {}
  any_resource(any_resource&&) noexcept = default;
  any_resource& operator=(any_resource other) noexcept { return kept_.swap(other.kept_), *this; }
  ~any_resource() = default;

  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return kept_->allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    kept_->deallocate_sync(p, bytes, alignment);
  }
  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return kept_->allocate(stream, bytes, alignment);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    kept_->deallocate(stream, p, bytes, alignment);
  }
  friend bool operator==(const any_resource& a, const any_resource& b) { return a.kept_->is_equal(*b.kept_); }

 private:
  struct base {
    virtual ~base() = default;
    virtual std::unique_ptr<base> copy() const = 0;
    virtual bool is_equal(const base&) const = 0;
    virtual void* allocate_sync(std::size_t, std::size_t) = 0;
    virtual void deallocate_sync(void*, std::size_t, std::size_t) noexcept = 0;
    virtual void* allocate(stream_ref, std::size_t, std::size_t) = 0;
    virtual void deallocate(stream_ref, void*, std::size_t, std::size_t) noexcept = 0;
  };
  template <typename R>
  struct holder final : base {
    explicit holder(R given) : kept(std::move(given)) {}
    std::unique_ptr<base> copy() const override { return std::make_unique<holder>(kept); }
    bool is_equal(const base& other) const override {
      return typeid(other) == typeid(holder) && static_cast<const holder&>(other).kept == kept;
    }
    void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
      return kept.allocate_sync(bytes, alignment);
    }
    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept override {
      kept.deallocate_sync(p, bytes, alignment);
    }
    void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
      return kept.allocate(stream, bytes, alignment);
    }
    void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept override {
      kept.deallocate(stream, p, bytes, alignment);
    }
    R kept;
  };

  std::unique_ptr<base> kept_;
};

/// Like cuda::mr::resource_ref: refers to a resource of any type.
template <typename... Properties>
class resource_ref {
 public:
  template <typename R>
    requires(!std::same_as<R, resource_ref> && resource_with<R, Properties...>)
  resource_ref(R& to) noexcept
      : to_(&to),
        allocate_([](void* r, stream_ref s, std::size_t bytes, std::size_t alignment) {
          return static_cast<R*>(r)->allocate(s, bytes, alignment);
        }),
        deallocate_([](void* r, stream_ref s, void* p, std::size_t bytes, std::size_t alignment) {
          static_cast<R*>(r)->deallocate(s, p, bytes, alignment);
        }) {}
  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return allocate_(to_, stream, bytes, alignment);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    deallocate_(to_, stream, p, bytes, alignment);
  }

 private:
  void* to_;
  void* (*allocate_)(void*, stream_ref, std::size_t, std::size_t);
  void (*deallocate_)(void*, stream_ref, void*, std::size_t, std::size_t);
};

}  // namespace cccl_stand_ins
