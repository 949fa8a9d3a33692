"""Bearer tokens: only their hash is kept, and they stand for one tenant, role and set of queues."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from ledger.connection import Connection, Pool, session
from ledger.tokens import (
    FORGOTTEN_AFTER,
    FoundToken,
    Identity,
    create_token,
    find_token,
    forget_tokens,
    list_tokens,
    revoke_token,
    rotate_token,
)

HOUR = timedelta(hours=1)


def id_of(token: str) -> str:
    return token.split("_")[1]


async def let_pass(conn: Connection, past: timedelta) -> None:
    """Make every token that much older."""
    await conn.execute(
        "UPDATE tokens SET created_at = created_at - %(past)s, expires_at = expires_at - %(past)s,"
        " revoked_at = revoked_at - %(past)s",
        {"past": past},
    )


async def test_a_token_speaks_for_its_tenant_role_and_queues(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker", ["mail", "sms"])
        found = Identity(id_of(token), "acme", "worker", ["mail", "sms"])
        assert await find_token(conn, token) == FoundToken(found, left_s=None)


async def test_a_token_without_queues_is_good_for_all_of_them(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        found = await find_token(conn, await create_token(conn, "acme", "admin"))
    assert found is not None
    assert found.identity.queues is None


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
        token_id = id_of(revoked)
        assert await revoke_token(conn, token_id)
        assert await find_token(conn, revoked) is None
        assert await find_token(conn, other) is not None
        assert not await revoke_token(conn, token_id)


async def test_a_token_speaks_for_nobody_from_its_expiry_on(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker", expires_in=2 * HOUR)
        await let_pass(conn, HOUR)
        found = await find_token(conn, token)
        assert found is not None
        assert found.left_s == pytest.approx(3600, abs=60)
        await let_pass(conn, HOUR)
        assert await find_token(conn, token) is None
        assert not await revoke_token(conn, id_of(token))


async def test_a_rotated_token_and_the_one_in_its_place_both_work_until_the_overlap_is_over(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        old = await create_token(conn, "acme", "worker", ["mail"])
        new = await rotate_token(conn, id_of(old), HOUR)
        assert new is not None
        for token in (old, new):
            found = await find_token(conn, token)
            assert found is not None
            assert found.identity == Identity(id_of(token), "acme", "worker", ["mail"])
        await let_pass(conn, HOUR)
        assert await find_token(conn, old) is None
        assert await find_token(conn, new) == FoundToken(Identity(id_of(new), "acme", "worker", ["mail"]), None)


async def test_a_rotation_makes_no_token_live_longer_and_gives_the_new_one_its_own_time(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        old = await create_token(conn, "acme", "worker", expires_in=HOUR)
        new = await rotate_token(conn, id_of(old), 5 * HOUR, expires_in=3 * HOUR)
        assert new is not None
        await let_pass(conn, HOUR)
        assert await find_token(conn, old) is None
        assert await find_token(conn, new) is not None
        await let_pass(conn, 2 * HOUR)
        assert await find_token(conn, new) is None


async def test_only_a_token_in_force_is_rotated_and_once(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        rotated, revoked = await create_token(conn, "acme", "worker"), await create_token(conn, "acme", "worker")
        expired = await create_token(conn, "acme", "worker", expires_in=timedelta())
        await revoke_token(conn, id_of(revoked))
        assert await rotate_token(conn, id_of(rotated), HOUR)
        for token in (rotated, revoked, expired):
            assert await rotate_token(conn, id_of(token), HOUR) is None
        assert len(await list_tokens(conn)) == 4


async def test_tokens_are_listed_with_what_became_of_them_and_without_their_hashes(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        old = await create_token(conn, "acme", "worker", ["mail"])
        await let_pass(conn, HOUR)
        new = await rotate_token(conn, id_of(old), timedelta())
        revoked = await create_token(conn, "zoo", "admin")
        await revoke_token(conn, id_of(revoked))
        listed = await list_tokens(conn)
        assert await list_tokens(conn, "zoo") == listed[2:]
    assert new is not None
    told = [(each.token_id, each.queues, each.state, each.replaced_by) for each in listed]
    assert told == [
        (id_of(old), ["mail"], "expired", id_of(new)),
        (id_of(new), ["mail"], "in force", None),
        (id_of(revoked), None, "revoked", None),
    ]
    assert not any(isinstance(value, bytes) for each in listed for value in each)


async def test_tokens_that_ended_long_ago_are_forgotten_and_no_others(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        kept = [await create_token(conn, "acme", "worker")]
        gone = [await create_token(conn, "acme", "worker") for _ in range(2)]
        await revoke_token(conn, id_of(gone[0]))
        await rotate_token(conn, id_of(gone[1]), timedelta())
        await let_pass(conn, FORGOTTEN_AFTER)
        kept.append(await create_token(conn, "acme", "worker", expires_in=timedelta()))
        kept.append(await create_token(conn, "acme", "worker"))
        await revoke_token(conn, id_of(kept[-1]))
        await forget_tokens(conn)
        left = {each.token_id for each in await list_tokens(conn)}
    assert {id_of(token) for token in kept} < left
    assert not {id_of(token) for token in gone} & left


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
