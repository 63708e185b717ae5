# Compiles every name of the library that a page mentions in backticks. A name is one of NAMES.md, or a member of a type in the
# list below. Other names in backticks, such as those of other systems, are in the list `others`, and a page must mention each.
#   cmake -D ROOT=checkout -D COMPILER=c++ -D SCRATCH=folder -P page_names.cmake
cmake_minimum_required(VERSION 3.24)
file(GLOB guides RELATIVE ${ROOT} ${ROOT}/examples/*.md)
set(pages README.md ${guides} include/tessera/README.md include/tessera/GLOSSARY.md include/tessera/NAMES.md .github/CONTRIBUTING.md)
# The verbs and recipes of tessera-replay, recordings, names that an example defines, and words of other systems.
set(others
    check_uce_in_memory compare draw explain fit headroom plan ranks rank tool tune verify tessera_add_tool tessera_instantiate my_allocator
    TYPE INCLUDE LINK NAMESPACE find_package target_include_directories
    gnn_sage gpt2_adamw resnet50_sgd paddle_auto_growth pytorch_expandable
    CUDAPluggableAllocator FetchContent MemPool OrtAllocator PYTORCH_CUDA_ALLOC_CONF PYTORCH_NPU_ALLOC_CONF
    ON SOURCE_DATE_EPOCH Status TESSERA_BUILD_EXAMPLES TESSERA_INSTALL add_subdirectory __FUNCSIG__ auto_growth backend cpack cv
    dirty_decay_ms empty_cache max_split_size_mb expandable_segments garbage_collection_threshold git malloc memory_stats
    naive_best_fit thread_local set_per_process_memory_fraction source static_assert std using vcpkg_from_git
    PascalCase snake_case trailing_ prefer_ evict_ grow_ pool_ recover_ reuse_ round_ split_
    precedes note_served counts_reuses clock call_clock value plans pool heaps far overrun family accepts make_device make_allocator _sleep _sleep_pool _wake _wake_pool)

# The types whose members pages mention. A type must not be final.
set(prelude "
namespace tessera {
using namespace concurrent;
using namespace debug;
using namespace extension;
using namespace interop;
using namespace observe;
using namespace plan;
using namespace policy;
using namespace provider;
using namespace recipe;
using device = simulated_device;
using full = caching_allocator<stitched, device, private_pools, quotas, checkpoints, sleep_mode, registrations<>,
                               faulty_memory, observer<history<>>>;
using mapping = mapping_ahead<locked<caching_allocator<recipe::pytorch<\"expandable_segments:True\">, device>>>;
using host = caching_allocator<recipe::pytorch<>, host_pinned>;
template <typename... T>
struct types {};
using classes = types<
    full, private_pools, locked<full>, per_stream<full>, per_device<locked<full>>, configured<pytorch_family, full>, planned<host>, tagged<full>,
    private_pool<full>, private_pools::door<full>, quotas::door<full>, checkpoints::door<full>, sleep_mode::door<full>,
    registrations<>::door<full>, no_registry, faulty_memory::door<full>, faulty_memory_usage, observer<history<>>::door<full>, background_reclaiming<full>::options, mapping, mapping::watermarks, memory_report, usage, device, host_pinned,
    timed<device>, guarded<host>, guarded<host>::options, policies<stitched>, plan_usage, pool_options, outcome,
    law::provider_check_result, law::provider_trial, cuda_mempool<caching_allocator<cuda_async, device>>, split_below<>, served_request, idle_segment, object_addresses<int>, history<>>;
using enumerations = types<detail::pool_attribute, sleep_contents, scope_kind, decay_curve, page_preference>;
}
#define IS_MEMBER(word, page)                                                                               \\
  namespace member_##word {                                                                                 \\
  struct other {                                                                                            \\
    int word;                                                                                               \\
  };                                                                                                        \\
  template <typename T>                                                                                     \\
  struct both : T, other {};                                                                                \\
  template <typename T>                                                                                     \\
  concept has = !requires { &both<T>::word; }; /* ambiguous, if T has such a member */                      \\
  template <typename T>                                                                                     \\
  concept lists = requires { T::word; };                                                                    \\
  template <typename... C, typename... E>                                                                   \\
  constexpr bool is_known(tessera::types<C...>, tessera::types<E...>) {                                                       \\
    return (has<C> || ...) || (lists<E> || ...);                                                            \\
  }                                                                                                         \\
  static_assert(is_known(tessera::classes{}, tessera::enumerations{}), page \" mentions \" #word \", which no type has\");    \\
  }
")

file(READ ${ROOT}/include/tessera/NAMES.md names_page)
string(REGEX MATCHALL "\n\\| `[^|]*\\|" rows "\n${names_page}")
string(REGEX MATCHALL "`[A-Za-z0-9_:]+`" listed "${rows}")
string(REPLACE "`" "" listed "${listed}")

set(mentioned "")
set(members "")
set(source "")
foreach(name IN LISTS listed)
  if(name MATCHES "^TESSERA_")
    string(APPEND source "#if !defined(${name})\n#error \"no header defines ${name}\"\n#endif\n")
  elseif(NOT name MATCHES "::_")  # a suffix of literals
    string(MAKE_C_IDENTIFIER ${name} identifier)
    string(APPEND source "namespace name_${identifier} {\nusing tessera::${name};\n}\n")
  endif()
endforeach()
foreach(page IN LISTS pages)
  file(READ ${ROOT}/${page} text)
  string(REGEX REPLACE "\n```[^`]*\n```" "" text "\n${text}")
  string(REGEX REPLACE "[][;\\]" " " text "${text}")
  string(REGEX MATCHALL "`[^`\n]+`" words "${text}")
  foreach(word IN LISTS words)
    if(NOT word MATCHES "^`[A-Za-z_][A-Za-z0-9_:]*(<.*>)?(\\(.*\\))?`$")
      continue()
    endif()
    string(REGEX REPLACE "^`(tessera::)?([A-Za-z0-9_:]*).*" "\\2" name "${word}")
    string(REGEX REPLACE "::?$" "" name "${name}")
    string(REGEX REPLACE ":.*" "" first "${name}")
    # Names such as cudaFree are those of other systems.
    if(name MATCHES "^([a-z]+[A-Z].*)?$" OR word MATCHES ":`$" OR name IN_LIST mentioned)
      continue()
    endif()
    list(APPEND mentioned ${name} ${first})
    if(name IN_LIST listed OR first IN_LIST others OR name MATCHES "^(tessera|detail|settings)$")
      continue()
    endif()
    string(REGEX REPLACE ".*:" "" last "${name}")
    set(is_public FALSE)  # without its namespace
    foreach(other IN LISTS listed)
      if(other MATCHES "::${name}$")
        set(is_public TRUE)
      endif()
    endforeach()
    if(NOT is_public AND NOT last IN_LIST members)
      list(APPEND members ${last})
      string(APPEND source "IS_MEMBER(${last}, \"${page}\")\n")
    endif()
  endforeach()
endforeach()
set(faults "")
foreach(name IN LISTS others)
  if(NOT name IN_LIST mentioned)
    list(APPEND faults "no page mentions ${name}, which is in the list of other names")
  endif()
endforeach()

set(tool ${ROOT}/examples/tessera_replay/include)
file(GLOB_RECURSE headers RELATIVE ${ROOT}/include ${ROOT}/include/tessera/*.hpp)
file(GLOB_RECURSE of_tool RELATIVE ${tool} ${tool}/*.hpp)
list(APPEND headers ${of_tool})
list(TRANSFORM headers REPLACE ".+" "#include <\\0>\n")
list(JOIN headers "" includes)
file(WRITE ${SCRATCH}/page_names.cpp "${includes}${prelude}${source}")
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I ${ROOT}/include -I ${tool} -I ${ROOT}/tests/stand_ins ${SCRATCH}/page_names.cpp RESULT_VARIABLE code
                ERROR_VARIABLE errors)
if(NOT code EQUAL 0)
  string(REGEX MATCHALL "[^\n]*error: [^\n]*" errors "${errors}")
  list(APPEND faults ${errors})
endif()
if(faults)
  list(REMOVE_DUPLICATES faults)
  list(JOIN faults "\n  " faults)
  message(FATAL_ERROR "names of pages:\n  ${faults}\n")
endif()
list(LENGTH mentioned count)
message(STATUS "${count} names of pages compile, or are in the list of other names")
