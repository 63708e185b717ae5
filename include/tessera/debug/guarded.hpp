// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/guard_pages.hpp>
#include <tessera/fwd.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// Behaves like `Streams`, but also counts recorded uses on the block's own stream. A free unmaps the memory,
/// so no work may still use it.
template <policy::streams_policy Streams>
struct record_own_stream : Streams {
  [[nodiscard]] static constexpr bool needs_event(stream_id, stream_id) noexcept {
    return Streams::uses_events;
  }
  bool operator==(const record_own_stream&) const = default;
};

/// Gives each block its own segment. Of `Recipe`, it uses only the streams policy and the limit of growth.
template <typename Recipe>
struct guarded_recipe final {
  using rounding = policy::round_to_multiple<min_alignment>;
  using pools = policy::pool_together;
  using streams = record_own_stream<typename Recipe::streams>;
  using split = policy::split_never<>;
  using pages = policy::normal_pages;
  using growth = policy::grow_exactly<>;
  using eviction = policy::evict_at_free<>;
  using recovery = policy::recover_by_emptying_cache<>;

  [[nodiscard]] static constexpr recipe::policies<guarded_recipe> from(
      const recipe::policies<Recipe>& settings, std::size_t capacity) noexcept {
    return {.streams = {settings.streams}, .growth = {.limit = settings.growth.limit.on(capacity)}};
  }
};

