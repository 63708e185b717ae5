// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include <tessera/trace/recording.hpp>
#include "decisions.hpp"

#include "commands.hpp"
#include "input.hpp"

int replay::commands::decisions(const arguments& args) {
  return with_trace(args, [&](const tessera::trace::program& program, const any_recipe& recipe) {
    const bool is_pytorch = args.recipe == "pytorch" || args.recipe == "pytorch_expandable";
    std::printf("# %s; conf=\"%s\"%s capacity=%zu trace=%s\n",
                is_pytorch ? "pytorch-2.6.0 native allocator" : args.recipe.c_str(), args.conf.c_str(),
                fraction_text(args, " memory_fraction=").c_str(), args.capacity, program.name().c_str());
    replay::write_decisions(stdout, program, device_of(args.capacity), recipe);
    return +done;
  });
}
