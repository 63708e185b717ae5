// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <tessera/extension/quotas.hpp>
#include <tessera/law/policy_laws.hpp>
#include <tessera/law/recipe_laws.hpp>
#include <tessera/tessera.hpp>

#include "../conformance/shipped.hpp"

namespace {
struct unlawful {
  const char* law;
};
}  // namespace

// In a constant expression, the compiler stops here. At run time, the rule is recorded.
void tessera::law::detail::broken(const char* law) { throw unlawful{law}; }

namespace {

using namespace tessera;

/// The rule that a policy breaks, as text.
template <typename F>
std::string words(F check) {
  try {
    return check() ? "holds" : "says false";
  } catch (const unlawful& found) {
    return found.law;
  }
}

using size_to_size = std::size_t (*)(std::size_t);
constexpr std::size_t same(std::size_t n) noexcept { return n; }

struct rounds {
  size_to_size to = same;
  [[nodiscard]] std::size_t block_size(std::size_t n) const noexcept { return to(n); }
  bool operator==(const rounds&) const = default;
};
struct rounds_padded : rounds {
  static constexpr std::size_t padding = 64;
};
std::string rounding(size_to_size to) {
  return words([to] { return law::policy(rounds{to}); });
}

TEST(policies_law, rounding_must) {
  EXPECT_EQ(rounding([](std::size_t n) { return align_up(n, 64); }), "holds");
  EXPECT_EQ(rounding([](std::size_t n) { return n - 1; }), "rounding covers: block_size(n) >= n");
  EXPECT_EQ(rounding(same), "rounding is aligned: block_size(n) is a multiple of min_alignment");
  EXPECT_EQ(rounding([](std::size_t n) { return align_up(n + 1, 64); }),
            "rounding is idempotent: block_size(block_size(n) - padding) == block_size(n)");
  EXPECT_EQ(rounding([](std::size_t n) { return n < 100 ? 256 : align_up(n, 64); }),
            "rounding is monotonic: a <= b implies block_size(a) <= block_size(b)");
  EXPECT_EQ(words([] { return law::policy(rounds_padded{{[](std::size_t n) { return align_up(n, 64); }}}); }),
            "rounding covers the padding: block_size(n) >= n + padding");
}

template <std::size_t Count>
struct pools_of {
  static constexpr std::size_t count = Count;
  [[nodiscard]] static std::size_t select(std::size_t n) noexcept { return n < 1_GiB ? 0 : 2; }
  bool operator==(const pools_of&) const = default;
};

TEST(policies_law, pools_must) {
  EXPECT_EQ(words([] { return law::policy(pools_of<3>{}); }), "holds");
  EXPECT_EQ(words([] { return law::policy(pools_of<2>{}); }), "pools are in range: select(n) < count");
  EXPECT_EQ(words([] { return law::policy(pools_of<0>{}); }), "pools exist: count > 0");
}

template <bool UsesEvents, bool ReusesAcrossStreams>
struct reuses {
  static constexpr bool uses_events = UsesEvents;
  static constexpr bool reuses_across_streams = ReusesAcrossStreams;
  stream_id (*key)(stream_id) = [](stream_id s) { return s; };
  bool (*holds)(stream_id, stream_id) = [](stream_id, stream_id) { return false; };
  cross_stream_reuse rules{};

