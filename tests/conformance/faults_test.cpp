// SPDX-License-Identifier: Apache-2.0
// Any call of the device may fail, alone or with others. Whichever does, the allocator's books and the device's agree after
// every operation, no live block suffers, and once calls work again all is as if none had failed.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "ownership.hpp"
#include "told.hpp"
#include "watched_device.hpp"

namespace {

using namespace tessera;
using conformance::ownership;
using conformance::tell;
using conformance::told;
using conformance::watched_device;

struct operation {
  enum class kind { allocate, deallocate, record, work, pass, hold, trim } what;
  std::size_t slot = 0;
  std::size_t amount = 0;  // bytes, or nanoseconds; of a trim, the percentage to keep; of a hold, whether
  stream_id stream{};
};
using program = std::vector<operation>;

/// Writes programs down, with all sizes multiplied.
class author {
 public:
  explicit author(std::size_t scale) : scale_(scale) {}
  author& allocate(std::size_t slot, std::size_t bytes, std::uint64_t stream = 0) {
    return add({operation::kind::allocate, slot, bytes * scale_, stream_id{stream}});
  }
  author& deallocate(std::size_t slot) { return add({operation::kind::deallocate, slot}); }
  author& record(std::size_t slot, std::uint64_t stream) {
    return add({operation::kind::record, slot, 0, stream_id{stream}});
  }
  author& work(std::uint64_t stream, std::size_t ns) {
    return add({operation::kind::work, 0, ns, stream_id{stream}});
  }
  author& pass(std::size_t ns) { return add({operation::kind::pass, 0, ns}); }
  author& hold(bool held) { return add({operation::kind::hold, 0, held}); }
  author& trim(std::size_t percent_kept = 0) { return add({operation::kind::trim, 0, percent_kept}); }
  [[nodiscard]] const program& done() const { return written_; }

 private:
  author& add(const operation& o) { return written_.push_back(o), *this; }
  std::size_t scale_;
  program written_;
};

constexpr std::size_t slots = 24;

/// For a device of 160 MiB times `scale`.
program workload(std::size_t scale) {
  author a(scale);
  // Growth in both pools and on three streams.
  a.allocate(0, 1_KiB).allocate(1, 700_KiB).allocate(2, 5_MiB).allocate(3, 13_MiB).allocate(4, 3_MiB, 1);
  a.allocate(5, 600_KiB, 2).allocate(6, 7_MiB, 1);
  // Partial reuse.
  a.deallocate(2).allocate(2, 2_MiB).deallocate(1).allocate(1, 300_KiB).allocate(7, 1500_KiB);
  // Streams: blocks that other streams use come back late, one of them when somebody waits.
  a.work(1, 9'000'000).work(0, 9'000'000).record(3, 1).record(2, 1).record(2, 2).deallocate(3).deallocate(2);
  a.allocate(8, 12_MiB).hold(true).pass(20'000'000).allocate(9, 2_MiB).hold(false).allocate(10, 9_MiB);
  a.work(2, 30'000'000).record(8, 2).deallocate(8).deallocate(4).work(1, 40'000'000).deallocate(6).trim(50);
  a.allocate(3, 11_MiB).trim();
  // Every other block goes, and what is left between must be filled.
  for (std::size_t i = 12; i < 20; ++i) a.allocate(i, 6_MiB + (i % 3) * 512_KiB);
  for (std::size_t i = 12; i < 20; i += 2) a.deallocate(i);
  a.trim().allocate(12, 15_MiB).allocate(14, 1_MiB).allocate(16, 6_MiB);
  // More than there is, where work is under way on what is idle; then eviction and what fits after all.
  a.work(0, 50'000'000)
      .deallocate(13)
      .deallocate(15)
      .deallocate(12)
      .allocate(13, 90_MiB)
      .allocate(15, 200_MiB);
  a.deallocate(10).deallocate(17).deallocate(19).allocate(20, 60_MiB).allocate(21, 40_MiB, 1);
  a.deallocate(20).allocate(20, 33_MiB).allocate(22, 45_MiB, 2).deallocate(21).allocate(21, 3_MiB, 1);
  // And anything.
  std::mt19937_64 random(5);
  const auto pick = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  for (int i = 0; i < 60; ++i) {
    const std::size_t slot = pick(slots);
    const std::uint64_t stream = pick(3);
    if (pick(4) == 0) a.work(stream, pick(4'000'000));
    if (pick(3) == 0) a.record(slot, stream);
    if (pick(20) == 0) a.trim(pick(2) * 50);
    a.deallocate(slot).allocate(slot, 1 + pick(std::size_t{1} << (10 + pick(15))), stream);
  }
  return a.done();
}

template <typename Recipe, std::size_t Scale = 1>
struct under {
  using recipe = Recipe;
  static constexpr std::size_t scale = Scale;
  static constexpr bool has_ranges = Recipe::growth::way != growth_way::segments;
  static watched_device device() {
    return watched_device{simulated_device::options{.capacity = 160_MiB * Scale,
                                                    .page_granularity = 64_KiB,
                                                    .huge_budget = 60_MiB * Scale,
                                                    .giant_budget = 2_GiB}};
  }
};

/// An allocator and all books on it.
template <typename Case>
class patient {
 public:
  patient() {
    using key = decltype(typename Case::recipe::streams{}.reuse_key({}));
    if constexpr (!Case::recipe::streams::uses_events || std::is_same_v<key, any_stream>)
      device_.ignore_streams();
  }

