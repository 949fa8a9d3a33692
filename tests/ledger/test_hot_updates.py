"""What the hot path costs: no update of it touches an index, and every statement of it goes by the primary key."""

from __future__ import annotations

from uuid import UUID

import pytest
from psycopg import sql

from ledger.admissions import FIND_LATE
from ledger.advances import Advance, advance_jobs
from ledger.completions import COMPLETE_RUNS, END_REPLACED, EXPIRE_LEASES, FAIL_RUNS, Completion
from ledger.connection import Connection, session
from ledger.fence import api_transaction, owner_transaction
from ledger.jobs import Policies
from ledger.leases import EXTEND_LEASES, LEASE_GATED_RUNS, LEASE_RUNS, RELEASE_RUNS, Beat, HeldLease, extend_leases
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition, later

CYCLES = 40
UPDATES = "SELECT n_tup_upd, n_tup_hot_upd, n_tup_newpage_upd FROM pg_stat_user_tables WHERE relname = %s"


async def updates_of(table: str, conn: Connection) -> tuple[int, int, int]:
    """(all, hot, to another page) since the statistics began."""
    await conn.execute("SELECT pg_stat_force_next_flush()")
    row = await (await conn.execute(UPDATES, (table,))).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


@pytest.mark.parametrize("deadline_s", [None, 600.0])
async def test_leases_heartbeats_and_releases_touch_no_index(owned: OwnedPartition, deadline_s: float | None) -> None:
    """A page has room for a few versions of its rows, and the next update prunes what nobody sees any more."""
    run_ids = await owned.runs(20, max_attempts=100, policies=Policies(start_deadline_s=deadline_s))
    # One session for all: statistics are kept by each until it flushes them.
    async with session(owned.pool) as conn:
        await conn.execute("VACUUM runs")
        before = await updates_of("runs", conn)
    for _ in range(CYCLES):
        leases = await owned.lease(*run_ids)
        async with api_transaction(owned.pool, run_ids) as conn:
            await extend_leases(conn, [Beat(run.run_id, run.lease_token, 60.0) for run in leases], now=later(1))
        await owned.release(*(HeldLease(run.run_id, run.lease_token) for run in leases))
    await flush_all_sessions(owned)
    async with session(owned.pool) as conn:
        after = await updates_of("runs", conn)
    updates, hot, moved = (now - then for now, then in zip(after, before, strict=True))
    assert updates == 3 * CYCLES * len(run_ids)
    # What is not hot can only have moved for want of room: an indexed column that changed would not be hot in place.
    assert updates - hot == moved
    assert hot >= 0.9 * updates


async def test_moves_of_a_cursor_touch_no_index(owned: OwnedPartition) -> None:
    jobs = [owned.new_job(definition='{"queue":"mail","schedule":{"everySeconds":60}}') for _ in range(20)]
    await owned.create(*jobs)
    async with session(owned.pool) as conn:
        await conn.execute("VACUUM jobs")
        before = await updates_of("jobs", conn)
    for cycle in range(CYCLES):
        at, fire = later(60 * cycle), later(60 * cycle + 60)
        runs = [run_id_for(job.job_id, fire, owned.fence.partition) for job in jobs]
        moves = [Advance(job.job_id, 1, at, fire, run_id, fire) for job, run_id in zip(jobs, runs, strict=True)]
        async with owner_transaction(owned.pool, owned.fence) as tx:
            assert len(await advance_jobs(tx, moves, now=at)) == len(jobs)
    await flush_all_sessions(owned)
    async with session(owned.pool) as conn:
        after = await updates_of("jobs", conn)
    updates, hot, moved = (now - then for now, then in zip(after, before, strict=True))
    assert updates == CYCLES * len(jobs)
    assert updates - hot == moved
    assert hot >= 0.9 * updates


async def flush_all_sessions(owned: OwnedPartition) -> None:
    sessions = [await owned.pool.getconn() for _ in range(owned.pool.max_size)]
    for conn in sessions:
        await conn.execute("SELECT pg_stat_force_next_flush()")
        await conn.execute("SELECT 1")
    for conn in sessions:
        await owned.pool.putconn(conn)


