# Plants each kind of fault in a tree of its own and expects floors.cmake to name it.
#   cmake -D SCRATCH=folder -P floors_can_fail.cmake
cmake_minimum_required(VERSION 3.24)
function(expect words file)
  set(tree ${SCRATCH}/planted)
  file(REMOVE_RECURSE ${tree})
  string(JOIN "\n" text ${ARGN})
  file(WRITE ${tree}/${file} "${text}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${tree} -P ${CMAKE_CURRENT_LIST_DIR}/floors.cmake
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  string(REGEX REPLACE "[ \n]+" " " out "${out}")
  string(FIND "${out}" "${words}" at)
  if(words STREQUAL "")
    if(NOT code EQUAL 0)
      message(FATAL_ERROR "a tree without fault is refused: ${out}")
    endif()
  elseif(code EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "expected '${words}', got ${code}: ${out}")
  endif()
endfunction()

expect("" policy/split.hpp "#include <cstddef>" "#include <tessera/core/bytes.hpp>")
expect("policy/split.hpp (floor 'policy') may not include <tessera/provider/provider.hpp>; allowed: core"
       policy/split.hpp "#include <tessera/provider/provider.hpp>")
expect("policy/split.hpp (floor 'policy') may not include <tessera/policy/growth.hpp>; allowed: core"
       policy/split.hpp "#include <tessera/policy/growth.hpp>")
expect("engine/heap.hpp (floor 'engine') may not include <tessera/tessera.hpp>" engine/heap.hpp "#include <tessera/tessera.hpp>")
expect("there is no floor 'detail'" detail/help.hpp "")
expect("core/a.hpp may not include <iostream>" core/a.hpp "#include <iostream>")
expect("engine/a.hpp may not include <mutex>" engine/a.hpp "#include <mutex>")
expect("includes with quotes" core/a.hpp "#include \"b.hpp\"")
expect("defines a macro" core/a.hpp "#define A 1")
string(REPEAT "//\n" 301 long)
expect("core/a.hpp has 302 lines; 300 are allowed" core/a.hpp "${long}")
