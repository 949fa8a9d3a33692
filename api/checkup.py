"""What the doctor reads of the ledger: of one shard in one session, and of all of them as if they were one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from ledger.checkups import (
    PartitionsCheckup,
    RunsCheckup,
    StalledJob,
    check_partitions,
    check_runs,
    stalled_jobs,
    tzdata_versions,
)
from ledger.connection import Connection
from ledger.outbox import outbox_lag
from ledger.pauses import Pause, list_pauses
from ledger.watchdogs import (
    Attendance,
    Snapshot,
    Standbys,
    oldest_snapshot,
    watch_partitions,
    watch_standbys,
)

UNDECIDED_WARN_S = 60.0
STALLED_LIMIT = 1_000  # jobs whose definitions are looked at


class Checkup(NamedTuple):
    """What the ledger says. Pauses are the same on every shard."""

    partitions: PartitionsCheckup
    runs: RunsCheckup
    outbox_rows: int
    outbox_s: float
    pauses: list[Pause]
    tzdata: set[str]
    stalled: list[StalledJob]
    attendance: Attendance
    standbys: Standbys
    snapshot: Snapshot | None


async def check_shard(conn: Connection, tenant: str) -> Checkup:
    """Looks at every run of the tenant."""
    return Checkup(
        await check_partitions(conn),
        await check_runs(conn, tenant),
        *await outbox_lag(conn),
        await list_pauses(conn, tenant),
        await tzdata_versions(conn, tenant),
        await stalled_jobs(conn, tenant, UNDECIDED_WARN_S, STALLED_LIMIT),
        await watch_partitions(conn),
        await watch_standbys(conn),
        await oldest_snapshot(conn),
    )


def together(found: Sequence[Checkup]) -> Checkup:
    """Those of several shards, at least one: the sum of what is counted, the longest of what lasts."""
    if len(found) == 1:
        return found[0]
    stalled = sorted(chain.from_iterable(each.stalled for each in found), key=lambda job: job.next_fire_at)
    return Checkup(
        _partitions([each.partitions for each in found]),
        _runs([each.runs for each in found]),
        sum(each.outbox_rows for each in found),
        max(each.outbox_s for each in found),
        found[0].pauses,
        set().union(*(each.tzdata for each in found)),
        stalled[:STALLED_LIMIT],
        _attendance([each.attendance for each in found]),
        _standbys([each.standbys for each in found]),
        max(
            (each.snapshot for each in found if each.snapshot), key=lambda snapshot: snapshot.held_s or 0, default=None
        ),
    )


def _partitions(found: Sequence[PartitionsCheckup]) -> PartitionsCheckup:
    return PartitionsCheckup(
        total=sum(each.total for each in found),
        oldest_decided_s=max(each.oldest_decided_s for each in found),
        undecided_partitions=sum(each.undecided_partitions for each in found),
        undecided_s=max(each.undecided_s for each in found),
    )


def _runs(found: Sequence[RunsCheckup]) -> RunsCheckup:
    return max(found, key=lambda each: each.overdue_s)._replace(
        overdue=sum(each.overdue for each in found),
        expired=sum(each.expired for each in found),
        expired_s=max(each.expired_s for each in found),
        dead_last_hour=sum(each.dead_last_hour for each in found),
    )


def _attendance(found: Sequence[Attendance]) -> Attendance:
    return Attendance(
        unowned=sum(each.unowned for each in found),
        unowned_s=max(each.unowned_s for each in found),
        silent=sum(each.silent for each in found),
        silent_s=max(each.silent_s for each in found),
    )


def _standbys(found: Sequence[Standbys]) -> Standbys:
    return Standbys(
        connected=sum(each.connected for each in found),
        synchronous=sum(each.synchronous for each in found),
        sync_missing=any(each.sync_missing for each in found),
        replay_lag_s=max(each.replay_lag_s for each in found),
        replay_lag_bytes=max(each.replay_lag_bytes for each in found),
    )
