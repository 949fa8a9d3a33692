"""The fence (`ledger/fence.py`, and the functions of `ledger/schema.sql` that it calls)."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Any

import msgspec

from ledger.fence import (
    CHANGE_JOB_STATES,
    FENCE_OWNER,
    FENCE_PARTITIONS,
    HOLD_JOB_STATES,
    RELEASE_PARTITION,
    SAY_DECIDED,
    TAKE_OVER,
)
from ledger.partitions import ADVANCE_OFFSET
from schemas.errors import EpochLost
from tests.simulation.postgres import Claim, Rows, Transaction, models
from tests.simulation.rows import Partition, Taken

Statement = Generator[int, Any, Rows]


@models(FENCE_OWNER)
def fence_owner(tx: Transaction, params: Any) -> Statement:
    """`fence_owner()`: the shared lock, and then, as a later snapshot, epoch and owner."""
    number, epoch, owner = params
    before = tx.get("partitions", number)
    if tx.keeps("fence lock"):
        yield from tx.advisory(("fence", number))
    found: Partition | None = tx.get("partitions", number) if tx.keeps("fence read") else before
    if tx.keeps("fence") and not (found and found.moved is None and (found.epoch, found.owner) == (epoch, owner)):
        raise EpochLost(number)
    tx.claims.append(Claim(tx.shard.number, number, epoch))
    return [(found.consumed_offset if found else 0, tx.now)]


@models(FENCE_PARTITIONS)
def fence_partitions(tx: Transaction, params: Any) -> Statement:
    """`fence_partitions()`: the shared locks, then whether all of them are on this shard."""
    [numbers] = params
    for number in numbers:
        if tx.keeps("fence lock"):
            yield from tx.advisory(("fence", number))
    for number in numbers:
        found = tx.get("partitions", number)
        if found is None or found.moved is not None:
            raise EpochLost
    return []


@models(HOLD_JOB_STATES)
def hold_job_states(tx: Transaction, params: Any) -> Statement:
    [numbers] = params
    for number in numbers:
        if tx.keeps("job states"):
            yield from tx.advisory(("job states", number))
    return []


@models(CHANGE_JOB_STATES)
def change_job_states(tx: Transaction, params: Any) -> Statement:
    [number] = params
    if tx.keeps("job states"):
        yield from tx.advisory(("job states", number), exclusive=True)
    return []


@models(TAKE_OVER)
def take_over(tx: Transaction, params: Any) -> Statement:
    """`take_over()`: the exclusive lock, then the epoch. A partition that is shut or not here yet gives no row."""
    number, owner = params
    if tx.keeps("takeover lock"):
        yield from tx.advisory(("fence", number), exclusive=True)
    found = yield from tx.lock("partitions", number)
    if found is None or found.moved is not None:
        return []
    taken = found.copied()
    taken.epoch, taken.owner = found.epoch + tx.keeps("epoch grows"), owner
    tx.put("partitions", number, taken)
    tx.place("takeovers", (number, taken.epoch), Taken(number, taken.epoch, owner))
    tx.acts.append(("taken over", number, taken.epoch, owner, found.consumed_offset))
    return [(taken.epoch, found.owner, found.consumed_offset, found.decided_through)]


@models(RELEASE_PARTITION)
def release_partition(tx: Transaction, params: Any) -> Statement:
    through, number, epoch, owner = params
    found = yield from tx.lock("partitions", number)
    if found is not None and (found.epoch, found.owner) == (epoch, owner):
        released = found.copied()
        released.owner = None
        _say(tx, released, through)
    return []


class _Word(msgspec.Struct):
    partition: int
    epoch: int
    owner: str
    through: datetime


@models(SAY_DECIDED)
def say_decided(tx: Transaction, params: Any) -> Statement:
    """A row that somebody else is writing to is skipped."""
    said: Rows = []
    [words] = params
    for word in msgspec.json.decode(words, type=list[_Word]):
        found: Partition | None = tx.get("partitions", word.partition)
        if found is None or (found.epoch, found.owner) != (word.epoch, word.owner):
            continue
        if found.decided_through >= word.through or tx.shard.locks.is_others(tx, ("partitions", word.partition)):
            continue
        yield from tx.lock("partitions", word.partition)
        _say(tx, found.copied(), word.through)
        said.append((word.partition,))
    return said


def _say(tx: Transaction, partition: Partition, through: datetime | None) -> None:
    """Where it is news: what recurs and has an occurrence before it, and so no decision of that, is noted for who
    watches."""
    tx.put("partitions", partition.partition, partition)
    if through is None or through <= partition.decided_through:
        return
    partition.decided_through = through
    undecided = [
        job.job_id
        for job in tx.all("jobs")
        if job.partition == partition.partition and job.state == "active" and "everySeconds" in job.definition
        if job.next_fire_at is not None and job.next_fire_at < through
    ]
    tx.acts.append(("decided through", partition.partition, partition.epoch, through, undecided))


@models(ADVANCE_OFFSET)
def advance_offset(tx: Transaction, params: Any) -> Statement:
    next_offset, number = params
    found = yield from tx.lock("partitions", number)
    if found is not None and tx.keeps("offset"):
        moved = found.copied()
        moved.consumed_offset = next_offset
        tx.put("partitions", number, moved)
    return []
