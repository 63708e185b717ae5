// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include <tessera/caching_allocator.hpp>
#include <tessera/trace/decisions.hpp>
#include <tessera/trace/program.hpp>

#include "commands.hpp"
#include "input.hpp"

int replay::decisions(const arguments& said) {
  return with_trace(said, [&]<typename Recipe>(std::string_view name, const tessera::trace::program& program,
                                               const tessera::config::pytorch_settings& settings) {
    constexpr bool torch = std::is_same_v<Recipe, tessera::pytorch>;
    std::printf("# %s; conf=\"%s\" capacity=%zu trace=%s\n",
                torch ? "pytorch-2.6.0 native allocator" : std::string(name).c_str(), said.conf.c_str(), said.capacity,
                title_of(said.files[0]).c_str());
    tessera::trace::decision_log log(stdout);
    tessera::caching_allocator<Recipe, tessera::simulated_device, tessera::trace::decision_log::sink> pool{
        device_of(said.capacity), policies_for<Recipe>(settings, said.capacity), {&log}};
    tessera::trace::replay(
        program, pool, [](std::size_t) {}, [&](std::size_t i, void* p) { log.line(i, program.events()[i], p); });
    const tessera::counter& reserved = pool.statistics().all.reserved_bytes;
    std::printf("# end in_use=%lld peak=%lld\n", static_cast<long long>(reserved.current),
                static_cast<long long>(reserved.peak));
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? done : complain("standard output: cannot be written");
  });
}
