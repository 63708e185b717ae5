# Writes snapshots of a trace and has Python open them: its pickle module, and where TORCH is set PyTorch's own
# torch.cuda._memory_viz; their totals must be the allocator's statistics.
#   cmake -D REPLAY=program -D TRACE=file -D SCRATCH=folder [-D TORCH=ON] [-D NIGHT=ON] -P memory_viz.cmake
cmake_minimum_required(VERSION 3.24)

if(TORCH)
  set(needed "import torch.cuda._memory_viz")
else()
  set(needed "import pickle")
endif()
find_program(first python3)
find_program(second python3 PATHS /usr/bin NO_DEFAULT_PATH)
foreach(candidate IN ITEMS ${first} ${second})
  if(NOT python AND candidate)
    execute_process(COMMAND ${candidate} -c "${needed}" RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET TIMEOUT 300)
    if(code EQUAL 0)
      set(python ${candidate})
    endif()
  endif()
endforeach()
if(NOT python)
  message("SKIPPED: no python3 that can '${needed}'")
  return()
endif()

set(look [=[
import pickle, sys
path, torch = sys.argv[1], sys.argv[2]
reserved, allocated, blocks, requested, events = map(int, sys.argv[3:])
with open(path, 'rb') as file:
    snapshot = pickle.load(file)
    assert file.read() == b''
segments = snapshot['segments']

def same(what, found, expected):
    assert found == expected, f'{what}: {found} here, {expected} in the statistics'

same('reserved', sum(s['total_size'] for s in segments), reserved)
same('allocated', sum(s['allocated_size'] for s in segments), allocated)
same('requested', sum(s['requested_size'] for s in segments), requested)
live = [b for s in segments for b in s['blocks'] if b['state'] == 'active_allocated']
same('blocks', len(live), blocks)
same('allocated in blocks', sum(b['size'] for b in live), allocated)
for s in segments:
    at = s['address']
    for b in s['blocks']:
        same('address', b['address'], at)
        at += b['size']
    same('end', at, s['address'] + s['total_size'])
    assert s['frames'] == [] and isinstance(s['is_expandable'], bool) and len(s['segment_pool_id']) == 2
trace, = snapshot['device_traces']
assert 0 < len(trace) <= events
sign = {'alloc': 1, 'free_completed': -1}
same('requested in the trace', sum(sign.get(e['action'], 0) * e['size'] for e in trace), requested)
sign = {'segment_alloc': 1, 'segment_free': -1, 'segment_map': 1, 'segment_unmap': -1}
same('reserved in the trace', sum(sign.get(e['action'], 0) * e['size'] for e in trace), reserved)
assert all(isinstance(e['time_us'], int) and e['frames'] == [] for e in trace)

if torch == 'ON':
    import contextlib, io
    import torch.cuda._memory_viz as viz
    plain = lambda text: text
    # PyTorch 1.13 takes the list of segments, later versions the whole.
    later = hasattr(viz, 'segsum')
    source = snapshot if later else segments
    def add_up(text):
        return sum(int(line.rsplit(' ', 1)[1]) for line in text.splitlines())
    same('segments()', add_up(viz.segments(source, format_flamegraph=plain)), reserved)
    same('memory()', add_up(viz.memory(source, format_flamegraph=plain)), reserved)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        same('compare() with itself', viz.compare(segments, segments, format_flamegraph=plain), '')
        same('compare() with nothing', add_up(viz.compare(segments, [], format_flamegraph=plain)), reserved)
    assert 'only_before = []' in said.getvalue()
    if later:
        assert f'segments: {len(segments)}' in viz.segsum(snapshot)
        assert f'{len(trace)} entries' in viz.trace(snapshot)
    else:
        counted = viz.stats(segments)
        same('segments in stats()', counted['segments'], len(segments))
        same('total_size in stats()', counted['total_size'].value, reserved)
        same('active_allocated in stats()', counted['active_allocated'].value, allocated)
print('opened', len(segments), 'segments and', len(trace), 'entries')
]=])

file(MAKE_DIRECTORY ${SCRATCH})
set(begin ${SCRATCH}/viz_${TORCH}.csv)
include(${CMAKE_CURRENT_LIST_DIR}/begin.cmake)
foreach(recipe IN ITEMS pytorch pytorch_expandable stitched cuda_async)
  set(file ${SCRATCH}/viz_${recipe}_${TORCH}.pickle)
  execute_process(COMMAND ${REPLAY} snapshot ${TRACE} --recipe ${recipe} --out ${file} RESULT_VARIABLE code
                  OUTPUT_VARIABLE said ERROR_VARIABLE said TIMEOUT 120)
  if(NOT code EQUAL 0 OR NOT said MATCHES
     ", ([0-9]+) bytes reserved, ([0-9]+) allocated in ([0-9]+) blocks, ([0-9]+) requested, ([0-9]+) events")
    message(FATAL_ERROR "tessera-replay snapshot --recipe ${recipe}: ${code}: ${said}")
  endif()
  set(expected ${CMAKE_MATCH_1} ${CMAKE_MATCH_2} ${CMAKE_MATCH_3} ${CMAKE_MATCH_4} ${CMAKE_MATCH_5})
  execute_process(COMMAND ${python} -c "${look}" ${file} "${TORCH}" ${expected} RESULT_VARIABLE code
                  OUTPUT_VARIABLE found ERROR_VARIABLE found TIMEOUT 300)
  if(NOT code EQUAL 0 OR NOT found MATCHES "opened [1-9]")
    message(FATAL_ERROR "${recipe}: ${found}")
  endif()
  message("${recipe}: ${found}")
endforeach()
if(NOT TORCH)
  set(file ${SCRATCH}/viz.json)
  execute_process(COMMAND ${REPLAY} snapshot ${TRACE} --out ${file} RESULT_VARIABLE code OUTPUT_QUIET TIMEOUT 120)
  execute_process(COMMAND ${python} -m json.tool ${file} RESULT_VARIABLE read OUTPUT_QUIET ERROR_VARIABLE found TIMEOUT 120)
  if(NOT code EQUAL 0 OR NOT read EQUAL 0)
    message(FATAL_ERROR "the JSON of a trace: ${found}")
  endif()
endif()
