# Compiles a file whose first line says what to expect: a sentence in the compiler's output, with "expect first" in its
# first line that says "error", or that it compiles. A second line "// expect text: ..." names a text in a template
# argument. clang 14 prints such a text as numbers; then this line is not checked.
# MOST is a precompiled header of what most programs include. One that includes something else first, in place of a system's
# headers, is compiled without it.
#   cmake -D COMPILER=c++ -D FAMILY=GNU|Clang|... -D SOURCE=file.cpp -D INCLUDE=include [-D MOST=header] -P compile.cmake
cmake_minimum_required(VERSION 3.24)
file(STRINGS ${SOURCE} lines LIMIT_COUNT 2)
list(POP_FRONT lines first)
if(NOT first MATCHES "^// expect( first)?: (.+)$")
  message(FATAL_ERROR "${SOURCE}: the first line must be '// expect: ...' or '// expect first: ...'")
endif()
set(only_first "${CMAKE_MATCH_1}")
set(expected "${CMAKE_MATCH_2}")
set(precompiled "")
file(STRINGS ${SOURCE} in_place REGEX "without_linux" LIMIT_COUNT 1)
if(MOST AND NOT in_place)
  set(precompiled -include ${MOST})
endif()
set(stop "")
if(only_first AND FAMILY STREQUAL GNU)
  set(stop -fmax-errors=1)  # what follows the first error is not looked at, and takes time
endif()
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I ${INCLUDE} ${precompiled} ${stop} ${SOURCE}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
string(REGEX REPLACE "tessera::v[0-9]+_[0-9]+::" "tessera::" out "${out}")  # g++ prints the inline namespace, clang does not
set(searched "${out}")
if(only_first AND out MATCHES "error: [^\n]*")
  set(searched "${CMAKE_MATCH_0}")
endif()
string(FIND "${searched}" "${expected}" at)
if(expected STREQUAL "compiles")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${SOURCE} must compile:\n${out}")
  endif()
elseif(code EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must not compile")
elseif(at EQUAL -1)
  message(FATAL_ERROR "${SOURCE}: expected '${expected}' in:\n${out}")
elseif(NOT searched MATCHES "{[0-9]" AND lines MATCHES "^// expect text: (.+)$")
  set(text "${CMAKE_MATCH_1}")
  string(FIND "${searched}" "\"${text}\"" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: expected the text '${text}' in:\n${out}")
  endif()
endif()
