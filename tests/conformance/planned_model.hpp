// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/plan/check_plan.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/trace/recording.hpp>

#include "any_device.hpp"
#include "operations.hpp"
#include "ownership.hpp"
#include "tessera_replay/planner/make_plan.hpp"
#include "watched_device.hpp"

/// Programs of repeated steps, their recordings and plans, and runs that deviate from them under a judge that
/// knows every block.
namespace conformance::plans {

using namespace tessera;

/// The number of operations: TESSERA_OPERATIONS, else the argument, and less in a slow build.
[[nodiscard]] inline std::size_t operations(std::size_t usual) {
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  return operations_or(usual);
#else
  return operations_or(usual / 4);
#endif
}

/// A source of random numbers.
class dice {
 public:
  explicit dice(std::uint64_t seed) : random_(seed) {}
  [[nodiscard]] std::size_t pick(std::size_t below) { return static_cast<std::size_t>(random_() % below); }
  [[nodiscard]] bool one_in(std::size_t n) { return pick(n) == 0; }
  /// A number below 2^`bits`, each number of bits as likely as the others.
  [[nodiscard]] std::size_t of_bits(std::size_t bits) { return pick(std::size_t{1} << pick(bits + 1)); }

 private:
  std::mt19937_64 random_;
};

/// A request of a step. Its block lives until the program has made `life` more requests.
struct request {
  std::size_t bytes;
  std::uint64_t stream;
  std::size_t life;
};
using step = std::vector<request>;

inline constexpr std::size_t streams = 4;

/// A program that repeats its steps.
struct script {
  std::vector<step> steps;
  std::vector<std::size_t> order;  // of the recorded steps
  bool is_marked;

  explicit script(std::uint64_t seed) : is_marked(false) {
    dice d(seed);
    is_marked = d.one_in(2);
    std::vector<std::size_t> sizes;
    const std::size_t bits = 13 + d.pick(8);
    for (std::size_t i = 1 + d.pick(8); i > 0; --i)
      sizes.push_back(1 + (std::size_t{512} << d.pick(2)) + d.of_bits(bits));
    const std::size_t used_streams = 1 + d.pick(3), longest = 4 + d.pick(40);
    for (std::size_t count = 1 + d.pick(3); count > 0; --count) {
      step s;
      if (!steps.empty() && d.one_in(2))
        s.assign(steps[0].begin(), steps[0].begin() + static_cast<std::ptrdiff_t>(steps[0].size() / 2));
      for (std::size_t length = 1 + d.pick(longest); length > 0; --length) {
        const std::uint64_t on = d.one_in(3) ? d.pick(used_streams) : 0;
        std::size_t life = d.pick(longest);
        if (d.one_in(12)) life = longest * d.pick(20);
        if (d.one_in(100)) life = 100'000;
        s.push_back({sizes[d.pick(sizes.size())], on, life});
      }
      steps.push_back(std::move(s));
    }
    const bool is_cyclic = d.one_in(2);
    for (std::size_t i = 0; i < 4 + d.pick(12); ++i)
      order.push_back(is_cyclic ? i % steps.size() : d.pick(steps.size()));
  }

