// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#include <tessera/core/bytes.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/oom_report.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>

namespace tessera {

/// Room for the words of any report, and the zero behind them.
inline constexpr std::size_t oom_text_bytes = 2048;

/// Writes an oom_report in words: at most 12 lines, of 160 characters or less unless numbers are absurd.
class oom_writer {
 public:
  oom_writer(const oom_report& told, char (&text)[oom_text_bytes]) noexcept : told_(told), text_(text) {
    if (told.is_absurd()) {
      put("tessera: out of memory: %zu bytes requested", told.requested);
      on_stream(told.stream);
      put(", but no request above %zu bytes is ever served", max_request);
      return;
    }
    what_was_asked();
    what_there_was();
    what_was_missing();
    largest_free_block();
    what_is_pinned();
    for (std::size_t i = 0; i < told.remedy_count; ++i) {
      if (told.remedies[i].what == remedy::free_list) {
        no_remedy(told.remedies[i].bytes);
      } else {
        remedy_in_words(told.remedies[i].what, told.remedies[i].bytes);
      }
    }
  }

 private:
  [[gnu::format(printf, 2, 3)]] void put(const char* format, ...) noexcept {
    std::va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(text_ + used_, oom_text_bytes - used_, format, values);
    va_end(values);
    if (length > 0) used_ += oom_report::least(static_cast<std::size_t>(length), oom_text_bytes - used_ - 1);
  }

  /// What looks like the address of a stream is hexadecimal.
  void on_stream(stream_id stream) noexcept {
    stream.handle < 100'000 ? put(" on stream %" PRIu64, stream.handle)
                            : put(" on stream 0x%" PRIx64, stream.handle);
  }
  void of_pool(std::size_t pool) noexcept {
    if (told_.pools > 1) put(" of pool %zu", pool);
  }
  [[nodiscard]] bool has_segments() const noexcept { return told_.way == growth_way::segments; }

  [[nodiscard]] static const char* plural(std::size_t count, const char* one, const char* more) noexcept {
    return count == 1 ? one : more;
  }

  void what_was_asked() noexcept {
    put("tessera: out of memory: %s (%zu bytes) requested", format_bytes(told_.requested).text(),
        told_.requested);
    on_stream(told_.stream);
    put(", served as a block of %s", format_bytes(told_.block).text());
    of_pool(told_.pool);
    put(has_segments() ? ", which needed a segment of %s" : ", which needed up to %s of new pages",
        format_bytes(told_.wanted).text());
  }
  void what_there_was() noexcept {
    const usage& now = told_.now;
    put("\n  reserved %s of at most %s", format_bytes(now.reserved).text(), format_bytes(now.limit).text());
    if (now.limit < told_.capacity) put(" (device: %s)", format_bytes(told_.capacity).text());
    put(": live %s, pending (freed, but in use) %s, cached %s; requested %s", format_bytes(now.live).text(),
        format_bytes(now.pending).text(), format_bytes(now.cached).text(),
        format_bytes(now.requested).text());
  }
  void what_was_missing() noexcept {
    put("\n  could still be reserved: %s, which is ", format_bytes(told_.room()).text());
    if (told_.missing() > 0) {
      put("%s too little", format_bytes(told_.missing()).text());
    } else {
      put("enough, but %s", told_.range < told_.block ? "no range of addresses is long enough"
                            : told_.largest.bytes >= told_.block && told_.largest_is == obstacle::none
                                ? "memory came free only after the request"
                                : "the device refused it");
    }
    if (told_.available < oom_report::above(told_.now.limit, told_.now.reserved))
      put(", as others use the device too");
    if (told_.waited_ms >= 0) put("; waited %" PRId64 " ms for other threads", told_.waited_ms);
    if (told_.elsewhere > 0) put("; %s of the cache serve other lanes", format_bytes(told_.elsewhere).text());
  }
  void largest_free_block() noexcept {
    if (told_.largest.bytes == 0) return put("\n  largest free block: none");
    put("\n  largest free block: %s at 0x%" PRIxPTR, format_bytes(told_.largest.bytes).text(),
        told_.largest.address);
    of_pool(told_.largest.pool);
    on_stream(told_.largest.stream);
    put(": ");
    switch (told_.largest_is) {
      case obstacle::none: put("would serve now"); break;
      case obstacle::too_small:
        put("%s too small", format_bytes(told_.block - told_.largest.bytes).text());
        break;
      case obstacle::pool: put("serves that pool alone"); break;
      case obstacle::stream: put("serves that stream alone"); break;
      case obstacle::unfinished: put("behind work that is not done"); break;
      case obstacle::split_limit:
        put("kept whole, as all from %s on", format_bytes(told_.split_limit).text());
        break;
      case obstacle::size_class: put("serves its own size alone"); break;
    }
    const std::size_t sharing = told_.largest_neighbours;
    if (sharing == 0 || told_.largest_is == obstacle::none) return;
    put("; cannot go back, as %zu live block%s its %s", sharing, sharing == 1 ? " shares" : "s share",
        has_segments() ? "segment" : "pages");
  }
  void what_is_pinned() noexcept {
    if (told_.pinned == 0) return;
    put("\n  pinned: %s of the cache cannot go back to the device, as live blocks share its %zu %s; most in:",
        format_bytes(told_.pinned).text(), told_.pinning,
        plural(told_.pinning, has_segments() ? "segment" : "piece", has_segments() ? "segments" : "pieces"));
    for (const oom_report::pin& p : told_.pins) {
      if (p.bytes == 0) break;
      put("\n    a %s of %s: %s pinned by %zu %s %s, %s 0x%" PRIxPTR, has_segments() ? "segment" : "piece",
          format_bytes(p.length).text(), format_bytes(p.bytes).text(), p.blocks,
          plural(p.blocks, "block of", "blocks of together"), format_bytes(p.held).text(),
          plural(p.blocks, "at", "the first at"), p.first);
    }
  }
  void remedy_in_words(remedy what, std::size_t bytes) noexcept {
    put("\n  would help: ");
    const format_bytes amount(what == remedy::raise_limit ? told_.now.limit : bytes);
    const remedy_words& said = words_of[static_cast<std::size_t>(what)];
    const char* const gap = std::strstr(said.text, "%s");
    if (gap == nullptr) {
      put("%s", said.text);
    } else {
      put("%.*s%s%s", static_cast<int>(gap - said.text), said.text, amount.text(), gap + 2);
    }
    const bool maps_pages = what == remedy::grow_in_place || what == remedy::stitch;
    if (maps_pages && told_.split_limit != unlimited) put(", with no split limit");
    if (maps_pages && told_.crosses) put(", with reuse_on_same_stream");
    if (maps_pages && !told_.device_has_ranges) put(", over a virtual_memory_provider");
    if (what == remedy::cross_streams && !told_.device_has_order) put(", over an ordering_provider");
    put(" [%s.hpp]", said.header);
  }
  void no_remedy(std::size_t lacking) noexcept {
    const bool is_by_limit = told_.allowed() < told_.all();
    put(told_.is_beyond_all() ? "\n  no policy would help: " : "\n  no policy is known to help here: ");
    if (told_.is_beyond_alone()) {
      const bool is_shared = told_.all() < told_.capacity;
      put("the request alone takes more than %s, %s",
          is_by_limit               ? "the limit allows"
          : told_.device_is_limited ? "the provider's limit allows"
          : is_shared               ? "others leave of the device"
                                    : "the device has",
          format_bytes(told_.allowed()).text());
    } else if (told_.needed() > told_.allowed()) {
      put("what lives, with this request, needs %s: %s must be freed, or the %s must be larger",
          format_bytes(told_.needed()).text(), format_bytes(lacking).text(),
          is_by_limit               ? told_.needed() > told_.all() ? "limit and the device" : "limit"
          : told_.device_is_limited ? "provider's limit"
                                    : "device");
    } else {
      put(told_.now.cached == 0               ? "nothing is free"
          : told_.largest.bytes < told_.block ? "what is free lies in parts too small"
                                              : "what is free does not serve this request");
      put(told_.pinned > 0     ? "; free some of the blocks above, or have %s more memory"
          : told_.now.live > 0 ? "; free some blocks, or have %s more memory"
                               : "; have %s more memory",
          format_bytes(lacking).text());
    }
  }