/// The allocator inside a guarded one.
template <typename Allocator>
struct guarded_locked : innermost_front<Allocator> {};
template <typename Recipe, typename Provider, typename... Extension>
struct guarded_locked<caching_allocator<Recipe, Provider, Extension...>> {
  using type =
      concurrent::locked<caching_allocator<guarded_recipe<Recipe>, guard_pages<Provider>, Extension...>>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::detail::missing {

struct a_guarded_allocator_brings_no_freed_block_back;
struct a_guarded_allocator_maps_no_ranges;

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1::debug {

/// Installs a SIGSEGV handler that explains faults in a `guarded` allocator on standard error. It prints the
/// accessed block, its size, distance and label, and whether it was freed. Then it calls the previous
/// handler, for example a sanitizer's.
///
/// All objects share one handler. Up to 64 objects may exist at a time.
///   Requires:  the allocator outlives it
class fault_reports {
 public:
  /// Explains faults in one guarded allocator.
  template <typename Guarded>
  [[nodiscard]] explicit fault_reports(const Guarded& pool) noexcept : fault_reports(pool.shadow()) {}
  /// Explains faults in these blocks. The other constructor calls it.
  [[nodiscard]] explicit fault_reports(const detail::guard_shadow& blocks) noexcept {
    const std::lock_guard lock(mutex);
    for (auto& slot : shadows) {
      if (slot.load() != nullptr) continue;
      slot_ = &slot;
      slot.store(&blocks);
      if (++count == 1) install();
      return;
    }
    detail::fatal("fault_reports: more than 64 at a time");
  }
  fault_reports& operator=(fault_reports&&) = delete;
  ~fault_reports() {
    const std::lock_guard lock(mutex);
    slot_->store(nullptr);
    if (--count == 0) uninstall();
  }

 private:
  using handler = struct sigaction;

  static void install() noexcept {
    if (std::exchange(is_installed, true)) return;
    handler ours{};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGSEGV, nullptr, &before);  // the handler may read it, so it is set first
    ::sigaction(SIGSEGV, &ours, nullptr);
  }
  /// Does not replace a handler that was installed later, because that handler may call this one.
  static void uninstall() noexcept {
    handler now{};
    ::sigaction(SIGSEGV, nullptr, &now);
    is_installed = (now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != &on_fault;
    if (!is_installed) ::sigaction(SIGSEGV, &before, nullptr);
  }

  static void on_fault(int number, siginfo_t* info, void* context) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (const auto& slot : shadows) {
      const detail::guard_shadow* const blocks = slot.load();
      const detail::fixed_text text = blocks != nullptr ? blocks->explain(address) : detail::fixed_text();
      if (text.empty()) continue;
      const detail::fixed_text line =
          detail::fixed_text().add("tessera: guarded: ").add(text.c_str()).add("\n");
      (void)!::write(STDERR_FILENO, line.c_str(), line.size());
      break;
    }
    call_previous(number, info, context);
  }
  static void call_previous(int number, siginfo_t* info, void* context) noexcept {
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(number);
    } else {
      // After the return, the access faults again and the default handler ends the program. A signal sent by
      // a process does not occur again.
      handler fallback{};
      fallback.sa_handler = SIG_DFL;
      ::sigaction(number, &fallback, nullptr);
      if (info->si_code <= 0) ::raise(number);
    }
  }

  static inline std::mutex mutex;
  static inline std::array<std::atomic<const detail::guard_shadow*>, 64> shadows{};
  static inline handler before{};
  static inline int count = 0;
  static inline bool is_installed = false;  // true if this handler may still be called

  std::atomic<const detail::guard_shadow*>* slot_ = nullptr;
};

/// Detects out-of-bounds writes and use-after-free in host-visible memory. Each block has its own pages
/// between guard pages.
///
/// Choose it to find memory errors. `Allocator` is a caching_allocator; other front ends go around. It has the calls of
/// `locked`, so a program changes only one type.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::debug::guarded<tessera::caching_allocator<tessera::recipe::pytorch_pinned<>, tessera::provider::host_pinned>> checked;
///     const tessera::debug::fault_reports reports(checked);
///     checked.label("batch");
///     auto* batch = static_cast<unsigned char*>(checked.allocate(1000));
///     batch[999] = 1;  // deallocate would find batch[1000] = 1; batch[1024] = 1 would fault at once
///     checked.deallocate(batch);
///
/// * Accesses to a guard page or a freed block fault at once. `fault_reports`
///   names the block.
/// * A block ends at a guard page, or up to min_alignment - 1 bytes before it. The bytes around the block
///   have a pattern. deallocate and abort_if_damaged() find writes there.
/// * Double and foreign frees abort and name the block. So do frees with a wrong size, if the size is passed.
///   try_deallocate aborts only if a write around the block is found.
/// * New blocks hold the byte guard_shadow::fresh, not zeros.
/// * A block's memory is freed once its own stream and the recorded streams have completed. Until then,
///   accesses do not fault.
/// * Of a recipe, only the streams policy and the limit of growth are used.
/// * It has no checkpoints, because a freed block has lost its pages and cannot become live again.
///
///   Cost:  for each block:
///
/// | resource       | amount                                                     |
/// |----------------|------------------------------------------------------------|
/// | provider calls | six                                                        |
/// | writes         | the whole block once                                       |
/// | device memory  | at least one page while the block is live                  |
/// | addresses      | at least three pages, also in quarantine                   |
/// | host memory    | 128 bytes                                                  |
/// | mappings       | up to three while the block is live; one in quarantine     |
///
/// A process has a limited number of mappings (/proc/sys/vm/max_map_count, usually 65,530).
/// options::max_mappings limits the use of one allocator. Divide the number if there are several guarded
/// allocators.
template <typename Allocator>
class guarded
    : public allocator_adaptor<guarded<Allocator>, typename detail::guarded_locked<Allocator>::type> {
 public:
  using recipe_type = typename Allocator::recipe_type;
  using provider_type = typename Allocator::provider_type;

 private:
  using locked_type = typename detail::guarded_locked<Allocator>::type;
  using adaptor_type = allocator_adaptor<guarded, locked_type>;

 public:
  /// How blocks are guarded: bytes of the guards (`guard`), bytes of freed addresses that are not reused
  /// (`quarantine`), whether a free unmaps the pages (`frees_pages`), and a maximum of mappings
  /// (`max_mappings`).
  using options = detail::guard_options;
  template <typename E>
  using refused = std::conditional_t<std::is_same_v<E, extension::checkpoints>,
                                     detail::missing::a_guarded_allocator_brings_no_freed_block_back,
                                     std::conditional_t<std::is_same_v<E, extension::sleep_mode>,
                                                        detail::missing::a_guarded_allocator_maps_no_ranges,
                                                        typename adaptor_type::template refused<E>>>;

  guarded() : guarded(provider_type{}) {}
  /// Each of `given` is an extension of the allocator; the others are made by default.
  template <typename... Given>
    requires(detail::are_extensions_of<Allocator, Given...>)
  explicit guarded(provider_type device, const recipe::policies<recipe_type>& settings = {},
                   options guarding = {}, Given&&... given)
      : source_(std::move(device)),
        memory_(source_, guarding),
        allocator_(detail::guard_pages<provider_type>(memory_),
                   detail::guarded_recipe<recipe_type>::from(settings, source_.capacity()),
                   std::forward<Given>(given)...) {}

  /// Never reuses a block, so that uses of the old block are found.
  [[nodiscard]] static constexpr bool reuse_in_place(void*, std::size_t, stream_id) noexcept { return false; }

  /// Labels the blocks that the calling thread allocates from now on; an empty text removes the label. At most 4,095
  /// labels are distinct; later labels share one text.
  ///   Throws:  std::bad_alloc
  void label(std::string_view text) { memory_.shadow().label(text); }
  /// Labels the blocks of the threads that have set no label.
  ///   Throws:  std::bad_alloc
  void set_default_label(std::string_view text) { memory_.shadow().set_default_label(text); }
  /// Returns the label of a live or freed block from any address in it; empty if it has no label.
  [[nodiscard]] const char* label_of(const void* p) const noexcept { return shadow().label_of(p); }
  /// Aborts if a write around a live block is found.
  ///   Cost:  reads less than a page before and 64 bytes after each block
  void abort_if_damaged() const noexcept { memory_.abort_if(shadow().find_damage(), "check"); }
  /// Returns the addresses of freed blocks to the device. Later accesses to these blocks are not detected.
  void drop_quarantine() noexcept { memory_.drop_quarantine(0); }
  /// The shadow state of the blocks.
  [[nodiscard]] const detail::guard_shadow& shadow() const noexcept { return memory_.shadow(); }

  /// Returns why the latest request for memory failed: the provider's last_error(), or the limit of mappings.
  [[nodiscard]] std::string last_error() {
    if (const char* const own = memory_.failure_reason(); own != nullptr) return own;
    return visit_provider([](auto& device) {
      if constexpr (requires { device.last_error(); }) return std::string(device.last_error());
      return std::string();
    });
  }

  template <typename F>
  decltype(auto) visit_provider(F f) {
    return allocator_.visit_provider([&f](auto& adaptor) -> decltype(auto) { return f(adaptor.inner()); });
  }

 private:
  friend adaptor_type;

  static constexpr bool has_stream_keys = !detail::has_one_key<typename recipe_type::streams>;

  template <typename F>
  static auto on_call(guarded& me, const detail::request_call& call, F ask) noexcept {
    const auto got = ask();
    if (got) me.memory_.shadow().mark_live(detail::start_of(got), call.bytes, call.stream);
    return got;
  }
  /// If the block's own stream may have unfinished work, the free waits for that work.
  template <typename F>
  static bool on_call(guarded& me, const detail::free_call& call, F free) noexcept {
    if (call.address == nullptr) return false;
    const auto result = me.memory_.shadow().mark_freed(call.address, call.bytes);
    if (call.may_fail && !result.is_live) return false;
    me.memory_.abort_if(result.wrong, "deallocate", call.address);
    if constexpr (has_stream_keys) {
      const stream_id own{me.shadow().find(call.address)->stream};
      (void)(call.handle ? me.record_stream(call.handle, own) : me.record_stream(call.address, own));
    }
    (void)free();
    if constexpr (recipe_type::streams::uses_events) me.allocator_.process_events();
    return true;
  }

  provider_type source_;
  detail::guard_memory<provider_type> memory_;
  locked_type allocator_;
};

}  // namespace tessera::inline v0_1::debug
