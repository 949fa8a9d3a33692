"""A partition's timing state in RocksDB: what is due when, which lease ends when, which job fires next when.

It is a cache of the ledger, folded from run events, and never the truth: dropping it loses nothing. Every change is
guarded by the run's (or job's) version, so events may come twice or late, and from the ledger as well as from Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from rocksdict import Rdict, WriteBatch, WriteOptions

from schemas.events import Event
from streams.timers import (
    POSITION,
    TIME,
    WHERE,
    JobTimer,
    Position,
    WaitingRun,
    decode_job,
    decode_waiting,
    encode,
    timer_of,
)
from streams.timing_fold import Changed, Fold
from streams.timing_store import hold_compaction, iterate, open_store, unlogged

_NEVER_US = (1 << 63) - 1


_REPLAYED_AT_MOST_BYTES = 1 << 20
_MANY = 50_000  # keys; fewer are not worth a file of their own at once


class TimingState:
    """One partition's state, in a folder of its own. Not thread-safe; calls take microseconds and do not sync."""

    def __init__(self, folder: Path) -> None:
        self._db = open_store(folder)
        self._leases_from_us = 0  # no lease that is known here ends before

    def close(self) -> None:
        if (self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0) > _REPLAYED_AT_MOST_BYTES:
            self._db.flush()  # else the next start would replay all of it from the log
        self._db.close()

    def position(self) -> Position | None:
        """How far this state is; None when it is new."""
        raw = self._db.get(b"p")
        return Position(*POSITION.unpack(raw)) if raw else None

    def owner(self) -> str | None:
        """Who wrote this state, under the position's epoch; None when it is not known."""
        raw: bytes | None = self._db.get(b"o")
        return raw.decode() if raw else None

    def set_owner(self, owner: str) -> None:
        self._db.put(b"o", owner.encode())

    def keys(self) -> int:
        """About how many there are: four for a recurring job and its run."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

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
        change = Fold(self._db)
        for event in events:
            change.apply(event)
        change.write(position)
        self._leases_from_us = min(self._leases_from_us, change.first_expiry_us)
        return change.changed

    def waiting(self, run_id: bytes) -> tuple[int, WaitingRun] | None:
        """When the run is due, and how it waits; None unless it does."""
        where = self._db.get(b"r" + run_id)
        if where is None or where[:1] != b"d":
            return None
        raw = self._db.get(b"d" + where[1:9] + run_id)
        return (TIME.unpack_from(where, 1)[0], decode_waiting(raw)) if raw else None

    def job(self, job_id: bytes) -> JobTimer | None:
        """The job's timer, if it still has one."""
        raw = self._db.get(b"j" + job_id)
        return decode_job(raw) if raw else None

    def version(self, run_id: bytes) -> int | None:
        """The version of a run as it is known here."""
        raw = self._db.get(b"r" + run_id)
        return WHERE.unpack(raw)[2] if raw else None

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

    def next_expiry_us(self) -> int | None:
        """From when on `expiring` may have something; None while nothing is leased."""
        return None if self._leases_from_us == _NEVER_US else self._leases_from_us + 1

    def rearm_lease(self, run_id: bytes, expires_us: int) -> None:
        """The run's lease was extended: heartbeats make no events."""
        change = Fold(self._db)
        change.move_lease(run_id, expires_us)
        change.write()
        self._leases_from_us = min(self._leases_from_us, change.first_expiry_us)

    def forget_run(self, run_id: bytes) -> None:
        """The ledger does not know the run any more."""
        change = Fold(self._db)
        change.drop_run(run_id)
        change.write()

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
        change = Fold(self._db)
        change.drop_job(job_id)
        change.write()

    def _ids(self, kind: bytes, after: bytes, limit: int) -> list[bytes]:
        # A page at a time: an iterator that stays open keeps the state from being closed.
        start, end = kind + after + (b"\x00" if after else b""), bytes([kind[0] + 1])
        return [key[1:] for key, _ in islice(iterate(self._db, start, end), limit)]

    def _scan(self, kind: bytes, from_key: bytes, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for key, _ in iterate(self._db, kind + from_key, kind + TIME.pack(until_us)):
            found.append((TIME.unpack_from(key, 1)[0], key[9:]))
            if len(found) == limit:
                break
        return found


def scan_key(instant_us: int, key: bytes = b"") -> bytes:
    """Where a scan goes on: after this timer, or at this instant. Never from the first key: dead ones pile up there."""
    return TIME.pack(instant_us) + (key + b"\x00" if key else b"")


class Filling:
    """Rows on their way into an empty state: each key is written once, so nothing is looked up, and little is logged.

    Nothing of it is sure before done(): what was filled halfway is cleared and filled anew.
    """

    def __init__(self, db: Rdict) -> None:
        self._db, self._batch = db, WriteBatch(raw_mode=True)
        self._written = 0
        self._unlogged: WriteOptions | None = None

    def add_waiting(self, run_id: bytes, due_us: int, version: int, run: WaitingRun) -> None:
        self._place(run_id, b"d", due_us, version, encode(run))

    def add_lease(self, run_id: bytes, expires_us: int, version: int) -> None:
        self._place(run_id, b"l", expires_us, version, b"")

    def add_job(self, job_id: bytes, version: int, cursor_us: int, created_us: int, definition: str) -> None:
        """A job with a pending occurrence; one that fires once needs no timer."""
        if timer := timer_of(version, cursor_us, created_us, definition):
            self._batch.put(b"j" + job_id, encode(timer))
            self._batch.put(b"c" + TIME.pack(cursor_us) + job_id, b"")

    def write(self) -> None:
        """Now and then: what was added leaves this process's hands."""
        self._written += len(self._batch)
        if self._written > _MANY and self._unlogged is None:
            self._unlogged = unlogged()
            hold_compaction(self._db, True)
        self._db.write(self._batch, self._unlogged)
        self._batch = WriteBatch(raw_mode=True)

    def done(self) -> None:
        """All of it is kept once this returns. A partition with little in it has nothing to wait for."""
        self.write()
        if self._unlogged is not None:
            self._db.flush()
            hold_compaction(self._db, False)

    def _place(self, run_id: bytes, kind: bytes, instant_us: int, version: int, value: bytes) -> None:
        self._batch.put(kind + TIME.pack(instant_us) + run_id, value)
        self._batch.put(b"r" + run_id, WHERE.pack(kind, instant_us, version))
