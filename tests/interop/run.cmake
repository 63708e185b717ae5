# Compiles a program against another library and runs it; where the library is not installed, says so. The first lines of the
# program are
#   // needs: HEADER ...     headers of the library
#   // links: LIBRARY ...    libraries to link, if any
#   // flags: FLAG ...       flags for the compiler, if any
# and it has a line "SKIPPED: ..." on its output if it cannot run with the version that is installed.
#   cmake -D COMPILER=c++ -D SOURCE=file.cpp -D INCLUDE=include -D SCRATCH=folder [-D PATHS=folder;...] [-D FOLDER=folder -D RUN=program]
#     -P run.cmake
# FOLDER has a system of its own, as a script in ../shared makes it: its headers are in FOLDER/include. `RUN FOLDER -c COMMAND` runs
# a shell command there, where FOLDER is /standin. PATHS are other folders with headers.
cmake_minimum_required(VERSION 3.24)
file(STRINGS ${SOURCE} lines LIMIT_COUNT 3)
foreach(key IN ITEMS needs links flags)
  set(${key})
  foreach(line IN LISTS lines)
    if(line MATCHES "^// ${key}: (.+)$")
      string(REPLACE " " ";" ${key} "${CMAKE_MATCH_1}")
    endif()
  endforeach()
endforeach()
if(NOT needs)
  message(FATAL_ERROR "${SOURCE}: the first line must be '// needs: HEADER ...'")
endif()
list(APPEND flags -I ${INCLUDE})
set(cuda $ENV{CUDA_HOME}/include /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include)
list(TRANSFORM cuda APPEND /cccl OUTPUT_VARIABLE cccl)
set(headers ${PATHS} ${cccl} ${cuda} /usr/include /usr/local/include /usr/include/kokkos /usr/local/include/kokkos)
set(libraries)
if(FOLDER)
  set(headers ${FOLDER}/include ${FOLDER}/include/kokkos)
  set(libraries PATHS ${FOLDER}/root/usr/lib/x86_64-linux-gnu NO_DEFAULT_PATH)
  list(APPEND flags -Wl,--allow-shlib-undefined)  # of the C library there
endif()
foreach(header IN LISTS needs)
  find_path(found ${header} PATHS ${headers} NO_CACHE NO_DEFAULT_PATH)
  if(NOT found)
    message(STATUS "SKIPPED: <${header}> is not installed")
    return()
  endif()
  list(APPEND flags -idirafter ${found})  # behind the compiler's own, of which it may be one
  unset(found)
endforeach()
set(linked)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
set(CMAKE_LIBRARY_ARCHITECTURE x86_64-linux-gnu)
foreach(library IN LISTS links)
  find_library(found ${library} ${libraries} PATHS /usr/lib/x86_64-linux-gnu /usr/lib /usr/local/lib NO_CACHE)
  if(NOT found)
    message(STATUS "SKIPPED: the library ${library} is not installed")
    return()
  endif()
  list(APPEND linked ${found})
  unset(found)
endforeach()
get_filename_component(name ${SOURCE} NAME_WE)
set(program ${SCRATCH}/interop_${name})
file(MAKE_DIRECTORY ${SCRATCH})
execute_process(COMMAND ${COMPILER} -std=c++20 -O0 -ffunction-sections ${flags} ${SOURCE} -o ${program} ${linked}
                        -Wl,--gc-sections -lpthread -ldl RESULT_VARIABLE code
                OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must compile:\n${out}")
endif()
set(command ${program})
if(FOLDER)
  file(COPY ${program} DESTINATION ${FOLDER})
  set(command ${RUN} ${FOLDER} -c "/standin/interop_${name}")
endif()
execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE error)
string(STRIP "${out}" out)
if(NOT code EQUAL 0)
  string(LENGTH "${error}" length)
  if(length GREATER 4000)  # a library may write much
    string(SUBSTRING "${error}" 0 4000 error)
  endif()
  message(FATAL_ERROR "${SOURCE} must end with 0, not ${code}:\n${out}\n${error}")
endif()
message(STATUS "${out}")
