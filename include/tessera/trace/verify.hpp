// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/config/pytorch.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/recorded_device.hpp>
#include <tessera/trace/snapshot.hpp>
#include <tessera/trace/start_state.hpp>

namespace tessera::trace {

/// How the pytorch recipe and a recorded device compare; sizes in bytes.
struct verification {
  std::size_t device = 0;
  std::size_t allocations = 0;
  std::size_t same_address = 0;
  std::size_t first_other_address = 0;  ///< the number of the first allocation at another address, from 0
  std::size_t segments = 0;             ///< that the recorded device gave
  std::string first_other_segment;      ///< what was asked there and here; empty where all are equal
  std::size_t peak_recorded = 0;        ///< reserved at most
  std::size_t peak_here = 0;

  [[nodiscard]] bool agrees() const noexcept {
    return same_address == allocations && first_other_segment.empty() && peak_recorded == peak_here;
  }
};

/// Replays one device's history from its start through the pytorch recipe under the recorded settings. Frees take
/// effect where they completed, and segments go back where they went back on the device, which knows its own limits.
///
///     #include <tessera/trace/file.hpp>
///     #include <tessera/trace/read_snapshot.hpp>
///     using namespace tessera::trace;
///     const auto bytes = read_file("snapshot.pickle");
///     const auto read = read_snapshot(std::get<std::string>(bytes), "snapshot.pickle");
///     const auto found = verifier(std::get<snapshot>(read), 0).run();  // of device 0
///     if (const auto* told = std::get_if<verification>(&found))
///       std::printf("%zu of %zu at the same address\n", told->same_address, told->allocations);
class verifier {
 public:
  verifier(const snapshot& source, std::size_t device) : source_(source), device_(device) {
    result_.device = device;
    const snapshot::settings& s = source.configured;
    const auto conf = config::parse<config::pytorch>(s.conf);
    if (const auto* parsed = std::get_if<config::pytorch_settings>(&conf))
      chosen_ = pytorch_native::configured(*parsed);
    chosen_.split.max = s.max_split_size;
    chosen_.eviction.threshold = fraction{};
    std::copy(std::begin(s.roundup_power2_divisions), std::end(s.roundup_power2_divisions),
              std::begin(chosen_.rounding.table.value.in_slot));
  }

  [[nodiscard]] read_result<verification> run() {
    auto start = start_finder(source_, device_).find([this](std::size_t n) {
      return chosen_.rounding.block_size(n != 0 ? n : 1);
    });
    if (auto* error = std::get_if<input_error>(&start)) return std::move(*error);
    for (const snapshot::segment& s : std::get<std::vector<snapshot::segment>>(start)) {
      for (const snapshot::block& b : s.blocks) {
        if (!is_possible(b.address, b.size)) return impossible(b.address, b.size);
      }
      if (!adopt(s)) return input_error{source_.name, "host memory ran out"};
    }
    for (const snapshot::entry& e : source_.trace_of(device_)) {
      if (e.what == snapshot::action::segment_alloc && !is_possible(e.address, e.size))
        return impossible(e.address, e.size);
      step(e);
    }
    return result_;
  }

 private:
  using allocator = caching_allocator<pytorch<>, recorded_device>;
  using pool_id = std::pair<std::uint64_t, std::uint64_t>;
  struct place {
    std::size_t size;
    pool_id pool;
  };

  /// Whether a device may have given this: an allocator looks after no others.
  [[nodiscard]] static bool is_possible(std::uint64_t address, std::size_t bytes) noexcept {
    return address != 0 && address % min_alignment == 0 && bytes != 0 && bytes % min_alignment == 0;
  }
  [[nodiscard]] input_error impossible(std::uint64_t address, std::size_t bytes) const {
    return {source_.name + ": device " + std::to_string(device_),
            std::to_string(bytes) + " bytes at " + std::to_string(address) + " are not whole steps of " +
                std::to_string(min_alignment) + " bytes"};
  }

  /// Private pools decide for themselves, so each has an allocator of its own.
  [[nodiscard]] allocator& pool_of(const pool_id& id) {
    auto& pool = pools_[id];
    if (pool == nullptr) pool = std::make_unique<allocator>(recorded_device{}, chosen_);
    return *pool;
  }

