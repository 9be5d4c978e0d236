"""Attention of packed rows: each strand attends to its path through the row and, causally, to itself.

Nothing of the size of the scores is kept for the backward pass, which computes them once more.

Shape letters: H query heads, C key/value heads, N packed tokens, T tokens of a path, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.learn.pack import Strand
from seekling.rollout.engine.causal import BLOCK, Path

STRAND_ATTENTION = "seekling_strands"


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
        for strand in strands:
            _path(strand, query_HND, key_CND, value_CND, scaling).attend(output_HND)
        ctx.save_for_backward(query_HND, key_CND, value_CND, output_HND)
        ctx.strands, ctx.scaling = strands, scaling
        return output_HND

    @staticmethod
    def backward(ctx: Any, d_output_HND: Tensor) -> tuple[Tensor | None, ...]:
        query_HND, key_CND, value_CND, output_HND = ctx.saved_tensors
        d_query_HND = torch.zeros_like(query_HND)
        # Every strand that follows on a token adds to its gradient, so sums are float32.
        d_key_CND, d_value_CND = (torch.zeros(key_CND.shape, device=key_CND.device) for _ in range(2))
        delta_HN1 = (d_output_HND * output_HND).float().sum(-1, keepdim=True).to(query_HND.dtype)
        for strand in ctx.strands:
            path = _path(strand, query_HND, key_CND, value_CND, ctx.scaling)
            d_key_CTD, d_value_CTD = (torch.zeros(path.key_CTD.shape, device=key_CND.device) for _ in range(2))
            for block in path.blocks():
                d_output_CRD, delta_CR1 = block.read(d_output_HND), block.read(delta_HN1)
                d_value_CTD[:, : block.end] += torch.bmm(block.weights_CRK.transpose(1, 2), d_output_CRD)
                d_scores_CRK = torch.bmm(d_output_CRD, block.value_CKD.transpose(1, 2))
                d_scores_CRK.sub_(delta_CR1).mul_(block.weights_CRK)
                block.write(d_query_HND, torch.bmm(d_scores_CRK, block.key_CKD).mul_(ctx.scaling))
                d_key_CTD[:, : block.end] += torch.bmm(d_scores_CRK.transpose(1, 2), block.query_CRD)
            _scatter(strand, d_key_CND, d_key_CTD)
            _scatter(strand, d_value_CND, d_value_CTD)
        return d_query_HND, d_key_CND.to(key_CND.dtype), d_value_CND.to(value_CND.dtype), None, None


def _path(strand: Strand, query_HND: Tensor, key_CND: Tensor, value_CND: Tensor, scaling: float) -> Path:
    return Path(
        query_HND,
        _gather(strand, key_CND),
        _gather(strand, value_CND),
        start=strand.start,
        length=strand.length,
        num_before=strand.num_before,
        scaling=scaling,
    )


def _gather(strand: Strand, tensor_CND: Tensor) -> Tensor:
    """The tokens of a strand's path side by side, with zeros up to a whole block."""
    num_heads, _, depth = tensor_CND.shape
    padding = -(strand.num_before + strand.length) % BLOCK
    parts = [tensor_CND[:, start:stop] for start, stop in strand.path]
    return torch.cat([*parts, tensor_CND.new_zeros((num_heads, padding, depth))], 1)


def _scatter(strand: Strand, tensor_CND: Tensor, path_CTD: Tensor) -> None:
    """Add what belongs to the tokens of the path to those of the row."""
    place = 0
    for start, stop in strand.path:
        tensor_CND[:, start:stop] += path_CTD[:, place : place + stop - start]
        place += stop - start


AttentionInterface.register(STRAND_ATTENTION, strand_attention)
