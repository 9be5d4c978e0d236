"""verl (0.9): an agent loop whose episodes are the ones that `seekling train` would roll out, token for token.

    actor_rollout_ref.rollout.agent.agent_loop_config_path=FOLDER/agent_loop.yaml

with the rows and the YAML file of `seekling data parquet`. The loop is `rollout.loop.Roller`: sampled ids are kept,
observations are appended as ids and masked. verl's servers stand behind the `Sampler` protocol.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable
from uuid import uuid4

from transformers import PreTrainedTokenizerBase
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.workers.rollout.llm_server import LLMServerClient

from seekling.errors import ConfigError, InfrastructureError
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sample, SampleRequest, TurnEnd
from seekling.stacks.environment import NAME, metrics_of, open_row
from seekling.types import Trajectory


@register(NAME)
class SearchAgentLoop(AgentLoopBase):
    """One episode of a recipe; agent_loop.yaml may name another run folder than the rows do."""

    def __init__(self, *arguments: object, recipe: str = "", **named: object) -> None:
        super().__init__(*arguments, **named)
        self._recipe = recipe

    async def run(self, sampling_params: dict[str, object], **row: object) -> AgentLoopOutput:
        """Play the row's question.

        Raises:
            ConfigError: the prompt is longer than `rollout.prompt_length`.
            InfrastructureError: search, sandbox or a server of verl failed: the episode has no reward.
        """
        environment, question = await asyncio.to_thread(open_row, row.get("extra_info"), recipe=self._recipe)
        renderer, limits = _renderer_of(self.tokenizer), self.rollout_config
        num_prompt = len(renderer.prompt(environment.env.protocol.prompt(question)))
        if num_prompt > limits.prompt_length:
            raise ConfigError(
                f"the prompt of question {question.key} has {num_prompt} tokens, rollout.prompt_length allows "
                f"{limits.prompt_length}; raise it"
            )
        sampler = _ServerSampler(self.server_manager, sampling_params, self.tokenizer, engine=limits.name)
        decoding = Decoding(environment.recipe.rollout.turn_tokens, num_prompt + limits.response_length)
        episode, trajectory = await Roller(environment.env, sampler, renderer).episode(question, decoding, seed=0)
        if trajectory is None:
            raise InfrastructureError(episode.failure)
        reward = environment.reward(episode, question)
        response = slice(num_prompt, num_prompt + limits.response_length)
        return AgentLoopOutput(
            prompt_ids=trajectory.token_ids_T[:num_prompt].tolist(),
            response_ids=trajectory.token_ids_T[response].tolist(),
            response_mask=trajectory.train_mask_T[response].astype(int).tolist(),
            response_logprobs=trajectory.logprobs_T[response].tolist() if sampler.has_logprobs else None,
            reward_score=reward.total,
            num_turns=2 * len(episode.turns),
            metrics=AgentLoopMetrics(generate_sequences=sampler.busy_s, tool_calls=episode.duration_s - sampler.busy_s),
            extra_fields={"turn_scores": [], "tool_rewards": [], "reward_extra_info": metrics_of(episode, question)},
        )


class _ServerSampler:
    """verl's servers as a `Sampler`, for one episode."""

    policy_version, num_slots, dtype = 0, 1, ""

    def __init__(
        self, servers: LLMServerClient, params: dict[str, object], tokenizer: PreTrainedTokenizerBase, *, engine: str
    ) -> None:
        self._servers, self._params, self._tokenizer, self._engine = servers, params, tokenizer, engine
        self._request_id = uuid4().hex  # the same one leads to the server that has the episode's cache
        self.busy_s, self.has_logprobs = 0.0, True

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt, by several requests where the server ends at what does not end the turn.

        Raises:
            InfrastructureError: a server gave nothing.
        """
        params, ids, logprobs = dict(self._params), list[int](), list[float]()
        if self._engine == "vllm" and request.stops.strings:
            params |= {"stop": list(request.stops.strings), "include_stop_str_in_output": True}
        turn = TurnEnd(request, self._tokenizer, {self._tokenizer.eos_token_id}, request.max_new_tokens)
        while len(ids) < request.max_new_tokens:
            started, num_left = time.perf_counter(), request.max_new_tokens - len(ids)
            output = await self._servers.generate(
                request_id=self._request_id,
                prompt_ids=[*request.prompt_ids, *ids],
                sampling_params={**params, "max_tokens": num_left},
            )
            self.busy_s += time.perf_counter() - started
            self.has_logprobs = self.has_logprobs and output.log_probs is not None
            if not output.token_ids:
                raise InfrastructureError(f"verl's server gave no tokens ({output.stop_reason})")
            new_logprobs = output.log_probs or [0.0] * len(output.token_ids)
            for token_id, logprob in zip(output.token_ids, new_logprobs, strict=True):
                ids.append(token_id)
                logprobs.append(logprob)
                finish = turn.add(token_id)
                if finish is not None:
                    return Sample(tuple(ids), tuple(logprobs), finish, 0)
            text = self._tokenizer.decode(output.token_ids)
            if len(output.token_ids) < num_left and not any(stop in text for stop in request.stops.strings):
                return Sample(tuple(ids), tuple(logprobs), "eos", 0)  # a token that ends turns in the server's settings
        return Sample(tuple(ids), tuple(logprobs), "length", 0)

    # Caches and weights are verl's.
    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None: ...
    def close_session(self, session: int) -> None: ...
    def release_caches(self) -> None: ...
    def close(self) -> None: ...


@functools.lru_cache(maxsize=2)
def _renderer_of(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(tokenizer)
