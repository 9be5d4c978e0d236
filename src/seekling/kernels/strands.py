"""Attention of packed rows: each strand attends to its path through the row and, causally, to itself.

Shape letters: H query heads, C key/value heads, N packed tokens, T tokens of a path, S strands, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.kernels.amx.attention import attend_tiled, pair_dimensions, pair_tokens
from seekling.kernels.amx.backward import differentiate_attention
from seekling.kernels.backend import takes_loops, takes_tiles
from seekling.kernels.memory import STEP, up_to_step
from seekling.kernels.vector.paths import attend, differentiate

Span = tuple[int, int]
"""First token of a row, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Strand:
    """The tokens that one trajectory adds to a row, where they stand side by side."""

    start: int
    length: int
    before: tuple[Span, ...]
    """Where the tokens before them in the trajectory stand in the row, in order."""

    @property
    def num_before(self) -> int:
        """Tokens before it in its trajectory."""
        return sum(stop - start for start, stop in self.before)

    @property
    def path(self) -> tuple[Span, ...]:
        """Where the trajectory's tokens up to its end stand."""
        return (*self.before, (self.start, self.start + self.length))


def attend_strands(
    query_HND: Tensor, key_CND: Tensor, value_CND: Tensor, strands: Sequence[Strand], scaling: float
) -> Tensor:
    """(H, N, D) of a packed row, attending along the paths of its strands; 0 of tokens that belong to none.

    `scaling` is a factor on the scores.
    """
    if takes_loops(query_HND, key_CND, value_CND):
        output_HND: Tensor = _LoopedAttention.apply(  # type: ignore[no-untyped-call]
            query_HND, key_CND, value_CND, strands, scaling
        )
        return output_HND
    is_seen_NN, is_token_N1 = _seen(tuple(strands), query_HND.shape[1], query_HND.device)
    group = query_HND.shape[0] // key_CND.shape[0]  # repeated: torch's fused kernels for GPUs want as many of each
    key_HND, value_HND = (each.repeat_interleave(group, 0) for each in (key_CND, value_CND))
    output_1HND = F.scaled_dot_product_attention(
        query_HND[None], key_HND[None], value_HND[None], attn_mask=is_seen_NN, scale=scaling
    )
    return output_1HND[0] * is_token_N1


@lru_cache(maxsize=1)
@torch.inference_mode(False)  # of it, gradients could not use them
def _seen(strands: tuple[Strand, ...], num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, N) which tokens each one sees, and (N, 1) whether it belongs to a strand; the same in all layers of a row."""
    is_seen_NN = torch.eye(num_tokens, dtype=torch.bool)  # padding too: a softmax of nothing would be NaN
    is_token_N1 = torch.zeros(num_tokens, 1, dtype=torch.bool)
    for strand in strands:
        own = slice(strand.start, strand.start + strand.length)
        for start, stop in strand.path:
            is_seen_NN[own, start:stop] = True
        is_seen_NN[own, own].tril_()
        is_token_N1[own] = True
    return is_seen_NN.to(device), is_token_N1.to(device)


class _LoopedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_HND: Tensor, key_CND: Tensor, value_CND: Tensor, strands: Sequence[Strand], scaling: float
    ) -> Tensor:
        output_HND = torch.zeros_like(query_HND)
        logsum_HN = torch.zeros(query_HND.shape[:2], device=query_HND.device)
        for strand in strands:
            own = slice(strand.start, strand.start + strand.length)
            keys, values = _gather(strand, key_CND), _gather(strand, value_CND)
            num_before = strand.num_before
            if takes_tiles(query_HND.dtype, query_HND.device, query_HND.shape[-1]):
                pairs = pair_dimensions(keys, STEP), pair_tokens(values)
                found = attend_tiled(query_HND[:, own], *pairs, num_before=num_before, scaling=scaling)
            else:
                found = attend(query_HND[:, own], keys, values, num_before=num_before, scaling=scaling)
            output_HND[:, own], logsum_HN[:, own] = found
        ctx.save_for_backward(query_HND, key_CND, value_CND, output_HND, logsum_HN)
        ctx.strands, ctx.scaling = strands, scaling
        return output_HND

    @staticmethod
    def backward(ctx: Any, d_output_HND: Tensor) -> tuple[Tensor | None, ...]:
        query_HND, key_CND, value_CND, output_HND, logsum_HN = ctx.saved_tensors
        d_query_HND = torch.zeros_like(query_HND)
        # Every strand that follows on a token adds to its gradient, so sums are float32.
        d_key_CND, d_value_CND = (torch.zeros(key_CND.shape, device=key_CND.device) for _ in range(2))
        is_tiled = takes_tiles(query_HND.dtype, query_HND.device, query_HND.shape[-1])
        differentiate_path = differentiate_attention if is_tiled else differentiate
        for strand in ctx.strands:
            own = slice(strand.start, strand.start + strand.length)
            d_query_HND[:, own], d_key_CTD, d_value_CTD = differentiate_path(
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


def _gather(strand: Strand, tensor_CND: Tensor) -> Tensor:
    """(C, T, D): the tokens of a strand's path side by side, with zeros up to a whole step."""
    whole = torch.cat([tensor_CND[:, start:stop] for start, stop in strand.path], 1)
    return F.pad(whole, (0, 0, 0, up_to_step(whole.shape[1]) - whole.shape[1]))


def _scatter(strand: Strand, tensor_CND: Tensor, path_CTD: Tensor) -> None:
    """Add what belongs to the tokens of the path to those of the row."""
    place = 0
    for start, stop in strand.path:
        tensor_CND[:, start:stop] += path_CTD[:, place : place + stop - start]
        place += stop - start
