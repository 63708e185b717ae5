# SPDX-License-Identifier: Apache-2.0
"""Checks the module tessera_torch inside a PyTorch for CUDA, with each of the two libraries.

    check.py FOLDER [--brief] [c10|pluggable]...

With --brief, one program follows a plan instead of two, which takes half the time. FOLDER has tessera_torch, workloads.py,
libtessera_c10.so, libtessera_cuda.so and tessera-replay. The build packs them and this file into check.pyz, which needs no FOLDER.
Exits with 77 if PyTorch is missing or has no GPU.
"""
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile

try:
    import torch
except ImportError:
    sys.exit(77)

LIBRARIES = {"c10": "libtessera_c10.so", "pluggable": "libtessera_cuda.so"}
MIB = 1 << 20


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def refuses(kind, parts, call, *arguments, **named):
    """Checks that a call raises an error of a kind, whose text has all parts."""
    try:
        call(*arguments, **named)
    except kind as error:
        for part in parts:
            check(part in str(error), f"{part!r} is in {str(error)!r}")
        return
    check(False, f"{call.__name__} raises {kind.__name__} with {parts}")


class Check:
    """The checks of one way. The methods without an underscore run, each in its process."""

    def __init__(self, folder, way, brief):
        self.folder, self.way, self.brief = pathlib.Path(folder), way, brief
        self.library = str(self.folder / LIBRARIES[way])

    def _install(self, **named):
        import tessera_torch

        tessera_torch.install(library=self.library, **named)
        return tessera_torch

    def _replay(self, *arguments, status=0):
        done = subprocess.run([self.folder / "tessera-replay", *arguments], capture_output=True, text=True)
        check(done.returncode == status, f"tessera-replay {arguments} ends with {status}: {done.returncode} {done.stdout}{done.stderr}")
        return done.stdout

    @staticmethod
    def _work():
        """A small program. Tensors come from the host, so that their contents are right without kernels."""
        kept = [torch.empty(n * 1000, dtype=torch.uint8, device="cuda") for n in (1, 500, 3000, 25000, 700, 2)]
        del kept[1:4]
        side = torch.cuda.Stream()
        kept.append(torch.empty(9 * MIB, dtype=torch.uint8, device="cuda"))
        kept[-1].record_stream(side)
        kept.append(torch.arange(100_000).cuda())
        del kept[-2]
        return kept

    def statistics(self):
        def write():
            kept = self._work()
            pathlib.Path("native.json").write_text(json.dumps(torch.cuda.memory_stats()))
            check(len(kept) == 4, "the tensors live")

        check(run(write) == 0, "PyTorch's own allocator works")
        expected = json.loads(pathlib.Path("native.json").read_text())
        tessera_torch = self._install()
        kept = self._work()
        counted = torch.cuda.memory_stats()
        check(list(counted) == sorted(expected), f"the keys are PyTorch's: {set(counted) ^ set(expected)}")
        other = {key: (counted[key], expected[key]) for key in expected if counted[key] != expected[key]}
        check(not other, f"the numbers are those of PyTorch's allocator, too: {other}")
        nested = tessera_torch.statistics()
        check(nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated() > 0, "nested statistics")
        check(len(kept) == 4, "the tensors live")

    def calls_of_memory(self):
        # Names that a program imported before work, too.
        from torch.cuda import max_memory_allocated, memory_allocated, reset_peak_memory_stats
        from torch.cuda.memory import max_memory_reserved, memory_reserved

        self._install()
        check(torch.cuda.memory_stats() == {} and memory_allocated() == 0, "nothing is counted before the first use")
        kept = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        check(memory_allocated() == torch.cuda.memory.memory_allocated() == 10 * MIB, "allocated")
        check(max_memory_allocated() == torch.cuda.memory.max_memory_allocated() == 50 * MIB, "the peak")
        check(memory_reserved() == max_memory_reserved() == torch.cuda.memory_reserved() >= 50 * MIB, "reserved")
        torch.cuda.empty_cache()
        check(memory_reserved() < max_memory_reserved(), "the cache is empty")
        reset_peak_memory_stats()
        check(max_memory_allocated() == 10 * MIB and max_memory_reserved() == memory_reserved(), "the peaks are reset")
        torch.cuda.reset_accumulated_memory_stats()
        check(torch.cuda.memory_stats()["allocation.all.allocated"] == 0, "the sums are reset")
        check("PyTorch CUDA memory summary" in torch.cuda.memory_summary(), "the summary")
        free, total = torch.cuda.mem_get_info()
        check(0 < free < total, "the device")
        segments = torch.cuda.memory_snapshot()
        check(sum(s["total_size"] for s in segments) == memory_reserved(), "the segments are what is reserved")
        check(kept.numel() == 10 * MIB, "the tensor lives")

    def memory_fraction(self):
        self._install()
        check(torch.cuda.get_per_process_memory_fraction() == 1, "no fraction is set")
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(0.25)
        check(abs(torch.cuda.get_per_process_memory_fraction() - 0.25) < 1e-6, "the fraction")
        refuses(torch.OutOfMemoryError, ["CUDA out of memory"], torch.empty, total // 2, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        check(torch.empty(total // 2, dtype=torch.uint8, device="cuda").is_cuda, "the limit is gone")

    def snapshots(self):
        self._install()
        before = self._work()
        torch.cuda.memory._record_memory_history()
        check(torch._C._cuda_isHistoryEnabled(), "the history is on")
        kept = self._work()
        torch.cuda.memory._dump_snapshot("job.pickle")
        torch.cuda.memory._record_memory_history(None)
        check(not torch._C._cuda_isHistoryEnabled(), "the history is off")
        snapshot = pickle.loads(pathlib.Path("job.pickle").read_bytes())
        actions = [entry["action"] for entry in snapshot["device_traces"][0]]
        check(actions.count("alloc") >= len(kept) and "free_completed" in actions, f"the history has events: {actions}")
        allocated = sum(s["allocated_size"] for s in snapshot["segments"])
        check(allocated == torch.cuda.memory_allocated() > 0, "the snapshot has the memory of all tensors")
        self._replay("verify", "job.pickle")
        refuses(RuntimeError, ["expected"], torch.cuda.memory._record_memory_history, "everything")
        check(len(before) == len(kept), "the tensors live")

    def recordings(self):
        from tessera_torch import _trace

        tessera_torch = self._install()
        before = self._work()
        with tessera_torch.record("job.pickle"):
            kept = self._work()
            del before[2:], kept[3]
            torch.cuda.empty_cache()
            del kept[2]
            refuses(torch.OutOfMemoryError, [], torch.empty, 1 << 50, dtype=torch.uint8, device="cuda")
        with tessera_torch.record("job.csv"):
            kept += self._work()
        check(pathlib.Path("job.csv").read_text().startswith("op,id,bytes,stream,t_us\na,"), "a trace")
        self._replay("compare", "job.csv")
        # The trace of a snapshot has the events that tessera-replay finds in it.
        snapshot = pickle.loads(pathlib.Path("job.pickle").read_bytes())
        pathlib.Path("same.csv").write_text(_trace.to_csv(snapshot, 0))
        events = pathlib.Path("same.csv").read_text().splitlines()
        check({"a", "f", "c"} <= {line[0] for line in events[1:]} and len(events) > 15, f"the trace has events: {events}")
        decided, same = (
            # Comments have the name of the file, and what it says about its settings. A request is refused, so the status is 1.
            [line for line in self._replay("decisions", name, "--capacity", "80GiB", status=1).splitlines() if line[0] != "#"]
            for name in ("job.pickle", "same.csv")
        )
        check(len(decided) > 15 and decided == same, f"the same decisions: {decided} {same}")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with tessera_torch.record("short.csv", max_entries=3):
                kept += self._work()
        check(any("lacks the beginning" in str(w.message) for w in seen), "a warning that events were dropped")
        self._replay("compare", "short.csv")

    def out_of_memory(self):
        tessera_torch = self._install()
        kept = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        check(tessera_torch.explain_last_oom() == "", "nothing failed")
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
        for _ in range(2):
            refuses(torch.OutOfMemoryError, ["CUDA out of memory. Tried to allocate", "GPU 0 has a total capacity of"],
                    torch.empty, 1 << 50, dtype=torch.uint8, device="cuda")
        check(len(seen) == 2 and seen[0][0] == 0 and seen[0][1] == 1 << 50, f"the observer is called: {seen}")
        text = tessera_torch.explain_last_oom()
        check("requested on stream" in text and "live 10.00 MiB" in text, f"the explanation: {text!r}")
        check(torch.cuda.memory_stats()["num_ooms"] == 2, "failures are counted")
        check(kept.cpu().numel() == torch.empty(10 * MIB, dtype=torch.uint8, device="cuda").numel(), "memory is available")

    def sleep(self):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        tessera_torch = self._install()
        contents = torch.arange(8 * MIB)
        x = contents.cuda()
        address, awake = x.data_ptr(), torch.cuda.mem_get_info()[0]
        tessera_torch.sleep()
        check(torch.cuda.mem_get_info()[0] >= awake + 64 * MIB, "the driver has the memory back")
        tessera_torch.wake(torch.device("cuda"))
        check(torch.cuda.mem_get_info()[0] == awake and x.data_ptr() == address, "the memory is here again")
        check(torch.equal(x.cpu(), contents), "with its contents")
        tessera_torch.sleep(0, save=False)
        tessera_torch.wake("cuda:0")

    def sleep_without_ranges(self):
        tessera_torch = self._install()
        x = torch.empty(MIB, device="cuda")
        refuses(RuntimeError, ["tessera"], tessera_torch.sleep)
        check(x.is_cuda, "the tensor lives")

    def graphs(self):
        self._install()
        x = torch.arange(1000).cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        torch.cuda.synchronize()
        check(torch.cuda.memory_allocated() >= x.nbytes + y.nbytes, "the memory of a graph lives")
        del graph, y

    def installs(self):
        import tessera_torch

        refuses(RuntimeError, ["install()"], tessera_torch.sleep)
        refuses(FileNotFoundError, ["nowhere.so", "tessera_c10", "tessera_cuda"], tessera_torch.install, library="nowhere.so")
        # The module is in a folder without libraries here.
        for variable in "TESSERA_C10", "TESSERA_CUDA":
            os.environ.pop(variable, None)
        refuses(FileNotFoundError, ["build the target tessera_c10, or tessera_cuda"], tessera_torch.install)
        import _ctypes

        refuses(ImportError, ["is neither"], tessera_torch.install, library=_ctypes.__file__)
        pathlib.Path("text.so").write_text("not a library")
        refuses(ImportError, ["text.so cannot be loaded into PyTorch"], tessera_torch.install, library="text.so")
        os.environ["TESSERA_C10" if self.way == "c10" else "TESSERA_CUDA"] = self.library
        tessera_torch.install()
        tessera_torch.install()
        tessera_torch.install(recipe="pytorch")
        refuses(RuntimeError, ["installed already, with the recipe pytorch"], tessera_torch.install, recipe="stitched")
        expected = "tessera" if self.way == "c10" else "pluggable"
        check(torch.cuda.get_allocator_backend() == expected, "PyTorch names it")

    def stitched(self):
        if self.way == "pluggable":
            import tessera_torch

            refuses(ImportError, ['no recipe "stitched"'], tessera_torch.install, library=self.library, recipe="stitched")
            return
        import tessera_torch

        for recipe, why in ("swift", 'there is no recipe "swift"'), ("nowhere.csv", "nowhere.csv: No such file"):
            refuses(RuntimeError, ["TESSERA_RECIPE", why], tessera_torch.install, library=self.library, recipe=recipe)
        tessera_torch = self._install(recipe="stitched")
        x = torch.arange(MIB).cuda()
        tessera_torch.sleep()
        tessera_torch.wake()
        check(x.cpu()[-1] == MIB - 1, "the recipe serves tensors")

    def follows_plans(self):
        """A program of workloads.py is recorded, and then reserves less with a plan of the recording."""
        if self.way != "c10":
            return
        # Over a stand-in for CUDA, events complete late, as on a GPU.
        environment = {**os.environ, "TESSERA_C10": self.library, "FAKECUDA_LAG": "500"}

        def peaks(*arguments):
            program = [sys.executable, str(self.folder / "workloads.py"), *arguments]
            done = subprocess.run(program, env=environment, capture_output=True, text=True)
            found = re.search(r"(\d+) MiB allocated at peak, (\d+) MiB reserved", done.stdout)
            check(found is not None, f"{arguments} runs: {done.stdout}{done.stderr}")
            return int(found[1]), int(found[2])

        for name in ("pipeline",) if self.brief else ("pipeline", "recompute"):
            allocated, reserved = peaks(name, "--record", "job.pickle")
            verified = json.loads(self._replay("verify", "job.pickle", "--json"))[0]
            check(verified["same_address"] == verified["allocations"] > 10_000, f"each block is where it was: {verified}")
            self._replay("plan", "job.pickle", "--out", "job.csv")
            planned = peaks(name, "job.csv")[1]
            # Streams share no memory of a plan.
            most = reserved - (reserved - allocated) // (3 if name == "pipeline" else 2)
            check(planned <= most, f"{name} needs {planned} MiB with a plan; {reserved} before, and {most} are enough")

    def other_version(self):
        """A library for another PyTorch is refused, and the other way is used instead."""
        import tessera_torch

        real, torch.__version__ = torch.__version__, "1.13.1"
        c10 = str(self.folder / LIBRARIES["c10"])
        refuses(ImportError, [f"was built for PyTorch {real.split('.')[0]}", "this is 1.13.1"], tessera_torch.install, library=c10)
        os.environ.update(TESSERA_C10=c10, TESSERA_CUDA=str(self.folder / LIBRARIES["pluggable"]))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            tessera_torch.install()
        check(len(seen) == 1 and "was built for" in str(seen[0].message), "a warning says why")
        check(torch.cuda.get_allocator_backend() == "pluggable", "the pluggable way is used")

    def forgotten_settings(self):
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "graph_capture_record_stream_reuse:True"
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            tessera_torch = self._install()
            tessera_torch.install()
        texts = " ".join(str(w.message) for w in seen)
        check(texts.count("graph_capture_record_stream_reuse has no effect") == 1, "a key without effect")
        check(texts.count("no memory is cached") == 1, "no cache")

    def late(self):
        import tessera_torch

        older = torch.arange(MIB).cuda()
        if self.way == "pluggable":
            refuses(RuntimeError, ["initialized already", "tessera_c10"], tessera_torch.install, library=self.library)
            return
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self._install()
        check(any("already" in str(w.message) for w in seen), "a warning about tensors that exist")
        newer = torch.arange(MIB).cuda()
        check(torch.equal(older.cpu(), newer.cpu()), "both allocators serve")
        del older, newer

    def refusals(self):
        """What PyTorch refuses for a pluggable allocator is refused in words."""
        self._install()
        x = torch.empty(MIB, device="cuda")
        if self.way == "c10":
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
            check(torch.cuda.MemPool().use_count() > 0, "pools work")
            return
        words = ["tessera: ", "build the target tessera_c10"]
        refuses(RuntimeError, words, torch.cuda.MemPool)
        refuses(RuntimeError, words, torch._C._cuda_getCheckpointState, 0, (0, 1))
        refuses(RuntimeError, words, torch._C._cuda_checkPoolLiveAllocations, 0, (0, 1), set())
        refuses(RuntimeError, words, torch.cuda.memory._set_allocator_settings, "expandable_segments:True")
        refuses(RuntimeError, words, x.untyped_storage()._share_cuda_)


def run(call, output=None):
    """Runs a call in a child, because a process installs one allocator. Returns its exit status; 1 if it raised."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        status = 1
        try:
            status = int(call() or 0)
        except SystemExit as end:
            print(end.code)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_all(folder, ways, brief):
    for name in [n for n in os.environ if n.startswith(("TESSERA_", "PYTORCH_"))]:
        del os.environ[name]
    names = [n for n in vars(Check) if not n.startswith("_")]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        # The module is in a folder without libraries, so that each check names the one that it wants.
        os.symlink(os.path.join(folder, "tessera_torch"), os.path.join(scratch, "tessera_torch"), target_is_directory=True)
        sys.path.insert(0, scratch)
        os.chdir(scratch)
        for way in ways:
            for name in names:
                with tempfile.TemporaryFile("w+") as output:
                    status = run(getattr(Check(folder, way, brief), name), output.fileno())
                    output.seek(0)
                    print(f"{way} {name}: {f'ends with {status}: {output.read()}' if status else 'passed'}", flush=True)
                failed += status != 0
    print(f"{failed} of {len(ways) * len(names)} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


def main(arguments):
    here = pathlib.Path(__file__).parent
    if here.is_file():  # a packed program
        with tempfile.TemporaryDirectory() as unpacked:
            zipfile.ZipFile(here).extractall(unpacked)
            os.chmod(os.path.join(unpacked, "tessera-replay"), 0o755)
            return subprocess.run([sys.executable, os.path.join(unpacked, "__main__.py"), unpacked, *arguments]).returncode
    folder, *words = arguments
    ways = [word for word in words if word != "--brief"]
    # In a child: children of a process that has used CUDA cannot use it.
    if run(lambda: not torch.cuda.is_available()) != 0:
        print("skipped: PyTorch finds no GPU")
        return 77
    return run_all(os.path.realpath(folder), ways or list(LIBRARIES), "--brief" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
