// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "event_memory.hpp"
#include "ownership.hpp"
#include "watched_device.hpp"

/// Programs, and an allocator that executes them and compares all its counters: for devices that fail.
namespace conformance::faults {

using namespace tessera;

struct operation {
  enum class kind { allocate, deallocate, record, work, pass, hold, trim } what;
  std::size_t slot = 0;
  // bytes, or nanoseconds; for a trim the percentage to keep; for a hold whether events are held
  std::size_t amount = 0;
  stream_id stream{};
};
using program = std::vector<operation>;

/// Writes programs, with all sizes multiplied by `scale`.
class author {
 public:
  explicit author(std::size_t scale, program begun = {}) : scale_(scale), written_(std::move(begun)) {}
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
inline program workload(std::size_t scale) {
  author a(scale);
  // Growth in both pools and on three streams.
  a.allocate(0, 1_KiB).allocate(1, 700_KiB).allocate(2, 5_MiB).allocate(3, 13_MiB).allocate(4, 3_MiB, 1);
  a.allocate(5, 600_KiB, 2).allocate(6, 7_MiB, 1);
  // Partial reuse.
  a.deallocate(2).allocate(2, 2_MiB).deallocate(1).allocate(1, 300_KiB).allocate(7, 1500_KiB);
  // Streams: blocks that other streams use become free late, one of them because of a wait.
  a.work(1, 9'000'000).work(0, 9'000'000).record(3, 1).record(2, 1).record(2, 2).deallocate(3).deallocate(2);
  a.allocate(8, 12_MiB).hold(true).pass(20'000'000).allocate(9, 2_MiB).hold(false).allocate(10, 9_MiB);
  a.work(2, 30'000'000).record(8, 2).deallocate(8).deallocate(4).work(1, 40'000'000).deallocate(6).trim(50);
  a.allocate(3, 11_MiB).trim();
  // Every other block is freed, and requests must fill the gaps.
  for (std::size_t i = 12; i < 20; ++i) a.allocate(i, 6_MiB + (i % 3) * 512_KiB);
  for (std::size_t i = 12; i < 20; i += 2) a.deallocate(i);
  a.trim().allocate(12, 15_MiB).allocate(14, 1_MiB).allocate(16, 6_MiB);
  // Requests more than there is while streams use idle memory; then evicts and requests what fits.
  a.work(0, 50'000'000)
      .deallocate(13)
      .deallocate(15)
      .deallocate(12)
      .allocate(13, 90_MiB)
      .allocate(15, 200_MiB);
  a.deallocate(10).deallocate(17).deallocate(19).allocate(20, 60_MiB).allocate(21, 40_MiB, 1);
  a.deallocate(20).allocate(20, 33_MiB).allocate(22, 45_MiB, 2).deallocate(21).allocate(21, 3_MiB, 1);
  return a.done();
}

/// The same, and another program after it.
inline program long_workload(std::size_t scale) {
  author a(scale, workload(scale));
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
  static constexpr bool has_ranges = Recipe::growth::backend::has_ranges;
  static watched_device device() {
    return watched_device{simulated_device::options{.capacity = 160_MiB * Scale,
                                                    .page_granularity = 64_KiB,
                                                    .huge_budget = 60_MiB * Scale,
                                                    .giant_budget = 2_GiB}};
  }
};

/// An allocator with checks of all its counters.
template <typename Case>
class tested_allocator {
 public:
  tested_allocator() {
    using streams = typename Case::recipe::streams;
    if constexpr (std::is_same_v<decltype(streams{}.reuse_key({})), stream_id::any>) device_.ignore_owners();
    // The device would report a block that moves to a stream that is ordered after, or that waits.
    constexpr cross_stream_reuse by = streams{}.reuse_rules();
    if (!streams::uses_events || by.follow_dependencies || by.insert_dependencies) device_.ignore_streams();
  }

