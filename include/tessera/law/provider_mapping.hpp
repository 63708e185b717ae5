// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_memory.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>

/// The laws of virtual memory and of its sharing between processes.

namespace tessera::law::detail {

/// A reserved range of addresses; the destructor gives it back.
template <provider::virtual_memory_provider D>
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
    const bool done = device_.unreserve(begin_, bytes_);
    if (done) begin_ = nullptr;
    return done;
  }
  [[nodiscard]] trial_segment place() const noexcept { return {number(), bytes_}; }

 private:
  D& device_;
  std::size_t bytes_;
  void* begin_;
};

/// Physical memory that is created or imported; the destructor unmaps and destroys it.
template <provider::virtual_memory_provider D>
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
    held_ = device_.create(bytes, kind, name);
    return held_;
  }
  template <typename Shareable>
  [[nodiscard]] bool import_from(const Shareable& exported) noexcept {
    held_ = device_.import_memory(exported, name);
    return held_;
  }
  [[nodiscard]] bool destroy() noexcept {
    const bool done = device_.destroy(name);
    if (done) held_ = false;
    return done;
  }
  [[nodiscard]] bool map(void* p, std::size_t bytes) noexcept {
    const bool mapped = device_.map(p, bytes, name);
    if (mapped) {
      at_ = p;
      mapped_ = bytes;
    }
    return mapped;
  }
  [[nodiscard]] bool grant() noexcept { return device_.grant(at_, mapped_); }
  [[nodiscard]] bool unmap() noexcept {
    const bool done = device_.unmap(at_, mapped_);
    if (done) at_ = nullptr;
    return done;
  }

  typename D::physical name{};

 private:
  D& device_;
  bool held_ = false;
  void* at_ = nullptr;
  std::size_t mapped_ = 0;
};

/// Reserves ranges without using them.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result addresses(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind), segment = device.granularity();
  const auto unreserve_refused = [](const trial_range<D>& range, std::size_t bytes) {
    return broken_rule("unreserve accepts a reserved range"_rule, "address", range.at(0), "bytes", bytes);
  };
  trial_range<D> first(device, 4 * step, step), second(device, step, 4 * step);
  for (const trial_range<D>* const range : {&first, &second}) {
    const std::size_t bytes = range->place().bytes, to = range == &first ? step : 4 * step;
    if (range->number() == 0) return broken_rule("reserve succeeds"_rule, "bytes", bytes, "alignment", to);
    if (range->number() % to != 0)
      return broken_rule("a range begins at a multiple of the alignment"_rule, "address", range->at(0),
                         "alignment", to);
  }
  void* const p = device.acquire(segment);
  const trial_segment taken = segment_at(p, segment), one = first.place(), two = second.place();
  const bool apart = !one.overlaps(two) && !one.overlaps(taken) && !two.overlaps(taken);
  if (p != nullptr) (void)device.release(p, segment);
  if (!apart)
    return broken_rule("ranges overlap no other range and no segment"_rule, "range", one.at(), "bytes",
                       one.bytes, "range", two.at(), "bytes", two.bytes, "segment", p, "bytes", segment);
  if (!first.unreserve()) return unreserve_refused(first, one.bytes);
  if (device.unreserve(one.at(), one.bytes))
    return broken_rule("unreserve refuses addresses that are not reserved"_rule, "address", one.at(), "bytes",
                       one.bytes);
  if (!second.unreserve()) return unreserve_refused(second, two.bytes);
  if (void* const beyond = device.reserve(unlimited / 2 / step * step, step)) {
    (void)device.unreserve(beyond, unlimited / 2 / step * step);
    return broken_rule("reserve refuses more addresses than there are"_rule, "bytes",
                       unlimited / 2 / step * step, "address", beyond);
  }
  return {};
}

