// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes. Each process makes its provider after the fork, because threads do not
// survive a fork.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tessera/provider/host_pinned.hpp>

#include "host_process.hpp"
#include "sharing.hpp"

namespace {

using namespace tessera;
using namespace std::chrono_literals;
using host_process::channel;
using options = host_pinned::options;
using sharing_tests::loose;
using sharing_tests::map_somewhere;
using sharing_tests::physical;
using sharing_tests::shareable;
using sharing_tests::size;
using holdings = host_pinned::holdings;

bool says(const host_pinned& device, const char* words) {
  return device.last_error().find(words) != std::string::npos;
}

/// Exports the memory that it creates and maps, to any process, and stays until it is told to end.
int export_to_any(const channel& way) {
  host_pinned device{loose};
  physical memory;
  shareable shared;
  if (!device.create(size, page_kind::normal, memory)) return 1;
  std::byte* const p = map_somewhere(device, memory);
  if (p == nullptr || !device.export_memory(memory, importers::any, shared)) return 2;
  p[0] = std::byte{7};
  if (!way.send(shared) || !way.wait()) return 3;
  return p[size - 1] == std::byte{9} ? 0 : 4;
}

TEST(host_pinned_sharing, lets_two_processes_use_the_same_memory) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    shareable shared;
    physical memory;
    if (!way.send(device.process()) || !way.receive(shared)) return 1;
    if (!device.import_memory(shared, memory)) return 2;
    if (device.held() != holdings{.imported = size}) return 3;  // none of it counts against the capacity
    std::byte* const p = map_somewhere(device, memory);
    if (p == nullptr || p[5] != std::byte{55}) return 4;
    p[size - 1] = std::byte{99};
    if (!way.pass() || !way.wait() || p[6] != std::byte{66}) return 5;
    return device.unmap(p, size) && device.destroy(memory) && device.held().imported == 0 ? 0 : 6;
  });
  host_pinned device{loose};
  physical memory;
  shareable shared;
  ASSERT_TRUE(device.create(size, page_kind::normal, memory));
  std::byte* const p = map_somewhere(device, memory);
  ASSERT_NE(p, nullptr);
  p[5] = std::byte{55};
  std::int32_t process = 0;
  ASSERT_TRUE(way.receive(process));
  EXPECT_EQ(process, importer);
  ASSERT_TRUE(device.export_memory(memory, importers::listed, shared)) << device.last_error();
  ASSERT_TRUE(device.allow(shared, process) && device.allow(shared, process)) << device.last_error();
  ASSERT_TRUE(way.send(shared) && way.wait());
  EXPECT_EQ(p[size - 1], std::byte{99});
  p[6] = std::byte{66};
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(importer), 0);
  p[7] = std::byte{1};  // the importer has ended and released nothing of it
  EXPECT_TRUE(device.destroy(memory) && device.unmap(p, size) && device.unreserve(p, size));
  EXPECT_EQ(device.held(), holdings{});
}

TEST(host_pinned_sharing, outlives_the_exporter) {
  channel way;
  const ::pid_t exporter = host_process::start(way, [&] { return export_to_any(way); });
  host_pinned device{loose};
  shareable shared;
  physical first, second, late;
  ASSERT_TRUE(way.receive(shared));
  ASSERT_TRUE(device.import_memory(shared, first)) << device.last_error();
  EXPECT_FALSE(device.import_memory(shared, second));
  EXPECT_TRUE(says(device, "imported already; destroy it first")) << device.last_error();
  EXPECT_EQ(second, physical{});
  std::byte* const p = map_somewhere(device, first);
  ASSERT_TRUE(device.destroy(first));  // mapped memory stays
  ASSERT_TRUE(device.import_memory(shared, second)) << device.last_error();
  std::byte* const q = map_somewhere(device, second);
  ASSERT_TRUE(p != nullptr && q != nullptr);
  p[size - 1] = std::byte{9};
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(exporter), 0);
  EXPECT_EQ(p[0], std::byte{7});
  p[1] = std::byte{1};
  EXPECT_EQ(q[1], std::byte{1});  // both are the same memory at two addresses
  EXPECT_FALSE(device.import_memory(shared, late));
  EXPECT_TRUE(says(device, "no exporter answers")) << device.last_error();
  EXPECT_EQ(late, physical{});
  EXPECT_EQ(device.held().imported, 2 * size);
}