  /// Runs a program, and checks everything after each operation; says what is wrong, or nothing. `standing` is where
  /// memory stood each time.
  std::string run(const program& all, std::vector<usage>& standing) {
    standing.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (const std::string wrong = carry_out(all[i]); !wrong.empty())
        return "operation " + std::to_string(i) + ": " + wrong;
      standing.push_back(pool_->now());
    }
    return {};
  }
  /// Gives all memory back; says what is left. A range in which nothing could be mapped may stay until the end.
  std::string empty() {
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (const std::string wrong = carry_out({operation::kind::deallocate, slot}); !wrong.empty())
        return wrong;
    }
    device_.hold_events(false);
    device_.advance(1'000'000'000'000);
    if (const std::string wrong = carry_out({operation::kind::trim}); !wrong.empty()) return wrong;
    return pool_->now().reserved != 0 ? "memory is kept" : holds_no_memory();
  }
  /// Ends the allocator, whatever it has.
  void end() { pool_.reset(); }
  /// Says what the device still holds.
  [[nodiscard]] std::string holds_nothing() const {
    return device_.held().reserved != 0 ? "the device has ranges" : holds_no_memory();
  }
  [[nodiscard]] watched_device& device() { return device_; }

 private:
  [[nodiscard]] std::string holds_no_memory() const {
    const auto left = device_.held();
    if (device_.used() != 0 || device_.in_segments() != 0) return "the device holds memory";
    if (left.handles != 0 || left.named != 0) return "the device has handles";
    return left.mapped != 0 || left.not_granted != 0 ? "the device has mappings" : "";
  }

  struct held {
    void* address = nullptr;
    std::size_t bytes = 0;
    stream_id stream{};
    std::vector<stream_id> users;
  };

  std::string carry_out(const operation& o) {
    held& h = held_[o.slot];
    const usage before = pool_->now();
    const std::uint64_t failed = device_.calls().failed;
    const std::uint64_t refused = device_.calls().refused;
    const std::size_t grown = told_.grown;
    bool gave_all = false;
    switch (o.what) {
      case operation::kind::allocate:
        if (h.address != nullptr) break;
        h = {pool_->try_allocate(o.amount, o.stream), o.amount, o.stream, {}};
        if (h.address == nullptr) {
          // Who stitches knows what there is, and does not ask for more.
          if (Case::recipe::growth::way != growth_way::stitching && h.bytes <= device_.capacity() &&
              device_.calls().failed + device_.calls().refused == failed + refused)
            return "an allocation fails though the device refused nothing";
          if (const char* const wrong = changed_by_failure(before)) return wrong;
        } else {
          if (!owned_.claim(h.address, h.bytes)) return "a block overlaps one in use";
          device_.is_reused(h.address, h.bytes, h.stream);
        }
        break;
      case operation::kind::deallocate:
        if (h.address == nullptr) break;
        device_.is_used(h.address, h.bytes, h.stream, true);
        for (const stream_id user : h.users) device_.is_used(h.address, h.bytes, user, user == h.stream);
        owned_.drop(h.address);
        pool_->deallocate(std::exchange(h.address, nullptr), h.bytes);
        break;
      case operation::kind::record:
        if (h.address == nullptr) break;
        if (!pool_->record_stream(h.address, o.stream)) return "a stream is not recorded";
        h.users.push_back(o.stream);
        break;
      case operation::kind::work: device_.work(o.stream, o.amount); break;
      case operation::kind::pass: device_.advance(o.amount); break;
      case operation::kind::hold: device_.hold_events(o.amount != 0); break;
      case operation::kind::trim:
        pool_->trim(before.reserved / 100 * o.amount);
        gave_all = true;
        break;
    }
    const bool retries = device_.calls().failed == failed && (gave_all || told_.grown > grown);
    return first_discrepancy(retries);
  }

  /// What a failed allocation changed that it may not: recovery gives back what is cached, and waits for what is pending.
  /// A range keeps what it got, free, where the device refused only a part.
  [[nodiscard]] const char* changed_by_failure(const usage& before) const {
    const usage now = pool_->now();
    if (now.live != before.live) return "a failed allocation changes what is live";
    if (now.requested > before.requested || now.pending > before.pending)
      return "a failed allocation adds to what is in use";
    if (now.reserved > before.reserved && !Case::has_ranges) return "a failed allocation keeps memory";
    return nullptr;
  }

  /// The first thing on which the allocator, its events and the device do not agree, or nothing. `retried` says that what
  /// was stray has been given back.
  std::string first_discrepancy(bool retried) {
    const usage now = pool_->now();
    if (const char* const broken = pool_->audit()) return broken;
    if (now.live + now.pending + now.cached != now.reserved) return "usage does not add up";
    if (now.requested < owned_.bytes() || now.live < owned_.bytes()) return "less is live than is held";
    if (!told_.broken.empty()) return told_.broken;
    if (told::bytes(told_.memory) != now.reserved) return "what the events tell is not what is reserved";

    const std::size_t stray = device_.stray([this](std::uintptr_t at, std::size_t bytes) {
      const auto found = told_.memory.find(at);
      return found != told_.memory.end() && found->second == bytes;
    });
    if (!device_.broken().empty()) return device_.broken();
    if (device_.used() != now.reserved + stray) return "the device has given what nobody knows";
    if (retried && stray != 0) return "what could not be given back is not tried again";
    const auto device_has = device_.held();
    std::size_t named = 0, mapped = 0, not_granted = 0;
    for (const auto& [number, p] : device_.pieces()) {
      named += p.bytes;
      mapped += p.at != 0 ? p.bytes : 0;
      not_granted += p.at != 0 && !p.granted ? p.bytes : 0;
    }
    if (device_has.named != named || device_has.mapped != mapped || device_has.not_granted != not_granted)
      return "the device's books on what is mapped do not agree";
    if (stray == 0 && (mapped != named || not_granted != 0)) return "memory is half mapped";
    if (device_has.reserved != told::bytes(told_.ranges)) return "the device has ranges that nobody knows";
    for (const auto& [at, bytes] : told_.memory) {
      if (!device_.can_use(reinterpret_cast<const void*>(at), bytes)) return "reserved memory cannot be used";
      if (Case::has_ranges && !told::holds(told_.ranges, at, bytes)) return "memory is mapped in no range";
    }
    for (const held& h : held_) {
      if (h.address == nullptr) continue;
      if (!device_.can_use(h.address, h.bytes)) return "a live block cannot be used";
      if (pool_->machine().requested_at(h.address, 0) != h.bytes) return "a live block is not known";
    }
    return {};
  }

  using allocator = caching_allocator<typename Case::recipe, provider_ref<watched_device>, tell>;
  watched_device device_ = Case::device();
  told told_;
  std::unique_ptr<allocator> pool_ =
      std::make_unique<allocator>(provider_ref(device_), policies<typename Case::recipe>{}, tell{&told_});
  std::array<held, slots> held_{};
  ownership owned_;
};

