// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/csv.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/to_chrome.hpp"

#include "json.hpp"

namespace {

using namespace tessera;
using state = snapshot::block::state;
using action = snapshot::action;

std::string chrome_text(const snapshot& source) {
  const auto made = replay::to_chrome(source);
  if (const auto* const error = std::get_if<trace::input_error>(&made)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<std::string>(made);
}
std::string refused(const snapshot& source) {
  const auto made = replay::to_chrome(source);
  const auto* const error = std::get_if<trace::input_error>(&made);
  return error != nullptr ? error->text() : "accepted";
}

/// The state that a viewer shows at the end of a trace.
struct shown {
  std::map<std::string, double> counters;             // by name, of device 0
  std::map<std::string, std::vector<double>> levels;  // the values of each
  std::set<std::string> names;                        // of slices
  std::vector<std::string> instants;
  std::map<std::size_t, std::string> threads;
  std::size_t slices = 0;
  std::size_t open_at_begin = 0;
};

/// Reads a trace as a viewer does, and checks its parts.
shown show(const std::string& text) {
  shown found;
  const auto read = json_reader::read(text);
  if (!read) {
    ADD_FAILURE() << "this is no JSON: " << text.substr(0, 2000);
    return found;
  }
  struct slice {
    std::string name;
    double begin;
    std::size_t thread;
  };
  std::map<std::string, slice> open;
  std::set<std::string> ids;
  std::map<double, std::set<double>> announced;  // threads of each process
  double begin = -1;
  for (const json& e : (*read)["traceEvents"].items) {
    const std::string phase = e["ph"].text;
    const std::string name = e["name"].text;
    EXPECT_EQ(e["pid"].is, json::kind::number);
    if (phase == "M") {
      if (name == "thread_name") {
        announced[e["pid"].number].insert(e["tid"].number);
        if (e["pid"].number == 0)
          found.threads[static_cast<std::size_t>(e["tid"].number)] = e["args"]["name"].text;
      }
      continue;
    }
    EXPECT_EQ(e["ts"].is, json::kind::number);
    if (begin < 0) begin = e["ts"].number;
    EXPECT_TRUE(announced[e["pid"].number].count(e["tid"].number) == 1) << name;
    if (phase == "C") {
      EXPECT_EQ(e["args"].fields.size(), 1u);
      if (e["pid"].number != 0) continue;
      found.counters[name] = e["args"]["bytes"].number;
      found.levels[name].push_back(e["args"]["bytes"].number);
    } else if (phase == "i") {
      EXPECT_EQ(e["s"].text, "t");
      found.instants.push_back(name);
    } else {
      EXPECT_EQ(e["cat"].text, "block");
      const std::string id = e["id"].text;
      if (phase == "b") {
        EXPECT_TRUE(ids.insert(id).second) << "an id twice";
        open[id] = {name, e["ts"].number, static_cast<std::size_t>(e["tid"].number)};
        found.names.insert(name);
        ++found.slices;
        found.open_at_begin += e["ts"].number == begin;
        continue;
      }
      EXPECT_TRUE(phase == "e" || phase == "n") << phase;
      const auto its = open.find(id);
      if (its == open.end()) {
        ADD_FAILURE() << "what does not live ends";
        continue;
      }
      EXPECT_EQ(its->second.name, name);
      EXPECT_EQ(its->second.thread, static_cast<std::size_t>(e["tid"].number));
      EXPECT_LE(its->second.begin, e["ts"].number);
      if (phase == "e") open.erase(its);
    }
  }
  EXPECT_TRUE(open.empty()) << open.size() << " slices do not end";
  return found;
}

struct ticks {
  std::uint64_t operator()() noexcept { return asked += 10; }
  std::uint64_t asked = 1'000'000;
};
using ticking = extension::observer<history<ticks>>;

TEST(to_chrome, numbers_streams_whose_handles_are_addresses) {
  caching_allocator<pytorch_family::native, simulated_device, ticking> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, ticking{history<ticks>(100)}};
  for (const std::uint64_t handle : {std::uint64_t{0x7f0012345670}, std::uint64_t{0xabcdef0}})
    (void)pool.allocate(512, stream_id{handle});
  const shown found = show(chrome_text(take_snapshot(pool)));
  EXPECT_EQ(found.threads.at(1), "stream 1 (0x7f0012345670)");
  EXPECT_EQ(found.threads.at(2), "stream 2 (0xabcdef0)");
}

TEST(to_chrome, shows_blocks_counters_and_calls) {
  caching_allocator<pytorch_family::native, simulated_device, ticking> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, ticking{history<ticks>(100)}};
  pool.get<ticking>().with([](auto& h) { h.label("say \"forward\"\xff"); });
  void* const p = pool.allocate(1_MiB + 1, stream_id{77});
  pool.get<ticking>().with([](auto& h) { h.label(""); });
  EXPECT_EQ(pool.try_allocate(25_MiB), nullptr);
  (void)pool.record_stream(p, stream_id{5});
  pool.provider().hold_events(true);
  pool.deallocate(p);
  void* const q = pool.allocate(100);
  (void)q;
  const std::string text = chrome_text(take_snapshot(pool));
  const shown found = show(text);
  EXPECT_EQ(found.names, (std::set<std::string>{"1.00 MiB say \"forward\"\xef\xbf\xbd", "100 B"}));
  EXPECT_EQ(found.slices, 2u);
  EXPECT_EQ(found.instants,
            (std::vector<std::string>{"segment_alloc", "refused", "refused", "oom", "segment_alloc"}));
  EXPECT_EQ(found.threads.at(0), "device calls");
  EXPECT_EQ(found.threads.at(1), "stream 77");
  EXPECT_EQ(found.threads.at(2), "default stream");
  EXPECT_EQ(found.levels.at("live"), (std::vector<double>{0, 1_MiB + 512, 0, 512}));
  EXPECT_EQ(found.levels.at("requested"), (std::vector<double>{0, 1_MiB + 1, 1_MiB + 101}))
      << "the freed block is still used";
  EXPECT_EQ(found.levels.at("reserved"), (std::vector<double>{0, 20_MiB, 22_MiB}));
  pool.provider().hold_events(false);
  // Freed while another stream uses it: its slice continues, with a mark.
  EXPECT_NE(text.find("{\"ph\":\"n\""), std::string::npos);
  EXPECT_NE(text.find("\"device_free\":10485760"), std::string::npos);
}

