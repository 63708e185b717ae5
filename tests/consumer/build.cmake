# Builds and runs a program that uses tessera as its users do.
#   cmake -D WAY=find_package|add_subdirectory|fetch_content -D TESSERA=checkout -D BUILD=its build folder
#         -D SCRATCH=folder -D COMPILER=c++ -D GENERATOR=name -P build.cmake
cmake_minimum_required(VERSION 3.24)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    string(JOIN " " text ${ARGN})
    message(FATAL_ERROR "${text}: ${code}\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
if(WAY STREQUAL find_package)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/installed)
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${SCRATCH}/build -G ${GENERATOR} -D WAY=${WAY}
    -D TESSERA=${TESSERA} -D CMAKE_PREFIX_PATH=${SCRATCH}/installed -D CMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)
