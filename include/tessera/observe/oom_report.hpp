// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include <tessera/law/growth_bound.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/grow_by_stitching.hpp>
#include <tessera/policy/pages.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/prefer_pages.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>

/// Why a request failed: its numbers, and the changes that would help.

// The changes that explain() may suggest. Each policy supplies its own name.
namespace tessera::inline v0_1::detail {

/// A change that would have helped a failed request.
enum class oom_hint : unsigned char {
  raise_limit,
  raise_device_limit,
  empty_cache,
  end_capture,
  release_later,
  wait_for_streams,
  try_again,
  try_later,
  grow_exactly,
  map_smaller_pages,
  use_other_pages,
  use_normal_pages,
  reuse_across_streams,
  insert_dependencies,
  share_pool,
  raise_split_limit,
  split_blocks,
  enlarge_range,
  map_pages,
  stitch,
  use_smaller_chunks,
  share_arenas,
  round_less,
  split_off_remainders,
  free_memory  ///< nothing else is known to help: free blocks, or add memory
};

struct hint_text {
  const char* sentence;  ///< %s stands for a number of bytes
  const char* change;    ///< the change in code
  const char* header;    ///< without ".hpp"
  /// Whether the request would have succeeded. Otherwise the change would also have moved other blocks, so that the numbers
  /// of the report do not tell, or it depends on the device.
  bool is_sure = false;
};

/// Returns the text of a hint; empty for free_memory.
[[nodiscard]] constexpr hint_text text_of(oom_hint what) noexcept {
  constexpr const char *growth = "policy/growth", *ranges = "policy/grow_by_mapping",
                       *stitching = "policy/grow_by_stitching", *recovery = "policy/recovery",
                       *pages = "policy/pages", *streams = "policy/reuse_across_streams",
                       *split = "policy/split", *waiting = "concurrent/waiting";
  // In the order of oom_hint.
  constexpr hint_text texts[] = {
      {"raise the limit above %s, as the device has more", "growth.limit", growth, true},
      {"raise the provider's own limit, which refused %s", "a higher limit", "provider/limiting"},
      {"release %s of idle cache first", policy::recover_by_emptying_cache<>::hint, recovery, true},
      {"end the capture first; then %s of freed memory can serve or go back", "no scope of the kind capture",
       "extension/private_pools", true},
      {"try again once streams are done; %s is idle but was not released, or the device failed", "waiting",
       waiting},
      {"wait for the streams that use %s of freed blocks", policy::recover_by_emptying_cache<>::hint,
       recovery, true},
      {"try again; a block of %s became free after the search", "waiting", waiting},
      {"try later; streams still use %s of freed blocks", "waiting", waiting},
      {"accept a segment of only %s", policy::recover_by_emptying_cache<true>::hint, recovery, true},
      {"map smaller pages, as %s of them are enough", "grow_by_mapping<2_MiB, 2_MiB>", ranges, true},
      {"use other pages if those of one kind run out",
       policy::prefer_pages<page_preference::huge_first>::hint, "policy/prefer_pages"},
      {"a segment of %s fits in smaller pages", policy::normal_pages::hint, pages, true},
      {"use a free block of another stream, of %s", policy::reuse_across_streams<>::hint, streams},
      {"a stream could wait for a free block of %s", "streams.insert_dependencies", streams, true},
      {"use a free block of another pool, of %s", policy::pool_together::hint, "policy/pools"},
      {"raise the split limit above %s, the size of a free block", policy::split_below<>::hint, split, true},
      {"split larger free blocks, of up to %s", policy::split_if_remainder_at_least<1>::hint, split},
      {"no more than %s of addresses are reserved at once", "a larger growth.range", ranges, true},
      {"map pages, of which %s between live blocks could be released", policy::grow_by_mapping<>::hint,
       ranges},
      {"map pages, of which %s could move to this request", policy::grow_by_stitching<>::hint, stitching},
      {"move smaller physical chunks, as %s are whole free pages", "a larger growth.peak_parts", stitching},
      {"share one cache among all threads, as other arenas have %s", "locked instead of per_stream",
       "concurrent/locked"},
      {"round less; rounding adds %s to live blocks", policy::round_to_multiple<512>::hint,
       "policy/rounding"},
      {"split off unused ends, %s of live blocks", policy::split_if_remainder_at_least<1>::hint, split},
      {}};
  return texts[static_cast<std::size_t>(what)];
}

/// Returns the size of a page that the suggestion map_pages would map for a block.
[[nodiscard]] constexpr std::size_t mapped_page_size(std::size_t block) noexcept {
  return policy::grow_by_mapping<>{}.mapping_unit(block);
}
/// Returns the size of a page that the suggestion stitch would map for a block.
[[nodiscard]] constexpr std::size_t stitched_page_size(std::size_t block) noexcept {
  return policy::grow_by_stitching<>{}.mapping_unit(block);
}
/// The streams policy that goes with mapped pages.
inline constexpr const char* streams_with_mapped_pages = policy::reuse_on_same_stream::hint;

class oom_text;

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// The numbers of a failed request: its sizes, the state of the memory, and the obstacles. Sizes are in
/// bytes.
struct oom_report {
  /// Why a free block did not serve the request.
  enum class reason : unsigned char {
    none,  ///< it would serve now: it became free after the search, or host memory ran out
    too_small,
    pool,         ///< it belongs to another pool
    stream,       ///< it belongs to another stream, and blocks are not reused across streams
    unfinished,   ///< it belongs to another stream, and the work before its free has not completed
    split_limit,  ///< it or the request is oversize; it serves only requests of about its size
    size_class    ///< it serves only requests of its size
  };
  /// What the report suggests.
  using hint = detail::oom_hint;
  /// A suggestion.
  struct hint_for {
    hint what{};            ///< the default suggests nothing
    std::size_t bytes = 0;  ///< the number in the text of the hint
  };
  /// Where a free block is.
  struct free_block {
    std::uintptr_t address = 0;  ///< of the first byte
    std::size_t bytes = 0;       ///< 0 if there is none
    std::size_t pool = 0;        ///< the number that the pools policy gives
    stream_id stream{};          ///< the key of its free list
  };
  /// A segment, or in ranges a physical chunk, that has free bytes but cannot be released, because it also
  /// has live or pending blocks.
  struct non_releasable_unit {
    std::size_t bytes = 0;           ///< free bytes
    std::size_t blocks = 0;          ///< live and pending blocks
    std::size_t used = 0;            ///< bytes of these blocks
    std::uintptr_t first_block = 0;  ///< address of the lowest of these blocks
    std::uintptr_t address = 0;      ///< of the unit
    std::size_t length = 0;          ///< of the unit

