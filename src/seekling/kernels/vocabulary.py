"""Log-probabilities of trained tokens over a whole vocabulary, whose logits exist for a part of the tokens at a time.

Forward, logits are made, read once and let go; backward, they are made again. Nothing of their size is kept, and loops
turn them into their own gradient in place, without a copy in float32: sums of 512 x 49,152 bfloat16 logits take them
11 ms (one thread of an AVX-512 CPU), torch 362, the product that makes the logits 89.

Shape letters: U positions whose logits are wanted, each once; A trained tokens, several of which may share a position;
D width of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seekling.kernels.backend import takes_loops
from seekling.kernels.norms import recomputed
from seekling.kernels.vector.pointwise import softmax_gradient_, softmax_stats

VOCABULARY_CHUNK = 512
"""Positions whose logits exist at the same time."""


def score_tokens(
    head: Callable[[Tensor], Tensor], hidden_UD: Tensor, temperature_U: Tensor, where_A: np.ndarray, target_A: Tensor
) -> tuple[Tensor, Tensor]:
    """Score tokens by softmax(head(hidden) / temperature).

    Args:
        head: (..., D) to (..., V) logits.
        hidden_UD: last hidden states.
        temperature_U: float32, above 0.
        where_A: the position that predicts each token.
        target_A: the tokens.

    Returns:
        (A,) float32 log-probabilities, and the entropies of their positions, which have no gradient. The head gets its
        own only where the hidden states want one too.
    """
    logprobs, entropies, order = [], [], []
    for start in range(0, hidden_UD.shape[0], VOCABULARY_CHUNK):
        inside = np.flatnonzero((where_A >= start) & (where_A < start + VOCABULARY_CHUNK))
        local = torch.from_numpy(where_A[inside] - start).to(target_A.device)
        target = target_A[torch.from_numpy(inside).to(target_A.device)]
        part_UD, part_U = (each[start : start + VOCABULARY_CHUNK] for each in (hidden_UD, temperature_U))
        score = _Score.apply if takes_loops(hidden_UD) else partial(recomputed, _plain_score)
        found: tuple[Tensor, Tensor] = score(part_UD, part_U, head, local, target)
        logprobs.append(found[0])
        entropies.append(found[1])
        order.append(inside)
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(target_A.device)
    return torch.cat(logprobs)[back], torch.cat(entropies)[back]


def _plain_score(
    hidden_UD: Tensor, temperature_U: Tensor, head: Callable[[Tensor], Tensor], local_A: Tensor, target_A: Tensor
) -> tuple[Tensor, Tensor]:
    logprob_UV = torch.log_softmax(head(hidden_UD).float() / temperature_U[:, None], -1)
    with torch.no_grad():
        entropy_U = -(logprob_UV.exp() * logprob_UV).sum(-1)
    return logprob_UV[local_A, target_A], entropy_U[local_A]


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        temperature_U: Tensor,
        head: Callable[[Tensor], Tensor],
        local_A: Tensor,
        target_A: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logits_UV = head(hidden_UD)
        logsum_U, mean_U = softmax_stats(logits_UV, temperature_U)
        ctx.save_for_backward(hidden_UD, temperature_U, logsum_U, local_A, target_A)
        ctx.head = head
        entropy_A = (logsum_U - mean_U)[local_A]
        ctx.mark_non_differentiable(entropy_A)
        return logits_UV[local_A, target_A].float() / temperature_U[local_A] - logsum_U[local_A], entropy_A

    @staticmethod
    def backward(ctx: Any, d_logprob_A: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_UD, temperature_U, logsum_U, local_A, target_A = ctx.saved_tensors
        with torch.enable_grad():
            again_UD = hidden_UD.detach().requires_grad_()
            logits_UV = ctx.head(again_UD)
        d_logits_UV = logits_UV.detach()
        # Siblings that chose the same token after the same text share an entry of the gradient.
        entry_E, which_A = torch.unique(local_A * d_logits_UV.shape[1] + target_A, return_inverse=True)
        position_E, token_E = entry_E // d_logits_UV.shape[1], entry_E % d_logits_UV.shape[1]
        d_tempered_A = d_logprob_A.float() / temperature_U[local_A]
        chosen_E = torch.zeros(len(entry_E), device=logsum_U.device).index_add_(0, which_A, d_tempered_A)
        total_U = torch.zeros_like(logsum_U).index_add_(0, local_A, d_tempered_A)
        logit_E = d_logits_UV[position_E, token_E].float() / temperature_U[position_E]
        logprob_E = logit_E - logsum_U[position_E]
        softmax_gradient_(d_logits_UV, temperature_U, logsum_U, -total_U)
        entries_E = chosen_E - logprob_E.exp() * total_U[position_E]
        d_logits_UV[position_E, token_E] = entries_E.to(d_logits_UV.dtype)
        # As a checkpoint does: the head's own gradients are added where they belong.
        torch.autograd.backward(logits_UV, d_logits_UV)
        return again_UD.grad, None, None, None, None
