"""Causal attention of many new tokens at once, on a CPU: of the last tokens of a path to all of it, and its gradients.

Forward is torch's fused attention, of a part of the queries at a time, so that few pairs of tokens that may not attend
are computed. Nothing of the size of the scores is kept for the backward pass, which computes them once more in tiles
that stay in the processor's cache.

Shape letters: H query heads, C key/value heads, N new tokens, T tokens of the path, B tokens of a tile's queries,
R = B * H / C queries of a tile that share a key/value head, K tokens of a tile's keys, D head dimension.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.kernels.memory import in_steps, up_to_step
from seekling.kernels.vector.attention import differentiate_softmax

QUERY_STEP = 16
"""Shapes are multiples of this in queries, each of which costs a whole row of scores."""

QUERIES_AT_ONCE = 512
"""Of the forward pass: bounds its mask."""

QUERIES, KEYS = 256, 512
"""Tokens of a tile in the backward pass: larger ones leave the processor cache, smaller ones are too many calls."""


def attend(
    query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, *, num_before: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attend from the last N tokens of a path, which has `num_before` before them.

    Keys and values are of the whole path, up to a whole `STEP` or more; what is behind its end must be finite, and is
    never seen. Returns (H, N, D), and (H, N) float32 logarithms of the sums of the exponentiated scores.
    """
    num_new, outputs, logsums = query_HND.shape[1], [], []
    for first in range(0, num_new, QUERIES_AT_ONCE):
        part_HND = query_HND[:, first : first + QUERIES_AT_ONCE]
        part_HND = F.pad(part_HND, (0, 0, 0, -part_HND.shape[1] % QUERY_STEP))
        stop = up_to_step(num_before + min(first + QUERIES_AT_ONCE, num_new))
        mask_NT = torch.full((part_HND.shape[1], stop), -torch.inf, dtype=query_HND.dtype).triu_(num_before + first + 1)
        output_1HND, logsum_1HN = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            part_HND[None], key_CTD[None, :, :stop], value_CTD[None, :, :stop], attn_mask=mask_NT[None, None],
            scale=scaling,
        )  # fmt: skip
        outputs.append(output_1HND[0])
        logsums.append(logsum_1HN[0])
    return torch.cat(outputs, 1)[:, :num_new], torch.cat(logsums, 1)[:, :num_new]


def differentiate(
    d_output_HND: Tensor, query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, output_HND: Tensor, logsum_HN: Tensor,
    *, num_before: int, scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `amx.backward.differentiate_attention`, by matrix products of large tiles."""
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
            d_value_CKD.add_(torch.bmm(weights_CRK.transpose(1, 2), d_output_CRD))
            d_key_CKD.add_(torch.bmm(d_scores_CRK.transpose(1, 2), query_CRD))
            d_query_CRD.add_(torch.bmm(d_scores_CRK, key_CKD))
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
