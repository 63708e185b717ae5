# tessera_instantiate(NAME TYPE type INCLUDE header... [NAMESPACE namespace] [LINK target...]): adds the static library NAME, which
# has the code of one allocator. Its header <NAME.hpp> includes the headers, says `using NAME = type;`, and keeps the compiler from
# making that code again. So sources that include it and link NAME compile faster.
#   TYPE       a template with its arguments, such as "tessera::caching_allocator<...>", with names as in the global namespace
#   INCLUDE    the headers of TYPE, without brackets
#   NAMESPACE  the namespace of NAME; by default, the global one
#   LINK       targets that bring the include folders of these headers
function(tessera_instantiate name)
  set(call "tessera_instantiate(${name})")
  cmake_parse_arguments(PARSE_ARGV 1 of "" "TYPE;NAMESPACE" "INCLUDE;LINK")
  if(DEFINED of_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${call}: '${of_UNPARSED_ARGUMENTS}' follows no keyword; the keywords are TYPE, INCLUDE, NAMESPACE and LINK, "
                        "and TYPE takes one text in quotes")
  endif()
  set(identifier "[A-Za-z_][A-Za-z0-9_]*")
  if(NOT name MATCHES "^${identifier}$")
    message(FATAL_ERROR "${call}: '${name}' is no name of a type in C++, so it cannot name the allocator: use letters, digits and _, "
                        "and no digit first")
  endif()
  if(TARGET ${name})
    message(FATAL_ERROR "${call}: there is a target '${name}' already; the name of the allocator is the name of its library")
  endif()
  if(NOT of_TYPE)
    message(FATAL_ERROR "${call}: TYPE is missing; it is the type of the allocator, as in "
                        "TYPE \"tessera::caching_allocator<tessera::recipe::pytorch<>, my::device>\"")
  endif()
  if(NOT of_TYPE MATCHES "^(::)?(${identifier}(::${identifier})*)<(.*)>$")
    message(FATAL_ERROR "${call}: TYPE '${of_TYPE}' is no template with arguments. Only these can be instantiated; write out what an "
                        "alias stands for, as in tessera::caching_allocator<tessera::recipe::pytorch<>, my::device>")
  endif()
  set(template ${CMAKE_MATCH_2})
  set(arguments "${CMAKE_MATCH_4}")
  if(NOT of_INCLUDE)
    message(FATAL_ERROR "${call}: INCLUDE is missing; it names the headers of TYPE, as in "
                        "INCLUDE tessera/tessera.hpp my/device.hpp")
  endif()
  foreach(header IN LISTS of_INCLUDE)
    if(header MATCHES "[<>\"#]")
      message(FATAL_ERROR "${call}: INCLUDE '${header}' has brackets or quotes; write the name alone, as in tessera/tessera.hpp")
    endif()
  endforeach()
  if(DEFINED of_NAMESPACE AND NOT of_NAMESPACE MATCHES "^${identifier}(::${identifier})*$")
    message(FATAL_ERROR "${call}: NAMESPACE '${of_NAMESPACE}' is no name of a namespace, as in my or my::memory")
  endif()

  set(alias "using ${name} = ${of_TYPE};")
  set(type ${name})
  if(DEFINED of_NAMESPACE)
    set(alias "namespace ${of_NAMESPACE} {\n${alias}\n}")
    set(type ${of_NAMESPACE}::${name})
  endif()

  # What a program calls: the members of the class, its constructor from a provider, which is a template, and of a front end the calls
  # of its base, and the class that holds its mutex. The base has members that do not compile for each front end, so they are named.
  set(definitions "template class ${of_TYPE};\n")
  string(REGEX REPLACE "^tessera::(concurrent::)?" "" front ${template})
  set(provider "tessera::detail::serialized_provider<${type}::provider_type>")
  set(members "bool try_deallocate(void*)" "bool record_stream(void*, tessera::stream_id)"
              "bool try_record_stream(void*, tessera::stream_id)" "bool reuse_in_place(void*, std::size_t, tessera::stream_id)"
              "void evict_idle()" "tessera::usage current_usage() const" "std::size_t metadata_bytes() const"
              "const char* audit() const")
  set(inside "")
  if(front STREQUAL "locked")
    set(guarded "tessera::detail::mutex_guarded<${arguments}, ${provider}>")
    set(inside "${guarded}::allocator")
    list(APPEND members "void deallocate(void*)" "void deallocate(void*, std::size_t)" "void trim(std::size_t)"
         "tessera::out_of_memory make_out_of_memory(std::size_t, tessera::stream_id) const")
    string(APPEND definitions "template class ${guarded};\n")
  elseif(front STREQUAL "per_stream")
    set(inside "tessera::detail::arena<${arguments}, ${provider}>")
    list(APPEND members "void* allocate(std::size_t, tessera::stream_id)")
  endif()
  if(inside)
    foreach(member IN LISTS members)
      string(REGEX REPLACE "([a-z_]+\\()" "tessera::allocator_adaptor<${type}, ${inside}>::\\1" member "${member}")
      string(APPEND definitions "template ${member};\n")
    endforeach()
  endif()
  if(front MATCHES "^(caching_allocator|locked|per_stream)$")
    string(APPEND definitions
           "template ${type}::${front}(${type}::provider_type, tessera::recipe::policies<${type}::recipe_type>);\n")
  endif()
  string(REPLACE "\ntemplate " "\nextern template " declarations "\n${definitions}")

  list(TRANSFORM of_INCLUDE REPLACE ".+" "#include <\\0>")
  list(JOIN of_INCLUDE "\n" includes)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/tessera_instantiate/${name})
  set(made "// Made by tessera_instantiate of CMake.")
  file(CONFIGURE OUTPUT ${folder}/${name}.hpp @ONLY
       CONTENT "${made}\n#pragma once\n\n${includes}\n\n${alias}\n${declarations}")
  file(CONFIGURE OUTPUT ${folder}/${name}.cpp @ONLY CONTENT "${made}\n#include <${name}.hpp>\n\n${definitions}")
  add_library(${name} STATIC ${folder}/${name}.cpp)
  target_include_directories(${name} PUBLIC ${folder})
  target_link_libraries(${name} PUBLIC tessera::tessera ${of_LINK})
endfunction()
