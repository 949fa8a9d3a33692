"""Runs of a job that does not allow overlap: what kept one of them waiting, told by the leases of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from api.history_client import KnownEvent, KnownLease
from ledger.runs import RunState
from schemas.waits import Hindrance

_IN_TURN = 3  # see runs.overlap in ledger/schema.sql


def goes_in_turn(row: RunState | None, events: Sequence[KnownEvent]) -> bool:
    """Whether others of its job keep a gated run waiting between their attempts, too. Of one that has ended its making
    tells: a backfill's."""
    if row is not None and row.state != "dead":
        return row.overlap == _IN_TURN
    return events[0].reason == "backfill"


def while_leased(leases: Sequence[KnownLease]) -> Iterator[Hindrance]:
    for lease in leases:
        yield Hindrance("overlap", lease.since, lease.until, f"run {lease.run_id} of its job was leased")


def between_leases(leases: Sequence[KnownLease], still_waiting: Collection[UUID]) -> Iterator[Hindrance]:
    """What lies between two leases of a run, and after the last one of those that still wait.

    leases: in the order of their beginnings.
    """
    last: dict[UUID, KnownLease] = {}
    for lease in leases:
        if (before := last.get(lease.run_id)) and before.until:
            yield Hindrance("overlap", before.until, lease.since, _before_it(lease.run_id))
        last[lease.run_id] = lease
    for run_id in last.keys() & still_waiting:
        if since := last[run_id].until:
            yield Hindrance("overlap", since, None, _before_it(run_id))


def _before_it(run_id: UUID) -> str:
    return f"run {run_id} of its job goes before it, and waited for its next attempt"
