"""The critic of PPO: a model of its own that predicts, before each action token, the reward that is still to come.

Its head has one output instead of a vocabulary; rows, shared prefixes, master weights, optimizer and saving are the
policy's code. It begins as a copy of the policy with a head of zeros, so its first predictions are 0. It shares no
weights with the policy, so the two may have learning rates of their own.

Source: PPO (arXiv:1707.06347) with a separate value model, as Search-R1 (arXiv:2503.09516) trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seekling.learn.lora import add_lora
from seekling.learn.pack import PackedRow
from seekling.learn.trained import TrainedModel
from seekling.types import Trajectory


class LocalCritic(TrainedModel):
    """A `Critic` in this process.

    Args:
        model: where it begins, with the policy's weights; it is changed.
        lora_rank: as the policy's; the head is always trained whole.
        lora_alpha: LoRA's alpha.
        row_tokens, max_grad_norm, checkpoint_layers: see `TrainedModel`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        lora_rank: int,
        lora_alpha: int,
        row_tokens: int,
        max_grad_norm: float,
        checkpoint_layers: bool,
    ) -> None:
        if lora_rank:
            add_lora(model, rank=lora_rank, alpha=lora_alpha)
        # float32 whatever the trunk is: a value in bfloat16 has two digits.
        embeddings = cast("nn.Embedding", model.get_input_embeddings())
        head = nn.Linear(embeddings.embedding_dim, 1, bias=False, device=model.device)
        nn.init.zeros_(head.weight)
        model.set_output_embeddings(head)
        super().__init__(model, row_tokens=row_tokens, max_grad_norm=max_grad_norm, checkpoint_layers=checkpoint_layers)

    def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Critic.values`."""
        return self._score_all(self._model, trajectories)

    def _score(self, model: PreTrainedModel, row: PackedRow) -> tuple[Tensor, Tensor]:
        """Value before each trained token, in the place of its log-probability; there is no entropy."""
        source_U, _, where_A = row.positions()
        hidden_UD = self._states(model, row, source_U)
        head = cast("nn.Linear", model.get_output_embeddings())
        values_A = head(hidden_UD.float()).squeeze(-1)[torch.from_numpy(where_A).to(hidden_UD.device)]
        return values_A, torch.zeros_like(values_A)
