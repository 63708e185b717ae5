// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

#include <tessera/core/page.hpp>
#include <tessera/detail/pagemap.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A provider whose segments stand in a directory, under one owner, as long as they are given; and what is mapped, as
/// long as it is.
///   Requires:  the provider and the directory outlive it
template <typename Device>
class registered : public forwarding<Device> {
 public:
  static constexpr bool is_thread_safe = tessera::is_thread_safe<Device>;

  registered(Device& to, pagemap& in, pagemap::owner_number owner) noexcept
      : forwarding<Device>(to), in_(&in), owner_(owner) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    void* const given = this->to().acquire(bytes, kind...);
    if (given == nullptr || in_->add(given, bytes, owner_)) return given;
    (void)this->to().release(given, bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    // Once the device has it, it may give the addresses to another owner.
    pagemap::taken leaving = in_->take_out(p);
    const bool gone = this->to().release(p, bytes);
    gone ? in_->forget(std::move(leaving)) : in_->put_back(std::move(leaving));
    return gone;
  }

  bool map(void* p, std::size_t bytes, const auto& made) noexcept
    requires requires(Device& d) { d.map(p, bytes, made); }
  {
    if (!in_->add(p, bytes, owner_)) return false;
    if (this->to().map(p, bytes, made)) return true;
    in_->forget(in_->take_out(p));
    return false;
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires requires(Device& d) { d.unmap(p, bytes); }
  {
    pagemap::taken leaving = in_->take_out(p);
    const bool gone = this->to().unmap(p, bytes);
    gone ? in_->forget(std::move(leaving)) : in_->put_back(std::move(leaving));
    return gone;
  }

 private:
  pagemap* in_;
  pagemap::owner_number owner_;
};

}  // namespace tessera