  [[nodiscard]] stream_id reuse_key(stream_id s) const noexcept { return key(s); }
  [[nodiscard]] bool needs_event(stream_id shared, stream_id user) const noexcept {
    return holds(shared, user);
  }
  [[nodiscard]] cross_stream_reuse reuse_rules() const noexcept { return rules; }
  [[nodiscard]] static bool should_poll_events(std::size_t) noexcept { return true; }
  bool operator==(const reuses&) const = default;
};
template <typename P>
std::string streams(const P& p) {
  return words([&p] { return law::policy(p); });
}

TEST(policies_law, streams_must) {
  constexpr auto one_key = [](stream_id) { return stream_id{}; };
  EXPECT_EQ(streams(reuses<false, false>{}), "holds");
  EXPECT_EQ(streams(reuses<true, false>{.key = [](stream_id s) { return stream_id{s.handle + 1}; }}),
            "streams: a key is its own key: reuse_key(reuse_key(s)) == reuse_key(s)");
  EXPECT_EQ(streams(reuses<true, true>{.key = one_key}),
            "streams: with reuses_across_streams, each stream is its own key");
  EXPECT_EQ(streams(reuses<true, false>{.rules = {.insert_dependencies = true}}),
            "streams: without reuses_across_streams, reuse_rules() is empty");
  EXPECT_EQ(streams(reuses<false, false>{.holds = [](stream_id, stream_id) { return true; }}),
            "streams: needs_event is false without uses_events");
  EXPECT_EQ(streams(reuses<true, false>{.key = one_key,
                                        .holds = [](stream_id key, stream_id user) { return key != user; }}),
            "streams of one key need no events for each other, unless every stream needs them");
}

struct splits {
  bool (*serves)(std::size_t, std::size_t) = [](std::size_t, std::size_t) { return true; };
  bool (*cuts)(std::size_t, std::size_t) = [](std::size_t wanted, std::size_t block) {
    return block > wanted;
  };
  std::size_t whole_from = unlimited;

  [[nodiscard]] bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return serves(wanted, block);
  }
  [[nodiscard]] bool should_split(std::size_t wanted, std::size_t block) const noexcept {
    return cuts(wanted, block);
  }
  [[nodiscard]] static policy::block_end allocated_end() noexcept { return policy::block_end::low; }
  [[nodiscard]] std::size_t oversize_from() const noexcept { return whole_from; }
  bool operator==(const splits&) const = default;
};
std::string split(const splits& p) {
  return words([&p] { return law::policy(p); });
}

TEST(policies_law, split_must) {
  EXPECT_EQ(split({}), "holds");
  EXPECT_EQ(split({.cuts = [](std::size_t, std::size_t) { return true; }}),
            "split leaves no empty remainder: should_split(n, n) is false");
  EXPECT_EQ(split({.serves = [](std::size_t wanted, std::size_t block) { return block > wanted; }}),
            "split lets a block of the wanted size serve: may_serve(n, n)");
  EXPECT_EQ(split({.whole_from = 1_MiB}),
            "split leaves oversize blocks whole: should_split(n, 2n) is false from oversize_from() on");
}

using comparison = bool (*)(const free_block&, const free_block&);
/// A split policy with an order of its own.
struct orders : splits {
  comparison before;
  [[nodiscard]] bool precedes(const free_block& a, const free_block& b, const wanted_block&) const noexcept {
    return before(a, b);
  }
  bool operator==(const orders&) const = default;
};
std::string order(comparison before) {
  return words([before] { return law::policy(orders{{}, before}); });
}

TEST(policies_law, an_order_of_free_blocks_must) {
  EXPECT_EQ(order([](const free_block& a, const free_block& b) { return a.address < b.address; }), "holds");
  EXPECT_EQ(order([](const free_block& a, const free_block& b) { return a.size > b.size; }), "holds");
  EXPECT_EQ(order([](const free_block&, const free_block&) { return false; }), "holds");
  EXPECT_EQ(order([](const free_block& a, const free_block& b) { return a.size <= b.size; }),
            "split: no block precedes itself: precedes(a, a) is false");
  EXPECT_EQ(order([](const free_block& a, const free_block& b) { return a.address != b.address; }),
            "split: of two blocks, at most one precedes the other: precedes(a, b) && precedes(b, a)");
  EXPECT_EQ(
      order([](const free_block& a, const free_block& b) {  // a circle: 1 before 2, 2 before 3, 3 before 1
        return a.segment % 3 == (b.segment + 2) % 3;
      }),
      "split: precedes is transitive: a before b and b before c imply a before c");
}

/// A split policy that learns. Each part may break a law, after a few requests alone.
struct learns : splits {
  bool refuses = false, splits_all = false, inverts = false, forgets_itself = false;
  std::size_t requests = 0;
  learns() = default;
  learns(const learns& other)
      : splits(other),
        refuses(other.refuses),
        splits_all(other.splits_all),
        inverts(other.inverts),
        forgets_itself(other.forgets_itself),
        requests(other.forgets_itself ? 0 : other.requests) {}
  learns& operator=(const learns&) = default;

