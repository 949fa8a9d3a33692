"""Whether somebody is in the owners' group, on real Kafka."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from connectors.stack import KafkaBroker
from streams import owners_group
from streams.owners_group import until_empty
from streams.topics import Topics, create_topics
from tests.streams.waiting import DEADLINE_S


async def test_a_group_is_waited_for_until_its_last_member_has_left(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, group = Topics(f"test-{uuid4().hex[:12]}"), uuid4().hex
    create_topics(kafka_broker.bootstrap, topics, 1)
    member = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    joined = asyncio.Event()
    loop = asyncio.get_running_loop()
    member.subscribe([topics.commands], on_assign=lambda *_: loop.call_soon_threadsafe(joined.set))
    while not joined.is_set():
        await asyncio.to_thread(member.poll, 0.1)
    looked, has_members = asyncio.Event(), owners_group._has_members

    def looking(*args: object) -> bool:
        answer = has_members(*args)  # type: ignore[arg-type]
        loop.call_soon_threadsafe(looked.set)
        return answer

    monkeypatch.setattr(owners_group, "_has_members", looking)
    waiting = asyncio.create_task(until_empty(kafka_broker.bootstrap, group))
    async with asyncio.timeout(DEADLINE_S):
        await looked.wait()
        assert not waiting.done()
        await asyncio.to_thread(member.close)
        await waiting


async def test_nobody_is_waited_for_while_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_group, "TIMEOUT_S", 0.1)
    async with asyncio.timeout(DEADLINE_S):
        await until_empty("127.0.0.1:1", "group")
