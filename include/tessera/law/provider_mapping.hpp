// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/law/provider_memory.hpp>

/// The laws of virtual memory and of its sharing between processes.

namespace tessera::inline v0_1::law::detail {

/// A reserved range of addresses; the destructor gives it back.
template <provider::virtual_memory_provider D>
class trial_range {
 public:
  trial_range(D& device, std::size_t bytes, std::size_t to) noexcept
      : device_(device), place_(segment_at(device.reserve(bytes, to), bytes)) {}
  trial_range& operator=(trial_range&&) = delete;
  ~trial_range() {
    if (place_.begin != 0) (void)unreserve();
  }

  [[nodiscard]] trial_segment place() const noexcept { return place_; }
  [[nodiscard]] void* at(std::size_t offset) const noexcept {
    return reinterpret_cast<void*>(place_.begin + offset);
  }
  [[nodiscard]] bool unreserve() noexcept {
    const bool done = device_.unreserve(place_.at(), place_.bytes);
    if (done) place_.begin = 0;
    return done;
  }

 private:
  D& device_;
  trial_segment place_;
};

/// Physical memory that is created or imported; the destructor unmaps and destroys it.
template <provider::virtual_memory_provider D>
class trial_memory {
 public:
  explicit trial_memory(D& device) noexcept : device_(device) {}
  trial_memory& operator=(trial_memory&&) = delete;
  ~trial_memory() {
    if (mapped_.begin != 0) (void)unmap();
    if (held_) (void)device_.destroy(name);
  }

  [[nodiscard]] bool create(std::size_t bytes, page_kind kind) noexcept {
    return held_ = device_.create(bytes, kind, name);
  }
  template <typename Shareable>
  [[nodiscard]] bool import_from(const Shareable& exported) noexcept {
    return held_ = device_.import_memory(exported, name);
  }
  [[nodiscard]] bool destroy() noexcept {
    const bool done = device_.destroy(name);
    if (done) held_ = false;
    return done;
  }
  [[nodiscard]] bool map(void* p, std::size_t bytes) noexcept {
    const bool done = device_.map(p, bytes, name);
    if (done) mapped_ = segment_at(p, bytes);
    return done;
  }
  [[nodiscard]] bool grant() noexcept { return device_.grant(mapped_.at(), mapped_.bytes); }
  [[nodiscard]] bool unmap() noexcept {
    const bool done = device_.unmap(mapped_.at(), mapped_.bytes);
    if (done) mapped_.begin = 0;
    return done;
  }

  typename D::physical name{};

 private:
  D& device_;
  bool held_ = false;
  trial_segment mapped_;
};

/// Reserves ranges without using them.
template <provider::virtual_memory_provider D>
void addresses(provider_check_result& found, D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind), segment = device.granularity();
  trial_range<D> first(device, 4 * step, step), second(device, step, 4 * step);
  for (const trial_range<D>* const range : {&first, &second}) {
    const std::size_t to = range == &first ? step : 4 * step;
    if (range->place().begin == 0)
      return found.fail(rules::reserve_succeeds, range->place(), "alignment", to);
    if (range->place().begin % to != 0)
      return found.fail(rules::ranges_are_aligned, range->place(), "alignment", to);
  }
  const trial_segment taken = acquire(device, segment), one = first.place(), two = second.place();
  const bool apart = !one.overlaps(two) && !one.overlaps(taken) && !two.overlaps(taken);
  if (taken.begin != 0) (void)device.release(taken.at(), segment);
  if (!apart) return found.fail(rules::ranges_do_not_overlap, one, two, taken);
  if (!first.unreserve()) return found.fail(rules::unreserve_succeeds, one);
  if (device.unreserve(one.at(), one.bytes)) return found.fail(rules::unreserve_refuses_unreserved, one);
  if (!second.unreserve()) return found.fail(rules::unreserve_succeeds, two);
  // After one page, an address is aligned to more than a page only if the provider aligns it.
  const trial_range<D> page(device, step, step);
  for (const std::size_t pages : {std::size_t{4}, std::size_t{64}, std::size_t{512}}) {
    const trial_range<D> aligned(device, step, pages * step);
    if (aligned.place().begin % (pages * step) != 0)
      return found.fail(rules::ranges_are_aligned, aligned.place(), "alignment", pages * step);
  }
  const trial_range<D> beyond(device, unlimited / 2 / step * step, step);
  if (beyond.place().begin != 0) return found.fail(rules::reserve_keeps_address_space, beyond.place());
}

