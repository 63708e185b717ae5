# Runs tessera-replay on snapshots that Python made of one: of several devices, without a history, under other settings, and
# beside files that are none.
#   cmake -D REPLAY=program -D TRACE=file -D SCRATCH=folder [-D NIGHT=ON] -P several_devices.cmake
cmake_minimum_required(VERSION 3.24)
find_program(python python3)
if(NOT python)
  message("SKIPPED: no python3")
  return()
endif()

file(MAKE_DIRECTORY ${SCRATCH})
set(of ${SCRATCH}/devices_)
set(begin ${of}trace.csv)
include(${CMAKE_CURRENT_LIST_DIR}/begin.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/expect.cmake)

set(make [=[
import copy, pickle, sys
of = sys.argv[1]
one = pickle.load(open(of + 'one.pickle', 'rb'))
def write(name, change):
    made = copy.deepcopy(one)
    change(made)
    pickle.dump(made, open(of + name + '.pickle', 'wb'))
def several(s):
    s['segments'] += [dict(segment, device=2) for segment in s['segments']]
    s['device_traces'] = [s['device_traces'][0], [], s['device_traces'][0]]
def no_lines(s):
    for entry in s['device_traces'][0]:
        entry['frames'] = [{'filename': '', 'name': 'a function of a library', 'line': 2 ** 64 - 1}]
def by_driver(s): s['allocator_settings']['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'
def ring(s):
    first = next(i for i, e in enumerate(s['device_traces'][0]) if e['action'] == 'free_completed')
    s['device_traces'] = [s['device_traces'][0][first + 200:]]
write('several', several)
write('no_lines', no_lines)
write('by_driver', by_driver)
write('ring', ring)
write('state', lambda s: s.update(device_traces=[[]]))
]=])
foreach(recipe IN ITEMS pytorch pytorch_expandable)
  expect(0 "after operation" snapshot ${TRACE} --recipe ${recipe} --out ${of}one.pickle --at end)
  execute_process(COMMAND ${python} -c "${make}" ${of} COMMAND_ERROR_IS_FATAL ANY)

  expect(0 "several.pickle, device 0: agrees" verify ${of}several.pickle)
  expect_also("several.pickle, device 2: agrees")
  expect(0 "several.pickle, device 2: agrees" verify ${of}several.pickle --device 2)
  if(last MATCHES "device 0")
    message(FATAL_ERROR "device 0 was not asked for:\n${last}")
  endif()
  expect(2 "several.pickle: has no device 1; it has 0, 2" verify ${of}several.pickle --device 1)
  expect(0 "no_lines.pickle, device 0: agrees" verify ${of}no_lines.pickle)
  expect(0 "state.pickle, device 0: nothing to verify" verify ${of}state.pickle)
  expect(2 "by_driver.pickle: device 0: was recorded under backend:cudaMallocAsync, where the driver decides, not PyTorch"
         verify ${of}by_driver.pickle ${of}one.pickle)
  expect_also("one.pickle, device 0: agrees")

  # Each file is tried, what is printed is whole, and the worst exit code counts.
  expect(2 "none.pickle: cannot be opened" verify --json ${of}one.pickle ${of}none.pickle ${of}state.pickle)
  look("assert [f.get('agrees') for f in found] == [True, None, None] and 'cannot be opened' in found[1]['error']")
  expect(2 "none.pickle: cannot be opened" compare --json ${of}none.pickle ${of}several.pickle)
  look("assert ['error' in f for f in found] == [True, False, False] and [f['device'] for f in found[1:]] == [0, 2]")

  # The row of the recorded settings reserves what the recorded device did, wherever the history begins.
  expect(0 "ring" compare --json ${of}ring.pickle ${of}one.pickle)
  look("
for f in found:
    row = f['recorded']
    assert row['recipe'] == 'recorded' and row['agrees'] and row['peak_reserved'] > 0 and row['acquire'] + row['map'] > 0, f
assert found[0]['recorded']['cached_at_start'] > 0
assert found[0]['recorded']['peak_reserved'] == found[1]['recorded']['peak_reserved']")
  expect(0 "\n  what the GPU did " compare ${of}ring.pickle)
endforeach()

expect(0 "several, device 0, pytorch, --conf expandable_segments:True: completes with a capacity of " fit ${of}several.pickle)
expect_also("several, device 2, pytorch, --conf expandable_segments:True: completes with a capacity of ")
expect(0 "trace=devices_several, device 2\n" decisions ${of}several.pickle --device 2)
expect(0 "several, device 2\"" fit --json ${of}several.pickle)
look("assert [f['trace'] for f in found] == ['devices_several, device 0', 'devices_several, device 2']")
expect(0 "it.device0.svg: " draw ${of}several.pickle --out ${of}it.svg)
expect_also("it.device2.svg: ")
expect(0 "it.svg: " draw ${of}several.pickle --out ${of}it.svg --device 2)
expect(0 "2 ranks; worst " ranks ${of}several.pickle --recipe pytorch)
expect_also("  devices_several, device 0 ")
expect_also("  devices_several, device 2 ")
expect(2 "has no devices; --device is for snapshots" fit ${TRACE} --device 0)
expect(2 "--device one: must be a number from 0 on, or all" fit ${TRACE} --device one)
