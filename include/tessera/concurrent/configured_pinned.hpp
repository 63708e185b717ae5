// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/config/torch_npu_conf.hpp>
#include <tessera/configured.hpp>
#include <tessera/observe/host_statistics.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/recipe/pinned.hpp>

namespace tessera::inline v0_1::detail {

/// The name of the setting that registers pinned memory with the device; empty if it is off.
[[nodiscard]] constexpr std::string_view registering_key(const config::pytorch::settings& settings) noexcept {
  return settings.pinned_use_host_register ? "pinned_use_cuda_host_register" : "";
}
[[nodiscard]] constexpr std::string_view registering_key(
    const config::torch_npu::settings& settings) noexcept {
  return settings.pinned_mem_register ? "pinned_mem_register" : "";
}

/// An allocator of pinned memory, with its provider and region, which outlive it.
template <typename Family, provider::device_provider Memory>
struct pinned_pool {
  Memory memory;
  detail::preallocated_region<Memory> region;
  using provider = provider::preallocating<Memory, true>;
  using plain = caching_allocator<typename Family::template recipe_at<0>, provider>;
  configured<Family, concurrent::background_reclaiming<plain>> allocator;

  pinned_pool(const typename Family::settings& settings, auto&... from)
      : memory(from...),
        region(memory, settings.pinned_reserve_segment_size),
        allocator(settings, provider(region)) {}
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::concurrent {

/// An allocator of pinned host memory for several threads, configured by the settings of PyTorch or
/// torch_npu. The settings choose the recipe and its numbers, background threads, a large reserved segment,
/// and registration with a device.
///
/// Choose it to reuse these settings. `Family` is pytorch_family::pinned_family or
/// torch_npu_family::pinned_family. `Host` provides the memory. `Device` is optional: it registers the memory
/// if the settings require it. Then the streams are those of `Device`, and the memory of `Host` need not be
/// pinned.
///
///     #include <tessera/provider/host_pinned.hpp>
///     const tessera::config::pytorch::settings settings{.pinned_use_background_threads = true};
///     using family = tessera::recipe::pytorch_family::pinned_family;
///     tessera::concurrent::configured_pinned<family, tessera::provider::host_pinned> pinned(settings, tessera::provider::host_pinned{});
///     void* batch = pinned.allocate(4_MiB);
///     if (!pinned.record_stream(batch, tessera::stream_id{})) return;  // a copy on this stream reads it
///     pinned.deallocate(batch);                                        // reused once the copy is done
template <typename Family, provider::device_provider Host, provider::registering_provider... Device>
  requires(sizeof...(Device) <= 1)
class configured_pinned : public allocator_adaptor<configured_pinned<Family, Host, Device...>> {
  using adaptor_type = allocator_adaptor<configured_pinned>;

 public:
  /// The settings of the family's system, such as config::pytorch::settings.
  using settings_type = typename Family::settings;
  /// Whether the program may read and write the memory, as the host says.
  static constexpr bool is_host_visible = tessera::detail::is_host_visible<Host>;

  ///   Requires:  the device outlives it
  ///   Throws:    config::bad_setting if the settings register memory and there is no device, or need virtual
  ///              memory and the host has none
  explicit configured_pinned(const settings_type& settings, Host host, Device&... device)
      : host_(std::move(host)) {
    const std::string_view key = detail::registering_key(settings);
    if (key.empty()) {
      any_.template emplace<1>(settings, host_);
    } else if constexpr (sizeof...(Device) > 0) {
      any_.template emplace<2>(settings, host_, device...);
    } else {
      detail::raise(config::bad_setting(
          Family::grammar::name,
          {key, "True", "there is no device to register with", config::setting_error::nowhere,
           config::setting_error::error_code::excluded_by, "the provider"}));
    }
  }
  /// Reads the settings from the environment variables that the family's system reads.
  ///   Throws:  config::bad_setting if a setting is refused, or as the constructor
  [[nodiscard]] static configured_pinned from_environment(Host host, Device&... device) {
    return configured_pinned(detail::settings_from_environment<Family>(), std::move(host), device...);
  }
  configured_pinned& operator=(configured_pinned&&) = delete;

  [[nodiscard]] observe::host_statistics statistics() const noexcept {
    return visit([]<typename Allocator>(const Allocator& allocator) {
      return observe::host_statistics::from<typename Allocator::recipe_type>(allocator.statistics());
    });
  }
  /// The settings in force: those of the constructor, or of the last change() that worked.
  [[nodiscard]] const settings_type& settings() const noexcept {
    return enter(*this, [](const auto& allocator) -> const settings_type& { return allocator.settings(); });
  }
  /// Replaces the settings like configured::change. Settings that no policy reads, such as the reserved
  /// segment, cannot change any more.
  [[nodiscard]] std::optional<config::setting_error> change(const settings_type& wanted) noexcept {
    return enter(*this, [&wanted](auto& allocator) { return allocator.change(wanted); });
  }
  /// As configured::setting_without_effect. Settings for the memory of the device have no effect here, and neither has a
  /// reserved segment that the host refused at the first request.
  [[nodiscard]] std::optional<config::setting_error> setting_without_effect() const noexcept {
    using error = config::setting_error;
    return detail::visit_holder(any_, [](const auto& in) -> std::optional<error> {
      if (in.region.why_missing())
        return error{"pinned_reserve_segment_size_mb",
                     {},
                     "the host refused the segment",
                     error::nowhere,
                     error::error_code::without_effect};
      return in.allocator.setting_without_effect({"configured_pinned"});
    });
  }
  /// Calls f(host). No other thread calls the host meanwhile unless it is thread-safe.
  ///   Requires:  f does not use the allocator
  template <typename F>
  decltype(auto) with_host(F f) {
    return this->visit_provider([this, &f](auto&) -> decltype(auto) { return f(host_); });
  }

  /// Calls f(allocator) with the chosen background_reclaiming. `f` must return the same type for each recipe
  /// of the family.
  template <typename F>
  decltype(auto) visit(F f) {
    return enter(*this, [&f](auto& allocator) -> decltype(auto) { return allocator.visit(f); });
  }
  template <typename F>
  decltype(auto) visit(F f) const {
    return enter(*this, [&f](const auto& allocator) -> decltype(auto) { return allocator.visit(f); });
  }

 private:
  friend adaptor_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return detail::visit_holder(me.any_, [&f](auto& in) -> decltype(auto) { return f(in.allocator); });
  }

  Host host_;
  std::variant<std::monostate, detail::pinned_pool<Family, provider::provider_ref<Host>>,
               detail::pinned_pool<Family, provider::host_registering<Host, Device>>...>
      any_;
};

}  // namespace tessera::inline v0_1::concurrent
