# SPDX-License-Identifier: Apache-2.0
"""Checks the library inside PyTorch: python3 check.py LIBRARY. Exits with 77 if PyTorch is not installed."""
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time

try:
    import torch
except ImportError:
    sys.exit(77)


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((10_000,), float(index)).square()


def main(path):
    older = torch.ones(1000)
    older_of_onednn = torch.ones(2, 8, 16, 16).to_mkldnn()
    torch.ops.load_library(path)
    library = ctypes.CDLL(path)
    library.tessera_cpu_statistics.restype = ctypes.c_size_t
    library.tessera_cpu_memory_fraction.argtypes = [ctypes.c_double]
    library.tessera_cpu_memory_fraction.restype = ctypes.c_bool
    library.tessera_cpu_evict_after.argtypes = [ctypes.c_int64]
    library.tessera_cpu_evict_after.restype = ctypes.c_bool
    library.tessera_cpu_garbage_collection_threshold.argtypes = [ctypes.c_double]
    library.tessera_cpu_garbage_collection_threshold.restype = ctypes.c_bool

    def statistics(name):
        text = ctypes.create_string_buffer(32768)
        length = library.tessera_cpu_statistics(text, ctypes.c_size_t(len(text)))
        check(length < len(text), "the statistics fit")
        return json.loads(text.value)[name]["all"]

    # Memory of the previous allocator is still valid, and goes back to it.
    check(older.sum().item() == 1000 and older_of_onednn.to_dense().sum().item() == 4096, "old memory is kept")
    older.resize_(1 << 20)
    del older, older_of_onednn

    before = statistics("allocated_bytes")["current"]
    tensor = torch.zeros(1 << 22)
    check(statistics("allocated_bytes")["current"] == before + (1 << 24), "a tensor of 16 MiB is counted")
    check(tensor.data_ptr() % 64 == 0, "aligned to 64 bytes")
    check(torch.empty(0).data_ptr() == 0, "0 bytes have no address")
    check(torch.empty(3).data_ptr() % 64 == 0, "small tensors are aligned")
    array = tensor.numpy()
    del tensor
    array[:] = 1
    check(array.sum() == 1 << 22, "numpy keeps the memory")
    del array
    check(statistics("allocated_bytes")["current"] == before, "all is freed")

    # The profiler counts memory.
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.zeros(1 << 20)
    check(max(e.cpu_memory_usage for e in profile.key_averages()) >= 1 << 22, "the profiler sees 4 MiB")

    # Many threads allocate, and free what others allocated.
    given, wrong, is_over = [], [], threading.Event()

    def work(number):
        for i in range(500):
            given.append(torch.full((i * 37 + 1,), float(number)))
            taken = given.pop()
            if taken.min() != taken.max():
                wrong.append(number)

    def lock():
        while not is_over.is_set():
            statistics("allocation")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    lockers = [threading.Thread(target=lock) for _ in range(4)]
    for thread in threads + lockers:
        thread.start()

    # Children of fork() allocate, although other threads held the allocator's mutex.
    for _ in range(50):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that waits forever
            os._exit(0 if torch.full((1000,), 3.0).sum().item() == 3000 else 1)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            is_over.set()
        check(status == 0, "a child of fork() allocates")
    is_over.set()
    for thread in threads + lockers:
        thread.join()
    check(not wrong, "no two tensors share memory")
    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    total = sum(batch[:, 0].sum().item() for batch in loader)
    check(total == sum(i * i for i in range(64)), "the workers of a DataLoader allocate")

    # Memory runs out.
    for size in 1 << 50, 1 << 60:
        try:
            torch.empty(size, dtype=torch.uint8)
            check(False, "too much memory is refused")
        except RuntimeError as error:
            check("DefaultCPUAllocator: can't allocate memory" in str(error), "PyTorch's text")
            check("tessera: out of memory" in str(error), "tessera's text")
    gc.collect()
    library.tessera_cpu_empty_cache()
    kept = torch.zeros(1 << 24)
    check(library.tessera_cpu_memory_fraction(0.0), "a limit")
    try:
        torch.empty(1 << 28)
        check(False, "the limit holds")
    except RuntimeError as error:
        check("at most" in str(error), "the text names the limit")
    check(library.tessera_cpu_memory_fraction(1.0), "no limit")
    check(not library.tessera_cpu_memory_fraction(2.0), "2 is no fraction")
    check(library.tessera_cpu_garbage_collection_threshold(0.5), "a threshold")
    check(torch.empty(1 << 26).numel() == 1 << 26, "memory is available again")
    check(kept.sum() == 0, "kept memory")

    # Cached memory goes back.
    reserved = statistics("reserved_bytes")["current"]
    library.tessera_cpu_empty_cache()
    check(statistics("reserved_bytes")["current"] < reserved, "cached memory is released")

    # Idle memory goes back by itself, also in a child of fork().
    def is_released():
        """Whether memory of 256 MiB goes back within a minute after its free."""
        kept = torch.empty(1 << 20)  # the child's free of another block starts its thread
        torch.empty(1 << 26)  # not zeros, whose threads a child does not have
        del kept
        end = time.monotonic() + 60
        while statistics("reserved_bytes")["current"] >= 1 << 28 and time.monotonic() < end:
            time.sleep(0.01)
        return statistics("reserved_bytes")["current"] < 1 << 28

    library.tessera_cpu_empty_cache()
    torch.zeros(1 << 26)
    time.sleep(0.2)
    check(statistics("reserved_bytes")["current"] >= 1 << 28, "without a time, idle memory stays")
    check(library.tessera_cpu_evict_after(50), "a thread starts")
    check(is_released(), "idle memory goes back")
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(0 if is_released() else 1)
    check(os.waitpid(child, 0)[1] == 0, "idle memory of a child goes back")
    check(library.tessera_cpu_evict_after(-1), "no time")
    torch.zeros(1 << 26)
    time.sleep(0.5)
    check(statistics("reserved_bytes")["current"] >= 1 << 28, "without a time, idle memory stays again")

    check(statistics("allocation")["allocated"] > 1000, "the allocator served the requests")
    print("PyTorch allocates from tessera")


if __name__ == "__main__":
    main(sys.argv[1])
