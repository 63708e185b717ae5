# SPDX-License-Identifier: Apache-2.0
"""Checks the backend inside PyTorch: check.py [--replay TESSERA-REPLAY]. Exits with 77 without PyTorch 2.9 or later.

CHIP_LIBRARY names the library. The programs that it trains are those of examples/torch_cpu.
"""
import argparse
import copy
import io
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

try:
    import torch
    from torch.accelerator import memory
except ImportError:
    sys.exit(77)

here = os.path.dirname(os.path.abspath(__file__))
sys.path += [here, os.path.join(here, "..", "torch_cpu")]
import chip
import train

MIB = 1 << 20
# Of the backend: the bytes of a device, and what its driver says if they do not suffice.
TOTAL = 1024 * MIB
REFUSAL = "the provider's limit is 1.00 GiB"


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def fails(call, *parts):
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return all(part in text for part in parts) or sys.exit(f"failed: another error: {text}")
    return False


def statistics():
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    check(memory.memory_reserved() == 0, "an empty cache reserves nothing")
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="chip")
    y = torch.empty(1, device="chip")
    check(memory.memory_allocated() == 5 * MIB + 512, "blocks are multiples of 512 bytes")
    check(memory.memory_reserved() == 22 * MIB, "a segment of 20 MiB and one of 2 MiB")
    del x, y
    check(memory.memory_allocated() == 0 and memory.max_memory_allocated() == 5 * MIB + 512, "the peak stays")
    stats = memory.memory_stats()
    check(stats["allocation.small_pool.peak"] == 1 and stats["num_device_alloc"] >= 2, "the counters of pools")
    memory.reset_peak_memory_stats()
    check(memory.max_memory_allocated() == 0, "the peak is reset")
    free, total = memory.get_memory_info()
    check(total == TOTAL and free == total - 22 * MIB, "what is free on the device")
    memory.empty_cache()
    check(memory.memory_reserved() == 0, "the cache is empty")


def out_of_memory():
    before = memory.memory_stats()["num_ooms"]
    check(fails(lambda: torch.empty(2 * TOTAL, dtype=torch.uint8, device="chip"), "OutOfMemoryError",
                "chip:0 out of memory. Tried to allocate", "tessera: out of memory", REFUSAL),
          "a request that exceeds the device fails")
    check(memory.memory_stats()["num_ooms"] == before + 1, "the failure is counted")


def devices():
    with torch.device("chip:1"):
        x = torch.ones(MIB)
        check(x.device.index == 1 and memory.memory_allocated(1) == 4 * MIB, "the second device has its own memory")
        check((x + x).sum().item() == 2 * MIB, "its kernels work")
    check(x.to("chip:0").sum().item() == MIB, "a copy between devices")
    for call in (lambda: torch.empty(1, device="chip:2"), lambda: torch.accelerator.synchronize(2),
                 lambda: memory.memory_allocated(2), lambda: torch.Stream("chip:2")):
        check(fails(call, "there is no device"), "there is no third device")


def storages():
    """Tensors whose storage changes, or is copied."""
    torch.accelerator.set_device_index(0)
    x = torch.full((4,), 5.0, device="chip:1")
    before = memory.memory_allocated(0), memory.memory_allocated(1)
    x.resize_(MIB)
    sum_of = torch.add(x[:4], 1, out=torch.empty(0, device="chip:1"))
    check(memory.memory_allocated(0) == before[0] and memory.memory_allocated(1) >= before[1] + 4 * MIB - 512,
          "resize_ and out= stay on the device")
    check(x[:4].eq(5).all().item() and sum_of.eq(6).all().item(), "resize_ keeps the numbers")
    x = torch.full((MIB,), 5.0, device="chip")
    sevens = torch.full((MIB,), 7.0).pin_memory()
    torch.ops.chip.busy(100)
    x.copy_(sevens, non_blocking=True)
    x.resize_(2 * MIB)
    check(x[:MIB].eq(7).all().item(), "resize_ waits for the work before it")
    file = io.BytesIO()
    torch.save(x[:5], file)
    file.seek(0)
    loaded = torch.load(file, map_location="chip")
    check(loaded.device.type == "chip" and loaded.eq(7).all().item(), "a tensor is saved and loaded")
    check(copy.deepcopy(x[:5]).eq(7).all().item() and x.untyped_storage().cpu().nbytes() == 8 * MIB, "copies of storages")
    check(fails(lambda: torch.empty(3, device="chip", pin_memory=True), "only memory of the CPU can be pinned"),
          "memory of the device is not pinned")


def side_streams(records):
    """Whether another stream still reads the right numbers after the memory was freed and asked for again."""
    memory.empty_cache()
    side = torch.Stream("chip")
    x = torch.full((MIB,), 1.0, device="chip")
    copy = torch.empty(MIB, pin_memory=True)
    with side:
        torch.ops.chip.busy(300)
        copy.copy_(x, non_blocking=True)
        if records:
            x.record_stream(side)
    del x
    y = torch.full((MIB,), 2.0, device="chip")
    side.synchronize()
    return copy.eq(1).all().item() and y.eq(2).all().item()


