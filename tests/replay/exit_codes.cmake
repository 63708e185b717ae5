# Runs each verb where the answer is yes, where it is no, and with wrong input: the exit codes are those of the man page. Also what
# all verbs say alike: of files that cannot be written, of empty files, and of streams.
#   cmake -D REPLAY=program -D SCRATCH=folder -P exit_codes.cmake
cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/expect.cmake)
set(of ${SCRATCH}/exit_codes_)
find_program(python python3)

set(ok ${of}ok.csv)
file(WRITE ${ok} "op,id,bytes,stream,t_us\na,0,1,0,0\na,1,5242880,0,1\nf,1,5242880,0,2\n")
file(WRITE ${of}empty.csv "")
set(missing ${of}missing.csv)
set(none ${SCRATCH}/no_such_folder)
expect(0 " in 2 blocks, " snapshot ${ok} --out ${of}recorded.pickle)
set(recorded ${of}recorded.pickle)

# verb: arguments that end with 0, 1 and 2. A verb without a question has no arguments for 1.
set(small --capacity 4096)
set(compare_0 ${ok} ${small})
set(compare_2 ${missing})
set(decisions_0 ${ok})
set(decisions_1 ${ok} ${small})
set(decisions_2 ${missing})
set(verify_0 ${recorded})
set(verify_2 ${ok})
set(fit_0 ${ok})
set(fit_1 ${ok} ${small})
set(fit_2 ${missing})
set(headroom_0 ${ok} --trials 20)
set(headroom_1 ${ok} --trials 20 ${small})
set(headroom_2 ${missing})
set(draw_0 ${ok} ${small} --out ${of}it.svg)
set(draw_2 ${missing} --out ${of}it.svg)
set(explain-oom_0 ${ok})
set(explain-oom_1 ${ok} ${small})
set(explain-oom_2 ${missing})
set(tune_0 ${ok})
set(tune_1 ${ok} ${small})
set(tune_2 ${missing})
set(plan_0 ${ok})
set(plan_1 ${ok} ${small})
set(plan_2 ${missing})
set(explain_0 max_split_size_mb:32)
set(explain_2 max_split_size_mb)
set(snapshot_0 ${ok} --out ${of}it.json)
set(snapshot_1 ${ok} ${small} --out ${of}it.json)
set(snapshot_2 ${missing} --out ${of}it.json)
set(ranks_0 ${ok} --recipe pytorch)
set(ranks_1 ${ok} --recipe pytorch ${small})
set(ranks_2 ${missing} --recipe pytorch)
if(python)
  execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${python} -c "
import pickle, sys
made = pickle.load(open(sys.argv[1], 'rb'))
for entry in made['device_traces'][0]:
    if entry['action'] == 'alloc' and entry['size'] == 1: entry['addr'] += 512
made = {key: made[key] for key in ('segments', 'device_traces')}
for segment in made['segments']:
    first, *rest = segment['blocks']
    if first['requested_size'] != 1: continue
    at = segment['address']
    segment['blocks'] = [{**rest[-1], 'address': at, 'size': 512}, {**first, 'address': at + 512},
                         {**rest[-1], 'address': at + 1024, 'size': segment['total_size'] - 1024}]
pickle.dump(made, open(sys.argv[2], 'wb'))" ${recorded} ${of}unlike.pickle)
  set(verify_1 ${of}unlike.pickle)
endif()
foreach(verb IN ITEMS compare decisions verify fit draw explain-oom tune plan explain snapshot ranks)
  foreach(code IN ITEMS 0 1 2)
    if(DEFINED ${verb}_${code})
      expect(${code} "" ${verb} ${${verb}_${code}})
      if(code EQUAL 2 AND NOT last_errors MATCHES "^tessera-replay: ")
        message(FATAL_ERROR "${verb}: an error begins with something else than the program: ${last_errors}")
      endif()
    endif()
  endforeach()
  expect(0 "\nexit code   0 done; " ${verb} --help)
  if(DEFINED ${verb}_1 AND NOT last MATCHES "\nexit code   0 done; 1 [^;]+; 2 ")
    message(FATAL_ERROR "${verb} --help does not say when the exit code is 1:\n${last}")
  elseif(NOT DEFINED ${verb}_1 AND NOT verb STREQUAL "verify" AND NOT last MATCHES "\nexit code   0 done; 2 ")
    message(FATAL_ERROR "${verb} --help has an exit code that is not tested:\n${last}")
  endif()