    /// Returns the benefit of freeing its blocks: its free bytes, weighted by their share of the unit.
    [[nodiscard]] double worth() const noexcept {
      const auto gained = static_cast<double>(bytes);
      return bytes == 0 ? 0 : gained * (gained / (gained + static_cast<double>(used)));
    }
  };
  /// The largest number of suggestions in a report.
  static constexpr std::size_t max_hints = 4;

  // The request.
  std::size_t requested = 0;  ///< bytes that the program asked for
  stream_id stream{};         ///< of the request
  std::size_t block = 0;      ///< size of the block that would serve it; 0 if the request exceeds max_request
  std::size_t pool = 0;       ///< the number that the pools policy gives the request's block
  std::size_t segment = 0;    ///< size of the segment needed for it
  std::size_t wanted = 0;     ///< maximum to get from the device: that segment, or in ranges, whole pages
  std::size_t exact_segment = 0;    ///< the smallest segment that is large enough
  std::size_t unpaged_segment = 0;  ///< the segment in normal pages
  std::size_t small_pages = 0;  ///< in ranges, whole pages for the block if all have the size of the smallest
  std::int64_t waited_ms = -1;  ///< how long a front end waited for other threads; negative if none did

  // The state of the memory.
  usage now{};                        ///< the use of the allocator's memory
  std::size_t capacity = 0;           ///< of the device
  std::size_t available = unlimited;  ///< left on the device; `unlimited` if unknown
  std::size_t elsewhere = 0;          ///< cached in other arenas
  std::size_t plan = 0;               ///< of the reserved bytes: those of a plan
  std::size_t private_bytes = 0;      ///< in private pools, live and free
  std::size_t private_idle = 0;       ///< free there, in units that stay until the pools are released
  bool must_not_wait = false;         ///< a scope of the kind capture is open, so the cache was not emptied
  /// The rule of an extension that refuses the request; empty if none does. Then nothing else matters.
  refusal rule{};
  refusal refused{};  ///< why the provider refused memory for the request, if it said so

