"""A served chat model x environment -> episodes, so that any model can be evaluated under the rules of the small one.

Works on texts, not tokens: what comes of it can be read and scored, not trained on. Each turn is an assistant message
and each observation a user message, also in the tags protocol, where a local policy goes on inside its own turn: an
endpoint cannot continue a message. No stop strings are sent (some models refuse them, others take the tag off); a reply
is cut here after the first one outside of its thoughts, and all tokens of it count, since they were paid for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from seekling.env.environment import SearchEnv, Session
from seekling.env.protocol.stopping import cut_after_stop
from seekling.errors import ConfigError, InfrastructureError
from seekling.rollout.chat import ChatModel, ChatReply
from seekling.rollout.loop import Decoding
from seekling.rollout.sampler import derive_seed
from seekling.types import Episode, EpisodeGroup, Message, Question, StopReason, Turn


@dataclass(frozen=True, slots=True)
class Price:
    """What an endpoint charges."""

    usd_per_million_prompt_tokens: float = 0.0
    usd_per_million_completion_tokens: float = 0.0

    def cost_usd(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Dollars for so many tokens."""
        prompt = prompt_tokens * self.usd_per_million_prompt_tokens
        return (prompt + completion_tokens * self.usd_per_million_completion_tokens) / 1e6


class ChatRoller:
    """Rolls questions out through an environment with a served model.

    Args:
        env: what the agent may do.
        client: answers messages.
        in_flight: episodes running at once.
        price: to add up dollars; None counts tokens only.
    """

    def __init__(self, env: SearchEnv, client: ChatModel, *, in_flight: int = 8, price: Price | None = None) -> None:
        self._env, self._client, self._in_flight, self._price = env, client, in_flight, price

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = lambda group: None,
    ) -> list[EpisodeGroup]:
        """Produce one episode for each question.

        Args:
            questions: P of them.
            decoding: temperature and budgets, in the server's tokens.
            seed: sent along when sampling; servers promise little about it.
            on_group: called in this thread as each episode ends, in order of ending.

        Returns:
            P groups without trajectories, in the order of the questions; failed episodes are in `failed`.

        Raises:
            ConfigError: min-p is asked for, or the endpoint refuses us altogether; what was answered before went to
                `on_group`.
        """
        if decoding.min_p:
            raise ConfigError(
                f"min_p = {decoding.min_p:g}, which chat completions do not have; leave it 0, and give it among the "
                "endpoint's extra fields where the server knows it"
            )
        groups: dict[int, EpisodeGroup] = {}
        pool = ThreadPoolExecutor(max_workers=self._in_flight)
        futures = {
            pool.submit(self._episode, question, decoding, derive_seed(seed, *question.key, 0)): number
            for number, question in enumerate(questions)
        }

        def note(future: Future[Episode]) -> None:
            number, episode = futures[future], future.result()
            is_failed = episode.stop_reason is StopReason.INFRA_FAILURE
            kept, failed = ((), (episode,)) if is_failed else ((episode,), ())
            groups[number] = EpisodeGroup(questions[number], kept, (), failed)
            on_group(groups[number])

        try:
            for future in as_completed(futures):
                note(future)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            # When one ended all, those that came to their own end meanwhile are kept too: they were paid for.
            for future, number in futures.items():
                if number not in groups and not future.cancelled() and future.exception() is None:
                    note(future)
        return [groups[number] for number in range(len(questions))]

    def _episode(self, question: Question, decoding: Decoding, seed: int) -> Episode:
        started = time.perf_counter()
        run = _Run()
        try:
            with self._env.start(question) as session:
                run.prompt = list(session.prompt)
                self._turns(run, session, decoding, seed)
        except InfrastructureError as error:
            run.stop_reason, run.failure = StopReason.INFRA_FAILURE, str(error)
        return Episode(
            question_id=question.id,
            source=question.source,
            protocol=self._env.protocol.name,
            prompt=tuple(run.prompt),
            turns=tuple(run.turns),
            answer=run.answer,
            stop_reason=run.stop_reason,
            failure=run.failure,
            seed=seed,
            temperature=decoding.temperature_of(seed),
            duration_s=time.perf_counter() - started,
            usage=self._usage(run),
        )

    def _usage(self, run: _Run) -> dict[str, float]:
        """What the server reported. Where it does not count tokens nothing is known about them, and no price either."""
        usage = {"num_requests": float(run.num_requests)}
        if run.is_counted:
            usage |= {"prompt_tokens": float(run.prompt_tokens), "completion_tokens": float(run.completion_tokens)}
            if self._price is not None:
                usage["cost_usd"] = self._price.cost_usd(run.prompt_tokens, run.completion_tokens)
        return usage

    def _counted(self, messages: Sequence[Message], reply: ChatReply) -> tuple[int, int]:
        """Tokens of a request and of its reply, for the budget; our own count where the server has none."""
        if reply.is_counted:
            return reply.prompt_tokens, reply.completion_tokens
        count = self._env.budget.count_tokens
        return sum(count(message.content) for message in messages), count(reply.text)

    def _turns(self, run: _Run, session: Session, decoding: Decoding, seed: int) -> None:
        messages = list(run.prompt)
        num_tokens, temperature = 0, decoding.temperature_of(seed)
        while True:
            left = decoding.episode_tokens - num_tokens
            if run.turns and left <= 0:
                run.stop_reason = StopReason.MAX_TOKENS
                return
            reply = self._client.ask(
                messages,
                max_tokens=max(1, min(decoding.turn_tokens, left)),
                temperature=temperature,
                top_p=decoding.top_p,
                seed=derive_seed(seed, len(run.turns)) if temperature > 0 else None,
            )
            prompt_tokens, completion_tokens = self._counted(messages, reply)
            run.note(reply)
            num_tokens = prompt_tokens + completion_tokens
            text, is_complete = cut_after_stop(reply.text, self._env.protocol.stops)
            result = session.step(text, finish="length" if reply.is_cut and not is_complete else "stop")
            observed = result.turn.observation
            run.turns.append(
                replace(
                    result.turn,
                    num_action_tokens=completion_tokens,
                    num_observation_tokens=self._env.budget.count_tokens(observed) if observed else 0,
                )
            )
            if result.is_over:
                assert result.stop_reason is not None
                run.answer, run.stop_reason, run.failure = result.answer, result.stop_reason, result.failure
                return
            messages += [Message("assistant", text), Message("user", observed.strip())]


@dataclass(slots=True)
class _Run:
    """The growing state of one episode."""

    prompt: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    stop_reason: StopReason = StopReason.MAX_TOKENS
    failure: str = ""
    num_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_counted: bool = True

    def note(self, reply: ChatReply) -> None:
        self.num_requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.is_counted = self.is_counted and reply.is_counted
