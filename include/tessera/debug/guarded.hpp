// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/debug/guard_book.hpp>
#include <tessera/debug/guard_pages.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera {

/// As `Streams`, but all streams that are recorded hold a block back, its own too: where its memory goes with it, nobody may
/// still be at it.
template <streams_policy Streams>
struct hold_for_all : Streams {
  [[nodiscard]] static constexpr bool needs_event(stream_id, stream_id) noexcept {
    return Streams::uses_events;
  }
  bool operator==(const hold_for_all&) const = default;
};

/// A device's segment for each block; of `Recipe`, only the streams' policy and the limit of growth count.
template <typename Recipe>
struct one_segment_each final {
  using rounding = round_to_multiple<min_alignment>;
  using pools = pool_together;
  using streams = hold_for_all<typename Recipe::streams>;
  using split = split_never;
  using pages = back_with_normal_pages;
  using growth = grow_exactly<>;
  using eviction = evict_at_free;
  using recovery = recover_by_emptying_cache;

  [[nodiscard]] static constexpr policies<one_segment_each> from(const policies<Recipe>& chosen,
                                                                 std::size_t capacity) noexcept {
    return {.streams = {chosen.streams}, .growth = {.most = chosen.growth.limit(capacity)}};
  }
};

/// What a guarded allocator is built upon, and so outlives it.
template <typename Provider>
struct guarded_parts {
  guarded_parts(Provider given, guarding how) : source(std::move(given)), memory(source, how) {}
  Provider source;
  guard_memory<Provider> memory;
};

/// An allocator for finding who writes where nothing is his, in memory that the host reads and writes: the template
/// arguments and calls of `locked`, so that a program takes it by changing a type. Each block has pages of its own between
/// guard pages, lies at their end as far as min_alignment lets it, and has a pattern around it.
///
/// What touches a guard page, or a block after it was freed, faults there and then; a fault_reports
/// [tessera/debug/fault_reports.hpp] says in words which block that was. What was written between a block and a guard page is
/// found when the block is freed, or by check(). Who frees twice, or what is not his, or says another size, ends the
/// program, as with every allocator, but it says which block that is. New blocks hold guard_book::fresh and not zeros.
///
/// Of a recipe, only the policy of streams and the limit of growth count. A block is freed once its own stream and those
/// recorded have come past; until then, what touches it faults not.
///
///     #include <tessera/debug/fault_reports.hpp>
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::guarded<tessera::pytorch_pinned<>, tessera::host_pinned> checked;
///     const tessera::fault_reports reports(checked);
///     checked.label("batch");
///     auto* batch = static_cast<unsigned char*>(checked.allocate(1000));
///     batch[999] = 1;  // batch[1000] = 1 would be found by deallocate, and batch[1024] = 1 at once
///     checked.deallocate(batch);
///
///   Cost:  six calls of the device for each block, and writing all of it; a page of memory at least, and of addresses two
///          more, also in quarantine; 128 bytes for each. A system has but so many mappings for a process
///          (/proc/sys/vm/max_map_count, as a rule 65,530), of which a live block takes up to three, and one in quarantine
///          one; guarding::most_mappings says how many all of them may take, and should divide them where there are several.
template <typename Recipe, device_provider Provider, event_observer Observer, typename Counting>
class guarded : private guarded_parts<Provider>,
                public locked<one_segment_each<Recipe>, guard_pages<Provider>, Observer, Counting>,
                public allocate_calls<guarded<Recipe, Provider, Observer, Counting>> {
  using calls = allocate_calls<guarded>;
  using parts = guarded_parts<Provider>;
  using base = locked<one_segment_each<Recipe>, guard_pages<Provider>, Observer, Counting>;

 public:
  guarded() : guarded(Provider{}) {}
  explicit guarded(Provider device, const policies<Recipe>& chosen = {}, Observer observer = {},
                   guarding how = {})
      : parts(std::move(device), how),
        base(guard_pages<Provider>(parts::memory),
             one_segment_each<Recipe>::from(chosen, parts::source.capacity()), std::move(observer)) {}

  using calls::allocate, calls::try_allocate, calls::deallocate, base::record_stream;
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    void* const p = base::try_allocate(bytes, stream);
    if (p != nullptr) this->memory.book().hand_out(p, bytes, stream);
    return p;
  }
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept {
    const handle h = base::allocate_by_handle(bytes, stream);
    if (h) this->memory.book().hand_out(h.data(), bytes, stream);
    return h;
  }

  void deallocate(void* p) noexcept {
    if (p != nullptr) expect_sound(this->memory.book().give_back(p), p), free(p);
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    if (p != nullptr) expect_sound(this->memory.book().give_back(p, &bytes), p), free(p);
  }
  void deallocate(handle h) noexcept {
    if (h) expect_sound(this->memory.book().give_back(h.data()), h.data()), free(h);
  }
  /// Ends the program, too, where something was written around a live block.
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    const guard_book::verdict found = this->memory.book().give_back(p);
    if (found.is_live) expect_sound(found, p), free(p);
    return found.is_live;
  }
  /// No block is passed on, so that who uses the one it was is found.
  [[nodiscard]] static constexpr bool reuse_in_place(void*, std::size_t, stream_id) noexcept { return false; }

  /// Names what is allocated from here on, for all threads; empty for nothing. The 4,096th name and all after it are one.
  ///   Throws:  std::bad_alloc
  void label(std::string_view text) { this->memory.book().label(text); }
  /// That of a block, freed or not, by any address in it; empty where it has none.
  [[nodiscard]] const char* label_of(const void* p) const noexcept { return book().label_of(p); }
  /// Ends the program where something was written around a live block.
  ///   Cost:  reads less than a page before and 64 bytes behind each
  void check() const noexcept { guard_memory<Provider>::end_if(book().find_damage(), "check"); }
  /// Gives the addresses of freed blocks back, which are not found then any more.
  void drop_quarantine() noexcept { this->memory.drop_quarantine(0); }
  /// What is known of the blocks.
  [[nodiscard]] const guard_book& book() const noexcept { return this->memory.book(); }

  /// Why the latest request for memory failed: the provider's last_error(), or that mappings are to be spared.
  [[nodiscard]] std::string last_error() {
    if (const char* const own = this->memory.failure_reason(); own != nullptr) return own;
    return with_device([](auto& device) {
      if constexpr (requires { device.last_error(); }) return std::string(device.last_error());
      return std::string();
    });
  }

  template <typename F>
  decltype(auto) with_device(F f) {
    return base::with_device([&f](auto& pages) -> decltype(auto) { return f(pages.to()); });
  }

 private:
  static constexpr bool is_keyed =
      !std::is_same_v<decltype(std::declval<const typename Recipe::streams&>().reuse_key({})), any_stream>;

  static void expect_sound(const guard_book::verdict& found, const void* p) noexcept {
    guard_memory<Provider>::end_if(found.wrong, "deallocate", p);
  }
  /// Frees a block by its address or handle. Behind the work of its own stream, where there may be some.
  template <typename Block>
  void free(Block b) noexcept {
    if constexpr (is_keyed) {
      (void)base::record_stream(b, stream_of(b));
    }
    base::deallocate(b);
    if constexpr (Recipe::streams::uses_events) base::retire();
  }
  [[nodiscard]] stream_id stream_of(const void* p) const noexcept { return {book().find(p)->stream}; }
  [[nodiscard]] stream_id stream_of(handle h) const noexcept { return stream_of(h.data()); }
};

}  // namespace tessera