  [[nodiscard]] bool has_learned() const noexcept { return requests > 200; }
  [[nodiscard]] bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return !(refuses && has_learned()) && splits::may_serve(wanted, block);
  }
  [[nodiscard]] bool should_split(std::size_t wanted, std::size_t block) const noexcept {
    return (splits_all && has_learned()) || splits::should_split(wanted, block);
  }
  [[nodiscard]] bool precedes(const free_block& a, const free_block& b, const wanted_block&) const noexcept {
    return inverts && has_learned() ? a.size >= b.size : a.size < b.size;
  }
  void note_served(const served_request&) noexcept { ++requests; }
  bool operator==(const learns&) const = default;
};
std::string learning(void (*spoil)(learns&)) {
  learns p;
  spoil(p);
  return words([&p] { return law::policy(p); });
}

TEST(policies_law, a_split_policy_that_learns_must_stay_lawful) {
  EXPECT_EQ(learning([](learns&) {}), "holds");
  EXPECT_EQ(learning([](learns& p) { p.refuses = true; }),
            "split lets a block of the wanted size serve: may_serve(n, n)");
  EXPECT_EQ(learning([](learns& p) { p.splits_all = true; }),
            "split leaves no empty remainder: should_split(n, n) is false");
  EXPECT_EQ(learning([](learns& p) { p.inverts = true; }),
            "split: no block precedes itself: precedes(a, a) is false");
  EXPECT_EQ(learning([](learns& p) { p.forgets_itself = true; }),
            "split: a copy equals what was copied, with all that it learned");
}

struct orders_by_number : splits {
  [[nodiscard]] int precedes(const free_block&, const free_block&, const wanted_block&) const noexcept {
    return 0;
  }
  bool operator==(const orders_by_number&) const = default;
};
struct learns_in_const : splits {
  void note_served(const served_request&) {}  // may throw
  bool operator==(const learns_in_const&) const = default;
};
static_assert(policy::split_policy<orders> && !policy::split_policy<orders_by_number>);
static_assert(
    !policy::split_policy<policy::ordered<policy::split_below<>, free_order::by_policy>>);  // has no order
static_assert(policy::split_policy<learns> && !policy::split_policy<learns_in_const>);

template <bool UsesPageKinds>
struct backs {
  static constexpr bool uses_page_kinds = UsesPageKinds;
  page_order (*by)(std::size_t) = [](std::size_t) { return page_order{{page_kind::normal}, 1}; };
  [[nodiscard]] page_order backing(std::size_t n) const noexcept { return by(n); }
  bool operator==(const backs&) const = default;
};
template <bool UsesPageKinds = true>
std::string pages(page_order (*by)(std::size_t)) {
  return words([by] { return law::policy(backs<UsesPageKinds>{by}); });
}

TEST(policies_law, pages_must) {
  EXPECT_EQ(pages([](std::size_t) { return page_order{{page_kind::huge, page_kind::normal}, 2}; }), "holds");
  EXPECT_EQ(pages([](std::size_t) { return page_order{}; }), "pages: backing() names one to three kinds");
  EXPECT_EQ(pages([](std::size_t) { return page_order{{page_kind::huge, page_kind::huge}, 2}; }),
            "pages: backing() names each kind once");
  EXPECT_EQ(
      pages([](std::size_t n) { return page_order{{n > 1_MiB ? page_kind::huge_1g : page_kind::huge}, 1}; }),
      "pages are stable: a segment in whole pages stays as it is");
  EXPECT_EQ(
      pages([](std::size_t n) { return page_order{{n < 1_KiB ? page_kind::huge : page_kind::normal}, 1}; }),
      "pages are monotonic: a <= b implies in_whole_pages(a) <= in_whole_pages(b)");
  EXPECT_EQ(pages<false>([](std::size_t) { return page_order{{page_kind::huge}, 1}; }),
            "pages: without uses_page_kinds, backing() is normal pages only");
}

struct grows {
  using backend = stitching_backend;
  size_to_size segment = same, page = [](std::size_t) { return 2_MiB; }, range = same;
  size_to_size alignment = [](std::size_t) { return std::size_t{1}; };
  size_to_size freely = same, piece = [](std::size_t) { return 16_MiB; };

