"""Where questions to a served agent come in, over HTTP or MCP: as many as there is room for, each within its time.

Every answer is kept with its episode before it is handed out, under an id that feedback names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from seekling.config import ServeConfig
from seekling.errors import SeeklingError
from seekling.retrieval.library import Library
from seekling.serve.agent_replies import Feedback
from seekling.serve.asking import Answer, Asker, Exchange, QuestionTooLongError
from seekling.serve.episodes import Episodes
from seekling.serve.metrics import AgentMetrics
from seekling.serve.requests import RefusedRequestError, busy
from seekling.types import Json, Turn

_LOG = logging.getLogger(__name__)
_MAX_EXCHANGES = 8
"""Of a conversation, the newest that are told; each text is cut to the length of a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was let in."""

    question: str
    before: tuple[Exchange, ...]
    key: str
    """Name of the key that asks; empty without keys."""
    id: str
    """Of the answer."""
    about: dict[str, Json]
    """What the log says of the request grows here."""


class Desk:
    """Takes questions and feedback; `asker` answers, `library` is what it searches, `name` the agent's."""

    def __init__(
        self,
        asker: Asker,
        library: Library,
        episodes: Episodes,
        config: ServeConfig,
        metrics: AgentMetrics,
        *,
        name: str,
    ) -> None:
        self.library, self.config, self.metrics, self.name = library, config, metrics, name
        self._asker, self._episodes = asker, episodes
        self._num_asked = 0
        metrics.num_open.set_function(lambda: self._num_asked)

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Room for one question, as long as the block lasts; refused (503) where as many as may wait are waiting."""
        if self._num_asked >= self.config.in_flight + self.config.waiting_questions:
            raise busy(f"{self._num_asked - self.config.in_flight} questions")
        self._num_asked += 1
        try:
            yield
        finally:
            self._num_asked -= 1

    def let_in(self, question: str, before: Sequence[Exchange], key: str, about: dict[str, Json]) -> Asked:
        """Check a question; a RefusedRequestError where it is empty or too long."""
        limit = self.config.question_chars
        if not question.strip():
            raise RefusedRequestError(400, "the last message of the user is empty; ask something")
        if len(question) > limit:
            what = f"the question has {len(question)} characters; this server takes {limit}: shorten it"
            raise RefusedRequestError(400, what, "context_length_exceeded")
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        about["answer"] = answer_id
        if self.config.log_questions:
            about["question"] = question
        recent = tuple((asked[:limit], said[:limit]) for asked, said in before[-_MAX_EXCHANGES:])
        return Asked(question.strip(), recent, key, answer_id, about)

    async def stream(self, asked: Asked) -> AsyncGenerator[Turn | Answer, None]:
        """The turns as they happen, then the answer, which is kept by then. Closing it gives the question up.

        Raises:
            RefusedRequestError: it took too long (504), or the question leaves no room for an answer (400).
            SeeklingError: the search, the sandbox or the sampler failed.
        """
        began = time.monotonic()
        ends = asyncio.get_running_loop().time() + self.config.timeout_s
        outcome = "cancelled"
        turns = self._asker.stream(asked.question, before=asked.before)
        async with contextlib.aclosing(turns) as said:
            try:
                async with asyncio.timeout_at(ends):
                    await self.documents()
                while True:
                    async with asyncio.timeout_at(ends):
                        each = await anext(said)
                    if isinstance(each, Answer):
                        break
                    yield each
                outcome = "found" if each.is_found else "not_found"
                await asyncio.to_thread(self._episodes.keep, asked.id, asked.key, each)
                asked.about.update(turns=len(each.episode.turns), searches=each.episode.num_searches)
                yield each
            except TimeoutError:
                outcome = "timeout"
                what = f"there was no answer within {self.config.timeout_s:g} s"
                raise RefusedRequestError(504, what, "timeout") from None
            except QuestionTooLongError as error:
                outcome = "refused"
                raise RefusedRequestError(400, str(error), "context_length_exceeded") from None
            except SeeklingError as error:
                outcome, asked.about["failure"] = "failed", str(error)
                raise
            finally:
                asked.about["outcome"] = outcome
                self.metrics.questions.labels(outcome).inc()
                self.metrics.seconds.observe(time.monotonic() - began)

    async def documents(self) -> Library:
        """What is searched: the index as it stands now, also after `seekling index --update`."""
        if self.library.is_replaced():
            try:
                await asyncio.to_thread(self.library.refresh)
            except SeeklingError as error:
                _LOG.error("the new index is not used, the one that was opened before is: %s", error)
        return self.library

    async def ask(self, asked: Asked) -> Answer:
        """The answer alone; raises as `stream`."""
        async with contextlib.aclosing(self.stream(asked)) as said:
            async for each in said:
                if isinstance(each, Answer):
                    return each
        raise AssertionError("an episode ends with an answer")

    async def take_feedback(self, feedback: Feedback, key: str) -> None:
        """Keep what somebody said of an answer that this key got; it is on disk when this returns."""
        if len(feedback.correction) > self.config.question_chars:
            what = f"the correction has {len(feedback.correction)} characters; this server takes "
            raise RefusedRequestError(400, f"{what}{self.config.question_chars}: give the answer alone")
        is_kept = await asyncio.to_thread(
            self._episodes.add_feedback, feedback.id, key, feedback.thumbs, feedback.correction.strip()
        )
        if not is_kept:
            raise RefusedRequestError(404, f"there is no answer {feedback.id!r:.80} of yours here", "answer_not_found")
        self.metrics.feedback.labels(feedback.thumbs or "correction").inc()