TEST(to_chrome, names_the_private_pools_of_blocks_and_calls) {
  caching_allocator<pytorch_family::native, simulated_device, ticking, extension::private_pools> on{
      simulated_device{}, {}, ticking{history<ticks>(4)}};
  extension::private_pool pool(on);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    (void)on.allocate(2_MiB);  // before the history, which is too short for it
    (void)on.allocate(30_MiB);
  }
  (void)on.allocate(3_MiB);
  const std::string text = chrome_text(take_snapshot(on));
  const std::string inside = "[0 " + std::to_string(pool.id().number) + "]";
  std::vector<std::pair<std::string, std::string>> found;
  const auto read = json_reader::read(text);
  ASSERT_TRUE(read);
  for (const json& e : (*read)["traceEvents"].items) {
    if (e["ph"].text != "b" && e["ph"].text != "i") continue;
    std::string numbers;
    for (const json& n : e["args"]["private_pool"].items)
      numbers += (numbers.empty() ? "[" : " ") + std::to_string(static_cast<int>(n.number));
    found.emplace_back(e["name"].text, numbers.empty() ? "none" : numbers + "]");
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::string, std::string>>{{"2.00 MiB", inside},
                                                                     {"segment_alloc", inside},
                                                                     {"30.00 MiB", inside},
                                                                     {"segment_alloc", "none"},
                                                                     {"3.00 MiB", "none"}}));
}

