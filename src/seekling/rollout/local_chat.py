"""A model in this process behind messages: what a judge asks, and what our own server serves.

The sampler runs in a thread of its own, so that many may ask at once from wherever they are; it batches them. A reply
can be handed out while it grows: it is then sampled a few tokens at a time in one session, which gives the same tokens
as sampling it at once, since a draw depends on seed and position alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, Unpack

from seekling.config import EndpointConfig
from seekling.env.protocol.stopping import StopRule
from seekling.errors import InfrastructureError
from seekling.rollout.chat import AskSettings, ChatReply
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sample, Sampler, SampleRequest
from seekling.types import Message

_Result = TypeVar("_Result")

STREAM_TOKENS = 8
"""Tokens between two pieces of a growing reply."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One reply to be made."""

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these."""
    keeps_stop: bool = False
    """It ends after it."""


class LoopThread:
    """An event loop in a thread of its own, so that a sampler can be asked from any thread or loop.

    It has `num_workers` threads for `asyncio.to_thread`; 0 leaves the loop's own few.
    """

    def __init__(self, name: str, *, num_workers: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        if num_workers:
            self._loop.set_default_executor(ThreadPoolExecutor(num_workers))
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[object, object, _Result]) -> concurrent.futures.Future[_Result]:
        """Begin a coroutine in the thread; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Give up what is running, and end the thread. May be called twice."""
        if not self._loop.is_closed():
            self.submit(self._cancel_all()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class LocalChat:
    """A `ChatModel` over a sampler that nobody else uses meanwhile. A context manager; `close` ends its thread.

    Verdicts are kept under the name; prompt and reply together have at most `context_tokens`.
    """

    def __init__(self, sampler: Sampler, renderer: Renderer, *, name: str, context_tokens: int) -> None:
        self.endpoint = EndpointConfig(url="", model=name)
        self.context_tokens = context_tokens
        self._sampler, self._renderer = sampler, renderer
        self._sessions = itertools.count(1)
        self._thread = LoopThread("local-chat")

    def __enter__(self) -> LocalChat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is being sampled, and end the thread."""
        self._thread.close()

    def count_prompt_tokens(self, messages: Sequence[Message]) -> concurrent.futures.Future[int]:
        """Tokens of the messages with what the chat template adds."""

        async def count() -> int:  # in the one thread that uses the tokenizer: it refuses two at once
            return len(self._renderer.prompt(messages))

        return self._thread.submit(count())

    def ask(self, messages: Sequence[Message], **settings: Unpack[AskSettings]) -> ChatReply:
        """Get one reply, as from `ChatClient.ask`.

        Raises:
            InfrastructureError: the messages do not fit into the context, or the sampler failed.
        """
        temperature, top_p = settings.get("temperature", 0.0), settings.get("top_p", 1.0)
        request = ChatRequest(
            tuple(messages), settings["max_tokens"], temperature, top_p, seed=settings.get("seed") or 0
        )
        return self.submit(request).result()

    def submit(
        self, request: ChatRequest, on_text: Callable[[str], None] | None = None
    ) -> concurrent.futures.Future[ChatReply]:
        """Begin a reply; cancelling the future gives it up, and it may end as an InfrastructureError.

        `on_text` is called in the sampler's thread with each new piece of the text; the pieces add up to the reply.
        """
        return self._thread.submit(self._reply(request, on_text))

    async def _reply(self, request: ChatRequest, on_text: Callable[[str], None] | None) -> ChatReply:
        session = next(self._sessions)
        prompt_ids = self._renderer.prompt(request.messages)
        if len(prompt_ids) >= self.context_tokens:
            raise InfrastructureError(
                f"the messages are {len(prompt_ids)} tokens long; prompt and reply together have {self.context_tokens}"
            )
        limit = min(request.max_tokens, self.context_tokens - len(prompt_ids))
        growing = _Growing(request.stop, keeps_stop=request.keeps_stop)
        token_ids: tuple[int, ...] = ()
        sample: Sample | None = None
        try:
            while sample is None or (sample.finish == "length" and len(token_ids) < limit and not growing.is_stopped):
                left = limit - len(token_ids)
                sample = await self._sampler.sample(
                    SampleRequest(
                        session=session,
                        prompt_ids=prompt_ids + token_ids,
                        max_new_tokens=left if on_text is None else min(STREAM_TOKENS, left),
                        stops=StopRule(request.stop),
                        temperature=request.temperature,
                        top_p=request.top_p,
                        seed=request.seed,
                    )
                )
                if not sample.token_ids:
                    break
                token_ids += sample.token_ids
                new = growing.grow(self._renderer.decode(token_ids))
                if on_text is not None and new:
                    on_text(new)
        finally:
            self._sampler.close_session(session)
        rest = growing.finish()
        if on_text is not None and rest:
            on_text(rest)
        is_cut = sample.finish == "length" and not growing.is_stopped
        return ChatReply(growing.text, is_cut, len(prompt_ids), len(token_ids))


class _Growing:
    """A text that grows, and what of it may be shown: nothing that may still change or turn out to be a stop string."""

    def __init__(self, stop: Sequence[str], *, keeps_stop: bool) -> None:
        self._keeps_stop = keeps_stop
        self._stop, self._held = tuple(stop), max((len(each) - 1 for each in stop), default=0)
        self.text = ""
        self.is_stopped = False
        self._num_shown = 0

    def grow(self, text: str) -> str:
        """Take the whole text so far; give back the new part that is safe to show."""
        ends = [(text.find(each), each) for each in self._stop if each in text]
        self.is_stopped = bool(ends)
        if ends:
            start, stop = min(ends)
            text = text[: start + len(stop) * self._keeps_stop]
        self.text = text
        # The last character may be half of one, and the tail the beginning of a stop string.
        safe = len(self.text) if ends else len(self.text.rstrip("\ufffd")) - self._held
        return self._show(max(safe, self._num_shown))

    def finish(self) -> str:
        """What was held back."""
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        new = self.text[self._num_shown : end]
        self._num_shown = end
        return new