TEST(host_pinned_sharing, obeys_its_rules) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    const auto refused = [&device, before = host_process::open_files()](const shareable& what,
                                                                        const char* words) {
      physical memory;
      return !device.import_memory(what, memory) && says(device, words) && memory == physical{} &&
             device.held() == holdings{} && host_process::open_files() == before;
    };
    shareable listed, destroyed, made_up;
    physical memory, own;
    if (!way.receive(listed) || !way.receive(destroyed)) return 1;
    if (!refused(listed, "not listed")) return 2;
    if (!refused(destroyed, "destroyed the memory")) return 3;
    made_up = listed;
    made_up.number += 100;
    if (!refused(made_up, "never exported it")) return 4;
    made_up = listed;
    ++made_up.token;
    if (!refused(made_up, "is invalid") || !refused(shareable{}, "is invalid")) return 5;
    made_up = listed;
    made_up.process = 1;
    if (!refused(made_up, "another process answers")) return 6;
    if (!way.pass() || !way.wait()) return 7;

    if (!device.import_memory(listed, memory)) return 8;
    if (device.export_memory(memory, importers::any, made_up) || !says(device, "imported memory")) return 9;
    if (!device.create(size, page_kind::normal, own)) return 10;
    if (!device.export_memory(own, importers::any, made_up)) return 11;
    if (device.export_memory(own, importers::listed, made_up) || !says(device, "exported already")) return 12;
    if (device.import_memory(made_up, own) || !says(device, "this process exported")) return 13;
    if (device.allow(made_up, 1) || !says(device, "any process may import")) return 14;
    return device.allow(listed, 1) ? 15 : 0;
  });
  host_pinned device{loose};
  physical one, two;
  shareable listed, destroyed;
  ASSERT_TRUE(device.create(size, page_kind::normal, one) && device.create(size, page_kind::normal, two));
  ASSERT_TRUE(device.export_memory(one, importers::listed, listed));
  ASSERT_TRUE(device.export_memory(two, importers::any, destroyed) && device.destroy(two));
  EXPECT_FALSE(device.export_memory(two, importers::any, destroyed));
  EXPECT_TRUE(says(device, "export_memory: the handle is unknown")) << device.last_error();
  EXPECT_FALSE(device.allow(destroyed, importer));
  EXPECT_TRUE(says(device, "or destroyed")) << device.last_error();
  EXPECT_FALSE(device.allow(shareable{listed.token + 1, listed.number, listed.process}, importer));
  EXPECT_TRUE(says(device, "not exported here")) << device.last_error();
  EXPECT_FALSE(device.allow(listed, 0));
  EXPECT_FALSE(device.allow(listed, -1));
  ASSERT_TRUE(way.send(listed) && way.send(destroyed) && way.wait());
  EXPECT_TRUE(device.allow(listed, importer));
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(importer), 0);
}

TEST(host_pinned_sharing, lists_at_most_65535_processes) {
  host_pinned device{loose};
  physical memory;
  shareable shared;
  ASSERT_TRUE(device.create(size, page_kind::normal, memory));
  ASSERT_TRUE(device.export_memory(memory, importers::listed, shared));
  for (std::int32_t process = 65'535; process > 0; --process) ASSERT_TRUE(device.allow(shared, process));
  EXPECT_TRUE(device.allow(shared, 1));  // is listed
  EXPECT_FALSE(device.allow(shared, 65'536));
  EXPECT_TRUE(says(device, "65,535")) << device.last_error();
}

TEST(host_pinned_sharing, is_for_processes_of_one_user) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    if (::setresuid(65534, 65534, 65534) != 0) return 1;
    host_pinned device{loose};
    shareable shared;
    physical memory;
    if (!way.receive(shared) || device.import_memory(shared, memory)) return 2;
    return says(device, "another user") ? 0 : 3;
  });
  host_pinned device{loose};
  physical memory;
  shareable shared;
  ASSERT_TRUE(device.create(size, page_kind::normal, memory));
  ASSERT_TRUE(device.export_memory(memory, importers::any, shared) && way.send(shared));
  EXPECT_EQ(host_process::end_of(importer), 0);
}

