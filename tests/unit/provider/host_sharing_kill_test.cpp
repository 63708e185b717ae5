// SPDX-License-Identifier: Apache-2.0
// One of two processes that share memory is killed, at every step and at any time. The other continues and
// loses nothing. TESSERA_KILL_ROUNDS in the environment sets the number of rounds.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tessera/provider/host_pinned.hpp>

#include "../../by_day.hpp"
#include "host_process.hpp"
#include "sharing.hpp"

namespace {

using namespace tessera;
using namespace std::chrono_literals;
using host_process::channel;
using sharing_tests::loose;
using sharing_tests::map_somewhere;
using sharing_tests::physical;
using sharing_tests::shareable;
using sharing_tests::size;
using holdings = host_pinned::holdings;

int rounds() {
  const char* const given = std::getenv("TESSERA_KILL_ROUNDS");
  return given != nullptr ? std::atoi(given) : by_day(40, 100);
}

bool give_back(host_pinned& device, std::byte* p, const physical& memory) {
  return device.unmap(p, size) && device.unreserve(p, size) && device.destroy(memory);
}

/// The message of a victim: its step, and the memory that it shares.
struct progress {
  int step = 0;
  shareable shared{};
};
constexpr int never = -1;     // the victim does its work once and ends
constexpr int any_time = -2;  // it repeats its work

/// A process that will be killed. It waits for that at one of its steps.
class victim {
 public:
  victim(const channel& way, int until) : way_(&way), until_(until) {}
  void reach(int step, const shareable& shared = {}) const {
    if (until_ != any_time) (void)way_->send(progress{step, shared});
    while (step == until_) ::pause();
  }
  const channel& way() const { return *way_; }
  bool again() const { return until_ == any_time; }

