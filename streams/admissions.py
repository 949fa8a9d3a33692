"""Admitting gated runs: the overlap rule of their jobs, applied when they are due and before anybody hears of them.

A run that must wait for another one of its job is blocked until that one's end is folded in, and looked at again every
second besides, in case its event was lost. Whatever happens here, the ledger leases no two gated runs of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from ledger.admissions import Admission, admit_runs
from ledger.fence import OwnerTransaction
from ledger.runs import LiveRun, read_runs
from schemas.events import GONE_EVENTS, WAITING_EVENTS, Event

ADMIT_BATCH = 500
_FREES = GONE_EVENTS | WAITING_EVENTS - {"run_scheduled"}


class AdmissionQueue:
    """Gated runs that are due, by id, each once; and those that are blocked, by job. Not thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[bytes, None] = {}
        self._blocked: dict[bytes, set[bytes]] = {}
        self._arrived = asyncio.Event()

    def blocked(self) -> int:
        """How many runs wait for another one of their job."""
        return sum(map(len, self._blocked.values()))

    def add(self, run_ids: Iterable[bytes]) -> None:
        for run_id in run_ids:
            self._asked[run_id] = None
            self._arrived.set()

    async def take(self) -> list[bytes]:
        """At least one run, at most ADMIT_BATCH, those first that were added first."""
        await self._arrived.wait()
        taken = list(self._asked)[:ADMIT_BATCH]
        for run_id in taken:
            del self._asked[run_id]
        if not self._asked:
            self._arrived.clear()
        return taken

    def block(self, run_id: bytes, job_id: bytes) -> None:
        """Let the run wait for the active one of its job."""
        self._blocked.setdefault(job_id, set()).add(run_id)

    def folded(self, events: Iterable[Event]) -> None:
        """Look again at those whose job's active run may have ended with these events."""
        if not self._blocked:
            return
        for event in events:
            if event["type"] in _FREES and event["jobId"]:
                self.add(self._blocked.pop(UUID(event["jobId"]).bytes, ()))

    def look_again(self) -> None:
        """Look at all of them again."""
        while self._blocked:
            self.add(self._blocked.popitem()[1])


async def admit(tx: OwnerTransaction, run_ids: list[bytes]) -> tuple[Admission, list[LiveRun]]:
    """Apply the rule to due runs; what the ledger says of those for which it is over. Raises EpochLost and so on."""
    admission = await admit_runs(tx, [UUID(bytes=run_id) for run_id in run_ids], now=tx.now)
    live = await read_runs(tx.conn, admission.over) if admission.over else []
    return admission, live
