// SPDX-License-Identifier: Apache-2.0
// The model detects planted errors and reports the shortest program that shows each.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>
#include "by_day.hpp"
#include "tessera_replay/files.hpp"

#include "shrink.hpp"
#include "suite.hpp"

namespace {

using namespace tessera;
using conformance::composition;
using conformance::fault;
using conformance::program;
using kind = conformance::operation::kind;
using trace::event;
using ref = provider_ref<simulated_device>;
using sound = caching_allocator<pytorch<>, ref, extension::private_pools, extension::sleep_mode>;

/// From the third free of a size on, allocates memory that is in use.
struct overlapping : sound {
  using sound::sound;
  void* try_allocate(std::size_t bytes, stream_id stream = {}) {
    if (freed[bytes] >= 3 && last != nullptr) return last;
    void* const p = sound::try_allocate(bytes, stream);
    sizes[p] = bytes;
    return last = p;
  }
  void deallocate(void* p) {
    ++freed[sizes[p]];
    if (p == last) last = nullptr;
    sound::deallocate(p);
  }
  void deallocate(void* p, std::size_t) { deallocate(p); }
  block_handle allocate_by_handle(std::size_t, stream_id) = delete;
  simulated_device& provider() { return sound::provider().inner(); }  // required by trace::replay
  std::map<std::size_t, int> freed;
  std::map<void*, std::size_t> sizes;
  void* last = nullptr;
};
/// Forgets which streams use a block.
struct forgetful : sound {
  using sound::sound;
  bool record_stream(void*, stream_id) { return true; }
  bool record_stream(block_handle, stream_id) { return true; }
};
/// Returns large blocks with an address below their beginning.
struct misplacing : sound {
  using sound::sound;
  void* try_allocate(std::size_t bytes, stream_id stream = {}) {
    auto* const p = static_cast<std::byte*>(sound::try_allocate(bytes, stream));
    return bytes > 5_MiB && p != nullptr ? p + 8 : p;
  }
  void deallocate(void* p) {
    sound::deallocate(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(p) / 64 * 64));
  }
  void deallocate(void* p, std::size_t) { deallocate(p); }
  block_handle allocate_by_handle(std::size_t, stream_id) = delete;
};
/// Counts too much cached memory after the first trim.
struct miscounting : sound {
  using sound::sound;
  void trim(std::size_t keep = 0) { sound::trim(keep), ++trims; }
  usage current_usage() const {
    usage counted = sound::current_usage();
    counted.cached += trims > 0 && counted.allocated > 0 ? 1 : 0;
    return counted;
  }
  int trims = 0;
};
/// Leaks blocks that are freed with their size.
struct leaking : sound {
  using sound::deallocate;
  using sound::sound;
  void deallocate(void* p, std::size_t bytes) {
    if (bytes < 1_MiB) sound::deallocate(p, bytes);
  }
};

/// Offers an extension by another door.
template <typename Base, typename E, typename Door>
struct by_another_door : Base {
  using Base::Base;
  template <typename Asked>
  [[nodiscard]] auto get() noexcept {
    if constexpr (std::is_same_v<Asked, E>) {
      return Door(*this);
    } else {
      return Base::template get<Asked>();
    }
  }
};
using pools_of_sound = extension::private_pools::door<sound>;
/// Opens no scope, but claims to.
struct deaf_door : pools_of_sound {
  using pools_of_sound::pools_of_sound;
  static outcome open(pool_id, scope_kind) noexcept { return {}; }
  static outcome open(pool_id, const extension::stream_filter&, scope_kind) noexcept { return {}; }
};
using deaf = by_another_door<sound, extension::private_pools, deaf_door>;
/// Does not close scopes.
struct stubborn_door : pools_of_sound {
  using pools_of_sound::pools_of_sound;
  static outcome close(pool_id) noexcept { return {}; }
};
using stubborn = by_another_door<sound, extension::private_pools, stubborn_door>;