/// Tries impossible sizes, and calls the device has no memory of this kind.
template <provider::virtual_memory_provider D>
void impossible_memory(provider_check_result& found, D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, step, step);
  trial_memory<D> none(device), page(device), pages(device);
  const trial_segment place = range.place();
  if (place.begin == 0) return found.fail(rules::reserve_succeeds, place, "alignment", step);
  if (none.destroy() || none.map(place.at(), step))
    return found.fail(rules::empty_handles_are_refused, place);
  for (const std::size_t bytes : {std::size_t{0}, step + step / 2}) {
    const bool possible = bytes != 0 && bytes % step == 0;  // a size is valid if pages have one byte
    if (!possible && none.create(bytes, kind))
      return found.fail(rules::create_refuses_parts, kind, "bytes", bytes, "page size", step);
  }
  if (!page.create(step, kind)) return;
  for (const std::size_t bytes : {device.capacity() / step * step, unlimited / step * step}) {
    if (none.create(bytes, kind))
      return found.fail(rules::create_keeps_capacity, kind, "bytes", bytes, "held already", step, "capacity",
                        device.capacity());
  }
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (none.name != typename D::physical{})
      return found.fail(rules::refused_create_keeps_handle, kind, "capacity", device.capacity());
  }
  const bool has_pages = pages.create(2 * step, kind);
  for (const std::uintptr_t at : {place.begin - step, place.begin, place.begin + step}) {
    if (at != place.begin && page.map(trial_segment{at, step}.at(), step))
      return found.fail(rules::map_refuses_unreserved, trial_segment{at, step}, "the range", place.at(),
                        "its bytes", step);
    if (has_pages && pages.map(trial_segment{at, step}.at(), 2 * step))
      return found.fail(rules::map_refuses_unreserved, trial_segment{at, 2 * step}, "the range", place.at(),
                        "its bytes", step);
  }
  if (!range.unreserve()) return found.fail(rules::unreserve_succeeds, place);
  if (page.map(place.at(), step)) return found.fail(rules::map_refuses_unreserved, place);
}

/// Destroys memory twice. A driver may crash, or destroy memory that got the same handle.
template <provider::virtual_memory_provider D>
void wrong_destroys(provider_check_result& found, D& device) {
  const std::size_t step = device.page_size(page_kind::normal);
  typename D::physical made{};
  if (!device.create(step, page_kind::normal, made)) return;
  if (!device.destroy(made)) return found.fail(rules::destroy_succeeds, "bytes", step);
  if (device.destroy(made)) return found.fail(rules::destroy_refuses_destroyed, "bytes", step);
}

