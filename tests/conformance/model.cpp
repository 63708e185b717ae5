// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "shrink.hpp"

namespace conformance {

using tessera::stream_id;
using tessera::usage;
using kind = operation::kind;

operation author::next() {
  const std::size_t what = pick(1000);
  if (what < 480 && live_.size() < of_.most_live) {
    const std::size_t bits = static_cast<std::size_t>(std::bit_width(of_.largest)) - 4;
    const std::size_t bytes = 1 + pick(std::size_t{1} << (4 + pick(bits)));
    live_.push_back({made_, bytes});
    return {.by_handle = pick(4) == 0,
            .id = made_++,
            .bytes = bytes,
            .stream = of_.streams[pick(of_.streams.size())]};
  }
  if (what < 960 && !live_.empty()) return free_any();
  if (what < 962) return {.what = kind::trim, .amount = pick(2) == 0 ? 0u : 50u};
  if (what < 966 && of_.holds_events) return {.what = kind::hold, .amount = static_cast<unsigned>(pick(2))};
  if (what == 966 && of_.settings > 0)
    return {.what = kind::retune, .amount = static_cast<unsigned>(pick(of_.settings))};
  if (what < 976 && of_.pools > 0) return change_pool();
  if (what < 981 && of_.sleeps) return change_sleep();
  if (live_.empty()) return {.what = kind::trim};
  return {.what = kind::record,
          .id = live_[pick(live_.size())].id,
          .stream = of_.streams[pick(of_.streams.size())]};
}
operation author::free_any() {
  held& chosen = live_[pick(live_.size())];
  const bool sized = pick(2) == 0;
  const operation o{.what = kind::free, .sized = sized, .id = chosen.id, .bytes = sized ? chosen.bytes : 0};
  chosen = live_.back();
  live_.pop_back();
  return o;
}

operation author::change_pool() {
  using event = tessera::trace::event::kind;
  // Scopes end soon, so that half of the program runs without any.
  constexpr event kinds[] = {event::begin_pool,   event::begin_pool,   event::join_pool,
                             event::end_pool,     event::end_pool,     event::end_pool,
                             event::end_pool,     event::retain_pool,  event::release_pool,
                             event::release_pool, event::release_pool, event::empty_cache};
  const event chosen = kinds[pick(std::size(kinds))];
  operation o{.what = kind::pool, .amount = static_cast<unsigned>(chosen), .id = 1 + pick(of_.pools)};
  const bool all = chosen == event::begin_pool && pick(4) == 0;
  if (all) o.bytes = 1;
  if ((chosen == event::begin_pool && !all) || chosen == event::join_pool)
    o.stream = of_.streams[pick(of_.streams.size())];
  return o;
}
operation author::change_sleep() {
  // Pools sleep for a short time, so that most requests are served.
  constexpr sleep_change kinds[] = {wake_one, wake_all,          wake_all,
                                    wake_all, sleep_and_discard, sleep_and_save};
  const sleep_change chosen = kinds[pick(std::size(kinds))];
  return {.what = kind::sleep, .amount = chosen, .id = chosen == wake_all ? 0 : pick(of_.pools + 1)};
}
tessera::trace::event pool_event(const operation& o) {
  return {static_cast<tessera::trace::event::kind>(o.amount), o.id, o.bytes, o.stream};
}

namespace {

/// A few places of a block: its ends and some between.
constexpr std::size_t places = 3;
unsigned char* place(void* p, std::size_t bytes, std::size_t number) {
  return static_cast<unsigned char*>(p) + (bytes - 1) * number / (places - 1);
}
unsigned char mark_of(std::uint64_t id, std::size_t number) {
  return static_cast<unsigned char>(id * 31 + number + 1);
}
bool is_sound(const tessera::counter& c) {
  return c.current >= 0 && c.peak >= c.current && c.allocated - c.freed == c.current;
}
bool is(const tessera::counter& c, std::size_t bytes) {
  return c.current == static_cast<std::int64_t>(bytes);
}

}  // namespace

const char* judge::carry_out(const operation& o) {
  const char* wrong = nullptr;
  switch (o.what) {
    case kind::allocate: wrong = allocate(o); break;
    case kind::free: wrong = free(o); break;
    case kind::record:
      if (const auto found = live_.find(o.id); found != live_.end() && !sleeps(found->second.pool)) {
        const bool noted = of_->record(found->second.block, o.stream);
        if (!noted && kept_.no_calls_fail) wrong = "a stream is not recorded";
        // The program promises to join the streams that it records while a scope is open.
        std::vector<stream_id>& users = found->second.users;
        if (noted && open_.empty()) users.push_back(o.stream);
        if (noted && !open_.empty()) std::erase(users, o.stream);
      }
      break;
    case kind::hold:
      holding_ = o.amount != 0;
      of_->hold_events(holding_);
      if (!holding_) withheld_.clear();
      break;
    case kind::trim: of_->trim(of_->current_usage().reserved / 100 * o.amount); break;
    case kind::retune: of_->retune(o.amount); break;
    case kind::pool: wrong = change_pool(o); break;
    case kind::sleep: wrong = change_sleep(o); break;
  }
  return wrong != nullptr ? wrong : look();
}

const char* judge::allocate(const operation& o) {
  if (live_.contains(o.id)) return nullptr;
  const subject::block got = of_->allocate(o.bytes, o.stream, o.by_handle);
  return got.address != nullptr ? take(o, got) : nullptr;
}
const char* judge::take(const operation& o, const subject::block& got) {
  if (reinterpret_cast<std::uintptr_t>(got.address) % tessera::min_alignment != 0)
    return "a block is misaligned";
  if (!owned_.claim(got.address, o.bytes)) return "a block overlaps one in use";
  if (!of_->can_use(got.address, o.bytes)) return "a block is not in memory that the device gave";
  if (is_withheld(got, o.bytes, o.stream)) return "a block is reused that another stream still uses";
  if (!uses_.empty() && !o.by_handle &&
      of_->pool_of(got, static_cast<unsigned>(uses_.rbegin()->first)) != destination(o.stream))
    return "a request is served by another pool";
  const std::uint64_t pool = destination(o.stream);
  if (sleeps(pool)) return "a request is served by a pool that sleeps";
  if (kept_.host_visible) {
    for (std::size_t i = 0; i < places; ++i)
      *place(got.address, o.bytes, i) = mark_of(o.bytes > i ? o.id : 0, i);
  }
  live_.emplace(o.id, held{got, o.bytes, o.stream, {}, pool});
  return nullptr;
}

const char* judge::free(const operation& o) {
  const auto found = live_.find(o.id);
  if (found == live_.end()) return nullptr;
  const held& h = found->second;
  if (kept_.host_visible && h.bytes >= places && h.has_contents && !sleeps(h.pool)) {
    for (std::size_t i = 0; i < places; ++i) {
      if (*place(h.block.address, h.bytes, i) != mark_of(o.id, i)) return "a block has lost its contents";
    }
  }
  owned_.drop(h.block.address);
  if (holding_) withhold(h);
  o.sized ? of_->free_sized(h.block, h.bytes) : of_->free(h.block);
  live_.erase(found);
  return nullptr;
}

const char* judge::change_pool(const operation& o) {
  using event = tessera::trace::event::kind;
  const auto open = std::find_if(open_.begin(), open_.end(), [&](const scope& s) { return s.pool == o.id; });
  const auto outcome = of_->change_pool(pool_event(o));
  if (!outcome) return nullptr;
  std::size_t& uses = uses_[o.id];
  const bool is_open = open != open_.end();
  switch (static_cast<event>(o.amount)) {
    case event::begin_pool:
    case event::retain_pool: {
      const bool begins = static_cast<event>(o.amount) == event::begin_pool;
      // A pool without uses exists until it owns no memory.
      const bool is_refused = begins && (is_open || sleeps(o.id));
      if (uses > 0 && outcome->works == is_refused) return "a use of a pool is not added";
      // A pool that had no use may have ceased to exist; this one is new.
      if (outcome->works && begins) asleep_.erase(o.id);
      if (outcome->works) ++uses;
      if (outcome->works && begins) open_.push_back({o.id, o.bytes != 0, {o.stream}});
      break;
    }
    case event::join_pool:
      if (is_open) open->streams.push_back(o.stream);
      break;
    case event::end_pool:
      if (outcome->works != is_open) return "a scope does not end";
      if (is_open) open_.erase(open);
      break;
    case event::release_pool:
      if (outcome->works != (uses > (is_open ? 1u : 0u))) return "a use of a pool is not removed";
      if (outcome->works) --uses;
      break;
    default: break;
  }
  return outcome->uses != uses ? "the uses of a pool are not counted" : nullptr;
}
const char* judge::change_sleep(const operation& o) {
  const auto result = of_->change_sleep(o);
  if (!result) return nullptr;
  const bool wakes = o.amount == wake_one || o.amount == wake_all;
  const bool exists = o.id == 0 || (uses_.contains(o.id) && uses_.at(o.id) > 0);
  const bool is_allowed = open_.empty() && (o.amount == wake_all || (exists && sleeps(o.id) == wakes));
  // A wake may lack memory.
  if (!*result && is_allowed && kept_.no_calls_fail && result->missing == 0)
    return wakes ? "a pool does not wake" : "a pool does not sleep";
  if (*result && !open_.empty()) return "a pool sleeps or wakes while a scope is open";
  if (!*result) return nullptr;
  if (o.amount == wake_all) {
    asleep_.clear();
  } else if (wakes) {
    asleep_.erase(o.id);
  } else {
    if (!asleep_.insert(o.id).second) return "a pool sleeps twice";
    if (o.amount == sleep_and_save) return nullptr;
    for (auto& [id, h] : live_) h.has_contents = h.has_contents && h.pool != o.id;
  }
  return nullptr;
}
std::uint64_t judge::destination(stream_id stream) const {
  std::uint64_t pool = 0;
  for (const scope& s : open_) {
    const bool selects = s.all || std::find(s.streams.begin(), s.streams.end(), stream) != s.streams.end();
    if (selects && (pool == 0 || kept_.newest_scope_decides)) pool = s.pool;
  }
  return pool;
}

void judge::withhold(const held& h) {
  withheld w{h.bytes, {}, of_->waits()};
  for (const stream_id user : h.users) {
    if (kept_.holds_recorded && (kept_.holds_own || user != h.stream)) w.users.push_back(user);
  }
  if (kept_.keeps_apart) w.users.push_back(h.stream);
  if (!w.users.empty())
    withheld_.insert_or_assign(reinterpret_cast<std::uintptr_t>(h.block.address), std::move(w));
}
bool judge::is_withheld(const subject::block& b, std::size_t bytes, stream_id by) {
  const auto begin = reinterpret_cast<std::uintptr_t>(b.address);
  auto at = withheld_.upper_bound(begin);
  if (at != withheld_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > begin) --at;
  while (at != withheld_.end() && at->first < begin + bytes) {
    // A call that waited may have waited for this work.
    const bool in_use =
        at->second.waits == of_->waits() && std::any_of(at->second.users.begin(), at->second.users.end(),
                                                        [by](stream_id user) { return user != by; });
    if (in_use) return true;
    at = withheld_.erase(at);
  }
  return false;
}

const char* judge::look() {
  const usage now = of_->current_usage();
  if (now.active + now.cached != now.reserved + now.unbacked) return "usage does not add up";
  if (now.requested < owned_.bytes() || now.allocated < owned_.bytes()) return "less is live than is held";
  if (kept_.counts_at_once && now.pending() == 0 && now.requested != owned_.bytes())
    return "more is requested than is held";
  if (done_++ % audit_every_ != 0) return nullptr;
  if (const char* const broken = of_->audit()) return broken;
  return count();
}

const char* judge::count() {
  const usage now = of_->current_usage();
  const tessera::pool_statistics told = of_->counted();
  for (const tessera::detail::pool_counter& c : tessera::detail::pool_counters) {
    if (!is_sound(told.*c.of)) return "a counter is not what came less what went";
  }
  if (!kept_.counts_at_once) return nullptr;
  if (!is(told.allocation, owned_.blocks())) return "allocations are not counted";
  if (!is(told.allocated_bytes, now.allocated) || !is(told.active_bytes, now.active) ||
      !is(told.reserved_bytes, now.reserved) || !is(told.requested_bytes, now.requested))
    return "statistics are not what usage says";
  return nullptr;
}

std::string judge::finish() {
  of_->hold_events(false);
  if (const char* const wrong = carry_out({.what = kind::sleep, .amount = wake_all})) return wrong;
  using event = tessera::trace::event::kind;
  const auto change = [this](event what, std::uint64_t pool) {
    return carry_out({.what = kind::pool, .amount = static_cast<unsigned>(what), .id = pool});
  };
  while (!open_.empty()) {
    if (const char* const wrong = change(event::end_pool, open_.front().pool)) return wrong;
  }
  for (const auto& [pool, uses] : uses_) {
    while (uses > 0) {
      if (const char* const wrong = change(event::release_pool, pool)) return wrong;
    }
  }
  std::vector<std::uint64_t> ids;
  for (const auto& [id, h] : live_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const std::uint64_t id : ids) {
    if (const char* const wrong = carry_out({.what = kind::free, .id = id})) return wrong;
  }
  of_->trim(0);
  if (const char* const broken = of_->audit()) return broken;
  if (tessera::detail::simulated_calls* const failing = of_->calls())
    failing->fail_every(0), failing->fail_call(0);
  of_->trim(0);  // repeats the part that failed in the first run
  if (const char* const wrong = look()) return wrong;
  const usage now = of_->current_usage();
  if (now.allocated != 0 || now.pending() != 0) return "at the end: something is lost";
  const bool all_work = kept_.no_calls_fail || of_->calls() != nullptr;
  if (now.reserved != 0 && all_work) return "at the end: memory is kept";
  return of_->end();
}

std::string first_broken_rule(subject& of, const habits& used, std::size_t operations,
                              std::size_t audit_every) {
  constexpr extra_rules least{
      .holds_recorded = false, .keeps_apart = false, .counts_at_once = false, .no_calls_fail = false};
  judge judging(of, least, audit_every);
  author writing(used);
  for (std::size_t i = 0; i < operations; ++i) {
    if (const char* const wrong = judging.carry_out(writing.next()))
      return std::string(wrong) + " at operation " + std::to_string(i) + ", seed " +
             std::to_string(used.seed);
  }
  return judging.finish();
}

fault first_fault(subject& of, const extra_rules& kept, const program& all, std::size_t audit_every) {
  judge judging(of, kept, audit_every);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (const char* const wrong = judging.carry_out(all[i])) return {wrong, i};
  }
  return {judging.finish(), all.size()};
}

std::string first_broken_rule(const composition& of, std::size_t operations, std::size_t audit_every) {
  fault found;
  {
    const std::unique_ptr<subject> fresh = of.make();
    judge judging(*fresh, of.kept, audit_every);
    author writing(of.used);
    for (; found.at < operations && !found; ++found.at) {
      if (const char* const wrong = judging.carry_out(writing.next())) found.what = wrong;
    }
    if (!found) found.what = judging.finish();
  }
  if (!found) return {};
  author again(of.used);
  program all;
  while (all.size() < found.at) all.push_back(again.next());
  return explained(of, std::move(all), found, audit_every);
}

namespace {

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool slow = false;
#else
constexpr bool slow = true;
#endif

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const said = std::getenv(variable);
  return said != nullptr && *said != '\0' ? std::strtoull(said, nullptr, 10) : otherwise;
}

}  // namespace

bool is_slow() { return slow; }
std::size_t operations_asked_for() { return number_in("TESSERA_OPERATIONS", slow ? 20'000 : 1'000'000); }
std::uint64_t seed_asked_for(std::uint64_t otherwise) { return number_in("TESSERA_SEED", otherwise); }

}  // namespace conformance
