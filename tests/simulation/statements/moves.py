"""Moving a partition to another shard: copy, then cut over by epoch. Two databases, and no transaction over both.

A move has a number that home gives out. Its steps, each a transaction: `begin` at home; `prepare` a place on the
target, shut; `shut` the source, once its writers have ended, under a new epoch; `copy` the rows; `decide` at home, from
where on there is no way back; `open` the target under another epoch; `clear` the source, and say so at home. Until
`decide` it can be called off: home forgets it, the source is opened again under a new epoch, the target is cleared.
Source and target refuse a number that they know to be over, so that a mover who was frozen changes nothing when it
wakes. The product has no such command yet: placements do not change. This is the protocol that it would follow.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from schemas.errors import EpochLost
from tests.simulation.placements import Placement
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Partition
from tests.simulation.statements.fence import Statement

BEGIN_MOVE = "begin_move"
PREPARE_TARGET = "prepare_target"
SHUT_SOURCE = "shut_source"
COUNT_UNTOLD = "count_untold"
READ_COPY = "read_copy"
WRITE_COPY = "write_copy"
DECIDE_MOVE = "decide_move"
OPEN_TARGET = "open_target"
CLEAR_COPY = "clear_copy"
END_MOVE = "end_move"
CALL_OFF = "call_off"
REOPEN_SOURCE = "reopen_source"

_OF_A_PARTITION = ("jobs", "runs", "dead_runs")


def _placement(tx: Transaction, number: int) -> Generator[int, Any, Placement]:
    found: Placement = yield from tx.lock("placements", number)
    return found.copied()


@models(BEGIN_MOVE)
def begin_move(tx: Transaction, params: Any) -> Statement:
    """At home. None while the move before is not over."""
    partition, target = params
    placement = yield from _placement(tx, partition)
    if placement.moving_to is not None or placement.left_at is not None or placement.shard == target:
        return [None]
    placement.number, placement.moving_to = placement.number + 1, target
    tx.put("placements", partition, placement)
    return [placement]


@models(PREPARE_TARGET)
def prepare_target(tx: Transaction, params: Any) -> Statement:
    """A place of this very move stays as it is: another one at it may have copied to it, and be about to decide."""
    partition, number = params
    found: Partition | None = yield from tx.lock("partitions", partition)
    if found is not None and (found.moved is None or found.moved > number):
        raise EpochLost(partition)
    if found is None or found.moved != number or not tx.keeps("prepared place"):
        tx.put("partitions", partition, Partition(partition, moved=number))
    return []


@models(SHUT_SOURCE)
def shut_source(tx: Transaction, params: Any) -> Statement:
    """The exclusive lock waits for every writer; from then on the fence refuses them."""
    partition, number = params
    if tx.keeps("move lock"):
        yield from tx.advisory(("fence", partition), exclusive=True)
    found: Partition | None = yield from tx.lock("partitions", partition)
    if found is None or found.settled >= number or (found.moved is not None and found.moved != number):
        raise EpochLost(partition)
    if tx.keeps("move epoch"):
        shut = found.copied()
        shut.moved, shut.epoch, shut.owner = number, found.epoch + 1, None
        tx.put("partitions", partition, shut)
    return []


@models(COUNT_UNTOLD)
def count_untold(tx: Transaction, params: Any) -> Rows:
    """Events of the partition that the source's relay has not published: they are to come before the target's."""
    return [(sum(told.partition == params[0] for told in tx.shard.outbox.values()),)]


@models(READ_COPY)
def read_copy(tx: Transaction, params: Any) -> Rows:
    partition, number = params
    found: Partition | None = tx.get("partitions", partition)
    if found is None or (found.moved != number and tx.keeps("move epoch")):
        raise EpochLost(partition)
    rows = {table: [row for row in tx.all(table) if row.partition == partition] for table in _OF_A_PARTITION}
    jobs = {job.job_id for job in rows["jobs"]}
    tables = tx.shard.tables
    slots = [(job_id, run_id) for job_id, run_id in tables["job_slots"].items() if job_id in jobs]
    return [(found, rows, slots, list(tables["applied_commands"].values()), list(tables["lease_requests"].values()))]


@models(WRITE_COPY)
def write_copy(tx: Transaction, params: Any) -> Statement:
    """All of it, in place of what an earlier try has copied."""
    partition, number, (source, rows, slots, outcomes, requests) = params
    found: Partition | None = yield from tx.lock("partitions", partition)
    if (found is None or found.moved != number) and tx.keeps("copy fence"):
        raise EpochLost(partition)
    copied = source.copied()
    copied.moved, copied.owner = number, None
    if tx.keeps("copy fence") or found is None:
        tx.put("partitions", partition, copied)
    _drop_rows(tx, partition)
    for table in _OF_A_PARTITION:
        for row in rows[table]:
            tx.place(table, row.job_id if table == "jobs" else row.run_id, row)
    for job_id, run_id in slots:
        tx.place("job_slots", job_id, run_id)
    for outcome in outcomes:
        tx.place("applied_commands", outcome.command_id, outcome)
    for request in requests:
        if tx.get("lease_requests", request.request_id) is None:
            tx.place("lease_requests", request.request_id, request)
    return []


@models(DECIDE_MOVE)
def decide_move(tx: Transaction, params: Any) -> Statement:
    """At home: the partition is on the target from here on."""
    partition, number = params
    placement = yield from _placement(tx, partition)
    if placement.number != number or placement.moving_to is None:
        raise EpochLost(partition)
    placement.left_at, placement.shard, placement.moving_to = placement.shard, placement.moving_to, None
    tx.put("placements", partition, placement)
    return []


@models(OPEN_TARGET)
def open_target(tx: Transaction, params: Any) -> Statement:
    partition, number = params
    yield from tx.advisory(("fence", partition), exclusive=True)
    found: Partition | None = yield from tx.lock("partitions", partition)
    if found is not None and found.moved == number:
        opened = found.copied()
        opened.moved, opened.settled, opened.epoch = None, number, found.epoch + 1
        tx.put("partitions", partition, opened)
    return []


def _drop_rows(tx: Transaction, partition: int) -> None:
    jobs = {job.job_id for job in tx.all("jobs") if job.partition == partition}
    for job_id in tx.shard.tables["job_slots"]:
        if job_id in jobs:
            tx.place("job_slots", job_id, None)
    for table in _OF_A_PARTITION:
        for row in tx.all(table):
            if row.partition == partition:
                tx.place(table, row.job_id if table == "jobs" else row.run_id, None)


@models(CLEAR_COPY)
def clear_copy(tx: Transaction, params: Any) -> Statement:
    """Of a shard that the partition is not on: the source of a move that is decided, the target of one called off."""
    partition, number = params
    found: Partition | None = yield from tx.lock("partitions", partition)
    is_shut = found is not None and found.moved is not None and found.moved <= number
    if is_shut or not tx.keeps("move epoch"):
        _drop_rows(tx, partition)
        tx.put("partitions", partition, None)
    return []


@models(END_MOVE)
def end_move(tx: Transaction, params: Any) -> Statement:
    """At home: nothing is left on the source."""
    partition, number = params
    placement = yield from _placement(tx, partition)
    if placement.number == number:
        placement.left_at = None
        tx.put("placements", partition, placement)
    return []


@models(CALL_OFF)
def call_off(tx: Transaction, params: Any) -> Statement:
    """At home. False when it was decided meanwhile."""
    partition, number = params
    placement = yield from _placement(tx, partition)
    if placement.number != number or placement.moving_to is None:
        return [False]
    placement.moving_to = None
    tx.put("placements", partition, placement)
    return [True]


@models(REOPEN_SOURCE)
def reopen_source(tx: Transaction, params: Any) -> Statement:
    """Once home has called the move off: whoever still is at it is refused from here on."""
    partition, number = params
    yield from tx.advisory(("fence", partition), exclusive=True)
    found: Partition | None = yield from tx.lock("partitions", partition)
    if found is not None and found.settled < number:
        opened = found.copied()
        opened.settled = number
        if found.moved is not None and found.moved <= number:
            opened.moved, opened.epoch = None, found.epoch + 1
        tx.put("partitions", partition, opened)
    return []