/// Tries impossible sizes, and calls the device has no memory of this kind.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result impossible_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, step, step);
  trial_memory<D> none(device), page(device);
  if (none.destroy() || none.map(range.at(0), step))
    return broken_rule("destroy and map refuse an empty handle"_rule, "address", range.at(0), "bytes", step);
  for (const std::size_t bytes : {std::size_t{0}, step + step / 2}) {
    const bool possible = bytes != 0 && bytes % step == 0;  // a size is valid if pages have one byte
    if (!possible && none.create(bytes, kind))
      return broken_rule("create refuses 0 bytes and parts of pages"_rule, "kind", kind, "bytes", bytes,
                         "page size", step);
  }
  if (!page.create(step, kind)) return {};
  for (const std::size_t bytes : {device.capacity() / step * step, unlimited / step * step}) {
    if (none.create(bytes, kind))
      return broken_rule("create refuses more than the capacity"_rule, "kind", kind, "bytes", bytes,
                         "held already", step, "capacity", device.capacity());
  }
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (none.name != typename D::physical{})
      return broken_rule("a refused create leaves the handle as it was"_rule, "kind", kind, "capacity",
                         device.capacity());
  }
  void* const begin = range.at(0);
  if (!range.unreserve())
    return broken_rule("unreserve accepts a reserved range"_rule, "address", begin, "bytes", step);
  if (page.map(begin, step))
    return broken_rule("map refuses addresses that are not reserved"_rule, "address", begin, "bytes", step);
  return {};
}

/// Destroys memory twice. A driver may crash, or destroy memory that got the same handle.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result wrong_destroys(D& device) {
  const std::size_t step = device.page_size(page_kind::normal);
  typename D::physical made{};
  if (!device.create(step, page_kind::normal, made)) return {};
  if (!device.destroy(made)) return broken_rule("destroy accepts created memory"_rule, "bytes", step);
  if (device.destroy(made))
    return broken_rule("destroy refuses memory that was destroyed"_rule, "bytes", step);
  return {};
}

/// Maps two memories side by side, at valid and invalid addresses, and unmaps them. The device may refuse to
/// create either.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result mapped_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> one(device), two(device);
  if (!one.create(2 * step, kind) || !two.create(step, kind)) return {};
  const auto broken = [&](rule law, std::size_t page, std::size_t pages) {
    return broken_rule(law, "kind", kind, "address", range.at(page * step), "bytes", pages * step,
                       "page size", step);
  };
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (one.name == typename D::physical{} || two.name == typename D::physical{})
      return broken("the handle of created memory is not empty"_rule, 0, 2);
    if (one.name == two.name) return broken("created memory has a handle of its own"_rule, 0, 2);
  }
  if (step > 1 && one.map(range.at(step / 2), 2 * step))
    return broken_rule("map refuses an address inside a page"_rule, "kind", kind, "address",
                       range.at(step / 2), "page size", step);
  if (one.map(range.at(0), 4 * step)) return broken("map refuses more bytes than the memory has"_rule, 0, 4);
  if (!one.map(range.at(step), 2 * step))
    return broken("map succeeds at free addresses of a range"_rule, 1, 2);
  if (two.map(range.at(step), step) || two.map(range.at(2 * step), step))
    return broken("map refuses addresses with mapped memory"_rule, 1, 2);
  if (!two.map(range.at(3 * step), step)) return broken("a refused map changes nothing"_rule, 3, 1);
  if (!one.grant() || !two.grant()) return broken("grant accepts a mapping"_rule, 1, 3);
  if (device.grant(range.at(0), step))
    return broken("grant refuses addresses without mapped memory"_rule, 0, 1);
  if (range.unreserve()) return broken("unreserve refuses a range with mapped memory"_rule, 0, 4);
  if (device.unmap(range.at(0), step))
    return broken("unmap refuses addresses without mapped memory"_rule, 0, 1);
  if (D::unmap_wants_size && device.unmap(range.at(step), step))
    return broken("unmap refuses a part of a mapping"_rule, 1, 1);
  if (!device.synchronize(stream_id{}))
    return broken_rule("synchronize returns after the work is done"_rule, "stream", stream_id{}, "returned",
                       false);
  if (!one.unmap() || device.unmap(range.at(step), 2 * step))
    return broken("unmap removes a mapping, and refuses to remove it twice"_rule, 1, 2);
  if (!one.map(range.at(0), 2 * step)) return broken("unmapped memory can be mapped elsewhere"_rule, 0, 2);
  if (!one.destroy() || !one.unmap()) return broken("destroyed memory stays mapped until unmap"_rule, 0, 2);
  if (!two.unmap() || !two.destroy()) return broken("destroy accepts created memory"_rule, 3, 1);
  if (!range.unreserve()) return broken("unreserve accepts a reserved range"_rule, 0, 4);
  return {};
}

