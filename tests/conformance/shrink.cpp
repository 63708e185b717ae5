// SPDX-License-Identifier: Apache-2.0
#include "shrink.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include <tessera/trace/csv.hpp>
#include "tessera_replay/files.hpp"

namespace conformance {

using tessera::stream_id;
using tessera::trace::event;
using kind = operation::kind;

namespace {

/// Tries programs until it has run too many operations.
class trial {
 public:
  trial(const composition& of, std::string what, std::size_t audit_every, std::size_t most_run)
      : of_(&of), what_(std::move(what)), audit_every_(audit_every), left_(most_run) {}

  /// Whether a program breaks the same rule. If so, `best` becomes its part up to that operation.
  bool takes(program tried, program& best) {
    if (tried.size() > left_) return false;
    left_ -= tried.size();
    const std::unique_ptr<subject> fresh = of_->make();
    const fault found = first_fault(*fresh, of_->kept, tried, audit_every_);
    if (found.what != what_) return false;
    tried.resize(std::min(tried.size(), found.at + 1));
    best = std::move(tried);
    return true;
  }
  [[nodiscard]] bool is_over() const { return left_ == 0; }

 private:
  const composition* of_;
  std::string what_;
  std::size_t audit_every_;
  std::size_t left_;
};

/// Removes as many operations as possible, in ever smaller parts.
bool leave_out(trial& with, program& best) {
  bool better = false;
  for (std::size_t piece = best.size() / 2; piece > 0;) {
    bool any = false;
    for (std::size_t at = 0; at < best.size();) {
      program less;
      less.reserve(best.size());
      less.insert(less.end(), best.begin(), best.begin() + static_cast<std::ptrdiff_t>(at));
      const std::size_t behind = std::min(best.size(), at + piece);
      less.insert(less.end(), best.begin() + static_cast<std::ptrdiff_t>(behind), best.end());
      if (with.takes(std::move(less), best)) {
        any = true;
      } else {
        at += piece;
      }
    }
    better = better || any;
    if (!any || piece > 1) piece = piece > best.size() ? best.size() / 2 : piece / 2;
  }
  return better;
}

/// Whether it frees or makes an allocation.
bool concerns(const operation& o, std::uint64_t id) {
  return o.id == id && (o.what == kind::allocate || o.what == kind::free || o.what == kind::record);
}

/// Removes an allocation with all operations on it, or moves these operations to another allocation.
bool leave_out_allocations(trial& with, program& best) {
  const std::size_t before = best.size();
  for (std::size_t at = 0; at < best.size(); ++at) {
    if (best[at].what != kind::allocate) continue;
    const std::uint64_t id = best[at].id;
    program less;
    std::copy_if(best.begin(), best.end(), std::back_inserter(less),
                 [id](const operation& o) { return !concerns(o, id); });
    bool done = with.takes(std::move(less), best);
    for (std::size_t other = 0; !done && best.size() < 64 && other < best.size(); ++other) {
      if (other == at || best[other].what != kind::allocate) continue;
      program merged = best;
      for (operation& o : merged) {
        if (concerns(o, id)) o.id = best[other].id;
      }
      merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(at));
      done = with.takes(std::move(merged), best);
    }
    if (done) at = at > 0 ? at - 1 : 0;
  }
  return best.size() < before;
}

/// Sets the size of an allocation in all its operations.
program resized(program all, std::uint64_t id, std::size_t bytes) {
  for (operation& o : all) {
    if (o.id == id && o.bytes != 0) o.bytes = bytes;
  }
  return all;
}

/// Makes each operation as simple as possible.
bool simplify(trial& with, program& best) {
  const program before = best;
  for (std::size_t at = 0; at < best.size(); ++at) {
    const auto plainer = [&](auto change) {
      program tried = best;
      change(tried[at]);
      if (tried[at] != best[at]) (void)with.takes(std::move(tried), best);
      return at < best.size();
    };
    if (!plainer([](operation& o) { o.by_handle = false; })) break;
    if (!plainer([](operation& o) { o.sized = false, o.bytes = o.what == kind::free ? 0 : o.bytes; })) break;
    if (!plainer([](operation& o) { o.amount = o.what == kind::trim ? 0 : o.amount; })) break;
    for (const std::uint64_t stream : {0u, 1u}) {
      if (best[at].stream.handle <= stream) break;
      if (!plainer([=](operation& o) { o.stream = stream_id{stream}; })) break;
    }
    if (at >= best.size()) break;
    if (best[at].what != kind::allocate) continue;
    const std::uint64_t id = best[at].id;
    for (std::size_t bytes : {std::size_t{1}, std::size_t{512}, std::size_t{4096}, std::size_t{1} << 20}) {
      if (bytes >= best[at].bytes || with.takes(resized(best, id, bytes), best)) break;
    }
    while (at < best.size() && best[at].bytes > 1 &&
           with.takes(resized(best, id, best[at].bytes / 2), best)) {
    }
  }
  return best != before;
}

}  // namespace

