"""The learner: four verbs over one set of weights, shared by SFT and RL.

`forward_backward` adds gradients, `optim_step` applies them, `save`/`load` keep the training state, `export_weights`
hands the policy to a sampler. Weights that train are kept in float32; the forward pass may run in bfloat16. It knows no
questions, rewards or episodes.
"""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from seekling.errors import DataError, ModelError, NothingToLearnError
from seekling.files import replacing
from seekling.kernels.memory import (
    in_steps,
    keep_freed_memory,
    large_blocks_apart,
    release_free_memory,
    resident_bytes,
)
from seekling.kernels.vocabulary import score_tokens
from seekling.learn.attention import STRAND_ATTENTION
from seekling.learn.batch import MAXIMA, MEANS, Batch, LearnStats
from seekling.learn.lora import add_lora, merged_weights, save_adapter
from seekling.learn.loss import (
    Aggregation,
    TokenData,
    TokenLoss,
    TokenMeasure,
    denominator,
    token_weights,
)
from seekling.learn.pack import PackedRow, pack_rows
from seekling.models.families import head_of, longest_exact
from seekling.models.lean import make_lean
from seekling.types import Trajectory

if TYPE_CHECKING:
    from seekling.learn.critic import Critic

KEPT_BYTES = 1_500_000_000
"""Memory may grow so far between rows before what is free goes back; further where one row alone takes more."""
KEPT_WHEN_SHORT_BYTES = 200_000_000
"""The same where layers are computed twice, because memory is short."""
MAX_SKIPPED = 3
"""So many optimizer steps in a row whose gradient is not finite end the run."""


