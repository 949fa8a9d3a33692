"""The inbox on a topic that Faust reads: what it takes, what it drops, what it asks for again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams import command_inbox
from streams.command_inbox import CommandInbox
from streams.fair_backlog import RECORD_BYTES
from streams.rejections import RawCommand

ALL_BYTES = 1 << 30


class Reader:
    """Stands for Faust: notes what an inbox asks of it."""

    def __init__(self, next_offset: int = 0, ahead: Mapping[str, int] | None = None) -> None:
        self.held = 0
        self.read_from: list[int] = []
        self.inbox = CommandInbox(
            next_offset,
            self._hold,
            self.read_from.append,
            tenant_of=lambda value: (value or b"").decode(),
            ahead=ahead or {},
            later=lambda _, do: do(),
        )

    def _hold(self) -> None:
        self.held += 1

    def deliver(self, *offsets: int, tenant: str = "a") -> None:
        for offset in offsets:
            self.inbox.offer(RawCommand(0, offset, None, tenant.encode()))

    def answer(self, *tenants: str) -> None:
        """The last seek, with what the topic has from there on: a record of each of these in turn."""
        offset = self.read_from[-1]
        self.read_from.clear()
        self.inbox.sought()
        for at, tenant in enumerate(tenants[offset:], offset):
            self.deliver(at, tenant=tenant)

    async def taken(self) -> list[int]:
        return [record.offset for record in (await self.inbox.take(10_000, ALL_BYTES)).records]


async def test_records_come_out_in_order_and_once() -> None:
    reader = Reader(5)
    reader.deliver(3, 4, 5, 6, 5, 6, 7)
    assert await reader.taken() == [5, 6, 7]
    assert reader.read_from == []


async def test_records_from_before_the_seek_are_not_taken_for_the_next_ones() -> None:
    reader = Reader(5)
    reader.deliver(9, 10)  # were under way when the partition was sought to 5
    assert reader.read_from == [5]
    reader.deliver(5, 6)
    assert await reader.taken() == [5, 6]


async def test_a_gap_that_is_read_again_is_real() -> None:
    reader = Reader(5)
    reader.deliver(9)
    reader.deliver(9, 10)
    assert await reader.taken() == [9, 10]
    assert reader.read_from == [5]


async def test_a_first_record_within_the_doubted_gap_is_the_next_one() -> None:
    reader = Reader(5)
    reader.deliver(9, 10, 7, 8, 9)  # 5 and 6 are gone from the topic
    assert await reader.taken() == [7, 8, 9]


async def test_gaps_in_sequence_are_believed() -> None:
    reader = Reader(0)
    reader.inbox.sought()
    reader.deliver(0, 2, 5)  # transactions leave their markers in between
    assert await reader.taken() == [0, 2, 5]
    assert reader.read_from == []


async def test_no_gap_is_believed_between_a_rebalance_and_its_seek() -> None:
    reader = Reader(0)
    reader.inbox.sought()
    reader.deliver(0)
    reader.inbox.doubt()
    reader.deliver(1, 7)  # Faust has thrown away what was between
    assert reader.read_from == [2]
    reader.inbox.sought()
    reader.deliver(2, 3)
    assert await reader.taken() == [0, 1, 2, 3]


async def test_large_records_are_few_in_a_batch_but_never_none() -> None:
    reader = Reader(0)
    for offset in range(4):
        reader.inbox.offer(RawCommand(0, offset, None, bytes(10)))
    assert [record.offset for record in (await reader.inbox.take(10, 20)).records] == [0, 1]
    assert [record.offset for record in (await reader.inbox.take(10, 1)).records] == [2]


async def test_a_backlog_is_shared_by_its_tenants_and_what_it_has_no_room_for_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_inbox, "CAPACITY_BYTES", 300 * (RECORD_BYTES + 1))
    topic = [*["a"] * 1_000, "b", *["a"] * 10]
    reader = Reader(0)
    reader.read_from.append(0)  # the seek of the one who took over
    reader.answer(*topic[:1_001])
    assert reader.read_from == []
    batch = await reader.inbox.take(200, ALL_BYTES)
    assert [record.offset for record in batch.records] == [*range(100), 1_000, *range(100, 150)]
    assert (batch.position, batch.ahead) == (150, {"b": 1_001})
    assert reader.read_from == [150]  # half of the flood gave way to the other tenant's
    reader.deliver(*range(1_001, 1_010))  # were under way: not what is awaited now
    applied = batch.records
    while reader.read_from or not reader.inbox.is_empty:
        if reader.read_from:
            reader.answer(*topic)
        applied += (await reader.inbox.take(200, ALL_BYTES)).records
    assert [record.offset for record in applied if record.value == b"a"] == [*range(1_000), *range(1_001, 1_011)]
    assert len(applied) == len(topic)


async def test_a_later_seek_is_asked_for_once_the_one_before_it_is_done() -> None:
    """Else the earlier one might come last, and what lies between would be taken for a gap."""
    reader = Reader(0)
    reader.deliver(*range(20_000))
    await reader.inbox.take(10_000, ALL_BYTES)
    assert reader.read_from == []
    reader.inbox.sought()
    assert len(reader.read_from) == 1
    await reader.inbox.take(1_000, ALL_BYTES)
    assert len(reader.read_from) == 1


async def test_who_takes_over_leaves_out_what_is_applied_ahead_of_others() -> None:
    reader = Reader(5, ahead={"b": 8})
    reader.deliver(5)
    reader.deliver(6, 7, 8, tenant="b")
    batch = await reader.inbox.take(10, ALL_BYTES)
    assert [record.offset for record in batch.records] == [5, 8]
    assert (batch.position, batch.ahead) == (9, {})


async def test_take_waits_for_a_record() -> None:
    reader = Reader(0)
    taking = asyncio.create_task(reader.taken())
    await asyncio.sleep(0)
    assert not taking.done()
    reader.deliver(0)
    assert await taking == [0]


async def test_a_closed_inbox_takes_nothing() -> None:
    reader = Reader(0)
    reader.inbox.close()
    reader.deliver(0, 1)
    assert reader.read_from == []
    assert reader.held == 0


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_was_under_way_nothing_is_lost_or_doubled(data: st.DataObject) -> None:
    """The topic holds some offsets; Faust delivers what was under way, then answers every seek, until all is in."""
    topic = sorted(data.draw(st.sets(st.integers(0, 30), min_size=1)))
    start = data.draw(st.integers(0, 31))
    reader = Reader(start)
    stale = data.draw(st.integers(0, 31))
    under_way = [offset for offset in topic if offset >= stale]
    reader.deliver(*under_way[: data.draw(st.integers(0, 12))])
    reader.read_from.insert(0, start)  # the seek of the one who took over
    while reader.read_from:
        offset = reader.read_from.pop(0)
        reader.inbox.sought()
        reader.deliver(*(each for each in topic if each >= offset))
    expected = [offset for offset in topic if offset >= start]
    assert [record.offset for record in reader.inbox._records] == expected
