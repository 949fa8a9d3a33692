"""`fencepostd backup-check`: each finding, and what it prints of a real installation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from connectors.stack import KafkaBroker
from fencepostd import backup_check
from fencepostd.backup_check import ShardKeeping
from fencepostd.cli import main
from ledger.backups import Keeping, read_consumed, read_keeping, read_tzdata
from ledger.connection import Pool, session
from schemas.zones import TZDATA_VERSION
from streams.topic_keeping import TopicKeeping
from streams.topics import Topics, create_topics
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import PARTITIONS

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY = timedelta(days=1)
KEEPING = Keeping(
    "db:5432/fencepost",
    NOW,
    1_500_000_000,
    True,
    True,
    "on",
    "replica",
    "on",
    60.0,
    NOW - timedelta(seconds=30),
    None,
    0,
)
SHARD = ShardKeeping(KEEPING, NOW, {0: 100, 1: 0}, {"2025b"}, {"2025b"})
TOPIC = TopicKeeping("fencepost.commands", 7 * 86_400.0, None, 3, {0: 90, 1: 0}, {0: 110, 1: 0})


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "ok", "on disk"),
        ({"fsync": False}, "fail", "fsync is off"),
        ({"full_page_writes": False}, "fail", "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "fail", "synchronous_commit is off"),
        ({"synchronous_commit": "remote_apply"}, "ok", "remote_apply"),
    ],
)
def test_a_server_that_may_lose_what_it_has_accepted_fails(changes: dict[str, Any], status: str, said: str) -> None:
    finding = backup_check.durability(2, KEEPING._replace(**changes))
    assert (finding.check, finding.status) == ("shard 2: durable", status)
    assert said in finding.detail
    assert (finding.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "ok", "30 s ago"),
        ({"archived_at": ago(hours=1)}, "warn", "3600 s ago"),
        ({"archived_at": ago(hours=1), "archive_timeout_s": 1_800.0}, "ok", "3600 s ago"),
        ({"archive_timeout_s": 0.0}, "warn", "archive_timeout is not set"),
        ({"archived_at": None}, "warn", "nothing was archived yet"),
        ({"archived_at": None, "failed_at": ago(seconds=5)}, "fail", "2026-11-30 11:59:55"),
        ({"failed_at": ago(seconds=5)}, "fail", "could not be archived"),
        ({"failed_at": ago(seconds=50)}, "ok", "30 s ago"),
        ({"archive_mode": "off"}, "warn", "nobody receives the WAL"),
        ({"archive_mode": "off", "receivers": 2}, "ok", "2 receive its WAL"),
    ],
)
def test_wal_that_is_not_archived_is_a_warning_and_an_archive_that_fails_a_failure(
    changes: dict[str, Any], status: str, said: str
) -> None:
    finding = backup_check.wal_archive(0, KEEPING._replace(**changes))
    assert finding.status == status
    assert said in finding.detail
    assert (finding.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "ok", "168 h"),
        ({"retention_s": None}, "ok", "for ever"),
        ({"retention_s": 23 * 3_600.0}, "fail", "keeps 23 h, and the backup may be 24 h old"),
        ({"retention_bytes": 50_000_000}, "warn", "50 MB a partition"),
    ],
)
def test_commands_must_be_kept_for_longer_than_a_backup_is_old(changes: dict[str, Any], status: str, said: str) -> None:
    finding = backup_check.commands_kept(TOPIC._replace(**changes), DAY)
    assert finding.status == status
    assert said in finding.detail


@pytest.mark.parametrize(
    ("consumed", "status", "said"),
    [
        ({0: 100, 1: 0}, "ok", "10 records are not applied yet"),
        ({0: 90}, "ok", "20 records"),
        ({0: 85}, "fail", "5 records of partitions [0] are gone"),
        ({0: 111}, "fail", "of partitions [0] the ledger has read further"),
    ],
)
def test_commands_that_are_gone_before_they_were_applied_fail_and_so_does_another_topic(
    consumed: dict[int, int], status: str, said: str
) -> None:
    finding = backup_check.commands_read(TOPIC, [SHARD._replace(consumed=consumed)])
    assert finding.status == status
    assert said in finding.detail


def test_what_is_lost_with_the_events_or_one_broker_or_old_rules_of_time_is_a_warning() -> None:
    assert backup_check.events_kept(TOPIC, DAY).status == "ok"
    assert backup_check.events_kept(TOPIC._replace(retention_s=3_600.0), DAY).status == "warn"
    assert backup_check.replicas([TOPIC, TOPIC._replace(replicas=1)]).status == "warn"
    assert backup_check.replicas([TOPIC]).status == "ok"
    assert backup_check.tzdata([SHARD]).status == "ok"
    stale = backup_check.tzdata([SHARD, SHARD._replace(rules_kept=set())])
    assert (stale.status, "2025b" in stale.detail) == ("warn", True)
    assert backup_check.clocks({0: SHARD}).status == "ok"
    assert (
        "shard 1 is -9.0 s off" in backup_check.clocks({0: SHARD, 1: SHARD._replace(looked_at=ago(seconds=-9))}).detail
    )


async def test_a_shard_tells_how_it_keeps_what_is_committed_and_what_a_backup_needs(ledger_pool: Pool) -> None:
    owned = await OwnedPartition.take(ledger_pool)
    await owned.runs(2)
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE jobs SET tzdata_version = '1999a'")
        await conn.execute("UPDATE partitions SET consumed_offset = 7 WHERE partition = 3")
        keeping = await read_keeping(conn)
        assert (keeping.fsync, keeping.wal_level, keeping.archive_mode, keeping.receivers) == (
            True,
            "replica",
            "off",
            0,
        )
        assert keeping.server.endswith(f"/{conn.info.dbname}")
        assert keeping.size_bytes > 1_000_000
        assert await read_consumed(conn) == {partition: 7 * (partition == 3) for partition in range(PARTITIONS)}
        assert await read_tzdata(conn) == ({"1999a"}, set())


def check(*options: str) -> Result:
    return CliRunner().invoke(main, ["backup-check", *options])


def test_its_help_teaches_what_to_back_up_and_tells_the_exit_codes() -> None:
    said = " ".join(check("--help").output.split())
    for words in ("The ledger is all there is to back up", "Exit code 0", "1 it could not look", "3 something fails"):
        assert words in said


def test_a_ledger_or_a_broker_that_is_away_is_told_in_a_line() -> None:
    result = check("--kafka", "127.0.0.1:1", "--postgres", "host=127.0.0.1 port=1 connect_timeout=2")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the broker did not")


@pytest.mark.apache_kafka(reason="only there a topic's configuration can be read and changed")
def test_a_real_installation_is_explained_and_checked(kafka_broker: KafkaBroker, ledger_dsn: str) -> None:
    topics = Topics(f"backup-{uuid4().hex[:8]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    options = ["--kafka", kafka_broker.bootstrap, "--postgres", ledger_dsn, "--topic-prefix", topics.prefix]
    result = check(*options)
    assert result.exit_code == 0, result.output
    for line in ("Need not be backed up", f"{topics.run_events}, which keeps 720 h", "on one broker's disk"):
        assert line in result.output
    assert TZDATA_VERSION in result.output

    resource = ConfigResource(ResourceType.TOPIC, topics.commands)
    resource.add_incremental_config(
        ConfigEntry(
            "retention.ms",
            str(3_600_000),
            source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
            incremental_operation=AlterConfigOpType.SET,
        )
    )
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})  # it must outlive its answer
    admin.incremental_alter_configs([resource])[resource].result(20)
    result = check(*options)
    assert result.exit_code == 3, result.output
    assert f"fail  commands: kept         {topics.commands} keeps 1 h" in result.output
    assert check(*options, "--backup-age-hours", "0.5").exit_code == 0

    with psycopg.connect(ledger_dsn) as conn:
        conn.execute("UPDATE partitions SET consumed_offset = 5 WHERE partition = 2")
    result = check(*options, "--backup-age-hours", "0.5")
    assert result.exit_code == 3
    assert "of partitions [2] the ledger has read further" in result.output

    init = [*options, "--partitions", str(PARTITIONS), "--replication-factor", "1"]
    said = CliRunner().invoke(main, ["init", *init])
    assert said.exit_code == 0, said.output
    assert "1 partitions had read a commands topic that is gone" in said.output
    assert check(*options, "--backup-age-hours", "0.5").exit_code == 0
