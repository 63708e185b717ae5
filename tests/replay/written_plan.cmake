# Compiles the headers that tessera-replay plan writes, and checks that they do what compare says of the plan; of two
# programs by night, of one by day.
#   cmake -D REPLAY=program -D COMPILER=c++ -D INCLUDE=include -D TRACES=examples/traces -D SCRATCH=folder [-D NIGHT=ON]
#     -P written_plan.cmake
cmake_minimum_required(VERSION 3.24)
get_filename_component(here ${CMAKE_CURRENT_LIST_FILE} DIRECTORY)
file(MAKE_DIRECTORY ${SCRATCH})

function(run result)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE out ERROR_VARIABLE errors TIMEOUT 300)
  if(NOT got EQUAL 0)
    string(JOIN " " text ${ARGN})
    message(FATAL_ERROR "${text}: exit code ${got}:\n${out}${errors}")
  endif()
  set(${result} "${out}" PARENT_SCOPE)
endfunction()
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

set(names gnn_sage_streams)
if(NIGHT)
  list(PREPEND names resnet50_sgd)
endif()
foreach(name IN LISTS names)
  file(STRINGS ${TRACES}/${name}.csv lines LIMIT_COUNT 3000)
  string(JOIN "\n" text ${lines})
  set(trace ${SCRATCH}/${name}.csv)
  file(WRITE ${trace} "${text}\n")
  run(out ${REPLAY} plan ${trace} --effort 1 -o ${SCRATCH}/written.hpp -o ${SCRATCH}/written.csv)
  run(out ${COMPILER} -std=c++20 ${warnings} -I ${INCLUDE} -I ${INCLUDE}/../examples -I ${SCRATCH} -D PLAN=plans::${name}
      ${here}/written_plan.cpp -o ${SCRATCH}/written)
  run(did ${SCRATCH}/written ${trace} ${SCRATCH}/written.csv)
  run(said ${REPLAY} compare ${trace} --plan ${SCRATCH}/written.csv --json)
  string(REGEX MATCH "\"recipe\": \"plan, pytorch\", \"peak_reserved\": ([0-9]+)" match "${said}")
  if(NOT did STREQUAL "peak reserved ${CMAKE_MATCH_1}\n" OR CMAKE_MATCH_1 STREQUAL "")
    message(FATAL_ERROR "${name}: compare says ${match}, and compiled, the plan does ${did}")
  endif()
endforeach()

# A large header compiles. Its arrays take 16 bytes an entry and 4 a death.
run(out ${SCRATCH}/written ${SCRATCH}/large.hpp)
file(WRITE ${SCRATCH}/large.cpp "#include \"large.hpp\"\nextern const tessera::plan::memory_plan used;\nconst tessera::plan::memory_plan used = plans::large;\n"
     "static_assert(plans::large.entries.size() == 100000);\n")
run(out ${COMPILER} -std=c++20 ${warnings} -I ${INCLUDE} -I ${SCRATCH} -c ${SCRATCH}/large.cpp -o ${SCRATCH}/large.o)
file(SIZE ${SCRATCH}/large.o bytes)
if(bytes GREATER 2400000)
  message(FATAL_ERROR "100,000 entries take ${bytes} bytes in the object file, which is more than 24 an entry")
endif()
