# SPDX-License-Identifier: Apache-2.0
"""tessera as PyTorch's allocator for CUDA.

    import tessera_torch
    tessera_torch.install(recipe="stitched")  # before the first tensor is on a GPU

The statistics, snapshots and settings of torch.cuda.memory work as before. libtessera_c10.so does the work; see README.md.
"""

import contextlib
import ctypes
import os
import warnings

import torch

_library = None


def install(library=None, recipe=None):
    """Puts tessera in the place of PyTorch's allocator. A second call does nothing.

    library: the path of libtessera_c10.so; by default the variable TESSERA_C10, else the file beside this module
    recipe:  "pytorch", which PYTORCH_CUDA_ALLOC_CONF tunes, or "stitched"; by default the variable TESSERA_RECIPE
    """
    global _library
    if _library is not None:
        if recipe is not None and recipe != os.environ.get("TESSERA_RECIPE", "pytorch"):
            raise RuntimeError(f"tessera is installed already, with the recipe {os.environ.get('TESSERA_RECIPE', 'pytorch')}")
        return
    path = library or os.environ.get("TESSERA_C10") or os.path.join(os.path.dirname(__file__), "libtessera_c10.so")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: build the target tessera_c10, and name its file by library= or TESSERA_C10")
    if recipe is not None:
        os.environ["TESSERA_RECIPE"] = recipe
    if torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0:
        warnings.warn("tessera: tensors are on the GPU already; their memory stays in PyTorch's allocator", stacklevel=2)
    loaded = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    loaded.tessera_built_for.restype = ctypes.c_char_p
    built_for = loaded.tessera_built_for().decode()
    if torch.__version__.split(".")[:2] != built_for.split(".")[:2]:
        raise ImportError(f"{path} was built for PyTorch {built_for}, and this is {torch.__version__}")
    loaded.tessera_sleep.restype = loaded.tessera_wake.restype = ctypes.c_char_p
    loaded.tessera_sleep.argtypes = [ctypes.c_int, ctypes.c_bool]
    loaded.tessera_explain_last_oom.restype = ctypes.c_size_t
    loaded.tessera_explain_last_oom.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    loaded.tessera_install()
    _library = loaded


def _installed():
    if _library is None:
        raise RuntimeError("tessera is not installed; call tessera_torch.install() first")
    return _library


def _number_of(device):
    return torch.cuda.current_device() if device is None else torch.device("cuda", device).index


def _check(why):
    if why is not None:
        raise RuntimeError("tessera: " + why.decode())


def sleep(device=None, save=True):
    """Gives the memory of expandable segments, or of the recipe stitched, back to the driver while tensors stay.

    save: whether the contents are kept in host memory, or discarded
    """
    _check(_installed().tessera_sleep(_number_of(device), save))


def wake(device=None):
    """Gives all tensors memory again, at their addresses."""
    _check(_installed().tessera_wake(_number_of(device)))


def explain_last_oom(device=None):
    """Says why the latest request of a device that failed did so, and what would help. Empty if none failed."""
    text = ctypes.create_string_buffer(16384)
    _installed().tessera_explain_last_oom(_number_of(device), text, len(text))
    return text.value.decode()


@contextlib.contextmanager
def record(path, max_entries=1_000_000):
    """Records what the program does in this block. Writes a snapshot for tessera-replay and PyTorch's memory_viz."""
    torch.cuda.memory._record_memory_history(max_entries=max_entries)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(None)
