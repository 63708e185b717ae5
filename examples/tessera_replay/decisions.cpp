// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include <tessera/replay/recording.hpp>
#include "decisions.hpp"

#include "commands.hpp"
#include "input.hpp"

int replay::commands::decisions(const arguments& said) {
  return with_trace(said, [&]<typename Recipe>(const tessera::trace::program& program,
                                               const tessera::policies<Recipe>& chosen) {
    const bool is_pytorch = said.recipe == "pytorch" || said.recipe == "pytorch_expandable";
    std::printf("# %s; conf=\"%s\"%s capacity=%zu trace=%s\n",
                is_pytorch ? "pytorch-2.6.0 native allocator" : said.recipe.c_str(), said.conf.c_str(),
                fraction_text(said, " memory_fraction=").c_str(), said.capacity, program.name().c_str());
    replay::write_decisions<Recipe>(stdout, program, device_of(said.capacity), chosen);
    return done;
  });
}
