// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace tessera::inline v0_1::detail {

/// Refers to a function object of any type, or to a call of an object of any type. Either must outlive it.
///
/// A class whose members are such calls hides the type of an object. It then needs neither a table of functions nor
/// functions that forward.
///
///     auto& device = allocator.provider();
///     const tessera::detail::function_ref<std::size_t() noexcept> capacity(device, [](auto& d) { return d.capacity(); });
///     const bool is_large = capacity() > 1000;
///
///   Cost:  a call is one indirect call; nothing is allocated
template <typename Signature>
class function_ref;
template <typename Result, typename... Argument, bool IsNoexcept>
class function_ref<Result(Argument...) noexcept(IsNoexcept)> {
 public:
  /// Refers to nothing, and must not be called.
  constexpr function_ref() noexcept = default;
  /// Refers to a function object.
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, function_ref>)
  constexpr explicit(false) function_ref(F&& f) noexcept
      : function_ref(f, [](auto& to, Argument... given) -> decltype(auto) {
          return to(static_cast<Argument&&>(given)...);
        }) {}
  /// Refers to a call of an object. `Call` is a lambda without captures, which gets the object and the arguments.
  template <typename Object, typename Call>
  constexpr function_ref(Object& object, Call) noexcept
      : object_(const_cast<std::remove_const_t<Object>*>(&object)),
        call_([](void* to, Argument... given) noexcept(IsNoexcept) -> Result {
          return static_cast<Result>(Call{}(*static_cast<Object*>(to), static_cast<Argument&&>(given)...));
        }) {}

  constexpr Result operator()(Argument... given) const noexcept(IsNoexcept) {
    return call_(object_, static_cast<Argument&&>(given)...);
  }
  /// Whether it refers to anything.
  constexpr explicit operator bool() const noexcept { return call_ != nullptr; }
  bool operator==(const function_ref&) const = default;

 private:
  void* object_ = nullptr;
  Result (*call_)(void*, Argument...) noexcept(IsNoexcept) = nullptr;
};

}  // namespace tessera::inline v0_1::detail
