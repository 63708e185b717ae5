# Runs tessera-replay on snapshots that say how they were recorded: each verb uses the recorded settings and capacity, and says so.
#   cmake -D REPLAY=program -D SCRATCH=folder -P recorded_settings.cmake
cmake_minimum_required(VERSION 3.24)
find_program(python python3)
if(NOT python)
  message("SKIPPED: no python3")
  return()
endif()

file(MAKE_DIRECTORY ${SCRATCH})
set(of ${SCRATCH}/settings_)
include(${CMAKE_CURRENT_LIST_DIR}/expect.cmake)

# Histories as PyTorch writes them. A device is a list of entries, and its segments are what they leave.
set(make [=[
import pickle, sys
of = sys.argv[1]
M = 1 << 20
base = 0x7f0000000000
class device:
    def __init__(self, expandable=False):
        self.entries, self.segments, self.live, self.expandable = [], {}, {}, expandable
    def add(self, action, **more):
        self.entries.append(dict(action=action, stream=0, time_us=len(self.entries), **more))
    def grow(self, at, size):
        self.add('segment_map' if self.expandable else 'segment_alloc', addr=base + at, size=size)
        self.segments[at] = size
    def shrink(self, at):
        self.add('segment_unmap' if self.expandable else 'segment_free', addr=base + at, size=self.segments.pop(at))
    def alloc(self, at, size):
        self.add('alloc', addr=base + at, size=size, frames=[{'filename': 'train.py', 'name': 'step', 'line': 7}])
        self.live[at] = size
    def free(self, at):
        size = self.live.pop(at)
        self.add('free_requested', addr=base + at, size=size)
        self.add('free_completed', addr=base + at, size=size)
    def oom(self, size, free):
        self.add('oom', size=size, device_free=free, addr=0, frames=[{'filename': 'train.py', 'name': 'grow', 'line': 9}])
    def runs(self):
        joined = []
        for at in sorted(self.segments):
            if self.expandable and joined and joined[-1][0] + joined[-1][1] == at:
                joined[-1][1] += self.segments[at]
            else:
                joined.append([at, self.segments[at]])
        return joined
    def state(self, number):
        for at, size in self.runs():
            blocks, here = [], at
            for b in sorted(b for b in self.live if at <= b < at + size):
                if b > here: blocks.append(dict(size=b - here, requested_size=0, state='inactive'))
                blocks.append(dict(size=self.live[b], requested_size=self.live[b], state='active_allocated'))
                here = b + self.live[b]
            if here < at + size: blocks.append(dict(size=at + size - here, requested_size=0, state='inactive'))
            yield dict(device=number, address=base + at, total_size=size, stream=0, segment_type='large',
                       is_expandable=self.expandable, segment_pool_id=(0, 0), blocks=blocks)
def write(name, devices, conf='', **settings):
    default = dict(PYTORCH_CUDA_ALLOC_CONF=conf, max_split_size=-1, garbage_collection_threshold=0.0,
                   expandable_segments='expandable_segments:True' in conf,
                   roundup_power2_divisions={str(1 << i): 0 for i in range(16)})
    default.update(settings)
    pickle.dump(dict(segments=[s for i, d in enumerate(devices) for s in d.state(i)],
                     device_traces=[d.entries for d in devices], allocator_settings=default),
                open(of + name + '.pickle', 'wb'))

# 200 MiB with expandable segments. A block of 30 MiB fits in a hole only because pages are mapped; then 100 MiB are too many.
d = device(True)
d.grow(0, 40 * M), d.alloc(0, 40 * M)
d.grow(40 * M, 40 * M), d.alloc(40 * M, 40 * M)
d.grow(80 * M, 40 * M), d.alloc(80 * M, 40 * M)
d.free(40 * M)
d.alloc(40 * M, 30 * M)
d.oom(100 * M, 80 * M)
write('expandable', [d], 'expandable_segments:True')

# The same as a process writes it that set the configuration while it ran, and that used one of two devices.
other = device()
other.add('snapshot', addr=0, size=0)
write('set_later', [d, other], '', expandable_segments=True)

# A request of 83 GiB that the program survives, then 60 MiB of 80 MiB.
d = device()
d.oom(83 << 30, 80 * M)
d.grow(0, 60 * M), d.alloc(0, 60 * M), d.free(0)
write('refused', [d])

# A request of 83 GiB that the program survives, then the one that ends it.
d = device()
d.oom(83 << 30, 80 * M)
d.grow(0, 60 * M), d.alloc(0, 60 * M)
d.grow(100 * M, 10 * M), d.alloc(100 * M, 10 * M)
d.oom(60 * M, 10 * M)
d.free(0)
write('survived', [d])

# A request of 50 MiB that fails although 300 MiB are free: a fraction of at least 100 MiB, and less than 150 MiB.
d = device()
d.grow(0, 100 * M), d.alloc(0, 100 * M)
d.oom(50 * M, 300 * M)
write('fraction', [d])

# The beginning is lost: at the start, 60 MiB are live, and 40 MiB cached in another segment.
d = device()
d.grow(0, 60 * M), d.alloc(0, 60 * M)
d.grow(100 * M, 40 * M), d.alloc(100 * M, 40 * M), d.free(100 * M)
lost = len(d.entries)
for i in range(3): d.alloc(100 * M, 40 * M), d.free(100 * M)
d.entries = d.entries[lost:]
write('ring', [d])
write('settings', [d], 'max_split_size_mb:64', max_split_size=64 * M)
write('two', [d, d])
write('by_driver', [d], 'backend:cudaMallocAsync')
# A recording that no rule explains: 20 MiB are served from the end of a free block.
d = device()
d.grow(0, 40 * M), d.alloc(0, 40 * M), d.free(0), d.alloc(20 * M, 20 * M)
write('unlike', [d])
]=])
execute_process(COMMAND ${python} -c "${make}" ${of} COMMAND_ERROR_IS_FATAL ANY)

