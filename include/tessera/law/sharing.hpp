// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/law/verdict.hpp>
#include <tessera/law/virtual_memory.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// Exports memory to a listed process, which maps it and outlives the exporter's handle.
template <sharing_provider D>
[[nodiscard]] verdict listed_importers(D& exporter, D& importer, std::size_t bytes) {
  const std::size_t step = importer.step(normal_pages);
  trial_range<D> range(importer, align_up(bytes, step), step);
  trial_memory<D> memory(exporter), shared(importer), refused(importer), at_home(exporter);
  typename D::shareable name{}, again{};
  if (!memory.create(bytes, normal_pages)) return {"create gives normal pages while there is capacity"};
  if (!exporter.export_memory(memory.name, importers::listed, name))
    return {"created memory can be exported"};
  if (exporter.export_memory(memory.name, importers::listed, again)) return {"memory is exported once"};
  if (refused.import_from(name)) return {"who is not listed cannot import"};
  if (importer.allow(name, importer.process())) return {"the exporter alone lists importers"};
  if (!exporter.allow(name, importer.process())) return {"the exporter can list a process"};
  if (!shared.import_from(name)) return {"who is listed can import"};
  if (at_home.import_from(name)) return {"memory is not imported where it was exported"};
  if (importer.export_memory(shared.name, importers::any, again)) return {"imported memory is not exported"};
  if (!memory.destroy()) return {"exported memory can be destroyed"};
  if (refused.import_from(name)) return {"what the exporter destroyed is not imported"};
  if (!shared.map(range.at(0), bytes) || !shared.grant() || !shared.unmap() || !shared.destroy())
    return {"imported memory is mapped, and goes, as any other, whatever the exporter did"};
  return {};
}

/// Exports memory to whoever has its name.
template <sharing_provider D>
[[nodiscard]] verdict any_importer(D& exporter, D& importer, std::size_t bytes) {
  trial_memory<D> memory(exporter), shared(importer);
  typename D::shareable name{};
  if (!memory.create(bytes, normal_pages)) return {"create gives normal pages while there is capacity"};
  if (!exporter.export_memory(memory.name, importers::any, name)) return {"created memory can be exported"};
  if (exporter.allow(name, importer.process())) return {"importers are not listed for what any may import"};
  if (!shared.import_from(name)) return {"any process can import what is exported to any"};
  if (!shared.destroy() || !memory.destroy()) return {"each process destroys its own"};
  return {};
}

/// What a sharing_provider must mean, tried between two processes, on devices of which nothing else is in use.
///
/// The trial holds at most a page, or `at_once` bytes. It finds devices that forget what was shared where the capacity is
/// at most 64 times as much.
///
///     tessera::simulated_device exporter;
///     tessera::simulated_device importer = exporter.another_process();
///     if (const auto found = tessera::law::sharing(exporter, importer); !found) std::puts(found.broken);
///
///   Requires:  providers in different processes, which may import each other's memory
template <sharing_provider D>
[[nodiscard]] verdict sharing(D& exporter, D& importer, std::size_t at_once = trial_bytes) {
  if (exporter.process() == importer.process()) return {"each process has a number of its own"};
  const std::size_t step = exporter.step(normal_pages);
  const std::size_t bytes = (std::max)((std::min)(at_once, exporter.capacity()) / step * step, step);
  const std::size_t enough = std::min<std::size_t>(exporter.capacity() / bytes, 64) + 1;
  for (std::size_t i = 0; i < enough; ++i) {
    verdict found = listed_importers(exporter, importer, bytes);
    if (found) found = any_importer(exporter, importer, bytes);
    if (!found) return i == 0 ? found : verdict{"memory goes once all processes have let go of it"};
  }
  return {};
}

}  // namespace tessera::law
