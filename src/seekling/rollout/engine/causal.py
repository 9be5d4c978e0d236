"""Causal attention of many new tokens at once: of the last tokens of a path to all of it.

Without tiles, what comes before the new tokens is attended to whole and they themselves causally, in two calls whose
results are merged by their log-sums. So hardly any pair of tokens that may not attend is computed, and no mask is made.
The sampler's prefill and the learner's packed rows share it.

Shape letters: H query heads, C key/value heads, N new tokens, T tokens of the path, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.models.pointwise import can_loop, merge_attention_
from seekling.rollout.engine.tiled import attend_tiled, can_attend, pair_dimensions, pair_tokens

STEP = 64
"""Shapes are multiples of this, since a kernel is compiled and kept for every shape."""

QUERY_STEP = 16
"""The same of queries alone, each of which costs a whole row of scores."""

ROWS = 256
"""Queries whose scores exist at the same time, on devices without a kernel that returns log-sums."""


def attend(
    query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, *, num_before: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attend from the last tokens of a path.

    Args:
        query_HND: of the last N tokens.
        key_CTD: of the path from its beginning, up to a whole `STEP` or more; what is behind its end is never seen.
        value_CTD: likewise; finite throughout.
        num_before: tokens of the path before the N.
        scaling: factor on the scores.

    Returns:
        (H, N, D) outputs, and (H, N) float32 logarithms of the sums of the exponentiated scores.
    """
    num_new = query_HND.shape[1]
    if can_attend(query_HND.dtype, query_HND.device, query_HND.shape[-1]):
        stop = up_to_step(num_before + num_new)
        pairs = pair_dimensions(key_CTD[:, :stop], STEP), pair_tokens(value_CTD[:, :stop])
        return attend_tiled(query_HND, *pairs, num_before=num_before, scaling=scaling)
    first, lead, missing = cut_path(num_before, num_new)
    stop = up_to_step(num_before + num_new)
    query_HND = F.pad(query_HND, (0, 0, lead, missing))
    output_HND, logsum_HN = _attend(query_HND, key_CTD[:, first:stop], value_CTD[:, first:stop], scaling, causal=True)
    if first > 0:
        before = _attend(query_HND, key_CTD[:, :first], value_CTD[:, :first], scaling, causal=False)
        output_HND, logsum_HN = _merge(output_HND, logsum_HN, *before)
    return output_HND[:, lead : lead + num_new], logsum_HN[:, lead : lead + num_new]


def cut_path(num_before: int, num_new: int) -> tuple[int, int, int]:
    """Where a path's causal part begins, a whole `STEP`, and how many queries are added before and behind its N."""
    first = num_before // STEP * STEP
    lead = num_before - first
    return first, lead, -(lead + num_new) % QUERY_STEP


def _merge(output_HND: Tensor, logsum_HN: Tensor, other_HND: Tensor, other_logsum_HN: Tensor) -> tuple[Tensor, Tensor]:
    """What attending to both sets of keys at once gives; may write over the first."""
    if can_loop(output_HND, other_HND):
        # The kernel returns them like this.
        outputs = [each.transpose(0, 1).contiguous() for each in (output_HND, other_HND)]
        logsums = [each.transpose(0, 1).contiguous() for each in (logsum_HN, other_logsum_HN)]
        merge_attention_(*outputs, *logsums)
        return outputs[0].transpose(0, 1), logsums[0].transpose(0, 1)
    total_HN = torch.logaddexp(logsum_HN, other_logsum_HN)
    merged_HND = output_HND * (logsum_HN - total_HN).exp_().unsqueeze(-1)
    merged_HND.addcmul_((other_logsum_HN - total_HN).exp_().unsqueeze(-1), other_HND.float())
    return merged_HND.to(output_HND.dtype), total_HN


def up_to_step(num_tokens: int) -> int:
    """The next multiple of `STEP`."""
    return -(-num_tokens // STEP) * STEP


def fill_to_step(tensor_CTD: Tensor, num_tokens: int) -> Tensor:
    """The first tokens up to a whole step, with zeros where the tensor ends before that."""
    stop = up_to_step(num_tokens)
    missing = stop - tensor_CTD.shape[1]
    return F.pad(tensor_CTD, (0, 0, 0, missing)) if missing > 0 else tensor_CTD[:, :stop]


def _attend(
    query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, scaling: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    if query_HND.device.type == "cpu":
        output_1HND, logsum_1HN = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query_HND[None], key_CTD[None], value_CTD[None], 0.0, causal, scale=scaling
        )
        return output_1HND[0], logsum_1HN[0]
    group = query_HND.shape[0] // key_CTD.shape[0]
    key_HTD, value_HTD = (each.repeat_interleave(group, 0) for each in (key_CTD, value_CTD))
    outputs, logsums = [], []
    for start in range(0, query_HND.shape[1], ROWS):
        scores_HRT = torch.bmm(query_HND[:, start : start + ROWS], key_HTD.transpose(1, 2)).float().mul_(scaling)
        if causal:
            scores_HRT.masked_fill_(
                torch.ones(scores_HRT.shape[1:], dtype=torch.bool, device=scores_HRT.device).triu_(start + 1),
                float("-inf"),
            )
        logsums.append(scores_HRT.logsumexp(-1))
        outputs.append(torch.bmm(scores_HRT.softmax(-1).to(query_HND.dtype), value_HTD))
    return torch.cat(outputs, 1), torch.cat(logsums, 1)
