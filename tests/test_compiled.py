"""Compiled loops where their folder cannot be written to."""

import json
import os
import subprocess
import sys

import numba
import pytest

from seekling.compiled import compile_loop


def test_where_nothing_can_be_cached_the_loop_is_compiled_all_the_same(monkeypatch):
    seen = []

    def refuse(*, cache=False, **options):
        seen.append(options)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    def loop():
        pass

    monkeypatch.setattr(numba, "njit", refuse)
    assert compile_loop(loop, nogil=True) is loop
    assert seen == [{"nogil": True, "parallel": False}] * 2


def test_a_loop_is_compiled_anew_when_what_it_calls_has_changed(tmp_path):
    (tmp_path / "helper.py").write_text("from numba import njit\n@njit\ndef add(x):\n    return x + 1\nSIZE = 10\n")
    (tmp_path / "loop.py").write_text(
        "from helper import SIZE, add\nfrom seekling.compiled import compile_loop\n"
        "def loop(x):\n    return SIZE * add(x)\n"
        "print(compile_loop(loop)(1))\n"
    )

    def run() -> str:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "loop.py"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    seen = [run()]
    for old, new in (("x + 1", "x + 20"), ("SIZE = 10", "SIZE = 100")):
        (tmp_path / "helper.py").write_text((tmp_path / "helper.py").read_text().replace(old, new))
        seen.append(run())
    assert seen == ["20", "210", "2100"]


LOOPS = """
import json, numpy as np, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from seekling.kernels import linear, slots
from seekling.kernels.amx import attention as tiled, backward, layer, products
from seekling.kernels.layer import DecodeLoops
from seekling.kernels.amx.tiles import has_tiles
from seekling.kernels.vector import attention, eight_bits, layer as rounded, pointwise
from seekling.rollout.engine import layers
torch.set_num_threads(2)
small, large = (torch.randn(rows, 64).bfloat16() for rows in (4, 4096))
for each in (small, large):
    out, scale = pointwise.rms_norm(each, each[0], 1e-6)
    pointwise.rms_norm_backward(out, each, each[0], scale)
    pointwise.gated_silu(each, each), pointwise.gated_silu_backward(each, each, each)
    pointwise.softmax_gradient_(each, scale, *pointwise.softmax_stats(each, scale))
    pointwise.rotate_(each.view(-1, 4, 16), 3, each[:, :16].contiguous(), each[:, 16:32].contiguous())
made = [make(16, way) for make in pointwise.LOOPS for way in (False, True)]
product = torch.ones(1, 2, 8).bfloat16()
attention.differentiate_softmax(
    product, product.clone(), torch.ones(1, 2), torch.ones(1, 2), num_queries=2, num_before=3, scaling=1.0
)
held = slots.SlotCache(
    num_layers=1, num_kv_heads=1, head_dim=8, num_slots=1, slot_tokens=9, dtype=product.dtype,
    device=torch.device("cpu"),
)
rows = slots.DecodeRows([0], [1], [1])
one = product[:1, :1].clone()
slots.decode_rows(one, one, one, held.keys[0], held.values[0], rows, 1.0, one.clone())
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, num_key_value_heads=1)).bfloat16()
names = {id(each): name for name, each in model.named_parameters()}
with torch.inference_mode():
    linears = list(layers.fuse_layers(model, names, linear.EightBitLinear))
    linears += linear.pack_linear_layers(model.model, names, linear.EightBitLinear)
    linears[-1].add_to(linears[-1](large[:1, :32]), large[:1, :32])
    DecodeLoops.of(model.model, held).run(*torch.zeros(2, 1, dtype=torch.int64), rows)
made += [eight_bits._product_loop(kind, 16, True) for kind in (eight_bits.WRITE, eight_bits.ADD)]
made += [rounded.layer_loop(16, 8, 4, True)]
made += [attention._softmax_kernel(16), attention.row_loop(16, 8, 1)]
if has_tiles():
    product = torch.ones(1, 64, 64).bfloat16()
    pairs = tiled.pair_dimensions(product, 64), tiled.pair_tokens(product)
    tiled.store_pairs(0, product, product, *pairs)
    result = tiled.attend_tiled(product, *pairs, num_before=0, scaling=1.0)
    backward.differentiate_attention(product, product, product, product, *result, num_before=0, scaling=1.0)
    one = product[:1, :1].clone()
    slots.decode_rows(one, one, one, *(each[None] for each in pairs), rows, 1.0, one.clone())
    made += [tiled._store_loop(), tiled._attend_loop(64), tiled.decode_loop(64, 1), backward._loop(64)]
    sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, num_key_value_heads=1)).bfloat16()
    held = slots.SlotCache(
        num_layers=1, num_kv_heads=1, head_dim=64, num_slots=1, slot_tokens=9, dtype=product.dtype,
        device=torch.device("cpu"),
    )
    with torch.inference_mode():
        linears = list(layers.fuse_layers(model, {id(each): name for name, each in model.named_parameters()}))
        linears += linear.pack_linear_layers(model.model, {id(each): name for name, each in model.named_parameters()})
        linears[0].add_to(linears[0](one[0]), one[0])
        DecodeLoops.of(model.model, held).run(*torch.zeros(2, 1, dtype=torch.int64), rows)
    made += [products._product_loop(kind, True) for kind in (products.WRITE, products.ADD)]
    made += [layer.layer_loop(64, 1, True)]
print(json.dumps([[sum(each.stats.cache_hits.values()), sum(each.stats.cache_misses.values())] for each in made]))
"""


@pytest.mark.long  # compiles every loop there is
def test_a_second_process_finds_every_loop_compiled_serial_ones_apart_from_parallel_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", LOOPS], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(2)
    )
    assert len(first) >= 19
    assert first == [[0, 1]] * len(first)
    assert second == [[1, 0]] * len(first)
