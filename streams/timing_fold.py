"""Folding events into a partition's timing state: what they change, over what it knows, as one write."""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace
from rocksdict import Rdict, WriteBatch

from schemas.events import GONE_EVENTS, JOB_EVENTS, LEASED_EVENTS, RANGE_EVENTS, WAITING_EVENTS, Event
from schemas.ids import partition_of_run, run_id_for
from streams.timers import POSITION, TIME, WHERE, JobTimer, Position, WaitingRun, decode_job, encode, from_us, timer_of

_VERSION = struct.Struct(">I")  # the end of WHERE


class Changed(NamedTuple):
    """What a fold did, for the wheel: instants in microseconds, None for a timer that is gone."""

    runs: dict[bytes, int | None]
    jobs: dict[bytes, int | None]


class Fold:
    """One fold. Runs and jobs change in memory, and are written once: a run that came and went meanwhile is not."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._runs_before: dict[bytes, bytes | None] = {}  # run id -> what `r` said of it
        self._runs: dict[bytes, tuple[bytes, bytes] | None] = {}  # run id -> what `r` is to say, and its timer's value
        self._jobs_before: dict[bytes, JobTimer | None] = {}
        self._jobs: dict[bytes, JobTimer | None] = {}
        self.changed = Changed({}, {})
        self.first_expiry_us = 1 << 63

    def apply(self, event: Event) -> None:
        if event.run_id is not None:
            self._apply_run(event, event.run_id)
        elif event.type in JOB_EVENTS:
            self._apply_job(event)
        elif event.type in RANGE_EVENTS:
            self._grow_version(event)

    def move_lease(self, run_id: bytes, expires_us: int) -> None:
        """Let the run's lease end then, if it is leased as far as is known here."""
        where = self._where(run_id)
        if where is not None and where[:1] == b"l":
            self._place(run_id, b"l", expires_us, _version(where))

    def drop_run(self, run_id: bytes) -> None:
        self._where(run_id)
        self._runs[run_id] = None
        self.changed.runs[run_id] = None

    def drop_job(self, job_id: bytes) -> None:
        self._job(job_id)
        self._jobs[job_id] = None
        self.changed.jobs[job_id] = None

    def write(self, position: Position | None = None) -> None:
        """All of it, and the position, or nothing."""
        batch = WriteBatch(raw_mode=True)
        for run_id, run in self._runs.items():
            _write_run(batch, run_id, self._runs_before[run_id], run)
        for job_id, job in self._jobs.items():
            _write_job(batch, job_id, self._jobs_before[job_id], job)
        if position is not None:
            batch.put(b"p", POSITION.pack(*position))
        if batch.len():
            self._db.write(batch)

    def _apply_run(self, event: Event, run_id: bytes) -> None:
        where = self._where(run_id)
        if where is not None and _version(where) >= event.version:
            return
        kind = event.type
        if kind in WAITING_EVENTS:
            due_us = _from_1970(event.due_us)
            run = WaitingRun(event.tenant, event.queue, event.lane, event.job_id, event.gated)
            self._place(run_id, b"d", due_us, event.version, encode(run))
            self.changed.runs[run_id] = due_us
            if kind == "run_scheduled":
                self._move_cursor(event, run_id)
        elif kind in LEASED_EVENTS:
            self._place(run_id, b"l", _from_1970(event.expires_us), event.version)
            self.changed.runs[run_id] = None
        elif kind in GONE_EVENTS:
            self.drop_run(run_id)

    def _apply_job(self, event: Event) -> None:
        job_id = event.job_id
        job = self._job(job_id)
        if job is not None and job.version >= event.version:
            if job.version == event.version:
                self._lower_cursor(event, job)
            return
        self.drop_job(job_id)
        if event.type in ("job_paused", "job_deleted") or event.due_us is None:
            return
        cursor_us, created_us = _from_1970(event.due_us), _from_1970(event.scheduled_us)
        if timer := timer_of(event.version, cursor_us, created_us, event.definition or ""):
            self._put_job(job_id, timer)

    def _lower_cursor(self, event: Event, job: JobTimer) -> None:
        """The same event again: after it came, an older run's may have come again too, and have moved the cursor on.

        A cursor that is too low costs a look into the ledger; of one that is too high, occurrences would be late.
        """
        if event.due_us is not None and (cursor_us := _from_1970(event.due_us)) < job.cursor_us:
            self._put_job(event.job_id, replace(job, cursor_us=cursor_us))

    def _grow_version(self, event: Event) -> None:
        """A range of skipped occurrences is an event of the job: its cursor moves only under the new version."""
        job = self._job(event.job_id)
        if job is not None and job.version < event.version:
            self._jobs[event.job_id] = replace(job, version=event.version)

    def _move_cursor(self, event: Event, run_id: bytes) -> None:
        """A recurring job's new run is its new pending occurrence; one that was triggered is beside the schedule."""
        job = self._job(event.job_id)
        cursor_us = event.scheduled_us
        if job is None or cursor_us is None or cursor_us <= job.cursor_us:
            return
        if _is_occurrence(run_id, event.job_id, cursor_us):
            self._put_job(event.job_id, replace(job, cursor_us=cursor_us))

    def _put_job(self, job_id: bytes, job: JobTimer) -> None:
        self._jobs[job_id] = job
        self.changed.jobs[job_id] = job.cursor_us

    def _place(self, run_id: bytes, kind: bytes, instant_us: int, version: int, value: bytes = b"") -> None:
        if kind == b"l":
            self.first_expiry_us = min(self.first_expiry_us, instant_us)
        self._runs[run_id] = WHERE.pack(kind, instant_us, version), value

    def _where(self, run_id: bytes) -> bytes | None:
        if run_id in self._runs:
            run = self._runs[run_id]
            return None if run is None else run[0]
        if run_id not in self._runs_before:
            self._runs_before[run_id] = self._db.get(b"r" + run_id)
        return self._runs_before[run_id]

    def _job(self, job_id: bytes) -> JobTimer | None:
        if job_id not in self._jobs:
            raw = self._db.get(b"j" + job_id)
            self._jobs[job_id] = self._jobs_before[job_id] = decode_job(raw) if raw else None
        return self._jobs[job_id]


