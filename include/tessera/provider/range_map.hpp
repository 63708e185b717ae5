// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <new>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/provider/capabilities.hpp>

namespace tessera::inline v0_1::detail {

inline constexpr const char* no_host_memory = "host memory for bookkeeping ran out";

[[nodiscard]] inline std::uintptr_t address_of(const void* p) noexcept {
  return reinterpret_cast<std::uintptr_t>(p);
}
[[nodiscard]] inline void* pointer_to(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

/// Values by key, in the order of keys.
///
/// Every ordered_map uses the same std::map of pointers, because each further type of std::map takes time to
/// compile in every program that includes a provider.
///   Cost:  logarithmic in the values; a heap request for each
template <typename Value>
class ordered_map {
 public:
  using index = std::map<std::uint64_t, void*>;

  ordered_map() = default;
  ordered_map(ordered_map&& other) noexcept : index_(std::exchange(other.index_, {})) {}
  ordered_map& operator=(ordered_map&& other) noexcept {
    index_.swap(other.index_);
    return *this;
  }
  ~ordered_map() {
    for (const auto& [key, value] : index_) delete static_cast<Value*>(value);
  }

  /// Adds a value; false if host memory ran out, or if a value has this key.
  [[nodiscard]] bool insert(std::uint64_t key, Value value) noexcept {
    Value* added = nullptr;
    return try_run([&] { added = move_to_heap(value); }) && insert_owned(key, added);
  }
  /// Adds a default value, which is allocated without exceptions; false as above.
  [[nodiscard]] bool insert_default(std::uint64_t key) noexcept {
    return insert_owned(key, new (std::nothrow) Value);
  }
  /// The value with this key, or null.
  [[nodiscard]] Value* find(std::uint64_t key) const noexcept {
    const auto found = index_.find(key);
    return found != index_.end() ? static_cast<Value*>(found->second) : nullptr;
  }
  ///   Requires:  a value has this key
  Value extract(std::uint64_t key) noexcept {
    const auto found = index_.find(key);
    auto* const removed = static_cast<Value*>(found->second);
    index_.erase(found);
    Value value = std::move(*removed);
    delete removed;
    return value;
  }
  [[nodiscard]] std::size_t size() const noexcept { return index_.size(); }
  /// The keys, each with a pointer to its value.
  [[nodiscard]] const index& all() const noexcept { return index_; }

 private:
  /// Adds a value of the heap, or deletes it. Null means that host memory ran out.
  [[nodiscard]] bool insert_owned(std::uint64_t key, Value* added) noexcept {
    bool is_new = false;
    if (added != nullptr && try_run([&] { is_new = index_.emplace(key, added).second; }) && is_new)
      return true;
    delete added;
    return false;
  }
  ///   Throws:  std::bad_alloc
  [[nodiscard]] static Value* move_to_heap(Value& value) { return new Value(std::move(value)); }

  index index_;
};

/// Address ranges that do not overlap. Range has a member `bytes`, and any other data.
///   Cost:  logarithmic in the ranges
template <typename Range>
class range_map {
 public:
  /// Adds the range that begins at `p`; false if host memory ran out.
  ///   Requires:  it overlaps no other range
  [[nodiscard]] bool insert(const void* p, Range range) noexcept {
    const std::size_t bytes = range.bytes;
    if (!ranges_.insert(address_of(p), std::move(range))) return false;
    bytes_ += bytes;
    return true;
  }
  /// The range that begins at `p`, or null.
  [[nodiscard]] Range* find(const void* p) noexcept { return ranges_.find(address_of(p)); }
  [[nodiscard]] const Range* find(const void* p) const noexcept { return ranges_.find(address_of(p)); }
  ///   Requires:  a range begins at `p`
  Range extract(const void* p) noexcept {
    Range range = ranges_.extract(address_of(p));
    bytes_ -= range.bytes;
    return range;
  }

  /// Whether a range that satisfies `condition` overlaps these addresses.
  template <typename F>
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes, F condition) const noexcept {
    const std::uintptr_t begin = address_of(p);
    auto next = ranges_.all().lower_bound(begin);
    if (auto at = next; at != ranges_.all().begin()) {
      --at;
      if (begin - at->first < range_at(at).bytes && condition(range_at(at))) return true;
    }
    for (; next != ranges_.all().end() && next->first - begin < bytes; ++next)
      if (condition(range_at(next))) return true;
    return false;
  }
  [[nodiscard]] bool overlaps(const void* p, std::size_t bytes) const noexcept {
    return overlaps(p, bytes, [](const Range&) { return true; });
  }
  /// The range that contains all these addresses, or null. With 0 bytes, the range that contains `p`.
  [[nodiscard]] Range* around(const void* p, std::size_t bytes) noexcept {
    auto at = ranges_.all().upper_bound(address_of(p));
    if (at == ranges_.all().begin()) return nullptr;
    Range& before = range_at(--at);
    const std::size_t offset = address_of(p) - at->first;
    return offset < before.bytes && bytes <= before.bytes - offset ? &before : nullptr;
  }
  [[nodiscard]] const Range* around(const void* p, std::size_t bytes) const noexcept {
    return const_cast<range_map*>(this)->around(p, bytes);
  }

  /// Calls f(pointer, range) for each range, by ascending address.
  template <typename F>
  void for_each(F f) const noexcept {
    for (const auto& [at, range] : ranges_.all()) f(pointer_to(at), *static_cast<const Range*>(range));
  }
  /// The sum of the bytes of all ranges.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  using iterator = typename ordered_map<Range>::index::const_iterator;
  [[nodiscard]] static Range& range_at(iterator at) noexcept { return *static_cast<Range*>(at->second); }

  ordered_map<Range> ranges_;
  std::size_t bytes_ = 0;
};

/// The processes that may import exported memory.
class importer_list {
 public:
  explicit importer_list(provider::importers who) noexcept : who_(who) {}

  /// Lists a process. Returns null on success, else the reason.
  [[nodiscard]] const char* allow(std::int32_t process) noexcept {
    if (who_ == provider::importers::any) return "any process may import the memory";
    if (process <= 0) return "the number of a process is not positive";
    if (may_import(process)) return nullptr;
    if (listed_.size() == max_listed) return "65,535 processes are listed already";
    return listed_.insert(number(process), {}) ? nullptr : no_host_memory;
  }
  [[nodiscard]] bool may_import(std::int32_t process) const noexcept {
    return who_ == provider::importers::any || listed_.find(number(process)) != nullptr;
  }

 private:
  ///   Source:  aclrtMemSetPidToShareableHandle takes at most 65,535 processes
  static constexpr std::size_t max_listed = 65'535;

  struct listed {};
  [[nodiscard]] static std::uint64_t number(std::int32_t process) noexcept {
    return static_cast<std::uint64_t>(process);
  }

  provider::importers who_;
  ordered_map<listed> listed_;
};

}  // namespace tessera::inline v0_1::detail
