// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/trace/csv.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/pickle.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/to_chrome.hpp"
#include "tessera_replay/to_rmm.hpp"

#include "viewer.hpp"

namespace {

using namespace tessera;
using namespace tessera::trace;
using tessera::detail::pytorch_actions;
using namespace replay;
using tessera::detail::pickle_writer;
using kind = pickled::kind;
using state = snapshot::block::state;
using action = snapshot::action;

std::string pickled_text(const snapshot& source) { return to_pickle(source); }
snapshot read_back(const std::string& bytes, const std::string& name = "") {
  auto read = read_snapshot(bytes, name);
  if (const auto* error = std::get_if<input_error>(&read)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<snapshot>(std::move(read));
}

TEST(pickle_writer, writes_every_integer) {
  std::vector<std::int64_t> all;
  for (int bits = 0; bits < 63; ++bits) {
    for (const std::int64_t near : {-1, 0, 1}) {
      all.push_back((std::int64_t{1} << bits) + near);
      all.push_back(-(std::int64_t{1} << bits) + near);
    }
  }
  all.push_back(std::numeric_limits<std::int64_t>::max());
  all.push_back(std::numeric_limits<std::int64_t>::min());
  std::string out;
  pickle_writer to(out);
  to.list(all, [&](std::int64_t n) { to.integer(n); });
  to.end();
  EXPECT_EQ(viewer::refuses(out), "");
  const auto read = read_pickle(out, "file");
  ASSERT_TRUE(std::holds_alternative<pickle>(read)) << std::get<input_error>(read).text();
  const pickle& plain = std::get<pickle>(read);
  ASSERT_EQ(plain.root().items.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(plain[plain.root().items[i]].integer, all[i]);
}

TEST(pickle_writer, an_integer_takes_few_bytes) {
  const auto bytes_of = [](std::int64_t n) {
    std::string out;
    pickle_writer(out).integer(n);
    return out.substr(2);
  };
  EXPECT_EQ(bytes_of(255), "K\xff");
  EXPECT_EQ(bytes_of(256), std::string("M\0\1", 3));
  EXPECT_EQ(bytes_of(-1), "J\xff\xff\xff\xff");
  EXPECT_EQ(bytes_of(std::int64_t{1} << 31), std::string("\x8a\x05\0\0\0\x80\0", 7));
  EXPECT_EQ(bytes_of(-(std::int64_t{1} << 31) - 1), "\x8a\x05\xff\xff\xff\x7f\xff");
}

TEST(pickle_writer, texts_and_numbers_that_do_not_fit) {
  std::string out;
  pickle_writer to(out);
  to.dict([&] {
    to.text("long"), to.text(std::string(300, 'x'));
    to.text("longest"), to.text(std::string(2_MiB, 'x'));
    to.text("any bytes"), to.text("\xff");
    to.text("most"), to.natural(unlimited);
    to.text("half"), to.real(0.5);
    to.text("yes"), to.boolean(true);
    to.text("none"), to.none();
  });
  to.end();
  EXPECT_EQ(viewer::refuses(out), "");
  const auto read = read_pickle(out, "file");
  const pickle& plain = std::get<pickle>(read);
  EXPECT_EQ(plain.find(plain.root(), "long")->text, std::string(300, 'x'));
  EXPECT_EQ(plain.find(plain.root(), "longest")->text.size(), 1_MiB);
  EXPECT_EQ(plain.find(plain.root(), "any bytes")->text, "\xef\xbf\xbd");
  EXPECT_EQ(plain.find(plain.root(), "most")->integer, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(plain.find(plain.root(), "half")->real, 0.5);
  EXPECT_EQ(plain.find(plain.root(), "yes")->integer, 1);
  EXPECT_EQ(plain.find(plain.root(), "none")->is, kind::none);
}

TEST(pickle_writer, literals_are_written_once) {
  std::string out;
  pickle_writer to(out);
  std::vector<std::string> words;
  for (int i = 0; i < 100; ++i) words.push_back("word " + std::to_string(i));
  to.dict([&] {
    for (int round = 0; round < 2; ++round) {
      for (const std::string& w : words) to.literal(w), to.integer(round);
    }
  });
  to.end();
  EXPECT_EQ(viewer::refuses(out), "");
  const auto read = read_pickle(out, "file");
  ASSERT_TRUE(std::holds_alternative<pickle>(read)) << std::get<input_error>(read).text();
  for (const std::string& w : words) {
    ASSERT_NE(std::get<pickle>(read).find(std::get<pickle>(read).root(), w), nullptr) << w;
    EXPECT_EQ(std::get<pickle>(read).find(std::get<pickle>(read).root(), w)->integer, 1);
  }
  EXPECT_EQ(out.find("word 7"), out.rfind("word 7\x71")) << "the second time it is named by number";
}

/// A snapshot with a value in every field.
snapshot full() {
  snapshot s;
  call_stack_builder table(s.stacks);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::uint32_t inner =
        table.add_frame({table.add_text("f" + std::to_string(i)), table.add_text("a.py"), i - 1ull});
    const std::uint32_t outer = table.add_frame({table.add_text("main"), table.add_text("b.py"), 1'000'000});
    table.add_stack(std::vector<std::uint32_t>{inner, outer, outer});
  }
  s.segments.push_back({.device = 0,
                        .address = std::uint64_t{1} << 47,
                        .size = 20_MiB,
                        .stream = stream_id{~std::uint64_t{0}},
                        .large = true,
                        .pool = {3, 4},
                        .expandable = true,
                        .stack = 1,
                        .blocks = {{std::uint64_t{1} << 47, 5_MiB, 5_MiB - 7, state::live, 2},
                                   {(std::uint64_t{1} << 47) + 5_MiB, 5_MiB, 1, state::pending, 1},
                                   {(std::uint64_t{1} << 47) + 10_MiB, 10_MiB, 0, state::free}}});
  s.segments.push_back({.device = 2, .address = 4096, .size = 2_MiB, .blocks = {{4096, 2_MiB}}});
  s.traces.resize(3);
  for (std::size_t what = 0; what < std::size(pytorch_actions); ++what) {
    snapshot::entry e{.what = pytorch_actions[what].first,
                      .stack = static_cast<std::uint32_t>((what + 2) % 4),
                      .size = 100 + what,
                      .block = what % 2 * 512,
                      .stream = stream_id{0x7f8a'3800'1020},
                      .time_us = 1'773'270'053'883'781 + what,
                      .pool = {0, what},
                      .label = what % 3 == 0 ? "" : "\xf0\x9f\x98\x80 \"forward\""};
    if (e.what == action::oom) e.device_free = 12345;
    if (e.what < action::sleep) e.address = 0x7f00'0000'0000 + what;
    s.traces[0].push_back(e);
  }
  s.host_segments.push_back(
      {.address = 8192, .size = 1_MiB, .stack = 3, .blocks = {{8192, 1_MiB, 1_MiB - 1, state::live, 3}}});
  s.host_traces = {{{.what = action::alloc, .stack = 3, .address = 8192, .size = 1_MiB - 1, .time_us = 5}},
                   {}};
  s.annotations = {{"step", true, 0, 17}, {"step", false, 0, 18}};
  s.configured.conf = "max_split_size_mb:32";
  s.configured.recipe = "tessera::recipe::pytorch<>";
  s.configured.max_split_size = 32_MiB;
  s.configured.garbage_collection_threshold = 0.8;
  s.configured.expandable_segments = true;
  for (std::uint32_t slot = 0; slot < 16; ++slot) s.configured.roundup_power2_divisions[slot] = 1u << slot;
  return s;
}

TEST(to_pickle, keeps_every_field) {
  const std::string bytes = pickled_text(full());
  EXPECT_EQ(viewer::refuses(bytes), "");
  EXPECT_EQ(read_back(bytes), full());
}

TEST(to_pickle, writes_each_stack_once) {
  snapshot s = full();
  const std::size_t once = pickled_text(s).size();
  for (std::size_t i = 0; i < 1000; ++i)
    s.traces[0].push_back(
        {.what = action::segment_free, .stack = 1 + static_cast<std::uint32_t>(i % 3), .size = 1});
  EXPECT_LT(pickled_text(s).size() - once, 1000 * 80u);
  EXPECT_EQ(viewer::refuses(pickled_text(s)), "");
  EXPECT_EQ(read_back(pickled_text(s)), s);
  // More stacks than one byte can number.
  snapshot many;
  many.traces.resize(1);
  call_stack_builder table(many.stacks);
  for (std::uint32_t i = 0; i < 700; ++i) {
    const std::vector<std::uint32_t> one{table.add_frame({table.add_text(std::to_string(i)), 1, i})};
    for (int twice = 0; twice < 2; ++twice)
      many.traces[0].push_back({.what = action::segment_free, .stack = table.add_stack(one), .size = 1});
  }
  EXPECT_EQ(viewer::refuses(pickled_text(many)), "");
  EXPECT_EQ(read_back(pickled_text(many)), many);
}

TEST(to_pickle, host_memory_is_of_no_device) {
  const std::string bytes = pickled_text(full());
  const auto read = read_pickle(bytes, "file");
  const pickle& plain = std::get<pickle>(read);
  const pickled& segment = plain[plain.find(plain.root(), "host_segments")->items.at(0)];
  EXPECT_EQ(plain.find(segment, "device")->integer, -1);
  snapshot without = full();
  without.host_segments.clear();
  without.host_traces.clear();
  EXPECT_EQ(pickled_text(without).find("host_"), std::string::npos) << "as PyTorch wrote none before";
  EXPECT_EQ(read_back(pickled_text(without)).host_segments.size(), 0u);
}

TEST(read_snapshot, host_memory_of_another_form_is_left_out) {
  const auto with_host = [](auto segments, auto traces) {
    std::string out;
    pickle_writer to(out);
    to.dict([&] {
      to.literal("segments"), to.empty_list();
      to.literal("device_traces"), to.empty_list();
      to.literal("host_segments"), segments(to);
      to.literal("host_traces"), traces(to);
    });
    to.end();
    return read_back(out);
  };
  const std::vector<int> one{1};
  const auto none = [](auto& to) { to.none(); };
  const auto entries = [&](auto& to) {
    to.list(one, [&](int) {
      to.dict([&] {
        to.literal("action"), to.literal("alloc");
        to.literal("addr"), to.integer(7), to.literal("size"), to.integer(8), to.literal("stream"),
            to.integer(9);
      });
    });
  };
  EXPECT_EQ(with_host(none, entries).host_traces,
            (std::vector<std::vector<snapshot::entry>>{
                {{.what = action::alloc, .address = 7, .size = 8, .stream = stream_id{9}}}}))
      << "one history without a list around it";
  const auto wrong = [&](auto& to) { to.list(one, [&](int) { to.dict([] {}); }); };
  EXPECT_EQ(with_host(wrong, entries), snapshot{});
  EXPECT_EQ(with_host(none, wrong), snapshot{});
  EXPECT_EQ(with_host(none, [&](auto& to) { to.list(one, [&](int) { to.none(); }); }), snapshot{});
}

TEST(to_pickle, has_the_keys_that_viewers_read) {
  const std::string bytes = pickled_text(full());
  const auto read = read_pickle(bytes, "file");
  const pickle& plain = std::get<pickle>(read);
  const auto& first_of = [&](const pickled& list) -> const pickled& { return plain[list.items.at(0)]; };
  const pickled& segments = *plain.find(plain.root(), "segments");
  const pickled& segment = first_of(segments);
  const auto integer = [&](const pickled& dict, const char* key) {
    const pickled* const found = plain.find(dict, key);
    return found != nullptr ? found->integer : -77;
  };
  EXPECT_EQ(integer(segment, "allocated_size"), static_cast<std::int64_t>(5_MiB));
  EXPECT_EQ(integer(segment, "active_size"), static_cast<std::int64_t>(10_MiB));
  EXPECT_EQ(integer(segment, "requested_size"), static_cast<std::int64_t>(5_MiB - 6));
  EXPECT_EQ(integer(segment, "stream"), -1) << "as PyTorch writes such handles";
  EXPECT_EQ(plain.find(segment, "segment_type")->text, "large");
  EXPECT_EQ(plain.find(segment, "segment_pool_id")->items.size(), 2u);
  EXPECT_EQ(plain.find(segment, "frames")->is, kind::list);
  const pickled& blocks = *plain.find(segment, "blocks");
  const char* const states[] = {"active_allocated", "active_pending_free", "inactive"};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain.find(plain[blocks.items[i]], "state")->text, states[i]);
    EXPECT_EQ(plain.find(plain[blocks.items[i]], "frames")->is, kind::list);
  }
  const pickled& trace = first_of(*plain.find(plain.root(), "device_traces"));
  ASSERT_EQ(trace.items.size(), std::size(pytorch_actions));
  for (const std::uint32_t item : trace.items) {
    const pickled& entry = plain[item];
    const bool is_oom = plain.find(entry, "action")->text == "oom";
    EXPECT_EQ(plain.find(entry, "addr") == nullptr, is_oom);
    EXPECT_EQ(plain.find(entry, "device_free") != nullptr, is_oom);
    EXPECT_EQ(plain.find(entry, "compile_context")->text, "N/A");
    EXPECT_EQ(plain.find(entry, "frames")->is, kind::list);
  }
  snapshot unbound = full();
  unbound.configured.max_split_size = unlimited;
  const std::string again = pickled_text(unbound);
  const auto read_again = read_pickle(again, "file");
  const pickle& other = std::get<pickle>(read_again);
  const pickled& settings = *other.find(other.root(), "allocator_settings");
  EXPECT_EQ(other.find(settings, "max_split_size")->integer, -1);
  EXPECT_EQ(other.find(settings, "garbage_collection_threshold")->is, kind::real);
}

TEST(to_pickle, a_device_without_history_has_an_empty_one) {
  snapshot s = full();
  s.traces.clear();
  EXPECT_EQ(read_back(pickled_text(s)).traces.size(), 3u) << "the viewer shows devices that have a list";
}

TEST(to_pickle, omits_actions_that_pytorch_does_not_have) {
  snapshot s = full();
  const auto kept = s.traces[0];
  for (const action what : {action::range_reserve, action::range_release, action::refused, action::other})
    s.traces[0].insert(s.traces[0].begin() + 3, {.what = what, .size = 7});
  EXPECT_EQ(read_back(pickled_text(s)).traces[0], kept);
}

TEST(to_pickle, writes_long_lists_in_batches) {
  snapshot s;
  s.traces.resize(1);
  for (std::size_t i = 0; i < 12'345; ++i)
    s.traces[0].push_back({.what = action::alloc, .address = i * 512, .size = i, .block = i + 1});
  s.segments.push_back({.address = 512, .size = 25'000 * 512});
  for (std::size_t i = 1; i <= 25'000; ++i)
    s.segments[0].blocks.push_back({i * 512, 512, i % 512, state::live});
  const std::string bytes = pickled_text(s);
  EXPECT_EQ(viewer::refuses(bytes), "");
  EXPECT_EQ(read_back(bytes), s);
  EXPECT_LT(bytes.size(), 3'000'000u) << "keys are not written again and again";
}

TEST(to_pickle, keeps_snapshots_of_real_devices) {
  const std::filesystem::path folder = TESSERA_SHARED_DIR "/snapshots";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the snapshots do not lie beside the checkout";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".pickle") continue;
    const std::string name = entry.path().filename().string();
    const auto file = read_file(entry.path().string());
    const snapshot source = read_back(std::get<std::string>(file), name);
    const std::string bytes = pickled_text(source);
    EXPECT_EQ(viewer::refuses(bytes), "") << name;
    EXPECT_EQ(read_back(bytes, name), source) << name;
    EXPECT_FALSE(source.segments.empty());
    ++seen;
  }
  EXPECT_GE(seen, 10);
}

TEST(read_snapshot, reads_all_versions) {
  snapshot s = full();
  s.traces[0][8].label.clear();
  const std::string bytes = pickled_text(s);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = bytes;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return changed;
  };
  // PyTorch's documents write awaiting, PyTorch writes pending.
  EXPECT_EQ(read_back(replaced("\x8c\x13"
                               "active_pending_free",
                               "\x8c\x14"
                               "active_awaiting_free")),
            s);
  const auto rule = [](const std::string& text) {
    const auto read = read_snapshot(text, "file");
    const auto* error = std::get_if<input_error>(&read);
    return error != nullptr ? error->rule : "accepted";
  };
  EXPECT_EQ(rule(replaced("time_us", "timeXus")), "accepted");
  EXPECT_EQ(rule(replaced("device_free", "deviceXfree")), "accepted");
  EXPECT_EQ(rule(replaced("user_metadata", "user_metaXata")), "accepted");
  EXPECT_EQ(rule(replaced("external_annotations", "externalXannotations")), "accepted");
}

TEST(read_snapshot, accepts_any_value_that_no_decision_depends_on) {
  std::string out;
  pickle_writer to(out);
  const std::vector<int> one{1};
  const std::vector<int> three{1, 2, 3}, four{1, 2, 3, 4};
  to.dict([&] {
    to.literal("segments"), to.empty_list();
    to.literal("device_traces");
    to.list(one, [&](int) {
      to.list(four, [&](int n) {
        constexpr const char* actions[] = {"alloc", "oom", "annotate", "workspace_snapshot"};
        to.dict([&] {
          to.literal("action"), to.literal(actions[n - 1]);
          if (n == 1)
            to.literal("addr"), to.integer(7), to.literal("size"), to.integer(8), to.literal("stream"),
                to.integer(9);
          to.literal("time_us"), to.real(1.5);
          to.literal("pool_id"), to.integer(3);
          to.literal("user_metadata"), to.none();
          to.literal("device_free"), to.integer(-1);
          to.literal("frames"), to.integer(n);
        });
      });
    });
    to.literal("external_annotations");
    to.list(three, [&](int n) {
      if (n == 1) return to.none();
      to.dict([&] {
        to.literal("name"), to.literal("step");
        to.literal("stage"), to.literal("END");
        to.literal("device"), to.integer(n == 2 ? -1 : 65536);
      });
    });
    to.literal("allocator_settings"), to.dict([&] { to.literal("expandable_segments"), to.integer(1); });
  });
  to.end();
  const snapshot seen = read_back(out);
  ASSERT_EQ(seen.traces.size(), 1u);
  EXPECT_EQ(seen.traces[0], (std::vector<snapshot::entry>{
                                {.what = action::alloc, .address = 7, .size = 8, .stream = stream_id{9}},
                                {.what = action::oom},
                                {.what = action::annotate},
                                {.what = action::other}}));
  EXPECT_EQ(seen.annotations, (std::vector<snapshot::annotation>{{.name = "step"}}));
  EXPECT_TRUE(seen.configured.expandable_segments);
}

TEST(read_snapshot, refuses_a_device_number_that_would_make_a_long_list) {
  snapshot s = full();
  s.segments[1].device = 65535;
  EXPECT_EQ(read_back(pickled_text(s)).segments[1].device, 65535u);
  // The number follows the second "device", which is a reference to the memo there.
  std::string bytes = pickled_text(full());
  const std::size_t at = bytes.find(std::string("K\x02h", 3));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 2, std::string("J\0\0\1\0", 5));
  const auto read = read_snapshot(bytes, "file");
  ASSERT_TRUE(std::holds_alternative<input_error>(read));
  EXPECT_EQ(std::get<input_error>(read).rule, "'device' is 65536; less than 65536 are read");
}

TEST(read_snapshot, refuses_segments_that_overlap) {
  snapshot s = full();
  const auto& first = s.segments[0];
  auto& second = s.segments[1];
  second.device = first.device;
  second.address = first.address + 512;
  std::uint64_t at = second.address;
  for (auto& b : second.blocks) b.address = at, at += b.size;
  const auto read = read_snapshot(pickled_text(s), "file");
  ASSERT_TRUE(std::holds_alternative<input_error>(read));
  EXPECT_EQ(std::get<input_error>(read).rule, "two segments overlap");
}

TEST(read_snapshot, handles_any_mutation_and_accepted_ones_can_be_written) {
  const std::string whole = pickled_text(full());
  constexpr std::string_view letters =
      std::string_view("KMJGNX}](eu.qh\x86\x88\x89\x8a\x8c\0\1\2\x7f\xff", 23);
  std::mt19937 random(12);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (auto changes = random() % 2 + 1; changes > 0; --changes) {
      const std::size_t at = 2 + random() % (bytes.size() - 2);
      const bool any = random() % 2 == 0;
      const char c = any ? static_cast<char>(random() % 256) : letters[random() % letters.size()];
      switch (random() % 8) {
        case 0: bytes.insert(at, 1, c); break;
        case 1: bytes.erase(at, 1); break;
        default: bytes[at] = c;
      }
    }
    const auto read = read_snapshot(bytes, "file");
    if (std::holds_alternative<input_error>(read)) continue;
    ++accepted;
    const snapshot& seen = std::get<snapshot>(read);
    const std::string again = pickled_text(seen);
    ASSERT_EQ(viewer::refuses(again), "");
    ASSERT_TRUE(pickled_text(read_back(again, "file")) == again);
    const auto chrome = to_chrome(seen);
    if (const auto* const text = std::get_if<std::string>(&chrome)) {
      ASSERT_TRUE(text->ends_with("]}\n"));
    }
    (void)to_rmm(seen, 0);
    (void)recording_of(seen);
  }
  EXPECT_GT(accepted, 3000);
}

}  // namespace
