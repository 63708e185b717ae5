// SPDX-License-Identifier: Apache-2.0
#include <tessera_replay/commands.hpp>
#include <tessera_replay/terminal.hpp>

int replay::commands::ranks(const arguments&) {
  return print_error("ranks: measures each file in a process of its own, which a page does not have");
}
