"""How far prefill, decoding and learning are from what this machine can do, and where the rest goes.

    python benchmarks/limits.py [--threads 1] [--rows 8 32 64] [--tokens 512] [--new-tokens 24] [--repeats 3]
        [--dtype bfloat16] [--model DIR]

First the machine: matrix products of several shapes (the best counts) and reading an array that no cache holds. Then
the product's sampler and learner with the default model; per phase the work that cannot be avoided is counted:

- operations: 2 per weight of a matrix and token (learning: 6; its logits only where a token is trained), and 4 per
  query head, head dimension and attended token (learning: 12). Elementwise work is not counted, nor what is computed
  twice.
- bytes: matrices once per forward pass (learning: twice, and the gradients and the optimizer's state), keys and values
  of every attended token in decoding. Activations are not counted.

"bound" is the time that the scarcer of the two takes at the machine's limit, as a share of the time measured. The
second line of a phase says where its time goes, by torch.profiler: operators by kind, and the time outside of any
operator, which is Python (of prefill, norms and gates too). Attention is all that happens inside it, its own copies and
compiled kernel included; "whole layers" are a decode pass's, products, attention and all, in one call each.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import describe
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AttentionInterface, PreTrainedModel

from seekling.doctor.machine import measure_speed
from seekling.kernels import linear
from seekling.kernels.amx import layer as tiled
from seekling.kernels.linear import PackedLinear
from seekling.kernels.vector import eight_bits
from seekling.kernels.vector import layer as rounded
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import cross_entropy
from seekling.learn.trained import STRAND_ATTENTION, strand_attention
from seekling.models import load_policy, resolve_model
from seekling.rollout.engine import layers
from seekling.rollout.engine.layers import SLOT_ATTENTION, slot_attention
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Sample, SampleRequest
from seekling.types import Trajectory

SHAPES = ((2048, 576, 1536), (2048, 1536, 576), (2048, 2048, 2048), (4096, 1536, 4096))
MARK = "marked as "
KINDS = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mkldnn", "_linear_pointwise"),
    "optimizer": ("_fused_adamw", "optimizer", "_foreach", "clip_grad"),
    "copies": (
        "copy", "cat", "clone", "index", "embedding", "gather", "scatter", "fill", "zero", "empty", "contiguous",
        "new_", "_to", "select", "slice", "pad", "ones",
    ),
    "autograd": ("autograd::", "backward0", "accumulategrad"),
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Of this machine: operations per second in matrix products, bytes per second of reading."""

    flops: float
    bytes_per_s: float


@dataclass(frozen=True)
class Shape:
    """What a model's work is counted from."""

    matrices: int
    """Weights of its linear layers, without the output layer."""
    head: int
    """Weights of the output layer."""
    attention: int
    """Operations per token and attended token: 4 per layer, query head and head dimension."""
    cache_bytes: int
    """Keys and values of one token."""
    weight_bytes: int
    """Of one weight in the forward pass."""

    @staticmethod
    def of(model: PreTrainedModel) -> Shape:
        """Count; before the sampler packs the layers."""
        config, head = model.config, model.get_output_embeddings()
        depth = config.hidden_size // config.num_attention_heads
        linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
        size = model.dtype.itemsize
        return Shape(
            matrices=sum(module.weight.numel() for module in linear), head=head.weight.numel(),
            attention=4 * config.num_hidden_layers * config.num_attention_heads * depth,
            cache_bytes=2 * config.num_hidden_layers * config.num_key_value_heads * depth * size, weight_bytes=size,
        )  # fmt: skip


def best_time(work: Callable[[], object], seconds: float = 1.0) -> float:
    """Seconds of the fastest call."""
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


@torch.inference_mode()
def measure_limits(dtype: torch.dtype) -> Limits:
    """Measure the machine, and print it."""
    rates: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for rows, inner, columns in SHAPES:
        speed = measure_speed(rows=rows, inner=inner, columns=columns, seconds=1.0)
        rates["float32"].append(speed.float32_flops)
        rates["bfloat16"].append(speed.bfloat16_flops)
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            packed = PackedLinear({"weight": torch.randn(columns, inner)}, {})
            input_ = torch.ones(rows, inner, dtype=torch.bfloat16)
            rates["bfloat16"].append(2.0 * rows * inner * columns / best_time(partial(packed, input_)))
    big = torch.ones(2**27)
    bytes_per_s = big.numel() * 4 / min(best_time(big.sum), best_time(lambda: torch.dot(big, big)))
    for name, each in rates.items():
        shown = ", ".join(f"{rate / 1e9:.0f}" for rate in each)
        print(f"matrix products in {name}: {max(each) / 1e9:.0f} GFLOP/s ({shown})")
    print(f"reading memory: {bytes_per_s / 1e9:.1f} GB/s", flush=True)
    return Limits(max(rates[str(dtype).removeprefix("torch.")]), bytes_per_s)


