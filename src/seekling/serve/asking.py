"""Questions to a trained agent: turns as they happen, then the answer and the sentences that support it.

One `Asker` is shared by the command line, a chat and a server. It decodes in a thread of its own, where all questions
that are being asked share the sampler's batches; it may be asked from any thread or event loop, and blocks none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.errors import DataError, InfrastructureError
from seekling.evaluate.confidence import Calibration
from seekling.evaluate.evidence import executed_queries, is_abstention
from seekling.retrieval.library import Library
from seekling.rollout.local_chat import LoopThread
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.sampler import derive_seed
from seekling.serve.conversation import Exchange as Exchange
from seekling.serve.conversation import stand_alone
from seekling.serve.quotes import Quote as Quote  # part of an `Answer`
from seekling.serve.quotes import find_quotes
from seekling.types import Document, Episode, Question, StopReason, Turn


class QuestionTooLongError(DataError):
    """A question that leaves the policy no room to write anything."""


@dataclass(frozen=True, slots=True)
class Source:
    """A document that the agent looked at on the way to its answer."""

    document_id: str
    title: str
    states_answer: bool
    """A quoted sentence stands in it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent said, and what it is based on."""

    text: str | None
    """As it was said, also where `is_found` is False; None without an answer, and `stop_reason` says why."""
    is_found: bool
    """The agent gave an answer, it is not "unknown", and confidence reaches the threshold of the run, if it has one."""
    quotes: tuple[Quote, ...]
    """In the order of the steps; the last supports the answer. Empty when it stands in nothing that came back."""
    sources: tuple[Source, ...]
    searches: tuple[str, ...]
    """Queries that were made, in order."""
    confidence: float | None
    """Probability that the answer is right; None without an answer, or in a run that was not calibrated."""
    promise: float | None
    """Share of right answers that the run promises of those that are found; None where it can promise nothing."""
    threshold: float | None
    """Confidence that a found answer has at least; None where nothing is promised."""
    stop_reason: StopReason
    question: str
    """As the agent was asked it: a follow-up question is reworded to stand for itself."""
    episode: Episode
    num_tokens: int = 0
    """Of the episode: the prompt, what the policy wrote and what came back, each once."""


class Asker:
    """Asks an agent; a context manager, and `close` ends what is being asked.

    A failing search, sandbox or engine raises an InfrastructureError for that one question, one that is too long for
    the policy a QuestionTooLongError. Cancelling (the task, the
    iterator, the future) ends the episode and gives its place in the batch to the next question.

    Args:
        roller: policy and environment; used by nobody else meanwhile.
        library: what the environment searches.
        decoding: how actions are drawn.
        num_slots: episodes at once; more questions wait their turn.
        may_wait: whether the environment may wait for something outside of this process.
        seed: of draws, where these are not greedy.
        calibration: of the policy's confidence.
        folder: that the corpus was read from; see `answer_of`.
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
        folder: str = "",
    ) -> None:
        self._roller, self._library, self._decoding = roller, library, decoding
        self._seed, self._calibration, self._folder = seed, calibration, folder
        self._gate = asyncio.Semaphore(num_slots)
        self._thread = LoopThread("asker", num_workers=num_slots if may_wait else 0)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is being asked (its futures are cancelled), and end the thread."""
        self._thread.close()

    async def stream(self, question: str, *, before: Sequence[Exchange] = ()) -> AsyncGenerator[Turn | Answer, None]:
        """Yield each turn as it ends, and the answer last; see `submit`."""
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
        """Begin to answer a question that follows a conversation, from any thread.

        `on_turn` is called in the asker's thread with each turn as it ends.
        """
        return self._thread.submit(self._answer(stand_alone(question, before), on_turn))

    async def _answer(self, question: str, on_turn: Callable[[Turn], None]) -> Answer:
        asked = Question("asked", question, ("",))
        async with self._gate:
            seed = derive_seed(self._seed, *asked.key, 0)
            episode, trajectory = await self._roller.episode(asked, self._decoding, seed, on_turn)
        if trajectory is None:
            raise InfrastructureError(f"the question could not be answered: {episode.failure}")
        num_tokens, room = len(trajectory.token_ids_T), self._decoding.episode_tokens
        if num_tokens >= room and not any(turn.num_action_tokens for turn in episode.turns):
            raise QuestionTooLongError(
                f"the question and what the agent is told with it have {num_tokens} tokens; the agent reads and writes "
                f"{room} in all (rollout.episode_tokens): shorten the question"
            )
        # In a thread: pages may be behind a server, and long ones take longer than a decode step.
        answer = await asyncio.to_thread(answer_of, episode, question, self._library, self._calibration, self._folder)
        return replace(answer, num_tokens=num_tokens)


def answer_of(
    episode: Episode, question: str, library: Library, calibration: Calibration | None, folder: str = ""
) -> Answer:
    """What a finished episode says of its question, and where that stands in the library that was searched.

    Links lead to files in `folder`, which the corpus was read from; it is empty when unknown.
    """
    confidence = calibration.confidence(episode) if calibration is not None else None
    is_sure = calibration is None or calibration.shows(confidence)
    quotes = find_quotes(episode, question, library.find, library.title_of, functools.partial(_link_of, folder))
    quoted = {quote.document_id for quote in quotes}
    calls = [call for turn in episode.turns for call in turn.calls]
    pages = dict.fromkeys(document_id for call in calls for document_id in call.document_ids)
    return Answer(
        text=episode.answer,
        is_found=episode.answer is not None and not is_abstention(episode.answer) and is_sure,
        quotes=quotes,
        sources=tuple(Source(page, library.title_of(page), page in quoted) for page in pages),
        searches=tuple(query for _, query in executed_queries(episode)),
        confidence=confidence,
        promise=calibration.promise if calibration is not None else None,
        threshold=calibration.threshold if calibration is not None and calibration.promise is not None else None,
        stop_reason=episode.stop_reason,
        question=question,
        episode=episode,
    )


def _link_of(folder: str, document: Document) -> str:
    """Address of a document, or the path of its file where this exists."""
    address = document.metadata.get("url", "")
    if address or "file" not in document.metadata:
        return address
    path = Path(folder) / document.metadata["file"]
    return str(path) if folder and path.is_file() else document.metadata["file"]
