// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = provider::simulated_device::options;
using physical = provider::simulated_device::physical;
using shareable = provider::simulated_device::shareable;

template <typename D>
bool is_empty(const D& d) {
  const auto [handles, named, reserved, mapped, not_granted, entries] = d.held();
  return handles + named + reserved + mapped + not_granted + entries + d.used() == 0;
}

template <typename D>
class sharing_law : public testing::Test {};
using both = testing::Types<provider::simulated_device, provider::simulated_npu>;
TYPED_TEST_SUITE(sharing_law, both);

TYPED_TEST(sharing_law, holds_between_processes_and_leaves_them_unchanged) {
  for (const std::size_t capacity : {4_MiB, 64_MiB, 80_GiB, unlimited}) {
    TypeParam first{options{.capacity = capacity}};
    TypeParam second = first.another_process();
    EXPECT_STREQ(law::sharing(first, second).broken, nullptr) << first.last_error();
    EXPECT_STREQ(law::sharing(second, first).broken, nullptr);
    EXPECT_STREQ(law::sharing(first, second, 1_GiB).broken, nullptr);
    provider::provider_ref<TypeParam> one(first), other(second);
    EXPECT_STREQ(law::sharing(one, other).broken, nullptr);
    EXPECT_TRUE(is_empty(first) && is_empty(second));
    EXPECT_EQ(first.calls().failed, 0u);
  }
}

TYPED_TEST(sharing_law, holds_between_devices_that_may_reach_each_other) {
  TypeParam first;
  TypeParam second = first.another_device({.page_granularity = 64_KiB, .device = 1});
  EXPECT_STREQ(law::sharing(first, second).broken, "a listed process can import");
  ASSERT_TRUE(second.enable_peer_access(0));
  EXPECT_STREQ(law::sharing(first, second).broken, nullptr);
  EXPECT_TRUE(is_empty(first) && is_empty(second));
}

