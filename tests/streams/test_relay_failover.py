"""The relay on a ledger with a synchronous standby: it follows the shard to whichever server is its primary."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

from connectors.stack import KafkaBroker, PostgresPair
from ledger.connection import session
from ledger.outbox import outbox_lag
from schemas.codec import Codec
from schemas.errors import LedgerUnavailable
from streams.outbox_relay import OutboxRelay
from tests.pair_fixtures import pool_of
from tests.streams.event_samples import new_topics, put_in_outbox
from tests.streams.waiting import until

WITHIN_S = 15.0


async def test_after_a_failover_the_relay_goes_on_with_the_promoted_standby(
    kafka_broker: KafkaBroker, pair: PostgresPair, pair_dsn: str
) -> None:
    topics = new_topics(kafka_broker.bootstrap)
    relay = OutboxRelay(pair_dsn, kafka_broker.bootstrap, topics, Codec())
    stop = asyncio.Event()
    relaying = asyncio.create_task(relay.run(stop))
    async with asyncio.timeout(WITHIN_S):
        await relay.active.wait()
    async with pool_of(pair_dsn) as pool:
        async with session(pool) as conn:
            await put_in_outbox(conn, [(uuid4(), 3)], 1)
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.promote)

        async def all_is_published() -> bool:
            with suppress(LedgerUnavailable):
                async with session(pool) as conn:
                    return await outbox_lag(conn) == (0, 0.0)
            return False

        await until(all_is_published, deadline_s=WITHIN_S)
    stop.set()
    await relaying