  [[nodiscard]] bool adopt(const snapshot::segment& s) {
    std::vector<engine::piece> pieces;
    for (const snapshot::block& b : s.blocks) {
      const std::size_t requested = b.requested == 0 || b.requested > b.size ? b.size : b.requested;
      pieces.push_back({b.size, b.active() ? requested : 0});
      if (b.active()) live_[b.address] = {s.pool, reinterpret_cast<void*>(b.address)};
    }
    segments_[s.address] = {s.size, s.pool};
    allocator& pool = pool_of(s.pool);
    auto& machine = pool.machine();
    machine.device().hold({s.address, s.size});
    engine::free_blocks* const home = machine.home(s.large ? 1 : 0, s.stream);
    if (home == nullptr ||
        !machine.adopt(*home, reinterpret_cast<void*>(s.address), pieces, chosen_.split.oversize()))
      return false;
    reserved_ += s.size;
    here_ += s.size;
    peak();
    return true;
  }

  void step(const snapshot::entry& e) {
    switch (e.what) {
      case snapshot::action::alloc: allocate(e); break;
      case snapshot::action::free_completed:
        if (const auto found = live_.find(e.address); found != live_.end()) {
          change(pool_of(found->second.first),
                 [&](allocator& pool) { pool.deallocate(found->second.second); });
          live_.erase(found);
        }
        break;
      case snapshot::action::segment_alloc: {
        const pool_id id = pool_at_end(e);
        segments_[e.address] = {e.size, id};
        reserved_ += e.size;
        ++result_.segments;
        pool_of(id).device().expect({e.address, e.size});
        break;
      }
      case snapshot::action::segment_free: {
        const auto found = segments_.find(e.address);
        if (found == segments_.end()) break;
        change(pool_of(found->second.pool), [&](allocator& pool) {
          auto& machine = pool.machine();
          engine::block* const head = machine.blocks().segment_at(reinterpret_cast<void*>(e.address));
          const bool idle = head != nullptr && head->is_free() && !head->is_split();
          if (!idle || !machine.release(*head))
            differ("a segment of " + std::to_string(e.size) + " bytes went back there and is in use here");
        });
        reserved_ -= e.size;
        segments_.erase(found);
        break;
      }
      default: break;
    }
    peak();
  }

  void allocate(const snapshot::entry& e) {
    auto after = segments_.upper_bound(e.address);
    const pool_id id = after == segments_.begin() ? pool_id{} : std::prev(after)->second.pool;
    allocator& pool = pool_of(id);
    const std::size_t strays = pool.device().strays();
    void* p = nullptr;
    change(pool, [&](allocator& to) { p = to.try_allocate(e.size != 0 ? e.size : 1, e.stream); });
    const auto unused = pool.device().take_unused();
    if (pool.device().strays() != strays || !unused.empty()) {
      differ("before allocation " + std::to_string(result_.allocations) + " there " +
             (unused.empty() ? "none" : std::to_string(unused.front().bytes)) + ", here " +
             (pool.device().strays() == strays ? "none" : std::to_string(pool.device().asked().bytes)));
    }
    const bool same = reinterpret_cast<std::uint64_t>(p) == e.address;
    if (!same && result_.same_address == result_.allocations)
      result_.first_other_address = result_.allocations;
    result_.same_address += same;
    ++result_.allocations;
    live_[e.address] = {id, p};
  }

  /// The private pool that a segment belongs to, which only the state at the end tells.
  [[nodiscard]] pool_id pool_at_end(const snapshot::entry& e) const {
    const auto segments = source_.segments_of(device_);
    const auto found = std::lower_bound(
        segments.begin(), segments.end(), e.address,
        [](const snapshot::segment& s, std::uint64_t address) { return s.address < address; });
    const bool is_it = found != segments.end() && found->address == e.address && found->size == e.size;
    return is_it ? found->pool : pool_id{};
  }
  void differ(std::string what) {
    if (result_.first_other_segment.empty()) result_.first_other_segment = std::move(what);
  }
  /// Does something to a pool, and notes by how much what is reserved here changed.
  template <typename Action>
  void change(allocator& pool, Action action) {
    const std::size_t before = pool.now().reserved;
    action(pool);
    here_ += pool.now().reserved - before;
  }
  void peak() {
    result_.peak_here = (std::max)(result_.peak_here, here_);
    result_.peak_recorded = (std::max)(result_.peak_recorded, reserved_);
  }

  const snapshot& source_;
  std::size_t device_;
  policies<pytorch<>> chosen_{};
  std::map<pool_id, std::unique_ptr<allocator>> pools_;
  std::map<std::uint64_t, place> segments_;                  // as on the recorded device
  std::map<std::uint64_t, std::pair<pool_id, void*>> live_;  // by recorded address
  std::size_t reserved_ = 0;                                 // there
  std::size_t here_ = 0;                                     // in all pools
  verification result_;
};

}  // namespace tessera::trace
