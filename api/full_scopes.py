"""Queues, and concurrency keys in them, that have as many live runs as they may: what waits for a permit, in memory.

A run that was refused is not asked for again until a place is free, one run for each, or a moment has passed, since
another process may have freed one. Some are kept, in their order; the rest is found by a look into the ledger, which
leaves out what is full.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from api.ready_index import Queue, ReadyIndex, ReadyRun

ASK_AGAIN_S = 1.0
KEPT = 100  # of each queue and key


class Scope(NamedTuple):
    """concurrency_key: None for the queue as a whole."""

    queue: Queue
    concurrency_key: str | None = None


@dataclass(slots=True)
class _Line:
    """Who waits for a place. places: were freed, and nobody has asked for them. called: whose turn it was last."""

    runs: deque[ReadyRun] = field(default_factory=deque)
    places: int = 0
    called: set[UUID] = field(default_factory=set)
    left_out: bool = False


class FullScopes:
    """Belongs to one event loop. on_left_out: gets a queue with runs that were not kept, once there is a place."""

    def __init__(self, index: ReadyIndex, on_left_out: Callable[[Queue], object]) -> None:
        self._index = index
        self._on_left_out = on_left_out
        self._lines: dict[Scope, _Line] = {}  # of those that are full
        self._timer: asyncio.TimerHandle | None = None

    def is_full(self, queue: Queue) -> bool:
        """Whether nothing of the queue need be looked for."""
        line = self._lines.get(Scope(queue))
        return line is not None and not line.places

    def full_keys(self, queues: Collection[Queue]) -> list[tuple[str, str, str]]:
        """The full keys of these queues, each as tenant, queue and key."""
        return [
            (*scope.queue, scope.concurrency_key)
            for scope, line in self._lines.items()
            if scope.concurrency_key is not None and scope.queue in queues and not line.places
        ]

    def may_ask(self, scope: Scope, wanted: int = 1) -> int:
        """How many of so many runs may ask for a permit; they have these places then."""
        line = self._lines.get(scope)
        if line is None:
            return wanted
        taken = min(line.places, wanted)
        line.places -= taken
        return taken

    def put_aside(self, scope: Scope, runs: Iterable[ReadyRun]) -> None:
        """There is no place for these. They are claimed in the index, and stay so as long as they are kept."""
        line = self._lines.setdefault(scope, _Line())
        again = [run for run in runs if run.run_id in line.called]
        line.called.difference_update(run.run_id for run in again)
        line.runs.extendleft(reversed(again))
        for run in runs:
            if run in again:
                continue
            if len(line.runs) < KEPT:
                line.runs.append(run)
            else:
                line.left_out = True
                self._index.settle([run])
        if self._timer is None:
            wait_s = ASK_AGAIN_S - time.monotonic() % ASK_AGAIN_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._ask_again)

    def free(self, queue: Queue, concurrency_key: str | None) -> None:
        """There may be a place more, in the queue and for the key."""
        for scope in {Scope(queue), Scope(queue, concurrency_key)}:
            line = self._lines.get(scope)
            if line is None:
                continue
            line.places += 1
            if line.runs:
                run = line.runs.popleft()
                line.called.add(run.run_id)
                self._index.put_back(queue, [run])
            else:
                self._reopen(scope)

    def _ask_again(self) -> None:
        """All at the same time: those who wait ask for permits of many keys in one statement."""
        self._timer = None
        for scope in list(self._lines):
            self._reopen(scope)

    def _reopen(self, scope: Scope) -> None:
        line = self._lines.pop(scope)
        self._index.put_back(scope.queue, list(line.runs))
        if line.left_out:
            self._on_left_out(scope.queue)
