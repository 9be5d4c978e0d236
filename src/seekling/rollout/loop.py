"""Policy x environment -> episodes: many in flight, token in, token out.

An episode is recorded the same way for training and evaluation. What the policy sampled is kept as ids; what the
environment said is appended as ids with a false train mask. This is the one place where an infrastructure failure is
caught: it ends its episode, is counted, and is left out of the group. No rewards here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, ParamSpec, TypeVar

from seekling.env.environment import SearchEnv, Session, StepResult
from seekling.errors import InfrastructureError
from seekling.rollout.render import Recorder, Renderer
from seekling.rollout.sampler import ACCEPTED, DRAFTED, Sampler, SampleRequest, derive_seed
from seekling.types import Episode, EpisodeGroup, Message, Question, StopReason, Trajectory, Turn

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How actions are drawn."""

    turn_tokens: int
    """New tokens per generation, at most."""
    episode_tokens: int
    """Prompt, actions and observations together, at most."""
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    temperature_range: tuple[float, float] | None = None
    """Each episode draws its own temperature between these, evenly, from its seed."""
    thought_tokens: int = 0
    """New tokens inside thoughts per generation, at most; 0: as many as `turn_tokens`."""

    def temperature_of(self, seed: int) -> float:
        """Temperature of the episode with this seed."""
        if self.temperature_range is None:
            return self.temperature
        low, high = self.temperature_range
        return low + (high - low) * derive_seed(seed, "temperature") / 2**63


@dataclass(slots=True)
class Run:
    """The growing state of one episode."""

    question: Question
    decoding: Decoding
    seed: int
    prompt: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    stop_reason: StopReason | None = None
    failure: str = ""
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def temperature(self) -> float:
        """That its actions are drawn with."""
        return self.decoding.temperature_of(self.seed)

    def add(self, result: StepResult, turn: Turn) -> None:
        """Take what a step led to, its turn with counts."""
        self.turns.append(turn)
        self.stop_reason, self.answer, self.failure = result.stop_reason, result.answer, result.failure

    def fail(self, error: InfrastructureError) -> None:
        """What the episode relies on is broken, which ends it."""
        self.stop_reason, self.failure = StopReason.INFRA_FAILURE, str(error)

    def episode(self, protocol: str, *, usage: Mapping[str, float], policy_version: int = 0) -> Episode:
        """The finished episode."""
        assert self.stop_reason is not None
        return Episode(
            question_id=self.question.id,
            source=self.question.source,
            protocol=protocol,
            prompt=self.prompt,
            turns=tuple(self.turns),
            answer=self.answer,
            stop_reason=self.stop_reason,
            failure=self.failure,
            policy_version=policy_version,
            seed=self.seed,
            temperature=self.temperature,
            duration_s=time.perf_counter() - self.started_s,
            usage=usage,
        )