# The request that failed is the last one, under the recorded settings and capacity.
set(from "recipe pytorch (recorded), conf expandable_segments:True (recorded), capacity 209715200 bytes (deduced from the out-of-memory)")
foreach(name IN ITEMS expandable set_later)
  expect(1 "settings_${name}, pytorch, --conf expandable_segments:True: with a capacity of 209715200 bytes (reserved plus free when the recording ran out of memory), memory runs out at event 5 of 6, for id 4; "
         explain-oom ${of}${name}.pickle)
  expect_also("\n  used: ${from}\n  the state is the recorded one, before entry 9 of the history\n")
  expect_also("tessera: out of memory: 100.00 MiB (104857600 bytes) requested on the default stream")
  expect_also("train.py:7 in step")
endforeach()
expect(1 "" explain-oom ${of}expandable.pickle --json)
look("
assert found['event'] == 5 and found['bytes'] == 100 << 20 and found['failed_when_recorded'] and not found['completes'], found
assert found['state'] == 'recorded' and found['reserved'] == 120 << 20 and found['allocated'] == 110 << 20, found
s = found['settings']
assert s['conf'] == 'expandable_segments:True' and s['conf_from'] == s['recipe_from'] == 'recorded', s
assert s['capacity'] == 200 << 20 and s['capacity_from'] == 'deduced from the out-of-memory', s
assert found['line'] == 'train.py:9 in grow' and found['stack'] == ['train.py:9 in grow'], found
assert found['held'] == [{'line': 'train.py:7 in step', 'blocks': 3, 'bytes': 110 << 20, 'keeps_non_releasable': 10 << 20}], found
assert found['held_by_others'] == 0, found
assert 'train.py:7 in step' in found['blocks'][0] and found['text'][0].startswith('tessera: out of memory')")
# What the command line says takes its place.
expect(0 "settings_expandable, pytorch: completes with a capacity of 1073741824 bytes; " explain-oom ${of}expandable.pickle --recipe pytorch
       --capacity 1GiB)
expect_also("used: recipe pytorch (given), no conf (default), capacity 1073741824 bytes (given)\n")
expect(1 "settings_expandable, pytorch: with a capacity of 209715200 bytes" explain-oom ${of}expandable.pickle --recipe pytorch)
expect_also("used: recipe pytorch (given), no conf (default), capacity 209715200 bytes (deduced")
expect_also("\n  the state is that of a replay, which begins without a cache\n")

# Each verb names them.
expect(0 "\n  used: recipe pytorch (recorded), conf expandable_segments:True (recorded), capacities without a bound (default)\n" fit ${of}expandable.pickle)
expect_also("\n  the recorded device had 209715200 bytes (deduced from the out-of-memory)\n")
expect(1 "# pytorch-2.6.0 native allocator; conf=\"expandable_segments:True\" capacity=209715200 trace=settings_expandable\n# ${from}\nV+ 1 "
       decisions ${of}expandable.pickle)
expect(0 "\n  drawn: recorded\n  used: capacity 209715200 bytes (deduced from the out-of-memory)\n" draw ${of}expandable.pickle --out ${of}it.svg)
expect(1 "\n  used: ${from}\n" snapshot ${of}expandable.pickle --at end --out ${of}again.pickle)
expect(0 "\n  used to replay with and without the plan: ${from}\n" plan ${of}expandable.pickle)
expect_also("  capacity          209715200 bytes: the plan fits\n")
expect(0 "\n  used: capacity 209715200 bytes (deduced from the out-of-memory)\n" compare ${of}expandable.pickle)
foreach(verb IN ITEMS fit plan compare)
  expect(0 "\"recipe_from\": \"recorded\", \"conf\": \"expandable_segments:True\", \"conf_from\": \"recorded\", \"capacity\": " ${verb} --json
         ${of}expandable.pickle)
endforeach()
# tune compares with them.
expect(0 "  as recorded: pytorch, expandable_segments:True\n" tune ${of}expandable.pickle)
expect_also("  for comparison, pytorch, the recorded settings and the shipped recipe that needs least memory:\n")
expect(0 "  pytorch, as recorded\n" tune ${of}ring.pickle)
# In a range, a block keeps the free memory beside it.
expect(1 "\n    train.py:7 in step: 2 blocks of 70.00 MiB keep 10.00 MiB\n" explain-oom ${of}expandable.pickle)
# The snapshot that a replay wrote says the same.
expect(1 "memory runs out at event 5 of 6" explain-oom ${of}again.pickle)

# A request that failed is not live.
expect(0 "" fit --json ${of}refused.pickle)
look("
assert found['peak_live'] == found['capacity'] == 60 << 20, found
assert found['refused_requests'] == 1 and found['capacity_with_refused'] == (83 << 30), found")
# A survived request is not explained, as the program went on.
expect(0 "settings_survived, pytorch: completes with a capacity of 2147483648 bytes" explain-oom ${of}survived.pickle --capacity 2GiB)
expect(1 "memory runs out at event 3 of 5" explain-oom ${of}survived.pickle)
expect_also("; the program survived 1 failed request before\n")
expect(0 "  peak live          62914560 bytes\n" plan ${of}refused.pickle)
expect(0 "" compare --json ${of}refused.pickle)
look("
assert found[0]['peak_live'] == 60 << 20 and found[0]['settings']['capacity'] == 80 << 20, found
assert all(r['over_peak_live'] >= 1 and r['failures'] == 1 for r in found[0]['recipes'] + [found[0]['recorded']]), found")

# A request that failed although the device had room.
expect(1 "  a memory fraction was set: a request of 52428800 bytes failed although 314572800 bytes of the device were free. It allowed at least 104857600 bytes and less than 157286400. This report is under 104857600, so what helps here helps in each case\n"
       explain-oom ${of}fraction.pickle)
expect_also("capacity 419430400 bytes (deduced from the out-of-memory), at most 104857600 bytes reserved (deduced from the out-of-memory: a memory fraction)")
expect_also("  hint: raise the limit above 100.00 MiB, as the device has more: growth.limit")
expect(0 "completes with a capacity of 419430400 bytes; " explain-oom ${of}fraction.pickle --capacity 419430400)
expect(0 "" compare --json ${of}fraction.pickle)
look("assert found[0]['settings']['memory_limit'] == 100 << 20 and found[0]['settings']['memory_limit_below'] == 150 << 20, found")

# What the GPU did is not among the recipes, which all begin without its cache.
expect(0 "\n  what the GPU did " compare ${of}ring.pickle)
expect_also("\n  recorded                              100.0        1.000                 40.0 ")
expect_also("    began with 40.0 MiB cached; the recipe decides likewise: see verify\n")
expect_also("  all recipes begin without a cache and with the 1 block that was live when the history begins, and release memory ")
expect_also("\n  paddle_naive_best_fit is left out: it reserves a share of the device, whose capacity the trace does not say; set --capacity\n")
expect(0 "" compare --json ${of}ring.pickle)
look("
names = [r['recipe'] for r in found[0]['recipes']]
assert found[0]['recorded']['cached_at_start'] == 40 << 20 and found[0]['recorded']['agrees'] and found[0]['start'] == 'cold', found
assert 'recorded' not in names and names.count('pytorch') == 1 and 'paddle_naive_best_fit' not in names, names")
expect(0 "\n  paddle_naive_best_fit " compare ${of}ring.pickle --capacity 1GiB)
expect(0 "\n  paddle_naive_best_fit " compare ${of}ring.pickle --recipe paddle_naive_best_fit)
expect(0 "\n  pytorch, recorded conf " compare ${of}settings.pickle)

# draw shows the recorded run, and other recipes on request.
expect(0 "it.svg: The recorded run reserved 1.00" draw ${of}ring.pickle --out ${of}it.svg)
file(READ ${of}it.svg text)
if(NOT text MATCHES "recorded" OR text MATCHES "stitched|pytorch" OR NOT text MATCHES "the first 1 of what was live when the history begins")
  message(FATAL_ERROR "${of}it.svg shows another run than the recorded one")
endif()
expect(0 "; without a cache at the start, stitched reserves " draw ${of}ring.pickle --recipe stitched --out ${of}it.html)
file(READ ${of}it.html text)
if(NOT text MATCHES "\"name\":\"recorded\"" OR NOT text MATCHES "\"start\":1,")
  message(FATAL_ERROR "${of}it.html does not show the recorded run")
endif()
# Its peak was reserved before the history: the page begins where most of it is in use. Nothing measured its retries and times.
if(NOT text MATCHES "\"name\":\"recorded\",\"is\":\"recorded\",\"failures\":0,\"moment\":1,")
  message(FATAL_ERROR "${of}it.html begins at another event")
endif()
if(NOT text MATCHES ">recorded</th>[^\n]*<td>–</td><td>0</td><td>–</td></tr>\n<tr><th scope=\"rowgroup\"[^\n]*>replayed, without a cache at the start</th></tr>\n")
  message(FATAL_ERROR "the table of ${of}it.html does not set the recorded run apart")
endif()

# Several devices: one result each. One that was not used is no error.
expect(0 "it.device0.svg: " draw ${of}two.pickle --out ${of}it.svg)
expect_also("it.device1.svg: ")
expect(0 "it.device1.pickle: after operation " snapshot ${of}two.pickle --out ${of}it.pickle --device all)
expect(0 "settings_two, device 1: " plan ${of}two.pickle --out ${of}plan.csv)
if(NOT EXISTS ${of}plan.device0.csv OR NOT EXISTS ${of}plan.device1.csv)
  message(FATAL_ERROR "plan wrote no file for each device")
endif()
expect(0 "it.svg: " draw ${of}two.pickle --device 1 --out ${of}it.svg)
foreach(verb IN ITEMS verify compare fit)
  expect(0 "" ${verb} ${of}set_later.pickle)
endforeach()
expect(1 " -> OOM\n" decisions ${of}set_later.pickle)
expect(0 "set_later.pickle, device 0: agrees" verify ${of}set_later.pickle)

# Where the driver decided, no verb replays.
foreach(verb IN ITEMS compare decisions fit explain-oom tune plan "draw;--out;${of}none.svg" "snapshot;--out;${of}none.pickle" verify)
  expect(2 "by_driver.pickle: device 0: was recorded under backend:cudaMallocAsync, where the driver decides, not PyTorch" ${verb}
         ${of}by_driver.pickle)
endforeach()
if(EXISTS ${of}none.svg OR EXISTS ${of}none.pickle)
  message(FATAL_ERROR "A file was written although the recording is refused")
endif()

# The first difference says all of itself.
expect(1 "  first difference allocation 1, entry 4 of the history: 20971520 bytes, at 0x7f0001400000 on the GPU, at 0x7f0000000000 replayed, train.py:7 in step\n"
       verify ${of}unlike.pickle)
expect_also("\n  rules tried      PyTorch 2.6 and 2.14; shown are those of 2.6, which agree longest\n")
expect(1 "" verify --json ${of}unlike.pickle)
look("
d = found[0]['first_difference']
assert (d['allocation'], d['entry'], d['bytes'], d['expected'], d['given']) == (1, 4, 20 << 20, 0x7f0001400000, 0x7f0000000000), d
assert d['line'] == 'train.py:7 in step' and found[0]['rules_tried'] == ['2.6', '2.14'], found")
