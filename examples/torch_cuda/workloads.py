# SPDX-License-Identifier: Apache-2.0
"""Six programs of kinds that are common today, and the memory that they reserve on a GPU.

    workloads.py NAME [RECIPE]
    workloads.py NAME --record FILE

RECIPE is `native`, which is PyTorch's own allocator and the default, or a recipe or plan of tessera_torch.install(). With
--record, PyTorch's own allocator runs, and FILE gets a snapshot with the history of all requests, for tessera-replay.
The names are: mixture, recompute, pipeline, reinforce, serve, graphs.
"""
import random
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, VOCABULARY = 512, 8, 32000


class Block(nn.Module):
    """A transformer block."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_linear = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x, past=None):
        """Returns the result of attention, and the keys and values of all tokens so far."""
        batch, tokens, _ = x.shape
        parts = self.inputs(self.before_attention(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1)
        return x + self.outputs(seen.transpose(1, 2).reshape(batch, tokens, WIDTH)), (key, value)

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


PROGRAMS = {f.__name__: f for f in (mixture, recompute, pipeline, reinforce, serve, graphs)}


def main(arguments):
    name, *rest = arguments or [""]
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