TEST(host_pinned_sharing, keeps_its_page_kind) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    shareable shared;
    physical memory;
    if (!way.receive(shared) || !device.import_memory(shared, memory)) return 1;
    const std::byte* const p = map_somewhere(device, memory);
    return p != nullptr && host_process::smaps(p, size).rights == "r--s " ? 0 : 2;
  });
  host_pinned device{loose};
  physical memory;
  shareable shared;
  ASSERT_TRUE(device.create(size, page_kind{.read_only = true}, memory));
  ASSERT_TRUE(device.export_memory(memory, importers::any, shared) && way.send(shared));
  EXPECT_EQ(host_process::end_of(importer), 0);
  for (const page_kind kind : {page_kind::normal, page_kind::huge, page_kind::huge_1g,
                               page_kind{page_kind::page_size::huge, page_kind::bandwidth::high, true, true},
                               page_kind{.speed = page_kind::bandwidth::low}}) {
    page_kind decoded;
    EXPECT_TRUE(detail::host_decode(detail::host_encode(kind), decoded));
    EXPECT_EQ(decoded, kind);
  }
  page_kind unchanged;
  for (const std::uint32_t code : {3u, 12u, 64u, ~0u}) EXPECT_FALSE(detail::host_decode(code, unchanged));
}

TEST(host_pinned_sharing, keeps_its_deadline) {
  channel way;
  const ::pid_t exporter = host_process::start(way, [&] { return export_to_any(way); });
  host_pinned device{options{.capacity = 1_MiB, .pin = loose.pin, .import_timeout = 20ms}};
  shareable shared;
  physical memory;
  ASSERT_TRUE(way.receive(shared));
  ASSERT_EQ(::kill(exporter, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(exporter, &status, WUNTRACED), exporter);
  const std::size_t files = host_process::open_files();
  for (int i = 0; i < 80; ++i) {  // more than the queue holds, so that connecting takes too long
    ASSERT_FALSE(device.import_memory(shared, memory));
    ASSERT_TRUE(says(device, "does not answer in time")) << device.last_error();
  }
  EXPECT_EQ(host_process::open_files(), files);
  ASSERT_EQ(::kill(exporter, SIGCONT), 0);
  host_pinned patient{loose};
  ASSERT_TRUE(patient.import_memory(shared, memory)) << patient.last_error();
  std::byte* const p = map_somewhere(patient, memory);
  ASSERT_NE(p, nullptr);
  p[size - 1] = std::byte{9};
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(exporter), 0);
}

/// A connection to an exporter, by hand.
detail::host_descriptor connected(const shareable& to) {
  const detail::host_socket_name name(to.token);
  detail::host_descriptor made = detail::host_new_socket(0);
  return ::connect(made.get(), name.get(), name.length) == 0 ? std::move(made) : detail::host_descriptor{};
}

TEST(host_pinned_sharing, bears_clients_of_every_sort) {
  channel way;
  const ::pid_t exporter = host_process::start(way, [&] { return export_to_any(way); });
  host_pinned device{loose};
  shareable shared;
  physical memory;
  ASSERT_TRUE(way.receive(shared));
  std::vector<detail::host_descriptor> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(connected(shared));
    ASSERT_TRUE(silent.back());
  }
  const detail::host_descriptor slow = connected(shared);
  ASSERT_TRUE(slow);
  std::vector<char> garbage(100'000, 'x');
  const detail::host_request request{.number = shared.number};
  std::memcpy(garbage.data(), &request, sizeof request);  // begins well
  // If all connections are taken, a new one replaces the one that was silent longest.
  std::this_thread::sleep_for(20ms);
  ASSERT_EQ(::send(slow.get(), &request, sizeof request, MSG_NOSIGNAL), ssize_t{sizeof request});
  detail::host_reply reply;
  ASSERT_EQ(::recv(slow.get(), &reply, sizeof reply, 0), ssize_t{sizeof reply});
  EXPECT_EQ(reply.answer, detail::host_answer::granted);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, sizeof request - 1, sizeof request + 1, garbage.size()}) {
    const detail::host_descriptor client = connected(shared);
    ASSERT_TRUE(client);
    (void)::send(client.get(), garbage.data(), bytes, MSG_NOSIGNAL);
    char answer = 0;
    EXPECT_LE(::recv(client.get(), &answer, 1, 0), 0) << bytes;  // disconnected
  }
  for (int i = 0; i < 100; ++i) {  // send requests, and do not wait for the answers
    const detail::host_descriptor client = connected(shared);
    ASSERT_TRUE(client);
    (void)::send(client.get(), &request, sizeof request, MSG_NOSIGNAL);
  }
  EXPECT_TRUE(device.import_memory(shared, memory)) << device.last_error();
  std::byte* const p = map_somewhere(device, memory);
  ASSERT_NE(p, nullptr);
  p[size - 1] = std::byte{9};
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(exporter), 0);
}

