"""The benchmark of partitions that move, once and tiny: it runs, and no call fails. Its figures are not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from bench import move
from fencepostd.local import Local


@pytest.fixture(scope="module")
def new_dsn(postgres_server: str) -> Iterator[str]:
    """An empty database, which outlives the roles that have sessions with it."""
    name = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(postgres_server, dbname=name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_partitions_move_under_load_and_no_call_fails(new_dsn: str, local: Local) -> None:
    found = move.measure(local, new_dsn, rate=20.0, moves=2, period_s=1, watch_s=2.0)
    assert found["moved, partitions"] == 2
    assert found["stood still max, s"] > 0
    for when in ("before", "meanwhile", "after"):
        assert found[f"{when}: started, runs/s"] > 0
        assert found[f"{when}: lateness min, ms"] >= 0
        assert found[f"{when}: failed, calls"] == 0
