// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/error.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/bank_policy.hpp>
#include <tessera/provider/latest_refusals.hpp>

/// Several memories behind one provider.

namespace tessera::inline v0_1::provider {

/// One memory of a memory_domains.
template <device_provider Provider>
struct memory_bank {
  Provider provider;                  ///< gives the memory of the bank
  std::string name{};                 ///< for messages; empty for its number
  std::vector<unsigned> distances{};  ///< to each bank; empty for 10 to itself and 20 to the others
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

/// Physical memory of a bank.
template <typename Provider>
struct banked_memory {};
template <typename Provider>
  requires requires { typename Provider::physical; }
struct banked_memory<Provider> {
  typename Provider::physical memory{};
  std::size_t bytes = 0;  ///< 0 for imported memory
  std::size_t bank = 0;
  bool operator==(const banked_memory&) const
    requires std::equality_comparable<typename Provider::physical>
  = default;
};

/// A name of memory that a bank exported.
template <typename Provider>
struct banked_name {};
template <provider::sharing_provider Provider>
struct banked_name<Provider> {
  typename Provider::shareable name{};
  std::size_t bank = 0;
};

/// The bank of each range of addresses. An entry that is made before a call never fails to be inserted after it.
class bank_table {
 public:
  struct entry {
    std::size_t bytes = 0;
    std::size_t bank = 0;
  };
  using node = std::map<std::uintptr_t, entry>::node_type;

  /// Makes an entry that is in no table; empty if host memory ran out.
  [[nodiscard]] static node make() noexcept {
    node made;
    (void)try_run([&] {
      std::map<std::uintptr_t, entry> one;
      one.try_emplace(0);
      made = one.extract(one.begin());
    });
    return made;
  }
  void insert(node added, const void* p, entry value) noexcept {
    added.key() = reinterpret_cast<std::uintptr_t>(p);
    added.mapped() = value;
    (void)entries_.insert(std::move(added));
  }
  /// Restores an entry that extract() returned.
  void insert(node removed) noexcept { (void)entries_.insert(std::move(removed)); }
  /// Removes the entry that begins at an address; empty if there is none.
  [[nodiscard]] node extract(const void* p) noexcept {
    return entries_.extract(reinterpret_cast<std::uintptr_t>(p));
  }
  /// The bank of an address; no_bank if no entry contains it.
  [[nodiscard]] std::size_t bank_of(const void* p) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    auto at = entries_.upper_bound(address);
    if (at == entries_.begin()) return provider::no_bank;
    --at;
    return address - at->first < at->second.bytes ? at->second.bank : provider::no_bank;
  }

 private:
  std::map<std::uintptr_t, entry> entries_;
};

/// The banks of a memory_domains, at addresses that stay the same when it moves.
template <typename Provider, typename Policy>
struct domains_state {
  using bank_type = provider::memory_bank<Provider>;

  domains_state(std::vector<bank_type> all, Policy chosen)
      : banks(std::move(all)), policy(std::move(chosen)) {
    const std::size_t count = banks.size();
    if (count == 0 || count > provider::max_banks)
      fatal("memory_domains: the number of banks is not 1 to 64");
    statistics.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      bank_type& bank = banks[i];
      if (bank.name.empty()) bank.name = std::to_string(i);
      if (bank.provider.granularity() != banks[0].provider.granularity())
        fail(bank, "has another granularity than the first bank");
      if (!bank.distances.empty() && bank.distances.size() != count)
        fail(bank, "needs as many distances as there are banks, or none");
      if constexpr (requires { bank.provider.shares_addresses_with(bank.provider); }) {
        if (!banks[0].provider.shares_addresses_with(bank.provider))
          fail(bank, "has other addresses than the first bank; make it with another_bank()");
      }
      capacities.push_back(bank.provider.capacity());
      for (std::size_t to = 0; to < count; ++to)
        distances.push_back(!bank.distances.empty() ? bank.distances[to] : to == i ? 10 : 20);
      if (policy.uses(i)) capacity = saturating_add(capacity, capacities[i]);
    }
    if (capacity == 0) fatal("memory_domains: the policy uses none of the banks");
  }
  domains_state& operator=(domains_state&&) = delete;

