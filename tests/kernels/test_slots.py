"""Decode attention, compiled and in batched calls, against plain attention over each row's own tokens."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seekling.kernels.amx.attention import pair_dimensions, pair_tokens
from seekling.kernels.backend import available_kernels
from seekling.kernels.memory import STEP
from seekling.kernels.slots import (
    AttentionPlan,
    DecodeRows,
    Segment,
    SlotCache,
    _decode,
    _decode_compiled,
    attend_slots,
)


def decode_by_tiles(*arguments):
    _decode_compiled(*arguments)


needs_tiles = pytest.mark.skipif("amx" not in available_kernels(), reason="this CPU has no tiles")
by_tiles = pytest.param(decode_by_tiles, torch.bfloat16, marks=needs_tiles)
SHAPES = [(9, 3, 64), (4, 4, 16), *(pytest.param(each, marks=pytest.mark.long) for each in ((8, 1, 24), (6, 2, 10)))]
"""Query heads, key/value heads, head dimension. For each a loop is compiled, in 8 s; other tests take one that
there is."""


def reference(query_PHD, keys_SCLD, values_SCLD, rows, scaling):
    group = query_PHD.shape[1] // keys_SCLD.shape[1]
    outputs = []
    for slot, start, past, width in zip(rows.slots_R, rows.starts_R, rows.pasts_R, rows.widths_R, strict=True):
        seen = torch.ones(width, past + width, dtype=torch.bool).tril(int(past))
        keys_HLD = keys_SCLD[slot, :, : past + width].float().repeat_interleave(group, 0)
        values_HLD = values_SCLD[slot, :, : past + width].float().repeat_interleave(group, 0)
        query_HWD = query_PHD[start : start + width].float().transpose(0, 1)
        output_HWD = F.scaled_dot_product_attention(query_HWD, keys_HLD, values_HLD, attn_mask=seen, scale=scaling)
        outputs.append(output_HWD.transpose(0, 1))
    return torch.cat(outputs)


def lay(keys_SCLD, values_SCLD, decode):
    """Keys and values as a way to decode reads them."""
    if decode is _decode:
        return keys_SCLD, values_SCLD
    assert keys_SCLD.shape[2] % STEP == 0
    if decode is _decode_compiled:
        return keys_SCLD.unflatten(2, (-1, STEP)).transpose(3, 4).contiguous(), values_SCLD
    keys = [pair_dimensions(keys_CLD, STEP) for keys_CLD in keys_SCLD]
    return torch.stack(keys), torch.stack([pair_tokens(values_CLD) for values_CLD in values_SCLD])


def lift(keys, values, decode):
    """The other way."""
    if decode is _decode:
        return keys, values
    if decode is _decode_compiled:
        return keys.transpose(3, 4).flatten(2, 3), values
    keys_SCBKE = keys.transpose(3, 4).contiguous()
    values_SCFD2 = values.unsqueeze(-1).contiguous().view(torch.bfloat16)
    return keys_SCBKE.view(torch.bfloat16).flatten(2, 3), values_SCFD2.transpose(3, 4).flatten(2, 3)


def attend(decode, query, keys, values, rows, scaling):
    """Of decode rows, whose own keys and values are not in the caches yet, as they are not in the sampler."""
    keys, values, output = keys.clone(), values.clone(), torch.full_like(query, torch.nan)
    own = [each[rows.slot_P, :, rows.position_P] for each in (keys, values)]
    for each in (keys, values):
        each[rows.slot_P, :, rows.position_P] = 1e4
    lain = lay(keys, values, decode)
    decode(query, *own, *lain, rows, scaling, output)
    for before, written, wanted in zip((keys, values), lift(*lain, decode), own, strict=True):
        before[rows.slot_P, :, rows.position_P] = wanted
        torch.testing.assert_close(written, before, atol=0, rtol=0, equal_nan=True)  # and nothing else
    return output


@pytest.mark.parametrize("decode", [_decode_compiled, _decode])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_all_lengths_and_widths_attend_to_their_own_tokens_only(decode, shape, dtype):
    compare_rows(decode, shape, dtype)


@needs_tiles
@pytest.mark.parametrize("shape", [(9, 3, 64), (2, 2, 64), (14, 2, 64), (32, 1, 128)])
def test_so_do_rows_by_tiles(shape):
    compare_rows(decode_by_tiles, shape, torch.bfloat16)


def compare_rows(decode, shape, dtype):
    num_heads, num_kv_heads, head_dim = shape
    generator, random = torch.Generator().manual_seed(0), np.random.default_rng(0)
    slots, pasts = random.permutation(12)[:9].tolist(), [0, 1, 6, 61, 8, 63, 64, 90, 123]
    widths = [1, 5, 2, 1, 3, 1, 4, 2, 5]
    rows = DecodeRows(slots, pasts, widths, device=torch.device("cpu"))
    keys, values = torch.randn(2, 12, num_kv_heads, 2 * STEP, head_dim, generator=generator).to(dtype) * 3
    query = torch.randn(sum(widths), num_heads, head_dim, generator=generator).to(dtype) * 3
    for slot in set(range(12)) - set(slots):
        keys[slot], values[slot] = torch.nan, torch.nan
    for slot, past, width in zip(slots, pasts, widths, strict=True):
        keys[slot, :, past + width :], values[slot, :, past + width :] = 1e4, 1e4
    found = attend(decode, query, keys, values, rows, 0.3)
    expected = reference(query, keys, values, rows, 0.3)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=1e-5 if dtype == torch.float32 else 0.04, rtol=1e-2)


@pytest.mark.parametrize(("decode", "dtype"), [(_decode_compiled, torch.float32), by_tiles])
def test_rows_read_the_tokens_they_share_from_their_leaders_slot(decode, dtype):
    random = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 3, 2, 3 * STEP, 64, generator=random).to(dtype)
    query = torch.randn(4, 6, 64, generator=random).to(dtype)
    slots, pasts, widths = [0, 1, 2], [2 * STEP + 5, STEP, 9], [1, 2, 1]
    for each in (keys, values):
        each[1, :, :STEP] = each[0, :, :STEP]
    device = torch.device("cpu")
    alone = attend(decode, query, keys, values, DecodeRows(slots, pasts, widths, device=device), 0.3)
    for each in (keys, values):
        each[1, :, :STEP] = torch.nan  # what is shared is read nowhere else
    leaders = [(0, 2 * STEP), (0, STEP), (2, 0)]
    rows = DecodeRows(slots, pasts, widths, device=device, leaders=leaders)
    assert torch.equal(attend(decode, query, keys, values, rows, 0.3), alone)


@pytest.mark.parametrize(("past", "length"), [(0, 1), (0, 700), (5, 300), (64, 64), (300, 33), (511, 2)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_segments_attend_to_their_path(kernels, past, length, head_dim):
    random = torch.Generator().manual_seed(past)
    cache = SlotCache(
        num_layers=1,
        num_kv_heads=2,
        head_dim=head_dim,
        num_slots=3,
        slot_tokens=past + length,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    assert cache.layout == {"reference": "rows", "vector": "blocks", "amx": "pairs"}[kernels]
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


@pytest.mark.parametrize(("decode", "dtype"), [(_decode_compiled, torch.float32), (_decode, torch.float32), by_tiles])
def test_one_damaged_key_reaches_the_output(decode, dtype):
    rows = DecodeRows([0, 1], [5, 9], [2, 1], device=torch.device("cpu"))
    keys, values = torch.randn(2, 2, 1, STEP, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    keys[0, 0, 3, 2] = torch.nan
    found = attend(decode, torch.ones(3, 3, 64, dtype=dtype), keys, values, rows, 0.3)
    assert not found[:2].isfinite().any()
    assert found[2].isfinite().all()


def test_compiling_and_starting_the_kernel_leaves_torchs_number_of_threads_alone():
    script = (
        "import numpy as np, torch\n"
        "from seekling.kernels.vector.attention import decode_attention\n"
        "torch.set_num_threads(1)\n"
        "new, one = torch.ones(1, 1, 2), np.ones(1, np.int64)\n"
        "rows = {name: one - 1 for name in ('order_R', 'slots_R', 'starts_R', 'leaders_R', 'shared_R')}\n"
        "rows |= {'pasts_R': one, 'widths_R': one, 'parts_I': np.arange(2)}\n"
        "caches = torch.ones(1, 1, 1, 2, 64), torch.ones(1, 1, 64, 2)\n"
        "decode_attention(new, new, new, *caches, **rows, scaling=1.0, output_PHD=new.clone())\n"
        "torch.mm(torch.ones(99, 99), torch.ones(99, 99))\n"
        "print(torch.get_num_threads())\n"
    )
    # A process of its own: numba starts its threads once.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
