"""POST /v1/queues/{queue}/lease: what a worker gets, when, and what happens to it when nobody is there to take it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from api.app import Api
from api.leases import END_TOGETHER_S, LONG_WAIT_S, _end
from ledger.connection import Pool, session
from ledger.fence import take_over
from ledger.runs import read_run
from ledger.shard_map import HOME
from schemas.ids import partition_of_run, run_id_for
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

MAIL = ("acme", "mail")


def ids(runs: list[dict]) -> list[UUID]:
    return [UUID(run["runId"]) for run in runs]


async def state_of(pool: Pool, run_id: UUID) -> tuple[str, int]:
    async with session(pool) as conn:
        run = await read_run(conn, run_id)
    assert run is not None
    return run.state, run.attempt


# What a look after the first would find is not what these tests are about.
seldom_looked_at = pytest.mark.parametrize("look_every_s", [(60.0, 60.0)])


async def waiting(api: Api, count: int) -> None:
    """Return once so many lease calls wait."""
    async with asyncio.timeout(20):
        while len(api.leases._waiting or ()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # nothing tells it: a gauge is all there is


async def looked(api: Api) -> None:
    """Return once the look into the ledger is over that every first waiter causes."""
    async with asyncio.timeout(20):
        while api.metrics.ready_polls._value.get() == 0 or api.poll.may_look(MAIL):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)  # its statement, which nothing tells of either


def told(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a repeated call tells again: all but how long the leases last from now on, and in any order."""
    same = [{name: value for name, value in run.items() if name != "leaseSeconds"} for run in runs]
    return sorted(same, key=lambda run: str(run["runId"]))


async def test_lease_gives_due_runs_with_all_that_a_worker_needs(worker: Caller, owner: Owner) -> None:
    [run_id] = await owner.make_due(payload='{"to": ["a@b.c"]}')
    before = datetime.now(UTC)
    [run] = await worker.lease(visibilitySeconds=60)
    assert set(run) == {
        "runId", "jobId", "attempt", "leaseToken", "leaseExpiresAt", "leaseSeconds", "scheduledFor", "dueAt", "queue",
        "payload",
    }  # fmt: skip
    assert run["runId"] == str(run_id)
    assert run["payload"] == {"to": ["a@b.c"]}
    assert (run["attempt"], run["leaseToken"], run["queue"]) == (1, 1, "mail")
    assert run["leaseExpiresAt"].endswith("Z")
    expires_in_s = (datetime.fromisoformat(run["leaseExpiresAt"]) - before).total_seconds()
    assert expires_in_s == pytest.approx(60, abs=2)


async def test_a_run_without_payload_has_a_null_payload(worker: Caller, owner: Owner) -> None:
    await owner.make_due()
    [run] = await worker.lease()
    assert run["payload"] is None


async def test_instants_keep_their_microseconds(worker: Caller, owner: Owner, ledger_pool: Pool) -> None:
    [run_id] = await owner.make_due()
    [run] = await worker.lease()
    async with session(ledger_pool) as conn:
        row = await read_run(conn, run_id)
    assert row is not None
    assert datetime.fromisoformat(run["scheduledFor"]) == row.scheduled_for


async def test_no_more_than_max_runs_come_and_never_the_same_twice(worker: Caller, owner: Owner) -> None:
    made = await owner.make_due(25)
    got = [await worker.lease(max=10) for _ in range(4)]
    assert [len(runs) for runs in got] == [10, 10, 5, 0]
    assert [run_id for runs in got for run_id in ids(runs)] == made


async def test_runs_come_by_due_time_within_a_lane(worker: Caller, owner: Owner) -> None:
    later = await owner.make_due(due_in_s=-1)
    earlier = await owner.make_due(due_in_s=-60)
    assert ids(await worker.lease()) == earlier + later


async def test_lanes_are_popped_seventy_twenty_ten(worker: Caller, owner: Owner) -> None:
    lanes = {run_id: lane for lane in range(3) for run_id in await owner.make_due(30, lane=lane)}
    got = [lanes[run_id] for run_id in ids(await worker.lease(max=30))]
    assert [got.count(lane) for lane in range(3)] == [21, 6, 3]


async def test_a_call_that_does_not_wait_comes_back_with_nothing(api: Api, worker: Caller) -> None:
    assert await worker.lease() == []
    assert api.index.wanted(MAIL) == 0


async def test_a_long_poll_comes_back_empty_after_its_wait(worker: Caller) -> None:
    began = time.monotonic()
    assert await worker.lease(waitSeconds=0.4) == []
    assert time.monotonic() - began >= 0.4