/// Creates, maps and destroys memory until a device that leaks destroyed memory has none left.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result memory_often(D& device, page_kind kind, std::size_t at_once) {
  const std::size_t step = device.page_size(kind);
  std::size_t bytes = (std::max)((std::min)(at_once, device.capacity()) / step * step, step);
  trial_range<D> range(device, bytes, step);
  std::size_t enough = 1;
  for (std::size_t i = 0; i < enough; ++i) {
    const auto broken = [&](rule law) {
      return broken_rule(law, "kind", kind, "bytes", bytes, "times", i, "capacity", device.capacity());
    };
    trial_memory<D> memory(device);
    while (!memory.create(bytes, kind)) {
      if (i != 0) return broken("destroyed memory can be created again"_rule);
      if (bytes == step) return {};  // without memory
      bytes = bytes / 2 / step * step;
    }
    enough = 2 * std::min<std::size_t>(device.capacity() / bytes, 64) + 1;
    if (!memory.map(range.at(0), bytes)) return broken("map succeeds at free addresses of a range"_rule);
    // Tries both orders, because a device may leak memory in only one of them.
    const bool unmaps_first = i % 2 == 0;
    if (unmaps_first && !memory.unmap())
      return broken("unmap removes a mapping, and refuses to remove it twice"_rule);
    if (!memory.destroy()) return broken("destroy accepts created memory"_rule);
    if (!unmaps_first && !memory.unmap()) return broken("destroyed memory stays mapped until unmap"_rule);
  }
  return {};
}

/// Checks a virtual_memory_provider with each page kind that the device has.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result virtual_memory(D& device, std::size_t at_once = trial_bytes) {
  for (const page_kind kind : trial_kinds) {
    const std::size_t step = device.page_size(kind);
    if (!std::has_single_bit(step) || step % kind.granularity() != 0)
      return broken_rule("the page size is a power of two and a multiple of the kind's granularity"_rule,
                         "kind", kind, "page size", step, "granularity of the kind", kind.granularity());
    if (kind == page_kind::normal) {
      trial_memory<D> memory(device);
      if (!memory.create(step, kind))
        return broken_rule("create succeeds for normal pages below the capacity"_rule, "bytes", step,
                           "capacity", device.capacity());
    }
    if (const provider_check_result found = addresses(device, kind); !found) return found;
    if (const provider_check_result found = impossible_memory(device, kind); !found) return found;
    if (const provider_check_result found = mapped_memory(device, kind); !found) return found;
    if (const provider_check_result found = memory_often(device, kind, at_once); !found) return found;
    if (const std::size_t now = device.page_size(kind); now != step)
      return broken_rule("the page size is constant"_rule, "kind", kind, "at first", step, "now", now);
  }
  return {};
}

