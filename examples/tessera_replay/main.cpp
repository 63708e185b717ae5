// SPDX-License-Identifier: Apache-2.0
// tessera-replay: runs recorded programs through allocators. A tool with further recipes calls tessera::tool::run in place of run_with.
#include <tessera/tool/recipe_entry.hpp>

int main(int count, char** words) { return tessera::tool::detail::run_with(count, words, {}); }
