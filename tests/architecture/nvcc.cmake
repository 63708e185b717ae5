# Compiles nvcc.cu with CUDA's compiler and runs it, which needs no GPU. The program has every header, every recipe of
# conformance/shipped.hpp, front ends and interop types. Compiles the examples as CUDA sources too, with nvcc's options for
# lambdas. A warning of nvcc is an error.
#   cmake -D ROOT=checkout -D NVCC=nvcc -D SCRATCH=folder -P nvcc.cmake
cmake_minimum_required(VERSION 3.24)
if(NOT NVCC)
  message("SKIPPED: nvcc is not installed")
  return()
endif()
execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "release ([0-9]+)(\\.[0-9]+)?" version "${version}")
if(CMAKE_MATCH_1 LESS 12)
  message("SKIPPED: nvcc ${version} has no C++20, which begins with release 12")
  return()
endif()

file(GLOB_RECURSE headers RELATIVE ${ROOT}/include ${ROOT}/include/tessera/*.hpp)
list(TRANSFORM headers REPLACE ".+" "#include <\\0>\n")
list(JOIN headers "" every_header)
file(WRITE ${SCRATCH}/every_header.hpp "#pragma once\n${every_header}")
set(flags -std=c++20 -Werror=all-warnings -I ${ROOT}/include -I ${ROOT}/tests -I ${ROOT}/examples -I ${SCRATCH})
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
set(commands "")  # the compilers that run at the same time
set(running "")   # their sources

# Runs the compilers and stops at an error.
function(compile_all)
  execute_process(${commands} RESULTS_VARIABLE codes ERROR_VARIABLE errors)
  foreach(what code IN ZIP_LISTS running codes)
    if(NOT code EQUAL 0)
      message(FATAL_ERROR "nvcc does not compile ${what}:\n${errors}")
    endif()
  endforeach()
  set(commands "" PARENT_SCOPE)
  set(running "" PARENT_SCOPE)
endfunction()

# Adds a compilation. Runs all when there is one for each core.
macro(compile what)
  list(APPEND commands COMMAND ${NVCC} ${flags} ${ARGN})
  list(APPEND running "${what}")
  list(LENGTH running now)
  if(now EQUAL cores)
    compile_all()
  endif()
endmacro()

compile(nvcc.cu ${ROOT}/tests/architecture/nvcc.cu -o ${SCRATCH}/program)
file(GLOB examples RELATIVE ${ROOT} ${ROOT}/examples/*.cpp ${ROOT}/examples/08_pluggable/*.cpp ${ROOT}/examples/cuda_driver/*.cpp)
foreach(example IN LISTS examples)
  get_filename_component(name ${example} NAME_WE)
  compile(${example} -O2 --extended-lambda --expt-relaxed-constexpr -x cu -c ${ROOT}/${example} -o ${SCRATCH}/${name}.o)
endforeach()
if(NOT running STREQUAL "")
  compile_all()
endif()
execute_process(COMMAND ${SCRATCH}/program RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "the program compiled from nvcc.cu fails with ${code}:\n${out}")
endif()
list(LENGTH examples count)
message(STATUS "nvcc ${version}: every header, every recipe, and ${count} examples compile")
