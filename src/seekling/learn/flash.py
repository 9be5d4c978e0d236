"""The backward pass of a strand's attention on a GPU, by the kernel that its forward pass is made of.

Shape letters: H query heads, C key/value heads, N new tokens, T tokens of a path, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.rollout.engine.causal import cut_path, has_flash

MAX_DEPTH = 192
"""Head dimension up to which every GPU that has the forward kernel has this one."""


def can_differentiate(tensor_HND: Tensor) -> bool:
    """Whether the kernel takes these."""
    return has_flash(tensor_HND) and tensor_HND.shape[-1] <= MAX_DEPTH


def differentiate_flash(
    d_output_HND: Tensor, query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, output_HND: Tensor, logsum_HN: Tensor,
    *, num_before: int, scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `differentiate_attention`, but all gradients are float32.

    The kernel finds a weight from its score and the logarithm of the row's sum. Given that of the whole path, it finds
    the whole path's weights also where it sees a part of the keys, so the parts' gradients add up.
    """
    num_new, (num_kv_heads, length, depth) = query_HND.shape[1], key_CTD.shape
    first, lead, missing = cut_path(num_before, num_new)
    # Added queries have no gradient, and so give none.
    query_HND, output_HND, d_output_HND = (
        F.pad(each, (0, 0, lead, missing)) for each in (query_HND, output_HND, d_output_HND)
    )
    rows = query_HND, output_HND, d_output_HND, F.pad(logsum_HN, (lead, missing)).contiguous()
    d_query_HND = torch.zeros(query_HND.shape, device=query_HND.device)
    d_both_2CTD = torch.zeros(2, num_kv_heads, length, depth, device=query_HND.device)
    # Square where it is causal: kernels differ in which corner they align.
    for start, end, is_causal in ((first, first + query_HND.shape[1], True), (0, first, False)):
        if end > start:
            keys = key_CTD[:, start:end], value_CTD[:, start:end]
            d_query, *d_keys = _differentiate_part(*rows, *keys, scaling=scaling, is_causal=is_causal)
            d_query_HND += d_query
            for total_CTD, each_CTD in zip(d_both_2CTD[:, :, start:end], d_keys, strict=True):
                total_CTD += each_CTD
    return d_query_HND[:, lead : lead + num_new], *d_both_2CTD


def _differentiate_part(
    query_HND: Tensor, output_HND: Tensor, d_output_HND: Tensor, logsum_HN: Tensor, key_CTD: Tensor, value_CTD: Tensor,
    *, scaling: float, is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    random = torch.zeros(2, dtype=torch.uint64, device=query_HND.device)  # for dropout, of which there is none
    found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        d_output_HND[None], query_HND[None], key_CTD[None], value_CTD[None], output_HND[None], logsum_HN[None],
        None, None, query_HND.shape[1], key_CTD.shape[1], 0.0, is_causal, random, random[0], scale=scaling,
    )  # fmt: skip
    return found[0][0], found[1][0], found[2][0]