/// Reserves large ranges, which take no memory, often.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result address_amounts(D& device) {
  provider_check_result found;
  const std::size_t step = device.page_size(page_kind::normal);
  std::size_t bytes = (std::max)((std::min)(device.capacity(), 1024_GiB) / step * step, step);
  void* first = device.reserve(bytes, step);
  while (first == nullptr && bytes > step) {
    bytes = (std::max)(bytes / 2 / step * step, step);
    first = device.reserve(bytes, step);
  }
  if (first == nullptr) return broken_rule("reserve succeeds"_rule, "bytes", bytes, "alignment", step);
  {
    trial_range<D> second(device, bytes, step);
    trial_memory<D> page(device);
    found.must_hold(page.create(step, page_kind::normal), "a reserved range takes no memory"_rule, "reserved",
                    second.number() != 0 ? 2 * bytes : bytes, "created", step, "capacity", device.capacity());
    found.must_hold(second.number() == 0 || second.number() % step == 0,
                    "a range begins at a multiple of the alignment"_rule, "address", second.at(0),
                    "alignment", step);
  }
  for (std::size_t i = 0; i < 64 && found; ++i) {
    found.must_hold(device.unreserve(first, bytes), "unreserve accepts a reserved range"_rule, "address",
                    first, "bytes", bytes);
    if (!found) return found;
    first = device.reserve(bytes, step);
    found.must_hold(first != nullptr, "unreserved addresses can be reserved again"_rule, "bytes", bytes,
                    "times", i + 1);
  }
  if (first != nullptr)
    found.must_hold(device.unreserve(first, bytes), "unreserve accepts a reserved range"_rule, "address",
                    first, "bytes", bytes);
  return found;
}

/// Checks the capacity with physical memory that takes three quarters of it.
template <provider::virtual_memory_provider D>
[[nodiscard]] provider_check_result mapping_amounts(D& device, const provider_trial& limits) {
  provider_check_result found = address_amounts(device);
  if (const char* const why = why_not_filled(device, limits)) {
    found.skip("the amount of memory", why);
    return found;
  }
  // Large pieces show on a huge device which order of unmap and destroy leaks.
  if (found) found.add(memory_often(device, page_kind::normal, device.capacity() / 8));
  using physical = typename D::physical;
  const auto create = [&](std::size_t bytes, physical& made) {
    return device.create(bytes, page_kind::normal, made);
  };
  const auto destroy = [&](const physical& made, std::size_t) { return device.destroy(made); };
  // Segments and physical memory are of one capacity.
  const std::size_t step = device.granularity(), page = device.page_size(page_kind::normal);
  const std::size_t half = said_to_be_left(device) / 2 / step * step;
  if (void* const p = half != 0 ? device.acquire(half) : nullptr) {
    const std::size_t beyond = align_up(device.capacity() - half, page) + page;
    physical made{};
    const bool created = device.create(beyond, page_kind::normal, made);
    found.must_hold(!created, "create refuses more than the capacity"_rule, "bytes", beyond, "in segments",
                    half, "capacity", device.capacity());
    if (created) (void)device.destroy(made);
    found.must_hold(device.release(p, half), "release accepts an acquired segment"_rule, "address", p,
                    "bytes", half);
  }
  if (found)
    found.add(amounts<physical>(
        device, device.page_size(page_kind::normal), limits, create, destroy,
        {"three quarters of the memory can be created"_rule, "create refuses more than the capacity"_rule,
         "destroyed memory can be created again"_rule}));
  return found;
}

/// The check_result of a broken rule about two processes.
template <provider::sharing_provider D, provider::sharing_provider Other>
[[nodiscard]] provider_check_result broken_between(const D& exporter, const Other& importer,
                                                   std::size_t bytes, rule law) {
  return broken_rule(law, "bytes", bytes, "exporter", static_cast<std::uint32_t>(exporter.process()),
                     "importer", static_cast<std::uint32_t>(importer.process()));
}

