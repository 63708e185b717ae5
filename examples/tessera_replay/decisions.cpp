// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include <tessera/trace/recording.hpp>
#include "decisions.hpp"

#include "commands.hpp"
#include "input.hpp"

int replay::commands::decisions(const arguments& args) {
  return with_each_trace(args, [&](const run_trace& trace, const run_settings& used, const traces&) {
    return with_recipe(
        used, trace.made, [&](const tessera::trace::program& program, const any_recipe& recipe) {
          const bool is_pytorch = used.recipe == "pytorch" || used.recipe == "pytorch_expandable";
          std::printf("# %s; conf=\"%s\"%s capacity=%zu trace=%s\n",
                      is_pytorch ? "pytorch-2.6.0 native allocator" : used.recipe.c_str(), used.conf.c_str(),
                      fraction_text(used, " memory_fraction=").c_str(), used.capacity,
                      program.name().c_str());
          if (!trace.known.recipe.empty()) std::printf("# %s\n", settings_text(used).c_str());
          return replay::write_decisions(stdout, program, device_of(used.capacity), recipe) == 0 ? +done
                                                                                                 : +differs;
        });
  });
}
