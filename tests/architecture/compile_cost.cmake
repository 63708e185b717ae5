# Limits the compile cost of one allocator with the recipe pytorch<>, from the headers that it needs: the preprocessed lines and the template instantiations,
# without those of the standard headers that it includes. Counts depend on the compiler, not on the machine's speed. The
# script prints the counts of some standard headers for comparison.
#   cmake -D ROOT=checkout -D COMPILER=c++ -D FAMILY=GNU|Clang -D SCRATCH=folder -P compile_cost.cmake
cmake_minimum_required(VERSION 3.24)
include(${ROOT}/tests/architecture/compile_cost_limits.cmake)
file(MAKE_DIRECTORY ${SCRATCH})

function(compile source)
  execute_process(COMMAND ${COMPILER} -std=c++20 -I ${ROOT}/include ${ARGN} ${source} RESULT_VARIABLE code
                  OUTPUT_VARIABLE out ERROR_VARIABLE err WORKING_DIRECTORY ${SCRATCH})
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "the compiler fails:\n${err}")
  endif()
  set(out "${out}" PARENT_SCOPE)
  set(err "${err}" PARENT_SCOPE)
endfunction()

# Sets `lines` and `instantiations` to the counts of a source text, and prints them.
function(count title text)
  set(source ${SCRATCH}/compile_cost.cpp)
  file(WRITE ${source} "${text}")
  compile(${source} -E -P)
  string(REGEX REPLACE "[^\n]*[^ \t\n][^\n]*\n" "x" out "${out}")
  string(REGEX REPLACE "[^x]" "" out "${out}")
  string(LENGTH "${out}" lines)
  if(FAMILY STREQUAL "GNU")  # the elements of its tables of specializations: functions and variables, classes and aliases
    compile(${source} -fsyntax-only -fstats)
    string(REGEX MATCH "decl_specializations: size [0-9]+, ([0-9]+) elements" found "${err}")
    set(instantiations ${CMAKE_MATCH_1})
    string(REGEX MATCH "type_specializations: size [0-9]+, ([0-9]+) elements" found "${err}")
    math(EXPR instantiations "${instantiations} + ${CMAKE_MATCH_1}")
  else()  # the instantiations of functions and classes in its trace
    compile(${source} -c -ftime-trace -ftime-trace-granularity=0 -o compile_cost.o)
    file(READ ${SCRATCH}/compile_cost.json out)
    string(REGEX MATCHALL "\"name\":\"Instantiate(Class|Function)\"" found "${out}")
    list(LENGTH found instantiations)
  endif()
  message(STATUS "${title}: ${lines} lines, ${instantiations} instantiations")
  set(lines ${lines} PARENT_SCOPE)
  set(instantiations ${instantiations} PARENT_SCOPE)
endfunction()

# Adds to `standard` the #include lines of standard headers, in a header and in all headers that it includes.
function(collect header)
  file(STRINGS ${ROOT}/include/${header} directives REGEX "^#include <")
  set_property(GLOBAL APPEND PROPERTY seen ${header})
  foreach(line IN LISTS directives)
    string(REGEX REPLACE "^#include <(.*)>.*" "\\1" name "${line}")
    get_property(seen GLOBAL PROPERTY seen)
    if(name MATCHES "^tessera/" AND NOT name IN_LIST seen)
      collect(${name})
    elseif(NOT name MATCHES "^tessera/")
      string(APPEND standard "#include <${name}>\n")
    endif()
  endforeach()
  set(standard "${standard}" PARENT_SCOPE)
endfunction()

# The smallest provider with events, so that no provider of the library is counted.
set(device "namespace tessera::inline v0_1 {
struct stream_id;
}
struct device {
  struct event {};
  void* acquire(std::size_t) noexcept;
  bool release(void*, std::size_t) noexcept;
  std::size_t capacity() const noexcept;
  std::size_t granularity() const noexcept;
  bool record(tessera::stream_id, event&) noexcept;
  bool query(event&) noexcept;
  bool wait(event&) noexcept;
  void discard(event&) noexcept;
};
")
set(standard "")
collect(tessera/caching_allocator.hpp)
collect(tessera/recipe/pytorch.hpp)
count("<map>" "#include <map>\n")
count("<memory_resource>" "#include <memory_resource>\n")
count("the standard headers that tessera includes" "${standard}${device}")
set(standard_lines ${lines})
set(standard_instantiations ${instantiations})
count("with tessera and one allocator" "${standard}${device}#include <tessera/caching_allocator.hpp>
#include <tessera/recipe/pytorch.hpp>
template class tessera::caching_allocator<tessera::recipe::pytorch<>, device>;\n")

set(faults "")
foreach(what IN ITEMS lines instantiations)
  math(EXPR own "${${what}} - ${standard_${what}}")
  set(max ${max_${what}_${FAMILY}})
  message(STATUS "tessera's own ${what}: ${own}, limit ${max}")
  if(own LESS_EQUAL 0)
    string(APPEND faults "  tessera's own ${what} are ${own}: nothing was counted\n")
  elseif(NOT own LESS_EQUAL max)
    string(APPEND faults "  tessera's own ${what} are ${own}; the limit is ${max}\n")
  endif()
endforeach()
if(NOT faults STREQUAL "")
  message(FATAL_ERROR "\n${faults}")
endif()
