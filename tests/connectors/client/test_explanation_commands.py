"""`fencepost why` and `fencepost doctor` against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.connectors.client.test_cli import JOB_ID, RUN_ID, ScriptedServer, fencepost

RUN: dict[str, Any] = {
    "runId": RUN_ID,
    "jobId": JOB_ID,
    "state": "completed",
    "reason": None,
    "scheduledFor": "2026-03-01T09:00:00Z",
    "dueAt": "2026-03-01T09:00:00Z",
    "firstLeasedAt": "2026-03-01T09:00:02.500000Z",
    "endedAt": "2026-03-01T09:00:03Z",
    "latenessMs": 2500.0,
    "summary": "it was leased 2.500 s after it was due: 2.500 s queue paused",
    "intervals": [
        {
            **{"from": "2026-03-01T09:00:00Z", "to": "2026-03-01T09:00:02.500000Z", "ms": 2500.0, "late": True},
            **{"cause": "queue_paused", "detail": "queue mail was paused by token 7"},
        },
        {
            **{"from": "2026-03-01T09:00:02.500000Z", "to": "2026-03-01T09:00:03Z", "ms": 500.0, "late": False},
            **{"cause": "running", "detail": "attempt 1 on worker w1, completed"},
        },
    ],
    "incomplete": False,
    "asOf": "2026-03-01T10:00:00Z",
}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def test_why_shows_a_run_s_intervals_under_each_other(server: ScriptedServer) -> None:
    server.answer = (200, RUN)
    result = fencepost("why", RUN_ID, url=server.url)
    assert result.exit_code == 0, result.output
    assert server.asked == [("GET", f"/v1/runs/{RUN_ID}/why", None)]
    assert result.stdout.splitlines() == [
        f"run {RUN_ID}, completed: it was leased 2.500 s after it was due: 2.500 s queue paused",
        "from                         seconds        cause",
        "2026-03-01T09:00:00Z           2.500  late  queue paused  queue mail was paused by token 7",
        "2026-03-01T09:00:02.500000Z    0.500        running       attempt 1 on worker w1, completed",
    ]


def test_why_says_when_the_newest_is_missing(server: ScriptedServer) -> None:
    server.answer = (200, RUN | {"incomplete": True, "intervals": []})
    result = fencepost("why", RUN_ID, url=server.url)
    assert "the newest is missing" in result.stderr


def test_why_of_an_occurrence_tells_the_decision_and_what_was_decided_with_it(server: ScriptedServer) -> None:
    other = str(uuid4())
    server.answer = (
        200,
        {
            **{"jobId": JOB_ID, "at": "2026-03-01T09:00:00Z", "decision": "skipped", "reason": "catch-up latest"},
            **{"detail": "it was skipped: catch-up latest", "run": None, "before": None, "after": None},
            "skippedRange": {"first": "2026-03-01T08:00:00Z", "last": "2026-03-01T11:00:00Z", "count": 4},
            **{"otherRunIds": [other], "incomplete": True},
        },
    )
    result = fencepost("why", "--job", JOB_ID, "--at", "2026-03-01T10:00:00+01:00", url=server.url)
    assert result.exit_code == 0, result.output
    assert server.asked == [("GET", f"/v1/jobs/{JOB_ID}/why?at=2026-03-01T09%3A00%3A00Z", None)]
    assert result.stdout.splitlines() == [
        "2026-03-01T09:00:00Z  skipped: it was skipped: catch-up latest",
        "skipped with it: 4 occurrences, 2026-03-01T08:00:00Z to 2026-03-01T11:00:00Z",
        f"made for the same time beside the schedule: run {other}",
    ]
    assert "not be the last word" in result.stderr


def test_why_of_an_occurrence_with_a_run_shows_the_run_too(server: ScriptedServer) -> None:
    answer = {"jobId": JOB_ID, "at": "2026-03-01T09:00:00Z", "decision": "run", "detail": "it has one", "run": RUN}
    server.answer = (200, answer)
    result = fencepost("why", "--job", JOB_ID, "--at", "2026-03-01T09:00:00Z", url=server.url)
    assert "queue mail was paused by token 7" in result.stdout


def test_why_in_json_is_what_the_server_said(server: ScriptedServer) -> None:
    server.answer = (200, RUN)
    assert json.loads(fencepost("why", RUN_ID, "--json", url=server.url).stdout) == RUN


@pytest.mark.parametrize(
    "args", [[], ["--job", JOB_ID], ["--at", "2026-03-01T09:00:00Z"], [RUN_ID, "--job", JOB_ID]], ids=" ".join
)
def test_why_takes_a_run_or_an_occurrence(server: ScriptedServer, args: list[str]) -> None:
    result = fencepost("why", *args, url=server.url)
    assert result.exit_code == 2
    assert "Give the id of a run, or --job with --at" in result.stderr
    assert server.asked == []


def finding(check: str, status: str, remedy: str | None = None) -> dict[str, Any]:
    return {"check": check, "status": status, "detail": f"{check} is {status}", "remedy": remedy}


@pytest.mark.parametrize(("worst", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_exits_with_1_only_when_a_check_fails(server: ScriptedServer, worst: str, code: int) -> None:
    remedy = None if worst == "ok" else "mend it"
    server.answer = (200, {"status": worst, "findings": [finding("ledger", "ok"), finding("outbox", worst, remedy)]})
    result = fencepost("doctor", url=server.url)
    assert result.exit_code == code
    assert result.stdout.splitlines()[0] == "ok    ledger  ledger is ok"
    assert result.stdout.splitlines()[1] == f"{worst:<4}  outbox  outbox is {worst}" + (" → mend it" if remedy else "")
    assert json.loads(fencepost("doctor", "--json", url=server.url).stdout) == server.answer[1]


def test_doctor_tells_of_a_server_that_is_away_as_a_failed_check() -> None:
    result = fencepost("doctor", "--json", url="http://127.0.0.1:1")
    assert result.exit_code == 1
    [only] = json.loads(result.stdout)["findings"]
    assert (only["check"], only["status"]) == ("server", "fail")
