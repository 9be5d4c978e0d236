"""An event loop in a thread of its own, so that a sampler can be asked from any thread or loop and never blocks one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


class LoopThread:
    """Runs coroutines; `close` cancels those that are left and ends the thread.

    Args:
        name: of the thread.
        num_workers: threads for `asyncio.to_thread` in it; 0 leaves the loop's own few.
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
