// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/tessera.hpp>

#include "gpu.hpp"
#include "history.hpp"
#include "torch_version.hpp"

namespace torch_cuda {

/// The settings that PyTorch can change at any time, without telling its allocator. They are compared at each request.
class followed_settings {
 public:
  /// Whether the settings differ from those of the last note(), as far as a request of these bytes can tell.
  [[nodiscard]] bool differ(std::size_t bytes) const {
    const auto now = torch_settings::numbers();
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] != numbers_[i]) return true;
    }
    return torch_settings::threshold() != threshold_ ||
           torch_settings::divisions(bytes) != divisions_[slot_of(bytes)];
  }
  /// Notes the settings, and returns their text.
  [[nodiscard]] std::string note() {
    const auto now = torch_settings::numbers();
    for (std::size_t i = 0; i < now.size(); ++i) numbers_[i] = now[i];
    threshold_ = torch_settings::threshold();
    for (std::size_t slot = 0; slot < slots; ++slot)
      divisions_[slot] = torch_settings::divisions(std::size_t{1} << (slot + first_bit));
    return torch_settings::text();
  }

 private:
  // PyTorch has one number of divisions for each power of two from 1 MiB to 64 GiB, and for all sizes below and above.
  static constexpr std::size_t first_bit = 20, slots = 17;
  [[nodiscard]] static std::size_t slot_of(std::size_t bytes) noexcept {
    const auto bit = static_cast<std::size_t>(std::bit_width(bytes | 1)) - 1;
    return bit < first_bit ? 0 : bit - first_bit < slots ? bit - first_bit : slots - 1;
  }

  std::array<std::atomic<std::size_t>, torch_settings::numbers_count> numbers_{};
  std::atomic<double> threshold_{0};
  std::array<std::atomic<std::size_t>, slots> divisions_{};
};

/// PyTorch's settings, and one of ours.
struct settings : tessera::config::pytorch_settings {
  bool stitches = false;  ///< TESSERA_RECIPE=stitched: chooses `stitched`, whatever the other settings say
  bool operator==(const settings&) const = default;
  [[nodiscard]] bool uses_ranges() const noexcept { return stitches || expandable_segments; }
};
/// The recipe `stitched`, for settings.
struct stitched {
  using base = tessera::recipe::stitched;
  using rounding = base::rounding;
  using pools = base::pools;
  using streams = base::streams;
  using split = base::split;
  using pages = base::pages;
  using growth = base::growth;
  using eviction = base::eviction;
  using recovery = base::recovery;
  /// It reads none of the settings.
  [[nodiscard]] static constexpr tessera::recipe::policies<stitched> configured(
      const tessera::config::pytorch_settings&) noexcept {
    return {};
  }
};
/// The recipes that the settings choose from.
struct recipes {
  using settings = torch_cuda::settings;
  using of_pytorch = recipes_of_torch;
  using grammar = of_pytorch::grammar;
  static constexpr std::size_t count = of_pytorch::count + 1;
  template <std::size_t Index>
  struct at {
    using type = stitched;
  };
  template <std::size_t Index>
    requires(Index < of_pytorch::count)
  struct at<Index> {
    using type = of_pytorch::recipe_at<Index>;
  };
  template <std::size_t Index>
  using recipe_at = typename at<Index>::type;
  [[nodiscard]] static constexpr std::size_t index_for(const settings& wanted) noexcept {
    return wanted.stitches ? of_pytorch::count : of_pytorch::index_for(wanted);
  }
};

/// The allocators of one GPU. PyTorch may change between expandable segments and others at any time, and memory that
/// is in use stays where it is. So each recipe has an allocator, which is made when the settings first choose it. All share the
/// device and one limit; if one can get no memory, the others empty their caches.
class gpu_allocators {
  using family = recipes;

 public:
  using watch = tessera::extension::observer<reports_to>;
  using allocator =
      tessera::configured<family,
                          tessera::concurrent::locked<tessera::caching_allocator<
                              tessera::recipe::pytorch<>, gpu, tessera::extension::private_pools,
                              tessera::extension::checkpoints, tessera::extension::sleep_mode, watch>>>;
  /// An allocator that follows a plan, and serves all other requests by the one inside.
  using planned_allocator = tessera::plan::planned<allocator>;
  static constexpr std::size_t kinds = family::count;

  /// The first allocator that is made follows `plan`, which may be null and must outlive this object.
  gpu_allocators(const tessera::provider::cuda_driver& driver, int device, history& reports,
                 const tessera::plan::memory_plan* plan)
      : driver_(driver), device_(device), reports_(&reports), plan_(plan) {}
  gpu_allocators& operator=(gpu_allocators&&) = delete;
  ~gpu_allocators() {
    for (auto& a : made_) delete a.load();
    delete planned_.load();
  }