/// Exports memory to a listed process, which maps it and keeps it after the exporter has destroyed its
/// handle.
template <provider::sharing_provider D, provider::sharing_provider Other>
[[nodiscard]] provider_check_result listed_importers(D& exporter, Other& importer, std::size_t bytes) {
  const std::size_t step = importer.page_size(page_kind::normal);
  trial_range<Other> range(importer, align_up(bytes, step), step);
  trial_memory<D> memory(exporter), at_home(exporter);
  trial_memory<Other> shared(importer), refused(importer);
  typename D::shareable name{}, again{};
  const auto broken = [&](rule law) { return broken_between(exporter, importer, bytes, law); };
  if (!memory.create(bytes, page_kind::normal))
    return broken("create succeeds for normal pages below the capacity"_rule);
  if (!exporter.export_memory(memory.name, provider::importers::listed, name))
    return broken("created memory can be exported"_rule);
  if (exporter.export_memory(memory.name, provider::importers::listed, again))
    return broken("export_memory refuses exported memory"_rule);
  if (refused.import_from(name)) return broken("import_memory refuses a process that is not listed"_rule);
  if (importer.allow(name, importer.process()))
    return broken("allow refuses every process except the exporter"_rule);
  if (!exporter.allow(name, importer.process())) return broken("the exporter can list a process"_rule);
  if (!shared.import_from(name)) return broken("a listed process can import"_rule);
  if (at_home.import_from(name)) return broken("import_memory refuses memory of the same process"_rule);
  if (importer.export_memory(shared.name, provider::importers::any, again))
    return broken("export_memory refuses imported memory"_rule);
  if (!memory.destroy()) return broken("exported memory can be destroyed"_rule);
  if (refused.import_from(name))
    return broken("import_memory refuses memory that the exporter destroyed"_rule);
  if (!shared.map(range.at(0), bytes) || !shared.grant() || !shared.unmap() || !shared.destroy())
    return broken("imported memory can be used after the exporter destroyed its handle"_rule);
  return {};
}

/// Exports memory to any process.
template <provider::sharing_provider D, provider::sharing_provider Other>
[[nodiscard]] provider_check_result any_importer(D& exporter, Other& importer, std::size_t bytes) {
  trial_memory<D> memory(exporter);
  trial_memory<Other> shared(importer);
  typename D::shareable name{};
  const auto broken = [&](rule law) { return broken_between(exporter, importer, bytes, law); };
  if (!memory.create(bytes, page_kind::normal))
    return broken("create succeeds for normal pages below the capacity"_rule);
  if (!exporter.export_memory(memory.name, provider::importers::any, name))
    return broken("created memory can be exported"_rule);
  if (exporter.allow(name, importer.process()))
    return broken("allow refuses memory that any process may import"_rule);
  if (!shared.import_from(name)) return broken("any process can import memory that is exported to any"_rule);
  if (!shared.destroy() || !memory.destroy()) return broken("each process can destroy its own handle"_rule);
  return {};
}

/// Exports memory of one process to another, often.
template <provider::sharing_provider D, provider::sharing_provider Other>
[[nodiscard]] provider_check_result shared_memory(D& exporter, Other& importer, std::size_t at_once) {
  if (exporter.process() == importer.process())
    return broken_rule("processes have different numbers"_rule, "exporter",
                       static_cast<std::uint32_t>(exporter.process()), "importer",
                       static_cast<std::uint32_t>(importer.process()));
  const std::size_t step = exporter.page_size(page_kind::normal);
  const std::size_t bytes = (std::max)((std::min)(at_once, exporter.capacity()) / step * step, step);
  const std::size_t enough = std::min<std::size_t>(exporter.capacity() / bytes, 64) + 1;
  for (std::size_t i = 0; i < enough; ++i) {
    provider_check_result found = listed_importers(exporter, importer, bytes);
    if (found) found = any_importer(exporter, importer, bytes);
    if (!found)
      return i == 0 ? found
                    : broken_rule("memory is freed after all processes have destroyed it"_rule, "bytes",
                                  bytes, "times", i, "capacity", exporter.capacity());
  }
  return {};
}

}  // namespace tessera::law::detail