  [[nodiscard]] trace::recording record() const {
    using kind = trace::event::kind;
    trace::recording made{"steps", {}};
    std::multimap<std::size_t, std::uint64_t> due;  // ids by the request that they live until
    std::uint64_t id = 0;
    for (const std::size_t s : order) {
      if (is_marked) made.events.push_back({kind::begin_step, s + 1});
      for (const request& r : steps[s]) {
        while (!due.empty() && due.begin()->first <= id) {
          made.events.push_back({kind::free, due.begin()->second});
          due.erase(due.begin());
        }
        made.events.push_back({kind::allocate, id, r.bytes, stream_id{r.stream}});
        due.emplace(id + 1 + r.life, id);
        ++id;
      }
    }
    for (const auto& [at, freed] : due) {
      if (at < 50'000) made.events.push_back({kind::free, freed});
    }
    return made;
  }
};

/// Changes numbers of a plan at random.
inline void mutate(plan::made_plan& made, dice& d) {
  const auto number = [&d](auto& n, std::size_t near) {
    using type = std::remove_reference_t<decltype(n)>;
    switch (d.pick(4)) {
      case 0: n = static_cast<type>(n + 1 + d.pick(3)); break;
      case 1: n = static_cast<type>(n - 1 - d.pick(3)); break;
      case 2: n = static_cast<type>(d.pick(near + 2)); break;
      default: n = static_cast<type>(d.one_in(2) ? ~type{0} >> d.pick(8 * sizeof(type)) : type{0});
    }
  };
  for (std::size_t count = 1 + d.pick(3); count > 0; --count) {
    const std::size_t places = made.numbers.bytes / made.numbers.alignment;
    switch (d.pick(14)) {
      case 0:
        if (d.one_in(4)) number(made.numbers.bytes, made.numbers.bytes);
        break;
      case 1:
        if (d.one_in(4)) made.numbers.alignment = std::uint32_t{1} << d.pick(14);
        break;
      case 2:
        if (!made.kinds.empty()) number(made.kinds[d.pick(made.kinds.size())].bytes, 100'000);
        break;
      case 3:
        if (!made.kinds.empty()) number(made.kinds[d.pick(made.kinds.size())].kept_place, places);
        break;
      case 4:
        if (!made.kinds.empty()) number(made.kinds[d.pick(made.kinds.size())].kept, 3);
        break;
      case 5:
        if (!made.entries.empty()) number(made.entries[d.pick(made.entries.size())].kind, made.kinds.size());
        break;
      case 6:
      case 7:
        if (!made.entries.empty()) number(made.entries[d.pick(made.entries.size())].place, places);
        break;
      case 8:
        if (!made.entries.empty())
          number(made.entries[d.pick(made.entries.size())].other, made.entries.size());
        if (!made.entries.empty()) made.entries[d.pick(made.entries.size())].other ^= memory_plan::may_end;
        break;
      case 9:
        if (!made.entries.empty())
          number(made.entries[d.pick(made.entries.size())].deaths, made.deaths.size());
        break;
      case 10:
        if (!made.deaths.empty()) number(made.deaths[d.pick(made.deaths.size())], made.entries.size());
        break;
      case 11:
        if (!made.steps.empty()) number(made.steps[d.pick(made.steps.size())].entry, made.entries.size());
        break;
      case 12: {
        if (made.tracks.empty()) break;
        memory_plan::track& t = made.tracks[d.pick(made.tracks.size())];
        if (d.one_in(4)) number(t.stream, 2);
        if (d.one_in(4)) number(t.kinds_end, made.kinds.size());
        if (d.one_in(4)) number(t.entries_end, made.entries.size());
        if (d.one_in(4)) number(t.steps_end, made.steps.size());
        break;
      }
      default:
        if (!made.entries.empty()) {
          made.entries[d.pick(made.entries.size())].place = memory_plan::keeps;
        }
    }
    // Larger numbers need much host memory, but show nothing else.
    if (made.numbers.bytes > 4_GiB || made.numbers.alignment == 0) return;
  }
}

/// A provider of segments and events, over a device.
template <typename Device>
class segments_of {
 public:
  using event = typename Device::event;
  static constexpr bool is_thread_safe = tessera::detail::is_thread_safe<Device>;
  explicit segments_of(Device& device) noexcept : device_(&device) {}
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return device_->acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return device_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return device_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return device_->granularity(); }
  bool record(stream_id stream, event& mark) noexcept { return device_->record(stream, mark); }
  [[nodiscard]] bool query(event& mark) noexcept { return device_->query(mark); }
  bool wait(event& mark) noexcept { return device_->wait(mark); }
  void discard(event& mark) noexcept { device_->discard(mark); }

 private:
  Device* device_;
};
using segments_only = segments_of<watched_device>;
static_assert(event_provider<segments_only> && !virtual_memory_provider<segments_only>);

/// How a run deviates from the recorded program.
struct deviations {
  bool none = false;         // every step is as recorded, on a device that has enough memory
  bool has_scopes = false;   // of private pools
  bool stays_aside = false;  // a plan that stepped aside stays so for a while
  std::uint64_t fails = 0;   // every so many calls, one fails; 0 for none
  std::size_t capacity = 4_GiB;
};

/// The requests that the plan served in all runs, so that a test can see that it tests the plan.
struct served {
  std::uint64_t operations = 0, by_plan = 0, unplanned = 0, occupied = 0, failed = 0, refused_plans = 0;
};

/// A planned of any type, so that a run is compiled once for all. Optional calls do nothing without them.
class planned_memory {
 public:
  struct block {
    void* address = nullptr;
    block_handle known{};  // empty if the block is named by its address
  };
  virtual ~planned_memory() = default;
  virtual void begin_step(std::uint64_t key, stream_id stream) = 0;
  [[nodiscard]] virtual block allocate(std::size_t bytes, stream_id stream, bool by_handle) = 0;
  virtual void free(const block& b) = 0;
  virtual void free_sized(const block& b, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool try_free(const block& b) = 0;
  [[nodiscard]] virtual bool record(const block& b, stream_id stream) = 0;
  virtual void trim(std::size_t keep) = 0;
  virtual void evict_idle() = 0;
  virtual void process_events() = 0;
  [[nodiscard]] virtual pool_id open_scope(extension::scope_kind kind) = 0;
  virtual void close_scope(pool_id pool) = 0;
  [[nodiscard]] virtual usage current_usage() = 0;
  /// The same, added up from the blocks that tools see.
  [[nodiscard]] virtual usage seen_by_tools() = 0;
  [[nodiscard]] virtual block_view live_block_at(const block& b) = 0;
  [[nodiscard]] virtual plan_usage by_plan() = 0;
  [[nodiscard]] virtual std::int64_t device_bytes() = 0;
  [[nodiscard]] virtual const char* audit() = 0;
};

template <typename Pool>
class planned_memory_of final : public planned_memory {
  static constexpr bool has_handles = requires(Pool& p) { p.allocate_by_handle(1); };
  static constexpr bool has_pools = Pool::template has<extension::private_pools>;

