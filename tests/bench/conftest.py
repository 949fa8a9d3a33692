"""What the benchmarks' tests work on."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from connectors.stack import KafkaBroker
from fencepostd.local import Local


@pytest.fixture(scope="module")
def local(kafka_broker: KafkaBroker, postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Every role, one of each, on the session's servers, with a database of its own."""
    database = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {database}")
    dsn = make_conninfo(postgres_server, dbname=database)
    local = Local(tmp_path_factory.mktemp("bench"), print, kafka=kafka_broker.bootstrap, postgres=dsn, owners=1)
    local.up()
    yield local
    local.stack.down()
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {database} WITH (FORCE)")
