# Builds and runs a program that uses tessera in its own project.
#   cmake -D WAY=find_package|add_subdirectory|fetch_content -D TESSERA=checkout -D BUILD=its build folder
#         -D SCRATCH=folder -D COMPILER=c++ -D GENERATOR=name -P build.cmake
cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/must_run.cmake)

file(REMOVE_RECURSE ${SCRATCH})
# The installed folder is moved, as a package manager moves it.
if(WAY STREQUAL find_package)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first)
  file(RENAME ${SCRATCH}/first ${SCRATCH}/installed)
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${SCRATCH}/build -G ${GENERATOR} -D WAY=${WAY}
    -D TESSERA=${TESSERA} -D CMAKE_PREFIX_PATH=${SCRATCH}/installed -D CMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)

# The project installs only its own program, no header and no package of tessera.
run(${CMAKE_COMMAND} --install ${SCRATCH}/build --prefix ${SCRATCH}/of_consumer)
file(GLOB_RECURSE found RELATIVE ${SCRATCH}/of_consumer ${SCRATCH}/of_consumer/*)
if(NOT found STREQUAL "bin/consumer")
  message(FATAL_ERROR "a project that uses tessera by ${WAY} installs '${found}', not only its program")
endif()

# The installation has the headers, the packages of CMake and pkg-config, and the tool if it is built. A program compiles with
# the options of pkg-config.
if(WAY STREQUAL find_package)
  file(GLOB_RECURSE expected RELATIVE ${TESSERA} ${TESSERA}/include/tessera/*.hpp)
  file(GLOB_RECURSE of_tool RELATIVE ${TESSERA}/examples/tessera_replay ${TESSERA}/examples/tessera_replay/include/*.hpp)
  list(APPEND expected ${of_tool})
  foreach(name IN ITEMS tessera-add-tool tessera-config tessera-config-version tessera-instantiate tessera-targets)
    list(APPEND expected share/tessera/${name}.cmake)
  endforeach()
  list(APPEND expected share/pkgconfig/tessera.pc share/tessera/tessera_single.hpp)
  if(EXISTS ${BUILD}/tessera-replay)
    list(APPEND expected bin/tessera-replay share/man/man1/tessera-replay.1)
    file(GLOB_RECURSE library RELATIVE ${SCRATCH}/installed ${SCRATCH}/installed/lib*/*tessera_tool*)
    list(APPEND expected ${library})  # its folder depends on the system; consumer.tool links it
    run(${SCRATCH}/installed/bin/tessera-replay --version)
  endif()
  file(GLOB_RECURSE found RELATIVE ${SCRATCH}/installed ${SCRATCH}/installed/*)
  list(SORT expected)
  list(SORT found)
  if(NOT found STREQUAL expected)
    set(extra ${found})
    list(REMOVE_ITEM extra ${expected})
    list(REMOVE_ITEM expected ${found})
    message(FATAL_ERROR "the installation lacks '${expected}' and also has '${extra}'")
  endif()
  include(${CMAKE_CURRENT_LIST_DIR}/pkg_config.cmake)
  compile_with_pkg_config(${SCRATCH}/installed "")
endif()

# An unknown component is an error if it is required, and is reported as missing if it is optional.
if(WAY STREQUAL find_package)
  function(expect_for_component asked code words)
    file(WRITE ${SCRATCH}/component/CMakeLists.txt "cmake_minimum_required(VERSION 3.24)\nproject(component LANGUAGES CXX)
find_package(tessera ${asked})\nmessage(STATUS \"tessera \${tessera_FOUND}, nonsense '\${tessera_nonsense_FOUND}'\")\n")
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/component -B ${SCRATCH}/component/build -G ${GENERATOR} --fresh
                            -D CMAKE_PREFIX_PATH=${SCRATCH}/installed -D CMAKE_CXX_COMPILER=${COMPILER} ${ARGN}
                    RESULT_VARIABLE got OUTPUT_VARIABLE out ERROR_VARIABLE out)
    string(REGEX REPLACE "[ \n]+" " " out "${out}")
    string(FIND "${out}" "${words}" at)
    if(NOT got EQUAL code OR at EQUAL -1)
      message(FATAL_ERROR "find_package(tessera ${asked}): ${got}, expected ${code} and '${words}' in:\n${out}")
    endif()
  endfunction()
  expect_for_component("REQUIRED" 0 "tessera 1, nonsense ''")
  expect_for_component("REQUIRED COMPONENTS nonsense" 1 "tessera has no component 'nonsense'")
  expect_for_component("COMPONENTS nonsense" 0 "tessera 0, nonsense 'FALSE'")
  expect_for_component("REQUIRED OPTIONAL_COMPONENTS nonsense" 0 "tessera 1, nonsense 'FALSE'")
  # Without the library of threads, the package is not found, and CMake says why.
  expect_for_component("REQUIRED" 1 "Threads" -D CMAKE_DISABLE_FIND_PACKAGE_Threads=ON)
  expect_for_component("" 0 "tessera 0, nonsense ''" -D CMAKE_DISABLE_FIND_PACKAGE_Threads=ON)
endif()
