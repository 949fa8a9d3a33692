"""The doctor's findings, from a real ledger, broker and history."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from api.app import Api, ApiSettings
from api.doctor import (
    clocks_finding,
    history_finding,
    kafka_finding,
    ledger_findings,
    snapshot_finding,
    standbys_finding,
)
from api.history_client import HistoryHealth
from fencepost.explanation_client import Diagnosis
from ledger.connection import Pool, session
from ledger.watchdogs import Snapshot, Standbys
from schemas.commands import JobSpec, definition_json
from schemas.zones import TZDATA_VERSION
from tests.api.conftest import Caller, Callers, Past, with_history
from tests.api.owner import Owner

HOURLY = JobSpec(queue="mail", schedule={"cron": "0 * * * *"})
Findings = dict[str, dict[str, Any]]


@pytest.fixture
def settings(settings: ApiSettings, request: pytest.FixtureRequest) -> ApiSettings:
    """With a history, and a relay, for the tests that ask for them; it takes a second to start them."""
    return with_history(settings, request.getfixturevalue("past")) if "past" in request.fixturenames else settings


async def diagnosis(caller: Caller) -> tuple[str, Findings]:
    """The worst status, and the findings by their checks."""
    response = await caller.get("/v1/doctor")
    assert response.status_code == 200, response.text
    body = response.json()
    msgspec.convert(body, Diagnosis)
    return body["status"], {finding["check"]: finding for finding in body["findings"]}


async def change(pool: Pool, statement: str) -> None:
    async with session(pool) as conn:
        await conn.execute(statement)


async def test_a_sound_installation_has_nothing_but_ok(
    api: Api, operator: Caller, owner: Owner, past: Past, ledger_pool: Pool
) -> None:
    await api.clocks[0].begin(ledger_pool)
    await owner.make_due(due_in_s=3600)
    await past.relayed()
    await past.hears()
    await change(ledger_pool, "UPDATE partitions SET decided_through = now()")  # as owners say it
    status, findings = await diagnosis(operator)
    assert list(findings) == [
        *("ledger", "owners", "decisions", "schedules", "overdue", "leases", "dead", "outbox", "pauses", "tzdata"),
        *("standbys", "snapshots", "clocks", "kafka", "history"),
    ]
    assert [finding for finding in findings.values() if finding["status"] != "ok"] == []
    assert status == "ok"
    assert all(finding["remedy"] is None for finding in findings.values())


@pytest.mark.usefixtures("owner")
async def test_partitions_without_an_owner_fail_once_it_lasts(operator: Caller, ledger_pool: Pool) -> None:
    await change(ledger_pool, "UPDATE partitions SET owner = NULL, owner_since = now() WHERE partition < 3")
    _, findings = await diagnosis(operator)
    assert (findings["owners"]["status"], findings["owners"]["detail"][:7]) == ("warn", "3 of 16")
    await change(ledger_pool, "UPDATE partitions SET owner_since = now() - interval '1 min' WHERE owner IS NULL")
    status, findings = await diagnosis(operator)
    assert (status, findings["owners"]["status"]) == ("fail", "fail")
    assert findings["owners"]["remedy"]


@pytest.mark.usefixtures("owner")
async def test_owners_of_whom_nothing_is_heard_fail_once_it_lasts(operator: Caller, ledger_pool: Pool) -> None:
    """A killed owner is still the owner by the ledger: it did not release anything."""
    for silent_for, status in (("10 s", "ok"), ("30 s", "warn"), ("90 s", "fail")):
        since = f"now() - interval '{silent_for}'"
        await change(ledger_pool, f"UPDATE partitions SET owner_since = {since}, decided_through = {since}")
        _, findings = await diagnosis(operator)
        assert findings["owners"]["status"] == status
    assert "of 16 nothing was heard for" in findings["owners"]["detail"]
    await change(ledger_pool, "UPDATE partitions SET owner_since = now()")  # who has just begun may be behind
    assert (await diagnosis(operator))[1]["owners"]["status"] == "ok"


async def test_an_occurrence_that_waits_for_its_decision_is_a_warning_and_a_quiet_partition_is_none(
    operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    await change(ledger_pool, "UPDATE partitions SET decided_through = now() - interval '1 hour'")
    assert (await diagnosis(operator))[1]["decisions"]["status"] == "ok"
    await owner.make_due(due_in_s=-90)
    assert (await diagnosis(operator))[1]["decisions"]["status"] == "ok"  # a one-off has its decision when it is made
    await change(ledger_pool, f"UPDATE jobs SET definition = '{definition_json(HOURLY)}'")
    _, findings = await diagnosis(operator)
    assert findings["decisions"]["status"] == "warn"
    assert "has waited" in findings["decisions"]["detail"]
    assert findings["schedules"]["status"] == "ok"


@pytest.mark.parametrize(
    ("unreadable", "error"),
    [
        ({"schedule": {"rrule": "FREQ=DAILY"}}, "exactly one of cron"),
        ({"schedule": {"cron": "61 * * * *"}}, "minute"),
        ({"catch_up": "someday"}, "someday"),
    ],
)
async def test_a_job_that_cannot_fire_again_is_a_failure_that_names_it(
    operator: Caller, owner: Owner, ledger_pool: Pool, unreadable: dict[str, Any], error: str
) -> None:
    await owner.make_due(due_in_s=-90)
    definition = definition_json(msgspec.structs.replace(HOURLY, **unreadable))
    await change(ledger_pool, f"UPDATE jobs SET definition = $${definition}$$")
    status, findings = await diagnosis(operator)
    assert (status, findings["schedules"]["status"]) == ("fail", "fail")
    assert findings["schedules"]["detail"].startswith("1 job")
    assert error in findings["schedules"]["detail"]


async def test_runs_that_no_worker_takes_are_a_warning_that_names_their_queue(operator: Caller, owner: Owner) -> None:
    await owner.make_due(2, due_in_s=-90)
    _, findings = await diagnosis(operator)
    assert (findings["overdue"]["status"], findings["overdue"]["detail"][:10]) == ("warn", "2 due runs")
    assert "queue mail" in findings["overdue"]["remedy"]


async def test_runs_of_a_paused_queue_are_not_overdue_but_the_pause_is_told(operator: Caller, owner: Owner) -> None:
    await owner.make_due(due_in_s=-90)
    await operator.post("/v1/queues/mail/pause")
    _, findings = await diagnosis(operator)
    assert findings["overdue"]["status"] == "ok"
    assert (findings["pauses"]["status"], findings["pauses"]["detail"]) == ("warn", "paused: queue mail")


async def test_a_lease_that_nobody_ends_fails(
    worker: Caller, operator: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    await owner.make_due()
    await worker.lease(waitSeconds=5)
    await change(ledger_pool, "UPDATE runs SET lease_expires_at = now() - interval '90 s'")
    _, findings = await diagnosis(operator)
    assert (findings["leases"]["status"], findings["leases"]["detail"][:8]) == ("fail", "1 leases")


async def test_dead_runs_of_the_hour_and_of_this_tenant_are_a_warning(
    worker: Caller, operator: Caller, owner: Owner, callers: Callers, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    [run] = await worker.lease(waitSeconds=5)
    await worker.post(f"/v1/runs/{run_id}/fail", {"leaseToken": run["leaseToken"], "error": "no", "permanent": True})
    assert (await diagnosis(operator))[1]["dead"]["status"] == "warn"
    assert (await diagnosis(await callers("operator", tenant="umbra")))[1]["dead"]["status"] == "ok"
    await change(ledger_pool, "UPDATE dead_runs SET died_at = now() - interval '2 hours'")
    assert (await diagnosis(operator))[1]["dead"]["status"] == "ok"


async def test_an_outbox_that_nobody_empties_fails(operator: Caller, owner: Owner, ledger_pool: Pool) -> None:
    await owner.make_due(due_in_s=3600)
    await change(ledger_pool, "UPDATE outbox SET at = now() - interval '10 min'")
    _, findings = await diagnosis(operator)
    assert findings["outbox"]["status"] == "fail"
    assert "the relay" in findings["outbox"]["remedy"]


async def test_occurrences_of_another_tzdata_are_a_warning(operator: Caller, owner: Owner, ledger_pool: Pool) -> None:
    await owner.make_due(due_in_s=3600)
    await change(ledger_pool, "UPDATE jobs SET tzdata_version = '1999a'")
    _, findings = await diagnosis(operator)
    assert findings["tzdata"]["status"] == "warn"
    assert "1999a" in findings["tzdata"]["detail"]
    assert TZDATA_VERSION in findings["tzdata"]["detail"]


async def test_a_ledger_that_is_away_is_one_failed_check_beside_the_others(operator: Caller, ledger_pool: Pool) -> None:
    await diagnosis(operator)  # the token is remembered
    await ledger_pool.close()
    status, findings = await diagnosis(operator)
    assert (status, findings["ledger"]["status"], findings["kafka"]["status"]) == ("fail", "fail", "ok")
    assert "owners" not in findings


async def test_only_operators_and_admins_are_told(callers: Callers, worker: Caller, producer: Caller) -> None:
    for caller in (worker, producer):
        assert (await caller.get("/v1/doctor")).status_code == 403
    assert (await (await callers("admin")).get("/v1/doctor")).status_code == 200


@pytest.mark.parametrize(
    ("health", "status", "said"),
    [
        (HistoryHealth(True, {"0": 0, "1": 1_000}), "ok", "1000"),
        (HistoryHealth(True, {"0": 1_001}), "warn", "1001"),
        (HistoryHealth(False, {}), "warn", "Kafka"),
        ("the history did not answer", "warn", "did not answer"),
    ],
)
def test_a_history_that_is_behind_or_away_is_a_warning(health: HistoryHealth | str, status: str, said: str) -> None:
    finding = history_finding(health)
    assert finding.status == status
    assert said in finding.detail
    assert (finding.remedy is None) == (status == "ok")


def test_kafka_and_a_ledger_that_are_away_fail() -> None:
    assert kafka_finding(False).status == "fail"
    [only] = ledger_findings({0: "no connection"})
    assert (only.check, only.status, only.detail) == ("ledger", "fail", "no connection")


@pytest.mark.parametrize(
    ("skews", "status", "said"),
    [
        ({0: 0.2, 1: -0.4}, "ok", "0.4 s behind shard 1's; the shards' are 0.6 s apart"),
        ({0: 2.0}, "warn", "2.0 s ahead of shard 0's"),
        ({0: 0.9, 1: -0.9}, "warn", "1.8 s apart"),
        ({0: 0.0, 1: math.nan}, "ok", "shard 0"),
        ({0: math.nan}, "warn", "no shard's clock is known"),
    ],
)
def test_clocks_that_are_apart_are_a_warning(skews: dict[int, float], status: str, said: str) -> None:
    finding = clocks_finding(skews)
    assert finding.status == status
    assert said in finding.detail
    assert (finding.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("standbys", "status", "said"),
    [
        (Standbys(0, 0, False, 0, 0), "ok", "there is none"),
        (Standbys(2, 1, False, 0.5, 100), "ok", "2, 1 of them synchronous"),
        (Standbys(1, 0, False, 31.0, 100), "warn", "31.0 s behind"),
        (Standbys(1, 0, True, 0, 0), "fail", "commits wait"),
    ],
)
def test_a_standby_that_is_behind_is_a_warning_and_one_that_commits_wait_for_a_failure(
    standbys: Standbys, status: str, said: str
) -> None:
    finding = standbys_finding(standbys)
    assert finding.status == status
    assert said in finding.detail


def test_a_snapshot_that_is_held_for_long_is_a_warning_and_then_a_failure() -> None:
    for held_s, status in ((None, "ok"), (300.0, "ok"), (700.0, "warn"), (4_000.0, "fail")):
        assert snapshot_finding(Snapshot(5, held_s, "session 7 of psql (idle in transaction)")).status == status
    assert "session 7" in snapshot_finding(Snapshot(5, 700.0, "session 7 of psql (idle in transaction)")).detail
    assert snapshot_finding(None).status == "ok"