def pinned():
    x = torch.zeros(MIB, device="chip")
    host = torch.full((MIB,), 3.0).pin_memory()
    check(host.is_pinned() and not torch.zeros(1).is_pinned(), "which memory is pinned")
    part = torch.tensor(()).set_(host.untyped_storage()[4:], size=(8,), stride=(1,), storage_offset=0)
    check(part.data_ptr() != host.data_ptr() and part.is_pinned(), "a part of pinned memory is pinned")
    del part
    side = torch.Stream("chip")
    with side:
        torch.ops.chip.busy(200)
        x.copy_(host, non_blocking=True)
    del host  # the copy still reads it
    again = torch.full((MIB,), 4.0).pin_memory()
    side.synchronize()
    check(x.eq(3).all().item() and again.eq(4).all().item(), "pinned memory waits for the copy that reads it")


def events():
    first, second = torch.Event("chip"), torch.Event("chip")
    side = torch.Stream("chip")
    with side:
        torch.ops.chip.busy(100)
        first.record()
    check(not first.query(), "the event has not completed")
    check(not side.query(), "a stream with work is busy")
    torch.accelerator.current_stream().wait_event(first)
    second.record()
    second.synchronize()
    check(first.query() and second.query(), "a stream waits for the event of another")
    side.synchronize()
    check(side.query(), "a stream without work is idle")


def threads():
    errors = []

    def work(number):
        try:
            torch.accelerator.set_device_index(number % 2)
            with torch.Stream(f"chip:{number % 2}"):
                for i in range(200):
                    x = torch.full((1000 * (1 + i % 7),), float(number), device="chip")
                    if not x.eq(number).all().item():
                        errors.append(number)
        except Exception as error:
            errors.append(error)
    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    check(not errors, f"four threads: {errors}")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((10_000,), float(index)).square()


def data_loader():
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    total = torch.zeros((), device="chip")
    for batch in loader:
        check(batch.is_pinned(), "batches are in pinned memory")
        total += batch.to("chip", non_blocking=True).sum()
    check(total.item() == 10_000 * sum(i * i for i in range(32)), "a DataLoader with pinned memory")


def fork():
    x, host, event, stream = torch.ones(10, device="chip"), torch.ones(10), torch.Event("chip"), torch.Stream("chip")
    event.record()
    calls = (lambda: torch.empty(1, device="chip"), x.cpu, x[0].item, lambda: x.copy_(host), stream.synchronize, event.wait,
             event.synchronize, event.query, torch.accelerator.synchronize, memory.empty_cache, memory.memory_allocated,
             lambda: x.record_stream(stream), lambda: torch.Stream("chip"))
    child = os.fork()
    if child == 0:
        refused = [fails(call, "Cannot use chip in a forked process", "spawn") for call in calls]
        del x, event
        os._exit(0 if all(refused) and chip._is_in_bad_fork() else 1)
    check(os.waitpid(child, 0)[1] == 0, "a forked process is refused in words")
    check(x.sum().item() == 10, "the parent keeps its memory")


def profiler():
    with torch.profiler.profile(profile_memory=True) as seen:
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="chip")
        del x
    sizes = [e for e in seen.events() if e.name == "[memory]"]
    check(any(e.device_memory_usage == 3 * MIB for e in seen.events()) or sizes, "the profiler sees the memory")


def training(tool):
    """Trains on the CPU and on the device. The losses are equal. The decisions are those of PyTorch 2.14.

    The kernels are the same, but on some processors they sum in another order if a tensor is aligned otherwise. So the losses may
    differ in their last bits.
    """
    for name in "transformer", "resnet", "gnn":
        losses = {}
        for device in "cpu", "chip":
            with torch.device(device):
                torch.manual_seed(0)
                memory.empty_cache()
                memory.reset_peak_memory_stats()
                step = train.PROGRAMS[name]("small")
                losses[device] = [step().item() for _ in range(3)]
        del step
        equal = all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(losses["cpu"], losses["chip"], strict=True))
        check(equal, f"{name}: losses {losses}")
        peaks = memory.max_memory_allocated(), memory.max_memory_reserved()
        print(f"{name}: losses equal those of the CPU; peak allocated {peaks[0]}, reserved {peaks[1]} bytes", flush=True)
        if tool:
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "snapshot.pickle")
                torch.ops.chip.write_snapshot(file, 0)
                print(subprocess.run([tool, "verify", file], check=True, capture_output=True, text=True).stdout, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", help="the program tessera-replay, which replays what was recorded")
    tool = parser.parse_args().replay
    torch.set_num_threads(1)
    statistics()
    out_of_memory()
    devices()
    storages()
    check(side_streams(records=True), "memory is not reused while another stream reads it")
    check(not side_streams(records=False), "without record_stream, it is reused")
    pinned()
    events()
    threads()
    data_loader()
    profiler()
    training(tool)
    fork()
    print("all checks passed")


if __name__ == "__main__":
    main()
