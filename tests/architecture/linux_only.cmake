# What needs a system. portable.cmake proves the lists of headers; the builds for other systems leave out the headers, and the
# sources that use them or a header of the system.

# The headers for Linux alone. The page of the library's folder has this list, too.
set(for_linux debug/guard_pages.hpp debug/guarded.hpp debug/thread_checked.hpp interop/torch_pluggable.hpp
              provider/cuda_calls.hpp provider/cuda_driver.hpp provider/cuda_sharing.hpp
              provider/host_file.hpp provider/host_sharing.hpp provider/numa_nodes.hpp)
# The headers that make the calls of whichever system it is.
set(for_each_system provider/host_memory.hpp provider/host_pinned.hpp provider/host_windows.hpp)
# Headers of the system.
set(system arpa/inet.h cxxabi.h dirent.h dlfcn.h execinfo.h fcntl.h linux/memfd.h netinet/in.h poll.h pthread.h sched.h semaphore.h
           signal.h spawn.h sys/eventfd.h sys/file.h sys/ioctl.h sys/mman.h sys/prctl.h sys/random.h sys/resource.h sys/socket.h
           sys/stat.h sys/syscall.h sys/time.h sys/types.h sys/uio.h sys/un.h sys/wait.h syscall.h unistd.h)

# Sets `result` to whether a source or header outside of the library includes, itself or by such a header, one of these. Other
# headers are sought beside the file and in the folders after `result`.
function(is_linux_only file result)
  get_property(known GLOBAL PROPERTY "linux only ${file}")
  if("${known}" STREQUAL "")
    set_property(GLOBAL PROPERTY "linux only ${file}" OFF)  # for headers that include each other
    set(known OFF)
    get_filename_component(folder ${file} DIRECTORY)
    file(STRINGS ${file} lines REGEX "^ *# *include [<\"]")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^ *# *include [<\"]([^>\"]*).*" "\\1" name "${line}")
      string(REGEX REPLACE "^tessera/" "" header "${name}")
      if(name IN_LIST system OR header IN_LIST for_linux)
        set(known ON)
        break()
      endif()
      foreach(at IN LISTS folder ARGN)
        if(EXISTS ${at}/${name})
          is_linux_only(${at}/${name} known ${ARGN})
          break()
        endif()
      endforeach()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "linux only ${file}" ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# Removes the files for Linux alone from the list with this name.
function(keep_portable list_name)
  set(kept "")
  foreach(file IN LISTS ${list_name})
    is_linux_only(${file} is_not ${ARGN})
    if(NOT is_not)
      list(APPEND kept ${file})
    endif()
  endforeach()
  set(${list_name} ${kept} PARENT_SCOPE)
endfunction()
