# Compiles all headers in one source, as each C++ standard, with more warnings than the tests have, and without exceptions and
# run-time type information. The order of the headers is shuffled by a seed; macros that other libraries define come first. The
# source instantiates what unit/bare.cpp uses.
#   cmake -D ROOT=checkout -D COMPILER=c++ -D SCRATCH=folder [-D SEED=1] [-D FLAGS=-stdlib=libc++] -P together.cmake
cmake_minimum_required(VERSION 3.24)
if(NOT DEFINED SEED)
  set(SEED 1)
endif()
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wnon-virtual-dtor
             -Woverloaded-virtual -Wdouble-promotion -Wundef -Wextra-semi -Wcast-align -Wcast-qual -Wformat=2 -Wredundant-decls
             -Wunused -Wnull-dereference -Werror)
# Without -Wuseless-cast: a cast from std::uint64_t to std::size_t is needed on other machines.
set(warnings_GNU -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wcast-align=strict)
set(warnings_Clang -Wimplicit-fallthrough -Wthread-safety -Wheader-hygiene -Wnewline-eof -Wshadow-all -Wno-shadow-field-in-constructor)
# Macros of Windows, X11, the BSDs, old glibc and <complex.h>.
set(macros near far interface IN OUT ERROR DELETE TRUE FALSE None Bool Status Success Always I _C _L _N _P _S _U _X _B linux unix
           nil YES NO PAGE_SIZE PAGE_MASK BLOCK_SIZE)
set(macros_of_arguments min max assert CHECK LOG major minor makedev)

file(GLOB_RECURSE headers RELATIVE ${ROOT}/include ${ROOT}/include/tessera/*.hpp)
list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "no headers in ${ROOT}/include")
endif()
set(standard "")
foreach(header IN LISTS headers)
  file(STRINGS ${ROOT}/include/${header} lines REGEX "^#include <[^t]|^#include <t[^e]")
  list(APPEND standard ${lines})
endforeach()
list(REMOVE_DUPLICATES standard)
list(JOIN standard "\n" standard)
set(poison "")
set(cure "")
foreach(macro IN LISTS macros macros_of_arguments)
  set(arguments "")
  if(macro IN_LIST macros_of_arguments)
    set(arguments "(...)")
  endif()
  string(APPEND poison "#undef ${macro}\n#define ${macro}${arguments} + is a macro of another library +\n")
  string(APPEND cure "#undef ${macro}\n")
endforeach()

# Writes a source that includes all headers in a shuffled order. Order 0 has no macros.
function(write_source source order)
  set(shuffled "")
  foreach(header IN LISTS headers)
    string(MD5 key "${SEED} ${order} ${header}")
    list(APPEND shuffled "${key}#include <${header}>")
  endforeach()
  list(SORT shuffled)
  list(TRANSFORM shuffled REPLACE "^[0-9a-f]+" "")
  list(JOIN shuffled "\n" shuffled)
  if(order EQUAL 0)
    file(WRITE ${source} "${shuffled}\n#include \"${ROOT}/tests/unit/bare.cpp\"\n")
  else()
    file(WRITE ${source} "${standard}\n${poison}${shuffled}\n${cure}#include \"${ROOT}/tests/unit/bare.cpp\"\n")
  endif()
endfunction()

file(WRITE ${SCRATCH}/every_header.hpp "// all headers are already included\n")
set(family GNU)
if(COMPILER MATCHES "clang")
  set(family Clang)
endif()
set(order 0)
foreach(way IN ITEMS -std=c++20 "-std=c++2b -fno-exceptions -fno-rtti" -std=gnu++2b)
  separate_arguments(flags UNIX_COMMAND "${way}")
  set(source ${SCRATCH}/order_${order}.cpp)
  write_source(${source} ${order})
  execute_process(COMMAND ${COMPILER} ${flags} ${FLAGS} ${warnings} ${warnings_${family}} -I ${ROOT}/include -I ${SCRATCH}
                          -fsyntax-only ${source}
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${way}, order ${order} of seed ${SEED}:\n${out}")
  endif()
  message(STATUS "${way}: ${count} headers in order ${order} of seed ${SEED}")
  math(EXPR order "${order} + 1")
endforeach()
