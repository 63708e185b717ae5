# Included by scripts that run tessera-replay: what it is expected to say.
# Runs ${REPLAY} with the arguments: its exit code is `code`, and what it prints holds `words`. Sets `last` to what it prints on
# standard output, and `last_errors` to the rest.
function(expect code words)
  execute_process(COMMAND ${REPLAY} ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE out ERROR_VARIABLE errors TIMEOUT 300)
  # One of something is singular.
  string(REPLACE "2^64 - 1 " "2^64 " said "${out}${errors}")
  string(REGEX MATCHALL "(^|[^0-9A-Za-z_.,+-])1 [a-z]+s[^a-z=]" plurals "${said}")
  list(FILTER plurals EXCLUDE REGEX "1 (is|was|has|as|needs|runs|keeps|shares|serves)[^a-z]")
  if(plurals)
    string(JOIN " " text ${ARGN})
    message(FATAL_ERROR "tessera-replay ${text}: plural for one thing, '${plurals}', in:\n${out}${errors}")
  endif()
  string(FIND "${out}${errors}" "${words}" at)
  if(NOT got EQUAL code OR at EQUAL -1)
    string(JOIN " " text ${ARGN})
    message(FATAL_ERROR "tessera-replay ${text}: exit code ${got}, expected ${code} and '${words}' in:\n${out}${errors}")
  endif()
  set(last "${out}" PARENT_SCOPE)
  set(last_errors "${errors}" PARENT_SCOPE)
endfunction()
# What the last command printed holds these words, too.
function(expect_also words)
  string(FIND "${last}${last_errors}" "${words}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected also '${words}' in:\n${last}${last_errors}")
  endif()
endfunction()
# Reads what the last command printed as JSON, as `found`, and runs some Python. The script sets `python`, a program, and `of`, the
# beginning of the names of its files.
function(look code)
  file(WRITE ${of}printed.json "${last}")
  execute_process(COMMAND ${python} -c "import json, sys\nfound = json.load(open(sys.argv[1]))\n${code}" ${of}printed.json
                  RESULT_VARIABLE got ERROR_VARIABLE errors)
  if(NOT got EQUAL 0)
    message(FATAL_ERROR "${code}:\n${errors}${last}")
  endif()
endfunction()