  /// Calls f(allocator) with the one that serves requests now.
  template <typename F>
  decltype(auto) with_now(F f) {
    if (allocator* const one = now_.load(std::memory_order_acquire)) [[likely]]
      return f(*one);
    return f(*planned_.load(std::memory_order_acquire));
  }
  /// The allocator that follows a plan, or null.
  [[nodiscard]] planned_allocator* planned() noexcept { return planned_.load(std::memory_order_acquire); }
  [[nodiscard]] static const settings& settings_of(allocator& in) noexcept { return in.settings(); }
  [[nodiscard]] static const settings& settings_of(planned_allocator& in) noexcept {
    return in.inner().settings();
  }
  template <typename F>
  void for_each(F f) {
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      if (allocator* const one = made_[kind].load(std::memory_order_acquire)) f(*one, kind);
      planned_allocator* const follower = planned();
      if (follower != nullptr && kind == planned_kind_) f(*follower, kind);
    }
  }
  /// Lets the settings choose the allocator and its policies. Calls on_new(allocator, number) if it is made.
  ///   Requires:  one call at a time
  ///   Returns:   why not, if the settings cannot change
  template <typename F>
  [[nodiscard]] std::optional<tessera::config::setting_error> choose(settings wanted, F on_new) {
    const std::size_t kind = family::index_for(wanted);
    const bool follows_plan = planned() != nullptr && kind == planned_kind_;
    allocator* chosen = follows_plan ? &planned()->inner() : made_[kind].load();
    const auto prepare = [&](auto& made) {
      if (budget_.limit() != tessera::unlimited) limit(made, budget_.limit());
      for (const int peer : peers_) made.visit_provider([peer](gpu& device) { device.add_peer(peer); });
      on_new(made, kind);
    };
    const auto make_device = [&] {
      return gpu(driver_, device_, budget_, [this, kind] { return empty_all_but(kind); });
    };
    if (chosen == nullptr && plan_ != nullptr && planned() == nullptr) {
      auto made = std::make_unique<planned_allocator>(*plan_, wanted, make_device(), watch{{reports_}});
      prepare(*made);
      planned_kind_ = kind;
      planned_.store(made.release(), std::memory_order_release);
      now_.store(nullptr, std::memory_order_release);
      return {};
    }
    if (chosen == nullptr) {
      auto made = std::make_unique<allocator>(wanted, make_device(), watch{{reports_}});
      prepare(*made);
      chosen = made.release();
      made_[kind].store(chosen, std::memory_order_release);
    } else {
      // A setting that no policy of the recipe reads is refused. It stays as it was.
      while (const auto refused = chosen->change(wanted)) {
        settings before = chosen->settings();
        const auto unread = std::find_if(family::grammar::keys.begin(), family::grammar::keys.end(),
                                         [&](const auto& key) { return key.name == refused->key; });
        if (unread == family::grammar::keys.end() || unread->is_equal(before, wanted)) return refused;
        unread->swap(before, wanted);
      }
    }
    now_.store(follows_plan ? nullptr : chosen, std::memory_order_release);
    return {};
  }
  /// Limits the memory of all allocators together.
  void set_limit(std::size_t bytes) {
    budget_.set_limit(bytes);
    for_each([bytes](auto& in, std::size_t) { limit(in, bytes); });
  }
  /// Lets another device access the memory of ranges.
  ///   Requires:  one call at a time, and none of choose()
  ///   Returns:   false if the driver refused it for memory that is mapped now
  bool add_peer(int peer) {
    if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return true;
    peers_.push_back(peer);
    bool works = true;
    for_each([&](auto& in, std::size_t) {
      in.visit_provider([peer](gpu& device) { device.add_peer(peer); });
      std::map<std::uintptr_t, std::size_t> mapped;
      tessera::observe::for_each_block(in, [&](const tessera::segment_view& s, const tessera::block_view&) {
        if (s.in_range) mapped[s.address] = s.bytes;
      });
      in.visit_provider([&](gpu& device) {
        for (const auto& [address, bytes] : mapped)
          works = device.grant_to(peer, reinterpret_cast<void*>(address), bytes) && works;
      });
    });
    return works;
  }
  ///   Requires:  no call of add_peer()
  [[nodiscard]] const std::vector<int>& peers() const noexcept { return peers_; }
  [[nodiscard]] std::size_t peak_reserved() const noexcept { return budget_.peak(); }
  void reset_peak() noexcept { budget_.reset_peak(); }

 private:
  static void limit(auto& in, std::size_t bytes) {
    bool had_limit = false;
    in.visit_policies([&](auto& policies) {
      had_limit = tessera::memory_limit(policies.growth.limit) != tessera::memory_limit{};
      policies.growth.limit = tessera::memory_limit(bytes);
    });
    if (!had_limit) in.for_each_allocator([](auto& one) { one.reset_decay(); });
  }
  bool empty_all_but(std::size_t except) noexcept {
    bool any = false;
    for_each([&](auto& in, std::size_t kind) {
      if (kind == except) return;
      const std::size_t before = in.current_usage().reserved;
      in.trim();
      any = any || in.current_usage().reserved < before;
    });
    return any;
  }

  tessera::provider::cuda_driver driver_;
  int device_;
  history* reports_;
  const tessera::plan::memory_plan* plan_;
  memory_budget budget_;
  std::vector<int> peers_;
  std::array<std::atomic<allocator*>, kinds> made_{};
  std::atomic<allocator*> now_{nullptr};  // null if the allocator with the plan serves requests
  std::atomic<planned_allocator*> planned_{nullptr};
  std::size_t planned_kind_ = 0;  // the number of that allocator
};

}  // namespace torch_cuda