/// A call fails once, at any place. The law then returns what it can, and does not retry a failed call that
/// returns memory.
TYPED_TEST(sharing_law, frees_everything_after_it_is_broken) {
  using call = provider::simulated_device::call;
  for (const bool exporter_fails : {true, false}) {
    TypeParam first{options{.capacity = 32_MiB, .log_calls = 10'000}};
    TypeParam second = first.another_process();
    EXPECT_STREQ(law::sharing(first, second).broken, nullptr);
    const auto& calls = (exporter_fails ? first : second).log();
    std::size_t broken = 0;
    for (std::size_t n = 0; n < calls.size(); ++n) {
      TypeParam one{options{.capacity = 32_MiB}};
      TypeParam other = one.another_process();
      (exporter_fails ? one : other).fail_call(n + 1);
      broken += law::sharing(one, other) ? 0 : 1;
      const call failing = calls[n].kind;
      const bool gives_back =
          failing == call::unmap || failing == call::destroy || failing == call::unreserve;
      EXPECT_TRUE(gives_back || (is_empty(one) && is_empty(other))) << n;
    }
    EXPECT_GT(broken, calls.size() / 2);
  }
}

/// Obeys every law. Each test breaks one rule by overriding a function.
struct lawful : provider::simulated_device {
  lawful() : provider::simulated_device(options{.capacity = 64_MiB}) {}
  explicit lawful(provider::simulated_device&& made) : provider::simulated_device(std::move(made)) {}
};
template <typename D>
const char* broken_by() {
  D exporter;
  D importer;
  static_cast<provider::simulated_device&>(importer) = exporter.another_process();
  return law::sharing(exporter, importer).broken;
}

struct nameless : lawful {
  std::int32_t process() const noexcept { return 1; }
};
struct poor : lawful {
  bool create(std::size_t, page_kind, physical&) noexcept { return false; }
};
struct poor_the_second_time : lawful {
  bool create(std::size_t bytes, page_kind kind, physical& m) noexcept {
    return calls().create == 0 && lawful::create(bytes, kind, m);
  }
};
TEST(sharing_laws, numbers_and_memory) {
  EXPECT_STREQ(broken_by<lawful>(), nullptr);
  EXPECT_STREQ(broken_by<nameless>(), "processes have different numbers");
  EXPECT_STREQ(broken_by<poor>(), "create succeeds for normal pages below the capacity");
  EXPECT_STREQ(broken_by<poor_the_second_time>(), "create succeeds for normal pages below the capacity");
}

struct keeps_to_itself : lawful {
  bool export_memory(const physical&, provider::importers, shareable&) noexcept { return false; }
};
struct exports_to_listed : lawful {
  bool export_memory(const physical& m, provider::importers who, shareable& s) noexcept {
    return who == provider::importers::listed && lawful::export_memory(m, who, s);
  }
};
struct exports_often : lawful {
  bool export_memory(const physical& m, provider::importers who, shareable& s) noexcept {
    return lawful::export_memory(m, who, s) || who == provider::importers::listed;
  }
};
struct exports_what_it_imported : lawful {
  bool export_memory(const physical& m, provider::importers who, shareable& s) noexcept {
    return lawful::export_memory(m, who, s) || who == provider::importers::any;
  }
};
TEST(sharing_laws, exports) {
  EXPECT_STREQ(broken_by<keeps_to_itself>(), "created memory can be exported");
  EXPECT_STREQ(broken_by<exports_to_listed>(), "created memory can be exported");
  EXPECT_STREQ(broken_by<exports_often>(), "export_memory refuses exported memory");
  EXPECT_STREQ(broken_by<exports_what_it_imported>(), "export_memory refuses imported memory");
}

/// Exports to any process, whatever the importers, as if processes were not checked.
struct open_to_all : lawful {
  bool export_memory(const physical& m, provider::importers, shareable& s) noexcept {
    return lawful::export_memory(m, provider::importers::any, s);
  }
};
struct lets_importers_list : lawful {
  bool allow(const shareable& s, std::int32_t p) noexcept {
    return lawful::allow(s, p) || process() != s.process;
  }
};
struct lists_nobody : lawful {
  bool allow(const shareable&, std::int32_t) noexcept { return false; }
};
struct lists_for_any : lawful {
  bool allow(const shareable& s, std::int32_t p) noexcept {
    return lawful::allow(s, p) || process() == s.process;
  }
};
/// Forgets the listed processes.
struct forgets_the_list : lawful {
  bool allow(const shareable& s, std::int32_t) noexcept { return process() == s.process; }
};
TEST(sharing_laws, lists) {
  EXPECT_STREQ(broken_by<open_to_all>(), "import_memory refuses a process that is not listed");
  EXPECT_STREQ(broken_by<lets_importers_list>(), "allow refuses every process except the exporter");
  EXPECT_STREQ(broken_by<lists_nobody>(), "the exporter can list a process");
  EXPECT_STREQ(broken_by<forgets_the_list>(), "a listed process can import");
  EXPECT_STREQ(broken_by<lists_for_any>(), "allow refuses memory that any process may import");
}

/// In the exporting process, imports its own memory under a handle of other memory.
struct imports_at_home : lawful {
  bool import_memory(const shareable& s, physical& m) noexcept {
    if (process() == s.process) return lawful::create(2_MiB, page_kind::normal, m);
    return lawful::import_memory(s, m);
  }
};
struct imports_from_the_list_alone : lawful {
  bool import_memory(const shareable& s, physical& m) noexcept {
    return calls().map == 0 && lawful::import_memory(s, m);
  }
};
struct imports_twice : lawful {
  bool import_memory(const shareable& s, physical& m) noexcept {
    return lawful::import_memory(s, m) ||
           (calls().import_memory == 3 && lawful::create(2_MiB, page_kind::normal, m));
  }
};
/// Imports memory that is destroyed, too.
struct imports_ghosts : lawful {
  bool import_memory(const shareable& s, physical& m) noexcept {
    return lawful::import_memory(s, m) ||
           (held().handles != 0 && calls().import_memory > 3 && lawful::create(2_MiB, page_kind::normal, m));
  }
};
TEST(sharing_laws, imports) {
  EXPECT_STREQ(broken_by<imports_at_home>(), "import_memory refuses memory of the same process");
  EXPECT_STREQ(broken_by<imports_from_the_list_alone>(),
               "any process can import memory that is exported to any");
  EXPECT_STREQ(broken_by<imports_twice>(), "import_memory refuses memory of which a handle was imported");
  EXPECT_STREQ(broken_by<imports_ghosts>(), "import_memory refuses memory that the exporter destroyed");
}

struct keeps_exports : lawful {
  bool destroy(const physical& m) noexcept { return calls().export_memory == 0 && lawful::destroy(m); }
};
struct keeps_imports : lawful {
  bool destroy(const physical& m) noexcept { return calls().map == 0 && lawful::destroy(m); }
};
struct keeps_imports_of_any : lawful {
  bool destroy(const physical& m) noexcept {
    return (calls().import_memory == 0 || calls().destroy == 0) && lawful::destroy(m);
  }
};
template <int Step>
struct cannot_use_imports : lawful {
  bool map(void* p, std::size_t bytes, const physical& m) noexcept {
    return Step != 0 && lawful::map(p, bytes, m);
  }
  bool grant(void* p, std::size_t bytes) noexcept { return Step != 1 && lawful::grant(p, bytes); }
  bool unmap(void* p, std::size_t bytes) noexcept { return Step != 2 && lawful::unmap(p, bytes); }
};
/// Loses the memory when its exporter destroys it.
struct forgets : lawful {
  bool destroy(const physical& m) noexcept {
    physical lost;
    return lawful::destroy(m) &&
           (calls().export_memory == 0 || lawful::create(16_MiB, page_kind::normal, lost));
  }
};
TEST(sharing_laws, destroying) {
  constexpr auto as_any_other = "imported memory can be used after the exporter destroyed its handle";
  EXPECT_STREQ(broken_by<keeps_exports>(), "exported memory can be destroyed");
  EXPECT_STREQ(broken_by<keeps_imports>(), as_any_other);
  EXPECT_STREQ(broken_by<cannot_use_imports<0>>(), as_any_other);
  EXPECT_STREQ(broken_by<cannot_use_imports<1>>(), as_any_other);
  EXPECT_STREQ(broken_by<cannot_use_imports<2>>(), as_any_other);
  EXPECT_STREQ(broken_by<keeps_imports_of_any>(), "each process can destroy its own handle");
  EXPECT_STREQ(broken_by<forgets>(), "memory is freed after all processes have destroyed it");
}

}  // namespace