template <typename Case>
class faults : public testing::Test {
 public:
  /// How the program goes when nothing fails, and how many calls it makes that can.
  static inline std::vector<usage> undisturbed;
  static inline std::string wrong_at_best;
  static inline std::uint64_t calls = 0;
  static void SetUpTestSuite() {
    patient<Case> healthy;
    wrong_at_best = healthy.run(plan(), undisturbed);
    calls = healthy.device().made();
    if (wrong_at_best.empty()) wrong_at_best = healthy.empty();
  }
  void SetUp() override {
    ASSERT_EQ(wrong_at_best, "") << "though nothing failed";
    ASSERT_GT(calls, 20u);
  }
  static const program& plan() {
    static const program all = workload(Case::scale);
    return all;
  }

  /// What goes wrong when these calls fail, then and afterwards; nothing if all is well.
  static std::string consequences(std::vector<watched_device::interval> failing) {
    patient<Case> p;
    std::vector<usage> standing;
    p.device().fail(std::move(failing));
    if (const std::string wrong = p.run(plan(), standing); !wrong.empty()) return wrong;
    p.device().fail({});
    if (const std::string left = p.empty(); !left.empty()) return "once calls work again: " + left;
    if (const std::string wrong = p.run(plan(), standing); !wrong.empty()) return "the second time: " + wrong;
    // Who stitches remembers what was needed at most.
    if (Case::recipe::growth::way != growth_way::stitching && standing != undisturbed)
      return "the second time it goes another way than where nothing failed";
    p.end();
    return p.holds_nothing();
  }
};

