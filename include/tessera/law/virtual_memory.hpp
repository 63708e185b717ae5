// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/law.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

namespace detail {
/// The default number of bytes that a check holds at once.
inline constexpr std::size_t trial_bytes = 16_MiB;

/// The page kinds that are tried. A device must have the first.
inline constexpr page_kind trial_kinds[] = {
    page_kind::normal,
    page_kind::huge,
    page_kind::huge_1g,
    {.peer_to_peer = true},
    {.speed = page_kind::bandwidth::low},
    {.speed = page_kind::bandwidth::high},
    {.read_only = true},
};

/// A reserved range of addresses; the destructor gives it back.
template <virtual_memory_provider D>
class trial_range {
 public:
  trial_range(D& device, std::size_t bytes, std::size_t to) noexcept
      : device_(device), bytes_(bytes), begin_(device.reserve(bytes, to)) {}
  trial_range(const trial_range&) = delete;
  trial_range& operator=(const trial_range&) = delete;
  ~trial_range() {
    if (begin_ != nullptr) (void)device_.unreserve(begin_, bytes_);
  }

  [[nodiscard]] std::uintptr_t number() const noexcept { return reinterpret_cast<std::uintptr_t>(begin_); }
  [[nodiscard]] void* at(std::size_t offset) const noexcept {
    return reinterpret_cast<void*>(number() + offset);
  }
  [[nodiscard]] bool unreserve() noexcept {
    const bool gone = device_.unreserve(begin_, bytes_);
    if (gone) begin_ = nullptr;
    return gone;
  }
  /// Whether the range shares no address with the `bytes` at `p`.
  [[nodiscard]] bool is_apart(std::uintptr_t p, std::size_t bytes) const noexcept {
    return p >= number() ? p - number() >= bytes_ : number() - p >= bytes;
  }

 private:
  D& device_;
  std::size_t bytes_;
  void* begin_;
};

/// Physical memory that is created or imported; the destructor unmaps and destroys it.
template <virtual_memory_provider D>
class trial_memory {
 public:
  explicit trial_memory(D& device) noexcept : device_(device) {}
  trial_memory(const trial_memory&) = delete;
  trial_memory& operator=(const trial_memory&) = delete;
  ~trial_memory() {
    if (at_ != nullptr) (void)device_.unmap(at_, mapped_);
    if (held_) (void)device_.destroy(name);
  }

  [[nodiscard]] bool create(std::size_t bytes, page_kind kind) noexcept {
    return held_ = device_.create(bytes, kind, name);
  }
  template <typename Shareable>
  [[nodiscard]] bool import_from(const Shareable& given) noexcept {
    return held_ = device_.import_memory(given, name);
  }
  [[nodiscard]] bool destroy() noexcept {
    const bool gone = device_.destroy(name);
    if (gone) held_ = false;
    return gone;
  }
  [[nodiscard]] bool map(void* p, std::size_t bytes) noexcept {
    const bool there = device_.map(p, bytes, name);
    if (there) at_ = p, mapped_ = bytes;
    return there;
  }
  [[nodiscard]] bool grant() noexcept { return device_.grant(at_, mapped_); }
  [[nodiscard]] bool unmap() noexcept {
    const bool gone = device_.unmap(at_, mapped_);
    if (gone) at_ = nullptr;
    return gone;
  }

  typename D::physical name{};

 private:
  D& device_;
  bool held_ = false;
  void* at_ = nullptr;
  std::size_t mapped_ = 0;
};

/// Reserves ranges without using them.
template <virtual_memory_provider D>
[[nodiscard]] verdict addresses(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind), segment = device.granularity();
  trial_range<D> first(device, 4 * step, step), second(device, step, 4 * step);
  if (first.number() == 0 || second.number() == 0) return {"reserve gives addresses"};
  if (first.number() % step != 0 || second.number() % (4 * step) != 0)
    return {"a range begins at a multiple of what was asked for"};
  void* const p = device.acquire(segment);
  const auto number = reinterpret_cast<std::uintptr_t>(p);
  const bool apart = first.is_apart(second.number(), step) && first.is_apart(number, segment) &&
                     second.is_apart(number, segment);
  if (p != nullptr) (void)device.release(p, segment);
  if (!apart) return {"a range overlaps nothing given"};
  if (!first.unreserve() || !second.unreserve()) return {"unreserve takes back what was reserved"};
  return {};
}

