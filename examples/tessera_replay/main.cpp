// SPDX-License-Identifier: Apache-2.0
// tessera-replay: runs recorded programs through allocators.
#include <tessera/tool/main.hpp>

int main(int count, char** words) { return tessera::tool::run<>(count, words); }