/// Maps two memories side by side, at valid and invalid addresses, and unmaps them. The device may refuse to
/// create either.
template <provider::virtual_memory_provider D>
void mapped_memory(provider_check_result& found, D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> gone(device), one(device), two(device);
  const std::uintptr_t begin = range.place().begin;
  if (begin == 0) return found.fail(rules::reserve_succeeds, "bytes", 4 * step, "alignment", step);
  const bool has_gone = gone.create(step, kind);
  if (!one.create(2 * step, kind) || !two.create(step, kind)) return;
  const auto broken = [&](rule law, std::size_t page, std::size_t pages) {
    found.fail(law, kind, trial_segment{begin + page * step, pages * step}, "page size", step);
  };
  const std::size_t capacity = device.capacity(), granularity = device.granularity();
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (one.name == typename D::physical{} || two.name == typename D::physical{})
      return broken(rules::handles_are_not_empty, 0, 2);
    if (one.name == two.name) return broken(rules::handles_are_unique, 0, 2);
    trial_memory<D> next(device);
    if (has_gone && !gone.destroy()) return broken(rules::destroy_succeeds, 0, 1);
    if (next.create(step, kind) && (next.name == one.name || next.name == two.name))
      return broken(rules::handles_are_unique, 0, 1);
  }
  if (step > 1 && one.map(range.at(step / 2), 2 * step))
    return found.fail(rules::map_refuses_inside_page, kind, "address", range.at(step / 2), "page size", step);
  if (one.map(range.at(0), 4 * step)) return broken(rules::map_refuses_other_size, 0, 4);
  if (!one.map(range.at(step), 2 * step)) return broken(rules::map_succeeds, 1, 2);
  if (two.map(range.at(step), step) || two.map(range.at(2 * step), step))
    return broken(rules::map_refuses_mapped, 1, 2);
  if (!two.map(range.at(3 * step), step)) return broken(rules::refused_map_changes_nothing, 3, 1);
  if (!one.grant() || !two.grant()) return broken(rules::grant_succeeds, 1, 3);
  if (device.capacity() != capacity || device.granularity() != granularity)
    return found.fail(rules::sizes_are_constant, "capacity at first", capacity, "while memory is mapped",
                      device.capacity(), "granularity at first", granularity, "now", device.granularity());
  if (device.grant(range.at(0), step)) return broken(rules::grant_refuses_unmapped, 0, 1);
  if (range.unreserve()) return broken(rules::unreserve_refuses_mapped, 0, 4);
  if (device.unmap(range.at(0), step)) return broken(rules::unmap_refuses_unmapped, 0, 1);
  if (D::unmap_wants_size && device.unmap(range.at(step), step))
    return broken(rules::unmap_refuses_part, 1, 1);
  if (!device.synchronize(stream_id{}))
    return found.fail(rules::synchronize_waits, stream_id{}, "returned", false);
  if (!one.unmap() || device.unmap(range.at(step), 2 * step)) return broken(rules::unmap_succeeds_once, 1, 2);
  if (!one.map(range.at(0), 2 * step)) return broken(rules::unmapped_memory_can_be_mapped, 0, 2);
  if (!one.destroy() || !one.unmap()) return broken(rules::destroyed_memory_stays_mapped, 0, 2);
  if (!two.unmap() || !two.destroy()) return broken(rules::destroy_succeeds, 3, 1);
  if (!range.unreserve()) return broken(rules::unreserve_succeeds, 0, 4);
}

/// Creates, maps and destroys memory until a device that leaks destroyed memory has none left.
template <provider::virtual_memory_provider D>
void memory_often(provider_check_result& found, D& device, page_kind kind, std::size_t at_once) {
  const std::size_t step = device.page_size(kind);
  std::size_t bytes = whole_steps((std::min)(at_once, device.capacity()), step);
  trial_range<D> range(device, bytes, step);
  if (range.place().begin == 0) return found.fail(rules::reserve_succeeds, "bytes", bytes, "alignment", step);
  const bool counts = why_not_filled(device, provider_trial{}) == nullptr;
  std::size_t enough = 1;
  for (std::size_t i = 0; i < enough; ++i) {
    const auto broken = [&](rule law) {
      found.fail(law, kind, "bytes", bytes, "times", i, "capacity", device.capacity());
    };
    trial_memory<D> memory(device);
    while (!memory.create(bytes, kind)) {
      if (i != 0) return broken(rules::destroyed_memory_can_be_created);
      if (bytes == step) return;  // without memory
      bytes = bytes / 2 / step * step;
    }
    enough = 2 * std::min<std::size_t>(device.capacity() / bytes, 64) + 1;
    if (!memory.map(range.at(0), bytes)) return broken(rules::map_succeeds);
    // Tries both orders, because a device may leak memory in only one of them.
    const bool unmaps_first = i % 2 == 0;
    if (unmaps_first && !memory.unmap()) return broken(rules::unmap_succeeds_once);
    // A budget of an adaptor may count handles.
    const std::size_t before = said_to_be_left(innermost(device));
    if (!memory.destroy()) return broken(rules::destroy_succeeds);
    const std::size_t now = said_to_be_left(innermost(device));
    if (!unmaps_first && counts && now >= before + bytes)
      return found.fail(rules::destroyed_memory_stays_mapped, kind, "bytes", bytes, "available before",
                        before, "while still mapped", now);
    if (!unmaps_first && !memory.unmap()) return broken(rules::destroyed_memory_stays_mapped);
  }
}