 public:
  template <typename Provider>
  planned_memory_of(const memory_plan& plan, Provider&& device)
      : pool_(plan, tessera::detail::device_of<Pool>(std::forward<Provider>(device))) {}

  void begin_step(std::uint64_t key, stream_id stream) override { pool_.begin_step(key, stream); }
  block allocate(std::size_t bytes, stream_id stream, bool by_handle) override {
    if constexpr (has_handles) {
      const block_handle known = by_handle ? pool_.allocate_by_handle(bytes, stream) : block_handle{};
      if (by_handle) return {known.data(), known};
    }
    return {pool_.try_allocate(bytes, stream)};
  }
  void free(const block& b) override {
    if constexpr (has_handles) {
      if (b.known) return pool_.deallocate(b.known);
    }
    pool_.deallocate(b.address);
  }
  void free_sized(const block& b, std::size_t bytes) override {
    b.known ? free(b) : pool_.deallocate(b.address, bytes);
  }
  bool try_free(const block& b) override {
    if (!b.known) return pool_.try_deallocate(b.address);
    free(b);
    return true;
  }
  bool record(const block& b, stream_id stream) override {
    if constexpr (has_handles) {
      if (b.known) return pool_.record_stream(b.known, stream);
    }
    return pool_.record_stream(b.address, stream);
  }
  void trim(std::size_t keep) override { pool_.trim(keep); }
  void evict_idle() override { pool_.evict_idle(); }
  void process_events() override {
    if constexpr (requires { pool_.process_events(); }) (void)pool_.process_events();
  }
  pool_id open_scope(extension::scope_kind kind) override {
    if constexpr (has_pools) {
      auto pools = pool_.template get<extension::private_pools>();
      const pool_id made = pools.create();
      if (made == pool_id{} || pools.open(made, {}, kind)) return made;
      (void)pools.release(made);
    }
    return {};
  }
  void close_scope(pool_id pool) override {
    if constexpr (has_pools) {
      auto pools = pool_.template get<extension::private_pools>();
      (void)pools.close(pool);
      (void)pools.release(pool);
    }
  }
  usage current_usage() override { return pool_.current_usage(); }
  usage seen_by_tools() override {
    usage seen = pool_.current_usage();
    seen.requested = seen.allocated = seen.active = seen.cached = seen.reserved = 0;
    for_each_block(pool_, [&seen](const segment_view&, const block_view& b) {
      using state = block_view::state;
      (b.is == state::free ? seen.cached : seen.active) += b.bytes;
      if (b.is == state::live) seen.allocated += b.bytes;
      seen.requested += b.requested;
      seen.reserved += b.bytes;
    });
    return seen;
  }
  block_view live_block_at(const block& b) override {
    return tessera::observe::live_block_at(pool_, b.address);
  }
  plan_usage by_plan() override { return pool_.statistics().by_plan; }
  std::int64_t device_bytes() override {
    const auto counts = pool_.statistics();
    return counts.device_bytes.current + counts.by_plan.device_bytes.current;
  }
  const char* audit() override { return pool_.audit(); }

