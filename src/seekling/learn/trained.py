"""Weights that train in this process: gradients of packed rows, AdamW, and float32 masters of a pass in any type."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from seekling.errors import ModelError, NothingToLearnError
from seekling.kernels.memory import in_steps, keep_freed_memory, large_blocks_apart, release_free_memory, resident_bytes
from seekling.kernels.norms import make_lean
from seekling.kernels.strands import Strand, attend_strands
from seekling.kernels.vocabulary import score_tokens
from seekling.learn.batch import MAXIMA, MEANS, Batch, LearnStats
from seekling.learn.loss import Aggregation, TokenData, TokenLoss, TokenMeasure, denominator, token_weights
from seekling.learn.pack import PackedRow, pack_rows
from seekling.models.families import head_of, longest_exact
from seekling.types import Trajectory

KEPT_BYTES = 1_500_000_000
"""Memory may grow so far between rows before what is free goes back; further where one row alone takes more."""
KEPT_WHEN_SHORT_BYTES = 200_000_000
"""The same where layers are computed twice, because memory is short."""
MAX_SKIPPED = 3
"""So many optimizer steps in a row whose gradient is not finite end the run."""

STRAND_ATTENTION = "seekling_strands"
T = TypeVar("T")


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
    """The attention of packed rows behind the interface of transformers' layers: (1, heads, N, D) to (1, N, heads, D).

    Strands say who sees whom; module and mask are ignored.
    """
    return attend_strands(query[0], key[0], value[0], strands, scaling).transpose(0, 1)[None], None


AttentionInterface.register(STRAND_ATTENTION, strand_attention)


class TrainingState(TypedDict):
    """What is saved of weights that train."""

    masters: dict[str, Tensor]
    optimizer: dict[str, Any]
    num_steps: int
    num_skipped: NotRequired[int]
    reference: NotRequired[dict[str, Tensor]]
    critic: NotRequired[TrainingState]


class TrainedModel:
    """A model whose parameters that require gradients are trained.

    Args:
        model: decoder-only, in the dtype of the forward pass; its attention is replaced.
        weight_decay: of AdamW; its betas are torch's until a stage sets others.
        row_tokens: tokens of one packed row; bounds activation memory.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        checkpoint_layers: keep only what goes into each layer and compute the rest again in the backward pass.
        loaded: by name, what parameters were before they were cast to a lower precision; the masters begin there.

    Raises:
        ModelError: the model's family is refused; see `head_of`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weight_decay: float = 0.0,
        row_tokens: int = 1024,
        max_grad_norm: float = 1.0,
        checkpoint_layers: bool = False,
        loaded: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        head_of(model)  # or this family is refused
        self._longest = longest_exact(model.config)
        if model.device.type == "cpu":
            keep_freed_memory()
        model.set_attn_implementation(STRAND_ATTENTION)
        make_lean(model)
        self._model = model
        if checkpoint_layers:
            with warnings.catch_warnings():  # of its newer name, which older versions do not know
                warnings.filterwarnings("ignore", message=".*gradient_checkpointing_enable", category=FutureWarning)
                model.gradient_checkpointing_enable({"use_reentrant": False})
        self.checkpoints_layers = checkpoint_layers
        """Whether layers are computed again in the backward pass."""
        self.kept_bytes = KEPT_WHEN_SHORT_BYTES if checkpoint_layers else KEPT_BYTES
        """How far memory may grow between rows before what is free goes back."""
        # Never in training mode: dropout and routing noise make another policy than the one that acted.
        model.eval()
        for module in model.modules():
            if checkpoint_layers and isinstance(module, GradientCheckpointingLayer):
                module.training = True  # of the layer alone, which asks for it
        self._place(model)
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # float32 parameters are their own masters.
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(loaded.get(name, p.detach()).float())
            for name, p in self._trained.items()
        }
        for name, parameter in self._trained.items():
            if self._masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(_move_gradient_to(self._masters[name]))
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=0.0, weight_decay=weight_decay, fused=True)
        self._row_tokens, self._max_grad_norm = row_tokens, max_grad_norm
        self.num_steps = 0
        """Optimizer steps of the stage, skipped ones included."""
        self._num_skipped = 0
        self._least_bytes = self._row_bytes = 0
        self._rows_since_release = 0

    def _place(self, model: PreTrainedModel) -> None:
        """Before anything is made of its parameters: where they are to be, for learners that want them elsewhere."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self._trained.values())).device

    def forward_backward(
        self,
        batch: Batch,
        loss: TokenLoss,
        *,
        aggregation: Aggregation = "token_mean",
        divide_by: float | None = None,
        measure: TokenMeasure | None = None,
    ) -> LearnStats:
        """Add the gradients of a batch; see `Trained.forward_backward`."""
        rows = self._pack(batch.trajectories)
        num_trained_B = batch.num_trained_B
        if not rows:
            raise NothingToLearnError(
                f"none of the {len(batch.trajectories)} trajectories has a trained token; check that actions are "
                "marked in train_mask"
            )
        if divide_by is None:
            divide_by = denominator(num_trained_B, aggregation, represented_B=batch.represented_B)
        weights_B = batch.represented_B * token_weights(num_trained_B, aggregation) / divide_by
        is_short = self.checkpoints_layers and self.device.type == "cpu"

        def learn(row: PackedRow, share: float) -> dict[str, float]:
            with large_blocks_apart() if is_short else nullcontext():
                found = self._learn_row(row, batch, loss, share * weights_B, measure)
            self._release_grown_memory()
            return found

        found = self._each_row(rows, learn)
        num_trained = int(num_trained_B.sum())
        means = {name: sum(each[name] for each in found) / num_trained for name in found[0].keys() & MEANS}
        return LearnStats(
            loss=sum(each["loss"] for each in found),
            num_trained_tokens=num_trained,
            num_packed_tokens=sum(len(row.token_ids_N) for row in rows),
            num_plain_tokens=sum(len(t.token_ids_T) for t in batch.trajectories),
            **means,
            **{name: max(each[name] for each in found) for name in found[0].keys() & MAXIMA},
        )

    def _pack(self, trajectories: Sequence[Trajectory]) -> list[PackedRow]:
        return pack_rows(trajectories, row_tokens=self._row_tokens)

    def _each_row(self, rows: Sequence[PackedRow], work: Callable[[PackedRow, float], T]) -> list[T]:
        """What `work` gives for each row, in order; it is told too what share its gradients have: 1, or 0."""
        return [work(row, 1.0) for row in rows]

    def _release_grown_memory(self) -> None:
        grown = resident_bytes() - self._least_bytes
        self._rows_since_release += 1
        if self._least_bytes and self._rows_since_release == 1:
            self._row_bytes = max(self._row_bytes, grown)
        if grown > max(self.kept_bytes, self._row_bytes * 5 // 4):
            release_free_memory()
            self._least_bytes, self._rows_since_release = resident_bytes(), 0

    def _learn_row(
        self, row: PackedRow, batch: Batch, loss: TokenLoss, weights_B: np.ndarray, measure: TokenMeasure | None
    ) -> dict[str, float]:
        """Add the gradients of a row; returns its loss, the sums of MEANS and the values of MAXIMA."""
        logprobs_A, entropy_A = self._score(self._model, row)
        behaviour_A = torch.from_numpy(row.logprobs_A).to(self.device)
        advantages_A = torch.from_numpy(batch.advantages_B[row.sequence_A]).to(logprobs_A)
        data = TokenData(behaviour_A, advantages_A, sequence_A=torch.from_numpy(row.sequence_A).to(self.device))
        members = [(n, _trained_places(batch.trajectories[n])) for n in dict.fromkeys(row.sequence_A.tolist())]
        for name, values in batch.per_token.items():
            values_A = np.concatenate([values[n][places] for n, places in members])
            data = replace(data, **{name: torch.from_numpy(values_A).to(logprobs_A)})
        loss_A = loss(logprobs_A, data)
        total = (loss_A * torch.from_numpy(weights_B[row.sequence_A]).to(loss_A)).sum()
        total.backward()
        with torch.no_grad():
            difference_A = logprobs_A - behaviour_A
            drift_A = difference_A.abs()
            found = {
                "loss": total,
                "entropy": entropy_A.sum(),
                "kl_behaviour": (torch.expm1(difference_A) - difference_A).sum(),
                "drift_mean": drift_A.sum(),
                "drift_max": drift_A.max(),
            }
            if measure is not None:
                measured = measure(logprobs_A, data)
                found |= {
                    "ratio_mean": measured.ratios_A.sum(),
                    "ratio_max": measured.ratios_A.max(),
                    "clip_fraction_low": measured.is_clipped_low_A.sum(),
                    "clip_fraction_high": measured.is_clipped_high_A.sum(),
                    "weight_mean": measured.weights_A.sum(),
                    "weight_square_mean": (measured.weights_A**2).sum(),
                }
        return {name: value.item() for name, value in found.items()}

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(values[name])

    @torch.no_grad()
    def _score_all(self, model: PreTrainedModel, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """B arrays (T,) float32 of what `_score` finds for the trained tokens, 0 elsewhere."""
        scored = [np.zeros(len(t.token_ids_T), np.float32) for t in trajectories]
        rows = self._pack(trajectories)
        found = self._each_row(rows, lambda row, share: self._score(model, row)[0].float().cpu().numpy())
        for row, values_A in zip(rows, found, strict=True):
            for index in np.unique(row.sequence_A):
                scored[index][_trained_places(trajectories[index])] = values_A[row.sequence_A == index]
        return scored

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """Apply the waiting gradients; see `Trained.optim_step`."""
        if not any(master.grad is not None for master in self._masters.values()):
            raise NothingToLearnError("optim_step without gradients; call forward_backward first")
        if divide_by != 1:
            for master in self._masters.values():
                if master.grad is not None:
                    master.grad.mul_(1 / divide_by)
        total = self._gradient_norm()
        nn.utils.clip_grads_with_norm_(self._masters.values(), self._max_grad_norm or math.inf, total, foreach=True)
        norm = float(total)
        self.num_steps += 1
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            self._num_skipped += 1
            if self._num_skipped >= MAX_SKIPPED:
                raise NothingToLearnError(
                    f"gradient norm is {norm} at step {self.num_steps}, for {MAX_SKIPPED} steps in a row; lower the "
                    'learning rate or use model.dtype = "float32"'
                )
            return norm
        self._num_skipped = 0
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._put(self._masters)
        return norm

    def _gradient_norm(self) -> Tensor:
        """Of the waiting gradients together, a number."""
        grads = [master.grad for master in self._masters.values() if master.grad is not None]
        return nn.utils.get_total_norm(grads, foreach=True)

    def start_stage(
        self,
        *,
        row_tokens: int,
        max_grad_norm: float,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        keep_moments: bool = False,
    ) -> None:
        """Begin a new stage with these weights; see `Trained.start_stage`."""
        self._row_tokens, self._max_grad_norm = row_tokens, max_grad_norm
        if keep_moments:
            for state in self._optimizer.state.values():
                state["exp_avg"].zero_()
        else:
            self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["betas"] = group["betas"] if betas is None else betas
            group["weight_decay"] = group["weight_decay"] if weight_decay is None else weight_decay
        self.num_steps = self._num_skipped = 0

    def set_adam(
        self, *, betas: tuple[float, float], epsilon: float, weight_decay: float, max_grad_norm: float
    ) -> None:
        """Set what optimizer steps from now on use; moments and step count stay. `max_grad_norm` 0: no clipping."""
        self._max_grad_norm = max_grad_norm
        for group in self._optimizer.param_groups:
            group["betas"], group["eps"], group["weight_decay"] = betas, epsilon, weight_decay

    def state(self) -> TrainingState:
        """All that training goes on from; the tensors are the learner's own."""
        return {
            "masters": {name: master.detach() for name, master in self._masters.items()},
            "optimizer": self._optimizer.state_dict(),
            "num_steps": self.num_steps,
            "num_skipped": self._num_skipped,
        }

    def fits(self, state: TrainingState) -> bool:
        """Whether a state is of these weights; a KeyError or TypeError where it is no state at all."""
        found, _, _ = state["masters"], state["optimizer"], int(state["num_steps"])
        return {name: master.shape for name, master in found.items()} == {
            name: master.shape for name, master in self._masters.items()
        }

    @torch.no_grad()
    def take_state(self, state: TrainingState) -> None:
        """Go on from what `state` gave."""
        for name, master in self._masters.items():
            master.copy_(state["masters"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.zero_grad(set_to_none=True)  # they were of the weights before
        self.num_steps, self._num_skipped = int(state["num_steps"]), state.get("num_skipped", 0)
        self._put(self._masters)

    def _score(self, model: PreTrainedModel, row: PackedRow) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token; logits exist only where a token is trained."""
        source_U, warmth_U, where_A = row.positions()
        target_A = torch.from_numpy(row.target_A).to(self.device)
        temperature_U = torch.from_numpy(warmth_U).to(self.device)
        return score_tokens(head_of(model), self._states(model, row, source_U), temperature_U, where_A, target_A)

    def _states(self, model: PreTrainedModel, row: PackedRow, source_U: np.ndarray) -> Tensor:
        """(U, D) last hidden states of tokens of the row."""
        device, length = self.device, int(row.position_ids_N.max()) + 1
        if self._longest is not None and length > self._longest[0]:
            raise ModelError(
                f"{self._longest[1]}, which is not supported; an episode has {length}: lower rollout.episode_tokens to "
                f"{self._longest[0]}"
            )
        padding = (0, in_steps(len(row.token_ids_N)) - len(row.token_ids_N))
        hidden_1ND = model.get_decoder()(
            input_ids=torch.from_numpy(np.pad(row.token_ids_N, padding)).to(device)[None],
            position_ids=torch.from_numpy(np.pad(row.position_ids_N, padding)).to(device)[None],
            use_cache=False,
            strands=row.strands,
        ).last_hidden_state
        states_UD: Tensor = hidden_1ND[0, torch.from_numpy(source_U).to(device)]
        return states_UD


def _move_gradient_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Add a low-precision gradient to its float32 master as soon as it is made, so that rows add up exactly."""

    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return move


def _trained_places(trajectory: Trajectory) -> np.ndarray:
    return np.flatnonzero(trajectory.train_mask_T[1:]) + 1
