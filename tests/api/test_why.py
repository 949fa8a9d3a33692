"""Why a run waited and what became of an occurrence, told by a real ledger, relay and history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from api.app import Api, ApiSettings
from fencepost.explanation_client import OccurrenceExplanation, RunExplanation
from ledger.advances import Advance, advance_jobs
from ledger.connection import Pool, session
from ledger.fence import OwnerTransaction, owner_transaction
from ledger.jobs import NewJob, Resumption, create_jobs, pause_jobs, policies_of, resume_jobs
from ledger.runs import ManualRun, trigger_jobs
from ledger.spreads import spread_runs
from schemas.commands import JobSpec, Overlap, definition_json
from schemas.ids import new_id, partition_of_job, run_id_for
from tests.api.conftest import Caller, Callers, Past, with_history
from tests.api.owner import Owner
from tests.ledger_fixtures import PARTITIONS

HOUR = timedelta(hours=1)
# Hourly occurrences around a time in the past, of a job that was created a little before.
NINE = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
CREATED = NINE - timedelta(minutes=30)


@pytest.fixture
def settings(settings: ApiSettings, past: Past) -> ApiSettings:
    return with_history(settings, past)


async def why(caller: Caller, run_id: UUID | str) -> dict[str, Any]:
    response = await caller.get(f"/v1/runs/{run_id}/why")
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_sums_up(answer)
    return answer


def assert_sums_up(answer: dict[str, Any]) -> None:
    """The intervals follow each other without a gap, and the late ones are the lateness; the client reads them so."""
    msgspec.convert(answer, RunExplanation)
    intervals = answer["intervals"]
    assert [each["to"] for each in intervals[:-1]] == [each["from"] for each in intervals[1:]]
    assert sum(round(each["ms"] * 1000) for each in intervals if each["late"]) == round(answer["latenessMs"] * 1000)
    if answer["latenessMs"]:
        assert next(each["from"] for each in intervals if each["late"]) == answer["dueAt"]


def causes(answer: dict[str, Any]) -> list[str]:
    return [each["cause"] for each in answer["intervals"]]


async def lease_one(worker: Caller) -> dict[str, Any]:
    [run] = await worker.lease(waitSeconds=15)
    return run


async def complete(worker: Caller, run: dict[str, Any]) -> None:
    answer = await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})
    assert answer.status_code == 200


async def test_a_completed_run_tells_who_kept_it_waiting_and_its_lateness_is_the_history_s(
    worker: Caller, operator: Caller, owner: Owner
) -> None:
    [run_id] = await owner.make_due()
    run = await lease_one(worker)
    await complete(worker, run)
    answer = await why(operator, run_id)
    assert causes(answer)[-2:] == ["no_worker_asked", "running"]
    assert (answer["state"], answer["incomplete"]) == ("completed", False)
    assert answer["latenessMs"] > 1000
    assert answer["intervals"][-1]["detail"] == "attempt 1 on worker w1, completed"
    sql = f"SELECT lateness_ms FROM runs WHERE run_id = '{run_id}'"
    assert (await operator.post("/v1/query", {"sql": sql})).json()["rows"] == [[answer["latenessMs"]]]


async def test_a_run_that_waits_is_explained_up_to_now(operator: Caller, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    answer = await why(operator, run_id)
    assert (answer["state"], answer["firstLeasedAt"], answer["endedAt"]) == ("pending", None, None)
    assert answer["intervals"][-1]["to"] == answer["asOf"]
    assert answer["summary"].startswith("it has waited ")


async def test_a_run_of_later_is_not_late(operator: Caller, owner: Owner) -> None:
    [run_id] = await owner.make_due(due_in_s=3600)
    answer = await why(operator, run_id)
    assert (causes(answer), answer["latenessMs"], answer["summary"]) == (["not_due"], 0, "it is not due yet")


async def test_pauses_are_told_apart_and_by_whose_token_they_are(
    worker: Caller, operator: Caller, owner: Owner
) -> None:
    await operator.post("/v1/queues/mail/pause")
    [run_id] = await owner.make_due()
    await operator.post("/v1/tenant/pause")
    await operator.post("/v1/tenant/resume")
    await operator.post("/v1/queues/mail/resume")
    await lease_one(worker)
    answer = await why(operator, run_id)
    assert causes(answer)[-5:] == ["queue_paused", "tenant_paused", "queue_paused", "no_worker_asked", "running"]
    assert answer["intervals"][-5]["detail"].startswith("queue mail was paused by token ")


async def test_the_time_without_an_owner_is_the_takeover_s(
    worker: Caller, operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due(due_in_s=-60)
    async with session(ledger_pool) as conn:  # the last sign of the owner before, and of its own takeover
        await conn.execute("UPDATE partitions SET decided_through = now() - interval '20 s'")
        await conn.execute("UPDATE takeovers SET at = now() - interval '30 s'")
        await conn.execute("UPDATE outbox SET at = now() - interval '40 s'")
    await owner.take_over_all()
    await lease_one(worker)
    answer = await why(operator, run_id)
    ms = {each["cause"]: each["ms"] for each in answer["intervals"]}
    assert 19_000 < ms["owner_taking_over"] < 25_000
    assert "test-owner" in next(e["detail"] for e in answer["intervals"] if e["cause"] == "owner_taking_over")


async def test_a_retried_run_tells_its_attempts_and_delays(worker: Caller, operator: Caller, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    run = await lease_one(worker)
    body = {"leaseToken": run["leaseToken"], "error": "no route", "retryAfterSeconds": 0.2}
    await worker.post(f"/v1/runs/{run_id}/fail", body)
    await complete(worker, await lease_one(worker))
    answer = await why(operator, run_id)
    assert causes(answer)[-4:] == ["running", "retry_delay", "no_worker_asked", "running"]
    assert "attempt 1 on worker w1, retried: no route" in [each["detail"] for each in answer["intervals"]]


async def make_job(
    tx: OwnerTransaction, job_id: UUID, fire: datetime, *, overlap: Overlap = "allow", created_at: datetime = CREATED
) -> UUID:
    """An hourly job whose pending occurrence is `fire`; returns that one's run."""
    spec = JobSpec(queue="mail", schedule={"cron": "0 * * * *"}, overlap=overlap)
    run_id = run_id_for(job_id, fire, tx.fence.partition)
    job = NewJob(
        job_id, "acme", "mail", 1, definition_json(spec), None, 5, fire, created_at, run_id, fire, policies_of(spec)
    )
    await create_jobs(tx, [job], now=created_at)
    return run_id


