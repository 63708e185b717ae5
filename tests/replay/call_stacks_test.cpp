// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/call_site.hpp"
#include "tessera_replay/files.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/to_chrome.hpp"

namespace {

using namespace tessera::trace;
using replay::call_site;
using namespace replay;
using tessera::detail::pickle_writer;
using namespace std::string_literals;

struct call {
  std::string file;
  std::uint64_t line = 0;
  std::string function{};
};

/// The line that is shown for these calls, innermost first.
std::string line_of(const std::vector<call>& calls) {
  snapshot::call_stacks table;
  call_stack_builder to(table);
  std::vector<std::uint32_t> places;
  for (const call& c : calls)
    places.push_back(to.add_frame({to.add_text(c.file), to.add_text(c.function), c.line}));
  return call_site(table, to.add_stack(places));
}

TEST(call_stacks, are_stored_once) {
  snapshot::call_stacks table;
  call_stack_builder to(table);
  EXPECT_EQ(to.add_text(""), 0u);
  EXPECT_EQ(to.add_text("a"), 1u);
  EXPECT_EQ(to.add_text("b"), 2u);
  EXPECT_EQ(to.add_text("a"), 1u);
  EXPECT_EQ(to.add_frame({1, 2, 3}), 0u);
  EXPECT_EQ(to.add_frame({1, 2, 4}), 1u);
  EXPECT_EQ(to.add_frame({1, 2, 3}), 0u);
  const std::vector<std::uint32_t> one{0, 1}, other{1}, longer{0, 1, 1};
  EXPECT_EQ(to.add_stack({}), 0u);
  EXPECT_EQ(to.add_stack(one), 1u);
  EXPECT_EQ(to.add_stack(other), 2u);
  EXPECT_EQ(to.add_stack(longer), 3u);
  EXPECT_EQ(to.add_stack(one), 1u);
  EXPECT_EQ(std::vector<std::uint32_t>(table.stack(1).begin(), table.stack(1).end()), one);
  EXPECT_EQ(std::vector<std::uint32_t>(table.stack(3).begin(), table.stack(3).end()), longer);
  EXPECT_TRUE(table.stack(0).empty());
  EXPECT_EQ(table.text(2), "b");
  EXPECT_EQ(table.frame_at(1).line, 4u);
  EXPECT_EQ(table.stacks(), 3u);
}

TEST(call_site, is_that_of_the_innermost_call_outside_pytorch) {
  const call ours{"/home/me/train.py", 12, "forward"};
  const call outer{"/home/me/main.py", 3, "<module>"};
  const call of_torch{"/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", 106, "__init__"};
  EXPECT_EQ(line_of({ours, outer}), "/home/me/train.py:12 in forward");
  EXPECT_EQ(line_of({of_torch, ours, outer}), "/home/me/train.py:12 in forward");
  EXPECT_EQ(line_of({of_torch}), "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py:106 in __init__");
  EXPECT_EQ(line_of({{"??", 0, "c10::malloc"}, {"CUDACachingAllocator.cpp", 0, "malloc"}, of_torch, ours}),
            "/home/me/train.py:12 in forward");
  EXPECT_EQ(line_of({{"??", 0, "_start"}, {"", 0, "empty"}, {"TensorImpl.cpp", 0, "~TensorImpl()"}}),
            "TensorImpl.cpp in ~TensorImpl()");
  EXPECT_EQ(line_of({{"??", 0, "_start"}}), "?? in _start");
  // The backward pass runs in threads without Python.
  const std::string generated = "torch::autograd::generated::";
  EXPECT_EQ(line_of({{"??", 0, "at::empty"},
                     {"memory_snapshot.cpp", 0, "gather()"},
                     {"Functions.cpp", 0, generated + "MmBackward0_apply_functional(at::Tensor&)"},
                     {"??", 0, generated + "MmBackward0::apply(at::Tensor&&)"},
                     {"??", 0, generated + "OuterBackward0::apply(at::Tensor&&)"}}),
            "MmBackward0::apply");
  EXPECT_EQ(line_of({{"memory_snapshot.cpp", 0, "gather()"},
                     {"??", 0, "torch::autograd::AccumulateGrad::apply(at::Tensor&&)"}}),
            "AccumulateGrad::apply");
  EXPECT_EQ(line_of({{"??", 0, generated + "MmBackward0::apply(at::Tensor&&)"}, {"a.py", 3, "f"}}),
            "a.py:3 in f");
  EXPECT_EQ(line_of({{"??", 0, generated}}), "?? in " + generated);
  EXPECT_EQ(line_of({}), "");
}
TEST(call_site, recognizes_files_of_pytorch) {
  const call ours{"train.py", 1, "f"};
  for (const char* const file :
       {"/x/site-packages/torch/functional.py", "D:\\x\\Lib\\site-packages\\torch\\functional.py",
        "/opt/pytorch/torch/_tensor.py", "/x/site-packages/torch_npu/npu/memory.py",
        "/tmp/torchinductor_me/bc/cbc.py", "<eval_with_key>.12", "<frozen runpy>"})
    EXPECT_EQ(line_of({{file, 5, "g"}, ours}), "train.py:1 in f") << file;
  for (const char* const file :
       {"/home/me/torch/train.py", "/x/site-packages/torchvision/ops.py", "/x/site-packages/torch.py",
        "torch/a.py", "<stdin>", "<ipython-input-3-a>", "/tmp/ipykernel_7/9.py", "/pytorch/train.py"})
    EXPECT_EQ(line_of({{file, 5, "g"}, ours}), file + ":5 in g"s) << file;
}
TEST(call_site, is_short_and_for_a_terminal) {
  EXPECT_EQ(line_of({{"a.py", 0, "f"}}), "a.py in f") << "no line is known";
  EXPECT_EQ(line_of({{"a.py", ~std::uint64_t{0}, "f"}}), "a.py in f") << "as PyTorch writes -1";
  EXPECT_EQ(line_of({{"a.py", 7, ""}}), "a.py:7");
  EXPECT_EQ(line_of({{"", 7, ""}}), ":7");
  EXPECT_EQ(line_of({{"\x1b[2J.py", 7, "f\n\xff"}}), "?[2J.py:7 in f?\xef\xbf\xbd");
  const std::string line = line_of({{std::string(5000, 'x') + "/a.py", 7, std::string(5000, 'f')}});
  EXPECT_LT(line.size(), 260u);
  EXPECT_NE(line.find("x/a.py:7 in fff"), std::string::npos);
}

/// A pickle of one device's history. Each entry has the value that `frames` writes under that key.
template <typename Frames>
snapshot history_of(std::size_t entries, Frames frames) {
  std::string out;
  pickle_writer to(out);
  to.dict([&] {
    to.literal("segments"), to.empty_list();
    to.literal("device_traces");
    to.list(std::vector<int>{0}, [&](int) {
      to.list(std::vector<int>(entries), [&](const int&) {
        to.dict([&] {
          to.literal("action"), to.literal("segment_free");
          to.literal("addr"), to.integer(1), to.literal("size"), to.integer(1), to.literal("stream"),
              to.integer(0);
          frames(to);
        });
      });
    });
  });
  to.end();
  auto read = read_snapshot(out, "file");
  if (const auto* error = std::get_if<input_error>(&read)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<snapshot>(std::move(read));
}
void write_frame(pickle_writer& to, const call& c) {
  to.dict([&] {
    to.literal("name"), to.text(c.function);
    to.literal("filename"), to.text(c.file);
    to.literal("line"), to.natural(c.line);
  });
}

TEST(read_snapshot, finds_equal_stacks_that_are_written_apart) {
  std::uint64_t line = 0;
  const snapshot seen = history_of(6, [&](auto& to) {
    to.literal("frames");
    const std::vector<call> calls{{"a.py", 1 + line++ % 3, "f"}, {"b.py", 9, "g"}};
    to.list(calls, [&](const call& c) { write_frame(to, c); });
  });
  ASSERT_EQ(seen.traces.at(0).size(), 6u);
  EXPECT_EQ(seen.stacks.stacks(), 3u);
  EXPECT_EQ(seen.stacks.frames(), 4u);
  EXPECT_EQ(seen.stacks.texts(), 4u);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(call_site(seen.stacks, seen.traces[0][i].stack), "a.py:" + std::to_string(1 + i % 3) + " in f");
}
TEST(read_snapshot, takes_the_stack_of_old_snapshots_from_their_history) {
  const snapshot seen = history_of(1, [](auto& to) {
    to.literal("history");
    to.list(std::vector<call>{{"new.py", 1, "f"}, {"old.py", 2, "g"}}, [&](const call& c) {
      to.dict([&] {
        to.literal("addr"), to.integer(1);
        to.literal("frames"), to.list(std::vector<call>{c}, [&](const call& one) { write_frame(to, one); });
      });
    });
  });
  EXPECT_EQ(call_site(seen.stacks, seen.traces.at(0).at(0).stack), "new.py:1 in f");
}
TEST(read_snapshot, leaves_out_frames_of_another_form) {
  const snapshot seen = history_of(1, [](auto& to) {
    to.literal("frames");
    to.list(std::vector<int>{1, 2, 3, 4}, [&](int n) {
      if (n == 1) return to.none();
      if (n == 2) return write_frame(to, {"a.py", 3, "f"});
      if (n == 3) return to.dict([] {});
      to.dict([&] {
        to.literal("name"), to.integer(1);
        to.literal("filename"), to.none();
        to.literal("line"), to.text("x");
      });
    });
  });
  EXPECT_EQ(seen.stacks.stack(seen.traces.at(0).at(0).stack).size(), 3u);
  EXPECT_EQ(call_site(seen.stacks, 1), "a.py:3 in f");
  EXPECT_EQ(history_of(1, [](auto& to) { to.literal("frames"), to.text("none"); }).stacks.stacks(), 0u);
  EXPECT_EQ(history_of(1, [](auto& to) { to.literal("history"), to.empty_list(); }).stacks.stacks(), 0u);
}

/// A snapshot of one device whose stacks 1 to 4 are lines 1 to 4 of a.py.
snapshot with_lines() {
  snapshot s;
  call_stack_builder to(s.stacks);
  for (std::uint64_t line = 1; line <= 4; ++line) {
    const std::vector<std::uint32_t> one{to.add_frame({to.add_text("a.py"), to.add_text("f"), line})};
    to.add_stack(one);
  }
  return s;
}
recording recorded(const snapshot& s) {
  auto made = recording_of(s);
  if (const auto* error = std::get_if<input_error>(&made)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<recording>(std::move(made));
}

TEST(recording, knows_the_origins_of_allocations) {
  using action = snapshot::action;
  using state = snapshot::block::state;
  snapshot s = with_lines();
  s.segments = {{.address = 0,
                 .size = 4096,
                 .blocks = {{0, 512, 512, state::live, 1},
                            {512, 512, 512, state::live, 3},
                            {1024, 512, 512, state::live, 4},
                            {1536, 2560}}}};
  s.traces = {{{.what = action::alloc, .stack = 2, .address = 512, .size = 500},
               {.what = action::free_requested, .stack = 4, .address = 512, .size = 500},
               {.what = action::free_completed, .stack = 4, .address = 512, .size = 500},
               {.what = action::alloc, .stack = 3, .address = 512, .size = 512, .label = "weights"},
               {.what = action::annotate, .address = 512, .size = 512, .label = "kept by autograd"},
               {.what = action::annotate, .address = 99, .label = "of no block"},
               {.what = action::alloc, .address = 1024, .size = 512},
               {.what = action::oom, .stack = 1, .size = 4096}}};
  const recording made = recorded(s);
  ASSERT_EQ(made.origins.size(), 5u);
  EXPECT_EQ(origin_text(made, 0), "a.py:1 in f") << "live from before the history on";
  EXPECT_EQ(origin_text(made, 1), "a.py:2 in f") << "by who allocated, not who freed";
  EXPECT_EQ(origin_text(made, 2), "a.py:3 in f, labelled 'kept by autograd'") << "the latest label counts";
  EXPECT_EQ(origin_text(made, 3), "a.py:4 in f") << "told of the block at the end only";
  EXPECT_EQ(origin_text(made, 4), "a.py:1 in f") << "what was refused";
  EXPECT_EQ(origin_text(made, 5), "");
}
TEST(recording, has_no_origins_if_none_were_recorded) {
  snapshot s = with_lines();
  s.traces = {{{.what = snapshot::action::oom, .size = 512}}};
  EXPECT_TRUE(recorded(s).origins.empty());
  s.traces[0][0].label = "only this";
  EXPECT_EQ(origin_text(recorded(s), 0), "labelled 'only this'");
  s.traces[0][0].label = "\x1b" + std::string(1000, 'x');
  EXPECT_EQ(origin_text(recorded(s), 0), "labelled '?" + std::string(79, 'x') + "...'");
}

TEST(to_chrome, has_the_source_lines_of_blocks) {
  using action = snapshot::action;
  snapshot s = with_lines();
  s.segments = {
      {.address = 0, .size = 512, .stack = 4, .blocks = {{0, 512, 512, snapshot::block::state::live, 2}}}};
  s.traces = {{{.what = action::segment_alloc, .stack = 4, .address = 0, .size = 512},
               {.what = action::alloc, .stack = 2, .address = 0, .size = 512, .block = 512}}};
  const auto made = replay::to_chrome(s);
  ASSERT_TRUE(std::holds_alternative<std::string>(made));
  const std::string& text = std::get<std::string>(made);
  EXPECT_NE(text.find("\"requested\":512,\"block\":512,\"at\":\"a.py:2 in f\"}"), std::string::npos) << text;
  EXPECT_NE(text.find("\"bytes\":512,\"at\":\"a.py:4 in f\"}"), std::string::npos) << text;
}

}  // namespace