/// Checks a virtual_memory_provider with each page kind that the device has.
template <provider::virtual_memory_provider D>
void virtual_memory(provider_check_result& found, D& device, std::size_t at_once = trial_bytes) {
  for (const page_kind kind : trial_kinds) {
    const std::size_t step = device.page_size(kind);
    if (const std::size_t now = device.page_size(kind); now != step)
      return found.fail(rules::page_size_is_constant, kind, "at first", step, "now", now);
    if (!std::has_single_bit(step) || step % kind.granularity() != 0)
      return found.fail(rules::page_size_is_valid, kind, "page size", step, "granularity of the kind",
                        kind.granularity());
    if (kind == page_kind::normal) {
      trial_memory<D> memory(device);
      if (!memory.create(step, kind))
        return found.fail(rules::create_succeeds, "bytes", step, "capacity", device.capacity());
    }
    addresses(found, device, kind);
    if (found) impossible_memory(found, device, kind);
    if (found) mapped_memory(found, device, kind);
    if (found) memory_often(found, device, kind, at_once);
    if (!found) return;
    if (const std::size_t now = device.page_size(kind); now != step)
      return found.fail(rules::page_size_is_constant, kind, "at first", step, "now", now);
  }
}

/// Reserves large ranges, which take no memory, often.
template <provider::virtual_memory_provider D>
void address_amounts(provider_check_result& found, D& device) {
  const std::size_t step = device.page_size(page_kind::normal);
  std::size_t bytes = whole_steps((std::min)(device.capacity(), 1024_GiB), step);
  void* first = nullptr;
  while ((first = device.reserve(bytes, step)) == nullptr && bytes > step)
    bytes = whole_steps(bytes / 2, step);
  if (first == nullptr) return found.fail(rules::reserve_succeeds, "bytes", bytes, "alignment", step);
  {
    trial_range<D> second(device, bytes, step);
    trial_memory<D> page(device);
    found.must_hold(page.create(step, page_kind::normal), rules::ranges_take_no_memory, "reserved",
                    second.place().begin != 0 ? 2 * bytes : bytes, "created", step, "capacity",
                    device.capacity());
    found.must_hold(second.place().begin % step == 0, rules::ranges_are_aligned, second.place(), "alignment",
                    step);
  }
  for (std::size_t i = 0; i < 64 && found; ++i) {
    found.must_hold(device.unreserve(first, bytes), rules::unreserve_succeeds, segment_at(first, bytes));
    if (!found) return;
    first = device.reserve(bytes, step);
    found.must_hold(first != nullptr, rules::unreserved_addresses_can_be_reserved, "bytes", bytes, "times",
                    i + 1);
  }
  if (first != nullptr)
    found.must_hold(device.unreserve(first, bytes), rules::unreserve_succeeds, segment_at(first, bytes));
}

/// Checks the capacity with physical memory that takes three quarters of it.
template <provider::virtual_memory_provider D>
void mapping_amounts(provider_check_result& found, D& device, const provider_trial& limits) {
  address_amounts(found, device);
  if (const char* const why = why_not_filled(device, limits)) return found.skip("the amount of memory", why);
  // Large pieces show on a huge device which order of unmap and destroy leaks.
  if (found) memory_often(found, device, page_kind::normal, device.capacity() / 8);
  using physical = typename D::physical;
  const auto create = [&](std::size_t bytes, physical& made) {
    return device.create(bytes, page_kind::normal, made);
  };
  const auto destroy = [&](const physical& made, std::size_t) { return device.destroy(made); };
  // Segments and physical memory are of one capacity.
  const std::size_t step = device.granularity(), page = device.page_size(page_kind::normal);
  const std::size_t half = said_to_be_left(device) / 2 / step * step;
  const trial_segment held = segment_at(half != 0 ? device.acquire(half) : nullptr, half);
  if (held.begin != 0) {
    const std::size_t beyond = align_up(device.capacity() - half, page) + page;
    trial_memory<D> more(device);
    found.must_hold(!more.create(beyond, page_kind::normal), rules::create_keeps_capacity, "bytes", beyond,
                    "in segments", half, "capacity", device.capacity());
  }
  require_release(found, device, held);
  if (found)
    amounts<physical>(found, device, device.page_size(page_kind::normal), limits, create, destroy,
                      {rules::most_memory_can_be_created, rules::create_keeps_capacity,
                       rules::destroyed_memory_can_be_created});
}