TEST(host_pinned_sharing, disconnects_a_silent_client) {
  channel way;
  const ::pid_t exporter = host_process::start(way, [&] { return export_to_any(way); });
  shareable shared;
  ASSERT_TRUE(way.receive(shared));
  const detail::host_descriptor silent = connected(shared);
  ASSERT_TRUE(silent);
  pollfd watched{silent.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 20'000), 1);
  char answer = 0;
  EXPECT_EQ(::recv(silent.get(), &answer, 1, 0), 0);
  EXPECT_TRUE(way.pass());
  EXPECT_EQ(host_process::end_of(exporter), 4);  // this part was not written
}

/// The mistakes of an exporter.
enum class violation : int {
  none,
  no_file,
  unsealed,
  too_short,
  too_long,
  no_memory,
  two_files,
  kind_unknown,
  step_wrong,
  answer_unknown,
  packet_short,
  packet_long,
  other_protocol,
  hangs_up,
  end
};

/// Answers one request after the other like a faulty or hostile exporter.
int tell_lies(const channel& way) {
  const std::uint64_t token = 0x7465737365726121 ^ static_cast<std::uint64_t>(::getpid());
  const detail::host_socket_name name(token);
  const detail::host_descriptor listener = detail::host_new_socket(0);
  if (::bind(listener.get(), name.get(), name.length) != 0 || ::listen(listener.get(), 1) != 0) return 1;
  if (!way.send(shareable{token, 1, ::getpid()})) return 2;
  for (int next = 0; next != static_cast<int>(violation::end); ++next) {
    const violation planted{next};
    const detail::host_descriptor client{::accept(listener.get(), nullptr, nullptr)};
    detail::host_request request;
    if (::recv(client.get(), &request, sizeof request, 0) != sizeof request) return 3;
    detail::host_descriptor file;
    const std::size_t bytes = planted == violation::too_short  ? size / 2
                              : planted == violation::too_long ? 2 * size
                                                               : size;
    if (detail::host_make_file(bytes, page_kind::normal, file) != nullptr) return 4;
    if (planted == violation::unsealed) {
      file = detail::host_descriptor{::memfd_create("tessera", MFD_CLOEXEC)};
      if (::ftruncate(file.get(), size) != 0) return 5;
    }
    if (planted == violation::no_memory) file = detail::host_descriptor{::eventfd(0, EFD_CLOEXEC)};
    struct {
      detail::host_reply reply;
      char more = 0;
    } sent{{.bytes = size,
            .answer = detail::host_answer::granted,
            .kind = detail::host_encode(page_kind::normal)}};
    if (planted == violation::kind_unknown) sent.reply.kind = 3;
    if (planted == violation::step_wrong) sent.reply.kind = detail::host_encode(page_kind::huge);
    if (planted == violation::answer_unknown) sent.reply.answer = static_cast<detail::host_answer>(77);
    if (planted == violation::other_protocol) ++sent.reply.protocol;
    detail::host_packet packet(&sent, planted == violation::packet_short  ? sizeof sent.reply - 1
                                      : planted == violation::packet_long ? sizeof sent.reply + 1
                                                                          : sizeof sent.reply);
    if (planted != violation::no_file) packet.enclose(file.get());
    std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> room{};
    if (planted == violation::two_files) {
      packet.message.msg_control = room.data();
      packet.message.msg_controllen = CMSG_LEN(2 * sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(2 * sizeof(int));
      const int files[2] = {file.get(), file.get()};
      std::memcpy(CMSG_DATA(header), files, sizeof files);
    }
    if (planted != violation::hangs_up && ::sendmsg(client.get(), &packet.message, MSG_NOSIGNAL) < 0)
      return 6;
  }
  return 0;
}

TEST(host_pinned_sharing, believes_no_exporter) {
  channel way;
  const ::pid_t exporter = host_process::start(way, [&] { return tell_lies(way); });
  host_pinned device{loose};
  shareable shared;
  ASSERT_TRUE(way.receive(shared));
  for (int next = 0; next != static_cast<int>(violation::end); ++next) {
    const std::size_t files = host_process::open_files();
    physical memory;
    const bool worked = device.import_memory(shared, memory);
    // One of two files is taken and the other never arrives.
    EXPECT_EQ(worked, violation{next} == violation::none || violation{next} == violation::two_files)
        << next << device.last_error();
    EXPECT_EQ(host_process::open_files(), files + worked) << next;
    EXPECT_EQ(device.destroy(memory), worked) << next;
  }
  EXPECT_EQ(device.held(), holdings{});
  EXPECT_EQ(host_process::end_of(exporter), 0);
}

TEST(host_pinned_sharing, leaks_nothing_to_started_programs_and_files) {
  const std::size_t files = host_process::open_files();
  std::array<bool, 64> inherited{};
  for (int file = 0; file < 64; ++file)
    inherited[static_cast<std::size_t>(file)] = ::fcntl(file, F_GETFD) >= 0;
  {
    host_pinned device{loose};
    physical memory;
    shareable shared;
    ASSERT_TRUE(device.create(size, page_kind::normal, memory));
    ASSERT_TRUE(device.export_memory(memory, importers::any, shared));
    // the memory, the socket, and the object that ends the thread
    EXPECT_EQ(host_process::open_files(), files + 3);
    for (int file = 3; file < 64; ++file) {
      if (inherited[static_cast<std::size_t>(file)]) continue;
      const int flags = ::fcntl(file, F_GETFD);
      char target[64] = "";
      const std::string link = "/proc/self/fd/" + std::to_string(file);
      if (flags < 0 || ::readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
      const std::string name = target;
      if (name.find("tessera") == std::string::npos && name.find("socket") == std::string::npos &&
          name.find("eventfd") == std::string::npos)
        continue;
      EXPECT_NE(flags & FD_CLOEXEC, 0) << name;
    }
  }
  EXPECT_EQ(host_process::open_files(), files);
}

TEST(host_pinned_sharing, a_forked_process_ends_no_thread_of_its_parent) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    shareable shared;
    physical memory;
    return way.receive(shared) && device.import_memory(shared, memory) ? 7 : 1;
  });
  auto device = std::make_unique<host_pinned>(loose);
  physical memory;
  shareable shared;
  ASSERT_TRUE(device->create(size, page_kind::normal, memory));
  ASSERT_TRUE(device->export_memory(memory, importers::any, shared));
  const ::pid_t forked = host_process::start([&] {
    ::alarm(20);
    const bool has_name = device->exported_name(memory, shared);
    device.reset();
    return has_name ? 1 : 7;
  });
  EXPECT_EQ(host_process::end_of(forked), 7);
  EXPECT_TRUE(way.send(shared));
  EXPECT_EQ(host_process::end_of(importer), 7);
}