program shrunk(const composition& of, program failing, const std::string& what, std::size_t audit_every,
               std::size_t most_run) {
  trial with(of, what, audit_every, most_run);
  // Each audit may detect an error that the next operation would hide.
  trial closely(of, what, 1, most_run);
  if (!closely.takes(failing, failing) && !with.takes(failing, failing)) return failing;
  trial& chosen = audit_every == 1 || closely.takes(failing, failing) ? closely : with;
  for (bool better = true; better;) {
    better = leave_out(chosen, failing);
    better = leave_out_allocations(chosen, failing) || better;
    better = simplify(chosen, failing) || better;
  }
  return failing;
}

tessera::trace::recording recording_of(const program& all, std::string name) {
  tessera::trace::recording made{std::move(name), {}};
  for (const operation& o : all) {
    switch (o.what) {
      case kind::allocate: made.events.push_back({event::kind::allocate, o.id, o.bytes, o.stream}); break;
      case kind::free: made.events.push_back({event::kind::free, o.id, o.sized ? o.bytes : 0, {}}); break;
      case kind::record: made.events.push_back({event::kind::record_stream, o.id, 0, o.stream}); break;
      case kind::hold:
        made.events.push_back({event::kind::answer_events, 0, o.amount == 0 ? 1u : 0u, {}});
        break;
      case kind::trim: made.events.push_back({event::kind::empty_cache, 0, 0, {}}); break;
      case kind::retune:
      case kind::sleep: break;
      case kind::pool: made.events.push_back(pool_event(o)); break;
    }
  }
  return made;
}

program program_of(const tessera::trace::recording& from) {
  program all;
  for (const event& e : from.events) {
    switch (e.what) {
      case event::kind::allocate: all.push_back({.id = e.id, .bytes = e.bytes, .stream = e.stream}); break;
      case event::kind::free:
        all.push_back({.what = kind::free, .sized = e.bytes != 0, .id = e.id, .bytes = e.bytes});
        break;
      case event::kind::record_stream:
        all.push_back({.what = kind::record, .id = e.id, .stream = e.stream});
        break;
      case event::kind::answer_events:
        all.push_back({.what = kind::hold, .amount = e.bytes == 0 ? 1u : 0u});
        break;
      case event::kind::begin_step: break;  // the model has no steps
      case event::kind::empty_cache:
        if (e.id == 0) {
          all.push_back({.what = kind::trim});
          break;
        }
        [[fallthrough]];
      default:
        all.push_back({.what = kind::pool,
                       .amount = static_cast<unsigned>(e.what),
                       .id = e.id,
                       .bytes = e.bytes,
                       .stream = e.stream});
    }
  }
  return all;
}

bool is_all_in_a_trace(const program& all) { return program_of(recording_of(all, "")) == all; }

std::string in_words(const operation& o) {
  const std::string id = std::to_string(o.id);
  const std::string bytes = ", " + std::to_string(o.bytes) + " bytes";
  const std::string stream = " on stream " + std::to_string(o.stream.handle);
  std::string text;
  switch (o.what) {
    case kind::allocate:
      return text.append("allocate ")
          .append(id)
          .append(bytes)
          .append(stream)
          .append(o.by_handle ? ", by handle" : "");
    case kind::free: return text.append("free ").append(id).append(o.sized ? bytes : "");
    case kind::record: return text.append("record ").append(id).append(stream);
    case kind::hold: return o.amount != 0 ? "hold events" : "let events end";
    case kind::trim: return text.append("trim to ").append(std::to_string(o.amount)).append(" %");
    case kind::retune: return text.append("take settings ").append(std::to_string(o.amount));
    case kind::sleep:
      if (o.amount == wake_all) return "wake all pools";
      return text
          .append(o.amount == wake_one            ? "wake pool "
                  : o.amount == sleep_and_discard ? "let sleep without contents pool "
                                                  : "let sleep pool ")
          .append(std::to_string(o.id));
    case kind::pool:
      return text.append(1, tessera::trace::detail::csv_letter(pool_event(o).what))
          .append(" pool ")
          .append(id);
  }
  return text;
}

std::string explained(const composition& of, program failing, const fault& found, std::size_t audit_every) {
  const std::string seen = found.what + " at operation " + std::to_string(found.at) + " of " + of.name +
                           "; TESSERA_SEED=" + std::to_string(of.used.seed) + " runs it again\n";
  const program shortest = shrunk(of, std::move(failing), found.what, audit_every);
  std::string name = of.name;
  std::replace(name.begin(), name.end(), '/', '_');
  const std::string path = (std::filesystem::temp_directory_path() / ("tessera_" + name + ".csv")).string();
  const std::string csv = to_csv(recording_of(shortest, of.name));
  std::string text = seen + "the shortest program that does it, also in " + path + ":\n" + csv;
  if (const auto wrong = replay::save(path, csv)) text += wrong->text() + "\n";
  if (!is_all_in_a_trace(shortest)) {
    text += "which a trace does not say in full:\n";
    for (const operation& o : shortest) text += "  " + in_words(o) + "\n";
  }
  return text;
}

}  // namespace conformance
