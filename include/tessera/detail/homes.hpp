// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

#include <tessera/core/stream.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/key_map.hpp>

namespace tessera::detail {

/// The homes of one pool: for each key, where its free blocks wait.
class homes {
 public:
  homes() = default;
  homes(const homes&) = delete;
  homes& operator=(const homes&) = delete;
  ~homes() {
    while (first_ != nullptr) drop(*first_);
  }

  /// The home of a key, which is made where there is none; null where host memory ran out.
  ///   Cost:  constant; where it is made, linear in the homes
  [[nodiscard]] free_list* at(std::size_t pool, stream_id key) noexcept {
    return recent_ != nullptr && recent_->key() == key ? recent_ : find(pool, key);
  }
  [[nodiscard]] free_list* at(std::size_t pool, any_stream key) noexcept {
    return recent_ != nullptr ? recent_ : find(pool, key);
  }
  /// The first in the order of keys, or null; free_list::next leads on.
  [[nodiscard]] free_list* first() const noexcept { return first_; }

  /// Drops the homes that own no segment. It happens by itself, too, before their number would double.
  void drop_empty() noexcept {
    for (free_list* home = first_; home != nullptr;) {
      free_list* const following = home->next;
      if (home->segments == 0) drop(*home);
      home = following;
    }
    drop_at_ = 2 * by_key_.size() + 16;
  }

  [[nodiscard]] std::size_t footprint() const noexcept {
    return by_key_.footprint() + by_key_.size() * sizeof(free_list);
  }

 private:
  [[nodiscard, gnu::noinline]] free_list* find(std::size_t pool, stream_id key) noexcept {
    free_list* found = by_key_.find(key.handle);
    if (found == nullptr) {
      if (by_key_.size() >= drop_at_) drop_empty();
      if (!by_key_.reserve_one()) return nullptr;
      found = new (std::nothrow) free_list(pool, key);
      if (found == nullptr) return nullptr;
      by_key_.insert(key.handle, *found);
      free_list** before = &first_;
      while (*before != nullptr && (*before)->key() < key) before = &(*before)->next;
      found->next = *before;
      *before = found;
    }
    return recent_ = found;
  }
  void drop(free_list& home) noexcept {
    free_list** before = &first_;
    while (*before != &home) before = &(*before)->next;
    *before = home.next;
    by_key_.remove(home.key().handle);
    if (recent_ == &home) recent_ = nullptr;
    delete &home;
  }

  free_list* recent_ = nullptr;  // where the last request looked
  free_list* first_ = nullptr;
  key_map<free_list> by_key_;
  std::size_t drop_at_ = 16;
};

}  // namespace tessera::detail