 private:
  Pool pool_;
};

/// A planned around a recipe, and what the recipe promises about reuse.
struct composition {
  const char* name;
  /// Makes it over a watched device, or over a device of any type.
  std::unique_ptr<planned_memory> (*over_watched)(const memory_plan&, watched_device&, any_device);
  std::unique_ptr<planned_memory> (*over_any)(const memory_plan&, any_device);  // or null
  bool uses_events;
  bool shares_streams;  // blocks serve any stream
  bool
      orders_streams;  // a block may serve another stream, which is made to wait; that is watched by other tests
  bool (*delays)(stream_id owner, stream_id user);

  /// Whether a recorded use delays the reuse by any stream, even by its own.
  [[nodiscard]] bool waits_all() const { return delays(stream_id{1}, stream_id{1}); }
};
/// `Pool` may have an error of its own. By default, its provider is a device of any type, so that the suites for
/// all devices need one type.
template <typename Recipe,
          typename Pool = planned<caching_allocator<Recipe, any_device, extension::private_pools>>>
[[nodiscard]] composition composed(const char* name) {
  using policy = typename Recipe::streams;
  constexpr bool is_erased = std::is_same_v<tessera::detail::device_of<Pool>, any_device>;
  composition made{name,
                   [](const memory_plan& plan, watched_device& device,
                      any_device erased) -> std::unique_ptr<planned_memory> {
                     if constexpr (is_erased)
                       return std::make_unique<planned_memory_of<Pool>>(plan, erased);
                     else
                       return std::make_unique<planned_memory_of<Pool>>(plan, device);
                   },
                   nullptr,
                   policy::uses_events,
                   std::is_same_v<decltype(policy{}.reuse_key({})), stream_id::any>,
                   policy::reuses_across_streams,
                   [](stream_id owner, stream_id user) {
                     return policy::uses_events && policy{}.needs_event(policy{}.reuse_key(owner), user);
                   }};
  if constexpr (is_erased) {
    made.over_any = [](const memory_plan& plan, any_device device) -> std::unique_ptr<planned_memory> {
      return std::make_unique<planned_memory_of<Pool>>(plan, device);
    };
  }
  return made;
}

/// Runs a program on an allocator, and judges it.
class run_of {
 public:
  run_of(const composition& what, const script& of, const memory_plan& plan, const deviations& how,
         std::uint64_t seed)
      : what_(what),
        of_(of),
        how_(how),
        dice_(seed),
        device_({.capacity = how.capacity, .page_granularity = 64_KiB}),
        pool_(what.over_watched(plan, device_, any_device(any_))) {
    if (!what.uses_events) device_.ignore_streams();
    if (what.shares_streams) device_.ignore_owners();
    if (how.fails > 0) device_.fail_every(how.fails);
  }
  [[nodiscard]] watched_device& device() { return device_; }

