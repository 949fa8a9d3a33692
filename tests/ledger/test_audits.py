"""Who changed what is noted by the statement that changes it, once, and not when nothing was left to change."""

from __future__ import annotations

from datetime import timedelta

from ledger.audits import read_audits
from ledger.connection import Connection, Pool, session
from ledger.live_limits import set_live_limit
from ledger.pauses import pause_queue, pause_tenant, resume_queue, resume_tenant
from ledger.queue_settings import QueueName, set_rate
from ledger.tenant_limits import set_limits
from ledger.tokens import create_token, revoke_token, rotate_token

Told = tuple[str, str, str, str | None]  # actor, action, subject, detail


async def noted(conn: Connection) -> list[Told]:
    rows = await read_audits(conn, 100)
    assert all(row.tenants == ["acme"] for row in rows)
    return [each for row in rows for each in zip(row.actors, row.actions, row.subjects, row.details, strict=True)]


async def test_pauses_and_resumes_are_noted_when_they_change_something(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        for by in ("t1", "t2"):
            await pause_queue(conn, "acme", "mail", by)
            await pause_tenant(conn, "acme", by)
        for by in ("t3", "t4"):
            await resume_queue(conn, "acme", "mail", by)
            await resume_tenant(conn, "acme", by)
        assert await noted(conn) == [
            ("t1", "queue_paused", "mail", None),
            ("t1", "tenant_paused", "acme", None),
            ("t3", "queue_resumed", "mail", None),
            ("t3", "tenant_resumed", "acme", None),
        ]


async def test_settings_of_a_queue_are_noted_with_what_was_set(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        for rate in (5.0, 5.0, None):
            await set_rate(conn, "acme", "mail", rate, "t1")
        changes: list[dict[str, int | None]] = [{"max_live": 3}, {"max_live_per_key": 1}, {"max_live": None}]
        for change in changes:
            await set_live_limit(conn, QueueName("acme", "mail"), change, "t1")
        assert await noted(conn) == [
            ("t1", "queue_changed", "mail", "ratePerSecond: 5"),
            ("t1", "queue_changed", "mail", "ratePerSecond: none"),
            ("t1", "queue_changed", "mail", "maxLiveRuns: 3, maxLiveRunsPerKey: none"),
            ("t1", "queue_changed", "mail", "maxLiveRuns: 3, maxLiveRunsPerKey: 1"),
            ("t1", "queue_changed", "mail", "maxLiveRuns: none, maxLiveRunsPerKey: 1"),
        ]


async def test_limits_of_a_tenant_are_noted_with_all_that_is_set_from_then_on(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        await set_limits(conn, "acme", {"leases_per_s": 2.5}, "t1")
        await set_limits(conn, "acme", {"max_pending": 7}, "t2")
        assert await noted(conn) == [
            (
                "t1",
                "tenant_changed",
                "acme",
                "leasesPerSecond: 2.5, leaseBurst: none, maxPendingRuns: none, weight: none",
            ),
            ("t2", "tenant_changed", "acme", "leasesPerSecond: 2.5, leaseBurst: none, maxPendingRuns: 7, weight: none"),
        ]


async def test_what_becomes_of_tokens_is_noted_without_a_secret(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        token = await create_token(conn, "acme", "worker", ["mail", "sms"])
        token_id = token.split("_")[1]
        new = await rotate_token(conn, token_id, timedelta(hours=1), by="t1")
        assert new is not None
        for _ in range(2):
            await rotate_token(conn, token_id, timedelta(hours=1), by="t2")
            await revoke_token(conn, token_id, by="t2")
        [user] = (await (await conn.execute("SELECT session_user::text")).fetchone()) or ()
        told = await noted(conn)
    assert told == [
        (f"postgres:{user}", "token_created", token_id, "worker of mail,sms"),
        ("t1", "token_rotated", token_id, f"to {new.split('_')[1]}"),
        ("t2", "token_revoked", token_id, None),
    ]


async def test_what_is_told_to_every_shard_is_noted_at_home_alone(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE settings SET value = '1' WHERE key = 'shard'")
        try:
            assert await pause_queue(conn, "acme", "mail", "t1")
            assert await noted(conn) == []
        finally:
            await conn.execute("UPDATE settings SET value = '0' WHERE key = 'shard'")


async def test_a_change_that_is_taken_back_was_never_noted(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        async with conn.transaction(force_rollback=True):
            await pause_queue(conn, "acme", "mail", "t1")
            assert len(await noted(conn)) == 1
        assert await noted(conn) == []
