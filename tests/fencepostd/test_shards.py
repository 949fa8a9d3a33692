"""A whole installation on two shards: every role, from a command on Kafka to the history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from connectors.stack import KafkaBroker
from schemas.ids import partition_of_run
from tests.fencepostd.installation import JOBS, installed
from tests.ledger_fixtures import Database


def shard_of(run_id: str) -> int:
    return partition_of_run(UUID(run_id)) % 2


@pytest.mark.apache_kafka(reason="on tansu a join waits for half the session timeout")
async def test_jobs_of_both_shards_run_and_one_shard_s_go_on_while_the_other_is_away(
    kafka_broker: KafkaBroker, postgres_server: str, empty_ledger_dsn: str, another_ledger_dsn: str, tmp_path: Path
) -> None:
    other = Database(postgres_server, another_ledger_dsn)
    async with installed(kafka_broker.bootstrap, [empty_ledger_dsn, another_ledger_dsn], tmp_path) as installation:
        await asyncio.to_thread(installation.create, "first")
        finished = await installation.work("first", lambda finished: len(finished) == JOBS)
        assert {shard_of(run_id) for run_id in finished} == {0, 1}
        await installation.completed(JOBS, "first")

        other.go_away()
        await asyncio.to_thread(installation.create, "second")
        here = await installation.work("second", lambda finished: len(finished) > 0)
        other.come_back()
        rest = await installation.work("second", lambda finished: len(here) + len(finished) == JOBS)
        assert {shard_of(run_id) for run_id in here} == {0}
        assert {shard_of(run_id) for run_id in rest} >= {1}
        await installation.completed(JOBS, "second")