  // The free blocks.
  free_block largest{};                ///< the largest free block of all pools and streams
  reason largest_is = reason::none;    ///< why it did not serve the request
  std::size_t largest_neighbours = 0;  ///< live and pending blocks that share the units of the largest
  /// For each reason: the largest free block that is large enough and fails only for this reason.
  std::array<std::size_t, 7> but_for{};
  std::size_t after_pending = 0;  ///< largest run of usable bytes once pending blocks are free

  // The memory that could be released.
  std::size_t non_releasable = 0;              ///< free bytes in units shared with live or pending blocks
  std::size_t non_releasable_units = 0;        ///< number of these units
  std::array<non_releasable_unit, 3> units{};  ///< the units with the highest worth()
  std::size_t pages_in_place = 0;              ///< non_releasable bytes in whole pages of the hint map_pages
  std::size_t page_in_place = 0;               ///< size of such a page
  std::size_t pages_stitched = 0;              ///< non_releasable bytes in whole pages of the hint stitch
  std::size_t idle = 0;                        ///< free bytes in units without live or pending blocks
  std::size_t idle_later = 0;                  ///< additional idle bytes once pending blocks are free
  std::size_t rounding = 0;  ///< bytes above multiples of 512, in live blocks and the wanted block
  std::size_t unsplit = 0;   ///< bytes of live blocks above their rounded sizes

  // The policies and the provider.
  std::size_t pools = 1;               ///< how many the recipe has
  bool has_segments = true;            ///< growth acquires segments; otherwise it maps pages into ranges
  bool grows_at_end = false;           ///< growth maps pages only behind the blocks of a range
  bool stitches = false;               ///< growth moves idle pages to the range that needs them
  bool reuses_across_streams = false;  ///< a free block may serve a stream other than its own
  bool shares_streams = false;         ///< blocks are reused across streams, or all streams share them
  bool empties_cache = false;          ///< before such a request fails, the cache is emptied
  bool capture_keeps_cache = false;    ///< it would be emptied if no scope of the kind capture were open
  bool accepts_exact_size = false;     ///< exact_segment would have been tried
  /// Whether the provider is an ordering_provider: a stream can wait for another's event.
  bool device_has_order = false;
  bool device_has_ranges = false;  ///< whether the provider is a virtual_memory_provider: it can map pages
  bool device_is_limited = false;  ///< a limit of the provider refused
  bool pages_fall_back = true;     ///< to normal pages if others run out
  std::size_t split_limit = unlimited;  ///< bytes from which a block or a request is oversize
  std::size_t range = unlimited;        ///< bytes of addresses reserved at once

  /// A program that would make the recipe reserve without bound, if there is one.
  law::growth_witness growth{};

  // The conclusion.
  std::array<hint_for, max_hints> hints{};  ///< only the first `hint_count` are there
  std::size_t hint_count = 0;               ///< at most max_hints

  /// Returns the report as text of at most 13 lines.
  [[nodiscard]] detail::oom_text text() const noexcept;

