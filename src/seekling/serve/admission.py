"""What requests may take of a server's memory, each and together, from their first byte to their answer."""

from __future__ import annotations

import threading

from starlette.requests import Request

from seekling.serve.request_body import RefusedRequestError

BROKEN = {"Connection": "close"}
"""The header of a 500: uvicorn closes the connection after it, and a client that kept it would lose a request."""

_REQUEST_BYTES = 16 * 1024
"""What a request takes besides its body, about: its connection, its task, what was read from it."""


def busy(what: str) -> RefusedRequestError:
    """The refusal of a request when too much is waiting: come back after a second."""
    return RefusedRequestError(503, f"{what} are waiting already; try again", "overloaded", {"Retry-After": "1"})


class Admission:
    """Reads the bodies of requests as long as there is room for them.

    Args:
        body_bytes: largest body.
        waiting_bytes: of all requests that are not yet answered, bodies and what else they take.
    """

    def __init__(self, *, body_bytes: int, waiting_bytes: int) -> None:
        self._body_bytes, self._waiting_bytes = body_bytes, waiting_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()

    async def read(self, request: Request) -> Admitted:
        """Read a body. One that there is no room for is read to its end, and not kept: an answer before that is lost.

        A request that comes alone is always read, up to `body_bytes`.

        Returns:
            The body; whoever has answered the request calls its `release`.

        Raises:
            RefusedRequestError: it is larger than one may be (413), or together with the others too large (503).
            ClientDisconnect: the client went away.
        """
        admitted = Admitted(self)
        parts: list[bytes] = []
        num_bytes = 0
        try:
            has_room = admitted.take(_REQUEST_BYTES)
            async for part in request.stream():
                num_bytes += len(part)
                has_room = has_room and num_bytes <= self._body_bytes and admitted.take(len(part))
                if has_room:
                    parts.append(part)
                else:
                    parts.clear()
                    admitted.release()
            if num_bytes > self._body_bytes:
                what = f"the request has {num_bytes} bytes; this server takes {self._body_bytes}: send fewer"
                raise RefusedRequestError(413, what, "request_too_large")
            if not has_room:
                raise busy(f"requests of {self._num_bytes} bytes")
        except BaseException:
            admitted.release()
            raise
        admitted.body = b"".join(parts)
        return admitted

    def move(self, num_bytes: int, *, held: int) -> bool:
        """Take room for a request that holds some already, or give it back where the number is below zero."""
        with self._lock:
            has_room = self._num_bytes == held or self._num_bytes + num_bytes <= self._waiting_bytes
            if num_bytes < 0 or has_room:
                self._num_bytes += num_bytes
            return has_room


class Admitted:
    """A request that was read and is not yet answered."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held = 0
        self.body = b""

    def take(self, num_bytes: int) -> bool:
        """Hold more room; says whether there was some."""
        has_room = self._admission.move(num_bytes, held=self._held)
        self._held += num_bytes * has_room
        return has_room

    def release(self) -> None:
        """It is answered, or will not be: give its room back. Once or more often, from any thread."""
        held, self._held = self._held, 0
        self._admission.move(-held, held=held)
        self.body = b""