async def test_a_run_that_waited_for_another_of_its_job_names_it(
    worker: Caller, operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    job_id = new_id()
    async with owner_transaction(ledger_pool, owner.fences[partition_of_job(job_id, PARTITIONS)]) as tx:
        first = await make_job(tx, job_id, NINE, overlap="skip")
    run = await lease_one(worker)
    assert run["runId"] == str(first)
    async with owner_transaction(ledger_pool, owner.fences[partition_of_job(job_id, PARTITIONS)]) as tx:
        second = run_id_for(job_id, tx.now, tx.fence.partition, nonce=b"2")
        await trigger_jobs(tx, [ManualRun(job_id, second, tx.now, None)])
    assert await worker.lease() == []
    await complete(worker, run)
    assert (await lease_one(worker))["runId"] == str(second)
    answer = await why(operator, second)
    assert causes(answer) == ["overlap", "no_worker_asked", "running"]
    assert answer["intervals"][0]["detail"] == f"run {first} of its job was leased"


async def test_a_made_up_run_tells_that_its_queue_s_rate_put_it_off(
    worker: Caller, operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    job_id, ten = new_id(), NINE + HOUR
    async with owner_transaction(ledger_pool, owner.fences[partition_of_job(job_id, PARTITIONS)]) as tx:
        nine, run_id = await make_job(tx, job_id, NINE), run_id_for(job_id, ten, tx.fence.partition)
        back = tx.now
        due_at = back + timedelta(milliseconds=400)
        await spread_runs(tx, [(nine, due_at)], 1)
        await advance_jobs(tx, [Advance(job_id, 1, NINE, ten, run_id, ten, spread_at=due_at, rate_version=1)])
    waiting = await why(operator, run_id)
    assert waiting["state"] == "pending"
    assert "catching_up" in causes(waiting)
    leased: list[str] = []
    while len(leased) < 2:
        leased += [run["runId"] for run in await worker.lease(waitSeconds=5)]
    for each in leased:
        answer = await why(operator, each)
        assert answer["dueAt"] == z(due_at)
        put_off = next(part for part in answer["intervals"] if part["cause"] == "catching_up")
        assert (put_off["to"], put_off["late"]) == (z(due_at), False)
        assert put_off["detail"] == "it was made up for, spread at its queue's rate"
        assert "after its nominal time, to catch up at its queue's rate" in answer["summary"]


async def known_why(operator: Caller, run_id: UUID, last: str, detail: str = "") -> dict[str, Any]:
    """Once the history has heard all of it, and the last cause is this one. detail: what its detail ends with."""
    async with asyncio.timeout(60):
        while True:
            answer = (await operator.get(f"/v1/runs/{run_id}/why")).json()
            known = not answer["incomplete"] and causes(answer)[-1:] == [last]
            if known and (answer["intervals"][-1].get("detail") or "").endswith(detail):
                assert_sums_up(answer)
                return answer  # type: ignore[no-any-return]


async def test_a_backfilled_run_names_the_one_before_it_while_that_waits_for_its_retry_too(
    worker: Caller, operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    job_id = new_id()
    async with owner_transaction(ledger_pool, owner.fences[partition_of_job(job_id, PARTITIONS)]) as tx:
        await make_job(tx, job_id, datetime.now(UTC) + HOUR, overlap="skip")
        first, second = (run_id_for(job_id, at, tx.fence.partition, nonce=b"b") for at in (NINE, NINE + HOUR))
        made = [ManualRun(job_id, first, NINE, None, tx.now, True), ManualRun(job_id, second, NINE, None, tx.now, True)]
        await trigger_jobs(tx, made, reason="backfill")
    run = await lease_one(worker)
    assert run["runId"] == str(first)
    failed = {"leaseToken": run["leaseToken"], "error": "boom", "retryAfterSeconds": 5}
    assert (await worker.post(f"/v1/runs/{first}/fail", failed)).status_code == 200
    waits = await known_why(operator, second, "overlap", "waited for its next attempt")
    assert waits["intervals"][-1]["detail"] == f"run {first} of its job goes before it, and waited for its next attempt"
    run = await lease_one(worker)
    assert run["runId"] == str(first)
    await complete(worker, run)
    run = await lease_one(worker)
    assert run["runId"] == str(second)
    await complete(worker, run)
    intervals = (await known_why(operator, second, "running"))["intervals"]
    told = [each["detail"] for each in intervals if each["cause"] == "overlap"]
    assert [detail.removeprefix(f"run {first} of its job ") for detail in told] == [
        "was leased",
        "goes before it, and waited for its next attempt",
        "was leased",
    ]


async def test_what_the_history_has_not_heard_of_yet_is_said_to_be_missing(
    worker: Caller, operator: Caller, owner: Owner, past: Past, impatience: Callable[[], None]
) -> None:
    [run_id] = await owner.make_due()
    await why(operator, run_id)
    await past.stop_hearing()
    impatience()
    run = await lease_one(worker)
    answer = await why(operator, run_id)
    assert (answer["incomplete"], answer["state"]) == (True, "leased")
    await complete(worker, run)
    assert (await why(operator, run_id))["incomplete"] is True


async def test_another_tenant_s_run_does_not_exist_and_another_queue_s_is_refused(
    callers: Callers, owner: Owner, impatience: Callable[[], None]
) -> None:
    [run_id] = await owner.make_due()
    impatience()
    stranger, scoped = await callers("operator", tenant="umbra"), await callers("operator", queues=["other"])
    assert (await stranger.get(f"/v1/runs/{run_id}/why")).status_code == 404
    assert (await stranger.get(f"/v1/runs/{new_id()}/why")).status_code == 404
    refused = await scoped.get(f"/v1/runs/{run_id}/why")
    assert (refused.status_code, refused.json()["field"]) == (403, "queue")


# -- occurrences


async def occurrence(caller: Caller, job_id: UUID, at: datetime) -> dict[str, Any]:
    response = await asked(caller, job_id, at.isoformat().replace("+00:00", "Z"))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert msgspec.convert(answer, OccurrenceExplanation).at == at
    return answer


async def asked(caller: Caller, job_id: UUID, at: str) -> httpx.Response:
    return await caller.get(f"/v1/jobs/{job_id}/why?at={at}")


def z(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


class HourlyJob:
    """A job that was created at half past eight, and its owner's transactions."""

    def __init__(self, owner: Owner, pool: Pool) -> None:
        self.job_id = new_id()
        self._fence = owner.fences[partition_of_job(self.job_id, PARTITIONS)]
        self._pool = pool

    def transaction(self) -> Any:
        return owner_transaction(self._pool, self._fence)

    def run_id(self, at: datetime) -> UUID:
        return run_id_for(self.job_id, at, self._fence.partition)


@pytest.fixture
def job(owner: Owner, ledger_pool: Pool) -> HourlyJob:
    return HourlyJob(owner, ledger_pool)


async def test_an_occurrence_with_a_run_is_explained_by_it(job: HourlyJob, operator: Caller, worker: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
    await complete(worker, await lease_one(worker))
    answer = await occurrence(operator, job.job_id, NINE)
    assert (answer["decision"], answer["run"]["runId"]) == ("run", str(job.run_id(NINE)))
    assert_sums_up(answer["run"])


async def test_occurrences_that_were_skipped_together_tell_their_reason(job: HourlyJob, operator: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
        advance = Advance(
            *(job.job_id, 1, NINE, NINE + 5 * HOUR, job.run_id(NINE + 5 * HOUR), NINE + 5 * HOUR),
            *(job.run_id(NINE), "catch-up latest", NINE + HOUR, NINE + 4 * HOUR, 4, "catch-up latest"),
        )
        await advance_jobs(tx, [advance], now=NINE + 5 * HOUR)
    own = await occurrence(operator, job.job_id, NINE)
    assert (own["decision"], own["reason"], own["run"]["state"]) == ("skipped", "catch-up latest", "skipped")
    assert own["run"]["summary"].startswith("it was skipped (catch-up latest) 18000.000 s after it was due")
    among = await occurrence(operator, job.job_id, NINE + 2 * HOUR)
    assert (among["decision"], among["reason"], among["run"]) == ("skipped", "catch-up latest", None)
    assert among["skippedRange"] == {"first": z(NINE + HOUR), "last": z(NINE + 4 * HOUR), "count": 4}
    between = await occurrence(operator, job.job_id, NINE + 1.5 * HOUR)
    assert between["decision"] == "not_an_occurrence"
    assert (between["before"], between["after"]) == (z(NINE + HOUR), z(NINE + 2 * HOUR))


async def test_what_is_not_decided_yet_names_the_next_that_is(job: HourlyJob, operator: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
    for later in (NINE + HOUR, NINE + 1000 * HOUR):
        answer = await occurrence(operator, job.job_id, later)
        assert answer["decision"] == "not_decided"
        assert z(NINE) in answer["detail"]


async def test_an_occurrence_before_the_job_was_created_is_none(job: HourlyJob, operator: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
    answer = await occurrence(operator, job.job_id, NINE - HOUR)
    assert (answer["decision"], answer["before"], answer["after"]) == ("not_an_occurrence", None, z(NINE))
    assert "created" in answer["detail"]


async def test_an_occurrence_during_a_pause_was_skipped_by_it(job: HourlyJob, operator: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
        await pause_jobs(tx, [job.job_id], now=NINE - timedelta(minutes=5))
        after = NINE + 3 * HOUR
        resumption = Resumption(job.job_id, after, job.run_id(NINE), job.run_id(after), after)
        await resume_jobs(tx, [resumption], now=after - timedelta(minutes=5))
    for at, run in ((NINE, "skipped"), (NINE + HOUR, None)):
        answer = await occurrence(operator, job.job_id, at)
        assert (answer["decision"], answer["reason"]) == ("skipped", "paused")
        assert (answer["run"] and answer["run"]["state"]) == run
    assert (await occurrence(operator, job.job_id, NINE + 3 * HOUR))["decision"] == "run"


async def test_an_occurrence_during_a_pause_that_lasts_names_it(job: HourlyJob, operator: Caller) -> None:
    paused_at = NINE - timedelta(minutes=5)
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
        await pause_jobs(tx, [job.job_id], now=paused_at)
    pending = await occurrence(operator, job.job_id, NINE)
    assert (pending["decision"], pending["run"]["state"]) == ("run", "held")
    assert causes(pending["run"]) == ["job_paused"]
    passed = await occurrence(operator, job.job_id, NINE + 2 * HOUR)
    assert (passed["decision"], passed["reason"]) == ("skipped", "paused")
    assert passed["detail"] == f"its job is paused, since {z(paused_at)}"
    to_come = await occurrence(operator, job.job_id, NINE + 1000 * HOUR)
    assert to_come["decision"] == "not_decided"
    assert f"its job is paused, since {z(paused_at)}" in to_come["detail"]


async def test_an_occurrence_that_nobody_decided_is_not_explained_away(
    job: HourlyJob, operator: Caller, impatience: Callable[[], None]
) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
        after = NINE + 3 * HOUR
        await advance_jobs(tx, [Advance(job.job_id, 1, NINE, after, job.run_id(after), after)], now=NINE)
    impatience()
    assert (await occurrence(operator, job.job_id, NINE + HOUR))["decision"] == "unrecorded"


async def test_a_manual_run_of_the_same_time_is_told_beside(job: HourlyJob, operator: Caller) -> None:
    manual = run_id_for(job.job_id, NINE - HOUR, 0, nonce=b"backfill")
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
        await trigger_jobs(tx, [ManualRun(job.job_id, manual, NINE - HOUR, None)], reason="backfill", now=NINE)
    await why(operator, manual)
    answer = await occurrence(operator, job.job_id, NINE - HOUR)
    assert (answer["decision"], answer["otherRunIds"]) == ("not_an_occurrence", [str(manual)])


async def test_an_instant_that_is_none_is_refused_by_its_field(job: HourlyJob, operator: Caller) -> None:
    async with job.transaction() as tx:
        await make_job(tx, job.job_id, NINE)
    for at in ("tomorrow", "2026-03-01T09:00:00"):
        response = await asked(operator, job.job_id, at)
        assert (response.status_code, response.json()["field"]) == (422, "at")
    assert (await operator.get(f"/v1/jobs/{job.job_id}/why")).json()["field"] == "at"
    assert (await asked(operator, new_id(), "2026-03-01T09:00:00Z")).status_code == 404


async def test_a_run_that_its_tenant_s_quota_kept_waiting_is_told_so(
    api: Api, worker: Caller, operator: Caller, callers: Callers, owner: Owner, past: Past, ledger_pool: Pool
) -> None:
    await (await callers("admin")).patch("/v1/tenant", {"leasesPerSecond": 20})
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE tenant_limits SET set_at = now() - interval '1 hour'")
    await api.quotas.look()
    *_, last = await owner.make_due(60)
    leased: set[str] = set()
    while str(last) not in leased:
        leased |= {run["runId"] for run in await worker.lease(max=60, waitSeconds=10)}
    await past.relayed()
    answer = await why(operator, last)
    [quota] = [each for each in answer["intervals"] if each["cause"] == "lease_quota"]
    assert quota["detail"] == "its tenant's quota of 20 leases a second was used up"
    assert quota["ms"] > 1000


@pytest.mark.parametrize(
    ("limits", "cause", "word"),
    [
        ({"maxLiveRuns": 1}, "queue_full", "queue mail had 1 live runs, and may have 1"),
        ({"maxLiveRunsPerKey": 1}, "key_full", "concurrency key c-1 had 1 live runs, and may have 1"),
    ],
)
async def test_a_run_that_waits_for_a_place_tells_how_many_are_taken(
    worker: Caller, operator: Caller, owner: Owner, limits: dict[str, int], cause: str, word: str
) -> None:
    await operator.patch("/v1/queues/mail", limits)
    made = {str(run_id) for run_id in await owner.make_due(2, concurrency_key="c-1")}
    run = await lease_one(worker)
    [waiting] = made - {run["runId"]}
    [*_, last] = (await why(operator, waiting))["intervals"]
    assert (last["cause"], last["detail"]) == (cause, word)
    await complete(worker, run)
    assert (await lease_one(worker))["runId"] == waiting
    assert causes(await why(operator, waiting))[-1] == "running"