  struct remedy_words {
    const char* text;  // bytes go where it says %s
    const char* header;
  };
  static constexpr remedy_words words_of[] = {
      {"a limit above %s, as the device has more", "policy/growth"},
      {"a higher limit of the provider, which refused %s", "layer/limited"},
      {"giving idle cache back first, %s: recover_by_emptying_cache", "policy/recovery"},
      {"trying again once streams are done, as %s is idle but did not go back (or the device failed): "
       "retrying",
       "adaptor/retrying"},
      {"waiting for streams that use freed blocks, %s: recover_by_emptying_cache", "policy/recovery"},
      {"trying again, as a block of %s came free after the search: retrying", "adaptor/retrying"},
      {"trying later, as streams use freed blocks, %s: retrying", "adaptor/retrying"},
      {"a segment of no more than needed, %s: recover_with_exact_size<true>", "policy/recovery"},
      {"other pages where those of one kind run out: back_with_huge_pages_first", "policy/pages"},
      {"a segment of %s in smaller pages: back_with_normal_pages", "policy/pages"},
      {"letting a free block of another stream serve, %s: reuse_across_streams", "policy/streams"},
      {"letting a stream wait for a free block, %s: insert_dependencies", "policy/streams"},
      {"one pool for all sizes, as another has a free block of %s: pool_together", "policy/pools"},
      {"a split limit above %s, the size of a free block: split_up_to", "policy/split"},
      {"cutting larger free blocks, of up to %s: split_if_remainder_at_least", "policy/split"},
      {"reserving more addresses at once than %s", "policy/growth"},
      {"memory in pages, of which %s between live blocks could go back: grow_in_place", "policy/growth"},
      {"memory in pages, of which %s could move to where it is wanted: grow_by_stitching", "policy/growth"},
      {"moving smaller pieces, as %s are whole free pages: a larger growth.pieces", "policy/growth"},
      {"one cache for all threads, as others have %s: locked in place of per_stream", "adaptor/locked"},
      {"less rounding, which adds %s to live blocks: round_to_multiple<512>", "policy/rounding"},
      {"cutting off what blocks have too much, %s of live ones: split_if_remainder_at_least",
       "policy/split"}};
  static_assert(std::size(words_of) == static_cast<std::size_t>(remedy::free_list));

  const oom_report& told_;
  char* text_;
  std::size_t used_ = 0;
};

}  // namespace tessera
