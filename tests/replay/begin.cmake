# Included by scripts that replay ${TRACE} several times: by day, its beginning stands for it. ${begin} is the file to write that to.
if(NOT NIGHT)
  file(STRINGS ${TRACE} lines LIMIT_COUNT 8000)
  list(JOIN lines "\n" text)
  file(WRITE ${begin} "${text}\n")
  set(TRACE ${begin})
endif()