/// Tries impossible sizes, and calls the device has no memory of this kind.
template <virtual_memory_provider D>
[[nodiscard]] verdict impossible_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, step, step);
  trial_memory<D> none(device), page(device);
  if (none.destroy() || none.map(range.at(0), step)) return {"what names no memory is refused"};
  for (const std::size_t bytes : {std::size_t{0}, step + step / 2}) {
    const bool possible = bytes != 0 && bytes % step == 0;  // a size is valid if pages have one byte
    if (!possible && none.create(bytes, kind))
      return {"memory is a multiple of the page size long, and not empty"};
  }
  if (!page.create(step, kind)) return {};
  for (const std::size_t bytes : {device.capacity() / step * step, unlimited / step * step}) {
    if (none.create(bytes, kind)) return {"create refuses what goes beyond the capacity"};
  }
  void* const begin = range.at(0);
  if (!range.unreserve()) return {"unreserve takes back what was reserved"};
  if (page.map(begin, step)) return {"map refuses addresses that are not reserved"};
  return {};
}

/// Maps two memories side by side, at valid and invalid addresses, and unmaps them. The device may refuse to
/// create either.
template <virtual_memory_provider D>
[[nodiscard]] verdict mapped_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> one(device), two(device);
  if (!one.create(2 * step, kind) || !two.create(step, kind)) return {};
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (one.name == typename D::physical{} || two.name == typename D::physical{})
      return {"memory that was created has a name"};
    if (one.name == two.name) return {"each memory has a name of its own"};
  }
  if (step > 1 && one.map(range.at(step / 2), 2 * step))
    return {"memory is mapped at a multiple of the page size"};
  if (one.map(range.at(0), 4 * step)) return {"no more is mapped than there is of the memory"};
  if (!one.map(range.at(step), 2 * step)) return {"map puts memory where the range is free"};
  if (two.map(range.at(step), step) || two.map(range.at(2 * step), step))
    return {"map refuses addresses at which something is mapped"};
  if (!two.map(range.at(3 * step), step)) return {"a refused map changes nothing"};
  if (!one.grant() || !two.grant()) return {"grant gives access to what one map put there"};
  if (device.grant(range.at(0), step)) return {"grant refuses addresses at which nothing is mapped"};
  if (range.unreserve()) return {"a range goes back only when nothing is mapped in it"};
  if (device.unmap(range.at(0), step)) return {"unmap refuses addresses at which nothing is mapped"};
  if (D::unmap_wants_size && device.unmap(range.at(step), step))
    return {"unmap refuses a part of what one map put there"};
  if (!device.synchronize(stream_id{})) return {"synchronize returns once the work is done"};
  if (!one.unmap() || device.unmap(range.at(step), 2 * step))
    return {"unmap takes away what one map put there, once"};
  if (!one.map(range.at(0), 2 * step)) return {"memory that was unmapped can be mapped elsewhere"};
  if (!one.destroy() || !one.unmap()) return {"memory that is destroyed stays until it is unmapped"};
  if (!two.unmap() || !two.destroy()) return {"destroy lets go of memory"};
  if (!range.unreserve()) return {"unreserve takes back what was reserved"};
  return {};
}

/// Creates, maps and destroys memory until a device that leaks destroyed memory has none left.
template <virtual_memory_provider D>
[[nodiscard]] verdict memory_often(D& device, page_kind kind, std::size_t at_once) {
  const std::size_t step = device.page_size(kind);
  std::size_t bytes = (std::max)((std::min)(at_once, device.capacity()) / step * step, step);
  trial_range<D> range(device, bytes, step);
  std::size_t enough = 1;
  for (std::size_t i = 0; i < enough; ++i) {
    trial_memory<D> memory(device);
    while (!memory.create(bytes, kind)) {
      if (i != 0) return {"destroyed memory can be created again"};
      if (bytes == step) return {};  // without memory
      bytes = bytes / 2 / step * step;
    }
    enough = 2 * std::min<std::size_t>(device.capacity() / bytes, 64) + 1;
    if (!memory.map(range.at(0), bytes)) return {"map puts memory where the range is free"};
    // Tries both orders, because a device may leak memory in only one of them.
    const bool unmaps_first = i % 2 == 0;
    if (unmaps_first && !memory.unmap()) return {"unmap takes away what one map put there, once"};
    if (!memory.destroy()) return {"destroy lets go of memory"};
    if (!unmaps_first && !memory.unmap()) return {"memory that is destroyed stays until it is unmapped"};
  }
  return {};
}
}  // namespace detail

