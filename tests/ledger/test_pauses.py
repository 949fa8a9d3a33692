"""Pauses of queues and tenants: nothing is leased while one is open, everything is there when it ends."""

from __future__ import annotations

import pytest

from ledger.completions import Completion
from ledger.connection import session
from ledger.jobs import Policies
from ledger.pauses import (
    Pause,
    count_waiting,
    list_pauses,
    pause_queue,
    pause_tenant,
    resume_queue,
    resume_tenant,
)
from ledger.runs import find_due
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later


@pytest.mark.parametrize("policies", [Policies(), Policies(overlap=1)])
async def test_a_paused_queue_s_runs_are_not_leased_until_it_is_resumed(
    owned: OwnedPartition, policies: Policies
) -> None:
    [mail] = await owned.runs(1, policies=policies)
    [sms] = await owned.runs(1, queue="sms", policies=policies)
    [umbra] = await owned.runs(1, tenant="umbra", policies=policies)
    async with session(owned.pool) as conn:
        assert await pause_queue(conn, "acme", "mail", "token-1", now=NOW)
    assert ids(await owned.lease(mail, sms, umbra)) == {sms, umbra}
    assert await owned.state_of(mail) == "pending"
    async with session(owned.pool) as conn:
        assert await resume_queue(conn, "acme", "mail", "token-1", now=later(5))
    assert ids(await owned.lease(mail, now=later(5))) == {mail}


async def test_a_paused_tenant_s_runs_are_not_leased_whatever_their_queue(owned: OwnedPartition) -> None:
    mine = [*await owned.runs(1), *await owned.runs(1, queue="sms")]
    [other] = await owned.runs(1, tenant="umbra")
    async with session(owned.pool) as conn:
        await pause_queue(conn, "acme", "mail", "token-1")
        await pause_tenant(conn, "acme", "token-1")
    assert ids(await owned.lease(*mine, other)) == {other}
    async with session(owned.pool) as conn:
        await resume_tenant(conn, "acme", "token-1")
    assert ids(await owned.lease(*mine)) == {mine[1]}, "the queue's own pause goes on"


async def test_a_leased_run_goes_on_while_its_queue_is_paused(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    async with session(owned.pool) as conn:
        await pause_queue(conn, "acme", "mail", "token-1")
    assert await owned.complete(Completion(run.run_id, run.lease_token)) == [run.run_id]


async def test_polling_does_not_find_what_is_paused(owned: OwnedPartition) -> None:
    await owned.runs(2)
    async with session(owned.pool) as conn:
        await pause_queue(conn, "acme", "mail", "token-1")
        assert await find_due(conn, [("acme", "mail")], 10, now=NOW) == []
        await resume_queue(conn, "acme", "mail", "token-1")
        assert len(await find_due(conn, [("acme", "mail")], 10, now=NOW)) == 2


async def test_pausing_twice_and_resuming_twice_change_nothing_more(owned: OwnedPartition) -> None:
    async with session(owned.pool) as conn:
        assert not await resume_tenant(conn, "acme", "token-1")
        assert await pause_tenant(conn, "acme", "token-1", now=NOW)
        assert not await pause_tenant(conn, "acme", "token-2", now=later(1))
        assert await list_pauses(conn, "acme") == [Pause("acme", None, NOW, None, "token-1")]
        assert await resume_tenant(conn, "acme", "token-1", now=later(2))
        assert not await resume_tenant(conn, "acme", "token-1", now=later(3))
        assert await list_pauses(conn, "acme") == []


async def test_ended_pauses_are_kept_for_telling_why_a_run_waited(owned: OwnedPartition) -> None:
    async with session(owned.pool) as conn:
        for queue, begin in (("mail", 0), ("sms", 10), ("mail", 20)):
            await pause_queue(conn, "acme", queue, "t", now=later(begin))
            await resume_queue(conn, "acme", queue, "t", now=later(begin + 5))
        await pause_tenant(conn, "acme", "t", now=later(30))
        found = await list_pauses(conn, "acme", queue="mail", since=later(6))
        everything = await list_pauses(conn, "acme", since=NOW)
    assert [(pause.queue, pause.paused_at, pause.resumed_at) for pause in found] == [
        ("mail", later(20), later(25)),
        (None, later(30), None),
    ]
    assert len(everything) == 4


async def test_waiting_runs_are_counted_by_lane(owned: OwnedPartition) -> None:
    await owned.runs(3, lane=0)
    await owned.runs(2, lane=2)
    await owned.runs(1, due_at=later(60))
    await owned.lease(*(await owned.runs(2, lane=1)))
    async with session(owned.pool) as conn:
        assert await count_waiting(conn, "acme", "mail", now=NOW) == [3, 0, 2]
