"""The inbox on a topic that Faust reads: what it takes, what it drops, what it asks for again."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from streams import command_inbox
from streams.command_inbox import CAPACITY, CommandInbox
from streams.rejections import RawCommand

ALL_BYTES = 1 << 30


class Reader:
    """Stands for Faust: notes what an inbox asks of it."""

    def __init__(self, next_offset: int = 0) -> None:
        self.held = 0
        self.read_from: list[int] = []
        self.inbox = CommandInbox(next_offset, self._hold, self.read_from.append)

    def _hold(self) -> None:
        self.held += 1

    def deliver(self, *offsets: int) -> None:
        for offset in offsets:
            self.inbox.offer(RawCommand(0, offset, None, b"x"))

    async def taken(self) -> list[int]:
        return [record.offset for record in await self.inbox.take(CAPACITY, ALL_BYTES)]


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


async def test_a_full_inbox_holds_the_topic_back_and_reads_on_from_there() -> None:
    reader = Reader(0)
    reader.deliver(*range(CAPACITY + 10))
    assert reader.held > 0
    await reader.inbox.take(10, ALL_BYTES)
    assert reader.read_from == []  # there is hardly any room yet
    await reader.inbox.take(CAPACITY // 2, ALL_BYTES)
    assert reader.read_from == [CAPACITY]
    reader.deliver(CAPACITY + 3, CAPACITY, CAPACITY + 1)
    assert (await reader.taken())[-2:] == [CAPACITY, CAPACITY + 1]


async def test_large_records_fill_an_inbox_before_it_has_many() -> None:
    reader = Reader(0)
    large = bytes(command_inbox.CAPACITY_BYTES // 4)
    for offset in range(6):
        reader.inbox.offer(RawCommand(0, offset, None, large))
    assert reader.held > 0
    assert [record.offset for record in await reader.inbox.take(10, 2 * len(large))] == [0, 1]
    assert [record.offset for record in await reader.inbox.take(10, 1)] == [2]  # never none at all
    assert reader.read_from == [4]


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
