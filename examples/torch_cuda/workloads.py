# SPDX-License-Identifier: Apache-2.0
"""Programs of kinds that are common today, and the memory that they reserve on a GPU.

    workloads.py NAME [RECIPE]
    workloads.py NAME --record FILE
    workloads.py --table FOLDER [NAME]...

RECIPE is `native`, which is PyTorch's own allocator and the default, or a recipe or plan of tessera_torch.install(). With
--record, PyTorch's own allocator runs, and FILE gets a snapshot with the history of all requests, for tessera-replay.
Six are small: mixture, recompute, pipeline, reinforce, serve, graphs. Of the others, those that begin with rank are one rank of a
pipeline: all memory of a process that trains some layers of a large model, with tensors instead of its neighbours' messages.

With --table, each NAME, or each program, is recorded. tessera-replay, which is in FOLDER, then checks that the recipe `pytorch`
decides as PyTorch did, makes a plan, and replays the recording. The table has the peak that the tensors needed, what each
allocator reserved for it, and by how much it lowers the fragmentation, which is the difference of both. FOLDER gets the
recordings. A GPU is needed, but kernels may do nothing.
"""
import functools
import json
import os
import random
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, VOCABULARY = 512, 8, 32000


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x, past=None):
        """Returns the result of attention, and the keys and values of all tokens so far."""
        batch, tokens, width = x.shape
        parts = self.inputs(self.before_attention(x)).view(batch, tokens, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1)
        return x + self.outputs(seen.transpose(1, 2).reshape(batch, tokens, width)), (key, value)

    def transform(self, x):
        return x + self.down(functional.gelu(self.up(self.before_linear(x))))

    def forward(self, x):
        return self.transform(self.attend(x)[0])


