# Included by the toolchain files beside it: libraries come from the folder of the other system, programs and
# the sources of GoogleTest from this one.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS PACKAGE INCLUDE LIBRARY)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(FETCHCONTENT_SOURCE_DIR_GOOGLETEST /usr/src/googletest CACHE PATH "The sources of Debian's package googletest")
