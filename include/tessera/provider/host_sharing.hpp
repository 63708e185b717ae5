// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <tessera/provider/host_memory.hpp>
#include <tessera/provider/own_process.hpp>
#include <tessera/provider/range_map.hpp>

/// Sends memory files between processes. The importer connects to a socket named by the exporter's token. It
/// receives the file or the reason of a refusal, once for each connection. The socket is in the abstract
/// namespace, so nothing remains on disk. Both processes must share one network and one process namespace.

namespace tessera::inline v0_1::detail {

/// The name of exported memory in other processes: plain bytes for a pipe or a file. Forged and outdated
/// names are refused.
struct host_shareable {
  std::uint64_t token = 0;   ///< of the exporting provider
  std::uint64_t number = 0;  ///< of its physical memory
  std::int64_t process = 0;  ///< of the exporting provider
  bool operator==(const host_shareable&) const = default;
};

/// The importer's request: one packet.
struct host_request {
  static constexpr std::uint64_t this_protocol = 0x3165726573736574;
  std::uint64_t protocol = this_protocol;
  std::uint64_t number = 0;
};
enum class host_answer : std::uint32_t { granted, unknown, other_user, not_listed };
/// The reply: one packet, with the memory file if it was granted.
struct host_reply {
  std::uint64_t protocol = host_request::this_protocol;
  std::uint64_t bytes = 0;
  host_answer answer = host_answer::unknown;
  std::uint32_t kind = 0;  ///< by host_encode
};

[[nodiscard]] constexpr std::uint32_t host_encode(page_kind kind) noexcept {
  return static_cast<std::uint32_t>(kind.size) | static_cast<std::uint32_t>(kind.speed) << 2 |
         static_cast<std::uint32_t>(kind.peer_to_peer) << 4 | static_cast<std::uint32_t>(kind.read_only) << 5;
}
/// Returns false if no kind has this code.
[[nodiscard]] constexpr bool host_decode(std::uint32_t code, page_kind& kind) noexcept {
  if (code >= 64 || (code & 3) == 3 || (code >> 2 & 3) == 3) return false;
  kind = {.size = static_cast<page_kind::page_size>(code & 3),
          .speed = static_cast<page_kind::bandwidth>(code >> 2 & 3),
          .peer_to_peer = (code & 16) != 0,
          .read_only = (code & 32) != 0};
  return true;
}

/// The socket address of an exporter.
struct host_socket_name {
  explicit host_socket_name(std::uint64_t token) noexcept {
    address.sun_family = AF_UNIX;
    const int written = TESSERA_DETAIL_SNPRINTF(address.sun_path + 1, sizeof address.sun_path - 1,
                                                "tessera.%016llx", static_cast<unsigned long long>(token));
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path)) + 1 + static_cast<socklen_t>(written);
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length = 0;
};

[[nodiscard]] inline host_descriptor host_new_socket(int flags) noexcept {
  return host_descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0)};
}
/// Gets the credentials that the peer had when it connected; false if the system does not report them.
[[nodiscard]] inline bool host_peer(int socket, ucred& peer) noexcept {
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && length == sizeof peer;
}

/// A packet for sendmsg and recvmsg, with room for one descriptor.
struct host_packet {
  host_packet(void* data, std::size_t bytes) noexcept : part{data, bytes} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = beside.data();
  }
  host_packet& operator=(host_packet&&) = delete;
  void expect_file() noexcept { message.msg_controllen = CMSG_LEN(sizeof(int)); }
  void enclose(int file) noexcept {
    expect_file();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_len = CMSG_LEN(sizeof file);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  /// The descriptor in a received packet; empty if there is none.
  [[nodiscard]] host_descriptor enclosed() noexcept {
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    int file = -1;
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof file))
      std::memcpy(&file, CMSG_DATA(header), sizeof file);
    return host_descriptor{file};
  }

  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> beside{};
  msghdr message{};
};

/// Asks an exporter for memory, and accepts only a file that is safe to use.
class host_import {
 public:
  /// Returns null if a file has `bytes` bytes of memory of a kind, else the reason.
  using file_check = const char*(int file, std::size_t bytes, page_kind kind) noexcept;
  explicit host_import(std::chrono::milliseconds patience, file_check* check = host_check_file) noexcept
      : check_(check),
        until_(std::chrono::steady_clock::now() +
               std::min<std::chrono::milliseconds>(patience, std::chrono::hours(24))) {}