 private:
  const channel* way_;
  int until_;
};

constexpr int steps_of_importer = 10;
int import_once(const victim& self, const shareable& shared) {
  self.reach(1);
  host_pinned device{loose};
  self.reach(2);
  {
    const detail::host_socket_name name(shared.token);
    const detail::host_descriptor socket = detail::host_new_socket(0);
    if (::connect(socket.get(), name.get(), name.length) != 0) return 1;
    self.reach(3);
    const detail::host_request request{.number = shared.number};
    if (::send(socket.get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request) return 2;
    self.reach(4);  // the answer is not read
  }
  physical memory;
  if (!device.import_memory(shared, memory)) return 3;
  self.reach(5);
  std::byte* const p = map_somewhere(device, memory);
  if (p == nullptr || p[0] != std::byte{1}) return 4;
  self.reach(6);
  p[1] = std::byte{2};
  self.reach(7);
  if (!device.unmap(p, size)) return 5;
  self.reach(8);
  if (!device.destroy(memory) || !device.unreserve(p, size) || device.held() != holdings{}) return 6;
  self.reach(9);
  return 0;
}
int importer(const victim& self) {
  shareable shared;
  self.reach(0);
  if (!self.way().receive(shared)) return 7;
  if (self.again()) (void)self.way().send(progress{0, shared});
  int code = import_once(self, shared);
  while (self.again() && code == 0) code = import_once(self, shared);
  return code;
}

constexpr int steps_of_exporter = 8;
constexpr int exported = 3;  // the memory that a survivor may import, if it is announced
int export_once(const victim& self) {
  shareable shared;
  {
    host_pinned device{loose};
    self.reach(1);
    physical memory;
    if (!device.create(size, page_kind::normal, memory)) return 1;
    std::byte* const p = map_somewhere(device, memory);
    if (p == nullptr) return 2;
    p[0] = std::byte{1};
    self.reach(2);
    if (!device.export_memory(memory, importers::any, shared)) return 3;
    if (self.again()) {
      (void)self.way().send(progress{exported, shared});
      std::this_thread::sleep_for(2ms);  // while it can be imported
    }
    self.reach(exported, shared);
    if (!self.again() && !self.way().wait()) return 4;
    self.reach(4);
    if (!device.unmap(p, size)) return 5;
    self.reach(5);
    if (!device.destroy(memory)) return 6;
    self.reach(6);
  }
  self.reach(7);
  return 0;
}
int exporter(const victim& self) {
  self.reach(0);
  int code = export_once(self);
  while (self.again() && code == 0) code = export_once(self);
  return code;
}

/// Makes victims and kills them. It is a process without threads, forked before any thread starts, so that
/// its children may call everything. The survivor only sends orders.
class nursery {
 public:
  explicit nursery(int (*work)(const victim&)) {
    child_ = host_process::start([&] { return orders_.keep(1), way_.keep(1), nurse(work); });
    orders_.keep(0);
    way_.keep(0);
  }
  nursery(const nursery&) = delete;
  nursery& operator=(const nursery&) = delete;
  ~nursery() {
    (void)orders_.send(order{'q', 0});
    EXPECT_EQ(host_process::end_of(child_), 0);
  }
  const channel& way() const { return way_; }
  ::pid_t begin(int until) {
    way_.drain();  // the leftovers of the one before
    return answer({'b', until});
  }
  void stop() { EXPECT_TRUE(WIFSTOPPED(answer({'s', 0}))); }
  /// The state in which the victim ended; no other child was left.
  int kill() { return answer({'k', 0}); }
  int wait() { return answer({'w', 0}); }

 private:
  struct order {
    char what;
    int until;
  };
  int answer(order given) {
    int state = 0;
    EXPECT_TRUE(orders_.send(given) && orders_.receive(state));
    return state;
  }
  int nurse(int (*work)(const victim&)) {
    ::pid_t child = 0;
    for (order given{}; orders_.receive(given) && given.what != 'q';) {
      int state = 0;
      if (given.what == 'b') {
        way_.drain();
        child = host_process::start([&] { return work(victim(way_, given.until)); });
        state = child;
      } else {
        if (given.what != 'w') ::kill(child, given.what == 's' ? SIGSTOP : SIGKILL);
        if (::waitpid(child, &state, WUNTRACED) != child) return 1;
        if (given.what != 's' && (::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD)) return 2;
      }
      if (!orders_.send(state)) break;
    }
    return 0;
  }
  channel orders_, way_;
  ::pid_t child_ = 0;
};

bool was_killed(int state) { return WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL; }
bool has_ended_well(int state) { return WIFEXITED(state) && WEXITSTATUS(state) == 0; }

/// Whether the condition becomes true within some seconds. Other threads and processes correct the counts. It may be
/// false again afterwards: the provider may still accept the connection of a process that was killed.
template <typename F>
bool soon(F is_true) {
  for (int i = 0; i < 1000; ++i) {
    if (is_true()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}
std::size_t shared_memory_of_the_system() {
  std::ifstream file("/proc/meminfo");
  std::size_t kib = 0;
  for (std::string word; file >> word;)
    if (word == "Shmem:") file >> kib;
  return kib << 10;
}

class host_pinned_sharing_kill : public testing::Test {
 protected:
  void SetUp() override {
    ::alarm(static_cast<unsigned>(60 + rounds() / 2));  // ends the test if anything hangs
    shared_before_ = shared_memory_of_the_system();
  }
  void TearDown() override {
    // A leak in every round would be far more than the other tests share meanwhile.
    const std::size_t lost = static_cast<std::size_t>(rounds()) * size / 2;
    EXPECT_TRUE(soon([&] { return shared_memory_of_the_system() < shared_before_ + lost; }));
    ::alarm(0);
  }
  void wait_some_time() {
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution(0, 4000)(random_)));
  }
  /// Waits until a victim has reached a step, or for some time. The answer names the memory that it has
  /// shared so far.
  progress wait_for(const channel& way, int step) {
    progress seen{never, {}}, latest;
    if (step == any_time) wait_some_time();
    while (step != any_time && seen.step != step && way.receive(latest)) {
      seen.step = latest.step;
      if (latest.step == exported) seen.shared = latest.shared;
    }
    return seen;
  }

  std::mt19937 random_{20};
  std::size_t shared_before_ = 0;
};

TEST_F(host_pinned_sharing_kill, of_the_importer_costs_the_exporter_nothing) {
  nursery victims(importer);
  host_pinned device{loose};
  physical memory;
  shareable shared;
  ASSERT_TRUE(device.create(size, page_kind::normal, memory));
  std::byte* const p = map_somewhere(device, memory);
  ASSERT_TRUE(p != nullptr && device.export_memory(memory, importers::listed, shared));
  p[0] = std::byte{1};
  const std::size_t files = host_process::open_files();
  const holdings before = device.held();

  for (int round = 0; round < rounds(); ++round) {
    const int step = round % 2 == 0 ? any_time : round / 2 % steps_of_importer;
    ASSERT_TRUE(device.allow(shared, victims.begin(step)));
    ASSERT_TRUE(victims.way().send(shared));
    progress begun;
    ASSERT_TRUE(step != any_time || round % 8 == 0 || victims.way().receive(begun));
    (void)wait_for(victims.way(), step);
    ASSERT_TRUE(was_killed(victims.kill())) << step;
    ASSERT_TRUE(soon([&] { return host_process::open_files() == files; })) << step;
    ASSERT_EQ(device.held(), before) << step;
    if (round % 10 != 9) continue;
    p[1] = std::byte{0};
    ASSERT_TRUE(device.allow(shared, victims.begin(never)) && victims.way().send(shared));
    ASSERT_TRUE(has_ended_well(victims.wait()));
    ASSERT_EQ(p[1], std::byte{2});
  }
  EXPECT_TRUE(give_back(device, p, memory));
  EXPECT_EQ(device.held(), holdings{});
}

TEST_F(host_pinned_sharing_kill, of_the_exporter_costs_the_importer_nothing) {
  nursery victims(exporter);
  host_pinned device{loose};
  const std::size_t files = host_process::open_files();
  const auto use = [&device](const physical& memory) {
    std::byte* const p = map_somewhere(device, memory);
    if (p == nullptr || p[0] != std::byte{1}) return false;
    p[size - 1] = std::byte{3};
    return give_back(device, p, memory);
  };
  int imported = 0;
  for (int round = 0; round < rounds(); ++round) {
    const int step = round % 2 == 0 ? any_time : round / 2 % steps_of_exporter;
    victims.begin(step);
    physical memory;
    if (step == any_time) {  // imports continue while the exporter dies
      std::atomic<bool> ended = false;
      progress seen;
      ASSERT_TRUE(round % 8 == 0 || victims.way().receive(seen));
      std::thread killer([&] {
        wait_some_time();
        EXPECT_TRUE(was_killed(victims.kill()));
        ended = true;
      });
      for (bool told = round % 8 != 0; !ended; told = victims.way().receive(seen, 1)) {
        if (!told) continue;
        const bool worked = device.import_memory(seen.shared, memory);
        EXPECT_TRUE(!worked || use(memory));
        EXPECT_EQ(device.last_error().find("in time"), std::string::npos) << device.last_error();
        imported += worked;
      }
      killer.join();
    } else {
      // It continues after its export only when the test says so.
      ASSERT_TRUE(step <= exported || victims.way().pass());
      const progress seen = wait_for(victims.way(), step);
      ASSERT_EQ(seen.step, step);
      const bool can = step == exported || step == 4 || step == 5;
      ASSERT_EQ(device.import_memory(seen.shared, memory), can) << step << device.last_error();
      physical late;
      if (round % 4 == 1 && can) {  // the answer is awaited when the exporter dies
        victims.stop();
        std::thread waiting([&] { EXPECT_FALSE(device.import_memory(seen.shared, late)); });
        std::this_thread::sleep_for(2ms);
        ASSERT_TRUE(was_killed(victims.kill()));
        waiting.join();
        ASSERT_EQ(device.last_error().find("in time"), std::string::npos) << device.last_error();
      } else {
        ASSERT_TRUE(was_killed(victims.kill())) << step;
      }
      ASSERT_FALSE(device.import_memory(seen.shared, late));
      ASSERT_TRUE(!can || use(memory)) << step;
    }
    ASSERT_EQ(device.held(), holdings{}) << step;
    ASSERT_EQ(host_process::open_files(), files) << step;
    if (round % 10 != 9) continue;
    victims.begin(never);
    const progress seen = wait_for(victims.way(), exported);
    ASSERT_TRUE(device.import_memory(seen.shared, memory) && use(memory)) << device.last_error();
    ASSERT_TRUE(victims.way().pass());
    ASSERT_TRUE(has_ended_well(victims.wait()));
  }
  EXPECT_TRUE(imported > 0 || rounds() < 50);  // some of them were in time
}

}  // namespace
