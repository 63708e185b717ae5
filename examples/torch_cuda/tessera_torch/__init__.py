# SPDX-License-Identifier: Apache-2.0
"""tessera as PyTorch's allocator for CUDA.

    import tessera_torch
    tessera_torch.install()  # before the first tensor is on a GPU

The statistics, snapshots and settings of torch.cuda.memory work as before. A library does the work: libtessera_c10.so takes
PyTorch's whole interface, and is built for one version of PyTorch. libtessera_cuda.so serves any PyTorch from 2.3 on, through
CUDAPluggableAllocator, with less. README.md compares them.
"""

import contextlib
import ctypes
import os
import pickle
import warnings

import torch

from . import _trace

_C10 = "libtessera_c10.so"  # the CMake target is tessera_c10
_CUDA = "libtessera_cuda.so"
_installed_way = None


class _Misfit(Exception):
    """Why a library does not serve this PyTorch, in words."""


def install(*, recipe=None, library=None):
    """Puts tessera in the place of PyTorch's allocator. A second call does nothing.

    recipe:  "pytorch", which PYTORCH_CUDA_ALLOC_CONF tunes; "stitched" or the file of a plan, which need libtessera_c10.so; by
             default the variable TESSERA_RECIPE
    library: the path of libtessera_c10.so or libtessera_cuda.so. By default, the first of these that exists and fits this
             PyTorch: the file that the variable TESSERA_C10 names, else libtessera_c10.so beside this module; then the same
             with TESSERA_CUDA and libtessera_cuda.so

    It warns about settings that have no effect. torch.cuda must not be initialized yet if libtessera_cuda.so is used.
    """
    global _installed_way
    before = os.environ.get("TESSERA_RECIPE", "pytorch")
    if _installed_way is not None:
        if recipe is not None and recipe != before:
            raise RuntimeError(f"tessera is installed already, with the recipe {before}")
        return
    chosen = recipe or before
    way, misfits = _load(library, chosen)
    for misfit in misfits:
        _warn(f"{misfit}; so {way.path} is used")
    for reason in _forgotten_settings():
        _warn(reason)
    named = os.environ.get("TESSERA_RECIPE")
    os.environ["TESSERA_RECIPE"] = chosen
    try:
        way.install()
    except BaseException:
        if named is None:
            del os.environ["TESSERA_RECIPE"]
        else:
            os.environ["TESSERA_RECIPE"] = named
        raise
    _installed_way = way


def sleep(device=None, save=True):
    """Gives the memory of expandable segments, or of the recipe stitched, back to the driver while tensors stay.

    save: whether the contents are kept in host memory, or discarded
    """
    _way().sleep(_number_of(device), save)


def wake(device=None):
    """Gives all tensors memory again, at their addresses."""
    _way().wake(_number_of(device))


def statistics(device=None):
    """The statistics of a device, as torch.cuda.memory_stats_as_nested_dict() has them.

    With libtessera_cuda.so, also "now", "metadata_bytes" and "device_calls": the calls of the driver, with their times.
    """
    return _way().statistics(_number_of(device))


def explain_last_oom(device=None):
    """Says why the latest request of a device that failed did so, and what would help. Empty if none failed."""
    return _way().explain_last_oom(_number_of(device))


@contextlib.contextmanager
def record(path, max_entries=1_000_000, device=None):
    """Records what the program does in this block, for tessera-replay.

    path:        a .csv file gets a trace in tessera's format, without call stacks. Any other gets a snapshot, which PyTorch's
                 memory_viz shows, too
    max_entries: the number of events that are kept; the oldest are dropped, which a warning says
    device:      whose trace a .csv file gets; by default the current device. A snapshot has all devices
    """
    _way()
    is_trace = os.fspath(path).endswith(".csv")
    torch.cuda.memory._record_memory_history(context=None if is_trace else "all", max_entries=max_entries)
    try:
        yield
    finally:
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        if any(len(trace) >= max_entries for trace in snapshot["device_traces"]):
            _warn(f"{path} lacks the beginning, because there were more than {max_entries} events; increase max_entries")
        if is_trace:
            text = _trace.to_csv(snapshot, _number_of(device))
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        else:
            with open(path, "wb") as file:
                pickle.dump(snapshot, file)


