// SPDX-License-Identifier: Apache-2.0
// The table of front ends and extensions on the architecture page. A cell is "yes", or the reason that the compiler gives.
#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/oom_observed.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/faulty_memory.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

namespace {

using namespace tessera;

/// Hears no event.
struct deaf {
  void on(const allocator_event&) noexcept {}
};
struct ignores {
  void operator()(const out_of_memory&) noexcept {}
};
using heard = extension::observer<deaf>;
using plain = caching_allocator<stitched, simulated_device, extension::private_pools, extension::quotas,
                                extension::sleep_mode, extension::checkpoints, extension::registrations<>,
                                extension::faulty_memory, heard>;

/// The last part of a type's name, with blanks.
template <typename T>
std::string in_words() {
  const std::string_view function = __PRETTY_FUNCTION__;
  std::string_view name = function.substr(function.find("T = ") + 4);
  name = name.substr(0, name.find_first_of(";]"));
  if (const std::size_t last = name.rfind("::"); last != name.npos) name.remove_prefix(last + 2);
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

template <typename E, typename Front>
std::string cell() {
  using door = decltype(detail::open_door<E>(std::declval<Front&>()));
  if constexpr (requires { typename door::refused; }) {
    return in_words<typename door::refused>();
  } else if constexpr (Front::template has<E>) {
    return "yes";
  } else {
    return in_words<typename detail::missing::refusal_of<E, Front>::type>();
  }
}

template <typename Front>
std::string row(const char* name) {
  std::string line = std::string("| `") + name + "` |";
  for (const std::string& each : {cell<extension::private_pools, Front>(), cell<extension::quotas, Front>(),
                                  cell<extension::sleep_mode, Front>(), cell<extension::checkpoints, Front>(),
                                  cell<extension::registrations<>, Front>(),
                                  cell<extension::faulty_memory, Front>(), cell<heard, Front>()})
    line += " " + each + " |";
  return line;
}

TEST(front_ends, offer_the_extensions_of_the_table_on_the_page) {
  const std::vector<std::string> table{
      "| front end | private_pools | quotas | sleep_mode | checkpoints | registrations | faulty_memory | "
      "observer |",
      "|---|---|---|---|---|---|---|---|",
      row<plain>("caching_allocator"),
      row<locked<plain>>("locked"),
      row<background_reclaiming<plain>>("background_reclaiming"),
      row<per_stream<plain>>("per_stream"),
      row<waiting<locked<plain>>>("waiting"),
      row<configured<pytorch_family, locked<plain>>>("configured"),
      row<planned<plain>>("planned"),
      row<trace::captured<plain>>("captured"),
      row<tagged<plain>>("tagged"),
      row<guarded<plain::rebind_provider<host_pinned>>>("guarded"),
      row<oom_observed<plain, ignores>>("oom_observed"),
      row<leak_checked<plain>>("leak_checked"),
      row<thread_checked<plain>>("thread_checked"),
      row<any_allocator>("any_allocator"),
  };
  std::ifstream file(TESSERA_TESTS_DIR "/../include/tessera/README.md");
  std::vector<std::string> page;
  for (std::string line; std::getline(file, line);) page.push_back(line);
  const auto begin = std::find(page.begin(), page.end(), table[0]);
  std::string wanted;
  for (const std::string& line : table) wanted += line + "\n";
  ASSERT_NE(begin, page.end()) << "the page lacks the table:\n" << wanted;
  std::string found;
  for (auto line = begin; line != page.end() && line->starts_with("|"); ++line) found += *line + "\n";
  EXPECT_EQ(found, wanted);
}

}  // namespace
