// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tessera/core/page.hpp>
#include <tessera/provider/host_sharing.hpp>
#include <tessera/provider/host_system.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// Memory files that one host_pinned lets other processes have, and the thread that gives them out; it starts with the
/// first of them. Functions that can fail return null or what hinders them.
///
/// The thread waits for no client: one that says nothing is dropped after a second, or sooner where many come.
class host_exports {
 public:
  explicit host_exports(std::uint64_t token) noexcept : token_(token) {}
  host_exports(const host_exports&) = delete;
  host_exports& operator=(const host_exports&) = delete;
  ~host_exports() {
    if (!service_.joinable()) return;
    const std::uint64_t one = 1;
    while (::write(ending_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    service_.join();
  }

  ///   Requires:  the file is open until it is removed
  [[nodiscard]] const char* add(std::uint64_t number, int file, std::size_t bytes, page_kind kind,
                                importers who) noexcept {
    const std::lock_guard lock(mutex_);
    if (exported_.contains(number)) return "memory is exported once, and this is already";
    if (const char* const fault = start()) return fault;
    return host_remembers([&] { exported_.emplace(number, exported{file, bytes, kind, who, {}}); })
               ? nullptr
               : host_cannot_remember;
  }
  void remove(std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    exported_.erase(number);
  }

  [[nodiscard]] const char* allow(std::uint64_t number, std::int32_t process) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = exported_.find(number);
    if (found == exported_.end()) return "no export of this provider, or destroyed";
    if (found->second.who == importers::any) return "it is exported to any process already";
    if (process <= 0) return "a process has a positive number";
    std::vector<std::int32_t>& listed = found->second.listed;
    const auto at = std::lower_bound(listed.begin(), listed.end(), process);
    if (at != listed.end() && *at == process) return nullptr;
    if (listed.size() == most_listed) return "65,535 processes are listed, which is the most";
    return host_remembers([&] { listed.insert(at, process); }) ? nullptr : host_cannot_remember;
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t most_listed = 65'535;
  static constexpr std::size_t most_clients = 64;
  static constexpr std::chrono::seconds patience{1};
  static constexpr std::chrono::milliseconds pause{50};  // where the system lets nobody in

  struct exported {
    int file;
    std::size_t bytes;
    page_kind kind;
    importers who;
    std::vector<std::int32_t> listed;  // in order
  };
  struct client {
    host_descriptor socket;
    ucred peer;
    clock::time_point until;
  };

  [[nodiscard]] const char* start() noexcept {
    if (service_.joinable()) return nullptr;
    host_descriptor listener = host_new_socket(SOCK_NONBLOCK);
    host_descriptor ending{::eventfd(0, EFD_CLOEXEC)};
    const host_socket_name name(token_);
    if (!listener || !ending || ::bind(listener.get(), name.get(), name.length) != 0 ||
        ::listen(listener.get(), most_clients) != 0)
      return "the system gives no socket; the limit of open files may be reached (ulimit -n)";
    listener_ = std::move(listener);
    ending_ = std::move(ending);
    const bool started = host_remembers([this] {
      clients_.reserve(most_clients);
      service_ = std::thread([this] { serve(); });
    });
    if (started) return nullptr;
    listener_ = {};  // its name is free again
    return "the system gives no thread for what is shared";
  }

  void serve() noexcept {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the user's threads
    for (bool open = true;;) {
      std::array<pollfd, 2 + most_clients> watched{};
      watched[0] = {ending_.get(), POLLIN, 0};
      watched[1] = {open ? listener_.get() : -1, POLLIN, 0};
      for (std::size_t i = 0; i < clients_.size(); ++i)
        watched[2 + i] = {clients_[i].socket.get(), POLLIN, 0};
      (void)::poll(watched.data(), 2 + clients_.size(), time_left(open));
      if (watched[0].revents != 0) return;
      std::erase_if(clients_,
                    [this, now = clock::now()](const client& c) { return is_answered(c) || c.until <= now; });
      open = let_in();
    }
  }
  /// Milliseconds until somebody is to be dropped, or let in again; -1 for ever.
  [[nodiscard]] int time_left(bool open) const noexcept {
    if (!open) return static_cast<int>(pause.count());
    if (clients_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(clients_.front().until - clock::now());
    return static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
  }

  /// False where the system lets nobody in now, so that asking again at once is of no use.
  [[nodiscard]] bool let_in() noexcept {
    for (std::size_t i = 0; i < most_clients; ++i) {
      host_descriptor socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!socket) {
        if (errno == EAGAIN) return true;
        if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
        return false;
      }
      client come{std::move(socket), {}, clock::now() + patience};
      if (!host_peer(come.socket.get(), come.peer) || is_answered(come)) continue;
      if (clients_.size() == most_clients) clients_.erase(clients_.begin());
      clients_.push_back(std::move(come));
    }
    return true;
  }

  /// Answers what a client has asked; false where it has said nothing yet. Whatever else it says ends it, too.
  [[nodiscard]] bool is_answered(const client& c) noexcept {
    host_request request;
    const ssize_t length = ::recv(c.socket.get(), &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0) return errno != EAGAIN && errno != EINTR;
    if (length == sizeof request && request.protocol == host_request::this_protocol)
      answer(c, request.number);
    return true;
  }
  void answer(const client& c, std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = exported_.find(number);
    host_reply reply;
    host_packet packet(&reply, sizeof reply);
    if (c.peer.uid != ::geteuid() && c.peer.uid != 0) {
      reply.answer = host_answer::other_user;
    } else if (found != exported_.end()) {
      const exported& is = found->second;
      reply.answer =
          is.who == importers::any || std::binary_search(is.listed.begin(), is.listed.end(), c.peer.pid)
              ? host_answer::granted
              : host_answer::not_listed;
      if (reply.answer == host_answer::granted) {
        reply.bytes = is.bytes;
        reply.kind = host_encode(is.kind);
        packet.enclose(is.file);
      }
    }
    (void)::sendmsg(c.socket.get(), &packet.message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  std::uint64_t token_;
  host_descriptor listener_;
  host_descriptor ending_;       // readable once the thread is to end
  std::vector<client> clients_;  // of the thread alone; longest there first
  std::mutex mutex_;
  std::map<std::uint64_t, exported> exported_;
  std::thread service_;
};

}  // namespace tessera
