# SPDX-License-Identifier: Apache-2.0
"""Trains a program with PyTorch's own CPU allocator or with a library, or compares both. --help lists the options."""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(77)
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if stride == 1 and channels == out else nn.Sequential(
            nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet50():
    """ResNet-50, without torchvision."""
    layers, channels = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                        nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in (64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2):
        for i in range(count):
            layers.append(Bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def minimized(loss, optimizer):
    """Changes the parameters once. Returns the loss before that."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def resnet(size):
    batch, pixels = (2, 32) if size == "small" else (4, 96)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,))
        loss = functional.cross_entropy(model(images), labels)
        return minimized(loss, optimizer)
    return step


def transformer(size):
    batch, length, width, layers = (2, 32, 64, 2) if size == "small" else (4, 512, 256, 2)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        loss = model(torch.randn(batch, length, width)).square().mean()
        return minimized(loss, optimizer)
    return step


def gnn(size):
    """GraphSAGE with the mean of the neighbours; each step has another sample of edges."""
    nodes, width, mean_degree = (500, 16, 4) if size == "small" else (40_000, 64, 8)
    first, second = nn.Linear(2 * width, 2 * width), nn.Linear(4 * width, 2 * width)
    last = nn.Linear(2 * width, 16)
    parameters = [*first.parameters(), *second.parameters(), *last.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    features, labels = torch.randn(nodes, width), torch.randint(16, (nodes,))

    def aggregate(x, source, target):
        total = torch.zeros(x.size(0), x.size(1)).index_add(0, target, x[source])
        degree = torch.zeros(x.size(0)).index_add(0, target, torch.ones(target.size(0)))
        return torch.cat((x, total / degree.clamp(min=1).unsqueeze(1)), 1)

    def step():
        edges = int(nodes * mean_degree * (0.5 + torch.rand(()).item()))
        source, target = torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,))
        x = first(aggregate(features, source, target)).relu()
        x = second(aggregate(x, source, target)).relu()
        loss = functional.cross_entropy(last(x), labels)
        return minimized(loss, optimizer)
    return step


def small(size):
    """Many requests of little memory: a recurrent cell on short vectors."""
    cell = nn.GRUCell(16, 16)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    def step():
        state = torch.zeros(2, 16)
        for _ in range(20 if size == "small" else 1000):
            state = cell(torch.randn(2, 16), state)
        loss = state.square().mean()
        return minimized(loss, optimizer)
    return step


def peak_resident():
    """MiB of physical memory."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def train(chosen):
    """Runs one program. Returns its losses, and the medians of its steps after the first two."""
    if chosen.library:
        torch.ops.load_library(chosen.library)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = PROGRAMS[chosen.program](chosen.size)
    losses, costs = [], []

    def now():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_minflt

    for _ in range(2 + chosen.steps):
        before = now()
        losses.append(step().item().hex())
        costs.append([b - a for a, b in zip(before, now())])
    wall, processor, faults = (statistics.median(column) for column in zip(*costs[2:]))
    return {"processor ms": 1000 * processor, "wall ms": 1000 * wall, "page faults": faults,
            "peak MiB": peak_resident(), "losses": losses}


def compare(chosen):
    """Alternates processes with all allocators, and prints the medians of their runs."""
    subjects = {"PyTorch": ([], {}), "tessera": (["--library", chosen.compare], {})}
    for text in chosen.beside:
        name, *settings = text.split()
        subjects[name] = ([], dict(setting.split("=", 1) for setting in settings))
    runs = {name: [] for name in subjects}
    command = [sys.executable, __file__, chosen.program, "--size", chosen.size, "--steps", str(chosen.steps)]
    for _ in range(chosen.rounds):
        for name, (options, settings) in subjects.items():
            output = subprocess.run(command + options, check=True, stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, **settings}).stdout
            runs[name].append(json.loads(output))
    for name, results in runs.items():
        numbers = [f"{statistics.median(r[key] for r in results):.0f} {key}" for key in results[0] if key != "losses"]
        print(f"{chosen.program}, {name}: {', '.join(numbers)}", flush=True)
    for name, results in list(runs.items())[1:]:
        ratios = [b["processor ms"] / a["processor ms"] for a, b in zip(runs["PyTorch"], results)]
        print(f"{chosen.program}, {name}: processor time {statistics.median(ratios):.2f} of PyTorch's, "
              f"runs {', '.join(f'{r:.2f}' for r in ratios)}", flush=True)
    if len({str(r["losses"]) for results in runs.values() for r in results}) != 1:
        sys.exit(f"{chosen.program}: the losses differ")


PROGRAMS = {"resnet": resnet, "transformer": transformer, "gnn": gnn, "small": small}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=[*PROGRAMS, "all"])
    parser.add_argument("--size", choices=["small", "large"], default="large")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a process")
    parser.add_argument("--library", help="allocate from this library")
    parser.add_argument("--compare", metavar="LIBRARY", help="compare this library with PyTorch's own allocator")
    parser.add_argument("--beside", metavar="SETTINGS", action="append", default=[],
                        help="with --compare, also run PyTorch's own allocator with these variables: "
                             "'jemalloc LD_PRELOAD=... MALLOC_CONF=...'")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each allocator that are compared")
    chosen = parser.parse_args()
    if not chosen.compare:
        print(json.dumps(train(chosen)))
        return
    for chosen.program in PROGRAMS if chosen.program == "all" else [chosen.program]:
        compare(chosen)


if __name__ == "__main__":
    main()
