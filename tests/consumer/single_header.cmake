# Writes the single header, and compiles and links two sources of which it is the only header of the library. By night, prints
# how long a source takes to compile with it, and with the headers. Plants headers that the script must refuse.
#   cmake -D TESSERA=checkout -D SCRATCH=folder -D COMPILER=c++ [-D NIGHT=ON] -P single_header.cmake
cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/must_run.cmake)
set(script ${TESSERA}/.github/packaging/single_header.cmake)
set(alone ${SCRATCH}/alone)
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${alone})
run(${CMAKE_COMMAND} -D OUT=${alone}/tessera_single.hpp -P ${script})

# expect_lines(PATTERN COUNT): the single header has so many lines like this.
function(expect_lines pattern count)
  file(STRINGS ${alone}/tessera_single.hpp found REGEX "${pattern}")
  list(LENGTH found lines)
  if(NOT lines EQUAL count)
    message(FATAL_ERROR "tessera_single.hpp has ${lines} lines like '${pattern}', not ${count}:\n${found}")
  endif()
endfunction()
# expect_headers(HEADER...): the single header has the text of these headers, below their names.
function(expect_headers)
  file(READ ${alone}/tessera_single.hpp text)
  foreach(header IN LISTS ARGN)
    string(FIND "${text}" "\n// <tessera/${header}>\n" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "tessera_single.hpp has no text of ${header}")
    endif()
  endforeach()
