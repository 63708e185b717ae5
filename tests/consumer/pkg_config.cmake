# Compiles the consumer's program with the options that pkg-config prints, and runs it. Included by the scripts beside it.
find_program(PKG_CONFIG NAMES pkg-config pkgconf)

# `prefix` is the installed folder. `sysroot` is the root folder of a system that the compiler does not run on, or empty.
function(compile_with_pkg_config prefix sysroot)
  if(NOT PKG_CONFIG)
    message(STATUS "there is no pkg-config, which would compile the program, too")
    return()
  endif()
  set(ENV{PKG_CONFIG_LIBDIR} ${prefix}/share/pkgconfig)
  set(ENV{PKG_CONFIG_SYSROOT_DIR} "${sysroot}")
  if(sysroot STREQUAL "")
    unset(ENV{PKG_CONFIG_SYSROOT_DIR})
  endif()
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tessera OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${PKG_CONFIG} --modversion tessera OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  list(GET flags 0 include)
  string(REGEX REPLACE "^-I" "" include "${include}")
  file(REAL_PATH "${include}" include)
  file(REAL_PATH ${prefix}/include expected)
  if(NOT include STREQUAL expected)
    message(FATAL_ERROR "pkg-config says '${flags}', and the headers are in ${expected}")
  endif()
  set(project ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/project)
  run(${COMPILER} -std=c++20 -DVERSION_OF_PACKAGE="${version}" ${project}/main.cpp ${project}/other.cpp ${flags}
      -o ${SCRATCH}/by_pkg_config)
  run(${SCRATCH}/by_pkg_config)
endfunction()
