// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace conformance {

/// A simulated device that fails selected calls. It records which stream uses which memory, and all its
/// memory.
class watched_device : public tessera::provider::simulated_device {
 public:
  using simulated_calls::call;
  using simulated_device::simulated_device;
  using interval = std::pair<std::uint64_t, std::uint64_t>;  // the first call and the last

  struct piece {
    std::size_t bytes;
    std::uintptr_t at = 0;     // where it is mapped
    bool granted = false;      // whether it is accessible there
    bool wanted_back = false;  // whether a release or an unmap of it has failed
  };
  /// Work that uses addresses.
  struct use {
    std::uintptr_t begin, end;
    tessera::stream_id stream;
    std::uint64_t until_ns;
    bool owns;       // whether it is the stream of the allocation
    bool waits_all;  // whether not even the next work of that stream may reuse the addresses meanwhile
  };

  /// Makes calls in these intervals fail, if they can. The intervals count from now.
  void fail(std::vector<interval> which) {
    failing_ = std::move(which);
    made_ = 0;
    segments_refused_ = ranges_refused_ = 0;
  }
  /// Makes every call of these kinds fail from now on.
  void fail_kinds(std::vector<call> which) { failing_kinds_ = std::move(which); }
  /// From now on, no event completes and every wait fails; or events complete again.
  void stick(bool stuck) {
    stuck_ = stuck;
    fail_kinds(stuck ? std::vector{call::wait, call::synchronize} : std::vector<call>{});
  }
  /// Calls since then that can fail.
  [[nodiscard]] std::uint64_t made() const { return made_; }
  /// The first broken rule, or nothing.
  [[nodiscard]] const std::string& broken() const { return broken_; }
  [[nodiscard]] const std::map<std::uint64_t, piece>& pieces() const { return pieces_; }
  [[nodiscard]] std::size_t in_segments() const { return in_segments_; }
  /// Bytes of segments and ranges whose release failed since fail().
  [[nodiscard]] std::size_t segments_refused() const { return segments_refused_; }
  [[nodiscard]] std::size_t ranges_refused() const { return ranges_refused_; }
  /// Bytes of memory that the allocator could not release; `kept` tells which memory it knows.
  template <typename F>
  [[nodiscard]] std::size_t stray(F kept) {
    std::size_t bytes = 0;
    for (auto& [number, p] : pieces_) {
      if (p.at != 0 && p.granted && kept(p.at, p.bytes)) {
        p.wanted_back = false;
      } else {
        bytes += p.bytes;
        if (!p.wanted_back) breaks("memory is lost: mapped nowhere, unusable or unknown, and nothing failed");
      }
    }
    return bytes;
  }

  void work(tessera::stream_id stream, std::uint64_t duration) {
    submit(stream, duration);
    ends_[stream] = std::max(ends_[stream], now_ns()) + duration;
  }
  /// The work of a stream so far uses these addresses.
  void is_used(const void* p, std::size_t bytes, tessera::stream_id by, bool owns, bool waits_all = false) {
    std::erase_if(uses_, [this](const use& u) { return u.until_ns <= now_ns(); });
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    uses_.push_back({begin, begin + bytes, by, ends_[by], owns, waits_all});
  }
  /// The next work of a stream may use these addresses at once.
  void is_reused(const void* p, std::size_t bytes, tessera::stream_id by) {
    check(reinterpret_cast<std::uintptr_t>(p), bytes, "a block is reused that another stream still uses",
          [by](const use& u) { return u.waits_all || u.stream != by; });
  }
  /// For recipes that ignore streams.
  void ignore_streams() { watches_ = false; }
  /// For recipes under which only recorded streams delay reuse.
  void ignore_owners() { watches_owners_ = false; }