  void play(std::size_t operations) {
    while (done_ < operations && broken_.empty()) play_step();
  }
  /// Destroys the allocator with its live blocks. They are not used any more.
  void end() {
    device_.advance(1'000'000'000'000);
    pool_.reset();
  }
  /// Runs about so many operations. Returns the first broken rule, or nothing.
  [[nodiscard]] std::string run(std::size_t operations, served& all) {
    play(operations);
    all.operations += done_;
    if (broken_.empty()) finish(all);
    return broken_.empty() ? broken_ : broken_ + " at operation " + std::to_string(done_);
  }

 private:
  struct block {
    planned_memory::block at;
    std::size_t bytes;
    std::uint64_t stream;
    bool is_planned = false;
    std::vector<std::uint64_t> users{};
    std::array<bool, streams> promised{};
  };
  using kind = trace::event::kind;

  void breaks(const char* rule) {
    if (broken_.empty()) broken_ = rule;
  }
  void breaks_unless(bool holds, const char* rule) {
    if (!holds) breaks(rule);
  }

  void play_step() {
    // A plan that stepped aside serves again after a trim. Without it, most programs would not use their plan.
    if (pool_->by_plan().is_aside && (!how_.stays_aside || dice_.one_in(64))) pool_->trim(0);
    const std::size_t number =
        how_.none ? of_.order[step_++ % of_.order.size()] : dice_.pick(of_.steps.size());
    const bool is_exact = how_.none || !dice_.one_in(3);
    if (is_exact ? of_.is_marked : dice_.one_in(3))
      pool_->begin_step(is_exact || dice_.one_in(2) ? number + 1 : dice_.pick(5),
                        stream_id{is_exact ? 0 : dice_.pick(streams)});
    const step& s = of_.steps[number];
    for (std::size_t i = 0; i < s.size() && broken_.empty(); ++i) {
      request r = s[i];
      if (!is_exact && dice_.one_in(8)) {
        switch (dice_.pick(8)) {
          case 0: continue;
          case 1: i = dice_.pick(s.size()); break;
          case 2: r.bytes = 1 + dice_.of_bits(20); break;
          case 3: r.bytes = s[dice_.pick(s.size())].bytes; break;
          case 4: r.life = dice_.of_bits(9); break;
          case 5: r.stream = dice_.pick(streams); break;
          case 6: make({s[dice_.pick(s.size())].bytes, dice_.pick(streams), dice_.pick(30)}); break;
          default: return;
        }
      }
      make(r);
      if (!how_.none && dice_.one_in(16)) disturb();
      if (done_ % 61 == 0) look();
    }
  }