  /// Runs a program and checks everything after each operation. Returns the first error, or nothing. Appends
  /// the reserved bytes to `standing`.
  std::string run(const program& all, std::vector<usage>& standing) {
    standing.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (const std::string wrong = carry_out(all[i]); !wrong.empty())
        return "operation " + std::to_string(i) + ": " + wrong;
      standing.push_back(pool_->current_usage());
    }
    return {};
  }
  /// Frees all memory. Returns what is left. A range without mapped memory may stay until the end.
  std::string empty() {
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (const std::string wrong = carry_out({operation::kind::deallocate, slot}); !wrong.empty())
        return wrong;
    }
    device_.hold_events(false);
    device_.advance(1'000'000'000'000);
    if (const std::string wrong = carry_out({operation::kind::trim}); !wrong.empty()) return wrong;
    return pool_->current_usage().reserved != 0 ? "memory is kept" : holds_no_memory();
  }
  /// Destroys the allocator.
  void end() { pool_.reset(); }
  /// Returns what the device still holds.
  [[nodiscard]] std::string holds_nothing() const {
    return device_.held().reserved != 0 ? "the device has ranges" : holds_no_memory();
  }
  [[nodiscard]] watched_device& provider() { return device_; }

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
    const usage before = pool_->current_usage();
    const std::uint64_t failed = device_.calls().failed;
    const std::uint64_t refused = device_.calls().refused;
    const std::size_t acquired = recorded_.acquired;
    bool gave_all = false;
    switch (o.what) {
      case operation::kind::allocate:
        if (h.address != nullptr) break;
        h = {pool_->try_allocate(o.amount, o.stream), o.amount, o.stream, {}};
        if (h.address == nullptr) {
          // A backend that moves memory knows the available memory and requests no more.
          if (!Case::recipe::growth::backend::moves_memory && h.bytes <= device_.capacity() &&
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
    const bool retries = device_.calls().failed == failed && (gave_all || recorded_.acquired > acquired);
    return first_discrepancy(retries);
  }

  /// The first forbidden change by a failed allocation, or nothing. Recovery may release cached memory and
  /// wait for pending blocks. A range keeps the part that the device granted, as free memory.
  [[nodiscard]] const char* changed_by_failure(const usage& before) const {
    const usage now = pool_->current_usage();
    if (now.allocated != before.allocated) return "a failed allocation changes what is live";
    if (now.requested > before.requested || now.pending() > before.pending())
      return "a failed allocation adds to what is in use";
    if (now.reserved > before.reserved && !Case::has_ranges) return "a failed allocation keeps memory";
    return nullptr;
  }

  /// The first difference between the allocator, its events and the device, or nothing. With `retried`,
  /// memory whose release had failed was released again.
  std::string first_discrepancy(bool retried) {
    const usage now = pool_->current_usage();
    if (const char* const broken = pool_->audit()) return broken;
    if (now.active + now.cached != now.reserved) return "usage does not add up";
    if (now.requested < owned_.bytes() || now.allocated < owned_.bytes()) return "less is live than is held";
    if (!recorded_.broken.empty()) return recorded_.broken;
    if (event_memory::bytes(recorded_.memory) != now.reserved)
      return "what the events tell is not what is reserved";

    const std::size_t stray = device_.stray([this](std::uintptr_t at, std::size_t bytes) {
      const auto found = recorded_.memory.find(at);
      return found != recorded_.memory.end() && found->second == bytes;
    });
    if (!device_.broken().empty()) return device_.broken();
    if (device_.used() != now.reserved + stray)
      return "the device has segments that the allocator does not know";
    if (retried && stray != 0) return "what could not be given back is not tried again";
    const counter given = pool_->statistics().device_bytes;
    if (given.current != static_cast<std::int64_t>(device_.used()))
      return "not all that was given is counted";
    if (given.peak != static_cast<std::int64_t>(device_.peak_used()))
      return "the device's maximum is not the one that is counted";
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
    if (device_has.reserved != event_memory::bytes(recorded_.ranges))
      return "the device has ranges that the allocator does not know";
    for (const auto& [at, bytes] : recorded_.memory) {
      if (!device_.can_use(reinterpret_cast<const void*>(at), bytes)) return "reserved memory cannot be used";
      if (Case::has_ranges && !event_memory::holds(recorded_.ranges, at, bytes))
        return "memory is mapped in no range";
    }
    for (const held& h : held_) {
      if (h.address == nullptr) continue;
      if (!device_.can_use(h.address, h.bytes)) return "a live block cannot be used";
      if (tessera::detail::introspect(*pool_).requested_at(h.address) != h.bytes)
        return "a live block is not known";
    }
    return {};
  }

  using allocator = caching_allocator<typename Case::recipe, provider_ref<watched_device>,
                                      extension::observer<event_memory_observer>>;
  watched_device device_ = Case::device();
  event_memory recorded_;
  std::unique_ptr<allocator> pool_ =
      std::make_unique<allocator>(provider_ref(device_), policies<typename Case::recipe>{},
                                  extension::observer<event_memory_observer>{{&recorded_}});
  std::array<held, slots> held_{};
  ownership owned_;
};

/// Calls `harm(device)` before a program, `heal(device)` after it, and runs the program again. Returns the
/// first error, or nothing. `undisturbed` has the reserved bytes of a run without failures.
template <typename Case, typename Harm, typename Heal>
std::string consequences(const program& plan, const std::vector<usage>& undisturbed, Harm harm, Heal heal) {
  tested_allocator<Case> p;
  std::vector<usage> standing;
  harm(p.provider());
  if (const std::string wrong = p.run(plan, standing); !wrong.empty()) return wrong;
  heal(p.provider());
  if (const std::string left = p.empty(); !left.empty()) return "once calls work again: " + left;
  if (const std::string wrong = p.run(plan, standing); !wrong.empty()) return "the second time: " + wrong;
  if (standing != undisturbed) return "the second time it goes another way than where nothing failed";
  p.end();
  return p.holds_nothing();
}

}  // namespace conformance::faults
