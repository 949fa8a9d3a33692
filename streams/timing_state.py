"""A partition's timing state in RocksDB: what is due when, which lease ends when, which job fires next when.

It is a cache of the ledger, folded from run events, and never the truth: dropping it loses nothing. Every change is
guarded by the run's (or job's) version, so events may come twice or late, and from the ledger as well as from Kafka.

Keys, all big-endian so that order is time order (instants in microseconds):
    d <due> <run id>      a waiting run             -> WaitingRun
    l <expires> <run id>  a leased run              -> empty
    c <cursor> <job id>   a job's next occurrence   -> empty
    r <run id>            which of d or l, when, version
    j <job id>            JobTimer
    p                     Position
    z                     the tzdata that all cursors are computed with
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from rocksdict import Rdict, WriteBatch

from schemas.commands import CatchUp
from schemas.events import GONE_EVENTS, JOB_EVENTS, LEASED_EVENTS, RANGE_EVENTS, WAITING_EVENTS, Event
from schemas.ids import partition_of_run, run_id_for
from streams.timing_store import hold_compaction, iterate, open_store, unlogged

_TIME = struct.Struct(">Q")
_NEVER_US = (1 << 63) - 1
_WHERE = struct.Struct(">cQI")  # kind, instant, version
_POSITION = struct.Struct(">QQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = datetime.resolution


def to_us(instant: datetime) -> int:
    """Microseconds since 1970; an instant before it counts as 0, which is as overdue as can be."""
    return max(0, (instant - _EPOCH) // _MICROSECOND)


def from_us(instant_us: int) -> datetime:
    return _EPOCH + instant_us * _MICROSECOND


class Position(NamedTuple):
    """epoch: the owner's that wrote this state. offset: the next of run-events to fold."""

    epoch: int
    offset: int


class Waiting(Struct, frozen=True, array_like=True):
    """Where a run waits: what a hint tells beside its id."""

    tenant: str
    queue: str
    lane: str


class WaitingRun(Struct, frozen=True, array_like=True):
    """A run that waits. gated: before it is hinted its job's overlap rule is applied, see streams/admissions.py."""

    tenant: str
    queue: str
    lane: str
    job_id: bytes = b""
    gated: bool = False

    @property
    def where(self) -> Waiting:
        return Waiting(self.tenant, self.queue, self.lane)


class JobTimer(Struct, frozen=True, array_like=True):
    """What deciding a job's next occurrence needs. Only recurring jobs have one. cursor_us: the pending occurrence."""

    version: int
    cursor_us: int
    created_us: int
    schedule: dict[str, Any]
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 1_000
    start_deadline_s: float | None = None


class Changed(NamedTuple):
    """What a fold did, for the wheel: instants in microseconds, None for a timer that is gone."""

    runs: dict[bytes, int | None]
    jobs: dict[bytes, int | None]


_encode = msgspec.msgpack.Encoder().encode
_decode_waiting = msgspec.msgpack.Decoder(WaitingRun).decode
_decode_job = msgspec.msgpack.Decoder(JobTimer).decode


