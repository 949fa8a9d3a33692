"""Records on their way back to Kafka."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from schemas.errors import CommandRejected, InvalidSchedule, KafkaUnavailable
from streams import rejections
from streams.rejections import CommandReturns, RawCommand, Rejection, Stray
from tests.fatal_producer import fatal_at_first
from tests.streams.commands import CODEC
from tests.streams.conftest import OwnerSetting

RAW = RawCommand(3, 17, b"key", b"\x00raw")


async def test_a_rejection_says_everything_that_is_known(setting: OwnerSetting) -> None:
    error = InvalidSchedule("cron", "no such minute", "use 0 to 59")
    await setting.around.returns.reject([Rejection(RAW, error, 2, "an id")])
    [record] = await setting.rejected(1)
    assert datetime.now(UTC) - record.pop("rejectedAt") < timedelta(minutes=1)
    assert record == {
        "code": "invalid_schedule",
        "reason": "no such minute; use 0 to 59",
        "field": "cron",
        "partition": 3,
        "offset": 17,
        "index": 2,
        "commandId": "an id",
        "key": b"key",
        "value": b"\x00raw",
    }


async def test_a_whole_record_without_bytes_can_be_rejected(setting: OwnerSetting) -> None:
    await setting.around.returns.reject([Rejection(RawCommand(0, 0, None, None), CommandRejected("empty"))])
    [record] = await setting.rejected(1)
    assert (record["key"], record["value"], record["index"], record["commandId"]) == (None, None, None, None)


async def test_a_record_as_large_as_a_command_may_be_can_be_rejected(setting: OwnerSetting) -> None:
    """The broker takes a command of up to its limit; what we wrap around it must still pass."""
    value = b"x" * (1024 * 1024 - 100)
    await setting.around.returns.reject([Rejection(RAW._replace(value=value), CommandRejected("large"))])
    [record] = await setting.rejected(1)
    assert record["value"] == value


async def test_a_batch_of_bad_commands_is_told_with_its_bytes_once(setting: OwnerSetting) -> None:
    error = CommandRejected("bad")
    await setting.around.returns.reject(
        [Rejection(RAW, error, place) for place in range(3)] + [Rejection(RAW._replace(offset=18), error)]
    )
    records = await setting.rejected(4)
    assert [record["index"] for record in records] == [0, 1, 2, None]
    assert [record["value"] for record in records] == [RAW.value, None, None, RAW.value]


async def test_forwarding_puts_each_where_it_belongs(setting: OwnerSetting) -> None:
    await setting.around.returns.forward([Stray(4, b"k", b"for 4"), Stray(6, b"k", b"for 6")])
    assert await setting.forwarded(4, 1) == [b"for 4"]
    assert await setting.forwarded(6, 1) == [b"for 6"]


async def test_nothing_to_return_asks_nothing_of_kafka() -> None:
    returns = CommandReturns("127.0.0.1:1", "commands", "rejected", CODEC)
    await returns.reject([])
    returns.close()


async def test_a_broker_that_is_away_is_said_and_holds_nobody_else_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "PUBLISH_TIMEOUT_S", 0.3)
    returns = CommandReturns("127.0.0.1:1", "commands", "rejected", CODEC)
    publishing = asyncio.create_task(returns.forward([Stray(0, b"k", b"v")]))
    ticks = 0
    while not publishing.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5
    with pytest.raises(KafkaUnavailable):
        await publishing
    await asyncio.to_thread(returns.close)


async def test_a_producer_with_a_fatal_error_is_replaced(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejections, "Producer", fatal_at_first())
    rejection = Rejection(RAW, CommandRejected("bad"))
    with pytest.raises(KafkaUnavailable, match="out of sequence"):
        await setting.around.returns.reject([rejection])
    await setting.around.returns.reject([rejection])
    assert len(await setting.rejected(1)) == 1
