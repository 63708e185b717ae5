# Writes one header that needs no other of the library: the core, all policies and recipes, `locked`, `simulated_device` and
# `host_pinned`. WITH adds headers, named as below tessera/.
#   cmake -D OUT=tessera_single.hpp [-D "WITH=extension/private_pools.hpp;observe/explain.hpp"] [-D ROOT=checkout]
#         -P single_header.cmake
cmake_minimum_required(VERSION 3.24)
if(NOT DEFINED ROOT)
  cmake_path(SET ROOT NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
endif()
if(NOT OUT)
  message(FATAL_ERROR "no -D OUT=file before -P: the header has no file to go to")
endif()
set(include ${ROOT}/include)
file(GLOB parts RELATIVE ${include} ${include}/tessera/policy/*.hpp ${include}/tessera/recipe/*.hpp)
set(more ${WITH})
list(TRANSFORM more PREPEND tessera/)
set(includes "")
foreach(header IN ITEMS tessera/tessera.hpp LISTS parts ITEMS tessera/concurrent/locked.hpp tessera/provider/simulated_device.hpp
        LISTS more ITEMS tessera/provider/host_pinned.hpp)
  string(APPEND includes "#include <${header}>\n")
endforeach()

# Appends the text in a variable to the property `body`. `named` says whether the name of its header is there.
macro(emit variable)
  if(NOT named AND name MATCHES "^tessera/" AND "${${variable}}" MATCHES "[^ \n]")
    set_property(GLOBAL APPEND_STRING PROPERTY body "\n\n// <${name}>")
    set(named TRUE)
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY body "${${variable}}")
endmacro()

# Emits the text of a header, in which the text of another header of the library takes the place of its first include. Includes of
# other headers move to the top. Below #if they stay, because what they include may exist only there. `conditions` are the #if
# lines around the text.
function(expand name text conditions)
  set(named FALSE)
  while(text MATCHES "(^|\n)(#[^\n]*)")
    set(line "${CMAKE_MATCH_0}")
    set(directive "${CMAKE_MATCH_2}")
    string(FIND "${text}" "${line}" at)
    string(SUBSTRING "${text}" 0 ${at} before)
    string(LENGTH "${line}" length)
    math(EXPR at "${at} + ${length}")
    string(SUBSTRING "${text}" ${at} -1 text)
    emit(before)
    if(directive MATCHES "^# *include +<(tessera/[^>]+)>")
      include_once(${CMAKE_MATCH_1} ${name} "${conditions}")
      continue()
    elseif(directive MATCHES "^# *include ")
      get_property(at_top GLOBAL PROPERTY "of_${directive}")
      get_property(is_here GLOBAL PROPERTY "of_${directive}${conditions}")
      if(NOT at_top AND NOT is_here)
        set_property(GLOBAL PROPERTY "of_${directive}${conditions}" TRUE)
        if(conditions STREQUAL "")
          set_property(GLOBAL APPEND PROPERTY standard "${directive}")
        else()
          set_property(GLOBAL APPEND_STRING PROPERTY body "${line}")
        endif()
      endif()
      continue()
    elseif(directive MATCHES "^# *if")
      string(APPEND conditions "\n${directive}")
    elseif(directive MATCHES "^# *el")
      string(APPEND conditions " ${directive}")
    elseif(directive MATCHES "^# *endif")
      string(FIND "${conditions}" "\n" last REVERSE)
      string(SUBSTRING "${conditions}" 0 ${last} conditions)
    endif()
    emit(line)
  endwhile()
  emit(text)
endfunction()

function(include_once header from conditions)
  get_property(is_there GLOBAL PROPERTY of_${header} SET)
  if(is_there)
    get_property(first GLOBAL PROPERTY of_${header})
    string(FIND "${conditions}\n" "${first}\n" at)
    if(NOT at EQUAL 0)
      message(FATAL_ERROR "${from} includes <${header}>, which the single header has only below:${first}")
    endif()
    return()
  endif()
  set_property(GLOBAL PROPERTY of_${header} "${conditions}")
  set(named FALSE PARENT_SCOPE)  # the text after the include belongs to `from` again
  if(NOT EXISTS ${include}/${header})
    message(FATAL_ERROR "${from} includes <${header}>, which is not in ${include}")
  endif()
  file(READ ${include}/${header} text)
  if(NOT text MATCHES "^// SPDX-License-Identifier: Apache-2[.]0\n#pragma once")
    message(FATAL_ERROR "${header} does not begin with the line of the license and #pragma once")
  endif()
  string(LENGTH "${CMAKE_MATCH_0}" length)
  string(SUBSTRING "${text}" ${length} -1 text)
  expand(${header} "${text}" "${conditions}")
endfunction()

expand("tessera_single.hpp" "${includes}" "")
get_property(standard GLOBAL PROPERTY standard)
list(SORT standard)
list(JOIN standard "\n" standard)
get_property(body GLOBAL PROPERTY body)
string(REGEX REPLACE "\n\n\n+" "\n\n" body "${body}")
string(STRIP "${body}" body)
# Several installations may run at the same time, so the file has its name once it is whole.
string(RANDOM LENGTH 12 unique)
file(WRITE ${OUT}.${unique} "// SPDX-License-Identifier: Apache-2.0
// tessera in one header, written by .github/packaging/single_header.cmake from the headers of tessera/. Change those.
#ifndef TESSERA_SINGLE_HPP
#define TESSERA_SINGLE_HPP
#ifdef TESSERA_VERSION
#error \"include tessera_single.hpp or the headers of tessera/, not both\"
#endif

${standard}

${body}

#endif
")
file(RENAME ${OUT}.${unique} ${OUT})
