"""The in-process sampler: continuous batching over cache slots, with every shared prefix computed once.

Each step runs one forward pass over the newest token of every decoding episode, a few guessed ones behind it, and
whatever prompts and observations have arrived. A request starts from the longest prefix that any slot already holds, so
a group's prompt is prefilled once, a turn continues from its own cache, and siblings that retrieved the same passages
share those too. It does not page memory.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.errors import ConfigError, InfrastructureError
from seekling.kernels.backend import chosen_kernels
from seekling.kernels.draw import draw, draw_keys
from seekling.kernels.linear import EightBitLinear, PackedLinear, can_pack, can_round, pack_linear_layers, sparing
from seekling.kernels.memory import in_steps, keep_freed_memory, release_free_memory, up_to_step
from seekling.kernels.norms import make_lean
from seekling.kernels.slots import AttentionPlan, DecodeRows, Segment, SlotCache
from seekling.models.families import head_of, longest_exact
from seekling.models.lazy_weights import ExpectedWeights
from seekling.rollout.engine.draft import HISTORY_N, Draft, Drafter, Ngrams, ngrams_of
from seekling.rollout.engine.layers import SLOT_ATTENTION, decode_loops, fuse_layers
from seekling.rollout.engine.slots import EngineStats, Row, SlotTable, common_length
from seekling.rollout.sampler import Sample, SampleRequest, TurnEnd, end_of_turn_ids
from seekling.types import Trajectory

MIN_SHARED_TOKENS = 16
"""Waiting a step for a sibling's prefill pays only when it saves at least this much."""