  /// Stores a unit if its worth() is among the highest.
  void add_unit(non_releasable_unit unit) noexcept {
    for (non_releasable_unit& other : units) {
      const bool is_first =
          unit.worth() > other.worth() || (unit.worth() == other.worth() && unit.address < other.address);
      if (is_first) std::swap(unit, other);
    }
  }
  /// Whether the request exceeds what any allocator may be asked for, so that nothing was tried.
  [[nodiscard]] bool exceeds_max_request() const noexcept { return requested > max_request; }
  /// Returns the bytes that could still be reserved within the limit.
  [[nodiscard]] std::size_t room() const noexcept {
    return (std::min)(above(now.limit, now.reserved), available);
  }
  /// Returns the bytes that could still be reserved without the limit.
  [[nodiscard]] std::size_t device_room() const noexcept {
    return (std::min)(above(capacity, now.reserved), available);
  }
  /// Returns the bytes that this allocator could reserve in total without the limit.
  [[nodiscard]] std::size_t all() const noexcept {
    return detail::saturating_add(now.reserved, device_room());
  }
  /// Returns the bytes that this allocator could reserve in total within the limit.
  [[nodiscard]] std::size_t allowed() const noexcept { return detail::saturating_add(now.reserved, room()); }
  [[nodiscard]] std::size_t missing() const noexcept { return above(wanted, room()); }
  /// Returns the bytes that would be live with this request if each block had exactly the needed size.
  [[nodiscard]] std::size_t needed() const noexcept {
    return above(detail::saturating_add(now.allocated, block), detail::saturating_add(rounding, unsplit));
  }
  /// Whether the requested bytes of live blocks and this request exceed the device, without any rounding.
  [[nodiscard]] bool exceeds_device() const noexcept {
    return detail::saturating_add(above(now.requested, now.pending()), requested) > all();
  }
  /// Whether the request would fail even without any live block.
  [[nodiscard]] bool exceeds_device_alone() const noexcept { return align_up(requested, 512) > allowed(); }

  /// Returns a - b, or 0 if b is larger.
  [[nodiscard]] static constexpr std::size_t above(std::size_t a, std::size_t b) noexcept {
    return a > b ? a - b : 0;
  }
};

}  // namespace tessera::inline v0_1::observe

namespace tessera::inline v0_1::detail {

/// The text of an oom_report: at most 13 lines of up to 160 characters, unless numbers are extreme.
class oom_text {
 public:
  static constexpr std::size_t capacity = 2304;  ///< of any text, with its terminating zero

  explicit oom_text(const observe::oom_report& report) noexcept : report_(&report) {
    write();
    report_ = nullptr;  // NOLINT(cppcoreguidelines-prefer-member-initializer): write() reads it
  }
  [[nodiscard]] const char* c_str() const noexcept { return text_; }

 private:
  using hint = observe::oom_report::hint;
  using reason = observe::oom_report::reason;

  void write() noexcept {
    const observe::oom_report& report = *report_;
    if (report.exceeds_max_request()) {
      put("tessera: out of memory: %zu bytes requested", report.requested);
      put_stream(report.stream);
      put("; no request above %zu bytes is served", max_request);
      return;
    }
    put_request();
    put_usage();
    if (report.rule) return put("\n  %s", report.rule.text());
    put_missing();
    put_largest_free_block();
    put_non_releasable();
    if (!report.growth) put("\n  warning: %s", report.growth.text().c_str());
    for (std::size_t i = 0; i < report.hint_count; ++i) put_hint(report.hints[i].what, report.hints[i].bytes);
  }

  [[gnu::format(printf, 2, 3)]] void put(const char* format, ...) noexcept {
    std::va_list values;
    va_start(values, format);
    const int length = TESSERA_DETAIL_VSNPRINTF(text_ + used_, capacity - used_, format, values);
    va_end(values);
    if (length > 0) used_ += (std::min)(static_cast<std::size_t>(length), capacity - used_ - 1);
  }