endforeach()

# With --json, a no and an error are JSON, too.
foreach(verb IN ITEMS fit tune explain-oom plan)
  expect(1 "{\"trace\": \"exit_codes_ok\", " ${verb} ${ok} ${small} --json)
  string(JSON name GET "${last}" trace)
endforeach()

# A file that cannot be written is found before the work: the input is not read yet.
foreach(verb IN ITEMS draw plan snapshot ranks)
  foreach(out IN ITEMS "${none}/it" "${SCRATCH}")
    set(rule "the folder ${none} does not exist; create it first")
    set(extension .svg)
    if(verb STREQUAL "plan")
      set(extension .hpp)
    elseif(verb STREQUAL "snapshot")
      set(extension .json)
    endif()
    set(to ${out}${extension})
    if(out STREQUAL SCRATCH)
      set(to ${of}folder${extension})
      file(MAKE_DIRECTORY ${to})
      set(rule "is a folder")
    endif()
    expect(2 "tessera-replay: ${verb}: --out ${to}: ${rule}\n" ${verb} ${missing} --out ${to})
    if(NOT "${last}${last_errors}" STREQUAL "tessera-replay: ${verb}: --out ${to}: ${rule}\n")
      message(FATAL_ERROR "${verb} says more than that: ${last}${last_errors}")
    endif()
  endforeach()
endforeach()

# An empty file is called that.
# A plan fits into its banks, or not.
expect(0 "\n  bank 1 " plan ${ok} --bank 4MiB --bank 8MiB)
expect(1 ": does not fit\n" plan ${ok} --bank 4MiB --bank 2MiB)
expect(1 "\"fits\": false, \"banks\": [{\"capacity\": 4194304, " plan ${ok} --bank 4MiB --bank 2MiB --json)

foreach(command IN ITEMS compare decisions verify fit explain-oom tune plan "ranks;--recipe;pytorch" "fit;${ok};--plan")
  expect(2 "exit_codes_empty.csv: is empty\n" ${command} ${of}empty.csv)
endforeach()

# A wrong setting is an error once, and says once what is wrong.
expect(2 "" decisions ${ok} --conf turbo:1)
if(NOT last_errors STREQUAL "tessera-replay: --conf, character 0: turbo: no such key\n")
  message(FATAL_ERROR "${last_errors}")
endif()

# A block that lies in two physical chunks is named once.
file(WRITE ${of}chunks.csv "op,id,bytes,stream,t_us\na,0,10485760,0,0\na,1,20971520,0,1\nf,0,10485760,0,2\na,2,67108864,0,3\n")
expect(1 "  the blocks that keep these physical chunks, in the trace:\n" explain-oom ${of}chunks.csv --recipe pytorch_expandable --capacity 64MiB)
expect_also(": id 1 (20971520 bytes, event 1; in 2 of these chunks)\n")
string(REGEX MATCHALL " id 1 \\(" named "${last}")
list(LENGTH named count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "a block is named ${count} times:\n${last}")
endif()

# Streams whose handles are addresses have numbers, and their handles only once.
file(WRITE ${of}streams.csv "op,id,bytes,stream,t_us\na,0,5242880,0,0\na,1,31457280,512607648,1\nf,1,31457280,512607648,2\na,2,5242880,512607648,3\n"
     "a,3,31457280,140000000,4\na,4,20971520,512607648,5\n")
expect(1 " requested on stream 2 (0x8583b00); needs " explain-oom ${of}streams.csv --capacity 64MiB)
expect_also(" on stream 1 (0x1e8dc5a0): ")
expect(1 "\"stream\": 140000000, " explain-oom ${of}streams.csv --capacity 64MiB --json)
expect(1 " requested on the default stream; needs " explain-oom ${ok} ${small})
