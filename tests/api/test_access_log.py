"""The access log: who called what and how it went, and nothing of what was said."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from api.access_log import AccessLog, Logged, to_standard_output
from api.app import Api, ApiSettings
from ledger.connection import Pool, session
from ledger.shards import Shards
from ledger.tokens import find_token
from tests.api.conftest import Callers

SECRET = "the-payload-is-secret"


class Log:
    """The lines of an API's log, and callers of it."""

    def __init__(
        self, shards: Shards, pool: Pool, settings: ApiSettings, logged: Logged, *, probes: bool = False
    ) -> None:
        self.text = b""
        log = AccessLog(logged, self._write, probes=probes)
        api = Api(shards, dataclasses.replace(settings, access_log=log))
        self.callers = Callers(api, pool)

    def _write(self, line: bytes) -> None:
        self.text += line

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


async def test_a_line_tells_who_called_what_and_how_it_went(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings
) -> None:
    log = Log(shards, ledger_pool, settings, "all")
    token = await log.callers.token("operator")
    async with session(ledger_pool) as conn:
        found = await find_token(conn, token)
    assert found is not None
    assert (await log.callers.with_token(token).get("/v1/queues/mail")).status_code == 200
    [line] = log.lines()
    assert line.pop("ms") > 0
    assert line.pop("at").endswith("Z")
    assert line == {
        "method": "GET", "route": "/v1/queues/{queue}", "status": 200, "tenant": "acme",
        "tokenId": found.identity.token_id,
    }  # fmt: skip


async def test_no_line_has_a_payload_a_token_an_id_or_a_query_string(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings
) -> None:
    log = Log(shards, ledger_pool, settings, "all")
    token = await log.callers.token("admin")
    caller = log.callers.with_token(token)
    await caller.post(f"/v1/jobs?{SECRET}", {"queue": SECRET, "schedule": {SECRET: 1}}, Idempotency_Key=SECRET)
    await caller.get(f"/v1/dead?reason={SECRET}&after={SECRET}")
    await caller.get(f"/v1/runs/{SECRET}")
    await log.callers.with_token(f"fp_1_{SECRET}").get("/v1/whoami")
    assert [line["status"] for line in log.lines()] == [422, 422, 404, 401]
    assert SECRET not in log.text.decode()
    assert token not in log.text.decode()
    assert log.lines()[-1]["tokenId"] is None


@pytest.mark.parametrize(("logged", "statuses"), [("all", [200, 404]), ("failures", [404]), ("off", [])])
async def test_what_is_logged_can_be_told(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, logged: Logged, statuses: list[int]
) -> None:
    log = Log(shards, ledger_pool, settings, logged)
    caller = await log.callers("operator")
    await caller.get("/v1/queues/mail")
    await caller.get("/v1/runs/none")
    assert [line["status"] for line in log.lines()] == statuses


async def test_what_no_endpoint_takes_is_logged_without_what_was_asked_for(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings
) -> None:
    log = Log(shards, ledger_pool, settings, "failures")
    caller = await log.callers("operator")
    assert (await caller.get(f"/v1/{SECRET}?{SECRET}")).status_code == 404
    assert (await caller.delete("/v1/whoami")).status_code == 405
    assert (await caller.post("/healthz")).status_code == 405
    told = [(line["method"], line["route"], line["status"]) for line in log.lines()]
    assert told == [("GET", "(none)", 404), ("DELETE", "/v1/whoami", 405), ("POST", "/healthz", 405)]
    assert SECRET not in log.text.decode()


@pytest.mark.parametrize("probes", [False, True])
async def test_calls_of_machines_that_watch_are_logged_when_that_is_wanted(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, *, probes: bool
) -> None:
    log = Log(shards, ledger_pool, settings, "all", probes=probes)
    await (await log.callers("operator")).get("/healthz")
    assert [(line["route"], line["status"]) for line in log.lines()] == ([("/healthz", 200)] if probes else [])


def test_a_line_is_on_standard_output_at_once(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Standard error has what is told to people."""
    AccessLog("all", to_standard_output).tell("GET /v1/whoami", 401, 1.23456, None)
    out, err = capfdbinary.readouterr()
    assert err == b""
    assert out.endswith(b"\n")
    line = json.loads(out)
    assert (line["method"], line["route"], line["ms"], line["tenant"]) == ("GET", "/v1/whoami", 1.235, None)