TEST(host_pinned_sharing, takes_calls_from_several_threads) {
  channel way;
  const ::pid_t importer = host_process::start(way, [&] {
    host_pinned device{loose};
    std::array<shareable, 4> exported;
    for (shareable& one : exported)
      if (!way.receive(one)) return 1;
    std::vector<std::thread> threads;
    std::atomic<int> failed = 0;
    for (const shareable& shared : exported) {
      threads.emplace_back([&] {
        for (int i = 0; i < 25; ++i) {
          physical memory;
          if (!device.import_memory(shared, memory) || !device.destroy(memory)) ++failed;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    if (failed != 0 || device.held() != holdings{}) return 2;
    return way.pass() ? 0 : 3;
  });
  host_pinned device{loose};
  for (int i = 0; i < 4; ++i) {
    physical memory;
    shareable shared;
    ASSERT_TRUE(device.create(size, page_kind::normal, memory));
    ASSERT_TRUE(device.export_memory(memory, importers::any, shared) && way.send(shared));
  }
  for (int i = 0; i < 100; ++i) {  // while others import
    physical more;
    shareable too;
    EXPECT_TRUE(device.create(device.page_size(page_kind::normal), page_kind::normal, more) &&
                device.export_memory(more, importers::listed, too) && device.allow(too, importer) &&
                device.destroy(more));
  }
  EXPECT_TRUE(way.wait());
  EXPECT_EQ(host_process::end_of(importer), 0);
}

}  // namespace