  [[nodiscard]] void* acquire(std::size_t bytes,
                              tessera::page_kind kind = tessera::page_kind::normal) noexcept {
    void* const given = tried(call::acquire, [&] { return simulated_device::acquire(bytes, kind); });
    if (given != nullptr) in_segments_ += bytes;
    return given;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    check(reinterpret_cast<std::uintptr_t>(p), bytes, "a segment goes that another stream still uses",
          [](const use& u) { return !u.owns; });
    const bool works = tried(call::release, [&] { return simulated_device::release(p, bytes); });
    if (works) {
      in_segments_ -= bytes;
    } else {
      segments_refused_ += bytes;
    }
    return works;
  }
  bool record(tessera::stream_id stream, event& mark) noexcept {
    return tried(call::record, [&] { return simulated_device::record(stream, mark); });
  }
  bool wait(event& mark) noexcept {
    return tried(call::wait, [&] { return simulated_device::wait(mark); });
  }
  bool synchronize(tessera::stream_id stream) noexcept {
    return tried(call::synchronize, [&] { return simulated_device::synchronize(stream); });
  }
  [[nodiscard]] bool query(event& mark) noexcept {
    const bool ready = simulated_device::query(mark);
    return ready && !stuck_;
  }
  [[nodiscard]] bool is_done(tessera::stream_id stream, std::uint64_t at) const noexcept {
    return at == 0 || (!stuck_ && simulated_device::is_done(stream, at));
  }
  bool make_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) noexcept {
    return tried(call::make_wait, [&] { return simulated_device::make_wait(stream, of, at); });
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    return tried(call::reserve, [&] { return simulated_device::reserve(bytes, to); });
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    const bool works = tried(call::unreserve, [&] { return simulated_device::unreserve(p, bytes); });
    if (!works) ranges_refused_ += bytes;
    return works;
  }
  bool create(std::size_t bytes, tessera::page_kind kind, physical& memory) noexcept {
    const bool works = tried(call::create, [&] { return simulated_device::create(bytes, kind, memory); });
    if (works) pieces_.emplace(memory.number, piece{bytes});
    return works;
  }
  bool destroy(const physical& memory) noexcept {
    piece& p = pieces_.at(memory.number);
    if (p.at != 0) breaks("memory is destroyed while it is mapped");
    const bool works = tried(call::destroy, [&] { return simulated_device::destroy(memory); });
    if (works) {
      pieces_.erase(memory.number);
    } else {
      p.wanted_back = true;
    }
    return works;
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    const bool works = tried(call::map, [&] { return simulated_device::map(p, bytes, memory); });
    if (works) pieces_.at(memory.number).at = reinterpret_cast<std::uintptr_t>(p);
    return works;
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const bool works = tried(call::grant, [&] { return simulated_device::grant(p, bytes); });
    if (works) piece_at(p).granted = true;
    return works;
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    check(reinterpret_cast<std::uintptr_t>(p), bytes, "memory is unmapped that a stream still uses",
          [](const use&) { return true; });
    piece& leaving = piece_at(p);
    const bool works = tried(call::unmap, [&] { return simulated_device::unmap(p, bytes); });
    if (works) {
      leaving.at = 0;
      leaving.granted = false;
    } else {
      leaving.wanted_back = true;
    }
    return works;
  }

 private:
  void breaks(const char* rule) {
    if (broken_.empty()) broken_ = rule;
  }
  /// Makes a call that can fail. It fails if the test demands it, if memory is short, or if memory that could
  /// not be unmapped is in the way.
  template <typename F>
  std::invoke_result_t<F> tried(call kind, F make) {
    ++made_;
    for (const call failing : failing_kinds_) {
      if (failing == kind) fail_call(1);
    }
    for (const interval& i : failing_) {
      if (i.first <= made_ && made_ <= i.second) fail_call(1);
    }
    const std::uint64_t excused = calls().failed + calls().refused;
    const auto came = make();
    const bool in_the_way =
        std::any_of(pieces_.begin(), pieces_.end(), [](const auto& p) { return p.second.wanted_back; });
    if (!came && calls().failed + calls().refused == excused && !in_the_way) breaks(last_error());
    return came;
  }
  [[nodiscard]] piece& piece_at(const void* p) {
    for (auto& [number, known] : pieces_) {
      if (known.at == reinterpret_cast<std::uintptr_t>(p)) return known;
    }
    breaks("nothing is mapped there");
    return nothing_;
  }
  template <typename F>
  void check(std::uintptr_t begin, std::size_t bytes, const char* rule, F concerns) {
    for (const use& u : uses_) {
      if (watches_ && u.begin < begin + bytes && begin < u.end && u.until_ns > now_ns() &&
          (watches_owners_ || !u.owns) && concerns(u))
        breaks(rule);
    }
  }

  std::vector<interval> failing_;
  std::vector<call> failing_kinds_;
  bool stuck_ = false;
  std::uint64_t made_ = 0;
  std::string broken_;
  std::map<std::uint64_t, piece> pieces_;  // by the number of the handle
  piece nothing_{0};
  std::size_t in_segments_ = 0, segments_refused_ = 0, ranges_refused_ = 0;
  std::map<tessera::stream_id, std::uint64_t> ends_;  // of each stream's work
  std::vector<use> uses_;
  bool watches_ = true, watches_owners_ = true;
};

}  // namespace conformance
