"""What the benchmarks' tests work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from bench.balancer import NOTICE_S
from bench.deploy import PAIRS
from connectors.stack import KafkaBroker
from fencepostd.local import Local
from streams.topics import Topics
from tests.chaos.cluster import wait_for


@pytest.fixture(scope="module")
def local(kafka_broker: KafkaBroker, postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Every role, one of each, on the session's servers, with a database of its own."""
    with running(kafka_broker, postgres_server, tmp_path_factory.mktemp("bench"), owners=1) as local:
        yield local


@pytest.fixture
def pairs(kafka_broker: KafkaBroker, postgres_server: str, tmp_path: Path) -> Iterator[Local]:
    """Two of every role of which there may be two."""
    with running(kafka_broker, postgres_server, tmp_path, **PAIRS, notice_s=NOTICE_S) as local:
        yield local


@contextmanager
def running(kafka: KafkaBroker, postgres: str, folder: Path, **options: Any) -> Iterator[Local]:
    database = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {database}")
    local = Local(folder, print, kafka=kafka.bootstrap, postgres=make_conninfo(postgres, dbname=database), **options)
    local.up()
    yield local
    local.stack.down()
    forget_topics(kafka)
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {database} WITH (FORCE)")


def forget_topics(kafka: KafkaBroker) -> None:
    """Or the next installation on this broker, whose ledger is empty, would apply the commands of this one."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = {topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{Topics().prefix}.")}
    for deleted in admin.delete_topics([*topics]).values():
        deleted.result(30)
    wait_for(lambda: not topics & admin.list_topics(timeout=10).topics.keys(), 30, "the topics are gone")
