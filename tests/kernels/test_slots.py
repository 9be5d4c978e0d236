"""Attention over cached slots, by every back end, against plain attention over each row's own tokens."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seekling.kernels.amx.attention import pair_dimensions, pair_tokens
from seekling.kernels.backend import available_kernels, use_kernels
from seekling.kernels.memory import STEP
from seekling.kernels.slots import AttentionPlan, DecodeRows, Segment, SlotCache, attend_slots

LAYOUTS = {"reference": "rows", "vector": "blocks", "amx": "pairs"}
WAYS = [("reference", torch.float32), ("vector", torch.float32), ("vector", torch.bfloat16)]
if "amx" in available_kernels():
    WAYS.append(("amx", torch.bfloat16))
SHAPES = [(9, 3, 64), *(pytest.param(each, marks=pytest.mark.long) for each in ((4, 4, 16), (8, 1, 24), (6, 2, 10)))]
"""Query heads, key/value heads, head dimension. For each a loop is compiled, in 8 s; other tests take the first."""


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request):
    use_kernels(request.param[0])
    yield request.param
    use_kernels("auto")


def cache_of(keys_SCLD, values_SCLD, layout):
    """A cache that holds these keys and values, as its back end reads them."""
    num_slots, num_kv_heads, num_tokens, head_dim = keys_SCLD.shape
    cache = SlotCache(
        num_layers=1, num_kv_heads=num_kv_heads, head_dim=head_dim, num_slots=num_slots, slot_tokens=num_tokens,
        dtype=keys_SCLD.dtype, device=torch.device("cpu"),
    )  # fmt: skip
    assert cache.layout == layout
    keys, values = keys_SCLD, values_SCLD
    if layout == "blocks":
        keys = keys_SCLD.unflatten(2, (-1, STEP)).transpose(3, 4)
    if layout == "pairs":
        keys = torch.stack([pair_dimensions(each, STEP) for each in keys_SCLD])
        values = torch.stack([pair_tokens(each) for each in values_SCLD])
    cache.keys[0].copy_(keys)
    cache.values[0].copy_(values)
    return cache


def held_by(cache):
    """(S, C, L, D) keys and values of a cache."""
    keys, values = cache.keys[0], cache.values[0]
    if cache.layout == "blocks":
        keys = keys.transpose(3, 4).flatten(2, 3)
    if cache.layout == "pairs":
        keys = keys.transpose(3, 4).contiguous().view(torch.bfloat16).flatten(2, 3)
        values = values.unsqueeze(-1).contiguous().view(torch.bfloat16).transpose(3, 4).flatten(2, 3)
    return keys, values


def places_of(rows):
    row_P = np.repeat(np.arange(len(rows.slots_R)), rows.widths_R)
    position_P = rows.pasts_R[row_P] + np.arange(rows.num_tokens) - rows.starts_R[row_P]
    return torch.from_numpy(rows.slots_R[row_P]), slice(None), torch.from_numpy(position_P)


def attend(way, query_PHD, keys, values, rows):
    """Of decode rows, whose own keys and values are not in the caches yet, as they are not in the sampler."""
    places, before = places_of(rows), (keys.clone(), values.clone())
    own = [each[places] for each in before]
    for each in before:
        each[places] = 1e4
    cache = cache_of(*before, LAYOUTS[way[0]])
    new = (each.transpose(0, 1) for each in (query_PHD, *own))
    output_PHD = attend_slots(*new, 0, AttentionPlan(cache, rows, ()), 0.3)
    for each, written, wanted in zip(before, held_by(cache), own, strict=True):
        each[places] = wanted
        torch.testing.assert_close(written, each, atol=0, rtol=0, equal_nan=True)  # and nothing else
    return output_PHD


def expected_of(query_PHD, keys_SCLD, values_SCLD, rows):
    outputs = []
    for slot, start, past, width in zip(rows.slots_R, rows.starts_R, rows.pasts_R, rows.widths_R, strict=True):
        seen = torch.ones(width, past + width, dtype=torch.bool).tril(int(past))
        key_HLD, value_HLD = (
            each[slot, :, : past + width].float().repeat_interleave(query_PHD.shape[1] // each.shape[1], 0)
            for each in (keys_SCLD, values_SCLD)
        )
        query_HWD = query_PHD[start : start + width].float().transpose(0, 1)
        output_HWD = F.scaled_dot_product_attention(query_HWD, key_HLD, value_HLD, attn_mask=seen, scale=0.3)
        outputs.append(output_HWD.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_all_lengths_and_widths_attend_to_their_own_tokens_only(way, shape):
    num_heads, num_kv_heads, head_dim = shape
    if way[0] == "amx" and head_dim != 64:
        pytest.skip("tiles take heads of 64")
    generator, random = torch.Generator().manual_seed(0), np.random.default_rng(0)
    slots, pasts = random.permutation(12)[:9].tolist(), [0, 1, 6, 61, 8, 63, 64, 90, 123]
    widths = [1, 5, 2, 1, 3, 1, 4, 2, 5]
    rows = DecodeRows(slots, pasts, widths)
    keys, values = torch.randn(2, 12, num_kv_heads, 2 * STEP, head_dim, generator=generator).to(way[1]) * 3
    query = torch.randn(sum(widths), num_heads, head_dim, generator=generator).to(way[1]) * 3
    for slot in set(range(12)) - set(slots):
        keys[slot], values[slot] = torch.nan, torch.nan
    for slot, past, width in zip(slots, pasts, widths, strict=True):
        keys[slot, :, past + width :], values[slot, :, past + width :] = 1e4, 1e4
    found = attend(way, query, keys, values, rows)
    assert found.dtype == way[1]
    bound = 1e-5 if way[1] == torch.float32 else 0.04
    torch.testing.assert_close(found.float(), expected_of(query, keys, values, rows), atol=bound, rtol=1e-2)


def test_rows_read_the_tokens_they_share_from_their_leaders_slot(way):
    if way[0] == "reference":
        pytest.skip("the reference reads each row's own")
    random = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 3, 3, 3 * STEP, 64, generator=random).to(way[1])
    query = torch.randn(4, 9, 64, generator=random).to(way[1])
    rows = [0, 1, 2], [2 * STEP + 5, STEP, 9], [1, 2, 1]
    for each in (keys, values):
        each[1, :, :STEP] = each[0, :, :STEP]
    alone = attend(way, query, keys, values, DecodeRows(*rows))
    for each in (keys, values):
        each[1, :, :STEP] = torch.nan  # what is shared is read nowhere else
    leaders = [(0, 2 * STEP), (0, STEP), (2, 0)]
    assert torch.equal(attend(way, query, keys, values, DecodeRows(*rows, leaders=leaders)), alone)


def test_one_damaged_key_reaches_the_output(way):
    rows = DecodeRows([0, 1], [5, 9], [2, 1])
    keys, values = torch.randn(2, 2, 3, STEP, 64, generator=torch.Generator().manual_seed(0)).to(way[1])
    keys[0, :, 3, 2] = torch.nan
    found = attend(way, torch.ones(3, 9, 64, dtype=way[1]), keys, values, rows)
    assert not found[:2].isfinite().any()
    assert found[2].isfinite().all()


@pytest.mark.parametrize(("past", "length"), [(0, 1), (0, 700), (5, 300), (64, 64), (300, 33), (511, 2)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_segments_attend_to_their_path(kernels, past, length, head_dim):
    random = torch.Generator().manual_seed(past)
    cache = SlotCache(
        num_layers=1, num_kv_heads=2, head_dim=head_dim, num_slots=3, slot_tokens=past + length, dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert cache.layout == LAYOUTS[kernels]
    keys, values = torch.randn(2, 2, past + length, head_dim, generator=random).bfloat16()
    query = (torch.randn(6, past + length, head_dim, generator=random) * 3).bfloat16()
    # What a longer episode left behind the path is not seen, and a half-filled pair of values is filled.
    for each in (*cache.keys, *cache.values):
        each.view(torch.int32).fill_(0x41004100)
    bounds = [0, past // 2, past, past + length]
    for slot, start, stop in zip((0, 1, 1), bounds[:-1], bounds[1:], strict=True):
        new = slice(start, stop)
        plan = AttentionPlan(cache, None, (Segment(slot, 0, start, stop - start),))
        if stop > start:
            found = attend_slots(query[:, new], keys[:, new], values[:, new], 0, plan, 0.2)
        if slot == 0:
            cache.copy_prefix(0, 1, stop)
    keys_HTD, values_HTD = (each.double().repeat_interleave(3, 0) for each in (keys, values))
    is_future = torch.ones(length, past + length, dtype=torch.bool).triu(past + 1)
    scores = (query[:, past:].double() @ keys_HTD.transpose(1, 2) * 0.2).masked_fill(is_future, -torch.inf)
    wanted = (scores.softmax(-1) @ values_HTD).transpose(0, 1)
    torch.testing.assert_close(found.double(), wanted, atol=0.015, rtol=0.015)


def test_rows_that_share_a_leader_are_worked_on_together_as_many_as_fit():
    def parts_of(leaders, widths, num_tokens):
        rows = DecodeRows(list(range(len(widths))), [300] * len(widths), widths, leaders=leaders)
        return [sorted(part.tolist()) for part in np.split(rows.order_R, rows.parts(num_tokens)[1:-1])]

    alone, three = [(n, 0) for n in range(3)], [(0, 256), (0, 128), (0, 128)]
    assert parts_of(alone, [1, 1, 1], 5) == [[0], [1], [2]]
    assert parts_of(three, [1, 1, 1], 5) == [[0, 1, 2]]
    assert parts_of(three, [1, 1, 1], 2) == [[0, 1], [2]]
    assert parts_of(three, [1, 5, 1], 5) == [[0], [1], [2]]
    assert parts_of(three, [9, 1, 1], 5) == [[0], [1, 2]]
    # One that shares much less would leave the others with as little; one that shares nothing too.
    assert parts_of([(0, 256), (0, 256), (0, 64), (0, 0)], [1, 1, 1, 1], 5) == [[0, 1], [2], [3]]
    assert parts_of([(0, 256), (1, 256), (1, 256)], [1, 1, 1], 5) == [[0], [1, 2]]


def test_starting_the_loops_threads_leaves_torchs_number_of_threads_alone():
    script = (
        "import torch\nfrom seekling.kernels.vector.pointwise import use_threads\n"
        "torch.set_num_threads(1)\nuse_threads()\n"
        "torch.mm(torch.ones(99, 99), torch.ones(99, 99))\nprint(torch.get_num_threads())\n"
    )
    # A process of its own: numba starts its threads once.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
