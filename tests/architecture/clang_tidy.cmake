# Runs clang-tidy with the checkout's configuration on one source that includes every header. To check other sources, configure
# with CMAKE_EXPORT_COMPILE_COMMANDS=ON and run
#   clang-tidy-19 -p build FILE...
#   cmake -D ROOT=checkout -D TIDY=clang-tidy-19 -D SCRATCH=folder -P clang_tidy.cmake
cmake_minimum_required(VERSION 3.24)
file(GLOB_RECURSE headers RELATIVE ${ROOT}/include ${ROOT}/include/tessera/*.hpp)
set(of_tool ${ROOT}/examples/tessera_replay/include)
file(GLOB_RECURSE more RELATIVE ${of_tool} ${of_tool}/*.hpp)
list(APPEND headers ${more})
list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "no headers in ${ROOT}/include")
endif()
list(TRANSFORM headers REPLACE ".+" "#include <\\0>\n")
list(JOIN headers "" text)
file(WRITE ${SCRATCH}/every_header.cpp "${text}")
# Global variables are an error in headers only.
execute_process(COMMAND ${TIDY} --quiet --checks=cppcoreguidelines-avoid-non-const-global-variables
                        --config-file=${ROOT}/.clang-tidy ${SCRATCH}/every_header.cpp
                        -- -std=c++20 -I ${ROOT}/include -I ${of_tool}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "clang-tidy:\n${out}${err}")
endif()
message(STATUS "clang-tidy finds nothing in ${count} headers")
