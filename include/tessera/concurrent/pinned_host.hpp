// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/config/torch_npu.hpp>
#include <tessera/configured.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/detail/by_visit.hpp>
#include <tessera/observe/host_statistics.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/provider/provider_ref.hpp>
#include <tessera/provider/registering.hpp>
#include <tessera/recipe/pinned.hpp>

namespace tessera {

/// Says to adaptor/configured.hpp that threads share an allocator, with one of its own that looks after events where the
/// settings ask for that.
struct in_background {
  template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
  using allocator = retiring<Recipe, Provider, Observer, Counting>;
  [[nodiscard]] static constexpr background configured(const auto& chosen) noexcept {
    return {.is_used = chosen.pinned_use_background_threads};
  }
};

/// The key by which pinned memory is registered with the device; empty where it is not.
[[nodiscard]] constexpr std::string_view registering_key(const config::pytorch_settings& chosen) noexcept {
  return chosen.pinned_use_host_register ? "pinned_use_cuda_host_register" : "";
}
[[nodiscard]] constexpr std::string_view registering_key(const config::torch_npu_settings& chosen) noexcept {
  return chosen.pinned_mem_register ? "pinned_mem_register" : "";
}

/// An allocator of pinned memory over a provider's, and all that it is built upon, which so ends later.
template <typename Family, device_provider Memory>
struct pinned_over {
  Memory memory;
  reserved_region<Memory> region;
  configured<Family, reserving<Memory, true>, in_background> pool;

  pinned_over(const typename Family::settings& chosen, auto&... from)
      : memory(from...),
        region(memory, chosen.pinned_reserve_segment_size),
        pool(chosen, reserving<Memory, true>(region)) {}
};

/// The pinned memory of a program, for several threads, as all the settings for it say: which recipe decides and with which
/// numbers, whether a thread looks after events, whether segments are cut off a large one, and whether they are registered
/// with a device.
///
/// `Family` is pytorch_pinned_family or torch_npu_pinned_family. `Host` is where memory comes from; `Device`, which may be
/// left out, is what it is registered with if the settings say so. Then the streams are those of the device, else those of
/// the host, and what the host gives need not be pinned.
///
///     #include <tessera/provider/host_pinned.hpp>
///     const tessera::config::pytorch_settings said{.pinned_use_background_threads = true};
///     tessera::pinned_host<tessera::pytorch_pinned_family, tessera::host_pinned> pinned(said, tessera::host_pinned{});
///     void* batch = pinned.allocate(4_MiB);
///     if (!pinned.record_stream(batch, tessera::stream_id{})) return;  // a copy on this stream reads it
///     pinned.deallocate(batch);                                        // reused once the copy is done
template <typename Family, device_provider Host, registering_provider... Device>
  requires(sizeof...(Device) <= 1)
class pinned_host : public by_visit<pinned_host<Family, Host, Device...>> {
 public:
  using settings_type = typename Family::settings;
  static constexpr bool is_host_visible = tessera::is_host_visible<Host>;

  ///   Requires:  the device outlives it
  ///   Throws:    config::bad_setting where registering is asked for and there is no device, or the host has no virtual
  ///              memory and the settings need it
  explicit pinned_host(const settings_type& chosen, Host host, Device&... device) : host_(std::move(host)) {
    const std::string_view key = registering_key(chosen);
    if (key.empty()) {
      pool_.template emplace<1>(chosen, host_);
    } else if constexpr (sizeof...(Device) > 0) {
      pool_.template emplace<2>(chosen, host_, device...);
    } else {
      raise(config::bad_setting(Family::grammar::name, {key, "True", "there is no device to register with", 0,
                                                        config::error_code::excluded_by, "the provider"}));
    }
  }
  pinned_host(const pinned_host&) = delete;
  pinned_host& operator=(const pinned_host&) = delete;

  [[nodiscard]] host_statistics statistics() const noexcept {
    return visit([]<typename Recipe, typename... Rest>(const retiring<Recipe, Rest...>& pool) {
      return host_statistics_of<Recipe>(pool.statistics());
    });
  }
  [[nodiscard]] const settings_type& settings() const noexcept {
    return in_use(pool_, [](const auto& pool) -> const settings_type& { return pool.settings(); });
  }
  /// As in configured: what no policy reads, such as how segments are taken, cannot change any more.
  [[nodiscard]] std::optional<config::setting_error> change(const settings_type& wanted) noexcept {
    return in_use(pool_, [&wanted](auto& pool) { return pool.change(wanted); });
  }
  /// Calls f with the host, which nobody else calls meanwhile unless it is thread-safe; f must not use the allocator.
  template <typename F>
  decltype(auto) with_host(F f) {
    return this->with_device([this, &f](auto&) -> decltype(auto) { return f(host_); });
  }

  /// Calls f with the allocator that was chosen, a `retiring`; f must return the same type for each.
  template <typename F>
  decltype(auto) visit(F f) {
    return in_use(pool_, [&f](auto& pool) -> decltype(auto) { return pool.visit(f); });
  }
  template <typename F>
  decltype(auto) visit(F f) const {
    return in_use(pool_, [&f](const auto& pool) -> decltype(auto) { return pool.visit(f); });
  }

 private:
  template <typename Pools, typename F>
  static decltype(auto) in_use(Pools& pools, F f) {
    using result = decltype(f(std::get<1>(pools).pool));
    return std::visit(
        [&f](auto& in) -> result {
          if constexpr (requires { in.pool; }) {
            return f(in.pool);
          } else {
            fatal("pinned_host: there is no allocator");
          }
        },
        pools);
  }

  Host host_;
  std::variant<std::monostate, pinned_over<Family, provider_ref<Host>>,
               pinned_over<Family, registering<Host, Device>>...>
      pool_;
};

/// The same under the settings in the variables that the family's system reads.
///   Throws:  config::bad_setting also where a setting is refused
template <typename Family, device_provider Host, registering_provider... Device>
[[nodiscard]] pinned_host<Family, Host, Device...> pinned_host_from_environment(Host host,
                                                                                Device&... device) {
  return pinned_host<Family, Host, Device...>(settings_from_environment<Family>(), std::move(host),
                                              device...);
}

}  // namespace tessera
