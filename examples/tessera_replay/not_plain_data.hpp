// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::trace {

/// The name of a Python object, of which anyone may have written any length in any characters.
[[nodiscard]] inline std::string shown_object(std::string_view module, std::string_view name) {
  constexpr std::size_t most = 60;  // characters of each
  std::string shown(module.substr(0, most));
  (shown += '.') += name.substr(0, most);
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

/// Says why a pickle's opcode is refused: it makes other than plain data. `after` are the bytes behind it; `module` and
/// `name` are the texts on top of the stack, empty where there are none.
[[nodiscard]] inline std::string not_plain_data(unsigned char op, std::string_view after,
                                                std::string_view module, std::string_view name) {
  std::string what = "something";
  switch (op) {
    case 'c': {  // two lines, module and name
      after = after.substr(0, 1024);
      const std::string_view first = after.substr(0, after.find('\n'));
      const std::string_view rest =
          after.substr(first.size() < after.size() ? first.size() + 1 : after.size());
      what = "the Python object " + shown_object(first, rest.substr(0, rest.find('\n')));
      break;
    }
    case 0x93: what = "the Python object " + shown_object(module, name); break;
    case 'R':
    case 'b':
    case 'i':
    case 'o':
    case 0x81:
    case 0x92: what = "a Python object"; break;
    case 'P':
    case 'Q': what = "a reference to data elsewhere, as torch.save writes it,"; break;
    case 0x8f:
    case 0x90:
    case 0x91: what = "a set"; break;
    case 0x96: what = "an array of bytes"; break;
    case 'F':
    case 'I':
    case 'L':
    case 'S':
    case 'V':
    case 'g':
    case 'p': what = "a value in the text form of protocol 0"; break;
    default: break;
  }
  return what + " (opcode " + std::to_string(op) +
         ") is not plain data and is not executed; a memory snapshot has none";
}

}  // namespace tessera::trace