def mark() -> None:
    """Let the profiler see what compiled loops do; of attention's backward pass it knows anyway."""
    for name, function in ((SLOT_ATTENTION, slot_attention), (STRAND_ATTENTION, strand_attention)):
        AttentionInterface.register(name, marked("attention", function))
    layers.slot_attention = marked("attention", slot_attention)  # type: ignore[assignment]
    for module in (tiled, rounded):
        loop_of = module.layer_loop
        module.layer_loop = partial(_marked_loop, loop_of)  # type: ignore[assignment]
    eight_bits.product = marked("matmul", eight_bits.product)  # type: ignore[assignment]
    linear.product = marked("matmul", linear.product)  # type: ignore[assignment]


def _marked_loop(loop_of: Callable[..., Callable[..., object]], *kind: object) -> Callable[..., object]:
    return marked("whole layers", loop_of(*kind))


def marked(kind: str, function: Callable[..., object]) -> Callable[..., object]:
    """A function all of whose time the profiler is to count as one kind."""

    def call(*args: object, **options: object) -> object:
        with record_function(MARK + kind):
            return function(*args, **options)

    return call


def kind_of(event: torch.autograd.profiler_util.FunctionEvent) -> str:
    """What an operator's own time is counted as."""
    above = event
    while above is not None:
        if above.name.startswith(MARK):
            return above.name.removeprefix(MARK)
        if "attention" in above.name.lower():
            return "attention"
        above = above.cpu_parent
    name = event.name.lower()
    for kind, words in KINDS.items():
        parts = name.removeprefix("aten::")
        if any(parts == word or (len(word) > 3 and word in parts) for word in words):
            return kind
    return "elementwise"