  /// Writes small handles in decimal, and large handles, which are addresses, in hexadecimal.
  void put_stream(stream_id stream) noexcept {
    if (stream.handle < 100'000) {
      put(" on stream %" PRIu64, stream.handle);
    } else {
      put(" on stream 0x%" PRIx64, stream.handle);
    }
  }
  void put_pool(std::size_t pool) noexcept {
    if (report_->pools > 1) put(" of pool %zu", pool);
  }

  [[nodiscard]] static const char* plural(std::size_t count, const char* one, const char* more) noexcept {
    return count == 1 ? one : more;
  }

  void put_request() noexcept {
    put("tessera: out of memory: %s (%zu %s) requested", format_bytes(report_->requested).text(),
        report_->requested, plural(report_->requested, "byte", "bytes"));
    put_stream(report_->stream);
    put("; needs a block of %s", format_bytes(report_->block).text());
    put_pool(report_->pool);
    put(report_->has_segments ? ", and a segment of %s for it" : ", and up to %s of new pages for it",
        format_bytes(report_->wanted).text());
  }
  void put_usage() noexcept {
    const usage& now = report_->now;
    put("\n  reserved %s of at most %s", format_bytes(now.reserved).text(), format_bytes(now.limit).text());
    if (now.limit < report_->capacity) put(" (device: %s)", format_bytes(report_->capacity).text());
    put(": live %s, pending (freed, but in use) %s, cached %s; requested %s",
        format_bytes(now.allocated).text(), format_bytes(now.pending()).text(),
        format_bytes(now.cached).text(), format_bytes(now.requested).text());
    if (report_->plan > 0) put("; a plan has %s of it", format_bytes(report_->plan).text());
    if (now.unbacked > 0) put("; without memory: %s", format_bytes(now.unbacked).text());
  }
  void put_missing() noexcept {
    put("\n  could still be reserved: %s, which is ", format_bytes(report_->room()).text());
    if (report_->missing() > 0) {
      put("%s too little", format_bytes(report_->missing()).text());
    } else {
      put("enough, but %s", report_->range < report_->block ? "no range of addresses is long enough"
                            : report_->largest.bytes >= report_->block && report_->largest_is == reason::none
                                ? "memory became free only after the request"
                                : "the device refused it");
    }
    if (report_->available < observe::oom_report::above(report_->now.limit, report_->now.reserved))
      put("; others use the device, too");
    if (report_->waited_ms >= 0) put("; waited %" PRId64 " ms for other threads", report_->waited_ms);
    if (report_->elsewhere > 0)
      put("; %s of the cache belong to other arenas", format_bytes(report_->elsewhere).text());
    if (report_->refused) put("\n  the provider says: %s", report_->refused.text());
    if (report_->private_bytes > 0)
      put("\n  private pools: %s, of it %s free and kept until their release",
          format_bytes(report_->private_bytes).text(), format_bytes(report_->private_idle).text());
    if (report_->must_not_wait) put("\n  a scope of the kind capture is open, so the cache was not emptied");
  }
  void put_largest_free_block() noexcept {
    if (report_->largest.bytes == 0) return put("\n  largest free block: none");
    put("\n  largest free block: %s at 0x%" PRIxPTR, format_bytes(report_->largest.bytes).text(),
        report_->largest.address);
    put_pool(report_->largest.pool);
    put_stream(report_->largest.stream);
    put(": ");
    switch (report_->largest_is) {
      case reason::none: put("would serve now"); break;
      case reason::too_small:
        put("%s too small", format_bytes(report_->block - report_->largest.bytes).text());
        break;
      case reason::pool: put("serves only its pool"); break;
      case reason::stream: put("serves only its stream"); break;
      case reason::unfinished: put("the work before its free has not completed"); break;
      case reason::split_limit:
        put("oversize, as it has %s or more", format_bytes(report_->split_limit).text());
        break;
      case reason::size_class: put("serves only its own size"); break;
    }
    const std::size_t sharing = report_->largest_neighbours;
    if (sharing == 0 || report_->largest_is == reason::none) return;
    put("; not releasable, as %zu live block%s its %s", sharing, sharing == 1 ? " shares" : "s share",
        report_->has_segments ? "segment" : "pages");
  }
  void put_non_releasable() noexcept {
    if (report_->non_releasable == 0) return;
    const char* const unit = report_->has_segments ? "segment" : "physical chunk";
    put("\n  non-releasable: %s of the cache, in %zu %s%s that live blocks share; most in:",
        format_bytes(report_->non_releasable).text(), report_->non_releasable_units, unit,
        plural(report_->non_releasable_units, "", "s"));
    for (const observe::oom_report::non_releasable_unit& u : report_->units) {
      if (u.bytes == 0) break;
      put("\n    a %s of %s: %s free beside %zu %s %s, %s 0x%" PRIxPTR, unit, format_bytes(u.length).text(),
          format_bytes(u.bytes).text(), u.blocks, plural(u.blocks, "block of", "blocks of together"),
          format_bytes(u.used).text(), plural(u.blocks, "at", "the first at"), u.first_block);
    }
  }
  void put_hint(hint what, std::size_t bytes) noexcept {
    if (what == hint::free_memory) return put_last_resort(bytes);
    const hint_text text = text_of(what);
    const bool says_try = text.header == std::string_view("concurrent/waiting");
    put(text.is_sure || says_try ? "\n  hint: " : "\n  hint: may help: ");
    const format_bytes amount(what == hint::raise_limit ? report_->now.limit : bytes);
    const char* const gap = std::strstr(text.sentence, "%s");
    if (gap == nullptr) {
      put("%s", text.sentence);
    } else {
      put("%.*s%s%s", static_cast<int>(gap - text.sentence), text.sentence, amount.text(), gap + 2);
    }
    const bool maps_pages = what == hint::map_pages || what == hint::stitch;
    put(": %s", text.change);
    if (maps_pages && report_->split_limit != unlimited) put(", with no split limit");
    if (maps_pages && report_->reuses_across_streams) put(", with %s", streams_with_mapped_pages);
    if (maps_pages && !report_->device_has_ranges) put(", over a virtual_memory_provider");
    if (what == hint::reuse_across_streams && !report_->device_has_order) put(", over an ordering_provider");
    put(" [%s.hpp]", text.header);
  }
  void put_last_resort(std::size_t lacking) noexcept {
    const bool is_by_limit = report_->allowed() < report_->all();
    put(report_->exceeds_device() ? "\n  no policy would help: " : "\n  no policy is known to help: ");
    if (report_->exceeds_device_alone()) {
      const bool is_shared = report_->all() < report_->capacity;
      put("the request alone exceeds %s, %s",
          is_by_limit                  ? "the limit"
          : report_->device_is_limited ? "the provider's limit"
          : is_shared                  ? "what others leave of the device"
                                       : "the device",
          format_bytes(report_->allowed()).text());
    } else if (report_->needed() > report_->allowed()) {
      put("live blocks and this request need %s: free %s, or enlarge the %s",
          format_bytes(report_->needed()).text(), format_bytes(lacking).text(),
          is_by_limit                  ? report_->needed() > report_->all() ? "limit and the device" : "limit"
          : report_->device_is_limited ? "provider's limit"
                                       : "device");
    } else {
      put(report_->now.cached == 0                  ? "nothing is free"
          : report_->largest.bytes < report_->block ? "all free blocks are too small"
                                                    : "no free block may serve this request");
      put(report_->non_releasable > 0  ? "; free some of the blocks above, or add %s of memory"
          : report_->now.allocated > 0 ? "; free some blocks, or add %s of memory"
                                       : "; add %s of memory",
          format_bytes(lacking).text());
    }
  }

  const observe::oom_report* report_;  // only while the text is written
  char text_[capacity];
  std::size_t used_ = 0;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

inline detail::oom_text oom_report::text() const noexcept { return detail::oom_text(*this); }

}  // namespace tessera::inline v0_1::observe
