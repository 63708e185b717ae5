// needs: nlohmann/json.hpp
// SPDX-License-Identifier: Apache-2.0
// A document of nlohmann::json in the memory of an allocator that a function returns.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using tessera::provider::host_pinned;
using pool_type =
    tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pinned_packed, host_pinned>>;
pool_type& json_pool() {
  static auto* const pool = new pool_type(host_pinned({.pin = host_pinned::pinning::never}));
  return *pool;
}
template <typename T>
using json_allocator = tessera::interop::typed_allocator<T, tessera::interop::allocator_from<json_pool>>;
using text = std::basic_string<char, std::char_traits<char>, json_allocator<char>>;
using document = nlohmann::basic_json<std::map, std::vector, text, bool, std::int64_t, std::uint64_t, double,
                                      json_allocator>;

bool use() {
  document read =
      document::parse(R"({"name": "a text that is too long for a string", "list": [1, 2.5, null, true]})");
  read["more"] = {{"a", 1}, {"b", {2, 3}}};
  document copy = read;
  document moved = std::move(read);
  copy["list"].push_back("another text that is too long for a string");
  if (copy == moved || json_pool().current_usage().allocated == 0)
    return std::puts("the document is elsewhere"), false;
  return copy["more"]["b"][1] == 3 && document::parse(copy.dump()) == copy;
}

}  // namespace

int main() {
  const bool is_right = use();
  const std::size_t left = json_pool().current_usage().allocated;
  std::printf("%zu bytes are left\n", left);
  return is_right && left == 0 && json_pool().audit() == nullptr ? 0 : 1;
}
