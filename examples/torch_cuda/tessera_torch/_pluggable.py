# SPDX-License-Identifier: Apache-2.0
"""libtessera_cuda.so as PyTorch's CUDAPluggableAllocator.

PyTorch refuses statistics, snapshots and more for every pluggable allocator. So this replaces the functions of torch._C that
ask the allocator. The functions of torch.cuda and torch.cuda.memory call them, also those that were imported before.
"""

import ctypes
import functools
import json
import os
import pickle

import torch

from . import _warn, text_of

_SETTERS = {
    "set_init_fn": "tessera_init",
    "set_reset_fn": "tessera_reset",
    "set_memory_fraction_fn": "tessera_memory_fraction",
    "set_base_alloc_fn": "tessera_base_alloc",
    "set_record_stream_fn": "tessera_record_stream",
    "set_begin_allocate_to_pool": "tessera_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "tessera_end_allocate_to_pool",
    "set_release_pool": "tessera_release_pool",
}
_OF_POOLS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
             "inactive_split_bytes", "requested_bytes")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_NUMBERS = ("num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_COUNTERS = ("current", "peak", "allocated", "freed")
_MAX_ENTRIES = 4_000_000  # of 64 bytes, which each device reserves at once


class PluggableWay:
    """The library, and what it does for torch._C."""

    def __init__(self, path, library):
        self.path, self._library = path, library
        for name in "statistics", "snapshot", "last_error":
            getattr(library, "tessera_" + name).restype = ctypes.c_size_t
        library.tessera_sleep.restype = library.tessera_wake.restype = ctypes.c_bool
        library.tessera_sleep.argtypes = [ctypes.c_int, ctypes.c_bool]
        library.tessera_record_history.argtypes = [ctypes.c_size_t]
        self._fractions, self._explanations, self._observers = {}, {}, []
        self._has_history = self._has_warned = False
        # Kept: the library calls it.
        observer = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        self._observer = observer(self._on_out_of_memory)

    def install(self):
        if torch.cuda.is_initialized():
            raise RuntimeError("tessera: torch.cuda is initialized already; call tessera_torch.install() before the first use of "
                               "the GPU, or build the target tessera_c10, which can be installed later")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(self.path, "tessera_alloc", "tessera_free")
        for setter, name in _SETTERS.items():
            if not hasattr(allocator.allocator(), setter):
                _warn(f"PyTorch {torch.__version__} has no {setter}, so {name} is not used; record_stream, graphs or settings "
                      "have no effect. Use PyTorch 2.3 or later")
                continue
            function = getattr(self._library, name)
            getattr(allocator.allocator(), setter)(ctypes.cast(function, ctypes.c_void_p).value)
        torch.cuda.memory.change_current_allocator(allocator)
        if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") and torch.cuda.device_count() > 1:
            _warn("with expandable_segments:True, GPUs cannot access each other's memory, because PyTorch does not tell a "
                  "pluggable allocator of it; build the target tessera_c10")
        self._library.tessera_observe_out_of_memory(self._observer)
        self._replace()

    def sleep(self, device, save):
        self._check(self._library.tessera_sleep(device, save))

    def wake(self, device):
        self._check(self._library.tessera_wake(device))

    def statistics(self, device):
        """Those of torch._C._cuda_memoryStats, and what else the library counts."""
        counted = json.loads(text_of(self._library.tessera_statistics, device))
        zero = dict.fromkeys(_COUNTERS, 0)  # for a device that was not used yet
        for name in _OF_POOLS:
            pools = counted.setdefault(name, {})
            for pool in "all", "small_pool", "large_pool":
                pools.setdefault(pool, dict(zero))
        for name in _OVERSIZE:
            counted.setdefault(name, dict(zero))
        for name in _NUMBERS:
            counted.setdefault(name, -1 if name == "max_split_size" else 0)
        return counted

    def explain_last_oom(self, device):
        return self._explanations.get(device, "")

    # What torch._C offers.

    def memory_stats(self, device):
        counted = self.statistics(device)
        return {name: counted[name] for name in _NUMBERS + _OF_POOLS + _OVERSIZE}

    def set_fraction(self, fraction, device):
        self._set_fraction(fraction, device)
        self._fractions[device] = fraction

    def fraction(self, device):
        return self._fractions.get(device, 1.0)

    def snapshot(self, selected=None):
        """`selected` is a private pool's two numbers and whether traces are wanted; PyTorch 2.11 and later pass it."""
        *pool, has_traces = selected or (0, 0, True)
        if tuple(pool) != (0, 0):
            raise RuntimeError("tessera: the snapshot of one private pool needs libtessera_c10.so; build the target tessera_c10")
        merged = {"segments": [], "device_traces": [], "allocator_settings": {}, "external_annotations": []}
        for device in range(torch.cuda.device_count()):
            taken = self._snapshot_of(device)
            for segment in taken["segments"]:
                segment["device"] = device
            merged["segments"] += taken["segments"]
            merged["device_traces"].append(taken["device_traces"][0] if has_traces and taken["device_traces"] else [])
            merged["allocator_settings"].update(taken["allocator_settings"])
        merged["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        return merged

    def record_history(self, enabled, context, stacks, max_entries, *_later):
        """PyTorch adds arguments from version to version. They select what is recorded with the events."""
        for value, of, allowed in (
            (enabled, "state", (None, "state", "all")),
            (context, "context", (None, "state", "alloc", "all")),
            (stacks, "stacks", ("python", "all")),
        ):
            if value not in allowed:
                raise RuntimeError(f"expected {of} to be one of {', '.join(map(repr, allowed))}")
        if enabled is not None and context is not None and not self._has_warned:
            self._has_warned = True
            _warn("the history has no call stacks; those need libtessera_c10.so, or pass context=None")
        self._record(0 if enabled is None else max_entries if enabled == "all" else 1)

    def record_history_as_before_2_1(self, enabled, _context, max_entries, _alloc_context=False, _cpp_context=False, *_later):
        self._record(max(max_entries, 1) if enabled else 0)

    def has_history(self):
        return self._has_history

    def add_out_of_memory_observer(self, observer):
        torch.cuda.init()
        self._observers.append(observer)

    # How.

    def _replace(self):
        """Replaces the functions of torch._C that this PyTorch has, and the texts of its refusals."""
        self._set_fraction = torch._C._cuda_setMemoryFraction
        for name, function in {
            "_cuda_memoryStats": self.memory_stats,
            "_cuda_resetPeakMemoryStats": self._library.tessera_reset_peak_statistics,
            "_cuda_resetAccumulatedMemoryStats": self._library.tessera_reset_accumulated_statistics,
            "_cuda_setMemoryFraction": self.set_fraction,
            "_cuda_getMemoryFraction": self.fraction,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_record_memory_history": self.record_history,
            "_cuda_record_memory_history_legacy": self.record_history_as_before_2_1,
            "_cuda_isHistoryEnabled": self.has_history,
            "_cuda_attach_out_of_memory_observer": self.add_out_of_memory_observer,
        }.items():
            if hasattr(torch._C, name):
                setattr(torch._C, name, function)
        checkpoints = "checkpoints of private pools, as CUDA graph trees use them"
        for owner, name, what in (
            (torch._C, "_cuda_getCheckpointState", checkpoints),
            (torch._C, "_cuda_setCheckpointPoolState", checkpoints),
            (torch._C, "_cuda_checkPoolLiveAllocations", checkpoints),
            (torch.cuda.memory.MemPool, "__init__", "torch.cuda.MemPool"),
            (torch.UntypedStorage, "_share_cuda_", "sharing of GPU memory between processes"),
        ):
            if hasattr(owner, name):
                setattr(owner, name, _explained(getattr(owner, name), what))
        for name in "_cuda_cudaCachingAllocator_set_allocator_settings", "_accelerator_setAllocatorSettings":
            setattr(torch._C, name, _refuse_settings)

    def _on_out_of_memory(self, device, requested, limit, available):
        text = text_of(self._library.tessera_last_error)
        self._explanations[device] = text.removeprefix(f"device {device}: ")
        for observer in self._observers:
            observer(device, requested, limit, available)

    def _snapshot_of(self, device):
        size = 1 << 20
        while True:
            taken = ctypes.create_string_buffer(size)
            length = self._library.tessera_snapshot(device, taken, ctypes.c_size_t(size))
            if length == 0:
                return {"segments": [], "device_traces": [], "allocator_settings": {}}
            if length <= size:
                return pickle.loads(taken.raw[:length])
            size = length + length // 8 + 4096  # it may grow meanwhile

    def _record(self, entries):
        if entries > 0:
            torch.cuda.init()
        self._has_history = entries > 0
        self._library.tessera_record_history(min(entries, _MAX_ENTRIES))

    def _check(self, works):
        if not works:
            raise RuntimeError("tessera: " + text_of(self._library.tessera_last_error))


def _explained(function, what):
    """The function, with a text that helps if PyTorch refuses it."""

    @functools.wraps(function)
    def call(*arguments, **named):
        try:
            return function(*arguments, **named)
        except RuntimeError as error:
            if "does not yet support" not in str(error):
                raise
            raise RuntimeError(f"tessera: {what} needs libtessera_c10.so, because PyTorch refuses it for every pluggable "
                               "allocator; build the target tessera_c10") from error

    return call


def _refuse_settings(_text):
    raise RuntimeError("tessera: libtessera_cuda.so reads its settings once, from PYTORCH_CUDA_ALLOC_CONF, when a GPU is first "
                       "used; to change them later, build the target tessera_c10")
