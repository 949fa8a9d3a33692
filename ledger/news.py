"""What processes follow of a shard: they ask now and then for all of it in one statement.

A statement costs an idle process a wake-up, and Postgres another, whatever it asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ledger.clock import LedgerClock, monotonic_us
from ledger.connection import Connection, Pool, session
from ledger.pulse import pulse
from ledger.queue_settings import READ_RATE_VERSIONS, QueueName, RateVersion
from ledger.tenant_limits import READ_LIMITS, TenantLimits
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)


class News(NamedTuple):
    """rates: of every queue that has, or had, one. limits: of every tenant that has, or had, one."""

    rates: Mapping[QueueName, RateVersion]
    limits: Mapping[str, TenantLimits]


# The clock last: by the time that the answer takes from there the estimate is late.
READ_NEWS = f"""
SELECT
    (SELECT json_agg(rate) FROM ({READ_RATE_VERSIONS}) AS rate),
    (SELECT json_agg(of_tenant) FROM ({READ_LIMITS}) AS of_tenant),
    clock_timestamp()
"""


async def read_news(conn: Connection, clock: LedgerClock) -> News:
    """The clock has a sample more."""
    sent_us = monotonic_us()
    row = await (await conn.execute(READ_NEWS)).fetchone()
    assert row is not None
    rates, limits, now = row
    clock.hear(sent_us, now)
    return News(
        {QueueName(each.pop("tenant"), each.pop("queue")): RateVersion(**each) for each in rates or ()},
        {each.pop("tenant"): TenantLimits(**each) for each in limits or ()},
    )


async def follow_news(
    pool: Pool, clock: LedgerClock, hear: Callable[[News], None], period_s: float, *, to_the_point: bool = False
) -> None:
    """Ask at each pulse until cancelled; while the ledger is away all stands as it was heard last.

    to_the_point: ask the clock once more, for who has slept is slow at first: where a run waits for what is late by it.
    """
    while True:
        try:
            async with session(pool) as conn:
                news = await read_news(conn, clock)
                if to_the_point:
                    await clock.ask(conn)
        except LedgerUnavailable as error:
            log.warning("the clock and the settings of the ledger cannot be read: %s", error)
        else:
            hear(news)
        await pulse(period_s)
