"""Admitting gated runs: the overlap rule of their jobs, applied when they are due and before anybody hears of them.

A run that must wait for others of its job is blocked. When the end of one is folded in, and every second besides in
case its event was lost, one of the blocked is asked for; the ledger answers with the run whose turn it is, be it that
one or another, so that a long line is not asked for again and again. Whatever happens here, the ledger leases no two
gated runs of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
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
        self._blocked: dict[bytes, dict[bytes, None]] = {}  # by job, each first come first
        self._job_of: dict[bytes, bytes] = {}  # of each blocked run
        self._arrived = asyncio.Event()

    def blocked(self) -> int:
        """How many runs wait for another one of their job."""
        return len(self._job_of)

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
        """Let the run wait for others of its job."""
        self._blocked.setdefault(job_id, {})[run_id] = None
        self._job_of[run_id] = job_id

    def unblock(self, run_ids: Iterable[bytes]) -> set[bytes]:
        """Those of the runs that were blocked are not any more; returns their jobs."""
        jobs = set()
        for run_id in run_ids:
            if (job_id := self._job_of.pop(run_id, None)) is not None:
                jobs.add(job_id)
                del self._blocked[job_id][run_id]
                if not self._blocked[job_id]:
                    del self._blocked[job_id]
        return jobs

    def folded(self, events: Iterable[Event], still_waits: Callable[[bytes], bool]) -> None:
        """Look again at the jobs whose active run may have ended with these events, which the memory has by now.

        still_waits: whether it says that a run waits. An event of the feed may be older than what it knows: one that
        tells of a pause must not unblock a run that waits again since, for nothing else would ask for that one.
        """
        if not self._blocked:
            return
        for event in events:
            if event.type in _FREES and event.run_id is not None:
                if not still_waits(event.run_id):
                    self.unblock([event.run_id])
                self.look_at([event.job_id])

    def look_at(self, job_ids: Iterable[bytes]) -> None:
        """Ask for a blocked run of each of these jobs that has one."""
        for job_id in job_ids:
            self.add(islice(self._blocked.get(job_id, ()), 1))

    def look_again(self) -> None:
        """Look at all of them again."""
        self.look_at(self._blocked)


async def admit(tx: OwnerTransaction, run_ids: list[bytes]) -> tuple[Admission, list[LiveRun]]:
    """Apply the rule to due runs; what the ledger says of those for which it is over. Raises EpochLost and so on."""
    admission = await admit_runs(tx, [UUID(bytes=run_id) for run_id in run_ids], now=tx.now)
    live = await read_runs(tx.conn, admission.over) if admission.over else []
    return admission, live