async def test_an_answer_tells_how_long_the_call_had_waited_when_its_leases_began(
    api: Api, worker: Caller, owner: Owner
) -> None:
    ask = {"workerId": "w", "max": 1, "visibilitySeconds": 30, "waitSeconds": 20}
    began = time.monotonic()
    poll = asyncio.create_task(worker.post("/v1/queues/mail/lease", ask))
    await waiting(api, 1)
    arrived = time.monotonic()
    [run_id] = await owner.make_due()
    due = time.monotonic()
    answer = (await poll).json()
    assert [run["runId"] for run in answer["runs"]] == [str(run_id)]
    assert due - arrived <= answer["waitedSeconds"] <= time.monotonic() - began


@seldom_looked_at
async def test_a_hint_answers_a_waiting_poll_without_a_look_into_the_ledger(
    api: Api, worker: Caller, owner: Owner
) -> None:
    assert await asyncio.to_thread(api.hints.positioned.wait, 10)
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    await waiting(api, 1)
    await looked(api)
    [run_id] = await owner.make_due()
    await asyncio.to_thread(owner.hint, [run_id])
    assert ids(await poll) == [run_id]
    assert api.metrics.polled_runs._value.get() == 0


async def test_without_any_hint_a_waiting_poll_finds_a_run_at_its_next_look(
    api: Api, worker: Caller, owner: Owner
) -> None:
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    await waiting(api, 1)
    await looked(api)
    [run_id] = await owner.make_due()
    assert ids(await poll) == [run_id]
    assert api.metrics.polled_runs._value.get() == 1


async def test_a_hint_before_its_time_leases_nothing(api: Api, worker: Caller, owner: Owner) -> None:
    assert await asyncio.to_thread(api.hints.positioned.wait, 10)
    [run_id] = await owner.make_due(due_in_s=60)
    await asyncio.to_thread(owner.hint, [run_id])
    assert await worker.lease(waitSeconds=0.5) == []


async def hinted_ahead(api: Api, owner: Owner, pool: Pool) -> tuple[UUID, datetime]:
    """A run that is due in a moment, of which the API knows it already."""
    assert await asyncio.to_thread(api.hints.positioned.wait, 10)
    [run_id] = await owner.make_due(due_in_s=0.4)
    async with session(pool) as conn:
        run = await read_run(conn, run_id)
    assert run is not None
    assert run.due_at is not None
    await hint_until_heard(api, owner, run_id, run.due_at)
    return run_id, run.due_at


async def hint_until_heard(api: Api, owner: Owner, run_id: UUID, due_at: datetime) -> None:
    """What is sent to a partition of the topic before its first fetch is not read."""
    heard = api.metrics.hints._value.get()
    async with asyncio.timeout(20):
        while api.metrics.hints._value.get() == heard:
            await asyncio.to_thread(owner.hint, [run_id], due_at=due_at)
            await asyncio.sleep(0.05)


