"""A Postgres with a standby: what one has committed both have, and either may be the primary."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from connectors.stack import LocalStack, PostgresPair, PostgresServer, StackError, default_cache_dir
from connectors.stack.processes import wait_until

NOBODY = "127.0.0.1:1"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    stack = LocalStack(tmp_path, kafka=NOBODY, standby=True, say=print)
    yield stack
    stack.down()


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as conn:
        return [row for (row,) in conn.execute("SELECT row FROM kept ORDER BY row")]


def keep(dsn: str, row: int) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS kept (row int)")
        conn.execute("INSERT INTO kept VALUES (%s)", (row,))


def test_either_may_be_promoted_and_the_other_follows_at_the_next_start(stack: LocalStack, tmp_path: Path) -> None:
    stack.start_part("postgres-standby")  # the two are started together
    first, second = PostgresPair(tmp_path, default_cache_dir()).servers
    keep(stack.dsn, 1)
    told = {status.name: status for status in stack.status()}
    assert [told[name].health for name in ("postgres", "postgres-standby")] == ["ok", "ok"]
    assert ("standby" in told["postgres"].detail, "standby" in told["postgres-standby"].detail) == (False, True)

    stack.kill_part("postgres")
    stack.promote()
    assert rows(stack.dsn) == [1]
    keep(stack.dsn, 2)
    stack.start_part("postgres")
    assert [server.timeline for server in (first, second)] == [0, 2]
    keep(stack.dsn, 3)

    stack.kill_part("postgres-standby")
    stack.promote()
    assert [server.timeline for server in (first, second)] == [3, 2]
    assert rows(stack.dsn) == [1, 2, 3]


def test_nothing_is_committed_while_the_standby_stands_still(stack: LocalStack) -> None:
    stack.start_part("postgres")
    keep(stack.dsn, 1)
    stack.signal_part("postgres-standby", signal.SIGSTOP)
    server = PostgresServer(stack.state_dir, default_cache_dir())
    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(keep, stack.dsn, 2)
        assert wait_until(lambda: server.execute(WAITING) != [], 30)
        assert rows(stack.dsn) == [1]
        stack.signal_part("postgres-standby", signal.SIGCONT)
        keeping.result(30)
    assert rows(stack.dsn) == [1, 2]


def test_a_postgres_without_a_standby_cannot_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="has no standby"):
        LocalStack(tmp_path, kafka=NOBODY).promote()


def test_no_standby_is_started_beside_a_postgres_that_was_given(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, kafka=NOBODY, postgres="dbname=mine", standby=True, say=lambda _: None)
    with pytest.raises(StackError, match="name all its hosts"):
        stack.up()