  [[noreturn]] static void fail(const bank_type& bank, const char* why) noexcept {
    fatal(fixed_text().add("memory_domains: bank '").add(bank.name.c_str()).add("' ").add(why).c_str());
  }
  [[nodiscard]] std::size_t left(std::size_t bank) const noexcept {
    return left_on(banks[bank].provider, statistics[bank].held);
  }

  std::vector<bank_type> banks;
  Policy policy;
  std::size_t capacity = 0;
  std::vector<std::size_t> capacities;
  std::vector<unsigned> distances;
  mutable std::mutex mutex;  // guards the members below; not held during calls of the banks
  std::vector<provider::bank_statistics> statistics;  // by bank
  bank_table segments, mappings;
  provider::latest_refusals refused;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Owns several memories of one device, such as HBM and DDR or the nodes of a NUMA host, and serves each request from the
/// bank that a policy chooses. If a bank refuses, the policy chooses another one or gives up.
///
///     using device = tessera::provider::simulated_device;
///     using domains = tessera::provider::memory_domains<device, tessera::provider::spill_banks>;
///     std::vector<domains::bank> banks;
///     banks.push_back({device({.capacity = 64_GiB}), "hbm"});
///     banks.push_back({banks[0].provider.another_bank({.capacity = 512_GiB}), "ddr"});
///     tessera::caching_allocator<tessera::recipe::pytorch<>, domains> in_both{domains(std::move(banks))};
///     void* const weights = in_both.allocate(100_GiB);
///     std::printf("in bank %zu\n", in_both.provider().bank_of(weights));  // 1, because 100 GiB exceed the HBM
///     in_both.deallocate(weights);
///
/// It has all capabilities of its banks. Streams, events, copies, registered memory, and the calls about addresses (reserve,
/// unreserve, map, grant, unmap) are those of bank 0. Segments and physical memory are acquired, created, shared, released
/// and destroyed by their own bank. So a range may map memory of several banks. If a request fails, the reason names
/// each bank that was asked.
///
/// An allocator over it caches memory of all banks together: a free block serves the next request that fits, from whatever
/// bank it is. Where each request needs a certain bank, use one allocator for each bank, whose policy asks that
/// bank first.
/// examples/21_memory_domains.cpp does that for NUMA nodes.
///
/// It is thread-safe if the banks are.
///   Requires:  the banks have the same addresses and streams, as the memories of one device have. host_pinned and
///              simulated_device make such banks with another_bank(); the constructor aborts with any others. Banks without
///              virtual memory, copies and streams may be unrelated
///   Requires:  all banks have the same granularity
///   Cost:      a mutex and a look-up for each call about memory, and about 64 bytes for each segment and mapping
template <device_provider Provider, bank_policy Policy>
class memory_domains : public provider_adaptor<Provider> {
  static constexpr bool has_pages = virtual_memory_provider<Provider>;

 public:
  /// The banks that the constructor takes.
  using bank = memory_bank<Provider>;
  using physical = detail::banked_memory<Provider>;
  using shareable = detail::banked_name<Provider>;
  static constexpr bool is_thread_safe = detail::is_thread_safe<Provider>;
  static constexpr bool gives_in_parts = true;  // the banks

  /// Aborts if the banks do not fit together, or if the policy uses none of them.
  memory_domains(std::vector<bank> banks, Policy policy = {})
      : memory_domains(std::make_unique<state>(std::move(banks), std::move(policy))) {}

