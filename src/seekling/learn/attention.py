"""Attention of packed rows: each block attends to the row's prefix and, through its ancestor mask, inside itself.

Shape letters: H query heads, C key/value heads, N packed tokens, P tokens of the prefix, M tokens of a block, K = P + M
tokens that a block looks at, D head dimension.
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
    num_prefix: int,
    blocks: Sequence[tuple[int, Tensor]],
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend within blocks and to the prefix.

    Args:
        module: the attention layer, unused.
        query: (1, H, N, D).
        key: (1, C, N, D).
        value: (1, C, N, D).
        attention_mask: ignored, the blocks carry their masks.
        num_prefix: P, tokens at the beginning that all blocks see.
        blocks: start and additive (M, K) mask of each block, in the dtype of the query. The first block begins at 0 and
            is the prefix itself, if there is one, with a (P, P) mask; tokens behind the last are padding.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    outputs = []
    for start, bias_MK in blocks:
        span = slice(start, start + bias_MK.shape[0])
        keys, values = key[0, :, span], value[0, :, span]
        if start and num_prefix:
            keys = torch.cat([key[0, :, :num_prefix], keys], 1)
            values = torch.cat([value[0, :, :num_prefix], values], 1)
        outputs.append(_attend(query[0, :, span], keys, values, bias_MK, scaling))
    num_tokens = sum(each.shape[1] for each in outputs)
    if num_tokens < query.shape[2]:
        outputs.append(outputs[0].new_zeros((query.shape[1], query.shape[2] - num_tokens, query.shape[3])))
    return torch.cat(outputs, 1).transpose(0, 1).unsqueeze(0), None


def _attend(query_HMD: Tensor, key_CKD: Tensor, value_CKD: Tensor, bias_MK: Tensor, scaling: float) -> Tensor:
    num_heads, length, head_dim = query_HMD.shape
    num_kv_heads = key_CKD.shape[0]
    if query_HMD.device.type == "cpu" and query_HMD.dtype == torch.bfloat16:
        # On CPUs the fused kernel's backward pass does not use bf16 matrix instructions: plain products are about
        # twice as fast at these lengths, and grouping the heads saves repeating the keys.
        repeat = num_heads // num_kv_heads
        query_CGMD = query_HMD.reshape(num_kv_heads, repeat * length, head_dim)
        scores = torch.baddbmm(bias_MK.repeat(repeat, 1), query_CGMD, key_CKD.transpose(1, 2), alpha=scaling)
        return torch.bmm(scores.softmax(-1), value_CKD).view(num_heads, length, head_dim)
    output = F.scaled_dot_product_attention(
        query_HMD[None], key_CKD[None], value_CKD[None], attn_mask=bias_MK, scale=scaling, enable_gqa=True
    )
    return output[0]


AttentionInterface.register(BLOCK_ATTENTION, block_attention)