/// Keeps a broken rule about two processes.
template <provider::sharing_provider D, provider::sharing_provider Other>
void fail_between(provider_check_result& found, const D& exporter, const Other& importer, std::size_t bytes,
                  rule law) noexcept {
  found.fail(law, "bytes", bytes, "exporter", static_cast<std::uint32_t>(exporter.process()), "importer",
             static_cast<std::uint32_t>(importer.process()));
}

/// Exports memory to a listed process, which maps it and keeps it after the exporter has destroyed its
/// handle.
template <provider::sharing_provider D, provider::sharing_provider Other>
void listed_importers(provider_check_result& found, D& exporter, Other& importer, std::size_t bytes) {
  const std::size_t step = importer.page_size(page_kind::normal);
  trial_range<Other> range(importer, align_up(bytes, step), step);
  trial_memory<D> memory(exporter), at_home(exporter);
  trial_memory<Other> shared(importer), refused(importer);
  typename D::shareable name{}, again{};
  const auto broken = [&](rule law) { fail_between(found, exporter, importer, bytes, law); };
  if (!memory.create(bytes, page_kind::normal)) return broken(rules::create_succeeds);
  if (!exporter.export_memory(memory.name, provider::importers::listed, name))
    return broken(rules::export_succeeds);
  if (exporter.export_memory(memory.name, provider::importers::listed, again))
    return broken(rules::export_refuses_exported);
  if (refused.import_from(name)) return broken(rules::import_refuses_unlisted);
  if (importer.allow(name, importer.process())) return broken(rules::allow_refuses_others);
  if (!exporter.allow(name, importer.process())) return broken(rules::allow_succeeds);
  if (!shared.import_from(name)) return broken(rules::listed_process_imports);
  if (refused.import_from(name)) return broken(rules::import_refuses_imported);
  if (at_home.import_from(name)) return broken(rules::import_refuses_own);
  if (importer.export_memory(shared.name, provider::importers::any, again))
    return broken(rules::export_refuses_imported);
  if (!memory.destroy()) return broken(rules::exported_memory_can_be_destroyed);
  if (refused.import_from(name)) return broken(rules::import_refuses_destroyed);
  if (!shared.map(range.at(0), bytes) || !shared.grant() || !shared.unmap() || !shared.destroy())
    return broken(rules::imports_stay);
}

/// Exports memory to any process.
template <provider::sharing_provider D, provider::sharing_provider Other>
void any_importer(provider_check_result& found, D& exporter, Other& importer, std::size_t bytes) {
  trial_memory<D> memory(exporter);
  trial_memory<Other> shared(importer);
  typename D::shareable name{};
  const auto broken = [&](rule law) { fail_between(found, exporter, importer, bytes, law); };
  if (!memory.create(bytes, page_kind::normal)) return broken(rules::create_succeeds);
  if (!exporter.export_memory(memory.name, provider::importers::any, name))
    return broken(rules::export_succeeds);
  if (exporter.allow(name, importer.process())) return broken(rules::allow_refuses_any);
  if (!shared.import_from(name)) return broken(rules::any_process_imports);
  if (!shared.destroy() || !memory.destroy()) return broken(rules::handles_end_apart);
}

/// Exports memory of one process to another, often.
template <provider::sharing_provider D, provider::sharing_provider Other>
void shared_memory(provider_check_result& found, D& exporter, Other& importer, std::size_t at_once) {
  const std::size_t step = exporter.page_size(page_kind::normal);
  const std::size_t bytes = whole_steps((std::min)(at_once, exporter.capacity()), step);
  if (exporter.process() == importer.process())
    return fail_between(found, exporter, importer, bytes, rules::processes_differ);
  const std::size_t enough = std::min<std::size_t>(exporter.capacity() / bytes, 64) + 1;
  for (std::size_t i = 0; i < enough; ++i) {
    provider_check_result now;
    listed_importers(now, exporter, importer, bytes);
    if (now) any_importer(now, exporter, importer, bytes);
    if (!now && i == 0) return found.add(now);
    if (!now) return fail_between(found, exporter, importer, bytes, rules::shared_memory_is_freed);
  }
}

}  // namespace tessera::inline v0_1::law::detail
