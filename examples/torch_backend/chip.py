# SPDX-License-Identifier: Apache-2.0
"""The device `chip` for PyTorch. The variable CHIP_LIBRARY names the file libtessera_torch_backend.so."""

import os
import sys

import torch

torch.ops.load_library(os.environ["CHIP_LIBRARY"])


def is_available():
    return True


def device_count():
    return torch.ops.chip.device_count()


def current_device():
    return torch.accelerator.current_device_index()


class device(torch.accelerator.device_index):
    """Changes the current device for a while, as torch.cuda.device does. torch.load uses it."""

    def __init__(self, of):
        super().__init__(torch.device("chip", of).index if isinstance(of, int) else torch.device(of).index)


def manual_seed_all(seed):
    """Kernels run on the CPU, whose generator they use."""


def _is_in_bad_fork():
    return torch.ops.chip.is_forked()


torch._register_device_module("chip", sys.modules[__name__])
torch.utils.generate_methods_for_privateuse1_backend()