/// Checks a virtual_memory_provider with each page kind that the device has. It accesses no memory, and gives
/// back all memory that the device accepts.
///
/// It holds at most `at_once` bytes or three pages of one kind, whichever is larger.
template <virtual_memory_provider D>
[[nodiscard]] verdict virtual_memory(D& device, std::size_t at_once = detail::trial_bytes) {
  for (const page_kind kind : detail::trial_kinds) {
    const std::size_t step = device.page_size(kind);
    if (!std::has_single_bit(step) || step % kind.granularity() != 0)
      return {"the page size is a power of two, and a multiple of the kind's granularity"};
    if (kind == page_kind::normal) {
      detail::trial_memory<D> memory(device);
      if (!memory.create(step, kind)) return {"create gives normal pages while there is capacity"};
    }
    if (const verdict found = detail::addresses(device, kind); !found) return found;
    if (const verdict found = detail::impossible_memory(device, kind); !found) return found;
    if (const verdict found = detail::mapped_memory(device, kind); !found) return found;
    if (const verdict found = detail::memory_often(device, kind, at_once); !found) return found;
    if (device.page_size(kind) != step) return {"the page size is constant"};
  }
  return {};
}

namespace detail {
/// Exports memory to a listed process, which maps it and keeps it after the exporter has destroyed its
/// handle.
template <sharing_provider D>
[[nodiscard]] verdict listed_importers(D& exporter, D& importer, std::size_t bytes) {
  const std::size_t step = importer.page_size(page_kind::normal);
  trial_range<D> range(importer, align_up(bytes, step), step);
  trial_memory<D> memory(exporter), shared(importer), refused(importer), at_home(exporter);
  typename D::shareable name{}, again{};
  if (!memory.create(bytes, page_kind::normal)) return {"create gives normal pages while there is capacity"};
  if (!exporter.export_memory(memory.name, importers::listed, name))
    return {"created memory can be exported"};
  if (exporter.export_memory(memory.name, importers::listed, again)) return {"memory is exported once"};
  if (refused.import_from(name)) return {"a process that is not listed cannot import"};
  if (importer.allow(name, importer.process())) return {"the exporter alone lists importers"};
  if (!exporter.allow(name, importer.process())) return {"the exporter can list a process"};
  if (!shared.import_from(name)) return {"a listed process can import"};
  if (at_home.import_from(name)) return {"memory is not imported where it was exported"};
  if (importer.export_memory(shared.name, importers::any, again)) return {"imported memory is not exported"};
  if (!memory.destroy()) return {"exported memory can be destroyed"};
  if (refused.import_from(name)) return {"what the exporter destroyed is not imported"};
  if (!shared.map(range.at(0), bytes) || !shared.grant() || !shared.unmap() || !shared.destroy())
    return {"imported memory is mapped, and goes, as any other, whatever the exporter did"};
  return {};
}

/// Exports memory to any process.
template <sharing_provider D>
[[nodiscard]] verdict any_importer(D& exporter, D& importer, std::size_t bytes) {
  trial_memory<D> memory(exporter), shared(importer);
  typename D::shareable name{};
  if (!memory.create(bytes, page_kind::normal)) return {"create gives normal pages while there is capacity"};
  if (!exporter.export_memory(memory.name, importers::any, name)) return {"created memory can be exported"};
  if (exporter.allow(name, importer.process())) return {"importers are not listed for what any may import"};
  if (!shared.import_from(name)) return {"any process can import what is exported to any"};
  if (!shared.destroy() || !memory.destroy()) return {"each process destroys its own"};
  return {};
}
}  // namespace detail

/// Checks a sharing_provider between two processes.
///
/// It holds at most a page or `at_once` bytes, whichever is larger. It finds devices that leak shared memory
/// if the capacity is at most 64 times as much.
///
///     tessera::simulated_device exporter;
///     tessera::simulated_device importer = exporter.another_process();
///     if (const auto found = tessera::law::sharing(exporter, importer); !found) std::puts(found.broken);
///
///   Requires:  two processes that may import each other's memory; nothing else uses the devices
template <sharing_provider D>
[[nodiscard]] verdict sharing(D& exporter, D& importer, std::size_t at_once = detail::trial_bytes) {
  if (exporter.process() == importer.process()) return {"each process has a number of its own"};
  const std::size_t step = exporter.page_size(page_kind::normal);
  const std::size_t bytes = (std::max)((std::min)(at_once, exporter.capacity()) / step * step, step);
  const std::size_t enough = std::min<std::size_t>(exporter.capacity() / bytes, 64) + 1;
  for (std::size_t i = 0; i < enough; ++i) {
    verdict found = detail::listed_importers(exporter, importer, bytes);
    if (found) found = detail::any_importer(exporter, importer, bytes);
    if (!found) return i == 0 ? found : verdict{"memory goes once all processes have let go of it"};
  }
  return {};
}

}  // namespace tessera::law