  /// The number of banks.
  [[nodiscard]] std::size_t count() const noexcept { return state_->banks.size(); }
  /// The name of a bank, for messages. It lives as long as the banks.
  [[nodiscard]] const char* name(std::size_t number) const noexcept {
    return state_->banks[number].name.c_str();
  }
  /// The provider of a bank. Calls of it pass neither the policy nor the statistics.
  [[nodiscard]] Provider& provider(std::size_t number) const noexcept {
    return state_->banks[number].provider;
  }
  /// The policy that chooses banks.
  [[nodiscard]] const Policy& policy() const noexcept { return state_->policy; }
  /// What a bank has served so far.
  [[nodiscard]] bank_statistics statistics(std::size_t number) const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->statistics[number];
  }
  /// The bank of the memory at an address; no_bank if there is none.
  [[nodiscard]] std::size_t bank_of(const void* p) const noexcept {
    const std::lock_guard lock(state_->mutex);
    const std::size_t of_segment = state_->segments.bank_of(p);
    return of_segment != no_bank ? of_segment : state_->mappings.bank_of(p);
  }

  /// The sum over the banks that the policy uses.
  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  [[nodiscard]] bool keeps_released(const void* p) const noexcept {
    const std::size_t of = bank_of(p);
    return of != no_bank && detail::keeps_released(provider(of), p);
  }
  [[nodiscard]] std::size_t available() const noexcept
    requires detail::measured_provider<Provider>
  {
    std::size_t sum = 0;
    for_each_used([&](const Provider& b) { sum = detail::saturating_add(sum, b.available()); });
    return sum;
  }
  /// Whether every bank that the policy uses would exceed its limit.
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept
    requires detail::limited_provider<Provider>
  {
    bool all = true;
    for_each_used([&](const Provider& b) { all = all && b.would_exceed_limit(bytes); });
    return all;
  }
  /// How the last of these banks would exceed its limit.
  [[nodiscard]] refusal explain_limit(std::size_t bytes) const noexcept
    requires detail::limit_explaining_provider<Provider>
  {
    refusal why;
    if (would_exceed_limit(bytes)) for_each_used([&](const Provider& b) { why = b.explain_limit(bytes); });
    return why;
  }
  bool reclaim() noexcept
    requires detail::reclaiming_provider<Provider>
  {
    bool any = false;
    for (bank& b : state_->banks) any = b.provider.reclaim() || any;
    return any;
  }
  refusal take_refusal() noexcept { return state_->refused.take(); }