using sleeping = caching_allocator<stitched, ref, extension::private_pools, extension::sleep_mode>;
using sleep_of_sleeping = extension::sleep_mode::door<sleeping>;
/// Claims to sleep.
struct sleepless_door : sleep_of_sleeping {
  using sleep_of_sleeping::sleep;
  using sleep_of_sleeping::sleep_of_sleeping;
  static extension::sleep_result sleep(pool_id, extension::sleep_contents, stream_id = {}) noexcept {
    return {};
  }
};
using sleepless = by_another_door<sleeping, extension::sleep_mode, sleepless_door>;

template <typename Pool>
composition planted(const char* name, unsigned pools = 0) {
  const auto make = []() -> std::unique_ptr<conformance::subject> {
    auto on = std::make_unique<conformance::simulated>();
    simulated_device& d = on->device;
    return std::make_unique<conformance::subject_of<Pool>>(std::move(on),
                                                           [&d] { return std::make_unique<Pool>(ref(d)); });
  };
  conformance::habits used = conformance::simulated_habits();
  used.seed = 1;
  used.settings = 0;
  used.pools = pools;
  used.sleeps = can_sleep<Pool>;
  return {name, make, {}, used};
}

/// The text about the first error that random operations find.
struct found {
  fault first;
  std::string message;
  program shortest;
};
found run(const composition& of) {
  conformance::author writing(of.used);
  program all;
  while (all.size() < 20'000) all.push_back(writing.next());
  found result;
  result.first = conformance::first_fault(*of.make(), of.kept, all);
  result.message = conformance::first_broken_rule(of, all.size(), 1);
  result.shortest = conformance::shrunk(of, all, result.first.what);
  return result;
}

/// Reads the file that a message names.
trace::recording named_in(const std::string& message) {
  const std::size_t from = message.find("also in ") + 8;
  const std::string path = message.substr(from, message.find(":\n", from) - from);
  const auto text = replay::read_file(path);
  auto read = trace::read_csv(std::get<std::string>(text), path);
  std::filesystem::remove(path);
  return std::get<trace::recording>(std::move(read));
}

/// Finds a planted error, and expects a program of this many operations in the trace.
template <typename Pool>
trace::recording expect(const char* name, const std::string& what, std::size_t operations,
                        unsigned pools = 0) {
  const composition of = planted<Pool>(name, pools);
  const found it = run(of);
  EXPECT_EQ(it.first.what, what);
  EXPECT_EQ(it.shortest.size(), operations) << it.message;
  EXPECT_NE(it.message.find(what), std::string::npos) << it.message;
  EXPECT_NE(it.message.find("TESSERA_SEED=1 "), std::string::npos);
  const trace::recording read = named_in(it.message);
  // A replay of the file fails in the same way. On a correct allocator it succeeds.
  const program again = conformance::program_of(read);
  EXPECT_EQ(again.size(), operations);
  EXPECT_EQ(conformance::first_fault(*of.make(), of.kept, again).what, what);
  const composition healthy = planted<sound>("sound", pools);
  EXPECT_EQ(conformance::first_fault(*healthy.make(), healthy.kept, again).what, "");
  return read;
}

TEST(model, accepts_a_correct_allocator) {
  EXPECT_EQ(conformance::first_broken_rule(planted<sound>("sound"), by_day(4'000, 20'000), 1), "");
  EXPECT_EQ(conformance::first_broken_rule(planted<sound>("sound", 3), by_day(4'000, 20'000), 1), "");
}

TEST(model, shows_overlapping_blocks_in_three_frees_and_two_allocations_more) {
  const trace::recording read = expect<overlapping>("overlapping", "a block overlaps one in use", 8);
  EXPECT_EQ(read.events.back().what, event::kind::allocate);
}
TEST(model, detects_a_forgotten_stream) {
  // Events are held. A block is allocated, recorded for another stream, freed, and allocated again.
  const trace::recording read =
      expect<forgetful>("forgetful", "a block is reused that another stream still uses", 5);
  EXPECT_EQ(read.events[2].what, event::kind::record_stream);
  EXPECT_EQ(read.events[4].what, event::kind::allocate);
}
TEST(model, shows_a_misaligned_block_by_one_allocation) {
  const trace::recording read = expect<misplacing>("misplacing", "a block is misaligned", 1);
  EXPECT_GT(read.events[0].bytes, 5_MiB);
  EXPECT_LE(read.events[0].bytes, 10_MiB + 2) << "half of it would do";
}
TEST(model, shows_wrong_numbers_by_a_trim_and_an_allocation) {
  (void)expect<miscounting>("miscounting", "usage does not add up", 2);
}
TEST(model, shows_a_lost_block_by_an_allocation_and_a_free) {
  (void)expect<leaking>("leaking", "more is requested than is held", 2);
}

TEST(model, shows_an_ignored_scope_by_its_begin_and_an_allocation) {
  const trace::recording read = expect<deaf>("deaf", "a request is served by another pool", 2, 1);
  EXPECT_EQ(read.events[0].what, event::kind::begin_pool);
}
TEST(model, shows_a_scope_that_stays_open_by_begin_end_and_an_allocation) {
  const trace::recording read = expect<stubborn>("stubborn", "a request is served by another pool", 3, 1);
  EXPECT_EQ(read.events[1].what, event::kind::end_pool);
}

TEST(model, shows_a_pool_that_does_not_sleep_by_a_sleep_and_an_allocation) {
  const found it = run(planted<sleepless>("sleepless"));
  EXPECT_EQ(it.first.what, "a request is served by a pool that sleeps");
  ASSERT_EQ(it.shortest.size(), 2u) << it.message;
  EXPECT_EQ(it.shortest[0].what, kind::sleep);
  EXPECT_NE(it.message.find("let sleep"), std::string::npos) << it.message;
}

// Does the same with the file as tessera-replay.
TEST(model, writes_files_that_can_be_replayed) {
  const trace::recording read = expect<overlapping>("overlapping_again", "a block overlaps one in use", 8);
  const trace::program source(read);
  simulated_device device;
  overlapping pool{ref(device)};
  conformance::ownership owned;
  bool overlapped = false;
  const auto after = [&](std::size_t i, void* p) {
    const event& e = source.events()[i];
    if (e.what == event::kind::allocate && p != nullptr) overlapped = overlapped || !owned.claim(p, e.bytes);
    if (e.what == event::kind::free && p != nullptr) owned.drop(p);
  };
  (void)trace::replay(source, pool, [](std::size_t) {}, after);
  EXPECT_TRUE(overlapped);
}

TEST(model, describes_operations_that_a_trace_lacks) {
  const program all{{.what = kind::trim, .amount = 50},
                    {.what = kind::retune, .amount = 3},
                    {.by_handle = true, .id = 7, .bytes = 100, .stream = stream_id{2}},
                    {.what = kind::free, .sized = true, .id = 7, .bytes = 100}};
  EXPECT_FALSE(conformance::is_all_in_a_trace(all));
  EXPECT_EQ(conformance::in_words(all[0]), "trim to 50 %");
  EXPECT_EQ(conformance::in_words(all[1]), "take settings 3");
  EXPECT_EQ(conformance::in_words(all[2]), "allocate 7, 100 bytes on stream 2, by handle");
  EXPECT_EQ(conformance::in_words(all[3]), "free 7, 100 bytes");
  const program counted{
      {.id = 7, .bytes = 100}, {.what = kind::hold, .amount = 1}, {.what = kind::free, .id = 7}};
  EXPECT_TRUE(conformance::is_all_in_a_trace(counted));
}

TEST(model, writes_the_same_program_for_the_same_seed) {
  conformance::author one(conformance::simulated_habits()), other(conformance::simulated_habits());
  conformance::habits differing = conformance::simulated_habits();
  ++differing.seed;
  conformance::author third(differing);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const conformance::operation o = one.next();
    ASSERT_EQ(o, other.next());
    differs = differs || o != third.next();
  }
  EXPECT_TRUE(differs);
}

}  // namespace