class Experts(nn.Module):
    """A layer of eight experts, of which the gate selects two for each token. So the sizes of requests depend on the data."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(8))

    def forward(self, x):
        tokens = x.reshape(-1, WIDTH)
        weights, selected = torch.softmax(self.gate(tokens), -1).topk(2, -1)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, column = (selected == number).nonzero(as_tuple=True)
            if row.numel() > 0:
                result = result.index_add(0, row, expert(tokens[row]) * weights[row, column, None])
        return x + result.view_as(x)


class DrawnExperts(nn.Module):
    """Like Experts, but the host draws how many tokens an expert gets. So the sizes vary also where kernels compute nothing."""

    def __init__(self, width, count):
        super().__init__()
        self.visit = 0  # of a micro-batch: what is computed again draws again what it drew
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(count))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights = torch.softmax(self.gate(tokens), -1)
        result = torch.zeros_like(tokens)
        drawn = random.Random(self.visit)
        liked = [drawn.random() + 0.2 for _ in self.experts]
        for number, expert in enumerate(self.experts):
            count = int(2 * len(tokens) * liked[number] / sum(liked))
            row = torch.randint(len(tokens), (count,), device=x.device)
            result = result.index_add(0, row, expert(tokens[row]) * weights[row, number, None])
        return x + result.view_as(x)


def some_batch(**named):
    return torch.randn(random.choice((1, 2, 4)), random.randint(64, 1024), WIDTH, device="cuda", **named)


def train(model, steps, result_of):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        result_of(model).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def mixture():
    """Training of a mixture of experts."""
    model = nn.Sequential(*(nn.Sequential(Block(), Experts()) for _ in range(4))).cuda()
    train(model, 20, lambda m: m(some_batch()))


def recompute():
    """Training that keeps no activations, and computes them again."""

    def result_of(model):
        x = some_batch(requires_grad=True)
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    train(nn.ModuleList(Block() for _ in range(12)).cuda(), 30, result_of)


def pipeline():
    """Training in four stages, each on a stream of its own, with three micro-batches under way."""
    stages = [nn.Sequential(*(Block() for _ in range(3))).cuda() for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in stages]
    main = torch.cuda.current_stream()
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.parameters()])
    for _ in range(12):
        losses = []
        for _ in range(6):
            x = torch.randn(1, random.randint(64, 768), WIDTH, device="cuda")
            for stage, stream in zip(stages, streams):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    x.record_stream(stream)
                    x = stage(x)
                main.wait_stream(stream)
            x.record_stream(main)
            losses.append(x.square().mean())
            if len(losses) > 2:
                losses.pop(0).backward()
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def generate(blocks, head, batch, tokens, steps):
    """Generates tokens with a cache of keys and values, which grows by one token at each step."""
    x = torch.randn(batch, tokens, WIDTH, device="cuda")
    past = [None] * len(blocks)
    for _ in range(steps):
        for number, block in enumerate(blocks):
            x, past[number] = block.attend(x, past[number])
            x = block.transform(x)
        torch.softmax(head(x[:, -1]).float(), -1).topk(50)
        x = x[:, -1:].clone()


def reinforce():
    """Reinforcement learning: generation and training in turn, with an empty cache between them."""
    blocks, head = nn.ModuleList(Block() for _ in range(6)).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()])
    for _ in range(5):
        for _ in range(2):
            generate(blocks, head, random.choice((4, 8)), random.randint(64, 512), 24)
        torch.cuda.empty_cache()
        for _ in range(4):
            x = some_batch()
            for block in blocks:
                x = block(x)
            torch.log_softmax(head(x), -1)[..., 0].mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def serve():
    """Inference: 40 batches of prompts with 10 to 1,500 tokens."""
    blocks, head = nn.ModuleList(Block() for _ in range(8)).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    for _ in range(40):
        generate(blocks, head, random.choice((1, 2, 4, 8, 16)), random.randint(10, 1500), random.randint(4, 16))


@torch.inference_mode()
def graphs():
    """Inference by three captured graphs that share a private pool."""
    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    captured = []
    for tokens in (128, 256, 64):
        x = torch.randn(4, tokens, WIDTH, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=captured[0][0].pool() if captured else None):
            y = model(x)
        captured.append((graph, x, y))
    for number in range(30):
        graph, x, y = captured[number % 3]
        x.copy_(torch.randn_like(x))
        graph.replay()
        y.clone()


def rank(layers=8, chunks=1, recomputes=False, experts=0, varies=False, ahead=4, width=1024, tokens=2048):
    """One rank of a pipeline, with the schedule 1F1B: `ahead` micro-batches are under way when the first goes back.

    chunks: parts of the rank's layers that micro-batches visit in turn, as in an interleaved schedule (virtual pipeline)
    experts: of each layer's mixture; 0: a dense layer
    varies: micro-batches differ in their numbers of tokens
    """

    def layer():
        return nn.Sequential(Block(width), DrawnExperts(width, experts)) if experts else nn.Sequential(Block(width))

    with torch.device("cuda"):
        parts = [nn.ModuleList(layer() for _ in range(layers // chunks)) for _ in range(chunks)]
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()])

    def run(layer, x, visit):
        for m in layer:
            m.visit = visit
        return layer(x)

    def forward(part, length, visit):
        x = torch.empty(1, length, width, device="cuda", requires_grad=True)  # from the rank before
        y = x
        for number, layer in enumerate(part):
            drawn = 1000 * visit + number
            y = checkpoint(run, layer, y, drawn, use_reentrant=False) if recomputes else run(layer, y, drawn)
        return x, y

    def backward(visit):
        x, y = visit
        y.backward(torch.empty_like(y))  # from the rank behind
        del y
        return x.grad  # to the rank before

    for step in range(6):
        lengths = [random.randint(tokens // 4, tokens) if varies else tokens for _ in range(2 * ahead)]
        # A micro-batch visits the chunks group by group, forward and then in reverse.
        order = [(chunk, first + i) for first in range(0, len(lengths), ahead) for chunk in range(chunks) for i in range(ahead)]
        back = [(chunks - 1 - chunk, number) for chunk, number in order]
        visits, warm = {}, ahead + (chunks - 1) * ahead
        for at in range(len(order) + warm):
            if at < len(order):
                chunk, number = order[at]
                visits[order[at]] = forward(parts[chunk], lengths[number], (step * len(lengths) + number) * chunks + chunk)
            if at >= warm:
                backward(visits.pop(back[at - warm]))
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def batches_in_flight():
    """Inference where requests join and leave the batch at any step, each with a cache of its own that grows."""
    blocks, head = nn.ModuleList(Block() for _ in range(8)).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    running = []
    for _ in range(60):
        while len(running) < 16 and random.random() < 0.7:
            running.append([random.randint(10, 40), [None] * len(blocks), torch.randn(1, random.randint(10, 1500), WIDTH, device="cuda")])
        for request in running:
            x, past = request[2], request[1]
            for number, block in enumerate(blocks):
                x, past[number] = block.attend(x, past[number])
                x = block.transform(x)
            request[2] = x[:, -1:].clone()
            request[0] -= 1
        if running:
            torch.softmax(head(torch.cat([request[2] for request in running])), -1).topk(50)
        running = [request for request in running if request[0] > 0]


def reinforce_and_sleep():
    """Reinforcement learning where the trainer's state is on the host during generation, and the engine's memory is freed during
    training."""
    blocks, head = nn.ModuleList(Block() for _ in range(8)).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    parameters = [*blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(6):
        state = [(values, name, values.pop(name).cpu()) for values in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        engine, engine_head = nn.ModuleList(Block() for _ in range(8)).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
        reserve = torch.empty(192 << 20, dtype=torch.uint8, device="cuda")  # an engine's blocks of the cache
        for _ in range(3):
            generate(engine, engine_head, random.choice((4, 8, 16)), random.randint(64, 768), 24)
        del engine, engine_head, reserve
        for values, name, copy in state:
            values[name] = copy.cuda()
        del state
        for _ in range(4):
            x = some_batch()
            for block in blocks:
                x = block(x)
            torch.log_softmax(head(x), -1)[..., 0].mean().backward()
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS = {f.__name__: f for f in (mixture, recompute, pipeline, reinforce, serve, graphs, reinforce_and_sleep, batches_in_flight)}
for suffix, of in {
    "": {},
    "_recompute": {"recomputes": True},
    "_virtual": {"chunks": 4},
    "_virtual_recompute": {"chunks": 4, "recomputes": True},
    "_varying": {"varies": True},
    "_varying_recompute": {"varies": True, "recomputes": True},
    "_experts": {"experts": 8, "layers": 4},
    "_experts_recompute": {"experts": 8, "layers": 4, "recomputes": True},
    "_experts_virtual": {"experts": 16, "layers": 4, "chunks": 2},
}.items():
    PROGRAMS["rank" + suffix] = functools.partial(rank, **of)


def table(folder, names):
    """Records programs, each in a process of its own, and compares what allocators reserve for them."""

    def replay(*words):
        command = [os.path.join(folder, "tessera-replay"), *words, "--json"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    base, *others = "pytorch", "pytorch_expandable", "stitched", "plan"
    print("MiB, and the share of fragmentation that is gone:\n")
    print(f"| program | blocks | allocated at peak | {base} |", "".join(f" {name} | |" for name in others), sep="")
    print("|---|", "--:|" * (3 + 2 * len(others)), sep="", flush=True)
    gone = {name: [] for name in others}
    for name in names:
        snapshot, plan = os.path.join(folder, name + ".pickle"), os.path.join(folder, name + ".csv")
        subprocess.run([sys.executable, __file__, name, "--record", snapshot], stdout=subprocess.DEVNULL, check=True)
        blocks = replay("verify", snapshot)[0]["same_address"]  # it fails if one lies elsewhere
        replay("plan", snapshot, "--out", plan)
        (compared,) = replay("compare", snapshot, "--plan", plan)
        live = compared["peak_live"]
        reserved = {"plan" if r["recipe"].startswith("plan") else r["recipe"]: r["peak_reserved"] for r in compared["recipes"]}
        cells = [f"{blocks:,}", f"{live / 2**20:.0f}", f"{reserved[base] / 2**20:.0f}"]
        for other in others:
            gone[other].append(1 - (reserved[other] - live) / (reserved[base] - live))
            cells += [f"{reserved[other] / 2**20:.0f}", f"{gone[other][-1]:.0%}"]
        print(f"| {name} |", *(f" {cell} |" for cell in cells), sep="", flush=True)
    for text, of in ("mean", lambda all: sum(all) / len(all)), ("least", min):
        print(f"| {text} | | | |", *(f" | {of(gone[other]):.0%} |" for other in others), sep="", flush=True)


def main(arguments):
    name, *rest = arguments or [""]
    if name == "--table" and rest:
        return table(rest[0], rest[1:] or PROGRAMS)
    records = len(rest) == 2 and rest[0] == "--record"
    if name not in PROGRAMS or len(rest) > 1 and not records:
        print(__doc__, file=sys.stderr)
        return 2
    recipe = "native" if records or not rest else rest[0]
    if recipe != "native":
        import tessera_torch

        tessera_torch.install(recipe=recipe)
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return 77
    random.seed(5)
    torch.manual_seed(5)
    if records:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context="alloc")
    start = time.monotonic()
    PROGRAMS[name]()
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    if records:
        torch.cuda.memory._dump_snapshot(rest[1])
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"{name}, {recipe}: {allocated / 2**20:.0f} MiB allocated at peak, {reserved / 2**20:.0f} MiB reserved; {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
