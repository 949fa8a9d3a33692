"""Bounds for clients that are slow: with a call's head, with its body, or in reading their answer. Who is slow with its
body is told so, 408; the others are cut off.

uvicorn ends connections that are idle between two calls, and waits for all else without end. Looking at every
connection now and then costs a call nothing, where a timer for each of its parts would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ledger.pulse import pulse

HEAD_MAX = 64 * 1024
HANG_UP = "fencepost.hang_up"  # of a scope, where the server tells it without a task that waits for it
TOO_SLOW = "fencepost.too_slow"  # of a call's scope, once its body has taken too long


@dataclass(frozen=True, slots=True)
class Patience:
    """head_s: until a call's head is there, from the connection's beginning or the head's. body_s: until its body is.
    unread_s: while nothing of an answer is taken. A slow client is noticed up to look_every_s later.
    """

    head_s: float = 10.0
    body_s: float = 60.0
    unread_s: float = 30.0
    look_every_s: float = 5.0


class WatchedState(ServerState):
    """Of a server of BoundedProtocols. stirred: those that may keep us waiting since the last look."""

    def __init__(self) -> None:
        super().__init__()
        self.stirred: set[BoundedProtocol] = set()


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a head without end, and tells a call whose client hangs up."""

    server_state: WatchedState

    _head_bytes, _is_lost = 0, False
    _hung_up: asyncio.Future[None] | None = None

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()
        self.scope[HANG_UP] = self.hang_up  # type: ignore[literal-required]

    def hang_up(self) -> asyncio.Future[None]:
        """For the call that is under way, of which there is one at a time: done once the connection is lost."""
        self._hung_up = self.loop.create_future()
        if self._is_lost:
            self._hung_up.set_result(None)
        return self._hung_up

    def on_response_complete(self) -> None:
        self.server_state.stirred.add(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_lost = True
        self.server_state.stirred.discard(self)
        if self._hung_up is not None and not self._hung_up.done():
            self._hung_up.set_result(None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.server_state.stirred.add(self)

    def data_received(self, data: bytes) -> None:
        self.server_state.stirred.add(self)
        super().data_received(data)
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_MAX and not self.is_under_way and not self.transport.is_closing():
            self.send_400_response(f"The head is larger than {HEAD_MAX} bytes.")

    @property
    def is_under_way(self) -> bool:
        """Whether a call's head is there, and its answer is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def end_body(self) -> None:
        """No more of it is waited for: who reads it has it as it is, and can see that it was too slow."""
        cycle = self.cycle
        cycle.scope[TOO_SLOW] = True  # type: ignore[literal-required]  # a server may have keys of its own
        cycle.more_body = False
        cycle.message_event.set()


class _Wait(NamedTuple):
    """What a client keeps us waiting for. mark: another one when it went on meanwhile."""

    limit_s: float
    mark: object
    of_body: bool = False


class SlowClients:
    """Of one server. Only what has stirred is looked at: to go through thousands of waiting polls, whose turn is ours,
    was a fifth of what they cost."""

    def __init__(self, state: WatchedState, patience: Patience) -> None:
        self._state, self._patience = state, patience
        self._waits: dict[BoundedProtocol, tuple[_Wait, float]] = {}

    async def run(self) -> None:
        """End what takes too long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await pulse(self._patience.look_every_s)
            self._look(loop.time())

    def _look(self, now_s: float) -> None:
        before, self._waits = self._waits, {}
        stirred, self._state.stirred = self._state.stirred, set()
        for connection in stirred:
            if (wait := self._wait(connection)) is None:
                continue
            self._state.stirred.add(connection)
            known, since_s = before.get(connection, (wait, now_s))
            since_s = since_s if known == wait else now_s
            if now_s - since_s >= wait.limit_s:
                connection.end_body() if wait.of_body else connection.transport.abort()
            else:
                self._waits[connection] = wait, since_s

    def _wait(self, connection: BoundedProtocol) -> _Wait | None:
        """None when it is our turn, or when the connection is idle, which uvicorn bounds."""
        if unread := connection.transport.get_write_buffer_size():
            return _Wait(self._patience.unread_s, unread)
        if connection.is_under_way:
            return _Wait(self._patience.body_s, id(connection.cycle), True) if connection.cycle.more_body else None
        if connection.timeout_keep_alive_task is not None:
            return None
        return _Wait(self._patience.head_s, id(connection.cycle))
