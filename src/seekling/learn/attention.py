"""Attention of packed rows: each block attends inside itself, through its ancestor mask.

Shape letters: H query heads, C key/value heads, N packed tokens, M tokens of a block, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

BLOCK_ATTENTION = "seekling_blocks"


def block_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    blocks: Sequence[tuple[int, Tensor]],
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend within blocks.

    Args:
        module: the attention layer, unused.
        query: (1, H, N, D).
        key: (1, C, N, D).
        value: (1, C, N, D).
        attention_mask: ignored, the blocks carry their masks.
        blocks: start and additive (M, M) mask of each block, in the dtype of the query, covering all N tokens.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    outputs = []
    for start, bias_MM in blocks:
        span = slice(start, start + bias_MM.shape[0])
        outputs.append(_attend(query[0, :, span], key[0, :, span], value[0, :, span], bias_MM, scaling))
    return torch.cat(outputs, 1).transpose(0, 1).unsqueeze(0), None


def _attend(query_HMD: Tensor, key_CMD: Tensor, value_CMD: Tensor, bias_MM: Tensor, scaling: float) -> Tensor:
    num_heads, length, head_dim = query_HMD.shape
    num_kv_heads = key_CMD.shape[0]
    if query_HMD.device.type == "cpu" and query_HMD.dtype == torch.bfloat16:
        # On CPUs the fused kernel's backward pass does not use bf16 matrix instructions: plain products are about
        # twice as fast at these lengths, and grouping the heads saves repeating the keys.
        repeat = num_heads // num_kv_heads
        query_CGMD = query_HMD.reshape(num_kv_heads, repeat * length, head_dim)
        scores = torch.baddbmm(bias_MM.repeat(repeat, 1), query_CGMD, key_CMD.transpose(1, 2), alpha=scaling)
        return torch.bmm(scores.softmax(-1), value_CMD).view(num_heads, length, head_dim)
    output = F.scaled_dot_product_attention(
        query_HMD[None], key_CMD[None], value_CMD[None], attn_mask=bias_MM, scale=scaling, enable_gqa=True
    )
    return output[0]


AttentionInterface.register(BLOCK_ATTENTION, block_attention)
