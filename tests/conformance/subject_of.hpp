// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/recording.hpp>

#include "extensions.hpp"
#include "model.hpp"
#include "stands.hpp"

namespace conformance {

/// Sets numbers of policies, if the recipe makes them tunable.
template <typename Settings>
void tune(Settings& s, unsigned number) {
  const auto put = [](auto& to, auto value) {
    if constexpr (std::assignable_from<decltype(to), decltype(value)>) to = value;
  };
  const std::size_t bytes = number % 2 == 0 ? tessera::unlimited : std::size_t{32} << 20;
  if constexpr (requires { s.split.max; }) put(s.split.max, bytes);
  if constexpr (requires { s.split.slack; }) put(s.split.slack, (std::size_t{number} + 1) << 20);
  if constexpr (requires { s.eviction.threshold; }) put(s.eviction.threshold, bytes);
  if constexpr (requires { s.eviction.at_free; }) put(s.eviction.at_free, number % 2 == 0);
  if constexpr (requires { s.eviction.before_growth; }) put(s.eviction.before_growth, number / 2 == 0);
  if constexpr (requires { s.eviction.threshold.get().billionths; })
    put(s.eviction.threshold, number % 2 == 0 ? tessera::fraction{} : tessera::percent(60));
  if constexpr (requires { s.streams.threshold; }) put(s.streams.threshold, std::size_t{number * 4});
  if constexpr (requires { s.streams.opportunistic; }) put(s.streams.opportunistic, number % 2 == 0);
  if constexpr (requires { s.streams.insert_dependencies; })
    put(s.streams.insert_dependencies, number / 2 == 0);
  if constexpr (requires { s.rounding.threshold; }) put(s.rounding.threshold, bytes);
  if constexpr (requires { s.growth.peak_parts; }) put(s.growth.peak_parts, std::size_t{16} << number);
}
inline constexpr unsigned tunings = 4;

/// Settings as texts. Each system rejects those of other systems.
inline constexpr std::string_view texts[tunings] = {
    "", "max_split_size_mb:32", "garbage_collection_threshold:0.6", "FLAGS_free_idle_chunk=1"};

/// An allocator of this type on its stand. inner() returns the wrapped allocator.
template <typename Pool>
class subject_of final : public subject {
 public:
  template <typename Build>
  subject_of(std::unique_ptr<stand> on, Build build) : on_(std::move(on)), pool_(build()) {}