class Roller:
    """Rolls questions out through an environment with a sampler; so many episodes run at once as it has slots.

    Where the environment may wait, its work runs in threads, one for each episode at most, and decoding goes on. An
    index in this process is searched between two decode steps instead, so that batches, and with them a seed's episodes
    in bfloat16, do not hang on timing. A search that takes as long as a decode step is better asked of a search server.
    """

    def __init__(self, env: SearchEnv, sampler: Sampler, renderer: Renderer) -> None:
        self._env, self._sampler, self._renderer = env, sampler, renderer
        self._num_sessions = 0

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        group_size: int = 1,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = lambda group: None,
        coming: Sequence[tuple[Sequence[Question], int]] = (),
    ) -> list[EpisodeGroup]:
        """Produce `group_size` episodes for each of P questions.

        The same seed, weights and questions give the same episodes; in bfloat16 not where the environment may wait,
        since batches and with them some draws then hang on timing.

        Returns:
            P groups in the order of the questions; failed episodes are in `failed`. `on_group` gets each as it ends.
            `coming` are the questions and seeds of the next rollouts, which samplers in other processes may begin.
        """

        async def groups() -> list[EpisodeGroup]:
            gate = self.open_gate()

            async def group(question: Question, first: int) -> EpisodeGroup:
                made = await self.group(question, decoding, group_size, seed, first=first, gate=gate)
                on_group(made)
                return made

            # A question may stand twice in a step, at the seam of two epochs; its second group has seeds of its own.
            return list(await asyncio.gather(*map(group, questions, first_numbers(questions, group_size))))

        return asyncio.run(groups())

    def open_gate(self) -> asyncio.Semaphore:
        """Make an event loop ready, and what lets as many episodes through at once as the sampler has slots."""
        if self._env.may_wait:
            # The loop's own pool has few threads on a small machine, however many episodes wait.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._sampler.num_slots))
        return asyncio.Semaphore(self._sampler.num_slots)

    async def group(
        self,
        question: Question,
        decoding: Decoding,
        group_size: int,
        seed: int,
        *,
        first: int,
        gate: asyncio.Semaphore,
    ) -> EpisodeGroup:
        """Produce the episodes of one question; many groups may be awaited at once.

        `seed` is the rollout's, `first` the number of the group's first episode among those of its question, and `gate`
        that of `open_gate`, the same for all groups.
        """

        async def episode(number: int) -> tuple[Episode, Trajectory | None]:
            async with gate:
                return await self.episode(question, decoding, derive_seed(seed, *question.key, number))

        results = await asyncio.gather(*(episode(first + number) for number in range(group_size)))
        kept = [(e, t) for e, t in results if t is not None]
        failed = tuple(e for e, t in results if t is None)
        return EpisodeGroup(question, tuple(e for e, _ in kept), tuple(t for _, t in kept), failed)

    def over(self, env: SearchEnv) -> Roller:
        """What rolls out through another environment with the same sampler."""
        return self if env is self._env else Roller(env, self._sampler, self._renderer)

    @property
    def statistics(self) -> Mapping[str, float]:
        """Of the last rollout, for the step's metrics, where others than this process made it."""
        return {}

    async def episode(
        self, question: Question, decoding: Decoding, seed: int, on_turn: Callable[[Turn], None] = lambda turn: None
    ) -> tuple[Episode, Trajectory | None]:
        """Produce one episode, and its trajectory unless an infrastructure failure ended it.

        Many may be awaited at once in one event loop, and share the sampler's batches. `on_turn` gets each turn as it
        ends.
        """
        self._num_sessions += 1
        number, run, usage = self._num_sessions, Run(question, decoding, seed), Counter[str]()
        recorder, session = Recorder(), None
        try:
            session = await self._in_env(self._env.start, question)
            run.prompt = tuple(session.prompt)
            recorder.append_observation(self._renderer.prompt(session.prompt))
            while run.stop_reason is None:
                on_turn(await self._turn(run, session, recorder, number, usage))
        except InfrastructureError as error:
            run.fail(error)
        finally:
            self._sampler.close_session(number)
            if session is not None:
                session.close()
        oldest = min(recorder.policy_versions, default=self._sampler.policy_version)
        episode = run.episode(
            self._env.protocol.name, usage=dict(usage) if usage[DRAFTED] else {}, policy_version=oldest
        )
        if run.stop_reason is StopReason.INFRA_FAILURE:
            return episode, None
        return episode, recorder.finish(temperature=run.temperature, top_p=decoding.top_p, min_p=decoding.min_p)

    async def _in_env(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result:
        """The environment's work, in a thread where it may wait."""
        if self._env.may_wait:
            return await asyncio.to_thread(work, *args, **named)
        return work(*args, **named)

    async def _turn(self, run: Run, session: Session, recorder: Recorder, number: int, usage: Counter[str]) -> Turn:
        """Sample, act and append once."""
        renderer, protocol, decoding = self._renderer, self._env.protocol, run.decoding
        sample = await self._sampler.sample(
            SampleRequest(
                session=number,
                prompt_ids=tuple(recorder.token_ids),
                max_new_tokens=min(decoding.turn_tokens, decoding.episode_tokens - len(recorder.token_ids)),
                stops=protocol.stops,
                temperature=run.temperature,
                top_p=decoding.top_p,
                min_p=decoding.min_p,
                seed=derive_seed(run.seed, len(run.turns)),
                thought_tokens=decoding.thought_tokens,
            )
        )
        recorder.append_action(sample.token_ids, sample.logprobs, policy_version=sample.policy_version)
        usage.update({DRAFTED: sample.num_drafted, ACCEPTED: sample.num_accepted})
        finish: Literal["stop", "length"] = "length" if sample.finish == "length" else "stop"
        result = await self._in_env(session.step, renderer.decode(sample.token_ids), finish=finish)
        observed: tuple[int, ...] = ()
        if not result.is_over:
            observed = renderer.observation(result.turn.observation, protocol, ended=sample.finish == "eos")
            recorder.append_observation(observed)
        turn = replace(
            result.turn,
            num_action_tokens=len(sample.token_ids),
            num_observation_tokens=len(observed),
            action_lengths=renderer.token_lengths(sample.token_ids),
            action_logprobs=tuple(round(float(value), 2) + 0.0 for value in sample.logprobs),
        )
        run.add(result, turn)
        return turn


def first_numbers(questions: Sequence[Question], group_size: int) -> list[int]:
    """For each question of a rollout, the number of its group's first episode among all of that question."""
    seen: Counter[tuple[str, str]] = Counter()
    firsts = []
    for question in questions:
        firsts.append(group_size * seen[question.key])
        seen[question.key] += 1
    return firsts