  template <std::same_as<page_kind>... Kind>
    requires detail::acquires_with<Provider, Kind...>
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    detail::bank_table::node entry = make_entry("acquire");
    if (entry.empty()) return nullptr;
    void* p = nullptr;
    const std::size_t from = ask("acquire", {bytes, kind...}, [&](Provider& b) {
      p = b.acquire(bytes, kind...);
      return p != nullptr;
    });
    if (from == no_bank) return nullptr;
    const std::lock_guard lock(state_->mutex);
    state_->segments.insert(std::move(entry), p, {bytes, from});
    return p;
  }
  /// Gives the segment back to the bank that gave it.
  bool release(void* p, std::size_t bytes) noexcept {
    detail::bank_table::node entry = extract(state_->segments, p);
    if (entry.empty()) return false;
    const std::size_t from = entry.mapped().bank;
    const bool released = entry.mapped().bytes == bytes && provider(from).release(p, bytes);
    const std::lock_guard lock(state_->mutex);
    if (released)
      state_->statistics[from].held -= bytes;
    else
      state_->segments.insert(std::move(entry));
    return released;
  }

  /// The largest page of the banks.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept
    requires has_pages
  {
    std::size_t largest = 1;
    for (const bank& b : state_->banks) largest = detail::larger(largest, b.provider.page_size(kind));
    return largest;
  }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept
    requires has_pages
  {
    void* const p = provider(0).reserve(bytes, alignment);
    (void)noted(0, "reserve", p != nullptr);
    return p;
  }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept
    requires has_pages
  {
    physical created{.bytes = bytes};
    created.bank = ask("create", {bytes, kind, true},
                       [&](Provider& b) { return b.create(bytes, kind, created.memory); });
    if (created.bank == no_bank) return false;
    made = created;
    return true;
  }
  /// Creates memory in one bank, without asking the policy. Plans over several banks need that.
  bool create_in(std::size_t number, std::size_t bytes, page_kind kind, physical& made) noexcept
    requires has_pages
  {
    physical created{.bytes = bytes, .bank = number};
    if (!has_bank(number, "create_in")) return false;
    const bool is_created = provider(number).create(bytes, kind, created.memory);
    if (is_created) {
      made = created;
    } else {
      detail::fixed_text why;
      add_refusal_to(why, number);
      state_->refused.note(refusal::format("create_in: %s", why.c_str()));
    }
    const std::lock_guard lock(state_->mutex);
    if (is_created)
      count_served(state_->statistics[number], bytes, true);
    else
      ++state_->statistics[number].refused;
    return is_created;
  }
  bool destroy(const physical& made) noexcept
    requires has_pages
  {
    if (made.bank >= count() || !provider(made.bank).destroy(made.memory)) return false;
    const std::lock_guard lock(state_->mutex);
    state_->statistics[made.bank].held -= made.bytes;
    return true;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept
    requires has_pages
  {
    detail::bank_table::node entry = make_entry("map");
    if (entry.empty()) return false;
    if (!noted(0, "map", provider(0).map(p, bytes, made.memory))) return false;
    const std::lock_guard lock(state_->mutex);
    state_->mappings.insert(std::move(entry), p, {bytes, made.bank});
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept
    requires has_pages
  {
    return noted(0, "grant", provider(0).grant(p, bytes));
  }
  bool unmap(void* p, std::size_t bytes) noexcept
    requires has_pages
  {
    detail::bank_table::node entry = extract(state_->mappings, p);
    const bool unmapped = provider(0).unmap(p, bytes);
    if (!unmapped && !entry.empty()) {
      const std::lock_guard lock(state_->mutex);
      state_->mappings.insert(std::move(entry));
    }
    return unmapped;
  }

  bool export_memory(const physical& made, importers who, shareable& name) noexcept
    requires sharing_provider<Provider>
  {
    if (!has_bank(made.bank, "export_memory") ||
        !noted(made.bank, "export_memory", provider(made.bank).export_memory(made.memory, who, name.name)))
      return false;
    name.bank = made.bank;
    return true;
  }
  [[nodiscard]] bool exported_name(const physical& made, shareable& name) const noexcept
    requires requires(const Provider& b) { b.exported_name(made.memory, name.name); }
  {
    name.bank = made.bank;
    return made.bank < count() && provider(made.bank).exported_name(made.memory, name.name);
  }
  bool allow(const shareable& name, std::int32_t importer) noexcept
    requires sharing_provider<Provider>
  {
    return has_bank(name.bank, "allow") &&
           noted(name.bank, "allow", provider(name.bank).allow(name.name, importer));
  }
  /// The importer has as many banks as the exporter, in the same order.
  bool import_memory(const shareable& name, physical& made) noexcept
    requires sharing_provider<Provider>
  {
    physical imported{.bank = name.bank};
    if (!has_bank(name.bank, "import_memory") ||
        !noted(name.bank, "import_memory", provider(name.bank).import_memory(name.name, imported.memory)))
      return false;
    made = imported;
    return true;
  }
  bool register_memory(void* p, std::size_t bytes) noexcept
    requires requires(Provider& d) { d.register_memory(p, bytes); }
  {
    return noted(0, "register_memory", provider(0).register_memory(p, bytes));
  }

 private:
  using state = detail::domains_state<Provider, Policy>;
  explicit memory_domains(std::unique_ptr<state> own)
      : provider_adaptor<Provider>(own->banks[0].provider), state_(std::move(own)) {}

  template <typename F>
  void for_each_used(F f) const noexcept {
    for (std::size_t i = 0; i < count(); ++i) {
      if (state_->policy.uses(i)) f(std::as_const(state_->banks[i].provider));
    }
  }
  [[nodiscard]] detail::bank_table::node extract(detail::bank_table& table, const void* p) noexcept {
    const std::lock_guard lock(state_->mutex);
    return table.extract(p);
  }
  [[nodiscard]] detail::bank_table::node make_entry(const char* function) noexcept {
    detail::bank_table::node made = detail::bank_table::make();
    if (made.empty())
      state_->refused.note(refusal::format("%s: host memory for bookkeeping ran out", function));
    return made;
  }
  /// Whether there is a bank of this number. Notes it if not.
  [[nodiscard]] bool has_bank(std::size_t number, const char* function) noexcept {
    const bool is_there = number < count();
    if (!is_there)
      state_->refused.note(
          refusal::format("%s: there is no bank %zu, only %zu banks", function, number, count()));
    return is_there;
  }
  /// Notes why a call of a bank failed, if it did.
  ///   Returns:  whether it worked
  bool noted(std::size_t number, const char* function, bool worked) noexcept {
    const refusal why = worked ? refusal() : detail::take_refusal(provider(number));
    if (why) state_->refused.note(refusal::format("%s: bank '%s': %s", function, name(number), why.text()));
    return worked;
  }

  /// Asks one bank after the other, as the policy chooses, until one serves. `serve` asks a bank.
  ///   Returns:  the bank that served; no_bank after refusals, which it notes
  template <typename F>
  [[nodiscard]] std::size_t ask(const char* function, const bank_request& request, F serve) noexcept {
    state& s = *state_;
    const auto left = [](const void* domains, std::size_t number) noexcept {
      return static_cast<const state*>(domains)->left(number);
    };
    bank_list all(count(), s.capacities.data(), s.statistics.data(), s.distances.data(), &s, left);
    detail::fixed_text why;
    std::size_t wanted = no_bank;
    for (;;) {
      std::size_t chosen = no_bank;
      {
        const std::lock_guard lock(s.mutex);
        chosen = std::as_const(s.policy).choose(request, all);
      }
      if (chosen == no_bank) {
        if (wanted == no_bank) why.add("the policy chose no bank");
        break;
      }
      if (chosen >= count() || all.has_refused(chosen) || !s.policy.uses(chosen)) {
        add_to(why, "the policy chose bank ")
            .add(std::uint64_t{chosen})
            .add(" of ")
            .add(std::uint64_t{count()});
        if (chosen < count())
          why.add(all.has_refused(chosen) ? ", which had refused" : ", which it does not use");
        break;
      }
      if (wanted == no_bank) wanted = chosen;
      if (serve(provider(chosen))) {
        const std::lock_guard lock(s.mutex);
        count_served(s.statistics[chosen], request.bytes, chosen == wanted);
        if (chosen != wanted) ++s.statistics[wanted].foreign;
        return chosen;
      }
      all.note_refused(chosen);
      add_refusal_to(why, chosen);
      const std::lock_guard lock(s.mutex);
      ++s.statistics[chosen].refused;
    }
    s.refused.note(refusal::format("%s: %s", function, why.c_str()));
    return no_bank;
  }
  static void count_served(bank_statistics& of, std::size_t bytes, bool is_hit) noexcept {
    of.held += bytes;
    of.peak_held = detail::larger(of.peak_held, of.held);
    of.served += bytes;
    ++(is_hit ? of.hits : of.misses);
  }
  static detail::fixed_text& add_to(detail::fixed_text& text, const char* more) noexcept {
    if (!text.empty()) text.add("; ");
    return text.add(more);
  }
  /// Adds the name of a bank that refused, and why: in its words, or by its numbers.
  void add_refusal_to(detail::fixed_text& text, std::size_t chosen) noexcept {
    add_to(text, "bank '").add(name(chosen)).add("'");
    const refusal why = detail::take_refusal(provider(chosen));
    if (why) {
      text.add(": ").add(why.text());
      return;
    }
    const bank_statistics now = statistics(chosen);
    text.add(" holds ").add(format_bytes(now.held).text());
    text.add(" of ").add(format_bytes(state_->capacities[chosen]).text());
  }

  std::unique_ptr<state> state_;
};

}  // namespace tessera::inline v0_1::provider
