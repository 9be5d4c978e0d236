"""Queries of concurrent requests, searched together.

A batch is whatever has come while the one before was searched, so nobody waits for a batch to fill up: one client alone
is served as fast as without batching, many clients share the encoder and the pass over the index. Equal queries that
wait at the same time are searched once, as the episodes of one group often begin alike.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from seekling.serve.admission import busy

_LINGER = 0.05
"""After a batch, so much of its time passes before the next: whoever was just answered can ask again and share it.
Without, many clients fall into two halves that wait for each other, and every batch is half as large."""


class Key(NamedTuple):
    """What decides an answer."""

    query: str
    top_k: int
    with_scores: bool


Search = Callable[[Sequence[Key]], list[bytes]]
"""Answers to queries, in their order; runs in a thread of its own."""


@dataclass(slots=True, eq=False)
class _Job:
    key: Key
    answer: asyncio.Future[bytes]
    num_asking: int = 0
    """Requests that still want the answer."""


class Batcher:
    """Collects queries and has them searched, one batch at a time.

    Args:
        search: does the work; only ever called once at a time.
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
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._search, self._on_batch = search, on_batch
        self._batch_queries, self._waiting_queries = batch_queries, waiting_queries
        self._waiting: deque[_Job] = deque()
        self._jobs: dict[Key, _Job] = {}
        self._has_come = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """Queries whose search has not begun."""
        return len(self._waiting)

    async def ask(self, keys: Sequence[Key]) -> list[bytes]:
        """The answers, in the order of the keys.

        Raises:
            RefusedRequestError: too many queries are waiting; none of these was added.
        """
        new = [key for key in dict.fromkeys(keys) if key not in self._jobs]
        if self._waiting and len(self._waiting) + len(new) > self._waiting_queries:
            raise busy(f"{len(self._waiting)} queries")
        loop = asyncio.get_running_loop()
        for key in new:
            self._jobs[key] = job = _Job(key, loop.create_future())
            self._waiting.append(job)
        jobs = [self._jobs[key] for key in keys]
        for job in jobs:
            job.num_asking += 1
        self._has_come.set()
        try:
            # Unlike awaiting a future, waiting for it does not cancel it for the others who want it.
            await asyncio.wait([job.answer for job in jobs])
        finally:
            for job in jobs:
                job.num_asking -= 1
        return [job.answer.result() for job in jobs]

    async def run(self) -> None:
        """Search what comes, until cancelled."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="search") as executor:
            while True:
                await self._has_come.wait()
                batch = self._next_batch()
                if batch:
                    self._on_batch(len(batch))
                    began = asyncio.get_running_loop().time()
                    await self._answer(batch, executor)
                    await asyncio.sleep(_LINGER * (asyncio.get_running_loop().time() - began))
                else:
                    self._has_come.clear()

    def _next_batch(self) -> list[_Job]:
        batch: list[_Job] = []
        while self._waiting and len(batch) < self._batch_queries:
            job = self._waiting.popleft()
            if job.num_asking:
                batch.append(job)
            else:  # whoever asked has given up
                del self._jobs[job.key]
        return batch

    async def _answer(self, batch: list[_Job], executor: ThreadPoolExecutor) -> None:
        work = asyncio.get_running_loop().run_in_executor(executor, self._search, [job.key for job in batch])
        await asyncio.wait([work])
        error = work.exception()
        if error is not None and len(batch) > 1:
            # One bad query must not fail the others.
            for job in batch:
                await self._answer([job], executor)
            return
        for place, job in enumerate(batch):
            del self._jobs[job.key]
            if error is None:
                job.answer.set_result(work.result()[place])
            else:
                job.answer.set_exception(error)
                job.answer.exception()  # seen, even if nobody is left who asks