class TimingState:
    """One partition's state, in a folder of its own. Not thread-safe; calls take microseconds and do not sync."""

    def __init__(self, folder: Path) -> None:
        self._db = open_store(folder)
        self._leases_from_us = 0  # no lease that is known here ends before

    def close(self) -> None:
        self._db.flush()  # else the next start would replay the log
        self._db.close()

    def position(self) -> Position | None:
        """How far this state is; None when it is new."""
        raw = self._db.get(b"p")
        return Position(*_POSITION.unpack(raw)) if raw else None

    def clear(self) -> None:
        """Forget everything."""
        self._db.delete_range(b"", b"\xff")
        self._leases_from_us = 0

    def tzdata_version(self) -> str | None:
        """The tzdata that all of the partition's cursors are known to be computed with."""
        raw: bytes | None = self._db.get(b"z")
        return raw.decode() if raw else None

    def set_tzdata_version(self, version: str | None) -> None:
        self._db.put(b"z", (version or "").encode())

    def fold(self, events: Iterable[Event], position: Position | None = None) -> Changed:
        """Apply events in order, and with them the position, all or nothing."""
        change = _Fold(self._db)
        for event in events:
            change.apply(event)
        if position is not None:
            change.batch.put(b"p", _POSITION.pack(*position))
        self._db.write(change.batch)
        self._leases_from_us = min(self._leases_from_us, change.first_expiry_us)
        return Changed(change.runs, change.jobs)

    def waiting(self, run_id: bytes) -> tuple[int, WaitingRun] | None:
        """When the run is due, and how it waits; None unless it does."""
        where = self._db.get(b"r" + run_id)
        if where is None or where[:1] != b"d":
            return None
        raw = self._db.get(b"d" + where[1:9] + run_id)
        return (_TIME.unpack_from(where, 1)[0], _decode_waiting(raw)) if raw else None

    def job(self, job_id: bytes) -> JobTimer | None:
        """The job's timer, if it still has one."""
        raw = self._db.get(b"j" + job_id)
        return _decode_job(raw) if raw else None

    def version(self, run_id: bytes) -> int | None:
        """The version of a run as it is known here."""
        raw = self._db.get(b"r" + run_id)
        return _WHERE.unpack(raw)[2] if raw else None

    def due(self, from_key: bytes, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        """(due, run id) of waiting runs due before until_us, in order, starting at a `scan_key`."""
        return self._scan(b"d", from_key, until_us, limit)

    def cursors(self, from_key: bytes, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        """(cursor, job id) of jobs whose pending occurrence comes before until_us, in order."""
        return self._scan(b"c", from_key, until_us, limit)

    def expiring(self, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        """(expiry, run id) of leases that end before until_us as far as is known here, in order."""
        if until_us <= self._leases_from_us:
            return []
        found = self._scan(b"l", scan_key(self._leases_from_us), until_us, limit)
        first = found or self._scan(b"l", scan_key(until_us), _NEVER_US, 1)
        self._leases_from_us = first[0][0] if first else _NEVER_US
        return found

    def rearm_lease(self, run_id: bytes, expires_us: int) -> None:
        """The run's lease was extended: heartbeats make no events."""
        change = _Fold(self._db)
        change.move_lease(run_id, expires_us)
        self._db.write(change.batch)
        self._leases_from_us = min(self._leases_from_us, change.first_expiry_us)

    def forget_run(self, run_id: bytes) -> None:
        """The ledger does not know the run any more."""
        change = _Fold(self._db)
        change.drop_run(run_id)
        self._db.write(change.batch)

    def run_ids(self, after: bytes, limit: int) -> list[bytes]:
        """Runs that are known here, in the order of their ids, from behind `after` on."""
        return self._ids(b"r", after, limit)

    def job_ids(self, after: bytes, limit: int) -> list[bytes]:
        """Jobs that have a timer here, in the order of their ids, from behind `after` on."""
        return self._ids(b"j", after, limit)

    def filling(self) -> Filling:
        """Fill an empty state with what is known for sure, faster than events can be folded."""
        return Filling(self._db)

    def forget_job(self, job_id: bytes) -> None:
        """The ledger does not know the job any more, or it has no occurrence left."""
        change = _Fold(self._db)
        change.drop_job(job_id)
        self._db.write(change.batch)

    def _ids(self, kind: bytes, after: bytes, limit: int) -> list[bytes]:
        # A page at a time: an iterator that stays open keeps the state from being closed.
        start, end = kind + after + (b"\x00" if after else b""), bytes([kind[0] + 1])
        return [key[1:] for key, _ in islice(iterate(self._db, start, end), limit)]

    def _scan(self, kind: bytes, from_key: bytes, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for key, _ in iterate(self._db, kind + from_key, kind + _TIME.pack(until_us)):
            found.append((_TIME.unpack_from(key, 1)[0], key[9:]))
            if len(found) == limit:
                break
        return found


def scan_key(instant_us: int, key: bytes = b"") -> bytes:
    """Where a scan goes on: after this timer, or at this instant. Never from the first key: dead ones pile up there."""
    return _TIME.pack(instant_us) + (key + b"\x00" if key else b"")


class Filling:
    """Rows on their way into an empty state: each key is written once, so nothing is looked up and nothing is logged.

    Nothing of it is sure before done(): what was filled halfway is cleared and filled anew.
    """

    def __init__(self, db: Rdict) -> None:
        self._db, self._unlogged, self._batch = db, unlogged(), WriteBatch(raw_mode=True)
        hold_compaction(db, True)

    def add_waiting(self, run_id: bytes, due_us: int, version: int, run: WaitingRun) -> None:
        self._place(run_id, b"d", due_us, version, _encode(run))

    def add_lease(self, run_id: bytes, expires_us: int, version: int) -> None:
        self._place(run_id, b"l", expires_us, version, b"")

    def add_job(self, job_id: bytes, version: int, cursor_us: int, created_us: int, definition: str) -> None:
        """A job with a pending occurrence; one that fires once needs no timer."""
        timer = _timer(version, cursor_us, created_us, definition)
        if timer.schedule.keys().isdisjoint(_ONE_OFF):
            self._batch.put(b"j" + job_id, _encode(timer))
            self._batch.put(b"c" + _TIME.pack(cursor_us) + job_id, b"")

    def write(self) -> None:
        """Now and then: what was added leaves this process's hands."""
        self._db.write(self._batch, self._unlogged)
        self._batch = WriteBatch(raw_mode=True)

    def done(self) -> None:
        """All of it is on disk once this returns."""
        self.write()
        self._db.flush()
        hold_compaction(self._db, False)

    def _place(self, run_id: bytes, kind: bytes, instant_us: int, version: int, value: bytes) -> None:
        self._batch.put(kind + _TIME.pack(instant_us) + run_id, value)
        self._batch.put(b"r" + run_id, _WHERE.pack(kind, instant_us, version))


class _Fold:
    """Events on their way into one write batch, over the state as it was and as the batch has changed it."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._written: dict[bytes, bytes | None] = {}
        self.batch = WriteBatch(raw_mode=True)
        self.runs: dict[bytes, int | None] = {}
        self.jobs: dict[bytes, int | None] = {}
        self.first_expiry_us = 1 << 63

    def apply(self, event: Event) -> None:
        kind = event["type"]
        if kind in JOB_EVENTS:
            self._apply_job(event)
            return
        if kind in RANGE_EVENTS:
            self._grow_version(event)
            return
        run_id = _id_bytes(event["runId"])
        before = self._get(b"r" + run_id)
        if before is not None and _WHERE.unpack(before)[2] >= event["version"]:
            return
        if kind in WAITING_EVENTS:
            due_us = to_us(event["dueAt"])
            job_id, gated = _id_bytes(event["jobId"]), event.get("gated", False)
            waiting = WaitingRun(event["tenant"], event["queue"], event["lane"], job_id, gated)
            self._place(run_id, b"d", due_us, event["version"], _encode(waiting))
            self.runs[run_id] = due_us
            self._move_cursor(event)
        elif kind in LEASED_EVENTS:
            self._place(run_id, b"l", to_us(event["leaseExpiresAt"]), event["version"], b"")
            self.runs[run_id] = None
        elif kind in GONE_EVENTS:
            self.drop_run(run_id)

    def move_lease(self, run_id: bytes, expires_us: int) -> None:
        """Let the run's lease end then, if it is leased as far as is known here."""
        where = self._get(b"r" + run_id)
        if where is not None and where[:1] == b"l":
            self._place(run_id, b"l", expires_us, _WHERE.unpack(where)[2], b"")

    def drop_run(self, run_id: bytes) -> None:
        self._unplace(run_id)
        self._delete(b"r" + run_id)
        self.runs[run_id] = None

    def drop_job(self, job_id: bytes) -> None:
        if raw := self._get(b"j" + job_id):
            self._delete(b"c" + _TIME.pack(_decode_job(raw).cursor_us) + job_id)
            self._delete(b"j" + job_id)
        self.jobs[job_id] = None

    def _apply_job(self, event: Event) -> None:
        job_id = _id_bytes(event["jobId"])
        raw = self._get(b"j" + job_id)
        if raw and _decode_job(raw).version >= event["version"]:
            return
        self.drop_job(job_id)
        if event["type"] in ("job_paused", "job_deleted") or event["dueAt"] is None:
            return
        timer = _timer(event["version"], to_us(event["dueAt"]), to_us(event["scheduledFor"]), event["definition"])
        if timer.schedule.keys().isdisjoint(_ONE_OFF):
            self._put_job(job_id, timer)

    def _grow_version(self, event: Event) -> None:
        """A range of skipped occurrences is an event of the job: its cursor moves only under the new version."""
        job_id = _id_bytes(event["jobId"])
        raw = self._get(b"j" + job_id)
        if raw and (job := _decode_job(raw)).version < event["version"]:
            self._put(b"j" + job_id, _encode(replace(job, version=event["version"])))

    def _move_cursor(self, event: Event) -> None:
        """A recurring job's new run is its new pending occurrence; one that was triggered is beside the schedule."""
        if event["type"] != "run_scheduled":
            return
        job_id = _id_bytes(event["jobId"])
        raw = self._get(b"j" + job_id)
        if raw is None or not _is_occurrence(event):
            return
        job, cursor_us = _decode_job(raw), to_us(event["scheduledFor"])
        if cursor_us > job.cursor_us:
            self._delete(b"c" + _TIME.pack(job.cursor_us) + job_id)
            self._put_job(job_id, replace(job, cursor_us=cursor_us))

    def _put_job(self, job_id: bytes, job: JobTimer) -> None:
        self._put(b"j" + job_id, _encode(job))
        self._put(b"c" + _TIME.pack(job.cursor_us) + job_id, b"")
        self.jobs[job_id] = job.cursor_us

    def _place(self, run_id: bytes, kind: bytes, instant_us: int, version: int, value: bytes) -> None:
        self._unplace(run_id)
        if kind == b"l":
            self.first_expiry_us = min(self.first_expiry_us, instant_us)
        self._put(kind + _TIME.pack(instant_us) + run_id, value)
        self._put(b"r" + run_id, _WHERE.pack(kind, instant_us, version))

    def _unplace(self, run_id: bytes) -> None:
        if before := self._get(b"r" + run_id):
            kind, instant_us, _ = _WHERE.unpack(before)
            self._delete(kind + _TIME.pack(instant_us) + run_id)

    def _get(self, key: bytes) -> bytes | None:
        if key in self._written:
            return self._written[key]
        value: bytes | None = self._db.get(key)
        return value

    def _put(self, key: bytes, value: bytes) -> None:
        self.batch.put(key, value)
        self._written[key] = value

    def _delete(self, key: bytes) -> None:
        self.batch.delete(key)
        self._written[key] = None


_ONE_OFF = ("runAt", "delaySeconds")


class _Definition(Struct, rename="camel"):
    """A job's definition, as far as a timer needs it."""

    schedule: dict[str, Any]
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 1_000
    start_deadline_seconds: float | None = None


_decode_definition = msgspec.json.Decoder(_Definition).decode


def _timer(version: int, cursor_us: int, created_us: int, definition_json: str) -> JobTimer:
    """Of a definition that this build cannot read it has no schedule: whoever is to decide the job finds that out."""
    try:
        definition = _decode_definition(definition_json)
    except msgspec.DecodeError:
        definition = _Definition({})
    return JobTimer(
        version,
        cursor_us,
        created_us,
        definition.schedule,
        definition.catch_up,
        definition.catch_up_limit,
        definition.start_deadline_seconds,
    )


def _is_occurrence(event: Event) -> bool:
    """A triggered run has a nonce in its id, whatever its event says: it may have been held and released since."""
    run_id = UUID(event["runId"])
    return run_id == run_id_for(UUID(event["jobId"]), event["scheduledFor"], partition_of_run(run_id))


def _id_bytes(text: str) -> bytes:
    return UUID(text).bytes
