"""Questions to a trained agent: turns as they happen, then the answer and the sentences that support it.

One `Asker` is shared by the command line, a chat and a server. It decodes in a thread of its own, where all questions
that are being asked share the sampler's batches; it may be asked from any thread or event loop, and blocks none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seekling.errors import InfrastructureError
from seekling.evaluate.confidence import Calibration
from seekling.evaluate.evidence import executed_queries, find_evidence, is_abstention
from seekling.retrieval.library import Library
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.loop_thread import LoopThread
from seekling.rollout.sampler import derive_seed
from seekling.types import Episode, Question, StopReason, Turn

Exchange = tuple[str, str]
"""An earlier question of a conversation, and the text of its answer."""


@dataclass(frozen=True, slots=True)
class Source:
    """A document that the agent looked at on the way to its answer."""

    document_id: str
    title: str
    states_answer: bool
    """A quoted sentence stands in it."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of what came back that supports the answer, or a step on the way to it."""

    text: str
    document_id: str
    title: str
    section: str
    """Heading of the section it stands in; empty when it is in none, or unknown."""
    link: str
    """Path or address of the document; empty when unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent said, and what it is based on."""

    text: str | None
    """As it was said, also where `is_found` is False; None when the agent gave no answer, and `stop_reason` says why.
    """
    is_found: bool
    """The agent gave an answer, it is not "unknown", and confidence reaches the threshold of the run."""
    quotes: tuple[Quote, ...]
    """In the order of the steps; the last supports the answer. Empty when it stands in nothing that came back."""
    sources: tuple[Source, ...]
    searches: tuple[str, ...]
    """Queries that were made, in order."""
    confidence: float | None
    """Probability that the answer is right; None without an answer, or in a run that was not calibrated."""
    stop_reason: StopReason
    question: str
    """As the agent was asked it: a follow-up question is reworded to stand for itself."""
    episode: Episode


class Asker:
    """Asks an agent; a context manager, and `close` ends what is being asked.

    A failing search, sandbox or engine raises an InfrastructureError from `ask`, `stream` and a submitted future; it
    ends that one question, and others go on. Cancelling (the task, the iterator, the future) ends the episode and gives
    its place in the batch to the next question.

    Args:
        roller: policy and environment; used by nobody else meanwhile.
        library: what the environment searches.
        decoding: how actions are drawn.
        num_slots: episodes at once; more questions wait their turn.
        may_wait: whether the environment may wait for something outside of this process.
        seed: of draws, where these are not greedy.
        calibration: of the policy's confidence.
    """

    def __init__(
        self,
        roller: Roller,
        library: Library,
        decoding: Decoding,
        *,
        num_slots: int,
        may_wait: bool,
        seed: int = 0,
        calibration: Calibration | None = None,
    ) -> None:
        self._roller, self._library, self._decoding = roller, library, decoding
        self._seed, self._calibration = seed, calibration
        self._gate = asyncio.Semaphore(num_slots)
        self._thread = LoopThread("asker", num_workers=num_slots if may_wait else 0)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is being asked (its futures are cancelled), and end the thread."""
        self._thread.close()

    async def stream(self, question: str, *, before: Sequence[Exchange] = ()) -> AsyncIterator[Turn | Answer]:
        """Yield each turn as it ends, and the answer last.

        Args:
            question: in words.
            before: the conversation so far.

        Raises:
            InfrastructureError: a search, the sandbox or the sampler failed.
        """
        loop, turns = asyncio.get_running_loop(), asyncio.Queue[Turn | None]()

        def put(turn: Turn | None) -> None:
            loop.call_soon_threadsafe(turns.put_nowait, turn)

        answer = self.submit(question, before=before, on_turn=put)
        answer.add_done_callback(lambda _: put(None))
        try:
            while (turn := await turns.get()) is not None:
                yield turn
            answered = await asyncio.wrap_future(answer)
            yield answered
        finally:
            answer.cancel()

    async def ask(self, question: str, *, before: Sequence[Exchange] = ()) -> Answer:
        """Answer a question; as `stream`, without the turns."""
        return await asyncio.wrap_future(self.submit(question, before=before))

    def submit(
        self,
        question: str,
        *,
        before: Sequence[Exchange] = (),
        on_turn: Callable[[Turn], None] = lambda turn: None,
    ) -> concurrent.futures.Future[Answer]:
        """Begin to answer a question, from any thread.

        Args:
            question: in words.
            before: the conversation so far.
            on_turn: called in the asker's thread with each turn as it ends.

        Returns:
            The answer, when it is there, or an InfrastructureError; cancelling gives it up.
        """
        return self._thread.submit(self._answer(question, on_turn))

    async def _answer(self, question: str, on_turn: Callable[[Turn], None]) -> Answer:
        asked = Question("asked", question, ("",))
        async with self._gate:
            seed = derive_seed(self._seed, *asked.key, 0)
            episode, _ = await self._roller.episode(asked, self._decoding, seed, on_turn)
        if episode.stop_reason is StopReason.INFRA_FAILURE:
            raise InfrastructureError(f"the question could not be answered: {episode.failure}")
        return answer_of(episode, question, self._library, self._calibration)


def answer_of(episode: Episode, question: str, library: Library, calibration: Calibration | None) -> Answer:
    """What a finished episode says, and where that stands.

    Args:
        episode: of the question.
        question: as it was asked.
        library: what was searched.
        calibration: of the policy's confidence.
    """
    confidence = calibration.confidence(episode) if calibration is not None else None
    is_sure = calibration is None or confidence is None or confidence >= calibration.threshold
    evidence = find_evidence(episode, episode.answer or "")
    quotes: tuple[Quote, ...] = ()
    quoted = evidence.document_ids if evidence is not None else ()
    calls = [call for turn in episode.turns for call in turn.calls]
    pages = dict.fromkeys(document_id for call in calls for document_id in call.document_ids)
    return Answer(
        text=episode.answer,
        is_found=episode.answer is not None and not is_abstention(episode.answer) and is_sure,
        quotes=quotes,
        sources=tuple(Source(page, library.title_of(page), page in quoted) for page in pages),
        searches=tuple(query for _, query in executed_queries(episode)),
        confidence=confidence,
        stop_reason=episode.stop_reason,
        question=question,
        episode=episode,
    )


@contextlib.contextmanager
def open_asker(
    run: Path | str, *, policy: str = "", in_flight: int = 16, log: Callable[[str], None] = lambda line: None
) -> Iterator[Asker]:
    """Open a run's agent to be asked many questions at once.

    Args:
        run: a run folder, such as `runs/demo`.
        policy: another than the best; see `trained_policy`.
        in_flight: questions at once; the recipe's rollout.cache_bytes may lower it.
        log: told which policy it is.

    Raises:
        ConfigError: the folder is not a run, or has no such policy.
        IndexMismatchError: its index is missing or damaged.
    """
    from seekling.serve.agent import load_agent  # which needs this module

    with load_agent(run, policy=policy, in_flight=in_flight, log=log) as agent, agent.asker() as asker:
        yield asker
