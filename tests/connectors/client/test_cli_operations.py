"""The `fencepost` command's calls for operators, against a scripted server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.connectors.client.test_cli import JOB_ID, RUN_ID, ScriptedServer, fencepost

JOB = {
    "jobId": JOB_ID,
    "queue": "mail",
    "schedule": {"cron": "0 9 * * *", "zone": "Europe/Paris", "excludeDates": ["2026-12-25"]},
    "state": "active",
    "payload": {"to": "ops"},
    "maxAttempts": 3,
    "overlap": "skip",
    "retryBaseSeconds": 5,
}
DEAD_RUN = {
    "runId": RUN_ID, "jobId": JOB_ID, "queue": "mail", "diedAt": "2026-03-01T09:00:00Z", "reason": "boom",
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def test_create_takes_every_policy(server: ScriptedServer) -> None:
    server.answer = (201, {"jobId": JOB_ID})
    result = fencepost(
        *["jobs", "create", "--queue", "bill", "--cron", "0 6 1 * *", "--start-at", "2026-02-01T00:00:00Z"],
        *["--end-at", "2027-02-01T00:00:00+01:00", "--exclude-date", "2026-05-01", "--exclude-date", "2026-06-01"],
        *["--jitter", "30", "--catch-up", "all", "--catch-up-limit", "50", "--start-deadline", "600"],
        *["--concurrency-key", "customer-42"],
        *["--retry-backoff", "linear", "--retry-base", "2.5", "--retry-max", "60"],
        url=server.url,
    )
    assert result.exit_code == 0, result.output
    [(_, _, body)] = server.asked
    assert body == {
        "queue": "bill",
        "schedule": {
            "cron": "0 6 1 * *", "startAt": "2026-02-01T00:00:00Z", "endAt": "2027-02-01T00:00:00+01:00",
            "excludeDates": ["2026-05-01", "2026-06-01"], "jitterSeconds": 30.0,
        },
        "catchUp": "all", "catchUpLimit": 50, "startDeadlineSeconds": 600.0, "concurrencyKey": "customer-42",
        "retryBackoff": "linear", "retryBaseSeconds": 2.5, "retryMaxSeconds": 60.0,
    }  # fmt: skip


def test_create_without_a_queue_asks_for_one(server: ScriptedServer) -> None:
    result = fencepost("jobs", "create", "--every", "5", url=server.url)
    assert (result.exit_code, server.asked) == (2, [])
    assert "--queue" in result.stderr


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (["--max-attempts", "7"], {"maxAttempts": 7}),
        (["--cron", "0 10 * * *"], {"schedule": JOB["schedule"] | {"cron": "0 10 * * *"}}),  # type: ignore[operator]
        (["--every", "60"], {"schedule": {"everySeconds": 60}}),
        (["--payload", "[1]", "--overlap", "allow"], {"payload": [1], "overlap": None}),
    ],
)
def test_update_sends_the_job_as_it_is_but_for_what_was_given(
    server: ScriptedServer, options: list[str], changed: dict[str, Any]
) -> None:
    server.answer = (200, JOB)
    result = fencepost("jobs", "update", JOB_ID, *options, url=server.url)
    assert result.exit_code == 0, result.output
    assert [call[:2] for call in server.asked] == [("GET", f"/v1/jobs/{JOB_ID}"), ("PUT", f"/v1/jobs/{JOB_ID}")]
    kept = {name: JOB[name] for name in JOB.keys() - {"jobId", "state"}}
    assert server.asked[1][2] == {name: value for name, value in (kept | changed).items() if value is not None}


def test_update_carries_from_when_on_it_counts(server: ScriptedServer) -> None:
    server.answer = (200, JOB)
    options = ["--lane", "high", "--effective-from", "2026-07-01T00:00:00+02:00"]
    assert fencepost("jobs", "update", JOB_ID, *options, url=server.url).exit_code == 0
    assert server.asked[1][2]["effectiveFrom"] == "2026-06-30T22:00:00Z"


def test_update_of_nothing_is_refused(server: ScriptedServer) -> None:
    server.answer = (200, JOB)
    result = fencepost("jobs", "update", JOB_ID, url=server.url)
    assert result.exit_code == 2
    assert all(method == "GET" for method, _, _ in server.asked)


def test_backfill_sends_the_range_and_lists_the_runs(server: ScriptedServer) -> None:
    runs = [{"scheduledFor": "2026-03-01T09:00:00Z", "runId": RUN_ID}]
    server.answer = (200, {"jobId": JOB_ID, "dryRun": False, "count": 1, "runs": runs})
    span = ["--from", "2026-03-01T00:00:00Z", "--to", "2026-03-02T00:00:00Z"]
    result = fencepost("jobs", "backfill", JOB_ID, *span, "--payload", "[1]", url=server.url)
    assert result.exit_code == 0, result.output
    assert RUN_ID in result.stdout
    assert "1 runs were made" in result.stderr
    assert server.asked == [
        (
            "POST",
            f"/v1/jobs/{JOB_ID}/backfill",
            {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z", "dryRun": False, "payload": [1]},
        )
    ]
    assert "would be made" in fencepost("jobs", "backfill", JOB_ID, *span, "--dry-run", url=server.url).stderr


@pytest.mark.parametrize("verb", ["cancel", "replay"])
def test_a_run_is_cancelled_and_replayed(server: ScriptedServer, verb: str) -> None:
    server.answer = (200, {"runId": RUN_ID, "state": "leased", "cancelRequested": True})
    result = fencepost("runs", verb, RUN_ID, url=server.url)
    assert (result.exit_code, server.asked) == (0, [("POST", f"/v1/runs/{RUN_ID}/{verb}", None)])
    assert "leased" in result.stdout
    server.answer = (202, {"runId": RUN_ID, "commandId": JOB_ID})
    assert "not applied yet" in fencepost("runs", verb, RUN_ID, url=server.url).stderr


def test_dead_list_filters_and_prints_a_table_or_json_lines(server: ScriptedServer) -> None:
    server.answer = (200, {"runs": [DEAD_RUN], "next": None})
    options = ["--queue", "mail", "--since", "2026-03-01T00:00:00+01:00", "--reason", "a & b"]
    result = fencepost("dead", "list", *options, url=server.url)
    assert result.exit_code == 0, result.output
    assert RUN_ID in result.stdout
    asked = parse_qs(urlsplit(server.asked[0][1]).query)
    assert asked == {
        "queue": ["mail"], "since": ["2026-02-28T23:00:00Z"], "reason": ["a & b"], "limit": ["100"],
    }  # fmt: skip
    [line] = fencepost("dead", "list", "--json", url=server.url).stdout.splitlines()
    assert json.loads(line)["reason"] == "boom"


def test_dead_list_says_when_there_are_more(server: ScriptedServer) -> None:
    server.answer = (200, {"runs": [DEAD_RUN], "next": "abc"})
    result = fencepost("dead", "list", "--limit", "2", url=server.url)
    assert "only the first 2" in result.stderr
    assert "after=abc" in server.asked[1][1]


def test_dead_replay_tells_in_a_dry_run_and_changes_nothing(server: ScriptedServer) -> None:
    server.answer = (200, {"matched": 7, "replayed": 0, "dryRun": True, "sample": [DEAD_RUN], "next": None})
    result = fencepost("dead", "replay", "--queue", "mail", "--dry-run", url=server.url)
    assert result.exit_code == 0, result.output
    assert "7 would be replayed" in result.stdout
    assert [body["dryRun"] for _, _, body in server.asked] == [True]


def test_dead_replay_goes_on_page_by_page_at_its_pace(server: ScriptedServer) -> None:
    server.answer = (200, {"matched": 1500, "replayed": 900, "dryRun": False, "sample": [DEAD_RUN], "next": "abc"})
    result = fencepost("dead", "replay", "--reason", "timeout", "--per-second", "2", url=server.url)
    assert result.exit_code == 0, result.output
    asked = [body for _, _, body in server.asked]
    assert [(body["limit"], body["dryRun"], body.get("after")) for body in asked] == [
        (1, True, None), (1000, False, None), (500, False, "abc"),
    ]  # fmt: skip
    assert len({body["until"] for body in asked}) == 1
    assert asked[1]["startAt"] < asked[2]["startAt"]
    assert "1800 replayed" in result.stdout


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (["queues", "show", "mail"], ("GET", "/v1/queues/mail", None)),
        (["queues", "set", "mail", "--rate", "50"], ("PATCH", "/v1/queues/mail", {"ratePerSecond": 50.0})),
        (["queues", "set", "mail", "--no-rate"], ("PATCH", "/v1/queues/mail", {"ratePerSecond": None})),
        (
            ["queues", "set", "mail", "--live", "20", "--no-live-per-key"],
            ("PATCH", "/v1/queues/mail", {"maxLiveRuns": 20, "maxLiveRunsPerKey": None}),
        ),
        (["queues", "set", "mail", "--live-per-key", "1"], ("PATCH", "/v1/queues/mail", {"maxLiveRunsPerKey": 1})),
        (["queues", "set", "mail", "--no-live"], ("PATCH", "/v1/queues/mail", {"maxLiveRuns": None})),
        (["queues", "pause", "mail"], ("POST", "/v1/queues/mail/pause", None)),
        (["queues", "resume", "mail"], ("POST", "/v1/queues/mail/resume", None)),
        (["tenant", "show"], ("GET", "/v1/tenant", None)),
        (["tenant", "set", "--leases", "50"], ("PATCH", "/v1/tenant", {"leasesPerSecond": 50.0})),
        (["tenant", "set", "--burst", "9"], ("PATCH", "/v1/tenant", {"leaseBurst": 9})),
        (["tenant", "set", "--pending", "9"], ("PATCH", "/v1/tenant", {"maxPendingRuns": 9})),
        (["tenant", "set", "--no-pending"], ("PATCH", "/v1/tenant", {"maxPendingRuns": None})),
        (["tenant", "set", "--no-leases"], ("PATCH", "/v1/tenant", {"leasesPerSecond": None, "leaseBurst": None})),
        (["tenant", "set", "--weight", "3"], ("PATCH", "/v1/tenant", {"weight": 3})),
        (["tenant", "pause"], ("POST", "/v1/tenant/pause", None)),
        (["tenant", "resume"], ("POST", "/v1/tenant/resume", None)),
    ],
)
def test_queues_and_the_tenant_are_shown_and_paused(server: ScriptedServer, args: list[str], asked: Any) -> None:
    waiting = {"high": 0, "normal": 3, "low": 1}
    server.answer = (200, {"queue": "mail", "tenant": "acme", "paused": True, "waiting": waiting})
    result = fencepost(*args, url=server.url)
    assert result.exit_code == 0, result.output
    assert server.asked == [asked]
    assert "paused" in result.stdout


@pytest.mark.parametrize("args", [[], ["--rate", "5", "--no-rate"], ["--rate", "0"], ["--rate", "1000001"]])
def test_a_rate_that_is_unclear_is_refused_before_anything_is_asked(server: ScriptedServer, args: list[str]) -> None:
    result = fencepost("queues", "set", "mail", *args, url=server.url)
    assert (result.exit_code, server.asked) == (2, [])
    assert "--rate" in result.stderr


@pytest.mark.parametrize("args", [[], ["--leases", "5", "--no-leases"], ["--leases", "0"], ["--burst", "0"]])
def test_a_limit_that_is_unclear_is_refused_before_anything_is_asked(server: ScriptedServer, args: list[str]) -> None:
    result = fencepost("tenant", "set", *args, url=server.url)
    assert (result.exit_code, server.asked) == (2, [])
    assert "--" in result.stderr


@pytest.mark.parametrize("args", [["jobs", "update"], ["jobs", "backfill"], ["runs", "cancel"], ["runs", "replay"]])
def test_an_id_that_is_none_is_refused_before_anything_is_asked(server: ScriptedServer, args: list[str]) -> None:
    result = fencepost(*args, "abc", url=server.url)
    assert (result.exit_code, server.asked) == (2, [])


@pytest.mark.parametrize(
    "args",
    [
        *(["jobs", "create"], ["jobs", "update"], ["jobs", "backfill"], ["runs", "cancel"], ["runs", "replay"]),
        *(["dead", "list"], ["dead", "replay"], ["queues", "show"], ["queues", "pause"], ["queues", "resume"]),
        *(["queues", "set"], ["tenant", "set"], ["tenant", "show"], ["tenant", "pause"], ["tenant", "resume"]),
    ],
)
def test_help_has_an_example(args: list[str]) -> None:
    result = fencepost(*args, "--help")
    assert result.exit_code == 0
    assert f"fencepost {' '.join(args)}" in result.stdout.partition("Example")[2]


TOKEN_ID = "4f2a90c1b7de"
TOKEN = {
    "tokenId": TOKEN_ID, "role": "worker", "queues": ["mail"], "createdAt": "2026-03-01T09:00:00Z", "state": "in force",
}  # fmt: skip


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (["create", "--role", "worker"], ("POST", "/v1/tokens", {"role": "worker", "queues": None})),
        (
            ["create", "--role", "admin", "--queue", "mail", "--queue", "sms", "--expires-in", "90d"],
            ("POST", "/v1/tokens", {"role": "admin", "queues": ["mail", "sms"], "expiresInSeconds": 90 * 86_400.0}),
        ),
        (["rotate", TOKEN_ID], ("POST", f"/v1/tokens/{TOKEN_ID}/rotate", {"overlapSeconds": 3600.0})),
        (
            ["rotate", TOKEN_ID, "--overlap", "1d", "--expires-in", "2w"],
            (
                "POST",
                f"/v1/tokens/{TOKEN_ID}/rotate",
                {"overlapSeconds": 86_400.0, "expiresInSeconds": 14 * 86_400.0},
            ),
        ),
    ],
)
def test_a_token_that_was_made_is_printed_and_nothing_else(server: ScriptedServer, args: list[str], asked: Any) -> None:
    server.answer = (201, {"tokenId": TOKEN_ID, "token": f"fp_{TOKEN_ID}_secret"})
    result = fencepost("token", *args, url=server.url)
    assert (result.exit_code, result.stdout) == (0, f"fp_{TOKEN_ID}_secret\n")
    assert server.asked == [asked]


def test_making_a_token_is_not_repeated_for_it_might_have_been_made(server: ScriptedServer) -> None:
    server.answer = (503, {"title": "Service Unavailable"})
    assert fencepost("token", "create", "--role", "worker", url=server.url).exit_code == 3
    assert len(server.asked) == 1


def test_tokens_are_listed_and_revoked(server: ScriptedServer) -> None:
    server.answer = (200, {"tokens": [TOKEN], "next": None})
    listed = fencepost("token", "list", url=server.url)
    assert (listed.exit_code, TOKEN_ID in listed.stdout, "(1 row)" in listed.stdout) == (0, True, True)
    server.answer = (200, TOKEN | {"state": "revoked"})
    revoked = fencepost("token", "revoke", TOKEN_ID, "--json", url=server.url)
    assert (revoked.exit_code, json.loads(revoked.stdout)["state"]) == (0, "revoked")
    assert [call[:2] for call in server.asked] == [
        ("GET", "/v1/tokens?limit=1000"),
        ("DELETE", f"/v1/tokens/{TOKEN_ID}"),
    ]
