"""Milliseconds of one decode step's attention, compiled loop against batched calls, on the default model's shapes.

    python benchmarks/decode_attention.py [--rows 48 12] [--drafts 0 4] [--repeats 5]

Both sides read the same caches of 30 layers: rows of 300 to 800 cached tokens, drafts of random widths up to the given
one. Before timing, both must give the same numbers. Printed last: median ratios, compiled over batched.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from seekling.rollout.engine.attention import DecodeRows, _decode, _decode_compiled
from seekling.rollout.engine.cache import SlotCache

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS, NUM_SLOTS, SLOT_TOKENS = 9, 3, 64, 30, 64, 1024
Decode = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, DecodeRows, float, Tensor], None]


def step_ms(decode: Decode, new: list[Tensor], keys: list[Tensor], values: list[Tensor], rows: DecodeRows) -> float:
    """Wall milliseconds of all layers."""
    output, started = torch.empty_like(new[0]), time.perf_counter()
    for layer_keys, layer_values in zip(keys, values, strict=True):
        decode(*new, layer_keys, layer_values, rows, HEAD_DIM**-0.5, output)
    return 1e3 * (time.perf_counter() - started)


def compare(cache: SlotCache, plain_keys: list[Tensor], num_rows: int, draft_tokens: int, repeats: int) -> float:
    """Print both sides' median and return their ratio."""
    random = np.random.default_rng(0)
    slots = sorted(random.choice(NUM_SLOTS, num_rows, replace=False).tolist())
    widths = random.integers(1, draft_tokens + 2, num_rows).tolist()
    rows = DecodeRows(slots, random.integers(300, 800, num_rows).tolist(), widths, device=torch.device("cpu"))
    new = [
        torch.randn(rows.num_tokens, heads, HEAD_DIM).bfloat16() for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    ]
    outputs = [torch.empty_like(new[0]) for _ in range(2)]
    _decode_compiled(*new, cache.keys[0], cache.values[0], rows, 0.125, outputs[0])
    _decode(*new, plain_keys[0], cache.values[0], rows, 0.125, outputs[1])
    torch.testing.assert_close(*outputs, atol=0.03, rtol=0.03)
    # In turns, so that what else the machine does falls on both.
    times = [
        (
            step_ms(_decode_compiled, new, cache.keys, cache.values, rows),
            step_ms(_decode, new, plain_keys, cache.values, rows),
        )
        for _ in range(repeats)
    ]
    compiled, batched = (statistics.median(side) for side in zip(*times, strict=True))
    print(f"{num_rows} rows, drafts up to {draft_tokens}: compiled {compiled:.1f} ms, batched {batched:.1f} ms")
    return compiled / batched


@torch.inference_mode()
def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[48, 12])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    cache = SlotCache(
        num_layers=NUM_LAYERS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        num_slots=NUM_SLOTS,
        slot_tokens=SLOT_TOKENS,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    for each in (*cache.keys, *cache.values):
        each.normal_()
    plain_keys = [keys.transpose(3, 4).flatten(2, 3).contiguous() for keys in cache.keys]
    ratios = [
        compare(cache, plain_keys, rows, drafts, arguments.repeats)
        for rows in arguments.rows
        for drafts in arguments.drafts
    ]
    print("ratio", " ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
