"""Policy and critic in this process: the `Learner` that a machine of one's own has.

PPO's critic is a model of its own that predicts, before each action token, the reward that is still to come. It begins
as a copy of the policy with a head of zeros and one output, so its first predictions are 0, and shares no weights with
it, so the two may have learning rates of their own. Rows, masters, optimizer and saving are the policy's code.

Source: PPO (arXiv:1707.06347) with a separate value model, as Search-R1 (arXiv:2503.09516) trains it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from seekling.config import RlConfig
from seekling.errors import ModelError
from seekling.kernels.norms import make_lean
from seekling.learn.lora import adapters_of, add_lora, base_weights, merged_weights, read_adapter, save_adapter
from seekling.learn.pack import PackedRow
from seekling.learn.trained import STRAND_ATTENTION, TrainedModel, TrainingState
from seekling.models.lazy_weights import Adapters
from seekling.models.load import load_model
from seekling.types import Trajectory


class LocalCritic(TrainedModel):
    """A `Critic` in this process, over a model whose output layer is one of values, which trains whole."""

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


class LocalLearner(TrainedModel):
    """A `Learner` over a transformers model in this process; for more settings and errors see `TrainedModel`.

    Args:
        model: decoder-only, in the dtype of the forward pass; its attention is replaced.
        lora_rank: 0 trains every weight; otherwise low-rank adapters, first drawn from `seed`, on all linear layers.
        dtype: of the forward pass; None leaves all parameters as they are. The trained weights begin at the model's
            values all the same, which a lower precision would round.
    """

    critic: LocalCritic | None = None
    """The value model of PPO; saved and loaded with the policy."""
    _reference: PreTrainedModel | None = None
    _anchor: dict[str, Tensor] | None = None
    """The adapters of the reference, where the base weights are the policy's; empty: the base weights alone."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        lora_rank: int = 0,
        lora_alpha: int = 32,
        seed: int = 0,
        weight_decay: float = 0.0,
        row_tokens: int = 1024,
        max_grad_norm: float = 1.0,
        checkpoint_layers: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        loaded = {} if dtype is None else _cast(model, dtype)
        self._lora_alpha = lora_alpha
        self._adapted = add_lora(model, rank=lora_rank, alpha=lora_alpha, seed=seed) if lora_rank else None
        super().__init__(
            model,
            weight_decay=weight_decay,
            row_tokens=row_tokens,
            max_grad_norm=max_grad_norm,
            checkpoint_layers=checkpoint_layers,
            loaded=loaded,
        )

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.logprobs`."""
        return self._score_all(self._model, trajectories)

    @property
    def has_reference(self) -> bool:
        """See `Learner.has_reference`."""
        return self._reference is not None or self._anchor is not None

    def keep_reference(self, folder: Path | None = None) -> None:
        """See `Learner.keep_reference`; of adapters these alone are kept, and saved with them, else all weights."""
        if folder is None and self._adapted is not None:
            adapters = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
            is_base = not any("lora_B" in name and bool(value.any()) for name, value in adapters.items())
            self._anchor, self._reference = {} if is_base else adapters, None
            return
        reference = self._copy_policy() if folder is None else self._load(folder)
        reference.set_attn_implementation(STRAND_ATTENTION)
        make_lean(reference)
        self._reference, self._anchor = reference.eval().requires_grad_(False), None

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        if self._anchor is not None:
            with self._at_anchor():
                return self._score_all(self._model, trajectories)
        assert self._reference is not None, "keep_reference comes first"
        return self._score_all(self._reference, trajectories)

    @contextmanager
    def _at_anchor(self) -> Iterator[None]:
        """The model with the adapters of the reference in place of its own."""
        assert self._adapted is not None
        if not self._anchor:
            with self._adapted.disable_adapter():
                yield
            return
        own = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        self._put(self._anchor)
        try:
            yield
        finally:
            self._put(own)

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        """See `Learner.add_critic`."""
        model = self._copy_policy() if begins_at is None else self._load(begins_at)
        if lora_rank:
            add_lora(model, rank=lora_rank, alpha=self._lora_alpha)
        # float32 whatever the trunk is: a value in bfloat16 has two digits.
        embeddings = cast("nn.Embedding", model.get_input_embeddings())
        head = nn.Linear(embeddings.embedding_dim, 1, bias=False, device=model.device)
        nn.init.zeros_(head.weight)
        model.set_output_embeddings(head)
        self.critic = LocalCritic(
            model,
            row_tokens=config.row_tokens,
            max_grad_norm=config.critic.max_grad_norm,
            checkpoint_layers=self.checkpoints_layers,
        )

    def _load(self, folder: Path) -> PreTrainedModel:
        dtype: Literal["float32", "bfloat16"] = "bfloat16" if self._model.dtype == torch.bfloat16 else "float32"
        return load_model(folder, dtype=dtype, device="cuda" if self.device.type == "cuda" else "cpu")

    def _copy_policy(self) -> PreTrainedModel:
        """A model of its own with the policy's weights as they are now, adapters merged."""
        config = copy.deepcopy(self._model.config)
        with torch.device(self.device):
            # Not made in float32 and cast: that would round the rotary frequencies, and with them all positions.
            made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=self._model.dtype)
        weights = self.export_weights()
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                parameter.copy_(weights[name])
        made.tie_weights()
        return made

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged.

        Tensors are the learner's own, but merged ones, made when they are looked up: copy them before the next step.
        """
        return merged_weights(self._model, self._adapted)

    def adapters(self) -> Adapters | None:
        """The policy's adapters alone, None where all weights train; tensors are the learner's own."""
        return None if self._adapted is None else adapters_of(self._adapted)

    def base_weights(self) -> Mapping[str, Tensor]:
        """What `adapters` are added to, by the names of the plain transformers model; it never changes."""
        return base_weights(self._model)

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """Write the low-rank adapters alone into a folder; see `Checkpoint.export_adapter`."""
        if self._adapted is None:
            raise ModelError("this policy has no adapter: model.lora_rank = 0 trains all weights; export it merged")
        save_adapter(self._adapted, folder, base_model=base_model)

    def load_adapter(self, folder: Path) -> None:
        """Take up adapters of the policy's rank and alpha in the layout of PEFT, to export them.

        Raises:
            ModelError: they are not readable, or of other layers or another rank.
        """
        wanted = {name: parameter.shape for name, parameter in self._trained.items()}
        found = read_adapter(folder)
        if {name: value.shape for name, value in found.items()} != wanted:
            raise ModelError(
                f"{folder} has adapters of other layers, or of another rank, than this policy; differing: "
                f"{', '.join(sorted(found.keys() ^ wanted.keys())[:4]) or 'shapes alone'}"
            )
        self._put(found)

    def state(self) -> TrainingState:
        """See `TrainedModel.state`; the critic and the reference's adapters are in it."""
        state = super().state()
        if self._anchor is not None:
            state["reference"] = self._anchor
        if self.critic is not None:
            state["critic"] = self.critic.state()
        return state

    def fits(self, state: TrainingState) -> bool:
        """See `TrainedModel.fits`."""
        return super().fits(state) and (self.critic is None or self.critic.fits(state["critic"]))

    def take_state(self, state: TrainingState) -> None:
        """See `TrainedModel.take_state`."""
        super().take_state(state)
        self._anchor = state.get("reference")
        if self.critic is not None:
            self.critic.take_state(state["critic"])

    def close(self) -> None:
        """See `Learner.close`."""
        self._trained, self._masters, self.critic, self._reference, self._anchor = {}, {}, None, None, None
        del self._model, self._adapted, self._optimizer


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Cast the parameters in place, but no buffer: rotary frequencies need all their digits. Returns what was cast."""
    before = {name: p.data for name, p in model.named_parameters() if p.dtype != dtype}
    for name, parameter in model.named_parameters():
        if name in before:
            parameter.data = before[name].to(dtype)
    return before
