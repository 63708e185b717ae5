// SPDX-License-Identifier: Apache-2.0
// Tenants: two services share a device. Each is guaranteed a part of it, and may use more while that is free.
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include <cstdio>

using namespace tessera::literals;

namespace {

using recipe = tessera::recipe::pytorch<"expandable_segments:True">;
using allocator_type =
    tessera::caching_allocator<recipe, tessera::provider::simulated_device, tessera::extension::private_pools,
                               tessera::extension::quotas>;

bool request(const char* who, allocator_type& allocator, std::size_t bytes, tessera::stream_id stream) {
  const bool served = allocator.try_allocate(bytes, stream) != nullptr;
  std::printf("%s asks for %zu MiB: %s\n", who, bytes >> 20, served ? "served" : "refused");
  return served;
}

}  // namespace

int main() {
  allocator_type allocator{tessera::provider::simulated_device({.capacity = 1000_MiB})};
  tessera::extension::private_pool search(allocator);
  tessera::extension::private_pool chat(allocator);
  auto quotas = allocator.get<tessera::extension::quotas>();
  if (!quotas.set(search.id(), {.guaranteed = 600_MiB}) ||
      !quotas.set(chat.id(), {.guaranteed = 200_MiB, .limit = 500_MiB}))
    return 1;

  // Each service has its stream. Scopes of the kind plain may stay open, because nothing is captured.
  const tessera::stream_id on_search{1};
  const tessera::stream_id on_chat{2};
  const tessera::extension::pool_scope first(search, on_search, tessera::extension::scope_kind::plain);
  const tessera::extension::pool_scope second(chat, on_chat, tessera::extension::scope_kind::plain);

  bool as_expected = request("chat", allocator, 400_MiB, on_chat);                // more than its guarantee
  as_expected = !request("chat", allocator, 60_MiB, on_chat) && as_expected;      // guaranteed to search
  as_expected = request("search", allocator, 600_MiB, on_search) && as_expected;  // whatever chat does
  as_expected = !request("search", allocator, 20_MiB, on_search) && as_expected;  // the device is full
  const tessera::extension::pool_usage now =
      allocator.get<tessera::extension::private_pools>().usage_of(chat.id());
  std::printf("chat holds %zu MiB, %zu MiB above its guarantee\n", now.non_releasable >> 20,
              (now.non_releasable - quotas.get(chat.id()).guaranteed) >> 20);
  return as_expected && allocator.audit() == nullptr ? 0 : 1;
}