class LocalSampler:
    """A `Sampler` over a transformers model in this process.

    Args:
        model: decoder-only; its attention is replaced.
        tokenizer: decodes new tokens to look for stop strings.
        in_flight: episodes with a live cache at once, at most.
        episode_tokens: longest prompt plus answer; length of a slot.
        cache_bytes: memory for all slots; may lower `in_flight`.
        prefill_tokens: new prompt tokens per forward pass.
        draft_tokens: guessed tokens per row and pass, at most; 0 switches speculative decoding off.
        eight_bits: round the weights of matrices to eight bits; on a CPU, unless the kernels are the reference.

    Raises:
        ConfigError: no slot fits into `cache_bytes`, episodes may be too long, or weights cannot be rounded here.
        ModelError: the model's family is refused; see `head_of`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        in_flight: int = 64,
        episode_tokens: int = 2048,
        cache_bytes: int = 2 * 1024**3,
        prefill_tokens: int = 2048,
        draft_tokens: int = 4,
        eight_bits: bool = False,
    ) -> None:
        head_of(model)  # or this family is refused, before its layers are changed
        longest = longest_exact(model.config)
        if longest is not None and longest[0] < episode_tokens:
            raise ConfigError(
                f"{longest[1]}, which is not supported; lower rollout.episode_tokens = {episode_tokens} to at most "
                f"{longest[0]}"
            )
        if model.device.type == "cpu":
            keep_freed_memory()
        model.eval()
        model.set_attn_implementation(SLOT_ATTENTION)
        make_lean(model)
        self._model, self._tokenizer = model, tokenizer
        self.device, self.dtype = model.device, str(model.dtype)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._expected = ExpectedWeights.of(model)
        self._packed: list[PackedLinear] = []
        kind = EightBitLinear if eight_bits else PackedLinear
        if can_round(model.dtype, model.device) if eight_bits else can_pack(model.dtype, model.device):
            both = fuse_layers(model, names, kind), pack_linear_layers(model, names, kind)
            self._packed = [layer for layers in both for layer in sparing(layers)]
            release_free_memory()  # of the plain weights
        elif eight_bits:
            raise ConfigError(
                f"rollout.weight_bits = 8 needs a CPU and model.kernels = vector or amx; the model is on "
                f"{model.device.type}, its kernels are {chosen_kernels()}: give rollout.weight_bits=auto"
            )
        self._decoder, self._head = model.get_decoder(), head_of(model)
        self._cache, self.num_slots = _make_cache(model, in_flight, episode_tokens, cache_bytes)
        self._loops = decode_loops(self._decoder, self._cache)
        self._slots = SlotTable(self._cache, self.num_slots, episode_tokens)
        self._waiting: list[tuple[SampleRequest, asyncio.Future[Sample]]] = []
        self._rows: list[Row] = []
        self._driver: asyncio.Task[None] | None = None
        self._episode_tokens, self._prefill_tokens = episode_tokens, prefill_tokens
        self._taught: Ngrams = {}
        self._drafter = Drafter(draft_tokens)
        self._eos_ids = end_of_turn_ids(model, tokenizer)
        self.policy_version = 0
        self.stats = EngineStats()

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt; see `Sampler.sample`."""
        if len(request.prompt_ids) >= self._episode_tokens or request.max_new_tokens < 1:
            return Sample((), (), "length", self.policy_version)
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            self._driver.add_done_callback(self._driver_ended)
        return await future

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """Guess ahead from these texts too, which the policy is likely to resemble; see `draft.py`."""
        self._taught = ngrams_of(trajectories)
        self._drafter = Drafter(self._drafter.max_tokens, self._taught)

    def close_session(self, session: int) -> None:
        """Free the session's slot; see `SlotTable.close`."""
        self._slots.close(session)

    def release_caches(self) -> None:
        """Forget every cache, and give its memory back; see `Sampler.release_caches`."""
        running = [row.future for row in self._rows] + [future for _, future in self._waiting]
        # Cancelled ones belong to a rollout that was given up; the next step would sort them out.
        if not all(future.cancelled() for future in running):
            raise InfrastructureError("samples are still running; wait for the rollout to end first")
        self._empty()

    def _empty(self) -> None:
        self._slots.forget()
        # Drafts made of older samples would be as good, but a resumed run has not got them and must sample the same.
        self._drafter = Drafter(self._drafter.max_tokens, self._taught)
        self._cache.release()

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights in and forget every cache; see `TakesWeights.load_weights`."""
        self._expected.check(weights)
        self.release_caches()
        release_free_memory()  # what learning left behind
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(weights[name])
            for layer in sparing(self._packed):
                layer.load(weights)
        self.policy_version = version

    def close(self) -> None:
        """Give the caches back; those who still wait for samples fail."""
        self._fail(InfrastructureError("the sampler was closed"))

    async def _drive(self) -> None:
        try:
            while self._waiting or self._rows:
                # Let every episode that just got its sample answer with its next request before the batch is formed.
                for _ in range(3):
                    await asyncio.sleep(0)
                if not self._step():
                    await asyncio.sleep(0.001)  # every slot's episode is out searching
        except (RuntimeError, IndexError, MemoryError) as error:  # torch's failures; the episodes end, the run goes on
            traceback.clear_frames(error.__traceback__)  # they hold the failed pass's tensors, and so their memory
            failure = InfrastructureError(f"the sampler failed: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _driver_ended(self, driver: asyncio.Task[None]) -> None:
        """A bug of ours must reach those who wait for samples; otherwise they would wait for ever."""
        error = None if driver.cancelled() else driver.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for future in [row.future for row in self._rows] + [future for _, future in self._waiting]:
            if not future.done():
                future.set_exception(error)
        self._rows, self._waiting = [], []
        self._empty()  # may hold what is not finite

    @torch.inference_mode()
    def _step(self) -> bool:
        """Run one forward pass; False when there was nothing to run."""
        started = time.perf_counter()
        self._rows = [row for row in self._rows if not row.future.cancelled()]
        self._admit()
        decoding = [row for row in self._rows if row.is_prefilled]
        drafts = [self._draft(row) for row in decoding]
        widths = [1 + len(draft.token_ids) for draft in drafts]
        filling, segments = self._prefill_segments(sum(widths))
        if not decoding and not segments:
            return False
        hidden_ND, where = self._forward(decoding, widths, segments)
        finished = []
        for row, segment in zip(filling, segments, strict=True):
            slot = self._slots[segment.slot]
            slot.length = segment.past + segment.length
            if slot.length == len(row.request.prompt_ids):
                finished.append((row, segment.start + segment.length - 1))
        rows = [*decoding, *(row for row, _ in finished)]
        if rows:
            where += [index for _, index in finished]
            padded = where + [0] * (in_steps(len(where)) - len(where))
            logits_PV = self._head(hidden_ND[padded])[: len(where)]
            self._extend(rows, [*drafts, *(Draft() for _ in finished)], logits_PV)
        self.stats.prefilled_tokens += sum(segment.length for segment in segments)
        self.stats.steps += 1
        self.stats.busy_s += time.perf_counter() - started
        return True

    def _forward(self, decoding: list[Row], widths: list[int], segments: list[Segment]) -> tuple[Tensor, list[int]]:
        """Hidden states of a pass, and where those of the decoding rows' tokens are."""
        plan = self._plan(decoding, widths, segments)
        token_ids, positions = self._pack(decoding, widths, segments)
        num_tokens, rows = sum(widths), plan.rows
        if self._loops is not None and rows is not None and not segments and self._loops.takes(num_tokens):
            hidden_PD = self._loops.run(token_ids[:num_tokens], positions[:num_tokens], rows)
            return hidden_PD, list(range(num_tokens))
        hidden_1ND: Tensor = self._decoder(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, plan=plan
        ).last_hidden_state
        return hidden_1ND[0], list(range(num_tokens))

    def _draft(self, row: Row) -> Draft:
        """Guess what follows a row's newest token, and put both into its slot."""
        slot = self._slots[row.slot]
        slot.token_ids[slot.length] = row.new_ids[-1]
        # The token after a whole draft is sampled too; neither may pass the budget.
        draft = self._drafter.draft(slot.token_ids[: slot.length + 1], limit=row.budget_tokens - len(row.new_ids) - 1)
        slot.token_ids[slot.length + 1 : slot.length + 1 + len(draft.token_ids)] = draft.token_ids
        return draft

    def _admit(self) -> None:
        """Give waiting requests a slot, oldest first, and fill it with the longest prefix that is at hand."""
        still_waiting, prefilling = [], [row for row in self._rows if not row.is_prefilled]
        for request, future in self._waiting:
            if future.cancelled():
                continue
            prompt = np.asarray(request.prompt_ids, np.int64)
            source, shared = self._slots.longest_prefix(prompt)
            coming = max((common_length(prompt, np.asarray(row.request.prompt_ids)) for row in prefilling), default=0)
            index = self._slots.take(request.session, avoid=source)
            if index is None or coming > shared + MIN_SHARED_TOKENS:
                still_waiting.append((request, future))
                continue
            slot = self._slots.fill(index, prompt, source, shared)
            self.stats.reused_tokens += slot.length
            budget = min(request.max_new_tokens, self._episode_tokens - len(prompt))
            row = Row(request, future, index, budget, TurnEnd(request, self._tokenizer, self._eos_ids, budget))
            self._rows.append(row)
            prefilling.append(row)
        self._waiting = still_waiting

    def _prefill_segments(self, start: int) -> tuple[list[Row], list[Segment]]:
        rows, segments, left = [], [], self._prefill_tokens
        for row in self._rows:
            if row.is_prefilled or left <= 0:
                continue
            past = self._slots[row.slot].length
            length = min(len(row.request.prompt_ids) - past, left)
            segments.append(Segment(row.slot, start, past, length))
            rows.append(row)
            start, left = start + length, left - length
        return rows, segments

    def _pack(self, decoding: list[Row], widths: list[int], segments: list[Segment]) -> tuple[Tensor, Tensor]:
        starts = [(self._slots[row.slot], self._slots[row.slot].length) for row in decoding]
        spans = [(slot, start, start + width) for (slot, start), width in zip(starts, widths, strict=True)]
        spans += [(self._slots[each.slot], each.past, each.past + each.length) for each in segments]
        num_tokens = sum(end - start for _, start, end in spans)
        padding = np.zeros(in_steps(num_tokens) - num_tokens, np.int64)
        token_ids = np.concatenate([*(slot.token_ids[start:end] for slot, start, end in spans), padding])
        positions = np.concatenate([*(np.arange(start, end) for _, start, end in spans), padding])
        return torch.from_numpy(token_ids).to(self.device), torch.from_numpy(positions).to(self.device)

    def _plan(self, decoding: list[Row], widths: list[int], segments: list[Segment]) -> AttentionPlan:
        if not decoding:
            return AttentionPlan(self._cache, None, tuple(segments))
        slots = [row.slot for row in decoding]
        pasts = [self._slots[slot].length for slot in slots]
        rows = DecodeRows(slots, pasts, widths, leaders=self._slots.leaders(slots))
        return AttentionPlan(self._cache, rows, tuple(segments))

    def _extend(self, rows: list[Row], drafts: list[Draft], logits_PV: Tensor) -> None:
        """Draw after every token of every row, and keep the draws up to the first that its draft did not foresee."""
        first_R = np.asarray([len(row.request.prompt_ids) + len(row.new_ids) for row in rows])
        width_R = np.asarray([1 + len(draft.token_ids) for draft in drafts])
        row_P = np.repeat(np.arange(len(rows)), width_R)
        starts_R = np.cumsum(width_R) - width_R
        requests = [row.request for row in rows]
        token_ids, logprobs = draw(
            logits_PV,
            temperature_R=np.asarray([request.temperature for request in requests])[row_P],
            top_p_R=np.asarray([request.top_p for request in requests])[row_P],
            min_p_R=np.asarray([request.min_p for request in requests])[row_P],
            key_R=draw_keys(
                np.asarray([request.seed for request in requests], np.uint64)[row_P],
                (first_R[row_P] + np.arange(len(row_P)) - starts_R[row_P]).astype(np.uint64),
            ),
        )
        if not all(map(math.isfinite, logprobs)):
            raise RuntimeError("the model's logits are not finite; its weights or caches are damaged")
        for row, draft, start in zip(rows, drafts, starts_R.tolist(), strict=True):
            self._advance(row, draft, token_ids[start:], logprobs[start:])
        self._rows = [row for row in self._rows if not row.future.done()]

    def _advance(self, row: Row, draft: Draft, token_ids: list[int], logprobs: list[float]) -> None:
        """Append the drawn tokens: the one after the newest, and another for each drafted token that was right."""
        slot, is_first = self._slots[row.slot], not row.new_ids
        finish, num_accepted = None, 0
        for index in range(1 + len(draft.token_ids)):
            row.new_ids.append(token_ids[index])
            row.logprobs.append(logprobs[index])
            # The token that this one was drawn after is cached; of a prompt's last one that is known already.
            slot.length += not is_first
            finish = row.end.add(token_ids[index])
            is_foreseen = index < len(draft.token_ids) and draft.token_ids[index] == token_ids[index]
            num_accepted += is_foreseen
            if finish is not None or not is_foreseen:
                break
        num_new = index + 1
        # What was guessed beyond the end of a turn was never put to the test.
        self._drafter.judge(Draft(draft.token_ids[:num_new], draft.num_history), num_accepted)
        self.stats.decoded_tokens += num_new
        self.stats.drafted_tokens += len(draft.token_ids)
        self.stats.accepted_tokens += num_accepted
        row.num_drafted += len(draft.token_ids)
        row.num_accepted += num_accepted
        self._drafter.remember([*row.request.prompt_ids[-HISTORY_N:], *row.new_ids][-HISTORY_N - num_new :], num_new)
        if finish is not None:
            row.future.set_result(row.sample(finish, self.policy_version))