def _version(where: bytes) -> int:
    version: int
    [version] = _VERSION.unpack_from(where, 9)
    return version


def _write_run(batch: WriteBatch, run_id: bytes, before: bytes | None, run: tuple[bytes, bytes] | None) -> None:
    if run is not None:
        where, value = run
        batch.put(where[:9] + run_id, value)
        batch.put(b"r" + run_id, where)
    elif before is not None:
        batch.delete(b"r" + run_id)
    if before is not None and (run is None or run[0][:9] != before[:9]):
        batch.delete(before[:9] + run_id)


def _write_job(batch: WriteBatch, job_id: bytes, before: JobTimer | None, job: JobTimer | None) -> None:
    if job is before:
        return
    if job is not None:
        batch.put(b"j" + job_id, encode(job))
        batch.put(b"c" + TIME.pack(job.cursor_us) + job_id, b"")
    else:
        batch.delete(b"j" + job_id)
    if before is not None and (job is None or job.cursor_us != before.cursor_us):
        batch.delete(b"c" + TIME.pack(before.cursor_us) + job_id)


def _is_occurrence(run_id: bytes, job_id: bytes, at_us: int) -> bool:
    """A triggered run has a nonce in its id, whatever its event says: it may have been held and released since."""
    partition = partition_of_run(UUID(bytes=run_id))
    return run_id == run_id_for(UUID(bytes=job_id), from_us(at_us), partition).bytes


def _from_1970(instant_us: int | None) -> int:
    """As to_us."""
    return max(0, instant_us or 0)