class _C10Way:
    """libtessera_c10.so, which implements PyTorch's own interface."""

    def __init__(self, path, library):
        self.path, self._library = path, library
        library.tessera_built_for.restype = ctypes.c_char_p
        built_for = library.tessera_built_for().decode()
        if torch.__version__.split(".")[:2] != built_for.split(".")[:2]:
            raise _Misfit(f"{path} was built for PyTorch {built_for}, and this is {torch.__version__}")
        for name in "recipe_error", "sleep", "wake":
            getattr(library, "tessera_" + name).restype = ctypes.c_char_p
        library.tessera_sleep.argtypes = [ctypes.c_int, ctypes.c_bool]
        library.tessera_explain_last_oom.restype = ctypes.c_size_t

    def install(self):
        if torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0:
            _warn("tensors are on the GPU already; their memory stays in PyTorch's allocator")
        self._check(self._library.tessera_recipe_error())
        self._library.tessera_install()

    def sleep(self, device, save):
        self._check(self._library.tessera_sleep(device, save))

    def wake(self, device):
        self._check(self._library.tessera_wake(device))

    def statistics(self, device):
        return torch.cuda.memory_stats_as_nested_dict(device)

    def explain_last_oom(self, device):
        return text_of(self._library.tessera_explain_last_oom, device)

    @staticmethod
    def _check(why):
        if why is not None:
            raise RuntimeError("tessera: " + why.decode())


def text_of(function, *arguments):
    """The text that a function of a library writes. Like snprintf, it returns the length of the whole text."""
    size = 16384
    while True:
        text = ctypes.create_string_buffer(size)
        length = function(*arguments, text, ctypes.c_size_t(size))
        if length < size:
            return text.value.decode(errors="replace")
        size = length + 4096  # it may grow meanwhile


def _load(library, recipe):
    """Loads the first library that fits. Returns its way, and why those before it do not fit."""
    here = os.path.dirname(os.path.abspath(__file__))
    named = [library] if library is not None else [os.environ.get(v) for v in ("TESSERA_C10", "TESSERA_CUDA")]
    paths = named if library is not None else [n or os.path.join(here, f) for n, f in zip(named, (_C10, _CUDA))]
    misfits = []
    for path in map(os.fspath, paths):
        if not os.path.exists(path):
            if path in named:
                raise FileNotFoundError(f"{path}: there is no such file; build the target tessera_c10 or tessera_cuda")
            continue
        try:
            return _open(path, recipe), misfits
        except _Misfit as misfit:
            misfits.append(str(misfit))
    if misfits:
        raise ImportError("; ".join(misfits))
    raise FileNotFoundError(
        f"neither {_C10} nor {_CUDA} is in {here}; build the target tessera_c10, or tessera_cuda, which needs no headers of "
        "PyTorch, and name the file by library=, TESSERA_C10 or TESSERA_CUDA"
    )


def _open(path, recipe):
    """Loads a library, whichever of the two it is."""
    try:
        loaded = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _Misfit(f"{path} cannot be loaded into PyTorch {torch.__version__}: {error}") from None
    if hasattr(loaded, "tessera_built_for"):
        return _C10Way(path, loaded)
    if not hasattr(loaded, "tessera_record_history"):
        raise _Misfit(f"{path} is neither {_C10} nor {_CUDA}, or is older than this module")
    if recipe != "pytorch":
        raise _Misfit(f'{path} has no recipe "{recipe}"; {_C10} has')
    from ._pluggable import PluggableWay

    return PluggableWay(path, loaded)


def _forgotten_settings():
    """What the user has set to no effect, in sentences."""
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    for key in ("graph_capture_record_stream_reuse", "expandable_segments_reserve_by_class"):
        if key in settings:
            yield f"PYTORCH_CUDA_ALLOC_CONF: {key} has no effect"
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        yield "PYTORCH_NO_CUDA_MEMORY_CACHING is set, so no memory is cached and the statistics stay 0; unset it"


def _warn(text):
    warnings.warn("tessera: " + text, stacklevel=3)


def _way():
    if _installed_way is None:
        raise RuntimeError("tessera is not installed; call tessera_torch.install() first")
    return _installed_way


def _number_of(device):
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.cuda.current_device() if index is None else index