using mixed_pages = grow_in_place<256_KiB, 6_MiB>;
constexpr chunk_plan small_chunks{.first = 20_MiB, .further = 3_MiB};
using cases = testing::Types<
    under<pytorch<>>, under<passthrough>, under<power_of_two>,
    under<with<pytorch<>, split_up_to<32_MiB>, evict_idle_above<percent(60)>>>,
    under<with<pytorch<>, split_if_rest_at_least<512, block_end::high>, pool_together>>,
    under<with<pytorch<>, reuse_ignoring_streams>>, under<with<passthrough, back_with_huge_pages_first>>,
    under<paddle_naive_best_fit>,
    under<with<paddle_auto_growth, pool_small_and_large<1_MiB>, grow_by_chunks<2_MiB, 10_MiB, 1_MiB>,
               evict_idle_chunks<true, true>, recover_like_paddle<true>>>,
    under<with<paddle_naive_best_fit, grow_by_plan<small_chunks>, evict_direct_at_free<small_chunks>,
               recover_by_emptying_the_cache>>,
    // By the other rules a block crosses to a stream that comes behind, which the watch takes for a fault.
    under<with<cuda_async, reuse_in_order<false, true, false>>>,
    under<with<cuda_async, reuse_in_order<false, true, false>, split_up_to<32_MiB>, evict_at_free>>,
    under<pytorch_expandable>,
    under<with<pytorch_expandable, split_up_to<32_MiB, 20_MiB, 1_MiB, 0>, evict_idle_above<percent(60)>>>,
    under<with<pytorch_expandable, split_if_rest_at_least<512, block_end::high>, pool_together, mixed_pages>>,
    under<with<pytorch_expandable, reuse_ignoring_streams, evict_at_free>>,
    under<with<pytorch_expandable, evict_at_free, grow_in_place<2_MiB, 10_MiB>>>,
    under<with<pytorch_expandable, back_with_huge_pages_first, pool_together, mixed_pages>>,
    under<with<pytorch_expandable, recover_by_emptying_the_cache,
               grow_in_place<2_MiB, 6_MiB, tunable(unlimited), 16_KiB>>>,
    under<with<pytorch_expandable, back_with_giant_pages_first, grow_in_place<2_MiB, 1_GiB>>, 40>,
    under<stitched>, under<with<stitched, pool_together, evict_idle_above<percent(60)>>>,
    under<with<stitched, reuse_ignoring_streams, back_with_huge_pages_first>>>;
TYPED_TEST_SUITE(faults, cases);

TYPED_TEST(faults, of_any_call_are_survived) {
  for (std::uint64_t k = 1; k <= this->calls; ++k)
    ASSERT_EQ(this->consequences({{k, k}}), "") << "with call " << k << " failing";
}

TYPED_TEST(faults, of_several_calls_are_survived) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<watched_device::interval> failing;
    for (std::uint64_t bursts = 1 + random() % 6; bursts > 0; --bursts) {
      const std::uint64_t first = 1 + random() % this->calls;
      failing.emplace_back(first, first + random() % (seed % 3 == 0 ? 30 : 4));
    }
    ASSERT_EQ(this->consequences(failing), "") << "seed " << seed;
  }
}

TYPED_TEST(faults, of_every_call_from_one_on_are_survived) {
  for (std::uint64_t first = 1; first <= this->calls; first += 9)
    ASSERT_EQ(this->consequences({{first, ~std::uint64_t{0}}}), "") << "from call " << first << " on";
}

// An allocator that ends tries each piece of memory twice, segments and ranges once, and cannot do more.
TYPED_TEST(faults, at_the_end_cost_no_more_than_what_failed) {
  for (std::size_t length = 20; length <= this->plan().size(); length += 25) {
    const program part(this->plan().begin(), this->plan().begin() + static_cast<std::ptrdiff_t>(length));
    std::vector<usage> standing;
    bool any_failed = true;
    for (std::uint64_t k = 1; any_failed; ++k) {
      patient<TypeParam> p;
      watched_device& device = p.device();
      ASSERT_EQ(p.run(part, standing), "");
      device.fail({{k, k}});
      p.end();
      ASSERT_EQ(device.held().named + device.held().mapped, 0u) << "with call " << k << " of the end failing";
      ASSERT_EQ(device.used(), device.segments_refused()) << "with call " << k << " of the end failing";
      ASSERT_EQ(device.held().reserved, device.ranges_refused())
          << "with call " << k << " of the end failing";
      any_failed = device.calls().failed > 0;
    }
    patient<TypeParam> p;
    ASSERT_EQ(p.run(part, standing), "");
    const std::size_t used = p.device().used();
    p.device().fail({{1, ~std::uint64_t{0}}});
    p.end();
    ASSERT_EQ(p.device().used(), used) << "with all calls of the end failing";
  }
}

}  // namespace
