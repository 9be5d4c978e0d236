"""Milliseconds of one decode step's attention on the default model's shapes: batched calls, vector loops, tiles.

    python benchmarks/decode_attention.py [--rows 48 12] [--drafts 0 4] [--shared 0 256] [--repeats 5]

All read the same 30 layers: rows of 300 to 800 cached tokens, drafts of random widths up to the given one, the first
`--shared` tokens of four rows at a time the same and read from one slot (batched calls read each row's own). Before
timing, all must give the same numbers. Printed last: median ratios over batched calls. A CPU without tiles leaves them
out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.kernels.amx.attention import pair_dimensions, pair_tokens
from seekling.kernels.backend import takes_tiles
from seekling.kernels.memory import STEP
from seekling.kernels.slots import DecodeRows, decode_rows

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS, NUM_SLOTS, SLOT_TOKENS = 9, 3, 64, 30, 64, 1024
SHORTEST = 300
Decode = Callable[..., None]


def step_ms(decode: Decode, new: list[Tensor], keys: list[Tensor], values: list[Tensor], rows: DecodeRows) -> float:
    """Wall milliseconds of all layers."""
    output, started = torch.empty_like(new[0]), time.perf_counter()
    for layer_keys, layer_values in zip(keys, values, strict=True):
        decode(*new, layer_keys, layer_values, rows, HEAD_DIM**-0.5, output)
    return 1e3 * (time.perf_counter() - started)


def batched(
    query_PHD: Tensor, key_PCD: Tensor, value_PCD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, rows: DecodeRows,
    scaling: float, output_PHD: Tensor,
) -> None:  # fmt: skip
    """In one call, padded to the longest row and the widest; query heads of a key head become positions."""
    count_R, place_P = torch.from_numpy(rows.widths_R), torch.arange(rows.num_tokens)
    row_P = torch.repeat_interleave(torch.arange(len(count_R)), count_R)
    slot_R, past_R, start_R = (torch.from_numpy(each) for each in (rows.slots_R, rows.pasts_R, rows.starts_R))
    offset_P = place_P - start_R[row_P]
    keys_SCLD[slot_R[row_P], :, past_R[row_P] + offset_P] = key_PCD
    values_SCLD[slot_R[row_P], :, past_R[row_P] + offset_P] = value_PCD
    width, group, longest = int(count_R.max()), NUM_HEADS // NUM_KV_HEADS, int((past_R + count_R).max())
    last_RW = torch.minimum(past_R[:, None] + torch.arange(width), (past_R + count_R)[:, None] - 1)
    is_seen_RWL = torch.arange(longest) <= last_RW[:, :, None]
    query_RCWGD = query_PHD.new_zeros(len(count_R), NUM_KV_HEADS, width, group, HEAD_DIM)
    query_RCWGD[row_P, :, offset_P] = query_PHD.view(-1, NUM_KV_HEADS, group, HEAD_DIM)
    output_RCQD = F.scaled_dot_product_attention(
        query_RCWGD.flatten(2, 3), keys_SCLD[slot_R, :, :longest], values_SCLD[slot_R, :, :longest],
        attn_mask=is_seen_RWL.repeat_interleave(group, 1)[:, None], scale=scaling,
    )  # fmt: skip
    output_PHD.copy_(output_RCQD.view(query_RCWGD.shape)[row_P, :, offset_P].reshape(output_PHD.shape))


def lay_out(keys: list[Tensor], values: list[Tensor]) -> dict[str, tuple[Decode, list[Tensor], list[Tensor]]]:
    """What decodes, with (S, C, L, D) keys and values of each layer as it reads them."""
    blocks = [each.unflatten(2, (-1, STEP)).transpose(3, 4).contiguous() for each in keys]
    ways: dict[str, tuple[Decode, list[Tensor], list[Tensor]]] = {
        "batched": (batched, keys, values),
        "vectors": (decode_rows, blocks, values),
    }
    if takes_tiles(torch.bfloat16, torch.device("cpu"), HEAD_DIM):
        key_pairs = [pair_dimensions(each.flatten(0, 1), STEP).unflatten(0, (NUM_SLOTS, -1)) for each in keys]
        value_pairs = [pair_tokens(each.flatten(0, 1)).unflatten(0, (NUM_SLOTS, -1)) for each in values]
        ways["tiles"] = decode_rows, key_pairs, value_pairs
    return ways


def compare(
    ways: dict[str, tuple[Decode, list[Tensor], list[Tensor]]], rows: DecodeRows, repeats: int
) -> dict[str, float]:
    """Medians of the ways to decode."""
    new = [
        torch.randn(rows.num_tokens, heads, HEAD_DIM).bfloat16() for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    ]
    outputs = []
    for decode, keys, values in ways.values():
        outputs.append(torch.empty_like(new[0]))
        decode(*new, keys[0], values[0], rows, HEAD_DIM**-0.5, outputs[-1])
        torch.testing.assert_close(outputs[-1], outputs[0], atol=0.01, rtol=0.03)
    # In turns, so that what else the machine does falls on all.
    times = [
        [step_ms(decode, new, keys, values, rows) for decode, keys, values in ways.values()] for _ in range(repeats)
    ]
    return {name: statistics.median(each) for name, each in zip(ways, zip(*times, strict=True), strict=True)}


@torch.inference_mode()
def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[48, 12])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--shared", type=int, nargs="+", default=[0, 256])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if max(arguments.shared) > SHORTEST or any(shared % STEP for shared in arguments.shared):
        parser.error(f"--shared is a multiple of {STEP}, and at most {SHORTEST}: rows begin at that length")
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    shape = NUM_SLOTS, NUM_KV_HEADS, SLOT_TOKENS, HEAD_DIM
    keys, values = ([torch.randn(shape).bfloat16() for _ in range(NUM_LAYERS)] for _ in range(2))
    # The first tokens of four slots are the same.
    for each in (*keys, *values):
        head = slice(max(arguments.shared))
        each.view(NUM_SLOTS // 4, 4, *shape[1:])[:, 1:, :, head] = each[::4, None, :, head]
    ways, ratios = lay_out(keys, values), []
    for num_rows, draft_tokens, shared in itertools.product(arguments.rows, arguments.drafts, arguments.shared):
        slots = sorted(random.choice(NUM_SLOTS, num_rows, replace=False).tolist())
        rows = DecodeRows(
            slots,
            random.integers(SHORTEST, 800, num_rows).tolist(),
            random.integers(1, draft_tokens + 2, num_rows).tolist(),
            leaders=[(slot // 4 * 4, shared) for slot in slots],
        )
        found = compare(ways, rows, arguments.repeats)
        print(f"{num_rows} rows, drafts up to {draft_tokens}, {shared} shared:", end=" ")
        print(", ".join(f"{name} {each:.1f} ms" for name, each in found.items()), flush=True)
        ratios.append({name: each / found["batched"] for name, each in found.items()})
    for name in list(ways)[1:]:
        print("ratio", name, " ".join(f"{each[name]:.2f}" for each in ratios))


if __name__ == "__main__":
    main()