  [[nodiscard]] std::size_t segment_size(std::size_t n, const usage&) const noexcept { return segment(n); }
  static constexpr memory_limit limit{};
  [[nodiscard]] std::size_t mapping_unit(std::size_t n) const noexcept { return page(n); }
  [[nodiscard]] std::size_t range_size(std::size_t capacity) const noexcept { return range(capacity); }
  [[nodiscard]] std::size_t base_alignment(std::size_t n) const noexcept { return alignment(n); }
  [[nodiscard]] std::size_t move_threshold(const stitching_backend::growth_state& s) const noexcept {
    return freely(s.limit);
  }
  [[nodiscard]] std::size_t max_chunk(const stitching_backend::growth_state& s) const noexcept {
    return piece(s.limit);
  }
  [[nodiscard]] static std::size_t min_chunk(std::size_t) noexcept { return 0; }
  [[nodiscard]] static bool should_save_pages(std::size_t, std::size_t) noexcept { return false; }
  bool operator==(const grows&) const = default;
};
static_assert(policy::growth_policy<grows> && stitching_backend::accepts_growth<grows>);
std::string growth(const grows& p) {
  return words([&p] { return law::policy(p); });
}

TEST(policies_law, quotas_must) {
  constexpr auto admits = [](extension::quota_demand d) { return d.is_admitted(); };
  for (const std::size_t n : {std::size_t{0}, min_alignment, 20_MiB, unlimited / 2}) {
    const extension::quota_demand even{
        .of = {.guaranteed = n, .limit = n}, .held = n, .others = n, .limit = 2 * n};
    extension::quota_demand full = even;
    full.others = 2 * n;
    EXPECT_TRUE(admits(even) && admits(full)) << "what is guaranteed to a pool: " << n;
    extension::quota_demand more = even;
    more.held = n + min_alignment;
    more.others = 0;
    EXPECT_FALSE(admits(more)) << "more than the limit of a pool: " << n;
    full.of = {};
    EXPECT_TRUE(n == 0 || !admits(full)) << "what others hold or are guaranteed: " << n;
  }
}

using two_sizes = std::size_t (*)(std::size_t, std::size_t);

/// Growth at the end of a range, with these answers.
struct appends : policy::grow_at_end<> {
  two_sizes mapped = [](std::size_t n, std::size_t unit) { return align_up(n, unit); };
  two_sizes chunk = [](std::size_t, std::size_t unit) { return unit; };
  [[nodiscard]] std::size_t bytes_to_map(std::size_t n, std::size_t unit) const noexcept {
    return mapped(n, unit);
  }
  [[nodiscard]] std::size_t bytes_of_chunk(std::size_t n, std::size_t unit) const noexcept {
    return chunk(n, unit);
  }
  bool operator==(const appends&) const = default;
};
std::string appending(two_sizes mapped, two_sizes chunk = appends{}.chunk) {
  appends p;
  p.mapped = mapped;
  p.chunk = chunk;
  return words([p] { return law::policy(p); });
}

TEST(policies_law, growth_at_the_end_must) {
  constexpr auto whole = [](std::size_t n, std::size_t unit) { return align_up(n, unit); };
  constexpr auto one_chunk = [](std::size_t n, std::size_t) { return n; };
  EXPECT_EQ(appending(whole), "holds");
  EXPECT_EQ(appending(whole, one_chunk), "holds");
  EXPECT_EQ(appending(one_chunk),
            "growth maps whole units: bytes_to_map(n, unit) is a multiple of unit of at least n");
  EXPECT_EQ(appending([](std::size_t, std::size_t unit) { return unit; }),
            "growth maps whole units: bytes_to_map(n, unit) is a multiple of unit of at least n");
  EXPECT_EQ(appending(whole, [](std::size_t, std::size_t unit) { return unit / 2; }),
            "growth maps units or one chunk: bytes_of_chunk(n, unit) is unit or n");
}

