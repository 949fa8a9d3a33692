"""What a ledger that was restored has lived through: what it knew of in the backup, and what has come since.

What came in between is on the topic and in the workers' logs too, and is nothing to it. Without that it must have kept
every promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import psycopg

from fencepost.verification.events import Event, JobEvent
from tests.chaos.history import History, WorkerEntry
from tests.chaos.observations import runs_of


class Backup(NamedTuple):
    """What a backup has, read before any role is started. began, ended: when it was made; in between it is unclear.

    jobs: each one's version and cursor. runs: the versions of those that are not over. leased: those of them that are.
    """

    began: datetime
    ended: datetime
    jobs: Mapping[str, tuple[int, datetime | None]]
    runs: Mapping[str, int]
    leased: frozenset[str]

    def knows(self, event: Event, nominal: datetime | None) -> bool:
        """nominal: the instant that the event's run is scheduled for."""
        if event.at > self.ended or event.job_id not in self.jobs:
            return False
        version, cursor = self.jobs[event.job_id]
        if isinstance(event, JobEvent):
            return event.version <= version
        if event.run_id in self.runs:
            return event.version <= self.runs[event.run_id]
        # It is over by then, or was made later. A job's pending occurrence has its run.
        return cursor is None or nominal is None or nominal <= cursor


def read_backup(dsn: str, began: datetime, ended: datetime) -> Backup:
    """Of the restored server."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        jobs = conn.execute("SELECT job_id::text, version, next_fire_at FROM jobs").fetchall()
        runs = conn.execute("SELECT run_id::text, version, state FROM runs").fetchall()
    return Backup(
        began,
        ended,
        {job_id: (version, cursor) for job_id, version, cursor in jobs},
        {run_id: version for run_id, version, _ in runs},
        frozenset(run_id for run_id, _, state in runs if state == "leased"),
    )


def lineage(history: History, backup: Backup, floor: int, lost_at: datetime, back_at: datetime) -> History:
    """The history without what the backup does not know, of before the loss. floor: ids and tokens since are above."""
    nominal = _nominal(history.told)
    told = [e for e in history.told if _outbox_id(e) > floor or backup.knows(e, nominal.get(_run_of(e)))]
    return replace(
        history,
        told=told,
        events=runs_of(told),
        entries=[entry for entry in history.entries if _is_of_it(entry, backup, floor)],
        epochs=[sample for sample in history.epochs if not lost_at <= sample.at <= back_at],
    )


def _is_of_it(entry: WorkerEntry, backup: Backup, floor: int) -> bool:
    return entry.token > floor or entry.at < backup.began


def _nominal(told: Sequence[Event]) -> Mapping[str | None, datetime]:
    return {_run_of(event): at for event in told if (at := getattr(event, "scheduled_for", None)) is not None}


def _run_of(event: Event) -> str | None:
    return None if isinstance(event, JobEvent) else event.run_id


def _outbox_id(event: Event) -> int:
    """That of the row which told it; an event's id is shard, row and place."""
    return int(event.event_id.split("-")[1])


def executed(entries: Iterable[WorkerEntry]) -> set[str]:
    """The runs that a handler has brought to an end."""
    return {entry.run_id for entry in entries if entry.kind == "finished"}
