// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = simulated_device::options;
using call = simulated_device::call;
using physical = simulated_device::physical;
using shareable = simulated_device::shareable;

template <typename D>
physical created(D& d, std::size_t bytes) {
  physical memory;
  EXPECT_TRUE(d.create(bytes, page_kind::normal, memory)) << d.last_error();
  return memory;
}
template <typename D>
shareable exported(D& d, physical memory, importers who) {
  shareable name;
  EXPECT_TRUE(d.export_memory(memory, who, name)) << d.last_error();
  return name;
}
/// The rule that the latest failed call broke.
template <typename D>
std::string rule(const D& d) {
  const std::string words = d.last_error();
  return words.substr(words.find(": ") + 2);
}

template <typename D>
class sharing : public testing::Test {};
using both = testing::Types<simulated_device, simulated_npu>;
TYPED_TEST_SUITE(sharing, both);

TYPED_TEST(sharing, shares_memory_at_different_addresses) {
  TypeParam first{options{.capacity = 10_MiB, .huge_budget = 4_MiB}};
  TypeParam second = first.another_process();
  EXPECT_NE(first.process(), second.process());
  EXPECT_EQ(second.capacity(), 10_MiB);
  EXPECT_NE(first.acquire(4_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(second.used(), 4_MiB);
  EXPECT_EQ(second.acquire(2_MiB, page_kind::huge), nullptr);
  void* const p = second.acquire(4_MiB);
  EXPECT_EQ(first.used(), 8_MiB);
  EXPECT_EQ(first.peak_used(), 8_MiB);
  EXPECT_FALSE(first.can_use(p, 1));
  EXPECT_FALSE(first.release(p, 4_MiB));
  EXPECT_TRUE(second.release(p, 4_MiB));
  EXPECT_EQ(first.calls().acquire, 1u);

  const physical mine = created(first, 2_MiB), theirs = created(second, 2_MiB);
  EXPECT_TRUE(first.destroy(mine));
  EXPECT_EQ(first.held().handles, 0u);
  EXPECT_EQ(second.held().handles, 1u);
  EXPECT_FALSE(first.destroy(theirs));
}

TYPED_TEST(sharing, starts_a_process_at_the_time_it_is) {
  TypeParam first{options{.fail_every = 2, .log_calls = 3}};
  first.advance(1000);
  TypeParam second = first.another_process();
  EXPECT_EQ(second.now_ns(), 1000u);
  second.advance(5);
  EXPECT_EQ(first.now_ns(), 1000u);
  EXPECT_NE(second.acquire(512), nullptr);
  EXPECT_EQ(second.acquire(512), nullptr);
  EXPECT_EQ(second.log().size(), 2u);
  EXPECT_TRUE(first.log().empty());
}

TYPED_TEST(sharing, shares_with_listed_processes_until_all_release) {
  TypeParam first;
  TypeParam second = first.another_process(), third = first.another_process();
  const physical memory = created(first, 4_MiB);
  const shareable name = exported(first, memory, importers::listed);
  physical other;
  EXPECT_FALSE(second.import_memory(name, other));
  EXPECT_EQ(rule(second), "this process is not listed");
  EXPECT_EQ(other, physical{});
  EXPECT_TRUE(first.allow(name, second.process()));
  EXPECT_TRUE(first.allow(name, second.process()));
  EXPECT_FALSE(third.import_memory(name, other));
  ASSERT_TRUE(second.import_memory(name, other));
  EXPECT_EQ(second.held().named, 4_MiB);
  EXPECT_EQ(first.used(), 4_MiB);  // it exists once

  void* const here = first.reserve(4_MiB, 2_MiB);
  void* const there = second.reserve(4_MiB, 2_MiB);
  EXPECT_TRUE(first.map(here, 4_MiB, memory) && first.grant(here, 4_MiB));
  EXPECT_TRUE(second.map(there, 4_MiB, other) && second.grant(there, 4_MiB));
  EXPECT_TRUE(second.can_use(there, 4_MiB));
  EXPECT_FALSE(second.can_use(here, 4_MiB));

  EXPECT_TRUE(first.unmap(here, 4_MiB) && first.destroy(memory));
  EXPECT_EQ(first.used(), 4_MiB);
  EXPECT_TRUE(second.can_use(there, 4_MiB));
  EXPECT_TRUE(second.destroy(other));
  EXPECT_EQ(second.used(), 4_MiB);  // it is still mapped
  EXPECT_TRUE(second.unmap(there, 4_MiB));
  EXPECT_EQ(first.used(), 0u);
}

TYPED_TEST(sharing, lets_any_process_import_what_is_exported_to_any) {
  TypeParam first;
  TypeParam second = first.another_process();
  const shareable name = exported(first, created(first, 2_MiB), importers::any);
  EXPECT_FALSE(first.allow(name, second.process()));
  EXPECT_EQ(rule(first), "any process may import the memory");
  TypeParam third = first.another_process();
  physical one, two;
  EXPECT_TRUE(second.import_memory(name, one) && third.import_memory(name, two));
  EXPECT_TRUE(second.destroy(one));
  EXPECT_FALSE(second.destroy(one));
  EXPECT_EQ(third.held().named, 2_MiB);
  EXPECT_TRUE(third.destroy(two));
}

TYPED_TEST(sharing, imports_once_until_the_handle_is_destroyed) {
  TypeParam first;
  TypeParam second = first.another_process(), bank = second.another_bank({});
  const shareable name = exported(first, created(first, 2_MiB), importers::any);
  physical one, two;
  EXPECT_TRUE(second.import_memory(name, one));
  for (TypeParam* const d : {&second, &bank}) {
    EXPECT_FALSE(d->import_memory(name, two));
    EXPECT_EQ(rule(*d), "a handle of this memory was imported already; destroy it first");
    EXPECT_STREQ(d->take_refusal().text(), d->last_error());
    EXPECT_EQ(two, physical{});
  }
  EXPECT_EQ(second.held().named, 2_MiB);
  void* const range = second.reserve(2_MiB, 2_MiB);
  EXPECT_TRUE(second.map(range, 2_MiB, one) && second.destroy(one));
  EXPECT_TRUE(second.import_memory(name, two));  // mapped memory needs no handle
  EXPECT_NE(one, two);
  EXPECT_TRUE(second.unmap(range, 2_MiB) && second.destroy(two));
  EXPECT_EQ(second.held().handles, 0u);
}

TYPED_TEST(sharing, exports_once_and_only_what_was_created_here) {
  TypeParam first;
  TypeParam second = first.another_process(), third = first.another_process();
  const physical memory = created(first, 2_MiB);
  const shareable name = exported(first, memory, importers::any);
  shareable again{7, {7}};
  EXPECT_FALSE(first.export_memory(memory, importers::any, again));
  EXPECT_EQ(rule(first), "the memory is exported already");
  EXPECT_FALSE(first.export_memory(physical{99}, importers::any, again));
  EXPECT_EQ(rule(first), "the handle is unknown or destroyed");
  physical imported;
  ASSERT_TRUE(second.import_memory(name, imported));
  EXPECT_FALSE(second.export_memory(imported, importers::any, again));
  EXPECT_EQ(rule(second), "imported memory cannot be exported");
  EXPECT_EQ(again, (shareable{7, {7}}));
}

TYPED_TEST(sharing, does_not_import_in_the_exporting_process) {
  TypeParam first;
  TypeParam second = first.another_process();
  const shareable name = exported(first, created(first, 2_MiB), importers::listed);
  EXPECT_TRUE(first.allow(name, first.process()));
  physical memory;
  EXPECT_FALSE(first.import_memory(name, memory));
  EXPECT_EQ(rule(first), "the memory belongs to this process");
  EXPECT_EQ(first.held().handles, 1u);
}

TYPED_TEST(sharing, lets_the_exporter_alone_list_importers) {
  TypeParam first;
  TypeParam second = first.another_process();
  const physical memory = created(first, 2_MiB), unexported = created(first, 2_MiB);
  const physical same_number = created(second, 2_MiB);
  ASSERT_EQ(memory, same_number);  // a handle is valid only in its own process
  const shareable name = exported(first, memory, importers::listed);
  EXPECT_FALSE(second.allow(name, second.process()));
  EXPECT_EQ(rule(second), "no memory is exported under this name");
  (void)exported(second, same_number, importers::listed);
  EXPECT_FALSE(second.allow(name, second.process()));
  EXPECT_FALSE(first.allow({first.process(), unexported}, second.process()));
  EXPECT_FALSE(first.allow(name, 0));
  EXPECT_FALSE(first.allow(name, -1));
  EXPECT_EQ(rule(first), "the number of a process is not positive");
  physical imported;
  EXPECT_FALSE(second.import_memory(name, imported));
  EXPECT_TRUE(first.allow(name, second.process()));
  EXPECT_TRUE(second.import_memory(name, imported));
}

TYPED_TEST(sharing, lists_at_most_65535_processes) {
  TypeParam first;
  const shareable name = exported(first, created(first, 2_MiB), importers::listed);
  int listed = 0;
  for (std::int32_t i = 0; i < 65'535; ++i) listed += first.allow(name, 70'000 - i) ? 1 : 0;
  EXPECT_EQ(listed, 65'535);
  EXPECT_FALSE(first.allow(name, 1));
  EXPECT_EQ(rule(first), "65,535 processes are listed already");
  EXPECT_TRUE(first.allow(name, 70'000));  // as it is
}

TYPED_TEST(sharing, refuses_stale_and_invalid_handles) {
  TypeParam first;
  TypeParam second = first.another_process();
  physical imported{5};
  const physical memory = created(first, 2_MiB);
  const shareable name = exported(first, memory, importers::any);
  const shareable wrong[] = {{},           {first.process(), {}}, {first.process(), {memory.number + 1}},
                             {-1, memory}, {99, memory},          {0, memory}};
  for (const shareable& w : wrong) {
    EXPECT_FALSE(second.import_memory(w, imported));
    EXPECT_EQ(rule(second), "no memory is exported under this name");
  }
  EXPECT_TRUE(first.destroy(memory));
  EXPECT_FALSE(second.import_memory(name, imported));
  EXPECT_FALSE(first.allow(name, second.process()));
  EXPECT_EQ(imported, physical{5});
  EXPECT_EQ(second.held().handles, 0u);
  EXPECT_EQ(first.used(), 0u);
}

TYPED_TEST(sharing, releases_everything_when_a_process_ends) {
  TypeParam first{options{.capacity = 1_GiB}};
  shareable name;
  physical imported;
  {
    TypeParam killed = first.another_process();
    EXPECT_NE(killed.acquire(2_MiB, page_kind::huge), nullptr);
    const physical memory = created(killed, 4_MiB), hidden = created(killed, 8_MiB);
    name = exported(killed, memory, importers::any);
    ASSERT_TRUE(first.import_memory(name, imported));
    void* const range = killed.reserve(8_MiB, 2_MiB);
    EXPECT_TRUE(killed.map(range, 8_MiB, hidden) && killed.destroy(hidden));
    EXPECT_EQ(first.used(), 14_MiB);
  }
  EXPECT_EQ(first.used(), 4_MiB);  // the imported memory stays
  physical none;
  EXPECT_FALSE(first.import_memory(name, none));
  void* const range = first.reserve(4_MiB, 2_MiB);
  EXPECT_TRUE(first.map(range, 4_MiB, imported) && first.unmap(range, 4_MiB) && first.destroy(imported));
  EXPECT_EQ(first.used(), 0u);
}

TYPED_TEST(sharing, processes_share_no_addresses) {
  TypeParam first, other = first.another_device({.device = 1});
  std::vector<TypeParam> processes;
  for (int i = 0; i < 3; ++i) processes.push_back(first.another_process());
  processes.push_back(first.another_device({.device = 254}));
  processes.push_back(std::move(first));
  processes.push_back(std::move(other));
  std::map<std::uintptr_t, std::size_t> ranges;  // bytes by begin
  for (const std::size_t bytes : {300_GiB, 800_GiB, 3 * 1024_GiB, 2_MiB, 64 * 1024_GiB, 700_GiB}) {
    for (TypeParam& p : processes) {
      const auto begin = reinterpret_cast<std::uintptr_t>(p.reserve(bytes, 1_GiB));
      ASSERT_NE(begin, 0u) << p.last_error();
      EXPECT_EQ(begin % 1_GiB, 0u);
      EXPECT_TRUE(ranges.emplace(begin, bytes).second);
    }
  }
  for (auto r = ranges.begin(); std::next(r) != ranges.end(); ++r)
    EXPECT_LE(r->second, std::next(r)->first - r->first);
  TypeParam& last = processes.front();
  EXPECT_EQ(last.reserve(std::size_t{1} << 56, 2_MiB), nullptr);
  EXPECT_EQ(rule(last), "no addresses are left");
  EXPECT_NE(last.reserve(std::size_t{1} << 55, 2_MiB), nullptr);
  EXPECT_EQ(last.reserve(std::size_t{1} << 55, 2_MiB), nullptr);
}

TYPED_TEST(sharing, outlives_the_first_process) {
  std::vector<TypeParam> processes;
  processes.emplace_back(options{.capacity = 4_MiB});
  processes.push_back(processes[0].another_process());
  EXPECT_NE(processes[0].acquire(4_MiB), nullptr);
  processes.erase(processes.begin());
  EXPECT_EQ(processes[0].used(), 0u);
  EXPECT_NE(processes[0].acquire(4_MiB), nullptr);
  TypeParam third = processes[0].another_process();
  EXPECT_EQ(third.process(), processes[0].process() + 1);
  third = TypeParam{};  // which ends its own process
  EXPECT_EQ(third.used(), 0u);
  EXPECT_EQ(processes[0].used(), 4_MiB);
}

TYPED_TEST(sharing, needs_peer_access_across_devices) {
  TypeParam first{options{.capacity = 1_GiB}};
  TypeParam second = first.another_device({.capacity = 2_GiB, .page_granularity = 64_KiB, .device = 7});
  EXPECT_EQ(second.capacity(), 2_GiB);
  EXPECT_NE(first.process(), second.process());
  const physical memory = created(first, 4_MiB);
  const shareable name = exported(first, memory, importers::any);
  physical imported;
  EXPECT_FALSE(second.import_memory(name, imported));
  EXPECT_EQ(rule(second), "the memory is on another device, without peer access");
  EXPECT_FALSE(second.enable_peer_access(7));
  EXPECT_EQ(rule(second), "a device is no peer of itself");
  for (const unsigned none : {1u, 254u, 255u, 100'000u}) EXPECT_FALSE(second.enable_peer_access(none));
  EXPECT_EQ(rule(second), "the machine has no such device");
  EXPECT_TRUE(first.enable_peer_access(7));  // the other way round, which does not help
  EXPECT_FALSE(second.import_memory(name, imported));
  EXPECT_TRUE(second.enable_peer_access(0));
  EXPECT_TRUE(second.enable_peer_access(0));
  ASSERT_TRUE(second.import_memory(name, imported));
  EXPECT_EQ(second.used(), 0u);  // it lies on the other device
  void* const range = second.reserve(8_MiB, 2_MiB);
  void* const within = static_cast<char*>(range) + 64_KiB;
  EXPECT_FALSE(second.map(within, 4_MiB, imported));  // the pages belong to the other device
  EXPECT_TRUE(second.map(range, 4_MiB, imported));
  EXPECT_EQ(second.held().page_table_entries, 2u);
  EXPECT_TRUE(first.destroy(memory));
  EXPECT_EQ(first.used(), 4_MiB);
  EXPECT_TRUE(second.destroy(imported) && second.unmap(range, 4_MiB));
  EXPECT_EQ(first.used(), 0u);
  TypeParam beside = second.another_process();
  EXPECT_FALSE(beside.import_memory(exported(first, created(first, 2_MiB), importers::any), imported));
}

TYPED_TEST(sharing, counts_charges_and_lets_fail) {
  TypeParam first{options{.log_calls = 1,
                          .costs = {.create = 0,
                                    .create_per_mib = 0,
                                    .export_memory = 1,
                                    .allow = 20,
                                    .import_memory = 300,
                                    .enable_peer_access = 4000}}};
  TypeParam second = first.another_process();
  TypeParam other = first.another_device({.device = 1});
  shareable name;
  const physical memory = created(first, 2_MiB);
  first.fail_call(1);
  EXPECT_FALSE(first.export_memory(memory, importers::listed, name));
  EXPECT_EQ(name, shareable{});
  EXPECT_TRUE(first.export_memory(memory, importers::listed, name));
  EXPECT_EQ(first.log()[0].kind, call::export_memory);
  first.fail_call(1);
  EXPECT_FALSE(first.allow(name, second.process()));
  EXPECT_TRUE(first.allow(name, second.process()));
  EXPECT_EQ(first.log()[0].kind, call::allow);
  first.fail_call(1);
  EXPECT_FALSE(first.enable_peer_access(1));
  EXPECT_TRUE(first.enable_peer_access(1));
  EXPECT_EQ(first.log()[0].kind, call::enable_peer_access);
  EXPECT_EQ(first.now_ns(), 8042u);
  physical imported;
  second.fail_call(1);
  EXPECT_FALSE(second.import_memory(name, imported));
  EXPECT_STREQ(second.last_error(), "import_memory: the call is made to fail");
  EXPECT_TRUE(second.import_memory(name, imported));
  EXPECT_EQ(second.log()[0].kind, call::import_memory);
  EXPECT_EQ(second.now_ns(), 600u);
  const simulated_device::counts &f = first.calls(), &s = second.calls();
  EXPECT_EQ(f.export_memory, 2u);
  EXPECT_EQ(f.allow, 2u);
  EXPECT_EQ(f.enable_peer_access, 2u);
  EXPECT_EQ(f.failed, 3u);
  EXPECT_EQ(s.import_memory, 2u);
}

TYPED_TEST(sharing, and_virtual_memory_work_by_reference) {
  using ref = provider_ref<TypeParam>;
  static_assert(sharing_provider<ref> && event_provider<ref> && paged_provider<ref>);
  static_assert(ref::map_grants_access == TypeParam::map_grants_access &&
                ref::unmap_wants_size == TypeParam::unmap_wants_size);
  TypeParam first;
  TypeParam second = first.another_process();
  ref one(first), other(second);
  EXPECT_EQ(one.page_size(page_kind::huge_1g), 1_GiB);
  EXPECT_EQ(other.process(), second.process());
  physical memory, imported;
  shareable name;
  void* const range = one.reserve(4_MiB, 2_MiB);
  EXPECT_TRUE(one.create(4_MiB, page_kind::huge, memory) && one.map(range, 4_MiB, memory));
  EXPECT_EQ(first.can_use(range, 4_MiB), TypeParam::map_grants_access);
  EXPECT_TRUE(one.grant(range, 4_MiB));
  EXPECT_TRUE(first.can_use(range, 4_MiB));
  EXPECT_TRUE(one.export_memory(memory, importers::listed, name) && one.allow(name, other.process()));
  EXPECT_TRUE(other.import_memory(name, imported));
  EXPECT_EQ(second.held().named, 4_MiB);
  EXPECT_TRUE(one.synchronize({}) && one.unmap(range, 4_MiB) && one.destroy(memory));
  EXPECT_TRUE(other.destroy(imported) && one.unreserve(range, 4_MiB));
  EXPECT_FALSE(one.unreserve(range, 4_MiB));
  EXPECT_EQ(first.used(), 0u);
}

TEST(simulated_sharing_death, names_a_device_that_is_there_already) {
  const simulated_device first;
  EXPECT_DEATH((void)first.another_device({.device = 0}),
               "simulated_device: the machine has a device of this number already");
  const simulated_device second = first.another_device({.device = 1});
  EXPECT_DEATH((void)first.another_device({.device = 1}), "the machine has a device of this number already");
}

}  // namespace
