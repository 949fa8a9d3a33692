"""The relay on a ledger with a synchronous standby: it follows the shard to whichever server is its primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from connectors.stack import KafkaBroker, PostgresPair
from ledger.connection import Pool, session
from ledger.outbox import outbox_lag
from schemas.codec import Codec
from schemas.errors import LedgerUnavailable
from streams.outbox_relay import OutboxRelay
from tests.pair_fixtures import pool_of
from tests.streams.event_samples import new_topics, put_in_outbox
from tests.streams.waiting import until

WITHIN_S = 15.0
LEFT_WITHIN_S = 45.0  # it waits 12 s for its standby, and 5 s for that of each new session


async def test_after_a_failover_the_relay_goes_on_with_the_promoted_standby(
    kafka_broker: KafkaBroker, pair: PostgresPair, pair_dsn: str
) -> None:
    async with relaying(kafka_broker, pair_dsn), pool_of(pair_dsn) as pool:
        async with session(pool) as conn:
            await put_in_outbox(conn, [(uuid4(), 3)], 1)
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.promote)
        await until(lambda: is_published(pool), deadline_s=WITHIN_S)


async def test_a_relay_with_nothing_to_do_leaves_a_former_primary_that_runs_on(
    kafka_broker: KafkaBroker, pair: PostgresPair, pair_dsn: str
) -> None:
    """There it could look into an empty outbox for ever: it never writes, so no commit tells it."""
    async with relaying(kafka_broker, pair_dsn):
        await asyncio.to_thread(pair.promote)
        async with pool_of(pair_dsn) as pool:
            async with session(pool) as conn:
                await put_in_outbox(conn, [(uuid4(), 3)], 1)
            await until(lambda: is_published(pool), deadline_s=LEFT_WITHIN_S)


@asynccontextmanager
async def relaying(kafka_broker: KafkaBroker, dsn: str) -> AsyncIterator[None]:
    relay = OutboxRelay(dsn, kafka_broker.bootstrap, new_topics(kafka_broker.bootstrap), Codec())
    stop = asyncio.Event()
    running = asyncio.create_task(relay.run(stop))
    async with asyncio.timeout(WITHIN_S):
        await relay.active.wait()
    try:
        yield
    finally:
        stop.set()
        await running


async def is_published(pool: Pool) -> bool:
    with suppress(LedgerUnavailable):
        async with session(pool) as conn:
            return await outbox_lag(conn) == (0, 0.0)
    return False
