"""Dead letters: found by what is known of them, page by page, and given new attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from ledger.completions import Failure
from ledger.connection import session
from ledger.dead_letters import DeadFilter, DeadRun, Replay, count_dead, list_dead
from ledger.jobs import Policies
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later, names

ACME = DeadFilter("acme")


async def dead_run(owned: OwnedPartition, reason: str = "boom", at: datetime = NOW, **changes: Any) -> UUID:
    leased = await owned.leased_run(now=at, due_at=NOW, **changes)
    await owned.fail(Failure(leased.run_id, leased.lease_token, reason, permanent=True), now=at)
    return leased.run_id


async def listed(owned: OwnedPartition, which: DeadFilter, **page: Any) -> list[DeadRun]:
    async with session(owned.pool) as conn:
        return await list_dead(conn, which, **page)


async def test_a_dead_run_is_listed_with_what_it_died_of(owned: OwnedPartition) -> None:
    run_id = await dead_run(owned, "no route to host")
    [dead] = await listed(owned, ACME)
    assert (dead.run_id, dead.died_at, dead.reason, dead.attempt, dead.payload) == (
        run_id,
        NOW,
        "no route to host",
        1,
        '{"n":1}',
    )


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (ACME, "abc"),
        (DeadFilter("umbra"), "d"),
        (DeadFilter("acme", queues=["sms"]), "b"),
        (DeadFilter("acme", queues=["sms", "mail"]), "abc"),
        (DeadFilter("acme", queues=[]), ""),
        (DeadFilter("acme", since=later(1)), "bc"),
        (DeadFilter("acme", until=later(1)), "a"),
        (DeadFilter("acme", since=later(1), until=later(2)), "b"),
        (DeadFilter("acme", reason="TIMED"), "bc"),
        (DeadFilter("acme", reason="%"), ""),
    ],
)
async def test_a_filter_finds_what_it_says(owned: OwnedPartition, which: DeadFilter, found: str) -> None:
    runs = {
        await dead_run(owned, "boom"): "a",
        await dead_run(owned, "timed out", later(1), queue="sms"): "b",
        await dead_run(owned, "Timed out", later(2)): "c",
        await dead_run(owned, "timed out", later(1), tenant="umbra"): "d",
    }
    assert "".join(runs[dead.run_id] for dead in await listed(owned, which)) == found
    async with session(owned.pool) as conn:
        assert await count_dead(conn, which) == len(found)


async def test_a_job_s_dead_runs_are_found(owned: OwnedPartition) -> None:
    await dead_run(owned)
    run_id = await dead_run(owned)
    [wanted] = [dead for dead in await listed(owned, ACME) if dead.run_id == run_id]
    assert await listed(owned, DeadFilter("acme", job_id=wanted.job_id)) == [wanted]


async def test_pages_go_on_after_the_last_one_seen(owned: OwnedPartition) -> None:
    run_ids = {await dead_run(owned, at=later(second // 2)) for second in range(7)}
    seen: list[DeadRun] = []
    while page := await listed(owned, ACME, limit=2, after=seen[-1][:2] if seen else None):
        seen += page
    assert [dead[:2] for dead in seen] == sorted(dead[:2] for dead in seen)
    assert {dead.run_id for dead in seen} == run_ids
    assert len(seen) == 7


async def test_a_replay_gives_all_attempts_again_and_a_larger_token(owned: OwnedPartition) -> None:
    run_id = await dead_run(owned, max_attempts=2, policies=Policies(timeout_s=20.0, start_deadline_s=5.0))
    replayed = await owned.replay(Replay(run_id), now=later(100))
    assert (replayed.run_ids, [run.run_id for run in replayed.waiting]) == ([run_id], [run_id])
    assert await listed(owned, ACME) == []
    [leased] = await owned.lease(run_id, now=later(100))
    assert (leased.attempt, leased.lease_token, leased.lease_expires_at) == (1, 2, later(120))
    told = await owned.events_of(run_id)
    assert names(told) == ["run_scheduled", "run_leased", "run_dead", "run_scheduled", "run_leased"]
    assert ([each.version for each in told], told[3].fields["reasons"]) == ([1, 2, 3, 4, 5], "replayed")


async def test_a_replay_may_be_due_later(owned: OwnedPartition) -> None:
    run_id = await dead_run(owned)
    [waits] = (await owned.replay(Replay(run_id, later(60)))).waiting
    assert waits.due_at == later(60)
    assert await owned.lease(run_id, now=later(59)) == []
    assert ids(await owned.lease(run_id, now=later(60))) == {run_id}


async def test_a_run_is_replayed_once(owned: OwnedPartition) -> None:
    run_id = await dead_run(owned)
    await owned.replay(Replay(run_id))
    assert await owned.replay(Replay(run_id)) == ([], [])


async def test_a_paused_job_holds_what_is_replayed_and_a_deleted_one_has_nothing_replayed(
    owned: OwnedPartition,
) -> None:
    paused, deleted = await dead_run(owned), await dead_run(owned)
    jobs = {dead.run_id: dead.job_id for dead in await listed(owned, ACME)}
    await owned.pause(jobs[paused])
    await owned.delete(jobs[deleted])
    assert await owned.replay(Replay(paused), Replay(deleted)) == ([paused], [])
    assert [await owned.state_of(run_id) for run_id in (paused, deleted)] == ["held", "dead"]
