"""What processes follow of a shard by one statement."""

from __future__ import annotations

import asyncio
import time

from ledger.clock import LedgerClock
from ledger.connection import Pool, ledger_now, session
from ledger.news import News, follow_news, read_news
from ledger.queue_settings import QueueName, set_rate
from ledger.tenant_limits import TenantLimits, set_limits
from streams.timers import to_us


async def test_rates_and_limits_are_told_as_they_were_set(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        assert await read_news(conn, LedgerClock()) == News({}, {})
        await set_rate(conn, "acme", "mail", 0.1, "me")
        await set_rate(conn, "acme", "sms", 5, "me")
        await set_rate(conn, "acme", "sms", None, "me")
        await set_limits(conn, "acme", {"leases_per_s": 12.5, "lease_burst": 3}, "me")
        await set_limits(conn, "globex", {"max_pending": 1_000}, "me")
        news = await read_news(conn, LedgerClock())
    assert {queue: version.is_set for queue, version in news.rates.items()} == {
        QueueName("acme", "mail"): True, QueueName("acme", "sms"): False,
    }  # fmt: skip
    assert news.limits == {"acme": TenantLimits(12.5, 3), "globex": TenantLimits(max_pending=1_000)}


async def test_a_rate_that_changes_has_another_version(ledger_pool: Pool) -> None:
    versions = set()
    async with session(ledger_pool) as conn:
        for rate_per_s in (1, 2, None):
            await set_rate(conn, "acme", "mail", rate_per_s, "me")
            versions.add((await read_news(conn, LedgerClock())).rates[QueueName("acme", "mail")].version)
    assert len(versions) == 3


async def test_the_clock_is_told_with_the_news_within_a_round_trip(ledger_pool: Pool) -> None:
    clock = LedgerClock()
    async with session(ledger_pool) as conn:
        began = time.monotonic()
        await read_news(conn, clock)
        estimate_us = clock.now_us()
        now_us = to_us(await ledger_now(conn))
    assert estimate_us <= now_us < estimate_us + 1e6 * (time.monotonic() - began)


async def test_who_follows_hears_at_once_and_then_of_what_changes(ledger_pool: Pool) -> None:
    heard: asyncio.Queue[News] = asyncio.Queue()
    following = asyncio.create_task(follow_news(ledger_pool, LedgerClock(), heard.put_nowait, period_s=0.01))
    try:
        assert await heard.get() == News({}, {})
        async with session(ledger_pool) as conn:
            await set_limits(conn, "acme", {"max_pending": 7}, "me")
        async with asyncio.timeout(10):
            while (await heard.get()).limits != {"acme": TenantLimits(max_pending=7)}:
                pass
    finally:
        following.cancel()


async def test_whose_hints_go_by_the_clock_asks_it_once_more_when_nobody_sleeps(ledger_pool: Pool) -> None:
    clock, heard = LedgerClock(), asyncio.Event()

    def hear(_: News) -> None:
        assert len(clock._samples) == 2
        heard.set()

    following = asyncio.create_task(follow_news(ledger_pool, clock, hear, period_s=60, to_the_point=True))
    await heard.wait()
    following.cancel()
