"""The client and the worker on the real API, over TCP, with its real ledger and broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from fencepost import (
    Conflict,
    FencepostClient,
    Invalid,
    JobSpec,
    LeaseLost,
    NotFound,
    PermanentFailure,
    Refused,
    RunContext,
    Schedule,
    Snooze,
    SyncClient,
    Unauthorized,
    cron,
    every,
)
from fencepost.models import Completion, DeadFilter
from fencepost.schedules.schedule_preview import SchedulePreview
from fencepost.schedules.zones import TZDATA_VERSION
from tests.api.owner import Owner
from tests.connectors.client.api_clients import Clients
from tests.connectors.client.webhook.receiver import answer, case, fixed, json_answer, never, receiving, webhook
from tests.connectors.client.wire import Wire
from tests.connectors.client.worker_bench import eventually


async def test_worker_completes_each_of_many_runs_exactly_once(clients: Clients, owner: Owner) -> None:
    run_ids = await owner.make_due(2500)
    executed: Counter[UUID] = Counter()

    async def note(ctx: RunContext) -> dict[str, int]:
        executed[ctx.run_id] += 1
        return {"attempt": ctx.attempt}

    async with clients.working(note, slots=1000) as worker:
        await eventually(lambda: worker.stats.completed == 2500, timeout_s=30)
    assert executed == Counter(run_ids)
    assert worker.stats.conflicts == worker.stats.abandoned == worker.stats.refused == 0
    assert {await clients.state(run_id) for run_id in run_ids[::100]} == {("ended", None)}


async def test_a_worker_of_several_queues_executes_the_runs_of_each(clients: Clients, owner: Owner) -> None:
    queues = ["mail", "sms", "fax"]
    made = {run_id: queue for queue in queues for run_id in await owner.make_due(20, queue=queue)}
    executed: dict[UUID, str] = {}

    async def note(ctx: RunContext) -> None:
        executed[ctx.run_id] = ctx.queue

    async with clients.working(note, queue=queues, slots=7) as worker:
        await eventually(lambda: worker.stats.completed == len(made), timeout_s=30)
    assert executed == made


async def test_lost_answers_lose_no_run_and_execute_none_twice(clients: Clients, owner: Owner) -> None:
    """Half of all answers are lost, in turn, after the server has done what was asked."""
    run_ids = await owner.make_due(300)
    executed: Counter[UUID] = Counter()
    calls = 0

    async def fault(request: httpx.Request, pass_on: Callable[[], Any]) -> httpx.Response:
        nonlocal calls
        response: httpx.Response = await pass_on()
        await response.aread()
        calls += 1
        if calls % 2:
            raise httpx.ReadError("the answer was lost", request=request)
        return response

    async def note(ctx: RunContext) -> None:
        executed[ctx.run_id] += 1

    wire = Wire(httpx.AsyncHTTPTransport())
    wire.fault = fault
    async with clients.working(note, wire=wire, slots=50) as worker:
        await eventually(lambda: worker.stats.completed + worker.stats.conflicts >= 300, timeout_s=30)
    assert executed == Counter(run_ids)
    assert (worker.stats.completed, worker.stats.conflicts) == (300, 0)


async def test_heartbeats_hold_the_lease_of_a_run_that_outlasts_its_visibility(clients: Clients, owner: Owner) -> None:
    await owner.make_due(5)

    async def slow(_: RunContext) -> None:
        await asyncio.sleep(2.5)

    async with clients.working(slow, visibility_s=1) as worker:
        await eventually(lambda: worker.stats.completed == 5, timeout_s=15)
    assert worker.stats.conflicts == worker.stats.abandoned == 0


async def test_failures_are_retried_or_buried_with_their_reason(clients: Clients, owner: Owner) -> None:
    [retried] = await owner.make_due(payload='"retry"')
    [buried] = await owner.make_due(payload='"bury"')

    async def fail(ctx: RunContext) -> None:
        if ctx.payload == "bury":
            raise PermanentFailure("no such customer")
        if ctx.attempt == 1:
            raise TimeoutError("slow")

    async with clients.working(fail) as worker:
        await eventually(lambda: (worker.stats.completed, worker.stats.failed) == (1, 2), timeout_s=15)
    async with clients.client() as client:
        dead = await client.run(buried)
        assert (dead.state, dead.reason, dead.attempt) == ("dead", "no such customer", 1)
        assert (await client.run(retried)).state == "completed"


async def test_drained_worker_leaves_no_lease_behind(clients: Clients, owner: Owner) -> None:
    async def nothing(_: RunContext) -> None: ...

    async with clients.working(nothing):
        await asyncio.sleep(0.2)  # a poll waits at the server
    [run_id] = await owner.make_due()
    assert await clients.state(run_id) == ("pending", 0)
    async with clients.working(nothing) as worker:
        await eventually(lambda: worker.stats.completed == 1, timeout_s=15)


async def test_older_lease_token_is_a_lost_lease(clients: Clients, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    async with clients.client("worker") as client:
        [run] = await client.lease("mail", "w", wait_s=10)
        await client.release(run_id, run.lease_token)
        [again] = await client.lease("mail", "w", wait_s=10)
        assert (again.attempt, again.lease_token) == (1, run.lease_token + 1)
        with pytest.raises(LeaseLost):
            await client.complete(run_id, run.lease_token)
        [answer] = await client.complete_many([Completion(run_id, run.lease_token)])
        assert answer.status == 409
        assert not (await client.heartbeat(run_id, again.lease_token)).cancel
        await client.complete(run_id, again.lease_token, {"rows": [1, None]})
        await client.complete(run_id, again.lease_token, {"rows": [1, None]})  # as after a lost answer


async def test_repeated_request_id_gets_the_same_runs(clients: Clients, owner: Owner) -> None:
    await owner.make_due(4)
    async with clients.client("worker") as client:
        request_id = uuid4()
        first = await client.lease("mail", "w", max_runs=2, wait_s=10, request_id=request_id)
        assert {run.run_id for run in first} == {
            run.run_id for run in await client.lease("mail", "w", max_runs=2, request_id=request_id)
        }


@pytest.mark.parametrize("patience_s", [0.2])
async def test_create_that_no_owner_applies_is_accepted_and_its_key_gives_the_job_id(clients: Clients) -> None:
    async with clients.client("producer") as client:
        answer = await client.create_job(JobSpec(queue="mail", schedule=every(60)), idempotency_key="daily")
    assert not answer.applied
    assert answer.command_id is not None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (JobSpec(queue="mail", schedule=cron("60 * * * *")), "schedule.cron"),
        (JobSpec(queue="mail", schedule=cron("@daily", "Mars/Base")), "schedule.zone"),
        (JobSpec(queue="mail", schedule=Schedule(every_seconds=60, zone="Europe/Berlin")), "schedule.zone"),
    ],
)
async def test_schedule_that_only_the_server_can_judge_is_refused_with_its_field(
    clients: Clients, spec: JobSpec, field: str
) -> None:
    async with clients.client("producer") as client:
        with pytest.raises(Invalid) as caught:
            await client.create_job(spec)
    assert caught.value.field == field


async def test_what_a_token_may_not_do_is_refused(clients: Clients) -> None:
    async with clients.client("worker") as client:
        with pytest.raises(Unauthorized) as caught:
            await client.pause_job(uuid4())
        assert caught.value.status == 403
    async with clients.client("operator") as client:
        with pytest.raises(NotFound):
            await client.job(uuid4())
    async with FencepostClient(clients.url, "fp_unknown_token") as stranger:
        with pytest.raises(Unauthorized) as caught:
            await stranger.lease("mail", "w")
        assert caught.value.status == 401


async def test_preview_is_what_the_client_s_own_rules_say(clients: Clients) -> None:
    after = datetime(2026, 10, 24, tzinfo=UTC)
    own = SchedulePreview({"cron": "30 2 * * *", "zone": "Europe/Paris"}).coming(after, 200)
    async with clients.client("worker") as client:
        preview = await client.preview_schedule(cron("30 2 * * *", "Europe/Paris"), after=after, count=200)
        with pytest.raises(Invalid) as caught:
            await client.preview_schedule(cron("30 2 * * *", "Europe/Pairs"))
        with pytest.raises(Invalid) as naive:
            await client.preview_schedule(cron("30 2 * * *"), after=datetime(2026, 10, 24))
    assert [(fire.scheduled_for, fire.local, fire.mark) for fire in preview.fires] == [
        (fire.scheduled_for, fire.local.isoformat(), fire.mark) for fire in own
    ]
    assert Counter(fire.mark for fire in preview.fires) == {None: 198, "fold": 1, "gap": 1}
    assert preview.tzdata == TZDATA_VERSION
    assert (caught.value.field, naive.value.field) == ("schedule.zone", "from")


async def test_sync_client_talks_to_the_api_as_well(clients: Clients, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    token = await clients.token()

    def blocking_program() -> str:
        with SyncClient(clients.url, token) as client:
            with pytest.raises(Refused):
                client.job(uuid4())
            return client.run(run_id).state

    assert await asyncio.to_thread(blocking_program) == "pending"


async def test_a_cancelled_run_is_stopped_and_its_note_was_shown(clients: Clients, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    started = asyncio.Event()

    async def long(ctx: RunContext) -> None:
        ctx.progress("half")
        started.set()
        await asyncio.sleep(60)

    async with owner.applying_commands(), clients.client() as client:
        async with clients.working(long, visibility_s=3) as worker:
            async with asyncio.timeout(10):
                await started.wait()
            while (await client.run(run_id)).progress != "half":  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)
            cancelled = await client.cancel_run(run_id)
            assert (cancelled.state, cancelled.cancel_requested) == ("leased", True)
            await eventually(lambda: worker.stats.cancelled, timeout_s=10)
        assert (worker.stats.failed, worker.stats.completed, worker.stats.conflicts) == (0, 0, 0)
        assert (await client.run(run_id)).state == "cancelled"


async def test_a_snoozed_run_comes_again_uncharged_and_a_dead_one_is_replayed(clients: Clients, owner: Owner) -> None:
    [run_id] = await owner.make_due(max_attempts=1)
    calls: list[int] = []

    async def handle(ctx: RunContext) -> None:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            raise Snooze(0.2)
        if len(calls) == 2:
            raise RuntimeError("boom")

    async with owner.applying_commands(), clients.client() as client, clients.working(handle) as worker:
        await eventually(lambda: worker.stats.failed, timeout_s=15)
        [dead] = (await client.dead_letters(DeadFilter(queue="mail", reason="BOOM"))).runs
        assert (dead.run_id, dead.attempt) == (run_id, 1)
        assert (await client.replay_dead(DeadFilter(job_id=dead.job_id), dry_run=True)).matched == 1
        assert (await client.replay_run(run_id)).state in ("pending", "leased")
        await eventually(lambda: worker.stats.completed, timeout_s=15)
    assert calls == [1, 1, 1]
    assert worker.stats.snoozed == 1


async def test_a_job_is_edited_backfilled_and_its_queue_paused(clients: Clients, owner: Owner) -> None:
    async with owner.applying_commands(), clients.client() as client:
        job = await client.create_job(JobSpec(queue="mail", schedule=cron("0 3 * * *")))
        edited = JobSpec(
            queue="mail", schedule=cron("0 4 * * *"), retry_backoff="fixed", catch_up_limit=5, concurrency_key="a"
        )
        answer = await client.update_job(job.job_id, edited)
        assert answer.next_run_at is not None
        assert answer.next_run_at.hour == 4
        shown = await client.job(job.job_id)
        assert (shown.retry_backoff, shown.catch_up_limit, shown.concurrency_key) == ("fixed", 5, "a")
        now = datetime.now(UTC)
        filled = await client.backfill(job.job_id, now - timedelta(days=3), now)
        assert filled.count == len({run.run_id for run in filled.runs}) == 3
        queue = await client.pause_queue("mail")
        assert (queue.paused, queue.waiting.normal) == (True, 3)
        assert await client.lease("mail", "w") == []
        assert not (await client.resume_queue("mail")).paused
        assert (await client.set_queue("mail", rate_per_second=50)).rate_per_second == 50
        assert (await client.set_queue("mail")).rate_per_second == (await client.queue("mail")).rate_per_second == 50
        assert (await client.set_queue("mail", rate_per_second=None)).rate_per_second is None
        limited = await client.set_queue("mail", max_live_runs=9, max_live_runs_per_key=2)
        assert (limited.max_live_runs, limited.max_live_runs_per_key, limited.live_runs) == (9, 2, 0)
        assert (await client.set_tenant(leases_per_second=1_000, lease_burst=50)).lease_burst == 50
        assert (await client.set_tenant(lease_burst=None)).leases_per_second == 1_000
        assert (await client.set_tenant(leases_per_second=None)).leases_per_second is None
        assert (await client.tenant()).paused_queues == []


async def test_an_administrator_makes_rotates_and_revokes_a_token(clients: Clients) -> None:
    async with clients.client() as client:
        made = await client.create_token("worker", queues=["mail"], expires_in=timedelta(days=1))
        rotated = await client.rotate_token(made.token_id, overlap=timedelta(0))
        assert rotated.token.startswith(f"fp_{rotated.token_id}_")
        assert (await client.revoke_token(rotated.token_id)).state == "revoked"
        page = await client.tokens(limit=1000)
        states = {each.token_id: (each.state, each.replaced_by) for each in page.tokens}
        assert states[made.token_id] == ("expired", rotated.token_id)
        assert page.next is None
        with pytest.raises(Conflict):
            await client.rotate_token(made.token_id)


async def test_a_webhook_s_answer_is_the_result_of_its_run(clients: Clients, owner: Owner) -> None:
    [answered] = await owner.make_due(payload='{"to":"ops"}')
    async with receiving() as receiver, clients.working(webhook(receiver.url)) as worker:
        receiver.answering = fixed(json_answer({"sent": True}), answer(422, b"no such customer"))
        await eventually(lambda: worker.stats.completed == 1, timeout_s=30)
        [refused] = await owner.make_due(payload="null")
        await eventually(lambda: worker.stats.failed == 1, timeout_s=30)
    assert [call.body for call in receiver.calls] == [b'{"to":"ops"}', b"null"]
    async with clients.client() as client:
        assert (await client.run(answered)).state == "completed"
        dead = await client.run(refused)
        assert (dead.state, dead.reason, dead.attempt) == ("dead", "HTTP 422 from 127.0.0.1: no such customer", 1)


async def test_a_webhook_called_again_after_a_lost_lease_lets_the_receiver_refuse_the_older_call(
    clients: Clients, owner: Owner
) -> None:
    """Case fen-008. The first worker is cut off while the receiver still works on its call."""
    [run_id] = await owner.make_due()
    wire = Wire(httpx.AsyncHTTPTransport())
    async with receiving() as receiver:
        receiver.answering = never
        async with clients.working(webhook(receiver.url), wire=wire, visibility_s=1) as cut_off:
            await eventually(lambda: receiver.calls, timeout_s=30)
            wire.cut("")
            async with asyncio.timeout(30):
                await receiver.hung_up.wait()  # the handler was told to stop
            while not await owner.expire(run_id):  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)
        receiver.answering = fixed(answer(204))
        async with clients.working(webhook(receiver.url)) as worker:
            await eventually(lambda: worker.stats.completed == 1, timeout_s=60)
    assert (cut_off.stats.completed, cut_off.stats.abandoned) == (0, 1)
    older, newer = (call.headers for call in receiver.calls)
    assert {
        "run id": older["fencepost-run-id"] == newer["fencepost-run-id"] == str(run_id),
        "attempt": (older["fencepost-attempt"], newer["fencepost-attempt"]) == ("1", "2"),
        "fencing token (strictly increasing)": int(older["fencepost-lease-token"])
        < int(newer["fencepost-lease-token"]),
        "idempotency key (constant)": older["idempotency-key"] == newer["idempotency-key"] == str(run_id),
    } == dict.fromkeys(case("fen-008")["expected"]["headers"], True)