TEST(policies_law, growth_must) {
  constexpr auto too_little = [](std::size_t n) { return n - 1; };
  constexpr auto too_much = [](std::size_t) { return unlimited; };
  EXPECT_EQ(growth({}), "holds");
  EXPECT_EQ(growth({.segment = too_little}), "growth covers: segment_size(n) >= n");
  EXPECT_EQ(growth({.segment = too_much}), "growth stays in range: segment_size(n) < 2^63");
  EXPECT_EQ(growth({.page = [](std::size_t) { return std::size_t{96}; }}),
            "growth maps whole units: mapping_unit(n) is a multiple of min_alignment");
  EXPECT_EQ(growth({.alignment = [](std::size_t) { return std::size_t{32}; }}),
            "growth aligns: base_alignment(n) is 1 or a multiple of min_alignment");
  EXPECT_EQ(growth({.range = too_little}), "growth reserves what can be mapped: range_size(c) >= c");
  EXPECT_EQ(growth({.freely = too_much}),
            "growth takes freely at most its limit: move_threshold(s) <= s.limit");
  EXPECT_EQ(growth({.piece = [](std::size_t) { return std::size_t{0}; }}),
            "growth maps physical chunks: max_chunk(s) > 0");
  EXPECT_EQ(growth({.piece = too_much}), "growth stays in range: max_chunk(s) < 2^63");
}

struct evicts {
  std::size_t (*wants)(const usage&) = [](const usage& now) { return now.reserved; };
  bool (*candidate)(std::size_t) = [](std::size_t n) { return n > 1_MiB; };

  [[nodiscard]] std::size_t bytes_to_evict(policy::eviction_trigger, const usage& now) const noexcept {
    return wants(now);
  }
  [[nodiscard]] bool is_candidate(std::size_t n, const usage&) const noexcept { return candidate(n); }
  [[nodiscard]] static bool should_evict(const policy::idle_segment&) noexcept { return true; }
  bool operator==(const evicts&) const = default;
};
std::string eviction(const evicts& p) {
  return words([&p] { return law::policy(p); });
}

TEST(policies_law, eviction_must) {
  EXPECT_EQ(eviction({}), "holds");
  EXPECT_EQ(eviction({.wants = [](const usage&) { return std::size_t{1}; }}),
            "eviction evicts nothing if nothing is reserved");
  EXPECT_EQ(eviction({.wants = [](const usage& now) { return 2 * now.reserved; }}),
            "eviction evicts at most what is reserved");
  EXPECT_EQ(eviction({.candidate = [](std::size_t n) { return n < 1_MiB; }}),
            "eviction: what is larger than a candidate is a candidate");
}

/// An eviction policy that ranks segments.
struct ranks : evicts {
  double (*rank)(const policy::idle_segment&);
  [[nodiscard]] double value(const policy::idle_segment& segment) const noexcept { return rank(segment); }
  bool operator==(const ranks&) const = default;
};
std::string ranking(double (*rank)(const policy::idle_segment&)) {
  return words([rank] { return law::policy(ranks{{}, rank}); });
}

TEST(policies_law, a_value_of_segments_must_be_a_number) {
  EXPECT_EQ(ranking([](const policy::idle_segment& s) {
              return static_cast<double>(s.reuses) / double(s.age + 1);
            }),
            "holds");
  EXPECT_EQ(ranking([](const policy::idle_segment& s) {
              return static_cast<double>(s.reuses) / static_cast<double>(s.age);
            }),
            "eviction: value(segment) is a number, also if ages and ticks are 0");
}

struct ranks_by_whole_numbers : evicts {
  [[nodiscard]] static int value(const policy::idle_segment&) noexcept { return 0; }
  bool operator==(const ranks_by_whole_numbers&) const = default;
};
static_assert(policy::eviction_policy<ranks> && !policy::eviction_policy<ranks_by_whole_numbers>);