def _make_cache(model: PreTrainedModel, in_flight: int, episode_tokens: int, cache_bytes: int) -> tuple[SlotCache, int]:
    """The cache, and how many slots it has: as many as were asked for and fit, or a ConfigError."""
    config = model.config
    num_heads = config.num_attention_heads
    num_kv_heads = config.num_key_value_heads or num_heads
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // num_heads)
    token_bytes = 2 * config.num_hidden_layers * num_kv_heads * head_dim * model.dtype.itemsize
    slot_bytes = token_bytes * up_to_step(episode_tokens)
    num_slots = min(in_flight, cache_bytes // slot_bytes)
    if num_slots < 1:
        raise ConfigError(
            f"rollout.cache_bytes = {cache_bytes} holds no episode of {episode_tokens} tokens, which takes "
            f"{slot_bytes} bytes; raise rollout.cache_bytes or lower rollout.episode_tokens"
        )
    try:
        cache = SlotCache(
            num_layers=config.num_hidden_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_slots=num_slots,
            slot_tokens=episode_tokens,
            dtype=model.dtype,
            device=model.device,
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"rollout.cache_bytes = {cache_bytes} is more than the GPU has beside the model ({num_slots} episodes, "
            f"{slot_bytes} bytes each); lower it or rollout.in_flight ({str(error).splitlines()[0]})"
        ) from None
    return cache, num_slots
