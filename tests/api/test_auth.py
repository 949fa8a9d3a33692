"""Tokens: who may do what, and how long the API believes what the ledger said."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from api.app import Api
from api.auth import MOST_UNKNOWN, Authenticator
from api.problems import Problem
from ledger.connection import Connection, Pool, session
from ledger.tokens import FoundToken, create_token, find_token, revoke_token
from tests.api.conftest import Caller, Callers

Request = tuple[str, str, Any]

LEASE: Request = ("POST", "/v1/queues/mail/lease", {"workerId": "w", "max": 1})
CREATE: Request = ("POST", "/v1/jobs", {})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def call(caller: Caller, method: str, path: str, body: object) -> httpx.Response:
    return await caller.http.request(method, path, json=body)


async def test_a_wrong_role_is_told_which_one_it_takes(callers: Callers) -> None:
    response = await call(await callers("worker"), *CREATE)
    assert response.status_code == 403
    assert "producer" in response.json()["detail"]


async def test_a_missing_malformed_or_unknown_token_is_unauthorized(api: Api, callers: Callers) -> None:
    good = await callers.token("worker")
    for header in (None, "", "Bearer", "Bearer ", f"Basic {good}", f"Bearer {good[:-1]}", "Bearer fp_x_y", "Bearer é"):
        headers = httpx.Headers() if header is None else httpx.Headers([("authorization", header)], encoding="latin-1")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api") as client:
            response = await client.post("/v1/queues/mail/lease", json={}, headers=headers)
        assert response.status_code == 401, header
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["content-type"] == "application/problem+json"


async def test_the_scheme_is_read_in_any_case(callers: Callers) -> None:
    token = await callers.token("worker")
    caller = callers.with_token(token)
    caller.http.headers["authorization"] = f"bearer {token}"
    assert (await call(caller, *LEASE)).status_code == 200


async def test_a_revoked_token_ends_within_five_seconds(ledger_pool: Pool) -> None:
    clock = Clock()
    authenticator = Authenticator(ledger_pool, clock=clock)
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
    header = f"Bearer {token}".encode()
    identity = await authenticator.identify(header)
    assert (identity.tenant, identity.role, identity.queues) == ("acme", "worker", None)
    async with session(ledger_pool) as conn:
        await revoke_token(conn, identity.token_id)
    clock.now = 4.9
    assert await authenticator.identify(header) == identity
    clock.now = 5.1
    with pytest.raises(Problem, match="revoked"):
        await authenticator.identify(header)


async def test_an_expired_token_ends_at_once_however_long_it_is_remembered(ledger_pool: Pool) -> None:
    """The process's clock stands still but for the test; the token has a minute by the ledger's."""
    clock = Clock()
    authenticator = Authenticator(ledger_pool, ttl_s=3600.0, clock=clock)
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker", expires_in=timedelta(minutes=1))
    header = f"Bearer {token}".encode()
    identity = await authenticator.identify(header)
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE tokens SET expires_at = now()")
    clock.now = 30.0  # not asked: as of the first look it has 30 s more
    assert await authenticator.identify(header) == identity
    clock.now = 60.0
    with pytest.raises(Problem, match="expired"):
        await authenticator.identify(header)


async def test_a_token_that_was_unknown_is_believed_once_it_exists(ledger_pool: Pool) -> None:
    clock = Clock()
    authenticator = Authenticator(ledger_pool, clock=clock)
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
        await conn.execute("UPDATE tokens SET revoked_at = now()")
    header = f"Bearer {token}".encode()
    with pytest.raises(Problem):
        await authenticator.identify(header)
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE tokens SET revoked_at = NULL")
    with pytest.raises(Problem):
        await authenticator.identify(header)
    clock.now = 5.1
    assert (await authenticator.identify(header)).tenant == "acme"


async def test_a_flood_of_wrong_tokens_cannot_push_out_a_right_one(ledger_pool: Pool) -> None:
    authenticator = Authenticator(ledger_pool, clock=Clock())
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
    await authenticator.identify(f"Bearer {token}".encode())
    for number in range(MOST_UNKNOWN + 10):
        with pytest.raises(Problem):
            await authenticator.identify(f"Bearer fp_{number}".encode())
    assert len(authenticator._unknown) == MOST_UNKNOWN
    async with session(ledger_pool) as conn:
        await conn.execute("DELETE FROM tokens")
    assert (await authenticator.identify(f"Bearer {token}".encode())).tenant == "acme"


async def test_however_many_come_with_a_token_at_once_the_ledger_is_asked_once(
    ledger_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def find_and_count(conn: Connection, token: str) -> FoundToken | None:
        asked.append(token)
        return await find_token(conn, token)

    monkeypatch.setattr("api.auth.find_token", find_and_count)
    authenticator = Authenticator(ledger_pool, clock=Clock())
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
    header = f"Bearer {token}".encode()
    identities = await asyncio.gather(*(authenticator.identify(header) for _ in range(100)))
    assert {identity.tenant for identity in identities} == {"acme"}
    assert asked == [token]
