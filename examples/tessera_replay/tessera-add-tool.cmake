# tessera_add_tool(NAME SOURCE...): adds a program that is tessera-replay with recipes of your own. One of the sources has a main
# function that calls tessera::tool::run [tessera/tool/main.hpp].
function(tessera_add_tool name)
  if(NOT TARGET tessera::tool)
    set(way "build the target tessera-replay of tessera before `cmake --install`, which then installs the library, too")
    if(TARGET tessera)
      set(way "set TESSERA_BUILD_EXAMPLES to ON before tessera is added to this project")
    endif()
    message(FATAL_ERROR "tessera_add_tool(${name}): the library of tessera-replay is missing, because the headers alone do not "
                        "have its commands: ${way}")
  endif()
  if(NOT ARGN)
    message(FATAL_ERROR "tessera_add_tool(${name}): no source is named, as in tessera_add_tool(${name} recipes.cpp)")
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera::tool)
endfunction()
