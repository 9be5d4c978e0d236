"""The learner: four verbs over one set of weights, shared by SFT and RL.

`forward_backward` adds gradients, `optim_step` applies them, `save`/`load` keep the training state, `export_weights`
hands the policy to a sampler. Weights that train are kept in float32; the forward pass may run in bfloat16. It knows no
questions, rewards or episodes.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from seekling.errors import DataError, ModelError, NothingToLearnError
from seekling.learn.attention import BLOCK_ATTENTION
from seekling.learn.lora import add_lora, merged_weights
from seekling.learn.loss import TokenData, TokenLoss
from seekling.learn.pack import PackedRow, pack_rows
from seekling.rollout.engine.memory import in_steps, keep_freed_memory, release_free_memory, resident_bytes
from seekling.types import Trajectory

VOCABULARY_CHUNK = 128
"""Trained tokens whose logits exist at the same time."""

KEPT_BYTES = 1_500_000_000
"""Memory may grow so far between rows before what is free goes back; further where one row alone takes more."""

Aggregation = Literal["token_mean", "sequence_mean", "sum"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories to learn from, with one advantage each."""

    trajectories: Sequence[Trajectory]
    advantages_B: np.ndarray
    """(B,) multiplies every trained token of the trajectory; ones for SFT."""


@dataclass(frozen=True, slots=True)
class LearnStats:
    """Means over the trained tokens of a `forward_backward`, each counted once per trajectory."""

    loss: float
    entropy: float
    """Of the policy's next-token distribution, in nats."""
    kl_behaviour: float
    """Mean of the k3 estimate between behaviour and current policy: drift plus numerical mismatch."""
    num_trained_tokens: int
    num_packed_tokens: int
    """Tokens that went through the model, shared prefixes once."""
    num_plain_tokens: int
    """Tokens there would have been without sharing."""


