# run COMMAND...: runs a command. If it fails, the script ends with its output.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    string(JOIN " " text ${ARGN})
    message(FATAL_ERROR "${text}: ${code}\n${out}")
  endif()
endfunction()