template <typename Recipe>
void expect_counters_of_statistics(std::size_t kept) {
  caching_allocator<Recipe, simulated_device, ticking> pool{
      simulated_device{simulated_device::options{.capacity = 200_MiB}}, {}, ticking{history<ticks>(kept)}};
  std::mt19937 dice(3);
  std::vector<void*> live;
  for (int i = 0; i < 3000; ++i) {
    const auto choice = dice() % 100;
    if (choice < 50 || live.empty()) {
      const std::size_t size = std::size_t{1} << (8 + dice() % 17);
      if (void* const p = pool.try_allocate(size + dice() % size, stream_id{dice() % 3})) live.push_back(p);
    } else if (choice < 95) {
      std::swap(live[dice() % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    } else {
      (void)pool.record_stream(live[dice() % live.size()], stream_id{dice() % 3});
      pool.provider().hold_events(choice == 95);
    }
  }
  const snapshot seen = take_snapshot(pool);
  const auto counted = pool.statistics().all;
  const shown found = show(chrome_text(seen));
  EXPECT_EQ(found.counters.at("reserved"), static_cast<double>(counted.reserved_bytes.current));
  EXPECT_EQ(found.counters.at("live"), static_cast<double>(counted.allocated_bytes.current));
  EXPECT_EQ(found.counters.at("requested"), static_cast<double>(counted.requested_bytes.current));
  EXPECT_GT(counted.allocated_bytes.current, 0);
  const double first = found.levels.at("reserved").front();
  if (kept > 10'000) {
    EXPECT_EQ(first, 0.0);
    EXPECT_EQ(found.slices, static_cast<std::size_t>(counted.allocation.allocated));
    EXPECT_EQ(found.levels.at("live").front(), 0.0);
  } else {
    EXPECT_GT(first, 0.0) << "nothing was forgotten";
    EXPECT_GT(found.open_at_begin, 0u);
  }
}

TEST(to_chrome, counters_end_as_the_statistics) {
  for (const std::size_t kept : {100'000u, 500u}) {
    expect_counters_of_statistics<pytorch_family::native>(kept);
    expect_counters_of_statistics<pytorch_family::expandable>(kept);
    expect_counters_of_statistics<stitched>(kept);
    expect_counters_of_statistics<cuda_async>(kept);
  }
}

/// A device with one live block and 1 MiB that is free.
snapshot plain() {
  snapshot s;
  s.name = "file";
  s.segments.push_back(
      {.address = 1_MiB, .size = 2_MiB, .blocks = {{1_MiB, 1_MiB, 1'000'000, state::live}, {2_MiB, 1_MiB}}});
  return s;
}

TEST(to_chrome, a_state_without_history_is_shown_too) {
  const shown found = show(chrome_text(plain()));
  EXPECT_EQ(found.slices, 1u);
  EXPECT_EQ(found.names, std::set<std::string>{"976.56 KiB"});
  EXPECT_EQ(found.counters.at("reserved"), 2097152.0);
  EXPECT_EQ(found.counters.at("live"), 1048576.0);
  EXPECT_EQ(show(chrome_text(snapshot{})).slices, 0u);
}

TEST(to_chrome, omits_unknown_values) {
  snapshot s = plain();
  s.traces.resize(1);
  s.traces[0] = {{.what = action::alloc, .address = 1_MiB, .size = 1'000'000}};
  const std::string text = chrome_text(s);
  const shown found = show(text);
  EXPECT_EQ(found.counters.count("live"), 0u) << "the snapshot does not tell the sizes of freed blocks";
  EXPECT_EQ(found.levels.at("requested"), (std::vector<double>{0, 1'000'000}));
  EXPECT_EQ(text.find("\"ts\":1,"), std::string::npos);
  s.traces[0].insert(s.traces[0].begin(), {.what = action::segment_alloc, .address = 1_MiB, .size = 2_MiB});
  EXPECT_NE(chrome_text(s).find("\"ts\":1,"), std::string::npos) << "without times, entries come one by one";
}

TEST(to_chrome, shows_annotations) {
  snapshot s = plain();
  s.annotations = {{"optimizer\n", true, 0, 5}, {"optimizer\n", false, 0, 6}, {"elsewhere", true, 4, 7}};
  EXPECT_EQ(show(chrome_text(s)).instants, (std::vector<std::string>{"optimizer\n", "optimizer\n"}));
}

TEST(to_chrome, refuses_a_history_that_contradicts_itself) {
  const auto with = [](std::vector<snapshot::entry> entries) {
    snapshot s = plain();
    s.traces.push_back(std::move(entries));
    return refused(s);
  };
  const snapshot::entry alloc{.what = action::alloc, .address = 1_MiB, .size = 5};
  const snapshot::entry requested{.what = action::free_requested, .address = 1_MiB, .size = 5};
  const snapshot::entry completed{.what = action::free_completed, .address = 1_MiB, .size = 5};
  EXPECT_EQ(with({alloc}), "accepted");
  EXPECT_EQ(with({completed, alloc}), "accepted");
  EXPECT_EQ(with({requested, completed, alloc}), "accepted");
  EXPECT_EQ(with({alloc, alloc}), "file: device 0: entry 1: allocates a block that is live already");
  EXPECT_EQ(with({alloc, requested, requested}), "file: device 0: entry 2: frees a block that is not live");
  EXPECT_EQ(with({completed, completed}), "file: device 0: entry 1: frees a block that is not live");
  EXPECT_EQ(with({completed}), "file: device 0: the block at 1048576 is live and was freed");
  snapshot::entry other = alloc;
  other.address = 2_MiB;
  EXPECT_EQ(with({other}), "file: device 0: the block at 2097152 is free and was not freed");
  other.address = 5_MiB;
  EXPECT_EQ(with({other}), "file: device 0: the block at 5242880 was not freed and is in no segment");
}

TEST(to_chrome, inconsistent_numbers_do_no_harm) {
  snapshot s = plain();
  s.traces.resize(1);
  for (int i = 0; i < 100; ++i)
    s.traces[0].push_back({.what = action::segment_free, .address = ~std::uint64_t{0}, .size = max_request});
  EXPECT_EQ(show(chrome_text(s)).counters.at("reserved"), 2097152.0);
}

TEST(to_chrome, shows_snapshots_of_real_devices) {
  const std::filesystem::path folder = TESSERA_SHARED_DIR "/snapshots";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the snapshots do not lie beside the checkout";
  for (const char* const name : {"decomfl.pickle", "magma_transformer.pickle", "state_only_oom.pickle"}) {
    const auto file = replay::read_file((folder / name).string());
    const auto read = replay::read_snapshot(std::get<std::string>(file), name);
    const auto& source = std::get<snapshot>(read);
    std::size_t reserved = 0, requested = 0;
    for (const snapshot::segment& s : source.segments) {
      reserved += s.size;
      requested += s.count_bytes().requested;
    }
    const shown found = show(chrome_text(source));
    EXPECT_EQ(found.counters.at("reserved"), static_cast<double>(reserved)) << name;
    EXPECT_EQ(found.counters.at("requested"), static_cast<double>(requested)) << name;
    EXPECT_GT(found.slices, 100u) << name;
  }
}

}  // namespace
