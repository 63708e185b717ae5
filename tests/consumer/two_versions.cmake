# Links two sources into one program, of which each has a version of the headers. The second version has another number and
# another layout of `usage`.
#   cmake -D TESSERA=checkout -D SCRATCH=folder -D COMPILER=c++ -P two_versions.cmake
cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/must_run.cmake)
file(REMOVE_RECURSE ${SCRATCH})
file(GLOB_RECURSE headers RELATIVE ${TESSERA}/include ${TESSERA}/include/*.hpp)
foreach(header IN LISTS headers)
  file(READ ${TESSERA}/include/${header} text)
  string(REGEX REPLACE "namespace tessera::inline v[0-9]+_[0-9]+" "namespace tessera::inline v0_999" text "${text}")
  string(REPLACE "\nstruct usage {\n" "\nstruct usage {\n  std::size_t more[9] = {};\n" text "${text}")
  file(WRITE ${SCRATCH}/newer/${header} "${text}")
endforeach()

file(WRITE ${SCRATCH}/library.cpp "
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
std::size_t NAME() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
  void* const p = allocator.allocate(21'000'000);
  const tessera::usage now = allocator.current_usage();
  allocator.deallocate(p);
  return sizeof now * 1000 + now.reserved / 1048576;
}
std::size_t NAME(const tessera::usage& now) { return now.reserved; }
")
file(WRITE ${SCRATCH}/main.cpp "
#include <cstddef>
#include <cstdio>
std::size_t older();
std::size_t newer();
int main() { std::printf(\"%zu %zu\\n\", older(), newer()); }
")
file(WRITE ${SCRATCH}/passes_on.cpp "
#include <tessera/tessera.hpp>
std::size_t newer(const tessera::usage&);
int main() { return static_cast<int>(newer(tessera::usage{})); }
")
set(compile ${COMPILER} -std=c++20 -O0 -c)
run(${compile} -D NAME=older -I ${TESSERA}/include ${SCRATCH}/library.cpp -o ${SCRATCH}/older.o)
run(${compile} -D NAME=newer -I ${SCRATCH}/newer ${SCRATCH}/library.cpp -o ${SCRATCH}/newer.o)
run(${compile} ${SCRATCH}/main.cpp -o ${SCRATCH}/main.o)
run(${compile} -I ${TESSERA}/include ${SCRATCH}/passes_on.cpp -o ${SCRATCH}/passes_on.o)

run(${COMPILER} ${SCRATCH}/main.o ${SCRATCH}/older.o ${SCRATCH}/newer.o -o ${SCRATCH}/program)
execute_process(COMMAND ${SCRATCH}/program OUTPUT_VARIABLE out RESULT_VARIABLE code)
if(NOT code EQUAL 0 OR NOT out MATCHES "^([0-9]+)022 ([0-9]+)022\n$")
  message(FATAL_ERROR "the program with two versions ends with ${code} and prints '${out}'")
endif()
math(EXPR larger "${CMAKE_MATCH_2} - ${CMAKE_MATCH_1}")
if(NOT larger EQUAL 72)
  message(FATAL_ERROR "the versions have the same layout, or another than planned: '${out}'")
endif()

# An object of one version is no argument for the other.
execute_process(COMMAND ${COMPILER} ${SCRATCH}/passes_on.o ${SCRATCH}/newer.o -o ${SCRATCH}/passes_on ERROR_VARIABLE out
                RESULT_VARIABLE code)
if(code EQUAL 0 OR NOT out MATCHES "undefined reference to .newer\\(tessera::v[0-9]+_[0-9]+::usage const&\\)")
  message(FATAL_ERROR "the linker ends with ${code} and prints:\n${out}")
endif()