  void make(const request& r) {
    ++done_;
    while (!due_.empty() && (due_.begin()->first <= made_ || live_.size() > 400)) free(due_.begin()->second);
    if (!how_.none && dice_.one_in(50) && !live_.empty()) free(any());
    const std::uint64_t id = made_++;
    const bool by_handle = !how_.none && dice_.one_in(200);
    const std::uint64_t planned_before = by_plan();
    block b{pool_->allocate(r.bytes, stream_id{r.stream}, by_handle), r.bytes, r.stream};
    if (b.at.address == nullptr) {
      ++failed_;
      breaks_unless(!how_.none, "a request fails though there is enough memory");
      return;
    }
    const auto at = reinterpret_cast<std::uintptr_t>(b.at.address);
    breaks_unless(at % min_alignment == 0, "a block is misaligned");
    breaks_unless(owned_.claim(b.at.address, b.bytes), "a block overlaps one in use");
    breaks_unless(device_.can_use(b.at.address, b.bytes), "a block is not in memory that the device gave");
    device_.is_reused(b.at.address, b.bytes, stream_id{b.stream});
    b.is_planned = by_plan() != planned_before;
    if (b.is_planned) {
      // The ends of a block tell its stream: blocks of other streams must never have them.
      for (const std::uintptr_t end : {at, at + b.bytes - 1}) {
        const auto owner = stream_of_.try_emplace(end / min_alignment, b.stream).first;
        breaks_unless(owner->second == b.stream, "two streams share bytes of the plan");
      }
    }
    if (dice_.one_in(3)) device_.work(stream_id{b.stream}, dice_.of_bits(17));
    live_.emplace(id, std::move(b));
    due_.emplace(made_ + r.life, id);
    due_at_.emplace(id, made_ + r.life);
  }

  [[nodiscard]] std::uint64_t any() {
    auto found = live_.lower_bound(dice_.pick(static_cast<std::size_t>(made_)));
    if (found == live_.end()) found = live_.begin();
    return found->first;
  }

  void free(std::uint64_t id) {
    const auto [from, to] = due_.equal_range(due_at_.at(id));
    due_.erase(std::find_if(from, to, [id](const auto& d) { return d.second == id; }));
    due_at_.erase(id);
    const auto found = live_.find(id);
    const block b = std::move(found->second);
    live_.erase(found);
    breaks_unless(device_.can_use(b.at.address, b.bytes),
                  "the memory of a live block went back to the device");
    const bool is_watched = b.is_planned || !what_.orders_streams;
    if (is_watched) device_.is_used(b.at.address, b.bytes, stream_id{b.stream}, true);
    for (const std::uint64_t user : b.users) {
      if (!is_watched) break;
      const bool delays = what_.delays(stream_id{b.stream}, stream_id{user});
      device_.is_used(b.at.address, b.bytes, stream_id{user}, user == b.stream && !delays,
                      delays && what_.waits_all());
    }
    owned_.drop(b.at.address);
    switch (dice_.pick(3)) {
      case 0: return pool_->free(b.at);
      case 1: return pool_->free_sized(b.at, b.bytes);
      default: breaks_unless(pool_->try_free(b.at), "a live block is not known");
    }
  }

  /// Does something that is no part of the recorded program.
  void disturb() {
    switch (dice_.pick(12)) {
      case 0: device_.hold_events(!std::exchange(holds_, !holds_)); break;
      case 1: device_.advance(dice_.of_bits(22)); break;
      case 2: device_.work(stream_id{dice_.pick(streams)}, dice_.of_bits(22)); break;
      case 3:
        if (dice_.one_in(4)) pool_->trim(dice_.one_in(2) ? 0 : pool_->current_usage().reserved / 2);
        break;
      case 4:
        if (how_.has_scopes) change_scope();
        break;
      case 5:
        if (dice_.one_in(4)) pool_->evict_idle();
        break;
      case 6: pool_->process_events(); break;
      case 7: pool_->begin_step(dice_.pick(5), stream_id{dice_.pick(streams)}); break;
      default: record();
    }
  }
  void record() {
    if (live_.empty()) return;
    const std::uint64_t id = any(), by = dice_.pick(streams);
    block& b = live_.at(id);
    const bool works = pool_->record(b.at, stream_id{by});
    breaks_unless(works, "a stream is not recorded");
    // The program promises to join the streams that it ever records during a capture.
    if (is_capturing_) b.promised[by] = true;
    std::erase(b.users, by);
    if (!b.promised[by]) b.users.push_back(by);
    if (dice_.one_in(2)) device_.work(stream_id{by}, dice_.of_bits(22));
  }
  void change_scope() {
    if (scope_ != pool_id{}) {
      pool_->close_scope(std::exchange(scope_, pool_id{}));
      is_capturing_ = false;
    } else {
      const bool captures = dice_.one_in(2);
      scope_ = pool_->open_scope(captures ? extension::scope_kind::capture : extension::scope_kind::plain);
      is_capturing_ = captures && scope_ != pool_id{};
    }
  }