@seldom_looked_at
async def test_a_run_that_is_hinted_ahead_is_leased_when_it_is_due_and_no_claim_is_refused(
    api: Api, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    await api.clocks[HOME].begin(ledger_pool)
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    await waiting(api, 1)
    await looked(api)
    run_id, due_at = await hinted_ahead(api, owner, ledger_pool)
    [run] = await poll
    leased_at = datetime.fromisoformat(run["leaseExpiresAt"]) - timedelta(seconds=run["leaseSeconds"])
    assert (run["runId"], leased_at >= due_at) == (str(run_id), True)
    assert api.metrics.wasted_claims._value.get() == 0


@seldom_looked_at
async def test_a_run_that_is_gone_when_its_time_comes_costs_a_wasted_claim(
    api: Api, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    await api.clocks[HOME].begin(ledger_pool)
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    await waiting(api, 1)
    await looked(api)
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    gone = run_id_for(uuid4(), soon, partition=3)
    await hint_until_heard(api, owner, gone, soon)
    async with asyncio.timeout(20):
        while api.metrics.wasted_claims._value.get() == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other, _ = await hinted_ahead(api, owner, ledger_pool)
    assert ids(await poll) == [other]


async def test_a_hint_of_an_owner_who_lost_its_partition_leases_nothing(
    api: Api, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    old = owner.fences[partition_of_run(run_id)]
    await take_over(ledger_pool, old.partition, "another")
    api.index.add(MAIL, owner.ready([run_id]))
    runs = await worker.lease(waitSeconds=15)  # the look into the ledger knows the new epoch
    assert ids(runs) == [run_id]
    assert api.metrics.wasted_claims._value.get() >= 1


@seldom_looked_at
async def test_two_workers_share_what_becomes_due(api: Api, callers: Callers, owner: Owner) -> None:
    first, second = await callers("worker"), await callers("worker")
    polls = [asyncio.create_task(worker.lease(waitSeconds=10)) for worker in (first, second)]
    await waiting(api, 2)
    await looked(api)  # or it may find some of them while they are being made
    made = await owner.make_due(10)
    api.index.add(MAIL, owner.ready(made))
    got = await asyncio.gather(*polls)
    assert [len(runs) for runs in got] == [5, 5]
    assert sorted(run_id for runs in got for run_id in ids(runs)) == sorted(made)


async def test_a_tenant_never_gets_another_tenant_s_runs(callers: Callers, owner: Owner) -> None:
    await owner.make_due(tenant="acme")
    other = await callers("worker", tenant="other")
    assert await other.lease(waitSeconds=0.3) == []


async def test_a_queue_outside_of_the_token_is_refused_by_name(callers: Callers) -> None:
    worker = await callers("worker", queues=["sms"])
    response = await worker.post("/v1/queues/mail/lease", {"workerId": "w", "max": 1})
    assert (response.status_code, response.json()["field"]) == (403, "queue")
    assert await worker.lease("sms") == []


async def test_a_repeated_request_id_gets_the_same_runs_and_charges_no_attempt(
    worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    made = await owner.make_due(3)
    request_id = str(uuid4())
    first = await worker.lease(max=2, requestId=request_id)
    again = await worker.lease(max=2, requestId=request_id)
    assert ids(first) == made[:2]
    assert told(again) == told(first)
    assert await state_of(ledger_pool, made[0]) == ("leased", 1)
    assert ids(await worker.lease(requestId=str(uuid4()))) == made[2:]


async def test_a_repeated_request_id_gets_only_what_is_still_leased(worker: Caller, owner: Owner) -> None:
    await owner.make_due(2)
    request_id = str(uuid4())
    done, kept = await worker.lease(requestId=request_id)
    await worker.post(f"/v1/runs/{done['runId']}/complete", {"leaseToken": done["leaseToken"]})
    assert told(await worker.lease(requestId=request_id)) == told([kept])


async def test_a_request_id_whose_leases_are_gone_can_be_used_again(worker: Caller, owner: Owner) -> None:
    request_id = str(uuid4())
    for _ in range(2):
        [made] = await owner.make_due()
        [run] = await worker.lease(requestId=request_id, waitSeconds=15)
        assert told(await worker.lease(requestId=request_id)) == told([run])
        assert run["runId"] == str(made)
        await worker.post(f"/v1/runs/{made}/complete", {"leaseToken": 1})


async def test_a_request_id_means_nothing_to_another_tenant_or_queue(callers: Callers, owner: Owner) -> None:
    request_id = str(uuid4())
    worker, stranger = await callers("worker"), await callers("worker", tenant="other")
    await owner.make_due()
    await worker.lease(requestId=request_id)
    assert await stranger.lease(requestId=request_id) == []
    assert await worker.lease("sms", requestId=request_id) == []


async def test_a_call_repeated_while_the_first_still_waits_gets_what_that_one_got(
    api: Api, worker: Caller, owner: Owner
) -> None:
    request_id = str(uuid4())
    polls = [asyncio.create_task(worker.lease(waitSeconds=10, requestId=request_id)) for _ in range(2)]
    await waiting(api, 1)
    [run_id] = await owner.make_due()
    api.index.add(MAIL, owner.ready([run_id]))
    first, second = await asyncio.gather(*polls)
    assert told(first) == told(second)
    assert ids(first) == [run_id]


async def test_closing_answers_everybody_who_waits_with_nothing(api: Api, worker: Caller) -> None:
    began = time.monotonic()
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    await waiting(api, 1)
    api.leases.close()
    assert await poll == []
    assert await worker.lease(waitSeconds=20) == []
    assert time.monotonic() - began < 20


@seldom_looked_at
async def test_a_backlog_larger_than_one_look_is_leased_without_pause(worker: Caller, owner: Owner) -> None:
    made = await owner.make_due(2_500)
    got = [run_id for _ in range(5) for run_id in ids(await worker.lease(max=500, waitSeconds=10))]
    assert sorted(got) == sorted(made)


async def lease_of_any(worker: Caller, queues: list[str], **fields: Any) -> list[dict[str, Any]]:
    response = await worker.post("/v1/lease", {"workerId": "w1", "max": 10, "queues": queues, **fields})
    assert response.status_code == 200, response.text
    runs: list[dict[str, Any]] = response.json()["runs"]
    return runs


async def test_one_call_leases_runs_of_several_queues_and_no_other(worker: Caller, owner: Owner) -> None:
    made = [run_id for queue in ("mail", "sms") for run_id in await owner.make_due(2, queue=queue)]
    await owner.make_due(queue="fax")
    got = [run for _ in range(2) for run in await lease_of_any(worker, ["mail", "sms", "mail"], waitSeconds=10)]
    assert sorted(ids(got)) == sorted(made)
    assert {run["queue"] for run in got} == {"mail", "sms"}


async def test_a_call_that_waits_on_several_queues_is_answered_when_one_of_them_has_a_run(
    api: Api, worker: Caller, owner: Owner
) -> None:
    poll = asyncio.create_task(lease_of_any(worker, ["fax", "mail", "sms"], waitSeconds=20))
    await waiting(api, 1)
    [run_id] = await owner.make_due()
    api.index.add(MAIL, owner.ready([run_id]))
    [run] = await poll
    assert (run["runId"], run["queue"]) == (str(run_id), "mail")


async def test_no_queue_starves_behind_a_busy_one_of_the_same_call(api: Api, worker: Caller, owner: Owner) -> None:
    busy, other = await owner.make_due(20), await owner.make_due(queue="sms")
    api.index.add(MAIL, owner.ready(busy))
    api.index.add(("acme", "sms"), owner.ready(other))
    got = [run for _ in range(2) for run in await lease_of_any(worker, ["mail", "sms"])]
    assert str(other[0]) in {run["runId"] for run in got}


async def test_a_repeated_call_of_several_queues_gets_the_same_runs(worker: Caller, owner: Owner) -> None:
    await owner.make_due()
    request_id = str(uuid4())
    [run] = await lease_of_any(worker, ["sms", "mail"], waitSeconds=10, requestId=request_id)
    assert told(await lease_of_any(worker, ["sms", "mail"], requestId=request_id)) == told([run])


async def test_each_of_several_queues_must_be_within_the_token(callers: Callers) -> None:
    worker = await callers("worker", queues=["sms"])
    response = await worker.post("/v1/lease", {"workerId": "w", "max": 1, "queues": ["sms", "mail"]})
    assert (response.status_code, response.json()["field"]) == (403, "queue")


@pytest.mark.parametrize("queues", [[], [f"q{number}" for number in range(101)], ["a b"]])
async def test_a_call_of_no_queue_or_too_many_or_no_queue_s_name_is_refused(worker: Caller, queues: list[str]) -> None:
    response = await worker.post("/v1/lease", {"workerId": "w", "max": 1, "queues": queues})
    assert (response.status_code, response.json()["field"].startswith("queues")) == (422, True)


WRONG_FIELDS: list[tuple[dict, str]] = [
    ({"workerId": ""}, "workerId"),
    ({"workerId": "a\x00b"}, "workerId"),
    ({"workerId": 7}, "workerId"),
    ({"max": 0}, "max"),
    ({"max": 1001}, "max"),
    ({"max": 1.5}, "max"),
    ({"visibilitySeconds": 0.5}, "visibilitySeconds"),
    ({"visibilitySeconds": 3601}, "visibilitySeconds"),
    ({"waitSeconds": 60.1}, "waitSeconds"),
    ({"waitSeconds": -1}, "waitSeconds"),
    ({"requestId": "abc"}, "requestId"),
    ({"maximum": 3}, "maximum"),
]


async def test_a_wrong_field_is_named(worker: Caller) -> None:
    for change, field in WRONG_FIELDS:
        response = await worker.post("/v1/queues/mail/lease", {"workerId": "w", "max": 1} | change)
        assert (response.status_code, response.json()["field"]) == (422, field), change


async def test_a_missing_field_is_named(worker: Caller) -> None:
    response = await worker.post("/v1/queues/mail/lease", {"max": 1})
    assert (response.status_code, response.json()["field"]) == (422, "workerId")


async def test_an_expired_lease_is_not_remembered(worker: Caller, owner: Owner, ledger_dsn: str) -> None:
    [run_id] = await owner.make_due()
    request_id = str(uuid4())
    await worker.lease(requestId=request_id)
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
        await conn.execute("UPDATE runs SET lease_expires_at = %s WHERE run_id = %s", (past, run_id))
    assert await worker.lease(requestId=request_id) == []


async def test_leases_are_measured(api: Api, worker: Caller, owner: Owner) -> None:
    await owner.make_due(3, lane=0, due_in_s=-2)
    await worker.lease()
    text = api.metrics.text().decode()
    assert 'fencepost_api_leases_total{lane="high"} 3.0' in text
    assert 'fencepost_api_lateness_ms_bucket{le="1000"} 0.0' in text
    assert 'fencepost_api_lateness_ms_bucket{le="5000"} 3.0' in text


def test_long_waits_end_together_a_little_early_and_short_ones_when_they_should() -> None:
    ends = {_end(1000.01 + n / 1000, LONG_WAIT_S) for n in range(80)}
    assert len(ends) == 1
    [end] = ends
    assert 1000.01 - END_TOGETHER_S < end <= 1000.01
    assert _end(1000.01, LONG_WAIT_S - 0.1) == 1000.01
