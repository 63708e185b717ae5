# Compiles the headers that need no operating system as if there were none: the headers of the system are errors, the macros
# that name it are not defined, and its functions may not be named. The headers of other libraries, such as OpenCL, are not
# found. Then compiles and links them for Windows, if the compiler MinGW-w64 is installed. With clang, too, compiles them in the
# language of Microsoft's compiler.
#   cmake -D ROOT=checkout -D COMPILER=c++ -D SCRATCH=folder [-D MINGW=x86_64-w64-mingw32-g++-posix [-D CLANG=clang++]]
#         -P portable.cmake
cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/linux_only.cmake)
set(macros __linux__ __linux linux __gnu_linux__ __unix__ __unix unix CLOCK_MONOTONIC CLOCK_MONOTONIC_COARSE)
# Functions of the system whose names no header of tessera has.
set(functions mmap munmap mremap mprotect madvise mlock memfd_create ftruncate fallocate getpid gettid geteuid getrandom sysconf
              getpagesize syscall clock_gettime nanosleep usleep gettimeofday localtime_r strerror_r posix_memalign eventfd
              socketpair sendmsg recvmsg pthread_self pthread_create sigaction dlopen dlsym)

file(REMOVE_RECURSE ${SCRATCH})
file(GLOB_RECURSE headers RELATIVE ${ROOT}/include/tessera ${ROOT}/include/tessera/*.hpp)
file(READ ${ROOT}/include/tessera/README.md page)
foreach(header IN LISTS for_linux)
  string(FIND "${page}" "`${header}`" at)
  if(NOT header IN_LIST headers OR at EQUAL -1)
    message(FATAL_ERROR "${header} is not a header, or include/tessera/README.md does not name it")
  endif()
endforeach()
list(REMOVE_ITEM headers ${for_linux})
set(for_windows "")
foreach(header IN LISTS headers)
  string(APPEND for_windows "#include <tessera/${header}>\n")
endforeach()
list(REMOVE_ITEM headers ${for_each_system})
list(LENGTH headers count)
set(standard "")
set(includes "")
foreach(header IN LISTS headers)
  string(APPEND includes "#include <tessera/${header}>\n")
  file(STRINGS ${ROOT}/include/tessera/${header} lines REGEX "^#include <[a-z_]+>")
  list(APPEND standard ${lines})
  file(READ ${ROOT}/include/tessera/${header} text)
  string(REGEX REPLACE "\n#if __has_include[^\n]*" "\n#if 0" without "${text}")
  if(NOT without STREQUAL text)
    file(WRITE ${SCRATCH}/without/tessera/${header} "${without}")
  endif()
endforeach()
list(REMOVE_DUPLICATES standard)
list(JOIN standard "\n" standard)

# The headers of the standard library come first, and may include those of the system.
set(before "${standard}\n#define ONLY_STANDARD 1\n")
foreach(macro IN LISTS macros)
  string(APPEND before "#undef ${macro}\n")
endforeach()
list(JOIN functions " " poisoned)
file(WRITE ${SCRATCH}/alone/portable_headers.hpp "${before}#pragma GCC poison ${poisoned}\n${includes}")
file(WRITE ${SCRATCH}/all/portable_headers.hpp "${for_windows}")
foreach(header IN LISTS system)
  file(WRITE ${SCRATCH}/system/${header} "#if defined(ONLY_STANDARD)
#error \"this header is for all systems, so it may not include <${header}>\"
#else
#include_next <${header}>
#endif\n")
endforeach()

set(source ${CMAKE_CURRENT_LIST_DIR}/portable.cpp)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I ${SCRATCH}/system -I ${SCRATCH}/alone -I ${SCRATCH}/without
                        -I ${ROOT}/include ${source}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "a header is not for Linux alone, but needs it:\n${out}")
endif()
message(STATUS "${count} headers compile without headers, macros and functions of an operating system, and without other libraries")

if(NOT MINGW)
  message(STATUS "there is no MinGW-w64, which would compile them for Windows, too")
  return()
endif()
# This compiler compares formats with the printf of an old library, which lacks %zu.
execute_process(COMMAND ${MINGW} -std=c++20 -Wall -Wextra -Wno-format -Wno-format-extra-args -Werror -I ${SCRATCH}/all
                        -I ${ROOT}/include ${source} -o ${SCRATCH}/portable.exe
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "for Windows:\n${out}")
endif()
message(STATUS "with host_pinned, they compile and link for Windows")

if(NOT CLANG)
  message(STATUS "there is no clang 19, which would compile them in the language of Microsoft's compiler, too")
  return()
endif()
# Microsoft's standard library needs headers that Debian lacks. So clang reads the library of MinGW-w64 with the macros of GNU's
# compiler, and tessera with those of Microsoft's. All of it is in Microsoft's language: its layout of objects and its parsing of
# templates, which is late.
set(language -std=c++20 -fms-compatibility-version=19.40 -fdelayed-template-parsing -Wno-delayed-template-parsing-in-cxx20)
file(WRITE ${SCRATCH}/microsoft/empty.hpp "")
foreach(target IN ITEMS w64-windows-gnu pc-windows-msvc)
  execute_process(COMMAND ${CLANG} --target=x86_64-${target} ${language} -dM -E -x c++ ${SCRATCH}/microsoft/empty.hpp
                  OUTPUT_FILE ${SCRATCH}/${target} COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${SCRATCH}/${target} ${target})
endforeach()
set(of_gnu ${w64-windows-gnu})
set(of_microsoft ${pc-windows-msvc})
list(REMOVE_ITEM of_gnu ${pc-windows-msvc})
list(REMOVE_ITEM of_microsoft ${w64-windows-gnu})
list(FILTER of_gnu EXCLUDE REGEX "LDBL|LONG_DOUBLE|FLOAT128")  # these types are as the target has them
list(FILTER of_microsoft INCLUDE REGEX "_MSC_|_M_|_CPP")
foreach(set IN ITEMS of_gnu of_microsoft)
  list(TRANSFORM ${set} REPLACE "^#define ([A-Za-z_0-9]+).*" "#undef \\1" OUTPUT_VARIABLE not_${set})
  list(JOIN ${set} "\n" ${set})
endforeach()
list(FILTER not_of_gnu INCLUDE REGEX "GNU|MINGW|__declspec")
foreach(set IN ITEMS not_of_gnu not_of_microsoft)
  list(JOIN ${set} "\n" ${set})
endforeach()
file(WRITE ${SCRATCH}/microsoft/before.hpp "${not_of_microsoft}\n${of_gnu}\n")
file(WRITE ${SCRATCH}/microsoft/portable_headers.hpp
     "${standard}\n#include <windows.h>\n#include <psapi.h>\n${not_of_gnu}\n${of_microsoft}\n${for_windows}")
execute_process(COMMAND ${MINGW} -x c++ -E -v ${SCRATCH}/microsoft/empty.hpp ERROR_VARIABLE out OUTPUT_QUIET)
string(REGEX MATCHALL "\n /[^\n]+" folders "${out}")
list(FILTER folders EXCLUDE REGEX "/[0-9][^/]*/include(-fixed)?$")  # clang has headers of its own for these
list(TRANSFORM folders REPLACE "^\n " "-isystem")
execute_process(COMMAND ${CLANG} --target=x86_64-pc-windows-msvc ${language} -include ${SCRATCH}/microsoft/before.hpp -Wall -Wextra
                        -Wno-format -Werror -fsyntax-only ${folders} -I ${SCRATCH}/microsoft -I ${ROOT}/include ${source}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "in the language of Microsoft's compiler:\n${out}")
endif()
message(STATUS "they compile in the language of Microsoft's compiler, as clang knows it")
