// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/backends/backend.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/policy/growth.hpp>

// A fifth way to grow, in files of its own: its backend and its policy.

/// Allocates upwards in each segment and reuses no freed memory. A segment is released once all of it is free.
struct bump_backend : tessera::detail::backend_defaults {
  static constexpr bool places_blocks = true;

  template <typename Manager>
  class instance {
    using block = tessera::detail::block;
    using free_list = tessera::detail::free_list;

   public:
    explicit instance(Manager& manager) noexcept : manager_(manager) {}
    instance(const instance&) = delete;
    instance& operator=(const instance&) = delete;
    ~instance() {
      manager_.wait_for_pending();
      manager_.release_all();
    }

    template <typename Policies>
    [[nodiscard]] block* obtain_block(free_list& list, std::size_t size, const Policies&) noexcept {
      const arena& current = arenas_[key_of(list)];
      return current.end - current.next >= size ? block_at(current) : nullptr;
    }
    template <typename Policies>
    [[nodiscard]] std::size_t consume_placement(const block& free, std::size_t size,
                                                const Policies& p) noexcept {
      arena& current = arenas_[key_of(*free.list)];
      const std::size_t offset = current.next - free.address;
      const std::size_t room = free.size - offset;
      current.next += p.split.should_split(size, room) ? size : room;
      return offset;
    }
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t, std::size_t segment, const Policies& p) noexcept {
      const key own = key_of(list);
      block* const fresh =
          manager_.acquire(list, segment, segment >= p.split.oversize_from(), p.pages.backing(segment));
      if (fresh != nullptr) arenas_[own] = {fresh->address, fresh->address, fresh->end()};
      return fresh;
    }

    [[nodiscard]] std::size_t releasable(const block& idle) const noexcept { return idle.size; }
    std::size_t release(block& idle) noexcept {
      const key own = key_of(*idle.list);
      const std::uintptr_t address = idle.address;
      const std::size_t bytes = manager_.release(idle);
      if (bytes > 0 && arenas_[own].begin == address) arenas_[own] = {};
      return bytes;
    }
    void shrink() noexcept { manager_.shrink(); }
    [[nodiscard]] std::size_t metadata_bytes() const noexcept { return arenas_.size() * sizeof(arena); }

   private:
    /// A segment, and the address of the next block in it.
    struct arena {
      std::uintptr_t begin = 0, next = 0, end = 0;
    };
    /// The private pool or 0, the pool and the stream.
    using key = std::array<std::uint64_t, 3>;
    static key key_of(const free_list& list) noexcept {
      return {list.where.group->number, list.where.pool, list.key.handle};
    }
    /// The free block that contains the next address.
    [[nodiscard]] block* block_at(const arena& current) const noexcept {
      block* found = nullptr;
      manager_.for_each_segment([&](block& first) {
        if (first.address != current.begin) return;
        found = &first;
        while (found->end() <= current.next) found = found->next;
      });
      return found;
    }

    Manager& manager_;
    std::map<key, arena> arenas_;
  };
};

/// Takes segments of 64 MiB, or of the block's size.
struct grow_by_bumping {
  using backend = bump_backend;
  static constexpr tessera::memory_limit limit{};
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const tessera::usage&) noexcept {
    using namespace tessera::literals;
    return block < 64_MiB ? 64_MiB : tessera::align_up(block, 2_MiB);
  }
  bool operator==(const grow_by_bumping&) const = default;
};
