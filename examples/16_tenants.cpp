// SPDX-License-Identifier: Apache-2.0
// Tenants: two services share a device. Each is guaranteed a part of it, and may use more while that is free.
#include <tessera/private_pool.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include <cstdio>

using namespace tessera::literals;

namespace {

using base = tessera::pytorch<"expandable_segments:True">;
using recipe = tessera::with<base, tessera::guarantee_shares<base::growth>>;
using allocator_type = tessera::caching_allocator<recipe, tessera::simulated_device>;

bool request(const char* who, allocator_type& allocator, std::size_t bytes, tessera::stream_id stream) {
  const bool served = allocator.try_allocate(bytes, stream) != nullptr;
  std::printf("%s asks for %zu MiB: %s\n", who, bytes >> 20, served ? "served" : "refused");
  return served;
}

}  // namespace

int main() {
  allocator_type allocator{tessera::simulated_device({.capacity = 1000_MiB})};
  tessera::private_pool search(allocator);
  tessera::private_pool chat(allocator);
  if (!search.set_share({.guaranteed = 600_MiB}) ||
      !chat.set_share({.guaranteed = 200_MiB, .limit = 500_MiB}))
    return 1;

  // Each service has its stream. Scopes of the kind redirect may stay open, because nothing is captured.
  const tessera::stream_id on_search{1};
  const tessera::stream_id on_chat{2};
  const tessera::pool_scope first(search, on_search, tessera::scope_kind::redirect);
  const tessera::pool_scope second(chat, on_chat, tessera::scope_kind::redirect);

  bool as_expected = request("chat", allocator, 400_MiB, on_chat);                // more than its guarantee
  as_expected = !request("chat", allocator, 60_MiB, on_chat) && as_expected;      // guaranteed to search
  as_expected = request("search", allocator, 600_MiB, on_search) && as_expected;  // whatever chat does
  as_expected = !request("search", allocator, 20_MiB, on_search) && as_expected;  // the device is full
  const tessera::pool_usage now = chat.current_usage();
  std::printf("chat holds %zu MiB, %zu MiB above its guarantee\n", now.held >> 20,
              (now.held - chat.share().guaranteed) >> 20);
  return as_expected && allocator.audit() == nullptr ? 0 : 1;
}