struct no_ticks {
  [[nodiscard]] static std::uint64_t now() noexcept { return 0; }
};
struct decays : evicts {
  using clock = no_ticks;
  using decay = detail::decay<decays>;
  std::size_t (*keeps)(std::size_t, std::uint64_t) = [](std::size_t n, std::uint64_t age) {
    return age < 100 ? n / 2 : std::size_t{0};
  };
  [[nodiscard]] static std::uint64_t decay_time() noexcept { return 100; }
  [[nodiscard]] std::size_t bytes_to_keep(std::size_t n, std::uint64_t age) const noexcept {
    return keeps(n, age);
  }
  bool operator==(const decays&) const = default;
};
struct decays_without_clock : evicts {
  [[nodiscard]] static std::uint64_t decay_time() noexcept { return 100; }
  [[nodiscard]] static std::size_t bytes_to_keep(std::size_t, std::uint64_t) noexcept { return 0; }
  bool operator==(const decays_without_clock&) const = default;
};
struct wrong_clock {
  [[nodiscard]] static int now() noexcept { return 0; }
};
struct ages_by_wrong_clock : evicts {
  using clock = wrong_clock;
  bool operator==(const ages_by_wrong_clock&) const = default;
};
static_assert(policy::eviction_policy<decays> && !policy::eviction_policy<ages_by_wrong_clock>);
std::string decay(std::size_t (*keeps)(std::size_t, std::uint64_t)) {
  return words([keeps] { return law::policy(decays{{}, keeps}); });
}

TEST(policies_law, decay_must) {
  EXPECT_EQ(words([] { return law::policy(decays{}); }), "holds");
  EXPECT_EQ(words([] { return law::policy(decays_without_clock{}); }),
            "eviction: with bytes_to_keep, a policy has decay_time and an age_clock, and names its decay");
  EXPECT_EQ(decay([](std::size_t n, std::uint64_t age) { return age < 100 ? n + 1 : std::size_t{0}; }),
            "eviction keeps at most what is cached: bytes_to_keep(n, age) <= n");
  EXPECT_EQ(decay([](std::size_t n, std::uint64_t age) { return age > 50 && age < 100 ? n : n / 2; }),
            "eviction keeps no more if it is older: bytes_to_keep(n, age) falls with age");
  EXPECT_EQ(decay([](std::size_t n, std::uint64_t) { return n; }),
            "eviction keeps nothing from decay_time() on: bytes_to_keep(n, decay_time()) == 0");
}

struct recovers {
  std::size_t count = 2;
  [[nodiscard]] policy::recovery_steps steps(policy::failure_reason) const noexcept { return {{}, count}; }
  bool operator==(const recovers&) const = default;
};

TEST(policies_law, recovery_must) {
  EXPECT_EQ(words([] { return law::policy(recovers{}); }), "holds");
  EXPECT_EQ(words([] { return law::policy(recovers{4}); }), "holds");
  EXPECT_EQ(words([] { return law::policy(recovers{5}); }), "recovery: steps() returns at most four steps");
}

struct grows_by_segments {
  using backend = segment_backend;
  size_to_size segment = same;
  [[nodiscard]] std::size_t segment_size(std::size_t n, const usage&) const noexcept { return segment(n); }
  static constexpr memory_limit limit{};
  bool operator==(const grows_by_segments&) const = default;
};

// Each policy obeys its law, but the two do not fit together.
TEST(policies_law, policies_of_a_recipe_must_fit) {
  using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, grows_by_segments>;
  const auto with_segments = [](size_to_size segment) {
    tessera::recipe::policies<recipe> p;
    p.growth.segment = segment;
    EXPECT_EQ(words([&p] { return law::policy(p.growth); }), "holds");
    return words([&p] { return law::recipe<recipe>(p); });
  };
  EXPECT_EQ(with_segments(same), "holds");
  EXPECT_EQ(with_segments([](std::size_t n) { return n == 1536 ? std::size_t{1024} : n; }),
            "growth covers every block: segment_size(block_size(n)) >= block_size(n)");
  EXPECT_EQ(with_segments([](std::size_t n) { return n + 1; }),
            "segments are a multiple of min_alignment long");
}

TEST(policies_law, holds_for_every_shipped_recipe_when_running) {
  int recipes = 0;
  conformance::for_each_shipped([&]<typename Recipe>(conformance::named<Recipe> each) {
    EXPECT_EQ(words([] { return law::recipe<Recipe>(); }), "holds") << each.name;
    ++recipes;
  });
  EXPECT_GT(recipes, 0);
}

}  // namespace