  /// Returns null on success, else the reason.
  [[nodiscard]] const char* send(const host_shareable& name) noexcept {
    socket_ = host_new_socket(0);
    if (!socket_) return "the system has no socket; raise the limit of open files (ulimit -n)";
    const host_socket_name address(name.token);
    if (in_time([&] { return ::connect(socket_.get(), address.get(), address.length); }) != 0)
      return errno == EAGAIN ? no_answer : no_exporter;
    ucred peer{};
    if (!host_peer(socket_.get(), peer) || peer.pid != name.process)
      return "another process answers, or the exporter is in another PID namespace";
    if (peer.pid == ::getpid()) return "this process exported the memory";
    host_request request{.number = name.number};
    const ssize_t sent =
        in_time([&] { return ::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL); });
    if (sent != sizeof request) return sent < 0 && errno == EAGAIN ? no_answer : hung_up;
    return receive();
  }

  /// An array, because its address is compared: each source may have its own copy of a literal.
  static constexpr char no_exporter[] = "no exporter answers: it has ended, or the shareable is invalid";
  host_descriptor file;
  std::size_t bytes = 0;
  page_kind kind{};

 private:
  static constexpr const char* no_answer =
      "the exporter does not answer in time; raise options.import_timeout";
  static constexpr const char* hung_up = "the exporter ended, or closed the connection";

  [[nodiscard]] const char* receive() noexcept {
    host_reply reply;
    host_packet packet(&reply, sizeof reply);
    packet.expect_file();
    const long length =
        in_time([&] { return ::recvmsg(socket_.get(), &packet.message, MSG_CMSG_CLOEXEC | MSG_TRUNC); });
    if (length <= 0) return length < 0 && errno == EAGAIN ? no_answer : hung_up;
    host_descriptor received = packet.enclosed();
    if (length != sizeof reply || reply.protocol != host_request::this_protocol) return invalid_answer;
    switch (reply.answer) {
      case host_answer::unknown: return "the exporter has destroyed the memory, or never exported it";
      case host_answer::other_user: return "the exporter belongs to another user";
      case host_answer::not_listed: return "this process is not listed; the exporter must call allow()";
      case host_answer::granted: break;
    }
    if (reply.answer != host_answer::granted || !received || !host_decode(reply.kind, kind))
      return invalid_answer;
    if (const char* const fault = check_(received.get(), reply.bytes, kind)) return fault;
    bytes = reply.bytes;
    file = std::move(received);
    return nullptr;
  }
  static constexpr const char* invalid_answer = "the exporter's answer is invalid";

  /// Repeats a call if a signal interrupts it. Fails with EAGAIN after the timeout.
  template <typename Call>
  [[nodiscard]] long in_time(Call call) const noexcept {
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::microseconds>(until_ - std::chrono::steady_clock::now()).count();
      if (left <= 0) {
        errno = EAGAIN;
        return -1;
      }
      const timeval limit{.tv_sec = left / 1'000'000, .tv_usec = left % 1'000'000};
      (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      const long result = call();
      if (result >= 0 || errno != EINTR) return result;
    }
  }

  file_check* check_;
  std::chrono::steady_clock::time_point until_;
  host_descriptor socket_;
};