  block allocate(std::size_t bytes, tessera::stream_id stream, bool by_handle) override {
    if constexpr (requires { pool_->allocate_by_handle(bytes, stream); }) {
      if (by_handle) {
        const tessera::block_handle known = pool_->allocate_by_handle(bytes, stream);
        return {known.data(), known};
      }
    }
    return {pool_->try_allocate(bytes, stream), {}};
  }
  void free(const block& b) override {
    if constexpr (requires { pool_->deallocate(b.known); }) {
      if (b.known) return pool_->deallocate(b.known);
    }
    pool_->deallocate(b.address);
  }
  void free_sized(const block& b, std::size_t bytes) override {
    b.known ? free(b) : pool_->deallocate(b.address, bytes);
  }
  bool record(const block& b, tessera::stream_id stream) override {
    if constexpr (requires { pool_->record_stream(b.known, stream); }) {
      if (b.known) return pool_->record_stream(b.known, stream);
    }
    return pool_->record_stream(b.address, stream);
  }
  void trim(std::size_t keep) override {
    if constexpr (requires { pool_->trim_without_waiting(keep); }) pool_->trim_without_waiting(keep);
    pool_->trim(keep);
  }
  tessera::usage current_usage() override { return front().current_usage(); }
  tessera::pool_statistics counted() override {
    const auto told = front().statistics();
    if constexpr (requires { told.all; }) {
      return told.all;
    } else {
      return told;
    }
  }
  const char* audit() override { return pool_->audit(); }
  std::optional<tessera::trace::pool_outcome> change_pool(const tessera::trace::event& e) override {
    if constexpr (tessera::detail::offers<Pool, tessera::extension::private_pools>) return pools_.run(e);
    return {};
  }
  std::optional<tessera::extension::sleep_result> change_sleep(const operation& o) override {
    if constexpr (tessera::can_sleep<Pool>) {
      // A recipe that is chosen at run time may be one that cannot sleep.
      if constexpr (requires { pool_->settings().expandable_segments; }) {
        if (!pool_->settings().expandable_segments) return {};
      } else if constexpr (requires { pool_->settings(); }) {
        return {};
      }
      if (o.amount == wake_all) return sleep_mode_of(*pool_).wake();
      const tessera::pool_id pool = o.id != 0 ? pools_.pool_of(o.id) : tessera::pool_id{};
      if (o.id != 0 && pool == tessera::pool_id{}) return {};
      if (o.amount == wake_one) return sleep_mode_of(*pool_).wake(pool);
      constexpr bool copies = tessera::provider::copying_provider<tessera::detail::device_of<Pool>>;
      return sleep_mode_of(*pool_).sleep(pool, copies && o.amount == sleep_and_save
                                                   ? tessera::extension::sleep_contents::save
                                                   : tessera::extension::sleep_contents::discard);
    }
    return {};
  }
  std::uint64_t pool_of(const block& b, unsigned pools) override {
    if constexpr (tessera::detail::offers<Pool, tessera::extension::private_pools>) {
      const tessera::pool_id found = tessera::observe::segment_of(*pool_, b.address).private_pool;
      for (std::uint64_t number = 1; number <= pools; ++number) {
        if (found != tessera::pool_id{} && pools_.pool_of(number) == found) return number;
      }
    }
    return 0;
  }
  void retune(unsigned number) override {
    if constexpr (requires { reached().change(texts[number]); }) {
      (void)reached().change(texts[number]);
    } else {
      reached().visit_policies([number](auto& s) { tune(s, number); });
    }
  }
  std::string end() override {
    pool_.reset();
    return on_->left();
  }
  bool can_use(const void* p, std::size_t bytes) override {
    return on_device([=, this] { return on_->can_use(p, bytes); });
  }
  void hold_events(bool held) override {
    on_device([=, this] { on_->hold_events(held); });
  }
  std::uint64_t waits() override {
    return on_device([this] { return on_->waits(); });
  }
  tessera::detail::simulated_calls* calls() override { return on_->calls(); }

 private:
  [[nodiscard]] auto& reached() {
    if constexpr (requires { pool_->inner(); }) {
      return pool_->inner();
    } else {
      return *pool_;
    }
  }
  [[nodiscard]] auto& front() {
    if constexpr (requires { reached().front(0); }) {
      return reached().front(0);
    } else {
      return reached();
    }
  }
  /// Only while no other thread uses the device.
  template <typename F>
  decltype(auto) on_device(F f) {
    return front().visit_provider([&f](auto&) -> decltype(auto) { return f(); });
  }

  std::unique_ptr<stand> on_;
  std::unique_ptr<Pool> pool_;
  tessera::trace::pool_operations<Pool> pools_{*pool_};
};

/// The additional rules that one allocator of a recipe keeps.
template <typename Recipe>
constexpr extra_rules rules_of() {
  using streams = typename Recipe::streams;
  constexpr bool by_stream =
      std::is_same_v<decltype(std::declval<streams>().reuse_key({})), tessera::stream_id>;
  return {.holds_recorded = streams::uses_events,
          .holds_own = streams{}.needs_event(tessera::stream_id{1}, tessera::stream_id{1}),
          .keeps_apart = by_stream && !streams::reuses_across_streams,
          .newest_scope_decides = requires {requires Recipe::pools::newest_scope_decides;
}
};  // namespace conformance
}

}  // namespace conformance
