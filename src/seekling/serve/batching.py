"""Queries of concurrent requests, searched together.

A batch is whatever has come while the one before was searched, so nobody waits for a batch to fill up: one client alone
is served as fast as without batching, many clients share the encoder and the pass over the index. Equal queries of a
batch are searched once, as the episodes of one group often begin alike.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from seekling.serve.requests import busy

_LINGER = 0.05
"""After a batch, so much of its time passes before the next: whoever was just answered can ask again and share it.
Without, many clients fall into two halves that wait for each other, and every batch is half as large."""


class Key(NamedTuple):
    """What decides an answer."""

    query: str
    top_k: int
    with_scores: bool


Search = Callable[[Sequence[Key]], list[bytes]]
"""Answers to different queries, in their order; runs in a thread of its own."""


class Batcher:
    """Collects queries and has them searched, one batch at a time.

    Args:
        search: does the work.
        batch_queries: in one batch, at most.
        waiting_queries: that may wait; a single request may bring more when none wait.
        on_batch: told the size of each batch.
    """

    def __init__(
        self,
        search: Search,
        *,
        batch_queries: int,
        waiting_queries: int,
        on_batch: Callable[[float], None] = lambda size: None,
    ) -> None:
        self._search, self._on_batch = search, on_batch
        self._batch_queries, self._waiting_queries = batch_queries, waiting_queries
        self._waiting: deque[tuple[Key, asyncio.Future[bytes]]] = deque()
        self._has_come = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """Queries whose search has not begun."""
        return len(self._waiting)

    async def ask(self, keys: Sequence[Key]) -> list[bytes]:
        """The answers, in the order of the keys; a RefusedRequestError where too many are waiting to add any."""
        if self._waiting and len(self._waiting) + len(keys) > self._waiting_queries:
            raise busy(f"{len(self._waiting)} queries")
        loop = asyncio.get_running_loop()
        asked = [(key, loop.create_future()) for key in keys]
        self._waiting.extend(asked)
        self._has_come.set()
        await asyncio.gather(*(future for _, future in asked), return_exceptions=True)
        return [future.result() for _, future in asked]

    async def run(self) -> None:
        """Search what comes, until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="search") as executor:
            while True:
                await self._has_come.wait()
                batch = self._next_batch()
                if not batch:
                    self._has_come.clear()
                    continue
                self._on_batch(len(batch))
                began = loop.time()
                await self._answer(batch, executor)
                await asyncio.sleep(_LINGER * (loop.time() - began))

    def _next_batch(self) -> dict[Key, list[asyncio.Future[bytes]]]:
        """Who asks what; those that were cancelled have given up."""
        batch: dict[Key, list[asyncio.Future[bytes]]] = {}
        while self._waiting and len(batch) < self._batch_queries:
            key, future = self._waiting.popleft()
            if not future.cancelled():
                batch.setdefault(key, []).append(future)
        return batch

    async def _answer(self, batch: dict[Key, list[asyncio.Future[bytes]]], executor: ThreadPoolExecutor) -> None:
        work = asyncio.get_running_loop().run_in_executor(executor, self._search, list(batch))
        await asyncio.wait([work])
        error = work.exception()
        if error is not None and len(batch) > 1:
            for key, futures in batch.items():  # one bad query must not fail the others
                await self._answer({key: futures}, executor)
            return
        for place, futures in enumerate(batch.values()):
            for future in futures:
                if error is not None and not future.cancelled():
                    future.set_exception(error)
                elif not future.cancelled():
                    future.set_result(work.result()[place])
