#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>
namespace tessera::plan {
struct time_span {
  std::uint32_t lower, upper;
};
struct lifetime {
  std::size_t bytes;
  std::span<const time_span> live;
};
struct place_options {
  double seconds = 10;
  std::uint64_t seed = 1;
  std::size_t alignment = 1;
  std::size_t enough = 0;
  void (*progress)(void*, std::size_t, std::size_t, double) = nullptr;
  void* progress_state = nullptr;
};
struct placement {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0, lower_bound = 0;
  bool is_optimal = false;
  double seconds = 0;
};
inline placement place(std::span<const lifetime> b, const place_options& o) {
  placement p;
  p.offsets.resize(b.size());
  std::vector<std::uint32_t> ord(b.size());
  for (std::uint32_t i = 0; i < ord.size(); ++i) ord[i] = i;
  std::stable_sort(ord.begin(), ord.end(), [&](auto x, auto y) { return b[x].bytes > b[y].bytes; });
  struct P {
    std::size_t lo, hi;
    std::uint32_t a, z;
    std::uint32_t i;
  };
  std::vector<P> done;
  auto over = [&](std::uint32_t x, std::uint32_t y) {
    auto &u = b[x].live, &v = b[y].live;
    std::size_t i = 0, j = 0;
    while (i < u.size() && j < v.size()) {
      if (u[i].lower < v[j].upper && v[j].lower < u[i].upper) return true;
      if (u[i].upper < v[j].upper)
        ++i;
      else
        ++j;
    }
    return false;
  };
  for (auto x : ord) {
    std::size_t sz = (b[x].bytes + o.alignment - 1) / o.alignment * o.alignment, at = 0;
    auto a = b[x].live.front().lower, z = b[x].live.back().upper;
    for (auto& q : done) {
      if (q.a >= z || q.z <= a) continue;
      if (q.hi <= at) continue;
      if (q.lo >= at + sz) break;
      if (over(x, q.i)) at = q.hi;
    }
    p.offsets[x] = at;
    P n{at, at + sz, a, z, x};
    done.insert(std::upper_bound(done.begin(), done.end(), n, [](auto& l, auto& r) { return l.lo < r.lo; }),
                n);
    p.bytes = std::max(p.bytes, at + sz);
  }
  return p;
}
}  // namespace tessera::plan