def where_time_goes(work: Callable[[], object], seconds: float) -> str:
    """Shares of an unprofiled run's time, from the operators of a profiled one."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        work()
    spent: Counter[str] = Counter()
    for event in profiler.events():
        spent[kind_of(event)] += event.self_cpu_time_total / 1e6
    # The profiler slows Python down, not the operators.
    spent["Python"] = max(0.0, seconds - sum(spent.values()))
    return ", ".join(f"{kind} {share / sum(spent.values()):.0%}" for kind, share in spent.most_common())


def report(
    name: str, work: Callable[[], float], limits: Limits, tokens: int, flops: float, num_bytes: float, repeats: int
) -> None:
    """Run a phase, which returns its seconds; print its rates, shares of the limits, and where its time goes."""
    work()
    seconds = statistics.median(work() for _ in range(repeats))
    rate, moved = flops / seconds, num_bytes / seconds
    bound = max(flops / limits.flops, num_bytes / limits.bytes_per_s)
    print(
        f"{name:16} {tokens / seconds:6.0f} tokens/s, {rate / 1e9:6.1f} GFLOP/s ({rate / limits.flops:4.0%}), "
        f"{moved / 1e9:5.2f} GB/s ({moved / limits.bytes_per_s:4.0%}), bound {bound / seconds:4.0%}\n"
        f"{'':16} {where_time_goes(work, seconds)}",
        flush=True,
    )


class Generation:
    """Prefill and decoding with the sampler."""

    def __init__(self, given: argparse.Namespace, directory: Path, limits: Limits) -> None:
        model, tokenizer = load_policy(directory, dtype=given.dtype)
        self._shape, self._limits, self._given = Shape.of(model), limits, given
        if given.weight_bits == 8:
            self._shape = replace(self._shape, weight_bytes=1)
        self._sampler = LocalSampler(
            model, tokenizer, in_flight=max(given.rows), episode_tokens=given.tokens + given.new_tokens + 2,
            cache_bytes=10**11, draft_tokens=0, eight_bits=given.weight_bits == 8,
        )  # fmt: skip
        self._sampler._eos_ids = frozenset()
        ids = np.random.default_rng(0).integers(1000, model.config.vocab_size, (max(given.rows), given.tokens))
        self._prompts: list[tuple[int, ...]] = [tuple(row) for row in ids.tolist()]

    def _sample(self, prompts: list[tuple[int, ...]], new_tokens: int) -> list[tuple[int, ...]]:
        async def all_of_them() -> list[Sample]:
            requests = [SampleRequest(n, prompt, new_tokens) for n, prompt in enumerate(prompts)]
            return await asyncio.gather(*map(self._sampler.sample, requests))

        return [each.token_ids for each in asyncio.run(all_of_them())]

    def _prefill(self, count: int) -> list[tuple[int, ...]]:
        for session in range(len(self._prompts)):
            self._sampler.close_session(session)
        self._sampler.release_caches()
        return self._sample(self._prompts[:count], 1)

    def prefill(self, count: int = 8) -> None:
        """Prompts side by side, and one token behind each."""
        count, length, shape = min(count, len(self._prompts)), self._given.tokens, self._shape
        tokens = count * length
        flops = 2 * shape.matrices * tokens + 2 * shape.head * count + shape.attention * count * length**2 / 2
        num_bytes = -(-tokens // 2048) * shape.matrices * shape.weight_bytes + tokens * shape.cache_bytes

        def work() -> float:
            started = time.perf_counter()
            self._prefill(count)
            return time.perf_counter() - started

        report(f"prefill {count}x{length}", work, self._limits, tokens, flops, num_bytes, self._given.repeats)

    def decode(self, count: int) -> None:
        """Rows that all have their prompt in the cache."""
        passes, shape = self._given.new_tokens, self._shape
        firsts = self._prefill(count)
        prompts = [(*prompt, *first) for prompt, first in zip(self._prompts, firsts, strict=False)]
        attended = count * (self._given.tokens + passes / 2)
        weights = shape.matrices + shape.head
        flops = passes * (2 * weights * count + shape.attention * attended)
        num_bytes = passes * (weights * shape.weight_bytes + attended * shape.cache_bytes)

        def work() -> float:
            started = time.perf_counter()
            self._sample(prompts, passes)
            return time.perf_counter() - started

        report(f"decode {count} rows", work, self._limits, count * passes, flops, num_bytes, self._given.repeats)


def learning(given: argparse.Namespace, directory: Path, limits: Limits, count: int = 8) -> None:
    """One step over episodes without a common prefix, a quarter of whose tokens are trained."""
    model, _ = load_policy(directory, dtype=given.dtype)
    shape, length, row_tokens = Shape.of(model), given.tokens, 2048
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    learner = LocalLearner(model, row_tokens=row_tokens)
    random = np.random.default_rng(0)
    ids, mask = random.integers(1000, model.config.vocab_size, (count, length)), np.arange(length) % 4 == 3
    batch = Batch([Trajectory(row, mask, np.zeros(length, np.float32)) for row in ids], np.ones(count))
    tokens, trained = count * length, count * int(mask.sum())
    flops = 6 * (shape.matrices * tokens + shape.head * trained) + 3 * shape.attention * count * length**2 / 2
    num_rows = -(-count // max(1, row_tokens // length))
    per_row = 2 * shape.weight_bytes + (8 if num_rows > 1 else 4)  # forward, backward, adding up float32 gradients
    num_bytes = num_weights * (num_rows * per_row + 7 * 4 + shape.weight_bytes)  # AdamW reads 4 arrays and writes 3

    def work() -> float:
        started = time.perf_counter()
        learner.forward_backward(batch, cross_entropy)
        learner.optim_step(1e-6)
        return time.perf_counter() - started

    report(f"learn {count}x{length}", work, limits, tokens, flops, num_bytes, given.repeats)


def main() -> None:
    """Measure the machine, then each phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--tokens", type=int, default=512, help="of a prompt, and of an episode to learn from")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--weight-bits", type=int, choices=[8, 16, 32], help="8: rounded, in prefill and decoding")
    parser.add_argument("--no-learning", action="store_true")
    parser.add_argument("--model", default="default")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(describe(given.threads), flush=True)
    limits = measure_limits(torch.bfloat16 if given.dtype == "bfloat16" else torch.float32)
    directory = resolve_model(given.model, log=print)
    mark()
    generation = Generation(given, directory, limits)
    generation.prefill()
    for rows in given.rows:
        generation.decode(rows)
    del generation
    if not given.no_learning:
        learning(given, directory, limits)


if __name__ == "__main__":
    main()
