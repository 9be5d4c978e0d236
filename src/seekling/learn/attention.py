"""Attention of packed rows: each strand attends to its path through the row and, causally, to itself.

Nothing of the size of the scores is kept for the backward pass, which computes them once more in tiles that stay in the
processor's cache.

Shape letters: H query heads, C key/value heads, N packed tokens, T tokens of a path, B tokens of a tile's queries,
R = B * H / C queries of a tile that share a key/value head, K tokens of a tile's keys, D head dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.learn.pack import Strand
from seekling.learn.tiled import differentiate_attention
from seekling.models.pointwise import accumulate_
from seekling.rollout.engine.causal import attend, fill_to_step, up_to_step
from seekling.rollout.engine.kernel import differentiate_softmax
from seekling.rollout.engine.memory import in_steps
from seekling.rollout.engine.tiled import can_attend

STRAND_ATTENTION = "seekling_strands"

QUERIES, KEYS = 256, 512
"""Tokens of a tile in the backward pass: larger ones leave the processor cache, smaller ones are too many calls."""


def strand_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    strands: Sequence[Strand],
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend along paths.

    Args:
        module: the attention layer, unused.
        query: (1, H, N, D).
        key: (1, C, N, D).
        value: (1, C, N, D).
        attention_mask: ignored, the strands say it all.
        strands: of the row; tokens that belong to none are padding, their output is 0.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    output_HND = _StrandAttention.apply(query[0], key[0], value[0], strands, scaling)  # type: ignore[no-untyped-call]
    return output_HND.transpose(0, 1).unsqueeze(0), None


class _StrandAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_HND: Tensor, key_CND: Tensor, value_CND: Tensor, strands: Sequence[Strand], scaling: float
    ) -> Tensor:
        output_HND = torch.zeros_like(query_HND)
        logsum_HN = torch.zeros(query_HND.shape[:2], device=query_HND.device)
        for strand in strands:
            own = slice(strand.start, strand.start + strand.length)
            keys, values = _gather(strand, key_CND), _gather(strand, value_CND)
            output_HND[:, own], logsum_HN[:, own] = attend(
                query_HND[:, own], keys, values, num_before=strand.num_before, scaling=scaling
            )
        ctx.save_for_backward(query_HND, key_CND, value_CND, output_HND, logsum_HN)
        ctx.strands, ctx.scaling = strands, scaling
        return output_HND

    @staticmethod
    def backward(ctx: Any, d_output_HND: Tensor) -> tuple[Tensor | None, ...]:
        query_HND, key_CND, value_CND, output_HND, logsum_HN = ctx.saved_tensors
        d_query_HND = torch.zeros_like(query_HND)
        # Every strand that follows on a token adds to its gradient, so sums are float32.
        d_key_CND, d_value_CND = (torch.zeros(key_CND.shape, device=key_CND.device) for _ in range(2))
        is_tiled = can_attend(query_HND.dtype, query_HND.device, query_HND.shape[-1])
        differentiate = differentiate_attention if is_tiled else _differentiate
        for strand in ctx.strands:
            own = slice(strand.start, strand.start + strand.length)
            d_query_HND[:, own], d_key_CTD, d_value_CTD = differentiate(
                d_output_HND[:, own],
                query_HND[:, own],
                _gather(strand, key_CND),
                _gather(strand, value_CND),
                output_HND[:, own],
                logsum_HN[:, own],
                num_before=strand.num_before,
                scaling=ctx.scaling,
            )
            _scatter(strand, d_key_CND, d_key_CTD)
            _scatter(strand, d_value_CND, d_value_CTD)
        return d_query_HND, d_key_CND.to(key_CND.dtype), d_value_CND.to(value_CND.dtype), None, None


def _differentiate(
    d_output_HND: Tensor, query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, output_HND: Tensor, logsum_HN: Tensor,
    *, num_before: int, scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `differentiate_attention`, by matrix products of large tiles."""
    delta_HN = (d_output_HND * output_HND).float().sum(-1)
    d_query_HND = torch.empty_like(query_HND)
    tiles = [
        tuple(each_CTD[:, begin : begin + KEYS].contiguous() for each_CTD in (key_CTD, value_CTD))
        for begin in range(0, key_CTD.shape[1], KEYS)
    ]
    d_tiles = [torch.zeros(2, *key_CKD.shape, device=key_CTD.device) for key_CKD, _ in tiles]
    for first, stop in _query_tiles(query_HND.shape[1]):
        query_CRD, d_output_CRD, logsum_CR, delta_CR = (
            _rows(each[:, first:stop], len(key_CTD)) for each in (query_HND, d_output_HND, logsum_HN, delta_HN)
        )
        d_query_CRD = torch.zeros(query_CRD.shape, device=query_CRD.device)
        d_query_HBD = d_query_CRD.view(len(query_HND), -1, query_HND.shape[-1])
        end = up_to_step(num_before + stop)
        for number, begin in enumerate(range(0, end, KEYS)):
            key_CKD, value_CKD = (each_CKD[:, : end - begin] for each_CKD in tiles[number])
            weights_CRK = torch.bmm(query_CRD, key_CKD.transpose(1, 2))
            d_scores_CRK = torch.bmm(d_output_CRD, value_CKD.transpose(1, 2))
            differentiate_softmax(
                weights_CRK,
                d_scores_CRK,
                logsum_CR,
                delta_CR,
                num_queries=d_query_HBD.shape[1],
                num_before=num_before + first - begin,
                scaling=scaling,
            )
            d_key_CKD, d_value_CKD = d_tiles[number][:, :, : end - begin]
            accumulate_(d_value_CKD, torch.bmm(weights_CRK.transpose(1, 2), d_output_CRD))
            accumulate_(d_key_CKD, torch.bmm(d_scores_CRK.transpose(1, 2), query_CRD))
            accumulate_(d_query_CRD, torch.bmm(d_scores_CRK, key_CKD))
        d_query_HND[:, first:stop] = d_query_HBD[:, : stop - first]
    d_key_CTD, d_value_CTD = torch.cat(d_tiles, 2)
    return d_query_HND, d_key_CTD, d_value_CTD


def _query_tiles(length: int) -> list[tuple[int, int]]:
    """About `QUERIES` each, all of the same length: a rest of a few queries would take as many calls as a tile."""
    count = max(1, round(length / QUERIES))
    bounds = [length * number // count for number in range(count + 1)]
    return list(itertools.pairwise(bounds))


def _rows(tensor_HB: Tensor, num_kv_heads: int) -> Tensor:
    """(C, R, ...) of (H, B, ...), with zeros up to a whole step: the queries that share a key/value head."""
    missing = in_steps(tensor_HB.shape[1]) - tensor_HB.shape[1]
    padded = F.pad(tensor_HB, (0, 0) * (tensor_HB.ndim - 2) + (0, missing))
    return padded.reshape(num_kv_heads, -1, *tensor_HB.shape[2:])


def _gather(strand: Strand, tensor_CND: Tensor) -> Tensor:
    """(C, T, D): the tokens of a strand's path side by side, with zeros up to a whole step."""
    whole = torch.cat([tensor_CND[:, start:stop] for start, stop in strand.path], 1)
    return fill_to_step(whole, whole.shape[1])


def _scatter(strand: Strand, tensor_CND: Tensor, path_CTD: Tensor) -> None:
    """Add what belongs to the tokens of the path to those of the row."""
    place = 0
    for start, stop in strand.path:
        tensor_CND[:, start:stop] += path_CTD[:, place : place + stop - start]
        place += stop - start


AttentionInterface.register(STRAND_ATTENTION, strand_attention)