class Learner:
    """Owns the weights that train.

    Args:
        model: decoder-only, in the dtype of the forward pass; its attention is replaced.
        lora_rank: 0 trains every weight; otherwise low-rank adapters on all linear layers.
        lora_alpha: LoRA's alpha.
        betas, weight_decay: of AdamW.
        row_tokens: tokens of one packed row; bounds activation memory.
        max_grad_norm: gradients are scaled down to this norm.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        lora_rank: int = 0,
        lora_alpha: int = 32,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        row_tokens: int = 1024,
        max_grad_norm: float = 1.0,
    ) -> None:
        if getattr(model.config, "final_logit_softcapping", None):
            raise ModelError("models that cap their final logits are not supported by the learner yet")
        if model.device.type == "cpu":
            keep_freed_memory()
        model.set_attn_implementation(BLOCK_ATTENTION)
        self._model = model
        self._adapted = add_lora(model, rank=lora_rank, alpha=lora_alpha) if lora_rank else None
        model.train()
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # float32 parameters are their own masters.
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for name, p in self._trained.items()
        }
        for name, parameter in self._trained.items():
            if self._masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(_move_gradient_to(self._masters[name]))
        self._optimizer = torch.optim.AdamW(
            self._masters.values(), lr=0.0, betas=betas, weight_decay=weight_decay, fused=True
        )
        self._row_tokens, self._max_grad_norm = row_tokens, max_grad_norm
        self._reference: PreTrainedModel | None = None
        self.num_steps = 0
        self._least_bytes = self._row_bytes = 0
        self._rows_since_release = 0

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
        reference_logprobs: Sequence[np.ndarray] | None = None,
    ) -> LearnStats:
        """Add the gradients of a batch to those already waiting for `optim_step`.

        Args:
            batch: B trajectories with (B,) advantages.
            loss: per-token loss.
            aggregation: "token_mean" divides the sum by the number of trained tokens of the batch, "sequence_mean"
                averages each trajectory first, "sum" divides by nothing.
            reference_logprobs: B arrays as `logprobs` returns them, for a KL term.

        Raises:
            NothingToLearnError: no token of the batch is trained.
        """
        rows = pack_rows(batch.trajectories, row_tokens=self._row_tokens)
        num_trained_B = np.asarray([int(t.train_mask_T[1:].sum()) for t in batch.trajectories])
        if not rows:
            raise NothingToLearnError(
                f"none of the {len(batch.trajectories)} trajectories has a trained token; check that actions are "
                "marked in train_mask"
            )
        weights_B = _token_weights(num_trained_B, aggregation)
        totals = np.zeros(3)
        for row in rows:
            reference = None
            if reference_logprobs is not None:
                reference = _entries(row, batch.trajectories, reference_logprobs).to(self.device)
            totals += self._learn_row(row, batch, loss, weights_B, reference)
            self._release_grown_memory()
        num_trained = int(num_trained_B.sum())
        return LearnStats(
            loss=float(totals[0]),
            entropy=float(totals[1] / num_trained),
            kl_behaviour=float(totals[2] / num_trained),
            num_trained_tokens=num_trained,
            num_packed_tokens=sum(len(row.token_ids_N) for row in rows),
            num_plain_tokens=sum(len(t.token_ids_T) for t in batch.trajectories),
        )

    def _release_grown_memory(self) -> None:
        grown = resident_bytes() - self._least_bytes
        self._rows_since_release += 1
        if self._least_bytes and self._rows_since_release == 1:
            self._row_bytes = max(self._row_bytes, grown)
        if grown > max(KEPT_BYTES, self._row_bytes * 5 // 4):
            release_free_memory()
            self._least_bytes, self._rows_since_release = resident_bytes(), 0

    def _learn_row(
        self, row: PackedRow, batch: Batch, loss: TokenLoss, weights_B: np.ndarray, reference: Tensor | None
    ) -> np.ndarray:
        logprobs_A, entropy_A = self._score(self._model, row)
        behaviour_A = torch.from_numpy(row.logprobs_A).to(self.device)
        advantages_A = torch.from_numpy(batch.advantages_B[row.sequence_A]).to(logprobs_A)
        loss_A = loss(logprobs_A, TokenData(behaviour_A, advantages_A, reference))
        total = (loss_A * torch.from_numpy(weights_B[row.sequence_A]).to(loss_A)).sum()
        total.backward()
        with torch.no_grad():
            difference_A = logprobs_A - behaviour_A
            kl = (torch.exp(-difference_A) + difference_A - 1).sum()
        return np.asarray([total.item(), entropy_A.sum().item(), kl.item()])

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Log-probabilities of the trained tokens under the current weights.

        Args:
            trajectories: B of them.

        Returns:
            B arrays (T,) float32, 0 where nothing is trained.
        """
        return self._logprobs(self._model, trajectories)

    def keep_reference(self, model: PreTrainedModel | None = None) -> None:
        """Freeze the anchor of a KL term: the given model, or else a copy of the policy as it is now."""
        if model is not None:
            model.set_attn_implementation(BLOCK_ATTENTION)
            self._reference = model.eval().requires_grad_(False)
            return
        weights = {name: tensor.detach().clone() for name, tensor in self.export_weights().items()}
        config = copy.deepcopy(self._model.config)
        with torch.device(self.device):
            reference: PreTrainedModel = type(self._model)(config)
        reference.to(dtype=next(self._model.parameters()).dtype)  # type: ignore[call-arg]
        reference.load_state_dict(weights, strict=False)
        reference.tie_weights()
        reference.set_attn_implementation(BLOCK_ATTENTION)
        self._reference = reference.eval().requires_grad_(False)

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """As `logprobs`, under the policy that `keep_reference` froze."""
        assert self._reference is not None, "keep_reference comes first"
        return self._logprobs(self._reference, trajectories)

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        scored = [np.zeros(len(t.token_ids_T), np.float32) for t in trajectories]
        places = [np.flatnonzero(t.train_mask_T[1:]) + 1 for t in trajectories]
        for row in pack_rows(trajectories, row_tokens=self._row_tokens):
            values_A = self._score(model, row)[0].float().cpu().numpy()
            for index in np.unique(row.sequence_A):
                scored[index][places[index]] = values_A[row.sequence_A == index]
        return scored

    def optim_step(self, learning_rate: float) -> float:
        """Apply the waiting gradients and forget them.

        Returns:
            The norm of the gradients before clipping.

        Raises:
            NothingToLearnError: there are no gradients, or they are not finite; the weights stay as they were.
        """
        if not any(master.grad is not None for master in self._masters.values()):
            raise NothingToLearnError("optim_step without gradients; call forward_backward first")
        norm = float(nn.utils.clip_grad_norm_(self._masters.values(), self._max_grad_norm, foreach=True))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise NothingToLearnError(
                f"gradient norm is {norm} at step {self.num_steps}; lower the learning rate or use model.dtype = "
                '"float32"'
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._publish_masters()
        self.num_steps += 1
        return norm

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged.

        The tensors are the learner's own (except merged ones): copy them before the next step.
        """
        return merged_weights(self._model, self._adapted)

    def save(self, path: Path) -> None:
        """Write weights and optimizer state to one file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "masters": {name: master.detach() for name, master in self._masters.items()},
            "optimizer": self._optimizer.state_dict(),
            "num_steps": self.num_steps,
        }
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(state, file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def load(self, path: Path, *, with_optimizer: bool = True) -> None:
        """Read what `save` wrote.

        Args:
            path: the file.
            with_optimizer: False takes the weights only and starts the optimizer afresh, as a new stage does.

        Raises:
            DataError: the file is missing, damaged, or of another model.
        """
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            masters, optimizer, num_steps = state["masters"], state["optimizer"], int(state["num_steps"])
        except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise DataError(f"{path} is not a readable training state ({error}); delete it to start over") from None
        if {n: m.shape for n, m in masters.items()} != {n: m.shape for n, m in self._masters.items()}:
            raise DataError(f"{path} is the training state of another model or adapter; delete it to start over")
        with torch.no_grad():
            for name, master in self._masters.items():
                master.copy_(masters[name])
        if with_optimizer:
            self._optimizer.load_state_dict(optimizer)
            self.num_steps = num_steps
        self._publish_masters()

    def start_stage(self, *, row_tokens: int, max_grad_norm: float) -> None:
        """Begin a new stage with these weights: the optimizer's moments and the step count start afresh."""
        self._row_tokens, self._max_grad_norm = row_tokens, max_grad_norm
        self._optimizer.state.clear()
        self.num_steps = 0

    def _score(self, model: PreTrainedModel, row: PackedRow) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token; logits exist only where a token is trained."""
        device, dtype = self.device, next(model.parameters()).dtype
        seen = [np.tri(row.num_prefix, dtype=np.bool_)] if row.num_prefix else []
        seen += [np.pad(block.visible_MM, ((0, 0), (row.num_prefix, 0)), constant_values=True) for block in row.blocks]
        starts = ([0] if row.num_prefix else []) + [block.start for block in row.blocks]
        blocks = []
        for start, seen_MK in zip(starts, seen, strict=True):
            hidden_MK = torch.from_numpy(~seen_MK).to(device)
            bias = torch.zeros(hidden_MK.shape, dtype=dtype, device=device).masked_fill_(hidden_MK, float("-inf"))
            blocks.append((start, bias))
        padding = (0, in_steps(len(row.token_ids_N)) - len(row.token_ids_N))
        hidden_1ND = model.get_decoder()(
            input_ids=torch.from_numpy(np.pad(row.token_ids_N, padding)).to(device)[None],
            position_ids=torch.from_numpy(np.pad(row.position_ids_N, padding)).to(device)[None],
            use_cache=False,
            num_prefix=row.num_prefix,
            blocks=blocks,
        ).last_hidden_state
        sources, where = np.unique(row.source_A, return_inverse=True)
        # Two trajectories that part at a token share the position that predicts it: its logits are computed once.
        hidden_UD = hidden_1ND[0, torch.from_numpy(sources).to(device)]
        return _vocabulary(model.get_output_embeddings(), hidden_UD, where, torch.from_numpy(row.target_A).to(device))

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for name, parameter in self._trained.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])


def _move_gradient_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Add a low-precision gradient to its float32 master as soon as it is made, so that many rows add up exactly.

    At that moment it is still in the processor's cache, and the gradients of a whole model never exist twice.
    """

    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return move


def _token_weights(num_trained_B: np.ndarray, aggregation: Aggregation) -> np.ndarray:
    if aggregation == "sum":
        return np.ones(len(num_trained_B))
    if aggregation == "token_mean":
        return np.full(len(num_trained_B), 1.0 / num_trained_B.sum())
    weights_B: np.ndarray = 1.0 / (np.maximum(num_trained_B, 1) * np.count_nonzero(num_trained_B))
    return weights_B


def _entries(row: PackedRow, trajectories: Sequence[Trajectory], values: Sequence[np.ndarray]) -> Tensor:
    """(A,) entries of per-trajectory (T,) values, in the order of the row's entries."""
    cursors: dict[int, Iterator[float]] = {}
    for index in np.unique(row.sequence_A):
        trained = np.flatnonzero(trajectories[index].train_mask_T[1:]) + 1
        cursors[int(index)] = iter(values[index][trained].tolist())
    return torch.tensor([next(cursors[int(index)]) for index in row.sequence_A])


def _vocabulary(head: nn.Module, hidden_UD: Tensor, where_A: np.ndarray, target_A: Tensor) -> tuple[Tensor, Tensor]:
    def chunk(hidden: Tensor, local: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_UV = torch.log_softmax(head(hidden).float(), -1)
        with torch.no_grad():
            entropy_U = -(logprobs_UV.exp() * logprobs_UV).sum(-1)
        return logprobs_UV[local, target], entropy_U[local]

    logprobs, entropies, order = [], [], []
    for start in range(0, hidden_UD.shape[0], VOCABULARY_CHUNK):
        inside = np.flatnonzero((where_A >= start) & (where_A < start + VOCABULARY_CHUNK))
        local = torch.from_numpy(where_A[inside] - start).to(target_A.device)
        part = hidden_UD[start : start + VOCABULARY_CHUNK]
        logp, entropy = checkpoint(chunk, part, local, target_A[torch.from_numpy(inside)], use_reentrant=False)
        logprobs.append(logp)
        entropies.append(entropy)
        order.append(inside)
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(target_A.device)
    return torch.cat(logprobs)[back], torch.cat(entropies)[back]