class Learner:
    """Owns the weights that train.

    Args:
        model: decoder-only, in the dtype of the forward pass; its attention is replaced.
        lora_rank: 0 trains every weight; otherwise low-rank adapters on all linear layers.
        lora_alpha: LoRA's alpha.
        seed: of the adapters' first weights.
        betas, weight_decay: of AdamW.
        row_tokens: tokens of one packed row; bounds activation memory.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        checkpoint_layers: keep only what goes into each layer and compute the rest again in the backward pass: a third
            more arithmetic, much less memory, the same gradients.
        dtype: of the forward pass; None leaves all parameters as they are. The trained weights begin at the model's
            values all the same, which a lower precision would round.

    Raises:
        ModelError: the model's family is refused; see `head_of`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        lora_rank: int = 0,
        lora_alpha: int = 32,
        seed: int = 0,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        row_tokens: int = 1024,
        max_grad_norm: float = 1.0,
        checkpoint_layers: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        head_of(model)  # or this family is refused
        self._longest = longest_exact(model.config)
        if model.device.type == "cpu":
            keep_freed_memory()
        model.set_attn_implementation(STRAND_ATTENTION)
        make_lean(model)
        loaded = {} if dtype is None else _cast(model, dtype)
        self._model = model
        self._adapted = add_lora(model, rank=lora_rank, alpha=lora_alpha, seed=seed) if lora_rank else None
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
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # float32 parameters are their own masters.
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(loaded.get(name, p.detach()).float())
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
        self._anchor: dict[str, Tensor] | None = None
        """The adapters of the reference, where the base weights are the policy's; empty: the base weights alone."""
        self.critic: Critic | None = None
        """The value model of PPO; saved and loaded with the policy."""
        self.num_steps = 0
        """Optimizer steps of the stage, skipped ones included."""
        self._num_skipped = 0
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
        divide_by: float | None = None,
        measure: TokenMeasure | None = None,
    ) -> LearnStats:
        """Add the gradients of a batch to those already waiting for `optim_step`.

        Args:
            batch: B trajectories with (B,) advantages.
            loss: per-token loss.
            aggregation: how the tokens' losses become one number.
            divide_by: what their weighted sum is divided by; None: what the aggregation says for this batch alone.
            measure: of a policy loss, for the statistics.

        Raises:
            NothingToLearnError: no token of the batch is trained.
        """
        rows = pack_rows(batch.trajectories, row_tokens=self._row_tokens)
        num_trained_B = batch.num_trained_B
        if not rows:
            raise NothingToLearnError(
                f"none of the {len(batch.trajectories)} trajectories has a trained token; check that actions are "
                "marked in train_mask"
            )
        if divide_by is None:
            divide_by = denominator(num_trained_B, aggregation, represented_B=batch.represented_B)
        weights_B = batch.represented_B * token_weights(num_trained_B, aggregation) / divide_by
        found = []
        is_short = self.checkpoints_layers and self.device.type == "cpu"
        for row in rows:
            with large_blocks_apart() if is_short else nullcontext():
                found.append(self._learn_row(row, batch, loss, weights_B, measure))
            self._release_grown_memory()
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
        more = {name: _entries(row, batch.trajectories, values) for name, values in batch.per_token.items()}
        data = replace(data, **{name: values_A.to(logprobs_A) for name, values_A in more.items()})
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

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Log-probabilities of the trained tokens under the current weights.

        Args:
            trajectories: B of them.

        Returns:
            B arrays (T,) float32, 0 where nothing is trained.
        """
        return self._logprobs(self._model, trajectories)

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained, and not all weights."""
        return self._adapted is not None

    @property
    def has_reference(self) -> bool:
        """Whether the anchor of a KL term was kept, or loaded with the adapters."""
        return self._reference is not None or self._anchor is not None

    def keep_reference(self, model: PreTrainedModel | None = None) -> None:
        """Freeze the anchor of a KL term: the given model, or else the policy as it is now.

        Of a policy with adapters these alone are kept, and saved with it; otherwise a copy of all weights.
        """
        if model is None and self._adapted is not None:
            adapters = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
            is_base = not any("lora_B" in name and bool(value.any()) for name, value in adapters.items())
            self._anchor, self._reference = {} if is_base else adapters, None
            return
        reference = self.copy_policy() if model is None else model
        reference.set_attn_implementation(STRAND_ATTENTION)
        make_lean(reference)
        self._reference, self._anchor = reference.eval().requires_grad_(False), None

    def copy_policy(self) -> PreTrainedModel:
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

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """As `logprobs`, under the policy that `keep_reference` froze."""
        if self._anchor is not None:
            with self._at_anchor():
                return self._logprobs(self._model, trajectories)
        assert self._reference is not None, "keep_reference comes first"
        return self._logprobs(self._reference, trajectories)

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

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(values[name])

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        scored = [np.zeros(len(t.token_ids_T), np.float32) for t in trajectories]
        places = [np.flatnonzero(t.train_mask_T[1:]) + 1 for t in trajectories]
        for row in pack_rows(trajectories, row_tokens=self._row_tokens):
            values_A = self._score(model, row)[0].float().cpu().numpy()
            for index in np.unique(row.sequence_A):
                scored[index][places[index]] = values_A[row.sequence_A == index]
        return scored

    def scale_gradients(self, factor: float) -> None:
        """Multiply the waiting gradients, for instance when the size of a step is known only at its end."""
        for master in self._masters.values():
            if master.grad is not None:
                master.grad.mul_(factor)

    def optim_step(self, learning_rate: float) -> float:
        """Apply the waiting gradients and forget them; skip the step when they are not finite.

        A skipped step leaves weights and moments as they were, and counts in `num_steps`: the next one has another
        batch.

        Returns:
            The norm of the gradients before clipping; not finite when the step was skipped.

        Raises:
            NothingToLearnError: there are no gradients, or MAX_SKIPPED steps in a row had none that were finite.
        """
        if not any(master.grad is not None for master in self._masters.values()):
            raise NothingToLearnError("optim_step without gradients; call forward_backward first")
        limit = self._max_grad_norm or math.inf
        norm = float(nn.utils.clip_grad_norm_(self._masters.values(), limit, foreach=True))
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
        self._publish_masters()
        return norm

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged.

        The tensors are the learner's own, except merged ones, which are made when they are looked up: copy them before
        the next step.
        """
        return merged_weights(self._model, self._adapted)

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """Write the low-rank adapters alone, in the layout of PEFT, into a folder.

        Args:
            folder: made when it is missing.
            base_model: what loaders put the adapters on: a hub id or a directory.

        Raises:
            ModelError: all weights are trained, so there are no adapters.
        """
        if self._adapted is None:
            raise ModelError("this policy has no adapter: model.lora_rank = 0 trains all weights; export it merged")
        save_adapter(self._adapted, folder, base_model=base_model)

    def save(self, path: Path) -> None:
        """Write weights and optimizer state to one file, atomically."""
        state = self._state() | ({"critic": self.critic._state()} if self.critic is not None else {})
        with replacing(path) as temporary:
            torch.save(state, temporary)

    def _state(self) -> dict[str, object]:
        return {
            "masters": {name: master.detach() for name, master in self._masters.items()},
            "optimizer": self._optimizer.state_dict(),
            "num_steps": self.num_steps,
            "num_skipped": self._num_skipped,
            **({"reference": self._anchor} if self._anchor is not None else {}),
        }

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
            parts: list[tuple[Learner, dict[str, Any]]] = [(self, state)]
            if self.critic is not None:
                parts.append((self.critic, state["critic"]))
            found = [(each, part["masters"], part["optimizer"], int(part["num_steps"])) for each, part in parts]
        except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise DataError(f"{path} is not a readable training state ({error}); delete it to start over") from None
        for each, masters, _, _ in found:
            if {n: m.shape for n, m in masters.items()} != {n: m.shape for n, m in each._masters.items()}:
                raise DataError(f"{path} is the training state of another model or adapter; delete it to start over")
        for each, masters, optimizer, num_steps in found:
            each._take(masters, optimizer if with_optimizer else None, num_steps)
        if with_optimizer:  # a new stage has an anchor of its own
            self._anchor = state.get("reference")
            for each, part in parts:
                each._num_skipped = part.get("num_skipped", 0)

    @torch.no_grad()
    def _take(self, masters: Mapping[str, Tensor], optimizer: dict[str, Any] | None, num_steps: int) -> None:
        for name, master in self._masters.items():
            master.copy_(masters[name])
        if optimizer is not None:
            self._optimizer.load_state_dict(optimizer)
            self.num_steps = num_steps
        self._publish_masters()

    def start_stage(
        self,
        *,
        row_tokens: int,
        max_grad_norm: float,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        keep_moments: bool = False,
    ) -> None:
        """Begin a new stage with these weights: the optimizer's moments and the step count start afresh.

        Args:
            row_tokens: as in the constructor.
            max_grad_norm: as in the constructor.
            betas: of AdamW; None keeps those of the stage before.
            weight_decay: of AdamW; None keeps that of the stage before.
            keep_moments: the second moments stay, with the number of steps that they are averages of; the first
                ones, which are a direction, are forgotten anyway.
        """
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

    def _publish_masters(self) -> None:
        self._put(self._masters)


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Cast the parameters in place, but no buffer: rotary frequencies need all their digits. Returns what was cast."""
    before = {name: p.data for name, p in model.named_parameters() if p.dtype != dtype}
    for name, parameter in model.named_parameters():
        if name in before:
            parameter.data = before[name].to(dtype)
    return before


def _move_gradient_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Add a low-precision gradient to its float32 master as soon as it is made, so that many rows add up exactly.

    At that moment it is still in the processor's cache, and the gradients of a whole model never exist twice.
    """

    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return move


def _entries(row: PackedRow, trajectories: Sequence[Trajectory], values: Sequence[np.ndarray]) -> Tensor:
    """(A,) entries of per-trajectory (T,) values, in the order of the row's entries."""
    cursors: dict[int, Iterator[float]] = {}
    for index in np.unique(row.sequence_A):
        trained = np.flatnonzero(trajectories[index].train_mask_T[1:]) + 1
        cursors[int(index)] = iter(values[index][trained].tolist())
    return torch.tensor([next(cursors[int(index)]) for index in row.sequence_A])
