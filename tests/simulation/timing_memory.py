"""A partition's timing state without a disk: the product's own, over a dict instead of RocksDB.

What events do to it, how it is scanned, and the wheels above it are the product's code.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from schemas.events import Event
from streams.partition_memory import PartitionMemory
from streams.timers import POSITION, TIME, Position
from streams.timing_fold import Changed, Fold, _write_job, _write_run
from streams.timing_state import TimingState

_NEVER_US = (1 << 63) - 1


class Store:
    """What `Rdict` is to the timing state; also its own write batch, for nothing comes between two writes here."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        if self._values.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def clear(self) -> None:
        self._values.clear()
        self._keys.clear()

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        return self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]


class StoreFold(Fold):
    """A fold that writes to a `Store`."""

    def write(self, position: Position | None = None) -> None:
        store: Any = self._db
        for run_id, run in self._runs.items():
            _write_run(store, run_id, self._runs_before[run_id], run)
        for job_id, job in self._jobs.items():
            _write_job(store, job_id, self._jobs_before[job_id], job)
        if position is not None:
            store.put(b"p", POSITION.pack(*position))


class StoredTimers(TimingState):
    """The timing state over a `Store`, which outlives its process as a folder does."""

    def __init__(self, store: Store) -> None:
        self._db: Any = store
        self._leases_from_us = 0

    def keys(self) -> int:
        return len(self._db.keys(b"", b"\xff"))

    def clear(self) -> None:
        self._db.clear()
        self._leases_from_us = 0

    def fold(self, events: Iterable[Event], position: Position | None = None) -> Changed:
        change = StoreFold(self._db)
        for event in events:
            change.apply(event)
        return self._written(change, position)

    def rearm_lease(self, run_id: bytes, expires_us: int) -> None:
        change = StoreFold(self._db)
        change.move_lease(run_id, expires_us)
        self._written(change)

    def forget_run(self, run_id: bytes) -> None:
        change = StoreFold(self._db)
        change.drop_run(run_id)
        self._written(change)

    def forget_job(self, job_id: bytes) -> None:
        change = StoreFold(self._db)
        change.drop_job(job_id)
        self._written(change)

    def _written(self, change: StoreFold, position: Position | None = None) -> Changed:
        change.write(position)
        self._leases_from_us = min(self._leases_from_us, change.first_expiry_us)
        return change.changed

    def _scan(self, kind: bytes, from_key: bytes, until_us: int, limit: int) -> list[tuple[int, bytes]]:
        keys = self._db.keys(kind + from_key, kind + TIME.pack(min(until_us, _NEVER_US)))
        return [(TIME.unpack_from(key, 1)[0], key[9:]) for key in keys[:limit]]


class MemoryOfPartition(PartitionMemory):
    """The product's memory of a partition, over a `Store`."""

    def __init__(self, store: Store) -> None:
        self.state = StoredTimers(store)
        self.undecidable: set[bytes] = set()
        self._begin()