  [[nodiscard]] std::uint64_t by_plan() const { return pool_->by_plan().requests; }

  /// Checks everything that holds between two operations.
  void look() {
    if (const char* const wrong = pool_->audit()) breaks(wrong);
    const usage now = pool_->current_usage();
    breaks_unless(now.active + now.cached == now.reserved, "usage does not add up");
    // Memory that the device fails to take back is reserved, and has no blocks.
    usage seen = pool_->seen_by_tools();
    breaks_unless(seen.reserved == seen.active + seen.cached && seen.reserved <= now.reserved,
                  "the blocks are not what is reserved");
    if (device_.calls().failed > 0) {
      seen.cached = now.cached;
      seen.reserved = now.reserved;
    }
    breaks_unless(seen == now, "tools do not see what is used");
    breaks_unless(now.allocated >= owned_.bytes() && now.requested >= owned_.bytes(),
                  "less is live than is held");
    breaks_unless(pool_->device_bytes() == static_cast<std::int64_t>(device_.used()),
                  "not all that was given is counted");
    for (const auto& [id, b] : live_) {
      breaks_unless(device_.can_use(b.at.address, b.bytes),
                    "the memory of a live block went back to the device");
      const block_view found = pool_->live_block_at(b.at);
      breaks_unless(b.at.known || (found.requested == b.bytes && found.is == block_view::state::live),
                    "tools do not find a live block");
    }
    if (!device_.broken().empty()) breaks(device_.broken().c_str());
  }

  void finish(served& all) {
    if (scope_ != pool_id{}) change_scope();
    while (!live_.empty()) free(live_.begin()->first);
    look();
    device_.fail_every(0);
    device_.hold_events(false);
    device_.advance(1'000'000'000'000);
    pool_->trim(0);
    look();
    const usage now = pool_->current_usage();
    breaks_unless(now.allocated == 0 && now.pending() == 0, "at the end: something is lost");
    breaks_unless(now.reserved == 0, "at the end: memory is kept");
    const plan_usage used = pool_->by_plan();
    all.by_plan += used.requests;
    all.unplanned += used.unplanned_requests;
    all.occupied += used.occupied;
    all.failed += failed_;
    all.refused_plans += used.fault != nullptr;
    pool_.reset();
    const auto held = device_.held();
    breaks_unless(device_.used() == 0 && held.handles == 0, "at the end: the device holds memory");
    breaks_unless(held.reserved == 0 && held.mapped == 0, "at the end: the device has ranges");
    if (!device_.broken().empty()) breaks(device_.broken().c_str());
  }

  const composition& what_;
  const script& of_;
  const deviations& how_;
  dice dice_;
  watched_device device_;
  calls_of<provider_ref<watched_device>> any_{device_};
  std::unique_ptr<planned_memory> pool_;
  ownership owned_;
  std::map<std::uint64_t, block> live_;            // by id
  std::multimap<std::size_t, std::uint64_t> due_;  // ids by the request that they live until
  std::unordered_map<std::uint64_t, std::size_t> due_at_;
  std::unordered_map<std::uintptr_t, std::uint64_t> stream_of_;  // of the ends of planned blocks
  std::uint64_t made_ = 0;
  std::size_t done_ = 0, step_ = 0;
  std::uint64_t failed_ = 0;
  bool holds_ = false;
  bool is_capturing_ = false;
  pool_id scope_{};
  std::string broken_;
};

}  // namespace conformance::plans
