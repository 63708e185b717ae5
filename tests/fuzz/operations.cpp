// SPDX-License-Identifier: Apache-2.0
// Operations on an allocator, with extreme sizes and settings. The first bytes choose recipe, adaptor and
// device; each further byte is an operation. A model checks the results.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/configured.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "../conformance/ownership.hpp"
#include "fuzz.hpp"

namespace {

using namespace tessera;
using fuzz::expect;

/// A number of bytes: small, usual, or close to an overflow.
std::size_t size_in(fuzz::input& in) {
  constexpr std::array<std::size_t, 12> extremes{0,
                                                 1_MiB,
                                                 2_MiB,
                                                 10_MiB,
                                                 20_MiB,
                                                 1_GiB,
                                                 80_GiB,
                                                 max_request / 2,
                                                 max_request,
                                                 std::size_t{1} << 61,
                                                 std::size_t{1} << 63,
                                                 unlimited};
  const std::size_t what = in.below(8);
  if (what < 2) return static_cast<std::size_t>(in.number(1));
  if (what == 2) return static_cast<std::size_t>(in.number(2));
  if (what < 5) return static_cast<std::size_t>(in.number(1)) << 10;
  if (what == 5) return static_cast<std::size_t>(in.number(1)) << 18;
  if (what == 6) return static_cast<std::size_t>(in.number(8));
  return extremes[in.below(extremes.size())] + static_cast<std::size_t>(in.number(1)) - 128;
}
stream_id stream_in(fuzz::input& in) {
  constexpr std::array<std::uint64_t, 6> handles{0, 1, 2, 3, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  return stream_id{handles[in.below(handles.size())]};
}

/// Sets a number of a policy, if the policy has it, to an extreme value. Sizes of device memory are multiples
/// of min_alignment that can be requested.
template <typename Policies>
void set_extreme(Policies& chosen, fuzz::input& in) {
  const std::size_t bytes = size_in(in);
  const std::size_t taken =
      std::clamp(bytes & max_request & ~(min_alignment - 1), min_alignment, max_request);
  const fraction share{in.number(4)};
  switch (in.below(8)) {
    case 0:
      if constexpr (requires { chosen.split.max = bytes; }) chosen.split.max = bytes;
      break;
    case 1:
      if constexpr (requires { chosen.split.slack = bytes; }) chosen.split.slack = bytes;
      break;
    case 2:
      if constexpr (requires { chosen.growth.large = taken; }) chosen.growth.large = taken;
      break;
    case 3:
      if constexpr (requires { chosen.growth.limit = memory_limit(bytes, share); })
        chosen.growth.limit = memory_limit(bytes, share);
      break;
    case 4:
      if constexpr (requires { chosen.eviction.threshold = share; }) chosen.eviction.threshold = share;
      break;
    case 5:
      if constexpr (requires { chosen.rounding.table = divisions::all(2); })
        chosen.rounding.table = divisions::all(std::uint32_t{1} << in.below(32));
      break;
    case 6:
      if constexpr (requires { chosen.growth.small_chunk = taken; }) chosen.growth.small_chunk = taken;
      break;
    default:
      if constexpr (requires { chosen.growth.peak_parts = bytes; }) chosen.growth.peak_parts = bytes;
  }
}

/// An allocator, and the blocks of its user.
template <typename Pool>
class user {
 public:
  user(Pool& pool, fuzz::input& in) : pool_(pool), in_(in) {}
  user(const user&) = delete;
  user& operator=(const user&) = delete;

  void run() {
    for (std::size_t steps = 0; !in_.at_end() && steps < 2000; ++steps) {
      step(in_.below(32));
      const usage now = pool_.current_usage();
      expect(now.allocated >= owned_.bytes() && now.requested >= owned_.bytes(), "what is held is live");
      expect(now.active + now.cached == now.reserved, "what is reserved is live, pending or cached");
      check();
    }
    on_device([](auto& device) { device.fail_every(0), device.fail_call(0), device.hold_events(false); });
    while (!held_.empty()) give_back(held_.size() - 1, false);
    pool_.trim();
    check();
    expect(pool_.current_usage().allocated == 0 && pool_.current_usage().pending() == 0,
           "what is given back is free");
  }

 private:
  struct block {
    void* address;
    std::size_t bytes;
  };

  void step(std::size_t what) {
    if (what < 11) return ask();
    if (what < 19) return held_.empty() ? void() : give_back(in_.below(held_.size()), what % 2 == 0);
    switch (what) {
      case 19:
      case 20:
        if (!held_.empty()) (void)pool_.record_stream(held_[in_.below(held_.size())].address, stream_in(in_));
        break;
      case 21: pool_.trim(size_in(in_)); break;
      case 22: on_device([n = in_.number(1)](auto& device) { device.fail_call(n); }); break;
      case 23: on_device([n = in_.number(1)](auto& device) { device.fail_every(n); }); break;
      case 24: on_device([n = in_.number(1)](auto& device) { device.hold_events(n % 2 != 0); }); break;
      case 25: on_device([n = size_in(in_)](auto& device) { device.advance(n); }); break;
      case 26:
        on_device([s = stream_in(in_), n = size_in(in_)](auto& device) { device.submit(s, n); });
        break;
      case 27: set(); break;
      case 28: give_back_what_is_not_held(); break;
      case 29: explain(); break;
      case 30: pool_.reset_peak_statistics(), pool_.reset_accumulated_statistics(); break;
      default:
        if (!called_back_) called_back_ = pool_.on_pressure(&user::relieve, this);
    }
  }

  void ask() {
    const std::size_t bytes = size_in(in_);
    const stream_id stream = stream_in(in_);
    void* const p = pool_.try_allocate(bytes, stream);
    if (p == nullptr) return;
    expect(bytes > 0 && bytes <= max_request, "only legal requests are served");
    expect(reinterpret_cast<std::uintptr_t>(p) % min_alignment == 0, "blocks are aligned");
    expect(owned_.claim(p, bytes), "blocks do not overlap");
    on_device([=](auto& device) { expect(device.can_use(p, bytes), "a block is made of memory"); });
    held_.push_back({p, bytes});
  }
  void give_back(std::size_t index, bool sized) {
    const block b = held_[index];
    held_[index] = held_.back();
    held_.pop_back();
    owned_.drop(b.address);
    sized ? pool_.deallocate(b.address, b.bytes) : pool_.deallocate(b.address);
  }
  /// Null, foreign and interior pointers, and freed blocks.
  void give_back_what_is_not_held() {
    std::uintptr_t address = static_cast<std::uintptr_t>(in_.number(8));
    const std::size_t offset = in_.below(200);
    if (offset != 0 && !held_.empty())
      address = reinterpret_cast<std::uintptr_t>(held_[in_.below(held_.size())].address) + offset;
    for (const block& b : held_) {
      if (reinterpret_cast<std::uintptr_t>(b.address) == address) return;
    }
    void* const p = reinterpret_cast<void*>(address);
    expect(!pool_.try_deallocate(p), "what is not held is not taken back");
    expect(!pool_.try_record_stream(p, stream_in(in_)), "no use is noted of what is not held");
  }
  void explain() {
    const std::size_t bytes = size_in(in_);
    const stream_id stream = stream_in(in_);
    expect(!std::string_view(pool_.make_out_of_memory(bytes, stream).what()).empty(), "a failure has a text");
    expect(!std::string_view(tessera::observe::explain(pool_, bytes, stream).text().c_str()).empty(),
           "so has its explanation");
  }
  void set() {
    if constexpr (requires { pool_.change(std::string_view()); }) {
      const std::size_t length = in_.below(64);
      (void)pool_.change(in_.text(length));
    } else if constexpr (requires { pool_.policies(); }) {
      set_extreme(pool_.policies(), in_);
    } else {
      pool_.visit_policies([this](auto& chosen) { set_extreme(chosen, in_); });
    }
  }
  /// Called if no cached block fits. Frees one block.
  static bool relieve(void* context) noexcept {
    user& self = *static_cast<user*>(context);
    if (self.held_.empty()) return false;
    self.give_back(0, false);
    return true;
  }

  template <typename F>
  void on_device(F f) {
    pool_.visit_provider([&f](auto& device) { f(device); });
  }
  void check() {
    const char* const broken = pool_.audit();
    expect(broken == nullptr, broken);
  }

  Pool& pool_;
  fuzz::input& in_;
  conformance::ownership owned_;
  std::vector<block> held_;
  bool called_back_ = false;
};

provider::simulated_device device_in(fuzz::input& in) {
  constexpr std::array<std::size_t, 8> capacities{80_GiB,    64_MiB, 200_MiB, 1_GiB, std::size_t{1} << 60,
                                                  unlimited, 2_MiB,  0};
  provider::simulated_device::options chosen{};
  chosen.capacity = capacities[in.below(capacities.size())];
  const std::size_t kinds = in.below(16);
  if (kinds % 4 == 1) chosen.granularity = 2_MiB, chosen.page_granularity = 4_KiB;
  if (kinds % 4 == 2) chosen.granularity = 64, chosen.page_granularity = 64_KiB;
  if (kinds % 4 == 3) chosen.granularity = 1_GiB, chosen.page_granularity = 1_GiB;
  if (kinds & 4) chosen.huge_budget = 32_MiB;
  if (kinds & 8) chosen.costs.acquire_per_mib = unlimited;
  return provider::simulated_device(chosen);
}

template <typename Pool>
void drive(fuzz::input& in) {
  Pool pool{device_in(in)};
  user<Pool>(pool, in).run();
}
template <typename Family>
void drive_configured(fuzz::input& in) {
  using settings = typename Family::settings;
  using pool_type = configured<Family, caching_allocator<recipe::pytorch<>, provider::simulated_device>>;
  settings chosen{};
  const std::size_t length = in.below(64);
  const auto parsed = config::parse<typename Family::grammar>(in.text(length));
  if (const settings* const given = std::get_if<settings>(&parsed)) chosen = *given;
  pool_type pool(chosen, device_in(in));
  user<pool_type>(pool, in).run();
}
template <typename Recipe>
using plain = caching_allocator<Recipe, provider::simulated_device>;

using eager =
    recipe::with<recipe::pytorch<>, policy::split_below<32_MiB>, policy::evict_idle_above<percent(60)>>;

constexpr std::array<void (*)(fuzz::input&), 10> subjects{
    &drive<plain<recipe::passthrough>>,
    &drive<plain<recipe::paddle_family::auto_growth>>,
    &drive<plain<recipe::pytorch_family::expandable>>,
    &drive<plain<recipe::stitched>>,
    &drive<plain<recipe::cuda_async>>,
    &drive<concurrent::locked<caching_allocator<eager, provider::simulated_device>>>,
    &drive<concurrent::per_stream<
        caching_allocator<recipe::pytorch_family::expandable, provider::simulated_device>>>,
    &drive_configured<recipe::pytorch_family>,
    &drive_configured<recipe::torch_npu_family>,
    &drive_configured<recipe::paddle_family>};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::input in(data, size);
  subjects[in.below(subjects.size())](in);
  return 0;
}