async def test_finishing_updates_nothing(owned: OwnedPartition) -> None:
    leases = await owned.lease(*await owned.runs(20))
    await flush_all_sessions(owned)
    async with session(owned.pool) as conn:
        before = await updates_of("runs", conn)
    await owned.complete(*(Completion(run.run_id, run.lease_token) for run in leases))
    await flush_all_sessions(owned)
    async with session(owned.pool) as conn:
        assert await updates_of("runs", conn) == before


async def test_no_index_covers_a_column_that_lease_heartbeat_or_finish_changes(owned: OwnedPartition) -> None:
    changed = {"state", "version", "attempt", "lease_token", "lease_expires_at", "worker_id", "cancel_reason"}
    changed |= {"attempt_ends_at", "progress"}  # start_by goes when there is another due_at, which all are found by
    async with session(owned.pool) as conn:
        rows = await conn.execute("""
            SELECT a.attname FROM pg_index i, pg_attribute a
            WHERE i.indrelid = 'runs'::regclass AND a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        """)
        assert not changed & {row[0] for row in await rows.fetchall()}
        partial = await conn.execute("""
            SELECT pg_get_expr(indpred, indrelid), indexprs FROM pg_index
            WHERE indrelid = 'runs'::regclass AND (indpred IS NOT NULL OR indexprs IS NOT NULL) ORDER BY 1
        """)
        # The one is set when a run is made or moved, the other when it is made.
        assert await partial.fetchall() == [("(rate_version IS NOT NULL)", None), ("(start_by IS NOT NULL)", None)]


STATEMENTS = {
    "lease": LEASE_RUNS,
    "lease gated": LEASE_GATED_RUNS,
    "heartbeat": EXTEND_LEASES,
    "complete": COMPLETE_RUNS,
    "end replaced": END_REPLACED,
    "fail": FAIL_RUNS,
    "release": RELEASE_RUNS,
    "expire": EXPIRE_LEASES,
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_every_statement_about_runs_goes_by_the_primary_key(owned: OwnedPartition, name: str) -> None:
    """A scan by partition or queue would be slower, and lock rows in another order than the ids'."""
    run_ids = await owned.runs(300)
    parameters = parameters_for(run_ids[:50])
    async with session(owned.pool) as conn:
        await conn.execute("ANALYZE runs, jobs, job_slots")
        plan = await (await conn.execute(sql.SQL("EXPLAIN " + STATEMENTS[name]), parameters)).fetchall()
    lines = [row[0] for row in plan]
    scans = [line for line in lines if "Scan" in line and (" on runs" in line or " on job" in line)]
    assert scans
    # runs s: whether it is the turn of a run that goes in turn; asked of no other, and locks nothing.
    allowed = ("runs_pkey", "jobs_pkey", "job_slots_pkey", "runs_by_partition on runs s")
    assert all(any(name in line for name in allowed) for line in scans), "\n".join(lines)


async def test_runs_that_are_too_late_to_start_are_found_without_looking_at_the_others(owned: OwnedPartition) -> None:
    """However many wait: an owner looks every half minute."""
    await owned.runs(300)
    await owned.runs(5, policies=Policies(start_deadline_s=10.0))
    parameters = {"partition": owned.fence.partition, "limit": 500, "now": later(11)}
    async with session(owned.pool) as conn:
        await conn.execute("ANALYZE runs")
        explained = await conn.execute(sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) " + FIND_LATE), parameters)
        [[[plan]]] = await explained.fetchall()
    [scan] = plan["Plan"]["Plans"]
    assert (scan["Index Name"], scan["Actual Rows"], scan["Rows Removed by Filter"]) == ("runs_by_deadline", 5, 0)


def parameters_for(run_ids: list[UUID]) -> dict[str, object]:
    count = len(run_ids)
    return {
        "run_ids": run_ids,
        "epochs": [1] * count,
        "worker_ids": ["w"] * count,
        "visibility_s": [30.0] * count,
        "request_ids": [None] * count,
        "lease_tokens": [1] * count,
        "results": [None] * count,
        "reasons": ["boom"] * count,
        "permanent": [False] * count,
        "retry_after_s": [None] * count,
        "delays_s": [None] * count,
        "progress": [None] * count,
        "tenants": [None] * count,
        "queues": [None] * count,
        "now": NOW,
    }
