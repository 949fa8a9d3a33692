"""Commands take effect exactly once, and none is skipped, whatever comes with them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ledger.audits import read_audits
from ledger.fence import owner_transaction, take_over
from schemas.commands import ISSUER_HEADER
from schemas.errors import EpochLost, KafkaUnavailable
from schemas.events import Event
from schemas.ids import partition_of_job
from streams import rejections
from streams.command_applier import CommandApplier
from streams.fair_backlog import Batch
from streams.rejections import CommandReturns, RawCommand
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import CODEC, batch, create, delete, job_on, pause, raw, resume, trigger
from tests.streams.conftest import OwnerSetting
from tests.streams.ledger_dump import dump, fetch

PARTITION = 2


async def applier_of(setting: OwnerSetting, partition: int = PARTITION) -> CommandApplier:
    fence = (await take_over(setting.pool, partition, "me")).fence
    return CommandApplier(fence, setting.pool, setting.around.returns, CODEC, PARTITIONS)


async def consumed(setting: OwnerSetting, partition: int = PARTITION) -> int:
    [offset] = await fetch(setting.pool, "SELECT consumed_offset FROM partitions WHERE partition = %s", partition)
    return int(offset)


def a_life() -> list[Any]:
    """Every kind of command, some of them rejected, some several in a record."""
    first, second, third = (job_on(PARTITION) for _ in range(3))
    return [
        create(first, {"everySeconds": 60}, payload='{"n":1}'),
        batch([create(second), pause(first), trigger(second, '"by hand"'), create(third, {"delaySeconds": 1})]),
        batch([create(second, lane="low"), resume(first), pause(job_on(PARTITION))]),
        b"garbage",
        trigger(first),
        delete(third),
        create(third),
        create(job_on(PARTITION), {"cron": "60 * * * *"}),
    ]


async def test_records_and_their_offset_take_effect_together(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    job_id = job_on(PARTITION)
    events = await applier.apply(Batch.of(raw(PARTITION, [create(job_id)], first_offset=7)))
    assert [event.type for event in events] == ["job_created", "run_scheduled"]
    assert await consumed(setting) == 8


async def noted(setting: OwnerSetting) -> list[tuple[str, str, str, str]]:
    async with setting.pool.connection() as conn:
        rows = await read_audits(conn, 100)
    return [each for row in rows for each in zip(row.tenants, row.actors, row.actions, row.subjects, strict=True)]


async def test_who_changed_a_job_by_http_is_noted_with_the_change_and_nothing_of_what_had_no_effect(
    setting: OwnerSetting,
) -> None:
    applier = await applier_of(setting)
    first, second, unknown = (job_on(PARTITION) for _ in range(3))
    commands = [create(first), pause(first), pause(first), create(second), pause(unknown), delete(second)]
    asked = [structs.replace(each, issued_by="token-1") for each in commands]
    asked[3] = structs.replace(commands[3], issued_by=None)  # as by a producer of Kafka
    await applier.apply(Batch.of(raw(PARTITION, asked)))
    assert await noted(setting) == [
        ("acme", "token-1", "job_created", str(first)),
        ("acme", "token-1", "job_paused", str(first)),
        ("acme", "token-1", "job_deleted", str(second)),
    ]
    await applier.apply(Batch.of(raw(PARTITION, asked, first_offset=100)))
    assert len(await noted(setting)) == 3


@pytest.mark.parametrize("issuer", [b"", b"two words", b"nul\x00", b"x" * 201, b"\xff"])
async def test_an_issuer_that_is_no_name_is_not_believed(setting: OwnerSetting, issuer: bytes) -> None:
    applier, job_id = await applier_of(setting), job_on(PARTITION)
    [record] = raw(PARTITION, [create(job_id)])
    events = await applier.apply(Batch.of([record._replace(headers=[(ISSUER_HEADER, issuer)])]))
    assert events
    assert await noted(setting) == []


async def test_a_stray_keeps_its_issuer_on_the_way_to_its_own_partition(setting: OwnerSetting) -> None:
    applier, job_id = await applier_of(setting), job_on(PARTITION + 1)
    await applier.apply(Batch.of(raw(PARTITION, [structs.replace(create(job_id), issued_by="token-1")])))
    [sent] = await setting.forwarded_headers(PARTITION + 1, 1)
    assert sent == [(ISSUER_HEADER, b"token-1")]


async def test_records_that_were_consumed_are_left_out(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    records = raw(PARTITION, a_life())
    await applier.apply(Batch.of(records))
    before = await dump(setting.pool)
    assert await applier.apply(Batch.of(records)) == []
    assert await dump(setting.pool) == before


async def test_replaying_every_record_from_offset_0_changes_nothing(setting: OwnerSetting) -> None:
    records = raw(PARTITION, a_life())
    await (await applier_of(setting)).apply(Batch.of(records))
    before = await dump(setting.pool, "epoch", "owner_since")
    async with setting.pool.connection() as conn:
        await conn.execute("UPDATE partitions SET consumed_offset = 0")
    again = await applier_of(setting)
    for record in records:
        assert await again.apply(Batch.of([record])) == []
    assert await dump(setting.pool, "epoch", "owner_since") == before


async def test_the_same_commands_produced_again_change_nothing_but_the_offset(setting: OwnerSetting) -> None:
    applier, values = await applier_of(setting), a_life()
    await applier.apply(Batch.of(raw(PARTITION, values)))
    before = await dump(setting.pool, "consumed_offset")
    await applier.apply(Batch.of(raw(PARTITION, [*values, *values], first_offset=len(values))))
    assert await dump(setting.pool, "consumed_offset") == before
    assert await consumed(setting) == 3 * len(values)


async def test_a_command_that_comes_twice_in_a_batch_takes_effect_once(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    job_id = job_on(PARTITION)
    once = trigger(job_id)
    await applier.apply(Batch.of(raw(PARTITION, [create(job_id), batch([once, once]), once])))
    assert await fetch(setting.pool, "SELECT count(*) FROM runs") == [2]


def two_tenants(first_offset: int = 0) -> list[RawCommand]:
    """Records of tenant acme at the first two offsets, and of globex at the third and fourth."""
    job_id = job_on(PARTITION)
    theirs = [create(job_id, tenant="globex"), pause(job_id, tenant="globex")]
    return raw(PARTITION, [create(job_on(PARTITION)), create(job_on(PARTITION)), *theirs], first_offset=first_offset)


async def ahead(setting: OwnerSetting) -> dict[str, int]:
    return dict(await fetch(setting.pool, "SELECT tenant, next_offset FROM commands_ahead"))


async def test_a_tenant_is_ahead_until_the_position_has_come_up_with_it(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    one, two, *theirs = two_tenants()
    await applier.apply(Batch(theirs, 0, {"globex": 4}))
    assert (await consumed(setting), await ahead(setting)) == (0, {"globex": 4})
    await applier.apply(Batch([one], 1, {}))
    assert (await consumed(setting), await ahead(setting)) == (1, {"globex": 4})
    await applier.apply(Batch([two], 4, {}))
    assert (await consumed(setting), await ahead(setting)) == (4, {})
    assert await fetch(setting.pool, "SELECT version FROM jobs WHERE tenant = 'globex'") == [2]


async def test_a_batch_that_was_committed_unknown_to_us_is_left_out_the_second_time(setting: OwnerSetting) -> None:
    """Also what was rejected: a caller may have been told, and its outcome forgotten."""
    applier = await applier_of(setting)
    one, two, *theirs = two_tenants()
    batch_of_both = Batch([one, *theirs], 1, {"globex": 4})
    await applier.apply(batch_of_both)
    async with setting.pool.connection() as conn:
        await conn.execute("DELETE FROM applied_commands")
    assert await applier.apply(batch_of_both) == []
    assert await fetch(setting.pool, "SELECT count(*) FROM applied_commands") == [0]
    await applier.apply(Batch([two], 4, {}))
    assert await ahead(setting) == {}


async def test_a_tenant_that_is_ahead_stays_so_when_its_commands_break_the_transaction(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = await applier_of(setting)
    one, _, *theirs = two_tenants()

    async def failing(*_: object) -> list[Event]:
        raise RuntimeError("the batch as a whole fails")

    monkeypatch.setattr(applier, "_apply_together", failing)
    await applier.apply(Batch([*theirs, one], 1, {"globex": 4}))
    assert (await consumed(setting), await ahead(setting)) == (1, {"globex": 4})
    assert await fetch(setting.pool, "SELECT tenant, state FROM jobs ORDER BY tenant") == [
        ("acme", "active"),
        ("globex", "paused"),
    ]


async def test_what_is_rejected_carries_why_and_where_and_the_rest_goes_on(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    good, bad, alien = (
        create(job_on(PARTITION)),
        create(job_on(PARTITION), {"cron": "60 * * * *"}),
        b"\x00\x00\x00\x00\x63x",
    )
    values = [batch([create(job_on(PARTITION)), bad, good]), alien, None, create(job_on(PARTITION))]
    records = raw(PARTITION, values, first_offset=40)
    await applier.apply(Batch.of(records))
    assert await fetch(setting.pool, "SELECT count(*) FROM jobs") == [3]
    by_offset = {record["offset"]: record for record in await setting.rejected(3)}
    invalid, unknown, empty = by_offset[40], by_offset[41], by_offset[42]
    assert (invalid["code"], invalid["field"], invalid["index"]) == ("invalid_schedule", "cron", 1)
    assert invalid["commandId"] == str(bad.command_id)
    assert invalid["value"] == records[0].value
    assert (unknown["code"], unknown["value"], unknown["key"]) == ("undecodable", alien, b"key")
    assert "99" in unknown["reason"]
    assert (empty["code"], empty["value"], empty["index"]) == ("undecodable", None, None)
    assert {record["partition"] for record in by_offset.values()} == {PARTITION}


async def test_a_command_that_is_invalid_by_itself_is_rejected_with_its_field(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    too_large = create(job_on(PARTITION), payload='"' + 65 * 1024 * "x" + '"')
    await applier.apply(Batch.of(raw(PARTITION, [too_large])))
    [rejected] = await setting.rejected(1)
    assert (rejected["code"], rejected["field"], rejected["offset"]) == ("invalid", "payload", 0)


async def test_a_stray_command_is_applied_once_on_its_own_partition(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    schedule = {"cron": "0 9 * * 1", "zone": "Europe/Paris", "excludeDates": ["2027-01-04"]}
    stray = create(job_on(9), schedule, payload="[1]", name="weekly", lane="high", timeout_seconds=5)
    records = raw(PARTITION, [stray, create(job_on(PARTITION))])
    await applier.apply(Batch.of(records))
    assert await fetch(setting.pool, "SELECT count(*) FROM jobs") == [1]
    async with setting.pool.connection() as conn:
        await conn.execute("UPDATE partitions SET consumed_offset = 0")
    await applier.apply(Batch.of(records))  # forwards it a second time
    forwarded = [RawCommand(9, offset, None, value) for offset, value in enumerate(await setting.forwarded(9, 2))]
    own = await applier_of(setting, 9)
    await own.apply(Batch.of(forwarded))
    [(partition, definition, payload)] = await fetch(
        setting.pool, "SELECT partition, definition, payload FROM jobs WHERE job_id = %s", stray.job_id
    )
    assert (partition, payload) == (partition_of_job(stray.job_id, PARTITIONS), "[1]")
    assert '"excludeDates":["2027-01-04"]' in definition
    assert '"timeoutSeconds":5' in definition
    assert await fetch(
        setting.pool, "SELECT outcome FROM applied_commands WHERE command_id = %s", stray.command_id
    ) == ["applied"]


async def test_a_command_that_the_ledger_refuses_is_found_and_the_others_take_effect(setting: OwnerSetting) -> None:
    applier = await applier_of(setting)
    await _refuse(setting, queue="poison")
    jobs = [job_on(PARTITION) for _ in range(5)]
    poison = create(job_on(PARTITION), queue="poison")
    records = raw(
        PARTITION, [create(jobs[0]), batch([create(jobs[1]), poison, create(jobs[2])]), create(jobs[3]), pause(jobs[3])]
    )
    events = await applier.apply(Batch.of(records))
    assert sorted(await fetch(setting.pool, "SELECT job_id FROM jobs")) == sorted(jobs[:4])
    assert len([event for event in events if event.type == "job_created"]) == 4
    assert await consumed(setting) == 4
    [rejected] = await setting.rejected(1)
    assert (rejected["code"], rejected["offset"], rejected["index"]) == ("internal_error", 1, 1)
    assert rejected["commandId"] == str(poison.command_id)
    assert await fetch(
        setting.pool, "SELECT outcome FROM applied_commands WHERE command_id = %s", poison.command_id
    ) == ["internal_error"]
    assert await fetch(setting.pool, "SELECT state FROM jobs WHERE job_id = %s", jobs[3]) == ["paused"]


async def _refuse(setting: OwnerSetting, queue: str) -> None:
    """As a bug in a statement of ours would: this queue's jobs divide by zero."""
    async with setting.pool.connection() as conn:
        await conn.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 / 0; RETURN NEW; END'
            """
        )
        await conn.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.queue = '{queue}') "
            "EXECUTE FUNCTION refuse()"
        )


async def test_nothing_is_consumed_while_a_rejection_cannot_be_published(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejections, "PUBLISH_TIMEOUT_S", 0.2)
    fence = (await take_over(setting.pool, PARTITION, "me")).fence
    away = CommandReturns("127.0.0.1:1", setting.topics.commands, setting.topics.rejected, CODEC)
    records = raw(PARTITION, [create(job_on(PARTITION)), b"garbage"])
    before = await dump(setting.pool)
    with pytest.raises(KafkaUnavailable):
        await CommandApplier(fence, setting.pool, away, CODEC, PARTITIONS).apply(Batch.of(records))
    away.close()
    assert await dump(setting.pool, "id") == _without_ids(before)
    await CommandApplier(fence, setting.pool, setting.around.returns, CODEC, PARTITIONS).apply(Batch.of(records))
    assert await consumed(setting) == 2
    assert [record["offset"] for record in await setting.rejected(1)] == [1]


def _without_ids(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {table: [{k: v for k, v in row.items() if k != "id"} for row in rows] for table, rows in tables.items()}


async def test_an_owner_whose_epoch_is_over_applies_nothing(setting: OwnerSetting) -> None:
    old = await applier_of(setting)
    await take_over(setting.pool, PARTITION, "another")
    before = await dump(setting.pool)
    with pytest.raises(EpochLost):
        await old.apply(Batch.of(raw(PARTITION, [create(job_on(PARTITION)), b"garbage"])))
    assert await dump(setting.pool) == before


async def test_a_takeover_goes_on_from_what_was_consumed(setting: OwnerSetting) -> None:
    await (await applier_of(setting)).apply(Batch.of(raw(PARTITION, [create(job_on(PARTITION))] * 3)))
    takeover = await take_over(setting.pool, PARTITION, "another")
    assert takeover.consumed_offset == 3
    async with owner_transaction(setting.pool, takeover.fence) as tx:
        assert tx.consumed_offset == 3