endfunction()
expect_lines("^# *include +[<\"]tessera" 0)
expect_lines("^# *pragma once" 0)
expect_lines("SPDX-License-Identifier" 1)
file(GLOB headers RELATIVE ${TESSERA}/include/tessera ${TESSERA}/include/tessera/policy/*.hpp
     ${TESSERA}/include/tessera/recipe/*.hpp)
expect_headers(${headers} caching_allocator.hpp concurrent/locked.hpp provider/host_pinned.hpp provider/simulated_device.hpp)

# compile(SOURCE FLAG...): compiles a source of the folder `alone` there, and sets `seconds`.
function(compile source)
  string(TIMESTAMP begin "%s%f")
  execute_process(COMMAND ${COMPILER} -std=c++20 -O0 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror ${ARGN} -c ${source}.cpp
                          -o ${source}.o
                  WORKING_DIRECTORY ${alone} RESULT_VARIABLE code ERROR_VARIABLE out)
  string(TIMESTAMP end "%s%f")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${source}.cpp does not compile:\n${out}")
  endif()
  math(EXPR milliseconds "(${end} - ${begin}) / 1000")
  string(REGEX REPLACE "(...)$" ".\\1" seconds "000${milliseconds}")
  string(REGEX REPLACE "^0+([0-9]+[.])" "\\1" seconds "${seconds}")
  set(seconds ${seconds} PARENT_SCOPE)
endfunction()

foreach(file IN ITEMS ${TESSERA}/examples/01_first_allocator.cpp ${CMAKE_CURRENT_LIST_DIR}/project/other.cpp)
  cmake_path(GET file STEM name)
  file(READ ${file} text)
  string(REGEX REPLACE "#include <tessera/[^\n]*\n" "" text "${text}")
  file(WRITE ${alone}/${name}.cpp "#include \"tessera_single.hpp\"\n#include \"tessera_single.hpp\"\n${text}")
  compile(${name})
  set(seconds_of_${name} ${seconds})
endforeach()
# Both objects have the functions of the headers that are not templates.
run(${COMPILER} ${alone}/01_first_allocator.o ${alone}/other.o -pthread -o ${SCRATCH}/program)
execute_process(COMMAND ${SCRATCH}/program OUTPUT_VARIABLE out RESULT_VARIABLE code)
if(NOT code EQUAL 0 OR NOT out STREQUAL "reserved 320 MiB, of it cached 20 and pending 300\n")
  message(FATAL_ERROR "the program with the single header ends with ${code} and prints '${out}'")
endif()
if(NIGHT)
  file(COPY_FILE ${TESSERA}/examples/01_first_allocator.cpp ${alone}/headers.cpp)
  compile(headers -I ${TESSERA}/include)
  message(STATUS "01_first_allocator.cpp compiles in ${seconds_of_01_first_allocator} s with the single header, "
                 "in ${seconds} s with the headers")
endif()

# More headers on request, here each extension.
file(GLOB more RELATIVE ${TESSERA}/include/tessera ${TESSERA}/include/tessera/extension/*.hpp)
execute_process(COMMAND ${CMAKE_COMMAND} -D OUT=${alone}/tessera_single.hpp -D "WITH=${more}" -P ${script}
                COMMAND_ERROR_IS_FATAL ANY)
expect_headers(${more})
file(WRITE ${alone}/extensions.cpp "#include \"tessera_single.hpp\"\nint main() {
  tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device,
                                                         tessera::extension::private_pools>> allocator;
  allocator.deallocate(allocator.allocate(1000));
}\n")
compile(extensions)

# Both ways of including do not mix.
file(WRITE ${alone}/both.cpp "#include <tessera/version.hpp>\n#include \"tessera_single.hpp\"\n")
execute_process(COMMAND ${COMPILER} -std=c++20 -E -I ${TESSERA}/include both.cpp WORKING_DIRECTORY ${alone} OUTPUT_QUIET
                ERROR_VARIABLE out RESULT_VARIABLE code)
string(FIND "${out}" "include tessera_single.hpp or the headers of tessera/, not both" at)
if(code EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "a source with the single header and the headers ends with ${code}:\n${out}")
endif()

# A library of small headers. plant(NAME TEXT) replaces one of them.
set(tree ${SCRATCH}/planted)
set(begin "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n")
function(plant name text)
  file(WRITE ${tree}/include/tessera/${name} "${text}")
endfunction()
# expect(CODE WORDS ARGUMENT...): the script ends with the code, and and its error or the single header has the words.
function(expect code words)
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${tree} ${ARGN} -P ${script} RESULT_VARIABLE got ERROR_VARIABLE out)
  if(got EQUAL 0)
    file(READ ${tree}/single.hpp out)
  else()
    string(REGEX REPLACE "[ \n]+" " " out "${out}")
  endif()
  string(FIND "${out}" "${words}" at)
  if(NOT got EQUAL code OR at EQUAL -1)
    message(FATAL_ERROR "the script ends with ${got}, expected ${code} and '${words}' in:\n${out}")
  endif()
endfunction()
foreach(name IN ITEMS concurrent/locked provider/simulated_device provider/host_pinned)
  plant(${name}.hpp "${begin}")
endforeach()
plant(a.hpp "${begin}#include <tessera/b.hpp>\n\n#include <cstddef>\n#include <map>\nint a[];\n")
plant(b.hpp "${begin}#include <map>\n#if X\n#include <set>\n#include <map>\n#else\n#include <set>\n#endif
const char* b = \"\\0;[\";\n")
plant(tessera.hpp "${begin}#include <tessera/a.hpp>\n#include <tessera/b.hpp>\n")
set(out "-DOUT=${tree}/single.hpp")
expect(0 "#include <cstddef>\n#include <map>\n\n// <tessera/b.hpp>\n#if X\n#include <set>\n#else\n#include <set>\n#endif
const char* b = \"\\0;[\";\n\n// <tessera/a.hpp>\nint a[];\n" ${out})
expect(1 "no -D OUT=file before -P")
expect(1 "tessera_single.hpp includes <tessera/extension/c.hpp>, which is not in" ${out} -D WITH=extension/c.hpp)
plant(b.hpp "#pragma once\nint b;\n")
expect(1 "tessera/b.hpp does not begin with the line of the license and #pragma once" ${out})
plant(b.hpp "${begin}#if X\n#include <tessera/c.hpp>\n#endif\n")
plant(c.hpp "${begin}int c;\n")
expect(0 "#if X\n\n// <tessera/c.hpp>\nint c;\n" ${out})
plant(tessera.hpp "${begin}#include <tessera/a.hpp>\n#include <tessera/c.hpp>\n")
expect(1 "tessera/tessera.hpp includes <tessera/c.hpp>, which the single header has only below: #if X" ${out})