/// The memory files that one host_pinned exports, and the thread that sends them. The thread starts with the
/// first export. Functions that can fail return null on success, else the reason.
///
/// The thread never blocks on a client. It drops a silent client after a second, or earlier if many connect.
class host_exports {
 public:
  explicit host_exports(std::uint64_t token) noexcept : token_(token) {}
  host_exports& operator=(host_exports&&) = delete;
  ~host_exports() {
    if (!service_.is_here() || !(*service_).joinable()) return;  // a fork has the same descriptor `ending_`
    const std::uint64_t one = 1;
    while (::write(ending_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    (*service_).join();
  }

  ///   Requires:  the file stays open until it is removed
  [[nodiscard]] const char* add(std::uint64_t number, int file, std::size_t bytes, page_kind kind,
                                provider::importers who) noexcept {
    const std::lock_guard lock(mutex_);
    if (exported_.find(number) != nullptr) return "the memory is exported already";
    if (const char* const fault = start()) return fault;
    return exported_.insert(number, {file, bytes, kind, importer_list(who)}) ? nullptr : no_host_memory;
  }
  void remove(std::uint64_t number) noexcept {
    if (!service_.is_here()) return;
    const std::lock_guard lock(mutex_);
    if (exported_.find(number) != nullptr) exported_.extract(number);
  }

  [[nodiscard]] bool has(std::uint64_t number) const noexcept {
    const std::lock_guard lock(mutex_);
    return exported_.find(number) != nullptr;
  }
  [[nodiscard]] const char* allow(std::uint64_t number, std::int32_t process) noexcept {
    const std::lock_guard lock(mutex_);
    exported* const found = exported_.find(number);
    return found != nullptr ? found->allowed.allow(process) : "the memory is not exported here, or destroyed";
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t max_clients = 64;
  static constexpr std::chrono::seconds patience{1};
  static constexpr std::chrono::milliseconds pause{50};  // if the system accepts no connection

  struct exported {
    int file;
    std::size_t bytes;
    page_kind kind;
    importer_list allowed;
  };
  struct client {
    host_descriptor socket;
    ucred peer;
    clock::time_point until;
  };

  [[nodiscard]] const char* start() noexcept {
    if ((*service_).joinable()) return nullptr;
    host_descriptor listener = host_new_socket(SOCK_NONBLOCK);
    host_descriptor ending{::eventfd(0, EFD_CLOEXEC)};
    const host_socket_name name(token_);
    if (!listener || !ending || ::bind(listener.get(), name.get(), name.length) != 0 ||
        ::listen(listener.get(), max_clients) != 0)
      return "the system has no socket; raise the limit of open files (ulimit -n)";
    listener_ = std::move(listener);
    ending_ = std::move(ending);
    service_.adopt();
    const bool started = try_run([this] {
      clients_.reserve(max_clients);
      *service_ = std::thread([this] { serve(); });
    });
    if (started) return nullptr;
    listener_ = {};  // frees its name
    return "the system has no thread to answer importers";
  }

  void serve() noexcept {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals belong to the user's threads
    for (bool open = true;;) {
      std::array<pollfd, 2 + max_clients> watched{};
      watched[0] = {ending_.get(), POLLIN, 0};
      watched[1] = {open ? listener_.get() : -1, POLLIN, 0};
      for (std::size_t i = 0; i < clients_.size(); ++i)
        watched[2 + i] = {clients_[i].socket.get(), POLLIN, 0};
      (void)::poll(watched.data(), 2 + clients_.size(), time_left(open));
      if (watched[0].revents != 0) return;
      std::erase_if(clients_,
                    [this, now = clock::now()](const client& c) { return try_answer(c) || c.until <= now; });
      open = accept_clients();
    }
  }
  /// Milliseconds until the thread drops a client or accepts connections again; -1 for never.
  [[nodiscard]] int time_left(bool open) const noexcept {
    if (!open) return static_cast<int>(pause.count());
    if (clients_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(clients_.front().until - clock::now());
    return static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
  }

  /// False if the system accepts no connection now, so that an immediate retry is useless.
  [[nodiscard]] bool accept_clients() noexcept {
    for (std::size_t i = 0; i < max_clients; ++i) {
      host_descriptor socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!socket) {
        if (errno == EAGAIN) return true;
        if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
        return false;
      }
      client added{std::move(socket), {}, clock::now() + patience};
      if (!host_peer(added.socket.get(), added.peer) || try_answer(added)) continue;
      if (clients_.size() == max_clients) clients_.erase(clients_.begin());
      clients_.push_back(std::move(added));
    }
    return true;
  }

  /// Answers a client's request; false if none has arrived. Any other message ends the connection.
  [[nodiscard]] bool try_answer(const client& c) noexcept {
    host_request request;
    const ssize_t length = ::recv(c.socket.get(), &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0) return errno != EAGAIN && errno != EINTR;
    if (length == sizeof request && request.protocol == host_request::this_protocol)
      answer(c, request.number);
    return true;
  }
  void answer(const client& c, std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    const exported* const memory = exported_.find(number);
    host_reply reply;
    host_packet packet(&reply, sizeof reply);
    if (c.peer.uid != ::geteuid() && c.peer.uid != 0) {
      reply.answer = host_answer::other_user;
    } else if (memory != nullptr) {
      reply.answer = memory->allowed.may_import(c.peer.pid) ? host_answer::granted : host_answer::not_listed;
      if (reply.answer == host_answer::granted) {
        reply.bytes = memory->bytes;
        reply.kind = host_encode(memory->kind);
        packet.enclose(memory->file);
      }
    }
    (void)::sendmsg(c.socket.get(), &packet.message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  std::uint64_t token_;
  host_descriptor listener_;
  host_descriptor ending_;       // readable once the thread must end
  std::vector<client> clients_;  // used by the thread only; oldest first
  mutable std::mutex mutex_;
  ordered_map<exported> exported_;
  own_process<std::thread> service_;
};

}  // namespace tessera::inline v0_1::detail
