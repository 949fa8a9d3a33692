"""Bearer tokens: only their hash is kept, and they stand for one tenant, role and set of queues."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import psycopg
import pytest

from ledger.connection import Pool, session
from ledger.tokens import Identity, create_token, find_token, revoke_token


async def test_a_token_speaks_for_its_tenant_role_and_queues(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker", ["mail", "sms"])
        assert await find_token(conn, token) == Identity(token.split("_")[1], "acme", "worker", ["mail", "sms"])


async def test_a_token_without_queues_is_good_for_all_of_them(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        found = await find_token(conn, await create_token(conn, "acme", "admin"))
    assert found is not None
    assert found.queues is None


async def test_the_ledger_keeps_no_token_but_its_hash(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
        kept = str(await (await conn.execute("SELECT t, t.token_hash FROM tokens t")).fetchall())
    secret = token.split("_", 2)[2]
    assert secret not in kept
    assert token.encode().hex() not in kept
    assert hashlib.sha256(token.encode()).hexdigest() in kept


async def test_tokens_are_unlike_each_other_and_have_256_secret_bits(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        tokens = {await create_token(conn, "acme", "worker") for _ in range(50)}
    assert len(tokens) == 50
    assert all(re.fullmatch(r"fp_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token) for token in tokens)


async def test_a_revoked_token_speaks_for_nobody(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        revoked, other = await create_token(conn, "acme", "worker"), await create_token(conn, "acme", "worker")
        token_id = revoked.split("_")[1]
        assert await revoke_token(conn, token_id)
        assert await find_token(conn, revoked) is None
        assert await find_token(conn, other) is not None
        assert not await revoke_token(conn, token_id)


async def test_revoking_an_unknown_token_is_told(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        assert not await revoke_token(conn, "0123456789ab")


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: t + "x", lambda t: t.upper(), lambda _: "", lambda _: "\x00"]
)
async def test_anything_but_the_token_itself_speaks_for_nobody(ledger_pool: Pool, change: Callable[[str], str]) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker")
        assert await find_token(conn, change(token)) is None


async def test_a_token_has_one_of_the_roles(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        with pytest.raises(psycopg.errors.CheckViolation):
            await create_token(conn, "acme", "root")  # type: ignore[arg-type]
